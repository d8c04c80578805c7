//! Statistics of tensors: what their numbers are like, read once, in bounded memory.
//!
//! `stream::write_all` reads the tensors as for a file, with a target that counts the bytes that it is given: their offset in the
//! target says which tensor they are of.
#![forbid(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use crate::builder::setters;
use crate::bytes::{ReadMode, Scratch, Source};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::statistics::{BinTally, Count, Tally};
use crate::num::{to_u64, to_usize};
use crate::parallel::{self, Cancel, lock};
use crate::stream::{ByteTarget, ResultSlice, WriteItem, allocate_aligned, sample_slices, write_all};
use crate::write::{Values, limit_growth};

pub use crate::kernel::statistics::{ExponentCount, Histogram, Number, Statistics};

/// The bytes of one buffer.
const BUFFER_BYTES: u64 = 8 << 20;

/// The bytes of one read of what needs no conversion; a multiple of every dtype's size.
const PIECE_BYTES: u64 = 256 << 10;

/// The tensors that are counted at once: their counts are in memory.
const GROUP: usize = 256;

/// The runs of a sample. They are spread evenly over the tensor.
const SAMPLE_RUNS: u64 = 64;

/// How [`statistics`] reads tensors.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StatisticsOptions {
    /// The bins of [`Statistics::histogram`]; `None` for no histogram. Numbers wider than 16 bits are read twice for it.
    pub bins: Option<usize>,
    /// Reads about so many elements of each tensor, in up to 64 runs that are spread evenly; `None` for all.
    pub sample: Option<u64>,
    /// Threads to use; `None` for one per core.
    pub threads: Option<usize>,
    /// Cancels the call.
    pub cancel: Cancel,
}

impl StatisticsOptions {
    /// The defaults: all elements, no histogram.
    pub fn new() -> StatisticsOptions {
        StatisticsOptions::default()
    }

    setters! {
        bins: impl Into<Option<usize>>,
        sample: impl Into<Option<u64>>,
        threads: impl Into<Option<usize>>,
        cancel: Cancel,
    }
}

/// Returns what the numbers of tensors or arrays are like, after the conversion that their requests ask for; `None` for packed dtypes,
/// which have no numbers.
///
/// Holds some MiB per thread, whatever the size of the tensors. Fails if a source cannot be read or changes, for a lossy cast that is not
/// allowed, for meta tensors, and where tensors repeat elements over the limit `materialize_bytes`.
pub fn statistics(tensors: &[Values], options: &StatisticsOptions) -> Result<Vec<Option<Statistics>>> {
    limit_growth(tensors)?;
    let mut all = Vec::with_capacity(tensors.len());
    for group in tensors.chunks(GROUP) {
        all.extend(Group::new(group, options)?.statistics()?);
    }
    Ok(all)
}

/// Tensors that are counted together.
struct Group<'t> {
    tensors: &'t [Values],
    dtypes: Vec<DType>,
    /// What is read: slices of tensors.
    parts: Vec<Part>,
    options: &'t StatisticsOptions,
}

/// A tensor, or a slice of one in a sample.
struct Part {
    tensor: usize,
    slice: Option<ResultSlice>,
    /// The position of its bytes among those of all parts.
    start: u64,
    nbytes: u64,
}

impl<'t> Group<'t> {
    fn new(tensors: &'t [Values], options: &'t StatisticsOptions) -> Result<Group<'t>> {
        let (mut dtypes, mut parts, mut end) = (Vec::new(), Vec::new(), 0_u64);
        for (number, tensor) in tensors.iter().enumerate() {
            let (dtype, shape) = tensor.result().map_err(|error| tensor.add_context(error))?;
            let nbytes = shape.iter().fold(dtype.itemsize(), |nbytes, &size| nbytes.saturating_mul(size));
            dtypes.push(dtype);
            let mut add = |slice: Option<ResultSlice>, nbytes: u64| {
                parts.push(Part { tensor: number, slice, start: end, nbytes });
                end = end.saturating_add(nbytes);
            };
            match options.sample.filter(|&numel| numel < nbytes / dtype.itemsize()) {
                None => add(None, nbytes),
                Some(numel) => {
                    for slice in sample_slices(&shape, SAMPLE_RUNS, numel) {
                        let nbytes = slice.numel * dtype.itemsize();
                        add(Some(slice), nbytes);
                    }
                }
            }
        }
        Ok(Group { tensors, dtypes, parts, options })
    }

    fn statistics(&self) -> Result<Vec<Option<Statistics>>> {
        let empty: Vec<Option<Tally>> = self.dtypes.iter().map(|&dtype| Tally::new(dtype)).collect();
        let tallies = self.read(&empty)?;
        let mut found: Vec<Option<Statistics>> =
            tallies.into_iter().map(|tally| tally.map(|tally| tally.finish(self.options.bins))).collect();
        if let Some(bins) = self.options.bins {
            self.add_histograms(bins, &mut found)?;
        }
        Ok(found)
    }

    /// Reads the tensors again whose histogram was not counted with the rest.
    fn add_histograms(&self, bins: usize, found: &mut [Option<Statistics>]) -> Result<()> {
        let empty = |(found, &dtype): (&Option<Statistics>, &DType)| {
            let found = found.as_ref().filter(|found| found.histogram.is_none())?;
            BinTally::new(dtype, found, bins)
        };
        let empty: Vec<Option<BinTally>> = found.iter().zip(&self.dtypes).map(empty).collect();
        let tallies = self.read(&empty)?;
        for (found, tally) in found.iter_mut().zip(tallies) {
            if let (Some(found), Some(tally)) = (found, tally) {
                found.histogram = Some(tally.finish());
            }
        }
        Ok(())
    }

    /// Reads the parts of the tensors that have an empty tally, and returns the filled ones.
    fn read<T: Count>(&self, empty: &[Option<T>]) -> Result<Vec<Option<T>>> {
        let wanted: Vec<&Part> = self.parts.iter().filter(|part| empty[part.tensor].is_some()).collect();
        let items = wanted.iter().map(|part| {
            let (tensor, slice) = (self.tensors[part.tensor].clone(), part.slice.clone());
            let describe = move || {
                let data = tensor.describe()?;
                Ok(match slice {
                    Some(slice) => data.sliced(slice),
                    None => data,
                })
            };
            WriteItem { offset: part.start, nbytes: part.nbytes, describe: Box::new(describe) }
        });
        let all = empty.iter().map(|tally| Mutex::new(tally.clone())).collect();
        let target = Counter { parts: &self.parts, empty, all };
        let total = wanted.iter().map(|part| part.nbytes).fold(0, u64::saturating_add);
        let memory = BUFFER_BYTES * to_u64(parallel::threads(total, self.options.threads));
        let read = write_all(items.collect(), &target, memory, self.options.threads, &self.options.cancel);
        read.map_err(|(item, error)| match wanted.get(item) {
            Some(part) => self.tensors[part.tensor].add_context(error),
            None => error,
        })?;
        Ok(target
            .all
            .into_iter()
            .map(|tally| tally.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect())
    }
}

/// A target that counts what it is given, and keeps nothing.
struct Counter<'p, T> {
    /// Sorted by their start, without gaps.
    parts: &'p [Part],
    /// For each tensor.
    empty: &'p [Option<T>],
    all: Vec<Mutex<Option<T>>>,
}

impl<T: Count> Counter<'_, T> {
    /// Counts bytes of one tensor, which `each` gives to its argument with their positions.
    fn count(
        &self,
        tensor: usize,
        each: impl FnOnce(&mut dyn FnMut(u64, &[u8])) -> Result<()>,
    ) -> Result<()> {
        let Some(mut counted) = self.empty[tensor].clone() else { return Ok(()) };
        each(&mut |position, bytes| counted.add(position, bytes))?;
        if let Some(all) = &mut *lock(&self.all[tensor]) {
            all.merge(counted);
        }
        Ok(())
    }

    /// The number of the part that has the byte at an offset.
    fn part_at(&self, offset: u64) -> usize {
        self.parts.partition_point(|part| part.start + part.nbytes <= offset)
    }
}

impl<T: Count> ByteTarget for Counter<'_, T> {
    fn copy_at(&self, offset: u64, source: &Source) -> Result<bool> {
        let mode = ReadMode::of(source, source.len(), true);
        let Some(part) = self.parts.get(self.part_at(offset)).filter(|_| !mode.is_direct()) else {
            return Ok(false);
        };
        // What is in the page cache is read in pieces that stay in a core's cache.
        let (reader, mut scratch) = (mode.reader(source), Scratch::new(allocate_aligned));
        let mut buffer = vec![0; to_usize(source.len().min(PIECE_BYTES))];
        self.count(part.tensor, |add| {
            let mut at = 0;
            while at < source.len() {
                let piece = &mut buffer[..to_usize((source.len() - at).min(PIECE_BYTES))];
                reader.read_at(at, piece, &mut scratch)?;
                add(offset + at, piece);
                at += to_u64(piece.len());
            }
            Ok(())
        })?;
        Ok(true)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut offset, mut rest) = (offset, bytes);
        for part in &self.parts[self.part_at(offset)..] {
            if rest.is_empty() {
                break;
            }
            let (own, others) = rest.split_at(rest.len().min(to_usize(part.start + part.nbytes - offset)));
            if !own.is_empty() {
                self.count(part.tensor, |add| {
                    add(offset, own);
                    Ok(())
                })?;
            }
            (offset, rest) = (offset + to_u64(own.len()), others);
        }
        Ok(())
    }
}
