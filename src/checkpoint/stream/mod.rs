//! Materializes many tensors ahead of the consumer, with back pressure.
//!
//! A stream has one producer thread. It gathers small tensors into batches, blocks until a batch fits the window, and fills the
//! batch with scoped threads while the consumer has the batch before. The thread starts with the first call of [`Stream::next_within`].
//! Dropping a stream stops the thread and joins it. Small streams have no producer thread: they run on the consumer's thread. So do others where the system refuses a thread, a batch at a
//! time.
//!
//! A forked child has no producer thread, and a lock may have been held at the fork, so a stream of another process is left alone.

mod need;
mod options;
mod order;
mod producer;

#[cfg(feature = "cuda")]
pub(crate) use need::check_gpu_memory;
#[cfg(feature = "python")]
pub(crate) use need::{check_memory, needed_bytes};
pub use options::StreamOptions;
pub(crate) use order::StreamStep;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::producer::{Plan, Producer};
use crate::error::{Code, Error, Result};
use crate::memory;
use crate::parallel::{self, Cancel, lock};
use crate::sink::Array;
use crate::stream::{Queue, Taken};
use crate::sys::process_id;
use crate::tensor::{Request, SharedStorage, Tensor};

/// Streams of less work than this run on the consumer's thread, as starting one would take longer. Each tensor counts as its
/// bytes and [`PER_TENSOR_COST_BYTES`].
const INLINE_WORK_MAX_BYTES: u64 = 256 << 10;
const PER_TENSOR_COST_BYTES: u64 = 4 << 10;

/// The most memory that the results of an inline stream occupy, including the unused ends of their pages and slabs.
const INLINE_MEMORY_MAX_BYTES: u64 = 16 << 20;

/// The longest single wait of the iterator.
const WAIT_INTERVAL: Duration = Duration::from_secs(60);

/// One item of a stream.
#[derive(Debug)]
#[non_exhaustive]
pub struct StreamItem {
    /// The index of its request.
    pub index: usize,
    /// The index of the first request with the same result (a tied name); equal to `index` where it is the first itself.
    pub first: usize,
    /// Whether a later item has the same result.
    pub has_later_alias: bool,
    /// The result.
    pub output: Output,
}

/// The result of one request of a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum Output {
    /// An array: owned, or a view.
    Array(Array),
    /// The tensor shares a storage, which the consumer gets by [`Tensor::storage_bytes`].
    SharedStorage(SharedStorage),
    /// The same as the result of the request `first`.
    Alias,
}

/// An error of a stream or an upload, and the tensor that it is about.
#[derive(Debug)]
#[non_exhaustive]
pub struct TensorError {
    /// The index of the request; 0 where the error is about no single tensor.
    pub index: usize,
    /// The tensor's name; empty where the error is about no single tensor.
    pub name: String,
    /// The error itself.
    pub error: Error,
}

/// An iterator over materialized tensors, which are made ahead of the consumer. It ends after an error.
///
/// ```
/// # use rustload::{Checkpoint, Options};
/// use rustload::{DType, Output, Request, StreamOptions};
/// # let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// # let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
/// # let checkpoint = Checkpoint::from_bytes(std::sync::Arc::new(file), Options::new())?;
///
/// let names: Vec<_> = checkpoint.names().collect();
/// for item in checkpoint.stream(&Request::new().dtype(DType::F16), StreamOptions::new()) {
///     let item = item?;
///     if let Output::Array(array) = item.output {
///         println!("{} {} {:?}", names[item.index], array.dtype(), array.shape());
///     }
/// }
/// # Ok::<(), rustload::TensorError>(())
/// ```
#[derive(Debug)]
pub struct Stream {
    queue: Arc<Queue<Result<StreamItem, TensorError>>>,
    cancel: Cancel,
    /// The id of the process that made or started the stream.
    process: Arc<AtomicU32>,
    order: Vec<usize>,
    /// What to do; taken when the stream starts.
    plan: Option<Plan>,
    /// Whether the first call of `next` does all the work, without a thread.
    runs_inline: bool,
    worker: Option<JoinHandle<()>>,
    /// The work, where the system refused a thread: the calls of `next` do it.
    producer: Option<Producer>,
}

/// Stops a stream from any thread, also while another is blocked in [`Stream::next_within`].
#[derive(Clone, Debug)]
pub struct StopHandle {
    queue: Arc<Queue<Result<StreamItem, TensorError>>>,
    cancel: Cancel,
    process: Arc<AtomicU32>,
}

impl StopHandle {
    /// Cancels the work and ends the stream. It does not wait for the producer thread; [`Stream::close`] does. In a forked child
    /// it does nothing, as the stream is the parent's.
    pub fn stop(&self) {
        if self.process.load(Ordering::Relaxed) == process_id() {
            self.cancel.cancel();
            self.queue.close();
        }
    }
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        let is_named = self.name.is_empty() || self.error.member() == Some(&self.name);
        if is_named { Ok(()) } else { write!(f, " (tensor {:?})", self.name) }
    }
}

impl std::error::Error for TensorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl From<Error> for TensorError {
    fn from(error: Error) -> TensorError {
        TensorError::general(error)
    }
}

impl TensorError {
    /// An error about one tensor.
    pub(super) fn at(index: usize, tensor: &Tensor, error: Error) -> TensorError {
        TensorError { index, name: tensor.name().to_owned(), error: tensor.add_context(error) }
    }

    /// An error about no single tensor.
    pub(super) fn general(error: Error) -> TensorError {
        TensorError { index: 0, name: String::new(), error }
    }
}

impl Stream {
    /// A stream of these tensors. Nothing is read and no thread is started before the first call of [`Stream::next_within`].
    pub fn new(mut requests: Vec<(Tensor, Request)>, mut options: StreamOptions) -> Stream {
        let runs_inline = options.window >= INLINE_MEMORY_MAX_BYTES && runs_inline(&requests);
        if !runs_inline {
            options.window = memory::window(options.window);
        }
        let cancel = Cancel::new();
        for (_, request) in &mut requests {
            request.cancel = cancel.clone();
        }
        let threads = parallel::threads(u64::MAX, options.threads);
        let steps = order::steps(&requests, options.by_file, threads);
        let order = steps.iter().map(|step| step.index).collect();
        // Consecutive requests are mostly of one file, so each run of them is looked up once.
        let sources =
            requests.chunk_by(|(one, _), (two, _)| one.file() == two.file()).filter_map(<[_]>::first);
        let (mut scratch, mut batch_bytes) = (0, 0);
        for (tensor, _) in sources {
            let (per_thread, in_flight) = tensor.opened.scratch_bounds(tensor.shard());
            let reading = options.threads.or(in_flight).unwrap_or(threads) as u64;
            scratch = per_thread.saturating_mul(reading).max(scratch);
            let access = tensor.opened.access(tensor.shard());
            batch_bytes = producer::batch_bytes(access, options.results_kept).max(batch_bytes);
        }
        let budget =
            if runs_inline { INLINE_MEMORY_MAX_BYTES } else { options.window.saturating_sub(scratch).max(1) };
        let queue = Arc::new(Queue::new(budget));
        let plan = Some(Plan { requests, steps, options, batch_bytes });
        let process = Arc::new(AtomicU32::new(process_id()));
        Stream { queue, cancel, process, order, plan, runs_inline, worker: None, producer: None }
    }

    /// The indices of the requests in the order of the items.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The order in which a stream of these requests gives its items.
    pub(crate) fn steps(requests: &[(Tensor, Request)], by_file: bool) -> Vec<StreamStep> {
        order::steps(requests, by_file, parallel::threads(u64::MAX, None))
    }

    /// Waits up to `timeout` for the next item, and starts the stream if need be. After an error the stream is finished. Fails
    /// with [`Code::Forked`] in a forked child.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Taken<StreamItem>, TensorError> {
        self.start();
        if self.is_forked() {
            let text = "the stream was started before the process forked";
            return Err(TensorError::general(Error::new(Code::Forked, text)));
        }
        let timeout = if self.producer.is_some() { Duration::ZERO } else { timeout };
        match self.queue.take(timeout) {
            Taken::Item(item) => item.map(Taken::Item),
            Taken::Waiting => {
                self.advance();
                Ok(Taken::Waiting)
            }
            Taken::Finished => Ok(Taken::Finished),
        }
    }

    /// Whether the stream has not been started.
    pub fn is_unstarted(&self) -> bool {
        self.plan.is_some()
    }

    /// Makes the next batch in this call, if there is no producer thread.
    fn advance(&mut self) {
        let Some(producer) = &mut self.producer else { return };
        if !self.cancel.during(|| producer.advance()) {
            self.producer = None;
        }
    }

    /// Starts the producer thread; little work is done in this call instead. Later calls do nothing. Where the system refuses a
    /// thread, the calls of [`Stream::next_within`] do the work.
    pub fn start(&mut self) {
        let Some(plan) = self.plan.take() else { return };
        self.process.store(process_id(), Ordering::Relaxed);
        let (cancel, queue) = (self.cancel.clone(), FinishOnDrop(self.queue.clone()));
        if self.runs_inline {
            return cancel.during(|| Producer::new(plan, queue).run());
        }
        let work = Arc::new(Mutex::new(Some((plan, queue))));
        let take = |work: &Mutex<Option<_>>| lock(work).take();
        let of_thread = work.clone();
        let run = move || {
            if let Some((plan, queue)) = take(&of_thread) {
                cancel.during(|| Producer::new(plan, queue).run());
            }
        };
        match thread::Builder::new().name("rustload-stream".to_owned()).spawn(run) {
            Ok(worker) => self.worker = Some(worker),
            Err(_) => self.producer = take(&work).map(|(plan, queue)| Producer::new(plan, queue)),
        }
    }

    /// Cancels the work, joins the producer thread, and frees results that were not taken.
    pub fn close(&mut self) {
        let is_started = self.plan.take().is_none();
        if is_started && self.is_forked() {
            // The thread is the parent's: it cannot be joined, and its handle must not be dropped here.
            std::mem::forget(self.worker.take());
            return;
        }
        self.cancel.cancel();
        self.queue.close();
        self.producer = None;
        if let Some(worker) = self.worker.take() {
            // A panic was reported as an error by `FinishOnDrop`.
            let _ = worker.join();
        }
    }

    /// A handle that stops the stream from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { queue: self.queue.clone(), cancel: self.cancel.clone(), process: self.process.clone() }
    }

    /// Whether this process is a forked child of the one that made or started the stream.
    fn is_forked(&self) -> bool {
        self.process.load(Ordering::Relaxed) != process_id()
    }
}

impl Iterator for Stream {
    type Item = Result<StreamItem, TensorError>;

    fn next(&mut self) -> Option<Result<StreamItem, TensorError>> {
        loop {
            match self.next_within(WAIT_INTERVAL) {
                Ok(Taken::Item(item)) => return Some(Ok(item)),
                Ok(Taken::Waiting) => {}
                Ok(Taken::Finished) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether all the work takes less time than starting a thread.
fn runs_inline(requests: &[(Tensor, Request)]) -> bool {
    let mut work_left = INLINE_WORK_MAX_BYTES;
    requests.iter().all(|(tensor, request)| {
        let work = tensor.work_for(request).saturating_add(PER_TENSOR_COST_BYTES);
        work_left.checked_sub(work).map(|rest| work_left = rest).is_some()
    })
}

/// Finishes the queue when the producer ends, by a panic too.
struct FinishOnDrop(Arc<Queue<Result<StreamItem, TensorError>>>);

impl Drop for FinishOnDrop {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = Error::new(Code::InternalError, "internal error: a stream's thread panicked");
            self.0.put([(Err(TensorError::general(error)), 0)]);
        }
        self.0.finish();
    }
}
