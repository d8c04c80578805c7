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

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use cut::Part;
pub use job::FillPart;
pub use rate::cast_rate;

use job::{Held, Job, Worker};
use plan::{Planner, Sizes};

use super::{Fill, Payload};
use crate::bytes::Scratch;
use crate::error::{Code, Error, Result, guarded};
use crate::layout::{Dims, Layout};
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::sink::cuda::{Device, Event, Ring, Stream};

/// Streams of a session: with two, one copy begins where another ends.
const STREAMS: usize = 2;

/// The most that a session takes of host memory beside the ring.
const WINDOW: u64 = 128 << 20;

/// How often a worker looks for room in the window.
const TICK: Duration = Duration::from_millis(5);

/// How often the caller looks whether copies are done.
const LOOK: Duration = Duration::from_micros(20);

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

struct Shared {
    ring: &'static Ring,
    streams: Vec<Stream>,
    sizes: Sizes,
    state: Mutex<State>,
    /// There is something to be done, or an end.
    work: Condvar,
    /// A ticket got further.
    news: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    /// In the order of submission.
    planners: VecDeque<Planner>,
    /// Whether a worker has the first planner.
    planning: bool,
    /// With the number of the ticket.
    jobs: VecDeque<(u64, Job)>,
    tickets: HashMap<u64, Ticket>,
    /// Destinations of tickets that nobody has ordered anything behind.
    kept: Vec<Array>,
    closing: bool,
}

struct Ticket {
    cancel: Cancel,
    places: Vec<Array>,
    planned: bool,
    /// Jobs that are not done.
    left: usize,
    failed: Option<(Option<usize>, Error)>,
    /// Whether somebody is about to mark it.
    ending: bool,
    /// Behind its copies, once all are begun.
    marks: Option<Vec<Event>>,
    /// Whether the caller's stream waits for it by now.
    held: bool,
}

enum Next {
    Plan(Planner),
    Job(u64, Job, Option<Held>, Cancel),
    Stop,
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
        let shared = Shared {
            ring,
            streams,
            sizes,
            state: Mutex::default(),
            work: Condvar::new(),
            news: Condvar::new(),
        };
        Ok(Session { shared: Arc::new(shared), workers: Mutex::default() })
    }

    /// The device that it uploads to.
    pub fn device(&self) -> &'static Device {
        self.shared.ring.device()
    }

    /// Takes a batch on; its number. No copy of it begins before what is in `stream` now is done. `cancel` is what the items'
    /// conversions look at.
    pub fn submit(&self, items: Vec<Item>, stream: Option<u64>, cancel: Cancel) -> Result<u64> {
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
        let ticket = Ticket {
            cancel: cancel.clone(),
            places,
            planned: false,
            left: 0,
            failed: None,
            ending: false,
            marks: None,
            held: false,
        };
        state.tickets.insert(number, ticket);
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
        stream: Option<u64>,
        sync: bool,
        patience: Duration,
    ) -> Result<Waited, (Option<usize>, Error)> {
        let shared = &self.shared;
        shared.ring.device().check_process().map_err(|error| (None, error))?;
        let deadline = Instant::now() + patience;
        let mut state = shared.lock();
        loop {
            let Some(ticket) = state.tickets.get(&number) else {
                let text = format!("there is no ticket {number}, or it was waited for before");
                return Err((None, Error::new(Code::Value, text)));
            };
            if ticket.is_ended() {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Waited::Waiting);
            }
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
        if !shared.ring.device().is_own() {
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

impl Drop for Shared {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            self.ring.return_stream(stream);
        }
    }
}

impl Ticket {
    /// Whether all its copies are begun, or it failed and no job of it is left.
    fn is_ended(&self) -> bool {
        self.planned && self.left == 0 && (self.marks.is_some() || self.failed.is_some())
    }

    fn order(
        &mut self,
        device: &Device,
        stream: Option<u64>,
        sync: bool,
        deadline: Instant,
    ) -> Result<Waited> {
        let marks = self.marks.as_deref().unwrap_or_default();
        if let Some(stream) = stream.filter(|_| !self.held) {
            marks.iter().try_for_each(|mark| device.hold(stream, mark))?;
            self.held = true;
        }
        for mark in marks.iter().filter(|_| sync) {
            while !mark.is_done()? {
                if Instant::now() >= deadline {
                    return Ok(Waited::Waiting);
                }
                thread::sleep(LOOK);
            }
        }
        Ok(Waited::Done)
    }
}

impl Shared {
    /// Lets no copy begin, from now on, before what is in a caller's stream now.
    fn follow(&self, stream: u64) -> Result<()> {
        let event = self.ring.event()?;
        self.ring.device().mark(stream, &event)?;
        self.streams.iter().try_for_each(|own| own.wait(&event))?;
        // The streams wait for what it marked, whatever it will mark next.
        self.ring.return_event(event);
        Ok(())
    }

    /// A worker's life.
    fn work(&self, number: usize) {
        // Where it fails, each call says so.
        let _ = self.ring.device().enter();
        let Some(stream) = self.streams.get(number % self.streams.len().max(1)) else { return };
        let mut worker = Worker { ring: self.ring, stream, scratch: Scratch::default(), blocks: Vec::new() };
        loop {
            match self.next() {
                Next::Plan(planner) => self.plan(planner),
                Next::Job(ticket, job, held, cancel) => {
                    let item = job.item();
                    let mut found = Ok(());
                    let done = guarded(|| {
                        found = cancel
                            .check()
                            .map_err(|error| (item, error))
                            .and_then(|()| worker.run(job, &cancel));
                        Ok(())
                    });
                    drop(held);
                    self.done(ticket, done.map_err(|error| (item, error)).and(found));
                }
                Next::Stop => return,
            }
        }
    }

    /// What to do next: plan where few jobs are left, else the first job that there is memory for.
    fn next(&self) -> Next {
        let mut state = self.lock();
        loop {
            if state.closing {
                return Next::Stop;
            }
            let short = state.jobs.len() < 2 * self.workers();
            let Sizes { room, window, .. } = &self.sizes;
            let fits =
                state.planners.front().is_some_and(|planner| room.fits_source(planner.weight(), *window));
            if short
                && fits
                && !state.planning
                && let Some(planner) = state.planners.pop_front()
            {
                state.planning = true;
                return Next::Plan(planner);
            }
            let place = state.jobs.iter().position(|(_, job)| room.fits_band(job.weight(), *window));
            if let Some((number, job)) = place.and_then(|place| state.jobs.remove(place)) {
                let held = room.hold(job.weight(), true);
                let cancel =
                    state.tickets.get(&number).map(|ticket| ticket.cancel.clone()).unwrap_or_default();
                return Next::Job(number, job, held, cancel);
            }
            let idle = state.jobs.is_empty() && state.planners.is_empty();
            state = if idle {
                self.work.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                // Memory comes back without a word.
                self.work.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    fn workers(&self) -> usize {
        usize::try_from(self.sizes.workers).unwrap_or(1)
    }

    fn plan(&self, mut planner: Planner) {
        let number = planner.ticket;
        let mut found = Ok(Vec::new());
        let done = guarded(|| {
            found = planner.step(&self.sizes).map_err(|(item, error)| (Some(item), error));
            Ok(())
        });
        let found = done.map_err(|error| (None, error)).and(found);
        let ends = found.is_err() || planner.is_done();
        let mut state = self.lock();
        state.planning = false;
        let jobs = match found {
            Ok(jobs) => jobs,
            Err((item, error)) => {
                state.fail(number, item, error);
                Vec::new()
            }
        };
        if let Some(ticket) = state.tickets.get_mut(&number) {
            ticket.left += jobs.len();
            ticket.planned = ends;
        }
        state.jobs.extend(jobs.into_iter().map(|job| (number, job)));
        let rest = if ends || state.closing {
            Some(planner)
        } else {
            state.planners.push_front(planner);
            None
        };
        drop(state);
        drop(rest);
        self.work.notify_all();
        self.look(number);
    }

    /// Counts a job as done.
    fn done(&self, number: u64, result: Result<(), (usize, Error)>) {
        let mut state = self.lock();
        if let Err((item, error)) = result {
            state.fail(number, Some(item), error);
        }
        if let Some(ticket) = state.tickets.get_mut(&number) {
            ticket.left = ticket.left.saturating_sub(1);
        }
        drop(state);
        self.look(number);
    }

    /// Ends a ticket of which no job is left: marks what its copies are in, and tells.
    fn look(&self, number: u64) {
        let mut state = self.lock();
        let ended = |ticket: &&mut Ticket| ticket.planned && ticket.left == 0 && !ticket.ending;
        let Some(ticket) = state.tickets.get_mut(&number).filter(ended) else { return };
        ticket.ending = true;
        let good = ticket.failed.is_none();
        drop(state);
        let marks = if good { Some(self.mark()) } else { None };
        let mut state = self.lock();
        match marks {
            Some(Ok(marks)) => {
                if let Some(ticket) = state.tickets.get_mut(&number) {
                    ticket.marks = Some(marks);
                }
            }
            Some(Err(error)) => state.fail(number, None, error),
            None => {}
        }
        drop(state);
        self.news.notify_all();
    }

    /// Events behind all that is in the streams now.
    fn mark(&self) -> Result<Vec<Event>> {
        let mut marks = Vec::with_capacity(self.streams.len());
        for stream in &self.streams {
            let event = self.ring.event()?;
            stream.record(&event)?;
            marks.push(event);
        }
        Ok(marks)
    }

    /// Ends a ticket that failed: its destinations go once nothing is on its way to them.
    fn end(&self, ticket: Ticket) {
        if self.settle() { drop(ticket) } else { std::mem::forget(ticket) }
    }

    /// Waits for all that is in the streams; false where the driver does not say that it is done.
    fn settle(&self) -> bool {
        // A second time, as an error may be about something else.
        self.streams.iter().all(|stream| stream.synchronize().or_else(|_| stream.synchronize()).is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The first error of a ticket is the one that is told; what is left of it stops.
    fn fail(&mut self, number: u64, item: Option<usize>, error: Error) {
        if let Some(ticket) = self.tickets.get_mut(&number) {
            ticket.cancel.cancel();
            ticket.failed.get_or_insert((item, error));
        }
    }
}
