//! Progress of a call that writes, for a Python function on the caller's thread.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use super::run::{self, Wake};
use crate::error::{Error, Result};
use crate::parallel::{Cancel, lock};
use crate::write::{Progress, Step, WriteOptions};

/// How often a thread that waits for the caller looks whether the call was cancelled.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// What the workers have done, and what the caller knows of it.
struct Reports {
    /// Is called with a tensor's name, a number of bytes, and whether an earlier call had written them.
    report: Option<Py<PyAny>>,
    cancel: Cancel,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What the function has not been told yet.
    pending: Vec<(String, u64, Step)>,
    /// Whether the work waits for the caller, who answers once.
    waits: bool,
    /// Whether the target is taking its place, which nothing may end.
    is_settled: bool,
}

impl Reports {
    fn add(&self, name: &str, nbytes: u64, step: Step) {
        let mut state = lock(&self.state);
        state.is_settled = false;
        if self.report.is_some() {
            state.pending.push((name.to_owned(), nbytes, step));
        }
    }

    /// Handles signals and calls the function for everything pending, unless the target is taking its place.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        let (pending, waits) = {
            let mut state = lock(&self.state);
            if state.is_settled {
                return Ok(());
            }
            (std::mem::take(&mut state.pending), state.waits)
        };
        py.check_signals()?;
        for (name, nbytes, step) in pending {
            if let Some(report) = &self.report {
                report.call1(py, (name, nbytes, matches!(step, Step::Reused)))?;
            }
        }
        if waits {
            let mut state = lock(&self.state);
            (state.waits, state.is_settled) = (false, true);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Returns once the caller's thread has delivered everything. From then on signals wait, until there is more to report.
    fn settle(&self, wake: &Wake) -> Result<()> {
        lock(&self.state).waits = true;
        if !wake.wake() {
            return run::callback(|py| self.deliver(py))
                .map_err(|error| Error::io(io::Error::other(error), None));
        }
        let mut state = lock(&self.state);
        while state.waits {
            self.cancel.check()?;
            let waited = self.changed.wait_timeout(state, CANCEL_CHECK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// Runs the writing with its progress reported, and interruptible by Ctrl-C. An exception of `report` or of a signal handler ends it
/// before the target takes its place, or is raised after the call.
pub(super) fn run_reported<T: Send>(
    py: Python<'_>,
    options: &WriteOptions,
    report: Option<Py<PyAny>>,
    work: impl FnOnce(&WriteOptions) -> Result<T> + Send,
) -> PyResult<T> {
    let (state, changed) = (Mutex::default(), Condvar::new());
    let reports = Arc::new(Reports { report, cancel: options.cancel.clone(), state, changed });
    let write = |wake: Wake| {
        let (heard, settled) = (reports.clone(), reports.clone());
        let progress = Progress::new(move |name, nbytes, step| heard.add(name, nbytes, step));
        let progress = progress.on_settle(move || settled.settle(&wake));
        work(&options.clone().progress(progress))
    };
    run::interruptible_with(py, &options.cancel, |py| reports.deliver(py), write)
}
