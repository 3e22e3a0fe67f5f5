//! Commands of completion queues, queue pairs and shared receive queues.

use super::Commander;
use crate::layout::{CreateCq, CreateQp, CreateSrq, ModifySrq, QpAttributes, SrqBuffer, command};
use crate::random::Source;

impl Commander {
    pub(super) fn cq(&self, opcode: u16, context: u32, source: &mut impl Source) -> Vec<u8> {
        let pages = self.pages(source, 4);
        // RESIZE_CQ has the CQ in the place of the vector.
        let vector = match opcode {
            command::CREATE_CQ => Self::number(source, &[0, 1]) as u32,
            _ => self.handle(source, command::CREATE_CQ, context),
        };
        CreateCq {
            entries: Self::number(source, &[1, 4, 16, 32]) as u32,
            vector,
            buf_length: Self::number(source, &[pages.len() as u64 * 4096]),
            page_shift: Self::number(source, &[12]) as u32,
            num_pages: Self::number(source, &[pages.len() as u64]) as u32,
            buf_offset: Self::number(source, &[0]),
            ctrl_offset: Self::number(source, &[0]),
            ring_offset: Self::number(source, &[128]),
            pages,
        }
        .encode()
    }

    pub(super) fn create_qp(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
        let pages: Vec<u64> = (0..source.pick(&[2, 2, 2, 1, 3]))
            .map(|_| self.page(source))
            .collect();
        let mut create = CreateQp {
            pd: self.handle(source, command::CREATE_PD, context),
            kind: Self::number(source, &[2, 2, 3, 4, 4, 1, 9, 10]) as u32,
            send_cq: self.handle(source, command::CREATE_CQ, context),
            recv_cq: self.handle(source, command::CREATE_CQ, context),
            srq: match source.below(4) {
                0 => self.handle(source, command::CREATE_SRQ, context),
                _ => 0,
            },
            flags: Self::number(source, &[0, 1]) as u32,
            sq_entries: Self::number(source, &[0, 1, 4, 16]) as u32,
            sq_stride: Self::number(source, &[64, 128]) as u32,
            rq_entries: Self::number(source, &[0, 1, 4, 16]) as u32,
            rq_stride: Self::number(source, &[16, 32, 64]) as u32,
            max_send_sge: Self::number(source, &[0, 1, 4]) as u32,
            max_recv_sge: Self::number(source, &[0, 1]) as u32,
            max_inline: Self::number(source, &[0, 64]) as u32,
            xrcd: Self::number(source, &[0]) as u32,
            buf_length: Self::number(source, &[pages.len() as u64 * 4096]),
            page_shift: Self::number(source, &[12]) as u32,
            num_pages: Self::number(source, &[pages.len() as u64]) as u32,
            buf_offset: Self::number(source, &[0]),
            ctrl_offset: Self::number(source, &[0]),
            sq_offset: Self::number(source, &[256, 1024]),
            rq_offset: Self::number(source, &[2304, 3072]),
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

    pub(super) fn modify_qp(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
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
            mask: Self::number(source, &[wanted]) as u32,
            state: Self::number(source, &[to]) as u8,
            cur_state: Self::number(source, &[0, 1, 2, 3]) as u8,
            path_mtu: Self::number(source, &[5]) as u8,
            port: Self::number(source, &[1]) as u8,
            access: Self::number(source, &[15]) as u32,
            qkey: 0,
            dest_qpn: self.handle(source, command::CREATE_QP, context) & 0xff_ffff,
            rq_psn: Self::number(source, &[0, 1]) as u32,
            sq_psn: Self::number(source, &[0, 1]) as u32,
            max_rd_atomic: Self::number(source, &[1, 4]) as u8,
            max_dest_rd_atomic: Self::number(source, &[1, 4]) as u8,
            timeout: Self::number(source, &[8, 14]) as u8,
            retry_cnt: Self::number(source, &[1, 7]) as u8,
            rnr_retry: Self::number(source, &[1, 7]) as u8,
            min_rnr_timer: Self::number(source, &[1, 12]) as u8,
            dgid: self.node.gid,
            ..Default::default()
        }
        .encode()
    }

    pub(super) fn create_srq(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
        let xrc = source.one_in(3);
        CreateSrq {
            pd: self.handle(source, command::CREATE_PD, context),
            kind: Self::number(source, &[xrc.into()]) as u32,
            cq: match xrc {
                true => self.handle(source, command::CREATE_CQ, context),
                false => Self::number(source, &[0]) as u32,
            },
            xrcd: match xrc {
                true => self.handle(source, command::ALLOC_XRCD, 0),
                false => Self::number(source, &[0]) as u32,
            },
            entries: Self::number(source, &[1, 4, 16]) as u32,
            stride: Self::number(source, &[32, 64]) as u32,
            max_sge: Self::number(source, &[0, 1]) as u32,
            ring: self.srq_buffer(source),
        }
        .encode()
    }

    pub(super) fn modify_srq(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
        let mask = Self::number(source, &[1, 2, 3]) as u32;
        let resizes = mask & 1 != 0;
        ModifySrq {
            srq: self.handle(source, command::CREATE_SRQ, context),
            mask,
            limit: if mask & 2 != 0 {
                Self::number(source, &[0, 1, 3]) as u32
            } else {
                0
            },
            entries: if resizes {
                Self::number(source, &[4, 16, 32]) as u32
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
}
