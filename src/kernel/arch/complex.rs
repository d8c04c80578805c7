//! Row kernels between complex numbers and their real parts. They move bytes and do not look at values.

use super::{Instructions, RowKernel, map};
use crate::dtype::DType;

/// The row kernel that ORs each pair of bool bytes into one.
pub(super) fn or_pairs<I: Instructions>() -> RowKernel {
    |src, dst| map::<I, _, _>(src, dst, |[real, imaginary]| [real | imaginary])
}

/// The row kernel that keeps the real part, a `part`, of each complex number; `None` where there is no such complex dtype.
pub(super) fn real_parts<I: Instructions>(part: DType) -> Option<RowKernel> {
    Some(match part {
        DType::F16 => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| (u32::from_le_bytes(bytes) as u16).to_le_bytes())
        }
        DType::F32 => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| (u64::from_le_bytes(bytes) as u32).to_le_bytes())
        }
        DType::F64 => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| (u128::from_le_bytes(bytes) as u64).to_le_bytes())
        }
        _ => return None,
    })
}

/// The row kernel that makes a complex number of each real, a `part`, with the imaginary part +0; `None` where there is no such
/// complex dtype.
pub(super) fn with_zero_imaginary<I: Instructions>(part: DType) -> Option<RowKernel> {
    Some(match part {
        DType::F16 => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| u32::from(u16::from_le_bytes(bytes)).to_le_bytes())
        }
        DType::F32 => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| u64::from(u32::from_le_bytes(bytes)).to_le_bytes())
        }
        DType::F64 => {
            |src, dst| map::<I, _, _>(src, dst, |bytes| u128::from(u64::from_le_bytes(bytes)).to_le_bytes())
        }
        _ => return None,
    })
}
