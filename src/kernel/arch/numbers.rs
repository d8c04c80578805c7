//! Row kernels among bool, ints, f32 and f64. They convert as Rust's `as` does (ints wrap, floats saturate to ints), and to bool by
//! `!= 0`.

use super::{Instructions, RowKernel, map};
use crate::dtype::DType;

/// The row kernel between two of these dtypes; `None` if either is another one.
pub(super) fn row_kernel<I: Instructions>(from: DType, to: DType) -> Option<RowKernel> {
    /// The row kernel from one Rust number type to the dtype `to`.
    macro_rules! from_number {
        ($src:ident) => {
            from_number!($src, 0 as $src, U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64,
                F32 f32, F64 f64)
        };
        ($src:ident, $zero:expr, $($variant:ident $dst:ident),*) => {
            match to {
                $(DType::$variant => |src, dst| {
                    map::<I, _, _>(src, dst, |bytes| ($src::from_le_bytes(bytes) as $dst).to_le_bytes());
                },)*
                DType::Bool => |src, dst| {
                    map::<I, _, _>(src, dst, |bytes| [u8::from($src::from_le_bytes(bytes) != $zero)]);
                },
                _ => return None,
            }
        };
    }
    Some(match from {
        DType::Bool => return from_bool::<I>(to),
        DType::U8 => from_number!(u8),
        DType::I8 => from_number!(i8),
        DType::U16 => from_number!(u16),
        DType::I16 => from_number!(i16),
        DType::U32 => from_number!(u32),
        DType::I32 => from_number!(i32),
        DType::U64 => from_number!(u64),
        DType::I64 => from_number!(i64),
        DType::F32 => from_number!(f32),
        DType::F64 => from_number!(f64),
        _ => return None,
    })
}

/// The row kernel from bool bytes. Every byte other than 0 counts as 1.
fn from_bool<I: Instructions>(to: DType) -> Option<RowKernel> {
    macro_rules! to_number {
        ($($variant:ident $dst:ident),*) => {
            match to {
                $(DType::$variant => |src, dst| {
                    map::<I, _, _>(src, dst, |[byte]| $dst::from(byte != 0).to_le_bytes());
                },)*
                _ => return None,
            }
        };
    }
    Some(
        to_number!(Bool u8, U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64, F32 f32, F64 f64),
    )
}
