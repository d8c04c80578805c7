//! An open checkpoint: one file or several shards, and their tensors by name.

mod similar;
mod storages;
mod stream;
#[cfg(feature = "cuda")]
mod upload;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use crate::bytes::{Bytes, ReadFolder, ReadRanges, Source};
#[cfg(feature = "python")]
use crate::bytes::{FileStamp, NodeShare};
use crate::container::Format;
use crate::error::{Code, Error, Kind, Result};
use crate::index::{OpaqueClass, Options, SavedValue, Tree};
use crate::limits::Limits;
use crate::opened::Opened;
#[cfg(feature = "python")]
pub(crate) use crate::opened::{Description, HandedCodes, HandedScales};
use crate::tensor::{Request, Tensor};

pub(crate) use self::similar::similar;
#[cfg(feature = "python")]
pub(crate) use self::stream::StreamStep;
#[cfg(feature = "cuda")]
pub(crate) use self::stream::check_gpu_memory;
pub use self::stream::{Output, StopHandle, Stream, StreamItem, StreamOptions, TensorError};
#[cfg(feature = "python")]
pub(crate) use self::stream::{check_memory, needed_bytes};
#[cfg(feature = "cuda")]
pub use self::upload::Upload;

/// Similar names in the error for a name that was not found.
const SUGGESTIONS_MAX: usize = 3;

/// An open checkpoint. Cloning is cheap; its tensors keep it alive.
#[derive(Clone, Debug)]
pub struct Checkpoint(Arc<Opened>);

impl Checkpoint {
    /// Opens a file, a directory or an index file. Reads metadata only. Fails where a file is not a checkpoint or is damaged, for
    /// names in two shards, and over the default [`Limits`].
    pub fn open(path: impl AsRef<FilePath>) -> Result<Checkpoint> {
        Checkpoint::open_with(path, Options::new())
    }

    /// As [`Checkpoint::open`], with options.
    pub fn open_with(path: impl AsRef<FilePath>, options: Options) -> Result<Checkpoint> {
        Checkpoint::open_all([path], options)
    }

    /// As [`Checkpoint::open_with`], for a list of shards.
    pub fn open_all<P>(paths: impl IntoIterator<Item = P>, options: Options) -> Result<Checkpoint>
    where
        P: AsRef<FilePath>,
    {
        let paths: Vec<PathBuf> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
        Ok(Checkpoint(Arc::new(Opened::open(&paths, options)?)))
    }

    /// Opens the checkpoint that begins at byte `start` of a file, and ignores the bytes before it.
    pub fn open_at(path: impl AsRef<FilePath>, start: u64, options: Options) -> Result<Checkpoint> {
        Ok(Checkpoint(Arc::new(Opened::open_at(path.as_ref(), start, options)?)))
    }

    /// Opens bytes in memory.
    pub fn from_bytes(bytes: Bytes, options: Options) -> Result<Checkpoint> {
        Checkpoint::from_source(&Source::memory(bytes), options)
    }

    /// Opens anything that is read by position, such as an object in a store. Its tensors have no views.
    pub fn from_ranges(source: Arc<dyn ReadRanges>, options: Options) -> Result<Checkpoint> {
        Checkpoint::from_source(&Source::new(source), options)
    }

    /// Opens the checkpoint in a folder of a store, as [`Checkpoint::open`] does with a folder on disk; with `names`, the index file or
    /// the shards of these names. Several files are opened at once.
    pub fn from_folder(
        folder: Arc<dyn ReadFolder>,
        names: &[String],
        options: Options,
    ) -> Result<Checkpoint> {
        Ok(Checkpoint(Arc::new(Opened::from_folder(folder, names, options)?)))
    }

    /// As [`Checkpoint::from_ranges`], for a window of a source.
    pub(crate) fn from_source(source: &Source, options: Options) -> Result<Checkpoint> {
        Ok(Checkpoint(Arc::new(Opened::from_source(source, options)?)))
    }

    /// The format of the files.
    pub fn format(&self) -> Format {
        self.0.shards.first().map_or(Format::Safetensors, |shard| shard.index.format)
    }

    /// The files, in shard order: paths, or URLs for a folder in a store; none for bytes in memory and for a single source.
    pub fn files(&self) -> impl Iterator<Item = &FilePath> {
        self.0.shards.iter().filter(|shard| !shard.is_inner).filter_map(|shard| shard.path.as_deref())
    }

    /// The formats of [`files`](Checkpoint::files).
    pub fn file_formats(&self) -> impl Iterator<Item = Format> + '_ {
        let files = self.0.shards.iter().filter(|shard| !shard.is_inner && shard.path.is_some());
        files.map(|shard| shard.index.format)
    }

    /// The name of what it was opened from, if that is neither a file nor bytes in memory: see [`ReadRanges::name`].
    pub fn source_name(&self) -> Option<&str> {
        self.0.shards.first()?.index.source.name()
    }

    /// The metadata of all files, as pairs of key and value. For a key in several files, the last file's value.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.0.metadata
    }

    /// Shares what is read from stores from now on with other processes of this machine, or with none. Returns of how many files.
    #[cfg(feature = "python")]
    pub(crate) fn share(&self, node: Option<&Arc<NodeShare>>) -> usize {
        self.0.shards.iter().filter(|shard| shard.index.source.share(node)).count()
    }

    /// Warnings: what is unusual about the files, but not an error.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// The names, in the order of the files.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.0.entries.iter().map(|entry| &entry.name)
    }

    /// Whether a tensor has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.by_name.contains_key(name)
    }

    /// The tensor of this name. Fails where there is none; the error suggests similar names.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.0.by_name.get(name) {
            Some(&entry) => Ok(self.tensor_of_entry(entry)),
            None => Err(Error::not_found(name, &similar(name, self.names(), SUGGESTIONS_MAX))),
        }
    }

    /// The tensor at this position of [`Checkpoint::names`]; `None` where the position is out of bounds.
    pub fn tensor_at(&self, position: usize) -> Option<Tensor> {
        let entry = u32::try_from(position).ok()?;
        (position < self.len()).then(|| self.tensor_of_entry(entry))
    }

    /// A stream of all tensors, in file order, each materialized as `request` says.
    pub fn stream(&self, request: &Request, options: StreamOptions) -> Stream {
        let tensors = (0_u32..).zip(&self.0.entries).map(|(entry, _)| self.tensor_of_entry(entry));
        Stream::new(tensors.map(|tensor| (tensor, request.clone())).collect(), options)
    }

    fn tensor_of_entry(&self, entry: u32) -> Tensor {
        Tensor::new(&self.0, self.0.id(self.0.entry(entry)), Some(entry))
    }

    /// Bytes of all storages of named tensors, each counted once.
    pub fn nbytes(&self) -> u64 {
        let mut seen = HashSet::new();
        let storages = self.0.entries.iter().map(|entry| self.0.storage_of(entry));
        // The size of a deflated storage is the file's claim, so the sum saturates.
        let sizes = storages.filter(|&id| seen.insert(id)).map(|id| self.0.storage(id).nbytes);
        sizes.fold(0, u64::saturating_add)
    }

    /// The names that share a storage (tied weights), in groups of at least two.
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

    /// Values of unknown classes in all files, grouped by class.
    pub fn opaque(&self) -> Vec<OpaqueClass> {
        let mut out: Vec<OpaqueClass> = Vec::new();
        let mut positions: HashMap<&str, usize> = HashMap::new();
        for class in self.0.shards.iter().flat_map(|shard| &shard.index.opaque) {
            match positions.entry(&class.class) {
                Entry::Vacant(entry) => {
                    entry.insert(out.len());
                    out.push(class.clone());
                }
                Entry::Occupied(entry) => {
                    let merged = &mut out[*entry.get()];
                    merged.count = merged.count.saturating_add(class.count);
                    merged.at.extend_from_slice(&class.at);
                }
            }
        }
        out
    }

    /// The values of a distributed checkpoint that are not tensors, in the order of its metadata; empty for other formats.
    pub(crate) fn saved_values(&self) -> &[SavedValue] {
        let saved = self.0.shards.first().and_then(|shard| shard.objects.saved.as_ref());
        saved.map_or(&[], |saved| saved.list())
    }

    /// The names of the values of a distributed checkpoint that are not tensors; empty for other formats.
    pub fn value_names(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.saved_values().iter().map(|value| &value.name)
    }

    /// Opens value number `position` of [`Checkpoint::value_names`], which is a checkpoint of its own. Fails where there is no such
    /// value, and as [`Checkpoint::from_bytes`] does.
    pub fn open_value(&self, position: usize) -> Result<Checkpoint> {
        let saved = self.0.shards.first().and_then(|shard| shard.objects.saved.as_ref());
        let found = saved.and_then(|saved| Some((saved, saved.list().get(position)?)));
        let (saved, value) =
            found.ok_or_else(|| Error::new(Code::Index, "the checkpoint has no value of that number"))?;
        let (path, region) = saved.place(value);
        let opened = saved.source(value).and_then(|source| {
            let options = self.0.options.clone();
            Checkpoint::from_source(&source, options)
                .map_err(|error| source.check_unchanged().err().unwrap_or(error))
        });
        opened.map_err(|error| {
            let what = format!("the value {:?}", value.name);
            let error = if error.kind() == Kind::Io { error } else { error.inside(&what, region.start()) };
            error.in_known_file(path)
        })
    }

    /// Every global that the pickles name, as `module.name`, sorted and unique. Fails over the limit `name_bytes_total`, as a
    /// small file may have many names of one long module.
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

    /// The path and object tree of each shard; both are `None` where there is none (bytes in memory; safetensors).
    pub(crate) fn trees(&self) -> impl Iterator<Item = (Option<&FilePath>, Option<&Arc<Tree>>)> {
        let files = self.0.shards.iter().take(self.0.file_count());
        files.map(|shard| (shard.path.as_deref(), shard.objects.tree.as_ref()))
    }

    /// The name of a shard that is one of several in its file; see [`Contents::labelled`](crate::index::Contents::labelled).
    #[cfg(feature = "python")]
    pub(crate) fn label(&self, shard: usize) -> Option<&str> {
        self.0.shards.get(shard)?.objects.label.as_deref()
    }

    /// The named tensors of file `shard`, in the order of [`Checkpoint::names`]; a joined one is of the first file that has a part.
    pub(crate) fn tensors_of(&self, shard: usize) -> impl Iterator<Item = Tensor> {
        let entries = (0_u32..).zip(&self.0.entries);
        entries
            .filter(move |(_, entry)| self.0.path_file(self.0.id(entry)) as usize == shard)
            .map(|(entry, _)| self.tensor_of_entry(entry))
    }

    /// Tensor number `tensor` of file `shard`, without a name; `None` where there is no such tensor.
    pub(crate) fn unnamed_tensor(&self, shard: usize, tensor: u32) -> Option<Tensor> {
        Tensor::unnamed(&self.0, shard, tensor)
    }

    /// As [`Checkpoint::unnamed_tensor`], with the tensor's first name if it has one, and the whole tensor for a part that was
    /// joined.
    pub(crate) fn tensor_by_id(&self, shard: usize, tensor: u32) -> Option<Tensor> {
        let (shard, tensor) = self.0.whole((u32::try_from(shard).ok()?, tensor));
        let unnamed = self.unnamed_tensor(shard as usize, tensor)?;
        let entry = self.0.first_name(unnamed.id());
        Some(entry.map_or(unnamed, |entry| self.tensor_of_entry(entry)))
    }

    /// A number that no other checkpoint of this process has; clones share it.
    #[cfg(feature = "python")]
    pub(crate) fn serial(&self) -> u64 {
        self.0.serial
    }

    /// What is known of its quantized weights. Fails where a file cannot be read.
    #[cfg(feature = "python")]
    pub(crate) fn quantized_weights(&self) -> Result<Vec<Description>> {
        self.0.descriptions()
    }

    /// Fails where the configuration names a method of quantization and nothing was decoded.
    #[cfg(feature = "python")]
    pub(crate) fn check_dequantized(&self) -> Result<()> {
        self.0.check_dequantized()
    }

    /// The options that it was opened with.
    #[cfg(feature = "python")]
    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    /// The absolute paths that it was opened by; none for bytes in memory and other sources.
    #[cfg(feature = "python")]
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.absolute_paths()
    }

    /// Sizes, modification times and inodes of its files, in the order in which they are opened.
    #[cfg(feature = "python")]
    pub(crate) fn file_stamps(&self) -> Result<Vec<FileStamp>> {
        self.0.file_stamps()
    }

    /// The limits that it was opened with.
    pub fn limits(&self) -> &Limits {
        &self.0.options.limits
    }
}

impl Tensor {
    /// The checkpoint that it belongs to.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.opened.clone())
    }
}
