//! Rows between f32 or bf16 and the five 8-bit floats, branch-free.
//!
//! e4m3fn and e5m2 as in the OCP 8-bit floating point specification; the fnuz kinds (no infinities, no negative zero, one
//! NaN at 0x80) as AMD and Graphcore define them; e8m0fnu, a bare power of two, as the scale of OCP microscaling formats.

use super::{Instructions, Row, map};
use crate::dtype::DType;
use crate::kernel::Overflow;

/// What the four formats with a sign differ in.
trait Format {
    /// Bits of the mantissa.
    const MANTISSA: u32;
    /// What is added to the exponent.
    const BIAS: u32;
    /// The code of the largest finite value.
    const LARGEST: u32;
    /// The code of what is larger, before the sign; the next one.
    const TOO_LARGE: u32;
    /// The code that NaN is given.
    const NAN: u32;
    /// Whether 0x80 is NaN and not a negative zero.
    const UNSIGNED_ZERO: bool;

    /// Mantissa bits that an f32 has and the format lacks.
    const SHIFT: u32 = 23 - Self::MANTISSA;
    /// The smallest normal number, as the bits of an f32.
    const NORMAL: u32 = (128 - Self::BIAS) << 23;
    /// A power of two, as the bits of an f32, whose last place is the format's smallest subnormal number.
    const MAGIC: u32 = (127 + 24 - Self::BIAS - Self::MANTISSA) << 23;
}

struct E4M3Fn;
struct E5M2;
struct E4M3Fnuz;
struct E5M2Fnuz;

impl Format for E4M3Fn {
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 7;
    const LARGEST: u32 = 0x7e;
    const TOO_LARGE: u32 = 0x7f;
    const NAN: u32 = 0x7f;
    const UNSIGNED_ZERO: bool = false;
}

impl Format for E5M2 {
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 15;
    const LARGEST: u32 = 0x7b;
    const TOO_LARGE: u32 = 0x7c;
    const NAN: u32 = 0x7f;
    const UNSIGNED_ZERO: bool = false;
}

impl Format for E4M3Fnuz {
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 8;
    const LARGEST: u32 = 0x7f;
    const TOO_LARGE: u32 = 0x80;
    const NAN: u32 = 0x80;
    const UNSIGNED_ZERO: bool = true;
}

impl Format for E5M2Fnuz {
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 16;
    const LARGEST: u32 = 0x7f;
    const TOO_LARGE: u32 = 0x80;
    const NAN: u32 = 0x80;
    const UNSIGNED_ZERO: bool = true;
}

/// The row between an fp8 and f32 or bf16; `None` for other dtypes.
pub(super) fn row<I: Instructions>(from: DType, to: DType, overflow: Overflow) -> Option<Row> {
    match (from, to, overflow) {
        (_, DType::F32, _) => decoder::<I, F32, 4>(from),
        (_, DType::BF16, _) => decoder::<I, BF16, 2>(from),
        (DType::F32, _, Overflow::Nan) => encoder::<I, F32, 4, false>(to),
        (DType::F32, _, Overflow::Saturate) => encoder::<I, F32, 4, true>(to),
        (DType::BF16, _, Overflow::Nan) => encoder::<I, BF16, 2, false>(to),
        (DType::BF16, _, Overflow::Saturate) => encoder::<I, BF16, 2, true>(to),
        _ => None,
    }
}

/// What an fp8 is decoded to and encoded from: a float that has all of its values, in `N` bytes.
trait Wide<const N: usize> {
    /// From the bits of an f32 that loses nothing.
    fn narrowed(bits: u32) -> [u8; N];
    /// To the bits of an f32.
    fn widened(bytes: [u8; N]) -> u32;
}

struct F32;
struct BF16;

impl Wide<4> for F32 {
    #[inline(always)]
    fn narrowed(bits: u32) -> [u8; 4] {
        bits.to_le_bytes()
    }

    #[inline(always)]
    fn widened(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes)
    }
}

impl Wide<2> for BF16 {
    #[inline(always)]
    fn narrowed(bits: u32) -> [u8; 2] {
        ((bits >> 16) as u16).to_le_bytes()
    }

    #[inline(always)]
    fn widened(bytes: [u8; 2]) -> u32 {
        u32::from(u16::from_le_bytes(bytes)) << 16
    }
}

fn decoder<I: Instructions, W: Wide<N>, const N: usize>(from: DType) -> Option<Row> {
    macro_rules! decoder {
        ($decode:expr) => {
            |src, dst| map::<I, _, _>(src, dst, |[code]| W::narrowed($decode(code)))
        };
    }
    Some(match from {
        DType::F8E4M3Fn => decoder!(decode::<E4M3Fn>),
        DType::F8E5M2 => decoder!(decode::<E5M2>),
        DType::F8E4M3Fnuz => decoder!(decode::<E4M3Fnuz>),
        DType::F8E5M2Fnuz => decoder!(decode::<E5M2Fnuz>),
        DType::F8E8M0Fnu => decoder!(decode_scale),
        _ => return None,
    })
}

fn encoder<I: Instructions, W: Wide<N>, const N: usize, const SATURATE: bool>(to: DType) -> Option<Row> {
    macro_rules! encoder {
        ($encode:expr) => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| [$encode(W::widened(bytes))])
        };
    }
    Some(match to {
        DType::F8E4M3Fn => encoder!(encode::<E4M3Fn, SATURATE>),
        DType::F8E5M2 => encoder!(encode::<E5M2, SATURATE>),
        DType::F8E4M3Fnuz => encoder!(encode::<E4M3Fnuz, SATURATE>),
        DType::F8E5M2Fnuz => encoder!(encode::<E5M2Fnuz, SATURATE>),
        DType::F8E8M0Fnu => encoder!(encode_scale::<SATURATE>),
        _ => return None,
    })
}

/// The bits of the f32 that a code stands for.
#[inline(always)]
fn decode<F: Format>(code: u8) -> u32 {
    let magnitude = u32::from(code & 0x7f);
    let sign = u32::from(code & 0x80) << 24;
    let shifted = magnitude << F::SHIFT;
    // A subnormal number has no leading 1: with the exponent of the smallest normal number it gets one, which goes off again.
    let subnormal = (f32::from_bits(shifted | F::NORMAL) - f32::from_bits(F::NORMAL)).to_bits();
    let normal = shifted.wrapping_add((127 - F::BIAS) << 23);
    let finite = if magnitude >> F::MANTISSA == 0 { subnormal } else { normal };
    let is_special = if F::UNSIGNED_ZERO { code == 0x80 } else { magnitude > F::LARGEST };
    // Of a special code the mantissa tells infinity from NaN, except that all of e4m3fn's and fnuz's are NaN.
    let is_infinite = magnitude == F::TOO_LARGE && F::TOO_LARGE != F::NAN;
    let special = if is_infinite { 0x7f80_0000 } else { 0x7fc0_0000 };
    sign | if is_special { special } else { finite }
}

/// The code nearest to an f32 given by its bits, ties to even.
#[inline(always)]
fn encode<F: Format, const SATURATE: bool>(bits: u32) -> u8 {
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> F::SHIFT) & 1;
    // Below one half of the last place, and the exponent's other bias.
    let offset = ((1_u32 << (F::SHIFT - 1)) - 1).wrapping_sub((127 - F::BIAS) << 23);
    let normal = magnitude.wrapping_add(offset).wrapping_add(odd) >> F::SHIFT;
    let normal = normal.min(if SATURATE { F::LARGEST } else { F::TOO_LARGE });
    // The addition rounds to the last place of MAGIC, which is the step between subnormal numbers.
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(F::MAGIC)).to_bits().wrapping_sub(F::MAGIC);
    let code = if magnitude < F::NORMAL { subnormal } else { normal };
    // Without saturation, what is too large and NaN may have one code.
    let is_nan = (SATURATE || F::TOO_LARGE != F::NAN) && magnitude > 0x7f80_0000;
    let code = if is_nan { F::NAN } else { code };
    let sign = if F::UNSIGNED_ZERO && code == 0 { 0 } else { (bits >> 24) & 0x80 };
    (code | sign) as u8
}

/// The bits of the f32 that an e8m0 code stands for: 2^(code - 127), and NaN for 0xff.
#[inline(always)]
fn decode_scale(code: u8) -> u32 {
    let power = u32::from(code) << 23;
    match code {
        0 => 0x0040_0000,
        0xff => 0x7fc0_0000,
        _ => power,
    }
}

/// The e8m0 code nearest to the magnitude of an f32 given by its bits.
///
/// c10/util/Float8_e8m0fnu.h: the exponent is rounded up from one half of the mantissa on, but for subnormal numbers, whose
/// implied bit counts as even, only above it.
#[inline(always)]
fn encode_scale<const SATURATE: bool>(bits: u32) -> u8 {
    let magnitude = bits & 0x7fff_ffff;
    let is_normal = u32::from(magnitude >= 0x0080_0000);
    let exponent = magnitude.wrapping_add(0x003f_ffff).wrapping_add(is_normal) >> 23;
    let too_large = if SATURATE { 0xfe } else { 0xff };
    let code = if exponent > 0xfe { too_large } else { exponent };
    (if magnitude > 0x7f80_0000 { 0xff } else { code }) as u8
}
