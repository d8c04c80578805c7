//! Resolves paths to the files of a checkpoint: one file, a list of files, a Hugging Face index, or a directory of any of these.
//!
//! The file of a distributed checkpoint of torch is its `.metadata`, which names the others.
//!
//! Refused: a malformed index or one that names files outside its directory, an incomplete set of shards (all missing names are
//! listed), a directory with several unrelated checkpoints or none, and a single file of chunks of a distributed checkpoint, which
//! cannot be interpreted without the metadata.

mod directory;
mod distributed;
mod index_file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::limits::Limits;

/// For each tensor name, the position of its file in [`Shards::files`].
pub type WeightMap = BTreeMap<String, usize>;

/// The files of one checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shards {
    /// The files, in the order of their names, or as given.
    pub files: Vec<PathBuf>,
    /// Which file holds which tensor, where an index says so.
    pub weight_map: Option<WeightMap>,
    /// The index's own metadata, each value as text.
    pub metadata: Vec<(String, String)>,
    /// Notes on choices between several candidates.
    pub notes: Vec<String>,
}

/// Resolves what a caller gave (the path of a file, an index or a directory, or several files) to the files of one checkpoint.
pub fn resolve(paths: &[PathBuf], limits: &Limits) -> Result<Shards> {
    match paths {
        [] => Err(Error::new(Code::Value, "no path was given")),
        [path] if is_directory(path)? => directory::resolve(path, limits),
        [path] if is_index(path) => index_file::read(path, limits),
        files => {
            for path in files {
                if files.len() > 1 && (is_directory(path)? || is_index(path)) {
                    let text = "a list of shards may hold neither directories nor index files";
                    return Err(Error::new(Code::Value, text).in_file(path));
                }
                if distributed::is_chunks(path) {
                    return Err(distributed::lone_chunks(path));
                }
            }
            Ok(Shards { files: files.to_vec(), ..Shards::default() })
        }
    }
}

fn is_directory(path: &Path) -> Result<bool> {
    let metadata = std::fs::metadata(path).map_err(|error| Error::io(error, path.to_owned()))?;
    Ok(metadata.is_dir())
}

/// `model.safetensors.index.json`, or a variant's `model.safetensors.index.fp16.json`.
fn is_index(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".json") && name.contains(".index.")
}

/// The error for missing shards; it lists all of them.
fn missing(directory: &Path, names: &[String], because: &str) -> Error {
    let shown_directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let are = if names.len() == 1 { "is" } else { "are" };
    let (count, shown_directory, names) = (names.len(), shown_directory.display(), names.join(", "));
    let text = format!("{count} of the files that {because} {are} missing from {shown_directory}: {names}");
    Error::new(Code::ShardMissing, text)
}

#[cfg(test)]
mod tests;
