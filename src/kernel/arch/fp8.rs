//! Row kernels between f32 or bf16 and the five 8-bit floats, branch-free.
//!
//! e4m3fn and e5m2 as in the OCP 8-bit floating point specification; the fnuz formats (no infinities, no negative zero, one
//! NaN at 0x80) as AMD and Graphcore define them; e8m0fnu, a bare power of two, as the scale of OCP microscaling formats.

use super::{Instructions, RowKernel, map};
use crate::dtype::DType;
use crate::kernel::Overflow;

/// The parameters of the four formats that have a sign bit.
trait Format {
    /// The number of mantissa bits.
    const MANTISSA_BITS: u32;
    /// The exponent bias.
    const BIAS: u32;
    /// The code of the largest finite value.
    const MAX_FINITE: u32;
    /// The code of a value out of range, without the sign bit: the one after the largest finite value.
    const OVERFLOW: u32;
    /// The code that NaN is encoded as.
    const NAN: u32;
    /// Whether zero has no sign, so that 0x80 is NaN.
    const UNSIGNED_ZERO: bool;

    /// How many more mantissa bits an f32 has.
    const SHIFT: u32 = 23 - Self::MANTISSA_BITS;
    /// The smallest normal number, as the bits of an f32.
    const MIN_NORMAL: u32 = (128 - Self::BIAS) << 23;
    /// A power of two, as the bits of an f32: one unit in its last place is the format's smallest subnormal number.
    const ROUNDING_ADDEND: u32 = (127 + 24 - Self::BIAS - Self::MANTISSA_BITS) << 23;
}

struct E4M3Fn;
struct E5M2;
struct E4M3Fnuz;
struct E5M2Fnuz;

impl Format for E4M3Fn {
    const MANTISSA_BITS: u32 = 3;
    const BIAS: u32 = 7;
    const MAX_FINITE: u32 = 0x7e;
    const OVERFLOW: u32 = 0x7f;
    const NAN: u32 = 0x7f;
    const UNSIGNED_ZERO: bool = false;
}

impl Format for E5M2 {
    const MANTISSA_BITS: u32 = 2;
    const BIAS: u32 = 15;
    const MAX_FINITE: u32 = 0x7b;
    const OVERFLOW: u32 = 0x7c;
    const NAN: u32 = 0x7f;
    const UNSIGNED_ZERO: bool = false;
}

impl Format for E4M3Fnuz {
    const MANTISSA_BITS: u32 = 3;
    const BIAS: u32 = 8;
    const MAX_FINITE: u32 = 0x7f;
    const OVERFLOW: u32 = 0x80;
    const NAN: u32 = 0x80;
    const UNSIGNED_ZERO: bool = true;
}

impl Format for E5M2Fnuz {
    const MANTISSA_BITS: u32 = 2;
    const BIAS: u32 = 16;
    const MAX_FINITE: u32 = 0x7f;
    const OVERFLOW: u32 = 0x80;
    const NAN: u32 = 0x80;
    const UNSIGNED_ZERO: bool = true;
}

/// The row kernel between an fp8 and f32 or bf16; `None` for other dtypes.
pub(super) fn row_kernel<I: Instructions>(from: DType, to: DType, overflow: Overflow) -> Option<RowKernel> {
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

/// The wider side of an fp8 conversion: a float of `N` bytes that represents every fp8 value.
trait WideFloat<const N: usize> {
    /// Narrows the bits of an f32 whose value this float represents.
    fn from_f32_bits(bits: u32) -> [u8; N];
    /// Widens to the bits of an f32.
    fn to_f32_bits(bytes: [u8; N]) -> u32;
}

struct F32;
struct BF16;

impl WideFloat<4> for F32 {
    #[inline(always)]
    fn from_f32_bits(bits: u32) -> [u8; 4] {
        bits.to_le_bytes()
    }

    #[inline(always)]
    fn to_f32_bits(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes)
    }
}

impl WideFloat<2> for BF16 {
    #[inline(always)]
    fn from_f32_bits(bits: u32) -> [u8; 2] {
        ((bits >> 16) as u16).to_le_bytes()
    }

    #[inline(always)]
    fn to_f32_bits(bytes: [u8; 2]) -> u32 {
        u32::from(u16::from_le_bytes(bytes)) << 16
    }
}

fn decoder<I: Instructions, W: WideFloat<N>, const N: usize>(from: DType) -> Option<RowKernel> {
    macro_rules! decoder {
        ($decode:expr) => {
            |src, dst| map::<I, _, _>(src, dst, |[code]| W::from_f32_bits($decode(code)))
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

fn encoder<I: Instructions, W: WideFloat<N>, const N: usize, const SATURATE: bool>(
    to: DType,
) -> Option<RowKernel> {
    macro_rules! encoder {
        ($encode:expr) => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| [$encode(W::to_f32_bits(bytes))])
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

/// Decodes a code to the bits of an f32.
#[inline(always)]
fn decode<F: Format>(code: u8) -> u32 {
    let magnitude = u32::from(code & 0x7f);
    let sign = u32::from(code & 0x80) << 24;
    let shifted = magnitude << F::SHIFT;
    // A subnormal number has no implied leading 1: the exponent of the smallest normal number adds one, and the subtraction removes
    // it.
    let subnormal = (f32::from_bits(shifted | F::MIN_NORMAL) - f32::from_bits(F::MIN_NORMAL)).to_bits();
    let normal = shifted.wrapping_add((127 - F::BIAS) << 23);
    let finite = if magnitude >> F::MANTISSA_BITS == 0 { subnormal } else { normal };
    let is_special = if F::UNSIGNED_ZERO { code == 0x80 } else { magnitude > F::MAX_FINITE };
    // The mantissa tells infinity from NaN in e5m2; the other formats have no infinity.
    let is_infinite = magnitude == F::OVERFLOW && F::OVERFLOW != F::NAN;
    let special = if is_infinite { 0x7f80_0000 } else { 0x7fc0_0000 };
    sign | if is_special { special } else { finite }
}

/// Encodes the bits of an f32, round-to-nearest-even.
#[inline(always)]
fn encode<F: Format, const SATURATE: bool>(bits: u32) -> u8 {
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> F::SHIFT) & 1;
    // One less than half a unit in the last place, and the difference of the exponent biases.
    let offset = ((1_u32 << (F::SHIFT - 1)) - 1).wrapping_sub((127 - F::BIAS) << 23);
    let normal = magnitude.wrapping_add(offset).wrapping_add(odd) >> F::SHIFT;
    let normal = normal.min(if SATURATE { F::MAX_FINITE } else { F::OVERFLOW });
    // The addition rounds to the last place of ROUNDING_ADDEND, which is the distance between subnormal numbers.
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(F::ROUNDING_ADDEND))
        .to_bits()
        .wrapping_sub(F::ROUNDING_ADDEND);
    let code = if magnitude < F::MIN_NORMAL { subnormal } else { normal };
    // Without saturation, overflow and NaN have the same code in some formats.
    let is_nan = (SATURATE || F::OVERFLOW != F::NAN) && magnitude > 0x7f80_0000;
    let code = if is_nan { F::NAN } else { code };
    let sign = if F::UNSIGNED_ZERO && code == 0 { 0 } else { (bits >> 24) & 0x80 };
    (code | sign) as u8
}

/// Decodes an e8m0 code to the bits of an f32: 2^(code - 127), and NaN for 0xff.
#[inline(always)]
fn decode_scale(code: u8) -> u32 {
    let power = u32::from(code) << 23;
    match code {
        0 => 0x0040_0000,
        0xff => 0x7fc0_0000,
        _ => power,
    }
}

/// Encodes the magnitude of an f32, given by its bits, as the nearest e8m0 code.
///
/// c10/util/Float8_e8m0fnu.h: a normal number's exponent is rounded up from one half of the mantissa on. A subnormal number's
/// implied bit counts as even, so its exponent is rounded up only above one half.
#[inline(always)]
fn encode_scale<const SATURATE: bool>(bits: u32) -> u8 {
    let magnitude = bits & 0x7fff_ffff;
    let is_normal = u32::from(magnitude >= 0x0080_0000);
    let exponent = magnitude.wrapping_add(0x003f_ffff).wrapping_add(is_normal) >> 23;
    let overflow = if SATURATE { 0xfe } else { 0xff };
    let code = if exponent > 0xfe { overflow } else { exponent };
    (if magnitude > 0x7f80_0000 { 0xff } else { code }) as u8
}
