//! The rules of casts and strided copies, each compared with a simple reference: exact arithmetic in f64, or one element at a time.

use proptest::prelude::*;

use super::{Axis, Cast, Grid, Overflow, convert, gather, is_lossy, transpose};
use crate::dtype::{DType, Kind};
use crate::error::Code;

fn size(dtype: DType) -> usize {
    usize::try_from(dtype.itemsize()).unwrap()
}

fn cast(from: DType, to: DType) -> Cast {
    Cast::new(from, to, Overflow::Nan).unwrap()
}

fn converted(cast: Cast, src: &[u8]) -> Vec<u8> {
    let mut dst = vec![0xaa; src.len() / size(cast.from()) * size(cast.to())];
    convert(cast, src, &mut dst).unwrap();
    dst
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Every code of a narrow float, in order.
fn every_code(dtype: DType) -> Vec<u8> {
    match size(dtype) {
        1 => (0..=u8::MAX).collect(),
        _ => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
    }
}

const NARROW: [DType; 7] = [
    DType::F16,
    DType::BF16,
    DType::F8E4M3Fn,
    DType::F8E5M2,
    DType::F8E4M3Fnuz,
    DType::F8E5M2Fnuz,
    DType::F8E8M0Fnu,
];

#[test]
fn every_narrow_code_round_trips_through_f32_and_f64() {
    for dtype in NARROW {
        let codes = every_code(dtype);
        for wide in [DType::F32, DType::F64] {
            let values = floats(&converted(cast(dtype, DType::F32), &codes));
            let back = converted(cast(wide, dtype), &converted(cast(dtype, wide), &codes));
            let elements = codes.chunks(size(dtype)).zip(back.chunks(size(dtype)));
            for ((code, back), value) in elements.zip(values) {
                let is_nan =
                    converted(cast(dtype, DType::F32), back).ends_with(&[0xc0, 0x7f]) || value.is_nan();
                assert!(
                    code == back || (value.is_nan() && is_nan),
                    "{dtype} {code:02x?} -> {value} -> {back:02x?}"
                );
            }
        }
    }
}

/// The expected values are computed from the mantissa bits and the exponent bias of each format.
#[test]
fn narrow_codes_decode_to_the_values_of_their_format() {
    let formats = [
        (DType::F8E4M3Fn, 3, 7),
        (DType::F8E5M2, 2, 15),
        (DType::F8E4M3Fnuz, 3, 8),
        (DType::F8E5M2Fnuz, 2, 16),
        (DType::F16, 10, 15),
        (DType::BF16, 7, 127),
    ];
    for (dtype, mantissa_bits, bias) in formats {
        let values = floats(&converted(cast(dtype, DType::F32), &every_code(dtype)));
        let half = values.len() / 2;
        for (code, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let magnitude = code % half;
            let (exponent, mantissa) = (magnitude >> mantissa_bits, magnitude % (1 << mantissa_bits));
            let implied = if exponent == 0 { 0.0 } else { 1.0 };
            let fraction = implied + mantissa as f64 / f64::from(1 << mantissa_bits);
            let expected = fraction * 2_f64.powi(exponent.max(1) as i32 - bias);
            let expected = if code >= half { -expected } else { expected };
            assert_eq!(f64::from(*value), expected, "{dtype} code {code:#x}");
        }
        let specials = values.iter().filter(|value| !value.is_finite()).count();
        let expected = match dtype {
            DType::F8E4M3Fn => 2,
            DType::F8E4M3Fnuz | DType::F8E5M2Fnuz => 1,
            _ => 2 << mantissa_bits,
        };
        assert_eq!(specials, expected, "{dtype}");
    }
}

/// The values next to every tie encode to the nearest code, and the tie itself to the even one.
#[test]
fn encoding_rounds_to_nearest_even_at_every_tie() {
    for dtype in NARROW {
        let decoded = floats(&converted(cast(dtype, DType::F32), &every_code(dtype)));
        let positive = if dtype == DType::F8E8M0Fnu { decoded.len() } else { decoded.len() / 2 };
        let finite: Vec<(usize, f32)> =
            decoded[..positive].iter().copied().enumerate().filter(|(_, value)| value.is_finite()).collect();
        for pair in finite.windows(2) {
            let ((low, below), (high, above)) = (pair[0], pair[1]);
            let tie = ((f64::from(below) + f64::from(above)) / 2.0) as f32;
            if tie == below || tie == above || (dtype == DType::F8E8M0Fnu && low == 0) {
                continue; // f32 has no number between the two, or the next test covers them
            }
            let near = [tie.next_down(), tie, tie.next_up()];
            let codes = converted(cast(DType::F32, dtype), &float_bytes(&near));
            let codes: Vec<usize> = codes
                .chunks(size(dtype))
                .map(|code| code.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
                .collect();
            // The last place of e8m0 is the implied 1 of the mantissa, so each of its ties rounds up.
            let even = if dtype == DType::F8E8M0Fnu { high } else { low + low % 2 };
            assert_eq!(codes, [low, even, high], "{dtype} between {below} and {above}");
        }
    }
}

/// torch rounds f32's subnormal numbers up from 2^-127 itself, although the tie with the next code is at 1.5 times that.
#[test]
fn above_the_smallest_e8m0_value_everything_rounds_up() {
    let smallest = f32::from_bits(0x0040_0000);
    let values = float_bytes(&[0.0, -smallest, smallest.next_up(), f32::MIN_POSITIVE.next_down(), -1.0]);
    assert_eq!(converted(cast(DType::F32, DType::F8E8M0Fnu), &values), [0, 0, 1, 1, 127]);
}

#[test]
fn fp8_overflow_is_nan_or_saturates() {
    let rows = [
        (DType::F8E4M3Fn, [0x7f, 0xff, 0x7f, 0xff], [0x7e, 0xfe, 0x7e, 0xfe]),
        (DType::F8E5M2, [0x7c, 0xfc, 0x7c, 0xfc], [0x7b, 0xfb, 0x7b, 0xfb]),
        (DType::F8E4M3Fnuz, [0x80; 4], [0x7f, 0xff, 0x7f, 0xff]),
        (DType::F8E5M2Fnuz, [0x80; 4], [0x7f, 0xff, 0x7f, 0xff]),
        (DType::F8E8M0Fnu, [0xff; 4], [0xfe; 4]),
    ];
    let values = float_bytes(&[f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY]);
    for (dtype, nan, saturated) in rows {
        assert_eq!(converted(cast(DType::F32, dtype), &values), nan, "{dtype}");
        let saturate = Cast::new(DType::F32, dtype, Overflow::Saturate).unwrap();
        assert_eq!(converted(saturate, &values), saturated, "{dtype}");
        let code = converted(saturate, &float_bytes(&[f32::NAN]));
        assert!(floats(&converted(cast(dtype, DType::F32), &code))[0].is_nan(), "{dtype}");
    }
    let last = float_bytes(&[464.0, 464.0_f32.next_up()]);
    assert_eq!(converted(cast(DType::F32, DType::F8E4M3Fn), &last), [0x7e, 0x7f]);
}

#[test]
fn float_to_int_saturates_and_converts_nan_to_zero() {
    let values = float_bytes(&[f32::NAN, f32::INFINITY, -1e30, -1.9, 300.0]);
    assert_eq!(converted(cast(DType::F32, DType::U8), &values), [0, 255, 0, 0, 255]);
    assert_eq!(converted(cast(DType::F32, DType::I8), &values), [0, 127, 0x80, 0xff, 127]);
    let wide = converted(cast(DType::BF16, DType::I64), &converted(cast(DType::F32, DType::BF16), &values));
    assert_eq!(wide[8..24], [i64::MAX.to_le_bytes(), i64::MIN.to_le_bytes()].concat());
}

#[test]
fn every_nonzero_bool_byte_is_true() {
    let bytes = [0, 1, 2, 0x80, 0xff];
    assert_eq!(converted(cast(DType::Bool, DType::Bool), &bytes), [0, 1, 1, 1, 1]);
    assert_eq!(converted(cast(DType::Bool, DType::I8), &bytes), [0, 1, 1, 1, 1]);
    assert!(!cast(DType::Bool, DType::Bool).is_identity());
    assert!(cast(DType::U8, DType::U8).is_identity() && !cast(DType::U8, DType::I8).is_identity());
    let truth = converted(cast(DType::F32, DType::Bool), &float_bytes(&[0.0, -0.0, f32::NAN, 1e-45]));
    assert_eq!(truth, [0, 0, 1, 1]);
}

#[test]
fn complex_numbers_are_pairs_of_reals() {
    let pairs = float_bytes(&[1.5, -2.0, 0.0, 3.0, 0.0, -0.0]);
    assert_eq!(converted(cast(DType::C64, DType::F32), &pairs), float_bytes(&[1.5, 0.0, 0.0]));
    assert_eq!(converted(cast(DType::C64, DType::Bool), &pairs), [1, 1, 0]);
    assert_eq!(converted(cast(DType::C64, DType::F8E4M3Fn), &pairs), [0x3c, 0, 0]);
    assert_eq!(converted(cast(DType::U8, DType::C64), &[7, 0]), float_bytes(&[7.0, 0.0, 0.0, 0.0]));
    for wide in [DType::C128, DType::C32] {
        assert_eq!(converted(cast(wide, DType::C64), &converted(cast(DType::C64, wide), &pairs)), pairs);
    }
}

#[test]
fn packed_dtypes_are_only_copied() {
    let packed = DType::F4E2M1FnX2;
    assert_eq!(converted(cast(packed, packed), &[1, 2, 3]), [1, 2, 3]);
    for &dtype in DType::ALL.iter().filter(|dtype| dtype.kind() != Kind::Packed) {
        for (from, to) in [(packed, dtype), (dtype, packed)] {
            let error = Cast::new(from, to, Overflow::Nan).unwrap_err();
            assert_eq!(error.code(), Code::DtypeUnsupported);
        }
    }
}

#[test]
fn a_cast_to_a_lower_kind_is_lossy() {
    assert!(is_lossy(DType::C64, DType::F64) && is_lossy(DType::F8E5M2, DType::I64));
    assert!(is_lossy(DType::U8, DType::Bool));
    assert!(!is_lossy(DType::Bool, DType::Bool) && !is_lossy(DType::F64, DType::F8E5M2));
    assert!(!is_lossy(DType::I64, DType::U8) && !is_lossy(DType::U8, DType::F16));
}

/// Bytes with all bits in use, the same on every run.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Vector bodies and scalar tails give the same bits at any alignment, NaN payloads included.
#[test]
fn every_length_equals_one_element_at_a_time() {
    for &from in DType::ALL {
        for &to in DType::ALL {
            let Ok(cast) = Cast::new(from, to, Overflow::Nan) else { continue };
            let src = noise(530 * size(from) + 1);
            let one_by_one: Vec<u8> =
                src[1..].chunks_exact(size(from)).flat_map(|element| converted(cast, element)).collect();
            for len in (0..130).chain([255, 256, 257, 530]) {
                let mut dst = vec![0xaa; len * size(to) + 2];
                convert(cast, &src[1..][..len * size(from)], &mut dst[1..][..len * size(to)]).unwrap();
                assert_eq!(
                    dst[1..][..len * size(to)],
                    one_by_one[..len * size(to)],
                    "{cast:?}, {len} elements"
                );
                assert_eq!((dst[0], dst[dst.len() - 1]), (0xaa, 0xaa));
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for (src, dst) in [(4, 1), (5, 2), (8, 2), (4, 3)] {
        let error = convert(cast(DType::F32, DType::BF16), &vec![0; src], &mut vec![0; dst]).unwrap_err();
        assert_eq!(error.code(), Code::InternalError);
    }
}

/// The reference for [`gather`]: copies one element after the other.
fn gather_reference(cast: Cast, src: &[u8], dst: &mut [u8], axes: &[Axis]) {
    let count: usize = axes.iter().map(|axis| axis.size).product();
    for mut index in 0..count {
        let (mut from, mut to) = (0, 0);
        for axis in axes {
            from += index % axis.size * axis.src_stride;
            to += index % axis.size * axis.dst_stride;
            index /= axis.size;
        }
        let src = &src[from * size(cast.from())..][..size(cast.from())];
        convert(cast, src, &mut dst[to * size(cast.to())..][..size(cast.to())]).unwrap();
    }
}

fn check_gather(cast: Cast, axes: &[Axis]) {
    let span = |stride: fn(&Axis) -> usize| -> usize {
        1 + axes.iter().map(|axis| axis.size.saturating_sub(1) * stride(axis)).sum::<usize>()
    };
    let src = noise(span(|axis| axis.src_stride) * size(cast.from()));
    let mut fast = vec![0xaa; span(|axis| axis.dst_stride) * size(cast.to())];
    let mut slow = fast.clone();
    gather_reference(cast, &src, &mut slow, axes);
    gather(cast, &src, &mut fast, axes).unwrap();
    assert!(fast == slow, "{cast:?} {axes:?}");
}

#[test]
fn a_transpose_past_its_source_is_refused() {
    let cast = Cast::new(DType::F32, DType::BF16, Overflow::Nan).unwrap();
    let mut dst = [0xaa; 5 * 6];
    let mut run = |src: &[u8], pitch: usize, width: usize| {
        let grid = Grid::new(&mut dst, 5, width, 6).unwrap();
        transpose(cast, src, pitch, grid, &mut Vec::new()).map_err(|error| error.code())
    };
    let src = noise((2 * 7 + 5) * 4);
    for (len, pitch, width) in
        [(src.len() - 1, 7, 6), (src.len(), 8, 6), (src.len(), usize::MAX, 6), (src.len(), 7, 5)]
    {
        assert_eq!(run(&src[..len], pitch, width), Err(Code::InternalError), "{len} {pitch} {width}");
    }
    assert_eq!(run(&[], usize::MAX, 0), Ok(()));
    assert_eq!(run(&src, 7, 6), Ok(()));
    for (column, row) in dst.chunks(6).enumerate() {
        for (at, found) in row.chunks(2).enumerate() {
            let mut expected = [0; 2];
            convert(cast, &src[(at * 7 + column) * 4..][..4], &mut expected).unwrap();
            assert_eq!(found, expected);
        }
    }
}

/// Axes whose dimensions have one order in the source and another in the destination, both with gaps; some have stride 0.
fn axes() -> impl Strategy<Value = Vec<Axis>> {
    let size = prop_oneof![4 => 1_usize..5, 2 => 5_usize..20, 1 => 60_usize..75];
    let dimension = (size, 0_usize..3, 0_usize..3, prop::bool::weighted(0.1));
    prop::collection::vec(dimension, 1..5).prop_flat_map(|dimensions| {
        let order: Vec<usize> = (0..dimensions.len()).collect();
        (Just(dimensions), Just(order.clone()).prop_shuffle(), Just(order).prop_shuffle()).prop_map(
            |(dimensions, src_order, dst_order)| {
                let mut axes: Vec<Axis> =
                    dimensions.iter().map(|d| Axis { size: d.0, src_stride: 0, dst_stride: 0 }).collect();
                let (mut src, mut dst) = (1, 1);
                for at in src_order {
                    let (size, gap, _, repeats) = dimensions[at];
                    axes[at].src_stride = if repeats { 0 } else { src + gap / 2 };
                    src = if repeats { src } else { (src + gap / 2) * size };
                }
                for at in dst_order {
                    let (size, _, gap, _) = dimensions[at];
                    axes[at].dst_stride = dst + gap / 2;
                    dst = (dst + gap / 2) * size;
                }
                axes
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gather_equals_one_element_at_a_time(
        axes in axes(),
        from in prop::sample::select(DType::ALL),
        to in prop::sample::select(DType::ALL),
    ) {
        let count: usize = axes.iter().map(|axis| axis.size).product();
        prop_assume!(count < 200_000);
        let cast = Cast::new(from, to, Overflow::Nan).or_else(|_| Cast::new(from, from, Overflow::Nan)).unwrap();
        check_gather(cast, &axes);
    }
}

#[test]
fn transposes_of_every_element_size_are_correct_at_tile_edges() {
    let pairs = [
        (DType::F8E4M3Fn, DType::F8E4M3Fn),
        (DType::F32, DType::BF16),
        (DType::BF16, DType::BF16),
        (DType::F32, DType::F32),
        (DType::U8, DType::F64),
        (DType::C128, DType::C128),
    ];
    for (from, to) in pairs {
        for rows in [8, 31, 32, 33, 64, 129, 257] {
            for columns in [8, 63, 64, 65, 513, 2100] {
                let across = Axis { size: columns, src_stride: 1, dst_stride: rows };
                check_gather(
                    cast(from, to),
                    &[Axis { size: rows, src_stride: columns, dst_stride: 1 }, across],
                );
            }
        }
    }
}

#[test]
fn an_empty_axis_copies_nothing_and_no_axes_copy_one_element() {
    let empty = [Axis { size: 0, src_stride: 9, dst_stride: 9 }];
    gather(cast(DType::F32, DType::BF16), &[], &mut [], &empty).unwrap();
    let mut dst = [0; 4];
    gather(cast(DType::F32, DType::F32), &[1, 2, 3, 4], &mut dst, &[]).unwrap();
    assert_eq!(dst, [1, 2, 3, 4]);
}

#[test]
fn axes_out_of_bounds_or_overlapping_are_refused_before_any_write() {
    let axis = |size, src_stride, dst_stride| Axis { size, src_stride, dst_stride };
    let wrong: [&[Axis]; 6] = [
        &[axis(9, 1, 1)],
        &[axis(2, 8, 1)],
        &[axis(2, 1, 0)],
        &[axis(3, 1, 2), axis(2, 1, 3)],
        &[axis(usize::MAX, 2, 1)],
        &[axis(2, usize::MAX, 1), axis(2, usize::MAX, 2)],
    ];
    for axes in wrong {
        let mut dst = [0xaa; 8];
        let error = gather(cast(DType::U8, DType::I8), &[0; 8], &mut dst, axes).unwrap_err();
        assert_eq!((error.code(), dst), (Code::InternalError, [0xaa; 8]));
    }
}
