//! Small reads that lie close together, several of them from one read of the source.

use crate::bytes::Source;
use crate::error::Result;
use crate::num::to_u64;

/// The bytes of a source that were read last.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    bytes: Vec<u8>,
    /// The offset of `bytes` in the source.
    start: u64,
}

impl ReadAhead {
    /// The bytes from `at` on that need no read.
    pub(crate) fn held(&self, at: u64) -> &[u8] {
        let from = at.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| self.bytes.get(from..)).unwrap_or_default()
    }

    /// At least `len` bytes from `at` on. A read is of `ahead` bytes if the source has as many.
    pub(crate) fn read(&mut self, source: &Source, at: u64, len: u64, ahead: u64) -> Result<&[u8]> {
        if to_u64(self.held(at).len()) < len {
            let left = source.len().saturating_sub(at);
            (self.bytes, self.start) = (source.read_vec(at, ahead.min(left).max(len))?, at);
        }
        Ok(self.held(at))
    }
}
