//! The AVX-512 level, with F, BW, DQ and VL: from Skylake-X and Zen 4 on.

use std::arch::x86_64::*;

use super::lookup::{Groups, Table};
use super::portable_transpose::{self, CACHE_LINE_BYTES, CacheLine, Panel, PanelTranspose};
use super::vector_transpose::{
    FenceOnDrop, Vector, level_functions, panel_transposes, transpose_1, transpose_2, transpose_4,
    transpose_8, transpose_panel, unpack,
};
use super::{CopyRows, Grid, Instructions, Job, Lookup, RowKernel, avx2, map_vectors};
use crate::dtype::DType;
use crate::kernel::Overflow;

/// Whether the CPU has every feature that the functions here are compiled for.
pub(super) fn is_detected() -> bool {
    avx2::is_detected()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// The instructions of this level. Only [`super::Level`] uses the type, after [`is_detected`] returned true.
pub(super) struct Avx512;

impl Instructions for Avx512 {
    #[inline(always)]
    fn run(job: impl Job) {
        // SAFETY: Level has detected the features that `run_inlined` is compiled for.
        unsafe { run_inlined(job) }
    }

    fn scale_and_look_up(codes: Lookup<'_>, groups: Groups<'_>) -> bool {
        // SAFETY: Level has detected the features that the function is compiled for.
        unsafe { scale_and_look_up(codes, groups) }
        true
    }

    level_functions! { 1 => transpose_panel_1, 2 => transpose_panel_2, 4 => transpose_panel_4, 8 => transpose_panel_8 }
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_inlined(job: impl Job) {
    job.run();
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned load.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(bytes: &mut [u8; 64], vector: __m512i) {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned store.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f32_to_bf16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| avx2::store(dst, bf16_from_f32(load(src))));
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f16_to_f32(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 64]| {
        store(dst, _mm512_castps_si512(_mm512_cvtph_ps(avx2::load(src))));
    });
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f32_to_f16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| avx2::store(dst, f16_from_f32(load(src))));
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn f16_to_bf16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        avx2::store(dst, bf16_from_f32(_mm512_castps_si512(_mm512_cvtph_ps(avx2::load(src)))));
    });
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn bf16_to_f16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        avx2::store(dst, f16_from_f32(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(avx2::load(src)))));
    });
}

/// Looks up 16 codes at a time.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up(codes: Lookup<'_>, tables: &[Table]) {
    codes.run(tables.iter(), |table, is_high_first, bytes, out| {
        look_up_16(avx2::load(table), is_high_first, bytes, out);
    });
}

/// Looks up 32 codes at a time, or 16 where groups have no more, in results that are made in a register.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn scale_and_look_up(codes: Lookup<'_>, groups: Groups<'_>) {
    let numbers = _mm512_castsi512_ps(load(bytemuck::cast_ref(groups.numbers)));
    let (is_f16, non_temporal) = (groups.dtype == DType::F16, groups.non_temporal);
    let _fence = non_temporal.then_some(FenceOnDrop);
    let tables = groups.scales.iter().enumerate().map(|(group, &scale)| {
        let zero = groups.zeros.and_then(|zeros| zeros.get(group));
        let numbers = zero.map_or(numbers, |&zero| _mm512_sub_ps(numbers, _mm512_set1_ps(zero)));
        let scaled = _mm512_castps_si512(_mm512_mul_ps(numbers, _mm512_set1_ps(scale)));
        if is_f16 { f16_from_f32(scaled) } else { bf16_from_f32(scaled) }
    });
    match codes.lens.1.is_multiple_of(16) {
        true => codes.run(tables, |&table, is_high_first, bytes, out| {
            let results = Vector512(look_up_32(table, is_high_first, bytes));
            match bytemuck::try_cast_mut(out) {
                Ok(line) if non_temporal => Vector512::stream_line([results], line),
                _ => Vector512::store_line([results], bytemuck::cast_mut(out)),
            }
        }),
        false => codes
            .run(tables, |&table, is_high_first, bytes, out| look_up_16(table, is_high_first, bytes, out)),
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up_16(table: __m256i, is_high_first: bool, bytes: &[u8; 8], out: &mut [[u8; 4]; 8]) {
    // The index of a lane is in its lower bits; those above do not count.
    let bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*bytes)));
    let (lower, upper) = match is_high_first {
        false => (bytes, _mm256_slli_epi32::<12>(bytes)),
        true => (_mm256_srli_epi32::<4>(bytes), _mm256_slli_epi32::<16>(bytes)),
    };
    let codes = _mm256_or_si256(lower, upper);
    avx2::store(bytemuck::cast_mut(out), _mm256_permutexvar_epi16(codes, table));
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up_32(table: __m256i, is_high_first: bool, bytes: &[u8; 16]) -> __m512i {
    // The table twice: the bit above an index may be set.
    let (table, bytes) = (_mm512_broadcast_i64x4(table), _mm512_cvtepu8_epi32(avx2::load_128(bytes)));
    let (lower, upper) = match is_high_first {
        false => (bytes, _mm512_slli_epi32::<12>(bytes)),
        true => (_mm512_srli_epi32::<4>(bytes), _mm512_slli_epi32::<16>(bytes)),
    };
    _mm512_permutexvar_epi16(_mm512_or_si512(lower, upper), table)
}

/// Rounds to nearest, ties to even; a NaN keeps the upper half of its payload and becomes quiet.
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

/// The vector of AVX-512: four 128-bit lanes, a cache line.
#[derive(Clone, Copy)]
struct Vector512(__m512i);

impl Vector<4, 1> for Vector512 {
    #[inline(always)]
    unsafe fn zero() -> Vector512 {
        // SAFETY: the caller's promise.
        Vector512(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(address: *const u8) -> Vector512 {
        // SAFETY: the caller's promise; an unaligned load.
        Vector512(unsafe { _mm512_loadu_si512(address.cast()) })
    }

    unpack!(unpack_8, _mm512_unpacklo_epi8, _mm512_unpackhi_epi8);
    unpack!(unpack_16, _mm512_unpacklo_epi16, _mm512_unpackhi_epi16);
    unpack!(unpack_32, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32);
    unpack!(unpack_64, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64);

    #[inline(always)]
    fn transpose_lanes([a, b, c, d]: [Vector512; 4]) -> [Vector512; 4] {
        let ([ab_even, ab_odd], [cd_even, cd_odd]) = (a.shuffle_lanes(b), c.shuffle_lanes(d));
        let ([first, third], [second, fourth]) =
            (ab_even.shuffle_lanes(cd_even), ab_odd.shuffle_lanes(cd_odd));
        [first, second, third, fourth]
    }

    #[inline(always)]
    fn store_line([vector]: [Vector512; 1], line: &mut [u8; CACHE_LINE_BYTES]) {
        // SAFETY: a vector exists, so the CPU has the instruction.
        unsafe { store(line, vector.0) };
    }

    #[inline(always)]
    fn stream_line([vector]: [Vector512; 1], line: &mut CacheLine) {
        // SAFETY: a vector exists, so the CPU has the instruction; the reference is to as many bytes as a vector has, aligned
        // as the store wants them.
        unsafe { _mm512_stream_si512(line.0.as_mut_ptr().cast(), vector.0) };
    }
}

impl Vector512 {
    /// The even lanes of both vectors, and the odd ones.
    #[inline(always)]
    fn shuffle_lanes(self, other: Vector512) -> [Vector512; 2] {
        // SAFETY: a vector exists, so the CPU has the instruction.
        let even = unsafe { _mm512_shuffle_i32x4::<0x88>(self.0, other.0) };
        // SAFETY: as above.
        let odd = unsafe { _mm512_shuffle_i32x4::<0xdd>(self.0, other.0) };
        [Vector512(even), Vector512(odd)]
    }
}

panel_transposes!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Vector512);
