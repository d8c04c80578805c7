//! Bytes in memory as a source.
#![forbid(unsafe_code)]

use super::{Access, Bytes, Chunk, ReadRanges};
use crate::error::{Code, Error, Result};

/// Bytes in memory. Their length is that at the beginning: should the owner's become shorter, reads fail.
pub(super) struct InMemory {
    bytes: Bytes,
    len: u64,
}

impl InMemory {
    pub(super) fn new(bytes: Bytes) -> InMemory {
        let len = (*bytes).as_ref().len() as u64;
        InMemory { bytes, len }
    }
}

impl ReadRanges for InMemory {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|start| (*self.bytes).as_ref().get(start..));
        let found = rest.and_then(|rest| rest.get(..out.len())).ok_or_else(became_shorter)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn access(&self) -> Access {
        Access::BUFFERED
    }

    fn as_memory(&self) -> Option<&Bytes> {
        Some(&self.bytes)
    }
}

/// A range of bytes in memory, without a copy.
pub(super) fn chunk(bytes: &Bytes, start: u64, len: u64) -> Result<Chunk> {
    let range = usize::try_from(start).ok().zip(usize::try_from(len).ok());
    let chunk = range.and_then(|(start, len)| Chunk::shared(bytes.clone(), start, len));
    chunk.ok_or_else(became_shorter)
}

fn became_shorter() -> Error {
    Error::new(Code::FileChanged, "the bytes in memory became shorter")
}
