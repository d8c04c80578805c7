//! `Stream`: the shell around tensors that are made ahead.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;

use super::buffer::Buffer;
use super::run;
use super::tensor::{Tensor, Wanted};
use crate::checkpoint::{Failed, Flow, Given, Made, Step, Stop, Stream as Core};
use crate::error::{Code, Error, Kind, Result};
use crate::stream::Taken;
use crate::tensor::{Request, Standing, Tensor as Lazy};

/// How long to wait before Python looks at its signals.
const TICK: Duration = Duration::from_millis(20);

/// Tensors that are made ahead of whoever takes them.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Stream {
    core: Mutex<Core>,
    stop: Stop,
}

/// A stream of these tensors, each made as `wanted` at its number in `which` says.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "one for each keyword of the Python function")]
#[pyo3(signature = (tensors, wanted, which, *, window, threads, by_file, standing, whole))]
pub(crate) fn stream(
    tensors: Vec<PyRef<'_, Tensor>>,
    wanted: Vec<Wanted>,
    which: Vec<usize>,
    window: u64,
    threads: Option<usize>,
    by_file: bool,
    standing: bool,
    whole: bool,
) -> PyResult<Stream> {
    let wishes = wishes(&tensors, wanted, which)?;
    let core = Core::new(wishes, Flow { window, threads, by_file, standing, whole });
    Ok(Stream { stop: core.stop(), core: Mutex::new(core) })
}

/// The tensors, each with the request at its number in `which`.
pub(super) fn wishes(
    tensors: &[PyRef<'_, Tensor>],
    wanted: Vec<Wanted>,
    which: Vec<usize>,
) -> PyResult<Vec<(Lazy, Request)>> {
    let requests = wanted.into_iter().map(Wanted::request).collect::<PyResult<Vec<_>>>()?;
    let wishes = tensors.iter().zip(which).map(|(tensor, which)| {
        let request = requests.get(which).cloned();
        request.map(|request| (tensor.0.clone(), request))
    });
    let wishes = wishes.collect::<Option<Vec<_>>>();
    wishes.ok_or_else(|| Error::new(Code::Value, "which= names a request that is not there").into())
}

/// The order in which a stream of these tensors would give them: place in the list, place of the first with the same
/// elements, and whether they come again.
#[pyfunction]
#[pyo3(signature = (tensors, wanted, which, *, by_file))]
pub(crate) fn steps(
    tensors: Vec<PyRef<'_, Tensor>>,
    wanted: Vec<Wanted>,
    which: Vec<usize>,
    by_file: bool,
) -> PyResult<Vec<(usize, usize, bool)>> {
    let steps = Core::steps(&wishes(&tensors, wanted, which)?, by_file);
    Ok(steps.into_iter().map(|Step { index, first, again }| (index, first, again)).collect())
}

/// A tensor's place in the list, that of the first with its elements, whether they come again, and what was made.
type Next = (usize, usize, bool, Option<&'static str>, Option<Buffer>);

#[pymethods]
impl Stream {
    fn next(&self, py: Python<'_>) -> PyResult<Option<Next>> {
        let mut held = self.held()?;
        let core: &mut Core = &mut held;
        if core.is_new() {
            run::detached(py, || Ok(core.begin()))?.map_err(|failed| raise(py, failed))?;
        }
        // Mostly there is something: then the interpreter is not let go of.
        let mut taken = core.next(Duration::ZERO).map_err(|failed| raise(py, failed))?;
        while let Taken::Waiting = taken {
            py.check_signals()?;
            let found = run::detached(py, || Ok(core.next(TICK)))?;
            taken = found.map_err(|failed| raise(py, failed))?;
        }
        let Taken::Item(Given { index, first, again, made }) = taken else { return Ok(None) };
        Ok(Some(match made {
            Made::Array(array) => (index, first, again, None, Some(Buffer(array))),
            Made::Standing(Standing::View) => (index, first, again, Some("view"), None),
            Made::Standing(Standing::Copy) => (index, first, again, Some("copy"), None),
            Made::Same => (index, first, again, None, None),
        }))
    }

    fn order(&self) -> PyResult<Vec<usize>> {
        Ok(self.held()?.order().to_vec())
    }

    /// Not waited for is whoever is in `next`: that may be this very thread, in a signal's handler, or nobody, after a fork.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.stop.stop();
        let Ok(mut held) = self.held() else { return Ok(()) };
        let core: &mut Core = &mut held;
        run::detached(py, || {
            core.close();
            Ok(())
        })
    }
}

impl Stream {
    /// Not waited for, as above.
    fn held(&self) -> Result<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Ok(core),
            Err(TryLockError::Poisoned(core)) => Ok(core.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Error::new(Code::Value, "the stream is in use by another thread"))
            }
        }
    }
}

/// The exception, which names the tensor in any case.
pub(super) fn raise(py: Python<'_>, failed: Failed) -> PyErr {
    let Failed { name, error, .. } = failed;
    let is_named = name.is_empty() || (error.member() == Some(&name) && error.kind() != Kind::Io);
    let error = PyErr::from(error);
    if !is_named
        && let Err(failed) = error.value(py).call_method1("add_note", (format!("for tensor {name:?}"),))
    {
        return failed;
    }
    error
}
