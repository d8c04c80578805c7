//! A regular file on this machine as a source: positional reads, a mapping, `O_DIRECT` and read-ahead.
#![forbid(unsafe_code)]

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::access::Access;
use super::file_system::{FileSystem, FileSystemKind};
use super::handle::{self, Handle, OpenFile};
use super::io_choice::{Io, IoChoice};
use super::mapping::Mapping;
use super::os;
use super::read_ranges::ReadRanges;
use crate::error::{Code, Error, Result, ResultExt, error};
use crate::memory::Memory;
use crate::sys::{self, FileExt, FileId};

/// An open regular file.
pub struct LocalFile {
    handle: Handle,
    path: PathBuf,
    /// Where the file is opened again, whatever the working directory is by then.
    absolute: PathBuf,
    stamp: Stamp,
    /// Made at first use, like the fields below. Two threads may both make it, and the first result is kept: a lock held during
    /// such work would stay locked for ever in a child that is forked meanwhile.
    read_only: OnceBox<Arc<Mapping>>,
    copy_on_write: OnceBox<Arc<Mapping>>,
    io: Io,
    file_system: OnceBox<FileSystem>,
    /// Decided at the first large read.
    io_choice: OnceBox<IoChoice>,
}

/// Size, modification time and inode: whether a file is still the one that was opened.
#[derive(PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: (i64, i64),
    inode: FileId,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        let metadata = file.metadata()?;
        Ok(Stamp::new(&metadata, sys::file_id(file, &metadata)?))
    }

    fn new(metadata: &Metadata, inode: FileId) -> Stamp {
        Stamp { len: metadata.len(), modified: sys::modified(metadata), inode }
    }
}

/// What tells a file from another one at its path, and from later versions of it, also on other machines that share a file system.
/// The number of the device is not part of it, because each machine numbers its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// The path by which it was opened.
    pub path: PathBuf,
    /// Its size in bytes.
    pub len: u64,
    /// Seconds and nanoseconds of its last modification.
    pub modified: (i64, i64),
    /// Its inode.
    pub inode: u64,
}

impl FileStamp {
    fn new(path: &Path, stamp: &Stamp) -> FileStamp {
        let Stamp { len, modified, inode: (_, inode) } = *stamp;
        FileStamp { path: path.to_owned(), len, modified, inode }
    }

    /// That of the file that is at a path now.
    pub fn of_path(path: &Path) -> Result<FileStamp> {
        let stamp =
            fs::metadata(path).and_then(|metadata| Ok(Stamp::new(&metadata, sys::path_id(path, &metadata)?)));
        Ok(FileStamp::new(path, &stamp.map_err(|error| Error::io(error, path.to_owned()))?))
    }
}

impl LocalFile {
    /// Opens a regular file. `io` says how tensor data is read.
    pub(super) fn open(path: &Path, io: Io) -> Result<LocalFile> {
        let failed = |error| Error::io(error, path.to_owned());
        // Checked before opening: opening a pipe would wait for its writer.
        check_regular(&fs::metadata(path).map_err(failed)?, path)?;
        let absolute = std::path::absolute(path).map_err(failed)?;
        let file = handle::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        check_regular(&metadata, path)?;
        let stamp = Stamp::new(&metadata, sys::file_id(&file, &metadata).map_err(failed)?);
        if stamp.len == 0 && file.read_at(&mut [0], 0).is_ok_and(|read| read > 0) {
            let text = "this is not a regular file: its size is 0, but it has bytes to read";
            return Err(Error::new(Code::NotRegularFile, text)).in_file(path);
        }
        Ok(LocalFile {
            handle: Handle::new(file),
            path: path.to_owned(),
            absolute,
            stamp,
            read_only: OnceBox::new(),
            copy_on_write: OnceBox::new(),
            io,
            file_system: OnceBox::new(),
            io_choice: OnceBox::new(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file_stamp(&self) -> FileStamp {
        FileStamp::new(&self.path, &self.stamp)
    }

    /// How tensor data is read, as the caller said.
    pub(super) fn io(&self) -> Io {
        self.io
    }

    /// The open file. Opened again by its path if it was closed because the process may open no more files; fails if another file, or a
    /// later version of it, has the path by then.
    pub(super) fn opened(&self) -> Result<Arc<OpenFile>> {
        self.handle.get(|| {
            let failed = |error| Error::io(error, self.path.clone());
            let file = handle::open(&self.absolute).map_err(failed)?;
            if Stamp::of(&file).map_err(failed)? == self.stamp { Ok(file) } else { Err(self.changed_error()) }
        })
    }

    /// Fills `out` through this descriptor of the file.
    pub(super) fn read_through(&self, descriptor: &File, offset: u64, out: &mut [u8]) -> Result<()> {
        descriptor.read_exact_at(out, offset).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                self.changed_error()
            } else {
                Error::io(error, self.path.clone())
            }
        })
    }

    pub(super) fn file_system(&self) -> &FileSystem {
        self.file_system
            .get_or_init(|| Box::new(FileSystem::of(self.opened().ok().as_ref().map(|open| &open.file))))
    }

    /// How tensor data is read, and why. Decided at the first call.
    pub(super) fn io_choice(&self) -> &IoChoice {
        let cached = || os::cached_share(&self.opened().ok()?.file, self.stamp.len);
        let available = || Memory::now().headroom();
        let of = || IoChoice::of(self.io, self.stamp.len, self.file_system(), available(), cached);
        self.io_choice.get_or_init(|| Box::new(of()))
    }

    /// The file, opened with `O_DIRECT` too; `None` if tensor data is read through the page cache, or the file system has no direct I/O.
    pub(super) fn direct(&self) -> Option<Arc<OpenFile>> {
        if self.io_choice().io != Io::Direct {
            return None;
        }
        self.opened().ok().filter(|open| open.direct().is_some())
    }

    /// Whether [`LocalFile::direct`] may return a file. Compares sizes only.
    pub fn may_be_direct(&self) -> bool {
        IoChoice::may_be_direct(self.io, self.stamp.len)
    }

    /// A note for the user where direct reads were asked for and the file system does not support them.
    pub fn note(&self) -> Option<String> {
        let is_refused = self.io == Io::Direct && self.direct().is_none();
        is_refused.then(|| {
            format!(
                "direct reads (O_DIRECT) are not possible on {}: files there are read through the page cache",
                self.file_system().name
            )
        })
    }

    /// Whether it is read by many ranges at once and not mapped: it is on a network file system, and the caller left the choice of `io`
    /// open.
    fn is_slow(&self) -> bool {
        self.io == Io::Auto && self.file_system().kind == FileSystemKind::Network
    }

    /// The name of the file system if the file is not mapped by default.
    pub fn avoids_views(&self) -> Option<&str> {
        self.is_slow().then(|| self.file_system().name.as_str())
    }

    fn changed_error(&self) -> Error {
        Error::new(Code::FileChanged, "the file was cut or changed after it was opened").in_file(&self.path)
    }

    /// The mapping that all views share by default: one that is writable, and one that is not. Made at the first call.
    pub(super) fn map(&self, writable: bool) -> Result<Arc<Mapping>> {
        let shared = if writable { &self.copy_on_write } else { &self.read_only };
        if let Some(mapping) = shared.get() {
            self.check_unchanged()?;
            return Ok(mapping.clone());
        }
        let mapping = self.map_unshared(writable)?;
        Ok(shared.get_or_init(|| Box::new(Arc::new(mapping))).clone())
    }

    /// A mapping that nothing else shares. Where the system refuses it (no address space, a file system without mappings), the error
    /// is that of other bytes that have no view, so that they are copied.
    pub(super) fn map_unshared(&self, writable: bool) -> Result<Mapping> {
        self.check_unchanged()?;
        Mapping::new(&self.opened()?.file, writable).map_err(|error| {
            error!(Code::Buffer, "the system does not map the file into memory ({error})").in_file(&self.path)
        })
    }
}

impl ReadRanges for LocalFile {
    fn size(&self) -> u64 {
        self.stamp.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_through(&self.opened()?.file, offset, out)
    }

    fn access(&self) -> Access {
        if self.is_slow() { Access::SLOW_FILE } else { Access::BUFFERED }
    }

    fn check_unchanged(&self) -> Result<()> {
        let stamp = Stamp::of(&self.opened()?.file).map_err(|error| Error::io(error, self.path.clone()))?;
        if stamp == self.stamp { Ok(()) } else { Err(self.changed_error()) }
    }

    fn identity(&self) -> Option<String> {
        let path = std::path::absolute(&self.path).ok()?;
        let Stamp { len, modified, inode } = &self.stamp;
        Some(format!("{path:?} of {len} bytes, modified {modified:?}, inode {inode:?}"))
    }
}

fn check_regular(metadata: &Metadata, path: &Path) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() { "a directory" } else { "not a regular file" };
    Err(error!(Code::NotRegularFile, "this is {what}")).in_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::backing::Backing;
    use crate::bytes::{ReadMode, Source};
    use std::io::Write;

    /// A file that is treated as one on a file system of this kind.
    fn file_on(kind: FileSystemKind, io: Io) -> (tempfile::NamedTempFile, LocalFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 9 << 20]).unwrap();
        let local = LocalFile::open(file.path(), io).unwrap();
        local.file_system.get_or_init(|| Box::new(FileSystem { name: "nfs".to_owned(), kind }));
        (file, local)
    }

    #[test]
    fn a_file_on_a_network_is_read_by_ranges_and_mapped_only_when_asked() {
        let (_file, local) = file_on(FileSystemKind::Network, Io::Auto);
        assert_eq!(local.access(), Access::SLOW_FILE);
        let source = Source::of(Backing::file(local));
        assert_eq!(
            (source.file().unwrap().avoids_views(), source.access()),
            (Some("nfs"), Access::SLOW_FILE)
        );
        let mode = ReadMode::of(&source, 8 << 20, true);
        assert_eq!((mode.access(), mode.is_direct()), (Access::SLOW_FILE, false));
        assert_eq!(source.read_vec(5, 3).unwrap(), [7; 3]);
        // What asks for a view gets one.
        assert!(source.map(sys::HAS_COPY_ON_WRITE).unwrap().is_some());
        // The limits on requests are for what is not on this machine.
        let limited = source.limited(&crate::limits::Limits::new().remote_requests(0));
        assert_eq!(limited.read_vec(1 << 20, 3).unwrap(), [7; 3]);
    }

    #[test]
    fn other_files_and_explicit_choices_are_read_as_before() {
        let auto = [FileSystemKind::Local, FileSystemKind::Memory, FileSystemKind::Unknown]
            .map(|kind| (kind, Io::Auto));
        let chosen = [(FileSystemKind::Network, Io::Buffered), (FileSystemKind::Network, Io::Direct)];
        for (kind, io) in auto.into_iter().chain(chosen) {
            let (_file, local) = file_on(kind, io);
            assert_eq!((local.access(), local.avoids_views()), (Access::BUFFERED, None), "{kind:?} {io:?}");
        }
    }
}
