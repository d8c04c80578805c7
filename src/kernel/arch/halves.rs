//! Rows between f32 and the two 16-bit floats.
//!
//! f16 goes through the `half` crate, which uses F16C where the machine has it. bf16 is the upper half of an f32, rounded to
//! nearest even by integer arithmetic: `vcvtneps2bf16` would flush subnormal inputs to zero.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{Row, map};
use crate::dtype::DType;

/// Elements per call into the `half` crate.
const BLOCK: usize = 128;

/// The row between f32 and f16 or bf16; `None` for other dtypes.
pub(super) fn row(from: DType, to: DType) -> Option<Row> {
    Some(match (from, to) {
        (DType::BF16, DType::F32) => |src, dst| map(src, dst, |bytes| bf16_to_f32(bytes).to_le_bytes()),
        (DType::F32, DType::BF16) => {
            |src, dst| map(src, dst, |bytes| bf16_from_f32(u32::from_le_bytes(bytes)).to_le_bytes())
        }
        (DType::F16, DType::F32) => f16_to_f32,
        (DType::F32, DType::F16) => f16_from_f32,
        _ => return None,
    })
}

/// The bits of the f32 that a bf16 stands for.
fn bf16_to_f32(bytes: [u8; 2]) -> u32 {
    u32::from(u16::from_le_bytes(bytes)) << 16
}

/// The bf16 nearest to an f32 given by its bits, ties to even.
fn bf16_from_f32(bits: u32) -> u16 {
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff).wrapping_add(odd) >> 16;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { (bits >> 16) | 0x40 } else { rounded }) as u16
}

fn f16_to_f32(src: &[u8], dst: &mut [u8]) {
    let (mut narrow, mut wide) = ([f16::ZERO; BLOCK], [0_f32; BLOCK]);
    for (src, dst) in src.chunks(2 * BLOCK).zip(dst.chunks_mut(4 * BLOCK)) {
        let ((src, _), (dst, _)) = (src.as_chunks(), dst.as_chunks_mut());
        let (narrow, wide) = (&mut narrow[..src.len()], &mut wide[..src.len()]);
        for (half, bytes) in narrow.iter_mut().zip(src) {
            *half = f16::from_le_bytes(*bytes);
        }
        narrow.convert_to_f32_slice(wide);
        for (bytes, value) in dst.iter_mut().zip(wide) {
            *bytes = value.to_le_bytes();
        }
    }
}

fn f16_from_f32(src: &[u8], dst: &mut [u8]) {
    let (mut narrow, mut wide) = ([f16::ZERO; BLOCK], [0_f32; BLOCK]);
    for (src, dst) in src.chunks(4 * BLOCK).zip(dst.chunks_mut(2 * BLOCK)) {
        let ((src, _), (dst, _)) = (src.as_chunks(), dst.as_chunks_mut());
        let (narrow, wide) = (&mut narrow[..src.len()], &mut wide[..src.len()]);
        for (value, bytes) in wide.iter_mut().zip(src) {
            *value = f32::from_le_bytes(*bytes);
        }
        narrow.convert_from_f32_slice(wide);
        for (bytes, half) in dst.iter_mut().zip(narrow) {
            *bytes = half.to_le_bytes();
        }
    }
}
