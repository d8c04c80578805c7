//! Goes through everything in a folder.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};

/// How long the removal of a folder waits before it tries again; doubled each time, until it has waited a second in all.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(1000);

/// Removes a folder with all that is in it, if it is there.
///
/// NFS and FUSE keep a removed file under another name in its folder as long as it is open, and FUSE learns of a close only after
/// close(2) has returned: so this tries again for a while.
pub(super) fn remove_all(path: &Path) -> io::Result<()> {
    let mut pause = FIRST_PAUSE;
    loop {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && pause < LAST_PAUSE => {
                thread::sleep(pause);
                pause = pause.saturating_mul(2);
            }
            removed => return removed,
        }
    }
}

/// The error of the system in an error.
pub(super) fn into_io(error: Error) -> io::Error {
    let kind = error.io_error().map_or(io::ErrorKind::Other, io::Error::kind);
    io::Error::new(kind, error.to_string())
}

/// The path of a name in a folder. As the paths of plans, it has a `/` between names on all systems.
fn below(folder: &Path, name: &OsStr) -> PathBuf {
    if folder.as_os_str().is_empty() {
        return name.into();
    }
    let mut path = folder.as_os_str().to_owned();
    path.push("/");
    path.push(name);
    path.into()
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
            let relative = below(&within, &entry.file_name());
            visit(&relative, &entry, is_folder)?;
            if is_folder {
                pending.push(relative);
            }
        }
    }
    Ok(())
}
