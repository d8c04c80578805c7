//! A staged folder whose files are written by other processes, such as the ranks of a distributed program.

use std::path::{Path, PathBuf};

use super::planned::{Planned, next_generation};
use super::publication::staged;
use super::shards::FileNames;
use super::staged_folder::{FolderRules, StagedFolder};
use crate::error::Result;

/// The files of one checkpoint on their way to a folder. An existing folder stays the same one.
pub(crate) struct FolderStage {
    folder: StagedFolder,
    generation: u32,
}

impl FolderStage {
    /// Makes the folder in which the files of the checkpoint `name` are to be written. Fails if another writer has the target, and if
    /// there are files of the checkpoint and they are not to be replaced.
    pub(crate) fn create(target: &Path, name: &str, overwrite: bool) -> Result<FolderStage> {
        let names = FileNames::new(name);
        let planned = Planned::new([names.shard(0, 1).as_str()].into_iter(), std::iter::empty())?;
        let rules = FolderRules { overwrite, joins: true, stays: true, resume: false };
        let folder = StagedFolder::create(target, &planned, &rules)?;
        folder.begin(&planned)?;
        let generation = if folder.moves_files() { next_generation(folder.target(), &names)? } else { 1 };
        Ok(FolderStage { folder, generation })
    }

    /// The folder in which to write.
    pub(crate) fn path(&self) -> PathBuf {
        staged(self.folder.outer())
    }

    /// The content of the file `token` beside that folder, as long as nobody else uses it.
    pub(crate) fn token(&self) -> &str {
        self.folder.token()
    }

    /// The generation of shards: files of that many writes may be in the folder at once.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Moves the files to the target, in this order. Returns what to say about it.
    pub(crate) fn publish(self, files: Vec<String>, sync: bool) -> Result<Option<String>> {
        let (shards, others): (Vec<&str>, Vec<&str>) =
            files.iter().map(String::as_str).partition(|file| file.ends_with(".safetensors"));
        let planned = Planned::new(shards.into_iter(), others.into_iter())?;
        self.folder.publish(&planned, files, sync)
    }
}
