//! `Manifest`: the digests of files, and the folder that is read as they say.

use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use super::open::{Folder, Source};
use crate::bytes::{Digest, Folder as Files, Io, ListedFile, Manifest as Core, ReadFolder, VerifiedFolder};
use crate::error::{Code, Error, Result};

/// The SHA-256 digests of files: of a whole file, or of pieces of one size.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Manifest(Arc<Core>);

/// Name, size and the size of a piece, or None of both for the digest of the whole; and the digests, one after another.
type Listed = (String, Option<(u64, u64)>, PyBackedBytes);

#[pymethods]
impl Manifest {
    #[new]
    fn new(files: Vec<Listed>) -> PyResult<Manifest> {
        let files = files.into_iter().map(|(name, pieces, digests)| {
            let (digests, rest) = digests.as_chunks::<{ size_of::<Digest>() }>();
            let file = match (pieces, digests) {
                _ if !rest.is_empty() => None,
                (Some((size, piece)), digests) => Some(ListedFile::pieces(size, piece, digests.to_vec())?),
                (None, [digest]) => Some(ListedFile::whole(*digest)),
                (None, _) => None,
            };
            let invalid =
                || Error::new(Code::ManifestInvalid, format!("the digest of {name:?} has a wrong length"));
            let file = file.ok_or_else(invalid)?;
            Ok((name, file))
        });
        Ok(Manifest(Arc::new(Core::new(files.collect::<Result<Vec<_>>>()?)?)))
    }
}

impl Manifest {
    /// What a source is read from as the manifest lists it, and the names of the files that are meant.
    pub(super) fn folder(&self, source: Source<'_>, io: Io) -> Result<(Arc<dyn ReadFolder>, Vec<String>)> {
        let (folder, names) = match source {
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
        Ok((Arc::new(VerifiedFolder::new(folder, self.0.clone())), names))
    }
}

fn no_folder() -> Error {
    let text = "is about files of one folder, and this is not a path, a list of paths in one folder, or the URL of a folder";
    Error::new(Code::Value, text).on_argument("manifest")
}
