//! The data of the page that `rustload view` writes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::checkpoint::Checkpoint;
use super::request::Request;
use super::run;
use crate::document::{Read, document as core};
use crate::parallel::Cancel;

/// The data of the page as JSON: what a checkpoint holds, the report of a scan, which is JSON, and with a request the statistics of all
/// tensors.
#[pyfunction]
#[pyo3(signature = (checkpoint, report=None, request=None, *, sample=false))]
pub(crate) fn document(
    py: Python<'_>,
    checkpoint: &Checkpoint,
    report: Option<&str>,
    request: Option<&Request>,
    sample: bool,
) -> PyResult<String> {
    let report = report.map(serde_json::from_str).transpose();
    let report = report.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let cancel = Cancel::new();
    let read = request.map(|request| Read { request: request.with(&cancel), is_sample: sample });
    let made =
        run::interruptible_if(py, true, &cancel, || core(&checkpoint.0, report.as_ref(), read.as_ref()))?;
    Ok(made.0.to_string())
}
