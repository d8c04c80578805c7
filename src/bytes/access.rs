//! The sizes and numbers of reads that suit a source.
#![forbid(unsafe_code)]

/// How a source is read best. [`Access::default`] suits one where a request costs milliseconds.
///
/// Where requests are seen to take longer, tensor data is read with a larger `gap`, blocks of twice the size, and at least 16
/// requests under way.
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
    /// Whether reads gain from several threads. Where they do not, one call uses one thread, but two calls may still read at once.
    pub concurrent: bool,
    /// The least bytes to request for metadata, which are kept in a small cache; 0 where reading a few bytes is cheap.
    pub metadata_block: u64,
}

impl Default for Access {
    fn default() -> Access {
        Access::STORE
    }
}

impl Access {
    const STORE: Access = Access {
        gap: 64 << 10,
        small: 1 << 20,
        block: 4 << 20,
        alignment: 1,
        in_flight: Some(8),
        concurrent: true,
        metadata_block: 64 << 10,
    };

    /// For files on another machine or behind another process: the kernel asks for a few hundred KiB at a time and waits for them, so
    /// many reads have to be under way, and long ones gain nothing ([measured](../../docs/explain/performance.md#slow-file-systems)).
    pub(super) const SLOW_FILE: Access = Access { block: 1 << 20, in_flight: Some(24), ..Access::STORE };

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

    /// Whether reads mostly wait for answers, so that their number counts and not their bytes.
    pub(crate) fn waits_for_requests(self) -> bool {
        self.metadata_block > 0
    }
}
