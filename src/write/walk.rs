//! Goes through everything in a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Removes a folder with all that is in it, if it is there.
pub(super) fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The error of the system in an error.
pub(super) fn into_io(error: Error) -> io::Error {
    let kind = error.io_error().map_or(io::ErrorKind::Other, io::Error::kind);
    io::Error::new(kind, error.to_string())
}

/// Calls `visit` with everything below `root`: the path from there, the entry, and whether it is a folder, which comes before what is
/// in it.
pub(super) fn walk(
    root: &Path,
    visit: &mut dyn FnMut(&Path, &fs::DirEntry, bool) -> Result<()>,
) -> Result<()> {
    let mut pending = vec![PathBuf::new()];
    while let Some(within) = pending.pop() {
        let folder = root.join(&within);
        let failed = |error| Error::io(error, folder.clone());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_folder = entry.file_type().map_err(failed)?.is_dir();
            let relative = within.join(entry.file_name());
            visit(&relative, &entry, is_folder)?;
            if is_folder {
                pending.push(relative);
            }
        }
    }
    Ok(())
}
