//! What a path means as the target of a writer: the file that is made or replaced, and its folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result, ResultExt};
use crate::sys;

/// The file that a target means, and the permissions of the one that is there. Fails as `StagedFile::create` does.
pub(super) fn check_target(target: &Path, overwrite: bool) -> Result<(PathBuf, Option<fs::Permissions>)> {
    let target = resolve_link(target)?;
    let replaced = match fs::metadata(&target) {
        Ok(metadata) if !metadata.is_file() => {
            return Err(Error::new(Code::NotRegularFile, "this is not a regular file")).in_file(&target);
        }
        Ok(_) if !overwrite => return Err(Error::target_exists(&target)),
        Ok(metadata) => Some(metadata.permissions()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io(error, target)),
    };
    refuse_hub_blobs(&target)?;
    Ok((target, replaced))
}

pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// With `sync`, returns once the names in a folder are on the disk.
pub(super) fn sync_folder(folder: &Path, sync: bool) -> io::Result<()> {
    if sync { sys::sync_folder(&sys::open_folder(folder)?) } else { Ok(()) }
}

/// The path with a symbolic link in its last part replaced by what it points to.
fn resolve_link(path: &Path) -> Result<PathBuf> {
    if !path.is_symlink() {
        return Ok(path.to_owned());
    }
    match fs::canonicalize(path) {
        Ok(resolved) => Ok(resolved),
        // The creator of the link, not the caller, would choose where a file is made.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let error = Error::new(Code::Value, "this is a symbolic link to a file that does not exist");
            Err(error.note("Remove the link, or write to the path that it names.").in_file(path))
        }
        Err(error) => Err(Error::io(error, path.to_owned())),
    }
}

/// Fails for a file in the `blobs` folder of a Hugging Face cache: its name is the hash of its content.
pub(super) fn refuse_hub_blobs(target: &Path) -> Result<()> {
    let folder = fs::canonicalize(folder_of(target)).unwrap_or_else(|_| folder_of(target).to_owned());
    let is_blobs = folder.file_name().is_some_and(|name| name == "blobs");
    if is_blobs && folder.with_file_name("snapshots").is_dir() {
        let text = "this is a blob of a Hugging Face cache, whose name is the hash of its content";
        let error = Error::new(Code::Value, text).note("Write to a folder outside the cache.");
        return Err(error).in_file(target);
    }
    Ok(())
}
