//! A new folder that takes its place in one step, with the other files of the folder that it replaces.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::os;
use super::plan::Planned;
use super::staged::{folder_of, refuse_hub_blobs, sync_folder, temporary};
use crate::error::{Error, Result};

/// A folder that will be replaced or made.
pub(super) struct FolderTarget {
    path: PathBuf,
    /// Whether it exists and has files.
    replaces: bool,
    /// Whether its files may be replaced.
    overwrite: bool,
}

impl FolderTarget {
    /// Its path, with links resolved.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// A folder that is being written beside its target. Dropped, it is removed, unless it is for a later run.
pub(super) struct StagedFolder {
    path: PathBuf,
    target: FolderTarget,
    /// Whether nothing is to be removed: it is published, or stays.
    stays: bool,
}

impl StagedFolder {
    /// Fails if the target has files, unless they may be replaced or, with `joins`, none is.
    pub(super) fn check(
        target: &Path,
        overwrite: bool,
        joins: bool,
        planned: &Planned,
    ) -> Result<FolderTarget> {
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
        refuse_hub_blobs(&target.join("_"))?;
        if replaces && !overwrite {
            if !joins {
                return Err(Error::target_exists(&target));
            }
            check_joins(&target, planned)?;
        }
        Ok(FolderTarget { path: target, replaces, overwrite })
    }

    /// Creates an empty folder beside the target, or takes the one at `kept`, which stays if it is not published.
    pub(super) fn create(target: FolderTarget, kept: Option<PathBuf>) -> Result<StagedFolder> {
        let failed = |error| Error::io(error, target.path.clone());
        let stays = kept.is_some();
        let path = match kept {
            Some(path) => fs::create_dir_all(&path).map(|()| path),
            None => temporary(&target.path, |path| fs::create_dir(path)).map(|(_, path)| path),
        };
        let path = path.map_err(failed)?;
        Ok(StagedFolder { path, target, stays })
    }

    /// The path at which a file of the folder is written. Makes the folders above it.
    pub(super) fn place_for(&self, relative: &str) -> Result<PathBuf> {
        let path = self.path.join(relative);
        let folder = folder_of(&path);
        fs::create_dir_all(folder).map_err(|error| Error::io(error, folder.to_owned()))?;
        Ok(path)
    }

    /// Puts the folder in its place, with the other files of the folder that it replaces.
    pub(super) fn publish(mut self, planned: &Planned, sync: bool) -> Result<()> {
        let target = &self.target.path;
        let failed = |error| Error::io(error, target.clone());
        if sync {
            walk(&self.path, &mut |_, entry, is_folder| {
                sync_folder(&entry.path(), is_folder).map_err(failed)
            })?;
        }
        if self.target.replaces {
            self.link_others(planned)?;
            sync_folder(&self.path, sync).map_err(failed)?;
            // From here on the old folder has the name of the staged one, and is removed on drop.
            os::exchange(&self.path, target).map_err(|error| {
                failed(error).note("The file system cannot exchange two folders: write to a new folder.")
            })?;
        } else {
            sync_folder(&self.path, sync).map_err(failed)?;
            // Replaces an empty folder too, in one step.
            fs::rename(&self.path, target).map_err(failed)?;
            self.stays = true;
        }
        sync_folder(folder_of(target), sync).map_err(failed)
    }

    /// Gives all files of the target that are not replaced a second name in the staged folder, where links and folders are made anew.
    fn link_others(&self, planned: &Planned) -> Result<()> {
        walk(&self.target.path, &mut |relative, entry, is_folder| {
            let link = || {
                let target = self.path.join(relative);
                let is_there = target.symlink_metadata().is_ok();
                if is_folder {
                    if !is_there {
                        fs::create_dir(&target)?;
                    }
                    fs::set_permissions(&target, entry.metadata()?.permissions())
                } else if is_there || planned.replaces(relative) {
                    // A new file takes its place.
                    if self.target.overwrite { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
                } else if entry.file_type()?.is_symlink() {
                    std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)
                } else {
                    fs::hard_link(entry.path(), &target)
                }
            };
            link().map_err(|error: io::Error| {
                if error.kind() == io::ErrorKind::AlreadyExists {
                    Error::target_exists(&entry.path())
                } else {
                    Error::io(error, entry.path())
                }
            })
        })
    }
}

/// Fails if files of a plan would replace any in a folder.
pub(super) fn check_joins(folder: &Path, planned: &Planned) -> Result<()> {
    walk(folder, &mut |relative, entry, is_folder| match planned.replaces(relative) {
        true if !is_folder => Err(Error::target_exists(&entry.path())),
        _ => Ok(()),
    })
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        if !self.stays {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Calls `visit` with everything below `root`: the path from there, the entry, and whether it is a folder, which comes before what is
/// in it.
fn walk(root: &Path, visit: &mut dyn FnMut(&Path, &fs::DirEntry, bool) -> Result<()>) -> Result<()> {
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
