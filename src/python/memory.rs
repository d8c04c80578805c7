//! Memory use and limits of the process: wraps `crate::memory`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::memory::Memory;
use crate::sink;

/// The memory that this process uses, and the limit of its cgroup.
#[pyfunction]
pub(crate) fn memory(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let usage = py.detach(Memory::now);
    let out = PyDict::new(py);
    out.set_item("anon", usage.anon)?;
    out.set_item("file", usage.file)?;
    out.set_item("shared", usage.shared)?;
    out.set_item("peak", usage.peak)?;
    out.set_item("total", usage.total)?;
    out.set_item("available", usage.available)?;
    let usable = usage.usable();
    let (pool_bytes, pool_limit) = sink::pool_usage();
    out.set_item("kept", pool_bytes)?;
    out.set_item("keeps", pool_limit)?;
    out.set_item("limit", usage.group.as_ref().map(|group| group.limit))?;
    out.set_item("used", usage.group.as_ref().map(|group| group.used))?;
    out.set_item("group", usage.group.map(|group| group.path))?;
    out.set_item("usable", usable.as_ref().map(|usable| usable.bytes))?;
    out.set_item("bound", usable.map(|usable| usable.bound.name()))?;
    Ok(out)
}

/// Frees the memory that is cached for later results; returns the bytes.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> u64 {
    py.detach(sink::trim)
}
