//! Joins the files of a checkpoint of DeepSpeed.

use super::{Joins, Opened, Shard};
use crate::container::shards::ZeroFile;
use crate::error::{Code, Error, Result};
use crate::index::{self, Objects, ZeroInput, ZeroJoin};

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
        let file = self.shards.len();
        self.joins = Some(Joins::of_runs(file as u32));
        self.shards.push(Shard {
            path: None,
            file,
            is_inner: false,
            index: whole,
            objects: Objects::default(),
        });
        Ok(())
    }
}
