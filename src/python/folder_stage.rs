//! `FolderStage`: a folder whose files Python writes.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::prelude::*;

use super::run;
use super::write::{Declared, declarations};
use crate::error::{Code, Error};
use crate::parallel::lock;
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
    /// Taken when the files are published or removed.
    core: Mutex<Option<write::FolderStage>>,
}

#[pymethods]
impl FolderStage {
    #[new]
    #[pyo3(signature = (path, name, *, overwrite))]
    fn new(py: Python<'_>, path: PathBuf, name: &str, overwrite: bool) -> PyResult<FolderStage> {
        let core = run::detached(py, || write::FolderStage::create(&path, name, overwrite))?;
        Ok(FolderStage { path: core.path(), token: core.token().to_owned(), core: Mutex::new(Some(core)) })
    }

    /// Creates the files of tensors in full size. Returns the place of each tensor, and the files in the order to publish them.
    #[pyo3(signature = (tensors, *, metadata, max_shard_size, sync))]
    fn create_files(
        &self,
        py: Python<'_>,
        tensors: Vec<Declared>,
        metadata: Vec<(String, String)>,
        max_shard_size: u64,
        sync: bool,
    ) -> PyResult<(Vec<write::Place>, Vec<String>)> {
        let tensors = declarations(tensors);
        run::detached(py, || {
            let core = lock(&self.core);
            core.as_ref().ok_or_else(closed)?.create_files(&tensors, &metadata, max_shard_size, sync)
        })
    }

    /// Moves the files to the target, in this order.
    #[pyo3(signature = (files, *, sync))]
    fn publish(&self, py: Python<'_>, files: Vec<String>, sync: bool) -> PyResult<Option<String>> {
        run::detached(py, || lock(&self.core).take().ok_or_else(closed)?.publish(files, sync))
    }

    /// Removes the files.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.core).take()));
    }
}

fn closed() -> Error {
    Error::new(Code::Closed, "the files were published or removed before")
}
