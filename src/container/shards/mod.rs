//! Resolves paths to the files of a checkpoint: one file, a list of files, a Hugging Face index, or a directory of any of these.
//!
//! The file of a distributed checkpoint of torch is its `.metadata`, which names the others, and that of one of torch_checkpointing its
//! `metadata.pkl`.
//!
//! Refused: a malformed index or one that names files outside its directory, an incomplete set of shards (all missing names are
//! listed), a directory with several unrelated checkpoints or none, and a single file of chunks of a distributed checkpoint, which
//! cannot be interpreted without the metadata.

mod directory;
mod distributed;
mod index_file;
mod training;
mod zero;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::bytes::{FileStamp, Folder, Io};
use crate::error::{Code, Error, Result, ResultExt};
use crate::limits::Limits;

pub use zero::{ZeroFile, ZeroPart};

/// The most bytes of a short text in a folder.
const TEXT_MAX_BYTES: u64 = 4096;

/// For each tensor name, the position of its file in [`Shards::files`].
pub type WeightMap = BTreeMap<String, usize>;

/// The files of one checkpoint: paths, or names in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards<File = PathBuf> {
    /// The files, in the order of their names, or as given.
    pub files: Vec<File>,
    /// Which file holds which tensor, where an index says so.
    pub weight_map: Option<WeightMap>,
    /// The label under which each file is read (see `Contents::labelled`); none for most checkpoints.
    pub labels: Vec<String>,
    /// The index's own metadata, each value as text.
    pub metadata: Vec<(String, String)>,
    /// Notes on choices between several candidates.
    pub notes: Vec<String>,
    /// The version of the index, if that is a file on disk.
    pub index: Option<FileStamp>,
    /// Which part of a checkpoint of DeepSpeed each file is; none for other checkpoints.
    pub zero: Vec<ZeroFile>,
}

impl<File> Shards<File> {
    /// These files, of which nothing else is known.
    fn of(files: Vec<File>) -> Shards<File> {
        Shards {
            files,
            weight_map: None,
            labels: Vec::new(),
            metadata: Vec::new(),
            notes: Vec::new(),
            index: None,
            zero: Vec::new(),
        }
    }
}

impl Shards<String> {
    fn on_disk(self, folder: &Path) -> Shards {
        let Shards { files, weight_map, labels, metadata, notes, index, zero } = self;
        let files = files.iter().map(|name| folder.join(name)).collect();
        Shards { files, weight_map, labels, metadata, notes, index, zero }
    }
}

/// Resolves what a caller gave (the path of a file, an index or a directory, or several files) to the files of one checkpoint.
pub fn resolve(paths: &[PathBuf], limits: &Limits) -> Result<Shards> {
    match paths {
        [] => Err(Error::new(Code::Value, "no path was given")),
        [path] if is_directory(path)? => {
            let folder = Folder::Disk(path.clone(), Io::Auto);
            Ok(resolve_in(&folder, &[], limits)?.on_disk(path))
        }
        files => {
            if let [path] = files
                && let Some(name) = index_name(path)
            {
                let parent = path.parent().unwrap_or(Path::new(""));
                let folder = Folder::Disk(parent.to_owned(), Io::Auto);
                return Ok(index_file::read(&folder, name, limits)?.on_disk(parent));
            }
            for path in files {
                if files.len() > 1 && (is_directory(path)? || index_name(path).is_some()) {
                    return Err(no_shard(path));
                }
                check_alone(path)?;
            }
            let name =
                |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_owned();
            let names: Vec<String> = files.iter().map(name).collect();
            listed(
                &names,
                files.to_vec(),
                files.first().and_then(|file| file.parent()).unwrap_or(Path::new("")),
            )
        }
    }
}

/// As [`resolve`], for names in a folder; without names, for the folder itself.
pub fn resolve_in(folder: &Folder, names: &[String], limits: &Limits) -> Result<Shards<String>> {
    match names {
        [] => training::resolve(folder, limits),
        [name] if index_name(Path::new(name)).is_some() => index_file::read(folder, name, limits),
        names => {
            for name in names {
                let path = folder.path().join(name);
                if index_name(&path).is_some() {
                    return Err(no_shard(&path));
                }
                check_alone(&path)?;
            }
            listed(names, names.to_vec(), folder.path())
        }
    }
}

/// The checkpoint of these files, by their names. A single one is what it is alone.
fn listed<File>(names: &[String], files: Vec<File>, directory: &Path) -> Result<Shards<File>>
where
    File: Clone,
{
    if names.len() > 1 {
        let named = names.iter().map(String::as_str).zip(files.iter().cloned()).collect();
        if let Some(shards) = zero::of_files(named, directory)? {
            if shards.files.len() < names.len() {
                return Err(Error::new(Code::ZeroConflict, "the list has files of DeepSpeed, and others")
                    .in_file(directory));
            }
            return Ok(shards);
        }
    }
    Ok(Shards::of(files))
}

/// Fails for a file that other files are needed for.
fn check_alone(path: &Path) -> Result<()> {
    match path.extension() {
        _ if distributed::is_chunks(path) => Err(distributed::lone_chunks(path)),
        Some(extension) if extension == "symlink" => Err(training::symlink_file(path)),
        _ => Ok(()),
    }
}

fn no_shard(path: &Path) -> Error {
    Error::new(Code::Value, "a list of shards may hold neither directories nor index files").in_file(path)
}

fn is_directory(path: &Path) -> Result<bool> {
    let metadata = std::fs::metadata(path).map_err(|error| Error::io(error, path.to_owned()))?;
    Ok(metadata.is_dir())
}

/// The name of an index file: `model.safetensors.index.json`, or a variant's `model.safetensors.index.fp16.json`. `None` for other
/// files.
fn index_name(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    (name.ends_with(".json") && name.contains(".index.")).then_some(name)
}

/// The error for missing shards; it lists all of them.
fn missing(directory: &Path, names: &[String], because: &str) -> Error {
    let shown_directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let are = if names.len() == 1 { "is" } else { "are" };
    let (count, shown_directory, names) = (names.len(), shown_directory.display(), names.join(", "));
    let text = format!("{count} of the files that {because} {are} missing from {shown_directory}: {names}");
    Error::new(Code::ShardMissing, text)
}

/// A short text in a folder; `None` for a long one, or one that is not UTF-8.
fn small_text(folder: &Folder, name: &str) -> Result<Option<String>> {
    let source = folder.open(name)?;
    if source.len() > TEXT_MAX_BYTES {
        return Ok(None);
    }
    let bytes = source.read_vec(0, source.len()).in_file(&folder.path().join(name))?;
    Ok(String::from_utf8(bytes).ok())
}

#[cfg(test)]
mod tests;
