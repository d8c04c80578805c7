//! The level of AVX-512 F, BW, DQ and VL: Skylake-X and Zen 4 on.

use std::arch::x86_64::*;

use super::{COLUMNS, Grid, Instructions, LINE, LINES, Line, Lines, Panel, Row, avx2, lines, vectors};
use crate::dtype::DType;
use crate::kernel::Overflow;

/// Whether the machine has everything that the functions here need.
pub(super) fn is_detected() -> bool {
    avx2::is_detected()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// A level that only [`super::Level`] leads to, which has asked [`is_detected`].
pub(super) struct Avx512;

impl Instructions for Avx512 {
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

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn run(job: impl FnOnce()) {
    job();
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to as many bytes as a vector has, and the load wants no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(bytes: &mut [u8; 64], vector: __m512i) {
    // SAFETY: the reference is to as many bytes as a vector has, and the store wants no alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Stores past the caches, which saves reading the line first. The caller holds a [`avx2::FenceOnDrop`].
#[inline]
#[target_feature(enable = "avx512f")]
fn stream(line: &mut Line, vector: __m512i) {
    // SAFETY: the reference is to as many bytes as a vector has, aligned as the store wants them.
    unsafe { _mm512_stream_si512(line.0.as_mut_ptr().cast(), vector) }
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f32_to_bf16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| avx2::store(dst, bf16_from_f32(load(src))));
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f16_to_f32(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 64]| {
        store(dst, _mm512_castps_si512(_mm512_cvtph_ps(avx2::load(src))));
    });
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f32_to_f16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| avx2::store(dst, f16_from_f32(load(src))));
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f16_to_bf16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        avx2::store(dst, bf16_from_f32(_mm512_castps_si512(_mm512_cvtph_ps(avx2::load(src)))));
    });
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn bf16_to_f16(src: &[u8], dst: &mut [u8]) {
    vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        avx2::store(dst, f16_from_f32(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(avx2::load(src)))));
    });
}

/// Rounds to nearest even; a NaN keeps the upper half of its payload and becomes quiet.
#[inline]
#[target_feature(enable = "avx512f")]
fn bf16_from_f32(bits: __m512i) -> __m256i {
    let upper = _mm512_srli_epi32::<16>(bits);
    let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    let rounded = _mm512_srli_epi32::<16>(rounded);
    let value = _mm512_castsi512_ps(bits);
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
    _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn f16_from_f32(bits: __m512i) -> __m256i {
    _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_castsi512_ps(bits))
}

/// A block of `64 / SIZE` rows and as many columns; vectors of the rows in, of the columns out.
type Block<const N: usize> = [__m512i; N];

/// The first vectors of rows that are `pitch` bytes apart. Panics where the last one ends before its own.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn load_rows<const N: usize>(bytes: &[u8], pitch: usize) -> Block<N> {
    assert!(pitch.saturating_mul(N - 1).saturating_add(LINE) <= bytes.len(), "{N} rows {pitch} apart");
    let mut rows = [_mm512_setzero_si512(); N];
    for (at, row) in rows.iter_mut().enumerate() {
        // Nothing here may fail: then the loop is unrolled, and all loads are on their way at once.
        let row_at = bytes.as_ptr().wrapping_add(at.wrapping_mul(pitch));
        // SAFETY: the last row's vector ends inside the slice, so an earlier one lies in it; the load wants no alignment.
        *row = unsafe { _mm512_loadu_si512(row_at.cast()) };
    }
    rows
}

/// Writes a panel, the lines of some columns at one go. First their blocks are transposed, then all is stored.
macro_rules! lines {
    ($name:ident, $size:literal, $transpose:ident) => {
        #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        fn $name(panel: Panel<'_>, dst: &mut Grid<'_>) {
            let _fence = avx2::FenceOnDrop(panel.streams);
            const SIDE: usize = LINE / $size;
            let mut lines = [[_mm512_setzero_si512(); COLUMNS]; LINES];
            for left in (0..panel.columns).step_by(COLUMNS) {
                let columns = COLUMNS.min(panel.columns - left);
                for first in (0..panel.lines).step_by(LINES) {
                    let lines = &mut lines[..LINES.min(panel.lines - first)];
                    for (line, vectors) in lines.iter_mut().enumerate() {
                        let rows = &panel.bytes[(first + line) * SIDE * panel.pitch..];
                        let blocks = vectors[..columns.next_multiple_of(SIDE)].as_chunks_mut::<SIDE>().0;
                        for (at, block) in blocks.iter_mut().enumerate() {
                            *block = $transpose(load_rows(&rows[left * $size + at * LINE..], panel.pitch));
                        }
                    }
                    for column in 0..columns {
                        let dst = &mut dst.row(left + column)[first * LINE..][..lines.len() * LINE];
                        match bytemuck::try_cast_slice_mut(dst) {
                            Ok(dst) if panel.streams => {
                                for (vectors, line) in lines.iter().zip(dst) {
                                    stream(line, vectors[column]);
                                }
                            }
                            _ => {
                                for (vectors, line) in lines.iter().zip(dst.as_chunks_mut().0) {
                                    store(line, vectors[column]);
                                }
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
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose_1(rows: Block<64>) -> Block<64> {
    let zero = _mm512_setzero_si512();
    let mut words = [[zero; 16]; 4];
    for (k, rows) in rows.as_chunks().0.iter().enumerate() {
        let [a, b, c, d] = *rows;
        let (low, high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
        let (low_2, high_2) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
        words[0][k] = _mm512_unpacklo_epi16(low, low_2);
        words[1][k] = _mm512_unpackhi_epi16(low, low_2);
        words[2][k] = _mm512_unpacklo_epi16(high, high_2);
        words[3][k] = _mm512_unpackhi_epi16(high, high_2);
    }
    let mut columns = [zero; 64];
    for (part, words) in words.into_iter().enumerate() {
        for (at, vector) in transpose_4(words).into_iter().enumerate() {
            columns[at / 4 * 16 + part * 4 + at % 4] = vector;
        }
    }
    columns
}

/// As [`transpose_1`], with pairs of rows and lanes of 8 columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose_2(rows: Block<32>) -> Block<32> {
    let zero = _mm512_setzero_si512();
    let mut words = [[zero; 16]; 2];
    for (k, rows) in rows.as_chunks().0.iter().enumerate() {
        let [a, b] = *rows;
        words[0][k] = _mm512_unpacklo_epi16(a, b);
        words[1][k] = _mm512_unpackhi_epi16(a, b);
    }
    let mut columns = [zero; 32];
    for (part, words) in words.into_iter().enumerate() {
        for (at, vector) in transpose_4(words).into_iter().enumerate() {
            columns[at / 4 * 8 + part * 4 + at % 4] = vector;
        }
    }
    columns
}

#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_4(r: Block<16>) -> Block<16> {
    let mut t = r;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // Quarter q of `u[4 * i + j]` is rows 4i.. of column 4q + j.
    let mut u = t;
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    let mut out = u;
    for j in 0..4 {
        let quarters = transpose_quarters([u[j], u[4 + j], u[8 + j], u[12 + j]]);
        for (q, vector) in quarters.into_iter().enumerate() {
            out[4 * q + j] = vector;
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_8(r: Block<8>) -> Block<8> {
    // Quarter q of the first four is rows 0, 1 (then 2, 3 and so on) of column 2q, of the others of column 2q + 1.
    let mut out = r;
    let even = transpose_quarters([
        _mm512_unpacklo_epi64(r[0], r[1]),
        _mm512_unpacklo_epi64(r[2], r[3]),
        _mm512_unpacklo_epi64(r[4], r[5]),
        _mm512_unpacklo_epi64(r[6], r[7]),
    ]);
    let odd = transpose_quarters([
        _mm512_unpackhi_epi64(r[0], r[1]),
        _mm512_unpackhi_epi64(r[2], r[3]),
        _mm512_unpackhi_epi64(r[4], r[5]),
        _mm512_unpackhi_epi64(r[6], r[7]),
    ]);
    for q in 0..4 {
        out[2 * q] = even[q];
        out[2 * q + 1] = odd[q];
    }
    out
}

/// Transposes the 128-bit quarters of four vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_quarters([a, b, c, d]: Block<4>) -> Block<4> {
    const EVEN: i32 = 0x88;
    const ODD: i32 = 0xdd;
    let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<EVEN>(a, b), _mm512_shuffle_i32x4::<ODD>(a, b));
    let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<EVEN>(c, d), _mm512_shuffle_i32x4::<ODD>(c, d));
    [
        _mm512_shuffle_i32x4::<EVEN>(ab_even, cd_even),
        _mm512_shuffle_i32x4::<EVEN>(ab_odd, cd_odd),
        _mm512_shuffle_i32x4::<ODD>(ab_even, cd_even),
        _mm512_shuffle_i32x4::<ODD>(ab_odd, cd_odd),
    ]
}
