//! A thread's scratch memory, which bytes pass through on the way to a result. It is reused from read to read and not cleared.
#![forbid(unsafe_code)]

use super::io_choice::{DIRECT_ALIGNMENT, DIRECT_READ_MAX_BYTES};
use crate::error::{Code, Result, bail};
use crate::num::to_usize;

/// Memory that starts on a block boundary, as direct reads need it.
pub type AlignedMemory = Box<dyn AsMut<[u8]> + Send>;

/// Allocates at least so many bytes. On huge pages a request to the disk can be larger.
pub type AllocateAligned = fn(u64) -> Option<AlignedMemory>;

/// The size of the bounce buffer: one direct read and the blocks at its ends.
const BOUNCE_MAX_BYTES: u64 = DIRECT_READ_MAX_BYTES + EDGE_BYTES;

/// Bytes of the blocks at the two ends of a read.
const EDGE_BYTES: u64 = 2 * DIRECT_ALIGNMENT;

/// So many zeros. Fails with [`Code::Memory`].
pub(super) fn zeroed(len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(to_usize(len)).is_err() {
        bail!(Code::Memory, "{len} byte(s) could not be allocated");
    }
    bytes.resize(to_usize(len), 0);
    Ok(bytes)
}

/// The scratch memory of one thread.
pub struct Scratch {
    bytes: Vec<u8>,
    bounce: BounceBuffer,
}

/// Block-aligned memory for direct reads whose destination is not aligned.
pub(super) struct BounceBuffer {
    allocate: AllocateAligned,
    /// Allocated at the first direct read that needs more than the edge blocks.
    memory: Option<AlignedMemory>,
    /// A few blocks, for the two ends of a read that goes straight into its destination.
    edges: Box<[AlignedBlock]>,
}

/// One block.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct AlignedBlock([u8; DIRECT_ALIGNMENT as usize]);

impl Scratch {
    /// Empty scratch. `allocate` makes the bounce buffer when a direct read needs it.
    pub fn new(allocate: AllocateAligned) -> Scratch {
        Scratch { bytes: Vec::new(), bounce: BounceBuffer::new(allocate) }
    }

    /// `len` bytes at any alignment; what they hold is not defined. Fails with [`Code::Memory`].
    pub fn bytes(&mut self, len: usize) -> Result<&mut [u8]> {
        Ok(self.bytes_and_bounce_buffer(len)?.0)
    }

    /// As [`Scratch::bytes`], with the bounce buffer for direct reads into these bytes.
    pub(super) fn bytes_and_bounce_buffer(&mut self, len: usize) -> Result<(&mut [u8], &mut BounceBuffer)> {
        let more = len.saturating_sub(self.bytes.len());
        if self.bytes.try_reserve_exact(more).is_err() {
            bail!(Code::Memory, "{len} byte(s) of scratch could not be allocated");
        }
        self.bytes.resize(self.bytes.len().max(len), 0);
        Ok((&mut self.bytes[..len], &mut self.bounce))
    }

    pub(super) fn bounce_buffer(&mut self) -> &mut BounceBuffer {
        &mut self.bounce
    }
}

impl BounceBuffer {
    pub(super) fn new(allocate: AllocateAligned) -> BounceBuffer {
        BounceBuffer { allocate, memory: None, edges: Box::default() }
    }

    /// `len` bytes that start on a block boundary; the same memory for the same `len`. `None` if they cannot be allocated, or `len`
    /// is larger than the buffer.
    pub(super) fn bytes(&mut self, len: usize) -> Option<&mut [u8]> {
        if len as u64 <= EDGE_BYTES {
            if self.edges.is_empty() {
                self.edges =
                    bytemuck::try_zeroed_slice_box(usize::try_from(EDGE_BYTES / DIRECT_ALIGNMENT).ok()?)
                        .ok()?;
            }
            return bytemuck::cast_slice_mut(&mut self.edges).get_mut(..len);
        }
        if self.memory.is_none() {
            self.memory = (self.allocate)(BOUNCE_MAX_BYTES);
        }
        (**self.memory.as_mut()?).as_mut().get_mut(..len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_grows_and_keeps_its_bytes() {
        let mut scratch = Scratch::new(|_| None);
        scratch.bytes(5).unwrap().fill(7);
        assert_eq!(scratch.bytes(7).unwrap(), [7, 7, 7, 7, 7, 0, 0]);
        assert_eq!(scratch.bytes(2).unwrap(), [7, 7]);
        assert_eq!(scratch.bytes(usize::MAX).unwrap_err().code(), Code::Memory);
    }

    #[test]
    fn the_edge_blocks_need_no_allocation() {
        let mut bounce = BounceBuffer::new(|_| None);
        for len in [0, 1, 4096, 8192] {
            let blocks = bounce.bytes(len).unwrap();
            assert_eq!((blocks.len(), blocks.as_ptr().align_offset(4096)), (len, 0));
        }
        assert!(bounce.bytes(8193).is_none());
    }
}
