//! Memory that bytes pass through on their way to a result, kept from read to read whatever it holds.
#![forbid(unsafe_code)]

use super::direct::BLOCK;
use crate::error::{Code, Error, Result};

/// Memory that starts on a block, as reads around the page cache want it.
pub type Blocks = Box<dyn AsMut<[u8]> + Send>;

/// What makes it, of at least so many bytes. On huge pages the disk is asked for more at a time.
pub type MakeBlocks = fn(u64) -> Option<Blocks>;

/// Bytes that direct reads take of scratch at most.
const MOST_BLOCKS: u64 = super::Reader::MOST + ENDS;

/// Bytes of the blocks at the two ends of a read.
const ENDS: u64 = 2 * BLOCK;

/// Scratch of one thread.
pub struct Scratch {
    bytes: Vec<u8>,
    aligned: Aligned,
}

/// The part of it that direct reads take.
pub(super) struct Aligned {
    make: MakeBlocks,
    /// Made at the first direct read that takes more than a few blocks.
    blocks: Option<Blocks>,
    /// A few blocks, for the ends of what is read straight to its place.
    ends: Box<[Page]>,
}

/// One block.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK as usize]);

impl Scratch {
    /// Nothing yet; what direct reads want will be made by `make`.
    pub fn new(make: MakeBlocks) -> Scratch {
        Scratch { bytes: Vec::new(), aligned: Aligned::new(make) }
    }

    /// `len` bytes, anywhere.
    pub fn bytes(&mut self, len: usize) -> Result<&mut [u8]> {
        Ok(self.parts(len)?.0)
    }

    /// As [`Scratch::bytes`], and what direct reads to there may take.
    pub(super) fn parts(&mut self, len: usize) -> Result<(&mut [u8], &mut Aligned)> {
        let more = len.saturating_sub(self.bytes.len());
        if self.bytes.try_reserve_exact(more).is_err() {
            return Err(Error::new(Code::Memory, format!("{len} byte(s) of scratch could not be allocated")));
        }
        self.bytes.resize(self.bytes.len().max(len), 0);
        Ok((&mut self.bytes[..len], &mut self.aligned))
    }

    pub(super) fn aligned(&mut self) -> &mut Aligned {
        &mut self.aligned
    }
}

impl Aligned {
    pub(super) fn new(make: MakeBlocks) -> Aligned {
        Aligned { make, blocks: None, ends: Box::default() }
    }

    /// `len` bytes that start on a block, the same for as many; `None` where they cannot be had.
    pub(super) fn blocks(&mut self, len: usize) -> Option<&mut [u8]> {
        if len as u64 <= ENDS {
            if self.ends.is_empty() {
                self.ends = bytemuck::try_zeroed_slice_box(usize::try_from(ENDS / BLOCK).ok()?).ok()?;
            }
            return bytemuck::cast_slice_mut(&mut self.ends).get_mut(..len);
        }
        if self.blocks.is_none() {
            self.blocks = (self.make)(MOST_BLOCKS);
        }
        (**self.blocks.as_mut()?).as_mut().get_mut(..len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_grow_and_stay() {
        let mut scratch = Scratch::new(|_| None);
        scratch.bytes(5).unwrap().fill(7);
        assert_eq!(scratch.bytes(7).unwrap(), [7, 7, 7, 7, 7, 0, 0]);
        assert_eq!(scratch.bytes(2).unwrap(), [7, 7]);
        assert_eq!(scratch.bytes(usize::MAX).unwrap_err().code(), Code::Memory);
    }

    #[test]
    fn a_few_blocks_are_there_without_being_made() {
        let mut aligned = Aligned::new(|_| None);
        for len in [0, 1, 4096, 8192] {
            let blocks = aligned.blocks(len).unwrap();
            assert_eq!((blocks.len(), blocks.as_ptr().align_offset(4096)), (len, 0));
        }
        assert!(aligned.blocks(8193).is_none());
    }
}
