//! Numbers wider than 16 bits, in blocks.

use super::moments::Moments;
use super::{ExponentCount, Number, Statistics};
use crate::dtype::DType;
use crate::kernel::arch::Level;

/// The bytes of a block, which stays in the L1 cache.
const BLOCK_BYTES: usize = 16 << 10;

/// The sign and exponent of a float64, or the sign and number of bits of an integer: the counts of a tally.
const EXPONENTS_MAX: usize = 1 << 12;

/// The sign and exponent of a float32.
const F32_FIELDS: usize = 1 << 9;

/// The tables that count exponents.
const TABLES: usize = 4;

/// What the numbers of a tensor are like, as far as they were counted.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    dtype: DType,
    level: Level,
    count: u64,
    nan: u64,
    /// Negative and positive.
    infinite: [u64; 2],
    zeros: u64,
    extremes: Option<(Number, Number)>,
    /// By the position of their first element, so that the sums do not depend on the order of the parts.
    moments: Vec<(u64, Moments)>,
    /// By sign and exponent field of a float, or by sign and number of bits of an integer.
    exponents: Vec<u64>,
}

impl Numbers {
    pub(super) fn new(dtype: DType) -> Numbers {
        Numbers {
            dtype,
            level: Level::used(),
            count: 0,
            nan: 0,
            infinite: [0; 2],
            zeros: 0,
            extremes: None,
            moments: Vec::new(),
            exponents: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, position: u64, bytes: &[u8]) {
        let fields = if self.dtype == DType::F32 { F32_FIELDS } else { EXPONENTS_MAX };
        let mut counted = Counted::new(fields);
        match self.dtype {
            DType::F32 => self.add_floats::<4, F32_FIELDS>(bytes, &mut counted, f32_to_f64, |number| {
                u32::from_ne_bytes(number) as usize >> 23
            }),
            DType::F64 => {
                self.add_floats::<8, EXPONENTS_MAX>(bytes, &mut counted, f64::from_ne_bytes, |number| {
                    (u64::from_ne_bytes(number) >> 52) as usize
                })
            }
            DType::I32 => self.add_ints(bytes, &mut counted, |number| i32::from_ne_bytes(number).into()),
            DType::U32 => self.add_ints(bytes, &mut counted, |number| u32::from_ne_bytes(number).into()),
            DType::I64 => self.add_ints(bytes, &mut counted, |number| i64::from_ne_bytes(number).into()),
            DType::U64 => self.add_ints(bytes, &mut counted, |number| u64::from_ne_bytes(number).into()),
            _ => {}
        }
        self.exponents.resize(EXPONENTS_MAX, 0);
        for table in counted.exponents.chunks_exact(fields) {
            for (count, &more) in self.exponents.iter_mut().zip(table) {
                *count += u64::from(more);
            }
        }
        self.moments.push((position, counted.moments));
    }

    fn add_floats<const N: usize, const FIELDS: usize>(
        &mut self,
        bytes: &[u8],
        counted: &mut Counted,
        load: impl Fn([u8; N]) -> f64 + Copy,
        field: impl Fn([u8; N]) -> usize + Copy,
    ) {
        for block in bytes.as_chunks::<N>().0.chunks(BLOCK_BYTES / N) {
            if counted.count_exponents::<N, FIELDS>(block, field) {
                self.zeros += block.iter().filter(|&&number| load(number) == 0.0).count() as u64;
            }
            self.count += block.len() as u64;
            if self.add_finite(block, counted, load) {
                continue;
            }
            for number in block.iter().map(|&number| load(number)) {
                self.nan += u64::from(number.is_nan());
                self.infinite[0] += u64::from(number == f64::NEG_INFINITY);
                self.infinite[1] += u64::from(number == f64::INFINITY);
            }
            let finite: Vec<[u8; N]> =
                block.iter().copied().filter(|&number| load(number).is_finite()).collect();
            if !finite.is_empty() && !self.add_finite(&finite, counted, load) {
                // The squares of large numbers are infinite: so is the deviation.
                for number in finite.into_iter().map(load) {
                    let one = Moments { count: 1, mean: number, squares: 0.0 };
                    counted.moments = counted.moments.merged(one);
                    self.widen(Number::Float(number), Number::Float(number));
                }
                counted.pivot = counted.moments.mean;
            }
        }
    }

    /// Adds a block. False, and nothing is added, if a number is not finite or a sum is too large.
    fn add_finite<const N: usize>(
        &mut self,
        block: &[[u8; N]],
        counted: &mut Counted,
        load: impl Fn([u8; N]) -> f64 + Copy,
    ) -> bool {
        let len = block.len() as f64;
        // The mean of the block before is near, so little is lost when the distances' mean is subtracted: of what is lost, the distance
        // of the two blocks' means adds more to the squares.
        let pivot = match counted.moments.count {
            0 => self.level.extent(block, 0.0, load).distances / len,
            _ => counted.pivot,
        };
        let extent = self.level.extent(block, pivot, load);
        if !extent.squares.is_finite() || !extent.distances.is_finite() {
            return false;
        }
        let distance = extent.distances / len;
        let squares = (extent.squares - extent.distances * distance).max(0.0);
        let mean = pivot + distance;
        counted.moments = counted.moments.merged(Moments { count: block.len() as u64, mean, squares });
        counted.pivot = mean;
        self.widen(Number::Float(extent.min), Number::Float(extent.max));
        true
    }

    fn add_ints<const N: usize>(
        &mut self,
        bytes: &[u8],
        counted: &mut Counted,
        load: impl Fn([u8; N]) -> i128,
    ) {
        for block in bytes.as_chunks::<N>().0.chunks(BLOCK_BYTES / N) {
            let (mut sum, mut min, mut max) = (0_i128, i128::MAX, i128::MIN);
            for &number in block {
                let number = load(number);
                (sum, min, max) = (sum + number, min.min(number), max.max(number));
                self.zeros += u64::from(number == 0);
                let bits = 128 - number.unsigned_abs().leading_zeros() as usize;
                counted.exponents[usize::from(number < 0) << 11 | bits] += 1;
            }
            self.count += block.len() as u64;
            let mean = sum as f64 / block.len() as f64;
            let squares = block.iter().map(|&number| (load(number) as f64 - mean).powi(2)).sum();
            counted.moments = counted.moments.merged(Moments { count: block.len() as u64, mean, squares });
            self.widen(Number::Int(min), Number::Int(max));
        }
    }

    fn widen(&mut self, min: Number, max: Number) {
        self.extremes = Some(match self.extremes {
            None => (min, max),
            Some((own_min, own_max)) => (
                if is_below(min, own_min) { min } else { own_min },
                if is_below(own_max, max) { max } else { own_max },
            ),
        });
    }

    pub(super) fn merge(&mut self, other: Numbers) {
        self.count += other.count;
        self.nan += other.nan;
        self.infinite[0] += other.infinite[0];
        self.infinite[1] += other.infinite[1];
        self.zeros += other.zeros;
        if let Some((min, max)) = other.extremes {
            self.widen(min, max);
        }
        self.moments.extend(other.moments);
        self.exponents.resize(EXPONENTS_MAX, 0);
        for (count, more) in self.exponents.iter_mut().zip(other.exponents) {
            *count += more;
        }
    }

    pub(super) fn finish(mut self) -> Statistics {
        self.moments.sort_unstable_by_key(|&(position, _)| position);
        let moments = self.moments.iter().fold(Moments::default(), |all, &(_, part)| all.merged(part));
        let (mean, std) = moments.finish();
        let (mut exponents, mut subnormal) = (Vec::new(), 0);
        let (fields, bias, is_float) = match self.dtype {
            DType::F32 => (1 << 8, 127, true),
            DType::F64 => (1 << 11, 1023, true),
            _ => (1 << 11, 1, false),
        };
        let counts = |field: usize| {
            let at = |field: usize| self.exponents.get(field).copied().unwrap_or_default();
            (at(field | fields), at(field))
        };
        if is_float {
            let (negative, positive) = counts(0);
            subnormal = negative + positive - self.zeros;
        }
        let last = if is_float { fields - 1 } else { fields };
        for field in 1..last {
            let (negative, positive) = counts(field);
            if negative + positive > 0 {
                exponents.push(ExponentCount { exponent: field as i32 - bias, negative, positive });
            }
        }
        let (min, max) = self.extremes.unzip();
        Statistics {
            count: self.count,
            nan: self.nan,
            positive_infinity: self.infinite[1],
            negative_infinity: self.infinite[0],
            zeros: self.zeros,
            subnormal,
            min,
            max,
            mean,
            std,
            distinct: None,
            exponents,
            histogram: None,
        }
    }
}

fn is_below(one: Number, two: Number) -> bool {
    match (one, two) {
        (Number::Int(one), Number::Int(two)) => one < two,
        _ => one.to_f64() < two.to_f64(),
    }
}

fn f32_to_f64(number: [u8; 4]) -> f64 {
    f32::from_ne_bytes(number).into()
}

/// What is found in one part.
struct Counted {
    moments: Moments,
    /// The mean of the last block.
    pivot: f64,
    /// Counts by sign and exponent, in tables that are added in the end: neighbours are often equal, and additions to one count wait
    /// for each other.
    exponents: Vec<u32>,
}

impl Counted {
    fn new(fields: usize) -> Counted {
        Counted { moments: Moments::default(), pivot: 0.0, exponents: vec![0; TABLES * fields] }
    }

    /// Counts numbers by their field of sign and exponent, one of `FIELDS`. Returns whether there were zeros or subnormal numbers.
    fn count_exponents<const N: usize, const FIELDS: usize>(
        &mut self,
        numbers: &[[u8; N]],
        field: impl Fn([u8; N]) -> usize,
    ) -> bool {
        let tables = self.exponents.as_chunks_mut::<FIELDS>().0;
        let Some(tables) = tables.as_chunks_mut::<TABLES>().0.first_mut() else { return false };
        let small = |tables: &[[u32; FIELDS]; TABLES]| -> u32 {
            tables.iter().map(|table| table[0] + table[FIELDS / 2]).sum()
        };
        let before = small(tables);
        // A part has fewer numbers than a u32 counts.
        let add = |table: &mut [u32; FIELDS], number| {
            let count = &mut table[field(number) % FIELDS];
            *count = count.wrapping_add(1);
        };
        let (rows, rest) = numbers.as_chunks::<TABLES>();
        for row in rows {
            for (table, &number) in tables.iter_mut().zip(row) {
                add(table, number);
            }
        }
        for (table, &number) in tables.iter_mut().zip(rest) {
            add(table, number);
        }
        small(tables) > before
    }
}

/// Calls `each` with every number of a dtype, as float64.
pub(super) fn for_each(dtype: DType, bytes: &[u8], mut each: impl FnMut(f64)) {
    fn all<const N: usize>(bytes: &[u8], load: impl Fn([u8; N]) -> f64, each: &mut impl FnMut(f64)) {
        bytes.as_chunks().0.iter().for_each(|&number| each(load(number)));
    }
    match dtype {
        DType::F32 | DType::C64 => all(bytes, f32_to_f64, &mut each),
        DType::F64 | DType::C128 => all(bytes, f64::from_ne_bytes, &mut each),
        DType::I32 => all(bytes, |number| i32::from_ne_bytes(number).into(), &mut each),
        DType::U32 => all(bytes, |number| u32::from_ne_bytes(number).into(), &mut each),
        DType::I64 => all(bytes, |number| i64::from_ne_bytes(number) as f64, &mut each),
        DType::U64 => all(bytes, |number| u64::from_ne_bytes(number) as f64, &mut each),
        _ => {}
    }
}
