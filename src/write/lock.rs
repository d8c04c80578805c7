//! Keeps two writers of one target apart, and finds what a killed one has left: a lock file beside the target.
//!
//! Each writer locks `.NAME.lock` (flock(2)) before it makes anything, and removes the file at its end. The kernel ends the lock
//! with the process, however that ends. So who has the lock may remove what an earlier writer has left: the temporary file or folder
//! `.NAME.TAG.part`. The tag stands for this boot of this machine: another machine, whose locks a network file system may not show,
//! has temporaries of its own, which are neither used nor removed here.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use super::walk::remove_all;
use crate::error::{Code, Error, Result};
use crate::sys::{self, process_id};

/// How often a lock file is opened that another writer removes meanwhile, and how many names are tried for a temporary.
const ATTEMPTS: u64 = 16;

/// Longer names of targets are shortened in hidden names: names have 255 bytes at most.
const NAME_MAX_BYTES: usize = 200;

/// A target that only one writer at a time has. Dropping it lets others write.
#[derive(Debug)]
pub(super) struct TargetLock {
    target: PathBuf,
    /// The open lock file; `None` where the file system or its permissions allow none.
    file: Option<File>,
    /// The process that has the lock. Its forked children have copies, which do nothing.
    process: u32,
}

impl TargetLock {
    /// Locks a target, and removes the temporary that a killed writer of it has left.
    ///
    /// Fails with `TargetBusy` if another writer, of this process or of another one, has locked it. Where no lock file can be made or
    /// locked, the lock keeps nobody out, and its temporaries have names that occur once.
    pub(super) fn take(target: &Path) -> Result<TargetLock> {
        let path = hidden_name(target, "lock");
        let process = process_id();
        for _ in 0..ATTEMPTS {
            let of = |file| TargetLock { target: target.to_owned(), file, process };
            let Some((file, is_new)) = open(&path) else { return Ok(of(None)) };
            match file.try_lock() {
                // The holder before may have removed the file.
                Ok(()) if !has_name(&file, &path) => {}
                Ok(()) => {
                    let lock = of(Some(file));
                    lock.sweep();
                    return Ok(lock);
                }
                Err(TryLockError::WouldBlock) => break,
                Err(TryLockError::Error(_)) => {
                    let _ = if is_new { fs::remove_file(&path) } else { Ok(()) };
                    return Ok(of(None));
                }
            }
        }
        Err(Error::target_busy(target))
    }

    /// Fails unless other writers of this target are kept out, which a resumed run needs.
    pub(super) fn check_resumable(&self, target: &Path) -> Result<()> {
        if self.excludes_others() {
            return Ok(());
        }
        let text = "other writers of this target cannot be kept out, as no file beside it can be locked";
        Err(Error::new(Code::Value, text).note("Write without resume.").in_file(target))
    }

    /// Whether other writers are kept out.
    pub(super) fn excludes_others(&self) -> bool {
        self.file.is_some()
    }

    /// Makes a temporary beside the target, of which there is one at a time: calls `make` with its path.
    pub(super) fn temporary<T>(&self, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
        let mut attempt = 0;
        loop {
            let unique = || RandomState::new().hash_one(attempt);
            let tag = self.tag().filter(|_| attempt == 0).unwrap_or_else(unique);
            let path = hidden_name(&self.target, &format!("{tag:016x}.part"));
            match make(&path) {
                Ok(made) => return Ok((made, path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What the temporaries of this boot have in their names, if only the one who has the lock can make them.
    fn tag(&self) -> Option<u64> {
        self.file.as_ref().and_then(|_| boot_tag())
    }

    /// Removes this user's temporary of a writer that was killed, as far as that is possible.
    fn sweep(&self) {
        let Some(tag) = self.tag() else { return };
        let path = hidden_name(&self.target, &format!("{tag:016x}.part"));
        if let Ok(found) = fs::symlink_metadata(&path)
            && sys::is_own_file(&path, &found)
        {
            let _ = if found.is_dir() { remove_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

impl Drop for TargetLock {
    fn drop(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|_| self.process == process_id()) {
            let _ = fs::remove_file(hidden_name(&self.target, "lock"));
            // Closing it would not end the lock while a forked child has a copy of the descriptor.
            let _ = file.unlock();
        }
    }
}

/// The hidden name beside a target that ends with `end`. It depends on the target's name alone.
pub(super) fn hidden_name(target: &Path, end: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default();
    let mut short = name.to_string_lossy().into_owned();
    if short.len() > NAME_MAX_BYTES || short.contains(char::REPLACEMENT_CHARACTER) {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let start: String = short.chars().take(NAME_MAX_BYTES / 4).collect();
        short = format!("{start}.{:016x}", hasher.finish());
    }
    target.with_file_name(format!(".{short}.{end}"))
}

/// Stands for this boot of this machine; `None` if that is not known.
fn boot_tag() -> Option<u64> {
    let boot = sys::boot_id();
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

/// Opens a lock file, and makes it if there is none: says which. One of another user may be locked if it may be read.
fn open(path: &Path) -> Option<(File, bool)> {
    for _ in 0..ATTEMPTS {
        // An existing file is opened without O_CREAT, which `fs.protected_regular` forbids for files of other users.
        for writable in [true, false] {
            if let Ok(file) = sys::lock_file(path, writable) {
                return file.metadata().is_ok_and(|found| found.is_file()).then_some((file, false));
            }
        }
        match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.ok().map(|file| (file, true)),
        }
    }
    None
}

/// Whether a path is the name of an open file.
fn has_name(file: &File, path: &Path) -> bool {
    let open = file.metadata().and_then(|found| sys::file_id(file, &found));
    let named = fs::symlink_metadata(path).and_then(|found| sys::path_id(path, &found));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn one_writer_at_a_time_has_a_target_and_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        let lock = TargetLock::take(&one).unwrap();
        assert_eq!(TargetLock::take(&one).unwrap_err().code(), Code::TargetBusy);
        let other = TargetLock::take(&two).unwrap();
        drop((lock, other));
        assert!(TargetLock::take(&one).unwrap().excludes_others());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn many_threads_never_have_a_target_at_once() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("a");
        let (holders, taken) = (std::sync::atomic::AtomicU32::new(0), std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let Ok(lock) = TargetLock::take(&target) else { continue };
                        assert_eq!(holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        // So that another thread opens the file that this one is about to remove.
                        std::thread::sleep(std::time::Duration::from_micros(50));
                        holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    // Without the number of the boot, as on Windows, nobody knows that a temporary is of a killed writer.
    #[cfg(unix)]
    #[test]
    fn what_a_killed_writer_has_left_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("a");
        let mut lock = TargetLock::take(&target).unwrap();
        let ((), part) = lock.temporary(|path| fs::create_dir(path)).unwrap();
        fs::write(part.join("shard"), "data").unwrap();
        // As after SIGKILL, and as where a forked child drops it: the lock ends, the files stay.
        lock.process = 0;
        drop(lock);
        assert!(root.path().join(".a.lock").exists());
        let others = ["a", ".b.0123456789abcdef.part", ".a.0123456789abcdef.part", ".a.part", ".a.resume"];
        for name in others {
            fs::write(root.path().join(name), name).unwrap();
        }
        let lock = TargetLock::take(&target).unwrap();
        assert!(!part.exists());
        let (_, again) = lock.temporary(|path| File::create_new(path)).unwrap();
        assert_eq!(again, part);
        fs::remove_file(again).unwrap();
        drop(lock);
        // Another user's, which only root can make, may be of a writer that this one cannot see.
        #[cfg(unix)]
        {
            fs::write(&part, "").unwrap();
            if std::os::unix::fs::chown(&part, Some(1), None).is_ok() {
                drop(TargetLock::take(&target).unwrap());
            }
            fs::remove_file(&part).unwrap();
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), others.len());
    }

    // On Windows, links need a privilege.
    #[cfg(unix)]
    #[test]
    fn where_no_lock_can_be_made_temporaries_have_names_that_occur_once() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("a");
        std::os::unix::fs::symlink("elsewhere", root.path().join(".a.lock")).unwrap();
        let locks = [TargetLock::take(&target).unwrap(), TargetLock::take(&target).unwrap()];
        assert!(locks.iter().all(|lock| !lock.excludes_others()));
        let paths = locks.each_ref().map(|lock| lock.temporary(|path| File::create_new(path)).unwrap().1);
        assert_ne!(paths[0], paths[1]);
        drop(locks);
        assert!(!root.path().join("elsewhere").exists() && root.path().join(".a.lock").is_symlink());
    }

    #[test]
    fn targets_have_hidden_names_of_their_own() {
        let name = |target: &str| hidden_name(Path::new(target), "resume").file_name().unwrap().len();
        let path = hidden_name(Path::new("/x/m.safetensors"), "resume");
        assert_eq!(path, Path::new("/x/.m.safetensors.resume"));
        assert!(name(&"a".repeat(255)) < 255 && name(&"\u{6f22}".repeat(85)) < 255);
        let ends = ["b", "c"].map(|end| hidden_name(Path::new(&("a".repeat(250) + end)), "resume"));
        assert_ne!(ends[0], ends[1]);
    }
}
