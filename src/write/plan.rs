//! Plans a folder of checkpoints and the files beside them, and writes it. The folder appears, or is replaced, in one step.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::copy::{copy, fetch};
use super::manifest::{ManifestBeside, check_listable};
use super::planned::{Planned, split};
use super::resume::{self, ResumedFile, Staging};
use super::shards::{FileNames, Sized, divide, index_json};
use super::staged::folder_of;
use super::staged_folder::{FolderRules, StagedFolder, check_joins};
use super::values::limit_growth;
use super::{PreparedFile, Values, WriteOptions, Written, plan, write_bytes, write_planned};
use crate::bytes::{ReadRanges, Source};
use crate::error::{Code, Error, Result, bail};
use crate::layout::numel;
use crate::num::to_u64;

/// A file that was written: its path in the folder, and its size in bytes.
pub type WrittenFile = (String, u64);

/// What a folder will hold. Paths are relative to it, with `/` between their parts.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct FolderPlan {
    /// Safetensors files.
    pub files: Vec<SafetensorsFile>,
    /// Other files, by their paths and contents.
    pub texts: Vec<(String, Vec<u8>)>,
    /// Files of an existing folder that are rewritten, without the permission to overwrite too: the path, the new content, and the old
    /// one. If a file has another content when the folder is replaced, nothing is.
    pub edits: Vec<(String, Vec<u8>, Vec<u8>)>,
    /// Copies of files, by their paths in the folder and the paths of the originals.
    pub copies: Vec<(String, PathBuf)>,
    /// Copies of what is in a store.
    pub objects: Vec<(String, Arc<dyn ReadRanges>)>,
    /// Whether the files may join those of an existing folder if they replace none of them, without the permission to overwrite.
    pub joins: bool,
}

/// A safetensors file of a folder.
#[derive(Clone)]
pub struct SafetensorsFile {
    /// The path, which ends with `.safetensors`.
    pub path: String,
    /// The tensors, in the order in which they are divided.
    pub tensors: Vec<(String, Values)>,
    /// The header's metadata.
    pub metadata: Vec<(String, String)>,
    /// The path of the index that lists the tensors, in the same folder. Files with the same index are one checkpoint.
    pub index: Option<String>,
    /// Metadata of the checkpoint as a whole: in the index if there is one, else in the header.
    pub index_metadata: Vec<(String, String)>,
    /// The most bytes of tensors: if they have more, several files and the index are written in place of the file. `None` for one
    /// file, which its index lists in any case.
    pub max_shard_size: Option<u64>,
}

impl FolderPlan {
    /// A plan without files.
    pub fn new() -> FolderPlan {
        FolderPlan::default()
    }

    /// Writes the folder, as [`write_folder`](super::write_folder) does, and returns its files: safetensors files, indexes, texts and copies. Of
    /// `options`, the metadata has no effect: each file has its own.
    pub fn write(self, path: impl AsRef<Path>, options: &WriteOptions) -> Result<Vec<WrittenFile>> {
        self.write_with_note(path, options).map(|(files, _)| files)
    }

    /// As [`FolderPlan::write`]. Also returns what the caller should know of how the folder was replaced.
    pub fn write_with_note(
        self,
        path: impl AsRef<Path>,
        options: &WriteOptions,
    ) -> Result<(Vec<WrittenFile>, Option<String>)> {
        let mut manifest = ManifestBeside::new(path.as_ref(), options)?;
        limit_growth(self.files.iter().flat_map(|file| &file.tensors).map(|(_, values)| values))?;
        let mut divided = Vec::with_capacity(self.files.len());
        for file in self.files {
            file.divide(&mut divided)?;
        }
        let others = [
            &self.texts.iter().map(|text| text.0.as_str()).collect::<Vec<_>>()[..],
            &self.edits.iter().map(|edit| edit.0.as_str()).collect::<Vec<_>>()[..],
            &self.copies.iter().map(|copy| copy.0.as_str()).collect::<Vec<_>>()[..],
            &self.objects.iter().map(|copy| copy.0.as_str()).collect::<Vec<_>>()[..],
        ]
        .concat();
        let edited: BTreeMap<_, _> =
            self.edits.iter().map(|(path, _, old)| (path.clone(), old.clone())).collect();
        let mut planned = plan_paths(&divided, &others, edited.clone())?;
        if manifest.is_some() {
            planned.paths.iter().try_for_each(|path| check_listable(path))?;
        }
        let is_one_file = divided.len() == 1 && planned.paths.len() == 1;
        if self.joins && !options.overwrite && !options.resume && is_one_file && path.as_ref().is_dir() {
            let join = |file: SafetensorsFile| file.join(path.as_ref(), &planned, options, &mut manifest);
            let written = divided.into_iter().map(join).collect::<Result<_>>()?;
            prepare(manifest, options)?.map_or(Ok(()), PreparedFile::commit)?;
            return Ok((written, None));
        }
        let WriteOptions { overwrite, resume, sync, .. } = *options;
        let rules = FolderRules { overwrite, joins: self.joins, stays: false, resume };
        let staged = StagedFolder::create(path.as_ref(), &planned, &rules)?;
        if staged.moves_files() {
            for file in &mut divided {
                file.path = planned.in_next_generation(&file.path, staged.target())?;
            }
            planned = plan_paths(&divided, &others, edited)?;
        }
        let indexes = indexes(&divided)?;
        let staging = match resume {
            true => {
                let plan = SafetensorsFile::describe(&divided, options)?;
                Some(Staging::open_in(staged.outer().to_owned(), &plan)?)
            }
            false => None,
        };
        staged.begin(&planned)?;
        let mut written = Vec::with_capacity(planned.paths.len());
        for (number, file) in divided.into_iter().enumerate() {
            let place = staged.place_for(&file.path)?;
            let resumed = staging.as_ref().map(|staging| staging.file(number));
            let (path, made) = file.write(&place, options, resumed, &mut manifest)?;
            written.push((path, made.nbytes));
            // Not yet the name of a target.
            made.file.commit(sync)?;
        }
        // Indexes name other files, and so take their places last.
        let mut order: Vec<String> = written.iter().map(|file| file.0.clone()).collect();
        order.extend(others.iter().map(|path| (*path).to_owned()));
        order.extend(indexes.iter().map(|index| index.0.clone()));
        let edits = self.edits.into_iter().map(|(path, new, _)| (path, new));
        for (path, bytes) in indexes.into_iter().chain(self.texts).chain(edits) {
            write_bytes(staged.place_for(&path)?, &bytes, resume, sync)?;
            manifest.as_mut().map_or(Ok(()), |manifest| manifest.add_bytes(&path, &bytes))?;
            written.push((path, to_u64(bytes.len())));
        }
        let (is_hashed, cancel) = (manifest.is_some(), &options.cancel);
        let mut add = |path: String, (nbytes, listed)| {
            if let Some(manifest) = &mut manifest {
                manifest.add(path.clone(), listed);
            }
            written.push((path, nbytes));
        };
        for (path, source) in self.copies {
            cancel.check()?;
            let copied = copy(&source, &staged.place_for(&path)?, sync, is_hashed, cancel)?;
            add(path, copied);
        }
        for (path, object) in self.objects {
            let copied = fetch(&Source::new(object), &staged.place_for(&path)?, sync, is_hashed, cancel)?;
            add(path, copied);
        }
        let manifest = prepare(manifest, options)?;
        options.settle()?;
        drop(staging);
        let note = staged.publish(&planned, order, sync)?;
        manifest.map_or(Ok(()), PreparedFile::commit)?;
        Ok((written, note))
    }
}

/// The files of a folder with these, their indexes, and others, of which some are edited.
fn plan_paths(
    files: &[SafetensorsFile],
    others: &[&str],
    edited: BTreeMap<String, Vec<u8>>,
) -> Result<Planned> {
    let indexes: BTreeSet<&str> = files.iter().filter_map(|file| file.index.as_deref()).collect();
    let others = indexes.into_iter().chain(others.iter().copied());
    let mut planned = Planned::new(files.iter().map(|file| file.path.as_str()), others)?;
    planned.edited = edited;
    Ok(planned)
}

impl SafetensorsFile {
    /// Writes a file that is not divided, which has no name yet. With `resumed`, writes what that lacks.
    fn write(
        self,
        place: &Path,
        options: &WriteOptions,
        resumed: Option<ResumedFile<'_>>,
        manifest: &mut Option<ManifestBeside>,
    ) -> Result<(String, Written)> {
        let options = self.options(options);
        let SafetensorsFile { path, tensors, .. } = self;
        let plan = plan(&tensors, &options)?;
        let mut written = write_planned(place, &tensors, &plan, &options, resumed.as_ref())?;
        if let Some(manifest) = manifest {
            manifest.add(path.clone(), written.listed.take());
        }
        Ok((path, written))
    }

    /// The options, with the file's own metadata.
    fn options(&self, options: &WriteOptions) -> WriteOptions {
        let whole = if self.index.is_none() { &self.index_metadata[..] } else { &[] };
        WriteOptions { overwrite: false, metadata: [&self.metadata, whole].concat(), ..options.clone() }
    }

    /// The text of a plan of these files.
    fn describe(files: &[SafetensorsFile], options: &WriteOptions) -> Result<String> {
        let mut text = String::new();
        for file in files {
            let plan = plan(&file.tensors, &file.options(options))?;
            resume::describe(&mut text, &file.path, &plan, &file.tensors);
        }
        Ok(text)
    }

    /// Writes a file into an existing folder, which needs no other folder to take its place.
    fn join(
        self,
        folder: &Path,
        planned: &Planned,
        options: &WriteOptions,
        manifest: &mut Option<ManifestBeside>,
    ) -> Result<WrittenFile> {
        check_joins(folder, planned)?;
        let place = folder.join(&self.path);
        let above = folder_of(&place);
        fs::create_dir_all(above).map_err(|error| Error::io(error, above.to_owned()))?;
        let (path, written) = self.write(&place, options, None, manifest)?;
        Ok((path, written.commit(None, options)?))
    }

    /// Adds the file to `divided`, or the shards that it is divided into.
    fn divide(self, divided: &mut Vec<SafetensorsFile>) -> Result<()> {
        let Some(max) = self.max_shard_size else {
            divided.push(self);
            return Ok(());
        };
        let (folder, name) = split(&self.path);
        let names = FileNames::new(name);
        let sizes =
            self.tensors.iter().map(|(name, values)| size(name, values)).collect::<Result<Vec<_>>>()?;
        let (numbers, count) = divide(&sizes, max);
        let first = divided.len();
        divided.extend((0..count.max(1)).map(|number| SafetensorsFile {
            path: format!("{folder}{}", names.shard(number, count)),
            tensors: Vec::new(),
            metadata: self.metadata.clone(),
            index: self.index.clone().filter(|_| count > 1),
            index_metadata: self.index_metadata.clone(),
            max_shard_size: None,
        }));
        for (tensor, number) in self.tensors.into_iter().zip(numbers) {
            divided[first + number].tensors.push(tensor);
        }
        Ok(())
    }
}

/// The path and content of every index.
fn indexes(files: &[SafetensorsFile]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut by_path: BTreeMap<&str, Vec<&SafetensorsFile>> = BTreeMap::new();
    for file in files {
        if let Some(index) = &file.index {
            by_path.entry(index).or_default().push(file);
        }
    }
    let text = |(path, files): (&str, Vec<&SafetensorsFile>)| {
        let (mut weight_map, mut total) = (BTreeMap::new(), 0_u64);
        let mut metadata = BTreeMap::new();
        for file in files {
            metadata.extend(file.index_metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())));
            for (name, values) in &file.tensors {
                total = total.saturating_add(size(name, values)?.nbytes);
                if weight_map.insert(name.as_str(), split(&file.path).1.to_owned()).is_some() {
                    bail!(Code::DuplicateName, "two files of {path} have a tensor named {name:?}");
                }
            }
        }
        Ok((path.to_owned(), index_json(&weight_map, total, &metadata).into_bytes()))
    };
    by_path.into_iter().map(text).collect()
}

/// The bytes that a tensor takes, and its storage.
fn size(name: &str, values: &Values) -> Result<Sized> {
    let (dtype, shape) = values.result().map_err(|error| error.in_member(name))?;
    let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
    let too_large =
        || Error::new(Code::TensorShape, "the size of a tensor does not fit 64 bits").in_member(name);
    Ok(Sized { storage: values.tie(), nbytes: nbytes.ok_or_else(too_large)? })
}

fn prepare(manifest: Option<ManifestBeside>, options: &WriteOptions) -> Result<Option<PreparedFile>> {
    manifest.map(|manifest| manifest.prepare(options)).transpose()
}

#[cfg(test)]
mod tests {
    use super::super::folder::tests::{names, tensor};
    use super::*;

    fn file(path: &str, index: Option<&str>, tensors: Vec<(String, Values)>) -> SafetensorsFile {
        let index = index.map(str::to_owned);
        let (path, metadata, index_metadata) = (path.to_owned(), Vec::new(), Vec::new());
        SafetensorsFile { path, tensors, metadata, index, index_metadata, max_shard_size: None }
    }

    /// An object of two requests and a part of one.
    struct Object;

    impl ReadRanges for Object {
        fn size(&self) -> u64 {
            (9 << 20) + 1
        }

        fn read_at(&self, _: u64, out: &mut [u8]) -> Result<()> {
            out.fill(7);
            Ok(())
        }
    }

    #[test]
    fn a_plan_has_checkpoints_in_subfolders_texts_and_copies() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pipeline");
        fs::write(root.path().join("original.json"), "{1}").unwrap();
        let index = Some("unet/m.safetensors.index.fp16.json");
        let plan = || FolderPlan {
            files: vec![
                file("unet/m.fp16-00001-of-00002.safetensors", index, vec![tensor("a", 3)]),
                file("unet/m.fp16-00002-of-00002.safetensors", index, vec![tensor("b", 4)]),
                SafetensorsFile {
                    max_shard_size: Some(2),
                    ..file("vae/m.safetensors", Some("vae/i.json"), vec![tensor("a", 2), tensor("c", 2)])
                },
            ],
            texts: vec![("notes/x.txt".to_owned(), b"x".to_vec())],
            edits: Vec::new(),
            copies: vec![("config.json".to_owned(), root.path().join("original.json"))],
            objects: vec![("notes/y.bin".to_owned(), Arc::new(Object))],
            joins: false,
        };
        let options = WriteOptions::new().sync(false);
        let files = plan().write(&path, &options).unwrap();
        assert_eq!(
            files.iter().map(|file| file.0.as_str()).collect::<Vec<_>>(),
            [
                "unet/m.fp16-00001-of-00002.safetensors",
                "unet/m.fp16-00002-of-00002.safetensors",
                "vae/m-00001-of-00002.safetensors",
                "vae/m-00002-of-00002.safetensors",
                "unet/m.safetensors.index.fp16.json",
                "vae/i.json",
                "notes/x.txt",
                "config.json",
                "notes/y.bin",
            ]
        );
        assert!(fs::read(path.join("notes/y.bin")).unwrap().iter().all(|&byte| byte == 7));
        for (name, nbytes) in &files {
            assert_eq!(fs::metadata(path.join(name)).unwrap().len(), *nbytes, "{name}");
        }
        assert_eq!(fs::read_to_string(path.join("config.json")).unwrap(), "{1}");
        let index = fs::read_to_string(path.join(&files[4].0)).unwrap();
        assert!(index.contains(r#""total_size": 7"#) && index.contains(r#""b": "m.fp16-00002-of-00002"#));

        // Only files of the same checkpoints are replaced, and only in their own folders.
        for name in ["unet/other", "m.fp16.safetensors", "vae/m.fp16.safetensors"] {
            fs::write(path.join(name), "kept").unwrap();
        }
        for name in ["unet/m.fp16-00003-of-00003.safetensors", "unet/m.fp16.safetensors"] {
            fs::write(path.join(name), "stale").unwrap();
        }
        assert_eq!(plan().write(&path, &options).unwrap_err().code(), Code::TargetExists);
        plan().write(&path, &options.clone().overwrite(true)).unwrap();
        // Windows exchanges no folders, so new shards have names of their own there.
        let generation = if cfg!(windows) { ".generation2" } else { "" };
        assert_eq!(
            names(&path.join("unet")),
            [
                format!("m.fp16{generation}-00001-of-00002.safetensors"),
                format!("m.fp16{generation}-00002-of-00002.safetensors"),
                "m.safetensors.index.fp16.json".to_owned(),
                "other".to_owned()
            ]
        );
        assert!(path.join("m.fp16.safetensors").exists() && path.join("vae/m.fp16.safetensors").exists());
        assert_eq!(names(root.path()), ["original.json", "pipeline"]);
    }

    #[test]
    fn a_plan_that_joins_a_folder_replaces_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("config.json"), "{}").unwrap();
        let plan = || FolderPlan {
            files: vec![file("m.safetensors", None, vec![tensor("a", 3)])],
            joins: true,
            ..FolderPlan::new()
        };
        let options = WriteOptions::new().sync(false);
        let id = || crate::sys::path_id(&path, &fs::metadata(&path).unwrap()).unwrap();
        let before = id();
        plan().write(&path, &options).unwrap();
        assert_eq!(names(&path), ["config.json", "m.safetensors"]);
        // One file needs no new folder: a shell in the folder stays in it.
        assert_eq!(id(), before);
        let refused = plan().write(&path, &options).unwrap_err();
        assert_eq!(refused.code(), Code::TargetExists);
        assert!(refused.to_string().contains("m.safetensors"), "{refused}");
        fs::rename(path.join("m.safetensors"), path.join("m-00001-of-00009.safetensors")).unwrap();
        assert_eq!(plan().write(&path, &options).unwrap_err().code(), Code::TargetExists);
        let two = FolderPlan { texts: vec![("x/y".to_owned(), b"y".to_vec())], ..plan() };
        assert_eq!(two.clone().write(&path, &options).unwrap_err().code(), Code::TargetExists);
        fs::remove_file(path.join("m-00001-of-00009.safetensors")).unwrap();
        two.write(&path, &options).unwrap();
        assert_eq!(names(&path), ["config.json", "m.safetensors", "x"]);
        assert_eq!(names(root.path()), ["model"]);
    }

    #[test]
    fn a_plan_that_joins_a_folder_rewrites_the_files_that_it_edits() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        fs::create_dir_all(path.join("sub")).unwrap();
        let edited = || fs::read_to_string(path.join("sub/config.json")).unwrap();
        fs::write(path.join("sub/config.json"), "old").unwrap();
        let edit = ("sub/config.json".to_owned(), b"new".to_vec(), b"other".to_vec());
        let plan = |old: &[u8]| FolderPlan {
            files: vec![file("m.safetensors", None, vec![tensor("a", 3)])],
            edits: vec![(edit.0.clone(), edit.1.clone(), old.to_vec())],
            joins: true,
            ..FolderPlan::new()
        };
        let options = WriteOptions::new().sync(false);
        let changed = plan(b"other").write(&path, &options).unwrap_err();
        assert_eq!((changed.code(), edited()), (Code::FileChanged, "old".to_owned()));
        assert_eq!((names(&path), names(root.path())), (vec!["sub".to_owned()], vec!["model".to_owned()]));
        plan(b"old").write(&path, &options).unwrap();
        assert_eq!(
            (names(&path), edited()),
            (vec!["m.safetensors".to_owned(), "sub".to_owned()], "new".to_owned())
        );
        let refused = plan(b"new").write(&path, &options).unwrap_err();
        assert_eq!((refused.code(), names(root.path())), (Code::TargetExists, vec!["model".to_owned()]));
    }

    #[test]
    fn paths_of_a_plan_are_below_its_folder_and_differ() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        let write = |texts: &[&str]| {
            let texts = texts.iter().map(|path| ((*path).to_owned(), Vec::new())).collect();
            let plan = FolderPlan { texts, ..FolderPlan::new() };
            plan.write(&path, &WriteOptions::new().sync(false)).map_err(|error| error.code())
        };
        for name in ["", "/x", "../x", "a/../../x", "a/", "./a", "a\0"] {
            assert_eq!(write(&[name]), Err(Code::Value), "{name:?}");
        }
        assert_eq!(write(&["a", "a"]), Err(Code::DuplicateName));
        assert_eq!(names(root.path()), [""; 0]);
        let other = if cfg!(unix) { PathBuf::from("/dev/null") } else { root.path().to_owned() };
        let copies = vec![("x".to_owned(), other)];
        let plan = FolderPlan { copies, ..FolderPlan::new() };
        let failed = plan.write(&path, &WriteOptions::new()).unwrap_err();
        assert_eq!((failed.code(), names(root.path()).len()), (Code::NotRegularFile, 0));
    }
}
