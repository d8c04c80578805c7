//! The AVX2 level, with F16C: every x86 server since 2013.

use std::arch::x86_64::*;

use super::lookup::{Groups, Lookup, Table};
use super::portable_transpose::{self, CACHE_LINE_BYTES, CacheLine, Panel, PanelTranspose};
use super::vector_transpose::{
    FenceOnDrop, Vector, level_functions, panel_transposes, transpose_1, transpose_2, transpose_4,
    transpose_8, transpose_panel, unpack,
};
use super::{CopyRows, Grid, Instructions, Job, RowKernel, map_vectors};
use crate::dtype::DType;
use crate::kernel::Overflow;

/// Whether the CPU has every feature that the functions here are compiled for.
pub(super) fn is_detected() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

/// The instructions of this level. Only [`super::Level`] uses the type, after [`is_detected`] returned true.
pub(super) struct Avx2;

impl Instructions for Avx2 {
    #[inline(always)]
    fn run(job: impl Job) {
        // SAFETY: Level has detected the features that `run_inlined` is compiled for.
        unsafe { run_inlined(job) }
    }

    fn scale_and_look_up(codes: Lookup<'_>, groups: Groups<'_>) -> bool {
        let is_whole = codes.lens.1.is_multiple_of(16);
        if is_whole {
            // SAFETY: Level has detected the features that the function is compiled for.
            unsafe { scale_and_look_up(codes, groups) };
        }
        is_whole
    }

    level_functions! { 1 => transpose_panel_1, 2 => transpose_panel_2, 4 => transpose_panel_4, 8 => transpose_panel_8 }
}

#[target_feature(enable = "avx2,f16c")]
fn run_inlined(job: impl Job) {
    job.run();
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned load.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn store(bytes: &mut [u8; 32], vector: __m256i) {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned store.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn load_128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned load.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn store_128(bytes: &mut [u8; 16], vector: __m128i) {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned store.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), vector) }
}

#[target_feature(enable = "avx2,f16c")]
fn f32_to_bf16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| {
        let [low, high] = src.as_chunks().0 else { return };
        store(dst, bf16_from_f32(load(low), load(high)));
    });
}

#[target_feature(enable = "avx2,f16c")]
fn f16_to_f32(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 16], dst: &mut [u8; 32]| {
        store(dst, _mm256_castps_si256(_mm256_cvtph_ps(load_128(src))));
    });
}

#[target_feature(enable = "avx2,f16c")]
fn f32_to_f16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 16]| store_128(dst, f16_from_f32(load(src))));
}

#[target_feature(enable = "avx2,f16c")]
fn f16_to_bf16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        let [low, high] = src.as_chunks().0 else { return };
        let (low, high) = (_mm256_cvtph_ps(load_128(low)), _mm256_cvtph_ps(load_128(high)));
        store(dst, bf16_from_f32(_mm256_castps_si256(low), _mm256_castps_si256(high)));
    });
}

#[target_feature(enable = "avx2,f16c")]
fn bf16_to_f16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 16], dst: &mut [u8; 16]| {
        store_128(dst, f16_from_f32(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_128(src)))));
    });
}

/// Rounds to nearest, ties to even; a NaN keeps the upper half of its payload and becomes quiet.
#[inline]
#[target_feature(enable = "avx2")]
fn bf16_from_f32(low: __m256i, high: __m256i) -> __m256i {
    let packed = _mm256_packus_epi32(round_to_bf16(low), round_to_bf16(high));
    // `packus` interleaves its operands by 128-bit lane; the permutation restores their order.
    _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
}

#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16(bits: __m256i) -> __m256i {
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

/// Looks up 16 codes at a time in the lower bytes of the results and in the upper ones.
#[target_feature(enable = "avx2,f16c")]
fn look_up(codes: Lookup<'_>, tables: &[Table]) {
    codes.run(tables.iter(), |table, is_high_first, bytes: &[u8; 8], out| {
        let ([first, last], [first_out, last_out]) =
            (table.as_chunks().0, out.as_flattened_mut().as_chunks_mut().0)
        else {
            return;
        };
        let even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let (first, last) = (_mm_shuffle_epi8(load_128(first), even), _mm_shuffle_epi8(load_128(last), even));
        let (lower, upper) = (_mm_unpacklo_epi64(first, last), _mm_unpackhi_epi64(first, last));
        let (bytes, mask) = (_mm_cvtsi64_si128(i64::from_le_bytes(*bytes)), _mm_set1_epi8(15));
        let (low, high) = (_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask));
        let codes = if is_high_first { _mm_unpacklo_epi8(high, low) } else { _mm_unpacklo_epi8(low, high) };
        let (lower, upper) = (_mm_shuffle_epi8(lower, codes), _mm_shuffle_epi8(upper, codes));
        store_128(first_out, _mm_unpacklo_epi8(lower, upper));
        store_128(last_out, _mm_unpackhi_epi8(lower, upper));
    });
}

/// Looks up 32 codes at a time, in the lower and the upper bytes of results that are made in registers.
#[target_feature(enable = "avx2,f16c")]
fn scale_and_look_up(codes: Lookup<'_>, groups: Groups<'_>) {
    let Groups { numbers, zeros, scales, dtype, non_temporal } = groups;
    let numbers: &[[u8; 32]; 2] = bytemuck::cast_ref(numbers);
    let numbers = numbers.each_ref().map(|half| _mm256_castsi256_ps(load(half)));
    let _fence = non_temporal.then_some(FenceOnDrop);
    let tables = scales.iter().enumerate().map(|(group, &scale)| {
        let (zero, scale) = (zeros.and_then(|zeros| zeros.get(group)), _mm256_set1_ps(scale));
        let [low, high] = numbers.map(|numbers| {
            let numbers = zero.map_or(numbers, |&zero| _mm256_sub_ps(numbers, _mm256_set1_ps(zero)));
            _mm256_castps_si256(_mm256_mul_ps(numbers, scale))
        });
        let results = match dtype {
            DType::F16 => _mm256_set_m128i(f16_from_f32(high), f16_from_f32(low)),
            _ => bf16_from_f32(low, high),
        };
        let even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let halves = _mm256_shuffle_epi8(results, _mm256_broadcastsi128_si256(even));
        let lower = _mm256_permute4x64_epi64::<0b10_00_10_00>(halves);
        (lower, _mm256_permute4x64_epi64::<0b11_01_11_01>(halves))
    });
    codes.run(tables, |&(lower, upper), is_high_first, bytes, out| {
        let (bytes, mask) = (load_128(bytes), _mm_set1_epi8(15));
        let (low, high) = (_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask));
        let (first, second) = if is_high_first { (high, low) } else { (low, high) };
        let codes = _mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second));
        let (lower, upper) = (_mm256_shuffle_epi8(lower, codes), _mm256_shuffle_epi8(upper, codes));
        let halves = [_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)];
        let results = Vector256::transpose_lanes(halves.map(Vector256));
        match bytemuck::try_cast_mut(out) {
            Ok(line) if non_temporal => Vector256::stream_line(results, line),
            _ => Vector256::store_line(results, bytemuck::cast_mut(out)),
        }
    });
}

/// The vector of AVX2: two 128-bit lanes, half a cache line.
#[derive(Clone, Copy)]
struct Vector256(__m256i);

impl Vector<2, 2> for Vector256 {
    #[inline(always)]
    unsafe fn zero() -> Vector256 {
        // SAFETY: the caller's promise.
        Vector256(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(address: *const u8) -> Vector256 {
        // SAFETY: the caller's promise; an unaligned load.
        Vector256(unsafe { _mm256_loadu_si256(address.cast()) })
    }

    unpack!(unpack_8, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8);
    unpack!(unpack_16, _mm256_unpacklo_epi16, _mm256_unpackhi_epi16);
    unpack!(unpack_32, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32);
    unpack!(unpack_64, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64);

    #[inline(always)]
    fn transpose_lanes([a, b]: [Vector256; 2]) -> [Vector256; 2] {
        // SAFETY: a vector exists, so the CPU has the instruction.
        let low = unsafe { _mm256_permute2x128_si256::<0x20>(a.0, b.0) };
        // SAFETY: as above.
        let high = unsafe { _mm256_permute2x128_si256::<0x31>(a.0, b.0) };
        [Vector256(low), Vector256(high)]
    }

    #[inline(always)]
    fn store_line([first, second]: [Vector256; 2], line: &mut [u8; CACHE_LINE_BYTES]) {
        if let [low, high] = line.as_chunks_mut().0 {
            // SAFETY: a vector exists, so the CPU has the instruction.
            unsafe { store(low, first.0) };
            // SAFETY: as above.
            unsafe { store(high, second.0) };
        }
    }

    #[inline(always)]
    fn stream_line([first, second]: [Vector256; 2], line: &mut CacheLine) {
        let start: *mut __m256i = line.0.as_mut_ptr().cast();
        // SAFETY: a vector exists, so the CPU has the instruction; the reference is to the bytes of two vectors, aligned as
        // the store wants them, and this is the first.
        unsafe { _mm256_stream_si256(start, first.0) };
        // SAFETY: as above, so the second is in the same bytes.
        let next = unsafe { start.add(1) };
        // SAFETY: as above; the second vector is one vector's size after the first, so it is aligned as well.
        unsafe { _mm256_stream_si256(next, second.0) };
    }
}

panel_transposes!("avx2,f16c", Vector256);
