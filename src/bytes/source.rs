//! A window of a file or of bytes in memory, read by position. Cloning shares the open file.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::direct::{self, DIRECT_ALIGNMENT, Io, IoChoice};
use super::file_system::{FileSystem, FileSystemKind};
use super::{Chunk, Mapping, Region};
use crate::error::{Code, Error, Result, ResultExt};

/// Shared bytes in memory.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A window of a file or of bytes in memory.
#[derive(Clone)]
pub struct Source {
    backing: Backing,
    window: Region,
}

#[derive(Clone)]
enum Backing {
    File(Arc<OpenFile>),
    Memory(Bytes),
}

struct OpenFile {
    file: File,
    path: PathBuf,
    stamp: Stamp,
    /// Created at first use, like the fields below. Two threads may both create it, and the first result is kept: a lock held
    /// during such work would stay locked for ever in a child that is forked meanwhile.
    mapping: OnceBox<Arc<Mapping>>,
    io: Io,
    file_system: OnceBox<FileSystem>,
    /// Decided at the first large read.
    io_choice: OnceBox<IoChoice>,
    /// The file opened again with `O_DIRECT`, if that is chosen and the file system supports it.
    direct: OnceBox<Option<File>>,
}

/// Size, modification time and inode: whether a file is still the one that was opened.
#[derive(PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: (i64, i64),
    inode: (u64, u64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode: (metadata.dev(), metadata.ino()),
        }
    }
}

impl Source {
    /// Opens a regular file for reading.
    pub fn open(path: &Path) -> Result<Source> {
        Source::open_with(path, Io::Auto)
    }

    /// Opens a regular file. `io` says how tensor data is read.
    pub fn open_with(path: &Path, io: Io) -> Result<Source> {
        let failed = |error| Error::io(error, path.to_owned());
        // Checked before opening: opening a pipe would wait for its writer.
        check_regular(&fs::metadata(path).map_err(failed)?, path)?;
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        check_regular(&metadata, path)?;
        let stamp = Stamp::of(&metadata);
        if stamp.len == 0 && file.read_at(&mut [0], 0).is_ok_and(|read| read > 0) {
            let text = "this is no regular file: its size is 0, but it has bytes to read";
            return Err(Error::new(Code::NotRegularFile, text)).in_file(path);
        }
        let window = Region::new(0, stamp.len).unwrap_or_default();
        let file = OpenFile {
            file,
            path: path.to_owned(),
            stamp,
            mapping: OnceBox::new(),
            io,
            file_system: OnceBox::new(),
            io_choice: OnceBox::new(),
            direct: OnceBox::new(),
        };
        Ok(Source { backing: Backing::File(Arc::new(file)), window })
    }

    /// A source of bytes in memory.
    pub fn memory(bytes: Bytes) -> Source {
        let len = (*bytes).as_ref().len() as u64;
        Source { backing: Backing::Memory(bytes), window: Region::new(0, len).unwrap_or_default() }
    }

    /// The number of bytes in the window.
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// The offset of the window in the file, or in memory.
    pub fn start(&self) -> u64 {
        self.window.start()
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// The file's path; `None` for memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.backing {
            Backing::File(file) => Some(&file.path),
            Backing::Memory(_) => None,
        }
    }

    /// Whether both sources are windows of one opened file, or of the same bytes in memory.
    pub fn same_backing(&self, other: &Source) -> bool {
        match (&self.backing, &other.backing) {
            (Backing::File(one), Backing::File(two)) => Arc::ptr_eq(one, two),
            (Backing::Memory(one), Backing::Memory(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }

    /// The file system; `None` for memory.
    pub fn file_system(&self) -> Option<&FileSystem> {
        match &self.backing {
            Backing::File(file) => Some(file.file_system()),
            Backing::Memory(_) => None,
        }
    }

    /// How tensor data is read, and why. Decided at the first call; `None` for memory.
    pub fn io_choice(&self) -> Option<&IoChoice> {
        match &self.backing {
            Backing::File(file) => Some(file.io_choice()),
            Backing::Memory(_) => None,
        }
    }

    pub(super) fn descriptor(&self) -> Option<&File> {
        match &self.backing {
            Backing::File(file) => Some(&file.file),
            Backing::Memory(_) => None,
        }
    }

    /// The file opened with `O_DIRECT`; `None` if tensor data is read through the page cache, or the file system has no direct I/O.
    pub fn direct(&self) -> Option<&File> {
        match &self.backing {
            Backing::File(file) => file.direct(),
            Backing::Memory(_) => None,
        }
    }

    /// Whether [`Source::direct`] may return a file. Compares sizes only.
    pub fn may_be_direct(&self) -> bool {
        match &self.backing {
            Backing::File(file) => IoChoice::may_be_direct(file.io, file.stamp.len),
            Backing::Memory(_) => false,
        }
    }

    /// The name of the file system if it is a network one, where a view's page faults go over the network one by one. `None`
    /// otherwise, and if the caller chose `io` explicitly.
    pub fn avoids_views(&self) -> Option<&str> {
        match &self.backing {
            Backing::File(file) if file.io == Io::Auto => {
                let file_system = file.file_system();
                (file_system.kind == FileSystemKind::Network).then_some(file_system.name.as_str())
            }
            _ => None,
        }
    }

    /// The offset of a window position from the start of its disk block (of [`DIRECT_ALIGNMENT`] bytes).
    pub fn block_offset(&self, offset: u64) -> u64 {
        self.file_offset(offset) % DIRECT_ALIGNMENT
    }

    /// The offset in the file, or in memory, of an offset in the window.
    pub(super) fn file_offset(&self, offset: u64) -> u64 {
        self.window.start().saturating_add(offset)
    }

    /// Whether these bytes lie inside the window.
    pub(super) fn has_range(&self, offset: u64, len: u64) -> bool {
        self.window.subregion(offset, len).is_some()
    }

    /// A smaller window. Fails with [`Code::Truncated`] if it does not lie inside this one.
    pub fn window(&self, start: u64, len: u64) -> Result<Source> {
        Ok(Source { backing: self.backing.clone(), window: self.range(start, len)? })
    }

    /// The smallest window that covers this one and `other`. `None` if they have different backings, or more than `gap` bytes lie
    /// between them.
    pub fn span(&self, other: &Source, gap: u64) -> Option<Source> {
        let (start, end) =
            (self.window.start().min(other.window.start()), self.window.end().max(other.window.end()));
        let between = end.saturating_sub(start).saturating_sub(self.len()).saturating_sub(other.len());
        let window = Region::new(start, end.saturating_sub(start))?;
        (between <= gap && self.same_backing(other)).then(|| Source { backing: self.backing.clone(), window })
    }

    /// The offset of this window in `outer`. `None` unless `outer` has the same backing and covers it.
    pub fn start_in(&self, outer: &Source) -> Option<u64> {
        let covers = self.same_backing(outer) && outer.window.contains(self.window);
        covers.then(|| self.window.start().saturating_sub(outer.window.start()))
    }

    fn range(&self, start: u64, len: u64) -> Result<Region> {
        self.window.subregion(start, len).ok_or_else(|| {
            let text = format!("{len} byte(s) wanted at {start}, the file has {}", self.len());
            self.locate_error(Error::new(Code::Truncated, text).at(start))
        })
    }

    /// Fills `out` with the bytes at `offset` of the window. Fails if the window ends before, or the file was truncated.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_from(None, offset, out)
    }

    /// As [`Source::read_at`], through another file descriptor of the same file if one is given.
    pub(super) fn read_from(&self, descriptor: Option<&File>, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = self.range(offset, out.len() as u64)?;
        match &self.backing {
            Backing::File(file) => {
                descriptor.unwrap_or(&file.file).read_exact_at(out, range.start()).map_err(|error| {
                    if error.kind() == std::io::ErrorKind::UnexpectedEof {
                        file.changed_error()
                    } else {
                        Error::io(error, file.path.clone())
                    }
                })
            }
            Backing::Memory(bytes) => {
                let bytes_from_start =
                    usize::try_from(range.start()).ok().and_then(|start| (**bytes).as_ref().get(start..));
                match bytes_from_start.and_then(|bytes| bytes.get(..out.len())) {
                    Some(bytes) => out.copy_from_slice(bytes),
                    None => return Err(Error::new(Code::FileChanged, "the bytes in memory became shorter")),
                }
                Ok(())
            }
        }
    }

    /// Copies `len` bytes at `offset` of the window. The caller has checked `len` against a limit.
    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.range(offset, len)?;
        let mut out = Vec::new();
        let size = usize::try_from(len).map_err(|_| out_of_memory(len))?;
        out.try_reserve_exact(size).map_err(|_| out_of_memory(len))?;
        out.resize(size, 0);
        self.read_at(offset, &mut out)?;
        Ok(out)
    }

    /// `len` bytes at `offset` for a parser: borrowed from bytes in memory, read from a file. The caller has checked `len`.
    pub fn chunk(&self, offset: u64, len: u64) -> Result<Chunk> {
        let Backing::Memory(bytes) = &self.backing else {
            return self.read_vec(offset, len).map(Chunk::from);
        };
        let range = self.range(offset, len)?;
        let (start, len) = (usize::try_from(range.start()), usize::try_from(range.len()));
        let chunk =
            start.ok().zip(len.ok()).and_then(|(start, len)| Chunk::shared(bytes.clone(), start, len));
        chunk.ok_or_else(|| Error::new(Code::FileChanged, "the bytes in memory became shorter"))
    }

    /// Fails if the file's size, modification time or inode differ from when it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        match &self.backing {
            Backing::File(file) => file.check_unchanged(),
            Backing::Memory(_) => Ok(()),
        }
    }

    /// The private mapping of the whole file, and this window's range in it; `None` for memory.
    ///
    /// The mapping is made at the first call and shared by all clones. Fails if the file is not the one that was opened.
    pub fn map(&self) -> Result<Option<(Arc<Mapping>, Region)>> {
        match &self.backing {
            Backing::File(file) => file.map().map(|mapping| Some((mapping, self.window))),
            Backing::Memory(_) => Ok(None),
        }
    }

    /// A private mapping of the whole file that nothing else shares; `None` for memory. The file is checked as by [`Source::map`].
    pub(super) fn map_unshared(&self) -> Result<Option<Mapping>> {
        match &self.backing {
            Backing::File(file) => file.map_unshared().map(Some),
            Backing::Memory(_) => Ok(None),
        }
    }

    /// The window, in the file or in memory.
    pub(super) fn region(&self) -> Region {
        self.window
    }

    /// Adds the file's path to an error.
    pub fn locate_error(&self, error: Error) -> Error {
        match self.path() {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

impl OpenFile {
    fn file_system(&self) -> &FileSystem {
        self.file_system.get_or_init(|| Box::new(FileSystem::of(&self.file)))
    }

    fn io_choice(&self) -> &IoChoice {
        let choose = || IoChoice::of(&self.file, self.stamp.len, self.file_system(), self.io);
        self.io_choice.get_or_init(|| Box::new(choose()))
    }

    fn direct(&self) -> Option<&File> {
        if self.io_choice().io != Io::Direct {
            return None;
        }
        self.direct.get_or_init(|| Box::new(direct::open_direct(&self.file))).as_ref()
    }

    fn changed_error(&self) -> Error {
        Error::new(Code::FileChanged, "the file was cut or changed after it was opened").in_file(&self.path)
    }

    fn check_unchanged(&self) -> Result<()> {
        let metadata = self.file.metadata().map_err(|error| Error::io(error, self.path.clone()))?;
        if Stamp::of(&metadata) == self.stamp { Ok(()) } else { Err(self.changed_error()) }
    }

    fn map(&self) -> Result<Arc<Mapping>> {
        if let Some(mapping) = self.mapping.get() {
            self.check_unchanged()?;
            return Ok(mapping.clone());
        }
        let mapping = self.map_unshared()?;
        Ok(self.mapping.get_or_init(|| Box::new(Arc::new(mapping))).clone())
    }

    fn map_unshared(&self) -> Result<Mapping> {
        self.check_unchanged()?;
        Mapping::new(&self.file).map_err(|error| Error::io(error, self.path.clone()))
    }
}

fn check_regular(metadata: &Metadata, path: &Path) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() { "a directory" } else { "no regular file" };
    Err(Error::new(Code::NotRegularFile, format!("this is {what}"))).in_file(path)
}

fn out_of_memory(len: u64) -> Error {
    Error::new(Code::Memory, format!("{len} byte(s) could not be allocated"))
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path().map_or_else(|| "memory".into(), |path| path.display().to_string());
        write!(f, "Source({name}, {}..{})", self.window.start(), self.window.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn windows_nest_and_stay_inside() {
        for source in
            [Source::memory(Arc::new(*b"0123456789")), Source::open(file(b"0123456789").path()).unwrap()]
        {
            let inner = source.window(2, 6).unwrap().window(1, 4).unwrap();
            assert_eq!(inner.read_vec(1, 3).unwrap(), b"456");
            assert_eq!(inner.read_vec(1, 4).unwrap_err().code(), Code::Truncated);
            assert_eq!(inner.window(0, u64::MAX).unwrap_err().code(), Code::Truncated);
        }
    }

    #[test]
    fn a_span_covers_nearby_windows_of_one_backing() {
        let whole = Source::memory(Arc::new(*b"0123456789"));
        let (one, two) = (whole.window(1, 2).unwrap(), whole.window(5, 3).unwrap());
        for span in [one.span(&two, 2).unwrap(), two.span(&one, 2).unwrap()] {
            assert_eq!(span.read_vec(0, span.len()).unwrap(), b"1234567");
            assert_eq!((one.start_in(&span), two.start_in(&span)), (Some(0), Some(4)));
        }
        assert!(one.span(&two, 1).is_none());
        assert!(one.span(&Source::memory(Arc::new(*b"0123456789")), 100).is_none());
        assert_eq!(two.start_in(&one), None);
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        let file = file(b"0123456789");
        let source = Source::open(file.path()).unwrap();
        file.as_file().set_len(4).unwrap();
        assert_eq!(source.read_vec(0, 10).unwrap_err().code(), Code::FileChanged);
        assert_eq!(source.check_unchanged().unwrap_err().code(), Code::FileChanged);
        assert_eq!(source.map().unwrap_err().code(), Code::FileChanged);
    }

    #[test]
    fn devices_and_directories_are_refused() {
        for path in ["/dev/zero", "/tmp"] {
            assert_eq!(Source::open(Path::new(path)).unwrap_err().code(), Code::NotRegularFile);
        }
        assert_eq!(Source::open(Path::new("/nonexistent")).unwrap_err().code(), Code::Io);
    }
}
