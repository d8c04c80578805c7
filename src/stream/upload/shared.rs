//! What a session's workers and its caller share: the tickets, what is to be done for them, and the workers' life.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Waited;
use super::job::{Held, Job, Worker};
use super::plan::{Planner, Sizes};
use crate::error::{Error, Result, guarded};
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::sink::cuda::{CallerStream, Device, Event, Ring, Stream};

/// How often a worker looks for room in the window.
const TICK: Duration = Duration::from_millis(5);

/// How often the caller looks whether copies are done.
const LOOK: Duration = Duration::from_micros(20);

/// One session's.
pub(super) struct Shared {
    pub(super) ring: &'static Ring,
    pub(super) streams: Vec<Stream>,
    pub(super) sizes: Sizes,
    state: Mutex<State>,
    /// There is something to be done, or an end.
    pub(super) work: Condvar,
    /// A ticket got further.
    pub(super) news: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) last: u64,
    /// In the order of submission.
    pub(super) planners: VecDeque<Planner>,
    /// Whether a worker has the first planner.
    planning: bool,
    /// With the number of the ticket.
    pub(super) jobs: VecDeque<(u64, Job)>,
    pub(super) tickets: HashMap<u64, Ticket>,
    /// Destinations of tickets that nobody has ordered anything behind.
    pub(super) kept: Vec<Array>,
    pub(super) closing: bool,
}

pub(super) struct Ticket {
    pub(super) cancel: Cancel,
    pub(super) places: Vec<Array>,
    pub(super) planned: bool,
    /// Jobs that are not done.
    left: usize,
    pub(super) failed: Option<(Option<usize>, Error)>,
    /// Whether somebody is about to mark it.
    ending: bool,
    /// Behind its copies, once all are begun.
    pub(super) marks: Option<Vec<Event>>,
    /// Whether the caller's stream waits for it by now.
    held: bool,
}

enum Next {
    Plan(Planner),
    Job(u64, Job, Option<Held>, Cancel),
    Stop,
}

impl Drop for Shared {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            self.ring.return_stream(stream);
        }
    }
}

impl Ticket {
    pub(super) fn new(places: Vec<Array>, cancel: Cancel) -> Ticket {
        Ticket {
            cancel,
            places,
            planned: false,
            left: 0,
            failed: None,
            ending: false,
            marks: None,
            held: false,
        }
    }

    /// Whether all its copies are begun, or it failed and no job of it is left.
    pub(super) fn is_ended(&self) -> bool {
        self.planned && self.left == 0 && (self.marks.is_some() || self.failed.is_some())
    }

    pub(super) fn order(
        &mut self,
        device: &Device,
        stream: Option<CallerStream>,
        sync: bool,
        deadline: Option<Instant>,
    ) -> Result<Waited> {
        let marks = self.marks.as_deref().unwrap_or_default();
        if let Some(stream) = stream.filter(|_| !self.held) {
            marks.iter().try_for_each(|mark| device.wait_event(stream, mark))?;
            self.held = true;
        }
        for mark in marks.iter().filter(|_| sync) {
            while !mark.is_done()? {
                if deadline.is_some_and(|end| Instant::now() >= end) {
                    return Ok(Waited::Waiting);
                }
                thread::sleep(LOOK);
            }
        }
        Ok(Waited::Done)
    }
}

impl Shared {
    pub(super) fn new(ring: &'static Ring, streams: Vec<Stream>, sizes: Sizes) -> Shared {
        Shared { ring, streams, sizes, state: Mutex::default(), work: Condvar::new(), news: Condvar::new() }
    }

    /// Lets no copy begin, from now on, before what is in a caller's stream now.
    pub(super) fn follow(&self, stream: CallerStream) -> Result<()> {
        let event = self.ring.event()?;
        self.ring.device().record_event(stream, &event)?;
        self.streams.iter().try_for_each(|own| own.wait_event(&event))?;
        // The streams wait for what it marked, whatever it will mark next.
        self.ring.return_event(event);
        Ok(())
    }

    /// A worker's life.
    pub(super) fn work(&self, number: usize) {
        // Where it fails, each call says so.
        let _ = self.ring.device().make_current();
        let Some(stream) = self.streams.get(number % self.streams.len().max(1)) else { return };
        let mut worker = Worker::new(self.ring, stream);
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
            stream.record_event(&event)?;
            marks.push(event);
        }
        Ok(marks)
    }

    /// Ends a ticket that failed: its destinations go once nothing is on its way to them.
    pub(super) fn end(&self, ticket: Ticket) {
        if self.settle() { drop(ticket) } else { std::mem::forget(ticket) }
    }

    /// Waits for all that is in the streams; false where the driver does not say that it is done.
    pub(super) fn settle(&self) -> bool {
        // A second time, as an error may be about something else.
        self.streams.iter().all(|stream| stream.synchronize().or_else(|_| stream.synchronize()).is_ok())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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
