//! Many tensors in one go: large ones are cut into pieces, small neighbours are read with one read, and all threads take
//! from one list of such jobs. So the threads start once for many tensors, and the system is asked once for many.

use super::bands::{Band, Workspace, fill_band};
use super::plan::{GAP, Piece, pieces, pieces_on_blocks};
use super::read::{
    Fill, HUGE, Manner, Payload, SCRATCH, check_bounds, disk_threads, fill_piece, gap, piece_count, touch,
    wants_touch,
};
use crate::bytes::{Reader, Scratch, Source};
use crate::error::{Code, Error, Result};
use crate::kernel::{self, Grid};
use crate::layout::Layout;
use crate::parallel::{self, Cancel};

/// A contiguous tensor of at most this many bytes is read along with its neighbours.
const SMALL: u64 = 128 << 10;

/// A tensor to be read into a destination.
#[derive(Debug)]
pub struct Task<'a> {
    /// The storage's bytes.
    pub payload: Payload,
    /// The elements, proved to lie inside the payload, in the order wanted.
    pub layout: Layout,
    /// The conversion on the way. Its threads do not count: those of the batch do.
    pub how: Fill,
    /// Exactly the result's bytes.
    pub out: &'a mut [u8],
}

/// What to do for a tensor, apart from where to.
struct Plan {
    payload: Payload,
    how: Fill,
    manner: Manner,
}

/// What a thread keeps from job to job.
#[derive(Default)]
struct Worker<'p> {
    /// The reader of the task that it worked on last.
    reader: Option<(usize, Reader<'p>)>,
    space: Workspace,
}

impl<'p> Worker<'p> {
    /// The reader of a task, and memory to work in.
    fn reader(&mut self, task: usize, plan: &'p Plan) -> (&Reader<'p>, &mut Workspace) {
        let reader = match self.reader.take() {
            Some((last, reader)) if last == task => reader,
            _ => plan.manner.reader(&plan.payload.source),
        };
        (&self.reader.insert((task, reader)).1, &mut self.space)
    }
}

/// What one thread does at a time.
enum Job<'a> {
    /// A part of a tensor, into a part of its destination.
    Piece { task: usize, piece: Piece, out: &'a mut [u8] },
    /// A band of a matrix, into a part of its destination.
    Band { task: usize, band: Band, out: Grid<'a> },
    /// Several whole tensors, by one read.
    Run { span: Source, parts: Vec<Part<'a>> },
}

/// A tensor's bytes in a run.
struct Part<'a> {
    task: usize,
    source: Source,
    out: &'a mut [u8],
}

/// Fills all destinations, on up to `threads` threads. An error comes with the number of the task that it is about.
pub fn fill_all(mut tasks: Vec<Task<'_>>, threads: Option<usize>) -> Result<(), (usize, Error)> {
    let weights: Vec<u64> = tasks.iter().map(Task::weight).collect();
    let manners: Vec<Manner> =
        tasks.iter().zip(&weights).map(|(task, &weight)| task.manner(weight)).collect();
    // A disk wants several reads at once, however few cores there are.
    let around = manners.iter().any(|manner| manner.is_around());
    let wanted = if around { Some(disk_threads(threads)) } else { threads };
    let threads =
        parallel::threads(weights.iter().fold(0, |sum, &weight| sum.saturating_add(weight)), wanted);
    touch_bands(&mut tasks, threads)?;
    let mut plans = Vec::with_capacity(tasks.len());
    let mut lanes: Vec<(Source, Vec<Job<'_>>)> = Vec::new();
    for (number, ((task, weight), manner)) in tasks.into_iter().zip(weights).zip(manners).enumerate() {
        task.check().map_err(|error| (number, error))?;
        let Task { payload, layout, how, out } = task;
        let lane = match lanes.iter().position(|(source, _)| source.same_backing(&payload.source)) {
            Some(lane) => lane,
            None => {
                lanes.push((payload.source.clone(), Vec::new()));
                lanes.len() - 1
            }
        };
        let cut = Cut { number, weight, threads, is_around: manner.is_around() };
        cut.into_jobs(&mut lanes[lane].1, &payload, &layout, &how, out).map_err(|error| (number, error))?;
        plans.push(Plan { payload, how, manner });
    }
    let sources: Vec<Source> = lanes.iter().map(|(source, _)| source.clone()).collect();
    let jobs = alternating(lanes.into_iter().map(|(_, jobs)| jobs).collect());
    parallel::for_each(threads, jobs, Worker::default, |worker, job| match job {
        Job::Piece { task, piece, out } => {
            let plan = &plans[task];
            let (reader, space) = worker.reader(task, plan);
            if wants_touch(&piece, &plan.how) {
                touch(&plan.how.cancel, out).map_err(|error| (task, error))?;
            }
            fill_piece(&plan.payload, &piece, &plan.how, reader, &mut space.scratch, out)
                .map_err(|error| (task, error))
        }
        Job::Band { task, band, out } => {
            let plan = &plans[task];
            let (reader, space) = worker.reader(task, plan);
            fill_band(&plan.payload, band, &plan.how, reader, space, out).map_err(|error| (task, error))
        }
        Job::Run { span, parts } => fill_run(&plans, &span, parts, &mut worker.space.scratch),
    })?;
    for source in sources {
        let about = |plan: &Plan| plan.payload.source.same_backing(&source);
        source.check_unchanged().map_err(|error| (plans.iter().position(about).unwrap_or(0), error))?;
    }
    Ok(())
}

/// Has the system make the fresh memory of transposes now, by all threads: the first lines of a band of rows go to every page. Once
/// it is there, it is better written with non-temporal stores.
fn touch_bands(tasks: &mut [Task<'_>], threads: usize) -> Result<(), (usize, Error)> {
    let mut pages = Vec::new();
    for (number, task) in tasks.iter_mut().enumerate() {
        let nbytes = task.layout.numel().saturating_mul(task.how.cast.from().itemsize());
        if matrix(&task.layout, nbytes).is_some() && !task.how.cast.uses_non_temporal_stores() {
            task.how.cast = task.how.cast.with_non_temporal_stores();
            let cancel = &task.how.cancel;
            pages.extend(task.out.chunks_mut(HUGE).map(|page| (number, cancel, page)));
        }
    }
    if pages.is_empty() {
        return Ok(());
    }
    let touch = |(): &mut (), (number, cancel, page): (usize, &Cancel, &mut [u8])| {
        touch(cancel, page).map_err(|error| (number, error))
    };
    parallel::for_each(threads, pages.into_iter(), || (), touch)
}

/// The matrix that a layout of so many bytes transposes, if that is what it does and there is some work to it.
fn matrix(layout: &Layout, nbytes: u64) -> Option<Band> {
    Band::of(layout).filter(|_| nbytes > SCRATCH)
}

impl Task<'_> {
    /// Bytes read or written, whichever is more.
    fn weight(&self) -> u64 {
        let (from, to) = (self.how.cast.from().itemsize(), self.how.cast.to().itemsize());
        self.layout.numel().saturating_mul(from.max(to))
    }

    fn manner(&self, weight: u64) -> Manner {
        Manner::of(&self.payload, &self.layout, weight)
    }

    fn check(&self) -> Result<()> {
        check_bounds(&self.payload, &self.layout, self.how.cast, self.out.len())?;
        // A dtype without a sign is refused before anything is read, also where there is nothing to read.
        self.how.signs.apply(self.how.cast.from(), &mut [])
    }
}

/// How a tensor becomes jobs.
struct Cut {
    number: usize,
    weight: u64,
    threads: usize,
    /// Whether the file is read around the page cache.
    is_around: bool,
}

impl Cut {
    fn into_jobs<'a>(
        self,
        jobs: &mut Vec<Job<'a>>,
        payload: &Payload,
        layout: &Layout,
        how: &Fill,
        out: &'a mut [u8],
    ) -> Result<()> {
        let (src, dst) = (how.cast.from().itemsize(), how.cast.to().itemsize());
        let nbytes = layout.numel().saturating_mul(src);
        if nbytes == 0 {
            return Ok(());
        }
        if nbytes <= SMALL && layout.is_contiguous() {
            let source = payload.source.window(layout.offset.saturating_mul(src), nbytes)?;
            let part = Part { task: self.number, source, out };
            match jobs.last_mut() {
                Some(Job::Run { span, parts }) => match joined(span, &part.source) {
                    Some(wider) => {
                        *span = wider;
                        parts.push(part);
                    }
                    None => jobs.push(Job::Run { span: part.source.clone(), parts: vec![part] }),
                },
                _ => jobs.push(Job::Run { span: part.source.clone(), parts: vec![part] }),
            }
            return Ok(());
        }
        if let Some(band) = matrix(layout, nbytes) {
            let bands = band.cut(src, dst, self.threads, out).ok_or_else(gap)?;
            jobs.extend(bands.into_iter().map(|(band, out)| Job::Band { task: self.number, band, out }));
            return Ok(());
        }
        let alone = self.threads == 1 || parallel::threads(self.weight, Some(self.threads)) == 1;
        let count = if alone { 1 } else { piece_count(layout, self.weight, self.threads as u64) };
        let mut rest = out;
        let pieces = if self.is_around {
            pieces_on_blocks(
                layout,
                src,
                payload.source.block_offset(layout.offset.saturating_mul(src)),
                count,
            )
        } else {
            pieces(layout, count)
        };
        for piece in pieces {
            let len = usize::try_from(piece.numel.saturating_mul(dst)).unwrap_or(usize::MAX);
            let (out, tail) = rest.split_at_mut_checked(len).ok_or_else(|| {
                Error::new(Code::InternalError, "the pieces are larger than the destination")
            })?;
            jobs.push(Job::Piece { task: self.number, piece, out });
            rest = tail;
        }
        if rest.is_empty() { Ok(()) } else { Err(gap()) }
    }
}

/// One window for a run and the next part, if that follows soon after and both fit a scratch. Never if they overlap: bytes are
/// swapped in the scratch, which must happen once.
fn joined(span: &Source, next: &Source) -> Option<Source> {
    let wider = span.span(next, GAP)?;
    (next.start_in(&wider)? >= span.len() && wider.len() <= SCRATCH).then_some(wider)
}

/// The jobs of all files in turn, so that several files are read at once.
fn alternating(lanes: Vec<Vec<Job<'_>>>) -> impl Iterator<Item = Job<'_>> + Send {
    let mut lanes: std::collections::VecDeque<_> = lanes.into_iter().map(Vec::into_iter).collect();
    std::iter::from_fn(move || {
        while let Some(mut lane) = lanes.pop_front() {
            if let Some(job) = lane.next() {
                lanes.push_back(lane);
                return Some(job);
            }
        }
        None
    })
}

fn fill_run(
    plans: &[Plan],
    span: &Source,
    parts: Vec<Part<'_>>,
    scratch: &mut Scratch,
) -> Result<(), (usize, Error)> {
    let first = parts.first().map_or(0, |part| part.task);
    let usize_of = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let outside = || Error::new(Code::InternalError, "a tensor lies outside the read that it is part of");
    let bytes = scratch.bytes(usize_of(span.len())).map_err(|error| (first, error))?;
    plans[first].how.cancel.check().and_then(|()| span.read_at(0, bytes)).map_err(|error| (first, error))?;
    for Part { task, source, out } in parts {
        let place = source.start_in(span).map(usize_of).ok_or_else(outside);
        let found = place.and_then(|start| {
            bytes.get_mut(start..start.saturating_add(usize_of(source.len()))).ok_or_else(outside)
        });
        let Plan { payload, how, .. } = &plans[task];
        found.and_then(|found| convert(payload, how, found, out)).map_err(|error| (task, error))?;
    }
    Ok(())
}

fn convert(payload: &Payload, how: &Fill, bytes: &mut [u8], out: &mut [u8]) -> Result<()> {
    how.prepare(payload, bytes)?;
    kernel::convert(how.cast, bytes, out)
}
