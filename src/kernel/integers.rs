//! Codes that are whole numbers, unpacked with vectors, which are faster than a table.

use super::arch::Job;

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
