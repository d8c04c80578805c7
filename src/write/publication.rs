//! How the files of a staged folder get into the target, in steps that a later run can finish.
//!
//! The steps are in a file beside the staged folder, which is complete before the first of them. After a kill, the next writer that locks the
//! target finishes them ([`Publication::finish`]). A step that was done has no effect when it is done again. Files of others are not
//! replaced without `overwrite`, also by a later run: where one has a new name, those that have got theirs move back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::shards::is_index;
use super::staged::{folder_of, sync_folder};
use super::walk::{into_io, remove_all, walk};
use crate::error::{Error, Result};
use crate::sys::{self, FileId};

/// How often the old folder is emptied while other programs make files in it.
const EMPTYING_ATTEMPTS: u32 = 1000;

/// The name of the file that has the steps.
const STEPS: &str = "publish";

/// The steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Publication {
    /// The device and the inode of the staged folder, if that takes the place of the target as a whole. Otherwise its files are moved
    /// to the target one by one.
    pub(super) folder: Option<FileId>,
    /// Whether the new files may replace others.
    pub(super) overwrite: bool,
    /// Whether a step is on the disk before the next one that depends on it.
    pub(super) sync: bool,
    /// The new files, and the inode of each. If they are moved, indexes are the last.
    pub(super) add: Vec<(String, u64)>,
    /// Those of them that may replace others without `overwrite`, unless these change meanwhile. If files are moved, they are the last,
    /// as nothing moves them back.
    pub(super) edits: BTreeSet<String>,
    /// The files of an earlier version, and the inode of each. If files are moved, these are removed after it, indexes first.
    pub(super) remove: Vec<(String, u64)>,
}

impl Publication {
    /// Notes the steps.
    pub(super) fn note(&self, outer: &Path) -> io::Result<()> {
        let Publication { folder, overwrite, sync, add, edits, remove } = self;
        let value = json!({
            "folder": folder, "overwrite": overwrite, "sync": sync, "add": add, "edits": edits, "remove": remove,
        });
        let mut file = fs::File::create(outer.join(STEPS))?;
        writeln!(file, "{value}")?;
        if *sync {
            sys::sync_file(&file)?;
        }
        sync_folder(outer, *sync)
    }

    /// The steps that an earlier run has noted. `None` if it has come to none.
    fn noted(outer: &Path) -> Option<Publication> {
        // A line that was not completed is from before the first step.
        let text = fs::read_to_string(outer.join(STEPS)).ok().filter(|text| text.ends_with('\n'))?;
        let value: Value = serde_json::from_str(&text).ok()?;
        let files = |key: &str| {
            let files = value[key].as_array()?.iter();
            files.map(|file| Some((file[0].as_str()?.to_owned(), file[1].as_u64()?))).collect::<Option<_>>()
        };
        let folder = match &value["folder"] {
            Value::Null => None,
            folder => Some((folder[0].as_u64()?, folder[1].as_u64()?)),
        };
        let (overwrite, sync) = (value["overwrite"].as_bool()?, value["sync"].as_bool()?);
        let edits = value["edits"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let edits = edits.map(str::to_owned).collect();
        Some(Publication { folder, overwrite, sync, add: files("add")?, edits, remove: files("remove")? })
    }

    /// Finishes what an earlier run has begun. Returns whether its hidden folder is of no more use: the target is complete by that, or
    /// was, and is another one since. Else the target is as it was before that run, as nothing was done or a file of others is in the way.
    pub(super) fn finish(outer: &Path, target: &Path) -> Result<bool> {
        let Some(publication) = Publication::noted(outer) else { return Ok(false) };
        let done = match publication.folder {
            // The user has removed it since, with the new files that it had.
            None if !is_there(target) => Ok(true),
            None => match publication.move_files(outer, target) {
                Err(error) if is_taken(&error) && !publication.overwrite => Ok(false),
                // Or one of them: the target never is a part of the new version.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    publication.move_back(outer, target);
                    Ok(true)
                }
                moved => moved.map(|()| true),
            },
            Some(folder) if identity(target).is_ok_and(|found| found == folder) => {
                publication.empty_old(&staged(outer), target).map(|()| true)
            }
            // Once it was exchanged, what is staged is the old folder, and no part of the new one.
            Some(folder) if identity(&staged(outer)).is_ok_and(|found| found != folder) => {
                remove_all(&staged(outer)).map(|()| true)
            }
            Some(_) => Ok(false),
        };
        let done = done.map_err(|error| Error::io(error, target.to_owned()))?;
        Publication::forget(outer).map_err(|error| Error::io(error, outer.to_owned()))?;
        Ok(done)
    }

    /// Removes the note: no step was done, or all were.
    pub(super) fn forget(outer: &Path) -> io::Result<()> {
        fs::remove_file(outer.join(STEPS))
    }

    /// Moves the new files to the target one by one, and removes those of the earlier version. The steps are noted.
    ///
    /// A reader that goes by an index sees the old files, until the new index takes the place of the old one, and then the new files.
    /// Without `overwrite`, fails if there is another file of a new name, and moves the others back.
    pub(super) fn move_files(&self, outer: &Path, target: &Path) -> io::Result<()> {
        let is_index = |file: &&(String, u64)| is_index(&file.0);
        let is_edit = |file: &&(String, u64)| self.edits.contains(&file.0);
        let (edits, added): (Vec<_>, Vec<_>) = self.add.iter().partition(is_edit);
        let (indexes, named): (Vec<_>, Vec<_>) = added.into_iter().partition(is_index);
        for files in [named, indexes, edits] {
            let moved = self.for_each(&files, target, &mut |file| {
                let to = target.join(&file.0);
                let may_replace = self.overwrite || (is_edit(&file) && is_as_noted(outer, &to));
                move_file(&staged(outer).join(&file.0), &to, may_replace)
            });
            moved.inspect_err(|_| {
                if !self.overwrite {
                    self.move_back(outer, target)
                }
            })?;
        }
        let (indexes, named): (Vec<_>, Vec<_>) = self.remove.iter().partition(is_index);
        for files in [indexes, named] {
            self.for_each(&files, target, &mut |(path, inode)| {
                let path = target.join(path);
                if link_id(&path).is_ok_and(|(_, found)| found == *inode) {
                    fs::remove_file(path)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    /// Does something with files of the target. With `sync`, it is on the disk after that.
    fn for_each(
        &self,
        files: &[&(String, u64)],
        target: &Path,
        act: &mut dyn FnMut(&(String, u64)) -> io::Result<()>,
    ) -> io::Result<()> {
        files.iter().try_for_each(|file| act(file))?;
        let above = files.iter().flat_map(|(path, _)| Path::new(path).ancestors().skip(1));
        let folders: BTreeSet<PathBuf> = above.map(|folder| target.join(folder)).collect();
        folders.iter().filter(|folder| folder.is_dir()).try_for_each(|folder| sync_folder(folder, self.sync))
    }

    /// Moves back those of the new files that are in the target, unless others have replaced or changed them there.
    fn move_back(&self, outer: &Path, target: &Path) {
        let Ok(noted) = fs::metadata(outer.join(STEPS)) else { return };
        for (path, inode) in self.add.iter().filter(|(path, _)| !self.edits.contains(path)) {
            let moved = target.join(path);
            let Ok(found) = fs::symlink_metadata(&moved) else { continue };
            let is_same = sys::path_id(&moved, &found).is_ok_and(|(_, found)| found == *inode);
            if is_same && sys::modified(&found) <= sys::modified(&noted) {
                let _ = move_to_free_name(&moved, &staged(outer).join(path));
            }
        }
    }

    /// Removes the old folder, which has exchanged its place with the new one. What the new folder lacks moves over to it: other
    /// programs may have made or replaced files since theirs got a second name there.
    pub(super) fn empty_old(&self, old: &Path, new: &Path) -> io::Result<()> {
        // Before a file of the old folder is removed, that is not the target on the disk either.
        sync_folder(folder_of(new), self.sync)?;
        sync_folder(folder_of(old), self.sync)?;
        let known: BTreeMap<&Path, u64> =
            self.remove.iter().map(|(path, inode)| (Path::new(path), *inode)).collect();
        for _ in 0..EMPTYING_ATTEMPTS {
            let mut folders = Vec::new();
            let walked = walk(old, &mut |relative, entry, is_folder| {
                if is_folder {
                    folders.push(entry.path());
                }
                let settled = self.settle(relative, &entry.path(), &new.join(relative), is_folder, &known);
                match settled {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(Error::io(error, entry.path()))
                    }
                    _ => Ok(()),
                }
            });
            // A folder that moved is not entered.
            walked.map_err(into_io).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            // Folders in others come after them.
            for folder in folders.iter().rev().map(PathBuf::as_path).chain([old]) {
                let _ = fs::remove_dir(folder);
            }
            if !is_there(old) {
                return Ok(());
            }
        }
        Err(io::ErrorKind::DirectoryNotEmpty.into())
    }

    /// Removes an entry of the old folder that the new one has, or has something newer for, and moves any other one to it.
    fn settle(
        &self,
        relative: &Path,
        from: &Path,
        to: &Path,
        is_folder: bool,
        known: &BTreeMap<&Path, u64>,
    ) -> io::Result<()> {
        let found = fs::symlink_metadata(from)?;
        let id = sys::path_id(from, &found)?;
        if known.get(relative) == Some(&id.1) {
            return fs::remove_file(from);
        }
        let there = match fs::symlink_metadata(to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return sys::rename_to_free_name(from, to);
            }
            there => there?,
        };
        if is_folder && there.is_dir() {
            return Ok(());
        }
        let is_same = sys::path_id(to, &there)? == id
            || (found.is_symlink() && fs::read_link(from)? == fs::read_link(to).unwrap_or_default());
        let is_new = self.add.iter().any(|(path, _)| Path::new(path) == relative);
        if is_same {
            fs::remove_file(from)
        } else if is_new || is_folder || there.is_dir() {
            // Somebody else made a file of this name in the last instant.
            let mut name = to.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{:016x}.kept", id.1));
            sys::rename_to_free_name(from, &to.with_file_name(name))
        } else if sys::modified(&found) > sys::modified(&there) {
            fs::rename(from, to)
        } else {
            fs::remove_file(from)
        }
    }
}

/// The staged folder in the hidden one.
pub(super) fn staged(outer: &Path) -> PathBuf {
    outer.join("files")
}

/// The device and the inode of a folder.
pub(super) fn identity(path: &Path) -> io::Result<FileId> {
    sys::path_id(path, &fs::metadata(path)?)
}

/// Those of a file, or of a link.
pub(super) fn link_id(path: &Path) -> io::Result<FileId> {
    sys::path_id(path, &fs::symlink_metadata(path)?)
}

/// Files of a folder with their inodes.
pub(super) fn with_inodes(folder: &Path, files: Vec<String>) -> io::Result<Vec<(String, u64)>> {
    let with_inode = |path: String| identity(&folder.join(&path)).map(|(_, inode)| (path, inode));
    files.into_iter().map(with_inode).collect()
}

/// Whether nobody has changed a file since the steps were noted.
fn is_as_noted(outer: &Path, path: &Path) -> bool {
    let noted = fs::metadata(outer.join(STEPS)).map(|found| sys::modified(&found));
    let found = fs::symlink_metadata(path).map(|found| sys::modified(&found));
    matches!((found, noted), (Ok(found), Ok(noted)) if found <= noted)
}

/// Moves a file to its place, unless an earlier run has.
fn move_file(from: &Path, to: &Path, may_replace: bool) -> io::Result<()> {
    let moved = fs::create_dir_all(folder_of(to)).and_then(|()| match may_replace {
        true => fs::rename(from, to),
        false => move_to_free_name(from, to),
    });
    moved.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound if is_there(to) => Ok(()),
        _ => Err(error),
    })
}

/// Moves a file to a free name. It may have that already beside its own, where an earlier run moved it by a link and was killed.
fn move_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    match sys::rename_to_free_name(from, to) {
        Err(error)
            if is_taken(&error) && link_id(from).is_ok_and(|from| link_id(to).is_ok_and(|to| to == from)) =>
        {
            fs::remove_file(from)
        }
        moved => moved,
    }
}

/// Whether a file could not be moved because there is another one of its name, or of the name of its folder.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory)
}

pub(super) fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests;
