//! A staged folder whose files are written by other processes, such as the ranks of a distributed program.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::planned::{Planned, next_generation};
use super::publication::staged;
use super::shards::{FileNames, Sized, divide, in_generation, index_json};
use super::staged_folder::{FolderRules, StagedFolder};
use super::write_bytes;
use crate::container::safetensors::{Declaration, FilePlan};
use crate::error::{Error, Result};
use crate::layout::numel;
use crate::sys::{self, FileExt};

/// The files of one checkpoint on their way to a folder. An existing folder stays the same one.
pub(crate) struct FolderStage {
    folder: StagedFolder,
    names: FileNames,
    /// That of shards: files of that many writes may be in the folder at once.
    generation: u32,
}

/// Where a tensor is to be written: the name of its file, the offset of its first byte, and its bytes.
pub(crate) type Place = (String, u64, u64);

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
        Ok(FolderStage { folder, names, generation })
    }

    /// The folder in which to write.
    pub(crate) fn path(&self) -> PathBuf {
        staged(self.folder.outer())
    }

    /// The content of the file `token` beside that folder, as long as nobody else uses it.
    pub(crate) fn token(&self) -> &str {
        self.folder.token()
    }

    /// Creates the files of these tensors in full size, complete up to the first tensor, with an index of several. Returns the place
    /// of each tensor, and the files in the order in which to publish them.
    pub(crate) fn create_files(
        &self,
        tensors: &[Declaration],
        metadata: &[(String, String)],
        max_shard_size: u64,
        sync: bool,
    ) -> Result<(Vec<Place>, Vec<String>)> {
        let size = |tensor: &Declaration| {
            let nbytes = numel(&tensor.shape).and_then(|numel| numel.checked_mul(tensor.dtype.itemsize()));
            // Of a size beyond 64 bits, there is no plan either.
            Sized { storage: None, nbytes: nbytes.unwrap_or(u64::MAX) }
        };
        let (numbers, count) = divide(&tensors.iter().map(size).collect::<Vec<_>>(), max_shard_size);
        let mut shards = vec![Vec::new(); count.max(1)];
        numbers.iter().enumerate().for_each(|(at, &number)| shards[number].push(at));
        let mut places = vec![Place::default(); tensors.len()];
        let mut files = Vec::with_capacity(shards.len() + 1);
        for (number, shard) in shards.into_iter().enumerate() {
            let name = match self.generation {
                1 => self.names.shard(number, count),
                later => in_generation(&self.names.shard(number, count), later),
            };
            let declared: Vec<Declaration> = shard.iter().map(|&at| tensors[at].clone()).collect();
            let plan = FilePlan::new(&declared, metadata)?;
            let path = self.path().join(&name);
            let made = File::create_new(&path).and_then(|file| {
                sys::reserve(&file, plan.len)?;
                file.write_all_at(&plan.head, 0)
            });
            made.map_err(|error| Error::io(error, path))?;
            for (at, region) in shard.into_iter().zip(&plan.regions) {
                places[at] = (name.clone(), region.start(), region.len());
            }
            files.push(name);
        }
        if count > 1 {
            let names = tensors.iter().map(|tensor| tensor.name.as_str());
            let weight_map = names.zip(places.iter().map(|place| place.0.clone())).collect();
            let total = places.iter().map(|place| place.2).sum();
            let index = index_json(&weight_map, total, &BTreeMap::new());
            write_bytes(self.path().join(self.names.index()), index.as_bytes(), false, sync)?;
            files.push(self.names.index());
        }
        Ok((places, files))
    }

    /// Moves the files to the target, in this order. Returns what to say about it.
    pub(crate) fn publish(self, files: Vec<String>, sync: bool) -> Result<Option<String>> {
        let (shards, others): (Vec<&str>, Vec<&str>) =
            files.iter().map(String::as_str).partition(|file| file.ends_with(".safetensors"));
        let planned = Planned::new(shards.into_iter(), others.into_iter())?;
        self.folder.publish(&planned, files, sync)
    }
}
