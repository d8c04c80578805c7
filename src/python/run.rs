//! Runs core work detached from the interpreter. Panics become errors, and Ctrl-C cancels long work.

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::error::{Code, Error, Result, guarded};
use crate::parallel::{Cancel, lock};

/// Work on at least this many bytes can be interrupted by Ctrl-C.
const INTERRUPTIBLE_MIN_BYTES: u64 = 32 << 20;

/// How often Python's signal handlers run during long work.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// Whether this thread runs Python code that the core called.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Calls Python code from the core, on any thread: a method of a file object, for example.
pub(super) fn callback<T>(call: impl FnOnce(Python<'_>) -> T) -> T {
    let outer = IN_CALLBACK.replace(true);
    let result = Python::attach(call);
    IN_CALLBACK.set(outer);
    result
}

/// The error for an exception of a [`callback`], which becomes its cause. An interruption, such as Ctrl-C, ends the whole operation: its
/// other threads may be waiting for callbacks, too.
pub(super) fn callback_failed(error: PyErr, path: impl Into<Option<PathBuf>>) -> Error {
    if !Python::attach(|py| error.is_instance_of::<PyException>(py)) {
        Cancel::cancel_current();
    }
    Error::io(io::Error::other(error), path)
}

/// Drops background work, which waits for its threads, detached from the interpreter: they may be waiting for it, to call Python code.
///
/// Inside a callback, from which the garbage collector may drop the work, another thread drops it: its threads may wait for the
/// calling one, or be it.
pub(super) fn drop_detached<T: Send + 'static>(work: T) {
    if IN_CALLBACK.get() {
        // Leaked if the system refuses a thread.
        let work = ManuallyDrop::new(work);
        let _ = thread::Builder::new().spawn(move || drop(ManuallyDrop::into_inner(work)));
    } else {
        // While the interpreter shuts down, the work is dropped without detaching.
        let _ = Python::try_attach(|py| py.detach(|| drop(work)));
    }
}

/// Whether the operation that this thread works for was stopped, so that a source that waits for an answer waits no longer.
#[pyfunction]
pub(crate) fn is_cancelled() -> bool {
    Cancel::is_current_cancelled()
}

/// Runs `work` detached from the interpreter. A panic becomes an `InternalError`.
pub(super) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    Ok(py.detach(|| guarded(work))?)
}

/// Whether work on so many bytes can be interrupted by Ctrl-C.
pub(super) fn is_long(nbytes: u64) -> bool {
    nbytes >= INTERRUPTIBLE_MIN_BYTES
}

/// As [`interruptible_if`], for work on `nbytes`.
pub(super) fn interruptible<T: Send>(
    py: Python<'_>,
    nbytes: u64,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    interruptible_if(py, is_long(nbytes), cancel, work)
}

/// Runs `work` detached from the interpreter. If it may be long, it runs on another thread while this one handles signals: an
/// exception of a signal handler cancels the work, and is raised once the work has stopped.
pub(super) fn interruptible_if<T: Send>(
    py: Python<'_>,
    long: bool,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    if !long {
        return detached(py, || cancel.during(work));
    }
    interruptible_with(py, cancel, |py| py.check_signals(), |_| work())
}

/// Makes the calling thread of [`interruptible_with`] poll now, if another one does the work.
#[derive(Clone)]
pub(super) struct Wake(Option<mpsc::Sender<Event>>);

impl Wake {
    /// False if this is the calling thread.
    pub(super) fn wake(&self) -> bool {
        self.0.as_ref().is_some_and(|events| events.send(Event::Poll).is_ok())
    }
}

/// What the calling thread is told.
enum Event {
    Poll,
    Done,
}

/// As [`interruptible_if`] for long work. Calls `poll`, which is to handle signals, on this thread from time to time, when the work
/// wakes it, and after the work: an exception of it cancels the work.
pub(super) fn interruptible_with<T: Send>(
    py: Python<'_>,
    cancel: &Cancel,
    mut poll: impl FnMut(Python<'_>) -> PyResult<()> + Send,
    work: impl FnOnce(Wake) -> Result<T> + Send,
) -> PyResult<T> {
    let mut signal: Option<PyErr> = None;
    let work = Mutex::new(Some(work));
    let take = || lock(&work).take();
    let result = py.detach(|| {
        thread::scope(|scope| {
            let (events, wait) = mpsc::channel();
            let take = &take;
            let worker = move || {
                let work = take()?;
                let result = cancel.during(|| guarded(|| work(Wake(Some(events.clone())))));
                // The receiver lives until the scope ends.
                let _ = events.send(Event::Done);
                Some(result)
            };
            // Where the system refuses a thread, the work runs on this one and cannot be interrupted.
            let worker = match thread::Builder::new().spawn_scoped(scope, worker) {
                Ok(worker) => worker,
                Err(_) => return take().map(|work| guarded(|| work(Wake(None)))),
            };
            loop {
                match wait.recv_timeout(SIGNAL_CHECK_INTERVAL) {
                    Ok(Event::Done) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Ok(Event::Poll) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
                if signal.is_none()
                    && let Err(error) = Python::attach(&mut poll)
                {
                    cancel.cancel();
                    signal = Some(error);
                }
            }
            worker.join().ok().flatten()
        })
    });
    match signal {
        Some(error) => Err(error),
        None => {
            let without = "internal error: a worker thread ended without a result";
            let result = result.unwrap_or_else(|| Err(Error::new(Code::InternalError, without)))?;
            poll(py)?;
            Ok(result)
        }
    }
}
