//! Lists the files below a path, sorted by name. Symbolic links to directories are not followed.

use std::path::{Path, PathBuf};

use super::exclude::Exclude;
use crate::bytes::Source;
use crate::error::{Code, Error, Result, error};

/// The maximum number of files below one path.
const MAX_FILES: usize = 1_000_000;

/// Opens a file of [`files`]. Fails with the error of listing it for a directory that cannot be listed.
pub(super) fn open(path: &Path) -> Result<Source> {
    let listed = if path.is_dir() { std::fs::read_dir(path).map(drop) } else { Ok(()) };
    listed.map_err(|error| Error::io(error, path.to_owned())).and_then(|()| Source::open(path))
}

/// Whether there is an empty file at a path.
pub(super) fn is_empty(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

/// Each file below `path`, and whether it is `path` itself; without those that `exclude` has, whose number comes second, and without the
/// file of the manifest. Fails where `path` cannot be read.
pub(super) fn files(
    path: &Path,
    exclude: &Exclude,
    manifest: Option<&Path>,
) -> Result<(Vec<(PathBuf, bool)>, u64)> {
    let io = |error, path: &Path| Error::io(error, path.to_owned());
    let metadata = std::fs::metadata(path).map_err(|error| io(error, path))?;
    if !metadata.is_dir() {
        return Ok((vec![(path.to_owned(), true)], 0));
    }
    let (mut files, mut pending) = (Vec::new(), vec![path.to_owned()]);
    let mut excluded: u64 = 0;
    while let Some(directory) = pending.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == path => return Err(io(error, path)),
            // Reported as an unreadable file, with the error of `open`.
            Err(_) => {
                files.push((directory, false));
                continue;
            }
        };
        for entry in entries {
            let entry = entry.map_err(|error| io(error, &directory))?;
            if exclude.has(path, &entry.path()) {
                excluded = excluded.saturating_add(1);
                continue;
            }
            let kind = entry.file_type().map_err(|error| io(error, &entry.path()))?;
            let is_manifest =
                || manifest.is_some() && entry.path().canonicalize().ok().as_deref() == manifest;
            if kind.is_file() && is_manifest() {
                continue;
            }
            if kind.is_dir() {
                pending.push(entry.path());
            } else if !(kind.is_symlink() && entry.path().is_dir()) {
                files.push((entry.path(), false));
            }
            if files.len() > MAX_FILES {
                return Err(error!(Code::Value, "more than {MAX_FILES} files in one directory").in_file(path));
            }
        }
    }
    files.sort();
    Ok((files, excluded))
}
