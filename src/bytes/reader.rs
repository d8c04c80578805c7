//! Positional reads by one thread, of a part of a source: through the page cache or around it.
//!
//! A direct read takes the blocks around what is wanted, into scratch that starts on a block; what the system refuses so is
//! read through the cache, which also words the error where the file itself is at fault.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Source;
use super::direct::{Aligned, BLOCK, open_forward};
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
    blocks: Aligned,
    scratch: Vec<u8>,
}

/// The memory of a reader that is done, for the next.
#[derive(Default)]
pub struct Scratch {
    blocks: Aligned,
    bytes: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// Reads through the page cache.
    pub fn new(source: &'a Source) -> Reader<'a> {
        Reader::with(source, None)
    }

    /// As [`Reader::new`], for a thread that reads much, forward.
    pub fn forward(source: &'a Source) -> Reader<'a> {
        let mut reader = Reader::new(source);
        reader.forward = source.descriptor().and_then(open_forward);
        reader
    }

    /// Reads around the page cache, where the source's file is to be read so and the system can.
    pub fn around(source: &'a Source) -> Reader<'a> {
        Reader::with(source, source.direct())
    }

    fn with(source: &'a Source, direct: Option<&'a File>) -> Reader<'a> {
        Reader { source, direct, forward: None, blocks: Aligned::default(), scratch: Vec::new() }
    }

    /// This reader, with the scratch of one that is done.
    pub fn with_scratch_of(self, done: Reader<'_>) -> Reader<'a> {
        self.with_scratch(done.into_scratch())
    }

    /// This reader, with the scratch of an earlier one.
    pub fn with_scratch(self, scratch: Scratch) -> Reader<'a> {
        Reader { blocks: scratch.blocks, scratch: scratch.bytes, ..self }
    }

    /// Its scratch, once it is done.
    pub fn into_scratch(self) -> Scratch {
        Scratch { blocks: self.blocks, bytes: self.scratch }
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
        let mut offset = offset;
        for part in out.chunks_mut(MOST) {
            match direct(file, &mut self.blocks, self.source, offset, part.len()) {
                Some(found) => part.copy_from_slice(found),
                None => self.source.read_by(self.forward.as_ref(), offset, part)?,
            }
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// The `len` bytes at `offset` of the source's window, in this reader's scratch.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<&mut [u8]> {
        if let Some(file) = self.direct.filter(|_| len >= LEAST) {
            // Borrowed anew on each side, as the compiler does not see that a missing result borrows nothing.
            if direct(file, &mut self.blocks, self.source, offset, len).is_some() {
                let skip = usize::try_from(self.source.position(offset) % BLOCK).unwrap_or(0);
                let found = self.blocks.bytes(0).and_then(|bytes| bytes.get_mut(skip..)?.get_mut(..len));
                return found.ok_or_else(|| Error::new(Code::InternalError, "a direct read was lost"));
            }
        }
        if len > self.scratch.len() {
            self.scratch.try_reserve_exact(len.saturating_sub(self.scratch.len())).map_err(|_| {
                Error::new(Code::Memory, format!("{len} byte(s) of scratch could not be allocated"))
            })?;
        }
        self.scratch.resize(len, 0);
        self.source.read_by(self.forward.as_ref(), offset, &mut self.scratch)?;
        Ok(&mut self.scratch)
    }
}

/// The bytes, read around the cache; `None` where that did not give all of them.
fn direct<'b>(
    file: &File,
    blocks: &'b mut Aligned,
    source: &Source,
    offset: u64,
    len: usize,
) -> Option<&'b mut [u8]> {
    if !source.holds(offset, len as u64) {
        return None;
    }
    let start = source.position(offset);
    let skip = start % BLOCK;
    let whole = skip.checked_add(len as u64)?.checked_next_multiple_of(BLOCK)?;
    let wanted = usize::try_from(skip).ok()?.checked_add(len)?;
    let bytes = blocks.bytes(whole)?.get_mut(..usize::try_from(whole).ok()?)?;
    let mut done = 0;
    while done < wanted {
        // A read may end early, on a block; at the file's end it ends anywhere.
        let read = file.read_at(bytes.get_mut(done..)?, start - skip + done as u64).ok()?;
        done = done.checked_add(read)?;
        if read == 0 || (done < wanted && !(done as u64).is_multiple_of(BLOCK)) {
            return None;
        }
    }
    bytes.get_mut(usize::try_from(skip).ok()?..wanted)
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
        let mut reader = Reader::around(&window);
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
    fn what_is_refused_directly_is_read_through_the_cache() {
        let bytes = noise(3 << 20);
        let file = file(&bytes);
        let source = Source::open(file.path()).unwrap();
        // Reading a directory is an error at every read; a pipe's is at every position.
        let folder = File::open(std::env::temp_dir()).unwrap();
        let mut reader = Reader::with(&source, Some(&folder));
        let mut out = vec![0; bytes.len()];
        reader.read_at(0, &mut out).unwrap();
        assert!(out == bytes);
        assert!(*reader.read(9, LEAST).unwrap() == bytes[9..9 + LEAST]);
    }

    #[test]
    fn a_cut_file_is_an_error_for_direct_reads_too() {
        let file = file(&noise(2 << 20));
        let source = Source::open_with(file.path(), Io::Direct).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let mut reader = Reader::around(&source);
        assert_eq!(reader.read(0, 2 << 20).unwrap_err().code(), Code::FileChanged);
        assert_eq!(reader.read_at(0, &mut vec![0; 2 << 20]).unwrap_err().code(), Code::FileChanged);
    }

    #[test]
    fn bytes_in_memory_are_only_copied() {
        let source = Source::memory(Arc::new(noise(1 << 20)));
        let mut reader = Reader::around(&source);
        assert!(!reader.is_direct());
        assert_eq!(reader.read(3, 4).unwrap(), &noise(7)[3..]);
    }
}
