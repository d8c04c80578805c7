//! Many tensors, made ahead of whoever takes them.
//!
//! One thread works for a stream. It goes through the tensors in order, gathers small ones into batches, waits until a batch
//! fits the window, and fills it with scoped threads of the batch's own; meanwhile the consumer has the batch before. Nothing
//! starts before the first tensor is asked for. A stream that is dropped stops its thread and waits for it.
//!
//! After a fork the child has no such thread, and a lock may be held by nobody: the stream of another process is not touched.

mod order;

pub use order::Step;

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::bytes::Reader;
use crate::error::{Code, Error, Result};
use crate::memory;
use crate::parallel::{self, Cancel};
use crate::sink::{self, Array};
use crate::stream::{Queue, SCRATCH_BYTES, Taken, Task, disk_threads, fill_all};
use crate::tensor::{Owned, Prospect, Request, Standing, Tensor};

/// Bytes of one thread's scratch where files may be read around the page cache; it counts in the window, as others do.
const SCRATCH_AROUND: u64 = SCRATCH_BYTES + Reader::DIRECT_READ_MAX_BYTES;

/// Bytes of results that are made in one go: enough to make starting threads cheap.
const BATCH: u64 = 32 << 20;

/// Tensors that are handed over at once, at most.
const BATCH_COUNT: usize = 512;

/// Work that takes less than starting a thread for it, and what a tensor counts beside its bytes.
const LITTLE: u64 = 256 << 10;
const EACH: u64 = 4 << 10;

/// Memory that tensors of so little work take at most, whatever pages and slabs they lie in.
const ROOM: u64 = 16 << 20;

/// How tensors are streamed.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Bytes that may be in flight beyond what the consumer holds; less where the process's cgroup leaves little.
    pub window: u64,
    /// Threads to use; `None` for one per core where the work is worth it.
    pub threads: Option<usize>,
    /// Whether tensors are given in the order of the data, several files at a time, or as listed.
    pub by_file: bool,
    /// Whether tensors that can stand on a storage they share are left to the consumer, as torch wants it.
    pub standing: bool,
    /// Whether the consumer keeps all it gets, as in a whole load. Otherwise what is kept of results that were dropped, before
    /// or meanwhile, counts in the window.
    pub whole: bool,
}

/// One tensor of a stream.
#[derive(Debug)]
pub struct Given {
    /// Its place in the list of what was asked for.
    pub index: usize,
    /// The place of the first that has the same elements, made the same way: a tied name. Its own place where it is the first.
    pub first: usize,
    /// Whether the same elements are given again later.
    pub again: bool,
    /// The elements.
    pub made: Made,
}

/// What a stream makes of a tensor.
#[derive(Debug)]
pub enum Made {
    /// An array: owned, or a view.
    Array(Array),
    /// Nothing: it can stand on a storage that it shares ([`Tensor::storage_bytes`]).
    Standing(Standing),
    /// Nothing: it is what was given for `first`.
    Same,
}

/// An error, and which tensor it is about.
#[derive(Debug)]
pub struct Failed {
    /// The place in the list of what was asked for.
    pub index: usize,
    /// The tensor's name; empty where the error is about the stream itself.
    pub name: String,
    /// What went wrong.
    pub error: Error,
}

/// An iterator over tensors in memory; see [`Stream::next`].
#[derive(Debug)]
pub struct Stream {
    queue: Arc<Queue<Result<Given, Failed>>>,
    cancel: Cancel,
    /// The process that it works in.
    process: Arc<AtomicU32>,
    order: Vec<usize>,
    plan: Option<Plan>,
    /// Whether it is done at once by whoever asks for the first tensor.
    is_little: bool,
    worker: Option<JoinHandle<()>>,
}

/// Ends a stream from any thread, also while another waits in [`Stream::next`].
#[derive(Clone, Debug)]
pub struct Stop {
    queue: Arc<Queue<Result<Given, Failed>>>,
    cancel: Cancel,
    process: Arc<AtomicU32>,
}

impl Stop {
    /// Nothing more is made or given. The thread may still be at work for a moment: [`Stream::close`] waits for it. In a
    /// forked child it does nothing, as the stream is the parent's.
    pub fn stop(&self) {
        if self.process.load(Ordering::Relaxed) == process::id() {
            self.cancel.cancel();
            self.queue.close();
        }
    }
}

/// What there is to do.
#[derive(Debug)]
struct Plan {
    wishes: Vec<(Tensor, Request)>,
    steps: Vec<order::Step>,
    flow: Flow,
}

impl Failed {
    /// About one of the tensors.
    pub(super) fn at(index: usize, tensor: &Tensor, error: Error) -> Failed {
        Failed { index, name: tensor.name().to_owned(), error: tensor.placed(error) }
    }

    /// About no tensor, but the stream.
    pub(super) fn whole(error: Error) -> Failed {
        Failed { index: 0, name: String::new(), error }
    }
}

impl Stream {
    /// A stream of these tensors. Nothing is read and no thread started before the first is asked for.
    pub fn new(mut wishes: Vec<(Tensor, Request)>, mut flow: Flow) -> Stream {
        let is_little = flow.window >= ROOM && is_little(&wishes);
        if !is_little {
            flow.window = memory::window(flow.window);
        }
        let cancel = Cancel::new();
        for (_, request) in &mut wishes {
            request.cancel = cancel.clone();
        }
        let threads = parallel::threads(u64::MAX, flow.threads);
        let steps = order::steps(&wishes, flow.by_file, threads);
        let order = steps.iter().map(|step| step.index).collect();
        // Neighbours are mostly of one file.
        let around = wishes
            .chunk_by(|(one, _), (two, _)| one.file() == two.file())
            .filter_map(<[_]>::first)
            .any(|(tensor, _)| tensor.checkpoint.may_be_direct(tensor.shard()));
        let scratch = if around {
            SCRATCH_AROUND.saturating_mul(disk_threads(flow.threads) as u64)
        } else {
            SCRATCH_BYTES.saturating_mul(threads as u64)
        };
        let room = if is_little { ROOM } else { flow.window.saturating_sub(scratch).max(1) };
        let queue = Arc::new(Queue::new(room));
        let plan = Some(Plan { wishes, steps, flow });
        let process = Arc::new(AtomicU32::new(process::id()));
        Stream { queue, cancel, process, order, plan, is_little, worker: None }
    }

    /// The places in the list of what was asked for, in the order in which they are given.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The order in which a stream of these tensors gives them.
    pub fn steps(wishes: &[(Tensor, Request)], by_file: bool) -> Vec<Step> {
        order::steps(wishes, by_file, parallel::threads(u64::MAX, None))
    }

    /// The next tensor, waiting no longer than `patience`. After an error there is nothing more.
    pub fn next(&mut self, patience: Duration) -> Result<Taken<Given>, Failed> {
        self.begin()?;
        if self.is_foreign() {
            let text = "the stream was begun before the process forked";
            return Err(Failed::whole(Error::new(Code::Forked, text)));
        }
        match self.queue.take(patience) {
            Taken::Item(found) => found.map(Taken::Item),
            Taken::Waiting => Ok(Taken::Waiting),
            Taken::Finished => Ok(Taken::Finished),
        }
    }

    /// Whether the first call of [`Stream::begin`] is still to come.
    pub fn is_new(&self) -> bool {
        self.plan.is_some()
    }

    /// Starts the thread that makes tensors, once. What is little work is done here and now.
    pub fn begin(&mut self) -> Result<(), Failed> {
        let Some(plan) = self.plan.take() else { return Ok(()) };
        self.process.store(process::id(), Ordering::Relaxed);
        let ends = Ends(self.queue.clone());
        let work = move || plan.run(&ends.0);
        if self.is_little {
            work();
            return Ok(());
        }
        let worker = thread::Builder::new().name("rustload-stream".to_owned()).spawn(work);
        self.worker = Some(worker.map_err(|error| Failed::whole(Error::io(error, None)))?);
        Ok(())
    }

    /// Stops the work, and returns when it has stopped. What was made and not taken is freed.
    pub fn close(&mut self) {
        let is_begun = self.plan.take().is_none();
        if is_begun && self.is_foreign() {
            // The thread is the parent's: there is nothing to wait for, and nothing of it to be freed here.
            std::mem::forget(self.worker.take());
            return;
        }
        self.cancel.cancel();
        self.queue.close();
        if let Some(worker) = self.worker.take() {
            // A panic has been told as an error.
            let _ = worker.join();
        }
    }

    /// What ends the stream while another thread waits in [`Stream::next`].
    pub fn stop(&self) -> Stop {
        Stop { queue: self.queue.clone(), cancel: self.cancel.clone(), process: self.process.clone() }
    }

    /// Whether it was begun, or made, in another process than this.
    fn is_foreign(&self) -> bool {
        self.process.load(Ordering::Relaxed) != process::id()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether all of it takes less time than a thread takes to start.
fn is_little(wishes: &[(Tensor, Request)]) -> bool {
    let mut left = LITTLE;
    wishes.iter().all(|(tensor, request)| {
        let work = tensor.work_for(request).saturating_add(EACH);
        left.checked_sub(work).map(|rest| left = rest).is_some()
    })
}

/// Tells the consumer that there is nothing more, however the thread ends.
struct Ends(Arc<Queue<Result<Given, Failed>>>);

impl Drop for Ends {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = Error::new(Code::InternalError, "internal error: a stream's thread panicked");
            self.0.put([(Err(Failed::whole(error)), 0)]);
        }
        self.0.finish();
    }
}

/// Tensors that are made in one go.
#[derive(Default)]
struct Batch<'a> {
    items: Vec<Item<'a>>,
    /// Bytes that are in flight until the tensors are taken.
    bytes: u64,
}

/// One tensor of a batch.
struct Item<'a> {
    step: &'a order::Step,
    weight: u64,
    what: What,
}

enum What {
    /// Made already, or nothing to be made.
    Ready(Made),
    /// To be filled.
    Fill(Owned),
}

impl Plan {
    fn run(&self, queue: &Queue<Result<Given, Failed>>) {
        // Dropped when all is made: what was kept before and served nothing goes then.
        let _carried =
            (!self.flow.whole).then(|| sink::limit_while_alive(queue.window_left(), || self.result_bytes()));
        let batch_bytes = BATCH.min(self.flow.window / 4).max(1);
        self.forget(self.steps.iter(), self.steps.first());
        let mut batch = Batch::default();
        for (number, step) in self.steps.iter().enumerate() {
            if number % BATCH_COUNT == 0 {
                self.prepare(number);
            }
            let item = match self.item(step) {
                Ok(item) => item,
                Err(error) => {
                    // What came before it is given first.
                    if self.hand_over(batch, queue, None).is_ok() {
                        queue.put([(Err(self.failed(step.index, error)), 0)]);
                    }
                    return;
                }
            };
            let full = batch.bytes.saturating_add(item.weight) > batch_bytes;
            let full = !batch.items.is_empty() && (full || batch.items.len() >= BATCH_COUNT);
            if full && self.hand_over(std::mem::take(&mut batch), queue, Some(step)).is_err() {
                return;
            }
            batch.bytes = batch.bytes.saturating_add(item.weight);
            batch.items.push(item);
        }
        let _ = self.hand_over(batch, queue, None);
    }

    /// Bytes of all results that take memory.
    fn result_bytes(&self) -> u64 {
        let made = self.steps.iter().filter(|step| step.first == step.index);
        made.map(|step| {
            let (tensor, request) = &self.wishes[step.index];
            tensor.footprint(request)
        })
        .fold(0, u64::saturating_add)
    }

    /// Lets go of what was inflated for these steps, or before them, except for the storage that `next` reads. As long as that
    /// step waits for room, the one before it is in flight and counts the storage.
    fn forget<'a>(&self, steps: impl Iterator<Item = &'a order::Step>, next: Option<&order::Step>) {
        let next = next.map(|step| &self.wishes[step.index].0);
        for step in steps {
            let checkpoint = &self.wishes[step.index].0.checkpoint;
            let next = next.filter(|next| Arc::ptr_eq(&next.checkpoint, checkpoint));
            checkpoint.forget_inflated(next.map(Tensor::storage));
        }
    }

    /// Makes ready to read some tensors from the step `from` on.
    fn prepare(&self, from: usize) {
        let tensors = self.steps.iter().skip(from).take(BATCH_COUNT).map(|step| &self.wishes[step.index].0);
        let tensors: Vec<&Tensor> = tensors.collect();
        for near in tensors.chunk_by(|one, two| one.file() == two.file()) {
            if let Some(first) = near.first() {
                first.checkpoint.prepare(first.shard(), near.iter().map(|tensor| tensor.storage()));
            }
        }
    }

    /// What is to be done for a step. Reads nothing, except to see whether bools can be viewed.
    fn item<'a>(&self, step: &'a order::Step) -> Result<Item<'a>> {
        let ready = |made| Item { step, weight: 0, what: What::Ready(made) };
        if step.first != step.index {
            return Ok(ready(Made::Same));
        }
        let (tensor, request) = &self.wishes[step.index];
        if self.flow.standing && tensor.is_meta() {
            return Ok(ready(Made::Standing(Standing::View)));
        }
        if self.flow.standing
            && request.copy != Some(true)
            && !tensor.is_converted(request)
            && !tensor.is_alone()
            && let Some(standing) = tensor.standing(request.copy, &request.cancel)?
        {
            return Ok(ready(Made::Standing(standing)));
        }
        Ok(match tensor.prospect(request)? {
            Prospect::View(view) => ready(Made::Array(view)),
            Prospect::Owned(owned) => Item { step, weight: tensor.weight(&owned), what: What::Fill(owned) },
        })
    }

    /// Makes a batch once there is room for it, and hands it over. An error says that nothing more is to be done.
    /// `next` is the step after it.
    fn hand_over(
        &self,
        batch: Batch<'_>,
        queue: &Queue<Result<Given, Failed>>,
        next: Option<&order::Step>,
    ) -> Result<()> {
        if batch.items.is_empty() {
            return Ok(());
        }
        queue.reserve(batch.bytes)?;
        let steps: Vec<&order::Step> = batch.items.iter().map(|item| item.step).collect();
        let made = self.make(batch);
        self.forget(steps.into_iter(), next);
        match made {
            Ok(made) => {
                queue.put(made.into_iter().map(|(given, weight)| (Ok(given), weight)));
                Ok(())
            }
            Err(failed) => {
                let stop = Error::new(failed.error.code(), "the stream ends here");
                queue.put([(Err(failed), 0)]);
                Err(stop)
            }
        }
    }

    fn make(&self, batch: Batch<'_>) -> Result<Vec<(Given, u64)>, Failed> {
        let mut memory = Vec::with_capacity(batch.items.len());
        for Item { step, what, .. } in &batch.items {
            memory.push(match what {
                What::Fill(owned) => Some(owned.memory().map_err(|error| self.failed(step.index, error))?),
                What::Ready(_) => None,
            });
        }
        if !self.flow.whole {
            // What is left of the window became less. Whatever fits the batch is no longer kept, but in it.
            sink::enforce_limits();
        }
        let (mut tasks, mut indices): (Vec<Task<'_>>, Vec<usize>) = (Vec::new(), Vec::new());
        for (Item { step, what, .. }, memory) in batch.items.iter().zip(&mut memory) {
            if let (What::Fill(owned), Some(memory)) = (what, memory) {
                let (tensor, request) = &self.wishes[step.index];
                let task = tensor.task(owned, request, memory);
                if let Some(task) = task.map_err(|error| self.failed(step.index, error))? {
                    tasks.push(task);
                    indices.push(step.index);
                }
            }
        }
        fill_all(tasks, self.flow.threads)
            .map_err(|(task, error)| self.failed(indices.get(task).copied().unwrap_or(0), error))?;
        let made = batch.items.into_iter().zip(memory).filter_map(|(Item { step, weight, what }, memory)| {
            let made = match (what, memory) {
                (What::Ready(made), _) => made,
                (What::Fill(owned), Some(memory)) => match owned.finish(memory.filled()) {
                    Ok(array) => Made::Array(array),
                    Err(error) => return Some(Err(self.failed(step.index, error))),
                },
                (What::Fill(_), None) => return None,
            };
            Some(Ok((Given { index: step.index, first: step.first, again: step.again, made }, weight)))
        });
        made.collect()
    }

    fn failed(&self, index: usize, error: Error) -> Failed {
        Failed::at(index, &self.wishes[index].0, error)
    }
}
