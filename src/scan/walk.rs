//! The files below a path, in the order of their names; links to directories are not followed.

use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};

/// Files that one path may stand for.
const MOST: usize = 1_000_000;

/// Each file, and whether it was named itself. Fails where the path itself cannot be looked at.
pub(super) fn files(path: &Path) -> Result<Vec<(PathBuf, bool)>> {
    let io = |error, path: &Path| Error::io(error, path.to_owned());
    let metadata = std::fs::metadata(path).map_err(|error| io(error, path))?;
    if !metadata.is_dir() {
        return Ok(vec![(path.to_owned(), true)]);
    }
    let (mut found, mut open) = (Vec::new(), vec![path.to_owned()]);
    while let Some(directory) = open.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == path => return Err(io(error, path)),
            // It is reported as a file that cannot be read.
            Err(_) => {
                found.push((directory, false));
                continue;
            }
        };
        for entry in entries {
            let entry = entry.map_err(|error| io(error, &directory))?;
            let kind = entry.file_type().map_err(|error| io(error, &entry.path()))?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if !(kind.is_symlink() && entry.path().is_dir()) {
                found.push((entry.path(), false));
            }
            if found.len() > MOST {
                let text = format!("more than {MOST} files in one directory");
                return Err(Error::new(Code::Value, text).in_file(path));
            }
        }
    }
    found.sort();
    Ok(found)
}
