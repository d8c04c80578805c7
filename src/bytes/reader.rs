//! Positional reads of a source by one thread. A local file is read buffered (through the page cache) or direct (`O_DIRECT`, which
//! bypasses it), anything else by its own positional reads.
//!
//! A direct read covers whole blocks. It goes straight into the destination if that is aligned like the file, and through a bounce
//! buffer otherwise. If the system refuses a direct read, the same bytes are read through the page cache; that read also reports
//! the error if the file itself is at fault.
#![forbid(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::handle::OpenFile;
use super::io_choice::DIRECT_ALIGNMENT;
use super::os;
use super::scratch::BounceBuffer;
use super::{Access, RangeRead, Scratch, Source};
use crate::error::{Code, Error, Result};
use crate::parallel;

/// Reads of fewer bytes go through the page cache: they are not worth the wait for the disk.
const DIRECT_READ_MIN_BYTES: usize = 256 << 10;

/// Longer direct reads are split.
const DIRECT_READ_MAX_BYTES: usize = 4 << 20;

/// If at least this many bytes are read, each thread reads through a file descriptor of its own.
const SEQUENTIAL_READ_MIN_BYTES: u64 = 16 << 20;

/// The number of threads that keep a disk busy, however few cores there are.
const DISK_THREADS: usize = 4;

/// How some bytes of a source are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMode {
    way: ReadWay,
    access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadWay {
    /// By the source's own positional reads; those of a file go through the page cache.
    Plain,
    /// Through the page cache, each thread with a file descriptor and read-ahead of its own.
    Sequential,
    /// With `O_DIRECT`, which bypasses the page cache.
    Direct,
}

impl ReadMode {
    /// How to read `bytes` bytes for one result. If they are not contiguous, they are read in short runs, and those of a file
    /// through the page cache.
    pub fn of(source: &Source, bytes: u64, contiguous: bool) -> ReadMode {
        let access = source.access();
        let plain = ReadMode { way: ReadWay::Plain, access };
        let Some(file) = source.file() else { return plain };
        if bytes >= DIRECT_READ_MAX_BYTES as u64 && contiguous && file.direct().is_some() {
            ReadMode { way: ReadWay::Direct, access: direct_access() }
        } else if bytes >= sequential_min(access) {
            ReadMode { way: ReadWay::Sequential, access }
        } else {
            plain
        }
    }

    /// The sizes that suit it.
    pub fn access(self) -> Access {
        self.access
    }

    /// Whether reads are direct, so that they bypass the page cache.
    pub fn is_direct(self) -> bool {
        self.way == ReadWay::Direct
    }

    /// One thread's reads of the source.
    pub fn reader(self, source: &Source) -> Reader<'_> {
        self.reader_with(source, &mut Descriptor::default())
    }

    /// As [`ReadMode::reader`], with the thread's file descriptor of the same file if it has one.
    pub fn reader_with<'a>(self, source: &'a Source, descriptor: &mut Descriptor) -> Reader<'a> {
        let way = match self.way {
            ReadWay::Direct => Reader { direct: source.direct(), ..Reader::new(source) },
            ReadWay::Sequential => Reader { sequential: descriptor.of(source), ..Reader::new(source) },
            ReadWay::Plain => Reader::new(source),
        };
        Reader { access: self.access, ..way }
    }
}

/// A thread's own file descriptor, with read-ahead of its own.
#[derive(Default)]
pub struct Descriptor(Option<(Source, Option<Arc<File>>)>);

impl Descriptor {
    /// The descriptor of the source's file: the last one if it is of the same file.
    fn of(&mut self, source: &Source) -> Option<Arc<File>> {
        match &self.0 {
            Some((last, descriptor)) if last.same_backing(source) => descriptor.clone(),
            _ => {
                let opened = source
                    .file()
                    .and_then(|file| os::open_sequential(&file.opened().ok()?.file))
                    .map(Arc::new);
                self.0.insert((source.clone(), opened)).1.clone()
            }
        }
    }
}

/// The least bytes for which each thread opens a file descriptor of its own: fewer where the kernel's read-ahead counts most.
fn sequential_min(access: Access) -> u64 {
    if access.waits_for_requests() { access.small } else { SEQUENTIAL_READ_MIN_BYTES }
}

/// How the disk behind a file is read best.
fn direct_access() -> Access {
    Access {
        // Larger than the L2 cache, but the disk is slower than the cache misses.
        block: DIRECT_READ_MAX_BYTES as u64,
        alignment: DIRECT_ALIGNMENT,
        in_flight: Some(DISK_THREADS.max(parallel::cores())),
        ..Access::BUFFERED
    }
}

/// Upper bounds for the reads of a source: the bytes of one thread's scratch and bounce buffer, and the number of threads, where
/// the source suggests one.
pub fn scratch_bounds(source: &Source) -> (u64, Option<usize>) {
    let access = source.access();
    if source.may_be_direct() {
        (access.block + DIRECT_READ_MAX_BYTES as u64, access.in_flight.max(direct_access().in_flight))
    } else {
        (access.block, access.in_flight)
    }
}

/// One thread's reads of one source.
pub struct Reader<'a> {
    source: &'a Source,
    access: Access,
    direct: Option<Arc<OpenFile>>,
    /// This reader's own file descriptor, so that the kernel's read-ahead follows this thread alone.
    sequential: Option<Arc<File>>,
}

impl<'a> Reader<'a> {
    /// The most bytes of one direct read.
    pub(super) const DIRECT_READ_MAX_BYTES: u64 = DIRECT_READ_MAX_BYTES as u64;

    /// A reader that reads a file through the page cache, and anything else by its own positional reads.
    pub fn new(source: &'a Source) -> Reader<'a> {
        Reader { source, access: source.access(), direct: None, sequential: None }
    }

    /// A reader that reads with `O_DIRECT` if that is chosen for the source's file and the file system supports it.
    pub(super) fn direct(source: &'a Source) -> Reader<'a> {
        let way = if source.direct().is_some() { ReadWay::Direct } else { ReadWay::Plain };
        ReadMode { way, access: source.access() }.reader(source)
    }

    /// The sizes that suit its reads.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Fills `out` with the bytes at `offset` of the source's window.
    pub fn read_at(&self, offset: u64, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        self.read_with_bounce_buffer(offset, out, scratch.bounce_buffer())
    }

    /// Reads `len` bytes at `offset` of the source's window into scratch.
    pub fn read<'s>(&self, offset: u64, len: usize, scratch: &'s mut Scratch) -> Result<&'s mut [u8]> {
        if let Some(file) = self.direct_file(len)
            && let Some(range) = self.read_blocks(file, offset, len, scratch.bounce_buffer())
        {
            return last_read(range, scratch.bounce_buffer());
        }
        let bytes = scratch.bytes(len)?;
        self.read_plain(offset, bytes)?;
        Ok(bytes)
    }

    /// Reads runs of bytes into `len` bytes of scratch: each from an offset of the source's window to a range of the scratch. The runs
    /// are in the order of these ranges.
    pub fn read_runs<'s>(
        &self,
        len: usize,
        runs: impl IntoIterator<Item = (u64, Range<usize>)>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s mut [u8]> {
        let (bytes, bounce_buffer) = scratch.bytes_and_bounce_buffer(len)?;
        if self.access.waits_for_requests() {
            return self.request_runs(bytes, runs);
        }
        for (offset, place) in runs {
            let run = bytes.get_mut(place);
            let run = run.ok_or_else(|| Error::new(Code::InternalError, "a run does not fit the scratch"))?;
            self.read_with_bounce_buffer(offset, run, bounce_buffer)?;
        }
        Ok(bytes)
    }

    /// Reads all runs with one call, so that a source whose requests take long can send them at once. The runs are in the order of
    /// their ranges of the scratch.
    fn request_runs<'s>(
        &self,
        bytes: &'s mut [u8],
        runs: impl IntoIterator<Item = (u64, Range<usize>)>,
    ) -> Result<&'s mut [u8]> {
        let outside = || Error::new(Code::InternalError, "a run does not fit the scratch");
        let (mut reads, mut rest, mut end) = (Vec::new(), &mut *bytes, 0);
        for (offset, range) in runs {
            let len = range.len();
            let skip = range.start.checked_sub(end).ok_or_else(outside)?;
            let (_, tail) = rest.split_at_mut_checked(skip).ok_or_else(outside)?;
            let (out, tail) = tail.split_at_mut_checked(len).ok_or_else(outside)?;
            reads.push(RangeRead { offset, out });
            (rest, end) = (tail, range.end);
        }
        self.source.read_ranges(&mut reads)?;
        Ok(bytes)
    }

    /// The file that is opened with `O_DIRECT`, if `len` bytes are worth it.
    fn direct_file(&self, len: usize) -> Option<&File> {
        self.direct.as_ref().filter(|_| len >= DIRECT_READ_MIN_BYTES)?.direct()
    }

    /// Fills `out` with the bytes at `offset` of the source's window, without `O_DIRECT`.
    pub fn read_plain(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.sequential {
            Some(descriptor) => self.source.read_through(descriptor, offset, out),
            None => self.source.read_at(offset, out),
        }
    }

    fn read_with_bounce_buffer(
        &self,
        offset: u64,
        out: &mut [u8],
        bounce_buffer: &mut BounceBuffer,
    ) -> Result<()> {
        let Some(file) = self.direct_file(out.len()) else {
            return self.read_plain(offset, out);
        };
        let block_offset = self.source.block_offset(offset, DIRECT_ALIGNMENT);
        if out.as_ptr().addr() as u64 % DIRECT_ALIGNMENT != block_offset {
            return self.read_via_bounce_buffer(file, offset, out, bounce_buffer);
        }
        // Destination and file have the same offset from a block: all but the two ends is read straight into the destination.
        let head_len = (DIRECT_ALIGNMENT - block_offset) % DIRECT_ALIGNMENT;
        let (head, after_head) = out.split_at_mut(usize::try_from(head_len).unwrap_or(0).min(out.len()));
        let middle_len = after_head.len() as u64 / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
        let (middle, tail) = after_head.split_at_mut(usize::try_from(middle_len).unwrap_or(0));
        let mut at = offset.saturating_add(head_len);
        for part in middle.chunks_mut(DIRECT_READ_MAX_BYTES) {
            if !read_into_place(file, self.source, at, part) {
                self.read_plain(at, part)?;
            }
            at = at.saturating_add(part.len() as u64);
        }
        self.read_via_bounce_buffer(file, offset, head, bounce_buffer)?;
        self.read_via_bounce_buffer(file, at, tail, bounce_buffer)
    }

    /// Reads whole blocks into the bounce buffer and copies the wanted bytes from there.
    fn read_via_bounce_buffer(
        &self,
        file: &File,
        offset: u64,
        out: &mut [u8],
        bounce_buffer: &mut BounceBuffer,
    ) -> Result<()> {
        let mut offset = offset;
        for part in out.chunks_mut(DIRECT_READ_MAX_BYTES) {
            let found = self.read_blocks(file, offset, part.len(), bounce_buffer);
            match found {
                Some(found) => part.copy_from_slice(last_read(found, bounce_buffer)?),
                None => self.read_plain(offset, part)?,
            }
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// Reads the blocks that cover the wanted bytes into the bounce buffer. Returns the range of the wanted bytes in it, or `None`
    /// if the read did not return all of them.
    fn read_blocks(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        bounce_buffer: &mut BounceBuffer,
    ) -> Option<Range<usize>> {
        if !self.source.has_range(offset, len as u64) {
            return None;
        }
        let skip = self.source.block_offset(offset, DIRECT_ALIGNMENT);
        let first_block = self.source.file_offset(offset) - skip;
        let whole = skip.checked_add(len as u64)?.checked_next_multiple_of(DIRECT_ALIGNMENT)?;
        let range = usize::try_from(skip).ok()?..usize::try_from(skip).ok()?.checked_add(len)?;
        let bytes = bounce_buffer.bytes(usize::try_from(whole).ok()?)?;
        let mut done = 0;
        while done < range.end {
            // A short read ends on a block boundary; at the end of the file it ends anywhere.
            let read = file.read_at(bytes.get_mut(done..)?, first_block.checked_add(done as u64)?).ok()?;
            done = done.checked_add(read)?;
            if read == 0 || (done < range.end && !(done as u64).is_multiple_of(DIRECT_ALIGNMENT)) {
                return None;
            }
        }
        Some(range)
    }
}

/// The bytes at a range of the bounce buffer that [`Reader::read_blocks`] has just returned.
fn last_read(range: Range<usize>, bounce_buffer: &mut BounceBuffer) -> Result<&mut [u8]> {
    let blocks_len = range.end.next_multiple_of(usize::try_from(DIRECT_ALIGNMENT).unwrap_or(1));
    let bytes = bounce_buffer.bytes(blocks_len).and_then(|blocks| blocks.get_mut(range));
    bytes.ok_or_else(|| Error::new(Code::InternalError, "a direct read was lost"))
}

/// Reads whole blocks with `O_DIRECT` straight into `out`. False if the read did not return all of them.
fn read_into_place(file: &File, source: &Source, offset: u64, out: &mut [u8]) -> bool {
    let mut done = 0;
    while source.has_range(offset, out.len() as u64)
        && let Some(rest) = out.get_mut(done..)
    {
        if rest.is_empty() {
            return true;
        }
        match file.read_at(rest, source.file_offset(offset).saturating_add(done as u64)) {
            // A short read ends on a block boundary.
            Ok(read) if read > 0 && (read as u64).is_multiple_of(DIRECT_ALIGNMENT) => {
                done = done.saturating_add(read)
            }
            _ => break,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{AllocateAligned, Io};
    use std::io::Write;

    fn random_bytes(len: usize) -> Vec<u8> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Memory that starts on a block boundary.
    struct AlignedVec(Vec<u8>, usize);

    impl AsMut<[u8]> for AlignedVec {
        fn as_mut(&mut self) -> &mut [u8] {
            let skip = self.0.as_ptr().align_offset(4096);
            &mut self.0[skip..][..self.1]
        }
    }

    fn aligned_vec(len: usize) -> AlignedVec {
        AlignedVec(vec![0; len + 4096], len)
    }

    fn scratch() -> Scratch {
        Scratch::new(|len| Some(Box::new(aligned_vec(usize::try_from(len).unwrap()))))
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.as_file().sync_all().unwrap();
        file
    }

    #[test]
    fn direct_reads_return_the_bytes_of_any_range() {
        let bytes = random_bytes((9 << 20) + 123);
        let file = file(&bytes);
        let whole = Source::open_with(file.path(), Io::Direct).unwrap();
        let window = whole.window(77, whole.len() - 77).unwrap();
        let bytes = &bytes[77..];
        let (reader, mut scratch) = (Reader::direct(&window), scratch());
        if reader.direct.is_none() {
            eprintln!("skipped: this file system has no direct I/O");
        }
        let mut out = vec![0; bytes.len()];
        for (at, len) in [
            (0, bytes.len()),
            (1, DIRECT_READ_MIN_BYTES),
            (4019, DIRECT_READ_MIN_BYTES),
            (5, DIRECT_READ_MIN_BYTES - 1),
            (bytes.len() - DIRECT_READ_MIN_BYTES, DIRECT_READ_MIN_BYTES),
        ] {
            reader.read_at(at as u64, &mut out[..len], &mut scratch).unwrap();
            assert!(out[..len] == bytes[at..at + len], "{at} {len}");
            assert!(*reader.read(at as u64, len, &mut scratch).unwrap() == bytes[at..at + len], "{at} {len}");
        }
        let past = reader.read(bytes.len() as u64 - 5, DIRECT_READ_MIN_BYTES, &mut scratch);
        assert_eq!(past.unwrap_err().code(), Code::Truncated);
        // Nor past a window behind which the file goes on.
        let inner = whole.window(77, 4 << 20).unwrap();
        let past = Reader::direct(&inner)
            .read((4 << 20) - 5, DIRECT_READ_MIN_BYTES, &mut scratch)
            .map(|bytes| bytes.len());
        assert_eq!(past.unwrap_err().code(), Code::Truncated);
        // Two runs, with a byte of the scratch between them.
        let runs =
            [(4096, 0..DIRECT_READ_MIN_BYTES), (7, DIRECT_READ_MIN_BYTES + 1..2 * DIRECT_READ_MIN_BYTES + 1)];
        let found = reader.read_runs(2 * DIRECT_READ_MIN_BYTES + 1, runs, &mut scratch).unwrap();
        assert!(
            found[..DIRECT_READ_MIN_BYTES] == bytes[4096..][..DIRECT_READ_MIN_BYTES]
                && found[DIRECT_READ_MIN_BYTES + 1..] == bytes[7..][..DIRECT_READ_MIN_BYTES]
        );
        let runs = [(1, 0..5), (3, 5..11)];
        assert_eq!(
            reader.read_runs(10, runs, &mut scratch).unwrap_err().message(),
            "a run does not fit the scratch"
        );
    }

    #[test]
    fn a_destination_aligned_like_the_file_needs_no_bounce_buffer() {
        let bytes = random_bytes((9 << 20) + 123);
        let file = file(&bytes);
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        let never: AllocateAligned =
            |len| panic!("{len} bytes of bounce buffer, where only the two ends need one");
        let (reader, mut scratch) = (Reader::direct(&source), Scratch::new(never));
        let mut blocks = aligned_vec(10 << 20);
        let out = blocks.as_mut();
        for (at, len) in [
            (0, bytes.len()),
            (0, 8 << 20),
            (64, DIRECT_READ_MIN_BYTES),
            (4095, 5 << 20),
            (1 << 20, (1 << 20) + 1),
            (8192 - 64, DIRECT_READ_MIN_BYTES),
        ] {
            out.fill(0);
            let to = &mut out[at % 4096..][..len];
            reader.read_at(at as u64, to, &mut scratch).unwrap();
            assert!(*to == bytes[at..at + len], "{at} {len}");
        }
        let past = reader.read_at(8192, &mut out[..9 << 20], &mut scratch).unwrap_err();
        assert_eq!(past.code(), Code::Truncated);
    }

    #[test]
    fn refused_direct_reads_fall_back_to_the_page_cache() {
        let bytes = random_bytes(3 << 20);
        let file = file(&bytes);
        let source = Source::open(file.path()).unwrap();
        // Every read of a directory is an error.
        let folder = File::open(std::env::temp_dir()).unwrap();
        let direct = Some(Arc::new(OpenFile::with_direct(file.reopen().unwrap(), folder)));
        let (reader, mut scratch) = (Reader { direct, ..Reader::new(&source) }, scratch());
        let mut out = vec![0; bytes.len()];
        reader.read_at(0, &mut out, &mut scratch).unwrap();
        assert!(out == bytes);
        assert!(
            *reader.read(9, DIRECT_READ_MIN_BYTES, &mut scratch).unwrap()
                == bytes[9..9 + DIRECT_READ_MIN_BYTES]
        );
    }

    #[test]
    fn without_a_bounce_buffer_reads_fall_back_to_the_page_cache() {
        let bytes = random_bytes(3 << 20);
        let file = file(&bytes);
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        let (reader, mut scratch) = (Reader::direct(&source), Scratch::new(|_| None));
        let mut out = vec![0; bytes.len() - 9];
        reader.read_at(9, &mut out, &mut scratch).unwrap();
        assert!(out == bytes[9..]);
        assert!(
            *reader.read(9, DIRECT_READ_MIN_BYTES, &mut scratch).unwrap()
                == bytes[9..9 + DIRECT_READ_MIN_BYTES]
        );
    }

    #[test]
    fn a_truncated_file_is_an_error_for_direct_reads() {
        let file = file(&random_bytes(2 << 20));
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let (reader, mut scratch) = (Reader::direct(&source), scratch());
        assert_eq!(reader.read(0, 2 << 20, &mut scratch).unwrap_err().code(), Code::FileChanged);
        for out in [&mut vec![0; 2 << 20], aligned_vec(2 << 20).as_mut()] {
            let found = reader.read_at(0, out, &mut scratch);
            assert_eq!(found.unwrap_err().code(), Code::FileChanged);
        }
    }

    #[test]
    fn a_source_in_memory_is_copied() {
        let source = Source::memory(Arc::new(random_bytes(1 << 20)));
        let reader = Reader::direct(&source);
        assert!(reader.direct.is_none());
        assert_eq!(reader.read(3, 4, &mut scratch()).unwrap(), &random_bytes(7)[3..]);
    }
}
