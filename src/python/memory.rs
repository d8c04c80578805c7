//! Memory use and limits of the process: wraps `crate::memory`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::memory::Memory;
use crate::sink;

/// The memory that this process uses, and the limit of its cgroup.
#[pyfunction]
pub(crate) fn memory(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = py.detach(Memory::now);
    let out = PyDict::new(py);
    out.set_item("anon", found.anon)?;
    out.set_item("file", found.file)?;
    out.set_item("shared", found.shared)?;
    out.set_item("peak", found.peak)?;
    out.set_item("total", found.total)?;
    out.set_item("available", found.available)?;
    let (kept, most) = sink::pool_usage();
    out.set_item("kept", kept)?;
    out.set_item("keeps", most)?;
    out.set_item("limit", found.group.as_ref().map(|group| group.limit))?;
    out.set_item("used", found.group.as_ref().map(|group| group.used))?;
    out.set_item("group", found.group.map(|group| group.path))?;
    Ok(out)
}

/// Frees the memory that is cached for later results; returns the bytes.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> u64 {
    py.detach(sink::trim)
}
