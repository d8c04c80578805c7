//! Memory for results: huge pages from 2 MiB on, 64-byte alignment always.
//!
//! **Protocol.** A buffer is filled through `&mut` while it has one owner. From then on it only hands out its address:
//! whoever holds the address (a NumPy array, a torch tensor) keeps the `Arc<HostBuffer>` alive and may write, as with any
//! array memory in Python; rustload makes no reference to the bytes any more.

use std::ptr::NonNull;

use memmap2::{Advice, MmapMut};

use crate::error::{Code, Error, Result};

/// The size of a huge page on x86-64 and most of arm64.
const HUGE: usize = 2 << 20;

/// A cache line, the alignment of small buffers.
#[derive(Clone, Copy, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed memory of a fixed size.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
    _memory: Memory,
}

enum Memory {
    Lines { _lines: Box<[Line]> },
    Pages { _pages: MmapMut },
}

// SAFETY: `start` points into `_memory`, which this struct owns and which is Send; references are only made through
// `&mut self`, and after sharing only the address is handed out.
unsafe impl Send for HostBuffer {}
// SAFETY: as above: a shared `HostBuffer` only computes its address.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `len` zeroed bytes, or [`Code::Memory`].
    pub fn new(len: u64) -> Result<HostBuffer> {
        let out_of_memory = || Error::new(Code::Memory, format!("{len} byte(s) could not be allocated"));
        let size = usize::try_from(len).map_err(|_| out_of_memory())?;
        if size >= HUGE { HostBuffer::pages(size) } else { HostBuffer::lines(size) }.ok_or_else(out_of_memory)
    }

    fn lines(len: usize) -> Option<HostBuffer> {
        let mut lines = bytemuck::try_zeroed_slice_box::<Line>(len.div_ceil(64)).ok()?;
        let start = NonNull::new(lines.as_mut_ptr().cast::<u8>())?;
        Some(HostBuffer { start, len, _memory: Memory::Lines { _lines: lines } })
    }

    /// An anonymous mapping that starts on a huge page; only the whole huge pages inside are asked for, so that no more
    /// memory is used than `len` rounded up to a small page.
    fn pages(len: usize) -> Option<HostBuffer> {
        let mut pages = MmapMut::map_anon(len.checked_add(HUGE)?).ok()?;
        let lead = pages.as_ptr().align_offset(HUGE);
        // Refused where huge pages are switched off; small pages do too.
        let _ = pages.advise_range(Advice::HugePage, lead, len & !(HUGE - 1));
        let start = NonNull::new(pages.get_mut(lead..lead.checked_add(len)?)?.as_mut_ptr())?;
        Some(HostBuffer { start, len, _memory: Memory::Pages { _pages: pages } })
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` points to `len` initialised (zeroed) bytes that `_memory` owns; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The address of the first byte.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Memory::Lines { .. } => "Lines",
            Memory::Pages { .. } => "Pages",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_aligned() {
        for len in [0, 1, 63, 64, 65, HUGE - 1, HUGE, 3 * HUGE + 5] {
            let mut buffer = HostBuffer::new(len as u64).unwrap();
            assert_eq!(buffer.bytes_mut().len(), len);
            assert!(buffer.bytes_mut().iter().all(|&byte| byte == 0));
            assert_eq!(buffer.address().align_offset(if len >= HUGE { HUGE } else { 64 }), 0, "{len}");
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert_eq!(HostBuffer::new(u64::MAX).unwrap_err().code(), Code::Memory);
        assert_eq!(HostBuffer::new(1 << 60).unwrap_err().code(), Code::Memory);
    }
}
