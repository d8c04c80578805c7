//! The files of the ranks of data parallelism: what they have in partitions, and what each has whole.

use std::collections::{HashMap, HashSet};

use super::experts::{Layers, is_expert, sets};
use super::joining::{Joining, Place, Ranks, Whole, conflict};
use super::partitions::{Padding, Run, Wrong, flat, sharded};
use super::states::{Model, Optimizer, Shapes, Stated, unsupported};
use crate::container::shards::ZeroPart;
use crate::error::{Code, Error, Result, ResultExt, bail, error};
use crate::layout::numel;
use crate::num::to_u64;

impl<'a> Joining<'a> {
    /// Joins the files of a rank of tensor parallelism.
    pub(super) fn rank(&mut self, ranks: &Ranks<'a>) -> Result<()> {
        let Ranks { models, optimizers, experts } = ranks;
        let (Some((model_number, model)), Some((number, optimizer))) = (models.first(), optimizers.first())
        else {
            bail!(Code::ZeroState, "there are no files of the model, or none of the optimizer");
        };
        self.check_models(models)?;
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
        let is_sharded = optimizer.stage == Some(3);
        let has_experts = !model.stated.experts.is_empty();
        if is_sharded && has_experts {
            let error = unsupported("experts in stage 3 are not joined");
            return self.at(*model_number, Err(error));
        }
        self.at(*number, check_world(optimizer, optimizers.len(), has_experts))?;
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
        let names = groups.iter().flatten().map(|(name, _)| *name);
        self.set_heads(names.chain(model.names()));
        self.model(*model_number, model, is_sharded)?;
        let names = groups.iter().flatten().chain(&model.stated.frozen).map(|(name, _)| *name);
        let names = names.filter(|_| has_experts);
        let mut layers = self.at(*model_number, Layers::of(names))?;
        let (mut wholes, mut sizes) = (Vec::new(), Vec::new());
        for (group, shapes) in groups.iter().enumerate() {
            let (own, size) = self.group(group, shapes, optimizers, &model.stated, &mut layers)?;
            wholes.push(own);
            sizes.push(size);
        }
        self.frozen(models, is_sharded)?;
        self.others(*model_number, model, is_sharded)?;
        self.experts((*model_number, model), experts, &wholes, &layers)?;
        self.shared(*model_number, model)?;
        for (group, (wholes, sizes)) in wholes.iter().zip(&sizes).enumerate() {
            self.states(group, wholes, optimizers, sizes)?;
        }
        let stage =
            optimizer.stage.map_or("BF16_Optimizer".to_owned(), |stage| format!("ZeRO stage {stage}"));
        let [weights, states] = &self.heads;
        let weights = match is_sharded {
            true => String::new(),
            false => format!("; {weights} has the weights that the model computes with"),
        };
        let world = optimizers.len();
        let note = format!(
            "this is a checkpoint of DeepSpeed ({stage}, {world} rank(s)): a parameter of the optimizer is its master weight, other tensors \
             are as they are in the files{weights}; {states} has the states of the optimizer"
        );
        if !self.out.notes.contains(&note) {
            self.out.notes.push(note);
        }
        Ok(())
    }

    /// Fails for files of the model that do not agree.
    pub(super) fn check_models(&self, models: &[(usize, Model<'a>)]) -> Result<()> {
        let differs = |(_, other): &&(usize, Model<'_>)| {
            models.first().is_some_and(|(_, first)| other.stated != first.stated)
        };
        match models.iter().find(differs) {
            None => Ok(()),
            Some((number, _)) => {
                let text = "the file states other parameters or another step than that of rank 0";
                self.at(*number, Err(conflict(text)))
            }
        }
    }

    /// Adds the buffers, and the weights of the model where it has them whole.
    pub(super) fn model(&mut self, number: usize, model: &Model<'a>, is_sharded: bool) -> Result<()> {
        for (name, stored, is_buffer) in &model.module {
            if *is_buffer {
                self.add((*name).to_owned(), Place::Kept(number, stored.clone()), number)?;
            } else if !is_sharded {
                self.add(self.weight_name(name), Place::Kept(number, stored.clone()), number)?;
            }
        }
        Ok(())
    }

    /// Adds the parameters of a group. Returns them, and the elements of each rank with its padding.
    fn group<'s>(
        &mut self,
        group: usize,
        shapes: &'s Shapes<'a>,
        optimizers: &[(usize, Optimizer<'a>)],
        stated: &Stated<'_>,
        layers: &mut Layers<'a>,
    ) -> Result<(Vec<Whole<'s>>, Vec<u64>)> {
        self.options.cancel.check()?;
        let Some((first, optimizer)) = optimizers.first() else { return Ok((Vec::new(), Vec::new())) };
        let is_sharded = optimizer.stage == Some(3);
        let mut flats = Vec::new();
        for (number, optimizer) in optimizers {
            let flat = optimizer.flats.get(group).copied().unwrap_or(u32::MAX);
            let len = self.flat_len(*number, flat);
            let len = len
                .ok_or_else(|| Error::new(Code::ZeroState, "a partition is not a flat tensor with elements"));
            flats.push((*number, flat, self.at(*number, len)?));
        }
        let numels: Vec<u64> = shapes.iter().map(|(_, shape)| numel(shape).unwrap_or(u64::MAX)).collect();
        let count = optimizer.counts.get(group).or(optimizer.counts.first());
        let count = count.map_or(optimizers.len(), |&count| usize::try_from(count).unwrap_or(usize::MAX));
        let sets = sets(optimizers.len(), count, stated.is_data_first).ok_or_else(|| {
            let world = optimizers.len();
            conflict(format!(
                "group {group} is divided between {count} ranks, of which {world} are no multiple"
            ))
        });
        let sets = self.at(*first, sets)?;
        let (mut wholes, mut sizes) = (Vec::new(), vec![0; optimizers.len()]);
        for (set, ranks) in sets.iter().enumerate() {
            let own: Vec<&(usize, Optimizer<'_>)> =
                ranks.iter().filter_map(|&rank| optimizers.get(rank)).collect();
            let lens: Vec<u64> = ranks.iter().filter_map(|&rank| Some(flats.get(rank)?.2)).collect();
            let found = match is_sharded {
                true => sharded(&numels, &lens).map(|runs| (runs, lens.clone())),
                false => {
                    let parameters = self.with_paddings(group, &numels, optimizers)?;
                    let stated = |(_, optimizer): &&(usize, Optimizer<'_>)| {
                        let paddings = optimizer.paddings.as_ref();
                        paddings.map(|paddings| paddings.get(group).copied().unwrap_or(u64::MAX))
                    };
                    let by_rank: Option<Vec<u64>> = own.iter().map(stated).collect();
                    let is_stored = own.iter().all(|(_, optimizer)| optimizer.stage.is_none());
                    let padding = Padding { by_rank: by_rank.as_deref(), is_stored };
                    flat(&parameters, &lens, padding).map(|(runs, size)| (runs, vec![size; lens.len()]))
                }
            };
            let (runs, own_sizes) = match found {
                Ok(found) => found,
                Err(Wrong { rank, text }) => {
                    let number = own.get(rank).map_or(*first, |(number, _)| *number);
                    let error = error!(Code::ZeroPartition, "group {group}: {text}");
                    return self.at(number, Err(error));
                }
            };
            for (&rank, size) in ranks.iter().zip(own_sizes) {
                sizes.iter_mut().skip(rank).take(1).for_each(|own| *own = size);
            }
            if !is_sharded && !stated.is_round_robin {
                self.check_mappings(group, shapes, &runs, &own)?;
            }
            for ((name, shape), mut runs) in shapes.iter().zip(runs) {
                for run in &mut runs {
                    run.rank = ranks.get(run.rank).copied().unwrap_or(usize::MAX);
                }
                let name = self.at(*first, layers.global(name, set, sets.len()))?;
                let whole = self.whole(shape, &runs, &flats).in_member(&name)?;
                self.add(name.clone(), Place::Whole(whole), *first)?;
                wholes.push(Whole { name, shape, runs });
            }
        }
        Ok((wholes, sizes))
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
        optimizers: &[&(usize, Optimizer<'_>)],
    ) -> Result<()> {
        let mut own: Vec<HashMap<&str, (u64, u64)>> = optimizers.iter().map(|_| HashMap::new()).collect();
        for ((name, _), runs) in shapes.iter().zip(runs) {
            for run in runs {
                if let Some(own) = own.get_mut(run.rank) {
                    own.insert(name, (run.start, run.len));
                }
            }
        }
        for (&(number, optimizer), own) in optimizers.iter().zip(&own) {
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
        wholes: &[Whole<'_>],
        optimizers: &[(usize, Optimizer<'a>)],
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
            for Whole { name, shape, runs } in wholes {
                let whole = self.whole(shape, runs, &flats).in_member(name)?;
                let number = flats.first().map_or(0, |&(number, _, _)| number);
                self.add(self.state_name(name, key), Place::Whole(whole), number)?;
            }
        }
        Ok(())
    }

    /// Adds the parameters that are not trained.
    pub(super) fn frozen(&mut self, models: &[(usize, Model<'a>)], is_sharded: bool) -> Result<()> {
        let Some((first, model)) = models.first() else { return Ok(()) };
        for (name, shape) in &model.stated.frozen {
            // The files of experts have those of all ranks.
            if !model.stated.experts.is_empty() && is_expert(name) {
                continue;
            }
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

    /// Adds the parameters that neither the optimizer has nor the file states as frozen, as stage 1 states none: the weights of the model.
    pub(super) fn others(&mut self, number: usize, model: &Model<'a>, is_sharded: bool) -> Result<()> {
        let shared: HashSet<&str> = model.shared.iter().map(|(name, _)| *name).collect();
        let mut lost = Vec::new();
        for (name, stored, is_buffer) in &model.module {
            if *is_buffer || shared.contains(name) || self.has(name) {
                continue;
            }
            match is_sharded {
                true => lost.push(*name),
                false => self.add((*name).to_owned(), Place::Kept(number, stored.clone()), number)?,
            }
        }
        if let Some(first) = lost.first() {
            let count = lost.len();
            let note = format!(
                "the files have no elements of {count} parameter(s) outside the optimizer, such as {first:?}"
            );
            self.out.notes.push(note);
        }
        Ok(())
    }

    /// Adds the names that are tied to others.
    pub(super) fn shared(&mut self, number: usize, model: &Model<'a>) -> Result<()> {
        for (name, target) in &model.shared {
            if !model.stated.experts.is_empty() && (is_expert(name) || is_expert(target)) {
                let error = unsupported("parameters of experts are tied").in_member(name);
                return self.at(number, Err(error));
            }
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
}

/// Fails unless the files are those of all ranks that the optimizer's parameters are divided between.
fn check_world(optimizer: &Optimizer<'_>, files: usize, has_experts: bool) -> Result<()> {
    let world = to_u64(files);
    let &count = optimizer.counts.iter().max().unwrap_or(&world);
    if optimizer.counts.len() > 1 && optimizer.counts.len() != optimizer.flats.len() {
        let (counts, groups) = (optimizer.counts.len(), optimizer.flats.len());
        return Err(conflict(format!(
            "the file states {counts} numbers of ranks, and has {groups} group(s)"
        )));
    }
    if !has_experts && optimizer.counts.iter().any(|&other| other != count) {
        let text = "groups of parameters are divided between different numbers of ranks, and not as experts";
        return Err(Error::new(Code::ZeroUnsupported, text));
    }
    match count.cmp(&world) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(error!(
            Code::ShardMissing,
            "the optimizer is divided between {count} ranks, and {world} have a file here"
        )),
        std::cmp::Ordering::Less => Err(conflict(format!(
            "the optimizer is divided between {count} rank(s), and {world} have a file here"
        ))),
    }
}
