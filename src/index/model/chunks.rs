//! A tensor in chunks: boxes of its index space whose elements lie in places of their own.
//!
//! [`Chunks::prove`] alone makes one: every chunk lies inside the tensor, no two overlap, and together they are all of it. A chunk
//! of a distributed checkpoint is a whole archive of torch, inside a file; it is opened when its elements are first read, and then
//! has to hold what the metadata says. Other chunks are tensors of open files: the parts that processes of a distributed program had.

use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use once_cell::race::OnceBox;
use smallvec::SmallVec;

use super::tensor::Flags;
use super::tiling;
use crate::bytes::{FileStamp, ReadFolder, Region, Source};
use crate::container::zip::{Archive, Trailing};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::formats::dcp::FolderFile;
use crate::index::formats::torch;
use crate::index::model::{Index, Location, Options, Path, StorageBytes};
use crate::index::pickled::Tree;
use crate::layout::{Dims, Layout, contiguous_strides, numel};
use crate::num::u32_to_usize;
use crate::parallel::Cancel;

/// The chunks of one tensor.
#[derive(Debug)]
pub struct Chunks {
    dtype: DType,
    shape: Dims,
    chunks: Box<[Chunk]>,
    files: Arc<ChunkFiles>,
}

/// One chunk: a box of the tensor's index space.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The index of its first element along each dimension.
    pub(crate) offsets: Dims,
    /// Its elements along each dimension.
    pub(crate) sizes: Dims,
    place: ChunkPlace,
    bytes: OnceBox<ChunkBytes>,
}

/// Where a chunk is.
#[derive(Debug)]
enum ChunkPlace {
    /// In a range of a file, as an archive.
    Archive(u32, Region),
    /// A tensor of a file that is open.
    Tensor(Box<StoredTensor>),
}

/// A tensor of an open file.
#[derive(Debug)]
struct StoredTensor {
    source: Source,
    tree: Option<Arc<Tree>>,
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

/// The files that the chunks and values of a distributed checkpoint lie in. Each is opened when it is first read.
#[derive(Debug)]
pub(crate) struct ChunkFiles {
    files: Box<[ChunkFile]>,
    options: Options,
}

enum ChunkFile {
    /// A file in a folder.
    Named {
        folder: Arc<dyn ReadFolder>,
        name: String,
        /// The path, or URL, of the file.
        path: PathBuf,
        /// Its size when the checkpoint was opened.
        len: u64,
        source: OnceBox<Source>,
    },
    /// A range of an open file.
    Window(Source),
}

impl fmt::Debug for ChunkFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkFile::Named { path, .. } => write!(f, "ChunkFile({})", path.display()),
            ChunkFile::Window(source) => source.fmt(f),
        }
    }
}

impl ChunkFiles {
    pub(crate) fn new(files: Vec<FolderFile>, options: &Options) -> ChunkFiles {
        let files = files.into_iter().map(|file| match file {
            FolderFile::Named(folder, name, len) => {
                let path = folder.path().join(&name);
                ChunkFile::Named { folder, name, path, len, source: OnceBox::new() }
            }
            FolderFile::Window(source) => ChunkFile::Window(source),
        });
        ChunkFiles { files: files.collect(), options: options.clone() }
    }

    /// The stamps of the files on disk: of one that was read as it was then, of the others as they are now. Fails where a file has
    /// another size than when the checkpoint was opened.
    pub(crate) fn stamps(&self) -> Result<Vec<FileStamp>> {
        let mut stamps = Vec::new();
        for file in &self.files {
            let ChunkFile::Named { folder, path, len, source, .. } = file else { continue };
            if folder.on_disk().is_none() {
                continue;
            }
            let stamp = match source.get().and_then(|source| source.file_stamp()) {
                Some(stamp) => stamp,
                None => FileStamp::of_path(path)?,
            };
            if stamp.len != *len {
                return Err(size_changed(path, *len, stamp.len));
            }
            stamps.push(stamp);
        }
        Ok(stamps)
    }

    /// A range of a file. Fails where the file has another size than when the checkpoint was opened.
    pub(crate) fn window(&self, file: u32, region: Region) -> Result<Source> {
        let file = self.files.get(u32_to_usize(file)).ok_or_else(internal)?;
        let source = match file {
            ChunkFile::Window(source) => source,
            ChunkFile::Named { folder, name, path, len, source } => source.get_or_try_init(|| {
                let source = Source::new(folder.open(name)?);
                match source.len() == *len {
                    true => Ok(Box::new(source)),
                    false => Err(size_changed(path, *len, source.len())),
                }
            })?,
        };
        source.window(region.start(), region.len())
    }

    /// The path or URL of a file, or of the archive that it is in; `None` for an archive in memory.
    pub(crate) fn path(&self, file: u32) -> Option<&FilePath> {
        match self.files.get(u32_to_usize(file))? {
            ChunkFile::Named { path, .. } => Some(path),
            ChunkFile::Window(source) => source.path(),
        }
    }

    #[cfg(feature = "scan")]
    pub(crate) fn item(&self, file: u32, region: Region) -> Option<ChunkItem<'_>> {
        Some(match self.files.get(u32_to_usize(file))? {
            ChunkFile::Named { path, .. } => ChunkItem::File(path, region),
            ChunkFile::Window(source) => ChunkItem::Window(source, region),
        })
    }
}

impl Chunk {
    /// A chunk in an archive of its own, in a range of a file.
    pub(crate) fn in_archive(offsets: Dims, sizes: Dims, file: u32, region: Region) -> Chunk {
        Chunk { offsets, sizes, place: ChunkPlace::Archive(file, region), bytes: OnceBox::new() }
    }

    /// A tensor of an open file. Fails where it has more elements than are stored.
    fn of_part(part: &TensorPart<'_>) -> Result<Chunk> {
        let TensorPart { index, tensor, offsets } = part;
        let tensor = index.tensors.get(u32_to_usize(*tensor)).ok_or_else(internal)?;
        let storage = index.storages.get(u32_to_usize(tensor.storage())).ok_or_else(internal)?;
        let (layout, sizes) = (tensor.layout().clone(), tensor.layout().shape.clone());
        let nbytes = layout.numel().checked_mul(tensor.dtype().itemsize());
        if nbytes.is_none_or(|nbytes| nbytes > storage.nbytes) {
            let text = format!("a part of {:?} is stored in {} byte(s)", &sizes[..], storage.nbytes);
            return Err(Error::new(Code::DcpChunk, text));
        }
        let stored = StoredTensor {
            source: index.source.clone(),
            tree: index.tree.clone(),
            location: storage.location.clone(),
            nbytes: storage.nbytes,
            big_endian: storage.big_endian,
            layout,
            flags: tensor.flags,
        };
        let place = ChunkPlace::Tensor(Box::new(stored));
        Ok(Chunk { offsets: offsets.clone(), sizes, place, bytes: OnceBox::new() })
    }
}

impl Chunks {
    /// The tensor of this dtype and shape that the chunks are. Fails with `DcpGrid` where a chunk reaches outside it, two overlap, or
    /// elements are in none.
    pub(crate) fn prove(
        dtype: DType,
        shape: Dims,
        chunks: Vec<Chunk>,
        files: Arc<ChunkFiles>,
    ) -> Result<Chunks> {
        let boxes: Vec<_> = chunks.iter().map(|chunk| (&chunk.offsets[..], &chunk.sizes[..])).collect();
        tiling::check(&shape, &boxes)?;
        Ok(Chunks { dtype, shape, chunks: chunks.into(), files })
    }

    /// As [`Chunks::prove`], of parts that files have as tensors of their own.
    pub(crate) fn of_parts(
        dtype: DType,
        shape: Dims,
        parts: &[TensorPart<'_>],
        options: &Options,
    ) -> Result<Chunks> {
        let chunks = parts.iter().map(Chunk::of_part).collect::<Result<_>>()?;
        Chunks::prove(dtype, shape, chunks, Arc::new(ChunkFiles::new(Vec::new(), options)))
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
        self.chunks.first().map_or(0, |chunk| match &chunk.place {
            ChunkPlace::Archive(file, region) => (u64::from(*file) << 40).saturating_add(region.start()),
            ChunkPlace::Tensor(stored) => stored.location.position(),
        })
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
        self.chunks.iter().filter_map(|chunk| match chunk.place {
            ChunkPlace::Archive(file, region) => self.files.item(file, region),
            ChunkPlace::Tensor(_) => None,
        })
    }

    /// Opens every chunk.
    pub(crate) fn open_all(&self, cancel: &Cancel) -> Result<()> {
        self.chunks.iter().try_for_each(|chunk| {
            cancel.check()?;
            self.bytes(chunk).map(|_| ())
        })
    }

    /// Where a chunk's elements lie. The first call opens its archive.
    fn bytes<'a>(&'a self, chunk: &'a Chunk) -> Result<&'a ChunkBytes> {
        chunk.bytes.get_or_try_init(|| {
            let (file, region) = match &chunk.place {
                ChunkPlace::Archive(file, region) => (*file, *region),
                ChunkPlace::Tensor(stored) => return stored.bytes().map(Box::new),
            };
            let source = self.files.window(file, region)?;
            let read = self.open(&source, chunk);
            read.map(Box::new).map_err(|error| {
                let error = source.check_unchanged().err().unwrap_or(error);
                let error = match (error.code(), error.offset()) {
                    (Code::FileChanged, _) | (_, Some(_)) => error,
                    _ => error.at(region.start()),
                };
                match self.files.path(file) {
                    Some(path) => error.in_file(path),
                    None => error,
                }
            })
        })
    }

    /// Opens the archive of a chunk, within the limits on requests. Fails with `DcpChunk` unless it is one tensor of the dtype and
    /// shape that the metadata states.
    fn open(&self, source: &Source, chunk: &Chunk) -> Result<ChunkBytes> {
        let options = &self.files.options;
        // Other chunks of the file may be read meanwhile.
        let limited = source.limited(&options.limits);
        let archive = Archive::open(&limited, &options.limits, Trailing::Error)?;
        let index = torch::read(archive, options)?;
        let wrong = |text: String| Error::new(Code::DcpChunk, text);
        let ([tensor], [entry]) = (&index.tensors[..], &index.entries[..]) else {
            let text = format!("a chunk holds {} tensor(s), not one", index.tensors.len());
            return Err(wrong(text));
        };
        if !matches!(&entry.path, Path::Steps(steps) if steps.is_empty()) {
            return Err(wrong("a chunk holds a container, not a tensor".to_owned()));
        }
        let tree = index.tree.as_ref();
        if tree.and_then(|tree| tree.extra(0)).is_some_and(|extra| extra.quantization.is_some()) {
            return Err(wrong("a chunk is quantized".to_owned()));
        }
        let (dtype, layout) = (tensor.dtype(), tensor.layout());
        if (dtype, &layout.shape) != (self.dtype, &chunk.sizes) {
            let (shape, sizes) = (&layout.shape[..], &chunk.sizes[..]);
            let text = format!(
                "a chunk is {dtype} of shape {shape:?}, the metadata states {} of {sizes:?}",
                self.dtype
            );
            return Err(wrong(text));
        }
        let big_endian = index.storages.get(u32_to_usize(tensor.storage())).is_some_and(|one| one.big_endian);
        let found = stored(index.bytes(tensor.storage())?)?.unlimited(&limited, source);
        Ok(ChunkBytes { source: found, big_endian, layout: layout.clone(), flags: tensor.flags })
    }

    /// The parts of chunks that a selection meets. `layout` selects elements of the whole tensor in C order, by basic indexing and
    /// permutation. Opens those chunks and no other.
    pub fn parts(&self, layout: &Layout, cancel: &Cancel) -> Result<Vec<ChunkPart<'_>>> {
        let selection = Selection::of(&self.shape, layout)?;
        let mut parts = Vec::new();
        for chunk in &self.chunks {
            let Some(meeting) = selection.meet(chunk) else { continue };
            cancel.check()?;
            let bytes = self.bytes(chunk)?;
            let (layout, offsets) = meeting.layout(&bytes.layout).ok_or_else(internal)?;
            parts.push(ChunkPart { bytes, layout, offsets });
        }
        Ok(parts)
    }
}

impl StoredTensor {
    fn bytes(&self) -> Result<ChunkBytes> {
        let read = self.location.bytes(&self.source, self.tree.as_ref(), self.nbytes).and_then(stored);
        let source = read.map_err(|error| {
            let error = self.source.check_unchanged().err().unwrap_or(error);
            match self.source.path() {
                Some(path) => error.in_file(path),
                None => error,
            }
        })?;
        let StoredTensor { big_endian, layout, flags, .. } = self;
        Ok(ChunkBytes { source, big_endian: *big_endian, layout: layout.clone(), flags: *flags })
    }
}

/// The bytes of a storage as the file has them. Fails with `DcpChunk` where it has them in another form.
fn stored(bytes: StorageBytes<'_>) -> Result<Source> {
    match bytes {
        StorageBytes::Stored(source) | StorageBytes::InPickle(source) => Ok(source),
        StorageBytes::Empty => Ok(Source::memory(Arc::new([]))),
        _ => Err(Error::new(Code::DcpChunk, "the elements of a chunk are compressed or absent")),
    }
}

fn size_changed(path: &FilePath, before: u64, now: u64) -> Error {
    let text = format!("the file had {before} byte(s) and now has {now}");
    Error::new(Code::FileChanged, text).in_file(path)
}

/// A selection of elements of a tensor, by dimension.
struct Selection {
    /// For each dimension of the tensor, what is selected along it.
    dims: SmallVec<[Selected; 4]>,
    /// The shape of the selection.
    shape: Dims,
}

/// What is selected along one dimension of a tensor: `count` indices, `step` apart.
#[derive(Clone, Copy)]
struct Selected {
    start: u64,
    step: u64,
    count: u64,
    /// The dimension of the selection that runs along it; `None` for a single index.
    dim: Option<usize>,
}

/// The elements that a selection and a chunk have in common.
struct Meeting {
    /// For each dimension of the tensor, the first index in the chunk, the step, and the dimension of the selection.
    dims: SmallVec<[(u64, u64, Option<usize>); 4]>,
    /// The shape, and the position of the first element in the selection.
    shape: Dims,
    offsets: Dims,
}

impl Selection {
    /// What `layout` selects of a C-contiguous tensor of this shape. Every dimension of more than one element runs along one
    /// dimension of the tensor: strides of the tensor's dimensions are each a multiple of the next one's, by its size.
    fn of(shape: &[u64], layout: &Layout) -> Result<Selection> {
        let strides = contiguous_strides(shape).ok_or_else(internal)?;
        let mut rest = layout.offset;
        let mut dims: SmallVec<[Selected; 4]> = SmallVec::new();
        for &stride in &strides {
            let start = rest.checked_div(stride).ok_or_else(internal)?;
            rest = rest.checked_rem(stride).ok_or_else(internal)?;
            dims.push(Selected { start, step: 1, count: 1, dim: None });
        }
        let is_empty = layout.shape.contains(&0);
        for (at, (&count, &stride)) in layout.shape.iter().zip(&layout.strides).enumerate() {
            if count <= 1 || is_empty {
                continue;
            }
            let found = (strides.iter().zip(shape).enumerate())
                .find(|(_, (own, size))| **size > 1 && **own <= stride)
                .ok_or_else(internal)?;
            let (dim, (&own, &size)) = found;
            let step = stride.checked_div(own).ok_or_else(internal)?;
            let selected =
                dims.get_mut(dim).filter(|selected| selected.dim.is_none()).ok_or_else(internal)?;
            *selected = Selected { start: selected.start, step, count, dim: Some(at) };
            let last = count.checked_sub(1).and_then(|count| count.checked_mul(step));
            let last = last.and_then(|last| last.checked_add(selected.start));
            if step.checked_mul(own) != Some(stride) || last.is_none_or(|last| last >= size) {
                return Err(internal());
            }
        }
        Ok(Selection { dims, shape: layout.shape.clone() })
    }

    /// The elements that a chunk has of it; `None` where it has none.
    fn meet(&self, chunk: &Chunk) -> Option<Meeting> {
        if numel(&self.shape) == Some(0) || numel(&chunk.sizes) == Some(0) {
            return None;
        }
        let mut meeting = Meeting {
            dims: SmallVec::new(),
            shape: self.shape.clone(),
            offsets: SmallVec::from_elem(0, self.shape.len()),
        };
        for ((selected, &begin), &size) in self.dims.iter().zip(&chunk.offsets).zip(&chunk.sizes) {
            let Selected { start, step, count, dim } = *selected;
            let end = begin.checked_add(size)?;
            // Positions in the selection from the first index at or after a bound of the chunk.
            let at = |bound: u64| bound.saturating_sub(start).div_ceil(step).min(count);
            let (first, last) = (at(begin), at(end));
            if first >= last {
                return None;
            }
            let index = start.checked_add(first.checked_mul(step)?)?.checked_sub(begin)?;
            meeting.dims.push((index, step, dim));
            if let Some(dim) = dim {
                *meeting.shape.get_mut(dim)? = last.checked_sub(first)?;
                *meeting.offsets.get_mut(dim)? = first;
            }
        }
        Some(meeting)
    }
}

impl Meeting {
    /// The layout of the elements in the chunk's storage, and their position in the selection.
    fn layout(self, chunk: &Layout) -> Option<(Layout, Dims)> {
        let mut offset = chunk.offset;
        let mut strides: Dims = SmallVec::from_elem(0, self.shape.len());
        for (&(index, step, dim), &stride) in self.dims.iter().zip(&chunk.strides) {
            offset = offset.checked_add(index.checked_mul(stride)?)?;
            if let Some(dim) = dim {
                *strides.get_mut(dim)? = step.saturating_mul(stride);
            }
        }
        Some((Layout { shape: self.shape, strides, offset }, self.offsets))
    }
}

fn internal() -> Error {
    Error::new(Code::InternalError, "a selection of a tensor in chunks is none of its elements")
}
