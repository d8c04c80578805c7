//! The tallies compared with plain sums over all numbers, however the numbers are cut.

use super::*;
use crate::kernel::Level;

/// Numbers of all signs and magnitudes of a float32, with NaN, infinities, zeros and subnormal ones.
fn floats() -> Vec<f32> {
    let mut state = 7_u32;
    let noise = (0..40_000).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 1e6 - 8.0
    });
    let mut floats: Vec<f32> = noise.collect();
    for (at, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-45, 3e38]
        .into_iter()
        .cycle()
        .take(800)
        .enumerate()
    {
        floats[9000 + 13 * at] = special;
    }
    floats
}

fn counted(dtype: DType, bytes: &[u8], part: usize) -> Statistics {
    let mut all = Tally::new(dtype).unwrap();
    // Parts in the reverse order, as threads may finish in any.
    for (at, bytes) in bytes.chunks(part).enumerate().collect::<Vec<_>>().into_iter().rev() {
        let mut tally = Tally::new(dtype).unwrap();
        tally.add(at as u64, bytes);
        all.merge(tally);
    }
    all.finish(None)
}

fn close(found: Option<f64>, expected: f64) -> bool {
    (found.unwrap() - expected).abs() <= 1e-12 * expected.abs()
}

#[test]
fn floats_are_counted_as_by_plain_sums() {
    let floats = floats();
    let bytes: Vec<u8> = floats.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let finite: Vec<f64> =
        floats.iter().filter(|number| number.is_finite()).map(|&number| number.into()).collect();
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    let squares: f64 = finite.iter().map(|number| (number - mean).powi(2)).sum();
    for part in [4, 4000, 1 << 16, bytes.len()] {
        let found = counted(DType::F32, &bytes, part);
        assert_eq!(found.count, 40_000);
        assert_eq!((found.nan, found.positive_infinity, found.negative_infinity), (100, 100, 100));
        assert_eq!((found.zeros, found.subnormal), (200, 200));
        assert_eq!(found.max, Some(Number::Float(3e38_f32.into())));
        assert_eq!(found.min, Some(Number::Float(finite.iter().copied().fold(0.0, f64::min))));
        assert!(close(found.mean, mean), "{:?} {mean}", found.mean);
        assert!(close(found.std, (squares / finite.len() as f64).sqrt()));
        let exponents: u64 = found.exponents.iter().map(|count| count.negative + count.positive).sum();
        assert_eq!(exponents, 40_000 - 300 - 400);
        assert_eq!(found.exponents.last().unwrap().exponent, 127);
    }
}

#[test]
fn numbers_whose_squares_are_infinite_are_counted() {
    let numbers = [1.0, 2.0_f64.powi(700), f64::NAN, -f64::MAX, 3.0, f64::MAX, f64::INFINITY, -2.0];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    for part in [8, 24, bytes.len()] {
        let found = counted(DType::F64, &bytes, part);
        assert_eq!((found.count, found.nan, found.positive_infinity), (8, 1, 1));
        assert_eq!(found.min, Some(Number::Float(-f64::MAX)));
        assert_eq!(found.max, Some(Number::Float(f64::MAX)));
        assert!(found.mean.unwrap().abs() < f64::MAX / 1e10);
        assert_eq!(found.std, Some(f64::INFINITY));
    }
}

#[test]
fn every_level_finds_the_same() {
    let bytes: Vec<u8> = floats().iter().flat_map(|number| number.to_ne_bytes()).collect();
    let numbers: Vec<[u8; 4]> = bytes
        .as_chunks()
        .0
        .iter()
        .copied()
        .filter(|&number| f32::from_ne_bytes(number).is_finite())
        .collect();
    let load = |number| f64::from(f32::from_ne_bytes(number));
    let doubles: Vec<[u8; 8]> = numbers.iter().map(|&number| load(number).to_ne_bytes()).collect();
    let of = |level: Level| {
        let extent = level.extent(&numbers, 1.5, load);
        let sums = level.products(&doubles[1..], &doubles[..doubles.len() - 1]);
        ([extent.min, extent.max, extent.distances, extent.squares].map(f64::to_bits), sums.map(f64::to_bits))
    };
    let levels = Level::available();
    assert!(levels.iter().all(|&level| of(level) == of(levels[0])));
}

#[test]
fn patterns_are_counted_in_a_table_as_by_sorting() {
    let halves: Vec<u8> = (0..30_000_u32).flat_map(|at| ((at * at) as u16).to_ne_bytes()).collect();
    let sorted = counted(DType::F16, &halves, 2 * 1000);
    assert_eq!(counted(DType::F16, &halves, halves.len()), sorted);
    assert_eq!(sorted.count, 30_000);
    let distinct: std::collections::BTreeSet<u16> = (0..30_000_u32).map(|at| (at * at) as u16).collect();
    assert_eq!(sorted.distinct, Some(distinct.len() as u64));
    // Four equal neighbours, and others.
    let zeros = vec![0; 2 * 9001];
    assert_eq!(counted(DType::BF16, &zeros, zeros.len()).zeros, 9001);
}

#[test]
fn integers_keep_their_exact_extremes() {
    let ints = [i64::MIN, -1, 0, 1, 1 << 53 | 1, i64::MAX];
    let bytes: Vec<u8> = ints.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let found = counted(DType::I64, &bytes, 8);
    assert_eq!(found.min, Some(Number::Int(i64::MIN.into())));
    assert_eq!(found.max, Some(Number::Int(i64::MAX.into())));
    let exponents: Vec<_> =
        found.exponents.iter().map(|count| (count.exponent, count.negative, count.positive)).collect();
    assert_eq!(exponents, [(0, 1, 1), (53, 0, 1), (62, 0, 1), (63, 1, 0)]);
    let bytes: Vec<u8> = [0, u64::MAX].iter().flat_map(|number: &u64| number.to_ne_bytes()).collect();
    assert_eq!(counted(DType::U64, &bytes, 16).max, Some(Number::Int(u64::MAX.into())));
    assert_eq!(counted(DType::I8, &[128, 127, 0], 3).min, Some(Number::Int(-128)));
}

#[test]
fn what_has_no_numbers_has_no_extremes() {
    let none = counted(DType::F32, &[], 4);
    assert_eq!((none.count, none.min, none.mean, none.std), (0, None, None, None));
    let nan = counted(DType::F64, &f64::NAN.to_ne_bytes(), 8);
    assert_eq!((nan.count, nan.nan, nan.max, nan.mean), (1, 1, None, None));
    assert!(Tally::new(DType::Bits8).is_none());
    assert!(BinTally::new(DType::F64, &nan, 5).is_none());
}

#[test]
fn sums_over_the_range_of_float64_are_those_of_each_number() {
    let bytes: Vec<u8> =
        [f64::MAX, f64::MAX, -f64::MAX].iter().flat_map(|number| number.to_ne_bytes()).collect();
    let found = counted(DType::F64, &bytes, 24);
    assert_eq!((found.count, found.nan, found.positive_infinity), (3, 0, 0));
    assert_eq!(found.max, Some(Number::Float(f64::MAX)));
}
