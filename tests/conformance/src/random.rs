//! Choices, and numbers that look random and are the same every time.

/// Where choices come from.
pub trait Source {
    /// Any 64 bits.
    fn word(&mut self) -> u64;

    /// Whether no more choices are to be had.
    fn exhausted(&self) -> bool {
        false
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// True once in `n`.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    fn pick<T: Copy>(&mut self, of: &[T]) -> T
    where
        Self: Sized,
    {
        of[self.below(of.len() as u64) as usize]
    }

    /// Bytes.
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// An integer of the sort that finds mistakes: edges, powers of two and their neighbours, and anything.
    fn edge(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(4),
            1 => u64::MAX - self.below(4),
            2 => (1u64 << self.below(64))
                .wrapping_add(self.below(3))
                .wrapping_sub(1),
            3 => 0xffff_ffff - self.below(2),
            4 => self.below(0x1_0000),
            _ => self.word(),
        }
    }
}

/// A generator (xorshift64*), good enough for payloads and mutations; a seed names a run.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From any seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
}

impl Source for Random {
    #[inline]
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }
}

/// A payload of `len` bytes.
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}
