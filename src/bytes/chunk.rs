//! Bytes for a parser: owned, or a range of shared bytes in memory, which are not copied.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Shared bytes in memory.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes that do not change while this lives.
pub struct Chunk(ChunkBytes);

enum ChunkBytes {
    Owned(Vec<u8>),
    Shared { bytes: Bytes, start: usize, len: usize },
}

impl Chunk {
    /// `len` bytes from `start`; `None` if `bytes` ends before.
    pub(super) fn shared(bytes: Bytes, start: usize, len: usize) -> Option<Chunk> {
        let end = start.checked_add(len)?;
        (*bytes).as_ref().get(start..end)?;
        Some(Chunk(ChunkBytes::Shared { bytes, start, len }))
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Chunk {
        Chunk(ChunkBytes::Owned(bytes))
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            ChunkBytes::Owned(bytes) => bytes,
            ChunkBytes::Shared { bytes, start, len } => {
                (**bytes).as_ref().get(*start..start.saturating_add(*len)).unwrap_or_default()
            }
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} byte(s))", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_chunk_is_the_requested_range() {
        let bytes: Bytes = Arc::new(*b"0123456789");
        let chunk = Chunk::shared(bytes.clone(), 2, 3).unwrap();
        assert_eq!(&*chunk, b"234");
        assert_eq!(chunk.as_ptr(), (*bytes).as_ref()[2..].as_ptr());
        assert!(Chunk::shared(bytes.clone(), 8, 3).is_none());
        assert!(Chunk::shared(bytes, usize::MAX, 2).is_none());
        assert_eq!(&*Chunk::from(vec![1, 2]), [1, 2]);
    }
}
