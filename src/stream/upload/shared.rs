//! The state that a session's workers and its caller share: tickets, jobs, and the workers' loop.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Waited;
use super::job::{HostReservation, Job, Worker};
use super::plan::{Planner, Sizes};
use crate::error::{Error, Result, guarded};
use crate::num::to_usize;
use crate::parallel::{Cancel, lock};
use crate::sink::Array;
use crate::sink::cuda::{CallerStream, Device, Event, Ring, Stream};

/// How often a worker checks whether its job fits the window by now.
const WINDOW_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a worker without work stays with the session, before its thread is free for others.
const LINGER: Duration = Duration::from_millis(2);

/// The CUDA streams of a session are divided into lanes, and the tickets take turns: the copies of a ticket wait only for the work that
/// was in the caller's stream when this ticket was submitted. So while the GPU converts what one ticket copied, the next one is copied.
pub(super) const LANES: usize = 2;

/// A session's shared state.
pub(super) struct Shared {
    pub(super) ring: &'static Ring,
    /// Those of the first lane, then those of the next.
    pub(super) streams: Vec<Stream>,
    pub(super) sizes: Sizes,
    pub(super) state: Mutex<State>,
    /// Notified when there is work, and when the session closes.
    pub(super) work_available: Condvar,
    /// Notified when a ticket is completed.
    pub(super) progress: Condvar,
    pub(super) running: Arc<Running>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) last_number: u64,
    /// In the order of submission.
    pub(super) planners: VecDeque<Planner>,
    /// Whether a worker is running the first planner.
    planning: bool,
    /// Each with its ticket's number.
    pub(super) jobs: VecDeque<(u64, Job)>,
    pub(super) tickets: HashMap<u64, Ticket>,
    /// Completed destinations whose copies neither a stream nor the caller waits for; kept alive until the session closes.
    pub(super) unawaited_destinations: Vec<Array>,
    pub(super) closing: bool,
    /// The number of workers that look for work, or will.
    pub(super) workers: usize,
}

/// The workers that run for a session. It outlives the session, which waits for them.
#[derive(Default)]
pub(super) struct Running {
    count: Mutex<usize>,
    /// Notified when the last worker leaves.
    left: Condvar,
}

#[derive(Default)]
pub(super) struct Ticket {
    pub(super) cancel: Cancel,
    pub(super) destinations: Vec<Array>,
    pub(super) is_planned: bool,
    /// The number of unfinished jobs.
    jobs_left: usize,
    pub(super) failed: Option<(Option<usize>, Error)>,
    /// Whether a thread is recording its completion events.
    is_completing: bool,
    /// Recorded behind its copies, once all are enqueued.
    pub(super) completion_events: Option<Vec<Event>>,
    /// Whether the caller's stream waits for the completion events.
    is_waited_for: bool,
}

/// What a worker does next.
enum Next {
    Plan(Planner),
    Job(u64, Job, Option<HostReservation>, Cancel),
    Stop,
}

impl Running {
    /// Counts a worker; returns the number of those before.
    pub(super) fn enter(&self) -> usize {
        let mut count = lock(&self.count);
        *count += 1;
        *count - 1
    }

    pub(super) fn leave(&self) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(1);
        drop(count);
        self.left.notify_all();
    }

    pub(super) fn wait_until_none(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.left.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
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
    pub(super) fn new(destinations: Vec<Array>, cancel: Cancel) -> Ticket {
        Ticket { cancel, destinations, ..Ticket::default() }
    }

    /// Whether all its copies are enqueued, or it failed and no job of it is left.
    pub(super) fn is_ended(&self) -> bool {
        self.is_planned && self.jobs_left == 0 && (self.completion_events.is_some() || self.failed.is_some())
    }

    /// Makes later work in `stream` wait for the ticket's copies; with `sync`, waits until they are done, at most until `deadline`.
    pub(super) fn wait_for_completion(
        &mut self,
        device: &Device,
        stream: Option<CallerStream>,
        sync: bool,
        deadline: Option<Instant>,
    ) -> Result<Waited> {
        let completion_events = self.completion_events.as_deref().unwrap_or_default();
        if let Some(stream) = stream.filter(|_| !self.is_waited_for) {
            completion_events.iter().try_for_each(|event| device.wait_event(stream, event))?;
            self.is_waited_for = true;
        }
        for event in completion_events.iter().filter(|_| sync) {
            if !event.wait(deadline, &Cancel::new())? {
                return Ok(Waited::Waiting);
            }
        }
        Ok(Waited::Done)
    }
}

impl Shared {
    pub(super) fn new(ring: &'static Ring, sizes: Sizes) -> Shared {
        Shared {
            ring,
            streams: Vec::new(),
            sizes,
            state: Mutex::default(),
            work_available: Condvar::new(),
            progress: Condvar::new(),
            running: Arc::default(),
        }
    }

    /// The streams of a ticket's lane.
    fn lane(&self, ticket: u64) -> &[Stream] {
        let lane_len = self.streams.len() / LANES;
        let first = to_usize(ticket % LANES as u64) * lane_len;
        self.streams.get(first..first + lane_len).unwrap_or_default()
    }

    /// Makes all copies that are enqueued from now on in a ticket's lane wait for the work that is in a caller's stream now.
    pub(super) fn wait_for_caller_stream(&self, stream: CallerStream, ticket: u64) -> Result<()> {
        let event = self.ring.event()?;
        self.ring.device().record_event(stream, &event)?;
        self.lane(ticket).iter().try_for_each(|own| own.wait_event(&event))?;
        // The streams keep waiting for this record, also when the event is recorded again.
        self.ring.return_event(event);
        Ok(())
    }

    /// A worker's loop: until there is no work, or the session closes.
    pub(super) fn run_worker(&self, number: usize) {
        let mut worker = Worker::new(self.ring);
        loop {
            match self.next() {
                Next::Plan(planner) => self.plan(planner),
                Next::Job(ticket, job, reservation, cancel) => {
                    let item = job.item();
                    let lane = self.lane(ticket);
                    let mut outcome = Ok(());
                    let guard_result = guarded(|| {
                        let Some(stream) = lane.get(number % lane.len().max(1)) else { return Ok(()) };
                        outcome = cancel
                            .check()
                            .map_err(|error| (item, error))
                            .and_then(|()| cancel.during(|| worker.run(job, stream, &cancel)));
                        Ok(())
                    });
                    drop(reservation);
                    self.record_job_done(ticket, guard_result.map_err(|error| (item, error)).and(outcome));
                }
                // `next` has counted that it stops.
                Next::Stop => return,
            }
        }
    }

    /// Counts that so many workers could not be started. If there is no other, takes the ticket back, and returns true.
    pub(super) fn withdraw(&self, number: u64, workers: usize) -> bool {
        let mut state = lock(&self.state);
        state.workers = state.workers.saturating_sub(workers);
        if state.workers > 0 {
            return false;
        }
        state.planners.retain(|planner| planner.ticket != number);
        state.tickets.remove(&number);
        true
    }

    /// What to do next: plan if few jobs are left, else run the first job that fits the memory budget.
    fn next(&self) -> Next {
        let mut state = lock(&self.state);
        let mut idle_since = None;
        loop {
            if state.closing || self.ring.workers().is_ending() {
                return state.stop_worker();
            }
            let has_few_jobs = state.jobs.len() < 2 * state.workers;
            let Sizes { budget, window, .. } = &self.sizes;
            let fits = state
                .planners
                .front()
                .is_some_and(|planner| budget.fits(planner.next_host_bytes(), *window, false));
            if has_few_jobs
                && fits
                && !state.planning
                && let Some(planner) = state.planners.pop_front()
            {
                state.planning = true;
                return Next::Plan(planner);
            }
            let position =
                state.jobs.iter().position(|(_, job)| budget.fits(job.host_bytes(), *window, true));
            if let Some((number, job)) = position.and_then(|position| state.jobs.remove(position)) {
                let reservation = budget.reserve(job.host_bytes(), true);
                let cancel =
                    state.tickets.get(&number).map(|ticket| ticket.cancel.clone()).unwrap_or_default();
                return Next::Job(number, job, reservation, cancel);
            }
            let idle = state.jobs.is_empty() && state.planners.is_empty() && !state.planning;
            let timeout = if idle {
                let waited = idle_since.get_or_insert_with(Instant::now).elapsed();
                match LINGER.checked_sub(waited).filter(|left| !left.is_zero()) {
                    Some(left) => left,
                    None => return state.stop_worker(),
                }
            } else {
                // A release of memory notifies no one, so this polls.
                idle_since = None;
                WINDOW_POLL_INTERVAL
            };
            state =
                self.work_available.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn plan(&self, mut planner: Planner) {
        let (number, cancel) = (planner.ticket, planner.cancel.clone());
        let mut planned = Ok(Vec::new());
        let guard_result = guarded(|| {
            planned =
                cancel.during(|| planner.step(&self.sizes)).map_err(|(item, error)| (Some(item), error));
            Ok(())
        });
        let planned = guard_result.map_err(|error| (None, error)).and(planned);
        let is_last_step = planned.is_err() || planner.is_done();
        let mut state = lock(&self.state);
        state.planning = false;
        let jobs = match planned {
            Ok(jobs) => jobs,
            Err((item, error)) => {
                state.fail(number, item, error);
                Vec::new()
            }
        };
        if let Some(ticket) = state.tickets.get_mut(&number) {
            ticket.jobs_left += jobs.len();
            ticket.is_planned = is_last_step;
        }
        state.jobs.extend(jobs.into_iter().map(|job| (number, job)));
        let finished_planner = if is_last_step || state.closing {
            Some(planner)
        } else {
            state.planners.push_front(planner);
            None
        };
        drop(state);
        drop(finished_planner);
        self.work_available.notify_all();
        self.finish_if_done(number);
    }

    /// Counts a job as done, and keeps its error.
    fn record_job_done(&self, number: u64, result: Result<(), (usize, Error)>) {
        let mut state = lock(&self.state);
        if let Err((item, error)) = result {
            state.fail(number, Some(item), error);
        }
        if let Some(ticket) = state.tickets.get_mut(&number) {
            ticket.jobs_left = ticket.jobs_left.saturating_sub(1);
        }
        drop(state);
        self.finish_if_done(number);
    }

    /// Records completion events and wakes waiters once the last job of a ticket is done.
    fn finish_if_done(&self, number: u64) {
        let mut state = lock(&self.state);
        let is_done =
            |ticket: &&mut Ticket| ticket.is_planned && ticket.jobs_left == 0 && !ticket.is_completing;
        let Some(ticket) = state.tickets.get_mut(&number).filter(is_done) else { return };
        ticket.is_completing = true;
        let succeeded = ticket.failed.is_none();
        drop(state);
        let completion_events = if succeeded { Some(self.record_completion(number)) } else { None };
        let mut state = lock(&self.state);
        match completion_events {
            Some(Ok(completion_events)) => {
                if let Some(ticket) = state.tickets.get_mut(&number) {
                    ticket.completion_events = Some(completion_events);
                }
            }
            Some(Err(error)) => state.fail(number, None, error),
            None => {}
        }
        drop(state);
        self.progress.notify_all();
    }

    /// Records an event in each stream of a ticket's lane, behind all its copies.
    fn record_completion(&self, ticket: u64) -> Result<Vec<Event>> {
        let lane = self.lane(ticket);
        let mut completion_events = Vec::with_capacity(lane.len());
        for stream in lane {
            let event = self.ring.event()?;
            stream.record_event(&event)?;
            completion_events.push(event);
        }
        Ok(completion_events)
    }

    /// Drops a ticket that failed, once no copy to its destinations is in flight. Leaks it if that cannot be known.
    pub(super) fn release(&self, ticket: Ticket) {
        if self.synchronize_streams() { drop(ticket) } else { std::mem::forget(ticket) }
    }

    /// Waits for all work in the streams. False if the driver does not confirm that it is done.
    pub(super) fn synchronize_streams(&self) -> bool {
        // Tried twice, as the first error may concern other work.
        self.streams.iter().all(|stream| stream.synchronize().or_else(|_| stream.synchronize()).is_ok())
    }
}

impl State {
    /// Counts that a worker stops. Under the lock under which it has seen that there is no work, so that none is missed.
    fn stop_worker(&mut self) -> Next {
        self.workers = self.workers.saturating_sub(1);
        Next::Stop
    }

    /// Keeps the first error of a ticket and cancels its remaining jobs.
    fn fail(&mut self, number: u64, item: Option<usize>, error: Error) {
        if let Some(ticket) = self.tickets.get_mut(&number) {
            ticket.cancel.cancel();
            ticket.failed.get_or_insert((item, error));
        }
    }
}
