//! Writes results to a file: each worker makes a slice of a result in a buffer of its own and writes it at its offset.
//!
//! So reading, casting and writing overlap between the workers, and memory is bounded by the workers' buffers. Small results that
//! follow each other share a buffer. Bytes that need no conversion may be copied by the target itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::batch::{Task, fill_all};
use super::cut::{ResultCutter, ResultSlice};
use super::read::Elements;
use super::result::ResultData;
use crate::bytes::Source;
use crate::error::{Error, Result};
use crate::num::to_usize;
use crate::parallel::{self, Cancel};
use crate::sink::{HostBuffer, Unfilled};

/// The bytes of one buffer: enough that system calls do not matter, and little enough that all workers have work.
const BUFFER_MAX_BYTES: u64 = 8 << 20;
const BUFFER_MIN_BYTES: u64 = 1 << 20;

/// The bytes of a buffer for a result that is read in short runs: the more of it is made at once, the longer the runs.
const STRIDED_BUFFER_MAX_BYTES: u64 = 64 << 20;

/// Results of at most this many bytes share a buffer with their neighbours.
const PACKED_MAX_BYTES: u64 = 256 << 10;

/// The most results in one buffer.
const PACKED_MAX_RESULTS: usize = 512;

/// Where results are written to: a file.
pub trait ByteTarget: Sync {
    /// Writes bytes at an offset. Several threads may write at once, to ranges that do not overlap.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Copies all bytes of `source` to an offset, without a buffer. False if it cannot; then some bytes may have been written.
    fn copy_at(&self, _offset: u64, _source: &Source) -> Result<bool> {
        Ok(false)
    }

    /// Is told that so many bytes of an item, by its number, are in the target. An item is complete once all its bytes are; an empty
    /// one is not mentioned.
    fn written(&self, _item: usize, _nbytes: u64) -> Result<()> {
        Ok(())
    }
}

/// One result and where it goes.
pub struct WriteItem {
    /// The offset of its first byte in the target.
    pub offset: u64,
    /// The bytes of the result.
    pub nbytes: u64,
    /// Returns the result's data; a worker calls it when the result's turn comes.
    pub describe: Box<dyn FnOnce() -> Result<ResultData> + Send>,
}

/// Writes all results, in this order or close to it, with at most `memory` bytes of buffers (at least 1 MiB per thread). An error
/// comes with the index of the item that failed.
pub fn write_all(
    items: Vec<WriteItem>,
    target: &dyn ByteTarget,
    memory: u64,
    threads: Option<usize>,
    cancel: &Cancel,
) -> Result<(), (usize, Error)> {
    let total = items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.nbytes));
    let workers = parallel::threads(total, threads);
    let share = memory / workers as u64;
    let jobs = Jobs {
        items: items.into_iter().enumerate(),
        buffer: share.clamp(BUFFER_MIN_BYTES, BUFFER_MAX_BYTES),
        strided_buffer: share.clamp(BUFFER_MIN_BYTES, STRIDED_BUFFER_MAX_BYTES),
        pack: Vec::new(),
        packed: 0,
        large: None,
    };
    let writer = Writer { target, cancel, can_copy: AtomicBool::new(true) };
    parallel::for_each(workers, jobs, || (), |(), job| writer.run(job?))
}

/// What one worker does at once.
enum Job {
    /// Whole results, in one buffer.
    Pack(Vec<Packed>),
    /// A slice of a result.
    Slice { large: Arc<Large>, slice: ResultSlice },
}

/// A small result.
struct Packed {
    item: usize,
    offset: u64,
    nbytes: u64,
    elements: Box<Elements>,
}

/// A result that is written in slices.
struct Large {
    item: usize,
    offset: u64,
    itemsize: u64,
    data: ResultData,
}

/// The jobs in order. A result's source is opened when its turn comes.
struct Jobs<I> {
    items: I,
    buffer: u64,
    strided_buffer: u64,
    pack: Vec<Packed>,
    /// The bytes of `pack`.
    packed: u64,
    /// The result that is being cut, and the number of its next slice.
    large: Option<(Arc<Large>, ResultCutter, u64)>,
}

impl<I: Iterator<Item = (usize, WriteItem)>> Iterator for Jobs<I> {
    type Item = Result<Job, (usize, Error)>;

    fn next(&mut self) -> Option<Result<Job, (usize, Error)>> {
        loop {
            if let Some((large, cutter, next)) = &mut self.large {
                if *next < cutter.len() {
                    let slice = cutter.slice(*next);
                    *next += 1;
                    return Some(Ok(Job::Slice { large: large.clone(), slice }));
                }
                self.large = None;
            }
            let Some((number, item)) = self.items.next() else {
                return (!self.pack.is_empty()).then(|| Ok(self.take_pack()));
            };
            match self.add(number, item) {
                Ok(None) => {}
                Ok(Some(job)) => return Some(Ok(job)),
                Err(error) => return Some(Err((number, error))),
            }
        }
    }
}

impl<I> Jobs<I> {
    /// Adds a result. Returns the pack if it is complete.
    fn add(&mut self, number: usize, item: WriteItem) -> Result<Option<Job>> {
        let WriteItem { offset, nbytes, describe } = item;
        let data = describe()?;
        data.check(nbytes)?;
        if nbytes == 0 {
            return Ok(None);
        }
        match data {
            ResultData::Elements(elements) if nbytes <= PACKED_MAX_BYTES => {
                let is_full =
                    self.packed.saturating_add(nbytes) > self.buffer || self.pack.len() >= PACKED_MAX_RESULTS;
                let complete = (is_full && !self.pack.is_empty()).then(|| self.take_pack());
                self.packed = self.packed.saturating_add(nbytes);
                self.pack.push(Packed { item: number, offset, nbytes, elements });
                Ok(complete)
            }
            data => {
                let is_contiguous =
                    matches!(&data, ResultData::Elements(elements) if elements.layout.is_contiguous());
                let buffer = if is_contiguous { self.buffer } else { self.strided_buffer };
                let (shape, itemsize) = data.shape();
                let cutter = ResultCutter::new(shape, buffer / itemsize.max(1));
                self.large = Some((Arc::new(Large { item: number, offset, itemsize, data }), cutter, 0));
                Ok((!self.pack.is_empty()).then(|| self.take_pack()))
            }
        }
    }

    fn take_pack(&mut self) -> Job {
        self.packed = 0;
        Job::Pack(std::mem::take(&mut self.pack))
    }
}

/// Runs jobs.
struct Writer<'w> {
    target: &'w dyn ByteTarget,
    cancel: &'w Cancel,
    /// False once the target could not copy by itself.
    can_copy: AtomicBool,
}

impl Writer<'_> {
    fn run(&self, job: Job) -> Result<(), (usize, Error)> {
        match job {
            Job::Pack(parts) => self.pack(parts),
            Job::Slice { large, slice } => self.slice(&large, &slice).map_err(|error| (large.item, error)),
        }
    }

    fn pack(&self, parts: Vec<Packed>) -> Result<(), (usize, Error)> {
        let first = parts.first().map_or(0, |part| part.item);
        let mut memory =
            self.buffer(parts.iter().map(|part| part.nbytes).sum()).map_err(|error| (first, error))?;
        // In the buffer they are in the target's order, so that neighbours there need one write.
        let mut by_offset: Vec<usize> = (0..parts.len()).collect();
        by_offset.sort_unstable_by_key(|&at| parts[at].offset);
        let ranges: Vec<(u64, u64)> =
            by_offset.iter().map(|&at| (parts[at].offset, parts[at].nbytes)).collect();
        let mut outs: Vec<&mut [u8]> = parts.iter().map(|_| &mut [][..]).collect();
        let mut rest = memory.bytes_mut();
        for &at in &by_offset {
            let (out, tail) = rest.split_at_mut(to_usize(parts[at].nbytes));
            (outs[at], rest) = (out, tail);
        }
        // They are filled in the order of their sources, so that neighbours there need one read.
        let items: Vec<(usize, u64)> = parts.iter().map(|part| (part.item, part.nbytes)).collect();
        let tasks = parts.into_iter().zip(outs).map(|(part, out)| Task { elements: *part.elements, out });
        let tasks: Vec<Task<'_>> = tasks.collect();
        // The other workers fill packs of their own. Waiting for answers takes no core.
        let waits = tasks.iter().any(|task| task.elements.payload.source.access().waits_for_requests());
        fill_all(tasks, if waits { None } else { Some(1) })
            .map_err(|(task, error)| (items.get(task).map_or(first, |item| item.0), error))?;
        let mut start = 0;
        for run in ranges.chunk_by(|one, two| one.0 + one.1 == two.0) {
            let len: u64 = run.iter().map(|range| range.1).sum();
            let bytes = &memory.bytes_mut()[start..start + to_usize(len)];
            self.target.write_at(run[0].0, bytes).map_err(|error| (first, error))?;
            start += to_usize(len);
        }
        items
            .into_iter()
            .try_for_each(|(item, nbytes)| self.target.written(item, nbytes).map_err(|error| (item, error)))
    }

    fn slice(&self, large: &Large, slice: &ResultSlice) -> Result<()> {
        self.cancel.check()?;
        let nbytes = slice.numel * large.itemsize;
        let offset = large.offset + slice.start * large.itemsize;
        if let ResultData::Elements(elements) = &large.data {
            let Elements { payload, layout, how } = &**elements;
            if how.is_copy(payload) && layout.is_contiguous() && self.can_copy.load(Ordering::Relaxed) {
                let start = (layout.offset + slice.start) * large.itemsize;
                if self.target.copy_at(offset, &payload.source.window(start, nbytes)?)? {
                    payload.source.check_unchanged()?;
                    return self.target.written(large.item, nbytes);
                }
                self.can_copy.store(false, Ordering::Relaxed);
            }
        }
        let mut memory = self.buffer(nbytes)?;
        large.data.fill_slice(slice, 1, memory.bytes_mut())?;
        self.target.write_at(offset, memory.bytes_mut())?;
        self.target.written(large.item, nbytes)
    }

    fn buffer(&self, nbytes: u64) -> Result<Unfilled> {
        self.cancel.check()?;
        HostBuffer::unfilled(nbytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::dtype::DType;
    use crate::error::Code;
    use crate::kernel::{Cast, Overflow};
    use crate::layout::Layout;
    use crate::stream::{Fill, Payload, Signs};

    /// Bytes in memory, with the number of writes, and the bytes of each item that were announced.
    struct Memory(Mutex<(Vec<u8>, usize)>, Mutex<Vec<u64>>);

    impl ByteTarget for Memory {
        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
            let mut memory = self.0.lock().unwrap();
            memory.1 += 1;
            memory.0[to_usize(offset)..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn written(&self, item: usize, nbytes: u64) -> Result<()> {
            self.1.lock().unwrap()[item] += nbytes;
            Ok(())
        }
    }

    fn elements(bytes: &Arc<Vec<u8>>, start: u64, shape: &[u64], to: DType) -> ResultData {
        let numel: u64 = shape.iter().product();
        let source = Source::memory(bytes.clone()).window(start, numel * 4).unwrap();
        ResultData::Elements(Box::new(Elements {
            payload: Payload { source, big_endian: false },
            layout: Layout::contiguous(shape).unwrap(),
            how: Fill {
                signs: Signs::default(),
                cast: Cast::new(DType::F32, to, Overflow::default()).unwrap(),
                threads: None,
                cancel: Cancel::new(),
            },
        }))
    }

    #[test]
    fn small_neighbours_share_a_write_and_large_results_are_cut() {
        let values: Vec<f32> = (0..6_000_000_u32).map(|n| (n % 1000) as f32).collect();
        let bytes = Arc::new(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        // 100 small results, which the target has in reverse order, then two large ones: as they are, and cast.
        let small = (0..100_u64).map(|number| {
            let bytes = bytes.clone();
            WriteItem {
                offset: (99 - number) * 40,
                nbytes: 40,
                describe: Box::new(move || Ok(elements(&bytes, number * 40, &[10], DType::F32))),
            }
        });
        let large = [(DType::F32, 4000_u64, 20_000_000_u64), (DType::F16, 20_004_000, 10_000_000)];
        let large = large.map(|(dtype, offset, nbytes)| {
            let bytes = bytes.clone();
            let describe = move || Ok(elements(&bytes, 4000, &[5000, 1000], dtype));
            WriteItem { offset, nbytes, describe: Box::new(describe) }
        });
        let target = Memory(Mutex::new((vec![0xAA; 30_004_000], 0)), Mutex::new(vec![0; 102]));
        let items = small.chain(large).collect();
        write_all(items, &target, 16 << 20, Some(2), &Cancel::new()).map_err(|(_, error)| error).unwrap();
        let (written, writes) = target.0.into_inner().unwrap();
        assert_eq!(writes, 1 + 3 + 2);
        let announced = target.1.into_inner().unwrap();
        assert_eq!(announced[..100], [40; 100]);
        assert_eq!(announced[100..], [20_000_000, 10_000_000]);
        for number in 0..100_usize {
            assert_eq!(written[(99 - number) * 40..][..40], bytes[number * 40..][..40]);
        }
        assert!(written[4000..20_004_000] == bytes[4000..20_004_000]);
        let half =
            |n: usize| half::f16::from_le_bytes([written[20_004_000 + 2 * n], written[20_004_001 + 2 * n]]);
        assert!((0..5_000_000).all(|n| half(n).to_f32() == values[1000 + n]));
    }

    #[test]
    fn an_error_names_its_item() {
        let bytes = Arc::new(vec![0; 4000]);
        let items = (0..3_u64).map(|number| {
            let bytes = bytes.clone();
            let describe = move || match number {
                1 => Err(Error::new(Code::Value, "wrong")),
                _ => Ok(elements(&bytes, 0, &[1], DType::F32)),
            };
            WriteItem { offset: number * 4, nbytes: 4, describe: Box::new(describe) }
        });
        let target = Memory(Mutex::new((vec![0; 12], 0)), Mutex::new(vec![0; 3]));
        let failed = write_all(items.collect(), &target, 0, None, &Cancel::new()).unwrap_err();
        assert_eq!((failed.0, failed.1.code()), (1, Code::Value));
    }
}
