//! Materializes many tensors ahead of the consumer, with back pressure.
//!
//! A stream has one producer thread. It gathers small tensors into batches, blocks until a batch fits the window, and fills the
//! batch with scoped threads while the consumer has the batch before. The thread starts with the first call of [`Stream::next_within`].
//! Dropping a stream stops the thread and joins it. Small streams have no producer thread: they run on the consumer's thread.
//!
//! A forked child has no producer thread, and a lock may have been held at the fork, so a stream of another process is left alone.

mod order;

pub(crate) use order::StreamStep;

use std::fmt;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::memory;
use crate::parallel::{self, Cancel};
use crate::sink::{self, Array};
use crate::stream::{Queue, Taken, Task, fill_all};
use crate::tensor::{MaterializePlan, OwnedPlan, Request, SharedStorage, Tensor};

/// Bytes of results that one batch has at most: large enough to amortize starting threads.
const BATCH_BYTES: u64 = 32 << 20;

/// The most tensors of one batch.
const BATCH_MAX_TENSORS: usize = 512;

/// Streams of less work than this run on the consumer's thread, as starting one would take longer. Each tensor counts as its
/// bytes and [`PER_TENSOR_COST_BYTES`].
const INLINE_WORK_MAX_BYTES: u64 = 256 << 10;
const PER_TENSOR_COST_BYTES: u64 = 4 << 10;

/// The most memory that the results of an inline stream occupy, including the unused ends of their pages and slabs.
const INLINE_MEMORY_MAX_BYTES: u64 = 16 << 20;

/// The longest single wait of the iterator.
const WAIT_INTERVAL: Duration = Duration::from_secs(60);

/// Options of a stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Bytes that may be in flight beyond what the consumer holds; lowered where the process's cgroup has little memory left.
    pub window: u64,
    /// Threads to use; `None` for one per core, or one alone where the work is too small for more.
    pub threads: Option<usize>,
    /// Whether tensors come in file order, with several files interleaved, or in the order of the requests.
    pub by_file: bool,
    /// Whether to return [`Output::SharedStorage`] for tensors that share a storage: the consumer then gets the storage once and
    /// creates the tensors on it (in torch they stay tied).
    pub share_storages: bool,
    /// Whether the consumer keeps all results, as in a full load. Otherwise memory of dropped results that is cached for reuse
    /// counts in the window.
    pub results_kept: bool,
}

/// The default window of a stream.
const WINDOW_BYTES: u64 = 256 << 20;

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            window: WINDOW_BYTES,
            threads: None,
            by_file: true,
            share_storages: false,
            results_kept: false,
        }
    }
}

impl StreamOptions {
    /// The defaults: file order, a window of 256 MiB, as many threads as are of use.
    pub fn new() -> StreamOptions {
        StreamOptions::default()
    }

    /// Sets `window`.
    #[must_use]
    pub fn window(self, window: u64) -> StreamOptions {
        StreamOptions { window, ..self }
    }

    /// Sets `threads`.
    #[must_use]
    pub fn threads(self, threads: impl Into<Option<usize>>) -> StreamOptions {
        StreamOptions { threads: threads.into(), ..self }
    }

    /// Sets `by_file`.
    #[must_use]
    pub fn by_file(self, by_file: bool) -> StreamOptions {
        StreamOptions { by_file, ..self }
    }

    /// Sets `share_storages`.
    #[must_use]
    pub fn share_storages(self, share_storages: bool) -> StreamOptions {
        StreamOptions { share_storages, ..self }
    }

    /// Sets `results_kept`.
    #[must_use]
    pub fn results_kept(self, results_kept: bool) -> StreamOptions {
        StreamOptions { results_kept, ..self }
    }
}

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
        if self.process.load(Ordering::Relaxed) == process::id() {
            self.cancel.cancel();
            self.queue.close();
        }
    }
}

/// The work of a stream: its requests, and the order in which they are materialized.
#[derive(Debug)]
struct Plan {
    requests: Vec<(Tensor, Request)>,
    steps: Vec<StreamStep>,
    options: StreamOptions,
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
        let scratch = sources
            .map(|(tensor, _)| {
                let (per_thread, in_flight) = tensor.opened.scratch_bounds(tensor.shard());
                per_thread.saturating_mul(options.threads.or(in_flight).unwrap_or(threads) as u64)
            })
            .max()
            .unwrap_or(0);
        let budget =
            if runs_inline { INLINE_MEMORY_MAX_BYTES } else { options.window.saturating_sub(scratch).max(1) };
        let queue = Arc::new(Queue::new(budget));
        let plan = Some(Plan { requests, steps, options });
        let process = Arc::new(AtomicU32::new(process::id()));
        Stream { queue, cancel, process, order, plan, runs_inline, worker: None }
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
        self.start()?;
        if self.is_forked() {
            let text = "the stream was started before the process forked";
            return Err(TensorError::general(Error::new(Code::Forked, text)));
        }
        match self.queue.take(timeout) {
            Taken::Item(item) => item.map(Taken::Item),
            Taken::Waiting => Ok(Taken::Waiting),
            Taken::Finished => Ok(Taken::Finished),
        }
    }

    /// Whether the stream has not been started.
    pub fn is_unstarted(&self) -> bool {
        self.plan.is_some()
    }

    /// Starts the producer thread; little work is done in this call instead. Later calls do nothing. Fails where the system
    /// refuses a thread.
    pub fn start(&mut self) -> Result<(), TensorError> {
        let Some(plan) = self.plan.take() else { return Ok(()) };
        self.process.store(process::id(), Ordering::Relaxed);
        let queue = FinishOnDrop(self.queue.clone());
        let work = move || plan.run(&queue.0);
        if self.runs_inline {
            work();
            return Ok(());
        }
        let worker = thread::Builder::new().name("rustload-stream".to_owned()).spawn(work);
        self.worker = Some(worker.map_err(|error| TensorError::general(Error::io(error, None)))?);
        Ok(())
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
        self.process.load(Ordering::Relaxed) != process::id()
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

/// Tensors that are filled and delivered together.
#[derive(Default)]
struct Batch<'a> {
    items: Vec<Item<'a>>,
    /// Bytes that count in the window until the tensors are taken.
    bytes: u64,
}

/// One tensor of a batch.
struct Item<'a> {
    step: &'a StreamStep,
    /// Bytes that count in the window.
    window_bytes: u64,
    action: Action,
}

/// What is left to do for an item.
enum Action {
    /// Nothing.
    Ready(Output),
    /// Allocate memory and fill it.
    Fill(OwnedPlan),
}

impl Plan {
    fn run(&self, queue: &Queue<Result<StreamItem, TensorError>>) {
        // Dropped at the end of the run, which unmaps kept memory that no result used.
        let _carried_over = (!self.options.results_kept)
            .then(|| sink::limit_while_alive(queue.window_left(), || self.result_bytes()));
        let batch_bytes = BATCH_BYTES.min(self.options.window / 4).max(1);
        self.evict(self.steps.iter(), self.steps.first());
        let mut batch = Batch::default();
        for (number, step) in self.steps.iter().enumerate() {
            if number % BATCH_MAX_TENSORS == 0 {
                self.prefetch_headers(number);
            }
            let item = match self.item(step) {
                Ok(item) => item,
                Err(error) => {
                    // Earlier items come before the error.
                    if self.deliver(batch, queue, None).is_ok() {
                        queue.put([(Err(self.failed(step.index, error)), 0)]);
                    }
                    return;
                }
            };
            let over_size = batch.bytes.saturating_add(item.window_bytes) > batch_bytes;
            let full = !batch.items.is_empty() && (over_size || batch.items.len() >= BATCH_MAX_TENSORS);
            if full && self.deliver(std::mem::take(&mut batch), queue, Some(step)).is_err() {
                return;
            }
            batch.bytes = batch.bytes.saturating_add(item.window_bytes);
            batch.items.push(item);
        }
        let _ = self.deliver(batch, queue, None);
    }

    /// The most memory of all results, in bytes; views and aliases have none.
    fn result_bytes(&self) -> u64 {
        let distinct = self.steps.iter().filter(|step| step.first == step.index);
        distinct
            .map(|step| {
                let (tensor, request) = &self.requests[step.index];
                tensor.footprint(request)
            })
            .fold(0, u64::saturating_add)
    }

    /// Evicts the inflated storages of these steps' checkpoints, except for the one that `next` reads. While that step waits for
    /// the window, the step before it is in flight and accounts for the storage.
    fn evict<'a>(&self, steps: impl Iterator<Item = &'a StreamStep>, next: Option<&StreamStep>) {
        let next = next.map(|step| &self.requests[step.index].0);
        for step in steps {
            let opened = &self.requests[step.index].0.opened;
            let next = next.filter(|next| Arc::ptr_eq(&next.opened, opened));
            opened.evict_inflated(next.map(Tensor::storage));
        }
    }

    /// Reads the archive headers of the next batch of tensors, from the step `from` on, with few reads.
    fn prefetch_headers(&self, from: usize) {
        let tensors =
            self.steps.iter().skip(from).take(BATCH_MAX_TENSORS).map(|step| &self.requests[step.index].0);
        let tensors: Vec<&Tensor> = tensors.collect();
        for same_file in tensors.chunk_by(|one, two| one.file() == two.file()) {
            if let Some(first) = same_file.first() {
                let storages = same_file.iter().map(|tensor| tensor.storage().1);
                first.opened.index(first.shard()).prefetch_headers(storages);
            }
        }
    }

    /// The item of a step. Reads nothing but bools, which are validated before they are viewed.
    fn item<'a>(&self, step: &'a StreamStep) -> Result<Item<'a>> {
        let ready = |output| Item { step, window_bytes: 0, action: Action::Ready(output) };
        if step.first != step.index {
            return Ok(ready(Output::Alias));
        }
        let (tensor, request) = &self.requests[step.index];
        if self.options.share_storages && tensor.is_meta() {
            return Ok(ready(Output::SharedStorage(SharedStorage::View)));
        }
        if self.options.share_storages
            && request.copy != Some(true)
            && !tensor.is_converted(request)
            && !tensor.has_own_storage()
            && let Some(shared) = tensor.shared_storage(request.copy, &request.cancel)?
        {
            return Ok(ready(Output::SharedStorage(shared)));
        }
        Ok(match tensor.materialize_plan(request)? {
            MaterializePlan::View(view) => ready(Output::Array(view)),
            MaterializePlan::Owned(owned) => {
                Item { step, window_bytes: tensor.peak_bytes(&owned), action: Action::Fill(owned) }
            }
        })
    }

    /// Blocks until a batch fits the window, materializes it, and puts it in the queue. `next` is the step after it. An error means
    /// that the stream has ended.
    fn deliver(
        &self,
        batch: Batch<'_>,
        queue: &Queue<Result<StreamItem, TensorError>>,
        next: Option<&StreamStep>,
    ) -> Result<()> {
        if batch.items.is_empty() {
            return Ok(());
        }
        queue.reserve(batch.bytes)?;
        let steps: Vec<&StreamStep> = batch.items.iter().map(|item| item.step).collect();
        let results = self.materialize(batch);
        self.evict(steps.into_iter(), next);
        match results {
            Ok(results) => {
                queue.put(results.into_iter().map(|(item, bytes)| (Ok(item), bytes)));
                Ok(())
            }
            Err(failed) => {
                let stop = Error::new(failed.error.code(), "the stream ends here");
                queue.put([(Err(failed), 0)]);
                Err(stop)
            }
        }
    }

    /// Allocates and fills the results of a batch; pairs them with their bytes in the window.
    fn materialize(&self, batch: Batch<'_>) -> Result<Vec<(StreamItem, u64)>, TensorError> {
        let mut memory = Vec::with_capacity(batch.items.len());
        for Item { step, action, .. } in &batch.items {
            memory.push(match action {
                Action::Fill(owned) => Some(owned.memory().map_err(|error| self.failed(step.index, error))?),
                Action::Ready(_) => None,
            });
        }
        if !self.options.results_kept {
            // The batch took a part of the window, so less memory may stay cached. What the batch reuses is no longer cached.
            sink::enforce_limits();
        }
        let (mut tasks, mut indices): (Vec<Task<'_>>, Vec<usize>) = (Vec::new(), Vec::new());
        for (Item { step, action, .. }, memory) in batch.items.iter().zip(&mut memory) {
            if let (Action::Fill(owned), Some(memory)) = (action, memory) {
                let (tensor, request) = &self.requests[step.index];
                let task = tensor.fill_task(owned, request, memory);
                if let Some(task) = task.map_err(|error| self.failed(step.index, error))? {
                    tasks.push(task);
                    indices.push(step.index);
                }
            }
        }
        fill_all(tasks, self.options.threads)
            .map_err(|(task, error)| self.failed(indices.get(task).copied().unwrap_or(0), error))?;
        let results = batch.items.into_iter().zip(memory).filter_map(|(item, memory)| {
            let Item { step, window_bytes, action } = item;
            let output = match (action, memory) {
                (Action::Ready(output), _) => output,
                (Action::Fill(owned), Some(memory)) => match owned.finish(memory.filled()) {
                    Ok(array) => Output::Array(array),
                    Err(error) => return Some(Err(self.failed(step.index, error))),
                },
                (Action::Fill(_), None) => return None,
            };
            let StreamStep { index, first, has_later_alias } = *step;
            Some(Ok((StreamItem { index, first, has_later_alias, output }, window_bytes)))
        });
        results.collect()
    }

    fn failed(&self, index: usize, error: Error) -> TensorError {
        TensorError::at(index, &self.requests[index].0, error)
    }
}
