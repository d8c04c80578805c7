//! What a killed process has written, kept for the next one: a folder beside the target with a plan, a journal and the data.
//!
//! The plan is a text that says all that decides the bytes of the files: their headers, and for each tensor the version of its source
//! and the conversion. The next run continues only if its own plan is the same text, else it starts anew. The journal has a line for
//! each tensor that was written whole. A crash of the machine may lose data that the journal has: a line counts only in the boot in
//! which it was written, or if its file was on the disk (fsync) before the line was. Nothing counts of a file whose fsync failed. A [`TargetLock`] keeps two writers apart.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::Values;
use super::lock::{TargetLock, hidden_name};
use super::staged::StagedFile;
use super::walk::remove_all;
use crate::container::safetensors::FilePlan;
use crate::error::{Code, Error, Result};
use crate::parallel::lock;
use crate::sys;

/// The version of plan and journal.
const FORMAT: &str = "rustload resume 2";

/// The largest journal or plan that is read: larger ones start anew.
const TEXT_MAX_BYTES: u64 = 1 << 30;

/// The folder in which a target is prepared. It stays if the target is not completed.
pub(super) struct Staging {
    folder: PathBuf,
    /// Keeps other writers of the target out; `None` if the caller has the lock.
    lock: Option<TargetLock>,
    journal: Mutex<File>,
    finished: Mutex<Finished>,
}

/// What an earlier run has written.
#[derive(Debug, Default, PartialEq, Eq)]
struct Finished {
    /// Files, by their numbers, that are on the disk.
    files: HashSet<usize>,
    /// Tensors, by the numbers of file and tensor.
    tensors: HashSet<(usize, usize)>,
}

impl Finished {
    fn restart(&mut self, file: usize) {
        self.files.remove(&file);
        self.tensors.retain(|tensor| tensor.0 != file);
    }
}

/// One file of a target, and what an earlier run has written of it.
pub(super) struct ResumedFile<'s> {
    staging: &'s Staging,
    number: usize,
    is_single: bool,
}

impl ResumedFile<'_> {
    /// Opens the file that will be named `path`: with the data of an earlier run, or empty.
    pub(super) fn open(&self, path: &Path, len: u64, overwrite: bool) -> Result<StagedFile> {
        let data = self.staging.folder.join(format!("data-{}", self.number));
        if !self.is_single && !data.exists() && path.exists() {
            // It was complete, and has got its name in the folder.
            fs::rename(path, &data).map_err(|error| Error::io(error, path.to_owned()))?;
        }
        let (file, is_there) = StagedFile::resume(path, len, overwrite, data)?;
        if !is_there {
            lock(&self.staging.finished).restart(self.number);
            self.staging.note(&format!("restart {}\n", self.number))?;
        }
        Ok(file)
    }

    /// Whether an earlier run has written a tensor.
    pub(super) fn has_tensor(&self, tensor: usize, values: &Values) -> bool {
        let finished = lock(&self.staging.finished);
        let is_written =
            finished.files.contains(&self.number) || finished.tensors.contains(&(self.number, tensor));
        is_written && values.identity().is_some()
    }

    /// Notes that a tensor is written. What has no identity will be written again.
    pub(super) fn finish_tensor(&self, tensor: usize, values: &Values) -> Result<()> {
        match values.identity() {
            Some(_) => self.staging.note(&format!("tensor {} {tensor}\n", self.number)),
            None => Ok(()),
        }
    }

    /// Notes, on the disk, that the file is about to be written to the disk. If that fails, the kernel forgets that pages are missing
    /// there, so a later run trusts nothing of a file that has this note and no [`finish`](Self::finish) after it.
    pub(super) fn begin_sync(&self) -> Result<()> {
        self.staging.note(&format!("sync {}\n", self.number))?;
        let journal = lock(&self.staging.journal);
        sys::sync_file(&journal).map_err(|error| Error::io(error, self.staging.folder.clone()))
    }

    /// Notes that all tensors of the file are written and on the disk.
    pub(super) fn finish(&self) -> Result<()> {
        self.staging.note(&format!("file {}\n", self.number))
    }
}

impl Staging {
    /// Opens the folder of a target, and begins anew unless it has what an earlier run with the same plan has left.
    ///
    /// Fails with `TargetBusy` if another writer has the target.
    pub(super) fn open(target: &Path, plan: &str) -> Result<Staging> {
        let lock = TargetLock::take(target)?;
        let folder = hidden_name(target, "resume");
        make_folder(&folder)?;
        lock.check_resumable(target)?;
        Ok(Staging { lock: Some(lock), ..Staging::open_in(folder, plan)? })
    }

    /// As [`Staging::open`], with the folder made, and the target locked by the caller.
    pub(super) fn open_in(folder: PathBuf, plan: &str) -> Result<Staging> {
        let failed = |error| Error::io(error, folder.clone());
        let boot = sys::boot_id();
        let (plan_path, journal_path) = (folder.join("plan"), folder.join("journal"));
        let mut finished = Finished::default();
        let mut valid = 0;
        if read(&plan_path).is_some_and(|found| found == plan.as_bytes()) {
            let journal = read(&journal_path).unwrap_or_default();
            (finished, valid) = parse(&journal, boot.trim());
        }
        if valid == 0 {
            (finished, valid) = (Finished::default(), 0);
            clear(&folder).map_err(failed)?;
            let mut file = sys::append_private_file(&plan_path).map_err(failed)?;
            file.write_all(plan.as_bytes()).and_then(|()| sys::sync_file(&file)).map_err(failed)?;
        }
        let mut journal = sys::append_private_file(&journal_path).map_err(failed)?;
        // What follows the last whole line was being written when the process was killed.
        journal.set_len(valid).map_err(failed)?;
        writeln!(journal, "boot {}", boot.trim()).map_err(failed)?;
        Ok(Staging { folder, lock: None, journal: Mutex::new(journal), finished: Mutex::new(finished) })
    }

    /// The target, if that is one file.
    pub(super) fn single_file(&self) -> ResumedFile<'_> {
        ResumedFile { staging: self, number: 0, is_single: true }
    }

    /// A file of the target, if that is a folder.
    pub(super) fn file(&self, number: usize) -> ResumedFile<'_> {
        ResumedFile { staging: self, number, is_single: false }
    }

    fn note(&self, line: &str) -> Result<()> {
        let mut journal = lock(&self.journal);
        journal.write_all(line.as_bytes()).map_err(|error| Error::io(error, self.folder.clone()))
    }

    /// Removes the folder, once the target is complete.
    pub(super) fn remove(self) {
        // Closed first: `remove_all` says why.
        drop(self.journal);
        let _ = remove_all(&self.folder);
        drop(self.lock);
    }
}

/// Adds a file to the text of a plan.
pub(super) fn describe(text: &mut String, file: &str, plan: &FilePlan, tensors: &[(String, Values)]) {
    if text.is_empty() {
        let _ = writeln!(text, "{FORMAT}, rustload {}", env!("CARGO_PKG_VERSION"));
    }
    let head = String::from_utf8_lossy(plan.head.get(8..).unwrap_or_default());
    let _ = writeln!(text, "file {file:?}: {} bytes, {}", plan.len, head.trim_end());
    for (name, values) in tensors {
        // Without an identity it is written in every run.
        let identity = values.identity().unwrap_or_default();
        let _ = writeln!(text, "tensor {name:?}: {identity}");
    }
}

/// Makes the folder if there is none, and checks that what it has is of this user.
pub(super) fn make_folder(folder: &Path) -> Result<()> {
    let failed = |error| Error::io(error, folder.to_owned());
    match sys::private_folder(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // What it has would become the target.
    if sys::is_private_folder(folder).map_err(failed)? {
        return Ok(());
    }
    let text = "this folder of an earlier run belongs to another user, or others may write to it";
    Err(Error::new(Code::Value, text).note("Remove it, or write without resume.").in_file(folder))
}

/// The bytes of a regular file; `None` if it cannot be read.
fn read(path: &Path) -> Option<Vec<u8>> {
    let metadata = fs::symlink_metadata(path).ok()?;
    (metadata.is_file() && metadata.len() <= TEXT_MAX_BYTES).then(|| fs::read(path).ok())?
}

/// Removes everything in a folder.
fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_all(&entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// What a journal says to be finished in this boot of the machine, and the length of its valid lines.
fn parse(journal: &[u8], boot: &str) -> (Finished, u64) {
    let mut finished = Finished::default();
    // Files of which it is not known that they got to the disk.
    let mut syncing = HashSet::new();
    let (mut valid, mut is_this_boot) = (0, false);
    for line in journal.split_inclusive(|&byte| byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n").and_then(|line| str::from_utf8(line).ok()) else { break };
        let words: Vec<&str> = text.split(' ').collect();
        let numbers: Option<Vec<usize>> = words[1..].iter().map(|word| word.parse().ok()).collect();
        match (words[0], numbers.as_deref()) {
            ("boot", _) => is_this_boot = !boot.is_empty() && words[1..] == [boot],
            ("tensor", Some(&[file, tensor])) => {
                if is_this_boot {
                    finished.tensors.insert((file, tensor));
                }
            }
            ("file", Some(&[file])) => {
                finished.files.insert(file);
                syncing.remove(&file);
            }
            ("sync", Some(&[file])) => {
                syncing.insert(file);
            }
            ("restart", Some(&[file])) => {
                finished.restart(file);
                syncing.remove(&file);
            }
            _ => break,
        }
        valid += crate::num::to_u64(line.len());
    }
    syncing.into_iter().for_each(|file| finished.restart(file));
    (finished, valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_earlier_boot_count_only_for_files_on_the_disk() {
        let journal = b"boot one\ntensor 0 0\ntensor 0 1\nfile 0\ntensor 1 0\nboot two\ntensor 1 5\nten";
        let (one, valid) = parse(journal, "one");
        assert_eq!(one.files, HashSet::from([0]));
        assert_eq!(one.tensors, HashSet::from([(0, 0), (0, 1), (1, 0)]));
        assert_eq!(valid, journal.len() as u64 - 3);
        let (two, _) = parse(journal, "two");
        assert_eq!((two.files, two.tensors), (HashSet::from([0]), HashSet::from([(1, 5)])));
        let (three, _) = parse(journal, "");
        assert_eq!((three.files, three.tensors), (HashSet::from([0]), HashSet::new()));
        let (restarted, _) = parse(b"boot one\nfile 0\ntensor 0 1\ntensor 1 1\nrestart 0\n", "one");
        assert_eq!((restarted.files, restarted.tensors), (HashSet::new(), HashSet::from([(1, 1)])));
        let unknown = parse(b"boot one\ntensor 0 0\ntensor 1 0\nfile 1\nsync 0\nsync 1\nfile 1\n", "one").0;
        assert_eq!((unknown.files, unknown.tensors), (HashSet::from([1]), HashSet::from([(1, 0)])));
        let again = parse(b"boot one\nsync 0\nrestart 0\ntensor 0 1\n", "one").0;
        assert_eq!(again.tensors, HashSet::from([(0, 1)]));
        assert_eq!(parse(b"boot one\ntensor 0 x\ntensor 0 1\n", "one"), (Finished::default(), 9));
    }

    #[test]
    fn another_plan_starts_anew_and_a_second_process_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("model.safetensors");
        let staging = Staging::open(&target, "plan").unwrap();
        staging.note("tensor 0 3\n").unwrap();
        let has_tensor = |staging: &Staging, tensor| lock(&staging.finished).tensors.contains(&(0, tensor));
        fs::write(staging.folder.join("data-0"), "data").unwrap();
        assert_eq!(Staging::open(&target, "plan").err().unwrap().code(), Code::TargetBusy);
        drop(staging);
        let again = Staging::open(&target, "plan").unwrap();
        // Where boots cannot be told apart, as on Windows, only whole files are kept.
        let keeps_tensors = !sys::boot_id().is_empty();
        assert_eq!(has_tensor(&again, 3), keeps_tensors);
        assert!(!has_tensor(&again, 2) && (!keeps_tensors || again.folder.join("data-0").exists()));
        drop(again);
        let other = Staging::open(&target, "another plan").unwrap();
        assert!(!has_tensor(&other, 3) && !other.folder.join("data-0").exists());
        other.remove();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    // Windows has no modes, and links need a privilege there.
    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("a");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::create_dir(hidden_name(&target, "resume")).unwrap();
        fs::set_permissions(hidden_name(&target, "resume"), mode).unwrap();
        assert_eq!(Staging::open(&target, "plan").err().unwrap().code(), Code::Value);
        fs::remove_dir(hidden_name(&target, "resume")).unwrap();
        std::os::unix::fs::symlink(root.path(), hidden_name(&target, "resume")).unwrap();
        assert_eq!(Staging::open(&target, "plan").err().unwrap().code(), Code::Io);
    }
}
