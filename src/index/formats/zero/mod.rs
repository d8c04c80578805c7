//! A checkpoint of DeepSpeed ZeRO: the parameters and the states of the optimizer, which the files of all ranks have in partitions.
//!
//! Follows `deepspeed/runtime/engine.py`, `runtime/zero/stage_1_and_2.py`, `stage3.py`, `runtime/bf16_optimizer.py` and
//! `checkpoint/ds_to_universal.py` of DeepSpeed 0.5 to 0.19. Its own readers unpickle the files without restriction. Here the pickles are
//! read as any other, and numbers are taken of them: the partitions have to be the stated parameters exactly, and all files have to agree.

mod partitions;
mod states;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path as FilePath;
use std::sync::Arc;

pub use self::partitions::{Padding, Run, Wrong, flat, sharded};
use self::states::{Model, Optimizer, Reader, Shapes, Stored};
use crate::container::shards::{ZeroFile, ZeroPart};
use crate::error::{Code, Error, Result, ResultExt};
use crate::index::model::{Entry, Index, Options, Path, TensorRun};
use crate::index::pickled::Tree;
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::{to_u64, u32_to_usize};

/// A file of the checkpoint, as it was read by itself.
#[derive(Debug)]
pub struct ZeroInput<'a> {
    /// Which part it is.
    pub file: &'a ZeroFile,
    /// Its tensors.
    pub index: &'a Index,
    /// Its values.
    pub tree: &'a Tree,
    /// Its path, or a URL.
    pub path: Option<&'a FilePath>,
}

/// What the files are together.
#[derive(Debug)]
pub struct ZeroJoin {
    /// The tensors that several files have runs of, with their names.
    pub whole: Index,
    /// By file: the names of tensors that it has alone.
    pub kept: Vec<Vec<Entry>>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Where a tensor with a name is.
#[derive(Clone)]
enum Place {
    Whole(u32),
    Kept(usize, Stored),
}

/// The files of a rank of tensor parallelism: each with its number among all, in the order of the ranks of data parallelism.
#[derive(Default)]
struct Ranks<'a> {
    models: Vec<(usize, Model<'a>)>,
    optimizers: Vec<(usize, Optimizer<'a>)>,
}

/// Joins the files of a checkpoint. Fails where they are not one checkpoint, and where partitions are not the stated parameters.
pub fn join(inputs: &[ZeroInput<'_>], options: &Options) -> Result<ZeroJoin> {
    let Some(first) = inputs.first() else { return Err(Error::new(Code::ZeroState, "there are no files")) };
    let mut joining = Joining {
        inputs,
        options,
        out: ZeroJoin {
            whole: first.index.without_tensors(),
            kept: inputs.iter().map(|_| Vec::new()).collect(),
            notes: Vec::new(),
        },
        prefix: String::new(),
        places: HashMap::new(),
        name_bytes: 0,
        runs: 0,
    };
    if inputs.iter().any(|input| matches!(input.file.part, ZeroPart::Parameter { .. })) {
        joining.universal()?;
        return Ok(joining.out);
    }
    let mut ranks: BTreeMap<usize, Ranks<'_>> = BTreeMap::new();
    for (number, input) in inputs.iter().enumerate() {
        options.cancel.check()?;
        let own = ranks.entry(input.file.tensor_rank).or_default();
        let mut reader = Reader::new(input.tree, &options.limits);
        joining.at(number, check_name(input))?;
        match input.file.part {
            ZeroPart::Model(_) => own.models.push((number, joining.at(number, reader.model())?)),
            _ => own.optimizers.push((number, joining.at(number, reader.optimizer())?)),
        }
    }
    let count = ranks.len();
    for (rank, own) in ranks {
        if count > 1 {
            joining.prefix = format!("mp_rank_{rank:02}.");
        }
        joining.rank(&own)?;
    }
    if count > 1 {
        joining.out.notes.push(format!(
            "the {count} ranks of tensor parallelism are not joined, as their files do not say how: names begin with mp_rank_00. and so on"
        ));
    }
    Ok(joining.out)
}

/// Fails for a file that was renamed: an archive has the name that torch.save was given.
fn check_name(input: &ZeroInput<'_>) -> Result<()> {
    let member = input.index.storages.iter().find_map(|storage| storage.member_name());
    let Some(root) = member.as_deref().and_then(|member| member.split('/').next()) else { return Ok(()) };
    match ZeroFile::of_name(&format!("{root}.pt")) {
        Some(written) if written != *input.file => {
            let text = format!("the file was written as {root}.pt, and is of another rank by its name");
            Err(Error::new(Code::ZeroConflict, text))
        }
        _ => Ok(()),
    }
}

struct Joining<'a> {
    inputs: &'a [ZeroInput<'a>],
    options: &'a Options,
    out: ZeroJoin,
    /// What all names begin with.
    prefix: String,
    places: HashMap<Arc<str>, Place>,
    name_bytes: u64,
    runs: u64,
}

fn conflict(text: impl Into<String>) -> Error {
    Error::new(Code::ZeroConflict, text)
}

impl<'a> Joining<'a> {
    /// Adds the path of a file to an error.
    fn at<T>(&self, number: usize, result: Result<T>) -> Result<T> {
        match self.inputs.get(number).and_then(|input| input.path) {
            Some(path) => result.in_file(path),
            None => result,
        }
    }

    /// Joins the files of a rank of tensor parallelism.
    fn rank(&mut self, ranks: &Ranks<'a>) -> Result<()> {
        let Ranks { models, optimizers } = ranks;
        let (Some((model_number, model)), Some((number, optimizer))) = (models.first(), optimizers.first())
        else {
            return Err(Error::new(
                Code::ZeroState,
                "there are no files of the model, or none of the optimizer",
            ));
        };
        for (other_number, other) in models {
            if other.stated != model.stated {
                let text = "the file states other parameters or another step than that of rank 0";
                return self.at(*other_number, Err(conflict(text)));
            }
        }
        for (other_number, other) in optimizers {
            let is_equal = (other.stage, &other.counts, &other.after, &other.groups, other.flats.len())
                == (
                    optimizer.stage,
                    &optimizer.counts,
                    &optimizer.after,
                    &optimizer.groups,
                    optimizer.flats.len(),
                )
                && other.version == optimizer.version;
            if !is_equal {
                let text = "the file states another stage, partition count or version than that of rank 0";
                return self.at(*other_number, Err(conflict(text)));
            }
        }
        self.at(*number, check_world(optimizer, optimizers.len()))?;
        let is_sharded = optimizer.stage == Some(3);
        let is_named_sharded = self
            .inputs
            .get(*model_number)
            .is_some_and(|input| matches!(input.file.part, ZeroPart::Model(Some(_))));
        if is_sharded != is_named_sharded {
            let text = "the optimizer is of stage 3 and the model is not, or the other way round";
            return self.at(*number, Err(conflict(text)));
        }
        let groups = model.stated.groups.as_ref().or(optimizer.groups.as_ref());
        let missing =
            || Error::new(Code::ZeroState, "the file has no param_shapes, and that of the optimizer neither");
        let groups = self.at(*model_number, groups.ok_or_else(missing))?;
        if groups.len() != optimizer.flats.len() {
            let text = format!(
                "the model has {} group(s) of parameters, the optimizer {}",
                groups.len(),
                optimizer.flats.len()
            );
            // One dict over all groups was a defect of DeepSpeed up to 0.5.3.
            let code = if groups.len() == 1 { Code::ZeroUnsupported } else { Code::ZeroConflict };
            return self.at(*number, Err(Error::new(code, text)));
        }
        self.model(*model_number, model, is_sharded)?;
        let mut moments = Vec::new();
        for (group, shapes) in groups.iter().enumerate() {
            moments.push(self.group(group, shapes, optimizers, is_sharded)?);
        }
        self.frozen(models, is_sharded)?;
        self.shared(*model_number, model)?;
        for ((group, shapes), (runs, sizes)) in groups.iter().enumerate().zip(&moments) {
            self.states(group, shapes, optimizers, runs, sizes)?;
        }
        let stage =
            optimizer.stage.map_or("BF16_Optimizer".to_owned(), |stage| format!("ZeRO stage {stage}"));
        let weights = if is_sharded { "" } else { "; module. has the weights that the model computes with" };
        let world = optimizers.len();
        let note = format!(
            "this is a checkpoint of DeepSpeed ({stage}, {world} rank(s)): a parameter is the master weight of the optimizer, a buffer is as \
             it is in the file{weights}; optimizer. has the states of the optimizer"
        );
        if !self.out.notes.contains(&note) {
            self.out.notes.push(note);
        }
        Ok(())
    }

    /// Adds the buffers, and the weights of the model where it has them whole.
    fn model(&mut self, number: usize, model: &Model<'a>, is_sharded: bool) -> Result<()> {
        for (name, stored, is_buffer) in &model.module {
            if *is_buffer {
                self.add((*name).to_owned(), Place::Kept(number, stored.clone()), number)?;
            } else if !is_sharded {
                self.add(format!("module.{name}"), Place::Kept(number, stored.clone()), number)?;
            }
        }
        Ok(())
    }

    /// Adds the parameters of a group. Returns the runs of each, and the elements of each rank with its padding.
    fn group(
        &mut self,
        group: usize,
        shapes: &Shapes<'a>,
        optimizers: &[(usize, Optimizer<'a>)],
        is_sharded: bool,
    ) -> Result<(Vec<Vec<Run>>, Vec<u64>)> {
        self.options.cancel.check()?;
        let mut flats = Vec::new();
        for (number, optimizer) in optimizers {
            let flat = optimizer.flats.get(group).copied().unwrap_or(u32::MAX);
            let len = self.flat_len(*number, flat);
            let len = len
                .ok_or_else(|| Error::new(Code::ZeroState, "a partition is not a flat tensor with elements"));
            flats.push((*number, flat, self.at(*number, len)?));
        }
        let lens: Vec<u64> = flats.iter().map(|&(_, _, len)| len).collect();
        let numels: Vec<u64> = shapes.iter().map(|(_, shape)| numel(shape).unwrap_or(u64::MAX)).collect();
        let found = match is_sharded {
            true => sharded(&numels, &lens).map(|runs| (runs, lens.clone())),
            false => {
                let parameters = self.with_paddings(group, &numels, optimizers)?;
                let stated = |(_, optimizer): &(usize, Optimizer<'_>)| {
                    optimizer
                        .paddings
                        .as_ref()
                        .map(|paddings| paddings.get(group).copied().unwrap_or(u64::MAX))
                };
                let by_rank: Option<Vec<u64>> = optimizers.iter().map(stated).collect();
                let is_stored = optimizers.iter().all(|(_, optimizer)| optimizer.stage.is_none());
                let padding = Padding { by_rank: by_rank.as_deref(), is_stored };
                flat(&parameters, &lens, padding).map(|(runs, size)| (runs, vec![size; lens.len()]))
            }
        };
        let (runs, sizes) = match found {
            Ok(found) => found,
            Err(Wrong { rank, text }) => {
                let number = optimizers.get(rank).map_or(0, |(number, _)| *number);
                let error = Error::new(Code::ZeroPartition, format!("group {group}: {text}"));
                return self.at(number, Err(error));
            }
        };
        if !is_sharded {
            self.check_mappings(group, shapes, &runs, optimizers)?;
        }
        for ((name, shape), runs) in shapes.iter().zip(&runs) {
            let whole = self.whole(shape, runs, &flats).in_member(name)?;
            let number = flats.first().map_or(0, |&(number, _, _)| number);
            self.add((*name).to_owned(), Place::Whole(whole), number)?;
        }
        Ok((runs, sizes))
    }

    /// The parameters of a group, each with the padding that follows.
    fn with_paddings(
        &self,
        group: usize,
        numels: &[u64],
        optimizers: &[(usize, Optimizer<'a>)],
    ) -> Result<Vec<(u64, u64)>> {
        let Some((number, optimizer)) = optimizers.first() else { return Ok(Vec::new()) };
        let Some(after) = &optimizer.after else {
            return Ok(numels.iter().map(|&numel| (numel, 0)).collect());
        };
        match after.get(group) {
            Some(after) if after.len() == numels.len() => {
                Ok(numels.iter().copied().zip(after.iter().copied()).collect())
            }
            _ => {
                let text = "param_alignment_paddings are not as many as the parameters of a group";
                self.at(*number, Err(Error::new(Code::ZeroState, text)))
            }
        }
    }

    /// Fails where a rank states other ranges of its elements for the parameters than the shapes do.
    fn check_mappings(
        &self,
        group: usize,
        shapes: &Shapes<'a>,
        runs: &[Vec<Run>],
        optimizers: &[(usize, Optimizer<'a>)],
    ) -> Result<()> {
        let mut own: Vec<HashMap<&str, (u64, u64)>> = optimizers.iter().map(|_| HashMap::new()).collect();
        for ((name, _), runs) in shapes.iter().zip(runs) {
            for run in runs {
                if let Some(own) = own.get_mut(run.rank) {
                    own.insert(name, (run.start, run.len));
                }
            }
        }
        for ((number, optimizer), own) in optimizers.iter().zip(&own) {
            let Some(mappings) = &optimizer.mappings else { continue };
            let Some(stated) = mappings.get(group) else {
                let text = "param_slice_mappings are not as many as the groups";
                return self.at(*number, Err(Error::new(Code::ZeroState, text)));
            };
            let differs = |name: &&str| own.get(*name) != stated.get(*name);
            if let Some(name) = own.keys().chain(stated.keys()).copied().filter(differs).min() {
                let text =
                    "param_slice_mappings of a rank state another range than the shapes of all parameters do";
                return self.at(*number, Err(conflict(text).in_member(name)));
            }
        }
        Ok(())
    }

    /// Adds the states of the optimizer for the parameters of a group.
    fn states(
        &mut self,
        group: usize,
        shapes: &Shapes<'a>,
        optimizers: &[(usize, Optimizer<'a>)],
        runs: &[Vec<Run>],
        sizes: &[u64],
    ) -> Result<()> {
        let Some(keys) = optimizers.first().and_then(|(_, optimizer)| optimizer.states.get(group)) else {
            return Ok(());
        };
        for &(key, _) in keys {
            self.options.cancel.check()?;
            let mut flats = Vec::new();
            let mut is_flat = true;
            for ((number, optimizer), &size) in optimizers.iter().zip(sizes) {
                let mut states = optimizer.states.get(group).into_iter().flatten();
                let Some(&(_, tensor)) = states.find(|(own, _)| *own == key) else {
                    let text = format!("the optimizer has no state {key:?}, which that of rank 0 has");
                    return self.at(*number, Err(conflict(text)));
                };
                let len = self.flat_len(*number, tensor);
                let flat = optimizer.flats.get(group).and_then(|&flat| self.flat_len(*number, flat));
                is_flat &= len.is_some() && (len == flat || len == Some(size));
                flats.push((*number, tensor, len.unwrap_or(0)));
            }
            if !is_flat {
                let is_scalar =
                    flats.first().is_some_and(|&(number, tensor, _)| self.is_single(number, tensor));
                let note = format!(
                    "the optimizer's state {key:?} is not one number for each element, and has no name"
                );
                if !is_scalar && !self.out.notes.contains(&note) {
                    self.out.notes.push(note);
                }
                continue;
            }
            for ((name, shape), runs) in shapes.iter().zip(runs) {
                let whole = self.whole(shape, runs, &flats).in_member(name)?;
                let number = flats.first().map_or(0, |&(number, _, _)| number);
                self.add(format!("optimizer.state.{name}.{key}"), Place::Whole(whole), number)?;
            }
        }
        Ok(())
    }

    /// Adds the parameters that are not trained.
    fn frozen(&mut self, models: &[(usize, Model<'a>)], is_sharded: bool) -> Result<()> {
        let Some((first, model)) = models.first() else { return Ok(()) };
        for (name, shape) in &model.stated.frozen {
            let wrong = |text: String| Err(Error::new(Code::ZeroPartition, text).in_member(name));
            let mut flats = Vec::new();
            for (number, other) in models {
                let Some(stored) = other.fragments.get(name) else {
                    return self.at(
                        *number,
                        wrong("the file lacks a parameter that it states as frozen".to_owned()),
                    );
                };
                flats.push((
                    *number,
                    stored.tensor,
                    self.flat_len(*number, stored.tensor).unwrap_or(u64::MAX),
                ));
            }
            if !is_sharded {
                let stored = model.fragments.get(name).cloned();
                let own = stored.as_ref().and_then(|stored| self.tensor_shape(*first, stored.tensor));
                let (Some(stored), true) = (stored, own == Some(shape)) else {
                    let text =
                        format!("a frozen parameter has not the shape {:?} that is stated", &shape[..]);
                    return self.at(*first, wrong(text));
                };
                self.add((*name).to_owned(), Place::Kept(*first, stored), *first)?;
                continue;
            }
            let lens: Vec<u64> = flats.iter().map(|&(_, _, len)| len).collect();
            let place = match sharded(&[numel(shape).unwrap_or(u64::MAX)], &lens) {
                Ok(runs) => {
                    self.whole(shape, runs.first().map_or(&[], |runs| &runs[..]), &flats).in_member(name)?
                }
                Err(Wrong { rank, text }) => {
                    return self.at(models.get(rank).map_or(*first, |(number, _)| *number), wrong(text));
                }
            };
            self.add((*name).to_owned(), Place::Whole(place), *first)?;
        }
        Ok(())
    }

    /// Adds the names that are tied to others.
    fn shared(&mut self, number: usize, model: &Model<'a>) -> Result<()> {
        for (name, target) in &model.shared {
            let Some(place) = self.places.get(&*format!("{}{target}", self.prefix)).cloned() else {
                let note =
                    format!("{name:?} has no tensor: it is tied to {target:?}, which the files do not have");
                self.out.notes.push(note);
                continue;
            };
            self.add((*name).to_owned(), place, number)?;
        }
        Ok(())
    }

    /// A universal checkpoint: a file for each state of each parameter.
    fn universal(&mut self) -> Result<()> {
        let inputs = self.inputs;
        let mut shapes: HashMap<&str, Dims> = HashMap::new();
        let mut all = Vec::new();
        for (number, input) in inputs.iter().enumerate() {
            let ZeroPart::Parameter { name, state } = &input.file.part else { continue };
            self.options.cancel.check()?;
            let stored = self.at(number, Reader::new(input.tree, &self.options.limits).parameter())?;
            let shape = self.tensor_shape(number, stored.tensor).cloned().unwrap_or_default();
            if state == "fp32" {
                shapes.insert(name, shape.clone());
            }
            all.push((number, name, state, stored, shape));
        }
        for (number, name, state, stored, shape) in all {
            let Some(own) = shapes.get(&name[..]) else {
                let text = format!("the parameter {name:?} has a state {state:?}, and no fp32.pt");
                return self.at(number, Err(Error::new(Code::ShardMissing, text)));
            };
            if *own != shape && !shape.is_empty() {
                let text = format!("a state is of shape {:?}, its parameter of {:?}", &shape[..], &own[..]);
                return self.at(number, Err(Error::new(Code::ZeroPartition, text)));
            }
            let full = match &state[..] {
                "fp32" => name.clone(),
                state => format!("optimizer.state.{name}.{state}"),
            };
            self.add(full, Place::Kept(number, stored), number)?;
        }
        let model = inputs.iter().position(|input| matches!(input.file.part, ZeroPart::Model(_)));
        if let Some((number, input)) = model.and_then(|number| Some((number, inputs.get(number)?))) {
            let model = self.at(number, Reader::new(input.tree, &self.options.limits).model())?;
            for (name, _) in model.stated.groups.iter().flatten().flatten() {
                if !shapes.contains_key(name) {
                    let text = format!("the model has the parameter {name:?}, which has no folder");
                    return self.at(number, Err(Error::new(Code::ShardMissing, text)));
                }
            }
            self.model(number, &model, matches!(input.file.part, ZeroPart::Model(Some(_))))?;
            let whole = |name: &&(&str, Dims)| model.fragments.contains_key(name.0);
            if model.stated.frozen.iter().all(|frozen| whole(&frozen)) {
                self.frozen(&[(number, model)], matches!(input.file.part, ZeroPart::Model(Some(_))))?;
            }
        }
        self.out.notes.push(
            "this is a universal checkpoint of DeepSpeed: a parameter is its fp32.pt; optimizer. has the states of the optimizer"
                .to_owned(),
        );
        Ok(())
    }

    /// The tensor of runs, each of a rank's flat tensor: the number of its file, its own, and its elements.
    fn whole(&mut self, shape: &Dims, runs: &[Run], flats: &[(usize, u32, u64)]) -> Result<u32> {
        self.runs = self.runs.saturating_add(to_u64(runs.len())).saturating_add(1);
        Limits::check("tensors", self.options.limits.tensors, self.runs)?;
        let tensor = |&(number, tensor, _): &(usize, u32, u64)| {
            self.inputs.get(number)?.index.tensors.get(u32_to_usize(tensor))
        };
        let dtype = flats.first().and_then(tensor).map(|flat| flat.dtype());
        let dtype = dtype.ok_or_else(|| Error::new(Code::InternalError, "a partition has no tensor"))?;
        if let Some(other) =
            flats.iter().filter(|flat| tensor(flat).is_some_and(|flat| flat.dtype() != dtype)).next()
        {
            return self
                .at(other.0, Err(conflict(format!("the partition is not {dtype}, as that of rank 0 is"))));
        }
        let mut joined = Vec::with_capacity(runs.len());
        for &Run { rank, start, len } in runs {
            let found =
                flats.get(rank).and_then(|&(number, tensor, _)| Some((self.inputs.get(number)?, tensor)));
            let (input, tensor) =
                found.ok_or_else(|| Error::new(Code::InternalError, "a run is of a rank without a file"))?;
            joined.push(TensorRun { index: input.index, tensor, start, len });
        }
        self.out.whole.join_runs(dtype, shape.clone(), &joined)
    }

    /// Gives a tensor a name. Fails for one that another tensor has.
    fn add(&mut self, name: String, place: Place, number: usize) -> Result<()> {
        let name: Arc<str> = Arc::from(format!("{}{name}", self.prefix));
        self.name_bytes = self.name_bytes.saturating_add(to_u64(name.len()));
        Limits::check("name_bytes_total", self.options.limits.name_bytes_total, self.name_bytes)?;
        if self.places.insert(name.clone(), place.clone()).is_some() {
            let text = "two tensors of the checkpoint have this name";
            return self.at(number, Err(conflict(text).in_member(&name)));
        }
        match place {
            Place::Whole(tensor) => self.out.whole.entries.push(Entry { name, path: Path::Name, tensor }),
            Place::Kept(number, Stored { tensor, path }) => {
                if let Some(kept) = self.out.kept.get_mut(number) {
                    kept.push(Entry { name, path: Path::Steps(path), tensor });
                }
            }
        }
        Ok(())
    }

    fn tensor_shape(&self, number: usize, tensor: u32) -> Option<&'a Dims> {
        Some(&self.inputs.get(number)?.index.tensors.get(u32_to_usize(tensor))?.layout().shape)
    }

    /// The elements of a flat tensor; `None` for a tensor that is none, or has no elements in the file.
    fn flat_len(&self, number: usize, tensor: u32) -> Option<u64> {
        let found = self.inputs.get(number)?.index.tensors.get(u32_to_usize(tensor))?;
        match &found.layout().shape[..] {
            &[len] if !found.flags.meta => Some(len),
            _ => None,
        }
    }

    fn is_single(&self, number: usize, tensor: u32) -> bool {
        self.tensor_shape(number, tensor).is_some_and(|shape| numel(shape) == Some(1))
    }
}

/// Fails unless the files are those of all ranks that the optimizer's parameters are divided between.
fn check_world(optimizer: &Optimizer<'_>, files: usize) -> Result<()> {
    let world = to_u64(files);
    let &count = optimizer.counts.iter().max().unwrap_or(&world);
    if optimizer.counts.iter().any(|&other| other != count) {
        let text =
            "groups of parameters are divided between different numbers of ranks, as those of experts are";
        return Err(Error::new(Code::ZeroUnsupported, text));
    }
    match count.cmp(&world) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => {
            let text =
                format!("the optimizer is divided between {count} ranks, and {world} have a file here");
            Err(Error::new(Code::ShardMissing, text))
        }
        std::cmp::Ordering::Less => Err(conflict(format!(
            "the optimizer is divided between {count} rank(s), and {world} have a file here"
        ))),
    }
}
