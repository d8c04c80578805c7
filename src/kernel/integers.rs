//! Codes that are whole numbers, unpacked with vectors, which are faster than a table.

use super::arch::Job;

/// The bytes of two codes each that are unpacked at once.
const PAIRS_AT_ONCE: usize = 64;

/// The place in a word of the code of each column, in [`Order::EvenFirst`](super::codes::Order::EvenFirst).
pub(super) const EVEN_FIRST: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The numbers of [`Number::Integer`](super::codes::Number::Integer).
#[derive(Clone, Copy)]
pub(super) struct Integers {
    /// The bits of a code.
    pub(super) mask: u32,
    pub(super) add: u32,
    pub(super) flip: u32,
    pub(super) offset: i32,
}

/// Both numbers of each byte, of which the lower half comes first, or the upper.
pub(super) struct Pairs<'a> {
    pub(super) numbers: Integers,
    pub(super) is_high_first: bool,
    pub(super) bytes: &'a [u8],
    pub(super) out: &'a mut [[f32; 2]],
}

/// The eight numbers of each word, those of even columns first.
pub(super) struct EvenFirst<'a> {
    pub(super) numbers: Integers,
    pub(super) words: &'a [[u8; 4]],
    pub(super) out: &'a mut [[f32; 8]],
}

/// The number at a bit of each word, which may end in the word at the same place of `next`.
pub(super) struct Across<'a, const N: usize> {
    pub(super) numbers: Integers,
    pub(super) bit: u32,
    pub(super) words: &'a [[u8; N]],
    pub(super) next: Option<&'a [[u8; N]]>,
    pub(super) out: &'a mut [f32],
}

impl Integers {
    /// The number of a code.
    #[inline(always)]
    pub(super) fn of(self, code: u32) -> f32 {
        ((code.wrapping_add(self.add) & self.mask ^ self.flip) as i32).wrapping_sub(self.offset) as f32
    }
}

impl Job for Pairs<'_> {
    #[inline(always)]
    fn run(self) {
        let Pairs { numbers, is_high_first, bytes, out } = self;
        let (add, flip) = (numbers.add as u8, numbers.flip as u8);
        for (out, bytes) in out.chunks_mut(PAIRS_AT_ONCE).zip(bytes.chunks(PAIRS_AT_ONCE)) {
            let mut codes = [[0_u8; 2]; PAIRS_AT_ONCE];
            for (codes, &byte) in codes.iter_mut().zip(bytes) {
                *codes = if is_high_first { [byte >> 4, byte & 15] } else { [byte & 15, byte >> 4] };
            }
            for code in codes.as_flattened_mut() {
                *code = code.wrapping_add(add) & 15 ^ flip;
            }
            for (out, &code) in out.as_flattened_mut().iter_mut().zip(codes.as_flattened()) {
                *out = i32::from(code).wrapping_sub(numbers.offset) as f32;
            }
        }
    }
}

impl Job for EvenFirst<'_> {
    #[inline(always)]
    fn run(self) {
        for (out, &bytes) in self.out.iter_mut().zip(self.words) {
            for (out, shift) in out.iter_mut().zip(EVEN_FIRST) {
                *out = self.numbers.of(word(bytes) >> (4 * shift));
            }
        }
    }
}

impl<const N: usize> Job for Across<'_, N> {
    #[inline(always)]
    fn run(self) {
        let Across { numbers, bit, words, next, out } = self;
        match next {
            None => {
                for (out, &bytes) in out.iter_mut().zip(words) {
                    *out = numbers.of(word(bytes) >> bit);
                }
            }
            Some(next) => {
                for (out, (&low, &high)) in out.iter_mut().zip(words.iter().zip(next)) {
                    *out = numbers.of(word(low) >> bit | word(high) << (32 - bit));
                }
            }
        }
    }
}

/// A word of `N` bytes.
#[inline(always)]
pub(super) fn word<const N: usize>(bytes: [u8; N]) -> u32 {
    let mut word = [0; 4];
    word[..N].copy_from_slice(&bytes);
    u32::from_le_bytes(word)
}
