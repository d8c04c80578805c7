//! `Manifest`: the digests of files.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::bytes::{Digest, ListedFile, Manifest as Core};
use crate::error::{Code, Error, Result};
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

    /// The unsigned statement of model signing for a model of this name.
    fn to_json(&self, name: &str) -> PyResult<String> {
        Ok(write::statement(&self.0, name)?)
    }
}
