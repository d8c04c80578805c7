//! A new folder that takes its place in one step, or file by file where that cannot be: what stands in the way is found out before
//! the first byte is written.
//!
//! A hidden folder beside the target has the staged folder, a token, and the steps of its publication. An existing folder is
//! exchanged with the staged one only if nothing tells them apart but the new files: the same owner, mode and attributes, and links to
//! its other files. Else its files are moved to it one by one. Where nothing can be moved there from beside it, as in the root of a
//! mount, the hidden folder is inside it.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use super::leftover::{ENDS, lock_target};
use super::lock::{TargetLock, hidden_name};
use super::planned::Planned;
use super::publication::{Publication, identity, is_there, link_id, staged, with_inodes};
use super::resume;
use super::staged::{folder_of, refuse_hub_blobs, sync_folder};
use super::walk::{into_io, remove_all, walk};
use crate::error::{Code, Error, Result};
use crate::sys::{self, copy_attributes, process_id};

/// The file that tells whose a hidden folder is, where locks do not.
const TOKEN: &str = "token";

/// How often a file is linked again that others replace at this instant.
const LINK_ATTEMPTS: u32 = 1000;

/// How a folder is written.
pub(super) struct FolderRules {
    /// Whether its files may be replaced.
    pub(super) overwrite: bool,
    /// Whether files may join those of the folder without that.
    pub(super) joins: bool,
    /// Whether an existing folder stays the same one: its files are moved to it.
    pub(super) stays: bool,
    /// Whether the hidden folder is kept for a later run if this one does not complete it.
    pub(super) resume: bool,
}

/// How the staged folder takes its place.
enum Way {
    /// There is no folder.
    New,
    /// It is exchanged with the existing one.
    Exchange,
    /// Its files are moved to the existing one.
    Move,
}

/// A folder that is being written beside its target, or inside it. Dropped, it is removed, unless it is for a later run.
pub(super) struct StagedFolder {
    target: PathBuf,
    outer: PathBuf,
    token: String,
    way: Way,
    /// Why its files are moved one by one, if that was not asked for.
    note: Option<String>,
    overwrite: bool,
    /// Whether the hidden folder is not removed.
    stays: bool,
    /// The process that made it: its forked children have copies, which do nothing.
    process: u32,
    lock: TargetLock,
}

impl StagedFolder {
    /// Locks the target, finishes what a killed run has begun to publish, and makes the hidden folder.
    ///
    /// Fails if another writer has the target, and if that has files that are not to be replaced.
    pub(super) fn create(given: &Path, planned: &Planned, rules: &FolderRules) -> Result<StagedFolder> {
        let failed = |error| Error::io(error, given.to_owned());
        let target = match fs::canonicalize(given) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => given.to_owned(),
            Err(error) => return Err(failed(error)),
        };
        refuse_hub_blobs(&target.join("_"))?;
        let lock = lock_target(&target, &target)?;
        let inside = target.join(target.file_name().unwrap_or("folder".as_ref()));
        if ENDS.iter().any(|end| hidden_name(&inside, end).exists()) {
            drop(lock_target(&inside, &target)?);
        }
        let exists = check(given, &target, planned, rules)?;
        let mut made = StagedFolder {
            outer: PathBuf::new(),
            token: format!("{:016x}", RandomState::new().hash_one(process_id())),
            way: Way::New,
            note: None,
            overwrite: rules.overwrite,
            stays: true,
            process: process_id(),
            lock,
            target,
        };
        let beside = made.make_outer(&made.target.clone(), rules.resume);
        match beside.and_then(|()| if exists { made.choose(planned, rules.stays) } else { Ok(()) }) {
            Err(error) if exists && error.code() != Code::TargetBusy => {
                made.leave();
                made.lock = lock_target(&inside, &made.target)?;
                made.way = Way::Move;
                made.note = Some(format!("nothing beside it can be moved to it ({})", error.message()));
                made.make_outer(&inside, rules.resume)?;
            }
            made => made?,
        }
        Ok(made)
    }

    /// Makes the hidden folder for a target of this name, and the staged folder in it.
    fn make_outer(&mut self, anchor: &Path, resume: bool) -> Result<()> {
        let failed = |error| Error::io(error, anchor.to_owned());
        let make = |path: &Path| sys::private_folder(path);
        if resume {
            self.lock.check_resumable(&self.target)?;
            self.outer = hidden_name(anchor, ENDS[1]);
            resume::make_folder(&self.outer)?;
        } else if self.lock.excludes_others() {
            self.outer = hidden_name(anchor, ENDS[0]);
            remove_all(&self.outer).and_then(|()| make(&self.outer)).map_err(failed)?;
        } else {
            self.outer = self.lock.temporary(make).map_err(failed)?.1;
        }
        self.stays = resume;
        let made = match fs::create_dir(staged(&self.outer)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::write(self.outer.join(TOKEN), &self.token),
        };
        // Without its token, as on a full disk, nobody would know later that it is this writer's.
        made.inspect_err(|_| if resume { self.leave() } else { drop(remove_all(&self.outer)) })
            .map_err(failed)
    }

    /// Removes the hidden folder, unless it has what an earlier run has written.
    fn leave(&self) {
        if !self.stays {
            self.remove_outer();
        } else if !self.outer.as_os_str().is_empty() {
            let _ = fs::remove_file(self.outer.join(TOKEN));
            let _ = fs::remove_dir(staged(&self.outer)).and_then(|()| fs::remove_dir(&self.outer));
        }
    }

    /// Decides how the target is replaced, by trying it. Fails if no file can be moved to the target from here.
    fn choose(&mut self, planned: &Planned, stays: bool) -> Result<()> {
        let failed = |error| Error::io(error, self.target.clone());
        let (from, to) = (self.outer.join("probe"), hidden_name(&self.target.join("rustload"), "probe"));
        // A killed run that was to be resumed may have left a folder there.
        let _ = remove_all(&from);
        let moved = fs::write(&from, "").and_then(|()| fs::rename(&from, &to));
        let moved = moved.and_then(|()| fs::remove_file(&to));
        moved.inspect_err(|_| drop(fs::remove_file(&from))).map_err(failed)?;
        self.way = Way::Move;
        if !stays {
            match self.try_exchange(&from, planned) {
                Ok(()) => self.way = Way::Exchange,
                Err(why) => self.note = Some(why),
            }
            remove_all(&from).map_err(|error| Error::io(error, from.clone()))?;
        }
        Ok(())
    }

    /// Does with folders below `probe` what [`StagedFolder::publish`] does with the staged one. Says what does not work.
    fn try_exchange(&self, probe: &Path, planned: &Planned) -> std::result::Result<(), String> {
        let (one, two, full) = (probe.join("one"), probe.join("two"), probe.join("full/x"));
        let made = [&one, &two, &full].into_iter().try_for_each(fs::create_dir_all);
        let exchanged = made.and_then(|()| sys::exchange(&one, &two));
        exchanged.map_err(|error| format!("the file system cannot exchange two folders ({error})"))?;
        // A folder that is not empty is never replaced: so this fails with that, or with what forbids to move the target.
        match fs::rename(&self.target, folder_of(&full)) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) => {}
            Err(error) => return Err(format!("the folder cannot be moved ({error})")),
            Ok(()) => return Err("the file system replaces folders that have files".to_owned()),
        }
        let mirrored = copy_attributes(&self.target, &one).and_then(|()| self.mirror(&two, planned));
        mirrored.map(drop).map_err(|error| {
            format!("a new folder cannot have the attributes and files of the old one ({error})")
        })
    }

    /// Whether the files of the staged folder are moved to an existing one.
    pub(super) fn moves_files(&self) -> bool {
        matches!(self.way, Way::Move)
    }

    /// The hidden folder.
    pub(super) fn outer(&self) -> &Path {
        &self.outer
    }

    /// The target, with links resolved.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// What tells the hidden folder from that of another writer, which locks have not kept out.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Removes from the staged folder what is not planned, such as links of an earlier run, and marks it as this writer's.
    pub(super) fn begin(&self, planned: &Planned) -> Result<()> {
        let failed = |error| Error::io(error, self.outer.clone());
        fs::create_dir_all(staged(&self.outer)).map_err(failed)?;
        walk(&staged(&self.outer), &mut |relative, entry, is_folder| {
            if is_folder || relative.to_str().is_some_and(|path| planned.paths.contains(path)) {
                return Ok(());
            }
            fs::remove_file(entry.path()).map_err(failed)
        })?;
        fs::write(self.outer.join(TOKEN), &self.token).map_err(failed)
    }

    /// The path at which a file of the folder is written. Makes the folders above it.
    pub(super) fn place_for(&self, relative: &str) -> Result<PathBuf> {
        let path = staged(&self.outer).join(relative);
        let folder = folder_of(&path);
        fs::create_dir_all(folder).map_err(|error| Error::io(error, folder.to_owned()))?;
        Ok(path)
    }

    /// Puts the folder in its place: `order` has the new files, those that name others last. Returns what to say about it.
    pub(super) fn publish(
        mut self,
        planned: &Planned,
        order: Vec<String>,
        sync: bool,
    ) -> Result<Option<String>> {
        let target = self.target.clone();
        let failed = |error| Error::io(error, target.clone());
        if fs::read_to_string(self.outer.join(TOKEN)).ok().as_ref() != Some(&self.token) {
            self.stays = true;
            return Err(Error::target_busy(&target));
        }
        for (path, old) in &planned.edited {
            let path = target.join(path);
            if fs::read(&path).map_err(|error| Error::io(error, path.clone()))? != *old {
                let text = "the file was changed while the folder was written";
                return Err(Error::new(Code::FileChanged, text).in_file(&path));
            }
        }
        let edits: BTreeSet<String> = planned.edited.keys().cloned().collect();
        let staged = staged(&self.outer);
        let remove = match self.way {
            Way::New => Vec::new(),
            Way::Exchange => {
                let remove = self.mirror(&staged, planned).map_err(failed)?;
                copy_attributes(&target, &staged).map_err(failed)?;
                remove
            }
            Way::Move => self.outdated(planned)?,
        };
        walk(&staged, &mut |_, entry, is_folder| {
            sync_folder(&entry.path(), sync && is_folder).map_err(failed)
        })?;
        sync_folder(&staged, sync).map_err(failed)?;
        let add = with_inodes(&staged, order).map_err(failed)?;
        match self.way {
            Way::New => {
                // Replaces an empty folder, in one step, and no other one.
                fs::rename(&staged, &target).map_err(failed)?;
                self.stays = false;
            }
            Way::Exchange => {
                let folder = Some(identity(&staged).map_err(failed)?);
                let steps = Publication { folder, overwrite: self.overwrite, sync, add, edits, remove };
                steps.note(&self.outer).map_err(failed)?;
                sys::exchange(&staged, &target).map_err(failed)?;
                // From here on the staged folder is the old one.
                self.stays = true;
                match steps.empty_old(&staged, &target) {
                    Ok(()) => self.stays = false,
                    Err(why) => {
                        let left = staged.display();
                        self.note = Some(format!("files of the replaced folder are left in {left} ({why})"));
                    }
                }
            }
            Way::Move => {
                let steps = Publication { folder: None, overwrite: self.overwrite, sync, add, edits, remove };
                steps.note(&self.outer).map_err(failed)?;
                let stays = std::mem::replace(&mut self.stays, true);
                if let Err(error) = steps.move_files(&self.outer, &target) {
                    if !self.overwrite {
                        (self.stays, _) = (stays, Publication::forget(&self.outer));
                    }
                    return Err(match error.kind() {
                        io::ErrorKind::AlreadyExists => Error::target_exists(&target),
                        _ if self.overwrite => failed(error).note(
                            "Some files have their new names already: the next call for this folder moves the others.",
                        ),
                        _ => failed(error),
                    });
                }
                self.stays = false;
            }
        }
        sync_folder(folder_of(&target), sync).map_err(failed)?;
        let one_by_one = |why| format!("{}: the files were replaced one by one: {why}", target.display());
        Ok(self.note.take().map(one_by_one))
    }

    /// Gives all files of the target that are not replaced a second name in a folder, where links and folders are made anew. Returns
    /// those that are replaced, with their inodes.
    fn mirror(&self, folder: &Path, planned: &Planned) -> io::Result<Vec<(String, u64)>> {
        let mut replaced = Vec::new();
        let (volume, _) = identity(&self.target)?;
        let walked = walk(&self.target, &mut |relative, entry, is_folder| {
            let mut link = || {
                let (found_volume, inode) = link_id(&entry.path())?;
                let to = folder.join(relative);
                if is_folder {
                    if found_volume != volume {
                        return Err(io::ErrorKind::CrossesDevices.into());
                    }
                    fs::create_dir_all(&to)?;
                    return copy_attributes(&entry.path(), &to);
                }
                match relative.to_str().filter(|_| planned.replaces(relative)) {
                    // It would be a file that has been made meanwhile.
                    Some(_) if !self.overwrite && planned.overwrites(relative) => {
                        Err(io::ErrorKind::AlreadyExists.into())
                    }
                    Some(path) => {
                        replaced.push((path.to_owned(), inode));
                        Ok(())
                    }
                    None if entry.file_type()?.is_symlink() => {
                        sys::symlink(fs::read_link(entry.path())?, &to)
                    }
                    None => link_again(&entry.path(), &to),
                }
            };
            match link() {
                // Somebody has removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_there(&entry.path()) => Ok(()),
                linked => linked.map_err(|error| Error::io(error, entry.path())),
            }
        });
        walked.map_err(into_io)?;
        Ok(replaced)
    }

    /// The files of the target that new ones replace under other names, with their inodes.
    fn outdated(&self, planned: &Planned) -> Result<Vec<(String, u64)>> {
        let mut outdated = Vec::new();
        walk(&self.target, &mut |relative, entry, is_folder| {
            let path = relative.to_str().filter(|path| !is_folder && !planned.paths.contains(*path));
            if let Some(path) = path.filter(|_| planned.replaces(relative)) {
                if !self.overwrite {
                    // It has been made meanwhile.
                    return Err(Error::target_exists(&entry.path()));
                }
                let (_, inode) = link_id(&entry.path()).map_err(|error| Error::io(error, entry.path()))?;
                outdated.push((path.to_owned(), inode));
            }
            Ok(())
        })?;
        Ok(outdated)
    }

    /// Removes the hidden folder, if it is this writer's.
    fn remove_outer(&self) {
        let is_own = fs::read_to_string(self.outer.join(TOKEN)).is_ok_and(|token| token == self.token);
        if is_own && self.process == process_id() {
            let _ = remove_all(&self.outer);
        }
    }
}

/// Gives a file a second name: the one that has its name now, where others take its place at this instant. The system refuses to link
/// what has lost its last name since it was looked up.
fn link_again(from: &Path, to: &Path) -> io::Result<()> {
    let mut attempts = 0;
    loop {
        match fs::hard_link(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < LINK_ATTEMPTS => {
                attempts += 1
            }
            linked => return linked,
        }
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        if !self.stays {
            self.remove_outer();
        }
    }
}

/// Whether a target exists. Fails if it is not a folder, or has files that are not to be replaced.
///
/// An error names the target as it was given.
fn check(given: &Path, target: &Path, planned: &Planned, rules: &FolderRules) -> Result<bool> {
    let has_files = match fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io(error, target.to_owned())),
    };
    if has_files && !rules.overwrite {
        if !rules.joins {
            return Err(Error::target_exists(given));
        }
        check_joins(given, planned)?;
    }
    Ok(true)
}

/// Fails if files of a plan would replace any in a folder; names the first of these.
pub(super) fn check_joins(folder: &Path, planned: &Planned) -> Result<()> {
    let mut taken: Option<PathBuf> = None;
    walk(folder, &mut |relative, entry, is_folder| {
        if planned.overwrites(relative)
            && !is_folder
            && taken.as_ref().is_none_or(|first| entry.path() < *first)
        {
            taken = Some(entry.path());
        }
        Ok(())
    })?;
    taken.map_or(Ok(()), |first| Err(Error::target_exists(&first)))
}
