//! The index of a checkpoint: its tensors, with name, dtype, shape, strides and storage.
//!
//! An index owns its data and borrows nothing: an [`Entry`] names a [`Tensor`], a tensor refers to a [`Storage`], and a storage to
//! a byte range of the file. Only the bounds check in `validate` constructs a [`Tensor`], so its range may be read without
//! another check.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod chunks;
mod dcp;
mod extra;
pub mod globals;
mod known;
mod location;
mod meaning;
mod names;
mod nemo;
mod numpy_files;
mod part;
mod pickled;
mod safetensors;
mod script;
mod tiling;
mod torch;
mod torch_export;
mod torch_legacy;
mod torch_tar;
mod tree;
mod validate;

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(not(feature = "scan"))]
use self::meaning::PersistentIdForm;
use self::meaning::PersistentIds;
use crate::builder::setters;
use crate::bytes::{Io, Source};
pub(crate) use crate::container::safetensors::is_sharding_key;
use crate::container::tar;
use crate::container::zip::{Archive, Trailing};
use crate::container::{Format, sniff};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64, u32_to_usize};
use crate::parallel::Cancel;
use crate::pickle::{self, Handle, Pickle};

#[cfg(feature = "scan")]
pub use chunks::ChunkItem;
pub use chunks::{ChunkBytes, ChunkPart, Chunks, TensorPart};
pub use dcp::{SavedValue, SavedValues};
pub use extra::{Component, Extra, Packed, Quantization, Scale, Sparse, SparseLayout};
pub use location::{Deflated, Location, StorageBytes};
#[cfg(feature = "scan")]
pub use meaning::{PersistentIdForm, holds_storage};
pub use part::{Along, Part, Placement};
#[cfg(feature = "scan")]
pub(crate) use torch_legacy::PICKLES as LEGACY_PICKLES;
#[cfg(feature = "scan")]
pub use torch_tar::storage_itemsize;
pub use tree::{DictKind, Object, Tree};
use validate::Flags;
pub use validate::{RawTensor, Sizes, Tensor};

/// How to treat a value of an unknown class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// Keep it as inert data.
    #[default]
    Keep,
    /// Fail with an error.
    Error,
}

/// How to open a checkpoint.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Bounds on memory and work that the file can cause.
    pub limits: Limits,
    /// How to treat values of unknown classes.
    pub unknown: Unknown,
    /// Whether to ignore bytes after the end of an archive or a pickle.
    pub ignore_trailing: bool,
    /// Whether the last of duplicate keys in a safetensors header is used, as in the reference reader, instead of an error.
    pub compat: bool,
    /// Whether to verify the checksum of every storage at opening.
    pub verify: bool,
    /// How tensor data is read.
    pub io: Io,
    /// Cancels the opening.
    pub cancel: Cancel,
}

impl Options {
    /// The defaults: unknown classes are kept as inert data, trailing bytes are an error, checksums are not verified.
    pub fn new() -> Options {
        Options::default()
    }

    setters! {
        limits: Limits,
        unknown: Unknown,
        ignore_trailing: bool,
        compat: bool,
        verify: bool,
        io: Io,
        cancel: Cancel,
    }
}

/// The index of one file.
#[derive(Debug)]
pub struct Index {
    /// The file's format.
    pub format: Format,
    /// The names, in the file's order.
    pub entries: Vec<Entry>,
    /// The tensors, by number.
    pub tensors: Vec<Tensor>,
    /// The storages, by number.
    pub storages: Vec<Storage>,
    /// The file's metadata, string to string.
    pub metadata: Vec<(String, String)>,
    /// The object tree of a pickle.
    pub tree: Option<Arc<Tree>>,
    /// The unknown classes.
    pub opaque: Vec<OpaqueClass>,
    /// Remarks that are not errors.
    pub notes: Vec<String>,
    /// The bytes of the file, or of memory, that it was read from.
    pub source: Source,
    /// One past the last byte that belongs to the checkpoint; `None` where that is all of the source.
    pub end: Option<u64>,
    /// Whether this is a TorchScript archive.
    pub is_torchscript: bool,
    /// The values of a distributed checkpoint that are no tensors.
    pub saved: Option<Arc<SavedValues>>,
    /// The tensors that are parts of larger ones, where these are not in the object tree.
    pub parts: HashMap<u32, Part>,
    /// The name of this checkpoint in a file that holds several; see [`Index::labelled`].
    pub label: Option<Arc<str>>,
    /// Further checkpoints inside the file, whose names are final. The root of the object tree of one without a label is a dict.
    pub inner: Vec<Index>,
}

impl Index {
    /// An index without names.
    fn empty(format: Format, source: &Source) -> Index {
        Index {
            format,
            entries: Vec::new(),
            tensors: Vec::new(),
            storages: Vec::new(),
            metadata: Vec::new(),
            tree: None,
            opaque: Vec::new(),
            notes: Vec::new(),
            source: source.clone(),
            end: None,
            is_torchscript: false,
            saved: None,
            parts: HashMap::new(),
            label: None,
            inner: Vec::new(),
        }
    }

    /// This index as that of a checkpoint inside a file, under a name of its own: all names and paths begin with it, and a tensor that is the
    /// root of its object tree has exactly that name. Fails over the limit `name_bytes_total`.
    pub(crate) fn labelled(mut self, label: &str, limits: &Limits) -> Result<Index> {
        let places = self.opaque.iter_mut().flat_map(|class| &mut class.at);
        places.for_each(|at| *at = if at.is_empty() { label.to_owned() } else { format!("{label}.{at}") });
        let added = to_u64(self.entries.len()).saturating_mul(to_u64(label.len()));
        Limits::check("name_bytes_total", limits.name_bytes_total, added)?;
        for entry in &mut self.entries {
            let is_root = matches!(&entry.path, Path::Steps(steps) if steps.is_empty());
            entry.name =
                if is_root { Arc::from(label) } else { Arc::from(format!("{label}.{}", entry.name)) };
        }
        self.label = Some(Arc::from(label));
        Ok(self)
    }

    /// An index of no tensors, with the format and the source of this one.
    pub(crate) fn without_tensors(&self) -> Index {
        Index::empty(self.format, &self.source)
    }

    /// Which part of a larger tensor a tensor is; `None` for a whole one.
    pub fn part(&self, tensor: u32) -> Option<&Part> {
        let in_tree = || self.tree.as_ref()?.extra(tensor)?.part.as_deref();
        self.parts.get(&tensor).or_else(in_tree)
    }

    /// Whether any tensor is a part of a larger one.
    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty() || self.tree.as_ref().is_some_and(|tree| tree.has_parts())
    }

    /// Adds the tensor of this shape that parts in several files are together, without a name; returns its number. Fails where they
    /// are not.
    pub(crate) fn join(&mut self, shape: Dims, parts: &[TensorPart<'_>], options: &Options) -> Result<u32> {
        let first = parts.first().and_then(|part| part.index.tensors.get(u32_to_usize(part.tensor)));
        let (dtype, flags) =
            first.map_or((DType::U8, Flags::default()), |first| (first.dtype(), first.flags));
        let number = to_u32(self.tensors.len());
        let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
        let nbytes =
            nbytes.ok_or_else(|| Error::new(Code::TensorShape, "a tensor's size does not fit 64 bits"))?;
        let mut tensor = Tensor::contiguous(dtype, &shape, number, nbytes)?;
        // The signs are those of the parts.
        tensor.flags = Flags { conjugate: false, negative: false, ..flags };
        let chunks = Chunks::of_parts(dtype, shape, parts, options)?;
        let (location, numel) = (Location::Chunks(Arc::new(chunks)), tensor.layout().numel());
        self.storages.push(Storage { location, nbytes, numel, big_endian: false, device: None });
        self.tensors.push(tensor);
        Ok(number)
    }

    /// The ranges that a distributed checkpoint stores its chunks and values in, each with its file; none for other formats.
    #[cfg(feature = "scan")]
    pub fn items(&self) -> impl Iterator<Item = ChunkItem<'_>> {
        let chunks = self.storages.iter().flat_map(|storage| match &storage.location {
            Location::Chunks(chunks) => Some(chunks.items()),
            _ => None,
        });
        let values =
            self.saved.iter().flat_map(|saved| saved.list().iter().filter_map(|value| saved.item(value)));
        chunks.flatten().chain(values)
    }

    /// Adds a tensor that is all of its storage, which is the next one.
    fn add_whole(&mut self, name: Arc<str>, path: Path, tensor: Tensor, location: Location, nbytes: u64) {
        let (number, numel) = (tensor.storage(), tensor.layout().numel());
        self.storages.push(Storage { location, nbytes, numel, big_endian: false, device: None });
        self.tensors.push(tensor);
        self.entries.push(Entry { name, path, tensor: number });
    }
}

/// A named tensor.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The dotted name.
    pub name: Arc<str>,
    /// The path from the root of the object tree.
    pub path: Path,
    /// The number of the tensor.
    pub tensor: u32,
}

/// The path from the root to a tensor.
#[derive(Clone, Debug)]
pub enum Path {
    /// A single key, which is the name.
    Name,
    /// Steps through an object tree.
    Steps(Box<[PathStep]>),
}

/// One step of a path through an object tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// The value of a dict key, or an attribute.
    Key(Handle),
    /// The item of a list or tuple.
    Index(u32),
    /// An argument of an unknown class's constructor.
    Argument(u32),
    /// A component of a value that consists of several: `indices`.
    Component(Component),
}

/// A storage: bytes that one or more tensors refer to. `L` is the location of its bytes, or what is known of it so far.
#[derive(Clone, Debug)]
pub struct Storage<L = Location> {
    /// The location of its bytes.
    pub location: L,
    /// Its size in bytes.
    pub nbytes: u64,
    /// The number of elements of its class's dtype; bytes for an untyped one.
    pub numel: u64,
    /// Whether its elements are big-endian.
    pub big_endian: bool,
    /// The device that it was saved from (`location` in torch); `None` where the file names none.
    pub device: Option<Arc<str>>,
}

/// An unknown class, and where the file has values of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpaqueClass {
    /// `module.name`.
    pub class: String,
    /// The number of its values.
    pub count: u64,
    /// The paths of the first few.
    pub at: Vec<String>,
}

impl OpaqueClass {
    /// The maximum number of paths that are listed.
    pub(crate) const PATHS_MAX: usize = 16;
}

/// Reads the index of one file. Its format is detected by its first bytes.
pub fn read(source: &Source, options: &Options) -> Result<Index> {
    // Checksums of storages are verified by reading them.
    let _limit = (!options.verify).then(|| source.limit_requests(&options.limits));
    if numpy_files::is_empty_npz(source)? {
        return Ok(Index::empty(Format::Npz, source));
    }
    match sniff(source)? {
        Format::Safetensors => safetensors::read(source, options),
        Format::Zip | Format::Npz | Format::TorchExport => {
            let trailing = if options.ignore_trailing { Trailing::Ignore } else { Trailing::Error };
            let archive = Archive::open(source, &options.limits, trailing)?;
            let read = match () {
                () if torch_export::is_export(&archive) => torch_export::read,
                () if numpy_files::is_npz(&archive) => numpy_files::read_npz,
                () => torch::read,
            };
            read(archive, options)
        }
        Format::Npy => numpy_files::read_npy(source, options),
        Format::LegacyTorch => torch_legacy::read(source, options),
        Format::Pickle | Format::TorchDcp => plain_pickle(source, options),
        Format::Tar => tar_archive(source, options),
    }
}

/// Reads a tar archive: one of torch 0.1, or one that holds files of torch.
fn tar_archive(source: &Source, options: &Options) -> Result<Index> {
    let archive = tar::Archive::open(source, &options.limits, options.ignore_trailing, &options.cancel)?;
    match torch_tar::is_torch(&archive) {
        true => torch_tar::read(&archive, options),
        false => nemo::read(&archive, options),
    }
}

/// Reads a bare pickle, which holds the bytes of its tensors.
fn plain_pickle(source: &Source, options: &Options) -> Result<Index> {
    Limits::check("pickle_bytes", options.limits.pickle_bytes, source.len())?;
    let data = source.chunk(0, source.len())?;
    let pickle = pickle::run_cancellable(data, 0, &options.limits, &options.cancel)
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
/// checkpoint gives the tensors of that.
pub fn read_pickle(source: &Source, pickle: Pickle, options: &Options) -> Result<Index> {
    if dcp::is_metadata(&pickle)
        && let Some(folder) = source.folder()
    {
        return dcp::read(source, dcp::Folder::of(folder, source.path(), &options.limits)?, pickle, options);
    }
    torch_legacy::check_not_legacy(pickle.values.data(), &options.limits)?;
    let locate = |key: &str, _: u64| {
        let text = format!("the pickle refers to storage {key}, but a bare pickle has no storages");
        Err(Error::new(Code::PersistentId, text))
    };
    let ids = PersistentIds::described(PersistentIdForm::Archive, &locate);
    let mut read = pickled::read_executed(pickle, ids, HashMap::new(), options)?;
    let notes = std::mem::take(&mut read.notes);
    read.into_index(Format::Pickle, notes, source)
}
