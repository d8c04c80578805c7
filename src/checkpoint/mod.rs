//! The opened thing: one file or several shards, their tensors by name.

mod near;
mod payload;
mod storages;
mod stream;
mod upload;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};

use once_cell::race::OnceBox;

use crate::bytes::{Bytes, Io, Source};
use crate::container::{Format, shards};
use crate::error::{Code, Error, Kind, Result};
use crate::index::{self, Contents, Index, OpaqueClass, Options, Path, Storage, StorageLocation, Tree};
use crate::limits::Limits;
use crate::tensor::Tensor;

pub(crate) use self::near::similar;
pub use self::storages::{OwnedStorages, StorageInfo};
pub use self::stream::{Failed, Flow, Given, Made, Step, Stop, Stream};
pub use self::upload::Upload;

/// Names that an error gives in place of one that is not there.
const NEAR: usize = 3;

/// An opened checkpoint. Cloning shares it; tensors keep it alive.
#[derive(Clone, Debug)]
pub struct Checkpoint(Arc<Inner>);

/// What checkpoint and tensors share.
#[derive(Debug)]
pub(crate) struct Inner {
    shards: Vec<Shard>,
    entries: Vec<Named>,
    by_name: HashMap<Arc<str>, u32>,
    metadata: Vec<(String, String)>,
    notes: Vec<String>,
    pub(crate) options: Options,
    /// Storages that several names share; found out when first asked.
    shared: OnceBox<HashSet<(u32, u32)>>,
    /// Storages with tensors whose numbers are swapped by different widths.
    mixed_units: OnceBox<HashSet<(u32, u32)>>,
    /// For each tensor that is named the number of its first name; made when it is asked for.
    first_names: OnceBox<HashMap<(u32, u32), u32>>,
    /// The storage that was inflated last, so that its tensors and their slices do not inflate it once each.
    inflated: Mutex<Option<((u32, u32), Source)>>,
}

/// One file.
#[derive(Debug)]
struct Shard {
    path: Option<PathBuf>,
    index: Index,
}

/// A name, and which tensor of which shard it names.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: Arc<str>,
    pub(crate) path: Path,
    pub(crate) shard: u32,
    tensor: u32,
}

impl Checkpoint {
    /// Opens a file, a directory, an index file, or a list of shards. Reads metadata only.
    pub fn open(paths: &[PathBuf], options: Options) -> Result<Checkpoint> {
        let found = shards::resolve(paths, &options.limits)?;
        let mut opened = Vec::with_capacity(found.files.len());
        let mut bytes = 0_u64;
        let mut notes = found.notes;
        for path in found.files {
            let source = Source::open_with(&path, options.io)?;
            notes.extend(refused(&source, options.io));
            let index = read(&source, &options).map_err(|error| error.in_file(&path))?;
            bytes = bytes.saturating_add(text_bytes(&index));
            Limits::check("name_bytes_total", options.limits.name_bytes_total, bytes)
                .map_err(|error| error.in_file(&path))?;
            opened.push(Shard { path: Some(path), index });
        }
        let mut inner = Inner::new(opened, options);
        (inner.metadata, inner.notes) = (found.metadata, notes);
        inner.merge(found.weight_map.as_ref())?;
        Ok(Checkpoint(Arc::new(inner)))
    }

    /// Opens the checkpoint that begins at byte `start` of a file, whatever comes before it.
    pub fn open_at(path: &FilePath, start: u64, options: Options) -> Result<Checkpoint> {
        let file = Source::open(path)?;
        let source = file.window(start, file.len().saturating_sub(start))?;
        let index = read(&source, &options)?;
        let mut inner = Inner::new(vec![Shard { path: Some(path.to_owned()), index }], options);
        inner.merge(None)?;
        Ok(Checkpoint(Arc::new(inner)))
    }

    /// Opens bytes in memory.
    pub fn from_bytes(bytes: Bytes, options: Options) -> Result<Checkpoint> {
        let index = read(&Source::memory(bytes), &options)?;
        let mut inner = Inner::new(vec![Shard { path: None, index }], options);
        inner.merge(None)?;
        Ok(Checkpoint(Arc::new(inner)))
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Checkpoint {
        Checkpoint(inner)
    }

    /// The format of the files.
    pub fn format(&self) -> Format {
        self.0.shards.first().map_or(Format::Safetensors, |shard| shard.index.format)
    }

    /// The files, in shard order; none for bytes in memory.
    pub fn files(&self) -> impl Iterator<Item = &FilePath> {
        self.0.shards.iter().filter_map(|shard| shard.path.as_deref())
    }

    /// The files' own metadata, text to text; of keys that stand in several, the last.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.0.metadata
    }

    /// Things worth knowing that are no error.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether no tensor is named.
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// The names, in the files' order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.0.entries.iter().map(|entry| &entry.name)
    }

    /// Whether a tensor has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.by_name.contains_key(name)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.0.by_name.get(name) {
            Some(&entry) => Ok(self.at(entry)),
            None => Err(Error::not_found(name, &similar(name, self.names(), NEAR))),
        }
    }

    /// The tensor at this position of [`Checkpoint::names`].
    pub fn tensor_at(&self, position: usize) -> Option<Tensor> {
        let entry = u32::try_from(position).ok()?;
        (position < self.len()).then(|| self.at(entry))
    }

    fn at(&self, entry: u32) -> Tensor {
        Tensor::new(&self.0, self.0.id(self.0.entry(entry)), Some(entry))
    }

    /// Bytes of all storages that named tensors lie in, each counted once.
    pub fn nbytes(&self) -> u64 {
        let mut seen = HashSet::new();
        let storages = self.0.entries.iter().map(|entry| self.0.storage_of(entry));
        // The sizes of deflated storages are claims until they are inflated.
        let sizes = storages.filter(|&id| seen.insert(id)).map(|id| self.0.storage(id).nbytes);
        sizes.fold(0, u64::saturating_add)
    }

    /// The names that share a storage, in groups of two and more.
    pub fn tied(&self) -> Vec<Vec<Arc<str>>> {
        let mut groups: Vec<Vec<Arc<str>>> = Vec::new();
        let mut by_storage: HashMap<(u32, u32), usize> = HashMap::new();
        for entry in &self.0.entries {
            let storage = self.0.storage_of(entry);
            let group = *by_storage.entry(storage).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[group].push(entry.name.clone());
        }
        groups.retain(|group| group.len() > 1);
        groups
    }

    /// Values of unknown classes, by class, over all files.
    pub fn opaque(&self) -> Vec<OpaqueClass> {
        let mut out: Vec<OpaqueClass> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for class in self.0.shards.iter().flat_map(|shard| &shard.index.opaque) {
            match places.entry(&class.class) {
                Entry::Vacant(place) => {
                    place.insert(out.len());
                    out.push(class.clone());
                }
                Entry::Occupied(place) => {
                    let known = &mut out[*place.get()];
                    known.count = known.count.saturating_add(class.count);
                    known.at.extend_from_slice(&class.at);
                }
            }
        }
        out
    }

    /// Every global that the pickles name, as `module.name`, once, sorted; limit `name_bytes_total`, as any number of
    /// names may share one long module.
    pub fn globals(&self) -> Result<Vec<String>> {
        let (mut out, mut bytes) = (Vec::new(), 0_u64);
        for global in self.trees().filter_map(|(_, tree)| tree).flat_map(|tree| tree.globals()) {
            bytes = bytes.saturating_add(global.len() as u64);
            Limits::check("name_bytes_total", self.limits().name_bytes_total, bytes)?;
            out.push(global);
        }
        out.sort_unstable();
        out.dedup();
        Ok(out)
    }

    /// Each file's path and object tree; safetensors has no tree.
    pub fn trees(&self) -> impl Iterator<Item = (Option<&FilePath>, Option<&Arc<Tree>>)> {
        self.0.shards.iter().map(|shard| (shard.path.as_deref(), shard.index.tree.as_ref()))
    }

    /// The named tensors of file `shard`, in their order.
    pub fn tensors_of(&self, shard: usize) -> impl Iterator<Item = Tensor> {
        let entries = (0_u32..).zip(&self.0.entries);
        entries.filter(move |(_, entry)| entry.shard as usize == shard).map(|(entry, _)| self.at(entry))
    }

    /// The tensor with number `tensor` of file `shard`, without a name.
    pub fn unnamed(&self, shard: usize, tensor: u32) -> Option<Tensor> {
        let id = (u32::try_from(shard).ok()?, tensor);
        self.0.shards.get(shard)?.index.tensors.get(tensor as usize)?;
        Some(Tensor::new(&self.0, id, None))
    }

    /// As [`Checkpoint::unnamed`], by its first name if it has one.
    pub fn numbered(&self, shard: usize, tensor: u32) -> Option<Tensor> {
        let unnamed = self.unnamed(shard, tensor)?;
        let first = self.0.first_names.get_or_init(|| {
            let mut first = HashMap::new();
            for (entry, named) in (0_u32..).zip(&self.0.entries) {
                first.entry(self.0.id(named)).or_insert(entry);
            }
            Box::new(first)
        });
        Some(first.get(&unnamed.id()).map_or(unnamed, |&entry| self.at(entry)))
    }

    /// The limits it was opened with.
    pub fn limits(&self) -> &Limits {
        &self.0.options.limits
    }
}

impl Inner {
    fn new(shards: Vec<Shard>, options: Options) -> Inner {
        Inner {
            shards,
            entries: Vec::new(),
            by_name: HashMap::new(),
            metadata: Vec::new(),
            notes: Vec::new(),
            options,
            shared: OnceBox::new(),
            mixed_units: OnceBox::new(),
            first_names: OnceBox::new(),
            inflated: Mutex::new(None),
        }
    }

    /// Gives every shard's entries one list and one map.
    fn merge(&mut self, weight_map: Option<&shards::WeightMap>) -> Result<()> {
        let mut total = 0;
        let mut metadata: Vec<(String, String)> = Vec::new();
        let mut keys: HashMap<String, usize> = HashMap::new();
        let mut set = |key: String, value: String| match keys.entry(key) {
            Entry::Vacant(place) => {
                metadata.push((place.key().clone(), value));
                place.insert(metadata.len() - 1);
            }
            Entry::Occupied(place) => metadata[*place.get()].1 = value,
        };
        std::mem::take(&mut self.metadata).into_iter().for_each(|(key, value)| set(key, value));
        let mut noted: HashSet<String> = self.notes.iter().cloned().collect();
        for (number, shard) in self.shards.iter_mut().enumerate() {
            total += shard.index.entries.len() as u64;
            Limits::check("tensors", self.options.limits.tensors, total)?;
            shard.index.metadata.drain(..).for_each(|(key, value)| set(key, value));
            self.notes.extend(shard.index.notes.drain(..).filter(|note| noted.insert(note.clone())));
            for entry in std::mem::take(&mut shard.index.entries) {
                let home = weight_map.and_then(|map| map.get(&*entry.name));
                if home.is_some_and(|&home| home != number) {
                    continue;
                }
                let position = self.entries.len() as u32;
                if self.by_name.insert(entry.name.clone(), position).is_some() {
                    let text = format!("the name {:?} is in two shards", entry.name);
                    let error = Error::new(Code::ShardDuplicate, text);
                    return Err(match &shard.path {
                        Some(path) => error.in_file(path),
                        None => error,
                    });
                }
                let index::Entry { name, path, tensor } = entry;
                self.entries.push(Named { name, path, shard: number as u32, tensor });
            }
        }
        self.metadata = metadata;
        if let Some(map) = weight_map {
            let absent: Vec<&str> =
                map.keys().map(String::as_str).filter(|name| !self.by_name.contains_key(*name)).collect();
            if let Some(first) = absent.first() {
                let others = match absent.len() {
                    1 => String::new(),
                    count => format!(", and {} more", count - 1),
                };
                let text = format!("the index names {first:?}{others}, which the shards do not hold");
                return Err(Error::new(Code::IndexKey, text));
            }
        }
        Ok(())
    }

    pub(crate) fn entry(&self, entry: u32) -> &Named {
        &self.entries[entry as usize]
    }

    fn id(&self, entry: &Named) -> (u32, u32) {
        (entry.shard, entry.tensor)
    }

    pub(crate) fn tensor(&self, (shard, tensor): (u32, u32)) -> &index::Tensor {
        &self.shards[shard as usize].index.tensors[tensor as usize]
    }

    /// The storage that a name lies in.
    fn storage_of(&self, entry: &Named) -> (u32, u32) {
        (entry.shard, self.tensor(self.id(entry)).storage())
    }

    /// Whether several names lie in this storage.
    pub(crate) fn is_shared(&self, storage: (u32, u32)) -> bool {
        let find = || {
            let mut seen = HashSet::new();
            let all = self.entries.iter().map(|entry| self.storage_of(entry));
            Box::new(all.filter(|&id| !seen.insert(id)).collect())
        };
        self.shared.get_or_init(find).contains(&storage)
    }

    /// The bytes of the numbers that all tensors on a storage consist of; `None` where they differ, so that no one swap of the
    /// storage's bytes is right for all of them.
    pub(crate) fn swap_unit(&self, storage: (u32, u32), tensor: &index::Tensor) -> Option<u64> {
        let find = || {
            let mut units = HashMap::new();
            let mut mixed = HashSet::new();
            for (shard, opened) in (0_u32..).zip(&self.shards) {
                for tensor in &opened.index.tensors {
                    let unit = tensor.dtype().swap_unit();
                    if *units.entry((shard, tensor.storage())).or_insert(unit) != unit {
                        mixed.insert((shard, tensor.storage()));
                    }
                }
            }
            Box::new(mixed)
        };
        let is_mixed = self.mixed_units.get_or_init(find).contains(&storage);
        (!is_mixed).then(|| tensor.dtype().swap_unit())
    }

    /// What a file says of a tensor beside its place.
    pub(crate) fn extra(&self, (shard, tensor): (u32, u32)) -> Option<&index::Extra> {
        self.tree(shard)?.extra(tensor)
    }

    /// A file's object tree.
    pub(crate) fn tree(&self, shard: u32) -> Option<&Tree> {
        self.index(shard).tree.as_deref()
    }

    pub(crate) fn storage(&self, (shard, storage): (u32, u32)) -> &Storage {
        &self.shards[shard as usize].index.storages[storage as usize]
    }

    /// Where a storage starts in its file, near enough to sort by; 0 for one inside a pickle.
    pub(crate) fn position(&self, id: (u32, u32)) -> u64 {
        match (&self.index(id.0).contents, self.storage(id).location) {
            (_, StorageLocation::Region(region)) => region.start(),
            (Contents::Archive(archive), StorageLocation::Member(member)) => {
                archive.members()[member].header_offset()
            }
            _ => 0,
        }
    }

    /// Makes ready to read these storages of one file, with few reads where many of them are small.
    pub(crate) fn prepare(&self, shard: u32, storages: impl Iterator<Item = (u32, u32)>) {
        if let Contents::Archive(archive) = &self.index(shard).contents {
            archive.verify_headers(storages.filter_map(|id| match self.storage(id).location {
                StorageLocation::Member(member) => Some(member),
                _ => None,
            }));
        }
    }

    /// Whether a storage's bytes have to be inflated.
    pub(crate) fn is_compressed(&self, id: (u32, u32)) -> bool {
        match (&self.index(id.0).contents, self.storage(id).location) {
            (Contents::Archive(archive), StorageLocation::Member(member)) => {
                archive.members()[member].is_compressed()
            }
            _ => false,
        }
    }

    /// The error, or that the file changed since it was opened, which explains any contradiction in it.
    pub(crate) fn blame(&self, shard: u32, error: Error) -> Error {
        if error.kind() != Kind::Format {
            return error;
        }
        let source = match &self.shards[shard as usize].index.contents {
            Contents::Plain(source) => source,
            Contents::Archive(archive) => archive.source(),
        };
        source.check_unchanged().err().unwrap_or(error)
    }

    fn index(&self, shard: u32) -> &Index {
        &self.shards[shard as usize].index
    }
}

/// What to say where direct reads were asked for and cannot be had.
fn refused(source: &Source, io: Io) -> Option<String> {
    let refused = io == Io::Direct && source.direct().is_none();
    let file_system = source.file_system().filter(|_| refused)?;
    Some(format!("no reads around the page cache on {}: files there are read through it", file_system.name))
}

/// Bytes of the texts that an index holds, each of which a small file can make large: names, opaque classes, their places.
fn text_bytes(index: &Index) -> u64 {
    let names = index.entries.iter().map(|entry| entry.name.len());
    let classes =
        index.opaque.iter().map(|class| class.class.len() + class.at.iter().map(String::len).sum::<usize>());
    names.chain(classes).fold(0, |bytes, len| bytes.saturating_add(len as u64))
}

fn read(source: &Source, options: &Options) -> Result<Index> {
    index::read(source, options).map_err(|error| source.locate_error(error))
}
