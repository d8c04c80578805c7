//! Numbers of at most 16 bits, counted by their bit patterns.

use super::histogram::Bins;
use super::moments::Moments;
use super::{ExponentCount, Number, Statistics};
use crate::dtype::{DType, Kind};
use crate::kernel::{Cast, Overflow, convert};

/// Parts of up to this many elements are sorted, longer ones are counted in a table of all patterns.
const SORTED_MAX_ELEMENTS: usize = 2048;

/// The patterns of 16 bits.
const PATTERNS_16: usize = 1 << 16;

/// How often there is each bit pattern.
#[derive(Clone, Debug)]
pub(super) struct Patterns {
    dtype: DType,
    /// By pattern; empty until a long part is counted.
    table: Vec<u64>,
    /// Patterns and their counts, in any order, a pattern more than once.
    counts: Vec<(u16, u64)>,
}

impl Patterns {
    pub(super) fn new(dtype: DType) -> Patterns {
        Patterns { dtype, table: Vec::new(), counts: Vec::new() }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        if self.dtype.itemsize() == 1 {
            let mut table = [0_u64; 1 << 8];
            // Neighbours are often equal: two tables let their additions overlap.
            let mut odd = [0_u64; 1 << 8];
            let (pairs, rest) = bytes.as_chunks::<2>();
            for &[one, two] in pairs {
                table[usize::from(one)] += 1;
                odd[usize::from(two)] += 1;
            }
            rest.iter().for_each(|&one| table[usize::from(one)] += 1);
            let both = table.iter().zip(&odd).map(|(one, two)| one + two);
            self.counts.extend((0_u16..).zip(both).filter(|&(_, count)| count > 0));
        } else if bytes.len() / 2 <= SORTED_MAX_ELEMENTS {
            let mut patterns: Vec<u16> =
                bytes.as_chunks().0.iter().map(|&pattern| u16::from_ne_bytes(pattern)).collect();
            patterns.sort_unstable();
            let runs = patterns.chunk_by(|one, two| one == two);
            self.counts.extend(runs.map(|run| (run[0], run.len() as u64)));
        } else {
            self.count_16(bytes);
        }
        self.compact();
    }

    fn count_16(&mut self, bytes: &[u8]) {
        self.table.resize(PATTERNS_16, 0);
        let Some(table) = self.table.as_chunks_mut::<PATTERNS_16>().0.first_mut() else { return };
        // There are fewer numbers than a u64 counts.
        let mut add = |pattern: u16, times: u64| {
            let count = &mut table[usize::from(pattern)];
            *count = count.wrapping_add(times);
        };
        let (words, rest) = bytes.as_chunks();
        for &word in words {
            let word = u64::from_ne_bytes(word);
            // Additions to one count wait for each other: four equal numbers are added at once.
            if word == word.rotate_left(16) {
                add(word as u16, 4);
            } else {
                for shift in [0, 16, 32, 48] {
                    add((word >> shift) as u16, 1);
                }
            }
        }
        for &pattern in rest.as_chunks().0 {
            add(u16::from_ne_bytes(pattern), 1);
        }
    }

    pub(super) fn merge(&mut self, other: Patterns) {
        if self.table.is_empty() {
            self.table = other.table;
        } else {
            for (count, more) in self.table.iter_mut().zip(other.table) {
                *count += more;
            }
        }
        self.counts.extend(other.counts);
        self.compact();
    }

    /// Bounds the list of counts.
    fn compact(&mut self) {
        if self.counts.len() > PATTERNS_16 / 2 {
            self.table.resize(PATTERNS_16, 0);
            for (pattern, count) in self.counts.drain(..) {
                self.table[usize::from(pattern)] += count;
            }
        }
    }

    /// Every pattern that there is, with its count, by pattern.
    fn sorted(mut self) -> Vec<(u16, u64)> {
        if !self.table.is_empty() {
            for &(pattern, count) in &self.counts {
                self.table[usize::from(pattern)] += count;
            }
            return (0..=u16::MAX).zip(self.table).filter(|&(_, count)| count > 0).collect();
        }
        self.counts.sort_unstable();
        let runs = self.counts.chunk_by(|one, two| one.0 == two.0);
        runs.map(|run| (run[0].0, run.iter().map(|&(_, count)| count).sum())).collect()
    }

    pub(super) fn finish(self, bins: Option<usize>) -> Statistics {
        let dtype = self.dtype;
        let counts = self.sorted();
        let numbers: Vec<(f64, u64)> =
            numbers(dtype, &counts).into_iter().zip(counts.iter().map(|&(_, count)| count)).collect();
        let total = |wanted: &dyn Fn(f64) -> bool| {
            numbers.iter().filter(|&&(number, _)| wanted(number)).map(|&(_, count)| count).sum::<u64>()
        };
        let is_subnormal = |number: f64| number != 0.0 && number.abs() < smallest_normal(dtype);
        let finite: Vec<(f64, u64)> =
            numbers.iter().copied().filter(|(number, _)| number.is_finite()).collect();
        let count: u64 = finite.iter().map(|&(_, count)| count).sum();
        let mean = finite.iter().map(|&(number, times)| number * times as f64).sum::<f64>() / count as f64;
        let squares =
            finite.iter().map(|&(number, times)| (number - mean) * (number - mean) * times as f64).sum();
        let (mean, std) = Moments { count, mean, squares }.finish();
        let all = || finite.iter().map(|&(number, _)| number);
        let (min, max) = (all().reduce(f64::min), all().reduce(f64::max));
        let extreme = |number: f64| match dtype.kind() {
            Kind::Float => Number::Float(number),
            _ => Number::Int(number as i128),
        };
        let histogram = bins.zip(min.zip(max)).map(|(bins, (min, max))| {
            let mut filled = Bins::new(min, max, bins);
            finite.iter().for_each(|&(number, times)| filled.add(number, times));
            filled.finish()
        });
        Statistics {
            count: total(&|_| true),
            nan: total(&f64::is_nan),
            positive_infinity: total(&|number| number == f64::INFINITY),
            negative_infinity: total(&|number| number == f64::NEG_INFINITY),
            zeros: total(&|number| number == 0.0),
            subnormal: total(&is_subnormal),
            min: min.map(extreme),
            max: max.map(extreme),
            mean,
            std,
            distinct: Some(counts.len() as u64),
            exponents: exponents(
                finite.iter().filter(|(number, _)| *number != 0.0 && !is_subnormal(*number)),
            ),
            histogram,
        }
    }
}

/// The numbers of bit patterns.
fn numbers(dtype: DType, counts: &[(u16, u64)]) -> Vec<f64> {
    let bytes: Vec<u8> = match dtype.itemsize() {
        1 => counts.iter().map(|&(pattern, _)| pattern as u8).collect(),
        _ => counts.iter().flat_map(|&(pattern, _)| pattern.to_ne_bytes()).collect(),
    };
    let mut numbers = vec![0; counts.len() * 8];
    // Every dtype of numbers converts to float64.
    let cast = Cast::new(dtype, DType::F64, Overflow::default());
    let converted = cast.and_then(|cast| convert(cast, &bytes, &mut numbers));
    debug_assert!(converted.is_ok(), "{dtype} has numbers");
    numbers.as_chunks().0.iter().map(|&number| f64::from_ne_bytes(number)).collect()
}

fn exponents<'n>(normal: impl Iterator<Item = &'n (f64, u64)>) -> Vec<ExponentCount> {
    let mut counts = std::collections::BTreeMap::new();
    for &(number, times) in normal {
        let exponent = (number.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        let (negative, positive) = counts.entry(exponent).or_insert((0, 0));
        *(if number < 0.0 { negative } else { positive }) += times;
    }
    let count = |(exponent, (negative, positive))| ExponentCount { exponent, negative, positive };
    counts.into_iter().map(count).collect()
}

/// The smallest normal number of a dtype of at most 16 bits.
fn smallest_normal(dtype: DType) -> f64 {
    let exponent = match dtype {
        DType::F16 | DType::F8E5M2 => -14,
        DType::BF16 => -126,
        DType::F8E4M3Fn => -6,
        DType::F8E4M3Fnuz => -7,
        DType::F8E5M2Fnuz => -15,
        // Integers, and e8m0, whose numbers are powers of two.
        _ => return 0.0,
    };
    2.0_f64.powi(exponent)
}
