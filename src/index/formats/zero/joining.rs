//! The checkpoint that the files are together, as it is made: tensors of runs, and names.

use std::collections::{HashMap, HashSet};
use std::path::Path as FilePath;
use std::sync::Arc;

use super::partitions::Run;
use super::states::{Model, Optimizer, Stored};
use crate::container::shards::ZeroFile;
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

/// The files of a rank of tensor parallelism: each with its number among all, in the order of the ranks of data parallelism.
#[derive(Default)]
pub(super) struct Ranks<'a> {
    pub(super) models: Vec<(usize, Model<'a>)>,
    pub(super) optimizers: Vec<(usize, Optimizer<'a>)>,
    pub(super) experts: Vec<ExpertFile<'a>>,
}

/// A parameter of a group.
pub(super) struct Whole<'s> {
    pub(super) name: String,
    pub(super) shape: &'s Dims,
    /// Its elements in the partitions.
    pub(super) runs: Vec<Run>,
}

/// The file of an expert.
pub(super) struct ExpertFile<'a> {
    /// Its number among all files.
    pub(super) number: usize,
    /// The number of its layer; `None` in old versions, where it has the weights of all layers.
    pub(super) layer: Option<usize>,
    /// The number of the expert.
    pub(super) expert: usize,
    pub(super) weights: Vec<(&'a str, Stored)>,
}

/// Where a tensor with a name is.
#[derive(Clone)]
pub(super) enum Place {
    Whole(u32),
    Kept(usize, Stored),
}

/// The files, and what they are together so far.
pub(super) struct Joining<'a> {
    pub(super) inputs: &'a [ZeroInput<'a>],
    pub(super) options: &'a Options,
    pub(super) out: ZeroJoin,
    /// What all names begin with.
    pub(super) prefix: String,
    /// What the names of the model's weights begin with, and those of the optimizer's states.
    pub(super) heads: [String; 2],
    pub(super) places: HashMap<Arc<str>, Place>,
    pub(super) name_bytes: u64,
    pub(super) runs: u64,
}

pub(super) fn conflict(text: impl Into<String>) -> Error {
    Error::new(Code::ZeroConflict, text)
}

impl<'a> Joining<'a> {
    /// Adds the path of a file to an error.
    pub(super) fn at<T>(&self, number: usize, result: Result<T>) -> Result<T> {
        match self.inputs.get(number).and_then(|input| input.path) {
            Some(path) => result.in_file(path),
            None => result,
        }
    }

    /// The tensor of runs, each of a rank's flat tensor: the number of its file, its own, and its elements.
    pub(super) fn whole(&mut self, shape: &Dims, runs: &[Run], flats: &[(usize, u32, u64)]) -> Result<u32> {
        self.runs = self.runs.saturating_add(to_u64(runs.len())).saturating_add(1);
        Limits::check("tensors", self.options.limits.tensors, self.runs)?;
        let tensor = |&(number, tensor, _): &(usize, u32, u64)| {
            self.inputs.get(number)?.index.tensors.get(u32_to_usize(tensor))
        };
        let dtype = flats.first().and_then(tensor).map(|flat| flat.dtype());
        let dtype = dtype.ok_or_else(|| Error::new(Code::InternalError, "a partition has no tensor"))?;
        let differs = |flat: &&(usize, u32, u64)| tensor(flat).is_some_and(|flat| flat.dtype() != dtype);
        if let Some(other) = flats.iter().find(differs) {
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

    /// Sets the heads: no name of the model begins with one of them.
    pub(super) fn set_heads<'n>(&mut self, names: impl Iterator<Item = &'n str> + Clone) {
        for (head, word) in self.heads.iter_mut().zip(["module", "optimizer"]) {
            let underscores = |name: &str| {
                let rest = name.strip_prefix(word)?;
                let after = rest.trim_start_matches('_');
                after.starts_with('.').then(|| rest.len().saturating_sub(after.len()))
            };
            let taken: HashSet<usize> = names.clone().filter_map(underscores).collect();
            let free = (0..).find(|count| !taken.contains(count)).unwrap_or_default();
            *head = format!("{word}{}.", "_".repeat(free));
        }
    }

    /// The name of a weight that the model computes with.
    pub(super) fn weight_name(&self, name: &str) -> String {
        format!("{}{name}", self.heads[0])
    }

    /// The name of a state of the optimizer for a parameter.
    pub(super) fn state_name(&self, name: &str, state: &str) -> String {
        format!("{}state.{name}.{state}", self.heads[1])
    }

    /// Gives a tensor a name. Fails for one that another tensor has.
    pub(super) fn add(&mut self, name: String, place: Place, number: usize) -> Result<()> {
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

    /// Whether a tensor has this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(&*format!("{}{name}", self.prefix))
    }

    pub(super) fn tensor_shape(&self, number: usize, tensor: u32) -> Option<&'a Dims> {
        Some(&self.inputs.get(number)?.index.tensors.get(u32_to_usize(tensor))?.layout().shape)
    }

    /// The elements of a flat tensor; `None` for a tensor that is none, or has no elements in the file.
    pub(super) fn flat_len(&self, number: usize, tensor: u32) -> Option<u64> {
        let found = self.inputs.get(number)?.index.tensors.get(u32_to_usize(tensor))?;
        match &found.layout().shape[..] {
            &[len] if !found.flags.meta => Some(len),
            _ => None,
        }
    }

    pub(super) fn is_single(&self, number: usize, tensor: u32) -> bool {
        self.tensor_shape(number, tensor).is_some_and(|shape| numel(shape) == Some(1))
    }
}
