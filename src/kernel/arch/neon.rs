//! The NEON level, which every 64-bit Arm CPU has: its conversions of f16, rounding to bf16, and transposes in registers. The compiler
//! vectorizes the other loops for NEON at every level.

use std::arch::aarch64::*;
use std::arch::asm;

use super::lookup::{Lookup, Table};
use super::portable_transpose::{self, CACHE_LINE_BYTES, CacheLine, Panel, PanelTranspose};
use super::vector_transpose::{
    Vector, level_functions, panel_transposes, transpose_1, transpose_2, transpose_4, transpose_panel, unpack,
};
use super::{CopyRows, Grid, Instructions, Job, RowKernel, map_vectors};
use crate::dtype::DType;
use crate::kernel::Overflow;

const _: () = assert!(cfg!(target_endian = "little"), "elements are loaded as bytes");

/// The instructions of this level, which need no detection.
pub(super) struct Neon;

impl Instructions for Neon {
    #[inline(always)]
    fn run(job: impl Job) {
        job.run();
    }

    // 8: the portable loop has fewer instructions than vectors of two elements.
    level_functions! { 1 => transpose_panel_1, 2 => transpose_panel_2, 4 => transpose_panel_4 }
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned load.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(bytes: &mut [u8; 16], vector: uint8x16_t) {
    // SAFETY: the reference is to as many bytes as a vector has; an unaligned store.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), vector) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_32(bytes: &[u8; 16]) -> uint32x4_t {
    vreinterpretq_u32_u8(load(bytes))
}

#[target_feature(enable = "neon")]
fn f32_to_bf16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| {
        for (dst, src) in dst.as_chunks_mut().0.iter_mut().zip(src.as_chunks::<32>().0) {
            let [low, high] = src.as_chunks().0 else { return };
            store(dst, bf16_from_f32(load_32(low), load_32(high)));
        }
    });
}

#[target_feature(enable = "neon")]
fn f16_to_f32(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 64]| {
        for (dst, src) in dst.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks().0) {
            let [low, high] = dst.as_chunks_mut().0 else { return };
            let values = f16_to_f32_bits(load(src));
            store(low, vreinterpretq_u8_u32(values[0]));
            store(high, vreinterpretq_u8_u32(values[1]));
        }
    });
}

#[target_feature(enable = "neon")]
fn f32_to_f16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 64], dst: &mut [u8; 32]| {
        for (dst, src) in dst.as_chunks_mut().0.iter_mut().zip(src.as_chunks::<32>().0) {
            let [low, high] = src.as_chunks().0 else { return };
            store(dst, f16_from_f32(load_32(low), load_32(high)));
        }
    });
}

#[target_feature(enable = "neon")]
fn f16_to_bf16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        for (dst, src) in dst.as_chunks_mut().0.iter_mut().zip(src.as_chunks().0) {
            let [low, high] = f16_to_f32_bits(load(src));
            store(dst, bf16_from_f32(low, high));
        }
    });
}

#[target_feature(enable = "neon")]
fn bf16_to_f16(src: &[u8], dst: &mut [u8]) {
    map_vectors(src, dst, |src: &[u8; 32], dst: &mut [u8; 32]| {
        for (dst, src) in dst.as_chunks_mut().0.iter_mut().zip(src.as_chunks().0) {
            let (zero, upper) = (vdupq_n_u16(0), vreinterpretq_u16_u8(load(src)));
            let (low, high) = (vzip1q_u16(zero, upper), vzip2q_u16(zero, upper));
            store(dst, f16_from_f32(vreinterpretq_u32_u16(low), vreinterpretq_u32_u16(high)));
        }
    });
}

/// Rounds to nearest, ties to even; a NaN keeps the upper half of its payload and becomes quiet.
#[inline]
#[target_feature(enable = "neon")]
fn bf16_from_f32(low: uint32x4_t, high: uint32x4_t) -> uint8x16_t {
    // This instruction rounds ties up; one less is no tie.
    let rounded = vrsubhn_high_u32(vrsubhn_u32(low, is_even(low)), high, is_even(high));
    let quiet = vorrq_u16(upper_halves(low, high), vdupq_n_u16(0x40));
    let number = upper_halves(is_number(low), is_number(high));
    vreinterpretq_u8_u16(vbslq_u16(number, rounded, quiet))
}

/// 1 where the upper half is even, else 0.
#[inline]
#[target_feature(enable = "neon")]
fn is_even(bits: uint32x4_t) -> uint32x4_t {
    vbicq_u32(vdupq_n_u32(1), vshrq_n_u32::<16>(bits))
}

/// All ones where the f32 is no NaN, else 0.
#[inline]
#[target_feature(enable = "neon")]
fn is_number(bits: uint32x4_t) -> uint32x4_t {
    let value = vreinterpretq_f32_u32(bits);
    vceqq_f32(value, value)
}

#[inline]
#[target_feature(enable = "neon")]
fn upper_halves(low: uint32x4_t, high: uint32x4_t) -> uint16x8_t {
    vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high))
}

/// Widens eight f16 to the bits of the same f32. The intrinsics of these instructions are not stable in all versions of Rust that build
/// this crate.
#[inline]
#[target_feature(enable = "neon")]
fn f16_to_f32_bits(halves: uint8x16_t) -> [uint32x4_t; 2] {
    let (low, high);
    // SAFETY: only these registers are read and written, and the exception flags, which nothing reads.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            halves = in(vreg) halves,
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack),
        );
    }
    [low, high]
}

/// Narrows eight f32, round-to-nearest-even; a value out of range becomes infinite.
#[inline]
#[target_feature(enable = "neon")]
fn f16_from_f32(low: uint32x4_t, high: uint32x4_t) -> uint8x16_t {
    let halves;
    // SAFETY: as above.
    unsafe {
        asm!(
            "fcvtn {halves:v}.4h, {low:v}.4s",
            "fcvtn2 {halves:v}.8h, {high:v}.4s",
            low = in(vreg) low,
            high = in(vreg) high,
            halves = out(vreg) halves,
            options(pure, nomem, nostack),
        );
    }
    halves
}

/// Looks up 16 codes at a time in the lower bytes of the results and in the upper ones.
#[target_feature(enable = "neon")]
fn look_up(codes: Lookup<'_>, tables: &[Table]) {
    codes.run(tables.iter(), |table, is_high_first, bytes: &[u8; 8], out| {
        let ([first, last], [first_out, last_out]) =
            (table.as_chunks().0, out.as_flattened_mut().as_chunks_mut().0)
        else {
            return;
        };
        let (first, last) = (load(first), load(last));
        let (lower, upper) = (vuzp1q_u8(first, last), vuzp2q_u8(first, last));
        let bytes = vreinterpretq_u8_u64(vdupq_n_u64(u64::from_le_bytes(*bytes)));
        let (low, high) = (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes));
        let codes = if is_high_first { vzip1q_u8(high, low) } else { vzip1q_u8(low, high) };
        let (lower, upper) = (vqtbl1q_u8(lower, codes), vqtbl1q_u8(upper, codes));
        store(first_out, vzip1q_u8(lower, upper));
        store(last_out, vzip2q_u8(lower, upper));
    });
}

/// Defines the interleaves of the lower and of the upper halves of two vectors, by the intrinsics for wider elements.
macro_rules! interleave {
    ($low:ident, $high:ident, $low_elements:ident, $high_elements:ident, $elements:ident, $bytes:ident) => {
        #[inline]
        #[target_feature(enable = "neon")]
        fn $low(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            $bytes($low_elements($elements(a), $elements(b)))
        }

        #[inline]
        #[target_feature(enable = "neon")]
        fn $high(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            $bytes($high_elements($elements(a), $elements(b)))
        }
    };
}

interleave!(low_16, high_16, vzip1q_u16, vzip2q_u16, vreinterpretq_u16_u8, vreinterpretq_u8_u16);
interleave!(low_32, high_32, vzip1q_u32, vzip2q_u32, vreinterpretq_u32_u8, vreinterpretq_u8_u32);
interleave!(low_64, high_64, vzip1q_u64, vzip2q_u64, vreinterpretq_u64_u8, vreinterpretq_u8_u64);

/// The vector of NEON: one lane, a quarter of a cache line.
#[derive(Clone, Copy)]
struct Vector128(uint8x16_t);

impl Vector<1, 4> for Vector128 {
    #[inline(always)]
    unsafe fn zero() -> Vector128 {
        // SAFETY: the caller's promise.
        Vector128(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(address: *const u8) -> Vector128 {
        // SAFETY: the caller's promise; an unaligned load.
        Vector128(unsafe { vld1q_u8(address) })
    }

    unpack!(unpack_8, vzip1q_u8, vzip2q_u8);
    unpack!(unpack_16, low_16, high_16);
    unpack!(unpack_32, low_32, high_32);
    unpack!(unpack_64, low_64, high_64);

    #[inline(always)]
    fn transpose_lanes(vectors: [Vector128; 1]) -> [Vector128; 1] {
        vectors
    }

    #[inline(always)]
    fn store_line(vectors: [Vector128; 4], line: &mut [u8; CACHE_LINE_BYTES]) {
        for (bytes, vector) in line.as_chunks_mut().0.iter_mut().zip(vectors) {
            // SAFETY: every 64-bit Arm CPU has NEON.
            unsafe { store(bytes, vector.0) };
        }
    }

    /// As `store_line`: no intrinsic stores without the cache.
    #[inline(always)]
    fn stream_line(vectors: [Vector128; 4], line: &mut CacheLine) {
        Vector128::store_line(vectors, &mut line.0);
    }
}

panel_transposes! { "neon", Vector128, transpose_panel_1, transpose_1 }
panel_transposes! { "neon", Vector128, transpose_panel_2, transpose_2 }
panel_transposes! { "neon", Vector128, transpose_panel_4, transpose_4 }
panel_transposes! { "neon", Vector128, stream_rows }
