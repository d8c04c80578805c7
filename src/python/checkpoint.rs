//! `Checkpoint`: the shell around an opened checkpoint.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyList, PyString};

use super::tensor::Tensor;
use super::{objects, run};
use crate::checkpoint::Checkpoint as Core;
use crate::index::{Options, Unknown};
use crate::limits::Limits;
use crate::parallel::Cancel;

/// An opened checkpoint.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Checkpoint(Core);

/// Opens files, a directory or an index file.
#[pyfunction]
#[pyo3(signature = (paths, *, unknown, trailing, compat, verify, limits))]
pub(crate) fn open_paths(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    unknown: &str,
    trailing: &str,
    compat: bool,
    verify: bool,
    limits: BTreeMap<String, u64>,
) -> PyResult<Checkpoint> {
    let options = options(unknown, trailing, compat, verify, limits)?;
    let cancel = options.cancel.clone();
    let nbytes = paths.iter().filter_map(|path| path.metadata().ok()).map(|found| found.len()).sum();
    let long = verify || is_long(nbytes);
    Ok(Checkpoint(run::watched(py, long, &cancel, || Core::open(&paths, options))?))
}

/// Opens bytes in memory.
#[pyfunction]
#[pyo3(signature = (data, *, unknown, trailing, compat, verify, limits))]
pub(crate) fn open_bytes(
    py: Python<'_>,
    data: PyBackedBytes,
    unknown: &str,
    trailing: &str,
    compat: bool,
    verify: bool,
    limits: BTreeMap<String, u64>,
) -> PyResult<Checkpoint> {
    let options = options(unknown, trailing, compat, verify, limits)?;
    let cancel = options.cancel.clone();
    let long = verify || is_long(data.len() as u64);
    Ok(Checkpoint(run::watched(py, long, &cancel, || Core::from_bytes(Arc::new(data), options))?))
}

/// Whether the metadata of so many bytes may take long to read. An index file or a folder says nothing of its shards.
fn is_long(nbytes: u64) -> bool {
    const LONG: u64 = 4 << 20;
    nbytes >= LONG
}

fn options(
    unknown: &str,
    trailing: &str,
    compat: bool,
    verify: bool,
    given: BTreeMap<String, u64>,
) -> PyResult<Options> {
    let mut limits = Limits::default();
    for (name, value) in given {
        match limits.by_name(&name) {
            Some(limit) => *limit = value,
            None => return Err(PyValueError::new_err(format!("no limit is named {name:?}"))),
        }
    }
    let unknown = match unknown {
        "keep" => Unknown::Keep,
        "error" => Unknown::Error,
        other => return Err(PyValueError::new_err(format!("unknown= is 'keep' or 'error', not {other:?}"))),
    };
    let ignore_trailing = match trailing {
        "error" => false,
        "ignore" => true,
        other => {
            return Err(PyValueError::new_err(format!("trailing= is 'error' or 'ignore', not {other:?}")));
        }
    };
    Ok(Options { limits, unknown, ignore_trailing, compat, verify, cancel: Cancel::new() })
}

#[pymethods]
impl Checkpoint {
    #[getter]
    fn format(&self) -> &'static str {
        self.0.format().name()
    }

    #[getter]
    fn files(&self) -> Vec<PathBuf> {
        self.0.files().map(PathBuf::from).collect()
    }

    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        self.0.metadata().iter().cloned().collect()
    }

    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes().to_vec()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.names().map(|name| PyString::new(py, name)))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn tensor(&self, name: &str) -> PyResult<Tensor> {
        Ok(Tensor(self.0.tensor(name)?))
    }

    fn tied(&self) -> Vec<Vec<String>> {
        self.0.tied().iter().map(|group| group.iter().map(|name| name.to_string()).collect()).collect()
    }

    fn opaque(&self) -> Vec<(String, u64, Vec<String>)> {
        self.0.opaque().into_iter().map(|class| (class.class, class.count, class.at)).collect()
    }

    fn globals(&self) -> PyResult<Vec<String>> {
        Ok(self.0.globals()?)
    }

    /// Each file's object tree, in shard order; `wrap` makes of a `Tensor` what stands in the tree.
    fn objects<'py>(&self, py: Python<'py>, wrap: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        objects::trees(py, &self.0, wrap)
    }
}
