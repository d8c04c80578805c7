//! Reads NumPy scalars as numbers.

use super::object::Object;
use crate::dtype::DType;

/// The number in little-endian bytes; `None` where their count is not that of the dtype, or the dtype has no scalar.
pub(super) fn number(dtype: DType, bytes: &[u8]) -> Option<Object<'static>> {
    let float = |bytes: &[u8]| -> Option<f64> {
        Some(match bytes.len() {
            2 => half::f16::from_le_bytes(bytes.try_into().ok()?).to_f64(),
            4 => f64::from(f32::from_le_bytes(bytes.try_into().ok()?)),
            _ => f64::from_le_bytes(bytes.try_into().ok()?),
        })
    };
    Some(match dtype {
        DType::Bool => Object::Bool(*bytes.first()? != 0),
        DType::I8 => Object::Int(i8::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I16 => Object::Int(i16::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I32 => Object::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I64 => Object::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
        DType::U8 => Object::Int(u8::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U16 => Object::Int(u16::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U32 => Object::Int(u32::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U64 => Object::Uint(u64::from_le_bytes(bytes.try_into().ok()?)),
        DType::F16 | DType::F32 | DType::F64 => Object::Float(float(bytes)?),
        DType::C64 | DType::C128 => {
            let (re, im) = bytes.split_at_checked(bytes.len().checked_div(2)?)?;
            Object::Complex(float(re)?, float(im)?)
        }
        _ => return None,
    })
}
