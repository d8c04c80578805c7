//! The measurements of `rustload doctor`: wraps `Probe`, and describes the machine.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::arguments::IoArg;
use super::run;
use crate::bytes::{Io, Probe};
use crate::kernel::Level;
use crate::stream::allocate_aligned;
use crate::{memory, parallel, write};

/// How a file would be read, and why.
#[pyfunction]
#[pyo3(signature = (path, *, io, measure))]
pub(crate) fn probe<'py>(
    py: Python<'py>,
    path: PathBuf,
    io: IoArg,
    measure: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let IoArg(io) = io;
    let result = run::detached(py, || Probe::run(&path, io, measure, allocate_aligned))?;
    let reason = match io {
        Io::Auto => result.io_choice.reason.to_owned(),
        _ => format!("io={:?} was asked for", IoArg(io).word()),
    };
    let out = PyDict::new(py);
    out.set_item("size", result.size)?;
    out.set_item("file_system", result.file_system.name)?;
    out.set_item("kind", result.file_system.kind.name())?;
    out.set_item("cached", result.cached)?;
    out.set_item("io", IoArg(result.io_choice.io).word())?;
    out.set_item("reason", reason)?;
    out.set_item("in_flight", result.in_flight)?;
    out.set_item("block", result.block)?;
    out.set_item("views", result.views)?;
    out.set_item("direct", result.direct)?;
    out.set_item("buffered_rate", result.buffered_rate)?;
    out.set_item("direct_rate", result.direct_rate)?;
    Ok(out)
}

/// The machine's properties that decide how fast it reads.
#[pyfunction]
pub(crate) fn machine(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("isa", Level::used().name())?;
    out.set_item("isa_available", Level::available().iter().map(|level| level.name()).collect::<Vec<_>>())?;
    out.set_item("threads", parallel::cores())?;
    out.set_item("huge_pages", memory::huge_pages())?;
    Ok(out)
}

/// Finishes or takes back what a killed writer has begun to publish, given its hidden folder.
#[pyfunction]
pub(crate) fn finish_publication(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    run::detached(py, || write::finish_publication(&path))
}
