//! Row kernels between f32 and the two 16-bit floats, branch-free. A NaN becomes quiet and keeps the upper bits of its payload,
//! as many as fit.
//!
//! bf16 is the upper half of an f32, rounded to nearest-even with integer arithmetic: `vcvtneps2bf16` would flush subnormal
//! inputs to zero. The f16 conversions give the same bits as the F16C instructions.

use super::{Instructions, RowKernel, map};
use crate::dtype::DType;

/// The row kernel between f32 and f16 or bf16; `None` for other dtypes.
pub(super) fn row_kernel<I: Instructions>(from: DType, to: DType) -> Option<RowKernel> {
    Some(match (from, to) {
        (DType::BF16, DType::F32) => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| bf16_to_f32(u16::from_le_bytes(bytes)).to_le_bytes())
        }
        (DType::F32, DType::BF16) => |src, dst| {
            map::<I, _, _>(src, dst, |bytes| bf16_from_f32(u32::from_le_bytes(bytes)).to_le_bytes())
        },
        (DType::F16, DType::F32) => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| f16_to_f32(u16::from_le_bytes(bytes)).to_le_bytes())
        }
        (DType::F32, DType::F16) => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| f16_from_f32(u32::from_le_bytes(bytes)).to_le_bytes())
        }
        _ => return None,
    })
}

/// Widens a bf16 to the bits of the same f32.
#[inline(always)]
fn bf16_to_f32(bits: u16) -> u32 {
    u32::from(bits) << 16
}

/// Narrows the bits of an f32 to bf16, round-to-nearest-even.
#[inline(always)]
fn bf16_from_f32(bits: u32) -> u16 {
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff).wrapping_add(odd) >> 16;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { (bits >> 16) | 0x40 } else { rounded }) as u16
}

/// The smallest normal f16, as the bits of an f32.
const MIN_NORMAL: u32 = (128 - 15) << 23;
/// 0.5 as the bits of an f32: one unit in its last place is the smallest subnormal f16.
const ROUNDING_ADDEND: u32 = 126 << 23;

/// Widens an f16 to the bits of the same f32; a NaN becomes quiet.
#[inline(always)]
fn f16_to_f32(bits: u16) -> u32 {
    let magnitude = u32::from(bits & 0x7fff);
    let shifted = magnitude << 13;
    // A subnormal number has no implied leading 1: the exponent of the smallest normal number adds one, and the subtraction removes
    // it.
    let subnormal = (f32::from_bits(shifted | MIN_NORMAL) - f32::from_bits(MIN_NORMAL)).to_bits();
    let normal = shifted.wrapping_add((127 - 15) << 23);
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    let special = shifted | 0x7f80_0000 | quiet;
    u32::from(bits & 0x8000) << 16 | if magnitude < 0x7c00 { finite } else { special }
}

/// Narrows the bits of an f32 to f16, round-to-nearest-even; a value out of range becomes infinite.
#[inline(always)]
fn f16_from_f32(bits: u32) -> u16 {
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = (magnitude.wrapping_add(0x0fff).wrapping_add(odd) >> 13).wrapping_sub((127 - 15) << 10);
    // The addition rounds to the last place of ROUNDING_ADDEND.
    let subnormal =
        (f32::from_bits(magnitude) + f32::from_bits(ROUNDING_ADDEND)).to_bits().wrapping_sub(ROUNDING_ADDEND);
    let code = if magnitude < MIN_NORMAL { subnormal } else { normal };
    let code = if code > 0x7c00 { 0x7c00 } else { code };
    let code = if magnitude > 0x7f80_0000 { 0x7e00 | (magnitude >> 13) & 0x03ff } else { code };
    (code | (bits >> 16) & 0x8000) as u16
}
