//! Positional reads by one thread, of a part of a source: through the page cache or around it.
//!
//! A direct read takes the blocks around what is wanted, into scratch that starts on a block; what the system refuses so is
//! read through the cache, which also words the error where the file itself is at fault.
#![forbid(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::Source;
use super::direct::{Aligned, BLOCK, open_forward};
use crate::error::{Code, Error, Result};

/// Bytes below which a direct read is not worth its wait for the disk.
const LEAST: usize = 256 << 10;

/// Bytes of one direct read.
const MOST: usize = 4 << 20;

/// Bytes of the blocks at the two ends of a read.
const ENDS: u64 = 2 * BLOCK;

/// Memory that direct reads go to where they cannot go to where they belong. It starts on a block.
pub type Blocks = Box<dyn AsMut<[u8]> + Send>;

/// What makes it, of at least so many bytes. On huge pages the disk is asked for more at a time.
pub type MakeBlocks = fn(u64) -> Option<Blocks>;

/// Reads of one source by one thread.
pub struct Reader<'a> {
    source: &'a Source,
    direct: Option<&'a File>,
    /// A description of this reader's own, so that the system's reading ahead follows it and no other thread.
    forward: Option<File>,
    /// Made at the first read that takes more than a few blocks.
    blocks: Option<Blocks>,
    make: MakeBlocks,
    /// A few blocks, for the ends of what is read straight to its place.
    ends: Aligned,
    scratch: Vec<u8>,
}

/// The memory of a reader that is done, for the next.
#[derive(Default)]
pub struct Scratch {
    blocks: Option<Blocks>,
    ends: Aligned,
    bytes: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// Bytes of one read around the page cache, at most.
    pub const MOST: u64 = MOST as u64;

    /// Reads through the page cache.
    pub fn new(source: &'a Source) -> Reader<'a> {
        Reader::with(source, None, |_| None)
    }

    /// As [`Reader::new`], for a thread that reads much, forward.
    pub fn forward(source: &'a Source) -> Reader<'a> {
        let mut reader = Reader::new(source);
        reader.forward = source.descriptor().and_then(open_forward);
        reader
    }

    /// Reads around the page cache, where the source's file is to be read so and the system can.
    pub fn around(source: &'a Source, make: MakeBlocks) -> Reader<'a> {
        Reader::with(source, source.direct(), make)
    }

    fn with(source: &'a Source, direct: Option<&'a File>, make: MakeBlocks) -> Reader<'a> {
        let ends = Aligned::default();
        Reader { source, direct, forward: None, blocks: None, make, ends, scratch: Vec::new() }
    }

    /// This reader, with the scratch of one that is done.
    pub fn with_scratch_of(self, done: Reader<'_>) -> Reader<'a> {
        self.with_scratch(done.into_scratch())
    }

    /// This reader, with the scratch of an earlier one.
    pub fn with_scratch(self, scratch: Scratch) -> Reader<'a> {
        let Scratch { blocks, ends, bytes } = scratch;
        Reader { blocks, ends, scratch: bytes, ..self }
    }

    /// Its scratch, once it is done.
    pub fn into_scratch(self) -> Scratch {
        Scratch { blocks: self.blocks, ends: self.ends, bytes: self.scratch }
    }

    /// Whether reads go around the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Fills `out` with the bytes at `offset` of the source's window.
    pub fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let Some(file) = self.direct.filter(|_| out.len() >= LEAST) else {
            return self.source.read_by(self.forward.as_ref(), offset, out);
        };
        let phase = self.source.phase(offset);
        if out.as_ptr().addr() as u64 % BLOCK != phase {
            return self.by_way_of_blocks(file, offset, out);
        }
        // Destination and file are at one place in their blocks: all but the ends goes straight there.
        let head = (BLOCK - phase) % BLOCK;
        let (first, rest) = out.split_at_mut(usize::try_from(head).unwrap_or(0).min(out.len()));
        let whole = rest.len() as u64 / BLOCK * BLOCK;
        let (middle, last) = rest.split_at_mut(usize::try_from(whole).unwrap_or(0));
        let mut at = offset.saturating_add(head);
        for part in middle.chunks_mut(MOST) {
            if !straight(file, self.source, at, part) {
                self.source.read_by(self.forward.as_ref(), at, part)?;
            }
            at = at.saturating_add(part.len() as u64);
        }
        self.by_way_of_blocks(file, offset, first)?;
        self.by_way_of_blocks(file, at, last)
    }

    /// Reads into scratch and copies from there.
    fn by_way_of_blocks(&mut self, file: &File, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut offset = offset;
        for part in out.chunks_mut(MOST) {
            let found = self.fetch(file, offset, part.len());
            let found = found.and_then(|found| self.blocks(found.end as u64)?.get(found));
            match found {
                Some(found) => part.copy_from_slice(found),
                None => self.source.read_by(self.forward.as_ref(), offset, part)?,
            }
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// The `len` bytes at `offset` of the source's window, in this reader's scratch.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<&mut [u8]> {
        if let Some(file) = self.direct.filter(|_| len >= LEAST)
            && let Some(found) = self.fetch(file, offset, len)
        {
            let bytes = self.blocks(found.end as u64).and_then(|bytes| bytes.get_mut(found));
            return bytes.ok_or_else(|| Error::new(Code::InternalError, "a direct read was lost"));
        }
        let bytes = grown(&mut self.scratch, len)?;
        self.source.read_by(self.forward.as_ref(), offset, bytes)?;
        Ok(bytes)
    }

    /// Reads the blocks around what is wanted; where in them that is, or `None` where the read did not give all of it.
    fn fetch(&mut self, file: &File, offset: u64, len: usize) -> Option<Range<usize>> {
        if !self.source.holds(offset, len as u64) {
            return None;
        }
        let skip = self.source.phase(offset);
        let first = self.source.position(offset) - skip;
        let whole = skip.checked_add(len as u64)?.checked_next_multiple_of(BLOCK)?;
        let wanted = usize::try_from(skip).ok()?..usize::try_from(skip).ok()?.checked_add(len)?;
        let bytes = self.blocks(whole)?.get_mut(..usize::try_from(whole).ok()?)?;
        let mut done = 0;
        while done < wanted.end {
            // A read may end early, on a block; at the file's end it ends anywhere.
            let read = file.read_at(bytes.get_mut(done..)?, first.checked_add(done as u64)?).ok()?;
            done = done.checked_add(read)?;
            if read == 0 || (done < wanted.end && !(done as u64).is_multiple_of(BLOCK)) {
                return None;
            }
        }
        Some(wanted)
    }

    /// Memory for so many bytes: the same for as many.
    fn blocks(&mut self, len: u64) -> Option<&mut [u8]> {
        if len <= ENDS {
            return self.ends.bytes(ENDS);
        }
        if self.blocks.is_none() {
            self.blocks = (self.make)(MOST as u64 + ENDS);
        }
        self.blocks.as_mut().map(|blocks| (**blocks).as_mut()).filter(|blocks| blocks.len() as u64 >= len)
    }
}

/// So many bytes of scratch, whatever they hold.
pub fn grown(scratch: &mut Vec<u8>, len: usize) -> Result<&mut [u8]> {
    let more = len.saturating_sub(scratch.len());
    if scratch.try_reserve_exact(more).is_err() {
        return Err(Error::new(Code::Memory, format!("{len} byte(s) of scratch could not be allocated")));
    }
    scratch.resize(scratch.len().max(len), 0);
    Ok(&mut scratch[..len])
}

/// Reads whole blocks around the cache to where they belong; false where that did not give all of them.
fn straight(file: &File, source: &Source, offset: u64, out: &mut [u8]) -> bool {
    let mut done = 0;
    while source.holds(offset, out.len() as u64)
        && let Some(rest) = out.get_mut(done..)
    {
        if rest.is_empty() {
            return true;
        }
        match file.read_at(rest, source.position(offset).saturating_add(done as u64)) {
            // A read may end early, on a block.
            Ok(read) if read > 0 && (read as u64).is_multiple_of(BLOCK) => done = done.saturating_add(read),
            _ => break,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Io;
    use std::io::Write;
    use std::sync::Arc;

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Memory that starts on a block.
    struct Plain(Aligned, u64);

    impl AsMut<[u8]> for Plain {
        fn as_mut(&mut self) -> &mut [u8] {
            self.0.bytes(self.1).unwrap()
        }
    }

    fn blocks(len: u64) -> Option<Blocks> {
        Some(Box::new(Plain(Aligned::default(), len)))
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.as_file().sync_all().unwrap();
        file
    }

    #[test]
    fn direct_reads_give_the_bytes_of_any_part() {
        let bytes = noise((9 << 20) + 123);
        let file = file(&bytes);
        let whole = Source::open_with(file.path(), Io::Direct).unwrap();
        let window = whole.window(77, whole.len() - 77).unwrap();
        let bytes = &bytes[77..];
        let mut reader = Reader::around(&window, blocks);
        if !reader.is_direct() {
            eprintln!("skipped: no direct reads on this file system");
        }
        let mut out = vec![0; bytes.len()];
        for (at, len) in
            [(0, bytes.len()), (1, LEAST), (4019, LEAST), (5, LEAST - 1), (bytes.len() - LEAST, LEAST)]
        {
            reader.read_at(at as u64, &mut out[..len]).unwrap();
            assert!(out[..len] == bytes[at..at + len], "{at} {len}");
            assert!(*reader.read(at as u64, len).unwrap() == bytes[at..at + len], "{at} {len}");
        }
        assert_eq!(reader.read(bytes.len() as u64 - 5, LEAST).unwrap_err().code(), Code::Truncated);
    }

    #[test]
    fn a_destination_in_phase_with_the_file_is_read_into_straight() {
        let bytes = noise((9 << 20) + 123);
        let file = file(&bytes);
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        let mut reader = Reader::around(&source, blocks);
        let mut blocks = Aligned::default();
        let out = blocks.bytes(10 << 20).unwrap();
        for (at, len) in [
            (0, bytes.len()),
            (0, 8 << 20),
            (64, LEAST),
            (4095, 5 << 20),
            (1 << 20, (1 << 20) + 1),
            (8192 - 64, LEAST),
        ] {
            out.fill(0);
            let to = &mut out[at % 4096..][..len];
            reader.read_at(at as u64, to).unwrap();
            assert!(*to == bytes[at..at + len], "{at} {len}");
        }
        assert!(reader.blocks.is_none(), "no scratch but for the ends");
        let past = reader.read_at(8192, &mut out[..9 << 20]).unwrap_err();
        assert_eq!(past.code(), Code::Truncated);
    }

    #[test]
    fn what_is_refused_directly_is_read_through_the_cache() {
        let bytes = noise(3 << 20);
        let file = file(&bytes);
        let source = Source::open(file.path()).unwrap();
        // Reading a directory is an error at every read; a pipe's is at every position.
        let folder = File::open(std::env::temp_dir()).unwrap();
        let mut reader = Reader::with(&source, Some(&folder), blocks);
        let mut out = vec![0; bytes.len()];
        reader.read_at(0, &mut out).unwrap();
        assert!(out == bytes);
        assert!(*reader.read(9, LEAST).unwrap() == bytes[9..9 + LEAST]);
    }

    #[test]
    fn where_there_is_no_scratch_the_cache_serves() {
        let bytes = noise(3 << 20);
        let file = file(&bytes);
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        let mut reader = Reader::around(&source, |_| None);
        let mut out = vec![0; bytes.len() - 9];
        reader.read_at(9, &mut out).unwrap();
        assert!(out == bytes[9..]);
        assert!(*reader.read(9, LEAST).unwrap() == bytes[9..9 + LEAST]);
    }

    #[test]
    fn a_cut_file_is_an_error_for_direct_reads_too() {
        let file = file(&noise(2 << 20));
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let mut reader = Reader::around(&source, blocks);
        assert_eq!(reader.read(0, 2 << 20).unwrap_err().code(), Code::FileChanged);
        assert_eq!(reader.read_at(0, &mut vec![0; 2 << 20]).unwrap_err().code(), Code::FileChanged);
        let mut blocks = Aligned::default();
        let straight = reader.read_at(0, blocks.bytes(2 << 20).unwrap());
        assert_eq!(straight.unwrap_err().code(), Code::FileChanged);
    }

    #[test]
    fn bytes_in_memory_are_only_copied() {
        let source = Source::memory(Arc::new(noise(1 << 20)));
        let mut reader = Reader::around(&source, blocks);
        assert!(!reader.is_direct());
        assert_eq!(reader.read(3, 4).unwrap(), &noise(7)[3..]);
    }
}
