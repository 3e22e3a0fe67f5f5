//! MSI-X (PCI local bus 3.0, 6.8.2): the vector table, the pending bits, and the capability's control bits.

use std::sync::{Arc, Mutex};

use crate::bus::lock;
use crate::interrupt::{MsiGroup, MsiMessage};

/// Bytes of one table entry.
pub const MSIX_ENTRY_SIZE: u64 = 16;
/// The most vectors a function can have.
pub const MSIX_MAX_VECTORS: u16 = 2048;
/// Virtio's "no vector" (virtio 1.2, 4.1.4.3), which no table can hold. Triggering it does nothing.
pub const NO_VECTOR: u16 = 0xffff;

const ENTRY_ADDRESS: u64 = 0;
const ENTRY_DATA: u64 = 8;
const ENTRY_CONTROL: u64 = 12;
const ENTRY_MASKED: u32 = 1;

#[derive(Clone, Copy, Default)]
struct Entry {
    message: MsiMessage,
    masked: bool,
    pending: bool,
    /// What the group was last told.
    connected: Option<MsiMessage>,
}

struct Table {
    entries: Vec<Entry>,
    enabled: bool,
    function_masked: bool,
}

/// The MSI-X state of one function. It starts disabled, with every vector masked. Usable from any thread.
pub struct Msix {
    table: Mutex<Table>,
    group: Arc<dyn MsiGroup>,
    vectors: u16,
}

impl Msix {
    /// `vectors` vectors, raised through `group`, which has as many.
    pub fn new(group: Arc<dyn MsiGroup>, vectors: u16) -> Self {
        assert!((1..=MSIX_MAX_VECTORS).contains(&vectors));
        let entry = Entry {
            masked: true,
            ..Entry::default()
        };
        Self {
            table: Mutex::new(Table {
                entries: vec![entry; usize::from(vectors)],
                enabled: false,
                function_masked: false,
            }),
            group,
            vectors,
        }
    }

    /// The number of vectors.
    pub fn vectors(&self) -> u16 {
        self.vectors
    }

    /// Takes the enable and function mask bits of the message control register.
    pub fn set_control(&self, enabled: bool, function_masked: bool) {
        let mut table = lock(&self.table);
        if table.enabled == enabled && table.function_masked == function_masked {
            return;
        }
        table.enabled = enabled;
        table.function_masked = function_masked;
        for vector in 0..self.vectors {
            self.update(&mut table, vector);
        }
    }

    /// Raises `vector`: sends its message, or notes it as pending while masked. Lost while MSI-X is disabled.
    pub fn trigger(&self, vector: u16) {
        let mut table = lock(&self.table);
        if !table.enabled {
            return;
        }
        let Some(entry) = table.entries.get_mut(usize::from(vector)) else {
            return;
        };
        if entry.connected.is_some() {
            self.group.trigger(vector);
        } else {
            entry.pending = true;
        }
    }

    /// Reads the table. The access must be an aligned 4 or 8 bytes, else it reads as zero.
    pub fn read_table(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if !aligned(offset, data.len()) {
            return;
        }
        let table = lock(&self.table);
        let Some(entry) = table.entries.get((offset / MSIX_ENTRY_SIZE) as usize) else {
            return;
        };
        let mut raw = [0; MSIX_ENTRY_SIZE as usize];
        raw[..8].copy_from_slice(&entry.message.address.to_le_bytes());
        raw[8..12].copy_from_slice(&entry.message.data.to_le_bytes());
        raw[12..].copy_from_slice(&u32::from(entry.masked).to_le_bytes());
        let at = (offset % MSIX_ENTRY_SIZE) as usize;
        data.copy_from_slice(&raw[at..at + data.len()]);
    }

    /// Writes the table. The access must be an aligned 4 or 8 bytes, else it is ignored.
    pub fn write_table(&self, offset: u64, data: &[u8]) {
        if !aligned(offset, data.len()) {
            return;
        }
        let vector = offset / MSIX_ENTRY_SIZE;
        if vector >= u64::from(self.vectors) {
            return;
        }
        let mut table = lock(&self.table);
        let entry = &mut table.entries[vector as usize];
        for (i, chunk) in data.chunks_exact(4).enumerate() {
            let mut word = [0; 4];
            word.copy_from_slice(chunk);
            let word = u32::from_le_bytes(word);
            let address = entry.message.address;
            match offset % MSIX_ENTRY_SIZE + 4 * i as u64 {
                ENTRY_ADDRESS => entry.message.address = address >> 32 << 32 | u64::from(word & !3),
                0x4 => entry.message.address = address & 0xffff_ffff | u64::from(word) << 32,
                ENTRY_DATA => entry.message.data = word,
                ENTRY_CONTROL => entry.masked = word & ENTRY_MASKED != 0,
                _ => unreachable!("an aligned access stays within an entry"),
            }
        }
        self.update(&mut table, vector as u16);
    }

    /// Reads the pending bit array. The access must be an aligned 4 or 8 bytes, else it reads as zero. Writes are ignored.
    pub fn read_pba(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if !aligned(offset, data.len()) || offset >= u64::from(MSIX_MAX_VECTORS) / 8 {
            return;
        }
        let table = lock(&self.table);
        for (i, byte) in data.iter_mut().enumerate() {
            let first = (offset + i as u64) * 8;
            for bit in 0..8 {
                let pending = usize::try_from(first + bit)
                    .ok()
                    .and_then(|v| table.entries.get(v))
                    .is_some_and(|e| e.pending);
                *byte |= u8::from(pending) << bit;
            }
        }
    }

    /// Tells the group what `vector` now means, and sends what was pending if it may now be sent.
    fn update(&self, table: &mut Table, vector: u16) {
        let open = table.enabled && !table.function_masked;
        let enabled = table.enabled;
        let entry = &mut table.entries[usize::from(vector)];
        let wanted = (open && !entry.masked).then_some(entry.message);
        if wanted != entry.connected {
            // A vector that the hypervisor refuses stays disconnected; its interrupts stay pending.
            entry.connected = match self.group.set(vector, wanted) {
                Ok(()) => wanted,
                Err(e) => {
                    log::warn!("MSI-X vector {vector}: the hypervisor refused {wanted:x?}: {e}");
                    None
                }
            };
        }
        if !enabled {
            entry.pending = false;
        } else if entry.pending && entry.connected.is_some() {
            entry.pending = false;
            self.group.trigger(vector);
        }
    }
}

fn aligned(offset: u64, len: usize) -> bool {
    (len == 4 || len == 8) && offset.is_multiple_of(len as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::test_utils::FakeMsi;

    fn msix(vectors: u16) -> (Arc<FakeMsi>, Msix) {
        let fake = Arc::new(FakeMsi::default());
        (fake.clone(), Msix::new(fake, vectors))
    }

    fn program(m: &Msix, vector: u64, address: u64, data: u32, control: u32) {
        m.write_table(vector * 16, &address.to_le_bytes());
        m.write_table(vector * 16 + 8, &data.to_le_bytes());
        m.write_table(vector * 16 + 12, &control.to_le_bytes());
    }

    fn pba(m: &Msix, offset: u64) -> u64 {
        let mut d = [0; 8];
        m.read_pba(offset, &mut d);
        u64::from_le_bytes(d)
    }

    const MSG: MsiMessage = MsiMessage {
        address: 0xfee0_1000,
        data: 0x41,
    };

    #[test]
    fn starts_disabled_and_masked() {
        let (fake, m) = msix(2);
        let mut control = [0; 4];
        m.read_table(12, &mut control);
        assert_eq!(control, [1, 0, 0, 0]);
        m.trigger(0);
        assert_eq!(pba(&m, 0), 0, "disabled: lost");
        m.set_control(true, false);
        m.trigger(0);
        assert_eq!(pba(&m, 0), 1, "masked: pending");
        assert!(fake.sets().is_empty());
        assert!(fake.raised().is_empty());
    }

    #[test]
    fn an_open_vector_is_sent() {
        let (fake, m) = msix(2);
        m.set_control(true, false);
        program(&m, 1, MSG.address, MSG.data, 0);
        assert_eq!(fake.sets(), [(1, Some(MSG))]);
        m.trigger(1);
        assert_eq!(fake.raised(), [1]);
        m.trigger(2);
        m.trigger(NO_VECTOR);
        assert_eq!(fake.raised(), [1]);
    }

    #[test]
    fn unmasking_sends_what_was_pending_once() {
        let (fake, m) = msix(70);
        m.set_control(true, false);
        program(&m, 65, MSG.address, MSG.data, 1);
        m.trigger(65);
        m.trigger(65);
        assert_eq!((pba(&m, 0), pba(&m, 8)), (0, 2));
        m.write_table(65 * 16 + 12, &[0; 4]);
        assert_eq!(fake.raised(), [65]);
        assert_eq!(pba(&m, 8), 0);
    }

    #[test]
    fn the_function_mask_holds_all_back() {
        let (fake, m) = msix(1);
        program(&m, 0, MSG.address, MSG.data, 0);
        m.set_control(true, true);
        m.trigger(0);
        assert!(fake.sets().is_empty());
        m.set_control(true, false);
        assert_eq!(fake.raised(), [0]);
        m.set_control(true, true);
        assert_eq!(fake.sets(), [(0, Some(MSG)), (0, None)]);
    }

    #[test]
    fn disabling_forgets_what_was_pending() {
        let (fake, m) = msix(1);
        m.set_control(true, false);
        program(&m, 0, MSG.address, MSG.data, 1);
        m.trigger(0);
        m.set_control(false, false);
        m.set_control(true, false);
        m.write_table(12, &[0; 4]);
        assert!(fake.raised().is_empty());
    }

    #[test]
    fn a_change_while_open_is_passed_on() {
        let (fake, m) = msix(1);
        m.set_control(true, false);
        program(&m, 0, MSG.address, MSG.data, 0);
        m.write_table(8, &7u32.to_le_bytes());
        m.write_table(8, &7u32.to_le_bytes());
        assert_eq!(
            fake.sets(),
            [(0, Some(MSG)), (0, Some(MsiMessage { data: 7, ..MSG }))]
        );
    }

    #[test]
    fn a_refused_vector_keeps_its_interrupts_pending() {
        let (fake, m) = msix(1);
        fake.refuse(true);
        m.set_control(true, false);
        program(&m, 0, MSG.address, MSG.data, 0);
        m.trigger(0);
        assert_eq!(pba(&m, 0), 1);
        fake.refuse(false);
        m.write_table(12, &[0; 4]);
        assert_eq!(fake.raised(), [0]);
    }

    #[test]
    fn odd_accesses_do_nothing() {
        let (fake, m) = msix(1);
        m.set_control(true, false);
        for (offset, data) in [
            (12, &[0u8; 1][..]),
            (12, &[0; 2]),
            (12, &[0; 8]),
            (16, &[0; 4]),
            (2, &[0; 4]),
            (u64::MAX - 3, &[0; 4]),
        ] {
            m.write_table(offset, data);
            let mut back = vec![9; data.len()];
            m.read_table(offset, &mut back);
            assert!(back.iter().all(|b| *b == 0));
        }
        assert!(fake.sets().is_empty());
        assert_eq!(pba(&m, u64::MAX - 7), 0);
    }
}
