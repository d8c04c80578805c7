//! Universal checkpoints: a file for each state of each parameter.

use std::collections::HashMap;

use super::joining::{Joining, Place};
use super::partitions::sharded;
use super::states::{Reader, Stored};
use crate::container::shards::ZeroPart;
use crate::error::{Code, Error, Result, ResultExt};
use crate::layout::{Dims, numel};

/// The file of a state of a parameter.
struct File<'a> {
    number: usize,
    name: &'a str,
    state: &'a str,
    stored: Stored,
    shape: Dims,
}

impl<'a> Joining<'a> {
    /// A universal checkpoint: a file for each state of each parameter. The converter writes float32 copies of buffers and frozen parameters
    /// too; what the files of the model have whole is read from those.
    pub(super) fn universal(&mut self) -> Result<()> {
        let inputs = self.inputs;
        let mut shapes: HashMap<&str, Dims> = HashMap::new();
        let (mut files, mut models, mut is_sharded) = (Vec::new(), Vec::new(), false);
        for (number, input) in inputs.iter().enumerate() {
            self.options.cancel.check()?;
            let mut reader = Reader::new(input.tree, &self.options.limits);
            match &input.file.part {
                ZeroPart::Parameter { name, state } => {
                    let stored = self.at(number, reader.parameter())?;
                    let shape = self.tensor_shape(number, stored.tensor).cloned().unwrap_or_default();
                    if state == "fp32" {
                        shapes.insert(name, shape.clone());
                    }
                    files.push(File { number, name, state, stored, shape });
                }
                part => {
                    is_sharded |= matches!(part, ZeroPart::Model(Some(_)));
                    models.push((number, self.at(number, reader.model())?));
                }
            }
        }
        self.check_models(&models)?;
        let first = models.first();
        let names = first.iter().flat_map(|(_, model)| model.names());
        self.set_heads(names.chain(shapes.keys().copied()));
        let groups = first.and_then(|(_, model)| model.stated.groups.as_ref());
        let trained: HashMap<&str, &Dims> = match groups {
            Some(groups) => groups.iter().flatten().map(|(name, shape)| (*name, shape)).collect(),
            None => shapes.iter().map(|(name, shape)| (*name, shape)).collect(),
        };
        let (own, mut others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| trained.contains_key(file.name));
        self.add_states(own, &shapes, &trained)?;
        let missing = trained.keys().filter(|name| !shapes.contains_key(*name)).min();
        if let (Some((number, _)), Some(name)) = (first, missing) {
            let text = format!("the model has the parameter {name:?}, which has no folder");
            return self.at(*number, Err(Error::new(Code::ShardMissing, text)));
        }
        if let Some((number, model)) = first {
            self.model(*number, model, is_sharded)?;
            if model.stated.frozen.iter().all(|(name, _)| model.fragments.contains_key(name)) {
                self.frozen(&models, is_sharded)?;
            }
            self.others(*number, model, is_sharded)?;
            self.shared(*number, model)?;
        }
        others.retain(|file| !self.has(file.name));
        self.add_states(others, &shapes, &trained)?;
        let [weights, states] = &self.heads;
        let weights = match first {
            Some(_) if !is_sharded => format!("; {weights} has the weights that the model computes with"),
            _ => String::new(),
        };
        self.out.notes.push(format!(
            "this is a universal checkpoint of DeepSpeed: a parameter of the optimizer is its fp32.pt{weights}; {states} has the states of \
             the optimizer"
        ));
        if !is_sharded && first.is_some_and(|(_, model)| model.stated.is_round_robin) {
            let note = "the run had round_robin_gradients, with which ds_to_universal.py of DeepSpeed (up to 0.19.8) mixes up the elements of \
                        parameters: rather open the checkpoint that it was made of";
            self.out.notes.push(note.to_owned());
        }
        Ok(())
    }

    /// Adds parameters and states of the optimizer.
    fn add_states(
        &mut self,
        files: Vec<File<'a>>,
        shapes: &HashMap<&str, Dims>,
        trained: &HashMap<&str, &Dims>,
    ) -> Result<()> {
        for File { number, name, state, stored, shape } in files {
            let Some(own) = shapes.get(name) else {
                let text = format!("the parameter {name:?} has a state {state:?}, and no fp32.pt");
                return self.at(number, Err(Error::new(Code::ShardMissing, text)));
            };
            if *own != shape && !shape.is_empty() {
                let text = format!("a state is of shape {:?}, its parameter of {:?}", &shape[..], &own[..]);
                return self.at(number, Err(Error::new(Code::ZeroPartition, text)));
            }
            let full = match state {
                "fp32" => name.to_owned(),
                state => self.state_name(name, state),
            };
            // Those of stage 3 are flat.
            let place = match (trained.get(name), &shape[..]) {
                (Some(own), &[len]) if own.len() != 1 => {
                    let runs = sharded(&[numel(own).unwrap_or(u64::MAX)], &[len]);
                    let runs =
                        runs.map_err(|wrong| Error::new(Code::ZeroPartition, wrong.text).in_member(name));
                    let runs = self.at(number, runs)?.into_iter().flatten().collect::<Vec<_>>();
                    Place::Whole(self.whole(own, &runs, &[(number, stored.tensor, len)]).in_member(name)?)
                }
                _ => Place::Kept(number, stored),
            };
            self.add(full, place, number)?;
        }
        Ok(())
    }
}
