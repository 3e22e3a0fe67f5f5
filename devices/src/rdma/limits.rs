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
    /// List entries of all memory regions together: bounds the host memory that registrations take, 16 bytes each at most.
    pub mr_entries: u64,
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
    /// SGEs of a send.
    pub send_sge: u32,
    /// SGEs of a receive.
    pub recv_sge: u32,
    /// Inline bytes of a send.
    pub inline: u32,
    /// Bytes of a send WQE's slot, a power of two up to 4096.
    pub sq_stride: u32,
    /// READs and atomics of a QP under way, in each direction.
    pub rd_atomic: u8,
    /// Slots of the GID table, up to 256.
    pub gids: u32,
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
            mr_entries: 1 << 26,
            cqs: 16_384,
            cqe: 131_072,
            qps: 16_384,
            send_wr: 8192,
            recv_wr: 8192,
            send_sge: 32,
            recv_sge: 32,
            inline: 928,
            sq_stride: 1024,
            rd_atomic: 16,
            gids: 128,
            msg_size: 1 << 31,
            cmd_bytes: 65_536,
        }
    }
}

impl Limits {
    /// Doorbell pages that the device needs: the kernel's and one for each context.
    pub fn doorbell_pages(&self) -> u32 {
        self.contexts.saturating_add(1)
    }
}
