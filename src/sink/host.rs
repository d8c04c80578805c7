//! Memory for results: huge pages from 2 MiB on, 64-byte alignment always, recycled where it is overwritten anyway.
//!
//! **Protocol.** A buffer is filled through `&mut` while it has one owner. From then on it only hands out its address:
//! whoever holds the address (a NumPy array, a torch tensor) keeps the `Arc<HostBuffer>` alive and may write, as with any
//! array memory in Python; rustload makes no reference to the bytes any more.
//!
//! Memory that may hold the bytes of an earlier result is an [`Unfilled`]. Its bytes are initialised, so to read them is no
//! error of memory, and they come from this process; but nobody shall see them. So it becomes a buffer by
//! [`Unfilled::filled`] alone, which is the filler's word that it has written every byte, and dropping it gives it back unseen.

use std::ptr::NonNull;
use std::sync::Arc;

use super::pages::HUGE;
use super::pool::{self, Pooled};
use super::slab;
use crate::error::{Code, Error, Result};

/// What every buffer's address is a multiple of.
const ALIGNED: usize = 64;

/// A cache line, the alignment of small buffers.
#[derive(Clone, Copy, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory of a fixed size.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
    memory: Memory,
}

/// Memory that is to be written to from end to end: until then it may hold bytes of earlier results.
#[derive(Debug)]
pub struct Unfilled {
    buffer: HostBuffer,
    recycled: bool,
}

enum Memory {
    Lines { _lines: Vec<Line> },
    Pages { pages: Pooled },
    Slab { _slab: Arc<Pooled> },
}

// SAFETY: `start` points into `memory`, which this struct owns and which is Send; references are only made through
// `&mut self`, and after sharing only the address is handed out.
unsafe impl Send for HostBuffer {}
// SAFETY: as above: a shared `HostBuffer` only computes its address.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `len` zeroed bytes, or [`Code::Memory`].
    pub fn new(len: u64) -> Result<HostBuffer> {
        let size = usize::try_from(len).map_err(|_| out_of_memory(len))?;
        let found = if size >= HUGE {
            HostBuffer::pages(Pooled::fresh(size, true), size, 0)
        } else {
            HostBuffer::lines(size)
        };
        found.ok_or_else(|| out_of_memory(len))
    }

    /// `len` bytes to be written to from end to end, or [`Code::Memory`]. They may come from results that were dropped, and
    /// small ones from a slab that they share with others.
    pub fn unfilled(len: u64) -> Result<Unfilled> {
        HostBuffer::unfilled_at(len, 0)
    }

    /// As [`HostBuffer::unfilled`]; a large one starts `phase` bytes after a small page does, for reads around the page cache.
    pub fn unfilled_at(len: u64, phase: u64) -> Result<Unfilled> {
        let phase = usize::try_from(phase).ok().filter(|phase| phase.is_multiple_of(ALIGNED)).unwrap_or(0);
        let size = usize::try_from(len).map_err(|_| out_of_memory(len))?;
        let mut recycled = false;
        let buffer = if size >= HUGE {
            let found = Pooled::take(size.saturating_add(phase));
            recycled = found.as_ref().is_some_and(|found| found.recycled);
            HostBuffer::pages(found, size, phase)
        } else {
            HostBuffer::part(size).or_else(|| HostBuffer::lines(size))
        };
        buffer.map(|buffer| Unfilled { buffer, recycled }).ok_or_else(|| out_of_memory(len))
    }

    fn lines(len: usize) -> Option<HostBuffer> {
        // A Vec and no Box: its address stays usable when the owner moves, which a Box, being unique, does not promise.
        let mut lines: Vec<Line> = bytemuck::try_zeroed_vec(len.div_ceil(64)).ok()?;
        let start = NonNull::new(lines.as_mut_ptr().cast::<u8>())?;
        Some(HostBuffer { start, len, memory: Memory::Lines { _lines: lines } })
    }

    /// `len` bytes from `phase` on.
    fn pages(found: Option<Pooled>, len: usize, phase: usize) -> Option<HostBuffer> {
        let pooled = found?;
        let pages = pooled.pages().filter(|pages| pages.len().checked_sub(phase) >= Some(len))?;
        let start = NonNull::new(pages.start().as_ptr().wrapping_add(phase))?;
        Some(HostBuffer { start, len, memory: Memory::Pages { pages: pooled } })
    }

    fn part(len: usize) -> Option<HostBuffer> {
        let part = slab::take(len)?;
        Some(HostBuffer { start: part.start, len, memory: Memory::Slab { _slab: part.slab } })
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` points to `len` initialised bytes (zeroed by the system or the allocator once, written since) that
        // `memory` owns, and that of a slab's parts this one alone has; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Leaves a buffer that has pages of its own out of forked children, which must not touch it.
    pub(super) fn withhold(&self) {
        if let Memory::Pages { pages: pooled } = &self.memory
            && let Some(pages) = pooled.pages()
        {
            pages.withhold();
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }
}

impl Unfilled {
    /// The bytes, all of them to be written; what they hold before is nobody's business.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// Whether the memory has been in use before: it is resident, and large results are better written past the caches.
    pub fn is_recycled(&self) -> bool {
        self.recycled
    }

    /// The buffer, now that every byte of it was written.
    pub fn filled(self) -> HostBuffer {
        self.buffer
    }
}

impl AsMut<[u8]> for Unfilled {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// Gives back the memory that is kept for later results; how many bytes that were.
pub fn trim() -> u64 {
    slab::trim();
    pool::trim()
}

/// Bytes that are kept for later results, and the most that may be.
pub fn kept() -> (u64, u64) {
    pool::kept()
}

fn out_of_memory(len: u64) -> Error {
    Error::new(Code::Memory, format!("{len} byte(s) could not be allocated"))
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Memory::Lines { .. } => "Lines",
            Memory::Pages { .. } => "Pages",
            Memory::Slab { .. } => "Slab",
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
    fn unfilled_buffers_are_aligned_and_as_long_as_asked() {
        for _ in 0..2 {
            for len in [0, 1, 63, 64, 65, slab::LARGEST, HUGE - 1, HUGE, 3 * HUGE + 5] {
                let mut buffer = HostBuffer::unfilled(len as u64).unwrap();
                assert_eq!(buffer.bytes_mut().len(), len);
                buffer.bytes_mut().fill(7);
                let mut buffer = buffer.filled();
                assert!(buffer.bytes_mut().iter().all(|&byte| byte == 7));
                assert_eq!(buffer.address().align_offset(if len >= HUGE { HUGE } else { 64 }), 0, "{len}");
            }
        }
    }

    #[test]
    fn a_large_buffer_starts_where_in_a_page_it_is_asked_to() {
        for _ in 0..2 {
            for len in [HUGE, 4 * HUGE - 64, 3 * HUGE + 5] {
                for (phase, found) in [(0, 0), (64, 64), (4032, 4032), (65, 0), (u64::MAX, 0)] {
                    let mut memory = HostBuffer::unfilled_at(len as u64, phase).unwrap();
                    memory.bytes_mut().fill(7);
                    let mut buffer = memory.filled();
                    assert_eq!(
                        (buffer.bytes_mut().len(), buffer.address().addr().get() % 4096),
                        (len, found)
                    );
                }
            }
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        for impossible in [u64::MAX, 1 << 60] {
            assert_eq!(HostBuffer::unfilled_at(impossible, 64).unwrap_err().code(), Code::Memory);
            assert_eq!(HostBuffer::new(impossible).unwrap_err().code(), Code::Memory);
            assert_eq!(HostBuffer::unfilled(impossible).unwrap_err().code(), Code::Memory);
        }
    }
}
