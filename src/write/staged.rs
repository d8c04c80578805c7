//! A new file that appears under its name only when it is complete.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::lock::TargetLock;
use super::manifest::PieceDigests;
pub(super) use super::target::{check_target, folder_of, refuse_hub_blobs, sync_folder};
use crate::bytes::{ListedFile, Source};
use crate::error::{Error, Result};
use crate::num::{to_u64, to_usize};
use crate::stream::ByteTarget;
use crate::sys::{self, FileExt, process_id};

/// A file that is being written. Until [`StagedFile::commit`] nothing has its name, and a file that already had it stays as it is.
/// Dropping it removes what was written.
#[derive(Debug)]
pub(crate) struct StagedFile {
    file: File,
    target: PathBuf,
    /// The name of the file while it is written. `None` if it has none yet.
    temporary: Option<PathBuf>,
    overwrite: bool,
    /// Whether the kernel is to write data to the disk while more is made.
    writes_back: bool,
    /// The process that removes the data if it is not completed, and no forked child of it; `None` if the data stays under its
    /// temporary name.
    remover: Option<u32>,
    /// Keeps other writers of the target out; `None` if the caller has the lock.
    lock: Option<TargetLock>,
    /// Those of what is written, for a manifest.
    digests: Option<PieceDigests>,
}

/// What the error says if the folder of a new file cannot be written to the disk.
pub(super) const IN_PLACE: &str =
    "The target is complete and in its place; only a crash of the machine could undo that.";

/// The least bytes of one write after which the kernel is asked to write them to the disk.
const WRITE_BACK_MIN_BYTES: usize = 1 << 20;

impl StagedFile {
    /// Creates a file of `len` bytes that will be named `target`, and reserves its space. If `target` is a symbolic link, the file
    /// that it points to is replaced.
    ///
    /// The mode is that of the file it replaces, or what the umask leaves of 0666. Fails if there is such a file and `overwrite` is
    /// false, if `target` is not a regular file or a link to nothing, inside the blobs of a Hugging Face cache, if another writer has it,
    /// and if the disk has too little space.
    pub(crate) fn create(target: &Path, len: u64, overwrite: bool) -> Result<StagedFile> {
        let (target, replaced) = check_target(target, overwrite)?;
        let lock = TargetLock::take(&target)?;
        let (file, temporary) = match sys::unnamed_file(folder_of(&target)) {
            Some(file) => (file, None),
            None => {
                let made = lock.temporary(sys::named_file);
                let (file, path) = made.map_err(|error| Error::io(error, target.clone()))?;
                (file, Some(path))
            }
        };
        let (lock, digests) = (Some(lock), None);
        let staged = StagedFile {
            file,
            target,
            temporary,
            overwrite,
            writes_back: false,
            remover: Some(process_id()),
            lock,
            digests,
        };
        staged.prepare(replaced, len)?;
        Ok(staged)
    }

    /// As [`StagedFile::create`], with the data in a file of this name, which stays if it is not completed. Also returns whether it was
    /// there, with this size; any other file there is replaced. The caller has the target's lock.
    pub(crate) fn resume(
        target: &Path,
        len: u64,
        overwrite: bool,
        data: PathBuf,
    ) -> Result<(StagedFile, bool)> {
        let (target, replaced) = check_target(target, overwrite)?;
        let failed = |error| Error::io(error, data.clone());
        let is_there = fs::symlink_metadata(&data).is_ok_and(|found| found.is_file() && found.len() == len);
        let file = if is_there {
            sys::existing_file(&data).map_err(failed)?
        } else {
            match fs::remove_file(&data) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => sys::named_file(&data).map_err(failed)?,
            }
        };
        let (temporary, lock, digests) = (Some(data), None, None);
        let (writes_back, remover) = (false, None);
        let staged = StagedFile { file, target, temporary, overwrite, writes_back, remover, lock, digests };
        staged.prepare(replaced, len)?;
        Ok((staged, is_there))
    }

    /// Sets the mode, and reserves the space.
    fn prepare(&self, permissions: Option<fs::Permissions>, len: u64) -> Result<()> {
        let failed = |error| Error::io(error, self.target.clone());
        if let Some(permissions) = permissions {
            self.file.set_permissions(permissions).map_err(failed)?;
        }
        sys::reserve(&self.file, len).map_err(failed)
    }

    /// Waits until the data is on the disk. If that fails, it is not kept: pages that are missing there look written afterwards.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let synced = sys::sync_file(&self.file).and_then(|()| sys::flush(&self.file));
        if synced.is_err() {
            self.distrust();
        }
        synced.map_err(|error| Error::io(error, self.target.clone()))
    }

    /// Removes the data too, if it is not completed.
    pub(crate) fn distrust(&mut self) {
        self.remover = Some(process_id());
    }

    /// Lets the kernel begin to write the data to the disk as soon as it is in the page cache. So fsync has little to wait for, and
    /// few pages are dirty, which a cgroup with a memory limit cannot reclaim at once.
    pub(crate) fn start_write_back(&mut self) {
        self.writes_back = true;
    }

    /// Hashes what is written from now on to this file of `len` bytes, for a manifest.
    pub(super) fn hash_pieces(&mut self, len: u64) {
        self.digests = Some(PieceDigests::new(len));
    }

    /// The file as a manifest lists it, once all is written; `None` for an empty one, and without [`StagedFile::hash_pieces`].
    pub(super) fn listed(&mut self) -> Result<Option<ListedFile>> {
        let digests = self.digests.take();
        digests.map_or(Ok(None), |digests| digests.finish(|offset, out| self.read_at(offset, out)))
    }

    fn wrote(&self, offset: u64, nbytes: usize) {
        if self.writes_back && nbytes >= WRITE_BACK_MIN_BYTES {
            sys::start_write_back(&self.file, offset, to_u64(nbytes));
        }
    }

    /// Fills `out` with the bytes at an offset.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset).map_err(|error| Error::io(error, self.target.clone()))
    }

    /// Waits until the data is on the disk, and drops it from the page cache, so that later reads are of the disk.
    pub(crate) fn sync_and_drop_cache(&mut self) -> Result<()> {
        self.sync()?;
        sys::drop_cache(&self.file);
        Ok(())
    }

    /// The name that the file will have.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Gives the file its name, which replaces a file of that name in one step. With `sync`, file and folder are on the disk before
    /// this returns.
    ///
    /// Without `sync`, errors that file systems report only when a file is closed are found before it gets its name. If the folder
    /// cannot be written to the disk, the error says that the file is complete.
    pub(crate) fn commit(mut self, sync: bool) -> Result<()> {
        if sync {
            self.sync()?;
        }
        let target = self.target.clone();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::target_exists(&target),
            _ => Error::io(error, target.clone()),
        };
        if let Err(error) = sys::flush(&self.file) {
            self.distrust();
            return Err(failed(error));
        }
        // Opened before, so that only writing it to the disk can fail afterwards.
        let folder = if sync { Some(sys::open_folder(folder_of(&target)).map_err(failed)?) } else { None };
        self.publish().map_err(failed)?;
        match folder.map_or(Ok(()), |folder| sys::sync_folder(&folder)) {
            Err(error) => Err(failed(error).note(IN_PLACE)),
            Ok(()) => Ok(()),
        }
    }

    fn publish(&mut self) -> io::Result<()> {
        match (&self.temporary, self.overwrite) {
            (None, false) => sys::name_file(&self.file, &self.target)?,
            (Some(temporary), false) => sys::rename_to_free_name(temporary, &self.target)?,
            (Some(temporary), true) => fs::rename(temporary, &self.target)?,
            (None, true) => self.name_or_replace()?,
        }
        self.temporary = None;
        Ok(())
    }

    /// Gives an unnamed file its name. Only a named file can replace another one: where there is one, this has another name before.
    fn name_or_replace(&mut self) -> io::Result<()> {
        match sys::name_file(&self.file, &self.target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            named => return named,
        }
        // A file without a name has the lock.
        let lock = self.lock.as_ref().ok_or(io::ErrorKind::AlreadyExists)?;
        let ((), named) = lock.temporary(|path| sys::name_file(&self.file, path))?;
        fs::rename(self.temporary.insert(named), &self.target)
    }
}

impl ByteTarget for StagedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| Error::io(error, self.target.clone()))?;
        self.wrote(offset, bytes.len());
        if let Some(digests) = &self.digests {
            digests.update(offset, bytes);
        }
        Ok(())
    }

    /// Copies all bytes of a source to an offset, inside the kernel. False if the kernel cannot do that for this source, or they are
    /// to be hashed; then some bytes may have been written.
    fn copy_at(&self, offset: u64, source: &Source) -> Result<bool> {
        if self.digests.is_some() {
            return Ok(false);
        }
        let is_copied = source.copy_to_file(&self.file, offset)?;
        if is_copied {
            self.wrote(offset, to_usize(source.len()));
        }
        Ok(is_copied)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        let is_mine = self.remover == Some(process_id());
        if let Some(temporary) = self.temporary.as_ref().filter(|_| is_mine) {
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let staged = StagedFile::create(&target, 6, false).unwrap();
        staged.write_at(3, b"def").unwrap();
        staged.write_at(0, b"abc").unwrap();
        assert!(!target.exists());
        staged.commit(true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"abcdef");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn nothing_is_left_of_a_file_that_was_not_completed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        drop(StagedFile::create(&target, 1 << 20, false).unwrap());
        fs::write(&target, "old").unwrap();
        drop(StagedFile::create(&target, 3, true).unwrap());
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_copy_in_a_forked_child_removes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (target, part) = (folder.path().join("a"), folder.path().join("part"));
        for (process, is_left) in [(0, true), (process_id(), false)] {
            fs::write(&part, "").unwrap();
            let mut staged = StagedFile::create(&target, 3, false).unwrap();
            // As where the file system has no files without a name.
            staged.temporary = Some(part.clone());
            staged.remover = Some(process);
            drop(staged);
            assert_eq!(part.exists(), is_left);
        }
    }

    #[test]
    fn an_existing_file_is_replaced_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let late = StagedFile::create(&target, 3, false).unwrap();
        assert_eq!(StagedFile::create(&target, 3, false).unwrap_err().code(), Code::TargetBusy);
        fs::write(&target, "old").unwrap();
        assert_eq!(StagedFile::create(&target, 3, false).unwrap_err().code(), Code::TargetExists);
        // It appeared after the first check.
        assert_eq!(late.commit(false).unwrap_err().code(), Code::TargetExists);
        #[cfg(unix)]
        fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        let staged = StagedFile::create(&target, 3, true).unwrap();
        staged.write_at(0, b"new").unwrap();
        staged.commit(false).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&fs::metadata(&target).unwrap()) & 0o777, 0o640);
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[cfg_attr(windows, ignore = "wine replaces no file that is open")]
    #[test]
    fn a_file_that_is_replaced_stays_for_who_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        fs::write(&target, "old").unwrap();
        let view = fs::File::open(&target).unwrap();
        let staged = StagedFile::create(&target, 3, true).unwrap();
        staged.write_at(0, b"new").unwrap();
        staged.commit(false).unwrap();
        let mut old = [0; 3];
        view.read_exact_at(&mut old, 0).unwrap();
        assert_eq!((&old, fs::read(&target).unwrap()), (b"old", b"new".to_vec()));
        assert_eq!(names(folder.path()), ["a"]);
    }

    // On Windows, links need a privilege.
    #[cfg(unix)]
    #[test]
    fn the_target_of_a_link_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(StagedFile::create(&link, 3, true).unwrap_err().code(), Code::Value);
        assert!(!file.exists());
        fs::write(&file, "old").unwrap();
        for content in ["one", "two"] {
            let staged = StagedFile::create(&link, 3, true).unwrap();
            staged.write_at(0, content.as_bytes()).unwrap();
            staged.commit(false).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
    }

    #[test]
    fn folders_devices_and_blobs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let code = |path: &Path| StagedFile::create(path, 1, true).unwrap_err().code();
        assert_eq!(code(folder.path()), Code::NotRegularFile);
        #[cfg(unix)]
        assert_eq!(code(Path::new("/dev/null")), Code::NotRegularFile);
        assert_eq!(code(&folder.path().join("missing").join("a")), Code::Io);
        for name in ["blobs", "snapshots"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(code(&folder.path().join("blobs").join("0123")), Code::Value);
    }

    #[cfg_attr(windows, ignore = "wine says that memory is short")]
    #[test]
    fn a_file_that_the_disk_has_no_space_for_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let error = StagedFile::create(&folder.path().join("a"), 1 << 62, false).unwrap_err();
        assert_eq!(error.code(), Code::Io);
        assert_eq!(names(folder.path()), [""; 0]);
    }
}
