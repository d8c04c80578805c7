//! What `metadata.pkl` states: the items, the file of each rank, and which box of a tensor each rank has.
//!
//! Follows `torch_checkpointing/distributed_metadata.py`, `dtensor_metadata.py`, `default_metadata.py` and `checkpoint_layout.py`, in
//! the versions 2.0 (by item) and 1.0 (by path). The file is dicts, lists, tuples, strings, numbers and None: a global, and anything else
//! that takes one, is an error. A number of what is read twice, as a mesh that tensors share, counts once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use super::super::dcp::{Reader, malformed};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, ResultExt, error};
use crate::index::model::{Along, Options, Placement};
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::{Handle, Pickle, Value, Values};

/// The most fields of a dict: several times as many as any has.
const FIELDS_MAX: usize = 32;

/// The items of a checkpoint, by name.
pub(super) type Items<'a> = BTreeMap<String, Item<'a>>;

/// One item.
#[derive(Default)]
pub(super) struct Item<'a> {
    pub(super) tensors: Vec<Described>,
    /// By rank: where a layout puts the item.
    layouts: BTreeMap<u64, Layout<'a>>,
}

/// A file that a layout names.
#[derive(Clone, Copy)]
struct Layout<'a> {
    path: &'a str,
    /// The name of the class of its form.
    form: &'a str,
    /// The class that a reader imports and makes of JSON.
    class: Option<&'a str>,
}

/// A tensor.
pub(super) struct Described {
    pub(super) path: Vec<Step>,
    pub(super) dtype: DType,
    pub(super) shape: Dims,
    pub(super) pieces: Vec<Piece>,
}

/// One step of a path inside an item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Key(String),
    Number(i64),
}

/// The box of a tensor that a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) rank: u64,
    /// Where it is in the tensor, in what the rank has of it, and its size.
    pub(super) global: Dims,
    pub(super) local: Dims,
    pub(super) sizes: Dims,
    /// Whether it is all that the rank has of the tensor.
    pub(super) is_all: bool,
}

impl<'a> Item<'a> {
    /// The path of a rank's file. Fails where it is in a form that has no tensors.
    pub(super) fn file(&self, name: &str, rank: u64) -> Result<String> {
        match self.layouts.get(&rank) {
            None => Ok(format!("{name}_{rank}.pt")),
            Some(layout) if matches!(layout.form, "TorchSerialization" | "SafetensorsSerialization") => {
                Ok(layout.path.to_owned())
            }
            Some(layout) => Err(malformed(format!("an item with tensors is stored by {:?}", layout.form))),
        }
    }

    /// The classes that a reader would import.
    #[cfg(feature = "scan")]
    pub(super) fn classes(&self) -> impl Iterator<Item = &'a str> {
        self.layouts.values().filter_map(|layout| layout.class)
    }
}

/// Whether a pickle is such metadata.
pub(in crate::index::formats) fn is_metadata(pickle: &Pickle) -> bool {
    let reader = Metadata::new(&pickle.values, u64::MAX);
    let is = |name: &str, test: fn(Value<'_>) -> bool| matches!(reader.find(pickle.root, name), Ok(Some(found)) if test(pickle.values.get(found)));
    is("metadata", |value| matches!(value, Value::Dict(_)))
        && is("world_size", |value| matches!(value, Value::Int(_)))
        && (is("version", |value| matches!(value, Value::Str(_)))
            || is("rank_to_layout_info_mappings", |value| matches!(value, Value::Dict(_))))
}

/// Reads the metadata.
pub(super) fn parse<'a>(pickle: &'a Pickle, options: &Options) -> Result<Items<'a>> {
    let values = &pickle.values;
    if let Some((id, _)) = values.globals().next() {
        let global = values.global(id);
        let text =
            format!("the metadata imports {}.{}, and should be plain data", global.module, global.name);
        return Err(malformed(text).at(global.offset));
    }
    let mut reader = Metadata::new(values, options.limits.tensors);
    let (root, limits) = (pickle.root, &options.limits);
    let version = match reader.find(root, "version")? {
        Some(version) => reader.plain.text(version)?,
        None => "1.0",
    };
    let world_size = reader.plain.number(reader.need(root, "world_size")?)?;
    let described = reader.need(root, "metadata")?;
    let mut items = Items::new();
    match version {
        "2.0" => {
            for (name, item) in reader.pairs(described)? {
                options.cancel.check()?;
                let layouts =
                    reader.layouts(reader.need(item, "rank_to_layout_info")?, world_size).in_member(name)?;
                let mut tensors = Vec::new();
                for (path, groups) in reader.pairs(reader.need(item, "nested_path_to_metadata")?)? {
                    tensors.push(reader.tensor(steps(path)?, groups, world_size, limits).in_member(path)?);
                }
                items.insert(name.to_owned(), Item { tensors, layouts });
            }
        }
        "1.0" => {
            for (path, groups) in reader.pairs(described)? {
                options.cancel.check()?;
                let mut inside = steps(path).in_member(path)?.into_iter();
                let Some(Step::Key(name)) = inside.next() else {
                    return Err(malformed("a path does not begin with an item").in_member(path));
                };
                let tensor = reader.tensor(inside.collect(), groups, world_size, limits).in_member(path)?;
                items.entry(name).or_default().tensors.push(tensor);
            }
            for (rank, layouts) in
                reader.ranks(reader.need(root, "rank_to_layout_info_mappings")?, world_size)?
            {
                for (name, layout) in reader.pairs(layouts)? {
                    if let (Some(item), Some(layout)) =
                        (items.get_mut(name), reader.layout(layout).in_member(name)?)
                    {
                        item.layouts.insert(rank, layout);
                    }
                }
            }
        }
        version => {
            return Err(malformed(format!("the version is {version:?}, which is neither 1.0 nor 2.0")));
        }
    }
    let mut files = HashSet::new();
    match items.values().flat_map(|item| item.layouts.values()).find(|layout| !files.insert(layout.path)) {
        None => Ok(items),
        Some(layout) => Err(malformed(format!("two ranks or items have the file {:?}", layout.path))),
    }
}

/// The steps of a path, which is a list of strings and numbers as JSON.
fn steps(path: &str) -> Result<Vec<Step>> {
    let bad = || malformed("a path is not a list of strings and numbers in JSON");
    let parsed: Vec<serde_json::Value> = serde_json::from_str(path).map_err(|_| bad())?;
    let step = |value| match value {
        serde_json::Value::String(key) => Some(Step::Key(key)),
        value => value.as_i64().map(Step::Number),
    };
    parsed.into_iter().map(step).collect::<Option<_>>().ok_or_else(bad)
}

/// A device mesh: its shape, and the position of each rank in it.
struct Mesh {
    shape: Dims,
    positions: HashMap<u64, u64>,
}

/// Reads the values.
struct Metadata<'a> {
    plain: Reader<'a>,
    values: &'a Values,
    /// The meshes by the values that they were read from: tensors share them.
    meshes: HashMap<Handle, Rc<Mesh>>,
    /// The boxes of all ranks, and the most there may be.
    pieces: u64,
    pieces_max: u64,
}

impl<'a> Metadata<'a> {
    fn new(values: &'a Values, pieces_max: u64) -> Metadata<'a> {
        Metadata { plain: Reader::new(values), values, meshes: HashMap::new(), pieces: 0, pieces_max }
    }

    /// The value of a key of a dict; `None` where the dict lacks it. Fails for a key that is there twice.
    fn find(&self, dict: Handle, name: &str) -> Result<Option<Handle>> {
        let pairs = self.plain.dict(dict, "a part of the metadata")?;
        if pairs.len() > FIELDS_MAX {
            return Err(malformed(format!("a dict of fields has {} of them", pairs.len())));
        }
        let is_named =
            |key: &Handle| matches!(self.values.get(*key), Value::Str(text) if text.as_str() == Some(name));
        let mut found = pairs.iter().filter(|(key, _)| is_named(key));
        match (found.next(), found.next()) {
            (found, None) => Ok(found.map(|&(_, value)| value)),
            _ => Err(malformed(format!("a dict has {name} twice"))),
        }
    }

    fn need(&self, dict: Handle, name: &str) -> Result<Handle> {
        self.find(dict, name)?.ok_or_else(|| malformed(format!("a dict has no {name}")))
    }

    /// The pairs of a dict of different strings.
    fn pairs(&self, dict: Handle) -> Result<Vec<(&'a str, Handle)>> {
        let pairs = self.plain.dict(dict, "a part of the metadata")?;
        let mut found = HashMap::new();
        for &(key, value) in pairs {
            let key = self.plain.text(key)?;
            if found.insert(key, value).is_some() {
                return Err(malformed("a dict has a key twice").in_member(key));
            }
        }
        pairs.iter().map(|&(key, value)| Ok((self.plain.text(key)?, value))).collect()
    }

    fn list(&self, value: Handle) -> Result<&'a [Handle]> {
        match self.values.get(value) {
            Value::Tuple(items) | Value::List(items) => Ok(items),
            _ => Err(malformed("a value is neither a list nor a tuple")),
        }
    }

    /// A dict by rank. Fails unless it has every rank once.
    fn ranks(&self, dict: Handle, world_size: u64) -> Result<BTreeMap<u64, Handle>> {
        let mut ranks = BTreeMap::new();
        for &(rank, value) in self.plain.dict(dict, "a part of the metadata")? {
            let rank = match self.values.get(rank) {
                Value::Str(digits) => digits.as_str().and_then(|digits| digits.parse().ok()),
                _ => self.plain.number(rank).ok(),
            };
            let rank = rank.filter(|&rank| rank < world_size && !ranks.contains_key(&rank));
            ranks.insert(rank.ok_or_else(|| malformed("a dict has a wrong rank"))?, value);
        }
        match to_u64(ranks.len()) {
            count if count == world_size => Ok(ranks),
            count => Err(malformed(format!("{count} of {world_size} ranks have a layout"))),
        }
    }

    fn layouts(&self, dict: Handle, world_size: u64) -> Result<BTreeMap<u64, Layout<'a>>> {
        let layout = |(rank, layout)| Ok(self.layout(layout)?.map(|layout| (rank, layout)));
        self.ranks(dict, world_size)?.into_iter().filter_map(|pair| layout(pair).transpose()).collect()
    }

    /// A layout; `None` for that of every item without one.
    fn layout(&self, value: Handle) -> Result<Option<Layout<'a>>> {
        if self.values.get(value) == Value::None {
            return Ok(None);
        }
        let form = self.need(value, "serialization_format")?;
        let class = self.find(form, "cls")?.filter(|&class| self.values.get(class) != Value::None);
        Ok(Some(Layout {
            path: self.plain.text(self.need(value, "file_path")?)?,
            form: self.plain.text(self.need(form, "type")?)?,
            class: class.map(|class| self.plain.text(class)).transpose()?,
        }))
    }

    /// A tensor, from the groups of ranks that it is described for.
    fn tensor(
        &mut self,
        path: Vec<Step>,
        groups: Handle,
        world_size: u64,
        limits: &Limits,
    ) -> Result<Described> {
        let mut tensor: Option<Described> = None;
        for &group in self.list(groups)? {
            self.count(1)?;
            let sharding = self.need(group, "sharding_metadata")?;
            let data = self.need(sharding, "data")?;
            let kind = self.plain.text(self.need(data, "dtype")?)?;
            let kind = kind.strip_prefix("torch.").and_then(DType::from_name).ok_or_else(|| {
                error!(Code::DtypeUnsupported, "a tensor is of {kind:?}, which is not read")
            })?;
            let shape = self.plain.sizes(self.need(data, "global_shape")?, limits)?;
            let mut ranks = Vec::new();
            for &rank in self.list(self.need(group, "ranks")?)? {
                self.count(1)?;
                ranks.push(self.plain.number(rank)?);
            }
            if let Some(rank) = ranks.iter().find(|&&rank| rank >= world_size) {
                return Err(malformed(format!("rank {rank} is not one of {world_size}")));
            }
            let pieces = match self.plain.text(self.need(sharding, "type")?)? {
                "DTensorShardingMetadata" => self.dtensor(data, &shape, &ranks, limits)?,
                "default_tensor_v1" => self.boxes(data, &ranks, limits)?,
                other => {
                    return Err(malformed(format!("a tensor is sharded by {other:?}, which is not known")));
                }
            };
            match &mut tensor {
                None => tensor = Some(Described { path: path.clone(), dtype: kind, shape, pieces }),
                Some(tensor) if tensor.dtype == kind && tensor.shape == shape => tensor.pieces.extend(pieces),
                Some(_) => {
                    let text = "ranks have parts of tensors of different dtypes or shapes under one name";
                    return Err(Error::new(Code::PartConflict, text));
                }
            }
        }
        let mut tensor = tensor
            .filter(|tensor| !tensor.pieces.is_empty())
            .ok_or_else(|| Error::new(Code::DcpGrid, "no rank has any part of a tensor"))?;
        tensor.pieces.sort_by_key(|piece| piece.rank);
        Ok(tensor)
    }

    /// The boxes of a DTensor on these ranks.
    fn dtensor(&mut self, data: Handle, shape: &Dims, ranks: &[u64], limits: &Limits) -> Result<Vec<Piece>> {
        let mesh = self.mesh(self.need(data, "mesh_spec")?)?;
        let mut along = Vec::new();
        for &placement in self.list(self.need(data, "placements")?)? {
            Limits::check("rank", limits.rank, to_u64(along.len()).saturating_add(1))?;
            along.push(self.along(placement, shape.len())?);
        }
        if along.len() != mesh.shape.len() {
            return Err(malformed("the placements are not as many as the mesh has dimensions"));
        }
        let mut placement =
            Placement { mesh: mesh.shape.clone(), coordinate: Dims::new(), along: along.into() };
        let mut pieces = Vec::new();
        for &rank in ranks {
            let position = mesh.positions.get(&rank);
            let position = position.ok_or_else(|| malformed(format!("rank {rank} is not in the mesh")))?;
            placement.coordinate = coordinate(*position, &mesh.shape);
            let (global, sizes) = placement.cut(shape, &[]).ok_or_else(|| {
                Error::new(Code::DTensorPlacement, "the part of the tensor that a rank has is not a box")
            })?;
            let local = Dims::from_elem(0, sizes.len());
            pieces.push(Piece { rank, global, local, sizes, is_all: true });
        }
        Ok(pieces)
    }

    /// The boxes that are stated for these ranks.
    fn boxes(&mut self, data: Handle, ranks: &[u64], limits: &Limits) -> Result<Vec<Piece>> {
        let list = |name| self.list(self.need(data, name)?);
        let (global, local, sizes) = (list("global_offsets")?, list("local_offsets")?, list("local_sizes")?);
        if global.len() != local.len() || global.len() != sizes.len() {
            return Err(malformed("the offsets and sizes of boxes are not as many"));
        }
        let mut pieces = Vec::new();
        for ((&global, &local), &sizes) in global.iter().zip(local).zip(sizes) {
            for &rank in ranks {
                self.count(1)?;
                let read = |value| self.plain.sizes(value, limits);
                let (global, local, sizes) = (read(global)?, read(local)?, read(sizes)?);
                pieces.push(Piece { rank, global, local, sizes, is_all: false });
            }
        }
        Ok(pieces)
    }

    fn along(&self, placement: Handle, ndim: usize) -> Result<Along> {
        let dim = || {
            let dim = self.plain.number(self.need(placement, "dim")?)?;
            usize::try_from(dim)
                .ok()
                .filter(|dim| *dim < ndim)
                .ok_or_else(|| malformed("a tensor lacks a sharded dimension"))
        };
        match self.plain.text(self.need(placement, "type")?)? {
            "Replicate" => Ok(Along::Replicate),
            "Shard" => dim().map(Along::Shard),
            "StridedShard" => {
                Ok(Along::StridedShard(dim()?, self.plain.number(self.need(placement, "split_factor")?)?))
            }
            other => Err(malformed(format!("a placement is {other:?}, which is not known"))),
        }
    }

    fn mesh(&mut self, spec: Handle) -> Result<Rc<Mesh>> {
        if let Some(mesh) = self.meshes.get(&spec) {
            return Ok(mesh.clone());
        }
        let shape: Dims = self.numbers(self.need(spec, "mesh_shape")?)?.into();
        let ranks = self.numbers(self.need(spec, "mesh_data")?)?;
        let positions: HashMap<u64, u64> = ranks.iter().copied().zip(0..).collect();
        if positions.len() != ranks.len() || numel(&shape) != Some(to_u64(ranks.len())) {
            return Err(malformed("the ranks of a mesh are not one for each of its places"));
        }
        let mesh = Rc::new(Mesh { shape, positions });
        self.meshes.insert(spec, mesh.clone());
        Ok(mesh)
    }

    fn numbers(&mut self, list: Handle) -> Result<Vec<u64>> {
        let list = self.list(list)?;
        self.count(list.len())?;
        list.iter().map(|&number| self.plain.number(number)).collect()
    }

    /// Counts boxes and ranks: few values can state very many.
    fn count(&mut self, count: usize) -> Result<()> {
        self.pieces = self.pieces.saturating_add(to_u64(count));
        Limits::check("tensors", self.pieces_max, self.pieces)
    }
}

/// The coordinate of a position in a mesh.
fn coordinate(mut position: u64, shape: &Dims) -> Dims {
    let mut coordinate = shape.clone();
    for (at, &size) in coordinate.iter_mut().zip(shape).rev() {
        *at = position.checked_rem(size).unwrap_or(0);
        position = position.checked_div(size).unwrap_or(0);
    }
    coordinate
}
