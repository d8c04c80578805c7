//! What a source reads from.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::access::Access;
use super::chunk::{Bytes, Chunk};
use super::file::LocalFile;
use super::read_ranges::{RangeRead, ReadRanges};
use super::remote::Remote;
use crate::error::{Code, Error, Result};
use crate::num::to_usize;

/// The bytes behind a source.
#[derive(Clone)]
pub(super) enum Backing {
    /// A file that is read through the page cache or with `O_DIRECT`.
    File(Arc<LocalFile>),
    /// Bytes in memory. Reads fail should the owner make them shorter.
    Memory(Bytes),
    /// Anything else that is read by position, such as an object in a store or a file on another machine.
    Remote(Remote),
}

impl Backing {
    /// A file. On a slow file system it is read as an object in a store is.
    pub(super) fn file(file: LocalFile) -> Backing {
        let file = Arc::new(file);
        match file.access().waits_for_requests() {
            true => Backing::Remote(Remote::new(file.clone(), Some(file))),
            false => Backing::File(file),
        }
    }

    /// The number of bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            Backing::Memory(bytes) => (**bytes).as_ref().len() as u64,
            _ => self.ranges().map_or(0, ReadRanges::size),
        }
    }

    /// What has a cache and limits, if it has.
    pub(super) fn remote(&self) -> Option<&Remote> {
        if let Backing::Remote(remote) = self { Some(remote) } else { None }
    }

    /// The local file, also if it is on a slow file system.
    pub(super) fn as_file(&self) -> Option<&LocalFile> {
        match self {
            Backing::File(file) => Some(file),
            Backing::Memory(_) => None,
            Backing::Remote(remote) => remote.file(),
        }
    }

    /// What is not in memory, without its cache and limits.
    pub(super) fn ranges(&self) -> Option<&dyn ReadRanges> {
        match self {
            Backing::File(file) => Some(&**file),
            Backing::Memory(_) => None,
            Backing::Remote(remote) => Some(remote.ranges()),
        }
    }

    /// Whether both are one opened file or object, or the same bytes in memory.
    pub(super) fn is_same(&self, other: &Backing) -> bool {
        match (self, other) {
            (Backing::File(one), Backing::File(other)) => Arc::ptr_eq(one, other),
            (Backing::Memory(one), Backing::Memory(other)) => Arc::ptr_eq(one, other),
            (Backing::Remote(one), Backing::Remote(other)) => one.is_same(other),
            _ => false,
        }
    }

    /// How it is read best.
    pub(super) fn access(&self) -> Access {
        match self {
            Backing::File(_) | Backing::Memory(_) => Access::BUFFERED,
            Backing::Remote(remote) => remote.access(),
        }
    }

    /// How tensor data is read best.
    pub(super) fn data_access(&self) -> Access {
        self.remote().map_or_else(|| self.access(), Remote::data_access)
    }

    /// As [`ReadRanges::read_at`].
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Backing::File(file) => file.read_at(offset, out),
            Backing::Memory(bytes) => {
                let rest = (**bytes).as_ref().get(to_usize(offset)..);
                let found = rest.and_then(|rest| rest.get(..out.len())).ok_or_else(became_shorter)?;
                out.copy_from_slice(found);
                Ok(())
            }
            Backing::Remote(remote) => remote.read_at(offset, out),
        }
    }

    /// As [`ReadRanges::read_ranges`].
    pub(super) fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        match self {
            Backing::Remote(remote) => remote.read_ranges(ranges),
            _ => ranges.iter_mut().try_for_each(|range| self.read_at(range.offset, range.out)),
        }
    }

    /// A range of bytes in memory, without a copy; `None` for anything else.
    pub(super) fn chunk(&self, start: u64, len: u64) -> Option<Result<Chunk>> {
        let Backing::Memory(bytes) = self else { return None };
        let chunk = Chunk::shared(bytes.clone(), to_usize(start), to_usize(len));
        Some(chunk.ok_or_else(became_shorter))
    }
}

fn became_shorter() -> Error {
    Error::new(Code::FileChanged, "the bytes in memory became shorter")
}
