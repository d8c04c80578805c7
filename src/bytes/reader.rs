//! Positional reads of a source by one thread. A local file is read buffered (through the page cache) or direct (`O_DIRECT`, which
//! bypasses it), anything else by its own positional reads.
//!
//! A direct read covers whole blocks. It goes straight into the destination if that is aligned like the file, and through a bounce
//! buffer otherwise. If the system refuses a direct read, the same bytes are read through the page cache; that read also reports
//! the error if the file itself is at fault.
#![forbid(unsafe_code)]

use std::fs::File;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use super::access::Access;
use super::handle::OpenFile;
use super::io_choice::{DIRECT_ALIGNMENT, DIRECT_READ_MAX_BYTES};
use super::read_ranges::RangeRead;
use super::scratch::{BounceBuffer, Scratch};
use super::source::Source;
use crate::error::{Code, Error, Result};
use crate::num::{to_u64, to_usize};
use crate::sys::FileExt;

/// Reads of fewer bytes go through the page cache: they are not worth the wait for the disk.
const DIRECT_READ_MIN_BYTES: usize = 256 << 10;

/// One thread's reads of one source.
pub struct Reader<'a> {
    pub(super) source: &'a Source,
    pub(super) access: Access,
    pub(super) direct: Option<Arc<OpenFile>>,
    /// This reader's own file descriptor, so that the kernel's read-ahead follows this thread alone.
    pub(super) sequential: Option<Arc<File>>,
}

impl<'a> Reader<'a> {
    /// A reader that reads a file through the page cache, and anything else by its own positional reads.
    pub fn new(source: &'a Source) -> Reader<'a> {
        Reader { source, access: source.data_access(), direct: None, sequential: None }
    }

    /// The sizes that suit its reads.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether it reads with `O_DIRECT`.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Fills `out` with the bytes at `offset` of the source's window.
    pub fn read_at(&self, offset: u64, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        self.read_with_bounce_buffer(offset, out, scratch.bounce_buffer())
    }

    /// Reads `len` bytes at `offset` of the source's window into scratch.
    pub fn read<'s>(&self, offset: u64, len: usize, scratch: &'s mut Scratch) -> Result<&'s mut [u8]> {
        if let Some(file) = self.direct_file(len)
            && let Some(range) = self.read_covering(file, offset, len, scratch.bounce_buffer())
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
        let outside = || Error::new(Code::InternalError, "a run does not fit the scratch");
        let (mut rest, mut end) = (&mut *bytes, 0);
        let reads = runs.into_iter().map(|(offset, range)| {
            let skip = range.start.checked_sub(end).ok_or_else(outside)?;
            let (_, tail) = mem::take(&mut rest).split_at_mut_checked(skip).ok_or_else(outside)?;
            let (out, tail) = tail.split_at_mut_checked(range.len()).ok_or_else(outside)?;
            (rest, end) = (tail, range.end);
            Ok(RangeRead { offset, out })
        });
        if self.access.waits_for_requests() {
            // By one call, so that all requests can be sent at once.
            self.source.read_ranges(&mut reads.collect::<Result<Vec<_>>>()?)?;
        } else {
            for read in reads {
                let RangeRead { offset, out } = read?;
                self.read_with_bounce_buffer(offset, out, bounce_buffer)?;
            }
        }
        Ok(bytes)
    }

    /// The file that is opened with `O_DIRECT`, if `len` bytes are worth it.
    fn direct_file(&self, len: usize) -> Option<&File> {
        self.direct.as_ref().filter(|_| len >= DIRECT_READ_MIN_BYTES)?.direct()
    }

    /// Fills `out` with the bytes at `offset` of the source's window, without `O_DIRECT`.
    pub fn read_plain(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match (&self.sequential, self.source.file(), self.source.in_backing(offset, to_u64(out.len()))) {
            (Some(descriptor), Some(file), Some(range)) => file.read_through(descriptor, range.start(), out),
            _ => self.source.read_at(offset, out),
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
        if to_u64(out.as_ptr().addr()) % DIRECT_ALIGNMENT != block_offset {
            return self.read_via_bounce_buffer(file, offset, out, bounce_buffer);
        }
        // Destination and file have the same offset from a block: all but the two ends is read straight into the destination.
        let head_len = (DIRECT_ALIGNMENT - block_offset) % DIRECT_ALIGNMENT;
        let (head, after_head) = out.split_at_mut(to_usize(head_len).min(out.len()));
        let middle_len = to_u64(after_head.len()) / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
        let (middle, tail) = after_head.split_at_mut(to_usize(middle_len));
        let mut at = offset.saturating_add(head_len);
        for part in middle.chunks_mut(to_usize(DIRECT_READ_MAX_BYTES)) {
            let range = self.source.in_backing(at, to_u64(part.len()));
            if !range.is_some_and(|range| read_blocks(file, range.start(), part, part.len())) {
                self.read_plain(at, part)?;
            }
            at = at.saturating_add(to_u64(part.len()));
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
        for part in out.chunks_mut(to_usize(DIRECT_READ_MAX_BYTES)) {
            match self.read_covering(file, offset, part.len(), bounce_buffer) {
                Some(found) => part.copy_from_slice(last_read(found, bounce_buffer)?),
                None => self.read_plain(offset, part)?,
            }
            offset = offset.saturating_add(to_u64(part.len()));
        }
        Ok(())
    }

    /// Reads the blocks that cover the wanted bytes into the bounce buffer. Returns the range of the wanted bytes in it, or `None`
    /// if the read did not return all of them.
    fn read_covering(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        bounce_buffer: &mut BounceBuffer,
    ) -> Option<Range<usize>> {
        let start = self.source.in_backing(offset, to_u64(len))?.start();
        let skip = to_usize(start % DIRECT_ALIGNMENT);
        let range = skip..skip.checked_add(len)?;
        let blocks = bounce_buffer.bytes(range.end.checked_next_multiple_of(to_usize(DIRECT_ALIGNMENT))?)?;
        read_blocks(file, start / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT, blocks, range.end).then_some(range)
    }
}

/// The bytes at a range of the bounce buffer that [`Reader::read_covering`] has just returned.
fn last_read(range: Range<usize>, bounce_buffer: &mut BounceBuffer) -> Result<&mut [u8]> {
    let blocks_len = range.end.next_multiple_of(to_usize(DIRECT_ALIGNMENT));
    let bytes = bounce_buffer.bytes(blocks_len).and_then(|blocks| blocks.get_mut(range));
    bytes.ok_or_else(|| Error::new(Code::InternalError, "a direct read was lost"))
}

/// Reads whole blocks from `at` on with `O_DIRECT`, of which `wanted` bytes are needed. False if the reads did not return these.
fn read_blocks(file: &File, at: u64, blocks: &mut [u8], wanted: usize) -> bool {
    let mut done = 0;
    while done < wanted {
        let Some(rest) = blocks.get_mut(done..) else { return false };
        let read = file.read_at(rest, at.saturating_add(to_u64(done))).unwrap_or(0);
        done = done.saturating_add(read);
        // A short read ends on a block boundary; at the end of the file it ends anywhere.
        if read == 0 || (done < wanted && !to_u64(done).is_multiple_of(DIRECT_ALIGNMENT)) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{AllocateAligned, Io, ReadMode};
    use std::io::Write;

    fn random_bytes(len: usize) -> Vec<u8> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn direct(source: &Source) -> Reader<'_> {
        ReadMode::direct(source).reader(source)
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
        let (reader, mut scratch) = (direct(&window), scratch());
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
        let past =
            direct(&inner).read((4 << 20) - 5, DIRECT_READ_MIN_BYTES, &mut scratch).map(|bytes| bytes.len());
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
        let (reader, mut scratch) = (direct(&source), Scratch::new(never));
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

    // Windows opens no folder as a file.
    #[cfg(unix)]
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
        let (reader, mut scratch) = (direct(&source), Scratch::new(|_| None));
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
        let (reader, mut scratch) = (direct(&source), scratch());
        assert_eq!(reader.read(0, 2 << 20, &mut scratch).unwrap_err().code(), Code::FileChanged);
        for out in [&mut vec![0; 2 << 20], aligned_vec(2 << 20).as_mut()] {
            let found = reader.read_at(0, out, &mut scratch);
            assert_eq!(found.unwrap_err().code(), Code::FileChanged);
        }
    }

    #[test]
    fn a_source_in_memory_is_copied() {
        let source = Source::memory(Arc::new(random_bytes(1 << 20)));
        let reader = direct(&source);
        assert!(reader.direct.is_none());
        assert_eq!(reader.read(3, 4, &mut scratch()).unwrap(), &random_bytes(7)[3..]);
    }
}
