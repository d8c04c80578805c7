//! Writing safetensors files: `write_file`, `write_folder`, `write_object`, and `Writer`.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes};

use super::arguments::DTypeArg;
use super::classes::Tensor;
use super::file_object::FileObject;
use super::joined::Joined;
use super::reports::run_reported;
use super::request::Request;
use super::{capsule, run};
use crate::bytes::Bytes;
use crate::error::{Code, Error, Result};
use crate::parallel::{Cancel, lock};
use crate::tensor::Request as CoreRequest;
use crate::write::{self, Declaration, DeferredArray, FolderPlan, SafetensorsFile, Values, WriteOptions};

/// The values of a tensor as Python has them.
#[derive(FromPyObject)]
pub(crate) enum ValuesArg<'py> {
    Tensor(PyRef<'py, Tensor>),
    Joined(PyRef<'py, Joined>),
    /// dtype, shape, the storage that it shares with others, and a function that returns a DLPack capsule of all bytes.
    Deferred((DTypeArg, Vec<u64>, Option<u64>, Py<PyAny>)),
}

impl ValuesArg<'_> {
    pub(super) fn values(self, request: CoreRequest) -> Values {
        match self {
            ValuesArg::Tensor(tensor) => Values::Tensor(tensor.0.clone(), request),
            ValuesArg::Joined(joined) => Values::Joined(joined.core().clone(), request),
            ValuesArg::Deferred((dtype, shape, tie, make)) => {
                let make = Arc::new(move || call(&make));
                let (dtype, shape) = (dtype.0, shape.as_slice().into());
                Values::Deferred(DeferredArray { dtype, shape, tie, make }, request)
            }
        }
    }
}

/// Calls a function that returns a DLPack capsule of bytes.
fn call(make: &Py<PyAny>) -> Result<Bytes> {
    let foreign = run::callback(|py| capsule::import(&make.bind(py).call0()?)).map_err(raised)?;
    Ok(Arc::new(foreign.into_bytes()?))
}

/// The error for an exception of a Python function.
fn raised(error: PyErr) -> Error {
    Error::io(io::Error::other(error), None)
}

/// How files are written: the items of a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct OptionsArg {
    overwrite: bool,
    sync: bool,
    verify: bool,
    resume: bool,
    manifest: bool,
    memory: u64,
    threads: Option<usize>,
    report: Option<Py<PyAny>>,
}

impl OptionsArg {
    fn options(&self, metadata: Vec<(String, String)>, cancel: &Cancel) -> WriteOptions {
        let OptionsArg { overwrite, sync, verify, resume, manifest, memory, threads, .. } = *self;
        let options = WriteOptions::new().metadata(metadata).overwrite(overwrite).sync(sync);
        let options = options.verify(verify).resume(resume).manifest(manifest);
        options.memory(memory).threads(threads).cancel(cancel.clone())
    }
}

/// Name, dtype and shape of a tensor that is written in parts.
pub(super) type Declared = (String, DTypeArg, Vec<u64>);

pub(super) fn declarations(tensors: Vec<Declared>) -> Vec<Declaration> {
    let declare =
        |(name, dtype, shape): Declared| Declaration { name, dtype: dtype.0, shape: shape.as_slice().into() };
    tensors.into_iter().map(declare).collect()
}

/// Names, values, and how each is converted.
type Tensors<'py> = Vec<(String, ValuesArg<'py>, PyRef<'py, Request>)>;

/// The same for the core; `cancel` stops all.
fn named_values(tensors: Tensors<'_>, cancel: &Cancel) -> Vec<(String, Values)> {
    tensors.into_iter().map(|(name, values, request)| (name, values.values(request.with(cancel)))).collect()
}

/// Writes one safetensors file, and returns its size.
#[pyfunction]
#[pyo3(signature = (path, tensors, *, metadata, options))]
pub(crate) fn write_file(
    py: Python<'_>,
    path: PathBuf,
    tensors: Tensors<'_>,
    metadata: Vec<(String, String)>,
    options: OptionsArg,
) -> PyResult<u64> {
    let cancel = Cancel::new();
    let (core, tensors) = (options.options(metadata, &cancel), named_values(tensors, &cancel));
    run_reported(py, &core, options.report, |options| write::write_file(&path, tensors, options))
}

/// Texts by texts.
type Metadata = Vec<(String, String)>;

/// A safetensors file of a folder: path, tensors, metadata, index, the index's metadata, and the most bytes of tensors.
type FileArg<'py> = (String, Tensors<'py>, Metadata, Option<String>, Metadata, Option<u64>);

/// What is copied: a file, or an object with `size` and `read_ranges`.
#[derive(FromPyObject)]
pub(crate) enum Original<'py> {
    Path(PathBuf),
    Object(Bound<'py, PyAny>),
}

/// The paths and sizes of written files, and what to say about the folder.
type WrittenFolder = (Vec<(String, u64)>, Option<String>);

/// Writes a folder of safetensors files and others. Returns their paths and sizes, and what to say about it.
#[pyfunction]
#[pyo3(signature = (path, files, *, texts, copies, joins, options))]
pub(crate) fn write_folder(
    py: Python<'_>,
    path: PathBuf,
    files: Vec<FileArg<'_>>,
    texts: Vec<(String, String, Option<Vec<u8>>)>,
    copies: Vec<(String, Original<'_>)>,
    joins: bool,
    options: OptionsArg,
) -> PyResult<WrittenFolder> {
    let cancel = Cancel::new();
    let core = options.options(Vec::new(), &cancel);
    let file = |(path, tensors, metadata, index, index_metadata, max_shard_size): FileArg<'_>| {
        let tensors = named_values(tensors, &cancel);
        SafetensorsFile { path, tensors, metadata, index, index_metadata, max_shard_size }
    };
    let mut plan = FolderPlan::new();
    plan.files = files.into_iter().map(file).collect();
    for (path, text, old) in texts {
        match old {
            None => plan.texts.push((path, text.into_bytes())),
            Some(old) => plan.edits.push((path, text.into_bytes(), old)),
        }
    }
    plan.joins = joins;
    for (path, original) in copies {
        match original {
            Original::Path(original) => plan.copies.push((path, original)),
            Original::Object(object) => {
                let name = object.getattr("name")?.extract()?;
                plan.objects.push((path, Arc::new(FileObject::new(&object, name, None)?)));
            }
        }
    }
    run_reported(py, &core, options.report, |options| plan.write_with_note(&path, options))
}

/// A file of text that is complete and has no name yet. Collected, it leaves nothing.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct PreparedText(Mutex<Option<write::PreparedFile>>);

#[pymethods]
impl PreparedText {
    #[new]
    #[pyo3(signature = (path, text, *, overwrite, sync))]
    fn new(py: Python<'_>, path: PathBuf, text: &str, overwrite: bool, sync: bool) -> PyResult<PreparedText> {
        let prepare = || write::PreparedFile::new(&path, text.as_bytes(), overwrite, sync);
        Ok(PreparedText(Mutex::new(Some(run::detached(py, prepare)?))))
    }

    /// Gives the file its name.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let file = lock(&self.0).take().ok_or_else(closed)?;
        run::detached(py, || file.commit())
    }

    /// Removes the file, unless it has its name.
    fn discard(&self) {
        drop(lock(&self.0).take());
    }
}

/// Writes one safetensors file to a binary file object, and returns its size.
#[pyfunction]
#[pyo3(signature = (file, tensors, *, metadata, options))]
pub(crate) fn write_object(
    py: Python<'_>,
    file: Py<PyAny>,
    tensors: Tensors<'_>,
    metadata: Vec<(String, String)>,
    options: OptionsArg,
) -> PyResult<u64> {
    let cancel = Cancel::new();
    let (core, tensors) = (options.options(metadata, &cancel), named_values(tensors, &cancel));
    let mut target = WritableObject(file);
    run_reported(py, &core, options.report, |options| write::write_in_order(&mut target, tensors, options))
}

/// A binary file object, written by its `write`.
struct WritableObject(Py<PyAny>);

impl io::Write for WritableObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        run::callback(|py| {
            let written = self.0.bind(py).call_method1("write", (PyBytes::new(py, bytes),))?;
            // A raw stream may take fewer bytes. `None` is its word for none, which other objects return in place of a number.
            match written.extract::<Option<usize>>() {
                Ok(Some(count)) if count <= bytes.len() => Ok(count),
                Ok(None) => Err(took("None: it would block, or does not say how many bytes it took")),
                _ => Err(took(&format!("{written} for {} bytes", bytes.len()))),
            }
        })
        .map_err(|error: PyErr| io::Error::other(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error for what the `write` of a file object has returned.
fn took(text: &str) -> PyErr {
    PyOSError::new_err(format!("the file's write returned {text}"))
}

/// A safetensors file whose tensors come in any order.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Writer {
    /// Taken when the file is finished or dropped.
    core: Mutex<Option<Arc<write::Writer>>>,
    cancel: Cancel,
}

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (path, tensors, *, metadata, options))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        tensors: Vec<Declared>,
        metadata: Vec<(String, String)>,
        options: OptionsArg,
    ) -> PyResult<Writer> {
        let cancel = Cancel::new();
        let options = options.options(metadata, &cancel);
        let core = run::detached(py, || write::Writer::create(&path, declarations(tensors), &options))?;
        Ok(Writer { core: Mutex::new(Some(Arc::new(core))), cancel })
    }

    /// Writes a tensor, or the part of it that begins at the index `start`.
    fn write(
        &self,
        py: Python<'_>,
        name: &str,
        values: ValuesArg<'_>,
        request: &Request,
        start: Option<Vec<u64>>,
    ) -> PyResult<()> {
        let core = lock(&self.core).clone().ok_or_else(closed)?;
        let values = values.values(request.with(&self.cancel));
        let write = || match &start {
            None => core.write(name, values),
            Some(start) => core.write_part(name, start, values),
        };
        run::interruptible_if(py, true, &self.cancel, || {
            write().map_err(|error| if error.code() == Code::Cancelled { closed() } else { error })
        })
    }

    /// Gives the file its name, and returns its size. While another thread writes, fails and leaves the writer open.
    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let core = {
            let mut guard = lock(&self.core);
            let shared = guard.take().ok_or_else(closed)?;
            match Arc::try_unwrap(shared) {
                Ok(core) => core,
                Err(shared) => {
                    *guard = Some(shared);
                    let error = Error::new(Code::Value, "another thread is still writing");
                    return Err(error.note("Close the writer when all calls of write have returned.").into());
                }
            }
        };
        run::detached(py, || core.finish())
    }

    /// Drops the file. What other threads are writing ends with an error.
    fn discard(&self, py: Python<'_>) {
        self.cancel.cancel();
        let core = lock(&self.core).take();
        py.detach(|| drop(core));
    }
}

fn closed() -> Error {
    Error::new(Code::Closed, "the writer is closed")
}
