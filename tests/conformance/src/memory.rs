//! A guest's memory without a guest: RAM of two regions with a hole between them, an allocator of its pages, and the
//! DMA addresses under which a device sees it, which are nowhere the physical ones.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex};

use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Where the second region starts, as in a PC with a hole below 4 GiB, unless the first one reaches that far.
const HIGH: u64 = 4 << 30;
/// A DMA address is the physical address plus this. Far outside any physical address in use, so a device that takes one for the other
/// finds nothing there.
pub const DMA_OFFSET: u64 = 0x5a00_0000_0000;
/// What memory holds that nobody was given.
pub const CANARY: u8 = 0xc5;

/// A guest's RAM.
pub struct GuestMemory {
    ram: GuestMemoryMmap,
    file: File,
    /// Our own mapping of all pages in one row, apart from the one that the device gets.
    base: *mut u8,
    pages: usize,
    /// Where the second region starts.
    high: u64,
    used: Mutex<Used>,
}

struct Used {
    map: Vec<bool>,
    next: usize,
}

// SAFETY: `base` is a mapping that lives as long as the value; what is read and written through it is shared memory by nature.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; the allocator's state is behind a mutex.
unsafe impl Sync for GuestMemory {}

fn check(result: i64, what: &str) -> i64 {
    assert!(result >= 0, "{what}: {}", std::io::Error::last_os_error());
    result
}

impl GuestMemory {
    /// RAM of `pages` pages, half of it below the hole and half above.
    pub fn new(pages: usize) -> Arc<GuestMemory> {
        assert!(
            pages >= 2 && pages.is_multiple_of(2),
            "an even number of pages"
        );
        let len = pages * PAGE;
        let high = HIGH.max(len as u64);
        // SAFETY: the name is a C string; the call has no other preconditions.
        let fd = check(
            unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC) }.into(),
            "memfd_create",
        );
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let file = unsafe { File::from_raw_fd(fd as i32) };
        file.set_len(len as u64).expect("size of the memfd");
        let region =
            |n: u64| FileOffset::new(file.try_clone().expect("a descriptor"), n * len as u64 / 2);
        let ram = GuestMemoryMmap::from_ranges_with_files([
            (GuestAddress(0), len / 2, Some(region(0))),
            (GuestAddress(high), len / 2, Some(region(1))),
        ])
        .expect("guest RAM");
        let base = map(&file, len, 0, None);
        Arc::new(GuestMemory {
            ram,
            file,
            base,
            pages,
            high,
            used: Mutex::new(Used {
                map: vec![false; pages],
                next: 0,
            }),
        })
    }

    /// The memory as the device is given it.
    pub fn ram(&self) -> &GuestMemoryMmap {
        &self.ram
    }

    /// Bytes of RAM.
    pub fn len(&self) -> usize {
        self.pages * PAGE
    }

    /// Never: memory has pages.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn physical(&self, page: usize) -> u64 {
        let half = self.pages / 2;
        if page < half {
            (page * PAGE) as u64
        } else {
            self.high + ((page - half) * PAGE) as u64
        }
    }

    /// DMA address of a page.
    pub fn dma(&self, page: usize) -> u64 {
        self.physical(page) + DMA_OFFSET
    }

    /// Physical address of a DMA address. None if the platform did not map `len` bytes there.
    pub fn dma_to_physical(&self, dma: u64, len: u64) -> Option<u64> {
        let physical = dma.checked_sub(DMA_OFFSET)?;
        let end = physical.checked_add(len)?;
        let half = (self.len() / 2) as u64;
        (end <= half || (physical >= self.high && end <= self.high + half)).then_some(physical)
    }

    /// A DMA address just past the last page.
    pub fn dma_end(&self) -> u64 {
        self.dma(self.pages - 1) + PAGE as u64
    }

    /// Gives `len` bytes, rounded up to pages, zeroed; the pages are neighbours in physical memory too.
    pub fn contiguous(self: &Arc<Self>, len: usize) -> Buffer {
        self.aligned(len, 1)
    }

    /// Like [`Self::contiguous`], with the first page's DMA address a multiple of `align` pages (a power of two).
    pub fn aligned(self: &Arc<Self>, len: usize, align: usize) -> Buffer {
        let count = len.div_ceil(PAGE).max(1);
        let mut used = self.used.lock().expect("the allocator");
        let half = self.pages / 2;
        let fits = |start: usize, map: &[bool]| {
            start + count <= self.pages
                && (start / half == (start + count - 1) / half)
                && self.dma(start).is_multiple_of((align * PAGE) as u64)
                && !map[start..start + count].contains(&true)
        };
        let mut start = used.next;
        let mut tried = 0;
        while !fits(start, &used.map) {
            start = (start + 1) % self.pages;
            tried += 1;
            assert!(
                tried <= self.pages,
                "the guest is out of memory: {count} pages asked for"
            );
        }
        used.map[start..start + count].fill(true);
        used.next = (start + count) % self.pages;
        drop(used);
        let va = self.page_ptr(start);
        // SAFETY: the pages were free and are ours now; they lie in our mapping.
        unsafe { std::ptr::write_bytes(va, 0, count * PAGE) };
        Buffer {
            memory: self.clone(),
            va,
            len,
            pages: (start..start + count).collect(),
            view: false,
        }
    }

    /// Gives `len` bytes that are in a row for the process and all over the place in physical memory: pages in descending order,
    /// with a page between any two that is not part of it.
    pub fn scattered(self: &Arc<Self>, len: usize) -> Buffer {
        let count = len.div_ceil(PAGE).max(1);
        let mut used = self.used.lock().expect("the allocator");
        let mut pages = Vec::with_capacity(count);
        let mut at = self.pages;
        while pages.len() < count {
            assert!(
                at >= 2,
                "the guest is out of memory: {count} scattered pages asked for"
            );
            at -= 2;
            if !used.map[at] {
                used.map[at] = true;
                pages.push(at);
            }
        }
        drop(used);
        // SAFETY: an anonymous reservation at an address of the kernel's choice.
        let va = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(
            va,
            libc::MAP_FAILED,
            "mmap: {}",
            std::io::Error::last_os_error()
        );
        let va = va.cast::<u8>();
        for (n, page) in pages.iter().enumerate() {
            // SAFETY: within the reservation.
            let at = unsafe { va.add(n * PAGE) };
            map(&self.file, PAGE, page * PAGE, Some(at));
        }
        // SAFETY: the reservation is now wholly backed by pages that are ours.
        unsafe { std::ptr::write_bytes(va, 0, count * PAGE) };
        Buffer {
            memory: self.clone(),
            va,
            len,
            pages,
            view: true,
        }
    }

    fn page_ptr(&self, page: usize) -> *mut u8 {
        assert!(page < self.pages);
        // SAFETY: within the mapping.
        unsafe { self.base.add(page * PAGE) }
    }

    /// Fills every page that nobody has with [`CANARY`].
    pub fn plant_canaries(&self) {
        let used = self.used.lock().expect("the allocator");
        for (page, taken) in used.map.iter().enumerate() {
            if !taken {
                // SAFETY: a whole page of the mapping.
                unsafe { std::ptr::write_bytes(self.page_ptr(page), CANARY, PAGE) };
            }
        }
    }

    /// Checks that every page that nobody has still holds [`CANARY`]; the offset in RAM of the first byte that does not.
    pub fn disturbed_canary(&self) -> Option<usize> {
        let used = self.used.lock().expect("the allocator");
        let expected = [CANARY; PAGE];
        for (page, taken) in used.map.iter().enumerate() {
            if *taken {
                continue;
            }
            // SAFETY: a whole page of the mapping.
            let differs =
                unsafe { libc::memcmp(self.page_ptr(page).cast(), expected.as_ptr().cast(), PAGE) }
                    != 0;
            if differs {
                // SAFETY: reading bytes of the mapping.
                let at = (0..PAGE)
                    .find(|at| unsafe { self.page_ptr(page).add(*at).read_volatile() } != CANARY);
                return Some(page * PAGE + at.unwrap_or(0));
            }
        }
        None
    }

    /// Offset in RAM, in bytes, of a page's first byte; for messages.
    pub fn offset_of(&self, page: usize) -> usize {
        page * PAGE
    }
}

fn map(file: &File, len: usize, offset: usize, at: Option<*mut u8>) -> *mut u8 {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: MAP_FIXED is only used inside a reservation of ours; otherwise the kernel chooses the address.
    let va = unsafe {
        libc::mmap(
            at.unwrap_or(std::ptr::null_mut()).cast(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE | fixed,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    assert_ne!(
        va,
        libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    va.cast()
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; every Buffer holds the value alive.
        unsafe { libc::munmap(self.base.cast(), self.len()) };
    }
}

/// Memory that a process of the guest was given.
pub struct Buffer {
    memory: Arc<GuestMemory>,
    va: *mut u8,
    len: usize,
    pages: Vec<usize>,
    view: bool,
}

// SAFETY: the memory behind `va` is shared by nature; access goes through volatile or atomic operations and plain copies.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Where the process sees it.
    pub fn ptr(&self) -> *mut u8 {
        self.va
    }

    /// Its virtual address, which serves as iova.
    pub fn addr(&self) -> u64 {
        self.va as u64
    }

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// DMA addresses of its pages, in order.
    pub fn dma_pages(&self) -> Vec<u64> {
        self.pages
            .iter()
            .map(|page| self.memory.dma(*page))
            .collect()
    }

    /// Copies bytes in.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.pages.len() * PAGE);
        // SAFETY: within the buffer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.va.add(at), bytes.len()) };
    }

    /// Copies bytes out.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.pages.len() * PAGE);
        let mut out = vec![0; len];
        // SAFETY: within the buffer, and into a vector of that length.
        unsafe { std::ptr::copy_nonoverlapping(self.va.add(at), out.as_mut_ptr(), len) };
        out
    }

    /// Fills all of it, to the end of its last page.
    pub fn fill(&self, byte: u8) {
        // SAFETY: within the buffer.
        unsafe { std::ptr::write_bytes(self.va, byte, self.pages.len() * PAGE) };
    }

    /// Whether all of it, to the end of its last page, holds `byte`.
    pub fn holds_only(&self, byte: u8) -> bool {
        self.read(0, self.pages.len() * PAGE)
            .iter()
            .all(|b| *b == byte)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.view {
            // SAFETY: the reservation made in `scattered`.
            unsafe { libc::munmap(self.va.cast(), self.pages.len() * PAGE) };
        }
        let mut used = self.memory.used.lock().expect("the allocator");
        for page in &self.pages {
            used.map[*page] = false;
            // What was given back is nobody's: a late write shows in `disturbed_canary`.
            // SAFETY: a whole page of the mapping.
            unsafe { std::ptr::write_bytes(self.memory.base.add(page * PAGE), CANARY, PAGE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scattered_buffer_is_one_row_for_the_process_and_none_for_the_device() {
        let memory = GuestMemory::new(64);
        let buffer = memory.scattered(3 * PAGE);
        let bytes: Vec<u8> = (0..3 * PAGE).map(|n| (n % 251) as u8).collect();
        buffer.write(0, &bytes);
        assert_eq!(buffer.read(0, 3 * PAGE), bytes);
        let dma = buffer.dma_pages();
        assert!(
            dma.windows(2)
                .all(|pair| pair[1] + PAGE as u64 != pair[0] && pair[0] + PAGE as u64 != pair[1])
        );
        for (n, page) in buffer.pages.iter().enumerate() {
            // SAFETY: a page of the mapping.
            let byte = unsafe { memory.page_ptr(*page).add(7).read() };
            assert_eq!(byte, bytes[n * PAGE + 7]);
        }
    }

    #[test]
    fn a_write_to_a_page_that_was_given_back_is_seen() {
        let memory = GuestMemory::new(16);
        memory.plant_canaries();
        let buffer = memory.contiguous(PAGE);
        let va = buffer.ptr();
        drop(buffer);
        assert_eq!(memory.disturbed_canary(), None);
        // SAFETY: the mapping lives on; this is the write that must be seen.
        unsafe { va.add(5).write(0) };
        assert!(memory.disturbed_canary().is_some());
    }

    #[test]
    fn dma_addresses_are_not_physical_ones() {
        let memory = GuestMemory::new(16);
        assert_eq!(memory.dma_to_physical(0, 1), None);
        assert_eq!(memory.dma_to_physical(memory.dma(3), 4096), Some(3 * 4096));
        assert_eq!(
            memory.dma_to_physical(memory.dma(7), 4097),
            None,
            "the hole is no memory"
        );
        assert_eq!(memory.dma_to_physical(memory.dma(8), 1), Some(HIGH));
        assert_eq!(memory.dma_to_physical(memory.dma_end() - 1, 2), None);
    }
}
