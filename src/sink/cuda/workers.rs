//! The threads of a device's uploads: kept from upload to upload, with the device's context current.
//!
//! They are started when tasks need them, wait for tasks, and end at [`Workers::end`] or with the process. A forked child has no
//! threads and never gets to the lock here: all callers first check that the driver is this process's.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::device::Device;
use super::numa::Cpus;
use crate::error::{Error, Result};
use crate::parallel::lock;

/// What a thread does until it has no more work.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Threads of one device.
#[derive(Debug)]
pub(crate) struct Workers {
    device: &'static Device,
    cpus: Cpus,
    state: Mutex<State>,
    /// Notified when there is a task, and when the threads shall end.
    changed: Condvar,
    /// The number of calls of [`Workers::end`] under way. Changed under the lock.
    ending: AtomicUsize,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    threads: Vec<JoinHandle<()>>,
    /// The number of threads that run.
    running: usize,
    /// The number of threads that wait for a task.
    idle: usize,
}

impl Workers {
    pub(super) fn new(device: &'static Device, cpus: Cpus) -> Workers {
        Workers {
            device,
            cpus,
            state: Mutex::default(),
            changed: Condvar::new(),
            ending: AtomicUsize::new(0),
        }
    }

    /// Runs a task on a thread that waits for one, or on a new one. If the system refuses another thread, the task waits for one of
    /// the existing threads; fails if there is none.
    pub(crate) fn run(&'static self, task: Task) -> Result<()> {
        let mut state = lock(&self.state);
        if state.idle <= state.tasks.len() {
            let builder = thread::Builder::new().name("rustload-upload".to_owned());
            match builder.spawn(move || self.work()) {
                Ok(thread) => {
                    state.threads.push(thread);
                    state.running += 1;
                }
                Err(error) if state.running == 0 => return Err(Error::io(error, None)),
                Err(_) => {}
            }
        }
        state.tasks.push_back(task);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Whether the threads shall end: tasks stop as soon as they can.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed) > 0
    }

    /// Waits for the running tasks and ends the threads. Tasks after that start new ones.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        self.ending.fetch_add(1, Ordering::Relaxed);
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.changed.notify_all();
        for thread in threads {
            // Panics of tasks are caught.
            let _ = thread.join();
        }
        let _state = lock(&self.state);
        self.ending.fetch_sub(1, Ordering::Relaxed);
    }

    fn work(&self) {
        self.cpus.enter();
        // If this fails, each call of the driver does it again, and reports it.
        let _ = self.device.make_current();
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                // A task reports its panics itself. None may take the thread from the tasks of other uploads.
                let _ = catch_unwind(AssertUnwindSafe(task));
                state = lock(&self.state);
            } else if self.is_ending() {
                state.running -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} threads, {} idle, {} tasks", self.threads.len(), self.idle, self.tasks.len())
    }
}
