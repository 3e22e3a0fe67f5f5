//! Objects by handle.
//!
//! A handle is an index and a tag; the tag changes each time the index is used again, so that a handle kept too long finds nothing. Freed
//! indices wait in a queue before they are used again, which makes the time until a handle value returns long.

use std::collections::VecDeque;

/// How an index and a tag make a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandleLayout {
    /// Indices below are never given out.
    pub first: u32,
    /// Number of index bits.
    pub index_bits: u32,
    /// Position of the index.
    pub index_shift: u32,
    /// Number of tag bits.
    pub tag_bits: u32,
    /// Position of the tag.
    pub tag_shift: u32,
}

impl HandleLayout {
    /// Handles of `bits` bits for up to `limit` objects: the index low, the tag above it.
    pub(crate) fn index_low(first: u32, limit: u32, bits: u32) -> Self {
        let index_bits = bits_for(first.saturating_add(limit)).min(bits);
        HandleLayout {
            first,
            index_bits,
            index_shift: 0,
            tag_bits: bits - index_bits,
            tag_shift: index_bits,
        }
    }

    /// Keys: `index << 8 | tag` (section 4.4).
    pub(crate) const KEY: HandleLayout = HandleLayout {
        first: 1,
        index_bits: 24,
        index_shift: 8,
        tag_bits: 8,
        tag_shift: 0,
    };

    fn handle(self, index: u32, tag: u32) -> u32 {
        (index << self.index_shift) | tag.checked_shl(self.tag_shift).unwrap_or(0)
    }

    fn index(self, handle: u32) -> u32 {
        (handle >> self.index_shift) & mask(self.index_bits)
    }

    fn tag(self, handle: u32) -> u32 {
        handle.checked_shr(self.tag_shift).unwrap_or(0) & mask(self.tag_bits)
    }

    fn next_tag(self, tag: u32) -> u32 {
        tag.wrapping_add(1) & mask(self.tag_bits)
    }
}

fn mask(bits: u32) -> u32 {
    if bits >= 32 {
        u32::MAX
    } else {
        (1 << bits) - 1
    }
}

/// Bits that the numbers below `count` need.
fn bits_for(count: u32) -> u32 {
    32 - count.saturating_sub(1).leading_zeros()
}

/// Indices that must be free before the oldest of them is used again.
const REUSE_AFTER: usize = 64;

struct Slot<T> {
    handle: u32,
    tag: u32,
    value: Option<T>,
}

/// A table of objects of one kind. It grows with use, up to a limit.
pub(crate) struct Slab<T> {
    layout: HandleLayout,
    limit: u32,
    live: u32,
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new(layout: HandleLayout, limit: u32) -> Self {
        let room = (u64::from(mask(layout.index_bits)) + 1).saturating_sub(layout.first.into());
        Slab {
            layout,
            limit: limit.min(u32::try_from(room).unwrap_or(u32::MAX)),
            live: 0,
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// Objects in the table.
    pub(crate) fn len(&self) -> u32 {
        self.live
    }

    /// Whether another object fits.
    pub(crate) fn has_room(&self) -> bool {
        self.live < self.limit
    }

    /// Puts in what `make` makes of its handle. None when the limit is reached.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        let fresh = self.slots.len() < self.limit as usize;
        let position = if fresh && self.free.len() < REUSE_AFTER {
            None
        } else {
            self.free.pop_front()
        };
        self.live += 1;
        match position {
            Some(position) => {
                let slot = &mut self.slots[position as usize];
                slot.value = Some(make(slot.handle));
                Some(slot.handle)
            }
            None => {
                // Bounded by the limit, which is a u32.
                let index = self.slots.len() as u32 + self.layout.first;
                let handle = self.layout.handle(index, 0);
                self.slots.push(Slot {
                    handle,
                    tag: 0,
                    value: Some(make(handle)),
                });
                Some(handle)
            }
        }
    }

    #[inline]
    fn position(&self, handle: u32) -> Option<usize> {
        let position = self.layout.index(handle).checked_sub(self.layout.first)? as usize;
        Some(position)
    }

    /// The object of that handle.
    #[inline]
    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let slot = self.slots.get(self.position(handle)?)?;
        if slot.handle != handle {
            return None;
        }
        slot.value.as_ref()
    }

    /// The object of that handle.
    #[inline]
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let position = self.position(handle)?;
        let slot = self.slots.get_mut(position)?;
        if slot.handle != handle {
            return None;
        }
        slot.value.as_mut()
    }

    /// Takes the object of that handle out, which no longer leads anywhere.
    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let position = self.position(handle)?;
        let layout = self.layout;
        let slot = self.slots.get_mut(position)?;
        if slot.handle != handle {
            return None;
        }
        let value = slot.value.take()?;
        slot.tag = layout.next_tag(slot.tag);
        slot.handle = layout.handle(position as u32 + layout.first, slot.tag);
        self.free.push_back(position as u32);
        self.live -= 1;
        Some(value)
    }

    /// The object at the index of a handle, whatever the handle's tag, and the handle that it has now.
    pub(crate) fn current(&self, handle: u32) -> Option<(u32, &T)> {
        let slot = self.slots.get(self.position(handle)?)?;
        slot.value.as_ref().map(|value| (slot.handle, value))
    }

    /// As [`Slab::current`].
    pub(crate) fn current_mut(&mut self, handle: u32) -> Option<(u32, &mut T)> {
        let position = self.position(handle)?;
        let slot = self.slots.get_mut(position)?;
        slot.value.as_mut().map(|value| (slot.handle, value))
    }

    /// Gives the object at the index of a handle the tag of that handle. Without an object there, nothing happens.
    pub(crate) fn rename(&mut self, handle: u32) {
        let layout = self.layout;
        if let Some(slot) = self
            .position(handle)
            .and_then(|position| self.slots.get_mut(position))
            && slot.value.is_some()
        {
            slot.handle = handle;
            slot.tag = layout.tag(handle);
        }
    }

    /// The index in a handle, valid or not.
    pub(crate) fn index(&self, handle: u32) -> u32 {
        self.layout.index(handle)
    }

    /// The object at an index.
    pub(crate) fn by_index(&self, index: u32) -> Option<&T> {
        let position = index.checked_sub(self.layout.first)?;
        self.slots.get(position as usize)?.value.as_ref()
    }

    /// All objects with their handles, to change.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.value.as_mut().map(|value| (slot.handle, value)))
    }

    /// All objects, in the order of their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots
            .iter()
            .filter_map(|slot| slot.value.as_ref().map(|value| (slot.handle, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_handle_finds_nothing_and_does_not_come_back_soon() {
        let mut slab = Slab::new(HandleLayout::KEY, 4);
        let first = slab.insert_with(|_| 1).unwrap();
        assert_eq!(first, 1 << 8);
        let mut seen = vec![first];
        assert_eq!(slab.remove(first), Some(1));
        for n in 0..255 * 4 {
            let handle = slab.insert_with(|_| n).unwrap();
            assert!(!seen.contains(&handle), "{handle:#x} after {n}");
            assert_eq!(slab.get(first), None);
            slab.remove(handle).unwrap();
            seen.push(handle);
        }
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn an_object_that_is_renamed_is_found_by_its_new_handle_only() {
        let mut slab = Slab::new(HandleLayout::KEY, 4);
        let first = slab.insert_with(|_| 7).unwrap();
        let renamed = first | 0x90;
        slab.rename(renamed);
        assert_eq!((slab.get(first), slab.get(renamed)), (None, Some(&7)));
        assert_eq!(slab.current(first), Some((renamed, &7)));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.remove(renamed), Some(7));
        assert_eq!(slab.current(first), None);
        slab.rename(first);
        assert_eq!(slab.get(first), None);
    }

    #[test]
    fn the_limit_holds_and_room_returns() {
        let mut slab = Slab::new(HandleLayout::index_low(1, 3, 32), 3);
        let handles: Vec<u32> = (0..3).map(|n| slab.insert_with(|_| n).unwrap()).collect();
        assert_eq!(slab.insert_with(|_| 9), None);
        assert_eq!(slab.remove(handles[1]), Some(1));
        assert_eq!(slab.remove(handles[1]), None);
        let again = slab.insert_with(|_| 9).unwrap();
        assert_ne!(again, handles[1]);
        assert_eq!(slab.get(again), Some(&9));
        assert_eq!(slab.iter().count(), 3);
    }

    #[test]
    fn no_value_of_a_handle_panics() {
        for layout in [
            HandleLayout::KEY,
            HandleLayout::index_low(2, 1 << 14, 24),
            HandleLayout::index_low(1, u32::MAX, 32),
        ] {
            let mut slab = Slab::new(layout, 8);
            let live = slab.insert_with(|_| ()).unwrap();
            for handle in (0..=32)
                .map(|bit| (1_u64 << bit).wrapping_sub(1) as u32)
                .chain([live ^ 1, live << 1])
            {
                if handle != live {
                    assert!(slab.get(handle).is_none());
                    assert!(slab.get_mut(handle).is_none());
                    assert!(slab.remove(handle).is_none());
                }
            }
        }
    }

    #[test]
    fn qpns_stay_within_24_bits_and_never_are_0_or_1() {
        let mut slab = Slab::new(HandleLayout::index_low(2, 16_384, 24), 16_384);
        for _ in 0..3 {
            let handles: Vec<u32> = (0..16_384)
                .map(|_| slab.insert_with(|_| ()).unwrap())
                .collect();
            assert!(handles.iter().all(|h| (2..1 << 24).contains(h)));
            for handle in handles {
                slab.remove(handle).unwrap();
            }
        }
    }
}
