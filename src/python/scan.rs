//! `scan_paths`, `scan_bytes`, `scan_file`, `scan_folder` and `check_allowance`: wrap scanning. A report is passed to Python as JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use super::file_object::FileObject;
use super::folder::FolderObject;
use super::{checkpoint, run};
use crate::scan::{self, Options, Policy};

/// Scans files and directories.
#[pyfunction]
#[pyo3(signature = (paths, *, limits, allow, exclude))]
pub(crate) fn scan_paths(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    limits: BTreeMap<String, u64>,
    allow: Vec<String>,
    exclude: Vec<String>,
) -> PyResult<String> {
    let options = options(limits, &allow)?.exclude(exclude);
    let cancel = options.cancel.clone();
    run::interruptible_if(py, true, &cancel, || scan::scan(&paths, &options).map(|report| report.to_json()))
}

/// Scans bytes in memory.
#[pyfunction]
#[pyo3(signature = (data, *, limits, allow))]
pub(crate) fn scan_bytes(
    py: Python<'_>,
    data: PyBackedBytes,
    limits: BTreeMap<String, u64>,
    allow: Vec<String>,
) -> PyResult<String> {
    let options = options(limits, &allow)?;
    let cancel = options.cancel.clone();
    run::interruptible_if(py, true, &cancel, || {
        scan::scan_bytes(Arc::new(data), &options).map(|report| report.to_json())
    })
}

/// Scans a binary file object, or an object with `size` and `read_ranges`. `name` is for messages.
#[pyfunction]
#[pyo3(signature = (file, name, *, limits, allow))]
pub(crate) fn scan_file(
    py: Python<'_>,
    file: &Bound<'_, PyAny>,
    name: Option<String>,
    limits: BTreeMap<String, u64>,
    allow: Vec<String>,
) -> PyResult<String> {
    let options = options(limits, &allow)?;
    let cancel = options.cancel.clone();
    let source = FileObject::source(file, 0, name)?;
    run::interruptible_if(py, true, &cancel, || {
        scan::scan_source(&source, &options).map(|report| report.to_json())
    })
}

/// Scans the files of these names in a folder of a store, or all of its files.
#[pyfunction]
#[pyo3(signature = (folder, names, *, limits, allow, exclude))]
pub(crate) fn scan_folder(
    py: Python<'_>,
    folder: &Bound<'_, PyAny>,
    names: Vec<String>,
    limits: BTreeMap<String, u64>,
    allow: Vec<String>,
    exclude: Vec<String>,
) -> PyResult<String> {
    let options = options(limits, &allow)?.exclude(exclude);
    let cancel = options.cancel.clone();
    let folder = FolderObject::new(folder)?;
    run::interruptible_if(py, true, &cancel, || {
        scan::scan_folder(&folder, &names, &options).map(|report| report.to_json())
    })
}

/// Fails where a pattern is not one that a policy can allow.
#[pyfunction]
pub(crate) fn check_allowance(pattern: &str) -> PyResult<()> {
    Policy::new().allow(pattern)?;
    Ok(())
}

fn options(limits: BTreeMap<String, u64>, allow: &[String]) -> PyResult<Options> {
    let policy = allow.iter().try_fold(Policy::new(), |policy, pattern| policy.allow(pattern))?;
    Ok(Options::new().limits(checkpoint::limits(limits)?).policy(policy))
}
