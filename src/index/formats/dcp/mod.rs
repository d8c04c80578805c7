//! A distributed checkpoint of torch: the pickle `.metadata`, and files of chunks and values beside it.
//!
//! Follows `torch/distributed/checkpoint/metadata.py`, `filesystem.py` and `planner_helpers.py`, in the forms of torch 2.1 to 2.15 and
//! of Megatron's `torch_dist`. torch reads the metadata, and every value, with an unrestricted unpickler. Here the objects are
//! recorded calls like those of every pickle, and only the fields of the classes below are read. Before a tensor is given, its
//! chunks, their ranges and the names of their files are checked; of the files themselves, only the sizes are asked for.

mod chunk;
mod files;
mod folder;

use std::cell::Cell;
use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use self::chunk::ArchiveChunk;
use self::files::{ChunkFiles, Place};
pub use self::files::{SavedValue, SavedValues};
pub(super) use self::folder::Folder;
use super::contents::{Contents, Objects};
use crate::bytes::Source;
use crate::container::Format;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, ResultExt};
use crate::index::model::{Chunk, Chunks, Index, Location, Options, Path, PathStep, Tensor, Unknown};
use crate::index::pickled::{self, CallInterpreter, PersistentIdForm, PersistentIds, Tree};
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};
use crate::pickle::{Handle, Pickle, Value, Values};

/// The modules of the classes: torch before 2.3 had those of tensors' properties with its sharded tensors.
const METADATA: &str = "torch.distributed.checkpoint.metadata";
const SHARDED: &str = "torch.distributed._shard.sharded_tensor.metadata";
const SHARDING: &str = "torch.distributed._shard.metadata";
const MEGATRON: &str = "megatron.core.dist_checkpointing.strategies.torch";

/// The classes and functions that metadata names. Values of the others are not looked at.
const KNOWN: &[(&str, &[&str])] = &[
    (
        METADATA,
        &[
            "Metadata",
            "TensorStorageMetadata",
            "TensorProperties",
            "ChunkStorageMetadata",
            "BytesStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        ],
    ),
    (SHARDED, &["TensorProperties", "MEM_FORMAT_ENCODING"]),
    (SHARDING, &["ShardMetadata"]),
    ("torch.distributed.checkpoint.filesystem", &["_StorageInfo"]),
    ("torch.serialization", &["_get_layout"]),
    ("pathlib", &["PosixPath", "WindowsPath"]),
    ("pathlib._local", &["PosixPath", "WindowsPath"]),
    (MEGATRON, &["MCoreMetadata", "MCoreSavePlan"]),
];

/// The most numbers and steps for each value of the pickle. torch shares shapes among few objects, and writes small numbers once.
const ITEMS_PER_VALUE_MAX: u64 = 32;

/// The most fields of one object: several times as many as any class has.
const FIELDS_MAX: usize = 32;

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
        reader.tensors(&top, stored, Arc::new(files), source, options)?
    };
    let no_storages = |key: &str, _: u64| {
        let text = format!("the metadata refers to storage {key}, but has no storages");
        Err(Error::new(Code::PersistentId, text))
    };
    let ids = PersistentIds::described(PersistentIdForm::Archive, &no_storages);
    let meanings = CallInterpreter::new(&values, &options.limits, ids, &options.cancel)?.finish();
    let tree = Some(Arc::new(Tree::new(values, meanings, root)));
    let objects = Objects { tree, saved: Some(Arc::new(saved)), ..Objects::default() };
    Ok(Contents { index, objects, inner: Vec::new() })
}

/// The places of all items, by name and, for the chunk of a tensor, its offsets.
type Stored<'a> = HashMap<(&'a str, Option<Dims>), Place>;

/// The fields of one object, each with the value of the last state that sets it.
struct Fields<'a> {
    class: &'static str,
    fields: SmallVec<[(&'a str, Handle); 6]>,
}

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<Handle> {
        self.fields.iter().find(|(field, _)| *field == name).map(|&(_, value)| value)
    }

    fn need(&self, name: &str) -> Result<Handle> {
        self.get(name).ok_or_else(|| malformed(format!("a {} has no {name}", self.class)))
    }
}

/// Reads the objects of the metadata.
struct Reader<'a> {
    values: &'a Values,
    /// The numbers and steps that were read. Any number of objects may share a list of them, so their sum is bounded.
    items: Cell<u64>,
}

impl<'a> Reader<'a> {
    fn new(values: &'a Values) -> Reader<'a> {
        Reader { values, items: Cell::new(0) }
    }

    /// Counts items that are read. Fails where they are many more than the values of the pickle.
    fn count(&self, items: usize) -> Result<()> {
        self.items.set(self.items.get().saturating_add(to_u64(items)).saturating_add(1));
        let max = to_u64(self.values.len()).saturating_mul(ITEMS_PER_VALUE_MAX).saturating_add(1 << 16);
        match self.items.get() <= max {
            true => Ok(()),
            false => Err(malformed("the same lists are part of very many objects")),
        }
    }

    /// Fails on the first global that metadata does not name.
    fn refuse_unknown(&self) -> Result<()> {
        for (id, _) in self.values.globals() {
            let global = self.values.global(id);
            let is_listed =
                KNOWN.iter().any(|(module, names)| *module == global.module && names.contains(&global.name));
            let is_torchs =
                global.module == "torch" && (global.name == "Size" || dtype(global.name).is_some());
            if !is_listed && !is_torchs {
                let (module, name) = (global.module, global.name);
                let text = format!("the metadata imports {module}.{name}, which rustload does not know");
                return Err(Error::global(Code::DisallowedGlobal, module, name, text).at(global.offset));
            }
        }
        Ok(())
    }

    /// The class of an object, as module and name; `None` for other values.
    fn class(&self, object: Handle) -> Option<(&'a str, &'a str)> {
        let Value::Call(id) = self.values.get(object) else { return None };
        let Value::Global(id) = self.values.get(self.values.call(id).callable) else { return None };
        let global = self.values.global(id);
        Some((global.module, global.name))
    }

    /// The state that is set on an object of one of these classes, and which class that is.
    fn state(&self, object: Handle, classes: &[&'static str]) -> Result<(&'static str, Option<Value<'a>>)> {
        let wanted = classes.first().copied().unwrap_or_default();
        let found = self.class(object).and_then(|(module, name)| {
            let is_listed = KNOWN.iter().any(|(known, names)| *known == module && names.contains(&name));
            classes.iter().copied().find(|class| *class == name).filter(|_| is_listed)
        });
        let (Some(class), Value::Call(id)) = (found, self.values.get(object)) else {
            return Err(malformed(format!("a {wanted} is something else")));
        };
        let call = self.values.call(id);
        let is_empty = matches!(self.values.get(call.args), Value::Tuple([]));
        if !is_empty || call.kwargs.is_some() || !call.items.is_empty() || !call.appended.is_empty() {
            return Err(malformed(format!("a {class} is not made as torch makes it")).at(call.offset));
        }
        match call.states {
            [] => Ok((class, None)),
            [state] => Ok((class, Some(self.values.get_at(*state)))),
            _ => Err(malformed(format!("the state of a {class} is set twice")).at(call.offset)),
        }
    }

    /// The fields of an object of one of these classes.
    fn fields(&self, object: Handle, classes: &[&'static str]) -> Result<Fields<'a>> {
        let (class, state) = self.state(object, classes)?;
        let mut fields = Fields { class, fields: SmallVec::new() };
        let pairs = match state {
            None => &[],
            Some(Value::Dict(pairs)) => pairs,
            Some(_) => return Err(malformed(format!("the state of a {class} is not a dict"))),
        };
        if pairs.len() > FIELDS_MAX {
            return Err(malformed(format!("a {class} has {} fields", pairs.len())));
        }
        for &(key, value) in pairs {
            let key = self.text(key)?;
            if fields.get(key).is_some() {
                return Err(malformed(format!("a {class} has {key} twice")));
            }
            fields.fields.push((key, value));
        }
        Ok(fields)
    }

    fn text(&self, value: Handle) -> Result<&'a str> {
        match self.values.get(value) {
            Value::Str(text) => text.as_str().ok_or_else(|| malformed("a name is not UTF-8")),
            _ => Err(malformed("a name is not a string")),
        }
    }

    fn number(&self, value: Handle) -> Result<u64> {
        match self.values.get(value) {
            Value::Int(number) => {
                u64::try_from(number).map_err(|_| malformed(format!("{number} is negative")))
            }
            _ => Err(malformed("a size or offset is not a number of 64 bits")),
        }
    }

    /// The pairs of a dict.
    fn dict(&self, value: Handle, what: &str) -> Result<&'a [(Handle, Handle)]> {
        match self.values.get(value) {
            Value::Dict(pairs) => Ok(pairs),
            _ => Err(malformed(format!("{what} is not a dict"))),
        }
    }

    /// A `torch.Size`, or a tuple or list of numbers.
    fn sizes(&self, value: Handle, limits: &Limits) -> Result<Dims> {
        let items = match self.values.get(value) {
            Value::Tuple(items) | Value::List(items) => items,
            Value::Call(id) if self.class(value) == Some(("torch", "Size")) => {
                match self.values.get(self.values.call(id).args) {
                    Value::Tuple(&[items]) => match self.values.get(items) {
                        Value::Tuple(items) | Value::List(items) => items,
                        _ => return Err(malformed("a torch.Size of something else than numbers")),
                    },
                    Value::Tuple([]) => &[],
                    _ => return Err(malformed("a torch.Size of several arguments")),
                }
            }
            _ => return Err(malformed("a shape is not a torch.Size")),
        };
        Limits::check("rank", limits.rank, to_u64(items.len()))?;
        self.count(items.len())?;
        items.iter().map(|&item| self.number(item)).collect()
    }

    /// The dtype of a `TensorProperties`, and whether the tensor required gradients.
    fn properties(&self, value: Handle) -> Result<(DType, bool)> {
        let (_, state) = self.state(value, &["TensorProperties"])?;
        let Some(Value::Tuple([kind, layout, gradient, ..])) = state else {
            return Err(malformed("the properties of a tensor are not a tuple"));
        };
        let name = match self.values.get(*kind) {
            Value::Global(id) => {
                let global = self.values.global(id);
                (global.module == "torch").then_some(global.name)
            }
            _ => None,
        };
        let name = name.ok_or_else(|| malformed("the dtype of a tensor is something else"))?;
        let kind = dtype(name).ok_or_else(|| {
            Error::new(Code::DtypeUnsupported, format!("a tensor is of torch.{name}, which is not read"))
        })?;
        let is_strided = match self.values.get(*layout) {
            Value::Call(id) => match self.values.get(self.values.call(id).args) {
                Value::Tuple(&[name]) => self.text(name)? == "torch.strided",
                _ => false,
            },
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
                let text = format!(
                    "an item is transformed by {:?}, which rustload does not undo",
                    self.text(*first)?
                );
                return Err(Error::new(Code::DcpTransform, text));
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

/// The dtype of that name in the module `torch`.
fn dtype(name: &str) -> Option<DType> {
    DType::from_name(name)
}

fn malformed(text: impl Into<String>) -> Error {
    Error::new(Code::DcpMetadata, text)
}

fn missing(what: &str) -> Error {
    Error::new(Code::DcpMetadata, format!("the metadata does not say where {what} is stored"))
}
