//! What an attacker writes: WQEs, indices, anything anywhere in its rings.

use std::sync::atomic::Ordering;

use super::Attacker;
use super::half::{KINDS, QPS, SHARES};
use super::scribble;
use crate::layout::{DatagramAddress, SendHeader, Sge, qp_type};
use crate::random::Source;
use crate::side::Connection;

impl Attacker {
    fn key(&self, source: &mut impl Source) -> (u32, u64, u64) {
        let own = [&self.near, &self.far];
        match source.below(8) {
            0 => (source.edge() as u32, source.edge(), 64),
            1 => {
                let n = source.below(3) as usize;
                (self.secrets.keys[n], self.secrets.iovas[n], 8192)
            }
            2 => {
                let mr = &own[source.below(2) as usize].mrs[source.below(4) as usize];
                (mr.key ^ (1 << source.below(32)), mr.iova, mr.len)
            }
            _ => {
                let mr = &own[source.below(2) as usize].mrs[source.below(4) as usize];
                (mr.key, mr.iova, mr.len)
            }
        }
    }

    /// An address in or around a range, and a length.
    fn range(source: &mut impl Source, iova: u64, len: u64) -> (u64, u32) {
        let at = match source.below(6) {
            0 => iova,
            1 => iova.wrapping_add(len).wrapping_sub(source.below(16)),
            2 => iova.wrapping_sub(source.below(3)),
            3 => source.edge(),
            _ => iova.wrapping_add(source.below(len)),
        };
        let size = match source.below(5) {
            0 => source.edge(),
            1 => len,
            2 => len + 1 - source.below(3),
            _ => source.below(4200),
        };
        (at, size as u32)
    }

    fn sge(&self, source: &mut impl Source) -> Sge {
        let (lkey, iova, len) = self.key(source);
        let (addr, length) = Self::range(source, iova, len);
        Sge { addr, length, lkey }
    }

    pub(super) fn write_wqe(&mut self, source: &mut impl Source) {
        let half = source.below(4) == 0;
        let n = source.below(QPS as u64) as usize;
        let (rkey, iova, len) = self.key(source);
        let header = SendHeader {
            wr_id: source.word(),
            opcode: if source.one_in(8) {
                source.word() as u8
            } else {
                source.pick(&[
                    0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15, 32,
                ])
            },
            flags: if source.one_in(8) {
                source.word() as u8
            } else {
                source.below(16) as u8
            },
            num_sge: if source.one_in(8) {
                source.edge() as u16
            } else {
                source.below(5) as u16
            },
            inline_len: if source.one_in(8) {
                source.edge() as u32
            } else {
                source.below(65) as u32
            },
            imm: match source.below(2) {
                0 => source.word() as u32,
                _ => self.key(source).0,
            }
            .to_le_bytes(),
            num_pages: source.below(4) as u32,
            srqn: 0,
            page_shift: 12,
            rkey,
            remote_addr: Self::range(source, iova, len).0,
            compare_add: source.word(),
            swap: source.word(),
            datagram: (KINDS[n] == qp_type::UD).then(|| self.address(source)),
        };
        let sges: Vec<Sge> = (0..4).map(|_| self.sge(source)).collect();
        let side = if half { &mut self.far } else { &mut self.near };
        let qp = &mut side.qps[n];
        let slot = qp.sq_slot(qp.sq_producer);
        let stride = qp.sq_stride as usize;
        // SAFETY: the slot is `stride` bytes of the QP's own buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(header.encode().as_ptr(), slot, 64);
            for (at, sge) in (64..stride).step_by(16).zip(&sges) {
                std::ptr::copy_nonoverlapping(sge.encode().as_ptr(), slot.add(at), 16);
            }
        }
        qp.sq_producer = qp.sq_producer.wrapping_add(1);
        qp.publish_sends();
    }

    /// Where a datagram may go: more often than not to the attacker's own QP.
    fn address(&self, source: &mut impl Source) -> DatagramAddress {
        let far = &self.far.qps[QPS - 1];
        let mut group = self.near.node.gid;
        group[12] = 239;
        DatagramAddress {
            dest_qpn: if source.one_in(6) {
                source.edge() as u32
            } else {
                source.pick(&[
                    far.qpn,
                    far.qpn,
                    self.near.qps[QPS - 1].qpn,
                    1,
                    2,
                    0xff_ffff,
                ])
            },
            qkey: source.pick(&[Connection::default().qkey, 1 << 31, u32::MAX, 0]),
            dgid: source.pick(&[self.far.node.gid, self.near.node.gid, group, [0xff; 16]]),
            flow_label: source.word() as u32,
            sgid_index: source.pick(&[0, 0, 0, 1, 255]),
            hop_limit: source.word() as u8,
            traffic_class: source.word() as u8,
            sl: source.word() as u8,
        }
    }

    pub(super) fn write_recv(&mut self, source: &mut impl Source) {
        let half = source.below(4) != 0;
        let n = source.below(QPS as u64) as usize;
        let sges: Vec<Sge> = (0..4).map(|_| self.sge(source)).collect();
        let count = if source.one_in(8) {
            source.edge() as u16
        } else {
            source.below(4) as u16
        };
        let side = if half { &mut self.far } else { &mut self.near };
        if SHARES[n] {
            let srq = side.srq.as_mut().expect("an SRQ");
            let kept = &sges[..usize::from(count % 4)];
            if srq.post(source.word(), kept).is_ok() && usize::from(count) > kept.len() {
                // More SGEs than it may have.
                let slot = srq.slot(srq.producer.wrapping_sub(1));
                // SAFETY: a slot of the SRQ's own buffer.
                unsafe {
                    std::ptr::copy_nonoverlapping(count.to_le_bytes().as_ptr(), slot.add(8), 2)
                };
            }
            return;
        }
        let qp = &mut side.qps[n];
        let slot = qp.rq_slot(qp.rq_producer);
        let mut header = [0; 16];
        header[0..8].copy_from_slice(&source.word().to_le_bytes());
        header[8..10].copy_from_slice(&count.to_le_bytes());
        let stride = qp.rq_stride as usize;
        // SAFETY: the slot is `stride` bytes of the QP's own buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), slot, 16);
            for (at, sge) in (16..stride).step_by(16).zip(&sges) {
                std::ptr::copy_nonoverlapping(sge.encode().as_ptr(), slot.add(at), 16);
            }
        }
        qp.rq_producer = qp.rq_producer.wrapping_add(1);
        qp.publish_recvs();
    }

    pub(super) fn lie(&mut self, source: &mut impl Source) {
        let side = if source.one_in(2) {
            &mut self.far
        } else {
            &mut self.near
        };
        let n = source.below(QPS as u64) as usize;
        let qp = &side.qps[n];
        let near = |now: u32, source: &mut dyn FnMut() -> u64| now.wrapping_add(source() as u32);
        let srq = side.srq.as_ref().expect("an SRQ");
        match source.below(8) {
            6 => srq
                .producer_word()
                .store(source.edge() as u32, Ordering::Release),
            7 => {
                let limit = source.below(9) as u32;
                side.node.limit_srq(srq, limit).expect("a limit");
            }
            0 => qp
                .sq_producer_word()
                .store(source.edge() as u32, Ordering::Release),
            1 => qp
                .rq_producer_word()
                .store(source.edge() as u32, Ordering::Release),
            2 => {
                let to = near(qp.sq_producer, &mut || source.below(130));
                qp.sq_producer_word().store(to, Ordering::Release);
            }
            3 => {
                let cq = &side.cqs[n % 2];
                cq.consumer_word()
                    .store(source.edge() as u32, Ordering::Release);
            }
            4 => {
                let cq = &side.cqs[n % 2];
                let to = near(cq.consumer, &mut || source.below(300));
                cq.consumer_word().store(to, Ordering::Release);
            }
            _ => {
                let cq = &side.cqs[n % 2];
                cq.arm_word().store(source.edge() as u32, Ordering::Release);
            }
        }
        let page = if source.one_in(8) {
            source.edge() as u32
        } else {
            qp.page
        };
        side.node.bells.ring(page, source.word() as u32);
    }

    pub(super) fn scribble(&self, source: &mut impl Source) {
        let side = if source.one_in(2) {
            &self.far
        } else {
            &self.near
        };
        let n = source.below(QPS as u64) as usize;
        let buffer = match (source.below(6), &side.srq) {
            (0 | 1, _) => &side.cqs[n % 2].buffer,
            (2, Some(srq)) => &srq.buffer,
            _ => &side.qps[n].buffer,
        };
        scribble(buffer, source);
    }
}
