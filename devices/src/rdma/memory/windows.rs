//! Memory windows: keys that give peers part of a region, with rights of their own, made and taken away by work request.
//!
//! A window shares its region's layout, so that the data path looks a window up as it does a region. The region counts the windows that are bound
//! to it, and stays as it is while there are any.

use super::Scope;
use super::regions::{Kind, Memory, Refusal, Region, State};
use crate::rdma::wire::{Status, access};

/// Types of memory windows (InfiniBand, 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Used by every QP of its PD; every bind gives it another key, and one of 0 bytes takes its bytes away.
    One,
    /// Used by the QP that bound it, in its PD (2B); the consumer chooses the tag of its key, and invalidates it before it is bound again.
    Two,
}

/// A window, bound or not.
pub(super) struct Window {
    kind: WindowKind,
    /// Handle of the region that it is bound to, 0 none.
    region: u32,
}

/// What a work request binds.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The key that the window gets: its own, with another tag.
    pub key: u32,
    /// Key of the region.
    pub region: u32,
    /// Address of the first byte in the region's own terms.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Bits of [`access`] that windows may have, and [`access::ZERO_BASED`].
    pub access: u32,
}

/// Rights that a window may give.
const RIGHTS: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// What a bind may ask for. LOCAL_WRITE is what the verbs want of a region beside the remote rights, and programs ask for it here too; a window
/// has no local rights to give.
const ASKABLE: u32 = RIGHTS | access::LOCAL_WRITE | access::ZERO_BASED;

/// Where a bind leads.
struct Place {
    /// Handle of the region.
    region: u32,
    shift: u64,
    state: State,
}

impl Window {
    /// Only a window of type 2 that is bound can be invalidated, and only by the QP that bound it. `region` is what the key stands for.
    pub(super) fn check_invalidate(&self, who: &Scope, region: &Region) -> Result<(), Refusal> {
        if self.kind != WindowKind::Two {
            return Err(Refusal::Access);
        }
        if !region.is_live() {
            return Err(Refusal::State);
        }
        if region.tie != who.qp {
            return Err(Refusal::Owner);
        }
        Ok(())
    }
}

impl Memory {
    /// Windows that exist.
    pub fn windows(&self) -> u32 {
        self.window_count
    }

    /// Makes a window that is not bound. The caller has checked the PD. Returns the key.
    ///
    /// # Errors
    /// `NoResource` at the limit.
    pub fn alloc_window(&mut self, context: u32, pd: u32, kind: WindowKind) -> Result<u32, Status> {
        if self.window_count >= self.max_mw {
            return Err(Status::NoResource);
        }
        let window = Kind::Window(Window { kind, region: 0 });
        let key = self.regions.insert_with(|handle| Region {
            handle,
            ..Region::new(context, pd, window)
        });
        self.window_count += u32::from(key.is_some());
        key.ok_or(Status::NoResource)
    }

    /// The key of the window that a command of `context` names, and its PD.
    ///
    /// # Errors
    /// `NotFound`, `Denied` for another owner's.
    pub fn find_window(&self, context: u32, handle: u32) -> Result<(u32, u32), Status> {
        let (key, region) = self.regions.current(handle).ok_or(Status::NotFound)?;
        if region.handle != handle || !matches!(region.kind, Kind::Window(_)) {
            return Err(Status::NotFound);
        }
        if region.context != context {
            return Err(Status::Denied);
        }
        Ok((key, region.pd))
    }

    /// Ends a window, bound or not. The caller has seen to it that no [`super::Segment`] of it is left. Returns its PD.
    ///
    /// # Errors
    /// As [`Memory::find_window`].
    pub fn dealloc_window(&mut self, context: u32, handle: u32) -> Result<u32, Status> {
        let (key, pd) = self.find_window(context, handle)?;
        self.unbind(key);
        self.remove(key);
        Ok(pd)
    }

    /// Binds a window for a QP, or takes its bytes away. Returns whether it had bytes before: then the caller sees to it that no
    /// [`super::Segment`] of them is left before it tells anybody.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn bind(&mut self, who: &Scope, bind: &Bind) -> Result<bool, Refusal> {
        let (old_key, region) = self.regions.current(bind.key).ok_or(Refusal::NotFound)?;
        region.belongs_to(who)?;
        let Kind::Window(Window { kind, .. }) = region.kind else {
            return Err(Refusal::Access);
        };
        let had = region.is_live();
        match kind {
            // The old key would go on to lead somewhere.
            WindowKind::One if old_key == bind.key => return Err(Refusal::State),
            WindowKind::Two if had => return Err(Refusal::State),
            WindowKind::Two if bind.length == 0 => return Err(Refusal::Range),
            WindowKind::One | WindowKind::Two => {}
        }
        let place = match bind.length {
            0 => Place {
                region: 0,
                shift: 0,
                state: State::Invalid,
            },
            _ => self.check_bind(who, bind)?,
        };
        self.unbind(old_key);
        if let Some((_, region)) = self.regions.current_mut(place.region) {
            region.windows += 1;
        }
        if let Some((_, window)) = self.regions.current_mut(old_key) {
            if kind == WindowKind::Two {
                self.tied.insert((who.qp, window.handle));
            }
            let zero_based = bind.access & access::ZERO_BASED != 0;
            window.access = bind.access & RIGHTS;
            window.iova = if zero_based { 0 } else { bind.addr };
            window.length = bind.length;
            window.shift = place.shift;
            window.tie = if kind == WindowKind::Two { who.qp } else { 0 };
            window.state = place.state;
            window.kind = Kind::Window(Window {
                kind,
                region: place.region,
            });
        }
        self.regions.rename(bind.key);
        Ok(had)
    }

    /// Checks what of a bind concerns the region.
    fn check_bind(&self, who: &Scope, bind: &Bind) -> Result<Place, Refusal> {
        let region = self.regions.get(bind.region).ok_or(Refusal::NotFound)?;
        let State::Live(layout) = &region.state else {
            return Err(Refusal::NotFound);
        };
        region.belongs_to(who)?;
        let writes = bind.access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        // A window has no right to be bound to.
        if bind.access & !ASKABLE != 0
            || region.access & access::MW_BIND == 0
            || (writes && region.access & access::LOCAL_WRITE == 0)
        {
            return Err(Refusal::Access);
        }
        let offset = bind.addr.wrapping_sub(region.iova);
        if offset > region.length || bind.length > region.length - offset {
            return Err(Refusal::Range);
        }
        Ok(Place {
            region: region.handle,
            shift: region.shift + offset,
            state: State::Live(layout.clone()),
        })
    }

    /// A QP is gone: the windows that are tied to it are bound no longer. The caller has seen to it that no [`super::Segment`] of them
    /// is left.
    pub(crate) fn untie(&mut self, qp: u64) {
        while let Some(&(_, handle)) = self.tied.range((qp, 0)..=(qp, u32::MAX)).next() {
            self.tied.remove(&(qp, handle));
            let Some((key, window)) = self.regions.current_mut(handle) else {
                continue;
            };
            window.state = State::Invalid;
            self.unbind(key);
        }
    }

    /// The region that a window is bound to, if it is one and it is, counts it no longer; nor does the QP that it is tied to.
    pub(super) fn unbind(&mut self, key: u32) {
        let Some(Region {
            kind: Kind::Window(window),
            tie,
            handle,
            ..
        }) = self.regions.get_mut(key)
        else {
            return;
        };
        self.tied.remove(&(std::mem::take(tie), *handle));
        let region = std::mem::take(&mut window.region);
        if let Some((_, region)) = self.regions.current_mut(region) {
            region.windows = region.windows.saturating_sub(1);
        }
    }
}
