//! Index of a safetensors file. Each tensor has a storage of its own, a range of the data section (the format's README is the spec).
//! A file of torch.distributed.checkpoint also says which part of a larger tensor each is.

use std::sync::Arc;

use crate::bytes::Source;
use crate::container::Format;
use crate::container::safetensors::{Header, saved_offsets};
use crate::error::{Code, Error, Result};
use crate::index::model::{Index, Location, Options, Part, Path, Tensor};
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
    let mut offsets = match saved_offsets(&index.metadata, &options.limits) {
        Err(_) if options.compat => None,
        offsets => offsets?,
    };
    for raw in header.tensors {
        let nbytes = raw.region.len();
        let id =
            u32::try_from(index.tensors.len()).map_err(|_| Error::new(Code::Limit, "too many tensors"))?;
        let tensor = Tensor::contiguous(raw.dtype, &raw.shape, id, nbytes)?;
        if let Some(offsets) = &mut offsets {
            let part = match offsets.remove(&raw.name) {
                Some(offsets) if offsets.len() == raw.shape.len() => {
                    Part { offsets: Some(offsets), ..Part::default() }
                }
                // The reference reader does not look at it.
                _ if options.compat => Part::default(),
                _ => {
                    let text =
                        "the sharding information of the file does not say which part of the tensor it has";
                    return Err(Error::new(Code::DcpMetadata, text).in_member(&raw.name));
                }
            };
            index.parts.insert(id, part);
        }
        index.add_whole(Arc::from(raw.name), Path::Name, tensor, Location::Range(raw.region), nbytes);
    }
    Ok(index)
}
