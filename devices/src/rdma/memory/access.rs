//! Reads and writes of guest memory.
//!
//! The guest runs at the same time and may change anything. So memory is copied with volatile accesses, which the compiler neither
//! repeats nor invents, and words that both sides use for synchronisation are accessed as atomics. No reference into guest memory
//! lives longer than one of these functions.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Segment;

/// Copies `out.len()` bytes from `from`, each byte read once.
///
/// # Safety
/// `from` must be valid for reads of `out.len()` bytes: it lies in a live registration.
#[inline(always)]
pub unsafe fn read(from: *const u8, out: &mut [u8]) {
    let mut at = 0;
    if from.addr().is_multiple_of(8) {
        while out.len() - at >= 8 {
            // SAFETY: at + 8 <= out.len(), the caller vouches for that many bytes, and the address is a multiple of 8.
            let word = unsafe { from.add(at).cast::<u64>().read_volatile() };
            out[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            at += 8;
        }
    }
    for (i, byte) in out.iter_mut().enumerate().skip(at) {
        // SAFETY: i < out.len(), and the caller vouches for that many bytes.
        *byte = unsafe { from.add(i).read_volatile() };
    }
}

/// Copies the `N` words at `from`, each read once. As bytes of a structure they lie as they did in memory.
///
/// Where the size is known and the place is aligned this is what to use: of a copy by [`read`], which has to see to any alignment, the
/// compiler makes one of bytes.
///
/// # Safety
/// `from` must be a multiple of 8 and valid for reads of `8 * N` bytes: it lies in a live registration.
#[inline(always)]
pub unsafe fn read_words<const N: usize>(from: *const u8) -> [u64; N] {
    debug_assert!(from.addr().is_multiple_of(8));
    // SAFETY: n < N, and the caller vouches for that many words and their alignment.
    std::array::from_fn(|n| unsafe { from.cast::<u64>().add(n).read_volatile() })
}

/// Copies `data` to `to`, each byte written once.
///
/// # Safety
/// `to` must be valid for writes of `data.len()` bytes: it lies in a live registration.
#[inline]
pub unsafe fn write(to: *mut u8, data: &[u8]) {
    let mut at = 0;
    if to.addr().is_multiple_of(8) {
        for word in data.as_chunks::<8>().0 {
            // SAFETY: at + 8 <= data.len(), the caller vouches for that many bytes, and the address is a multiple of 8.
            unsafe {
                to.add(at)
                    .cast::<u64>()
                    .write_volatile(u64::from_ne_bytes(*word));
            }
            at += 8;
        }
    }
    for (i, byte) in data.iter().enumerate().skip(at) {
        // SAFETY: i < data.len(), and the caller vouches for that many bytes.
        unsafe { to.add(i).write_volatile(*byte) };
    }
}

/// Writes words to `to`, each once, in order, the last with release ordering: whoever sees it sees the others too.
///
/// # Safety
/// `to` must be a multiple of 8 and valid for writes of `8 * N` bytes: it lies in a live registration.
#[inline(always)]
pub unsafe fn write_words<const N: usize>(to: *mut u8, words: &[u64; N]) {
    let Some((last, first)) = words.split_last() else {
        return;
    };
    for (n, word) in first.iter().enumerate() {
        // SAFETY: n < N, and the caller vouches for that many words and their alignment.
        unsafe { to.cast::<u64>().add(n).write_volatile(*word) };
    }
    // SAFETY: as above; all accesses of host code to this word are atomic.
    unsafe { store64(to.add(8 * first.len()), u64::from_le(*last)) };
}

/// Loads a le32 that the guest writes, with acquire ordering.
///
/// # Safety
/// `at` must be a multiple of 4 and valid for reads of 4 bytes: it lies in a live registration.
#[inline]
pub unsafe fn load32(at: *const u8) -> u32 {
    // SAFETY: the caller vouches for validity and alignment; all accesses of host code to this word are atomic.
    let word = unsafe { AtomicU32::from_ptr(at.cast_mut().cast()) };
    u32::from_le(word.load(Ordering::Acquire))
}

/// Stores a le32 that the guest reads, with release ordering.
///
/// # Safety
/// `at` must be a multiple of 4 and valid for writes of 4 bytes: it lies in a live registration.
#[inline]
pub unsafe fn store32(at: *mut u8, value: u32) {
    // SAFETY: the caller vouches for validity and alignment; all accesses of host code to this word are atomic.
    let word = unsafe { AtomicU32::from_ptr(at.cast()) };
    word.store(value.to_le(), Ordering::Release);
}

/// Stores a le64 that the guest reads, with release ordering.
///
/// # Safety
/// `at` must be a multiple of 8 and valid for writes of 8 bytes: it lies in a live registration.
#[inline]
pub unsafe fn store64(at: *mut u8, value: u64) {
    // SAFETY: the caller vouches for validity and alignment; all accesses of host code to this word are atomic.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    word.store(value.to_le(), Ordering::Release);
}

/// Views a segment as an atomic 64-bit word; None when it has another size or is not aligned.
fn word64(segment: &Segment) -> Option<&AtomicU64> {
    if segment.len != 8 || !segment.base.addr().is_multiple_of(8) {
        return None;
    }
    // SAFETY: aligned and 8 bytes long, as just checked; a segment names memory of a live registration, which is valid for reads and
    // writes while the device that resolved it holds it; the reference ends with the caller's one operation.
    Some(unsafe { AtomicU64::from_ptr(segment.base.cast()) })
}

/// If the le64 at `segment` equals `compare`, stores `swap`. Returns the old value, or None when the segment is not an aligned word.
pub fn compare_and_swap(segment: &Segment, compare: u64, swap: u64) -> Option<u64> {
    let word = word64(segment)?;
    let old = word.compare_exchange(
        compare.to_le(),
        swap.to_le(),
        Ordering::SeqCst,
        Ordering::SeqCst,
    );
    Some(u64::from_le(old.unwrap_or_else(|seen| seen)))
}

/// Stores a le64 at `segment`, in one. None when the segment is not an aligned word.
pub fn store(segment: &Segment, value: u64) -> Option<()> {
    word64(segment)?.store(value.to_le(), Ordering::SeqCst);
    Some(())
}

/// Adds to the le64 at `segment`, wrapping. Returns the old value, or None when the segment is not an aligned word.
pub fn fetch_and_add(segment: &Segment, add: u64) -> Option<u64> {
    let word = word64(segment)?;
    let mut old = word.load(Ordering::SeqCst);
    loop {
        let new = u64::from_le(old).wrapping_add(add).to_le();
        match word.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Some(u64::from_le(old)),
            Err(seen) => old = seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_alignment_and_length_are_exact() {
        let mut memory: Vec<u8> = (0..100).collect();
        for start in 0..17 {
            for len in 0..40 {
                let mut out = vec![0; len];
                // SAFETY: start + len < 100, the size of `memory`.
                unsafe { read(memory.as_ptr().add(start), &mut out) };
                assert_eq!(out, memory[start..start + len]);
            }
        }
        for start in 0..17 {
            for len in 0..40 {
                memory.fill(0xee);
                let data = vec![0x11; len];
                // SAFETY: start + len < 100, the size of `memory`.
                unsafe { write(memory.as_mut_ptr().add(start), &data) };
                assert!(memory[..start].iter().all(|b| *b == 0xee));
                assert_eq!(memory[start..start + len], data);
                assert!(memory[start + len..].iter().all(|b| *b == 0xee));
            }
        }
    }

    #[test]
    fn words_are_copied_as_they_lie() {
        let mut memory = [0x11_u64.to_le(), u64::MAX, 0x0102_0304_0506_0708];
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: `memory` has three words.
        let words = unsafe { read_words::<3>(base) };
        assert_eq!(words, memory);
        // SAFETY: as above; two are written.
        unsafe { write_words(base.add(8), &[7, 8]) };
        assert_eq!(memory, [words[0], 7, 8]);
    }

    #[test]
    fn atomics_return_the_old_value_and_refuse_what_is_not_an_aligned_word() {
        let mut word = [5_u64.to_le(), 0];
        let base = word.as_mut_ptr().cast::<u8>();
        let at = |offset: usize, len| Segment {
            base: base.wrapping_add(offset),
            len,
        };
        assert_eq!(compare_and_swap(&at(0, 8), 4, 9), Some(5));
        assert_eq!(compare_and_swap(&at(0, 8), 5, 9), Some(5));
        assert_eq!(fetch_and_add(&at(0, 8), u64::MAX), Some(9));
        assert_eq!(fetch_and_add(&at(0, 8), 0), Some(8));
        assert_eq!(fetch_and_add(&at(4, 8), 1), None);
        assert_eq!(compare_and_swap(&at(0, 4), 8, 1), None);
        assert_eq!(word[0], 8_u64.to_le());
        assert_eq!(store(&at(0, 8), 77), Some(()));
        assert_eq!(store(&at(4, 8), 1), None);
        assert_eq!(word, [77_u64.to_le(), 0]);
    }
}
