//! `FolderStage`: a folder whose files Python writes.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::run;
use crate::error::{Code, Error, Result};
use crate::write;

/// The files of one checkpoint on their way to a folder. Dropped, they are removed.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct FolderStage {
    /// The folder in which to write.
    #[pyo3(get)]
    path: PathBuf,
    /// The content of the file `token` beside that folder.
    #[pyo3(get)]
    token: String,
    /// The generation of shards.
    #[pyo3(get)]
    generation: u32,
    /// Taken when the files are published or removed.
    core: Mutex<Option<write::FolderStage>>,
}

#[pymethods]
impl FolderStage {
    #[new]
    #[pyo3(signature = (path, name, *, overwrite))]
    fn new(py: Python<'_>, path: PathBuf, name: &str, overwrite: bool) -> PyResult<FolderStage> {
        let core = run::detached(py, || write::FolderStage::create(&path, name, overwrite))?;
        let (path, token, generation) = (core.path(), core.token().to_owned(), core.generation());
        Ok(FolderStage { path, token, generation, core: Mutex::new(Some(core)) })
    }

    /// Moves the files to the target, in this order.
    #[pyo3(signature = (files, *, sync))]
    fn publish(&self, py: Python<'_>, files: Vec<String>, sync: bool) -> PyResult<Option<String>> {
        run::detached(py, || -> Result<Option<String>> {
            let closed = || Error::new(Code::Closed, "the files were published or removed before");
            self.take().ok_or_else(closed)?.publish(files, sync)
        })
    }

    /// Removes the files.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(self.take()));
    }
}

impl FolderStage {
    fn take(&self) -> Option<write::FolderStage> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
