//! Universal checkpoints: a file for each state of each parameter.

use std::collections::HashMap;

use super::joining::{Joining, Place};
use super::states::Reader;
use crate::container::shards::ZeroPart;
use crate::error::{Code, Error, Result};
use crate::layout::Dims;

impl Joining<'_> {
    /// A universal checkpoint: a file for each state of each parameter.
    pub(super) fn universal(&mut self) -> Result<()> {
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
                state => self.state_name(name, state),
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
}
