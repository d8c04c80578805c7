//! A window of a file or of bytes in memory, read by position. Cloning shares the open file.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::direct::{self, BLOCK, Choice, Io};
use super::place::{Place, PlaceKind};
use super::{Chunk, Mapping, Region};
use crate::error::{Code, Error, Result, ResultExt};

/// Bytes in memory that somebody else owns.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where bytes come from: all or a part of a file, or of memory.
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
    /// What is made when it is first needed. Two threads at once may both make it, and one result is kept: a lock that is held
    /// over such work would be held for ever in a child that is forked meanwhile.
    mapping: OnceBox<Arc<Mapping>>,
    io: Io,
    place: OnceBox<Place>,
    /// Made at the first large read.
    choice: OnceBox<Choice>,
    /// The file opened once more with O_DIRECT, where that is chosen and can be had.
    direct: OnceBox<Option<File>>,
}

/// What tells that a file is still the one that was opened.
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

    /// Opens a regular file whose payload is to be read in the given way.
    pub fn open_with(path: &Path, io: Io) -> Result<Source> {
        let failed = |error| Error::io(error, path.to_owned());
        // Asked before opening: opening a pipe would wait for its writer.
        regular(&fs::metadata(path).map_err(failed)?, path)?;
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        regular(&metadata, path)?;
        let stamp = Stamp::of(&metadata);
        if stamp.len == 0 && file.read_at(&mut [0], 0).is_ok_and(|read| read > 0) {
            let text = "this is no regular file: its size is said to be 0, yet there are bytes to read";
            return Err(Error::new(Code::NotRegularFile, text)).in_file(path);
        }
        let window = Region::new(0, stamp.len).unwrap_or_default();
        let file = OpenFile {
            file,
            path: path.to_owned(),
            stamp,
            mapping: OnceBox::new(),
            io,
            place: OnceBox::new(),
            choice: OnceBox::new(),
            direct: OnceBox::new(),
        };
        Ok(Source { backing: Backing::File(Arc::new(file)), window })
    }

    /// Reads from bytes in memory.
    pub fn memory(bytes: Bytes) -> Source {
        let len = (*bytes).as_ref().len() as u64;
        Source { backing: Backing::Memory(bytes), window: Region::new(0, len).unwrap_or_default() }
    }

    /// The number of bytes in the window.
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// Where the window starts in the file, or in the memory.
    pub fn start(&self) -> u64 {
        self.window.start()
    }

    /// Whether the window holds nothing.
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

    /// Whether two sources read from the same opened file or the same bytes.
    pub fn same_backing(&self, other: &Source) -> bool {
        match (&self.backing, &other.backing) {
            (Backing::File(one), Backing::File(two)) => Arc::ptr_eq(one, two),
            (Backing::Memory(one), Backing::Memory(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }

    /// The kind of file system; `None` for memory.
    pub fn file_system(&self) -> Option<&Place> {
        match &self.backing {
            Backing::File(file) => Some(file.place()),
            Backing::Memory(_) => None,
        }
    }

    /// How the payload is read and why, found out when first asked; `None` for memory.
    pub fn choice(&self) -> Option<&Choice> {
        match &self.backing {
            Backing::File(file) => Some(file.choice()),
            Backing::Memory(_) => None,
        }
    }

    pub(super) fn descriptor(&self) -> Option<&File> {
        match &self.backing {
            Backing::File(file) => Some(&file.file),
            Backing::Memory(_) => None,
        }
    }

    /// The file opened around the page cache, where payload is to be read so and the system can.
    pub fn direct(&self) -> Option<&File> {
        match &self.backing {
            Backing::File(file) => file.direct(),
            Backing::Memory(_) => None,
        }
    }

    /// Whether [`Source::direct`] may come to give one; looks at no more than sizes.
    pub fn may_be_direct(&self) -> bool {
        match &self.backing {
            Backing::File(file) => Choice::may_be_direct(file.io, file.stamp.len),
            Backing::Memory(_) => false,
        }
    }

    /// The name of the file system, where a view's page faults would go over a network, one by one, and nobody asked for that.
    pub fn avoids_views(&self) -> Option<&str> {
        match &self.backing {
            Backing::File(file) if file.io == Io::Auto => {
                let place = file.place();
                (place.kind == PlaceKind::Network).then_some(place.name.as_str())
            }
            _ => None,
        }
    }

    /// Where in a block of the disk a position in the window lies.
    pub fn phase(&self, offset: u64) -> u64 {
        self.position(offset) % BLOCK
    }

    /// The position in the file, or in memory, of a position in the window.
    pub(super) fn position(&self, offset: u64) -> u64 {
        self.window.start().saturating_add(offset)
    }

    /// Whether the window has these bytes.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        self.window.part(offset, len).is_some()
    }

    /// A part of this window, as a source of its own.
    pub fn window(&self, start: u64, len: u64) -> Result<Source> {
        Ok(Source { backing: self.backing.clone(), window: self.part(start, len)? })
    }

    /// The smallest window that covers this one and `other`, if both are of the same backing and at most `gap` bytes lie
    /// between them.
    pub fn span(&self, other: &Source, gap: u64) -> Option<Source> {
        let (start, end) =
            (self.window.start().min(other.window.start()), self.window.end().max(other.window.end()));
        let between = end.saturating_sub(start).saturating_sub(self.len()).saturating_sub(other.len());
        let window = Region::new(start, end.saturating_sub(start))?;
        (between <= gap && self.same_backing(other)).then(|| Source { backing: self.backing.clone(), window })
    }

    /// Where this window starts inside `outer`, a window of the same backing that covers it.
    pub fn start_in(&self, outer: &Source) -> Option<u64> {
        let covers = self.same_backing(outer) && outer.window.contains(self.window);
        covers.then(|| self.window.start().saturating_sub(outer.window.start()))
    }

    fn part(&self, start: u64, len: u64) -> Result<Region> {
        self.window.part(start, len).ok_or_else(|| {
            let text = format!("{len} byte(s) wanted at {start}, the file has {}", self.len());
            self.place(Error::new(Code::Truncated, text).at(start))
        })
    }

    /// Fills `out` with the bytes at `offset` of the window.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_by(None, offset, out)
    }

    /// As [`Source::read_at`], by another description of the same file if there is one.
    pub(super) fn read_by(&self, other: Option<&File>, offset: u64, out: &mut [u8]) -> Result<()> {
        let part = self.part(offset, out.len() as u64)?;
        match &self.backing {
            Backing::File(file) => {
                other.unwrap_or(&file.file).read_exact_at(out, part.start()).map_err(|error| {
                    if error.kind() == std::io::ErrorKind::UnexpectedEof {
                        file.changed()
                    } else {
                        Error::io(error, file.path.clone())
                    }
                })
            }
            Backing::Memory(bytes) => {
                let found =
                    usize::try_from(part.start()).ok().and_then(|start| (**bytes).as_ref().get(start..));
                match found.and_then(|found| found.get(..out.len())) {
                    Some(found) => out.copy_from_slice(found),
                    None => return Err(Error::new(Code::FileChanged, "the bytes in memory became shorter")),
                }
                Ok(())
            }
        }
    }

    /// The bytes at `offset` of the window, owned. The caller has checked `len` against a limit.
    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.part(offset, len)?;
        let mut out = Vec::new();
        let wanted = usize::try_from(len).map_err(|_| out_of_memory(len))?;
        out.try_reserve_exact(wanted).map_err(|_| out_of_memory(len))?;
        out.resize(wanted, 0);
        self.read_at(offset, &mut out)?;
        Ok(out)
    }

    /// The same bytes to be parsed: those in memory where they lie, those of a file read. The caller has checked `len`.
    pub fn chunk(&self, offset: u64, len: u64) -> Result<Chunk> {
        let Backing::Memory(bytes) = &self.backing else {
            return self.read_vec(offset, len).map(Chunk::from);
        };
        let part = self.part(offset, len)?;
        let (start, len) = (usize::try_from(part.start()), usize::try_from(part.len()));
        let chunk =
            start.ok().zip(len.ok()).and_then(|(start, len)| Chunk::shared(bytes.clone(), start, len));
        chunk.ok_or_else(|| Error::new(Code::FileChanged, "the bytes in memory became shorter"))
    }

    /// Fails if the file's size, time of change or identity differ from when it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        match &self.backing {
            Backing::File(file) => file.check_unchanged(),
            Backing::Memory(_) => Ok(()),
        }
    }

    /// The private mapping of the whole file and where this window lies in it; `None` for memory.
    ///
    /// Made at the first call and shared by all clones; the file is checked to be the one that was opened.
    pub fn map(&self) -> Result<Option<(Arc<Mapping>, Region)>> {
        match &self.backing {
            Backing::File(file) => file.map().map(|mapping| Some((mapping, self.window))),
            Backing::Memory(_) => Ok(None),
        }
    }

    /// A private mapping of the whole file that nothing else shares; `None` for memory. The file is checked as by [`Source::map`].
    pub(super) fn map_anew(&self) -> Result<Option<Mapping>> {
        match &self.backing {
            Backing::File(file) => file.map_anew().map(Some),
            Backing::Memory(_) => Ok(None),
        }
    }

    /// The window, in the file or in memory.
    pub(super) fn region(&self) -> Region {
        self.window
    }

    /// Adds the file's path to an error.
    pub fn place(&self, error: Error) -> Error {
        match self.path() {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

impl OpenFile {
    fn place(&self) -> &Place {
        self.place.get_or_init(|| Box::new(Place::of(&self.file)))
    }

    fn choice(&self) -> &Choice {
        let of = || Choice::of(&self.file, self.stamp.len, self.place(), self.io);
        self.choice.get_or_init(|| Box::new(of()))
    }

    fn direct(&self) -> Option<&File> {
        if self.choice().io != Io::Direct {
            return None;
        }
        self.direct.get_or_init(|| Box::new(direct::open_direct(&self.file))).as_ref()
    }

    fn changed(&self) -> Error {
        Error::new(Code::FileChanged, "the file was cut or changed after it was opened").in_file(&self.path)
    }

    fn check_unchanged(&self) -> Result<()> {
        let metadata = self.file.metadata().map_err(|error| Error::io(error, self.path.clone()))?;
        if Stamp::of(&metadata) == self.stamp { Ok(()) } else { Err(self.changed()) }
    }

    fn map(&self) -> Result<Arc<Mapping>> {
        if let Some(mapping) = self.mapping.get() {
            self.check_unchanged()?;
            return Ok(mapping.clone());
        }
        let mapping = self.map_anew()?;
        Ok(self.mapping.get_or_init(|| Box::new(Arc::new(mapping))).clone())
    }

    fn map_anew(&self) -> Result<Mapping> {
        self.check_unchanged()?;
        Mapping::new(&self.file).map_err(|error| Error::io(error, self.path.clone()))
    }
}

fn regular(metadata: &Metadata, path: &Path) -> Result<()> {
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
    fn a_span_covers_near_windows_of_one_backing() {
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
    fn a_cut_file_is_an_error() {
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
