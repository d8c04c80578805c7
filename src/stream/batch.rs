//! Fills many tensors at once: large ones are cut into pieces, small neighbours are coalesced into one read, and all threads take
//! from one list of such jobs. So threads start once for many tensors, and one read serves many.

use super::bands::{Band, Workspace, fill_band};
use super::plan::{BlockGrid, Piece, aligned_pieces, is_permuted, pieces};
use super::read::{
    Elements, HUGE_PAGE_BYTES, fill_piece, incomplete_write, piece_count, prefault, read_mode,
    reading_threads,
};
use crate::bytes::{Access, Descriptor, ReadMode, Reader, Source};
use crate::error::{Code, Error, Result};
use crate::kernel::{self, Grid};
use crate::layout::Layout;
use crate::parallel::{self, Cancel};

/// Transposes of more bytes are cut into bands, and permuted tensors of more bytes are prefaulted.
const PERMUTED_IN_CACHE_MAX_BYTES: u64 = 1 << 20;

/// A tensor and the destination to read it into.
#[derive(Debug)]
pub struct Task<'a> {
    /// The elements, in the requested order. The number of threads of their conversion is ignored: that of the batch counts.
    pub elements: Elements,
    /// The destination, of exactly the result's bytes.
    pub out: &'a mut [u8],
}

/// How a tensor is read and converted; without its destination.
struct TaskPlan {
    elements: Elements,
    mode: ReadMode,
}

/// What a thread keeps from job to job.
#[derive(Default)]
struct Worker<'p> {
    /// The reader of its last task.
    reader: Option<(usize, Reader<'p>)>,
    descriptor: Descriptor,
    space: Workspace,
}

impl<'p> Worker<'p> {
    /// The reader of a task, and the thread's memory.
    fn reader(&mut self, task: usize, plan: &'p TaskPlan) -> (&Reader<'p>, &mut Workspace) {
        let reader = match self.reader.take() {
            Some((last, reader)) if last == task => reader,
            _ => plan.mode.reader_with(&plan.elements.payload.source, &mut self.descriptor),
        };
        (&self.reader.insert((task, reader)).1, &mut self.space)
    }
}

/// A work item of one thread.
enum Job<'a> {
    /// A piece of a tensor, into a range of its destination.
    Piece { task: usize, piece: Piece, out: &'a mut [u8] },
    /// A band of a transposed matrix, into a rectangle of its destination.
    Band { task: usize, band: Band, out: Grid<'a> },
    /// Several whole tensors, with one read.
    CoalescedRead { span: Source, parts: Vec<CoalescedTensor<'a>> },
}

/// A tensor of a coalesced read.
struct CoalescedTensor<'a> {
    task: usize,
    source: Source,
    out: &'a mut [u8],
}

/// Fills all destinations, on up to `threads` threads. An error comes with the index of the task that failed.
pub fn fill_all(mut tasks: Vec<Task<'_>>, threads: Option<usize>) -> Result<(), (usize, Error)> {
    let weights: Vec<u64> = tasks.iter().map(Task::weight).collect();
    let modes: Vec<ReadMode> = tasks.iter().zip(&weights).map(|(task, &weight)| task.mode(weight)).collect();
    let bytes = weights.iter().fold(0, |sum: u64, &weight| sum.saturating_add(weight));
    let threads = reading_threads(modes.iter().copied(), bytes, threads);
    prefault_permuted(&mut tasks, threads)?;
    let mut plans = Vec::with_capacity(tasks.len());
    let mut files: Vec<(Source, Vec<Job<'_>>)> = Vec::new();
    for (number, ((task, weight), mode)) in tasks.into_iter().zip(weights).zip(modes).enumerate() {
        let Task { elements, out } = task;
        elements.check(out.len()).map_err(|error| (number, error))?;
        let read = &elements.payload.source;
        let file = match files.iter().position(|(source, _)| source.same_backing(read)) {
            Some(file) => file,
            None => {
                files.push((read.clone(), Vec::new()));
                files.len() - 1
            }
        };
        let cut = TaskCutter { number, weight, threads, access: mode.access() };
        cut.into_jobs(&mut files[file].1, &elements, out).map_err(|error| (number, error))?;
        plans.push(TaskPlan { elements, mode });
    }
    let sources: Vec<Source> = files.iter().map(|(source, _)| source.clone()).collect();
    let threads = threads.min(files.iter().map(|(_, jobs)| jobs.len()).sum::<usize>().max(1));
    let jobs = interleaved(files.into_iter().map(|(_, jobs)| jobs).collect());
    parallel::for_each(threads, jobs, Worker::default, |worker, job| match job {
        Job::Piece { task, piece, out } => {
            let plan = &plans[task];
            let (reader, space) = worker.reader(task, plan);
            fill_piece(&plan.elements, &piece, reader, &mut space.scratch, out).map_err(|error| (task, error))
        }
        Job::Band { task, band, out } => {
            let plan = &plans[task];
            let (reader, space) = worker.reader(task, plan);
            fill_band(&plan.elements, band, reader, space, out).map_err(|error| (task, error))
        }
        Job::CoalescedRead { span, parts } => fill_coalesced(&plans, &span, parts, worker),
    })?;
    for source in sources {
        let reads_it = |plan: &TaskPlan| plan.elements.payload.source.same_backing(&source);
        source.check_unchanged().map_err(|error| (plans.iter().position(reads_it).unwrap_or(0), error))?;
    }
    Ok(())
}

/// Prefaults the fresh memory of permuted tensors on all threads: the first rows that are read go to every page, so a cancellation would
/// wait for all page faults. Memory that is resident is better written with non-temporal stores.
fn prefault_permuted(tasks: &mut [Task<'_>], threads: usize) -> Result<(), (usize, Error)> {
    let mut pages = Vec::new();
    for (number, task) in tasks.iter_mut().enumerate() {
        let Elements { layout, how, .. } = &mut task.elements;
        let is_large =
            layout.numel().saturating_mul(how.cast.from().itemsize()) > PERMUTED_IN_CACHE_MAX_BYTES;
        if is_large && is_permuted(layout) && !how.cast.uses_non_temporal_stores() {
            how.cast = how.cast.with_non_temporal_stores();
            let cancel = &how.cancel;
            pages.extend(task.out.chunks_mut(HUGE_PAGE_BYTES).map(|page| (number, cancel, page)));
        }
    }
    if pages.is_empty() {
        return Ok(());
    }
    let prefault = |(): &mut (), (number, cancel, page): (usize, &Cancel, &mut [u8])| {
        prefault(cancel, page).map_err(|error| (number, error))
    };
    parallel::for_each(threads, pages.into_iter(), || (), prefault)
}

impl Task<'_> {
    /// The bytes read or written, whichever is more.
    fn weight(&self) -> u64 {
        let Elements { layout, how, .. } = &self.elements;
        layout.numel().saturating_mul(how.cast.from().itemsize().max(how.cast.to().itemsize()))
    }

    fn mode(&self, weight: u64) -> ReadMode {
        read_mode(&self.elements.payload, &self.elements.layout, weight)
    }
}

/// Cuts a task into jobs.
struct TaskCutter {
    number: usize,
    weight: u64,
    threads: usize,
    /// How the source is read best.
    access: Access,
}

impl TaskCutter {
    fn into_jobs<'a>(self, jobs: &mut Vec<Job<'a>>, elements: &Elements, out: &'a mut [u8]) -> Result<()> {
        let Elements { payload, layout, how } = elements;
        let (src, dst) = (how.cast.from().itemsize(), how.cast.to().itemsize());
        let nbytes = layout.numel().saturating_mul(src);
        if nbytes == 0 {
            return Ok(());
        }
        if nbytes <= self.access.small && layout.is_contiguous() {
            let source = payload.source.window(layout.offset.saturating_mul(src), nbytes)?;
            if let Some(extent) = source.extent(self.access.gap) {
                let part = CoalescedTensor { task: self.number, source, out };
                coalesce(jobs, part, extent, self.access);
                return Ok(());
            }
        }
        if let Some(band) = Band::of(layout, src).filter(|_| nbytes > PERMUTED_IN_CACHE_MAX_BYTES) {
            let bands = band.cut(src, dst, self.threads, self.access, out).ok_or_else(incomplete_write)?;
            jobs.extend(bands.into_iter().map(|(band, out)| Job::Band { task: self.number, band, out }));
            return Ok(());
        }
        let alone = self.threads == 1 || parallel::threads(self.weight, Some(self.threads)) == 1;
        let count = match alone {
            _ if self.access.waits_for_requests() => {
                bytes_with_gaps(layout, src, self.access).div_ceil(self.access.block)
            }
            true => 1,
            false => piece_count(layout, self.weight, self.threads as u64, self.access.block),
        };
        let mut rest = out;
        let Access { alignment, block, .. } = self.access;
        let pieces = if alignment > 1 && layout.is_contiguous() {
            let offset = payload.source.block_offset(layout.offset.saturating_mul(src), alignment);
            aligned_pieces(layout, src, (offset, alignment), block)
        } else if count > 1 && layout.is_contiguous() && rest.len() >= self.threads * HUGE_PAGE_BYTES {
            // Threads that fault in pages of one page table wait for each other; it has the pages of one huge page.
            let offset = rest.as_ptr().addr() % HUGE_PAGE_BYTES;
            let step = rest.len() as u64 / count;
            aligned_pieces(layout, dst, (offset as u64, HUGE_PAGE_BYTES as u64), step)
        } else {
            pieces(layout, count).collect()
        };
        for piece in pieces {
            let len = usize::try_from(piece.numel.saturating_mul(dst)).unwrap_or(usize::MAX);
            let (out, tail) = rest.split_at_mut_checked(len).ok_or_else(|| {
                Error::new(Code::InternalError, "the pieces are larger than the destination")
            })?;
            jobs.push(Job::Piece { task: self.number, piece, out });
            rest = tail;
        }
        if rest.is_empty() { Ok(()) } else { Err(incomplete_write()) }
    }
}

/// About how many bytes are read for a layout, gaps included.
fn bytes_with_gaps(layout: &Layout, itemsize: u64, access: Access) -> u64 {
    let nbytes = layout.numel().saturating_mul(itemsize);
    let block = BlockGrid::new(&Piece::whole(layout), itemsize, access.block, access.gap).iter().next();
    // In the scratch of a block is what was read for it.
    block.map_or(nbytes, |block| nbytes.saturating_mul((block.scratch / block.numel().max(1)).max(1)))
}

/// Adds a tensor, for which `extent` has to be read, to the last read, or begins another one.
fn coalesce<'a>(jobs: &mut Vec<Job<'a>>, part: CoalescedTensor<'a>, extent: Source, access: Access) {
    if let Some(Job::CoalescedRead { span, parts }) = jobs.last_mut()
        && let Some(wider) = coalesced_span(span, &extent, access)
    {
        *span = wider;
        parts.push(part);
        return;
    }
    jobs.push(Job::CoalescedRead { span: extent, parts: vec![part] });
}

/// One window for a coalesced read and the next tensor. `None` if the gap between them is large, they do not fit the scratch, or
/// they overlap: bytes are swapped in the scratch, which must happen once.
fn coalesced_span(span: &Source, next: &Source, access: Access) -> Option<Source> {
    let wider = span.span(next, access.gap)?;
    (next.start_in(&wider)? >= span.len() && wider.len() <= access.block).then_some(wider)
}

/// The jobs of all files in turn, so that several files are read at the same time.
fn interleaved(files: Vec<Vec<Job<'_>>>) -> impl Iterator<Item = Job<'_>> + Send {
    let mut files: std::collections::VecDeque<_> = files.into_iter().map(Vec::into_iter).collect();
    std::iter::from_fn(move || {
        while let Some(mut file) = files.pop_front() {
            if let Some(job) = file.next() {
                files.push_back(file);
                return Some(job);
            }
        }
        None
    })
}

fn fill_coalesced(
    plans: &[TaskPlan],
    span: &Source,
    parts: Vec<CoalescedTensor<'_>>,
    worker: &mut Worker<'_>,
) -> Result<(), (usize, Error)> {
    let first = parts.first().map_or(0, |part| part.task);
    let usize_of = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let outside = || Error::new(Code::InternalError, "a tensor lies outside the read that it is part of");
    let Worker { descriptor, space, .. } = worker;
    let bytes = space.scratch.bytes(usize_of(span.len())).map_err(|error| (first, error))?;
    let mut read = || match span.access().waits_for_requests() {
        true => ReadMode::of(span, span.len(), true).reader_with(span, descriptor).read_plain(0, bytes),
        // What is read with others is too short for `O_DIRECT`.
        false => span.read_at(0, bytes),
    };
    plans[first].elements.how.cancel.check().and_then(|()| read()).map_err(|error| (first, error))?;
    // Before any byte is changed.
    let mut proved = Vec::with_capacity(parts.len());
    for CoalescedTensor { task, source, out } in parts {
        proved.push((task, source.proved_within(span, bytes).map_err(|error| (task, error))?, out));
    }
    for (task, source, out) in proved {
        let start = source.start_in(span).map(usize_of).ok_or_else(outside);
        let elements = start.and_then(|start| {
            bytes.get_mut(start..start.saturating_add(usize_of(source.len()))).ok_or_else(outside)
        });
        let Elements { payload, how, .. } = &plans[task].elements;
        let convert = |bytes: &mut [u8]| {
            how.prepare_for_cast(payload, bytes)?;
            kernel::convert(how.cast, bytes, out)
        };
        elements.and_then(convert).map_err(|error| (task, error))?;
    }
    Ok(())
}
