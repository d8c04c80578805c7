//! Joins the parts of tensors that several open files have to tensors in chunks.

use std::sync::Arc;

use super::selection::internal;
use super::{Chunk, ChunkBytes, ChunkPlace, Chunks, Flags, Index, Location, Storage, StorageBytes, Tensor};
use crate::bytes::Source;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail};
use crate::layout::{Dims, Layout, numel};
use crate::num::{to_u32, u32_to_usize};

/// A tensor of an open file.
#[derive(Debug)]
struct StoredTensor {
    source: Source,
    location: Location,
    nbytes: u64,
    big_endian: bool,
    layout: Layout,
    flags: Flags,
}

/// A part of a tensor that a file has as a tensor of its own.
#[derive(Debug)]
pub struct TensorPart<'a> {
    /// The file.
    pub index: &'a Index,
    /// The number of the part in it.
    pub tensor: u32,
    /// The index in the whole tensor of its first element.
    pub offsets: Dims,
}

impl TensorPart<'_> {
    /// The part as a chunk. Fails where it has more elements than are stored.
    fn chunk(&self) -> Result<Chunk> {
        let tensor = self.index.tensors.get(u32_to_usize(self.tensor)).ok_or_else(internal)?;
        self.chunk_of(tensor.layout().clone())
    }

    /// The elements of this layout in the part's storage as a chunk. Fails where they are more than are stored.
    pub(super) fn chunk_of(&self, layout: Layout) -> Result<Chunk> {
        let TensorPart { index, tensor, offsets } = self;
        let tensor = index.tensors.get(u32_to_usize(*tensor)).ok_or_else(internal)?;
        let storage = index.storages.get(u32_to_usize(tensor.storage())).ok_or_else(internal)?;
        let sizes = layout.shape.clone();
        let nbytes = layout.numel().checked_mul(tensor.dtype().itemsize());
        if nbytes.is_none_or(|nbytes| nbytes > storage.nbytes) {
            bail!(Code::DcpChunk, "a part of {:?} is stored in {} byte(s)", &sizes[..], storage.nbytes);
        }
        let stored = StoredTensor {
            source: index.source.clone(),
            location: storage.location.clone(),
            nbytes: storage.nbytes,
            big_endian: storage.big_endian,
            layout,
            flags: tensor.flags,
        };
        Ok(Chunk::new(offsets.clone(), sizes, Box::new(stored)))
    }
}

impl ChunkPlace for StoredTensor {
    fn open(&self, _: DType, _: &Dims) -> Result<ChunkBytes> {
        let read = self.location.bytes(&self.source, self.nbytes).and_then(StorageBytes::into_stored);
        let source = read.map_err(|error| {
            let error = self.source.check_unchanged().err().unwrap_or(error);
            error.in_known_file(self.source.path())
        })?;
        let StoredTensor { big_endian, layout, flags, .. } = self;
        Ok(ChunkBytes { source, big_endian: *big_endian, layout: layout.clone(), flags: *flags })
    }

    fn position(&self) -> u64 {
        self.location.position()
    }
}

impl Index {
    /// Adds the tensor of this shape that parts in several files are together, without a name; returns its number. Fails where they
    /// are not.
    pub(crate) fn join(&mut self, shape: Dims, parts: &[TensorPart<'_>]) -> Result<u32> {
        let first = parts.first().and_then(|part| part.index.tensors.get(u32_to_usize(part.tensor)));
        let (dtype, flags) =
            first.map_or((DType::U8, Flags::default()), |first| (first.dtype(), first.flags));
        let chunks = parts.iter().map(TensorPart::chunk).collect::<Result<_>>()?;
        self.add_chunks(dtype, shape, flags, chunks)
    }

    /// Adds the tensor that chunks are together, without a name; returns its number. Fails where they are not.
    pub(super) fn add_chunks(
        &mut self,
        dtype: DType,
        shape: Dims,
        flags: Flags,
        chunks: Vec<Chunk>,
    ) -> Result<u32> {
        let number = to_u32(self.tensors.len());
        let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
        let nbytes =
            nbytes.ok_or_else(|| Error::new(Code::TensorShape, "a tensor's size does not fit 64 bits"))?;
        let mut tensor = Tensor::contiguous(dtype, &shape, number, nbytes)?;
        // The signs are those of the parts.
        tensor.flags = Flags { conjugate: false, negative: false, ..flags };
        let chunks = Chunks::prove(dtype, shape, chunks)?;
        let (location, numel) = (Location::Chunks(Arc::new(chunks)), tensor.layout().numel());
        self.storages.push(Storage { location, nbytes, numel, big_endian: false, device: None });
        self.tensors.push(tensor);
        Ok(number)
    }
}
