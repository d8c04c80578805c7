//! What every source of bytes does: it is read by position. Files, memory, Python's file objects and objects in a store differ
//! behind this trait only.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::{Bytes, LocalFile, ReadFolder, Requests};
use crate::error::Result;

/// Bytes that are read by position, such as a file or an object in a store.
///
/// One value is one version of the bytes: if they change under way, [`ReadRanges::check_unchanged`] fails, or a read does. Only
/// `len` and `read_at` must be written. Reads block the calling thread; several threads read at once unless
/// [`Access::concurrent`] is false.
///
/// ```
/// use std::sync::Arc;
///
/// use rustload::{Checkpoint, Code, Error, Options, ReadRanges, Result};
///
/// struct Object(Vec<u8>);
///
/// impl ReadRanges for Object {
///     fn len(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
///         let rest = self.0.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
///         out.copy_from_slice(rest.ok_or_else(|| Error::new(Code::Io, "the object is shorter"))?);
///         Ok(())
///     }
/// }
///
/// let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[7, 8, 9]].concat();
/// let checkpoint = Checkpoint::from_ranges(Arc::new(Object(bytes)), Options::new())?;
/// assert_eq!(checkpoint.tensor("w")?.materialize(&Default::default())?.as_slice::<u8>(), Some(&[7, 8, 9][..]));
/// # Ok::<(), Error>(())
/// ```
pub trait ReadRanges: Send + Sync {
    /// The number of bytes. It does not change.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes from `offset` on. Fails if not all of them can be read; then `out` may be filled in part.
    ///
    /// Callers keep the range inside [`ReadRanges::len`].
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Reads several ranges. They come in any order and may overlap. Fails if one of them fails.
    ///
    /// By default they are read one after another; a source whose reads take long should send all requests at once.
    fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        ranges.iter_mut().try_for_each(|range| self.read_at(range.offset, range.out))
    }

    /// How the bytes are read best.
    fn access(&self) -> Access {
        Access::default()
    }

    /// Fails with [`Code::FileChanged`](crate::error::Code::FileChanged) if these are no longer the bytes that were opened. Asked
    /// after each batch of reads, not after each read. By default they never change.
    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }

    /// A name for messages, such as a URL without credentials. `None` if there is none.
    fn name(&self) -> Option<&str> {
        None
    }

    /// A text that another process also gets for the same version of the same bytes and for nothing else, such as a URL without
    /// credentials and the ETag. `None` if there is none. Only what has one can be resumed, see
    /// [`WriteOptions::resume`](crate::write::WriteOptions::resume).
    fn identity(&self) -> Option<String> {
        None
    }

    /// The folder that it is in, if its content may name other files there, as the metadata of a distributed checkpoint does. `None` if
    /// there is none.
    fn folder(&self) -> Option<Arc<dyn ReadFolder>> {
        None
    }

    /// Keeps these bytes for small reads that follow, if requests are expensive and a cache is in front.
    #[doc(hidden)]
    fn prefetch(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    /// Limits the requests from now on, or no longer with `None`, if they are counted. False if nothing changed.
    #[doc(hidden)]
    fn limit_requests(&self, _max: Option<Requests>) -> bool {
        false
    }

    /// Whether these bytes are in a cache in front of expensive requests; `None` where requests are not counted.
    #[doc(hidden)]
    fn is_cached(&self, _offset: u64, _len: u64) -> Option<bool> {
        None
    }

    /// The requests that a limit leaves; `None` without one.
    #[doc(hidden)]
    fn requests_left(&self) -> Option<Requests> {
        None
    }

    /// The local file behind it, which can be mapped and read with `O_DIRECT`.
    #[doc(hidden)]
    fn as_file(&self) -> Option<&LocalFile> {
        None
    }

    /// The bytes in memory behind it, which need not be copied.
    #[doc(hidden)]
    fn as_memory(&self) -> Option<&Bytes> {
        None
    }
}

/// One range to read, and where to.
#[derive(Debug)]
pub struct RangeRead<'a> {
    /// The offset of its first byte.
    pub offset: u64,
    /// The destination; its length is the range's.
    pub out: &'a mut [u8],
}

/// How a source is read best. [`Access::default`] suits one where a request costs milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// Up to so many unneeded bytes between two ranges, one read of all is faster than two reads.
    pub gap: u64,
    /// Results of at most this many contiguous bytes are read together with their neighbours.
    pub small: u64,
    /// The best size of one read, in bytes. Longer ranges are cut, so that several are read at once and a cancellation is noticed.
    pub block: u64,
    /// Reads begin at multiples of this where a range is cut.
    pub alignment: u64,
    /// The number of reads to have under way at once; `None` for one per core if there is enough work for several threads.
    pub in_flight: Option<usize>,
    /// Whether several threads may read at once.
    pub concurrent: bool,
    /// The least bytes to request for metadata, which are kept in a small cache; 0 where reading a few bytes is cheap.
    pub metadata_block: u64,
}

impl Default for Access {
    fn default() -> Access {
        Access {
            gap: 64 << 10,
            small: 1 << 20,
            block: 4 << 20,
            alignment: 1,
            in_flight: Some(8),
            concurrent: true,
            metadata_block: 64 << 10,
        }
    }
}

impl Access {
    /// Through the page cache, and for bytes in memory: a read costs about as much as copying its bytes.
    pub(super) const BUFFERED: Access = Access {
        // The system reads whole pages anyway.
        gap: 4096,
        small: 128 << 10,
        // A good part of a core's L2 cache.
        block: 1 << 20,
        alignment: 1,
        in_flight: None,
        concurrent: true,
        metadata_block: 0,
    };

    /// For files on another machine or behind another process: the kernel asks for a few hundred KiB at a time and waits for them, so
    /// many reads have to be under way ([measured](../../docs/explain/performance.md#slow-file-systems)).
    pub(super) const SLOW_FILE: Access = Access {
        gap: 64 << 10,
        small: 1 << 20,
        block: 4 << 20,
        alignment: 1,
        in_flight: Some(16),
        concurrent: true,
        metadata_block: 64 << 10,
    };

    /// Whether reads mostly wait for answers, so that their number counts and not their bytes.
    pub(crate) fn waits_for_requests(self) -> bool {
        self.metadata_block > 0
    }
}
