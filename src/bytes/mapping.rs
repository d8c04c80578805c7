//! A private mapping of a whole file, read-only or copy-on-write, which zero-copy views point into.
//!
//! A driver that copies from host memory to an accelerator pins its pages, with the intent to write if the mapping is writable: of a
//! copy-on-write mapping each page is copied to anonymous memory then. Pages of a read-only mapping stay those of the page cache.
//!
//! On Windows a copy-on-write mapping counts as memory of its whole size, so there is none (`sys::HAS_COPY_ON_WRITE`): what asks for
//! one gets a copy. A mapping that is only read counts as none.
//!
//! **Protocol.** The mapping is private, so an edit through a view of a writable one stays in this process and never reaches
//! the file. rustload itself never reads or writes through it: it hands out addresses, and the holder of an address keeps the
//! `Arc<Mapping>` alive and writes only if the mapping is writable; a write to a read-only one ends the process (SIGSEGV). If
//! another process truncates the file, touching a page past the new end raises SIGBUS; that is the documented price of a view. Windows
//! lets nobody cut a mapped file; there the end of the process is a page that disk or network cannot read (EXCEPTION_IN_PAGE_ERROR).
//! Owned results are read by position and cannot meet either.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

use super::Region;
use crate::sys;

/// A mapped file. Dropping the last owner unmaps it.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: u64,
    writable: bool,
    _map: MmapRaw,
}

// SAFETY: `start` is the address of `_map`, which this struct owns and which is itself Send; no reference to the mapped
// bytes is ever made here, only addresses are handed out.
unsafe impl Send for Mapping {}
// SAFETY: as above: a shared `Mapping` only computes addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of `file`, private, without reserving swap for it (a file may be larger than memory).
    pub(super) fn new(file: &File, writable: bool) -> io::Result<Mapping> {
        let mut options = MmapOptions::new();
        options.no_reserve_swap();
        // `MmapRaw` gives its address without a reference to the bytes.
        let map = if !sys::HAS_COPY_ON_WRITE {
            if writable {
                return Err(io::ErrorKind::Unsupported.into());
            }
            options.no_probe_handle().map_raw_read_only(file)?
        } else if writable {
            // SAFETY: the mapping is private, and no Rust reference into it is made. The protocol above says what happens when
            // another process changes the file.
            MmapRaw::from(unsafe { options.map_copy(file) }?)
        } else {
            // SAFETY: as above.
            MmapRaw::from(unsafe { options.map_copy_read_only(file) }?)
        };
        let start = NonNull::new(map.as_mut_ptr()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapping { start, len: map.len() as u64, writable, _map: map })
    }

    /// Whether code may write to it. What it writes stays in this process.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of a range, or `None` if it reaches outside the mapping.
    pub fn address(&self, part: Region) -> Option<NonNull<u8>> {
        if part.end() > self.len {
            return None;
        }
        let offset = usize::try_from(part.start()).ok()?;
        // SAFETY: `offset` is at most the mapping's length, so the address stays inside the same allocation.
        Some(unsafe { self.start.add(offset) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    // Windows has no copy-on-write mappings.
    #[cfg(unix)]
    #[test]
    fn an_edit_never_reaches_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"hello").unwrap();
        let map = Mapping::new(file.as_file(), true).unwrap();
        let at = map.address(Region::new(1, 4).unwrap()).unwrap();
        // SAFETY: inside the private mapping, which lives until the end of the test.
        unsafe { at.write(b'a') };
        // SAFETY: as above.
        assert_eq!(unsafe { at.read() }, b'a');
        assert_eq!(std::fs::read(file.path()).unwrap(), b"hello");
        assert!(map.address(Region::new(1, 5).unwrap()).is_none());
    }
}
