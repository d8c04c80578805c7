//! SHA-256 of several runs of bytes side by side.
//!
//! The SHA instructions of x86 wait for their own results, and two hashes that take turns take little longer than one: 3.4 instead of
//! 1.8 GB/s on one core. The crate sha2, which does the rest, hashes one run at a time. `unsafe` is one call of a function that needs
//! these instructions, after they were detected.

use sha2::block_api::compress256;

use crate::num::{to_u64, to_usize};

/// What is hashed at once.
type Block = [u8; 64];

/// What blocks make of the initial values.
type State = [u32; 8];

/// A SHA-256 hash of the bytes so far.
#[derive(Clone, Debug)]
pub(crate) struct Hash {
    state: State,
    len: u64,
    /// What comes after the last whole block.
    rest: Block,
}

impl Hash {
    pub(crate) fn new() -> Hash {
        #[rustfmt::skip]
        let state = [
            0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19,
        ];
        Hash { state, len: 0, rest: [0; size_of::<Block>()] }
    }

    /// Appends bytes to each hash, as many to all. Unless they are the last, they are whole blocks.
    pub(crate) fn update<const N: usize>(hashes: &mut [Hash; N], bytes: [&[u8]; N]) {
        let mut states = hashes.each_ref().map(|hash| hash.state);
        compress(&mut states, bytes.map(|bytes| bytes.as_chunks().0));
        for ((hash, state), bytes) in hashes.iter_mut().zip(states).zip(bytes) {
            debug_assert_eq!(hash.rest_len(), 0, "only the last bytes are no whole blocks");
            let (_, rest) = bytes.as_chunks::<{ size_of::<Block>() }>();
            hash.rest[..rest.len()].copy_from_slice(rest);
            *hash = Hash { state, len: hash.len.wrapping_add(to_u64(bytes.len())), rest: hash.rest };
        }
    }

    /// The digest of all bytes: after them a one, zeros, and their number in bits at the end of a block (FIPS 180-4, 5.1.1).
    pub(crate) fn finish(self) -> [u8; 32] {
        let (mut blocks, at) = ([self.rest, [0; size_of::<Block>()]], self.rest_len());
        blocks[0][at..].fill(0);
        blocks[0][at] = 0x80;
        let count = if at < size_of::<Block>() - size_of::<u64>() { 1 } else { 2 };
        if let Some((_, end)) = blocks[count - 1].split_last_chunk_mut() {
            *end = self.len.wrapping_mul(8).to_be_bytes();
        }
        let mut state = self.state;
        compress256(&mut state, &blocks[..count]);
        bytemuck::cast(state.map(u32::to_be_bytes))
    }

    fn rest_len(&self) -> usize {
        to_usize(self.len) % size_of::<Block>()
    }
}

/// How many hashes take about as long as one.
pub(crate) fn lanes() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if x86::is_available() {
        return 2;
    }
    1
}

/// Brings states forward by equally many blocks each.
fn compress<const N: usize>(states: &mut [State; N], blocks: [&[Block]; N]) {
    #[cfg(target_arch = "x86_64")]
    if N > 1 && x86::is_available() {
        #[expect(unsafe_code, reason = "a function that needs the processor's SHA instructions")]
        // SAFETY: the processor has the features of the function.
        unsafe {
            x86::compress(states, blocks);
        }
        return;
    }
    for (state, blocks) in states.iter_mut().zip(blocks) {
        compress256(state, blocks);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_set_epi32, _mm_sha256msg1_epu32, _mm_sha256msg2_epu32,
        _mm_sha256rnds2_epu32, _mm_shuffle_epi32,
    };

    use super::{Block, State};

    /// The constants of the rounds (FIPS 180-4, 4.2.2).
    const ROUNDS: [[[u32; 4]; 4]; 4] = [
        [
            [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5],
            [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
            [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3],
            [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
        ],
        [
            [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc],
            [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
            [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7],
            [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
        ],
        [
            [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13],
            [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
            [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3],
            [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
        ],
        [
            [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5],
            [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
            [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208],
            [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
        ],
    ];

    pub(super) fn is_available() -> bool {
        is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1")
    }

    /// As [`compress`](super::compress). Each step is made for all states, so that none waits for itself.
    #[target_feature(enable = "sha,sse4.1")]
    pub(super) fn compress<const N: usize>(states: &mut [State; N], blocks: [&[Block]; N]) {
        // The order of the instructions: a, b, e and f in one vector, c, d, g and h in the other.
        let pairs = states.map(|[a, b, c, d, e, f, g, h]| (vector([f, e, b, a]), vector([h, g, d, c])));
        let (mut abef, mut cdgh) = (pairs.map(|pair| pair.0), pairs.map(|pair| pair.1));
        let count = blocks.iter().map(|blocks| blocks.len()).min().unwrap_or(0);
        let blocks = blocks.map(|blocks| &blocks[..count]);
        for at in 0..count {
            let before = (abef, cdgh);
            let mut words = blocks.map(|blocks| words_of(&blocks[at]));
            for sixteen in ROUNDS {
                for (step, constants) in sixteen.into_iter().enumerate() {
                    for lane in 0..N {
                        let [now, next, after, last] = [0, 1, 2, 3].map(|add| words[lane][(step + add) % 4]);
                        let sum = _mm_add_epi32(now, vector(constants));
                        cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], sum);
                        abef[lane] =
                            _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], _mm_shuffle_epi32::<0b1110>(sum));
                        // The words of sixteen rounds later. Those after the last round are not used.
                        let sum =
                            _mm_add_epi32(_mm_sha256msg1_epu32(now, next), _mm_alignr_epi8::<4>(last, after));
                        words[lane][step] = _mm_sha256msg2_epu32(sum, last);
                    }
                }
            }
            for lane in 0..N {
                abef[lane] = _mm_add_epi32(abef[lane], before.0[lane]);
                cdgh[lane] = _mm_add_epi32(cdgh[lane], before.1[lane]);
            }
        }
        for ((state, abef), cdgh) in states.iter_mut().zip(abef).zip(cdgh) {
            let ([f, e, b, a], [h, g, d, c]) = (numbers(abef), numbers(cdgh));
            *state = [a, b, c, d, e, f, g, h];
        }
    }

    /// The big-endian numbers of a block.
    #[target_feature(enable = "sse4.1")]
    fn words_of(block: &Block) -> [__m128i; 4] {
        let (numbers, _) = block.as_chunks::<4>();
        let (vectors, _) = numbers.as_chunks::<4>();
        std::array::from_fn(|at| vector(vectors[at].map(u32::from_be_bytes)))
    }

    /// Four numbers, the first of them lowest.
    #[target_feature(enable = "sse4.1")]
    fn vector(numbers: [u32; 4]) -> __m128i {
        let [a, b, c, d] = numbers.map(u32::cast_signed);
        _mm_set_epi32(d, c, b, a)
    }

    #[target_feature(enable = "sse4.1")]
    fn numbers(vector: __m128i) -> [u32; 4] {
        bytemuck::cast(vector)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    use super::*;

    proptest! {
        #[test]
        fn each_of_several_hashes_is_that_of_its_bytes(
            parts in prop::collection::vec(0_usize..40, 0..5),
            last in 0_usize..200,
            seed in any::<[u8; 2]>(),
        ) {
            let len = parts.iter().sum::<usize>() * size_of::<Block>() + last;
            let bytes = seed.map(|seed| (0..len).map(|at| (at * 31).to_le_bytes()[0] ^ seed).collect::<Vec<u8>>());
            let (mut two, mut one, mut start) = ([Hash::new(), Hash::new()], [Hash::new()], 0);
            for part in parts.iter().map(|blocks| blocks * size_of::<Block>()).chain([last]) {
                let now = bytes.each_ref().map(|bytes| &bytes[start..][..part]);
                Hash::update(&mut two, now);
                Hash::update(&mut one, [now[0]]);
                start += part;
            }
            let expected = bytes.map(|bytes| <[u8; 32]>::from(Sha256::digest(bytes)));
            prop_assert_eq!(two.map(Hash::finish), expected);
            prop_assert_eq!(one.map(Hash::finish), [expected[0]]);
        }
    }
}
