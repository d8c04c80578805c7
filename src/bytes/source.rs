//! A window of a file, of bytes in memory or of any other [`ReadRanges`], read by position. Cloning shares what is behind it.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::block_cache::BlockCache;
use super::deferred::{Deferred, Proof};
use super::fetched::{self, Fetched};
use super::file_system::FileSystem;
use super::handle::OpenFile;
use super::in_memory::{self, InMemory};
use super::io_choice::{Io, IoChoice};
use super::os;
use super::request_limits::Limited;
use super::{
    Access, Chunk, FileStamp, LocalFile, LocalFolder, Mapping, RangeRead, ReadFolder, ReadRanges, Region,
    RequestLimit, Requests,
};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::parallel::Cancel;

/// Shared bytes in memory.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A gap that is read through even if the bytes that may be fetched are scarce.
const SMALL_GAP_BYTES: u64 = 512;

/// A window of bytes that are read by position.
#[derive(Clone)]
pub struct Source {
    backing: Arc<dyn ReadRanges>,
    window: Region,
    /// Set if the window may begin later by as much as the proof says; reads check that first.
    deferred: Option<Deferred>,
}

impl Source {
    /// Opens a regular file for reading.
    pub fn open(path: &Path) -> Result<Source> {
        Source::open_with(path, Io::Auto)
    }

    /// Opens a regular file. `io` says how tensor data is read.
    pub fn open_with(path: &Path, io: Io) -> Result<Source> {
        Ok(Source::new(Arc::new(LocalFile::open(path, io)?)))
    }

    /// A source of bytes in memory.
    pub fn memory(bytes: Bytes) -> Source {
        Source::new(Arc::new(InMemory::new(bytes)))
    }

    /// All bytes of anything that is read by position. If its requests are expensive ([`Access::metadata_block`]), few bytes are
    /// read in larger blocks, which are kept in a small cache.
    pub fn new(backing: Arc<dyn ReadRanges>) -> Source {
        let block = backing.access().metadata_block;
        let backing = if block > 0 { Arc::new(BlockCache::new(backing, block)) } else { backing };
        let window = Region::new(0, backing.len()).unwrap_or_default();
        Source { backing, window, deferred: None }
    }

    /// The number of bytes in the window.
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// The offset of the window in the file, or in memory; the least possible one before [`Source::proved`].
    pub fn start(&self) -> u64 {
        self.region().start()
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// Whether it can be mapped: whether it is a local file.
    pub fn is_mappable(&self) -> bool {
        self.file().is_some()
    }

    /// The file's path; `None` for everything but local files.
    pub fn path(&self) -> Option<&Path> {
        self.file().map(LocalFile::path)
    }

    /// The name in messages of what is neither a local file nor bytes in memory.
    pub fn name(&self) -> Option<&str> {
        self.backing.name()
    }

    /// The folder that the file is in: see [`ReadRanges::folder`]. `None` for a window that does not begin at the file's first byte.
    pub fn folder(&self) -> Option<Arc<dyn ReadFolder>> {
        if self.start() > 0 {
            return None;
        }
        let Some(file) = self.file() else { return self.backing.folder() };
        let folder = file.path().parent().unwrap_or(Path::new(""));
        Some(Arc::new(LocalFolder::new(folder.to_owned(), file.io())))
    }

    /// Identifies this version of these bytes, also for another process: see [`ReadRanges::identity`].
    pub fn identity(&self) -> Option<String> {
        Some(format!("{} from {} to {}", self.backing.identity()?, self.window.start(), self.window.end()))
    }

    /// The stamp of the local file behind it when it was opened; `None` for everything else.
    pub fn file_stamp(&self) -> Option<FileStamp> {
        self.file().map(LocalFile::file_stamp)
    }

    /// The local file behind it.
    pub(super) fn file(&self) -> Option<&LocalFile> {
        self.backing.as_file()
    }

    /// Whether both sources are windows of one opened file, or of the same bytes in memory.
    pub fn same_backing(&self, other: &Source) -> bool {
        let is_same = || Some(Arc::ptr_eq(self.backing.as_memory()?, other.backing.as_memory()?));
        Arc::ptr_eq(&self.backing, &other.backing) || is_same() == Some(true)
    }

    /// The file system; `None` for everything but local files.
    pub(super) fn file_system(&self) -> Option<&FileSystem> {
        self.file().map(LocalFile::file_system)
    }

    /// How tensor data is read, and why. Decided at the first call; `None` for everything but local files.
    pub(super) fn io_choice(&self) -> Option<&IoChoice> {
        self.file().map(LocalFile::io_choice)
    }

    /// The file opened with `O_DIRECT`; `None` if tensor data is read otherwise, or the file system has no direct I/O.
    pub(super) fn direct(&self) -> Option<Arc<OpenFile>> {
        self.file()?.direct()
    }

    /// Whether it may be read with `O_DIRECT`. Compares sizes only.
    pub fn may_be_direct(&self) -> bool {
        self.file().is_some_and(LocalFile::may_be_direct)
    }

    /// What a user should know about how it is read; `None` if there is nothing to say.
    pub fn note(&self) -> Option<String> {
        self.file()?.note()
    }

    /// The name of the file system if it is a network one, where a view's page faults go over the network one by one. `None`
    /// otherwise, and if the caller chose `io` explicitly.
    pub fn avoids_views(&self) -> Option<&str> {
        self.file()?.avoids_views()
    }

    /// How it is read best, unless a large contiguous range is read with `O_DIRECT`: see [`ReadMode`](super::ReadMode).
    pub fn access(&self) -> Access {
        self.backing.access()
    }

    /// The offset of a window position from the start of its block of `size` bytes.
    pub fn block_offset(&self, offset: u64, size: u64) -> u64 {
        self.file_offset(offset) % size.max(1)
    }

    /// The offset in the file, or in memory, of an offset in the window.
    pub(super) fn file_offset(&self, offset: u64) -> u64 {
        self.start().saturating_add(offset)
    }

    /// Whether these bytes lie inside the window.
    pub(super) fn has_range(&self, offset: u64, len: u64) -> bool {
        self.window.subregion(offset, len).is_some()
    }

    /// A smaller window. Fails with [`Code::Truncated`] if it does not lie inside this one.
    pub fn window(&self, start: u64, len: u64) -> Result<Source> {
        Ok(Source { window: self.range(start, len)?, ..self.clone() })
    }

    /// A smaller window, which begins at `start` or somewhat later: `proof` says where. Reads check the proof together with the
    /// bytes, and fail with its error.
    pub fn with_proof(&self, start: u64, len: u64, proof: Arc<dyn Proof>) -> Result<Source> {
        let outer = self.proved()?;
        let deferred = Some(Deferred::new(proof, outer.start()));
        Ok(Source { deferred, ..outer.window(start, len)? })
    }

    /// The same window with its place known exactly. Reads what the proof needs unless it has passed already.
    pub fn proved(&self) -> Result<Source> {
        let Some(deferred) = &self.deferred else { return Ok(self.clone()) };
        deferred.prove(&*self.backing).map_err(|error| self.locate_error(error))?;
        Ok(Source { backing: self.backing.clone(), window: self.region(), deferred: None })
    }

    /// As [`Source::proved`], with the bytes of `span`, which were read already.
    pub fn proved_within(&self, span: &Source, bytes: &[u8]) -> Result<Source> {
        let Some(deferred) = &self.deferred else { return Ok(self.clone()) };
        let found = |offset: u64, len: u64| {
            let range = span.region().relative(Region::new(offset, len)?)?;
            let start = usize::try_from(range.start()).ok()?;
            bytes.get(start..usize::try_from(range.end()).ok()?).map(<[u8]>::to_vec)
        };
        deferred.prove_from(&*self.backing, found).map_err(|error| self.locate_error(error))?;
        self.proved()
    }

    /// The window that has to be read for this one: the same, and with it what its proof needs. `None` if more than `gap` bytes lie
    /// between the two.
    pub fn extent(&self, gap: u64) -> Option<Source> {
        let plain = |window| Source { backing: self.backing.clone(), window, deferred: None };
        let Some(deferred) = self.deferred.as_ref().filter(|deferred| deferred.shift().is_none()) else {
            return Some(plain(self.region()));
        };
        let mut extents = deferred.extents(self.window).ok()?;
        extents.sort_unstable_by_key(|extent| extent.start());
        let (mut window, mut between) = (*extents.first()?, 0_u64);
        for extent in extents {
            between = between.saturating_add(extent.start().saturating_sub(window.end()));
            let end = window.end().max(extent.end());
            window = Region::new(window.start(), end.saturating_sub(window.start()))?;
        }
        (between <= gap).then(|| plain(window))
    }

    /// The smallest window that covers this one and `other`. `None` if they have different backings, or more than `gap` bytes lie
    /// between them.
    pub fn span(&self, other: &Source, gap: u64) -> Option<Source> {
        let (one, two) = (self.region(), other.region());
        let (start, end) = (one.start().min(two.start()), one.end().max(two.end()));
        let between = end.saturating_sub(start).saturating_sub(self.len()).saturating_sub(other.len());
        let window = Region::new(start, end.saturating_sub(start))?;
        (between <= gap && self.same_backing(other)).then(|| Source {
            backing: self.backing.clone(),
            window,
            deferred: None,
        })
    }

    /// The offset of this window in `outer`. `None` unless `outer` has the same backing and covers it.
    pub fn start_in(&self, outer: &Source) -> Option<u64> {
        let covers = self.same_backing(outer) && outer.region().contains(self.region());
        covers.then(|| self.start().saturating_sub(outer.start()))
    }

    fn range(&self, start: u64, len: u64) -> Result<Region> {
        self.window.subregion(start, len).ok_or_else(|| {
            let text = format!("{len} byte(s) wanted at {start}, the file has {}", self.len());
            self.locate_error(Error::new(Code::Truncated, text).at(start))
        })
    }

    /// Fills `out` with the bytes at `offset` of the window. Fails if the window ends before, or the file was truncated.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = self.range(offset, out.len() as u64)?;
        let read = match &self.deferred {
            None => self.backing.read_at(range.start(), out),
            Some(_) if out.is_empty() => Ok(()),
            Some(deferred) => deferred.read(&*self.backing, &mut [RangeRead { offset: range.start(), out }]),
        };
        read.map_err(|error| self.locate_error(error))
    }

    /// Keeps up to `len` bytes at `offset` of the window for reads that follow, where requests are expensive. The part outside of the
    /// window is left out.
    pub fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let len = len.min(self.len().saturating_sub(offset));
        self.backing.prefetch(self.file_offset(offset), len).map_err(|error| self.locate_error(error))
    }

    /// Limits what is fetched until the result is dropped, where requests are expensive and nothing limits them yet.
    pub fn limit_requests(&self, limits: &Limits) -> RequestLimit {
        RequestLimit::new(&self.backing, limits)
    }

    /// The same window for a reader whose requests are limited, also while others read the source: see [`Source::unlimited`]. Where
    /// requests are not counted, it is unchanged.
    pub fn limited(&self, limits: &Limits) -> Source {
        let Some(limited) = Limited::new(&self.backing, limits) else { return self.clone() };
        Source { backing: Arc::new(limited), ..self.clone() }
    }

    /// This window of `limited`, without its limit, as a window of `source`, from which [`Source::limited`] made that. Windows of
    /// anything else are unchanged.
    pub fn unlimited(self, limited: &Source, source: &Source) -> Source {
        match Arc::ptr_eq(&self.backing, &limited.backing) {
            true => Source { backing: source.backing.clone(), ..self },
            false => self,
        }
    }

    /// The requests that [`Source::limit_requests`] leaves; `None` without it.
    pub fn requests_left(&self) -> Option<Requests> {
        self.backing.requests_left()
    }

    /// Reads several ranges of the window in one call. See [`ReadRanges::read_ranges`].
    pub fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        for range in ranges.iter_mut() {
            range.offset = self.range(range.offset, range.out.len() as u64)?.start();
        }
        let read = match &self.deferred {
            None => self.backing.read_ranges(ranges),
            Some(deferred) => deferred.read(&*self.backing, ranges),
        };
        read.map_err(|error| self.locate_error(error))
    }

    /// Reads many small ranges of the window: near ones by one request, and as many requests at once as the source likes. Between two
    /// ranges of one request lie at most `gap` bytes.
    pub fn gather(&self, wanted: &[Region], gap: u64, cancel: &Cancel) -> Result<Fetched> {
        let fetched = Fetched::gather(&*self.backing, self.in_backing(wanted)?, gap, cancel);
        Ok(fetched.map_err(|error| self.locate_error(error))?.based_at(self.start()))
    }

    /// The largest gap with which [`Source::gather`] stays within the limits on requests and leaves `reserved`; `None` if there is none.
    pub fn affordable_gap(&self, wanted: &[Region], reserved: Requests) -> Result<Option<u64>> {
        let access = self.access();
        let Some(left) = self.requests_left() else { return Ok(Some(access.gap)) };
        for gap in [access.gap, access.gap.min(SMALL_GAP_BYTES)] {
            let (count, bytes) = fetched::cost(self.in_backing(wanted)?, gap, access);
            let has_left = count.saturating_add(reserved.count) <= left.count;
            if has_left && bytes.saturating_add(reserved.bytes) <= left.bytes {
                return Ok(Some(gap));
            }
        }
        Ok(None)
    }

    fn in_backing(&self, wanted: &[Region]) -> Result<Vec<Region>> {
        wanted.iter().map(|region| self.range(region.start(), region.len())).collect()
    }

    /// As [`Source::read_at`], through another file descriptor of the same file.
    pub(super) fn read_through(&self, descriptor: &File, offset: u64, out: &mut [u8]) -> Result<()> {
        let is_unproved = self.deferred.as_ref().is_some_and(|deferred| deferred.shift().is_none());
        let Some(file) = self.file().filter(|_| !is_unproved) else { return self.read_at(offset, out) };
        let range = self.range(offset, out.len() as u64)?;
        let shift = range.start().saturating_sub(self.window.start());
        file.read_through(descriptor, self.file_offset(shift), out)
    }

    /// Copies all bytes of the window into a file, inside the kernel (`copy_file_range`). False if this is no local file or one that is
    /// read by many ranges at once, or the kernel cannot do it for these two files; then some bytes may have been written.
    pub fn copy_to_file(&self, target: &File, offset: u64) -> Result<bool> {
        let Some(file) = self.file().filter(|file| !file.access().waits_for_requests()) else {
            return Ok(false);
        };
        os::copy_range(&file.opened()?.file, self.proved()?.window, target, offset)
            .map_err(|error| self.locate_error(Error::io(error, None)))
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

    /// `len` bytes at `offset` for a parser: borrowed from bytes in memory, else read. The caller has checked `len`.
    pub fn chunk(&self, offset: u64, len: u64) -> Result<Chunk> {
        let Some(bytes) = self.backing.as_memory() else {
            return self.read_vec(offset, len).map(Chunk::from);
        };
        let range = self.range(offset, len)?;
        in_memory::chunk(bytes, range.start(), range.len())
    }

    /// Fails if these are no longer the bytes that were opened; for a file, if its size, modification time or inode differ.
    pub fn check_unchanged(&self) -> Result<()> {
        self.backing.check_unchanged().map_err(|error| self.locate_error(error))
    }

    /// The private mapping of the whole file, and this window's range in it; `None` for everything but local files.
    ///
    /// The mapping is made at the first call and shared by all clones. Fails if the file is not the one that was opened.
    pub fn map(&self) -> Result<Option<(Arc<Mapping>, Region)>> {
        let Some(file) = self.file() else { return Ok(None) };
        Ok(Some((file.map()?, self.proved()?.window)))
    }

    /// A private mapping of the whole file that nothing else shares; `None` for everything but local files. The file is checked as
    /// by [`Source::map`].
    pub(super) fn map_unshared(&self) -> Result<Option<Mapping>> {
        self.file().map(LocalFile::map_unshared).transpose()
    }

    /// The window, in the file or in memory; the first possible place before [`Source::proved`].
    pub(super) fn region(&self) -> Region {
        let shift = self.deferred.as_ref().and_then(Deferred::shift).unwrap_or(0);
        Region::new(self.window.start().saturating_add(shift), self.window.len()).unwrap_or(self.window)
    }

    /// Adds the file's path, or the name of what is behind it, to an error.
    pub fn locate_error(&self, error: Error) -> Error {
        match (self.path(), self.backing.name()) {
            (Some(path), _) => error.in_file(path),
            (None, Some(name)) => error.in_file(Path::new(name)),
            (None, None) => error,
        }
    }
}

fn out_of_memory(len: u64) -> Error {
    Error::new(Code::Memory, format!("{len} byte(s) could not be allocated"))
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path().map(|path| path.display().to_string());
        let name = path.or_else(|| self.backing.name().map(str::to_owned)).unwrap_or_else(|| "memory".into());
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
