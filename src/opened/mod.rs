//! The metadata of an open checkpoint: one file or several shards under one set of names, and the bytes of their storages.

mod join;
mod payload;
mod quantized;
mod reopen;
mod schemes;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use once_cell::race::OnceBox;

pub(crate) use self::join::Joins;
use self::quantized::Dequantized;
pub(crate) use self::quantized::Description;
#[cfg(feature = "python")]
pub(crate) use self::quantized::{Handed, HandedCodes, HandedScales};
use self::schemes::Roles;
pub(crate) use self::schemes::{Role, is_narrow};
use crate::bytes::{self, FileStamp, Folder, ReadFolder, Source};
use crate::container::shards;
use crate::error::{Code, Error, Kind, Result, ResultExt, bail, error};
use crate::index::{self, Contents, Index, Objects, Options, Path, Storage, Tree};
use crate::limits::Limits;
use crate::parallel;
use crate::text::into_printable;

/// The files of a folder that are opened at once: each is a few requests, one after another.
const FILES_AT_ONCE: usize = 8;

/// The metadata of an open checkpoint, and the sources of its bytes. A checkpoint and its tensors share one.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The checkpoints in the files, and last the joined tensors, if there are any.
    pub(crate) shards: Vec<Shard>,
    /// Every name, in the order of the files.
    pub(crate) entries: Vec<NamedTensor>,
    /// The position of each name in `entries`.
    pub(crate) by_name: HashMap<Arc<str>, u32>,
    pub(crate) metadata: Vec<(String, String)>,
    pub(crate) notes: Vec<String>,
    pub(crate) options: Options,
    /// A number that no other checkpoint of this process has.
    pub(crate) serial: u64,
    /// The paths that it was opened by; none for bytes in memory and other sources.
    paths: Vec<PathBuf>,
    /// The working directory at opening, if a path is relative.
    directory: Option<PathBuf>,
    /// The tensors that are joined from parts in several files. Their index follows those of the files in `shards`.
    pub(crate) joins: Option<Joins>,
    /// The weights that take the place of codes. Their index is the last of `shards`.
    pub(crate) dequantized: Option<Dequantized>,
    /// Storages that several names share; computed on first use.
    shared: OnceBox<HashSet<(u32, u32)>>,
    /// Storages with tensors whose elements are byte-swapped in units of different widths; computed on first use.
    mixed_swap_units: OnceBox<HashSet<(u32, u32)>>,
    /// For each named tensor the position of its first name; computed on first use.
    first_names: OnceBox<HashMap<(u32, u32), u32>>,
    /// Which tensors are codes, and what belongs to them; computed on first use.
    roles: OnceBox<Roles>,
    /// The storage that was inflated last, so that its tensors and their slices do not inflate it again.
    inflated_cache: Mutex<Option<((u32, u32), Source)>>,
}

/// A checkpoint in a file, whose path may be a URL, or in bytes in memory, which have no path. Most files hold one.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: Option<PathBuf>,
    /// The position of its file.
    file: usize,
    /// Whether the file holds others before it.
    pub(crate) is_inner: bool,
    pub(crate) index: Index,
    pub(crate) objects: Objects,
}

impl Shard {
    /// The checkpoints in file number `file`.
    fn all(path: Option<PathBuf>, file: usize, mut contents: Contents) -> impl Iterator<Item = Shard> {
        let inner = std::mem::take(&mut contents.inner);
        let all = std::iter::once((false, contents)).chain(inner.into_iter().map(|inner| (true, inner)));
        all.map(move |(is_inner, Contents { index, objects, .. })| Shard {
            // An inner one may be in a file of its own.
            path: match is_inner
                .then(|| index.source.path().or_else(|| index.source.name().map(FilePath::new)))
            {
                Some(Some(own)) => Some(own.to_owned()),
                _ => path.clone(),
            },
            file,
            is_inner,
            index,
            objects,
        })
    }
}

/// A name, and the tensor of a shard that it refers to.
#[derive(Clone, Debug)]
pub(crate) struct NamedTensor {
    pub(crate) name: Arc<str>,
    pub(crate) path: Path,
    pub(crate) shard: u32,
    pub(crate) tensor: u32,
}

impl Opened {
    /// See `Checkpoint::open`.
    pub(crate) fn open(paths: &[PathBuf], options: Options) -> Result<Opened> {
        let resolved = shards::resolve(paths, &options.limits)?;
        let open = |path: &PathBuf| Ok((path.clone(), Source::open_with(path, options.io)?));
        let shards = read_all(&resolved, 1, &options, open)?;
        if shards.len() > 1 || resolved.index.is_some() {
            let files = shards.iter().filter_map(|(_, contents)| contents.index.source.file_stamp());
            check_unchanged(files.chain(resolved.index.clone()))?;
        }
        let mut opened = Opened::of_files(shards, resolved, options)?;
        opened.remember(paths);
        Ok(opened)
    }

    /// See `Checkpoint::from_folder`.
    pub(crate) fn from_folder(
        folder: Arc<dyn ReadFolder>,
        names: &[String],
        options: Options,
    ) -> Result<Opened> {
        let folder = Folder::Store(folder);
        let resolved = shards::resolve_in(&folder, names, &options.limits)?;
        let open = |name: &String| {
            let source = folder.open(name)?;
            // A folder may be a list of objects from different places, which have names of their own.
            let path = source.name().map_or_else(|| folder.path().join(name), PathBuf::from);
            Ok((path, source))
        };
        let shards = read_all(&resolved, FILES_AT_ONCE, &options, open)?;
        Opened::of_files(shards, resolved, options)
    }

    /// The checkpoint that these shards are; the files of `resolved` are those that they were read from.
    fn of_files<File>(
        shards: Vec<(PathBuf, Contents)>,
        resolved: shards::Shards<File>,
        options: Options,
    ) -> Result<Opened> {
        let mut notes = resolved.notes;
        notes.extend(shards.iter().filter_map(|(_, contents)| contents.index.source.file()?.note()));
        let shards = shards.into_iter().enumerate();
        let shards = shards.flat_map(|(file, (path, contents))| Shard::all(Some(path), file, contents));
        let mut opened = Opened::new(shards.collect(), options);
        (opened.metadata, opened.notes) =
            (resolved.metadata, notes.into_iter().map(into_printable).collect());
        if !resolved.zero.is_empty() {
            opened.join_zero(&resolved.zero)?;
        } else if opened.shards.len() > 1 && resolved.weight_map.is_none() {
            opened.join()?;
        }
        opened.merge(resolved.weight_map.as_ref())?;
        Ok(opened)
    }

    /// See `Checkpoint::open_at`.
    pub(crate) fn open_at(path: &FilePath, start: u64, options: Options) -> Result<Opened> {
        let file = Source::open(path)?;
        let source = file.window(start, file.len().saturating_sub(start))?;
        let contents = read(&source, &options)?;
        let mut opened = Opened::new(Shard::all(Some(path.to_owned()), 0, contents).collect(), options);
        opened.merge(None)?;
        Ok(opened)
    }

    /// See `Checkpoint::from_source`.
    pub(crate) fn from_source(source: &Source, options: Options) -> Result<Opened> {
        let contents = read(source, &options)?;
        let mut opened = Opened::new(Shard::all(None, 0, contents).collect(), options);
        opened.merge(None)?;
        Ok(opened)
    }

    fn new(shards: Vec<Shard>, options: Options) -> Opened {
        Opened {
            shards,
            entries: Vec::new(),
            by_name: HashMap::new(),
            metadata: Vec::new(),
            notes: Vec::new(),
            options,
            serial: reopen::next_serial(),
            paths: Vec::new(),
            directory: None,
            joins: None,
            dequantized: None,
            shared: OnceBox::new(),
            mixed_swap_units: OnceBox::new(),
            first_names: OnceBox::new(),
            roles: OnceBox::new(),
            inflated_cache: Mutex::new(None),
        }
    }

    /// Adds a checkpoint of joined tensors, which is in no file.
    fn push_joined(&mut self, index: Index) {
        let file = self.shards.len();
        self.shards.push(Shard { path: None, file, is_inner: false, index, objects: Objects::default() });
    }

    /// Joins the parts of tensors that several files have. Their names are then those of the whole tensors.
    fn join(&mut self) -> Result<()> {
        let Some((index, joins)) = join::join(&self.shards, &self.options)? else { return Ok(()) };
        self.notes.extend(joins.note());
        for shard in &mut self.shards {
            shard.index.metadata.retain(|(key, _)| !index::is_sharding_key(key));
        }
        self.push_joined(index);
        self.joins = Some(joins);
        Ok(())
    }

    /// The number of shards that are in files.
    pub(crate) fn file_count(&self) -> usize {
        let made = self.joins.as_ref().map(|joins| joins.shard);
        let made = made.or(self.dequantized.as_ref().map(|dequantized| dequantized.shard));
        made.map_or(self.shards.len(), |shard| shard as usize)
    }

    /// A text that identifies a file, or all files for the joined tensors; `None` if a source has no identity.
    pub(crate) fn identity(&self, shard: u32) -> Option<String> {
        if (shard as usize) < self.file_count() {
            return self.index(shard).source.identity().map(|identity| identity.to_string());
        }
        let files = self.shards.iter().take(self.file_count());
        let all: Option<Vec<_>> = files.map(|file| Some(file.index.source.identity()?.to_string())).collect();
        all.map(|all| all.join(", "))
    }

    /// The file whose object tree has the path of a tensor's names.
    pub(crate) fn path_file(&self, (shard, tensor): (u32, u32)) -> u32 {
        let joins = self.joins.as_ref().filter(|joins| joins.shard == shard);
        joins.and_then(|joins| joins.first_files.get(tensor as usize)).copied().unwrap_or(shard)
    }

    /// The tensor that a tensor of a file is a part of, or the tensor itself.
    pub(crate) fn whole(&self, id: (u32, u32)) -> (u32, u32) {
        let joined = |joins: &Joins| Some((joins.shard, *joins.wholes.get(&id)?));
        self.joins.as_ref().and_then(joined).unwrap_or(id)
    }

    /// Merges the names, metadata and notes of all shards. Fails for a name in two shards, and where a shard lacks a name that
    /// the weight map assigns to it.
    fn merge(&mut self, weight_map: Option<&shards::WeightMap>) -> Result<()> {
        let mut total = 0;
        let mut metadata: Vec<(String, String)> = Vec::new();
        let mut keys: HashMap<String, usize> = HashMap::new();
        let mut set_metadata = |key: String, value: String| match keys.entry(key) {
            Entry::Vacant(entry) => {
                metadata.push((entry.key().clone(), value));
                entry.insert(metadata.len() - 1);
            }
            Entry::Occupied(entry) => metadata[*entry.get()].1 = value,
        };
        std::mem::take(&mut self.metadata).into_iter().for_each(|(key, value)| set_metadata(key, value));
        let mut noted: HashSet<String> = self.notes.iter().cloned().collect();
        for (number, shard) in self.shards.iter_mut().enumerate() {
            total += shard.index.entries.len() as u64;
            Limits::check("tensors", self.options.limits.tensors, total)?;
            self.by_name.reserve(shard.index.entries.len());
            self.entries.reserve(shard.index.entries.len());
            shard.index.metadata.drain(..).for_each(|(key, value)| set_metadata(key, value));
            let notes = shard.index.notes.drain(..).map(into_printable);
            self.notes.extend(notes.filter(|note| noted.insert(note.clone())));
            for entry in std::mem::take(&mut shard.index.entries) {
                let assigned_shard = weight_map.and_then(|map| map.get(&*entry.name));
                if assigned_shard.is_some_and(|&assigned_shard| assigned_shard != shard.file) {
                    continue;
                }
                let index::Entry { name, path, tensor } = entry;
                let own = (number as u32, tensor);
                let whole = self
                    .joins
                    .as_ref()
                    .and_then(|joins| joins.wholes.get(&own).map(|&tensor| (joins.shard, tensor)));
                let is_copy =
                    whole.is_some() || self.joins.as_ref().is_some_and(|joins| joins.copies.contains(&*name));
                if is_copy && self.by_name.contains_key(&name) {
                    continue;
                }
                let position = self.entries.len() as u32;
                if self.by_name.insert(name.clone(), position).is_some() {
                    let places = if shard.is_inner { "checkpoints of the file" } else { "shards" };
                    let error = error!(Code::ShardDuplicate, "the name {name:?} is in two {places}");
                    return Err(error.in_known_file(shard.path.as_deref()));
                }
                let (shard, tensor) = whole.unwrap_or(own);
                self.entries.push(NamedTensor { name, path, shard, tensor });
            }
        }
        self.metadata = metadata;
        if let Some(map) = weight_map {
            let missing: Vec<&str> =
                map.keys().map(String::as_str).filter(|name| !self.by_name.contains_key(*name)).collect();
            if let Some(first) = missing.first() {
                let others = match missing.len() {
                    1 => String::new(),
                    count => format!(", and {} more", count - 1),
                };
                bail!(Code::IndexKey, "the index names {first:?}{others}, which the shards do not hold");
            }
        }
        if self.options.dequantize { self.dequantize() } else { Ok(()) }
    }

    pub(crate) fn entry(&self, entry: u32) -> &NamedTensor {
        &self.entries[entry as usize]
    }

    /// The id of a named tensor: its shard, and its number there.
    pub(crate) fn id(&self, entry: &NamedTensor) -> (u32, u32) {
        (entry.shard, entry.tensor)
    }

    pub(crate) fn tensor(&self, (shard, tensor): (u32, u32)) -> &index::Tensor {
        &self.shards[shard as usize].index.tensors[tensor as usize]
    }

    /// The position of the first name of a tensor; `None` for a tensor without a name.
    pub(crate) fn first_name(&self, id: (u32, u32)) -> Option<u32> {
        let find = || {
            let mut first = HashMap::new();
            for (position, entry) in (0_u32..).zip(&self.entries) {
                first.entry(self.id(entry)).or_insert(position);
            }
            Box::new(first)
        };
        self.first_names.get_or_init(find).get(&id).copied()
    }

    /// The id of a named tensor's storage.
    pub(crate) fn storage_of(&self, entry: &NamedTensor) -> (u32, u32) {
        (entry.shard, self.tensor(self.id(entry)).storage())
    }

    /// Whether several names share this storage.
    pub(crate) fn is_shared(&self, storage: (u32, u32)) -> bool {
        let find = || {
            let mut seen = HashSet::new();
            let all = self.entries.iter().map(|entry| self.storage_of(entry));
            Box::new(all.filter(|&id| !seen.insert(id)).collect())
        };
        self.shared.get_or_init(find).contains(&storage)
    }

    /// The unit, in bytes, in which all tensors on a storage are byte-swapped; `None` where they differ, so that no swap of the
    /// whole storage is right for all of them.
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
        let is_mixed = self.mixed_swap_units.get_or_init(find).contains(&storage);
        (!is_mixed).then(|| tensor.dtype().swap_unit())
    }

    /// What a file has on a tensor beyond dtype and layout: its class, attributes and quantization.
    pub(crate) fn extra(&self, (shard, tensor): (u32, u32)) -> Option<&index::Extra> {
        self.tree(shard)?.extra(tensor)
    }

    /// A file's object tree; `None` for safetensors.
    pub(crate) fn tree(&self, shard: u32) -> Option<&Tree> {
        self.shards[shard as usize].objects.tree.as_deref()
    }

    pub(crate) fn storage(&self, (shard, storage): (u32, u32)) -> &Storage {
        &self.shards[shard as usize].index.storages[storage as usize]
    }

    /// `error`, or, for a format error in a file that has changed since it was opened, the error that says so: the change explains
    /// any contradiction.
    pub(crate) fn file_changed_or(&self, shard: u32, error: Error) -> Error {
        if error.kind() != Kind::Format {
            return error;
        }
        self.index(shard).source.check_unchanged().err().unwrap_or(error)
    }

    /// The index of a file. Fails where there is no file of that number.
    pub(crate) fn file(&self, shard: usize) -> Result<&Index> {
        let index = self.shards.get(shard).map(|shard| &shard.index);
        index.ok_or_else(|| Error::new(Code::InternalError, "the checkpoint has no file of that number"))
    }

    /// Upper bounds on the scratch memory of a thread that reads this file, and the number of its threads: see
    /// [`bytes::scratch_bounds`].
    pub(crate) fn scratch_bounds(&self, shard: u32) -> (u64, Option<usize>) {
        bytes::scratch_bounds(&self.index(shard).source)
    }

    /// How a file is read best.
    pub(crate) fn access(&self, shard: u32) -> bytes::Access {
        self.index(shard).source.data_access()
    }

    pub(crate) fn index(&self, shard: u32) -> &Index {
        &self.shards[shard as usize].index
    }
}

/// Bytes of the names, opaque classes and their paths in an index, each of which a small file can make large.
fn text_bytes(Contents { index, inner, .. }: &Contents) -> u64 {
    let names = index.entries.iter().map(|entry| entry.name.len());
    let classes =
        index.opaque.iter().map(|class| class.class.len() + class.at.iter().map(String::len).sum::<usize>());
    let inner = inner.iter().map(text_bytes).fold(0, u64::saturating_add);
    names.chain(classes).fold(inner, |bytes, len| bytes.saturating_add(len as u64))
}

/// Opens and reads the files, `at_once` at a time. The results are in the order of the files.
fn read_all<File: Sync>(
    resolved: &shards::Shards<File>,
    at_once: usize,
    options: &Options,
    open: impl Fn(&File) -> Result<(PathBuf, Source)> + Sync,
) -> Result<Vec<(PathBuf, Contents)>> {
    let bytes = AtomicU64::new(0);
    let files = &resolved.files;
    let read = |(), ((position, file), out): ((usize, &File), &mut Option<(PathBuf, Contents)>)| {
        options.cancel.check()?;
        let (path, source) = open(file)?;
        let mut contents = read(&source, options).in_file(&path)?;
        if let Some(label) = resolved.labels.get(position) {
            contents = contents.labelled(label, &options.limits).in_file(&path)?;
        }
        let own = text_bytes(&contents);
        let all = bytes.fetch_add(own, Ordering::Relaxed).saturating_add(own);
        Limits::check("name_bytes_total", options.limits.name_bytes_total, all).in_file(&path)?;
        *out = Some((path, contents));
        Ok(())
    };
    let mut shards: Vec<Option<(PathBuf, Contents)>> = files.iter().map(|_| None).collect();
    let items = files.iter().enumerate().zip(&mut shards);
    parallel::for_each(at_once.min(files.len()), items, || (), |&mut state, item| read(state, item))?;
    Ok(shards.into_iter().flatten().collect())
}

/// Fails if a path is that of another file now than when it was opened.
///
/// If none is, there was an instant in which all paths were those of the opened files: when the last one was opened. So they are what
/// the folder was then, and not files from before and after a replacement.
fn check_unchanged(opened: impl Iterator<Item = FileStamp>) -> Result<()> {
    for stamp in opened {
        let now = FileStamp::of_path(&stamp.path);
        if !now.is_ok_and(|now| now == stamp) {
            let text = "the file was replaced or changed while the checkpoint was opened";
            return Err(Error::new(Code::FileChanged, text).note("Open it again.").in_file(&stamp.path));
        }
    }
    Ok(())
}

fn read(source: &Source, options: &Options) -> Result<Contents> {
    index::read(source, options).map_err(|error| source.locate_error(error))
}

#[cfg(test)]
mod tests;
