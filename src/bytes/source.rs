//! A window of a file, of bytes in memory or of any other [`ReadRanges`], read by position. Cloning shares what is behind it.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::access::Access;
use super::backing::Backing;
use super::chunk::{Bytes, Chunk};
use super::deferred::{Deferred, Proof};
use super::fetched::{self, Fetched};
use super::file::{FileStamp, LocalFile};
use super::io_choice::Io;
use super::mapping::Mapping;
use super::node::NodeShare;
use super::os;
use super::read_ranges::{RangeRead, ReadFolder, ReadRanges};
use super::region::Region;
use super::remote::Remote;
use super::request_meter::{RequestMeter, Requests};
use super::scratch::zeroed;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_usize;
use crate::parallel::Cancel;

/// A gap that is read through even if the bytes that may be fetched are scarce.
const SMALL_GAP_BYTES: u64 = 512;

/// A window of bytes that are read by position.
#[derive(Clone)]
pub struct Source {
    backing: Backing,
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
        Ok(Source::of(Backing::file(LocalFile::open(path, io)?)))
    }

    /// A source of bytes in memory.
    pub fn memory(bytes: Bytes) -> Source {
        Source::of(Backing::Memory(bytes))
    }

    /// All bytes of anything that is read by position. If its requests are expensive ([`Access::metadata_block`]), few bytes are
    /// read in larger blocks, which are kept in a small cache.
    pub fn new(ranges: Arc<dyn ReadRanges>) -> Source {
        Source::of(Backing::Remote(Remote::new(ranges, None)))
    }

    /// All bytes of what is behind it.
    pub(super) fn of(backing: Backing) -> Source {
        let window = Region::new(0, backing.size()).unwrap_or_default();
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

    /// The local file behind it, which can be mapped and read with `O_DIRECT`.
    pub fn file(&self) -> Option<&LocalFile> {
        self.backing.as_file()
    }

    /// The file's path; `None` for everything but local files.
    pub fn path(&self) -> Option<&Path> {
        self.file().map(LocalFile::path)
    }

    /// The stamp of the local file behind it when it was opened; `None` for everything else.
    pub fn file_stamp(&self) -> Option<FileStamp> {
        self.file().map(LocalFile::file_stamp)
    }

    /// The name in messages of what is neither a local file nor bytes in memory.
    pub fn name(&self) -> Option<&str> {
        self.backing.ranges()?.name()
    }

    /// The folder of a store that it is in.
    pub(super) fn store(&self) -> Option<Arc<dyn ReadFolder>> {
        self.backing.ranges()?.folder()
    }

    /// Identifies this version of these bytes, also for another process: see [`ReadRanges::identity`].
    pub fn identity(&self) -> Option<String> {
        let identity = self.backing.ranges()?.identity()?;
        Some(format!("{identity} from {} to {}", self.window.start(), self.window.end()))
    }

    /// Whether both sources are windows of one opened file, or of the same bytes in memory.
    pub fn same_backing(&self, other: &Source) -> bool {
        self.backing.is_same(&other.backing)
    }

    /// How metadata is read best.
    pub fn access(&self) -> Access {
        self.backing.access()
    }

    /// How tensor data is read best, unless a large contiguous range is read with `O_DIRECT`: see [`ReadMode`](super::ReadMode). Where
    /// requests are expensive, it depends on what those cost that were sent before.
    pub fn data_access(&self) -> Access {
        self.backing.data_access()
    }

    /// The offset of a window position from the start of its block of `size` bytes.
    pub fn block_offset(&self, offset: u64, size: u64) -> u64 {
        self.start().saturating_add(offset) % size.max(1)
    }

    /// Where bytes of the window are in the file, or in memory. `None` if the window has fewer, or begins nobody knows where before
    /// [`Source::proved`].
    pub(super) fn in_backing(&self, offset: u64, len: u64) -> Option<Region> {
        let shift = self.deferred.as_ref().map_or(Some(0), Deferred::shift)?;
        let range = self.window.subregion(offset, len)?;
        Region::new(range.start().checked_add(shift)?, len)
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
        deferred.prove(&self.backing).map_err(|error| self.locate_error(error))?;
        Ok(self.plain(self.region()))
    }

    /// As [`Source::proved`], with the bytes of `span`, which were read already.
    pub fn proved_within(&self, span: &Source, bytes: &[u8]) -> Result<Source> {
        let Some(deferred) = &self.deferred else { return Ok(self.clone()) };
        let found = |offset: u64, len: u64| {
            let range = span.region().relative(Region::new(offset, len)?)?;
            bytes.get(to_usize(range.start())..to_usize(range.end())).map(<[u8]>::to_vec)
        };
        deferred.prove_from(&self.backing, found).map_err(|error| self.locate_error(error))?;
        self.proved()
    }

    /// A window of the same backing whose place is known.
    fn plain(&self, window: Region) -> Source {
        Source { backing: self.backing.clone(), window, deferred: None }
    }

    /// The window that has to be read for this one: the same, and with it what its proof needs. `None` if more than `gap` bytes lie
    /// between the two.
    pub fn extent(&self, gap: u64) -> Option<Source> {
        let Some(deferred) = self.deferred.as_ref().filter(|deferred| deferred.shift().is_none()) else {
            return Some(self.plain(self.region()));
        };
        let mut extents = deferred.extents(self.window).ok()?;
        extents.sort_unstable_by_key(|extent| extent.start());
        let (mut window, mut between) = (*extents.first()?, 0_u64);
        for extent in extents {
            between = between.saturating_add(extent.start().saturating_sub(window.end()));
            window = window.hull(extent);
        }
        (between <= gap).then(|| self.plain(window))
    }

    /// The smallest window that covers this one and `other`. `None` if they have different backings, or more than `gap` bytes lie
    /// between them.
    pub fn span(&self, other: &Source, gap: u64) -> Option<Source> {
        let window = self.region().hull(other.region());
        let between = window.len().saturating_sub(self.len()).saturating_sub(other.len());
        (between <= gap && self.same_backing(other)).then(|| self.plain(window))
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
            Some(deferred) => deferred.read(&self.backing, &mut [RangeRead { offset: range.start(), out }]),
        };
        read.map_err(|error| self.locate_error(error))
    }

    /// As [`Source::read_at`], and as [`ReadRanges::read_at_non_temporal`].
    pub fn read_at_non_temporal(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.backing {
            Backing::Remote(remote) if self.deferred.is_none() && !remote.access().waits_for_requests() => {
                let range = self.range(offset, out.len() as u64)?;
                let read = remote.ranges().read_at_non_temporal(range.start(), out);
                read.map_err(|error| self.locate_error(error))
            }
            _ => self.read_at(offset, out),
        }
    }

    /// Keeps up to `len` bytes at `offset` of the window for reads that follow, where requests are expensive. The part outside of the
    /// window is left out.
    pub fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let Some(remote) = self.backing.remote() else { return Ok(()) };
        let (start, len) = (self.start().saturating_add(offset), len.min(self.len().saturating_sub(offset)));
        remote.prefetch(start, len).map_err(|error| self.locate_error(error))
    }

    /// The same window with limits on what is requested through it. Unchanged where requests are cheap, and where limits hold already.
    pub fn limited(&self, limits: &Limits) -> Limited {
        let meter = Arc::new(RequestMeter::new(limits));
        let limited = self.backing.remote().and_then(|remote| remote.with_meter(&meter));
        let backing = limited.map_or_else(|| self.backing.clone(), Backing::Remote);
        Limited { source: Source { backing, ..self.clone() }, _meter: meter }
    }

    /// Shares what is read from now on through this and every source of the same backing: see [`NodeShare`]. False where nothing is shared.
    pub fn share(&self, node: Option<&Arc<NodeShare>>) -> bool {
        self.backing.remote().is_some_and(|remote| remote.share(node))
    }

    /// The requests that [`Source::limited`] leaves; `None` without limits.
    pub(super) fn requests_left(&self) -> Option<Requests> {
        self.backing.remote()?.requests_left()
    }

    /// Reads several ranges of the window in one call. See [`ReadRanges::read_ranges`].
    pub fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        for range in ranges.iter_mut() {
            range.offset = self.range(range.offset, range.out.len() as u64)?.start();
        }
        let read = match &self.deferred {
            None => self.backing.read_ranges(ranges),
            Some(deferred) => deferred.read(&self.backing, ranges),
        };
        read.map_err(|error| self.locate_error(error))
    }

    /// Reads many small ranges of the window: near ones by one request, and as many requests at once as the source likes. Between two
    /// ranges of one request lie at most `gap` bytes.
    pub fn gather(&self, wanted: &[Region], gap: u64, cancel: &Cancel) -> Result<Fetched> {
        let fetched = Fetched::gather(&self.backing, self.start(), self.ranges(wanted)?, gap, cancel);
        fetched.map_err(|error| self.locate_error(error))
    }

    /// The largest gap with which [`Source::gather`] stays within the limits on requests and leaves `reserved`; `None` if there is none.
    pub fn affordable_gap(&self, wanted: &[Region], reserved: Requests) -> Result<Option<u64>> {
        let access = self.access();
        let Some(left) = self.requests_left() else { return Ok(Some(access.gap)) };
        for gap in [access.gap, access.gap.min(SMALL_GAP_BYTES)] {
            let cost = fetched::cost(self.ranges(wanted)?, gap, access);
            let has_left = cost.count.saturating_add(reserved.count) <= left.count;
            if has_left && cost.bytes.saturating_add(reserved.bytes) <= left.bytes {
                return Ok(Some(gap));
            }
        }
        Ok(None)
    }

    fn ranges(&self, wanted: &[Region]) -> Result<Vec<Region>> {
        wanted.iter().map(|region| self.range(region.start(), region.len())).collect()
    }

    /// Copies all bytes of the window into a file, inside the kernel (`copy_file_range`). False if this is not a local file or one that is
    /// read by many ranges at once, or the kernel cannot do it for these two files; then some bytes may have been written.
    pub fn copy_to_file(&self, target: &File, offset: u64) -> Result<bool> {
        let Backing::File(file) = &self.backing else { return Ok(false) };
        os::copy_range(&file.opened()?.file, self.proved()?.window, target, offset)
            .map_err(|error| self.locate_error(Error::io(error, None)))
    }

    /// Copies `len` bytes at `offset` of the window. The caller has checked `len` against a limit.
    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.range(offset, len)?;
        let mut out = zeroed(len)?;
        self.read_at(offset, &mut out)?;
        Ok(out)
    }

    /// `len` bytes at `offset` for a parser: borrowed from bytes in memory, else read. The caller has checked `len`.
    pub fn chunk(&self, offset: u64, len: u64) -> Result<Chunk> {
        let range = self.range(offset, len)?;
        let shared = self.backing.chunk(range.start(), range.len());
        shared.unwrap_or_else(|| self.read_vec(offset, len).map(Chunk::from))
    }

    /// Fails if these are no longer the bytes that were opened; for a file, if its size, modification time or inode differ.
    pub fn check_unchanged(&self) -> Result<()> {
        let checked = self.backing.ranges().map_or(Ok(()), ReadRanges::check_unchanged);
        checked.map_err(|error| self.locate_error(error))
    }

    /// A private mapping of the whole file, and this window's range in it; `None` for everything but local files.
    ///
    /// The mapping is made at the first call and shared by all clones. Fails if the file is not the one that was opened.
    pub fn map(&self, writable: bool) -> Result<Option<(Arc<Mapping>, Region)>> {
        let Some(file) = self.file() else { return Ok(None) };
        Ok(Some((file.map(writable)?, self.proved()?.window)))
    }

    /// The window, in the file or in memory; the first possible place before [`Source::proved`].
    pub(super) fn region(&self) -> Region {
        let shift = self.deferred.as_ref().and_then(Deferred::shift).unwrap_or(0);
        Region::new(self.window.start().saturating_add(shift), self.window.len()).unwrap_or(self.window)
    }

    /// Adds the file's path, or the name of what is behind it, to an error.
    pub fn locate_error(&self, error: Error) -> Error {
        error.in_known_file(self.path_or_name())
    }

    fn path_or_name(&self) -> Option<&Path> {
        self.path().or_else(|| self.name().map(Path::new))
    }
}

/// A source with limits on requests, which hold for all windows of it until this is dropped.
pub struct Limited {
    source: Source,
    _meter: Arc<RequestMeter>,
}

impl Deref for Limited {
    type Target = Source;

    fn deref(&self) -> &Source {
        &self.source
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path_or_name().unwrap_or(Path::new("memory")).display();
        write!(f, "Source({path}, {}..{})", self.window.start(), self.window.end())
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
        assert_eq!(source.map(true).unwrap_err().code(), Code::FileChanged);
    }

    // The paths are those of POSIX.
    #[cfg(unix)]
    #[test]
    fn devices_and_directories_are_refused() {
        for path in ["/dev/zero", "/tmp"] {
            assert_eq!(Source::open(Path::new(path)).unwrap_err().code(), Code::NotRegularFile);
        }
        assert_eq!(Source::open(Path::new("/nonexistent")).unwrap_err().code(), Code::Io);
    }
}
