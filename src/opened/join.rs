//! Joins the parts of tensors that several files of a checkpoint hold: those that the processes of a distributed program wrote.
//!
//! The parts of one name together have to be the whole tensor. Equal boxes are copies of each other (replicas), and so are whole
//! tensors of one name: the first file's is used, as torch.distributed.checkpoint saves one of them.
//!
//! The files of a checkpoint of DeepSpeed are joined by what they state.

use std::collections::{HashMap, HashSet};

use super::{Opened, Shard};
use crate::container::shards::ZeroFile;
use crate::error::{Code, Error, Result};
use crate::index::{self, Index, Options, TensorPart, ZeroInput, ZeroJoin};
use crate::layout::{Dims, numel};

/// What was joined.
#[derive(Debug)]
pub(crate) struct Joins {
    /// The number, in place of that of a file, of the index of the joined tensors.
    pub(crate) shard: u32,
    /// By file and tensor, for every part: the number of the joined tensor.
    pub(crate) wholes: HashMap<(u32, u32), u32>,
    /// By joined tensor: the first file that has a part of it.
    pub(crate) first_files: Vec<u32>,
    /// Names of whole tensors that several files have.
    pub(crate) copies: HashSet<String>,
    /// The number of parts that are copies of others.
    replicas: usize,
}

impl Joins {
    /// Joined tensors that have names and no parts with names, in the index of this number.
    pub(super) fn of_runs(shard: u32) -> Joins {
        Joins { shard, wholes: HashMap::new(), first_files: Vec::new(), copies: HashSet::new(), replicas: 0 }
    }

    /// A remark on what was taken for a copy; `None` where there are none.
    pub(crate) fn note(&self) -> Option<String> {
        let (tensors, parts) = (self.copies.len(), self.replicas);
        (tensors + parts > 0).then(|| {
            format!(
                "{tensors} tensor(s) and {parts} part(s) of tensors are in several of the files: the first file's \
                 are used, and were not compared with the others"
            )
        })
    }
}

/// A tensor of a file: the file's number, and the tensor's.
type Id = (u32, u32);

/// Joins the parts in these files; `None` where there are none. Fails where parts of one name are not one tensor.
pub(super) fn join(shards: &[Shard], options: &Options) -> Result<Option<(Index, Joins)>> {
    let Some(first) = shards.first().filter(|_| shards.iter().any(|shard| !shard.index.parts.is_empty()))
    else {
        return Ok(None);
    };
    let mut joins = Joins::of_runs(shards.len() as u32);
    let mut joined = first.index.without_tensors();
    // Names of the same parts are one tensor (tied weights).
    let mut by_parts: HashMap<Vec<(u32, u32, u64, Dims)>, u32> = HashMap::new();
    for (name, ids) in by_name(shards) {
        options.cancel.check()?;
        let in_context = |error: Error| {
            let file = ids.first().and_then(|&(shard, _)| shards[shard as usize].path.as_deref());
            let error = match error.code() {
                Code::DcpGrid => error.note("Give the files of all processes of one save, and no others."),
                _ => error,
            };
            let error = error.in_member(name);
            error.in_known_file(file)
        };
        let tensor = |(shard, tensor): Id| &shards[shard as usize].index.tensors[tensor as usize];
        let is_part = |&(shard, tensor): &Id| shards[shard as usize].index.part(tensor).is_some();
        if !ids.iter().any(is_part) {
            let of = |&id: &Id| (tensor(id).dtype(), &tensor(id).layout().shape);
            if ids.len() > 1 && ids.iter().all(|id| of(id) == of(&ids[0])) {
                joins.copies.insert(name.to_owned());
            }
            continue;
        }
        // The merge of the names refuses a name of a part and of a whole tensor.
        if !ids.iter().all(is_part) {
            continue;
        }
        let mut parts = Vec::with_capacity(ids.len());
        let shape = whole_shape(shards, &ids, &mut parts).map_err(in_context)?;
        // Those of processes without elements may lie anywhere.
        if parts.iter().any(|part| numel(sizes(part)) != Some(0)) {
            parts.retain(|part| numel(sizes(part)) != Some(0));
        } else {
            parts.truncate(1);
        }
        let count = parts.len();
        let mut seen = HashSet::new();
        parts.retain(|part| seen.insert((part.offsets.clone(), sizes(part).clone())));
        joins.replicas += count - parts.len();
        let key = |&(shard, number): &Id| {
            let tensor = tensor((shard, number));
            let layout = tensor.layout();
            let numbers = layout.shape.iter().chain(&layout.strides).copied();
            (shard, tensor.storage(), layout.offset, numbers.collect())
        };
        let key: Vec<_> = ids.iter().map(key).collect();
        let number = match by_parts.get(&key) {
            Some(&number) => number,
            None => {
                let number = joined.join(shape, &parts).map_err(in_context)?;
                joins.first_files.push(ids[0].0);
                by_parts.insert(key, number);
                number
            }
        };
        joins.wholes.extend(ids.iter().map(|&id| (id, number)));
    }
    Ok(Some((joined, joins)))
}

/// The shape of a part.
fn sizes<'a>(part: &TensorPart<'a>) -> &'a Dims {
    &part.index.tensors[part.tensor as usize].layout().shape
}

/// The tensors of each name, names and files in order.
fn by_name(shards: &[Shard]) -> Vec<(&str, Vec<Id>)> {
    let mut names: Vec<(&str, Vec<Id>)> = Vec::new();
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for (shard, opened) in (0_u32..).zip(shards) {
        for entry in &opened.index.entries {
            let position = *positions.entry(&entry.name).or_insert_with(|| {
                names.push((&entry.name, Vec::new()));
                names.len() - 1
            });
            names[position].1.push((shard, entry.tensor));
        }
    }
    names
}

/// The shape of the tensor that the parts are of, and where each lies. Fails where the files do not agree, and where one does not
/// say which part it has.
fn whole_shape<'a>(shards: &'a [Shard], ids: &[Id], parts: &mut Vec<TensorPart<'a>>) -> Result<Dims> {
    let mut stated: Option<Option<&Dims>> = None;
    let mut reach = Dims::new();
    let conflict = |text: String| Err(Error::new(Code::PartConflict, text));
    for &(shard, number) in ids {
        let index = &shards[shard as usize].index;
        let Some(part) = index.part(number) else { continue };
        let tensor = &index.tensors[number as usize];
        let unplaced = || {
            let error =
                Error::new(Code::DTensorPlacement, "a file does not say which part of the tensor it has");
            error.note("Open that file alone: the part is then the tensor.")
        };
        let offsets = part.offsets.as_ref().ok_or_else(unplaced)?;
        if *stated.get_or_insert(part.shape.as_ref()) != part.shape.as_ref() {
            return conflict(format!(
                "the files state different shapes of the whole tensor, as {:?}",
                part.shape.as_deref().unwrap_or_default()
            ));
        }
        if let Some(first) = parts.first() {
            let (own, other) = (tensor.dtype(), first.index.tensors[first.tensor as usize].dtype());
            if own != other {
                return conflict(format!("a part is {own}, another one {other}"));
            }
        }
        let sizes = &tensor.layout().shape;
        if parts.is_empty() {
            reach = Dims::from_elem(0, sizes.len());
        }
        if offsets.len() != sizes.len() || reach.len() != sizes.len() {
            return conflict("the parts have different numbers of dimensions".to_owned());
        }
        for ((reach, &offset), &size) in reach.iter_mut().zip(offsets).zip(sizes) {
            *reach = (*reach).max(offset.saturating_add(size));
        }
        parts.push(TensorPart { index, tensor: number, offsets: offsets.clone() });
    }
    Ok(stated.flatten().cloned().unwrap_or(reach))
}

impl Opened {
    /// Gives the parameters and the optimizer's states of all ranks their names, in place of those of the files' own tensors.
    pub(super) fn join_zero(&mut self, files: &[ZeroFile]) -> Result<()> {
        let mut inputs = Vec::new();
        for (shard, file) in self.shards.iter().zip(files) {
            let Some(tree) = shard.objects.tree.as_deref().filter(|_| !shard.is_inner) else {
                let error =
                    Error::new(Code::ZeroState, "the file is not one of torch.save, as DeepSpeed writes");
                return Err(error.in_known_file(shard.path.as_deref()));
            };
            inputs.push(ZeroInput { file, index: &shard.index, tree, path: shard.path.as_deref() });
        }
        let ZeroJoin { whole, kept, notes } = index::join_zero(&inputs, &self.options)?;
        for (shard, kept) in self.shards.iter_mut().zip(kept) {
            shard.index.entries = kept;
        }
        self.notes.extend(notes);
        self.joins = Some(Joins::of_runs(self.shards.len() as u32));
        self.push_joined(whole);
        Ok(())
    }
}
