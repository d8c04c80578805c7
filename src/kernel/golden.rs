//! Casts between every pair of dtypes, compared with torch 2.13: `tests/data/cast_golden.bin`, written by `make_cast_golden.py` beside it.

use super::{Cast, Level, Overflow, convert};
use crate::dtype::{DType, Kind};

const GOLDEN: &[u8] = include_bytes!("../../tests/data/cast_golden.bin");

/// The dtypes, indexed by their number in the golden file.
const DTYPES: [DType; 21] = [
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::I32,
    DType::U64,
    DType::I64,
    DType::F8E4M3Fn,
    DType::F8E5M2,
    DType::F8E4M3Fnuz,
    DType::F8E5M2Fnuz,
    DType::F8E8M0Fnu,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::C32,
    DType::C64,
    DType::C128,
];

fn size(dtype: DType) -> usize {
    usize::try_from(dtype.itemsize()).unwrap()
}

/// Whether the bits of a real element are a NaN.
fn is_nan(dtype: DType, bytes: &[u8]) -> bool {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        DType::F8E4M3Fn => bits & 0x7f == 0x7f,
        DType::F8E5M2 => bits & 0x7f > 0x7c,
        DType::F8E4M3Fnuz | DType::F8E5M2Fnuz => bits == 0x80,
        DType::F8E8M0Fnu => bits == 0xff,
        DType::F16 => bits & 0x7fff > 0x7c00,
        DType::BF16 => bits & 0x7fff > 0x7f80,
        DType::F32 => bits & 0x7fff_ffff > 0x7f80_0000,
        DType::F64 => bits & (u64::MAX >> 1) > 0x7ff0_0000_0000_0000,
        _ => false,
    }
}

/// Whether two elements are equal except for NaN payloads.
fn is_same_value(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let part = dtype.real_part().unwrap_or(dtype);
    a.chunks(size(part)).zip(b.chunks(size(part))).all(|(a, b)| a == b || is_nan(part, a) && is_nan(part, b))
}

#[test]
fn every_cast_equals_torch_at_every_level() {
    for level in Level::available() {
        check(level);
    }
}

fn check(level: Level) {
    let mut rest = GOLDEN;
    let mut pairs = 0;
    while let Some((&[from, to, low, high], tail)) = rest.split_first_chunk() {
        let (from, to) = (DTYPES[usize::from(from)], DTYPES[usize::from(to)]);
        let count = usize::from(u16::from_le_bytes([low, high]));
        let (src, tail) = tail.split_at(count * size(from));
        let (expected, tail) = tail.split_at(count * size(to));
        let mut dst = vec![0xaa; expected.len()];
        let cast = Cast::with_level(level, from, to, Overflow::Nan).unwrap();
        assert_eq!((cast.from(), cast.to()), (from, to));
        convert(cast, src, &mut dst).unwrap();
        let elements = src.chunks(size(from)).zip(dst.chunks(size(to))).zip(expected.chunks(size(to)));
        for ((src, got), expected) in elements {
            assert!(
                is_same_value(to, got, expected),
                "{level} {cast:?} of {src:02x?}: {got:02x?}, torch {expected:02x?}"
            );
        }
        pairs += 1;
        rest = tail;
    }
    assert_eq!((rest, pairs), (&[][..], DTYPES.len() * DTYPES.len()));
    assert!(DTYPES.iter().all(|dtype| dtype.kind() != Kind::Packed));
}
