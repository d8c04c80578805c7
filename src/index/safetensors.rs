//! Index of a safetensors file. Each tensor has a storage of its own, a range of the data section (the format's README is the spec).

use std::sync::Arc;

use super::{Index, Location, Options, Path, Tensor};
use crate::bytes::Source;
use crate::container::Format;
use crate::container::safetensors::Header;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;

/// Reads and validates the header, and returns the index.
pub(super) fn read(source: &Source, options: &Options) -> Result<Index> {
    let header = Header::read(source, &options.limits, options.compat)?;
    let count = header.tensors.len();
    Limits::check("tensors", options.limits.tensors, u64::try_from(count).unwrap_or(u64::MAX))?;
    let mut index = Index {
        entries: Vec::with_capacity(count),
        tensors: Vec::with_capacity(count),
        storages: Vec::with_capacity(count),
        metadata: header.metadata.unwrap_or_default(),
        notes: header.notes,
        ..Index::empty(Format::Safetensors, source)
    };
    for raw in header.tensors {
        let nbytes = raw.region.len();
        let id =
            u32::try_from(index.tensors.len()).map_err(|_| Error::new(Code::Limit, "too many tensors"))?;
        let tensor = Tensor::contiguous(raw.dtype, &raw.shape, id, nbytes)?;
        index.add_whole(Arc::from(raw.name), Path::Name, tensor, Location::Range(raw.region), nbytes);
    }
    Ok(index)
}
