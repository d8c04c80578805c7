//! The index of one file: its names, tensors and storages.

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "scan")]
use super::chunks::ChunkItem;
use super::chunks::{Chunks, TensorPart};
use super::extra::Component;
use super::location::{Location, Storage};
use super::options::Options;
use super::part::Part;
use super::tensor::{Flags, Tensor};
use crate::bytes::Source;
use crate::container::Format;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::formats::SavedValues;
use crate::index::pickled::Tree;
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64, u32_to_usize};
use crate::pickle::Handle;

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
    pub(crate) fn empty(format: Format, source: &Source) -> Index {
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
    pub(crate) fn add_whole(
        &mut self,
        name: Arc<str>,
        path: Path,
        tensor: Tensor,
        location: Location,
        nbytes: u64,
    ) {
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
