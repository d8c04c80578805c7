//! Experts: which ranks have which, and the files with their weights.
//!
//! Follows `deepspeed/runtime/engine.py: _save_moe_checkpoint` and `deepspeed/utils/groups.py: _create_expert_and_data_parallel`. A rank
//! numbers its own experts from 0 on, in the names of its optimizer. The files of experts, and names here, have the numbers of all ranks.

use std::collections::{BTreeMap, HashMap};
use std::mem;

use super::joining::{ExpertFile, Joining, Place, Ranks, Whole, conflict};
use super::states::{Model, Optimizer, Stated, unsupported, wrong};
use crate::error::{Code, Error, Result, bail};
use crate::layout::Dims;
use crate::num::to_u64;

/// What stands before the number of an expert.
const LIST: &str = ".deepspeed_moe.experts.deepspeed_experts.";

/// The parts of the name of an expert's parameter.
struct ExpertName<'a> {
    /// The layer.
    head: &'a str,
    expert: usize,
    tail: &'a str,
}

impl<'a> ExpertName<'a> {
    fn parse(name: &'a str) -> Option<ExpertName<'a>> {
        let (head, rest) = name.rsplit_once(LIST)?;
        let end = rest.find('.').unwrap_or(rest.len());
        let (expert, tail) = rest.split_at_checked(end)?;
        let is_plain = expert == "0" || !expert.starts_with(['0', '+']);
        Some(ExpertName { head, expert: expert.parse().ok().filter(|_| is_plain)?, tail })
    }
}

/// Whether a parameter is that of an expert.
pub(super) fn is_expert(name: &str) -> bool {
    ExpertName::parse(name).is_some()
}

/// The experts of a layer.
#[derive(Default)]
struct Layer {
    /// Those that a rank has; their numbers are one after another from 0 on.
    local: usize,
    /// How many sets of ranks have different ones. `None` where no group of the optimizer has them.
    sets: Option<usize>,
}

/// The experts of all layers, by what the names of their parameters begin with.
#[derive(Default)]
pub(super) struct Layers<'a>(HashMap<&'a str, Layer>);

impl<'a> Layers<'a> {
    /// The experts that the parameters of a rank are of. Fails where their numbers have gaps.
    pub(super) fn of(names: impl Iterator<Item = &'a str>) -> Result<Layers<'a>> {
        let mut numbers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for name in names.filter_map(ExpertName::parse) {
            numbers.entry(name.head).or_default().push(name.expert);
        }
        let mut layers = HashMap::new();
        for (head, mut own) in numbers {
            own.sort_unstable();
            own.dedup();
            if own.last().is_some_and(|&last| last >= own.len()) {
                return Err(wrong("the numbers of a rank's experts have gaps").in_member(head));
            }
            layers.insert(head, Layer { local: own.len(), sets: None });
        }
        Ok(Layers(layers))
    }

    /// The name of a parameter of set number `set` of `sets`.
    pub(super) fn global(&mut self, name: &str, set: usize, sets: usize) -> Result<String> {
        let found = ExpertName::parse(name);
        let layer = found.as_ref().and_then(|found| self.0.get_mut(found.head));
        let (Some(ExpertName { head, expert, tail }), Some(layer)) = (found, layer) else {
            if sets == 1 {
                return Ok(name.to_owned());
            }
            let text = "a parameter that is of no expert is divided between fewer ranks than others";
            return Err(unsupported(text).in_member(name));
        };
        if *layer.sets.get_or_insert(sets) != sets {
            let text = "parameters of an expert are divided between different numbers of ranks";
            return Err(conflict(text).in_member(name));
        }
        let expert = set.saturating_mul(layer.local).saturating_add(expert);
        Ok(format!("{head}{LIST}{expert}{tail}"))
    }
}

/// The ranks of each set that has the same experts, of which each is divided between `count` ranks.
pub(super) fn sets(world: usize, count: usize, is_data_first: bool) -> Option<Vec<Vec<usize>>> {
    let sets = world.checked_div(count).filter(|sets| sets.checked_mul(count) == Some(world))?;
    let rank = |set: usize, own: usize| match is_data_first {
        true => set.saturating_mul(count).saturating_add(own),
        false => own.saturating_mul(sets).saturating_add(set),
    };
    Some((0..sets).map(|set| (0..count).map(|own| rank(set, own)).collect()).collect())
}

impl Ranks<'_> {
    /// Puts each rank's groups into the order that the model states: DeepSpeed orders groups of experts by the hashes of a process. That
    /// the order is right is proved as all partitions are.
    pub(super) fn order_groups(&mut self) {
        let Some((_, model)) = self.models.first() else { return };
        let Some(groups) = model.stated.groups.as_ref().filter(|_| !model.stated.experts.is_empty()) else {
            return;
        };
        let groups = groups.iter().enumerate();
        let groups: HashMap<&str, usize> =
            groups.flat_map(|(group, shapes)| shapes.iter().map(move |(name, _)| (*name, group))).collect();
        for (_, optimizer) in &mut self.optimizers {
            optimizer.order_groups(&groups);
        }
    }
}

impl Optimizer<'_> {
    /// Puts the groups where the names in `param_slice_mappings` say, and those without elements in this rank where others leave room.
    fn order_groups(&mut self, groups: &HashMap<&str, usize>) {
        let Some(mappings) = &self.mappings else { return };
        let count = mappings.len();
        if self.counts.len() != count || self.flats.len() != count {
            return;
        }
        let (mut order, mut empty) = (vec![None; count], Vec::new());
        for (own, names) in mappings.iter().enumerate() {
            let group =
                names.keys().min().map(|name| groups.get(name).and_then(|&group| order.get_mut(group)));
            match group {
                None => empty.push(own),
                Some(Some(place)) if place.is_none() => *place = Some(own),
                Some(_) => return,
            }
        }
        let mut empty = empty.into_iter();
        let order: Vec<usize> = order.into_iter().filter_map(|own| own.or_else(|| empty.next())).collect();
        permute(&mut self.counts, &order);
        permute(&mut self.flats, &order);
        permute(&mut self.states, &order);
        self.paddings.iter_mut().for_each(|paddings| permute(paddings, &order));
        self.after.iter_mut().for_each(|after| permute(after, &order));
        self.mappings.iter_mut().for_each(|mappings| permute(mappings, &order));
    }
}

/// Puts the values at these places one after another.
fn permute<T: Default>(values: &mut Vec<T>, order: &[usize]) {
    if values.len() == order.len() {
        *values = order.iter().filter_map(|&own| values.get_mut(own).map(mem::take)).collect();
    }
}

impl<'a> Joining<'a> {
    /// Adds the weights in the files of experts. Fails unless those are the files of all experts, and have all parameters of experts that
    /// the optimizer has.
    pub(super) fn experts(
        &mut self,
        (number, model): (usize, &Model<'a>),
        files: &[ExpertFile<'a>],
        groups: &[Vec<Whole<'_>>],
        layers: &Layers<'a>,
    ) -> Result<()> {
        let stated = &model.stated;
        self.at(number, check_files(stated, files.iter().map(|file| (file.layer, file.expert)).collect()))?;
        if stated.experts.is_empty() {
            return Ok(());
        }
        let parameters = groups.iter().flatten().filter(|whole| is_expert(&whole.name));
        let mut left: BTreeMap<&str, &Dims> =
            parameters.map(|whole| (&whole.name[..], whole.shape)).collect();
        let frozen: HashMap<&str, &Dims> = stated.frozen.iter().map(|(name, shape)| (*name, shape)).collect();
        for file in files {
            for (name, stored) in &file.weights {
                let refuse = |error: Error| Err(error.in_member(name));
                let Some(found) = ExpertName::parse(name).filter(|found| found.expert == file.expert) else {
                    let text = "the file of an expert has a weight that is not of it";
                    return self.at(file.number, refuse(conflict(text)));
                };
                let layer = layers.0.get(found.head);
                let count = file.layer.and_then(|layer| stated.experts.get(layer));
                let count = count.or(stated.experts.iter().max()).copied().unwrap_or(0);
                if let Some(&Layer { local, sets: Some(sets) }) = layer
                    && to_u64(local.saturating_mul(sets)) != count
                {
                    let text =
                        format!("the ranks have {sets} times {local} expert(s) of a layer that has {count}");
                    return self.at(file.number, refuse(conflict(text)));
                }
                let local = found.expert.checked_rem(layer.map_or(0, |layer| layer.local));
                let local = local
                    .map(|expert| format!("{}{LIST}{expert}{}", found.head, found.tail))
                    .unwrap_or_default();
                let own = self.tensor_shape(file.number, stored.tensor);
                let whole = left.remove(name);
                let shape = whole.or_else(|| frozen.get(&local[..]).copied());
                if shape.is_some() && shape != own {
                    let text = "the weight of an expert is of another shape than its parameter";
                    return self.at(file.number, refuse(Error::new(Code::ZeroPartition, text)));
                }
                let place = Place::Kept(file.number, stored.clone());
                let is_buffer = stated.buffers.contains(&local[..]);
                if is_buffer || whole.is_none() {
                    self.add((*name).to_owned(), place.clone(), file.number)?;
                }
                if !is_buffer {
                    self.add(self.weight_name(name), place, file.number)?;
                }
            }
        }
        match left.into_keys().next() {
            None => Ok(()),
            Some(name) => {
                let text =
                    "the optimizer has a parameter of an expert, and no file of an expert has its weight";
                self.at(number, Err(conflict(text).in_member(name)))
            }
        }
    }
}

/// Fails unless every expert has its file.
fn check_files(stated: &Stated<'_>, mut files: Vec<(Option<usize>, usize)>) -> Result<()> {
    let is_old = files.iter().any(|(layer, _)| layer.is_none());
    let layers: Vec<(Option<usize>, u64)> = match is_old {
        true => vec![(None, stated.experts.iter().max().copied().unwrap_or(0))],
        false => stated.experts.iter().enumerate().map(|(layer, &count)| (Some(layer), count)).collect(),
    };
    files.sort_unstable();
    let mut rest = files.iter().copied().peekable();
    for (layer, count) in layers {
        for expert in 0..count {
            let found = rest.next_if(|&(own, found)| own == layer && to_u64(found) == expert);
            if found.is_none() {
                let layer = layer.map_or(String::new(), |layer| format!("layer_{layer}_"));
                bail!(
                    Code::ShardMissing,
                    "expert {expert} of {count} has no file: {layer}expert_{expert}_mp_rank_00_model_states.pt"
                );
            }
        }
    }
    match rest.next() {
        None => Ok(()),
        Some((_, expert)) => {
            Err(conflict(format!("there is a file of expert {expert}, and the model states no such expert")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_ranks_have_every_rank_once() {
        assert_eq!(sets(4, 2, false), Some(vec![vec![0, 2], vec![1, 3]]));
        assert_eq!(sets(4, 2, true), Some(vec![vec![0, 1], vec![2, 3]]));
        assert_eq!(sets(4, 4, false), Some(vec![vec![0, 1, 2, 3]]));
        assert_eq!((sets(4, 3, false), sets(4, 0, true)), (None, None));
    }

    #[test]
    fn names_get_the_numbers_of_all_ranks() {
        let own =
            ["a.deepspeed_moe.experts.deepspeed_experts.0.w", "a.deepspeed_moe.experts.deepspeed_experts.1"];
        let mut layers = Layers::of(own.into_iter()).unwrap();
        assert_eq!(layers.global(own[1], 2, 3).unwrap(), "a.deepspeed_moe.experts.deepspeed_experts.5");
        assert!(layers.global(own[0], 0, 1).is_err());
        assert!(layers.global("other", 0, 3).is_err());
        assert_eq!(layers.global("other", 0, 1).unwrap(), "other");
        assert!(Layers::of(own.into_iter().skip(1)).is_err());
        assert!(!is_expert("a.deepspeed_moe.experts.deepspeed_experts.01.w"));
    }
}
