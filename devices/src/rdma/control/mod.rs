//! Commands: decode, check, call the objects, encode the reply. Section 4.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::device::DeviceConfig;
use super::engine::Engine;
use super::events::EventSink;
use super::fabric::Fabric;
use super::objects::{KERNEL, Objects};
use super::wire::{CommandHeader, Le32, ReplyHeader, Status, opcode};

mod completion;
mod memory;
mod multicast;
mod queries;
mod queues;
mod srq;
#[cfg(test)]
mod tests;
mod xrcd;

/// A command's result: the reply's body is in the buffer given.
type Outcome = Result<(), Status>;

/// What commands act on: the parts of a device.
pub(super) struct Control<'a> {
    pub config: &'a DeviceConfig,
    pub objects: &'a mut Objects,
    pub engine: &'a mut Engine,
    pub fabric: &'a mut dyn Fabric,
    pub sink: &'a mut dyn EventSink,
}

/// Who may ask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    Any,
    Kernel,
}

/// What carries a command out: it gets the owner and the body, and appends the body of its reply.
type Run<'c> = fn(&mut Control<'c>, u32, &[u8], &mut Vec<u8>) -> Outcome;

/// A command: who may ask, the size of its reply's body, and what carries it out.
struct Command<'c> {
    caller: Caller,
    reply: fn(&Control<'c>) -> usize,
    run: Run<'c>,
}

impl<'c> Command<'c> {
    fn any(reply: fn(&Control<'c>) -> usize, run: Run<'c>) -> Option<Self> {
        let caller = Caller::Any;
        Some(Command { caller, reply, run })
    }

    fn kernel(reply: fn(&Control<'c>) -> usize, run: Run<'c>) -> Option<Self> {
        let caller = Caller::Kernel;
        Some(Command { caller, reply, run })
    }
}

/// Reply bodies of fixed size.
fn bytes<const N: usize>(_: &Control<'_>) -> usize {
    N
}

/// The table of commands.
fn lookup<'c>(opcode: u16) -> Option<Command<'c>> {
    match opcode {
        opcode::QUERY_DEVICE => Command::any(bytes::<168>, Control::query_device),
        opcode::QUERY_PORT => Command::any(bytes::<24>, Control::query_port),
        opcode::QUERY_COUNTERS => Command::any(queries::counters_size, Control::query_counters),
        opcode::QUERY_CLOCK => Command::any(bytes::<8>, Control::query_clock),
        opcode::ADD_GID => Command::kernel(bytes::<0>, Control::add_gid),
        opcode::DEL_GID => Command::kernel(bytes::<0>, Control::del_gid),
        opcode::CREATE_CONTEXT => Command::kernel(bytes::<8>, Control::create_context),
        opcode::DESTROY_CONTEXT => Command::kernel(bytes::<0>, Control::destroy_context),
        opcode::CREATE_PD => Command::any(bytes::<8>, Control::create_pd),
        opcode::DESTROY_PD => Command::any(bytes::<0>, Control::destroy_pd),
        opcode::REG_MR => Command::any(bytes::<8>, Control::reg_mr),
        opcode::MR_APPEND => Command::any(bytes::<0>, Control::mr_append),
        opcode::MR_COMMIT => Command::any(bytes::<0>, Control::mr_commit),
        opcode::DEREG_MR => Command::any(bytes::<0>, Control::dereg_mr),
        opcode::REREG_MR => Command::any(bytes::<0>, Control::rereg_mr),
        opcode::ALLOC_MR => Command::kernel(bytes::<8>, Control::alloc_mr),
        opcode::CREATE_CQ => Command::any(bytes::<8>, Control::create_cq),
        opcode::DESTROY_CQ => Command::any(bytes::<0>, Control::destroy_cq),
        opcode::RESIZE_CQ => Command::any(bytes::<0>, Control::resize_cq),
        opcode::MODIFY_CQ => Command::any(bytes::<0>, Control::modify_cq),
        opcode::CREATE_QP => Command::any(bytes::<8>, Control::create_qp),
        opcode::MODIFY_QP => Command::any(bytes::<0>, Control::modify_qp),
        opcode::QUERY_QP => Command::any(bytes::<72>, Control::query_qp),
        opcode::DESTROY_QP => Command::any(bytes::<0>, Control::destroy_qp),
        opcode::ATTACH_MCAST => Command::any(bytes::<0>, Control::attach_mcast),
        opcode::DETACH_MCAST => Command::any(bytes::<0>, Control::detach_mcast),
        opcode::CREATE_SRQ => Command::any(bytes::<8>, Control::create_srq),
        opcode::MODIFY_SRQ => Command::any(bytes::<0>, Control::modify_srq),
        opcode::QUERY_SRQ => Command::any(bytes::<16>, Control::query_srq),
        opcode::DESTROY_SRQ => Command::any(bytes::<0>, Control::destroy_srq),
        opcode::ALLOC_MW => Command::any(bytes::<8>, Control::alloc_mw),
        opcode::DEALLOC_MW => Command::any(bytes::<0>, Control::dealloc_mw),
        opcode::ALLOC_XRCD => Command::kernel(bytes::<8>, Control::alloc_xrcd),
        opcode::DEALLOC_XRCD => Command::kernel(bytes::<0>, Control::dealloc_xrcd),
        _ => None,
    }
}

impl Control<'_> {
    /// Refuses what belongs to a feature that was not negotiated.
    fn need(&self, feature: u64) -> Outcome {
        if self.objects.features & feature == 0 {
            return Err(Status::Unsupported);
        }
        Ok(())
    }

    /// Carries out a command and writes its reply.
    pub(super) fn execute(&mut self, request: &[u8], reply: &mut Vec<u8>, room: usize) {
        let header_len = size_of::<ReplyHeader>();
        reply.clear();
        if room < header_len {
            return;
        }
        let header = CommandHeader::read_from_prefix(request)
            .map(|(header, _)| header)
            .ok();
        let cookie = header.map_or_else(Default::default, |h| h.cookie);
        reply.resize(header_len, 0);
        let status = match header {
            Some(header) => self.dispatch(&header, request, reply, room - header_len),
            None => Err(Status::Invalid),
        };
        let status = match status {
            Ok(()) => Status::Ok,
            Err(status) => {
                reply.truncate(header_len);
                status
            }
        };
        self.objects.show_counts();
        debug_assert!(reply.len() <= room, "a reply outgrew what was announced");
        let header = ReplyHeader {
            status: Le32::new(status as u32),
            length: Le32::new(reply.len() as u32),
            cookie,
        };
        reply[..header_len].copy_from_slice(header.as_bytes());
    }

    fn dispatch(
        &mut self,
        header: &CommandHeader,
        request: &[u8],
        reply: &mut Vec<u8>,
        room: usize,
    ) -> Outcome {
        let length = header.length.get();
        if length > self.config.limits.cmd_bytes
            || length as usize != request.len()
            || header.reserved0.get() != 0
            || header.reserved1.get() != 0
        {
            return Err(Status::Invalid);
        }
        let command = lookup(header.opcode.get()).ok_or(Status::Unsupported)?;
        let context = header.context.get();
        if !self.objects.contexts.exists(context) {
            return Err(Status::NotFound);
        }
        if command.caller == Caller::Kernel && context != KERNEL {
            return Err(Status::Denied);
        }
        if (command.reply)(self) > room {
            return Err(Status::Invalid);
        }
        let body = &request[size_of::<CommandHeader>()..];
        (command.run)(self, context, body, reply)
    }
}

/// Reads a body that is all of the command.
fn whole<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<T, Status> {
    T::read_from_bytes(body).map_err(|_| Status::Invalid)
}

/// Reads a body and the list of `T` elements behind it, which must be `count` elements and nothing more.
fn with_list<B, T>(body: &[u8], count: impl Fn(&B) -> u32) -> Result<(B, &[T]), Status>
where
    B: FromBytes + KnownLayout + Immutable,
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let (fixed, rest) = B::read_from_prefix(body).map_err(|_| Status::Invalid)?;
    let list = <[T]>::ref_from_bytes(rest).map_err(|_| Status::Invalid)?;
    if list.len() as u64 != u64::from(count(&fixed)) {
        return Err(Status::Invalid);
    }
    Ok((fixed, list))
}

/// Reads a handle body.
fn handle(body: &[u8]) -> Result<u32, Status> {
    let body: super::wire::HandleBody = whole(body)?;
    if body.reserved.get() != 0 {
        return Err(Status::Invalid);
    }
    Ok(body.handle.get())
}

/// Appends a handle as a reply.
fn put_handle(reply: &mut Vec<u8>, handle: u32) {
    let body = super::wire::HandleBody {
        handle: Le32::new(handle),
        reserved: Le32::new(0),
    };
    reply.extend_from_slice(body.as_bytes());
}
