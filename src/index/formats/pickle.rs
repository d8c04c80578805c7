//! A bare pickle, which holds the bytes of its tensors.

use std::collections::HashMap;

use super::contents::Contents;
use super::{dcp, torch_checkpointing, torch_legacy};
use crate::bytes::{Folder, Source};
use crate::container::Format;
use crate::error::{Code, Error, Result};
use crate::index::model::Options;
use crate::index::pickled::{self, PersistentIdForm, PersistentIds};
use crate::limits::Limits;
use crate::pickle::{self, Pickle};

/// Reads its index.
pub(super) fn read(source: &Source, options: &Options) -> Result<Contents> {
    Limits::check("pickle_bytes", options.limits.pickle_bytes, source.len())?;
    let data = source.chunk(0, source.len())?;
    let pickle = pickle::run_cancellable(data, &options.limits, &options.cancel)
        .or_else(|error| Err(joblib(source)?.unwrap_or(error)))?;
    read_pickle(source, pickle, options)
}

/// The error for a file that joblib wrote (joblib/numpy_pickle.py), where the bytes of an array follow the opcodes of its wrapper; `None`
/// for another file. Without such arrays it is a pickle.
fn joblib(source: &Source) -> Result<Option<Error>> {
    const HEAD_BYTES: u64 = 1 << 20;
    const WRAPPER: &[u8] = b"NumpyArrayWrapper";
    let head = source.read_vec(0, source.len().min(HEAD_BYTES))?;
    let has = |text: &[u8]| head.windows(text.len()).any(|bytes| bytes == text);
    if !has(b"joblib.numpy_pickle") || !has(WRAPPER) {
        return Ok(None);
    }
    let error = Error::new(Code::UnknownFormat, "this is a joblib file, not a checkpoint");
    Ok(Some(error.note(
        "joblib.load runs what the file says: scan it first, and load it only if you trust its origin. skops.io stores such objects without code.",
    )))
}

/// Reads the index of a bare pickle that was executed already and is all of `source`. A file that is the metadata of a distributed
/// checkpoint, of torch or of torch_checkpointing, gives the tensors of that.
pub fn read_pickle(source: &Source, pickle: Pickle, options: &Options) -> Result<Contents> {
    if dcp::is_metadata(&pickle)
        && let Some(folder) = Folder::of(source)
    {
        return dcp::read(source, dcp::Folder::of(folder, source.path(), &options.limits)?, pickle, options);
    }
    if torch_checkpointing::is_metadata(&pickle)
        && let Some(folder) = Folder::of(source)
    {
        let folder = dcp::Folder::of(folder, source.path(), &options.limits)?;
        return torch_checkpointing::read(source, &folder, &pickle, options);
    }
    torch_legacy::check_not_legacy(pickle.values.data(), &options.limits)?;
    let locate = |key: &str, _: u64| {
        let text = format!("the pickle refers to storage {key}, but a bare pickle has no storages");
        Err(Error::new(Code::PersistentId, text))
    };
    let ids = PersistentIds::described(PersistentIdForm::Archive, &locate);
    let mut read = pickled::read_executed(pickle, ids, HashMap::new(), options)?;
    let notes = std::mem::take(&mut read.notes);
    read.into_index(Format::Pickle, notes, source).map(Contents::from)
}
