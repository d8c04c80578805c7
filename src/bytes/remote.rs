//! Bytes whose requests are expensive: a small cache of blocks, so that parsers, which read a few bytes here and there, cause few,
//! large requests; and limits on their number.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use super::access::Access;
use super::file::LocalFile;
use super::node::{self, NodeShare};
use super::price::Price;
use super::read_ranges::{RangeRead, ReadRanges};
use super::request_meter::{RequestMeter, Requests};
use crate::error::Result;
use crate::num::{to_u64, to_usize};
use crate::parallel::lock_unless_stuck;

/// The most blocks that are kept; the one that was read first is dropped first.
const BLOCKS_MAX: usize = 64;

/// The most bytes of one block that is asked for ahead.
const PREFETCH_MAX_BYTES: u64 = 16 << 20;

/// An opened object with its cache. Clones share both; each has its own limit on requests.
#[derive(Clone)]
pub(super) struct Remote {
    shared: Arc<Shared>,
    /// Counts the requests as long as the owner of the limit keeps it.
    meter: Weak<RequestMeter>,
}

struct Shared {
    ranges: Arc<dyn ReadRanges>,
    /// The same, if it is a file.
    file: Option<Arc<LocalFile>>,
    access: Access,
    price: Price,
    blocks: Mutex<VecDeque<Block>>,
    /// With whom tensor data is shared, and the object's identity.
    node: Mutex<Option<(Arc<NodeShare>, Arc<str>)>>,
}

/// Some bytes of the object.
#[derive(Clone)]
struct Block {
    start: u64,
    bytes: Arc<[u8]>,
}

impl Block {
    /// The bytes from `offset` on, if `len` of them are in the block.
    fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = to_usize(offset.checked_sub(self.start)?);
        self.bytes.get(start..start.checked_add(len)?)
    }
}

impl Remote {
    /// An object; `file` is the same if it is a file.
    pub(super) fn new(ranges: Arc<dyn ReadRanges>, file: Option<Arc<LocalFile>>) -> Remote {
        let access = ranges.access();
        Remote {
            shared: Arc::new(Shared {
                ranges,
                file,
                access,
                price: Price::new(),
                blocks: Mutex::default(),
                node: Mutex::default(),
            }),
            meter: Weak::new(),
        }
    }

    pub(super) fn ranges(&self) -> &dyn ReadRanges {
        &*self.shared.ranges
    }

    pub(super) fn file(&self) -> Option<&LocalFile> {
        self.shared.file.as_deref()
    }

    pub(super) fn is_same(&self, other: &Remote) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn access(&self) -> Access {
        self.shared.access
    }

    /// As [`Source::data_access`](super::Source::data_access).
    pub(super) fn data_access(&self) -> Access {
        self.shared.price.access(self.access())
    }

    /// Shares what is read from now on with other processes of this machine, or with none. False where that is not possible: for files, which
    /// the page cache shares, for what has no identity, and for what is compared with a manifest, which other processes may not do.
    pub(super) fn share(&self, node: Option<&Arc<NodeShare>>) -> bool {
        let is_verified = || self.ranges().folder().is_some_and(|folder| folder.is_verified());
        let identity = match self.file() {
            None if self.access().waits_for_requests() && !is_verified() => self.ranges().identity(),
            _ => None,
        };
        let shared = node.zip(identity).map(|(node, identity)| (node.clone(), identity.into()));
        let is_shared = shared.is_some();
        if let Some(mut node) = lock_unless_stuck(&self.shared.node) {
            *node = shared;
        }
        is_shared
    }

    /// Reads ranges that the cache does not have.
    fn send(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        match ranges {
            [] => Ok(()),
            [RangeRead { offset, out }] => self.request(*offset, out),
            // How many of them the source sends at once, it does not tell.
            _ => self.ranges().read_ranges(ranges),
        }
    }

    /// As [`Remote::send`], or from what another process has read.
    fn send_or_take(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        let bytes = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(to_u64(range.out.len())));
        let node = lock_unless_stuck(&self.shared.node).and_then(|node| node.clone());
        match node.filter(|_| bytes >= node::GRANULE_BYTES) {
            None => self.send(ranges),
            Some((node, identity)) => {
                let fetch = |ranges: &mut [RangeRead<'_>]| self.send(ranges);
                let object = node::Shared { identity: &identity, size: self.ranges().size(), fetch: &fetch };
                node.read(&object, ranges)
            }
        }
    }

    /// Sends one request and times it.
    fn request(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.shared.price.time(to_u64(out.len()), || self.ranges().read_at(offset, out))
    }

    /// The same object with its requests counted by `meter`. `None` where they are counted already, or need no count: local files, however
    /// slow, and what is read without a cache.
    pub(super) fn with_meter(&self, meter: &Arc<RequestMeter>) -> Option<Remote> {
        let needs_count = self.file().is_none() && self.access().waits_for_requests();
        let has_meter = self.requests_left().is_some();
        let meter = Arc::downgrade(meter);
        (needs_count && !has_meter).then(|| Remote { shared: self.shared.clone(), meter })
    }

    /// What may still be requested; `None` without a limit.
    pub(super) fn requests_left(&self) -> Option<Requests> {
        Some(self.meter.upgrade()?.left())
    }

    fn count(&self, requests: u64, bytes: u64) -> Result<()> {
        self.meter.upgrade().map_or(Ok(()), |meter| meter.count(requests, bytes))
    }

    /// As [`ReadRanges::read_at`]. Reads of a block and more pass through the cache, as tensors are not read twice.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if self.read_cached(offset, out) {
            return Ok(());
        }
        if to_u64(out.len()) >= self.access().metadata_block {
            self.count(1, to_u64(out.len()))?;
        } else if let Some(found) = self.fetch(offset, out.len())?.get(offset, out.len()) {
            out.copy_from_slice(found);
            return Ok(());
        }
        // A range that reaches past the end is the object's error.
        self.send_or_take(&mut [RangeRead { offset, out }])
    }

    /// As [`ReadRanges::read_ranges`]; what the cache has is not requested.
    pub(super) fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        let mut missing = Vec::with_capacity(ranges.len());
        for RangeRead { offset, out } in ranges {
            if !self.read_cached(*offset, out) {
                missing.push(RangeRead { offset: *offset, out });
            }
        }
        let bytes = missing.iter().fold(0, |sum: u64, range| sum.saturating_add(to_u64(range.out.len())));
        self.count(to_u64(missing.len()), bytes)?;
        self.send_or_take(&mut missing)
    }

    /// Keeps these bytes for small reads that follow.
    pub(super) fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let len = len.min(self.ranges().size().saturating_sub(offset));
        // What fits into a block is read by one request anyway.
        let is_worth_it = len > self.access().metadata_block && len <= PREFETCH_MAX_BYTES;
        if !is_worth_it || !self.access().waits_for_requests() || self.find(offset, to_usize(len)).is_some() {
            return Ok(());
        }
        self.fetch(offset, to_usize(len)).map(drop)
    }

    /// Fills `out` if a block has all of it.
    fn read_cached(&self, offset: u64, out: &mut [u8]) -> bool {
        let block = self.find(offset, out.len());
        let found = block.as_ref().and_then(|block| block.get(offset, out.len()));
        found.map(|found| out.copy_from_slice(found)).is_some() || out.is_empty()
    }

    fn find(&self, offset: u64, len: usize) -> Option<Block> {
        let blocks = lock_unless_stuck(&self.shared.blocks)?;
        blocks.iter().find(|block| block.get(offset, len).is_some()).cloned()
    }

    /// Reads a block that has `len` bytes from `offset` on: from there, or the last one of the object. The lock is not held meanwhile.
    fn fetch(&self, offset: u64, len: usize) -> Result<Block> {
        let total = self.ranges().size();
        let size = self.access().metadata_block.min(total).max(to_u64(len));
        let start = offset.min(total.saturating_sub(size));
        self.count(1, size)?;
        let mut bytes = vec![0; to_usize(size)];
        self.request(start, &mut bytes)?;
        let block = Block { start, bytes: bytes.into() };
        let dropped = lock_unless_stuck(&self.shared.blocks).and_then(|mut blocks| {
            blocks.push_back(block.clone());
            (blocks.len() > BLOCKS_MAX).then(|| blocks.pop_front())
        });
        drop(dropped);
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Source;
    use crate::error::Code;
    use crate::limits::Limits;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the requests for its bytes, each of which is the low byte of its offset.
    struct Counting {
        len: u64,
        requests: AtomicU64,
    }

    impl ReadRanges for Counting {
        fn size(&self) -> u64 {
            self.len
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
            self.requests.fetch_add(1, Ordering::Relaxed);
            assert!(offset + to_u64(out.len()) <= self.len, "a request past the end");
            for (at, byte) in out.iter_mut().enumerate() {
                *byte = (offset + to_u64(at)) as u8;
            }
            Ok(())
        }
    }

    fn counting(len: u64) -> (Arc<Counting>, Source) {
        let counting = Arc::new(Counting { len, requests: AtomicU64::new(0) });
        (counting.clone(), Source::new(counting))
    }

    fn check(source: &Source, offset: u64, len: u64) {
        let expected: Vec<u8> = (offset..offset + len).map(|at| at as u8).collect();
        assert!(source.read_vec(offset, len).unwrap() == expected, "{offset} {len}");
    }

    #[test]
    fn few_bytes_here_and_there_are_few_requests() {
        let (counting, source) = counting(10 << 20);
        for (offset, len) in
            [(0, 512), (8, 8), (1000, 60_000), ((10 << 20) - 22, 22), ((10 << 20) - 60_000, 50_000)]
        {
            check(&source, offset, len);
        }
        assert_eq!(counting.requests.load(Ordering::Relaxed), 2);
        check(&source, 70_000, 0);
        assert_eq!(counting.requests.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_block_and_more_passes_through() {
        let (counting, source) = counting(1 << 20);
        for _ in 0..2 {
            check(&source, 5, 64 << 10);
        }
        assert_eq!(counting.requests.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_prefetched_range_is_one_request_for_all_reads_in_it() {
        let (counting, source) = counting(10 << 20);
        source.prefetch(1000, 1 << 20).unwrap();
        check(&source, 1000, 1 << 20);
        check(&source, 1 << 20, 900);
        assert_eq!(counting.requests.load(Ordering::Relaxed), 1);
        source.prefetch(2 << 20, 100).unwrap();
        source.prefetch(u64::MAX, u64::MAX).unwrap();
        source.prefetch(0, PREFETCH_MAX_BYTES + 1).unwrap();
        assert_eq!(counting.requests.load(Ordering::Relaxed), 2, "of the last, the source has fewer bytes");
    }

    #[test]
    fn ranges_that_are_cached_are_not_requested() {
        let (counting, source) = counting(10 << 20);
        check(&source, 0, 10);
        let (mut one, mut two) = ([0; 10], [0; 10]);
        for expected in [1, 2] {
            let mut ranges =
                [RangeRead { offset: 7, out: &mut one }, RangeRead { offset: 1 << 20, out: &mut two }];
            let count = if expected == 1 { 1 } else { 2 };
            source.read_ranges(&mut ranges[..count]).unwrap();
            assert_eq!(counting.requests.load(Ordering::Relaxed), expected);
        }
        assert_eq!((one[0], two[9]), (7, 9));
    }

    #[test]
    fn a_source_smaller_than_a_block_is_read_once() {
        let (counting, source) = counting(100);
        for offset in 0..100 {
            check(&source, offset, 1);
        }
        assert_eq!(counting.requests.load(Ordering::Relaxed), 1);
        assert_eq!(source.read_vec(99, 2).unwrap_err().code(), Code::Truncated);
    }

    #[test]
    fn the_cache_is_bounded() {
        let counting = Arc::new(Counting { len: 100 << 20, requests: AtomicU64::new(0) });
        let remote = Remote::new(counting.clone(), None);
        let mut byte = [0];
        for number in 0..3 * to_u64(BLOCKS_MAX) {
            remote.read_at(number * (128 << 10), &mut byte).unwrap();
        }
        assert_eq!(remote.shared.blocks.lock().unwrap().len(), BLOCKS_MAX);
        // The last blocks are there, the first are not.
        let before = counting.requests.load(Ordering::Relaxed);
        remote.read_at(0, &mut byte).unwrap();
        remote.read_at((3 * to_u64(BLOCKS_MAX) - 1) * (128 << 10), &mut byte).unwrap();
        assert_eq!(counting.requests.load(Ordering::Relaxed), before + 1);
    }

    #[test]
    fn the_requests_of_one_reader_are_limited_apart_from_those_of_others() {
        let source = counting(1 << 20).1.window(10, 900_000).unwrap();
        let limited = source.limited(&Limits::new().remote_requests(2).remote_bytes(200 << 10));
        assert_eq!(limited.requests_left(), Some(Requests { count: 2, bytes: 200 << 10 }));
        // A few bytes are a block of 64 KiB, which is then in the cache that all readers share.
        limited.read_at(0, &mut [0; 4]).unwrap();
        limited.read_at(100, &mut [0; 4]).unwrap();
        source.read_at(500_000, &mut vec![0; 300 << 10]).unwrap();
        source.read_at(200_000, &mut [0; 4]).unwrap();
        limited.read_at(200_000, &mut [0; 4]).unwrap();
        assert_eq!(limited.requests_left(), Some(Requests { count: 1, bytes: 136 << 10 }));
        let error = limited.read_at(300_000, &mut vec![0; 137 << 10]).unwrap_err().to_string();
        assert!(error.contains("remote_bytes"), "{error}");
        limited.prefetch(300_000, 100 << 10).unwrap();
        limited.read_at(300_000, &mut [0; 4]).unwrap();
        let error = limited.read_at(600_000, &mut [0; 4]).unwrap_err().to_string();
        assert!(error.contains("remote_requests"), "{error}");
        // No second limit holds beside the first, and none once that is dropped.
        let (inner, window) = (limited.limited(&Limits::new()), limited.window(600_000, 10).unwrap());
        assert!(inner.read_at(600_000, &mut [0; 4]).is_err() && window.read_at(0, &mut [0; 10]).is_err());
        drop(limited);
        window.read_at(0, &mut [0; 10]).unwrap();
        assert_eq!((window.requests_left(), window.start_in(&source)), (None, Some(600_000)));
    }

    #[test]
    fn memory_is_not_limited() {
        let memory = Source::memory(Arc::new([0; 10]));
        let limited = memory.limited(&Limits::new().remote_requests(0));
        assert_eq!(limited.requests_left(), None);
        limited.read_at(0, &mut [0; 10]).unwrap();
    }

    #[test]
    fn a_source_whose_requests_are_cheap_has_neither_cache_nor_limits() {
        struct Cheap(Counting);
        impl ReadRanges for Cheap {
            fn size(&self) -> u64 {
                self.0.size()
            }
            fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
                self.0.read_at(offset, out)
            }
            fn access(&self) -> Access {
                Access::BUFFERED
            }
        }
        let cheap = Arc::new(Cheap(Counting { len: 1 << 20, requests: AtomicU64::new(0) }));
        let source = Source::new(cheap.clone());
        let limited = source.limited(&Limits::new().remote_requests(0));
        limited.prefetch(0, 1 << 20).unwrap();
        for _ in 0..2 {
            check(&limited, 9, 10);
        }
        assert_eq!(cheap.0.requests.load(Ordering::Relaxed), 2);
    }
}
