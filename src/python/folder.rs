//! A folder of a store: an object of Python with `name`, `names`, `sizes`, `open`, `folders` and `subfolder`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;

use super::file_object::{FileObject, object_name};
use super::run;
use crate::bytes::{ReadFolder, ReadRanges};
use crate::error::{Code, Error, Result};

/// A folder that stays in use as long as a file of it is.
#[derive(Clone)]
pub(super) struct FolderObject(Arc<Shared>);

struct Shared {
    object: Py<PyAny>,
    path: PathBuf,
}

impl FolderObject {
    pub(super) fn new(object: &Bound<'_, PyAny>) -> PyResult<FolderObject> {
        let path = PathBuf::from(object.getattr("name")?.extract::<String>()?);
        Ok(FolderObject(Arc::new(Shared { object: object.clone().unbind(), path })))
    }

    /// Runs `call` with the object; an exception is the cause of the error.
    fn with_object<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        run::callback(|py| call(self.0.object.bind(py)))
            .map_err(|error| run::callback_failed(error, self.0.path.clone()))
    }
}

/// A folder of a store, and the names of the files in it that are meant; none for all.
pub(crate) struct Folder(pub(super) FolderObject, pub(super) Vec<String>);

impl<'a, 'py> FromPyObject<'a, 'py> for Folder {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Folder> {
        Ok(Folder(FolderObject::new(&given)?, given.getattr("chosen")?.extract()?))
    }
}

impl ReadFolder for FolderObject {
    fn path(&self) -> &Path {
        &self.0.path
    }

    fn names(&self) -> Result<Vec<String>> {
        self.with_object(|folder| folder.call_method0("names")?.extract())
    }

    fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
        let sizes: Vec<Option<u64>> =
            self.with_object(|folder| folder.call_method1("sizes", (names.to_vec(),))?.extract())?;
        match sizes.len() == names.len() {
            true => Ok(sizes),
            false => {
                Err(Error::new(Code::Io, "the folder returned sizes for other names").in_file(self.path()))
            }
        }
    }

    fn folders(&self) -> Result<Vec<String>> {
        self.with_object(|folder| folder.call_method0("folders")?.extract())
    }

    fn folder(&self, name: &str) -> Result<Option<Arc<dyn ReadFolder>>> {
        self.with_object(|folder| {
            let inner = FolderObject::new(&folder.call_method1("subfolder", (name,))?)?;
            Ok(Some(Arc::new(inner) as Arc<dyn ReadFolder>))
        })
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>> {
        let folder = self.clone();
        self.with_object(|object| {
            let file = object.call_method1("open", (name,))?;
            let file = FileObject::new(&file, object_name(&file)?, Some(Arc::new(folder)))?;
            Ok(Arc::new(file) as Arc<dyn ReadRanges>)
        })
    }
}
