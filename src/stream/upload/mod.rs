//! Uploads: a session's workers make results in the slots of a pinned ring and copy them to a GPU from there (H2D).
//!
//! A ticket is a batch of results with their destinations in GPU memory. Workers turn its results into jobs, a few at a time, and
//! run the jobs: take a slot, fill it as [`fill`](super::fill) fills memory, enqueue its copy. So reading, casting and copying
//! overlap, also across tickets, and the ring is the only host memory that bytes wait in. Slices of a result that would be read in
//! short runs are made in bands instead, in host memory that the window bounds. The workers' threads belong to the device and are
//! kept from session to session.
//!
//! Order: no copy of a ticket begins before the work that was in the caller's stream at submission is done. Once all copies of a
//! ticket are enqueued, events recorded behind them are what a stream, or the caller, waits for. The destinations are kept alive
//! until then. After an error, and at the end, the session's own streams are synchronized, so that no copy is in flight to freed
//! memory.

mod job;
mod plan;
mod rate;
mod shared;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub use rate::cast_rate;

use plan::{Planner, Sizes};
use shared::{LANES, Shared, Ticket};

use super::ResultData;
use crate::error::{Code, Error, Result, bail};
use crate::parallel::{Cancel, lock};
use crate::sink::Array;
use crate::sink::cuda::{CallerStream, Device, Ring};

/// The number of CUDA streams of a lane: with two, a copy begins as soon as another ends.
const STREAMS_PER_LANE: usize = 2;

/// The most host memory that a session takes beside the ring.
const HOST_WINDOW_MAX_BYTES: u64 = 128 << 20;

/// The longest single wait on a condition variable: longer ones may overflow the system's clock, and are repeated.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// One result and its destination.
pub struct UploadItem {
    /// Contiguous memory on the session's device, of exactly the result's bytes. It is kept alive until the copies are done.
    pub destination: Array,
    /// The host memory that its source takes while it is read, in bytes: that of an inflated storage.
    pub host_bytes: u64,
    /// Whether the CPU casts its elements.
    pub casts: bool,
    /// Returns the result's data; a worker calls it when the result's turn comes.
    pub describe: Box<dyn FnOnce() -> Result<ResultData> + Send>,
}

/// The state of a ticket after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The ticket is done as the caller asked: enqueued, or copied.
    Done,
    /// The ticket is not done yet.
    Waiting,
}

/// Uploads to one device; see the module. Dropping it cancels its tickets and waits for copies in flight.
pub struct Session {
    shared: Arc<Shared>,
}

impl Session {
    /// A session on this device. `threads` workers fill slots; `None` for as many as keep the link busy, and one per core where the
    /// CPU casts.
    pub fn new(device: &'static Device, window: u64, threads: Option<usize>) -> Result<Session> {
        let ring = Ring::of(device)?;
        let count = ring.worker_count(threads, false);
        let sizes = Sizes {
            slot: ring.slot_bytes() as u64,
            workers: count as u64,
            casting_workers: ring.worker_count(threads, true) as u64,
            window: window.min(HOST_WINDOW_MAX_BYTES),
            budget: Arc::default(),
        };
        let mut shared = Shared::new(ring, sizes);
        for _ in 0..LANES * count.min(STREAMS_PER_LANE) {
            shared.streams.push(ring.stream()?);
        }
        Ok(Session { shared: Arc::new(shared) })
    }

    /// The device that it uploads to.
    pub fn device(&self) -> &'static Device {
        self.shared.ring.device()
    }

    /// Bytes per second of copies to the device, measured once. Fails in a forked child.
    pub fn h2d_rate(&self) -> Result<f64> {
        self.device().check_process()?;
        self.shared.ring.h2d_rate()
    }

    /// Submits a batch and returns its ticket's number. None of its copies begins before the work that is in `stream` now is done.
    /// `cancel` is the one that the items' conversions check. Fails in a forked child and after [`Session::close`].
    pub fn submit(
        &self,
        items: Vec<UploadItem>,
        stream: Option<CallerStream>,
        cancel: Cancel,
    ) -> Result<u64> {
        let shared = &self.shared;
        shared.ring.device().check_process()?;
        let number = {
            let mut state = lock(&shared.state);
            state.last_number += 1;
            state.last_number
        };
        if let Some(stream) = stream {
            shared.wait_for_caller_stream(stream, number)?;
        }
        let wanted = shared.sizes.workers_for(&items);
        let destinations = items.iter().map(|item| item.destination.clone()).collect();
        let missing = {
            let mut state = lock(&shared.state);
            if state.closing {
                bail!(Code::Closed, "the upload is closed");
            }
            state.tickets.insert(number, Ticket::new(destinations, cancel.clone()));
            state.planners.push_back(Planner::new(number, items, cancel));
            let missing = wanted.saturating_sub(state.workers);
            state.workers += missing;
            missing
        };
        shared.work_available.notify_all();
        for started in 0..missing {
            if let Err(error) = self.start_worker() {
                if shared.withdraw(number, missing - started) {
                    return Err(error);
                }
                break;
            }
        }
        Ok(number)
    }

    /// Starts a worker, which the session counts already.
    fn start_worker(&self) -> Result<()> {
        let (shared, running) = (Arc::downgrade(&self.shared), self.shared.running.clone());
        self.shared.ring.workers().run(Box::new(move || {
            let Some(shared) = shared.upgrade() else { return };
            let number = running.enter();
            shared.run_worker(number);
            // Before the session learns that the worker has left it, so that nothing outlives the session.
            drop(shared);
            running.leave();
        }))
    }

    /// Waits, no longer than `timeout`, until all copies of a ticket are enqueued; then makes later work in `stream` wait for them,
    /// and with `sync` waits until they are done. Call it until it returns [`Waited::Done`], which ends the ticket. An error ends
    /// the ticket too. It is returned once no copy of the ticket is in flight, with the index of the item that failed, if it
    /// concerns one.
    pub fn wait(
        &self,
        number: u64,
        stream: Option<CallerStream>,
        sync: bool,
        timeout: Duration,
    ) -> Result<Waited, (Option<usize>, Error)> {
        let shared = &self.shared;
        shared.ring.device().check_process().map_err(|error| (None, error))?;
        // None: a timeout beyond the clock's range means no deadline.
        let deadline = Instant::now().checked_add(timeout);
        let mut state = lock(&shared.state);
        loop {
            let Some(ticket) = state.tickets.get(&number) else {
                let text = format!("there is no ticket {number}, or it was waited for before");
                return Err((None, Error::new(Code::Value, text)));
            };
            if ticket.is_ended() {
                break;
            }
            let remaining =
                deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if remaining.is_zero() {
                return Ok(Waited::Waiting);
            }
            // All workers left before the work was done, because the device's threads were ended.
            if state.workers == 0 && !state.closing {
                state.workers += 1;
                drop(state);
                let is_started = self.start_worker().is_ok();
                if !is_started {
                    // The system refuses a thread, so the caller is the worker.
                    shared.run_worker(shared.running.enter());
                    shared.running.leave();
                }
                state = lock(&shared.state);
                if !is_started {
                    continue; // the ticket may have ended, without a notification that this thread could wait for
                }
            }
            let remaining = remaining.min(WAIT_MAX);
            state = shared.progress.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        // Taken out of the table, so that its events can be waited for without the lock.
        let Some(mut ticket) = state.tickets.remove(&number) else { return Ok(Waited::Waiting) };
        drop(state);
        if let Some(failed) = ticket.failed.take() {
            shared.release(ticket);
            return Err(failed);
        }
        match ticket.wait_for_completion(shared.ring.device(), stream, sync, deadline) {
            Ok(Waited::Waiting) => {
                lock(&shared.state).tickets.insert(number, ticket);
                Ok(Waited::Waiting)
            }
            Ok(Waited::Done) => {
                for event in ticket.completion_events.take().unwrap_or_default() {
                    shared.ring.return_event(event);
                }
                if !sync && stream.is_none() {
                    lock(&shared.state).unawaited_destinations.append(&mut ticket.destinations);
                }
                Ok(Waited::Done)
            }
            Err(error) => {
                shared.release(ticket);
                Err((None, error))
            }
        }
    }

    /// Cancels all tickets, and returns once no copy is in flight. Tickets that were not waited for are lost.
    pub fn close(&self) {
        let shared = &self.shared;
        if !shared.ring.device().is_usable_in_this_process() {
            // A forked child: the threads are the parent's, and so is the memory, which must not be freed here.
            std::mem::forget(self.shared.clone());
            return;
        }
        let (planners, jobs) = {
            let mut state = lock(&shared.state);
            state.closing = true;
            state.tickets.values().for_each(|ticket| ticket.cancel.cancel());
            (std::mem::take(&mut state.planners), std::mem::take(&mut state.jobs))
        };
        shared.work_available.notify_all();
        drop((planners, jobs));
        shared.running.wait_until_none();
        let (tickets, destinations, _jobs) = {
            let mut state = lock(&shared.state);
            let jobs = std::mem::take(&mut state.jobs);
            (std::mem::take(&mut state.tickets), std::mem::take(&mut state.unawaited_destinations), jobs)
        };
        // A thread that waits for one of these tickets gets an error.
        shared.progress.notify_all();
        if tickets.is_empty() && destinations.is_empty() {
            return;
        }
        if shared.synchronize_streams() {
            for event in tickets.into_values().flat_map(|ticket| ticket.completion_events.unwrap_or_default())
            {
                shared.ring.return_event(event);
            }
        } else {
            std::mem::forget((tickets, destinations));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends the threads of all devices' uploads, once they have done the jobs that they are doing. To be called before the process ends,
/// so that no thread is inside the driver when it is unloaded; a later upload starts threads again. A forked child returns at once.
pub fn end_workers() {
    for ring in Ring::all() {
        ring.workers().end();
    }
}
