//! `open`: opens what a checkpoint is read from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use super::arguments::{Flag, IoArg, LimitsArg, TrailingArg, UnknownArg};
use super::classes::Checkpoint;
use super::file_object::FileObject;
use super::folder::Folder;
use super::manifest::Manifest;
use super::run;
use crate::bytes::{Folder as Files, Io, ReadFolder, Source as Bytes, VerifiedFolder};
use crate::checkpoint::Checkpoint as Core;
use crate::container::metadata_bytes;
use crate::error::{Code, Error, Result};
use crate::index::{Options, Unknown};
use crate::parallel::Cancel;

/// How a checkpoint is opened.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct OpenOptions(Options);

#[pymethods]
impl OpenOptions {
    #[new]
    #[pyo3(signature = (
        *,
        unknown=UnknownArg(Unknown::Keep),
        verify=Flag(false),
        dequantize=Flag(false),
        limits=LimitsArg::default(),
        compat=Flag(false),
        trailing=TrailingArg(false),
        io=IoArg(Io::Auto),
    ))]
    fn new(
        unknown: UnknownArg,
        verify: Flag,
        dequantize: Flag,
        limits: LimitsArg,
        compat: Flag,
        trailing: TrailingArg,
        io: IoArg,
    ) -> OpenOptions {
        let options =
            Options::default().unknown(unknown.0).verify(verify.0).limits(limits.0).dequantize(dequantize.0);
        OpenOptions(options.compat(compat.0).ignore_trailing(trailing.0).io(io.0))
    }
}

/// What is opened or scanned.
#[derive(FromPyObject)]
pub(crate) enum Source<'py> {
    /// The content of a file.
    Content(PyBackedBytes),
    /// Files, a directory or an index file.
    Paths(Vec<PathBuf>),
    /// What begins at a byte of a file.
    At((PathBuf, u64)),
    /// A binary file object, or an object with `size` and `read_ranges`, from a byte on; and its name for messages.
    Object((Bound<'py, PyAny>, u64, Option<String>)),
    Folder(Folder),
}

impl Source<'_> {
    /// What it is read from as a manifest lists it, and the names of the files that are meant.
    fn verified(self, manifest: &Manifest, io: Io) -> Result<(Arc<dyn ReadFolder>, Vec<String>)> {
        let (folder, names) = match self {
            Source::Paths(paths) => match &paths[..] {
                [path] if path.is_dir() => (Files::Disk(path.clone(), io), Vec::new()),
                paths => {
                    let mut parents = paths.iter().map(|path| path.parent().unwrap_or(Path::new("")));
                    let parent = parents.next().filter(|first| parents.all(|parent| parent == *first));
                    let names: Option<Vec<String>> =
                        paths.iter().map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
                    let (parent, names) = parent.zip(names).ok_or_else(no_folder)?;
                    (Files::Disk(parent.to_owned(), io), names)
                }
            },
            Source::Folder(Folder(folder, chosen)) => (Files::Store(Arc::new(folder)), chosen),
            _ => return Err(no_folder()),
        };
        Ok((Arc::new(VerifiedFolder::new(folder, manifest.0.clone())), names))
    }
}

pub(super) fn no_folder() -> Error {
    let text = "is about files of one folder, and this is not a path, a list of paths in one folder, or the URL of a folder";
    Error::new(Code::Value, text).on_argument("manifest")
}

/// Opens a checkpoint by reading its metadata.
#[pyfunction]
#[pyo3(signature = (source, options, manifest=None))]
pub(crate) fn open(
    py: Python<'_>,
    source: Source<'_>,
    options: &OpenOptions,
    manifest: Option<&Manifest>,
) -> PyResult<Checkpoint> {
    let cancel = Cancel::new();
    let options = options.0.clone().cancel(cancel.clone());
    if let Some(manifest) = manifest {
        let (folder, names) = source.verified(manifest, options.io)?;
        let core = run::interruptible_if(py, true, &cancel, || Core::from_folder(folder, &names, options));
        return core.map(Checkpoint);
    }
    let core = match source {
        Source::Content(data) => {
            let long = options.verify || is_long(data.len() as u64);
            run::interruptible_if(py, long, &cancel, || Core::from_bytes(Arc::new(data), options))
        }
        Source::Paths(paths) => {
            let sum = || paths.iter().fold(0_u64, |sum, path| sum.saturating_add(metadata_bytes(path)));
            let long = options.verify || is_long(py.detach(sum));
            run::interruptible_if(py, long, &cancel, || Core::open_all(&paths, options))
        }
        Source::At((path, start)) => {
            let long = options.verify || is_long(py.detach(|| metadata_bytes(&path)));
            run::interruptible_if(py, long, &cancel, || Core::open_at(&path, start, options))
        }
        Source::Object((file, start, name)) => {
            let source: Bytes = FileObject::source(&file, start, name)?;
            run::interruptible_if(py, true, &cancel, || Core::from_source(&source, options))
        }
        Source::Folder(Folder(folder, chosen)) => {
            run::interruptible_if(py, true, &cancel, || Core::from_folder(Arc::new(folder), &chosen, options))
        }
    };
    core.map(Checkpoint)
}

/// Whether reading so many bytes of metadata can be interrupted by Ctrl-C. The shards of an index file or a folder do not count.
fn is_long(nbytes: u64) -> bool {
    const INTERRUPTIBLE_METADATA_MIN_BYTES: u64 = 4 << 20;
    nbytes >= INTERRUPTIBLE_METADATA_MIN_BYTES
}
