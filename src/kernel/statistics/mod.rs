//! Statistics of numbers: a [`Tally`] is given the bytes of a tensor in any parts and any order, and returns [`Statistics`].
//!
//! Numbers of at most 16 bits are counted by their bit patterns, so all that is returned follows exactly from the counts. Wider ones are
//! passed over in blocks that stay in the L1 cache: once for their extent and exponents, once for their variance.

mod histogram;
mod moments;
mod numbers;
mod patterns;
mod products;

pub use histogram::Histogram;
pub use products::Products;

use histogram::Bins;
use numbers::Numbers;
use patterns::Patterns;

use crate::dtype::{DType, Kind};

/// An extreme of numbers: integers are exact at any width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Of a tensor of integers or bools.
    Int(i128),
    /// Of a tensor of floating point or complex numbers.
    Float(f64),
}

impl Number {
    fn to_f64(self) -> f64 {
        match self {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        }
    }
}

/// The finite numbers of one magnitude: from 2^`exponent` to below 2^(`exponent` + 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExponentCount {
    /// The exponent of the smallest magnitude.
    pub exponent: i32,
    /// The negative numbers.
    pub negative: u64,
    /// The positive numbers.
    pub positive: u64,
}

/// What the numbers of a tensor are like. A complex number counts as two.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Statistics {
    /// The numbers that were read.
    pub count: u64,
    /// Those that are not a number.
    pub nan: u64,
    /// Those that are positive infinity.
    pub positive_infinity: u64,
    /// Those that are negative infinity.
    pub negative_infinity: u64,
    /// Those that are 0 or -0.
    pub zeros: u64,
    /// Those whose magnitude is not zero and below the smallest normal number of their dtype.
    pub subnormal: u64,
    /// The smallest finite number.
    pub min: Option<Number>,
    /// The largest finite number.
    pub max: Option<Number>,
    /// The mean of the finite numbers.
    pub mean: Option<f64>,
    /// The standard deviation of the finite numbers: the root of their mean squared distance from the mean.
    pub std: Option<f64>,
    /// The number of different bit patterns, for numbers of at most 16 bits.
    pub distinct: Option<u64>,
    /// The finite numbers but zeros and subnormal ones by their magnitude, from the smallest magnitude that there is up.
    pub exponents: Vec<ExponentCount>,
    /// The finite numbers in bins of equal width, if asked for and there are any.
    pub histogram: Option<Histogram>,
}

/// Counts the elements of one tensor, which it is given in any parts and any order.
pub trait Count: Clone + Send + Sync {
    /// Counts whole elements, in the byte order of this machine. `position` is that of the first one in the tensor, in any unit.
    fn add(&mut self, position: u64, bytes: &[u8]);

    /// Adds what another one of the same tensor has counted.
    fn merge(&mut self, other: Self);
}

/// Counts the numbers of one tensor.
#[derive(Clone, Debug)]
pub struct Tally(Kernel);

#[derive(Clone, Debug)]
enum Kernel {
    Patterns(Patterns),
    Numbers(Numbers),
}

impl Tally {
    /// An empty tally of elements of a dtype; `None` for packed dtypes, which have no numbers.
    pub fn new(dtype: DType) -> Option<Tally> {
        if dtype.kind() == Kind::Packed {
            return None;
        }
        let part = dtype.real_part().unwrap_or(dtype);
        Some(Tally(match part.itemsize() {
            1 | 2 => Kernel::Patterns(Patterns::new(part)),
            _ => Kernel::Numbers(Numbers::new(part)),
        }))
    }

    /// The statistics. A histogram of `bins` bins is only among them for numbers of at most 16 bits; others need a [`BinTally`].
    pub fn finish(self, bins: Option<usize>) -> Statistics {
        match self.0 {
            Kernel::Patterns(patterns) => patterns.finish(bins),
            Kernel::Numbers(numbers) => numbers.finish(),
        }
    }
}

impl Count for Tally {
    fn add(&mut self, position: u64, bytes: &[u8]) {
        match &mut self.0 {
            Kernel::Patterns(patterns) => patterns.add(bytes),
            Kernel::Numbers(numbers) => numbers.add(position, bytes),
        }
    }

    fn merge(&mut self, other: Tally) {
        match (&mut self.0, other.0) {
            (Kernel::Patterns(patterns), Kernel::Patterns(other)) => patterns.merge(other),
            (Kernel::Numbers(numbers), Kernel::Numbers(other)) => numbers.merge(other),
            _ => {}
        }
    }
}

/// Counts the numbers of one tensor in bins, once their extremes are known.
#[derive(Clone, Debug)]
pub struct BinTally {
    dtype: DType,
    bins: Bins,
}

impl BinTally {
    /// An empty tally of elements of a dtype wider than 16 bits, for what a [`Tally`] has found; `None` if it has found nothing finite.
    pub fn new(dtype: DType, found: &Statistics, bins: usize) -> Option<BinTally> {
        let (min, max) = (found.min?.to_f64(), found.max?.to_f64());
        Some(BinTally { dtype, bins: Bins::new(min, max, bins) })
    }

    /// The histogram.
    pub fn finish(self) -> Histogram {
        self.bins.finish()
    }
}

impl Count for BinTally {
    fn add(&mut self, _position: u64, bytes: &[u8]) {
        numbers::for_each(self.dtype, bytes, |number| self.bins.add(number, 1));
    }

    fn merge(&mut self, other: BinTally) {
        self.bins.merge(&other.bins);
    }
}

#[cfg(test)]
mod tests;
