//! Writes a checkpoint to a folder: one file, or shards and their index.

use std::path::Path;

use super::plan::{FolderPlan, SafetensorsFile, WrittenFile};
use super::planned::no_name;
use super::shards::FileNames;
use super::{Values, WriteOptions};
use crate::error::Result;

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

/// Writes tensors to a folder of safetensors files. Divides them as huggingface_hub does, in the order given: tied tensors share a file.
///
/// All files are written to a hidden folder first, which then takes the place of `path` in one step. An existing folder is replaced only
/// if it is empty or `options` allow to overwrite: then its other files and its attributes are kept, and files of an earlier version of
/// this checkpoint are not. Where it cannot be replaced in one step, the new files are moved to it, the index last;
/// [`FolderPlan::write_with_note`] says why. Fails as [`write_file`](super::write_file) does. Then the folder is as it was.
pub fn write_folder(
    path: impl AsRef<Path>,
    tensors: Vec<(String, Values)>,
    folder: &FolderOptions,
    options: &WriteOptions,
) -> Result<Vec<WrittenFile>> {
    if folder.name.contains('/') {
        return Err(no_name(&folder.name));
    }
    let names = FileNames::new(&folder.name);
    let file = SafetensorsFile {
        path: names.shard(0, 1),
        tensors,
        metadata: options.metadata.clone(),
        index: Some(names.index()),
        index_metadata: Vec::new(),
        max_shard_size: Some(folder.max_shard_size),
    };
    FolderPlan { files: vec![file], ..FolderPlan::new() }.write(path, options)
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::dtype::DType;
    use crate::error::Code;
    use crate::layout::Layout;
    use crate::tensor::Request;
    use crate::write::HostArray;

    pub(in crate::write) fn tensor(name: &str, len: u64) -> (String, Values) {
        let bytes = Arc::new(vec![len as u8; len as usize]);
        let array = HostArray::new(bytes, DType::U8, Layout::contiguous(&[len]).unwrap()).unwrap();
        (name.to_owned(), Values::Array(array, Request::new()))
    }

    pub(in crate::write) fn names(folder: &Path) -> Vec<String> {
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
        let overwrite = options.clone().overwrite(true);
        write_folder(&path, tensors(), &FolderOptions::new(), &overwrite).unwrap();
        assert_eq!(names(&path), ["config.json", "logs", "model.safetensors"]);
        assert_eq!(fs::read_to_string(path.join("logs").join("one")).unwrap(), "1");
        assert_eq!(names(root.path()), ["model"]);
    }

    #[cfg_attr(windows, ignore = "wine keeps the name of a removed file that is open")]
    #[test]
    fn a_file_that_is_removed_stays_for_who_has_it_open() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        let options = WriteOptions::new().sync(false).overwrite(true);
        let small = FolderOptions::new().max_shard_size(4);
        let tensors = || vec![tensor("a", 3), tensor("b", 3)];
        let files = write_folder(&path, tensors(), &small, &options).unwrap();
        let open = fs::File::open(path.join(&files[0].0)).unwrap();
        write_folder(&path, tensors(), &FolderOptions::new(), &options).unwrap();
        assert_eq!(
            (names(&path), names(root.path())),
            (vec!["model.safetensors".into()], vec!["model".into()])
        );
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
