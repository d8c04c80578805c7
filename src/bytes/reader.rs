//! Positional reads by one thread, of a part of a source: through the page cache or around it.
//!
//! A direct read takes the blocks around what is wanted, into scratch; what the system refuses so is read through the cache,
//! which also words the error where the file itself is at fault.
#![forbid(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::direct::{BLOCK, open_forward};
use super::scratch::Aligned;
use super::{Scratch, Source};
use crate::error::{Code, Error, Result};

/// Bytes below which a direct read is not worth its wait for the disk.
const LEAST: usize = 256 << 10;

/// Bytes of one direct read.
const MOST: usize = 4 << 20;

/// Reads of one source by one thread.
pub struct Reader<'a> {
    source: &'a Source,
    direct: Option<&'a File>,
    /// A description of this reader's own, so that the system's reading ahead follows it and no other thread.
    forward: Option<File>,
}

impl<'a> Reader<'a> {
    /// Bytes of one read around the page cache, at most.
    pub const MOST: u64 = MOST as u64;

    /// Reads through the page cache.
    pub fn new(source: &'a Source) -> Reader<'a> {
        Reader { source, direct: None, forward: None }
    }

    /// As [`Reader::new`], for a thread that reads much, forward.
    pub fn forward(source: &'a Source) -> Reader<'a> {
        Reader { forward: source.descriptor().and_then(open_forward), ..Reader::new(source) }
    }

    /// Reads around the page cache, where the source's file is to be read so and the system can.
    pub fn around(source: &'a Source) -> Reader<'a> {
        Reader { direct: source.direct(), ..Reader::new(source) }
    }

    /// Whether reads go around the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Fills `out` with the bytes at `offset` of the source's window.
    pub fn read_at(&self, offset: u64, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        self.read_by_way_of(offset, out, scratch.aligned())
    }

    /// The `len` bytes at `offset` of the source's window, in scratch.
    pub fn read<'s>(&self, offset: u64, len: usize, scratch: &'s mut Scratch) -> Result<&'s mut [u8]> {
        if let Some(file) = self.direct.filter(|_| len >= LEAST)
            && let Some(found) = self.fetch(file, offset, len, scratch.aligned())
        {
            return fetched(found, scratch.aligned());
        }
        let bytes = scratch.bytes(len)?;
        self.source.read_by(self.forward.as_ref(), offset, bytes)?;
        Ok(bytes)
    }

    /// `len` bytes of scratch with some runs read into them: from each offset of the source's window, to its place.
    pub fn read_runs<'s>(
        &self,
        len: usize,
        runs: impl IntoIterator<Item = (u64, Range<usize>)>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s mut [u8]> {
        let (bytes, aligned) = scratch.parts(len)?;
        for (offset, place) in runs {
            let run = bytes.get_mut(place);
            let run = run.ok_or_else(|| Error::new(Code::InternalError, "a run does not fit the scratch"))?;
            self.read_by_way_of(offset, run, aligned)?;
        }
        Ok(bytes)
    }

    fn read_by_way_of(&self, offset: u64, out: &mut [u8], aligned: &mut Aligned) -> Result<()> {
        let Some(file) = self.direct.filter(|_| out.len() >= LEAST) else {
            return self.source.read_by(self.forward.as_ref(), offset, out);
        };
        let phase = self.source.phase(offset);
        if out.as_ptr().addr() as u64 % BLOCK != phase {
            return self.read_blocks(file, offset, out, aligned);
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
        self.read_blocks(file, offset, first, aligned)?;
        self.read_blocks(file, at, last, aligned)
    }

    /// Reads whole blocks and copies from there.
    fn read_blocks(&self, file: &File, offset: u64, out: &mut [u8], aligned: &mut Aligned) -> Result<()> {
        let mut offset = offset;
        for part in out.chunks_mut(MOST) {
            let found = self.fetch(file, offset, part.len(), aligned);
            match found {
                Some(found) => part.copy_from_slice(fetched(found, aligned)?),
                None => self.source.read_by(self.forward.as_ref(), offset, part)?,
            }
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// Reads the blocks around what is wanted; where in them that is, or `None` where the read did not give all of it.
    fn fetch(&self, file: &File, offset: u64, len: usize, aligned: &mut Aligned) -> Option<Range<usize>> {
        if !self.source.holds(offset, len as u64) {
            return None;
        }
        let skip = self.source.phase(offset);
        let first = self.source.position(offset) - skip;
        let whole = skip.checked_add(len as u64)?.checked_next_multiple_of(BLOCK)?;
        let wanted = usize::try_from(skip).ok()?..usize::try_from(skip).ok()?.checked_add(len)?;
        let bytes = aligned.blocks(usize::try_from(whole).ok()?)?;
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
}

/// What was read last, where in the blocks it is.
fn fetched(at: Range<usize>, aligned: &mut Aligned) -> Result<&mut [u8]> {
    let whole = at.end.next_multiple_of(usize::try_from(BLOCK).unwrap_or(1));
    let found = aligned.blocks(whole).and_then(|blocks| blocks.get_mut(at));
    found.ok_or_else(|| Error::new(Code::InternalError, "a direct read was lost"))
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
    use crate::bytes::{Io, MakeBlocks};
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
    struct Plain(Vec<u8>, usize);

    impl AsMut<[u8]> for Plain {
        fn as_mut(&mut self) -> &mut [u8] {
            let skip = self.0.as_ptr().align_offset(4096);
            &mut self.0[skip..][..self.1]
        }
    }

    fn made(len: usize) -> Plain {
        Plain(vec![0; len + 4096], len)
    }

    fn scratch() -> Scratch {
        Scratch::new(|len| Some(Box::new(made(usize::try_from(len).unwrap()))))
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
        let (reader, mut scratch) = (Reader::around(&window), scratch());
        if !reader.is_direct() {
            eprintln!("skipped: no direct reads on this file system");
        }
        let mut out = vec![0; bytes.len()];
        for (at, len) in
            [(0, bytes.len()), (1, LEAST), (4019, LEAST), (5, LEAST - 1), (bytes.len() - LEAST, LEAST)]
        {
            reader.read_at(at as u64, &mut out[..len], &mut scratch).unwrap();
            assert!(out[..len] == bytes[at..at + len], "{at} {len}");
            assert!(*reader.read(at as u64, len, &mut scratch).unwrap() == bytes[at..at + len], "{at} {len}");
        }
        let past = reader.read(bytes.len() as u64 - 5, LEAST, &mut scratch);
        assert_eq!(past.unwrap_err().code(), Code::Truncated);
        // Nor past a window behind which the file goes on.
        let inner = whole.window(77, 4 << 20).unwrap();
        let past = Reader::around(&inner).read((4 << 20) - 5, LEAST, &mut scratch).map(|bytes| bytes.len());
        assert_eq!(past.unwrap_err().code(), Code::Truncated);
        // Runs of both kinds, the last first, with a byte between them.
        let runs = [(7, LEAST + 1..2 * LEAST + 1), (4096, 0..LEAST)];
        let found = reader.read_runs(2 * LEAST + 1, runs, &mut scratch).unwrap();
        assert!(found[..LEAST] == bytes[4096..][..LEAST] && found[LEAST + 1..] == bytes[7..][..LEAST]);
        let runs = [(1, 0..5), (3, 5..11)];
        assert_eq!(
            reader.read_runs(10, runs, &mut scratch).unwrap_err().message(),
            "a run does not fit the scratch"
        );
    }

    #[test]
    fn a_destination_in_phase_with_the_file_is_read_into_straight() {
        let bytes = noise((9 << 20) + 123);
        let file = file(&bytes);
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        let never: MakeBlocks = |len| panic!("{len} bytes of scratch, where there are ends alone");
        let (reader, mut scratch) = (Reader::around(&source), Scratch::new(never));
        let mut blocks = made(10 << 20);
        let out = blocks.as_mut();
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
            reader.read_at(at as u64, to, &mut scratch).unwrap();
            assert!(*to == bytes[at..at + len], "{at} {len}");
        }
        let past = reader.read_at(8192, &mut out[..9 << 20], &mut scratch).unwrap_err();
        assert_eq!(past.code(), Code::Truncated);
    }

    #[test]
    fn what_is_refused_directly_is_read_through_the_cache() {
        let bytes = noise(3 << 20);
        let file = file(&bytes);
        let source = Source::open(file.path()).unwrap();
        // Reading a directory is an error at every read; a pipe's is at every position.
        let folder = File::open(std::env::temp_dir()).unwrap();
        let (reader, mut scratch) = (Reader { direct: Some(&folder), ..Reader::new(&source) }, scratch());
        let mut out = vec![0; bytes.len()];
        reader.read_at(0, &mut out, &mut scratch).unwrap();
        assert!(out == bytes);
        assert!(*reader.read(9, LEAST, &mut scratch).unwrap() == bytes[9..9 + LEAST]);
    }

    #[test]
    fn where_there_is_no_scratch_the_cache_serves() {
        let bytes = noise(3 << 20);
        let file = file(&bytes);
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        let (reader, mut scratch) = (Reader::around(&source), Scratch::new(|_| None));
        let mut out = vec![0; bytes.len() - 9];
        reader.read_at(9, &mut out, &mut scratch).unwrap();
        assert!(out == bytes[9..]);
        assert!(*reader.read(9, LEAST, &mut scratch).unwrap() == bytes[9..9 + LEAST]);
    }

    #[test]
    fn a_cut_file_is_an_error_for_direct_reads_too() {
        let file = file(&noise(2 << 20));
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let (reader, mut scratch) = (Reader::around(&source), scratch());
        assert_eq!(reader.read(0, 2 << 20, &mut scratch).unwrap_err().code(), Code::FileChanged);
        for out in [&mut vec![0; 2 << 20], made(2 << 20).as_mut()] {
            let found = reader.read_at(0, out, &mut scratch);
            assert_eq!(found.unwrap_err().code(), Code::FileChanged);
        }
    }

    #[test]
    fn bytes_in_memory_are_only_copied() {
        let source = Source::memory(Arc::new(noise(1 << 20)));
        let reader = Reader::around(&source);
        assert!(!reader.is_direct());
        assert_eq!(reader.read(3, 4, &mut scratch()).unwrap(), &noise(7)[3..]);
    }
}
