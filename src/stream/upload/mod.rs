//! Uploads: results made in a ring of pinned slots and copied to a GPU from there, by workers of a session's own.
//!
//! A ticket is a batch of results with the memory that they go to. Workers turn its results into jobs, a few at a time, and do the
//! jobs: take a slot, fill it as [`fill`](super::fill) fills memory, begin its copy. So reading, casting and copying overlap,
//! across tickets too, and no byte waits in host memory but in the ring. Parts of a result that would be read in
//! short runs are made in bands, in memory that the window bounds.
//!
//! Order: no copy of a ticket begins before what the caller's stream had when it was submitted. Once all copies of a ticket are
//! begun, an event behind them is what a stream, or the caller, waits for. The destinations are kept until then. After an error,
//! and at the end, the session's own streams are waited for, so that nothing is on its way to memory that is freed.

mod cut;
mod job;
mod plan;
mod rate;
mod shared;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use cut::Part;
pub use job::FillPart;
pub use rate::cast_rate;

use plan::{Planner, Sizes};
use shared::{Shared, Ticket};

use super::{Fill, Payload};
use crate::error::{Code, Error, Result};
use crate::layout::{Dims, Layout};
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::sink::cuda::{CallerStream, Device};

/// Streams of a session: with two, one copy begins where another ends.
const STREAMS: usize = 2;

/// The most that a session takes of host memory beside the ring.
const WINDOW: u64 = 128 << 20;

/// The longest single wait for a condition: longer ones may overflow the system's clock, and are begun again.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// One result and where it goes.
pub struct Item {
    /// Memory of the session's device, contiguous, of exactly the result's bytes. It is kept until the copies are done.
    pub place: Array,
    /// Bytes of host memory that its source takes while it is read, as what has to be inflated does.
    pub host: u64,
    /// Says what to make; called when its turn comes, by a worker.
    pub make: Box<dyn FnOnce() -> Result<Make> + Send>,
}

/// What to make.
pub enum Make {
    /// Elements of a storage, in the order of the layout, converted on the way.
    Elements {
        /// The storage's bytes.
        payload: Payload,
        /// The elements, proved to lie inside the payload.
        layout: Layout,
        /// The conversion. Its request to stop is the ticket's.
        how: Fill,
    },
    /// Anything that can be made in parts.
    Parts {
        /// Of the result.
        shape: Dims,
        /// Of one element.
        itemsize: u64,
        /// Makes one.
        fill: FillPart,
    },
}

/// How waiting for a ticket went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It is as the caller wanted it.
    Done,
    /// Not yet.
    Waiting,
}

/// Uploads to one device; see the module. Dropping it stops it and waits for what is in flight.
pub struct Session {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Session {
    /// A session on this device. `threads` fill slots; `None` for as many as keep the link busy.
    pub fn new(device: &'static Device, window: u64, threads: Option<usize>) -> Result<Session> {
        let ring = device.ring()?;
        let count = ring.workers(threads);
        let mut streams = Vec::new();
        while streams.len() < count.min(STREAMS) {
            match ring.stream() {
                Ok(stream) => streams.push(stream),
                Err(error) => {
                    streams.into_iter().for_each(|stream| ring.return_stream(stream));
                    return Err(error);
                }
            }
        }
        let sizes = Sizes {
            slot: ring.slot_bytes() as u64,
            workers: count as u64,
            window: window.min(WINDOW),
            room: Arc::default(),
        };
        let shared = Arc::new(Shared::new(ring, streams, sizes));
        Ok(Session { shared, workers: Mutex::default() })
    }

    /// The device that it uploads to.
    pub fn device(&self) -> &'static Device {
        self.shared.ring.device()
    }

    /// Takes a batch on; its number. No copy of it begins before what is in `stream` now is done. `cancel` is what the items'
    /// conversions look at.
    pub fn submit(&self, items: Vec<Item>, stream: Option<CallerStream>, cancel: Cancel) -> Result<u64> {
        let shared = &self.shared;
        shared.ring.device().check_process()?;
        if let Some(stream) = stream {
            shared.follow(stream)?;
        }
        self.start()?;
        let mut state = self.shared.lock();
        if state.closing {
            return Err(Error::new(Code::Closed, "the upload is closed"));
        }
        state.last += 1;
        let number = state.last;
        let places = items.iter().map(|item| item.place.clone()).collect();
        state.tickets.insert(number, Ticket::new(places, cancel.clone()));
        state.planners.push_back(Planner::new(number, items, cancel));
        drop(state);
        self.shared.work.notify_all();
        Ok(number)
    }

    fn start(&self) -> Result<()> {
        let wanted = usize::try_from(self.shared.sizes.workers).unwrap_or(1);
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        while workers.len() < wanted {
            let (shared, number) = (self.shared.clone(), workers.len());
            let named = thread::Builder::new().name("rustload-upload".to_owned());
            match named.spawn(move || shared.work(number)) {
                Ok(worker) => workers.push(worker),
                // Where the system refuses another thread, those that there are do the work.
                Err(_) if !workers.is_empty() => break,
                Err(error) => return Err(Error::io(error, None)),
            }
        }
        Ok(())
    }

    /// Waits, no longer than `patience`, until all copies of a ticket are begun; makes what comes after in `stream` wait for
    /// them; with `sync`, waits until they are done. Call it until it is done, which ends the ticket. An error comes with the number
    /// of the item that it is about, if it is about one, once nothing of the ticket is in flight, and ends the ticket too.
    pub fn wait(
        &self,
        number: u64,
        stream: Option<CallerStream>,
        sync: bool,
        patience: Duration,
    ) -> Result<Waited, (Option<usize>, Error)> {
        let shared = &self.shared;
        shared.ring.device().check_process().map_err(|error| (None, error))?;
        // None: a wait too long for the clock has no end.
        let deadline = Instant::now().checked_add(patience);
        let mut state = shared.lock();
        loop {
            let Some(ticket) = state.tickets.get(&number) else {
                let text = format!("there is no ticket {number}, or it was waited for before");
                return Err((None, Error::new(Code::Value, text)));
            };
            if ticket.is_ended() {
                break;
            }
            let left = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Waited::Waiting);
            }
            let left = left.min(WAIT_MAX);
            state = shared.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        // While nobody else sees it, so that its events can be waited for without the lock.
        let Some(mut ticket) = state.tickets.remove(&number) else { return Ok(Waited::Waiting) };
        drop(state);
        if let Some(failed) = ticket.failed.take() {
            shared.end(ticket);
            return Err(failed);
        }
        match ticket.order(shared.ring.device(), stream, sync, deadline) {
            Ok(Waited::Waiting) => {
                shared.lock().tickets.insert(number, ticket);
                Ok(Waited::Waiting)
            }
            Ok(Waited::Done) => {
                for event in ticket.marks.take().unwrap_or_default() {
                    shared.ring.return_event(event);
                }
                if !sync && stream.is_none() {
                    shared.lock().kept.append(&mut ticket.places);
                }
                Ok(Waited::Done)
            }
            Err(error) => {
                shared.end(ticket);
                Err((None, error))
            }
        }
    }

    /// Stops, and returns once nothing is in flight. Tickets that were not waited for are lost.
    pub fn close(&self) {
        let shared = &self.shared;
        if !shared.ring.device().is_usable_in_this_process() {
            // The parent's: its threads are not here, and its memory is not to be freed from here.
            std::mem::forget(self.shared.clone());
            return;
        }
        let (planners, jobs) = {
            let mut state = shared.lock();
            state.closing = true;
            state.tickets.values().for_each(|ticket| ticket.cancel.cancel());
            (std::mem::take(&mut state.planners), std::mem::take(&mut state.jobs))
        };
        shared.work.notify_all();
        drop((planners, jobs));
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // A panic has been told as an error.
            let _ = worker.join();
        }
        let (tickets, kept) = {
            let mut state = shared.lock();
            (std::mem::take(&mut state.tickets), std::mem::take(&mut state.kept))
        };
        if tickets.is_empty() && kept.is_empty() {
            return;
        }
        if shared.settle() {
            for event in tickets.into_values().flat_map(|ticket| ticket.marks.unwrap_or_default()) {
                shared.ring.return_event(event);
            }
        } else {
            std::mem::forget((tickets, kept));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}
