//! Which files a folder will have, and which files of an earlier version they replace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path};

use super::shards::{FileNames, in_generation};
use crate::error::{Code, Error, Result, bail, error};

/// The paths of the files of a folder, and which files of an earlier version they replace.
pub(super) struct Planned {
    /// All paths.
    pub(super) paths: BTreeSet<String>,
    /// The contents of those that are replaced without the permission to overwrite.
    pub(super) edited: BTreeMap<String, Vec<u8>>,
    /// The checkpoints: the folder of each with a `/` at its end, and the names of its files.
    checkpoints: BTreeSet<(String, FileNames)>,
}

impl Planned {
    /// Fails if a path is not below the folder, or two are equal.
    pub(super) fn new<'a>(
        files: impl Iterator<Item = &'a str>,
        mut others: impl Iterator<Item = &'a str>,
    ) -> Result<Planned> {
        let mut planned =
            Planned { paths: BTreeSet::new(), edited: BTreeMap::new(), checkpoints: BTreeSet::new() };
        let mut add = |path: &str| {
            let parts: Vec<_> = Path::new(path).components().collect();
            let is_below = parts.iter().all(|part| matches!(part, Component::Normal(_)));
            if !is_below || parts.is_empty() || path.ends_with('/') || path.contains('\0') {
                return Err(no_name(path));
            }
            if !planned.paths.insert(path.to_owned()) {
                bail!(Code::DuplicateName, "two files of the folder would both be named {path:?}");
            }
            Ok(())
        };
        for path in files {
            add(path)?;
            let (folder, name) = split(path);
            planned.checkpoints.insert((folder.to_owned(), FileNames::of_shard(name)));
        }
        others.try_for_each(add)?;
        Ok(planned)
    }

    /// The path of a file that will be moved to a folder which has an earlier version: a shard is of the next generation, as no shard
    /// takes the place of another one before the index does.
    pub(super) fn in_next_generation(&self, path: &str, folder: &Path) -> Result<String> {
        let (within, name) = split(path);
        Ok(match next_generation(&folder.join(within), &FileNames::of_shard(name))? {
            1 => path.to_owned(),
            next => format!("{within}{}", in_generation(name, next)),
        })
    }

    /// Whether a file is replaced that only the permission to overwrite allows to.
    pub(super) fn overwrites(&self, path: &Path) -> bool {
        self.replaces(path) && !path.to_str().is_some_and(|path| self.edited.contains_key(path))
    }

    /// Whether a file of an earlier version is replaced: it has the path of a new file, or is of the same checkpoint.
    pub(super) fn replaces(&self, path: &Path) -> bool {
        // All names of new files are UTF-8.
        let Some(path) = path.to_str() else { return false };
        let (folder, name) = split(path);
        let is_of = |(of, names): &(String, FileNames)| of == folder && names.is_of_checkpoint(name);
        self.paths.contains(path) || self.checkpoints.iter().any(is_of)
    }
}

/// The generation of the next shards of a checkpoint in a folder.
pub(super) fn next_generation(folder: &Path, names: &FileNames) -> Result<u32> {
    let failed = |error| Error::io(error, folder.to_owned());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(1),
        entries => entries.map_err(failed)?,
    };
    let mut last = 0;
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        last = last.max(name.to_str().and_then(|name| names.generation(name)).unwrap_or(0));
    }
    Ok(last.saturating_add(1))
}

/// A path as its folder, with a `/` at the end unless that is the root, and the name in it.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('/').map_or(0, |at| at + 1))
}

pub(super) fn no_name(path: &str) -> Error {
    error!(Code::Value, "{path:?} is not a name of a file")
}
