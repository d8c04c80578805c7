//! `Stream`: the Python class of a stream of tensors.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;

use super::classes::Buffer;
use super::request::Pairs;
use super::run;
use crate::checkpoint::{
    self, Output, StopHandle, Stream as Core, StreamItem, StreamOptions, StreamStep, TensorError,
};
use crate::error::{Code, Error, Kind, Result};
use crate::stream::Taken;

/// How often Python's signal handlers run while a consumer waits.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A stream of tensors that are materialized ahead of the consumer.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Stream {
    /// Until the drop.
    core: Option<Mutex<Core>>,
    stop: StopHandle,
}

/// A stream of these tensors, each with its request.
#[pyfunction]
#[pyo3(signature = (tensors, *, window, threads, by_file, share_storages, results_kept))]
pub(crate) fn stream(
    tensors: Pairs,
    window: u64,
    threads: Option<usize>,
    by_file: bool,
    share_storages: bool,
    results_kept: bool,
) -> Stream {
    let options = StreamOptions { window, threads, by_file, share_storages, results_kept };
    let core = Core::new(tensors.0, options);
    Stream { stop: core.stop_handle(), core: Some(Mutex::new(core)) }
}

/// Fails where the results of these requests, kept together, and `more` bytes do not fit the memory that the process may take.
#[pyfunction]
#[pyo3(signature = (tensors, *, share_storages, more=0))]
pub(crate) fn check_memory(py: Python<'_>, tensors: Pairs, share_storages: bool, more: i64) -> PyResult<()> {
    run::detached(py, || checkpoint::check_memory(&tensors.0, share_storages, more))
}

/// The most bytes of host memory in use while the results of these requests are made and kept.
#[pyfunction]
#[pyo3(signature = (tensors, *, share_storages))]
pub(crate) fn needed_memory(py: Python<'_>, tensors: Pairs, share_storages: bool) -> PyResult<u64> {
    run::detached(py, || checkpoint::needed_bytes(&tensors.0, share_storages))
}

/// Index of the first request with the same result, and whether a later one has it too.
type Tie = (usize, bool);

/// The order in which a stream of these tensors would give them, and the tied ones by their position in it.
#[pyfunction]
#[pyo3(signature = (tensors, *, by_file))]
pub(crate) fn order(tensors: Pairs, by_file: bool) -> (Vec<usize>, BTreeMap<usize, Tie>) {
    let steps = Core::steps(&tensors.0, by_file);
    let is_tied = |step: &StreamStep| step.first != step.index || step.has_later_alias;
    let tied = steps.iter().enumerate().filter(|(_, step)| is_tied(step));
    let ties = tied.map(|(position, step)| (position, (step.first, step.has_later_alias))).collect();
    (steps.iter().map(|step| step.index).collect(), ties)
}

/// Index, index of the first request with the same result, whether a later one has it too, and the result; `None` where the caller
/// makes it, on a shared storage or of the first.
type Next = (usize, usize, bool, Option<Buffer>);

#[pymethods]
impl Stream {
    fn next(&self, py: Python<'_>) -> PyResult<Option<Next>> {
        let mut guard = self.try_lock()?;
        let core: &mut Core = &mut guard;
        if core.is_unstarted() {
            run::detached(py, || {
                core.start();
                Ok(())
            })?;
        }
        // Mostly an item is ready, and then the call does not detach from the interpreter.
        let mut taken = core.next_within(Duration::ZERO).map_err(|failed| exception(py, failed))?;
        while let Taken::Waiting = taken {
            py.check_signals()?;
            let next = run::detached(py, || Ok(core.next_within(SIGNAL_CHECK_INTERVAL)))?;
            taken = next.map_err(|failed| exception(py, failed))?;
        }
        let Taken::Item(StreamItem { index, first, has_later_alias, output }) = taken else {
            return Ok(None);
        };
        let buffer = match output {
            Output::Array(array) => Some(Buffer(array)),
            Output::SharedStorage(_) | Output::Alias => None,
        };
        Ok(Some((index, first, has_later_alias, buffer)))
    }

    fn order(&self) -> PyResult<Vec<usize>> {
        Ok(self.try_lock()?.order().to_vec())
    }

    /// Does not wait for a concurrent `next`: that may be this very thread, in a signal handler, or a thread that does not exist
    /// after a fork.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.stop.stop();
        let Ok(mut guard) = self.try_lock() else { return Ok(()) };
        let core: &mut Core = &mut guard;
        run::detached(py, || {
            core.close();
            Ok(())
        })
    }
}

impl Stream {
    /// Locks the stream without waiting. Fails while another thread uses it.
    fn try_lock(&self) -> Result<MutexGuard<'_, Core>> {
        match self.core.as_ref().map(Mutex::try_lock) {
            Some(Ok(core)) => Ok(core),
            Some(Err(TryLockError::Poisoned(core))) => Ok(core.into_inner()),
            Some(Err(TryLockError::WouldBlock)) | None => {
                Err(Error::new(Code::Value, "the stream is in use by another thread"))
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            run::drop_detached(core);
        }
    }
}

/// The exception of an error; a note names the tensor where the error does not.
pub(super) fn exception(py: Python<'_>, failed: TensorError) -> PyErr {
    let TensorError { name, error, .. } = failed;
    let needs_no_note = name.is_empty() || (error.member() == Some(&name) && error.kind() != Kind::Io);
    let error = PyErr::from(error);
    if !needs_no_note
        && let Err(failed) = error.value(py).call_method1("add_note", (format!("for tensor {name:?}"),))
    {
        return failed;
    }
    error
}
