//! A checkpoint of DeepSpeed ZeRO: the parameters and the states of the optimizer, which the files of all ranks have in partitions.
//!
//! Follows `deepspeed/runtime/engine.py`, `runtime/zero/stage_1_and_2.py`, `stage3.py`, `runtime/bf16_optimizer.py` and
//! `checkpoint/ds_to_universal.py` of DeepSpeed 0.5 to 0.19. Its own readers unpickle the files without restriction. Here the pickles are
//! read as any other, and numbers are taken of them: the partitions have to be the stated parameters exactly, and all files have to agree.

mod experts;
mod joining;
mod partitions;
mod ranks;
mod states;
mod universal;

use std::collections::{BTreeMap, HashMap};

use self::joining::{ExpertFile, Joining, Ranks, conflict};
pub use self::joining::{ZeroInput, ZeroJoin};
pub use self::partitions::{Padding, Run, Wrong, flat, sharded};
use self::states::Reader;
use crate::container::shards::{ZeroFile, ZeroPart};
use crate::error::{Code, Error, Result};
use crate::index::model::Options;

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
        heads: Default::default(),
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
            ZeroPart::Expert(layer, expert) => {
                let weights = joining.at(number, reader.expert())?;
                own.experts.push(ExpertFile { number, layer, expert, weights });
            }
            ZeroPart::ExpertOptimizer(_) => {}
            _ => own.optimizers.push((number, joining.at(number, reader.optimizer())?)),
        }
    }
    let count = ranks.len();
    for (rank, mut own) in ranks {
        own.order_groups();
        if count > 1 {
            if let Some(expert) = own.experts.first() {
                let text = "experts of several ranks of tensor parallelism are not joined";
                return joining.at(expert.number, Err(Error::new(Code::ZeroUnsupported, text)));
            }
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
            Err(conflict(text))
        }
        _ => Ok(()),
    }
}
