//! Rows that take complex numbers apart and put them together. They move halves and never look at their values.

use super::{Instructions, Row, map};
use crate::dtype::DType;

/// Two bool bytes in, one out: whether either is set.
pub(super) fn either<I: Instructions>() -> Row {
    |src, dst| map::<I, _, _>(src, dst, |[real, imaginary]| [real | imaginary])
}

/// The row that keeps the real halves, each a `half`, of complex numbers.
pub(super) fn real_halves<I: Instructions>(half: DType) -> Option<Row> {
    Some(match half {
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

/// The row that makes complex numbers of reals, each a `half`, with imaginary halves of +0.
pub(super) fn with_zero_halves<I: Instructions>(half: DType) -> Option<Row> {
    Some(match half {
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
