//! In-place changes before a cast: byte swaps, and the negation and conjugation that torch's negative and conjugate bits defer.

use super::arch::Level;
use super::cast::size;
use super::internal_error;
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};

/// Reverses the bytes of every unit (see [`DType::swap_unit`]). A remainder shorter than a unit stays as it is.
pub fn swap_bytes(unit: usize, data: &mut [u8]) {
    swap_bytes_with_level(Level::used(), unit, data);
}

/// As [`swap_bytes`], at a given SIMD level, for tests and benches.
pub fn swap_bytes_with_level(level: Level, unit: usize, data: &mut [u8]) {
    match unit {
        0 | 1 => {}
        2 => level.map_in_place(data, |bytes| u16::from_le_bytes(bytes).to_be_bytes()),
        4 => level.map_in_place(data, |bytes| u32::from_le_bytes(bytes).to_be_bytes()),
        8 => level.map_in_place(data, |bytes| u64::from_le_bytes(bytes).to_be_bytes()),
        _ => data.chunks_exact_mut(unit).for_each(<[u8]>::reverse),
    }
}

/// Negates every element: the sign bit of floats and of both parts of complex numbers is flipped, ints wrap.
///
/// Fails with `DtypeUnsupported` for dtypes without a sign (bool, e8m0, packed ones), and with `InternalError` where `data` is
/// not a whole number of elements.
pub fn negate(dtype: DType, data: &mut [u8]) -> Result<()> {
    check_whole(dtype, data)?;
    match dtype.real_part().unwrap_or(dtype) {
        DType::U8 | DType::I8 => map_in_place(data, |[byte]| [byte.wrapping_neg()]),
        DType::U16 | DType::I16 => {
            map_in_place(data, |bytes| u16::from_le_bytes(bytes).wrapping_neg().to_le_bytes())
        }
        DType::U32 | DType::I32 => {
            map_in_place(data, |bytes| u32::from_le_bytes(bytes).wrapping_neg().to_le_bytes())
        }
        DType::U64 | DType::I64 => {
            map_in_place(data, |bytes| u64::from_le_bytes(bytes).wrapping_neg().to_le_bytes())
        }
        DType::F8E4M3Fn | DType::F8E5M2 => map_in_place(data, |[code]| [code ^ 0x80]),
        // Zero and NaN have no negative code.
        DType::F8E4M3Fnuz | DType::F8E5M2Fnuz => {
            map_in_place(data, |[code]| [if code & 0x7f == 0 { code } else { code ^ 0x80 }]);
        }
        DType::F16 | DType::BF16 => {
            map_in_place(data, |bytes| (u16::from_le_bytes(bytes) ^ (1 << 15)).to_le_bytes())
        }
        DType::F32 => map_in_place(data, |bytes| (u32::from_le_bytes(bytes) ^ (1 << 31)).to_le_bytes()),
        DType::F64 => map_in_place(data, |bytes| (u64::from_le_bytes(bytes) ^ (1 << 63)).to_le_bytes()),
        _ => return Err(Error::new(Code::DtypeUnsupported, format!("{dtype} has no negative values"))),
    }
    Ok(())
}

/// Flips the sign of every imaginary part; a real number is its own conjugate.
///
/// Fails with `DtypeUnsupported` for packed dtypes, and with `InternalError` where `data` is not a whole number of elements.
pub fn conjugate(dtype: DType, data: &mut [u8]) -> Result<()> {
    check_whole(dtype, data)?;
    match dtype {
        DType::C32 => map_in_place(data, |bytes| (u32::from_le_bytes(bytes) ^ (1 << 31)).to_le_bytes()),
        DType::C64 => map_in_place(data, |bytes| (u64::from_le_bytes(bytes) ^ (1 << 63)).to_le_bytes()),
        DType::C128 => map_in_place(data, |bytes| (u128::from_le_bytes(bytes) ^ (1 << 127)).to_le_bytes()),
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
        Err(internal_error(format!("{} bytes are not a whole number of {dtype} elements", data.len())))
    }
}

fn map_in_place<const N: usize>(data: &mut [u8], convert: impl Fn([u8; N]) -> [u8; N]) {
    Level::used().map_in_place(data, convert);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_swap_reverses_every_unit_and_keeps_the_remainder() {
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
    fn negation_flips_the_signs_of_both_parts_and_wraps_ints() {
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
    fn conjugation_flips_imaginary_parts_only() {
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
    fn dtypes_without_a_sign_are_refused() {
        for dtype in [DType::Bool, DType::F8E8M0Fnu, DType::F4E2M1FnX2] {
            assert_eq!(negate(dtype, &mut [1]).unwrap_err().code(), Code::DtypeUnsupported);
        }
        assert_eq!(conjugate(DType::F4E2M1FnX2, &mut [1]).unwrap_err().code(), Code::DtypeUnsupported);
        assert_eq!(negate(DType::F32, &mut [1; 5]).unwrap_err().code(), Code::InternalError);
    }
}
