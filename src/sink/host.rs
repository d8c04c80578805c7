//! Host memory for results: on huge pages from 2 MiB, always aligned to 64 bytes, recycled if it is going to be overwritten.
//!
//! **Protocol.** A buffer is filled through `&mut` while it has one owner. From then on safe Rust only reads it. Code that hands the
//! address to others (a NumPy array, a torch tensor) first marks the buffer as exported: the holder of the address keeps the
//! `Arc<HostBuffer>` alive and may write, as with any array memory in Python, and rustload makes no reference to the bytes any more.
//! It exports no buffer of which a slice is alive: the binding, which alone exports, takes no slices.
//!
//! Memory that may hold the bytes of an earlier result is an [`Unfilled`]. Its bytes are initialised, so reading them is not
//! undefined behaviour, and they come from this process; but no caller may see them. So only [`Unfilled::filled`] makes a buffer of
//! it, by which the filler states that it has written every byte. Dropping an `Unfilled` returns the memory to the pool unseen.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pages::HUGE_PAGE_BYTES;
use super::pool::{self, Pooled};
use super::slab;
use crate::error::{Code, Error, Result, error};
use crate::memory;

/// The alignment of every buffer, in bytes.
const ALIGNMENT: usize = 64;

/// A cache line, which gives small buffers their alignment.
#[derive(Clone, Copy, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Host memory of a fixed size.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
    memory: Memory,
    /// Whether code outside Rust may write to the bytes.
    exported: AtomicBool,
}

/// Memory that must be overwritten from end to end: until then it may hold bytes of earlier results.
#[derive(Debug)]
pub struct Unfilled {
    buffer: HostBuffer,
    recycled: bool,
}

enum Memory {
    Allocator { _memory: Vec<CacheLine> },
    Pages { pages: Pooled },
    Slab { _slab: Arc<Pooled> },
}

// SAFETY: `start` points into `memory`, which this struct owns and which is Send; mutable references are only made through
// `&mut self`.
unsafe impl Send for HostBuffer {}
// SAFETY: as above: a shared `HostBuffer` only computes its address, and reads bytes that nobody writes.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `len` zeroed bytes. Fails with [`Code::Memory`].
    pub fn new(len: u64) -> Result<HostBuffer> {
        let size = usize::try_from(len).map_err(|_| out_of_memory(len))?;
        let buffer = if size >= HUGE_PAGE_BYTES {
            HostBuffer::from_pages(Pooled::fresh(size, true), size, 0)
        } else {
            HostBuffer::from_allocator(size)
        };
        buffer.ok_or_else(|| out_of_memory(len))
    }

    /// `len` bytes that the caller overwrites from end to end. They may come from dropped results, and small ones from a slab
    /// shared with other results. Fails with [`Code::Memory`].
    pub fn unfilled(len: u64) -> Result<Unfilled> {
        HostBuffer::unfilled_at(len, 0)
    }

    /// As [`HostBuffer::unfilled`]; a large buffer starts `offset` bytes after a page boundary, so that direct reads (`O_DIRECT`)
    /// can go straight into it. `offset` is ignored unless it is a multiple of 64.
    pub fn unfilled_at(len: u64, offset: u64) -> Result<Unfilled> {
        let offset =
            usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(ALIGNMENT)).unwrap_or(0);
        let size = usize::try_from(len).map_err(|_| out_of_memory(len))?;
        let mut recycled = false;
        let buffer = if size >= HUGE_PAGE_BYTES {
            let pooled = Pooled::take(size.saturating_add(offset));
            recycled = pooled.as_ref().is_some_and(|pooled| pooled.recycled);
            HostBuffer::from_pages(pooled, size, offset)
        } else {
            HostBuffer::from_slab(size).or_else(|| HostBuffer::from_allocator(size))
        };
        buffer.map(|buffer| Unfilled { buffer, recycled }).ok_or_else(|| out_of_memory(len))
    }

    fn from_allocator(len: usize) -> Option<HostBuffer> {
        // A `Vec`, not a `Box`: its address stays valid when the owner moves, which a `Box`, being unique, does not promise.
        let mut lines: Vec<CacheLine> = bytemuck::try_zeroed_vec(len.div_ceil(64)).ok()?;
        let start = NonNull::new(lines.as_mut_ptr().cast::<u8>())?;
        Some(HostBuffer::of(start, len, Memory::Allocator { _memory: lines }))
    }

    /// `len` bytes of the pages, from `offset`.
    fn from_pages(pooled: Option<Pooled>, len: usize, offset: usize) -> Option<HostBuffer> {
        let pooled = pooled?;
        let pages = pooled.pages().filter(|pages| pages.len().checked_sub(offset) >= Some(len))?;
        let start = NonNull::new(pages.start().as_ptr().wrapping_add(offset))?;
        Some(HostBuffer::of(start, len, Memory::Pages { pages: pooled }))
    }

    fn from_slab(len: usize) -> Option<HostBuffer> {
        let (slab, start) = slab::take(len)?;
        Some(HostBuffer::of(start, len, Memory::Slab { _slab: slab }))
    }

    /// `len` bytes from `start`, which lie in `memory`.
    fn of(start: NonNull<u8>, len: usize, memory: Memory) -> HostBuffer {
        HostBuffer { start, len, memory, exported: AtomicBool::new(false) }
    }

    /// The bytes; `None` once the buffer was exported.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.exported.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `start` points to `len` initialised bytes that this buffer alone has, see `bytes_mut`. That needs `&mut self`, so
        // safe code does not write while the slice lives; nor does other code, which gets the address from an export or promises it
        // (see the protocol).
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// Records that code which knows the address may write to the bytes at any time: [`HostBuffer::bytes`] gives none from now on.
    /// A slice that was taken before must not be alive any more when that code writes.
    pub(super) fn mark_exported(&self) {
        self.exported.store(true, Ordering::Relaxed);
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` points to `len` initialised bytes (zeroed by the system or the allocator once, written since) that
        // `memory` owns, and of a slab they are a slice that only this buffer has; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Excludes a buffer with pages of its own from forked children (`MADV_DONTFORK`), which must not touch it.
    pub(super) fn exclude_from_fork(&self) {
        if let Memory::Pages { pages: pooled } = &self.memory
            && let Some(pages) = pooled.pages()
        {
            pages.exclude_from_fork();
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }
}

impl Unfilled {
    /// The bytes, all of which must be written; what they hold before is not defined.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// Whether the memory comes from the pool: it is resident then, and large results are better written with non-temporal stores.
    pub fn is_recycled(&self) -> bool {
        self.recycled
    }

    /// The buffer. The caller has written every byte.
    pub fn filled(self) -> HostBuffer {
        self.buffer
    }
}

impl AsMut<[u8]> for Unfilled {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// Unmaps the memory that is kept for later results. Returns the number of bytes.
pub fn trim() -> u64 {
    slab::trim();
    pool::trim()
}

/// Fails where results of `needed` bytes do not fit the memory that the process may take ([`memory::check`]); memory that is kept
/// for later results counts as free. `given` is the limit `available_memory`.
pub fn check_memory(needed: u64, given: u64) -> Result<()> {
    memory::check(needed, given, || {
        trim();
    })
}

fn out_of_memory(len: u64) -> Error {
    error!(Code::Memory, "{len} byte(s) could not be allocated")
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Memory::Allocator { .. } => "Allocator",
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
        for len in [0, 1, 63, 64, 65, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5] {
            let mut buffer = HostBuffer::new(len as u64).unwrap();
            assert_eq!(buffer.bytes_mut().len(), len);
            assert!(buffer.bytes_mut().iter().all(|&byte| byte == 0));
            assert_eq!(
                buffer.address().align_offset(if len >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 64 }),
                0,
                "{len}"
            );
        }
    }

    #[test]
    fn unfilled_buffers_are_aligned_and_of_the_requested_size() {
        for _ in 0..2 {
            for len in [
                0,
                1,
                63,
                64,
                65,
                slab::SLAB_RESULT_MAX_BYTES,
                HUGE_PAGE_BYTES - 1,
                HUGE_PAGE_BYTES,
                3 * HUGE_PAGE_BYTES + 5,
            ] {
                let mut buffer = HostBuffer::unfilled(len as u64).unwrap();
                assert_eq!(buffer.bytes_mut().len(), len);
                buffer.bytes_mut().fill(7);
                let mut buffer = buffer.filled();
                assert!(buffer.bytes_mut().iter().all(|&byte| byte == 7));
                assert_eq!(
                    buffer.address().align_offset(if len >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 64 }),
                    0,
                    "{len}"
                );
            }
        }
    }

    #[test]
    fn a_large_buffer_starts_at_the_requested_page_offset() {
        for _ in 0..2 {
            for len in [HUGE_PAGE_BYTES, 4 * HUGE_PAGE_BYTES - 64, 3 * HUGE_PAGE_BYTES + 5] {
                for (offset, expected) in [(0, 0), (64, 64), (4032, 4032), (65, 0), (u64::MAX, 0)] {
                    let mut memory = HostBuffer::unfilled_at(len as u64, offset).unwrap();
                    memory.bytes_mut().fill(7);
                    let mut buffer = memory.filled();
                    assert_eq!(
                        (buffer.bytes_mut().len(), buffer.address().addr().get() % 4096),
                        (len, expected)
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
