//! A distributed checkpoint of torch: the pickle `.metadata`, and files of chunks and values beside it.
//!
//! Follows `torch/distributed/checkpoint/metadata.py`, `filesystem.py` and `planner_helpers.py`, in the forms of torch 2.1 to 2.15 and
//! of Megatron's `torch_dist`. torch reads the metadata, and every value, with an unrestricted unpickler. Here the objects are
//! recorded calls like those of every pickle, and only the fields of the classes below are read. Before a tensor is given, its
//! chunks, their ranges and the names of their files are checked; of the files themselves, only the sizes are asked for.

mod chunk;
mod files;
mod folder;
mod reader;

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::chunk::ArchiveChunk;
use self::files::{ChunkFiles, Place};
pub use self::files::{SavedValue, SavedValues};
pub(super) use self::folder::Folder;
use self::reader::{Fields, MEGATRON, METADATA};
pub(super) use self::reader::{Reader, malformed};
use super::contents::{Contents, Objects};
use crate::bytes::Source;
use crate::container::Format;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, ResultExt, bail, error};
use crate::index::model::{Chunk, Chunks, Index, Location, Options, Path, PathStep, Tensor, Unknown};
use crate::index::pickled::{self, CallInterpreter, PersistentIdForm, PersistentIds, Tree};
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};
use crate::pickle::{Handle, Pickle, Value};

/// What to do with the metadata of one rank, which has another name.
const OF_RANK: &str = "If each rank has metadata of its own, this rank has only parts of tensors: load the directory with \
                       torch.distributed.checkpoint on as many ranks, and save it with use_collectives=True.";

/// Whether a pickle is the metadata of a distributed checkpoint.
pub(super) fn is_metadata(pickle: &Pickle) -> bool {
    let reader = Reader::new(&pickle.values);
    matches!(reader.class(pickle.root), Some((METADATA, "Metadata") | (MEGATRON, "MCoreMetadata")))
}

/// Reads the metadata, and checks that the files in its folder can hold what it states.
pub(super) fn read(
    source: &Source,
    folder: Folder<'_>,
    pickle: Pickle,
    options: &Options,
) -> Result<Contents> {
    pickled::check_end(&pickle, options)?;
    let Pickle { values, root, .. } = pickle;
    let (index, saved) = {
        let reader = Reader::new(&values);
        if options.unknown == Unknown::Error {
            reader.refuse_unknown()?;
        }
        let top = reader.fields(root, &["Metadata", "MCoreMetadata"])?;
        let (stored, files) = reader.stored(&top, folder, options)?;
        let found = reader.tensors(&top, stored, Arc::new(files), source, options);
        let (mut index, saved) = found.map_err(|error| match (error.code(), source.path()) {
            (Code::DcpGrid, Some(path)) if path.file_name().is_some_and(|name| name != ".metadata") => {
                error.note(OF_RANK)
            }
            _ => error,
        })?;
        index.notes.extend(reader.reshaped(&top, &index, &options.limits)?);
        (index, saved)
    };
    let no_storages = |key: &str, _: u64| {
        Err(error!(Code::PersistentId, "the metadata refers to storage {key}, but has no storages"))
    };
    let ids = PersistentIds::described(PersistentIdForm::Archive, &no_storages);
    let meanings = CallInterpreter::new(&values, &options.limits, ids, &options.cancel)?.finish();
    let tree = Some(Arc::new(Tree::new(values, meanings, root)));
    let objects = Objects { tree, saved: Some(Arc::new(saved)), ..Objects::default() };
    Ok(Contents { index, objects, inner: Vec::new() })
}

/// The places of all items, by name and, for the chunk of a tensor, its offsets.
type Stored<'a> = HashMap<(&'a str, Option<Dims>), Place>;

impl<'a> Reader<'a> {
    /// The dtype of a `TensorProperties`, and whether the tensor required gradients.
    fn properties(&self, value: Handle) -> Result<(DType, bool)> {
        let (_, state) = self.state(value, &["TensorProperties"])?;
        let Some(Value::Tuple([kind, layout, gradient, ..])) = state else {
            return Err(malformed("the properties of a tensor are not a tuple"));
        };
        let Some(("torch", name)) = self.values.global_at(*kind) else {
            return Err(malformed("the dtype of a tensor is something else"));
        };
        let kind = DType::from_name(name).ok_or_else(|| {
            error!(Code::DtypeUnsupported, "a tensor is of torch.{name}, which is not read")
        })?;
        let is_strided = match self.values.call_at(*layout).map(|call| self.values.get(call.args)) {
            Some(Value::Tuple(&[name])) => self.text(name)? == "torch.strided",
            _ => false,
        };
        if !is_strided {
            return Err(malformed("the layout of a tensor is not torch.strided"));
        }
        Ok((kind, matches!(self.values.get(*gradient), Value::Bool(true))))
    }

    /// The place of every stored item, and the files that they are in.
    fn stored(
        &self,
        top: &Fields<'a>,
        mut folder: Folder<'_>,
        options: &Options,
    ) -> Result<(Stored<'a>, ChunkFiles)> {
        let storage_data = top.need("storage_data")?;
        let pairs = self.dict(storage_data, "storage_data")?;
        let mut stored: Stored<'a> = HashMap::new();
        for &(key, info) in pairs {
            options.cancel.check()?;
            let key = self.fields(key, &["MetadataIndex"])?;
            let name = self.text(key.need("fqn")?)?;
            let offset = key.get("offset").filter(|offset| self.values.get(*offset) != Value::None);
            let offset = offset.map(|offset| self.sizes(offset, &options.limits)).transpose()?;
            let place = self.place(info, &mut folder).map_err(|error| error.in_member(name))?;
            match stored.entry((name, offset)) {
                MapEntry::Vacant(slot) => slot.insert(place),
                MapEntry::Occupied(_) => {
                    return Err(malformed("an item is stored twice").in_member(name));
                }
            };
        }
        folder.check_overlaps(stored.values().copied())?;
        Ok((stored, ChunkFiles::new(folder.files, options)))
    }

    /// The place that a `_StorageInfo` states.
    fn place(&self, info: Handle, folder: &mut Folder<'_>) -> Result<Place> {
        let info = self.fields(info, &["_StorageInfo"])?;
        let transforms = info.get("transform_descriptors").map(|names| self.values.get(names));
        match transforms {
            None | Some(Value::None | Value::List([]) | Value::Tuple([])) => {}
            Some(Value::List([first, ..]) | Value::Tuple([first, ..])) => {
                bail!(
                    Code::DcpTransform,
                    "an item is transformed by {:?}, which rustload does not undo",
                    self.text(*first)?
                );
            }
            Some(_) => return Err(malformed("the transforms of an item are not a list")),
        }
        let file = folder.file(self.text(info.need("relative_path")?)?)?;
        let (start, len) = (self.number(info.need("offset")?)?, self.number(info.need("length")?)?);
        Ok((file, folder.range(file, start, len)?))
    }

    /// The names, tensors and values.
    fn tensors(
        &self,
        top: &Fields<'a>,
        mut stored: Stored<'a>,
        files: Arc<ChunkFiles>,
        source: &Source,
        options: &Options,
    ) -> Result<(Index, SavedValues)> {
        let paths = self.paths(top, &options.limits)?;
        let described = self.dict(top.need("state_dict_metadata")?, "state_dict_metadata")?;
        let mut index = Index::empty(Format::TorchDcp, source);
        let (mut saved, mut names) = (Vec::new(), HashSet::new());
        for &(key, value) in described {
            options.cancel.check()?;
            let key = self.text(key)?;
            let name: Arc<str> = Arc::from(key);
            if !names.insert(key) {
                return Err(malformed("a name is described twice").in_member(key));
            }
            let path = paths.get(key).cloned().unwrap_or(Path::Name);
            if self.class(value).is_some_and(|(_, class)| class == "BytesStorageMetadata") {
                self.state(value, &["BytesStorageMetadata"]).in_member(key)?;
                let place = stored.remove(&(key, None));
                let place = place.ok_or_else(|| missing("the value").in_member(key))?;
                saved.push(SavedValue { name, path, place });
                continue;
            }
            let tensor = to_u32(index.tensors.len());
            Limits::check("tensors", options.limits.tensors, u64::from(tensor).saturating_add(1))?;
            let (dtype, gradient, shape, chunks) =
                self.tensor(key, value, &mut stored, &files).in_member(key)?;
            let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
            let nbytes = nbytes.ok_or_else(|| {
                Error::new(Code::TensorShape, "a tensor's size does not fit 64 bits").in_member(key)
            })?;
            let mut proved = Tensor::contiguous(dtype, &shape, tensor, nbytes).in_member(key)?;
            proved.flags.requires_grad = gradient;
            let chunks = Chunks::prove(dtype, shape, chunks).in_member(key)?;
            if options.verify {
                chunks.open_all(&options.cancel).in_member(key)?;
            }
            index.add_whole(name, path, proved, Location::Chunks(Arc::new(chunks)), nbytes);
        }
        Ok((index, SavedValues { values: saved, files }))
    }

    /// The dtype, the gradient flag, the shape and the chunks of a tensor.
    fn tensor(
        &self,
        name: &'a str,
        value: Handle,
        stored: &mut Stored<'a>,
        files: &Arc<ChunkFiles>,
    ) -> Result<(DType, bool, Dims, Vec<Chunk>)> {
        let limits = &files.options.limits;
        let fields = self.fields(value, &["TensorStorageMetadata"])?;
        let (dtype, gradient) = self.properties(fields.need("properties")?)?;
        let shape = self.sizes(fields.need("size")?, limits)?;
        let (Value::List(listed) | Value::Tuple(listed)) = self.values.get(fields.need("chunks")?) else {
            return Err(malformed("the chunks of a tensor are not a list"));
        };
        let mut chunks = Vec::new();
        for &chunk in listed {
            let chunk = self.fields(chunk, &["ChunkStorageMetadata"])?;
            let (offsets, sizes) =
                (self.sizes(chunk.need("offsets")?, limits)?, self.sizes(chunk.need("sizes")?, limits)?);
            let place = stored.remove(&(name, Some(offsets.clone())));
            let nbytes = numel(&sizes).and_then(|numel| numel.checked_mul(dtype.itemsize()));
            let Some(place @ (_, region)) = place else {
                // An empty chunk may share its offsets with another one.
                if nbytes == Some(0) {
                    continue;
                }
                return Err(missing(&format!("the chunk at {:?}", &offsets[..])));
            };
            if nbytes.is_none_or(|nbytes| nbytes > region.len()) {
                let text = format!("a chunk of {:?} is stored in {} byte(s)", &sizes[..], region.len());
                return Err(Error::new(Code::DcpRange, text).at(region.start()));
            }
            chunks.push(Chunk::new(offsets, sizes, Box::new(ArchiveChunk { files: files.clone(), place })));
        }
        Ok((dtype, gradient, shape, chunks))
    }

    /// A note on tensors that Megatron stores in another shape than it had them in.
    fn reshaped(&self, top: &Fields<'a>, index: &Index, limits: &Limits) -> Result<Option<String>> {
        let Some(Value::Dict(pairs)) = top.get("mcore_data").map(|data| self.values.get(data)) else {
            return Ok(None);
        };
        let mut original = HashMap::new();
        for &(name, value) in pairs {
            let (Ok(name), Value::Dict(fields)) = (self.text(name), self.values.get(value)) else { continue };
            self.count(fields.len())?;
            let is_shape = |key| self.text(key).is_ok_and(|key| key == "nd_reformulated_orig_global_shape");
            let shape = fields.iter().find(|(key, _)| is_shape(*key));
            if let Some(Ok(shape)) = shape.map(|&(_, shape)| self.sizes(shape, limits)) {
                original.insert(name, shape);
            }
        }
        let mut names = index.entries.iter().zip(&index.tensors).filter(|(entry, tensor)| {
            original.get(&*entry.name).is_some_and(|shape| *shape != tensor.layout().shape)
        });
        Ok(names.next().map(|(first, _)| {
            let count = names.count().saturating_add(1);
            let (name, shape) = (&first.name, original.get(&*first.name).map(|shape| &shape[..]).unwrap_or_default());
            format!(
                "{count} tensor(s) have the shape in which Megatron stores them, not that of their parameter (mcore_data), such as {name:?} \
                 of {shape:?}"
            )
        }))
    }

    /// The path of each name from the root of what was saved. Planners of other programs may keep something else in its place.
    fn paths(&self, top: &Fields<'a>, limits: &Limits) -> Result<HashMap<&'a str, Path>> {
        let mut paths = HashMap::new();
        let Some(Value::Dict(pairs)) = top.get("planner_data").map(|data| self.values.get(data)) else {
            return Ok(paths);
        };
        for &(name, path) in pairs {
            let (Value::Str(_), Value::Tuple(items) | Value::List(items)) =
                (self.values.get(name), self.values.get(path))
            else {
                continue;
            };
            Limits::check("depth", limits.depth, to_u64(items.len()))?;
            self.count(items.len())?;
            let steps = items.iter().map(|&item| match self.values.get(item) {
                Value::Str(_) => Some(PathStep::Key(item)),
                Value::Int(number) => match u32::try_from(number) {
                    Ok(number) => Some(PathStep::Index(number)),
                    Err(_) => Some(PathStep::Key(item)),
                },
                _ => None,
            });
            if let Some(steps) = steps.collect::<Option<Box<[PathStep]>>>().filter(|steps| !steps.is_empty())
            {
                paths.insert(self.text(name)?, Path::Steps(steps));
            }
        }
        Ok(paths)
    }
}

fn missing(what: &str) -> Error {
    error!(Code::DcpMetadata, "the metadata does not say where {what} is stored")
}
