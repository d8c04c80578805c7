//! The index of one file: its names, tensors and storages.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use super::{Component, Location, Part, Storage, StorageBytes, Tensor};
use crate::bytes::Source;
use crate::container::Format;
use crate::error::{Code, Error, Result};
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
    /// The unknown classes.
    pub opaque: Vec<OpaqueClass>,
    /// Remarks that are not errors.
    pub notes: Vec<String>,
    /// The bytes of the file, or of memory, that it was read from.
    pub source: Source,
    /// One past the last byte that belongs to the checkpoint; `None` where that is all of the source.
    pub end: Option<u64>,
    /// The tensors that are parts of larger ones.
    pub parts: HashMap<u32, Part>,
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
            opaque: Vec::new(),
            notes: Vec::new(),
            source: source.clone(),
            end: None,
            parts: HashMap::new(),
        }
    }

    /// Which part of a larger tensor a tensor is; `None` for a whole one.
    pub fn part(&self, tensor: u32) -> Option<&Part> {
        self.parts.get(&tensor)
    }

    /// An index of no tensors, with the format and the source of this one.
    pub(crate) fn without_tensors(&self) -> Index {
        Index::empty(self.format, &self.source)
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

    /// The bytes of a storage. The first call for a member of an archive checks the member's local file header, or the first read of
    /// the bytes does where requests are expensive. The first call for a tensor of a single chunk opens the chunk.
    pub fn bytes(&self, storage: u32) -> Result<StorageBytes<'_>> {
        let storage = self.storage(storage)?;
        storage.location.bytes(&self.source, storage.nbytes)
    }

    /// Reads ahead what [`Index::bytes`] checks for these storages, with few reads: one for several small neighbours, several at once
    /// where requests are expensive. With each storage comes the number of its bytes that will be read; a header that is read together
    /// with all bytes of its storage is left out.
    pub fn prefetch_headers(&self, storages: impl Iterator<Item = (u32, u64)>) {
        let member = |(storage, nbytes)| {
            let storage = self.storage(storage).ok()?;
            let (archive, number) = storage.location.member()?;
            let is_whole = nbytes == storage.nbytes && !storage.is_compressed();
            (!(is_whole && archive.defers_member(number))).then_some((archive, number))
        };
        let mut members = storages.filter_map(member).peekable();
        while let Some((archive, first)) = members.next() {
            let same = || members.next_if(|(next, _)| Arc::ptr_eq(next, archive)).map(|(_, number)| number);
            archive.verify_headers(iter::once(first).chain(iter::from_fn(same)));
        }
    }

    fn storage(&self, number: u32) -> Result<&Storage> {
        let found = usize::try_from(number).ok().and_then(|number| self.storages.get(number));
        found.ok_or_else(|| Error::new(Code::InternalError, "the file has no storage of that number"))
    }

    /// Counts a value of this class.
    pub(crate) fn add_opaque(&mut self, class: &str, name: &str) {
        if !self.opaque.iter().any(|known| known.class == class) {
            self.opaque.push(OpaqueClass { class: class.to_owned(), count: 0, at: Vec::new() });
        }
        if let Some(known) = self.opaque.iter_mut().find(|known| known.class == class) {
            known.count = known.count.saturating_add(1);
            if known.at.len() < OpaqueClass::PATHS_MAX {
                known.at.push(name.to_owned());
            }
        }
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
