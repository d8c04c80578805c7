//! How the files of a staged folder get into the target, in steps that a later run can finish.
//!
//! The steps are in a file beside the staged folder, which is complete before the first of them. After a kill, the next writer that locks the
//! target finishes them ([`Publication::finish`]). A step that was done has no effect when it is done again.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::os;
use super::staged::{folder_of, sync_folder};
use super::walk::{into_io, walk};
use crate::error::{Error, Result};

/// How often the old folder is emptied while other programs make files in it.
const EMPTYING_ATTEMPTS: u32 = 1000;

/// The name of the file that has the steps.
const STEPS: &str = "publish";

/// The steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Publication {
    /// The device and the inode of the staged folder, if that takes the place of the target as a whole. Otherwise its files are moved
    /// to the target one by one.
    pub(super) folder: Option<(u64, u64)>,
    /// The new files, in the order in which they are moved: those that name others last.
    pub(super) add: Vec<String>,
    /// The files of an earlier version, and the inode of each. If files are moved, these are removed after it, in this order.
    pub(super) remove: Vec<(String, u64)>,
}

impl Publication {
    /// Notes the steps; with `sync`, on the disk.
    pub(super) fn note(&self, outer: &Path, sync: bool) -> io::Result<()> {
        let value = json!({"folder": self.folder, "add": self.add, "remove": self.remove});
        let mut file = fs::File::create(outer.join(STEPS))?;
        writeln!(file, "{value}")?;
        if sync {
            file.sync_all()?;
        }
        sync_folder(outer, sync)
    }

    /// The steps that an earlier run has noted. `None` if it has come to none.
    fn noted(outer: &Path) -> Option<Publication> {
        // A line that was not completed is from before the first step.
        let text = fs::read_to_string(outer.join(STEPS)).ok().filter(|text| text.ends_with('\n'))?;
        let value: Value = serde_json::from_str(&text).ok()?;
        let add = value["add"].as_array()?.iter().map(|path| Some(path.as_str()?.to_owned()));
        let remove = value["remove"].as_array()?.iter();
        let remove = remove.map(|one| Some((one[0].as_str()?.to_owned(), one[1].as_u64()?)));
        let folder = match &value["folder"] {
            Value::Null => None,
            folder => Some((folder[0].as_u64()?, folder[1].as_u64()?)),
        };
        Some(Publication { folder, add: add.collect::<Option<_>>()?, remove: remove.collect::<Option<_>>()? })
    }

    /// Finishes what an earlier run has begun. Returns whether the target is complete by that: else nothing of it was touched.
    pub(super) fn finish(outer: &Path, target: &Path) -> Result<bool> {
        let Some(publication) = Publication::noted(outer) else { return Ok(false) };
        let done = match publication.folder {
            None => publication.move_files(outer, target, true).map(|()| true),
            Some(folder) if identity(target).is_ok_and(|found| found == folder) => {
                publication.empty_old(&staged(outer), target).map(|()| true)
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

    /// Moves the new files to the target one by one, and removes those of the earlier version.
    ///
    /// A reader that goes by an index sees the old files, until the new index takes the place of the old one, and then the new files.
    /// Without `overwrite`, fails if there is a file of a new name, and moves the others back.
    pub(super) fn move_files(&self, outer: &Path, target: &Path, overwrite: bool) -> io::Result<()> {
        let staged = staged(outer);
        for (number, path) in self.add.iter().enumerate() {
            let (from, to) = (staged.join(path), target.join(path));
            let moved = fs::create_dir_all(folder_of(&to)).and_then(|()| match overwrite {
                true => fs::rename(&from, &to),
                false => os::rename_to_free_name(&from, &to),
            });
            match moved {
                // An earlier run has moved it.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_there(&to) => {}
                Err(error) if !overwrite => {
                    for path in &self.add[..number] {
                        let _ = fs::rename(target.join(path), staged.join(path));
                    }
                    return Err(error);
                }
                moved => moved?,
            }
        }
        for (path, inode) in &self.remove {
            let path = target.join(path);
            if fs::symlink_metadata(&path).is_ok_and(|found| found.ino() == *inode) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Removes the old folder, which has exchanged its place with the new one. What the new folder lacks moves over to it: other
    /// programs may have made or replaced files since theirs got a second name there.
    pub(super) fn empty_old(&self, old: &Path, new: &Path) -> io::Result<()> {
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
        if known.get(relative) == Some(&found.ino()) {
            return fs::remove_file(from);
        }
        let there = match fs::symlink_metadata(to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return os::rename_to_free_name(from, to);
            }
            there => there?,
        };
        if is_folder && there.is_dir() {
            return Ok(());
        }
        let is_same = (there.dev(), there.ino()) == (found.dev(), found.ino())
            || (found.is_symlink() && fs::read_link(from)? == fs::read_link(to).unwrap_or_default());
        let is_new = self.add.iter().any(|path| Path::new(path) == relative);
        let modified = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec());
        if is_same {
            fs::remove_file(from)
        } else if is_new || is_folder || there.is_dir() {
            // Somebody else made a file of this name in the last instant.
            let mut name = to.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{:016x}.kept", found.ino()));
            os::rename_to_free_name(from, &to.with_file_name(name))
        } else if modified(&found) > modified(&there) {
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
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::super::folder::tests::names;
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            fs::create_dir_all(folder_of(&root.join(path))).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
    }

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    /// A hidden folder with two staged files, and a target with two old ones and one of others.
    fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let (outer, target) = (root.path().join("outer"), root.path().join("target"));
        write(&staged(&outer), &[("new", "new"), ("sub/index", "new")]);
        write(&target, &[("old", "old"), ("sub/index", "old"), ("others", "others")]);
        (root, outer, target)
    }

    #[test]
    fn files_are_moved_by_the_next_run_whatever_was_moved_before() {
        for done in 0..=3 {
            let (_root, outer, target) = folders();
            let add = vec!["new".to_owned(), "sub/index".to_owned()];
            let remove = vec![("old".to_owned(), inode(&target.join("old")))];
            let steps = Publication { folder: None, add, remove };
            assert!(!Publication::finish(&outer, &target).unwrap());
            steps.note(&outer, false).unwrap();
            assert_eq!(Publication::noted(&outer), Some(steps));
            for path in ["new", "sub/index"].iter().take(done) {
                fs::rename(staged(&outer).join(path), target.join(path)).unwrap();
            }
            if done == 3 {
                fs::remove_file(target.join("old")).unwrap();
            }
            assert!(Publication::finish(&outer, &target).unwrap());
            assert_eq!(names(&target), ["new", "others", "sub"], "{done}");
            assert_eq!(fs::read_to_string(target.join("sub/index")).unwrap(), "new");
            assert_eq!(Publication::noted(&outer), None);
        }
    }

    #[test]
    fn an_old_file_that_somebody_has_replaced_is_kept() {
        let (_root, outer, target) = folders();
        let remove = vec![("old".to_owned(), inode(&target.join("old")))];
        write(&target, &[("later", "later")]);
        fs::rename(target.join("later"), target.join("old")).unwrap();
        let steps = Publication { folder: None, add: vec!["new".to_owned()], remove };
        steps.move_files(&outer, &target, true).unwrap();
        assert_eq!(names(&target), ["new", "old", "others", "sub"]);
    }

    #[test]
    fn without_overwriting_a_taken_name_moves_the_others_back() {
        let (_root, outer, target) = folders();
        let add = vec!["new".to_owned(), "sub/index".to_owned()];
        let steps = Publication { folder: None, add, remove: Vec::new() };
        let error = steps.move_files(&outer, &target, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(
            (names(&target), names(&staged(&outer))),
            (
                ["old", "others", "sub"].map(str::to_owned).to_vec(),
                ["new", "sub"].map(str::to_owned).to_vec(),
            )
        );
    }

    #[test]
    fn an_exchanged_folder_is_emptied_and_what_is_new_in_it_moves_over() {
        for killed in [false, true] {
            let (_root, outer, target) = folders();
            let remove = ["old", "sub/index"].map(|path| (path.to_owned(), inode(&target.join(path))));
            fs::hard_link(target.join("others"), staged(&outer).join("others")).unwrap();
            let folder = Some(identity(&staged(&outer)).unwrap());
            let add = vec!["new".to_owned(), "sub/index".to_owned()];
            let steps = Publication { folder, add, remove: remove.to_vec() };
            steps.note(&outer, false).unwrap();
            assert!(!Publication::finish(&outer, &target).unwrap(), "not yet exchanged");
            steps.note(&outer, false).unwrap();
            // Of others, in the last instant: new ones, a newer version, and one with the name of a new file.
            write(
                &target,
                &[("sub/late", "late"), ("deep/er/late", "late"), ("later", "later"), ("new", "theirs")],
            );
            fs::rename(target.join("later"), target.join("others")).unwrap();
            os::exchange(&staged(&outer), &target).unwrap();
            match killed {
                true => assert!(Publication::finish(&outer, &target).unwrap()),
                false => steps.empty_old(&staged(&outer), &target).unwrap(),
            }
            assert!(!staged(&outer).exists());
            let kept = names(&target).into_iter().filter(|name| name.ends_with(".kept")).collect::<Vec<_>>();
            assert_eq!(kept.len(), 1);
            let read = |path: &str| fs::read_to_string(target.join(path)).unwrap();
            assert_eq!([read("new"), read(&kept[0]), read("others")], ["new", "theirs", "later"]);
            assert_eq!([read("sub/late"), read("deep/er/late"), read("sub/index")], ["late", "late", "new"]);
            assert!(!target.join("old").exists());
        }
    }
}
