//! A small cache of blocks in front of a source whose requests are expensive, so that parsers, which read a few bytes here and
//! there, cause few, large requests.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use super::request_limits::RequestMeter;
use super::{Access, LocalFile, RangeRead, ReadFolder, ReadRanges, Requests};
use crate::error::Result;
use crate::num::{to_u64, to_usize};
use crate::parallel;

/// The most blocks that are kept; the one that was read first is dropped first.
const BLOCKS_MAX: usize = 64;

/// The most bytes of one block that is asked for ahead.
const PREFETCH_MAX_BYTES: u64 = 16 << 20;

/// A source with its cache. Reads of a block and more pass through it, as tensors are not read twice.
pub(super) struct BlockCache {
    backing: Arc<dyn ReadRanges>,
    block: u64,
    blocks: Mutex<Vec<Block>>,
    meter: RequestMeter,
}

/// Some bytes of the source.
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

impl BlockCache {
    pub(super) fn new(backing: Arc<dyn ReadRanges>, block: u64) -> BlockCache {
        BlockCache { backing, block, blocks: Mutex::default(), meter: RequestMeter::default() }
    }

    fn find(&self, offset: u64, len: usize) -> Option<Block> {
        let blocks = parallel::lock_unless_stuck(&self.blocks)?;
        blocks.iter().find(|block| block.get(offset, len).is_some()).cloned()
    }

    /// Reads a block that has `len` bytes from `offset` on: from there, or the last one of the source.
    fn fetch(&self, offset: u64, len: usize) -> Result<Block> {
        let size = self.block.min(self.backing.len()).max(to_u64(len));
        let start = offset.min(self.backing.len().saturating_sub(size));
        self.meter.count(1, size)?;
        let mut bytes = vec![0; to_usize(size)];
        self.backing.read_at(start, &mut bytes)?;
        let block = Block { start, bytes: bytes.into() };
        let dropped = parallel::lock_unless_stuck(&self.blocks).and_then(|mut blocks| {
            blocks.push(block.clone());
            (blocks.len() > BLOCKS_MAX).then(|| blocks.remove(0))
        });
        drop(dropped);
        Ok(block)
    }
}

impl ReadRanges for BlockCache {
    fn len(&self) -> u64 {
        self.backing.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        if let Some(block) = self.find(offset, out.len())
            && let Some(found) = block.get(offset, out.len())
        {
            out.copy_from_slice(found);
            return Ok(());
        }
        if to_u64(out.len()) >= self.block {
            self.meter.count(1, to_u64(out.len()))?;
            return self.backing.read_at(offset, out);
        }
        let block = self.fetch(offset, out.len())?;
        match block.get(offset, out.len()) {
            Some(found) => out.copy_from_slice(found),
            // A range that reaches past the end is the backing's error.
            None => self.backing.read_at(offset, out)?,
        }
        Ok(())
    }

    fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        let mut missing = Vec::with_capacity(ranges.len());
        for RangeRead { offset, out } in ranges {
            let block = self.find(*offset, out.len());
            match block.as_ref().and_then(|block| block.get(*offset, out.len())) {
                Some(found) => out.copy_from_slice(found),
                None => missing.push(RangeRead { offset: *offset, out }),
            }
        }
        let bytes = missing.iter().fold(0, |sum: u64, range| sum.saturating_add(to_u64(range.out.len())));
        self.meter.count(to_u64(missing.len()), bytes)?;
        if missing.is_empty() { Ok(()) } else { self.backing.read_ranges(&mut missing) }
    }

    fn limit_requests(&self, max: Option<Requests>) -> bool {
        // A local file, however slow, is not limited.
        self.backing.as_file().is_none() && self.meter.limit(max)
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        self.backing.as_file().is_none().then(|| self.find(offset, to_usize(len)).is_some())
    }

    fn requests_left(&self) -> Option<Requests> {
        self.meter.left()
    }

    fn as_file(&self) -> Option<&LocalFile> {
        self.backing.as_file()
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let len = len.min(self.backing.len().saturating_sub(offset));
        // What fits into a block is read by one request anyway.
        if len <= self.block || len > PREFETCH_MAX_BYTES || self.find(offset, to_usize(len)).is_some() {
            return Ok(());
        }
        self.fetch(offset, to_usize(len)).map(drop)
    }

    fn access(&self) -> Access {
        self.backing.access()
    }

    fn check_unchanged(&self) -> Result<()> {
        self.backing.check_unchanged()
    }

    fn name(&self) -> Option<&str> {
        self.backing.name()
    }

    fn identity(&self) -> Option<String> {
        self.backing.identity()
    }

    fn folder(&self) -> Option<Arc<dyn ReadFolder>> {
        self.backing.folder()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Source;
    use crate::error::Code;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the requests for its bytes, each of which is the low byte of its offset.
    struct Counting {
        len: u64,
        requests: AtomicU64,
    }

    impl ReadRanges for Counting {
        fn len(&self) -> u64 {
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
        let cache = BlockCache::new(counting.clone(), 64 << 10);
        let mut byte = [0];
        for number in 0..3 * to_u64(BLOCKS_MAX) {
            cache.read_at(number * (128 << 10), &mut byte).unwrap();
        }
        assert_eq!(cache.blocks.lock().unwrap().len(), BLOCKS_MAX);
        // The last blocks are there, the first are not.
        let before = counting.requests.load(Ordering::Relaxed);
        cache.read_at(0, &mut byte).unwrap();
        cache.read_at((3 * to_u64(BLOCKS_MAX) - 1) * (128 << 10), &mut byte).unwrap();
        assert_eq!(counting.requests.load(Ordering::Relaxed), before + 1);
    }
}
