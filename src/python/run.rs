//! Runs core work without holding the interpreter: panics become an error, and Ctrl-C stops long work.

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{Code, Error, Result, guarded};
use crate::parallel::Cancel;

/// Work on more bytes than this watches for Ctrl-C.
const LONG: u64 = 32 << 20;

/// How often long work lets Python look at its signals.
const TICK: Duration = Duration::from_millis(50);

/// Runs `work` without the interpreter.
pub(super) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    Ok(py.detach(|| guarded(work))?)
}

/// Whether work on so many bytes watches for Ctrl-C.
pub(super) fn is_long(nbytes: u64) -> bool {
    nbytes >= LONG
}

/// Runs `work` on `nbytes` without the interpreter; a signal whose handler raises makes it stop, and is raised.
pub(super) fn interruptible<T: Send>(
    py: Python<'_>,
    nbytes: u64,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    watched(py, is_long(nbytes), cancel, work)
}

/// Runs `work` without the interpreter; if it may be long, a signal whose handler raises makes it stop, and is raised.
pub(super) fn watched<T: Send>(
    py: Python<'_>,
    long: bool,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    if !long {
        return detached(py, work);
    }
    let mut signal: Option<PyErr> = None;
    let work = Mutex::new(Some(work));
    let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let result = py.detach(|| {
        thread::scope(|scope| {
            let (done, wait) = mpsc::channel();
            let take = &take;
            let worker = move || {
                if let Some(work) = take() {
                    // The receiver lives until the scope ends.
                    let _ = done.send(guarded(work));
                }
            };
            // Where the system refuses another thread, this one does the work, and nobody watches.
            if thread::Builder::new().spawn_scoped(scope, worker).is_err()
                && let Some(work) = take()
            {
                return guarded(work);
            }
            loop {
                match wait.recv_timeout(TICK) {
                    Ok(result) => return result,
                    Err(mpsc::RecvTimeoutError::Disconnected) => {
                        return Err(Error::new(Code::InternalError, "internal error: a worker vanished"));
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) if signal.is_none() => {
                        if let Err(error) = Python::attach(|py| py.check_signals()) {
                            cancel.cancel();
                            signal = Some(error);
                        }
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
            }
        })
    });
    match signal {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}
