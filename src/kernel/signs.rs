//! Changes in place that a file may ask for before any cast: byte order, torch's negative bit and conjugate bit.

use super::arch::Level;
use super::cast::size;
use super::misuse;
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};

/// Reverses the bytes of every unit (see [`DType::swap_unit`]); a rest shorter than a unit stays as it is.
pub fn swap_bytes(unit: usize, data: &mut [u8]) {
    swap_bytes_at(Level::used(), unit, data);
}

/// As [`swap_bytes`], with the instructions of a level.
pub fn swap_bytes_at(level: Level, unit: usize, data: &mut [u8]) {
    match unit {
        0 | 1 => {}
        2 => level.each(data, |bytes| u16::from_le_bytes(bytes).to_be_bytes()),
        4 => level.each(data, |bytes| u32::from_le_bytes(bytes).to_be_bytes()),
        8 => level.each(data, |bytes| u64::from_le_bytes(bytes).to_be_bytes()),
        _ => data.chunks_exact_mut(unit).for_each(<[u8]>::reverse),
    }
}

/// Negates every element: floats and both halves of complex numbers change their sign bit, ints wrap.
///
/// `DtypeUnsupported` for dtypes without a sign: bool, e8m0 and packed ones.
pub fn negate(dtype: DType, data: &mut [u8]) -> Result<()> {
    check_whole(dtype, data)?;
    match dtype.real_part().unwrap_or(dtype) {
        DType::U8 | DType::I8 => each(data, |[byte]| [byte.wrapping_neg()]),
        DType::U16 | DType::I16 => each(data, |bytes| u16::from_le_bytes(bytes).wrapping_neg().to_le_bytes()),
        DType::U32 | DType::I32 => each(data, |bytes| u32::from_le_bytes(bytes).wrapping_neg().to_le_bytes()),
        DType::U64 | DType::I64 => each(data, |bytes| u64::from_le_bytes(bytes).wrapping_neg().to_le_bytes()),
        DType::F8E4M3Fn | DType::F8E5M2 => each(data, |[code]| [code ^ 0x80]),
        // Zero and NaN have no counterpart of the other sign.
        DType::F8E4M3Fnuz | DType::F8E5M2Fnuz => {
            each(data, |[code]| [if code & 0x7f == 0 { code } else { code ^ 0x80 }]);
        }
        DType::F16 | DType::BF16 => each(data, |bytes| (u16::from_le_bytes(bytes) ^ (1 << 15)).to_le_bytes()),
        DType::F32 => each(data, |bytes| (u32::from_le_bytes(bytes) ^ (1 << 31)).to_le_bytes()),
        DType::F64 => each(data, |bytes| (u64::from_le_bytes(bytes) ^ (1 << 63)).to_le_bytes()),
        _ => return Err(Error::new(Code::DtypeUnsupported, format!("{dtype} has no negative values"))),
    }
    Ok(())
}

/// Flips the sign of every imaginary half; a real number is its own conjugate. `DtypeUnsupported` for packed dtypes.
pub fn conjugate(dtype: DType, data: &mut [u8]) -> Result<()> {
    check_whole(dtype, data)?;
    match dtype {
        DType::C32 => each(data, |bytes| (u32::from_le_bytes(bytes) ^ (1 << 31)).to_le_bytes()),
        DType::C64 => each(data, |bytes| (u64::from_le_bytes(bytes) ^ (1 << 63)).to_le_bytes()),
        DType::C128 => each(data, |bytes| (u128::from_le_bytes(bytes) ^ (1 << 127)).to_le_bytes()),
        _ if dtype.kind() == Kind::Packed => {
            return Err(Error::new(Code::DtypeUnsupported, format!("{dtype} has no conjugate")));
        }
        _ => {}
    }
    Ok(())
}

fn check_whole(dtype: DType, data: &[u8]) -> Result<()> {
    if data.len().is_multiple_of(size(dtype)) {
        Ok(())
    } else {
        Err(misuse(format!("{} bytes are no whole number of {dtype} elements", data.len())))
    }
}

fn each<const N: usize>(data: &mut [u8], one: impl Fn([u8; N]) -> [u8; N]) {
    Level::used().each(data, one);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_swap_reverses_every_unit_and_leaves_the_rest() {
        for unit in 0..=9 {
            for len in 0..70 {
                let before: Vec<u8> = (0..len).collect();
                let mut after = before.clone();
                swap_bytes(unit, &mut after);
                for (at, byte) in after.into_iter().enumerate() {
                    let whole = at < before.len() / unit.max(1) * unit.max(1);
                    let from = if whole && unit > 1 { at / unit * unit + unit - 1 - at % unit } else { at };
                    assert_eq!(byte, before[from], "unit {unit}, len {len}");
                }
            }
        }
    }

    #[test]
    fn negation_flips_signs_of_both_halves_and_wraps_ints() {
        let mut data: Vec<u8> = [1.5_f32, -0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        negate(DType::C64, &mut data).unwrap();
        let expected: Vec<u8> = [-1.5_f32, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(data, expected);
        let mut data = i16::MIN.to_le_bytes();
        negate(DType::I16, &mut data).unwrap();
        assert_eq!(data, i16::MIN.to_le_bytes());
        let mut data = [0x00, 0x80, 0x01, 0xff];
        negate(DType::F8E4M3Fnuz, &mut data).unwrap();
        assert_eq!(data, [0x00, 0x80, 0x81, 0x7f]);
    }

    #[test]
    fn conjugation_flips_imaginary_halves_only() {
        for (dtype, half) in [(DType::C32, 2), (DType::C64, 4), (DType::C128, 8)] {
            let mut data = vec![0_u8; half * 4];
            conjugate(dtype, &mut data).unwrap();
            let flipped: Vec<usize> = (0..data.len()).filter(|&at| data[at] == 0x80).collect();
            assert_eq!(flipped, [half * 2 - 1, half * 4 - 1], "{dtype}");
        }
        let mut real = [1, 2, 3, 0xff];
        conjugate(DType::F32, &mut real).unwrap();
        assert_eq!(real, [1, 2, 3, 0xff]);
    }

    #[test]
    fn what_has_no_sign_is_refused() {
        for dtype in [DType::Bool, DType::F8E8M0Fnu, DType::F4E2M1FnX2] {
            assert_eq!(negate(dtype, &mut [1]).unwrap_err().code(), Code::DtypeUnsupported);
        }
        assert_eq!(conjugate(DType::F4E2M1FnX2, &mut [1]).unwrap_err().code(), Code::DtypeUnsupported);
        assert_eq!(negate(DType::F32, &mut [1; 5]).unwrap_err().code(), Code::InternalError);
    }
}
