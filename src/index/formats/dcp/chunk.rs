//! A chunk of a distributed checkpoint: a whole archive of torch, in a range of a file.

use std::sync::Arc;

use super::files::{ChunkFiles, Place};
use crate::bytes::Source;
use crate::container::zip::{Archive, Trailing};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail};
use crate::index::formats::contents::Contents;
use crate::index::formats::torch;
#[cfg(feature = "scan")]
use crate::index::model::ChunkItem;
use crate::index::model::{ChunkBytes, ChunkPlace, Path, StorageBytes};
use crate::layout::Dims;
use crate::num::u32_to_usize;

#[derive(Debug)]
pub(super) struct ArchiveChunk {
    pub(super) files: Arc<ChunkFiles>,
    pub(super) place: Place,
}

impl ChunkPlace for ArchiveChunk {
    fn open(&self, dtype: DType, sizes: &Dims) -> Result<ChunkBytes> {
        let source = self.files.window(self.place)?;
        self.read(&source, dtype, sizes).map_err(|error| {
            let error = source.check_unchanged().err().unwrap_or(error);
            let error = match (error.code(), error.offset()) {
                (Code::FileChanged, _) | (_, Some(_)) => error,
                _ => error.at(self.place.1.start()),
            };
            error.in_known_file(self.files.path(self.place.0))
        })
    }

    fn position(&self) -> u64 {
        (u64::from(self.place.0) << 40).saturating_add(self.place.1.start())
    }

    #[cfg(feature = "scan")]
    fn item(&self) -> Option<ChunkItem<'_>> {
        self.files.item(self.place)
    }
}

impl ArchiveChunk {
    /// Opens the archive, within the limits on requests. Fails with `DcpChunk` unless it is one tensor of the dtype and shape that the
    /// metadata states.
    fn read(&self, source: &Source, stated: DType, sizes: &Dims) -> Result<ChunkBytes> {
        let options = &self.files.options;
        // Other chunks of the file may be read meanwhile.
        let limited = source.limited(&options.limits);
        let archive = Archive::open(&limited, &options.limits, Trailing::Error)?;
        let Contents { index, objects, .. } = torch::read(archive, None, options)?;
        let ([tensor], [entry]) = (&index.tensors[..], &index.entries[..]) else {
            bail!(Code::DcpChunk, "a chunk holds {} tensor(s), not one", index.tensors.len());
        };
        if !matches!(&entry.path, Path::Steps(steps) if steps.is_empty()) {
            bail!(Code::DcpChunk, "a chunk holds a container, not a tensor");
        }
        let extra = objects.tree.as_ref().and_then(|tree| tree.extra(0));
        if extra.is_some_and(|extra| extra.quantization.is_some()) {
            bail!(Code::DcpChunk, "a chunk is quantized");
        }
        let (dtype, layout) = (tensor.dtype(), tensor.layout());
        if (dtype, &layout.shape) != (stated, sizes) {
            let (shape, sizes) = (&layout.shape[..], &sizes[..]);
            let text =
                format!("a chunk is {dtype} of shape {shape:?}, the metadata states {stated} of {sizes:?}");
            return Err(Error::new(Code::DcpChunk, text));
        }
        let big_endian = index.storages.get(u32_to_usize(tensor.storage())).is_some_and(|one| one.big_endian);
        let found = index.bytes(tensor.storage()).and_then(StorageBytes::into_stored)?;
        Ok(ChunkBytes { source: found, big_endian, layout: layout.clone(), flags: tensor.flags })
    }
}
