//! A kernel, or a context that the kernel speaks for, that gives any command.

use std::sync::Arc;

use super::victim::{Secrets, Victim, canaries};
use crate::layout::{
    Body, CreateCq, CreateQp, CreateSrq, ModifySrq, QpAttributes, RegMr, SrqBuffer, command, le32,
    request,
};
use crate::memory::Buffer;
use crate::node::Node;
use crate::random::Source;
use crate::world::World;

/// Somebody who gives commands that nobody checked.
pub struct Commander {
    node: Arc<Node>,
    secrets: Secrets,
    contexts: Vec<u32>,
    /// What was made: the command, the owner, the handle.
    objects: Vec<(u16, u32, u32)>,
    /// Pages that it may name; all others that it names are not memory.
    zone: Buffer,
    /// How often each of [`command::ALL`] was carried out: an attack of refusals only tests little.
    pub done: [u64; command::ALL.len()],
}

impl Commander {
    /// One on the world's first node.
    pub fn new(world: &World, victim: &Victim) -> Commander {
        let node = world.a().clone();
        let zone = node.memory.aligned(256 * 4096, 256);
        Commander {
            node,
            secrets: victim.secrets(),
            contexts: vec![0],
            objects: Vec::new(),
            zone,
            done: [0; command::ALL.len()],
        }
    }

    /// A handle: mostly of an object of that sort and owner, if there is one.
    fn handle(&self, source: &mut impl Source, made_by: u16, context: u32) -> u32 {
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

    fn page(&self, source: &mut impl Source) -> u64 {
        let pages = self.zone.dma_pages();
        match source.below(200) {
            0 => source.edge(),
            // Not memory: physical addresses, and what lies between the regions.
            1 => source.below(1 << 32) & !0xfff,
            _ => source.pick(&pages),
        }
    }

    fn pages(&self, source: &mut impl Source, most: u64) -> Vec<u64> {
        (0..source.below(most + 1))
            .map(|_| self.page(source))
            .collect()
    }

    /// A small number, mostly one that makes sense.
    fn number(source: &mut impl Source, sensible: &[u64]) -> u64 {
        if source.one_in(50) {
            source.edge()
        } else {
            source.pick(sensible)
        }
    }

    fn srq_buffer(&self, source: &mut impl Source) -> SrqBuffer {
        let pages: Vec<u64> = (0..source.pick(&[1, 1, 2]))
            .map(|_| self.page(source))
            .collect();
        SrqBuffer {
            buf_length: Self::number(source, &[pages.len() as u64 * 4096]),
            page_shift: Self::number(source, &[12]) as u32,
            num_pages: Self::number(source, &[pages.len() as u64]) as u32,
            buf_offset: Self::number(source, &[0]),
            ctrl_offset: Self::number(source, &[0]),
            ring_offset: Self::number(source, &[128, 2048]),
            pages,
        }
    }

    fn body(&self, opcode: u16, context: u32, source: &mut impl Source) -> Vec<u8> {
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
            command::REG_MR => {
                let entries = self.pages(source, 20);
                // Extents of up to 9,000 bytes stay in the zone.
                let last = self.zone.dma_pages()[252];
                let extents = source.one_in(4);
                let count = if extents {
                    entries.len() / 2
                } else {
                    entries.len()
                };
                let entries: Vec<u64> = if extents {
                    entries
                        .iter()
                        .enumerate()
                        .map(|(at, page)| {
                            if at % 2 == 0 {
                                (*page).min(last)
                            } else {
                                page % 9000 + 1
                            }
                        })
                        .collect()
                } else {
                    entries
                };
                let more = source.one_in(4);
                let total = if more { count as u64 + 3 } else { count as u64 };
                let whole: u64 = if extents {
                    entries.iter().skip(1).step_by(2).sum()
                } else {
                    total * 4096
                };
                RegMr {
                    pd: self.handle(source, command::CREATE_PD, context),
                    access: n(source, &[0, 1, 3, 5, 7, 15]) as u32,
                    iova: n(source, &[0, 0x1000, 1 << 40]),
                    length: n(source, &[whole, whole, whole, whole, 1, 5000]),
                    offset: n(source, &[0, 0, 0, 0, 0, 17, 4095]),
                    page_shift: n(source, &[12, 12, 12, 12, 13, 20]) as u8,
                    flags: (u8::from(extents) * 2) | n(source, &[u64::from(more)]) as u8,
                    total_entries: n(source, &[total]) as u32,
                    num_entries: n(source, &[count as u64]) as u32,
                    entries,
                }
                .encode()
            }
            command::MR_APPEND => {
                let entries: Vec<u64> = (0..source.pick(&[1, 3, 3, 4]))
                    .map(|_| self.page(source))
                    .collect();
                let mut body = Body::new()
                    .u32(self.handle(source, command::MR_APPEND, context))
                    .u32(n(source, &[entries.len() as u64]) as u32);
                for entry in entries {
                    body = body.u64(entry);
                }
                body.0
            }
            command::REREG_MR => {
                Body::new()
                    .u32(self.handle(source, command::REG_MR, context))
                    .u32(n(source, &[1, 2, 4, 5, 7]) as u32)
                    .u32(match source.below(2) {
                        0 => 0,
                        _ => self.handle(source, command::CREATE_PD, context),
                    })
                    .u32(n(source, &[0, 1, 7, 31]) as u32)
                    .u32(match source.below(2) {
                        0 => 0,
                        _ => self.handle(source, command::REG_MR, context),
                    })
                    .u32(n(source, &[0]) as u32)
                    .0
            }
            command::ALLOC_MR => {
                let pages = self.pages(source, 2);
                let mut body = Body::new()
                    .u32(self.handle(source, command::CREATE_PD, context))
                    .u32(n(source, &[1, 512]) as u32)
                    .u64(n(source, &[pages.len() as u64 * 4096]))
                    .u32(12)
                    .u32(n(source, &[pages.len() as u64]) as u32)
                    .u64(n(source, &[0]))
                    .u64(n(source, &[0, 8]));
                for page in pages {
                    body = body.u64(page);
                }
                body.0
            }
            command::ALLOC_MW => {
                Body::new()
                    .u32(self.handle(source, command::CREATE_PD, context))
                    .u32(n(source, &[1, 2]) as u32)
                    .0
            }
            command::CREATE_CQ | command::RESIZE_CQ => {
                let pages = self.pages(source, 4);
                // RESIZE_CQ has the CQ in the place of the vector.
                let vector = match opcode {
                    command::CREATE_CQ => n(source, &[0, 1]) as u32,
                    _ => self.handle(source, command::CREATE_CQ, context),
                };
                CreateCq {
                    entries: n(source, &[1, 4, 16, 32]) as u32,
                    vector,
                    buf_length: n(source, &[pages.len() as u64 * 4096]),
                    page_shift: n(source, &[12]) as u32,
                    num_pages: n(source, &[pages.len() as u64]) as u32,
                    buf_offset: n(source, &[0]),
                    ctrl_offset: n(source, &[0]),
                    ring_offset: n(source, &[128]),
                    pages,
                }
                .encode()
            }
            command::CREATE_QP => {
                let pages: Vec<u64> = (0..source.pick(&[2, 2, 2, 1, 3]))
                    .map(|_| self.page(source))
                    .collect();
                let mut create = CreateQp {
                    pd: self.handle(source, command::CREATE_PD, context),
                    kind: n(source, &[2, 2, 3, 4, 4, 1, 9, 10]) as u32,
                    send_cq: self.handle(source, command::CREATE_CQ, context),
                    recv_cq: self.handle(source, command::CREATE_CQ, context),
                    srq: match source.below(4) {
                        0 => self.handle(source, command::CREATE_SRQ, context),
                        _ => 0,
                    },
                    flags: n(source, &[0, 1]) as u32,
                    sq_entries: n(source, &[0, 1, 4, 16]) as u32,
                    sq_stride: n(source, &[64, 128]) as u32,
                    rq_entries: n(source, &[0, 1, 4, 16]) as u32,
                    rq_stride: n(source, &[16, 32, 64]) as u32,
                    max_send_sge: n(source, &[0, 1, 4]) as u32,
                    max_recv_sge: n(source, &[0, 1]) as u32,
                    max_inline: n(source, &[0, 64]) as u32,
                    xrcd: n(source, &[0]) as u32,
                    buf_length: n(source, &[pages.len() as u64 * 4096]),
                    page_shift: n(source, &[12]) as u32,
                    num_pages: n(source, &[pages.len() as u64]) as u32,
                    buf_offset: n(source, &[0]),
                    ctrl_offset: n(source, &[0]),
                    sq_offset: n(source, &[256, 1024]),
                    rq_offset: n(source, &[2304, 3072]),
                    pages,
                };
                if matches!(create.kind, 9 | 10) && !source.one_in(4) {
                    (create.recv_cq, create.srq, create.rq_entries) = (0, 0, 0);
                }
                if create.kind == 10 && !source.one_in(4) {
                    (create.pd, create.send_cq, create.sq_entries) = (0, 0, 0);
                    create.xrcd = self.handle(source, command::ALLOC_XRCD, 0);
                }
                create.encode()
            }
            command::CREATE_SRQ => {
                let xrc = source.one_in(3);
                CreateSrq {
                    pd: self.handle(source, command::CREATE_PD, context),
                    kind: n(source, &[xrc.into()]) as u32,
                    cq: match xrc {
                        true => self.handle(source, command::CREATE_CQ, context),
                        false => n(source, &[0]) as u32,
                    },
                    xrcd: match xrc {
                        true => self.handle(source, command::ALLOC_XRCD, 0),
                        false => n(source, &[0]) as u32,
                    },
                    entries: n(source, &[1, 4, 16]) as u32,
                    stride: n(source, &[32, 64]) as u32,
                    max_sge: n(source, &[0, 1]) as u32,
                    ring: self.srq_buffer(source),
                }
                .encode()
            }
            command::MODIFY_SRQ => {
                let mask = n(source, &[1, 2, 3]) as u32;
                let resizes = mask & 1 != 0;
                ModifySrq {
                    srq: self.handle(source, command::CREATE_SRQ, context),
                    mask,
                    limit: if mask & 2 != 0 {
                        n(source, &[0, 1, 3]) as u32
                    } else {
                        0
                    },
                    entries: if resizes {
                        n(source, &[4, 16, 32]) as u32
                    } else {
                        0
                    },
                    ring: if resizes {
                        self.srq_buffer(source)
                    } else {
                        SrqBuffer::default()
                    },
                }
                .encode()
            }
            command::MODIFY_QP => {
                // To INIT, RTR, RTS, SQD, ERR and RESET with what each wants, of RC, UC, UD and XRC; now and then anything.
                let ways = [
                    (0x39, 1),
                    (0x12_9181, 2),
                    (0x1_2e01, 3),
                    (1, 4),
                    (1, 6),
                    (1, 0),
                    (0x10_1181, 2),
                    (0x1_0001, 3),
                    (0x71, 1),
                    (1, 2),
                    (0x1_0201, 3),
                ];
                let (wanted, to) = match source.below(6) {
                    0 => (source.edge(), source.below(8)),
                    _ => source.pick(&ways),
                };
                QpAttributes {
                    qpn: self.handle(source, command::CREATE_QP, context),
                    mask: n(source, &[wanted]) as u32,
                    state: n(source, &[to]) as u8,
                    cur_state: n(source, &[0, 1, 2, 3]) as u8,
                    path_mtu: n(source, &[5]) as u8,
                    port: n(source, &[1]) as u8,
                    access: n(source, &[15]) as u32,
                    qkey: 0,
                    dest_qpn: self.handle(source, command::CREATE_QP, context) & 0xff_ffff,
                    rq_psn: n(source, &[0, 1]) as u32,
                    sq_psn: n(source, &[0, 1]) as u32,
                    max_rd_atomic: n(source, &[1, 4]) as u8,
                    max_dest_rd_atomic: n(source, &[1, 4]) as u8,
                    timeout: n(source, &[8, 14]) as u8,
                    retry_cnt: n(source, &[1, 7]) as u8,
                    rnr_retry: n(source, &[1, 7]) as u8,
                    min_rnr_timer: n(source, &[1, 12]) as u8,
                    dgid: self.node.gid,
                    ..Default::default()
                }
                .encode()
            }
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

    /// One command.
    pub fn act(&mut self, source: &mut impl Source) {
        let opcode = if source.one_in(20) {
            source.word() as u16
        } else {
            source.pick(&command::ALL)
        };
        let opcode = if opcode == command::DESTROY_CONTEXT && !source.one_in(16) {
            // Else nobody lives long enough to do anything.
            command::CREATE_QP
        } else {
            opcode
        };
        let kernels = matches!(
            opcode,
            command::ADD_GID
                | command::DEL_GID
                | command::CREATE_CONTEXT
                | command::DESTROY_CONTEXT
                | command::ALLOC_XRCD
                | command::DEALLOC_XRCD
        );
        let context = match source.below(12) {
            0 => source.edge() as u32,
            n if n > 2 && kernels => 0,
            _ => source.pick(&self.contexts),
        };
        let mut body = self.body(opcode, context, source);
        let fixed = match opcode {
            command::REG_MR | command::CREATE_CQ | command::RESIZE_CQ => 48,
            command::MR_APPEND => 8,
            command::ALLOC_MR => 40,
            command::CREATE_QP => 104,
            command::CREATE_SRQ => 72,
            command::MODIFY_SRQ => 56,
            // Which slot and whose context are not changed: the others' are the kernel's to end, and that would be no attack.
            command::ADD_GID | command::DEL_GID | command::DESTROY_CONTEXT => 0,
            _ => body.len(),
        };
        if source.one_in(8) && fixed > 0 {
            // Lists of pages are left alone: a changed address may be memory that is not ours to register.
            let at = source.below(fixed as u64) as usize;
            body[at] ^= source.word() as u8;
        }
        let huge = match opcode {
            command::REG_MR => u32::from(body[32]),
            command::CREATE_CQ | command::RESIZE_CQ => le32(&body, 16),
            command::CREATE_QP => le32(&body, 64),
            command::CREATE_SRQ => le32(&body, 40),
            command::MODIFY_SRQ => le32(&body, 24),
            _ => 0,
        };
        if (21..=30).contains(&huge) {
            // A page of that size would hold more than the zone.
            return;
        }
        if source.one_in(16) {
            let len = source.below(body.len() as u64 + 20) as usize;
            body.resize(len, 0xff);
        }
        if self.secrets.contexts.contains(&context) {
            return;
        }
        if opcode == command::DESTROY_CONTEXT
            && body.len() >= 4
            && self.secrets.contexts.contains(&le32(&body, 0))
        {
            return;
        }
        if matches!(opcode, command::ADD_GID | command::DEL_GID)
            && body.len() >= 4
            && le32(&body, 0) == 0
        {
            return;
        }
        let room = if source.one_in(16) {
            source.below(40) as usize
        } else {
            4096
        };
        let mut bytes = request(opcode, context, 1, &body);
        if source.one_in(24) {
            let at = source.below(24) as usize;
            bytes[at] ^= 1 << source.below(8);
            // Not to somebody else's name by a changed bit.
            if le32(&bytes, 8) != context || bytes[..2] != opcode.to_le_bytes() {
                return;
            }
        }
        let reply = self.node.raw_command(&bytes, room);
        assert!(reply.len() <= room, "a reply longer than its buffer");
        if reply.len() < 16 {
            return;
        }
        assert!(le32(&reply, 0) <= 10, "a status that is not in the table");
        assert_eq!(le32(&reply, 4) as usize, reply.len());
        if le32(&reply, 0) == 0 {
            let handle = |at| le32(&reply, at);
            if let Some(n) = command::ALL.iter().position(|known| *known == opcode) {
                self.done[n] += 1;
            }
            match opcode {
                command::CREATE_CONTEXT if self.contexts.len() < 8 => {
                    self.contexts.push(handle(16))
                }
                command::CREATE_CONTEXT => {
                    let body = Body::new().u32(handle(16)).u32(0).0;
                    self.node
                        .command(command::DESTROY_CONTEXT, 0, &body)
                        .expect("DESTROY_CONTEXT");
                }
                command::CREATE_PD
                | command::REG_MR
                | command::CREATE_CQ
                | command::CREATE_QP
                | command::CREATE_SRQ
                | command::ALLOC_XRCD
                | command::ALLOC_MW => {
                    let more = opcode == command::REG_MR && body[33] & 1 != 0;
                    let sort = if more { command::MR_APPEND } else { opcode };
                    let object = (sort, context, handle(16));
                    if self.objects.len() < 256 {
                        self.objects.push(object);
                    } else {
                        let at = source.below(256) as usize;
                        self.objects[at] = object;
                    }
                }
                command::DESTROY_CONTEXT => {
                    let gone = le32(&body, 0);
                    self.contexts
                        .retain(|context| *context != gone || gone == 0);
                }
                _ => {}
            }
        }
    }

    /// Rings that live in the zone are changed at random; what the device makes of them is its own affair.
    pub fn scribble(&self, source: &mut impl Source) {
        super::rings::scribble(&self.zone, source);
        let page = source.below(16) as u32;
        self.node.bells.ring(page, 0);
    }

    /// Commands until the source is exhausted or `enough` says so.
    pub fn attack(
        &mut self,
        world: &World,
        victim: &mut Victim,
        source: &mut impl Source,
        mut enough: impl FnMut(u64) -> bool,
    ) {
        let mut round = 0;
        while !source.exhausted() && !enough(round) {
            self.act(source);
            if source.one_in(4) {
                self.scribble(source);
            }
            if source.one_in(8) {
                world.step();
            }
            round += 1;
            if round % 512 == 0 {
                victim.works(world);
                canaries(world);
            }
        }
        victim.works(world);
        canaries(world);
        self.node.events.take_asynchronous();
        self.node.events.take_completions();
    }
}
