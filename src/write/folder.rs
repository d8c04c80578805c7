//! Writes a checkpoint to a folder: one file, or shards and their index. The folder appears, or is replaced, in one step.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::shards::{FileNames, Sized, divide, index_json};
use super::staged::{folder_of, sync_folder, temporary};
use super::{Values, WriteOptions, os, write_file};
use crate::error::{Code, Error, Result};
use crate::layout::numel;

/// How a folder is written, beside [`WriteOptions`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FolderOptions {
    /// The name of the file without shards; those of shards and of the index are made from it.
    pub name: String,
    /// The most bytes of tensors in one file. A larger tensor has a file of its own.
    pub max_shard_size: u64,
}

/// The size at which transformers begins another shard.
const MAX_SHARD_SIZE: u64 = 50_000_000_000;

impl Default for FolderOptions {
    fn default() -> FolderOptions {
        FolderOptions { name: "model.safetensors".to_owned(), max_shard_size: MAX_SHARD_SIZE }
    }
}

impl FolderOptions {
    /// The defaults: `model.safetensors`, shards of 50 GB.
    pub fn new() -> FolderOptions {
        FolderOptions::default()
    }

    crate::builder::setters! {
        name: impl Into<String>,
        max_shard_size: u64,
    }
}

/// A file that was written: its name in the folder, and its size in bytes.
pub type WrittenFile = (String, u64);

/// Writes tensors to a folder of safetensors files. Divides them as huggingface_hub does, in the order given: tied tensors share a file.
///
/// All files are written to a folder beside `path` first, which then takes its place in one step. An existing folder is replaced only
/// if it is empty or `options` allow to overwrite: then its other files are kept, and files of an earlier version of this checkpoint
/// are not. Fails as [`write_file`] does, and if the file system cannot exchange two folders. Then the folder is as it was.
pub fn write_folder(
    path: impl AsRef<Path>,
    tensors: Vec<(String, Values)>,
    folder: &FolderOptions,
    options: &WriteOptions,
) -> Result<Vec<WrittenFile>> {
    let path = path.as_ref();
    let names = FileNames::new(&folder.name);
    if folder.name.is_empty() || folder.name.contains(['/', '\0']) {
        return Err(Error::new(Code::Value, format!("{:?} is no name of a file", folder.name)));
    }
    let sizes = tensors.iter().map(|(name, values)| size(name, values)).collect::<Result<Vec<_>>>()?;
    let (numbers, count) = divide(&sizes, folder.max_shard_size);
    let staged = StagedFolder::create(path, options.overwrite)?;
    let mut weight_map = BTreeMap::new();
    let mut names_of: Vec<(String, usize)> = Vec::with_capacity(tensors.len());
    let mut files: Vec<Vec<(String, Values)>> = (0..count.max(1)).map(|_| Vec::new()).collect();
    for ((name, values), number) in tensors.into_iter().zip(numbers) {
        names_of.push((name.clone(), number));
        files[number].push((name, values));
    }
    let mut written = Vec::with_capacity(files.len() + 1);
    for (number, tensors) in files.into_iter().enumerate() {
        let name = names.shard(number, count);
        let options = WriteOptions { overwrite: false, ..options.clone() };
        let nbytes = write_file(staged.path.join(&name), tensors, &options)?;
        written.push((name, nbytes));
    }
    if count > 1 {
        for (name, number) in &names_of {
            weight_map.insert(name.as_str(), names.shard(*number, count));
        }
        let total = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(size.nbytes));
        let text = index_json(&weight_map, total);
        let file =
            super::staged::StagedFile::create(&staged.path.join(names.index()), text.len() as u64, false)?;
        file.write_at(0, text.as_bytes())?;
        file.commit(options.sync)?;
        written.push((names.index(), text.len() as u64));
    }
    staged.publish(&names, options.sync)?;
    Ok(written)
}

/// The bytes that a tensor takes, and its storage.
fn size(name: &str, values: &Values) -> Result<Sized> {
    let (dtype, shape) = values.result().map_err(|error| error.in_member(name))?;
    let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
    let too_large =
        || Error::new(Code::TensorShape, "the size of a tensor does not fit 64 bits").in_member(name);
    Ok(Sized { storage: values.tie(), nbytes: nbytes.ok_or_else(too_large)? })
}

/// A folder that is being written beside its target. Dropped, it is removed.
struct StagedFolder {
    path: PathBuf,
    target: PathBuf,
    /// Whether the target exists and has files.
    replaces: bool,
    is_published: bool,
}

impl StagedFolder {
    fn create(target: &Path, overwrite: bool) -> Result<StagedFolder> {
        let failed = |error| Error::io(error, target.to_owned());
        let target = match fs::canonicalize(target) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.to_owned(),
            Err(error) => return Err(failed(error)),
        };
        let replaces = match fs::read_dir(&target) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(failed(error)),
        };
        if replaces && !overwrite {
            return Err(Error::target_exists(&target));
        }
        let (_, path) = temporary(&target, |path| fs::create_dir(path)).map_err(failed)?;
        Ok(StagedFolder { path, target, replaces, is_published: false })
    }

    /// Puts the folder in its place, with the other files of the folder that it replaces.
    fn publish(mut self, names: &FileNames, sync: bool) -> Result<()> {
        let failed = |error| Error::io(error, self.target.clone());
        if self.replaces {
            link_others(&self.target, &self.path, &|name| {
                name.to_str().is_some_and(|name| names.is_of_checkpoint(name))
            })
            .map_err(failed)?;
            sync_folder(&self.path, sync).map_err(failed)?;
            // From here on the old folder has the name of the staged one, and is removed on drop.
            os::exchange(&self.path, &self.target).map_err(|error| {
                failed(error).note("The file system cannot exchange two folders: write to a new folder.")
            })?;
        } else {
            sync_folder(&self.path, sync).map_err(failed)?;
            // Replaces an empty folder too, in one step.
            fs::rename(&self.path, &self.target).map_err(failed)?;
            self.is_published = true;
        }
        sync_folder(folder_of(&self.target), sync).map_err(failed)
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Gives all files below `from` that are not `replaced` a second name below `to`, where links and folders are made anew.
fn link_others(from: &Path, to: &Path, replaced: &dyn Fn(&OsStr) -> bool) -> io::Result<()> {
    let mut pending = vec![(from.to_owned(), to.to_owned(), true)];
    while let Some((from, to, is_root)) = pending.pop() {
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let target = to.join(&name);
            if kind.is_dir() {
                fs::create_dir(&target)?;
                fs::set_permissions(&target, entry.metadata()?.permissions())?;
                pending.push((entry.path(), target, false));
            } else if is_root && (replaced(&name) || target.symlink_metadata().is_ok()) {
                // A new file takes its place.
            } else if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
            } else {
                fs::hard_link(entry.path(), &target)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dtype::DType;
    use crate::layout::Layout;
    use crate::tensor::Request;
    use crate::write::HostArray;

    fn tensor(name: &str, len: u64) -> (String, Values) {
        let bytes = Arc::new(vec![len as u8; len as usize]);
        let array = HostArray::new(bytes, DType::U8, Layout::contiguous(&[len]).unwrap()).unwrap();
        (name.to_owned(), Values::Array(array, Request::new()))
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_is_replaced_with_its_other_files_kept() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        let options = WriteOptions::new().sync(false);
        let small = FolderOptions::new().max_shard_size(4);
        let tensors = || vec![tensor("a", 3), tensor("b", 3), tensor("c", 1)];
        let files = write_folder(&path, tensors(), &small, &options).unwrap();
        let expected = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(files.iter().map(|file| &file.0).collect::<Vec<_>>(), expected);
        assert_eq!(names(&path), expected);
        let index = fs::read_to_string(path.join(expected[2])).unwrap();
        assert!(
            index.contains(r#""total_size": 7"#)
                && index.contains(r#""c": "model-00002-of-00002.safetensors""#)
        );

        let refused = write_folder(&path, tensors(), &small, &options).unwrap_err();
        assert_eq!(refused.code(), Code::TargetExists);
        fs::write(path.join("config.json"), "{}").unwrap();
        fs::create_dir(path.join("logs")).unwrap();
        fs::write(path.join("logs").join("one"), "1").unwrap();
        let open = fs::File::open(path.join(expected[0])).unwrap();
        let overwrite = options.clone().overwrite(true);
        write_folder(&path, tensors(), &FolderOptions::new(), &overwrite).unwrap();
        assert_eq!(names(&path), ["config.json", "logs", "model.safetensors"]);
        assert_eq!(fs::read_to_string(path.join("logs").join("one")).unwrap(), "1");
        assert_eq!(names(root.path()), ["model"]);
        assert!(open.metadata().unwrap().len() > 0);
    }

    #[test]
    fn a_failure_leaves_the_folder_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        fs::create_dir(&path).unwrap();
        let twice = vec![tensor("a", 3), tensor("a", 3)];
        let options = WriteOptions::new().sync(false).overwrite(true);
        let failed = write_folder(&path, twice, &FolderOptions::new(), &options).unwrap_err();
        assert_eq!(failed.code(), Code::DuplicateName);
        assert_eq!((names(root.path()), names(&path).len()), (vec!["model".to_owned()], 0));
        // An empty folder needs no permission to be replaced.
        let options = WriteOptions::new().sync(false);
        write_folder(&path, vec![tensor("a", 3)], &FolderOptions::new(), &options).unwrap();
        assert_eq!(names(&path), ["model.safetensors"]);
    }
}
