//! Index of a safetensors file. Each tensor has a storage of its own, a range of the data section (the format's README is the spec).

use std::sync::Arc;

use super::{Entry, Index, Location, Options, Path, Storage, Tensor};
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
        format: Format::Safetensors,
        entries: Vec::with_capacity(count),
        tensors: Vec::with_capacity(count),
        storages: Vec::with_capacity(count),
        metadata: header.metadata.unwrap_or_default(),
        tree: None,
        opaque: Vec::new(),
        notes: header.notes,
        source: source.clone(),
        end: None,
        is_torchscript: false,
    };
    for raw in header.tensors {
        let nbytes = raw.region.len();
        let id =
            u32::try_from(index.tensors.len()).map_err(|_| Error::new(Code::Limit, "too many tensors"))?;
        let tensor = Tensor::contiguous(raw.dtype, &raw.shape, id, nbytes)?;
        let numel = tensor.layout().numel();
        let location = Location::Range(raw.region);
        index.storages.push(Storage { location, nbytes, numel, big_endian: false, device: None });
        index.tensors.push(tensor);
        index.entries.push(Entry { name: Arc::from(raw.name), path: Path::Name, tensor: id });
    }
    Ok(index)
}
