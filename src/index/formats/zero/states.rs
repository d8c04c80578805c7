//! What the pickles of DeepSpeed state: names, shapes and numbers, and which tensors have the elements.
//!
//! Follows `deepspeed/runtime/engine.py: _save_checkpoint, _save_zero_checkpoint` and the `state_dict` of the optimizers in
//! `deepspeed/runtime/zero` and `bf16_optimizer.py`. What the user saved beside it (`client_state`) is at the top level too, so that any
//! key may be something else: every value that is read has to be of its type.

use std::collections::{BTreeSet, HashMap};

use crate::error::{Code, Error, Result, ResultExt};
use crate::index::model::PathStep;
use crate::index::pickled::{Object, Tree};
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::Handle;

/// The most dimensions of a parameter. A run of elements is up to twice as many boxes.
const RANK_MAX: u64 = 16;

/// The most tensors that a group has as states: several times as many as those of any optimizer. Each has the name of every parameter.
const STATES_MAX: usize = 16;

/// Names and shapes, in the order of the elements.
pub(super) type Shapes<'a> = Vec<(&'a str, Dims)>;

/// A tensor of a file, and where it is in the object tree.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) tensor: u32,
    pub(super) path: Box<[PathStep]>,
}

/// What all files of the model of one save agree on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stated<'a> {
    /// By group: the parameters of the optimizer. `None` where older versions have them beside its states.
    pub(super) groups: Option<Vec<Shapes<'a>>>,
    /// The parameters that are not trained.
    pub(super) frozen: Shapes<'a>,
    pub(super) buffers: BTreeSet<&'a str>,
    /// By layer: the number of experts, which have files of their own.
    pub(super) experts: Vec<u64>,
    /// Whether ranks that have the same experts have consecutive numbers.
    pub(super) is_data_first: bool,
    /// Whether gradients are reduced in another order, in which DeepSpeed states ranges by mistake: its partitions have that of the shapes.
    pub(super) is_round_robin: bool,
    steps: [Option<i64>; 2],
    version: Option<&'a str>,
}

/// A file of the model.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) stated: Stated<'a>,
    /// The tensors of the state dict, and whether each is a buffer.
    pub(super) module: Vec<(&'a str, Stored, bool)>,
    pub(super) fragments: HashMap<&'a str, Stored>,
    /// Names, each with that of the parameter that it is tied to.
    pub(super) shared: Vec<(&'a str, &'a str)>,
}

impl<'a> Model<'a> {
    /// The names that the model has.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + Clone {
        let weights = self.module.iter().map(|(name, ..)| *name);
        let frozen = self.stated.frozen.iter().map(|(name, _)| *name);
        weights.chain(frozen).chain(self.shared.iter().map(|(name, _)| *name))
    }
}

/// A file of the optimizer.
#[derive(Debug)]
pub(super) struct Optimizer<'a> {
    /// `None` for `BF16_Optimizer`.
    pub(super) stage: Option<i64>,
    /// By group, or for all of them.
    pub(super) counts: Vec<u64>,
    /// By group: its elements in this rank.
    pub(super) flats: Vec<u32>,
    pub(super) paddings: Option<Vec<u64>>,
    /// By group and parameter: the padding that follows.
    pub(super) after: Option<Vec<Vec<u64>>>,
    /// By group and parameter: the first element in this rank, and how many.
    pub(super) mappings: Option<Vec<HashMap<&'a str, (u64, u64)>>>,
    /// By group: the tensors of the optimizer's state.
    pub(super) states: Vec<Vec<(&'a str, u32)>>,
    /// As in [`Stated`], in older versions.
    pub(super) groups: Option<Vec<Shapes<'a>>>,
    pub(super) version: Option<&'a str>,
}

/// Reads the values of a file.
pub(super) struct Reader<'a> {
    tree: &'a Tree,
    limits: &'a Limits,
    /// What was listed: few values can state very many.
    listed: u64,
}

pub(super) fn wrong(text: impl Into<String>) -> Error {
    Error::new(Code::ZeroState, text)
}

pub(super) fn unsupported(text: &str) -> Error {
    Error::new(Code::ZeroUnsupported, text)
}

/// The values of a dict by those of its keys that are texts.
struct Fields<'a>(HashMap<&'a str, Handle>);

impl Fields<'_> {
    fn get(&self, key: &str) -> Option<Handle> {
        self.0.get(key).copied()
    }

    fn need(&self, key: &str) -> Result<Handle> {
        self.get(key).ok_or_else(|| wrong(format!("the file has no {key}")))
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(tree: &'a Tree, limits: &'a Limits) -> Reader<'a> {
        Reader { tree, limits, listed: 0 }
    }

    /// The states of the model.
    pub(super) fn model(&mut self) -> Result<Model<'a>> {
        let top = self.fields(self.tree.root())?;
        let experts = self.experts(&top)?;
        let groups = top.get("param_shapes").map(|value| self.groups(value)).transpose()?;
        let frozen = self.given(&top, "frozen_param_shapes")?;
        let frozen = frozen.map_or(Ok(Vec::new()), |value| self.shapes(value))?;
        let buffers = self.list(top.need("buffer_names")?).in_member("buffer_names")?;
        let buffers: BTreeSet<&str> =
            buffers.iter().map(|&name| self.text(name)).collect::<Result<_>>().in_member("buffer_names")?;
        let number = |key| top.get(key).and_then(|value| self.int(value).ok());
        let steps = [number("global_steps"), number("global_samples")];
        let version = top.get("ds_version").and_then(|value| self.text(value).ok());
        let mut shared = Vec::new();
        if let Some(value) = self.given(&top, "shared_params")? {
            for (key, value) in self.pairs(value).in_member("shared_params")? {
                shared.push((
                    self.text(key).in_member("shared_params")?,
                    self.text(value).in_member("shared_params")?,
                ));
            }
        }
        let fragments = match self.given(&top, "frozen_param_fragments")? {
            Some(value) => self.tensors("frozen_param_fragments", value)?.into_iter().collect(),
            None => HashMap::new(),
        };
        let module = top.need("module")?;
        if matches!(self.tree.get(module)?, Object::None) {
            return Err(unsupported(
                "the model is in files of the layers of a pipeline, which are not joined",
            ));
        }
        let module = self.tensors("module", module)?.into_iter();
        let module = module.map(|(name, stored)| (name, stored, buffers.contains(name))).collect();
        let config = self.inner(&top, "ds_config")?;
        let is_data_first = self.is_true(&config, "use_data_before_expert_parallelism")?;
        let config = self.inner(&config, "zero_optimization")?;
        let is_round_robin = self.is_true(&config, "round_robin_gradients")?;
        let stated =
            Stated { groups, frozen, buffers, experts, is_data_first, is_round_robin, steps, version };
        Ok(Model { stated, module, fragments, shared })
    }

    /// By layer, the number of experts; old versions have one number. Fails for experts of AutoEP, which are parts of larger parameters.
    fn experts(&mut self, top: &Fields<'a>) -> Result<Vec<u64>> {
        for key in ["ds_autoep_layers", "autoep_layers"] {
            let layers = top.get(key).map(|value| self.tree.get(value)).transpose()?;
            if matches!(layers, Some(Object::List(layers)) if !layers.is_empty()) {
                return Err(unsupported("experts of AutoEP are not joined"));
            }
        }
        let Some(value) = self.given(top, "num_experts")? else { return Ok(Vec::new()) };
        match self.tree.get(value)? {
            Object::Int(0) => Ok(Vec::new()),
            Object::Int(_) => Ok(vec![self.number(value)?]),
            _ => self.numbers(value).in_member("num_experts"),
        }
    }

    /// The weights of an expert.
    pub(super) fn expert(&mut self) -> Result<Vec<(&'a str, Stored)>> {
        self.tensors_of(None, self.tree.root())
    }

    /// The states of the optimizer.
    pub(super) fn optimizer(&mut self) -> Result<Optimizer<'a>> {
        let top = self.fields(self.tree.root())?;
        let groups = top.get("param_shapes").map(|value| self.groups(value)).transpose()?;
        let inner = self.fields(top.need("optimizer_state_dict")?).in_member("optimizer_state_dict")?;
        if self.given(&inner, "ds_zero_partition_groups")?.is_some() {
            return Err(unsupported("experts of AutoEP are divided over groups of ranks of their own"));
        }
        let stage =
            inner.get("zero_stage").map(|value| self.stage(value)).transpose().in_member("zero_stage")?;
        let is_sharded = stage == Some(3);
        let flats = if is_sharded { "fp32_flat_groups" } else { "single_partition_of_fp32_groups" };
        let flats = self.list(inner.need(flats)?).in_member(flats)?;
        let flats = flats.iter().map(|&flat| self.tensor(flat)).collect::<Result<Vec<_>>>()?;
        let counts = inner.need("partition_count")?;
        let counts = match self.tree.get(counts)? {
            Object::Int(_) => vec![self.number(counts)?],
            _ => self.numbers(counts).in_member("partition_count")?,
        };
        let paddings = self.given(&inner, "group_paddings")?;
        let paddings = paddings.map(|value| self.numbers(value)).transpose().in_member("group_paddings")?;
        let after = match self.given(&inner, "param_alignment_paddings")? {
            Some(value) => {
                let lists = self.list(value)?;
                let lists = lists.iter().map(|&list| self.numbers(list)).collect::<Result<_>>();
                Some(lists.in_member("param_alignment_paddings")?)
            }
            None => None,
        };
        let mappings = match self.given(&inner, "param_slice_mappings")? {
            Some(value) => {
                let dicts = self.list(value)?;
                let dicts = dicts.iter().map(|&dict| self.mapping(dict)).collect::<Result<_>>();
                Some(dicts.in_member("param_slice_mappings")?)
            }
            None => None,
        };
        let state = if is_sharded { "optimizer_state_dict" } else { "base_optimizer_state" };
        let states = match self.given(&inner, state)? {
            Some(value) => self.states(value, flats.len()).in_member(state)?,
            None => vec![Vec::new(); flats.len()],
        };
        let version = top.get("ds_version").and_then(|value| self.text(value).ok());
        Ok(Optimizer { stage, counts, flats, paddings, after, mappings, states, groups, version })
    }

    /// The number of a stage, which some versions save as a member of an enum.
    fn stage(&self, value: Handle) -> Result<i64> {
        let stage = match self.tree.get(value)? {
            Object::Opaque { class, call, .. }
                if self.tree.name_of(class) == "deepspeed.runtime.zero.config.ZeroStageEnum" =>
            {
                match self.tree.get(call.args)? {
                    Object::Tuple(&[number]) => self.int(number)?,
                    _ => return Err(wrong("the stage is not a number")),
                }
            }
            _ => self.int(value)?,
        };
        match stage {
            1..=3 => Ok(stage),
            _ => Err(wrong(format!("{stage} is not a stage that divides the optimizer: 1, 2 or 3"))),
        }
    }

    /// The ranges of a rank's elements that parameters have.
    fn mapping(&mut self, value: Handle) -> Result<HashMap<&'a str, (u64, u64)>> {
        let mut found = HashMap::new();
        for (key, value) in self.pairs(value)? {
            let name = self.text(key)?;
            let Object::Opaque { class, call, .. } = self.tree.get(value)? else {
                return Err(wrong("a range of a parameter is not a fragment_address"));
            };
            let class = self.tree.name_of(class);
            let is_known = class.starts_with("deepspeed.") && class.ends_with(".fragment_address");
            let (true, &[state]) = (is_known, call.states) else {
                return Err(wrong(format!("a range of a parameter is of the class {class:?}")));
            };
            let fields = self.tree.attributes(state)?.unwrap_or_default();
            let (mut start, mut len) = (None, None);
            for &(key, value) in &fields {
                match self.text(key)? {
                    "start" => start = Some(self.number(value)?),
                    "numel" => len = Some(self.number(value)?),
                    key => return Err(wrong(format!("a range of a parameter has the field {key:?}"))),
                }
            }
            let (Some(start), Some(len)) = (start, len) else {
                return Err(wrong("a range of a parameter has not the fields start and numel"));
            };
            found.insert(name, (start, len));
        }
        Ok(found)
    }

    /// By group, the tensors of an optimizer's state: a state dict, or a list of the states of the groups.
    fn states(&mut self, value: Handle, groups: usize) -> Result<Vec<Vec<(&'a str, u32)>>> {
        let mut all = vec![Vec::new(); groups];
        let dicts: Vec<(u64, Handle)> = match self.tree.get(value)? {
            Object::Dict { .. } => {
                let top = self.fields(value)?;
                let Some(state) = top.get("state") else { return Ok(all) };
                let pairs = self.pairs(state)?;
                pairs.into_iter().map(|(key, value)| Ok((self.number(key)?, value))).collect::<Result<_>>()?
            }
            _ => (0..).zip(self.list(value)?).collect(),
        };
        for (group, dict) in dicts {
            let own = usize::try_from(group).ok().and_then(|group| all.get_mut(group));
            let Some(own) = own else {
                return Err(wrong(format!("the optimizer has a state {group}, and {groups} group(s)")));
            };
            for (key, value) in self.pairs(dict)? {
                if let (Object::Tensor(tensor), Ok(key)) = (self.tree.get(value)?, self.text(key)) {
                    own.push((key, tensor));
                    if own.len() > STATES_MAX {
                        return Err(wrong(format!(
                            "a group has more than {STATES_MAX} states of the optimizer"
                        )));
                    }
                }
            }
        }
        Ok(all)
    }

    /// The parameters by group, or of the only group.
    fn groups(&mut self, value: Handle) -> Result<Vec<Shapes<'a>>> {
        if let Object::Dict { .. } = self.tree.get(value)? {
            return Ok(vec![self.shapes(value).in_member("param_shapes")?]);
        }
        let groups = self.list(value).in_member("param_shapes")?;
        groups.iter().map(|&group| self.shapes(group).in_member("param_shapes")).collect()
    }

    fn shapes(&mut self, value: Handle) -> Result<Shapes<'a>> {
        let pairs = self.pairs(value)?;
        pairs.into_iter().map(|(name, shape)| Ok((self.text(name)?, self.shape(shape)?))).collect()
    }

    fn shape(&mut self, value: Handle) -> Result<Dims> {
        let sizes: Dims = self.numbers(value)?.into_iter().collect();
        Limits::check("rank", self.limits.rank.min(RANK_MAX), to_u64(sizes.len()))?;
        match numel(&sizes) {
            Some(_) => Ok(sizes),
            None => Err(wrong(format!("the elements of a shape {:?} do not fit 64 bits", &sizes[..]))),
        }
    }

    /// The tensors in a dict that is the value of a key of the root.
    fn tensors(&mut self, key: &str, value: Handle) -> Result<Vec<(&'a str, Stored)>> {
        self.tensors_of(self.key(key), value).in_member(key)
    }

    /// The tensors in a dict, which is the value of this key of the root, or the root.
    fn tensors_of(&mut self, key: Option<Handle>, value: Handle) -> Result<Vec<(&'a str, Stored)>> {
        let mut found = Vec::new();
        for (name, value) in self.pairs(value)? {
            if let Object::Tensor(tensor) = self.tree.get(value)? {
                let steps = key.into_iter().chain([name]).map(PathStep::Key).collect();
                found.push((self.text(name)?, Stored { tensor, path: steps }));
            }
        }
        Ok(found)
    }

    /// The key of the root that is this text.
    fn key(&self, text: &str) -> Option<Handle> {
        let Ok(Object::Dict { entries, .. }) = self.tree.get(self.tree.root()) else { return None };
        entries.iter().map(|&(key, _)| key).find(|&key| self.text(key).is_ok_and(|own| own == text))
    }

    /// The only tensor of a file of a universal checkpoint.
    pub(super) fn parameter(&mut self) -> Result<Stored> {
        let root = self.tree.root();
        if let Object::Tensor(tensor) = self.tree.get(root)? {
            return Ok(Stored { tensor, path: Box::default() });
        }
        let value = self.fields(root)?.need("param")?;
        let path = self.key("param").map(PathStep::Key).into_iter().collect();
        Ok(Stored { tensor: self.tensor(value).in_member("param")?, path })
    }

    fn fields(&mut self, dict: Handle) -> Result<Fields<'a>> {
        let pairs = self.pairs(dict)?;
        Ok(Fields(pairs.iter().filter_map(|&(key, value)| Some((self.text(key).ok()?, value))).collect()))
    }

    /// The dict that is the value of a key; one without keys where it is no dict.
    fn inner(&mut self, fields: &Fields<'a>, key: &str) -> Result<Fields<'a>> {
        match fields.get(key) {
            Some(value) if matches!(self.tree.get(value)?, Object::Dict { .. }) => self.fields(value),
            _ => Ok(Fields(HashMap::new())),
        }
    }

    fn is_true(&self, fields: &Fields<'a>, key: &str) -> Result<bool> {
        Ok(matches!(fields.get(key).map(|value| self.tree.get(value)).transpose()?, Some(Object::Bool(true))))
    }

    /// A value that is not None.
    fn given(&self, fields: &Fields<'a>, key: &str) -> Result<Option<Handle>> {
        let Some(value) = fields.get(key) else { return Ok(None) };
        Ok((!matches!(self.tree.get(value)?, Object::None)).then_some(value))
    }

    fn pairs(&mut self, value: Handle) -> Result<Vec<(Handle, Handle)>> {
        self.count(self.tree.weight(value))?;
        match self.tree.get(value)? {
            Object::Dict { entries, .. } => Ok(entries),
            _ => Err(wrong("a value is not a dict")),
        }
    }

    fn list(&mut self, value: Handle) -> Result<Vec<Handle>> {
        self.count(self.tree.weight(value))?;
        match self.tree.get(value)? {
            Object::List(items) => Ok(items.into_owned()),
            Object::Tuple(items) => Ok(items.to_vec()),
            _ => Err(wrong("a value is neither a list nor a tuple")),
        }
    }

    fn numbers(&mut self, value: Handle) -> Result<Vec<u64>> {
        self.list(value)?.iter().map(|&number| self.number(number)).collect()
    }

    fn text(&self, value: Handle) -> Result<&'a str> {
        match self.tree.get(value)? {
            Object::Str(text) => text.as_str().ok_or_else(|| wrong("a name is not valid Unicode")),
            _ => Err(wrong("a name is not a text")),
        }
    }

    fn int(&self, value: Handle) -> Result<i64> {
        match self.tree.get(value)? {
            Object::Int(number) => Ok(number),
            _ => Err(wrong("a value is not a number")),
        }
    }

    fn number(&self, value: Handle) -> Result<u64> {
        let number = self.int(value)?;
        u64::try_from(number).map_err(|_| wrong(format!("{number} is negative")))
    }

    fn tensor(&self, value: Handle) -> Result<u32> {
        match self.tree.get(value)? {
            Object::Tensor(tensor) => Ok(tensor),
            _ => Err(wrong("a value is not a tensor")),
        }
    }

    fn count(&mut self, count: u64) -> Result<()> {
        self.listed = self.listed.saturating_add(count);
        // A value that is listed once has a byte at least.
        if self.listed > self.tree.pickle_bytes() {
            return Err(wrong("the file has the same values in very many places"));
        }
        Limits::check("tensors", self.limits.tensors, self.listed)
    }
}
