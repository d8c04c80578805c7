//! The level of AVX2 and F16C: every x86 server since 2013.

use std::arch::x86_64::*;

use super::{COLUMNS, Grid, Instructions, LINE, LINES, Line, Lines, Panel, Row, lines, vectors};
use crate::dtype::DType;
use crate::kernel::Overflow;

/// Whether the machine has everything that the functions here need.
pub(super) fn is_detected() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

/// A level that only [`super::Level`] leads to, which has asked [`is_detected`].
pub(super) struct Avx2;

impl Instructions for Avx2 {
    #[inline(always)]
    fn run(job: impl FnOnce()) {
        // SAFETY: Level has detected the features that `run` is compiled for.
        unsafe { run(job) }
    }

    fn row(from: DType, to: DType, _overflow: Overflow) -> Option<Row> {
        /// A row of a function that needs the features.
        macro_rules! row {
            ($function:ident) => {
                // SAFETY: Level has detected the features that the function is compiled for.
                |src, dst| unsafe { $function(src, dst) }
            };
        }
        Some(match (from, to) {
            (DType::F32, DType::BF16) => row!(f32_to_bf16),
            (DType::F16, DType::F32) => row!(f16_to_f32),
            (DType::F32, DType::F16) => row!(f32_to_f16),
            (DType::F16, DType::BF16) => row!(f16_to_bf16),
            (DType::BF16, DType::F16) => row!(bf16_to_f16),
            _ => return None,
        })
    }

    fn lines(size: usize) -> Lines {
        /// The transpose of a function that needs the features.
        macro_rules! lines {
            ($function:ident) => {
                // SAFETY: Level has detected the features that the function is compiled for.
                |panel, dst| unsafe { $function(panel, dst) }
            };
        }
        match size {
            1 => lines!(lines_1),
            2 => lines!(lines_2),
            4 => lines!(lines_4),
            8 => lines!(lines_8),
            _ => lines::lines(size),
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn run(job: impl FnOnce()) {
    job();
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to as many bytes as a vector has, and the load wants no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn store(bytes: &mut [u8; 32], vector: __m256i) {
    // SAFETY: the reference is to as many bytes as a vector has, and the store wants no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_half(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is to as many bytes as a vector has, and the load wants no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn store_half(bytes: &mut [u8; 16], vector: __m128i) {
    // SAFETY: the reference is to as many bytes as a vector has, and the store wants no alignment.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx")]
fn store_line(bytes: &mut [u8; LINE], first: __m256i, second: __m256i) {
    if let [low, high] = bytes.as_chunks_mut().0 {
        store(low, first);
        store(high, second);
    }
}

/// Orders a panel's non-temporal stores before what other threads are told next. On unwinding too: the destination is visible to
/// whoever catches the panic.
pub(super) struct FenceOnDrop(pub(super) bool);

impl Drop for FenceOnDrop {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: every x86-64 has SSE, which is all that the instruction needs.
            unsafe { _mm_sfence() };
        }
    }
}

/// Stores past the caches, which saves reading the line first. The caller holds a [`FenceOnDrop`].
#[inline]
#[target_feature(enable = "avx")]
fn stream(line: &mut Line, first: __m256i, second: __m256i) {
    let start: *mut __m256i = line.0.as_mut_ptr().cast();
    // SAFETY: the reference is to the bytes of two vectors, aligned as the store wants them; this is the first.
    unsafe { _mm256_stream_si256(start, first) };
    // SAFETY: as above, so the second is in the same bytes.
    let next = unsafe { start.add(1) };
    // SAFETY: as above; the alignment of a vector's size goes on from the first to the second.
    unsafe { _mm256_stream_si256(next, second) };
}

#[target_feature(enable = "avx2,f16c")]
fn f32_to_bf16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| {
        let [low, high] = src.as_chunks().0 else { return };
        store(dst, bf16_from_f32(load(low), load(high)));
    });
}

#[target_feature(enable = "avx2,f16c")]
fn f16_to_f32(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 16], dst: &mut [u8; 32]| {
        store(dst, _mm256_castps_si256(_mm256_cvtph_ps(load_half(src))));
    });
}

#[target_feature(enable = "avx2,f16c")]
fn f32_to_f16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 16]| store_half(dst, f16_from_f32(load(src))));
}

#[target_feature(enable = "avx2,f16c")]
fn f16_to_bf16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        let [low, high] = src.as_chunks().0 else { return };
        let (low, high) = (_mm256_cvtph_ps(load_half(low)), _mm256_cvtph_ps(load_half(high)));
        store(dst, bf16_from_f32(_mm256_castps_si256(low), _mm256_castps_si256(high)));
    });
}

#[target_feature(enable = "avx2,f16c")]
fn bf16_to_f16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 16], dst: &mut [u8; 16]| {
        store_half(dst, f16_from_f32(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_half(src)))));
    });
}

/// Rounds to nearest even; a NaN keeps the upper half of its payload and becomes quiet.
#[inline]
#[target_feature(enable = "avx2")]
fn bf16_from_f32(low: __m256i, high: __m256i) -> __m256i {
    let packed = _mm256_packus_epi32(rounded_to_bf16(low), rounded_to_bf16(high));
    // The packing takes turns between its operands, lane by lane.
    _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
}

#[inline]
#[target_feature(enable = "avx2")]
fn rounded_to_bf16(bits: __m256i) -> __m256i {
    let upper = _mm256_srli_epi32::<16>(bits);
    let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let rounded = _mm256_srli_epi32::<16>(rounded);
    let value = _mm256_castsi256_ps(bits);
    let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
    _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), is_nan)
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn f16_from_f32(bits: __m256i) -> __m128i {
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_castsi256_ps(bits))
}

/// A block of `32 / SIZE` rows and as many columns; vectors of the rows in, of the columns out.
type Block<const N: usize> = [__m256i; N];

/// The first vectors of rows that are `pitch` bytes apart. Panics where the last one ends before its own.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load_rows<const N: usize>(bytes: &[u8], pitch: usize) -> Block<N> {
    assert!(pitch.saturating_mul(N - 1).saturating_add(LINE / 2) <= bytes.len(), "{N} rows {pitch} apart");
    let mut rows = [_mm256_setzero_si256(); N];
    for (at, row) in rows.iter_mut().enumerate() {
        // Nothing here may fail: then the loop is unrolled, and all loads are on their way at once.
        let row_at = bytes.as_ptr().wrapping_add(at.wrapping_mul(pitch));
        // SAFETY: the last row's vector ends inside the slice, so an earlier one lies in it; the load wants no alignment.
        *row = unsafe { _mm256_loadu_si256(row_at.cast()) };
    }
    rows
}

/// Writes a panel, the lines of some columns at one go. First their blocks are transposed, then all is stored.
macro_rules! lines {
    ($name:ident, $size:literal, $transpose:ident) => {
        #[target_feature(enable = "avx2,f16c")]
        fn $name(panel: Panel<'_>, dst: &mut Grid<'_>) {
            let _fence = FenceOnDrop(panel.streams);
            const HALF: usize = LINE / 2;
            const SIDE: usize = HALF / $size;
            let mut halves = [[_mm256_setzero_si256(); COLUMNS]; 2 * LINES];
            for left in (0..panel.columns).step_by(COLUMNS) {
                let columns = COLUMNS.min(panel.columns - left);
                for first in (0..panel.lines).step_by(LINES) {
                    let halves = &mut halves[..2 * LINES.min(panel.lines - first)];
                    for (half, vectors) in halves.iter_mut().enumerate() {
                        let rows = &panel.bytes[(2 * first + half) * SIDE * panel.pitch..];
                        let blocks = vectors[..columns.next_multiple_of(SIDE)].as_chunks_mut::<SIDE>().0;
                        for (at, block) in blocks.iter_mut().enumerate() {
                            *block = $transpose(load_rows(&rows[left * $size + at * HALF..], panel.pitch));
                        }
                    }
                    for column in 0..columns {
                        let dst = &mut dst.row(left + column)[first * LINE..];
                        for ([upper, lower], bytes) in
                            halves.as_chunks().0.iter().zip(dst.as_chunks_mut::<LINE>().0)
                        {
                            match bytemuck::try_from_bytes_mut(bytes) {
                                Ok(line) if panel.streams => stream(line, upper[column], lower[column]),
                                _ => store_line(bytes, upper[column], lower[column]),
                            }
                        }
                    }
                }
            }
        }
    };
}

lines!(lines_1, 1, transpose_1);
lines!(lines_2, 2, transpose_2);
lines!(lines_4, 4, transpose_4);
lines!(lines_8, 8, transpose_8);

/// Four rows are joined to 32-bit words, whose transpose is known. The unpacking works in 128-bit lanes of 16 columns: one
/// of the four joins has columns 4j.. of each lane.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_1(rows: Block<32>) -> Block<32> {
    let zero = _mm256_setzero_si256();
    let mut words = [[zero; 8]; 4];
    for (k, rows) in rows.as_chunks().0.iter().enumerate() {
        let [a, b, c, d] = *rows;
        let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
        let (low_2, high_2) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
        words[0][k] = _mm256_unpacklo_epi16(low, low_2);
        words[1][k] = _mm256_unpackhi_epi16(low, low_2);
        words[2][k] = _mm256_unpacklo_epi16(high, high_2);
        words[3][k] = _mm256_unpackhi_epi16(high, high_2);
    }
    let mut columns = [zero; 32];
    for (part, words) in words.into_iter().enumerate() {
        for (at, vector) in transpose_4(words).into_iter().enumerate() {
            columns[at / 4 * 16 + part * 4 + at % 4] = vector;
        }
    }
    columns
}

/// As [`transpose_1`], with pairs of rows and lanes of 8 columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_2(rows: Block<16>) -> Block<16> {
    let zero = _mm256_setzero_si256();
    let mut words = [[zero; 8]; 2];
    for (k, rows) in rows.as_chunks().0.iter().enumerate() {
        let [a, b] = *rows;
        words[0][k] = _mm256_unpacklo_epi16(a, b);
        words[1][k] = _mm256_unpackhi_epi16(a, b);
    }
    let mut columns = [zero; 16];
    for (part, words) in words.into_iter().enumerate() {
        for (at, vector) in transpose_4(words).into_iter().enumerate() {
            columns[at / 4 * 8 + part * 4 + at % 4] = vector;
        }
    }
    columns
}

#[inline]
#[target_feature(enable = "avx2")]
fn transpose_4(r: Block<8>) -> Block<8> {
    let mut t = r;
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // Half h of `u[4 * i + j]` is rows 4i.. of column 4h + j.
    let mut u = t;
    for i in 0..2 {
        u[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    let mut out = u;
    for j in 0..4 {
        out[j] = _mm256_permute2x128_si256::<0x20>(u[j], u[4 + j]);
        out[4 + j] = _mm256_permute2x128_si256::<0x31>(u[j], u[4 + j]);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn transpose_8(r: Block<4>) -> Block<4> {
    let (even, odd) = (_mm256_unpacklo_epi64(r[0], r[1]), _mm256_unpackhi_epi64(r[0], r[1]));
    let (even_2, odd_2) = (_mm256_unpacklo_epi64(r[2], r[3]), _mm256_unpackhi_epi64(r[2], r[3]));
    [
        _mm256_permute2x128_si256::<0x20>(even, even_2),
        _mm256_permute2x128_si256::<0x20>(odd, odd_2),
        _mm256_permute2x128_si256::<0x31>(even, even_2),
        _mm256_permute2x128_si256::<0x31>(odd, odd_2),
    ]
}
