//! The producer of a stream: gathers requests into batches, fills them, and puts the results in the queue.

use std::fmt;
use std::sync::Arc;

use super::order::StreamStep;
use super::{FinishOnDrop, Output, StreamItem, StreamOptions, TensorError};
use crate::bytes::Access;
use crate::error::{Error, Result};
use crate::sink::{self, CarriedOver};
use crate::stream::{Queue, Task, fill_all};
use crate::tensor::{Growth, MaterializePlan, OwnedPlan, Request, SharedStorage, Tensor};

/// Bytes of results that one batch has at most: large enough to amortize starting threads.
const BATCH_BYTES: u64 = 32 << 20;

/// As many where the consumer keeps all results: at the end of a batch threads end, and some wait for others.
const KEPT_BATCH_BYTES: u64 = 128 << 20;

/// Where requests are expensive, a batch has so many for each thread. At its end, some threads wait for others.
const ROUNDS_OF_BATCH: u64 = 2;

/// The most tensors of one batch.
const BATCH_MAX_TENSORS: usize = 512;

/// Bytes of results that one batch has at most, for a file that is read so.
pub(super) fn batch_bytes(access: Access, results_kept: bool) -> u64 {
    let at_once = access.block.saturating_mul(access.in_flight.unwrap_or(1) as u64);
    match access.waits_for_requests() {
        true => at_once.saturating_mul(ROUNDS_OF_BATCH).max(BATCH_BYTES),
        false if results_kept => KEPT_BATCH_BYTES,
        false => BATCH_BYTES,
    }
}

/// The work of a stream: its requests, and the order in which they are materialized.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) requests: Vec<(Tensor, Request)>,
    pub(super) steps: Vec<StreamStep>,
    pub(super) options: StreamOptions,
    /// Bytes of results that one batch has at most.
    pub(super) batch_bytes: u64,
}

/// What makes the items of a stream, a batch at a time.
pub(super) struct Producer {
    /// Dropped first, which unmaps kept memory that no result used.
    _carried_over: Option<CarriedOver>,
    plan: Plan,
    /// The first step of which no item was made.
    position: usize,
    growth: Growth,
    /// An item for which the batch before it had no room.
    pending: Option<Item>,
    /// Finished with the last item.
    queue: FinishOnDrop,
}

/// Tensors that are filled and delivered together.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    /// Bytes that count in the window until the tensors are taken.
    bytes: u64,
}

/// One tensor of a batch.
struct Item {
    step: StreamStep,
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

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("plan", &self.plan)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Batch {
    fn push(&mut self, item: Item) {
        self.bytes = self.bytes.saturating_add(item.window_bytes);
        self.items.push(item);
    }
}

impl Producer {
    pub(super) fn new(plan: Plan, queue: FinishOnDrop) -> Producer {
        let carried_over = (!plan.options.results_kept)
            .then(|| sink::limit_while_alive(queue.0.window_left(), || plan.result_bytes()));
        plan.evict(plan.steps.iter(), plan.steps.first());
        Producer {
            _carried_over: carried_over,
            plan,
            position: 0,
            growth: Growth::default(),
            pending: None,
            queue,
        }
    }

    /// Makes all results and puts them in the queue. Ends early after an error, or if the queue is closed.
    pub(super) fn run(mut self) {
        while self.advance() {}
    }

    /// Makes the next batch of results once it fits the window; one fits that has no item that was not taken. False if no batch
    /// follows.
    pub(super) fn advance(&mut self) -> bool {
        let plan = &self.plan;
        // Where results are kept, one batch is filled while the one before it is taken.
        let share = if plan.options.results_kept { 2 } else { 4 };
        let batch_bytes = plan.batch_bytes.min(plan.options.window / share).max(1);
        let mut batch = Batch::default();
        self.pending.take().into_iter().for_each(|item| batch.push(item));
        while let Some(&step) = plan.steps.get(self.position) {
            if self.position.is_multiple_of(BATCH_MAX_TENSORS) {
                plan.prefetch_headers(self.position);
            }
            self.position += 1;
            let item = match plan.item(step).and_then(|item| plan.count(item, &mut self.growth)) {
                Ok(item) => item,
                Err(error) => {
                    // Earlier items come before the error.
                    if plan.deliver(batch, &self.queue.0, None).is_ok() {
                        self.queue.0.put([(Err(plan.failed(step.index, error)), 0)]);
                    }
                    return false;
                }
            };
            let over_size = batch.bytes.saturating_add(item.window_bytes) > batch_bytes;
            if !batch.items.is_empty() && (over_size || batch.items.len() >= BATCH_MAX_TENSORS) {
                self.pending = Some(item);
                return plan.deliver(batch, &self.queue.0, Some(&step)).is_ok();
            }
            batch.push(item);
        }
        let _ = plan.deliver(batch, &self.queue.0, None);
        false
    }
}

impl Plan {
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
        Tensor::prefetch_headers(&tensors);
    }

    /// The item of a step. Reads nothing but bools, which are validated before they are viewed.
    fn item(&self, step: StreamStep) -> Result<Item> {
        let ready = |output| Item { step, window_bytes: 0, action: Action::Ready(output) };
        if step.first != step.index {
            return Ok(ready(Output::Alias));
        }
        let (tensor, request) = &self.requests[step.index];
        if self.options.share_storages && tensor.is_meta() {
            return Ok(ready(Output::SharedStorage(SharedStorage::View)));
        }
        if self.options.share_storages
            && tensor.may_share_storage(request)
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

    /// Counts an item that takes memory of its own, where the consumer keeps all of them.
    fn count(&self, item: Item, growth: &mut Growth) -> Result<Item> {
        if self.options.results_kept && matches!(item.action, Action::Fill(_)) {
            let (tensor, request) = &self.requests[item.step.index];
            growth.add(tensor, tensor.result_dtype(request))?;
        }
        Ok(item)
    }

    /// Blocks until a batch fits the window, materializes it, and puts it in the queue. `next` is the step after it. An error means
    /// that the stream has ended.
    fn deliver(
        &self,
        batch: Batch,
        queue: &Queue<Result<StreamItem, TensorError>>,
        next: Option<&StreamStep>,
    ) -> Result<()> {
        if batch.items.is_empty() {
            return Ok(());
        }
        queue.reserve(batch.bytes)?;
        let steps: Vec<StreamStep> = batch.items.iter().map(|item| item.step).collect();
        let results = self.materialize(batch);
        self.evict(steps.iter(), next);
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
    fn materialize(&self, batch: Batch) -> Result<Vec<(StreamItem, u64)>, TensorError> {
        if let Some(largest) = batch.items.iter().max_by_key(|item| item.window_bytes) {
            let (index, needed) = (largest.step.index, largest.window_bytes);
            self.requests[index].0.check_memory(needed).map_err(|error| self.failed(index, error))?;
        }
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
            let StreamStep { index, first, has_later_alias } = step;
            Some(Ok((StreamItem { index, first, has_later_alias, output }, window_bytes)))
        });
        results.collect()
    }

    fn failed(&self, index: usize, error: Error) -> TensorError {
        TensorError::at(index, &self.requests[index].0, error)
    }
}
