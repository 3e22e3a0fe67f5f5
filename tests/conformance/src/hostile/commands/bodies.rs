//! What a command says: mostly what makes sense, so that much is carried out.

use super::Commander;
use crate::layout::{Body, command};
use crate::random::Source;

impl Commander {
    /// A handle: mostly of an object of that sort and owner, if there is one.
    pub(super) fn handle(&self, source: &mut impl Source, made_by: u16, context: u32) -> u32 {
        let any = |source: &mut _, of: &[(u16, u32, u32)]| match of {
            [] => 0,
            _ => Source::pick(source, of).2,
        };
        match source.below(24) {
            0 => source.edge() as u32,
            1 => source.pick(&self.secrets.handles),
            2 => source.pick(&self.secrets.keys),
            3 => any(source, &self.objects) ^ (1 << source.below(32)),
            4 => any(source, &self.objects),
            _ => {
                let fits = |object: &&(u16, u32, u32)| object.0 == made_by && object.1 == context;
                let fitting: Vec<_> = self.objects.iter().filter(fits).copied().collect();
                any(source, &fitting)
            }
        }
    }

    /// A page of the zone, now and then what is no memory.
    pub(super) fn page(&self, source: &mut impl Source) -> u64 {
        let pages = self.zone.dma_pages();
        match source.below(200) {
            0 => source.edge(),
            // Not memory: physical addresses, and what lies between the regions.
            1 => source.below(1 << 32) & !0xfff,
            _ => source.pick(&pages),
        }
    }

    /// Up to so many pages.
    pub(super) fn pages(&self, source: &mut impl Source, most: u64) -> Vec<u64> {
        (0..source.below(most + 1))
            .map(|_| self.page(source))
            .collect()
    }

    /// A small number, mostly one that makes sense.
    pub(super) fn number(source: &mut impl Source, sensible: &[u64]) -> u64 {
        if source.one_in(50) {
            source.edge()
        } else {
            source.pick(sensible)
        }
    }

    /// What follows the header of this command.
    pub(super) fn body(&self, opcode: u16, context: u32, source: &mut impl Source) -> Vec<u8> {
        let n = |source: &mut _, sensible: &[u64]| Self::number(source, sensible);
        match opcode {
            command::QUERY_PORT => Body::new().u32(n(source, &[1]) as u32).0,
            command::ADD_GID => {
                let mut gid = [0xfd; 16];
                source.fill(&mut gid[8..]);
                // Slot 0 has the GID of the others.
                Body::new()
                    .u32(n(source, &[1, 2, 3]).max(1) as u32)
                    .u8(n(source, &[2]) as u8)
                    .u8(0)
                    .u16(0xffff)
                    .bytes(&gid)
                    .bytes(&[0; 8])
                    .0
            }
            command::DEL_GID => {
                Body::new()
                    .u32(n(source, &[1, 2, 3]).max(1) as u32)
                    .u32(0)
                    .0
            }
            command::REG_MR => self.reg_mr(context, source),
            command::MR_APPEND => self.mr_append(context, source),
            command::REREG_MR => self.rereg_mr(context, source),
            command::ALLOC_MR => self.alloc_mr(context, source),
            command::ALLOC_MW => {
                Body::new()
                    .u32(self.handle(source, command::CREATE_PD, context))
                    .u32(n(source, &[1, 2]) as u32)
                    .0
            }
            command::CREATE_CQ | command::RESIZE_CQ => self.cq(opcode, context, source),
            command::CREATE_QP => self.create_qp(context, source),
            command::CREATE_SRQ => self.create_srq(context, source),
            command::MODIFY_SRQ => self.modify_srq(context, source),
            command::MODIFY_QP => self.modify_qp(context, source),
            command::ATTACH_MCAST | command::DETACH_MCAST => {
                let mut gid = self.node.gid;
                gid[12] = n(source, &[239, 239, 239, 10]) as u8;
                gid[15] = n(source, &[1]) as u8;
                Body::new()
                    .u32(self.handle(source, command::CREATE_QP, context))
                    .u32(n(source, &[0]) as u32)
                    .bytes(&gid)
                    .0
            }
            command::MODIFY_CQ => {
                Body::new()
                    .u32(self.handle(source, command::CREATE_CQ, context))
                    .u32(source.edge() as u32)
                    .0
            }
            command::QUERY_DEVICE
            | command::QUERY_COUNTERS
            | command::QUERY_CLOCK
            | command::CREATE_CONTEXT
            | command::ALLOC_XRCD
            | command::CREATE_PD => Vec::new(),
            command::DESTROY_CONTEXT => {
                let which = if source.one_in(8) {
                    source.edge() as u32
                } else {
                    source.pick(&self.contexts)
                };
                Body::new().u32(which).u32(0).0
            }
            _ => {
                let made_by = match opcode {
                    command::DESTROY_PD => command::CREATE_PD,
                    command::DESTROY_CQ => command::CREATE_CQ,
                    command::QUERY_QP | command::DESTROY_QP => command::CREATE_QP,
                    command::QUERY_SRQ | command::DESTROY_SRQ => command::CREATE_SRQ,
                    command::MR_COMMIT => command::MR_APPEND,
                    command::DEALLOC_MW => command::ALLOC_MW,
                    command::DEALLOC_XRCD => command::ALLOC_XRCD,
                    _ => command::REG_MR,
                };
                Body::new()
                    .u32(self.handle(source, made_by, context))
                    .u32(0)
                    .0
            }
        }
    }
}
