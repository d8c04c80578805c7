//! `Manifest`: the digests of files.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use super::folder::Folder;
use super::run;
use crate::bytes::{
    Digest, Folder as Files, Io, ListedFile, Manifest as Core, ReadFolder as _, Source, VerifiedFolder,
};
use crate::error::{Code, Error, Result};
use crate::num::to_u64;
use crate::write;

/// The SHA-256 digests of files: of a whole file, or of pieces of one size.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Manifest(pub(super) Arc<Core>);

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

    /// Opens a file of a folder that is read only as this lists it.
    fn open(&self, py: Python<'_>, folder: FolderArg, name: &str) -> PyResult<VerifiedFile> {
        let folder = match folder {
            FolderArg::Path(path) => Files::Disk(path, Io::Auto),
            FolderArg::Store(Folder(folder, _)) => Files::Store(Arc::new(folder)),
        };
        let folder = VerifiedFolder::new(folder, self.0.clone());
        let source = run::detached(py, || Ok(Source::new(folder.open(name)?)))?;
        Ok(VerifiedFile { name: folder.path().join(name).to_string_lossy().into_owned(), source })
    }

    /// The unsigned statement of model signing for a model of this name.
    fn to_json(&self, name: &str) -> PyResult<String> {
        Ok(write::statement(&self.0, name)?)
    }
}

#[derive(FromPyObject)]
enum FolderArg {
    Path(PathBuf),
    Store(Folder),
}

/// A file that is read only as a manifest lists it; as `rustload.Ranges`.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct VerifiedFile {
    #[pyo3(get)]
    name: String,
    source: Source,
}

#[pymethods]
impl VerifiedFile {
    #[getter]
    fn size(&self) -> u64 {
        self.source.len()
    }

    /// The bytes of each range, a pair of offset and length.
    fn read_ranges(&self, py: Python<'_>, ranges: Vec<(u64, usize)>) -> PyResult<Vec<Vec<u8>>> {
        let read = |(offset, len): (u64, usize)| {
            // Memory is for bytes that are there.
            if offset.checked_add(to_u64(len)).is_none_or(|end| end > self.source.len()) {
                return Err(Error::new(
                    Code::Value,
                    format!("the file has no bytes {offset} to {offset} + {len}"),
                ));
            }
            let mut bytes = vec![0; len];
            self.source.read_at(offset, &mut bytes)?;
            Ok(bytes)
        };
        run::detached(py, || ranges.into_iter().map(read).collect())
    }
}
