//! `Upload`: the Python class of an upload session to a GPU.
//!
//! **Protocol.** A CUDA stream is passed as its address. The caller guarantees, as with DLPack's `stream=`, that it is a stream of
//! the upload's device and is not destroyed before the call returns. The Python package passes streams of torch and CuPy, and
//! holds references to them.
//!
//! Memory of the driver is freed detached from the interpreter: the driver first waits for the GPU's work, which may call Python.

use std::sync::Arc;
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::arguments::DTypeArg;
use super::classes::Buffer;
use super::request::Pairs;
use super::run;
use super::stream::exception;
use crate::checkpoint::{self, Upload as Core};
use crate::error::{Code, Error, Result};
use crate::sink::cuda::{self, CallerStream, DeviceMemory};
use crate::sink::{Array, GpuMemory};
use crate::stream::upload::{self as core, Waited};
use crate::tensor::{Request, Tensor as Lazy};

/// How often Python's signal handlers run while a caller waits.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Whether CUDA can be used, and if not, why; the driver, its version, and the number of devices.
#[pyfunction]
pub(crate) fn cuda_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = py.detach(cuda::info);
    let out = PyDict::new(py);
    out.set_item("available", info.reason.is_none())?;
    out.set_item("reason", info.reason)?;
    out.set_item("library", info.library)?;
    out.set_item("driver", info.version.map(|(major, minor)| format!("{major}.{minor}")))?;
    out.set_item("devices", info.devices)?;
    Ok(out)
}

/// The free bytes of a GPU; `None` where the driver does not say.
#[pyfunction]
pub(crate) fn gpu_free_memory(py: Python<'_>, device: u32) -> Option<u64> {
    py.detach(|| cuda::Device::of(device)?.free_memory()).ok()
}

/// Fails where the results of these requests, less the bytes that are freed meanwhile, exceed the free bytes of a GPU.
#[pyfunction]
#[pyo3(signature = (tensors, *, free, freed))]
pub(crate) fn check_gpu_memory(tensors: Pairs, free: u64, freed: u64) -> PyResult<()> {
    Ok(checkpoint::check_gpu_memory(&tensors.0, free, freed)?)
}

/// An upload session on one GPU.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Upload(
    /// Until the drop.
    Option<Core>,
);

/// Opens an upload session on a GPU.
#[pyfunction]
#[pyo3(signature = (device, *, window, threads))]
pub(crate) fn upload(py: Python<'_>, device: u32, window: u64, threads: Option<usize>) -> PyResult<Upload> {
    run::detached(py, || Core::new(device, window, threads)).map(|core| Upload(Some(core)))
}

#[pymethods]
impl Upload {
    #[getter]
    fn device(&self) -> PyResult<u32> {
        Ok(self.core()?.device().ordinal())
    }

    #[pyo3(signature = (tensors, into, *, stream))]
    fn submit(
        &self,
        py: Python<'_>,
        tensors: Pairs,
        into: Vec<PyRef<'_, Buffer>>,
        stream: Option<u64>,
    ) -> PyResult<u64> {
        let into = into.iter().map(|buffer| buffer.0.clone()).collect();
        let submitted =
            run::detached(py, || Ok(self.core()?.submit(tensors.0, into, caller_stream(stream))))?;
        submitted.map_err(|failed| exception(py, failed))
    }

    #[pyo3(signature = (ticket, *, stream, sync))]
    fn wait(&self, py: Python<'_>, ticket: u64, stream: Option<u64>, sync: bool) -> PyResult<()> {
        loop {
            let waited = run::detached(py, || {
                Ok(self.core()?.wait(ticket, caller_stream(stream), sync, SIGNAL_CHECK_INTERVAL))
            })?;
            match waited.map_err(|failed| exception(py, failed))? {
                Waited::Done => return Ok(()),
                Waited::Waiting => py.check_signals()?,
            }
        }
    }

    fn allocate(&self, py: Python<'_>, nbytes: u64) -> PyResult<Buffer> {
        let memory = run::detached(py, || DeviceMemory::new(self.core()?.device(), nbytes))?;
        Ok(Buffer(Array::on_gpu(Arc::new(Detached(Some(memory))))))
    }

    fn rate(&self, py: Python<'_>) -> PyResult<f64> {
        run::detached(py, || self.core()?.h2d_rate())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        run::detached(py, || {
            self.core()?.close();
            Ok(())
        })
    }
}

impl Upload {
    fn core(&self) -> Result<&Core> {
        self.0.as_ref().ok_or_else(|| Error::new(Code::Closed, "the upload is closed"))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(core) = self.0.take() {
            run::drop_detached(core);
        }
    }
}

/// Device memory whose drop does not keep the interpreter: that of a `Buffer`, or of a tensor that a consumer of DLPack made of one.
#[derive(Debug)]
struct Detached(
    /// Until the drop.
    Option<DeviceMemory>,
);

// SAFETY: the promises of the memory itself, which only the drop takes away.
unsafe impl GpuMemory for Detached {
    fn device(&self) -> u32 {
        self.0.as_ref().map_or(0, GpuMemory::device)
    }

    fn address(&self) -> u64 {
        self.0.as_ref().map_or(0, GpuMemory::address)
    }

    fn nbytes(&self) -> u64 {
        self.0.as_ref().map_or(0, GpuMemory::nbytes)
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        // SAFETY: reads what belongs to the thread: null in one that is not Python's and so does not keep the interpreter.
        let is_pythons = !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null();
        if let Some(memory) = self.0.take_if(|_| is_pythons) {
            run::drop_detached(memory);
        }
    }
}

fn caller_stream(address: Option<u64>) -> Option<CallerStream> {
    // SAFETY: the Python caller guarantees it, see the protocol.
    address.map(|address| unsafe { CallerStream::from_raw(address) })
}

/// For each tensor the bytes of its result if the workers make it straight in its place, else 0.
#[pyfunction]
pub(crate) fn direct_upload_bytes(tensors: Pairs, cast_below: u64) -> Vec<u64> {
    let bytes = |(tensor, request): &(Lazy, Request)| tensor.direct_upload_bytes(request, cast_below);
    tensors.0.iter().map(|pair| bytes(pair).unwrap_or(0)).collect()
}

/// Ends the threads of uploads.
#[pyfunction]
pub(crate) fn end_upload_workers(py: Python<'_>) {
    py.detach(core::end_workers);
}

/// Measures how many bytes of source the CPU reads from the page cache and casts per second.
#[pyfunction]
pub(crate) fn cast_rate(
    py: Python<'_>,
    from_: DTypeArg,
    to: DTypeArg,
    threads: Option<usize>,
) -> PyResult<f64> {
    run::detached(py, || core::cast_rate(from_.0, to.0, threads))
}
