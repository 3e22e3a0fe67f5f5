//! How much a device lets its driver have.

/// Limits of a device. What is not created costs nothing, so they are large; the monitor may lower or raise them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// User contexts, each with a doorbell page; the kernel's page comes on top.
    pub contexts: u32,
    /// Protection domains.
    pub pds: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes of a memory region.
    pub mr_size: u64,
    /// List entries (pages or extents) of all memory regions and queues together: bounds the host memory that registrations take, 16
    /// bytes for each, and twice that while a list comes in.
    pub mr_entries: u64,
    /// Pages of a fast registration.
    pub fast_reg_pages: u32,
    /// Memory windows.
    pub mws: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Entries of a completion queue, a power of two.
    pub cqe: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Entries of a send queue, a power of two.
    pub send_wr: u32,
    /// Entries of a receive queue, a power of two.
    pub recv_wr: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Entries of a shared receive queue, a power of two.
    pub srq_wr: u32,
    /// XRC domains.
    pub xrcds: u32,
    /// SGEs of a send.
    pub send_sge: u32,
    /// SGEs of a receive, shared or not.
    pub recv_sge: u32,
    /// Inline bytes of a send.
    pub inline: u32,
    /// Bytes of a send WQE's slot, a power of two up to 4096.
    pub sq_stride: u32,
    /// READs and atomics of a QP under way, in each direction.
    pub rd_atomic: u8,
    /// Slots of the GID table, up to 256.
    pub gids: u32,
    /// Multicast groups; with the GIDs, no more than a peer takes announcements of.
    pub mcast_groups: u32,
    /// QPs of a multicast group.
    pub mcast_qps: u32,
    /// Bytes of a message, up to 2^31.
    pub msg_size: u32,
    /// Bytes of a command.
    pub cmd_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            contexts: 1023,
            pds: 16_384,
            mrs: 65_536,
            mr_size: 1 << 40,
            mr_entries: 1 << 24,
            fast_reg_pages: 1024,
            mws: 65_536,
            cqs: 16_384,
            cqe: 131_072,
            qps: 16_384,
            send_wr: 8192,
            recv_wr: 8192,
            srqs: 16_384,
            srq_wr: 16_384,
            xrcds: 16_384,
            send_sge: 32,
            recv_sge: 32,
            inline: 928,
            sq_stride: 1024,
            rd_atomic: 16,
            gids: 128,
            mcast_groups: 512,
            mcast_qps: 256,
            msg_size: 1 << 31,
            cmd_bytes: 65_536,
        }
    }
}

impl Limits {
    /// Whether a device can keep these limits; if not, which one is wrong and what would be right.
    pub fn check(&self) -> Result<(), String> {
        let counts = [
            ("contexts", self.contexts, 1, 65_535),
            ("pds", self.pds, 1, 1 << 20),
            ("mrs", self.mrs, 1, 1 << 22),
            ("fast_reg_pages", self.fast_reg_pages, 1, 1 << 16),
            ("mws", self.mws, 1, 1 << 22),
            ("cqs", self.cqs, 1, 1 << 20),
            ("cqe", self.cqe, 1, 1 << 21),
            ("qps", self.qps, 1, 1 << 20),
            ("send_wr", self.send_wr, 1, 1 << 15),
            ("recv_wr", self.recv_wr, 1, 1 << 15),
            ("srqs", self.srqs, 1, 1 << 20),
            ("srq_wr", self.srq_wr, 1, 1 << 15),
            ("xrcds", self.xrcds, 1, 1 << 20),
            ("send_sge", self.send_sge, 1, 252),
            ("recv_sge", self.recv_sge, 1, 63),
            ("inline", self.inline, 0, 4096 - 64),
            ("rd_atomic", self.rd_atomic.into(), 1, 255),
            ("gids", self.gids, 1, 256),
            ("mcast_groups", self.mcast_groups, 0, 768),
            ("mcast_qps", self.mcast_qps, 0, 65_536),
            ("msg_size", self.msg_size, 1 << 12, 1 << 31),
            ("cmd_bytes", self.cmd_bytes, 4096, 1 << 24),
            ("sq_stride", self.sq_stride, 64, 4096),
        ];
        for (name, value, least, most) in counts {
            if !(least..=most).contains(&value) {
                return Err(format!(
                    "rdma limit {name} is {value}; {least} to {most} is possible"
                ));
            }
        }
        for (name, value) in [
            ("cqe", self.cqe),
            ("send_wr", self.send_wr),
            ("recv_wr", self.recv_wr),
            ("srq_wr", self.srq_wr),
            ("sq_stride", self.sq_stride),
        ] {
            if !value.is_power_of_two() {
                return Err(format!(
                    "rdma limit {name} is {value}; it must be a power of two"
                ));
            }
        }
        let wqe = 64 + self.inline.max(16 * self.send_sge);
        if wqe > self.sq_stride {
            return Err(format!(
                "rdma limit sq_stride is {}; the inline bytes and SGEs of a send need {wqe}",
                self.sq_stride
            ));
        }
        if self.mr_size == 0 || self.mr_entries == 0 {
            return Err("rdma limits mr_size and mr_entries must not be 0".into());
        }
        Ok(())
    }

    /// Doorbell pages that the device needs: the kernel's and one for each context.
    pub fn doorbell_pages(&self) -> u32 {
        self.contexts.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_kept() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn a_limit_that_cannot_be_kept_is_named() {
        let too_deep = Limits {
            cqe: 1 << 22,
            ..Limits::default()
        };
        let odd = Limits {
            send_wr: 1000,
            ..Limits::default()
        };
        let wide = Limits {
            inline: 1024,
            ..Limits::default()
        };
        for (limits, name) in [(too_deep, "cqe"), (odd, "send_wr"), (wide, "sq_stride")] {
            let text = limits.check().unwrap_err();
            assert!(text.contains(name), "{text}");
        }
    }
}
