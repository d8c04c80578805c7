//! Compares tensors with others element by element, in bounded memory.
//!
//! `stream::write_all` reads one of each pair as for a file, with a target that makes the same elements of the other one and compares
//! the bytes. Numbers are only decoded of tensors that differ: slices that were equal before the first difference are read once more,
//! for their part of the norms.
#![forbid(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use once_cell::race::OnceBox;

use crate::builder::setters;
use crate::dtype::{DType, Kind};
use crate::error::{Code, Result, bail};
use crate::kernel::statistics::Products;
use crate::kernel::{Cast, Overflow, convert};
use crate::num::{to_u64, to_usize};
use crate::parallel::{self, Cancel, lock};
use crate::sink::HostBuffer;
use crate::stream::{ByteTarget, ResultData, WriteItem, write_all};
use crate::write::{Values, limit_growth};

/// The bytes of one buffer; each thread has two.
const BUFFER_BYTES: u64 = 2 << 20;

/// The elements that are decoded at once where bytes differ.
const BLOCK_ELEMENTS: usize = 4096;

/// The pairs that are compared at once: their sources are open.
const GROUP: usize = 256;

/// How [`compare`] compares.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CompareOptions {
    /// The largest absolute difference of two numbers that are close.
    pub atol: f64,
    /// The largest difference in proportion to the number in the second tensor; both add up.
    pub rtol: f64,
    /// Threads to use; `None` for one per core.
    pub threads: Option<usize>,
    /// Cancels the call.
    pub cancel: Cancel,
}

impl CompareOptions {
    /// The defaults: bytes are compared, and no difference is close.
    pub fn new() -> CompareOptions {
        CompareOptions::default()
    }

    setters! {
        atol: f64,
        rtol: f64,
        threads: impl Into<Option<usize>>,
        cancel: Cancel,
    }
}

/// How the elements of two tensors differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// The elements of each.
    pub total: u64,
    /// The elements whose bytes differ.
    pub different: u64,
    /// Those of them that are not close: neither within the tolerances nor both NaN nor both zero.
    pub distant: u64,
    /// The number of the first element that differs, in C order; of the first distant one, if there is any.
    pub first: Option<u64>,
    /// The elements that are NaN in one tensor only.
    pub nan: u64,
    /// The largest absolute difference of two numbers; infinite between an infinity and another number.
    pub max_absolute: f64,
    /// The largest difference in proportion to the magnitude of the number in the second tensor, where that is not zero.
    pub max_relative: f64,
    /// The norm of the difference in proportion to that of the first tensor: ‖a − b‖ / ‖a‖ over the pairs of elements that are both
    /// finite, in float64. Infinite if only ‖a‖ is 0; `None` if nothing differs, no pair is finite, or the dtype is packed.
    pub relative_l2: Option<f64>,
    /// The root of the mean squared difference of these pairs.
    pub rms: Option<f64>,
    /// The cosine of the angle between both as vectors; the real part of it for complex numbers. `None` also if a norm is 0.
    pub cosine: Option<f64>,
}

impl Comparison {
    /// Adds the numbers that follow from sums over all elements.
    fn measure(&mut self, sums: &Products, are_complex: bool) {
        if sums.numbers == 0 {
            return;
        }
        let elements = (sums.numbers >> u32::from(are_complex)) as f64;
        let distance = sums.difference.sqrt();
        let relative = if distance == 0.0 { 0.0 } else { distance / sums.one.sqrt() };
        self.relative_l2 = Some(relative).filter(|number| !number.is_nan());
        self.rms = Some((sums.difference / elements).sqrt());
        let cosine = sums.product / (sums.one.sqrt() * sums.two.sqrt());
        // Rounded sums may be a little more than 1.
        self.cosine = Some(cosine.clamp(-1.0, 1.0)).filter(|number| number.is_finite());
    }

    fn merge(&mut self, other: &Comparison) {
        let of_distant = (self.distant > 0, other.distant > 0);
        self.first = match of_distant {
            (true, false) => self.first,
            (false, true) => other.first,
            _ => [self.first, other.first].into_iter().flatten().min(),
        };
        self.different += other.different;
        self.distant += other.distant;
        self.nan += other.nan;
        self.max_absolute = self.max_absolute.max(other.max_absolute);
        self.max_relative = self.max_relative.max(other.max_relative);
    }
}

/// Compares pairs of tensors or arrays, after the conversions that their requests ask for. Those must give both the same dtype and
/// shape.
///
/// Holds some MiB per thread, whatever the size of the tensors. Fails if a source cannot be read or changes, and as
/// [`statistics`](crate::statistics::statistics) does.
pub fn compare(pairs: &[(Values, Values)], options: &CompareOptions) -> Result<Vec<Comparison>> {
    limit_growth(pairs.iter().flat_map(|(one, two)| [one, two]))?;
    let mut all = Vec::with_capacity(pairs.len());
    for group in pairs.chunks(GROUP) {
        all.extend(compare_group(group, options)?);
    }
    Ok(all)
}

fn compare_group(pairs: &[(Values, Values)], options: &CompareOptions) -> Result<Vec<Comparison>> {
    let (mut compared, mut end) = (Vec::new(), 0_u64);
    for (one, two) in pairs {
        let (dtype, shape) = one.result().map_err(|error| one.add_context(error))?;
        if two.result().map_err(|error| two.add_context(error))? != (dtype, shape.clone()) {
            bail!(Code::Value, "tensors of different dtypes or shapes cannot be compared");
        }
        let total = shape.iter().fold(1, |total: u64, &size| total.saturating_mul(size));
        let nbytes = total.saturating_mul(dtype.itemsize());
        let found = Found { comparison: Comparison { total, ..Comparison::default() }, parts: Vec::new() };
        let found = Mutex::new(found);
        compared.push(Pair { start: end, nbytes, dtype, two, data: OnceBox::new(), found });
        end = end.saturating_add(nbytes);
    }
    let items = pairs.iter().zip(&compared).map(|((one, _), pair)| {
        let one = one.clone();
        WriteItem { offset: pair.start, nbytes: pair.nbytes, describe: Box::new(move || one.describe()) }
    });
    let target = Comparer { pairs: &compared, options };
    let memory = BUFFER_BYTES * to_u64(parallel::threads(end, options.threads));
    write_all(items.collect(), &target, memory, options.threads, &options.cancel).map_err(
        |(item, error)| match pairs.get(item) {
            Some((one, _)) => one.add_context(error),
            None => error,
        },
    )?;
    target.measure_equal(parallel::threads(end, options.threads))?;
    Ok(compared.into_iter().map(Pair::finish).collect())
}

/// Two tensors, one of which is read by `write_all`.
struct Pair<'p> {
    /// The position of its bytes among those of all pairs.
    start: u64,
    nbytes: u64,
    dtype: DType,
    two: &'p Values,
    /// The data of the second, once it is needed.
    data: OnceBox<ResultData>,
    found: Mutex<Found>,
}

/// What was found of a pair.
struct Found {
    comparison: Comparison,
    /// Its slices, in the order in which they were compared.
    parts: Vec<Part>,
}

/// A slice of a pair.
struct Part {
    /// The number of its first element.
    start: u64,
    numel: u64,
    /// The sums of its elements; `None` as long as the tensors do not differ.
    sums: Option<Products>,
}

impl Pair<'_> {
    fn finish(self) -> Comparison {
        let Found { mut comparison, mut parts } =
            self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // In this order, so that the sums do not depend on which thread was the first.
        parts.sort_unstable_by_key(|part| part.start);
        let mut sums = Products::default();
        parts.iter().filter_map(|part| part.sums.as_ref()).for_each(|part| sums.add(part));
        comparison.measure(&sums, self.dtype.kind() == Kind::Complex);
        comparison
    }

    /// Makes elements of the second tensor.
    fn fill(&self, start: u64, numel: u64, out: &mut [u8]) -> Result<()> {
        let data = self.data.get_or_try_init(|| self.two.clone().describe().map(Box::new));
        data.and_then(|data| data.fill_range(start, numel, out)).map_err(|error| self.two.add_context(error))
    }
}

/// A target that has other elements, and compares.
struct Comparer<'p> {
    /// Sorted by their start, without gaps.
    pairs: &'p [Pair<'p>],
    options: &'p CompareOptions,
}

impl ByteTarget for Comparer<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut offset, mut rest) = (offset, bytes);
        let first = self.pairs.partition_point(|pair| pair.start + pair.nbytes <= offset);
        for pair in &self.pairs[first..] {
            if rest.is_empty() {
                break;
            }
            let (own, others) = rest.split_at(rest.len().min(to_usize(pair.start + pair.nbytes - offset)));
            if !own.is_empty() {
                self.compare(pair, (offset - pair.start) / pair.dtype.itemsize(), own)?;
            }
            (offset, rest) = (offset + to_u64(own.len()), others);
        }
        Ok(())
    }
}

impl Comparer<'_> {
    /// Compares elements of a pair, the first of which is number `start`.
    fn compare(&self, pair: &Pair<'_>, start: u64, one: &[u8]) -> Result<()> {
        let mut buffer = HostBuffer::unfilled(to_u64(one.len()))?;
        let two = buffer.bytes_mut();
        pair.fill(start, to_u64(one.len()) / pair.dtype.itemsize(), two)?;
        let numel = to_u64(one.len()) / pair.dtype.itemsize();
        if one == two {
            let mut found = lock(&pair.found);
            if found.comparison.different == 0 {
                found.parts.push(Part { start, numel, sums: None });
                return Ok(());
            }
        }
        let (comparison, sums) = compare_slice(pair.dtype, start, one, two, self.options)?;
        let mut found = lock(&pair.found);
        found.comparison.merge(&comparison);
        found.parts.push(Part { start, numel, sums: Some(sums) });
        Ok(())
    }

    /// Sums the elements of the equal slices of pairs that differ.
    fn measure_equal(&self, threads: usize) -> Result<()> {
        let parts = self.pairs.iter().flat_map(|pair| {
            let mut found = lock(&pair.found);
            let differs = found.comparison.different > 0;
            let equal = found.parts.extract_if(.., |part| differs && part.sums.is_none());
            equal.map(|part| (pair, part)).collect::<Vec<_>>()
        });
        let parts: Vec<_> = parts.collect();
        parallel::for_each(
            threads,
            parts.into_iter(),
            || (),
            |(), (pair, part)| {
                self.options.cancel.check()?;
                let mut buffer = HostBuffer::unfilled(part.numel * pair.dtype.itemsize())?;
                let bytes = buffer.bytes_mut();
                pair.fill(part.start, part.numel, bytes)?;
                let (_, sums) = compare_slice(pair.dtype, part.start, bytes, bytes, self.options)?;
                lock(&pair.found).parts.push(Part { sums: Some(sums), ..part });
                Ok(())
            },
        )
    }
}

/// Compares elements of one dtype, the first of which is number `start`; equal ones add to the sums, too.
fn compare_slice(
    dtype: DType,
    start: u64,
    one: &[u8],
    two: &[u8],
    options: &CompareOptions,
) -> Result<(Comparison, Products)> {
    let (mut found, mut sums) = (Comparison::default(), Products::default());
    if dtype.kind() == Kind::Packed && one == two {
        return Ok((found, sums));
    }
    let block = BLOCK_ELEMENTS * to_usize(dtype.itemsize());
    for (number, (one, two)) in one.chunks(block).zip(two.chunks(block)).enumerate() {
        if one == two {
            let ones = numbers(dtype, one)?;
            let ones = ones.as_chunks().0;
            sums.add(&Products::of(ones, ones, dtype.kind() == Kind::Complex));
        } else {
            let start = start + to_u64(number * BLOCK_ELEMENTS);
            let (comparison, of_block) = compare_block(dtype, start, one, two, options)?;
            found.merge(&comparison);
            sums.add(&of_block);
        }
    }
    Ok((found, sums))
}

/// Compares a few elements of one dtype, the first of which is number `start`.
fn compare_block(
    dtype: DType,
    start: u64,
    one: &[u8],
    two: &[u8],
    options: &CompareOptions,
) -> Result<(Comparison, Products)> {
    let mut found = Comparison::default();
    let (mut first, mut first_distant) = (None, None);
    let size = to_usize(dtype.itemsize());
    let are_complex = dtype.kind() == Kind::Complex;
    let (ones, twos) = (numbers(dtype, one)?, numbers(dtype, two)?);
    let (ones, twos) = (ones.as_chunks().0, twos.as_chunks().0);
    let mut sums = Products::of(ones, twos, are_complex);
    // Of integers of 64 bits, not all of which are a float64.
    let mut squares = 0.0;
    for (number, (one_bytes, two_bytes)) in one.chunks(size).zip(two.chunks(size)).enumerate() {
        if one_bytes == two_bytes {
            continue;
        }
        found.different += 1;
        let at = start + to_u64(number);
        first.get_or_insert(at);
        let is_close = match (element(ones, number, are_complex), element(twos, number, are_complex)) {
            _ if matches!(dtype, DType::I64 | DType::U64) => {
                let (one, two) = (integer(dtype, one_bytes), integer(dtype, two_bytes));
                let distance = (one - two).abs() as f64;
                squares += distance * distance;
                found.add_distance(distance, two.abs() as f64, options)
            }
            (Some(one), Some(two)) => found.add(one, two, options),
            // Packed bits have no numbers.
            _ => false,
        };
        if !is_close {
            found.distant += 1;
            first_distant.get_or_insert(at);
        }
    }
    found.first = first_distant.or(first);
    if matches!(dtype, DType::I64 | DType::U64) {
        sums.difference = squares;
    }
    Ok((found, sums))
}

impl Comparison {
    /// Adds the difference of two complex numbers. Returns whether they are close.
    fn add(&mut self, one: [f64; 2], two: [f64; 2], options: &CompareOptions) -> bool {
        let is_nan = |number: [f64; 2]| number.iter().any(|part| part.is_nan());
        if is_nan(one) || is_nan(two) {
            self.nan += u64::from(is_nan(one) != is_nan(two));
            return is_nan(one) == is_nan(two);
        }
        if one == two {
            return true; // zeros of different signs
        }
        let magnitude = |number: [f64; 2]| match number {
            [real, 0.0] => real.abs(),
            [real, imaginary] => real.hypot(imaginary),
        };
        let difference = magnitude([one[0] - two[0], one[1] - two[1]]);
        // Equal infinities in one part only.
        let absolute = if difference.is_nan() { f64::INFINITY } else { difference };
        self.add_distance(absolute, magnitude(two), options)
    }

    /// Adds a difference that is not zero, and the magnitude of the second number. Returns whether the numbers are close.
    fn add_distance(&mut self, absolute: f64, magnitude: f64, options: &CompareOptions) -> bool {
        self.max_absolute = self.max_absolute.max(absolute);
        if magnitude > 0.0 {
            let relative = if absolute == f64::INFINITY { absolute } else { absolute / magnitude };
            self.max_relative = self.max_relative.max(relative);
        }
        absolute.is_finite() && magnitude.is_finite() && absolute <= options.atol + options.rtol * magnitude
    }
}

/// An integer of 64 bits.
fn integer(dtype: DType, bytes: &[u8]) -> i128 {
    let Some(&bytes) = bytes.first_chunk() else { return 0 };
    if dtype == DType::U64 { u64::from_ne_bytes(bytes).into() } else { i64::from_ne_bytes(bytes).into() }
}

/// The elements as float64, one after another; two for each complex one, none of packed dtypes.
fn numbers(dtype: DType, bytes: &[u8]) -> Result<Vec<u8>> {
    let (to, size) = match dtype.kind() {
        Kind::Packed => return Ok(Vec::new()),
        Kind::Complex => (DType::C128, 16),
        _ => (DType::F64, 8),
    };
    let mut out = vec![0; bytes.len() / to_usize(dtype.itemsize()) * size];
    convert(Cast::new(dtype, to, Overflow::default())?, bytes, &mut out)?;
    Ok(out)
}

/// An element of `numbers`, as a complex number.
fn element(numbers: &[[u8; 8]], number: usize, are_complex: bool) -> Option<[f64; 2]> {
    let part = |at: usize| numbers.get(at).map(|&bytes| f64::from_ne_bytes(bytes));
    if are_complex { Some([part(2 * number)?, part(2 * number + 1)?]) } else { Some([part(number)?, 0.0]) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::layout::Layout;
    use crate::tensor::Request;
    use crate::write::HostArray;

    fn array(values: &[f32], shape: &[u64]) -> Values {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let layout = Layout::contiguous(shape).unwrap();
        Values::Array(HostArray::new(Arc::new(bytes), DType::F32, layout).unwrap(), Request::new())
    }

    fn compared(one: &[f32], two: &[f32], options: &CompareOptions) -> Comparison {
        let shape = [one.len() as u64];
        compare(&[(array(one, &shape), array(two, &shape))], options).unwrap()[0]
    }

    #[test]
    fn differences_are_counted_and_located() {
        let one: Vec<f32> = (0..3_000_000).map(|n| n as f32).collect();
        let mut two = one.clone();
        assert_eq!(compared(&one, &two, &CompareOptions::new()).different, 0);
        (two[7], two[2_500_000]) = (7.5, 2_400_000.0);
        let found = compared(&one, &two, &CompareOptions::new());
        assert_eq!((found.total, found.different, found.distant, found.first), (3_000_000, 2, 2, Some(7)));
        assert_eq!((found.max_absolute, found.max_relative), (100_000.0, 0.5 / 7.5));
        let found = compared(&one, &two, &CompareOptions::new().atol(1.0));
        assert_eq!((found.different, found.distant, found.first), (2, 1, Some(2_500_000)));
    }

    #[test]
    fn zeros_of_both_signs_and_all_nan_are_close() {
        let other_nan = f32::from_bits(f32::NAN.to_bits() ^ 5);
        let found = compared(&[0.0, f32::NAN, 1.0], &[-0.0, other_nan, 1.0], &CompareOptions::new());
        assert_eq!((found.different, found.distant, found.nan, found.max_absolute), (2, 0, 0, 0.0));
        let infinity = f32::INFINITY;
        let found = compared(
            &[f32::NAN, infinity, infinity, 1.0],
            &[1.0, infinity, -infinity, infinity],
            &CompareOptions::new().rtol(9.0).atol(1e30),
        );
        assert_eq!((found.different, found.distant, found.nan), (3, 3, 1));
        assert_eq!(found.max_absolute, f64::INFINITY);
    }

    #[test]
    fn norms_are_those_of_all_elements_and_do_not_depend_on_threads() {
        // The first slices are equal, and read once more.
        let one: Vec<f32> = (0..3_000_000).map(|n| (n % 7) as f32).collect();
        let mut two = one.clone();
        (two[2_500_000], two[2_999_999]) = (-5.0, f32::NAN);
        let (mut squares, mut others, mut product, mut distance) = (0.0, 0.0, 0.0, 0.0);
        for (&one, &two) in one.iter().zip(&two).filter(|(_, two)| two.is_finite()) {
            let (one, two) = (f64::from(one), f64::from(two));
            (squares, others) = (squares + one * one, others + two * two);
            (product, distance) = (product + one * two, distance + (one - two) * (one - two));
        }
        for threads in 1..4 {
            let found = compared(&one, &two, &CompareOptions::new().threads(threads));
            // These sums of small integers are exact.
            assert_eq!(found.relative_l2, Some(f64::sqrt(distance) / f64::sqrt(squares)));
            assert_eq!(found.rms, Some(f64::sqrt(distance / 2_999_999.0)));
            assert_eq!(found.cosine, Some(product / (f64::sqrt(squares) * f64::sqrt(others))));
        }
        let same = compared(&one, &one, &CompareOptions::new());
        assert_eq!((same.relative_l2, same.rms, same.cosine), (None, None, None));
        let zeros = compared(&[0.0, -0.0], &[1.0, 1.0], &CompareOptions::new());
        assert_eq!((zeros.relative_l2, zeros.rms, zeros.cosine), (Some(f64::INFINITY), Some(1.0), None));
    }

    #[test]
    fn pairs_of_different_shapes_are_refused() {
        let pair = (array(&[1.0, 2.0], &[2]), array(&[1.0, 2.0], &[1, 2]));
        assert_eq!(compare(&[pair], &CompareOptions::new()).unwrap_err().code(), Code::Value);
    }
}
