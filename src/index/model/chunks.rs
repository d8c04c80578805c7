//! A tensor in chunks: boxes of its index space whose elements lie in places of their own.
//!
//! [`Chunks::prove`] alone makes one: every chunk lies inside the tensor, no two overlap, and together they are all of it. A chunk is
//! opened when its elements are first read, and then has to hold what the index says of it.

use std::fmt;
use std::path::Path as FilePath;

use once_cell::race::OnceBox;

use super::selection::{Selection, internal};
use super::tensor::Flags;
use super::tiling;
use crate::bytes::{Region, Source};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Dims, Layout};
use crate::parallel::Cancel;

/// The chunks of one tensor.
#[derive(Debug)]
pub struct Chunks {
    dtype: DType,
    shape: Dims,
    chunks: Box<[Chunk]>,
}

/// One chunk: a box of the tensor's index space.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The index of its first element along each dimension.
    offsets: Dims,
    /// Its elements along each dimension.
    sizes: Dims,
    place: Box<dyn ChunkPlace>,
    bytes: OnceBox<ChunkBytes>,
}

/// Where a chunk is.
pub(crate) trait ChunkPlace: fmt::Debug + Send + Sync {
    /// Opens the chunk. Fails with `DcpChunk` unless it has this dtype and shape.
    fn open(&self, dtype: DType, sizes: &Dims) -> Result<ChunkBytes>;

    /// An approximate position among all files: good for sorting only.
    fn position(&self) -> u64;

    /// The range that has it as an archive; `None` for a tensor of an open file.
    #[cfg(feature = "scan")]
    fn item(&self) -> Option<ChunkItem<'_>> {
        None
    }
}

/// Where the elements of a chunk lie.
#[derive(Clone, Debug)]
pub struct ChunkBytes {
    /// The bytes of its storage.
    pub source: Source,
    /// Whether the elements are big-endian.
    pub big_endian: bool,
    /// The layout of its elements in the storage. It was checked against the storage's size.
    pub layout: Layout,
    /// The flags that its file sets.
    pub flags: Flags,
}

/// The elements of one chunk that a selection meets.
#[derive(Debug)]
pub struct ChunkPart<'a> {
    /// The bytes that the layout refers to.
    pub bytes: &'a ChunkBytes,
    /// The selected elements of the chunk, in the order of the selection's dimensions.
    pub layout: Layout,
    /// The position of the first of them in the selection.
    pub offsets: Dims,
}

/// A range of a file in which a distributed checkpoint has a chunk or a value.
#[cfg(feature = "scan")]
#[derive(Clone, Copy, Debug)]
pub enum ChunkItem<'a> {
    /// Of a file in the folder of the metadata.
    File(&'a FilePath, Region),
    /// Of a member of an archive, which is a range of an open file.
    Window(&'a Source, Region),
}

impl Chunk {
    pub(crate) fn new(offsets: Dims, sizes: Dims, place: Box<dyn ChunkPlace>) -> Chunk {
        Chunk { offsets, sizes, place, bytes: OnceBox::new() }
    }
}

impl Chunks {
    /// The tensor of this dtype and shape that the chunks are. Fails with `DcpGrid` where a chunk reaches outside it, two overlap, or
    /// elements are in none.
    pub(crate) fn prove(dtype: DType, shape: Dims, chunks: Vec<Chunk>) -> Result<Chunks> {
        let boxes: Vec<_> = chunks.iter().map(|chunk| (&chunk.offsets[..], &chunk.sizes[..])).collect();
        tiling::check(&shape, &boxes)?;
        Ok(Chunks { dtype, shape, chunks: chunks.into() })
    }

    /// The number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// An approximate position of the first chunk among all files: good for sorting only.
    pub(crate) fn position(&self) -> u64 {
        self.chunks.first().map_or(0, |chunk| chunk.place.position())
    }

    /// The bytes of the tensor, where one chunk has all of them as they are and in C order. `None` elsewhere. Opens that chunk.
    pub(crate) fn as_stored(&self) -> Result<Option<Source>> {
        let [chunk] = &*self.chunks else { return Ok(None) };
        let ChunkBytes { source, big_endian, layout, flags } = self.bytes(chunk)?;
        let is_plain = layout.is_contiguous() && !flags.conjugate && !flags.negative;
        if !is_plain || (*big_endian && self.dtype.swap_unit() > 1) {
            return Ok(None);
        }
        let item = self.dtype.itemsize();
        let (start, len) = (layout.offset.saturating_mul(item), layout.numel().saturating_mul(item));
        source.window(if len == 0 { 0 } else { start }, len).map(Some)
    }

    /// The ranges of the chunks that are archives, each with its file.
    #[cfg(feature = "scan")]
    pub(crate) fn items(&self) -> impl Iterator<Item = ChunkItem<'_>> {
        self.chunks.iter().filter_map(|chunk| chunk.place.item())
    }

    /// Opens every chunk.
    pub(crate) fn open_all(&self, cancel: &Cancel) -> Result<()> {
        self.chunks.iter().try_for_each(|chunk| {
            cancel.check()?;
            self.bytes(chunk).map(|_| ())
        })
    }

    /// The parts of chunks that a selection meets. `layout` selects elements of the whole tensor in C order, by basic indexing and
    /// permutation. Opens those chunks and no other.
    pub fn parts(&self, layout: &Layout, cancel: &Cancel) -> Result<Vec<ChunkPart<'_>>> {
        let selection = Selection::of(&self.shape, layout)?;
        let mut parts = Vec::new();
        for chunk in &self.chunks {
            let Some(meeting) = selection.meet(&chunk.offsets, &chunk.sizes) else { continue };
            cancel.check()?;
            let bytes = self.bytes(chunk)?;
            let (layout, offsets) = meeting.layout(&bytes.layout).ok_or_else(internal)?;
            parts.push(ChunkPart { bytes, layout, offsets });
        }
        Ok(parts)
    }

    /// Where a chunk's elements lie. The first call opens it.
    fn bytes<'a>(&'a self, chunk: &'a Chunk) -> Result<&'a ChunkBytes> {
        chunk.bytes.get_or_try_init(|| chunk.place.open(self.dtype, &chunk.sizes).map(Box::new))
    }
}
