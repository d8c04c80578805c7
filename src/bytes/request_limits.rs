//! Limits on what opening or scanning a file, or a part of one, fetches where requests are expensive.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Access, Bytes, RangeRead, ReadFolder, ReadRanges};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;

/// A number of requests, and of bytes that they fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The requests.
    pub count: u64,
    /// The bytes.
    pub bytes: u64,
}

/// Applies the limits `remote_requests` and `remote_bytes` to the reads of a source as long as it lives.
pub struct RequestLimit(Option<Arc<dyn ReadRanges>>);

impl RequestLimit {
    /// Does nothing if requests are not counted, or limited already.
    pub(super) fn new(backing: &Arc<dyn ReadRanges>, limits: &Limits) -> RequestLimit {
        let requests = Requests { count: limits.remote_requests, bytes: limits.remote_bytes };
        RequestLimit(backing.limit_requests(Some(requests)).then(|| backing.clone()))
    }
}

impl Drop for RequestLimit {
    fn drop(&mut self) {
        if let Some(backing) = &self.0 {
            backing.limit_requests(None);
        }
    }
}

/// Counts requests while they are limited.
#[derive(Debug, Default)]
pub(super) struct RequestMeter {
    is_limited: AtomicBool,
    count: AtomicU64,
    bytes: AtomicU64,
    count_max: AtomicU64,
    bytes_max: AtomicU64,
}

impl RequestMeter {
    /// Begins to count, or ends with `None`. False if requests are being counted already.
    pub(super) fn limit(&self, max: Option<Requests>) -> bool {
        let Some(max) = max else { return self.is_limited.swap(false, Ordering::Relaxed) };
        if self.is_limited.load(Ordering::Relaxed) {
            return false;
        }
        self.count.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.count_max.store(max.count, Ordering::Relaxed);
        self.bytes_max.store(max.bytes, Ordering::Relaxed);
        self.is_limited.store(true, Ordering::Relaxed);
        true
    }

    /// What may still be requested; `None` while requests are not limited.
    pub(super) fn left(&self) -> Option<Requests> {
        let left = |max: &AtomicU64, used: &AtomicU64| {
            max.load(Ordering::Relaxed).saturating_sub(used.load(Ordering::Relaxed))
        };
        self.is_limited.load(Ordering::Relaxed).then(|| Requests {
            count: left(&self.count_max, &self.count),
            bytes: left(&self.bytes_max, &self.bytes),
        })
    }

    /// Counts requests that are about to be sent. Fails with the limit that they exceed.
    pub(super) fn count(&self, requests: u64, bytes: u64) -> Result<()> {
        let Some(left) = self.left() else { return Ok(()) };
        let over = |name, max: &AtomicU64, left: u64, found: u64| {
            let max = max.load(Ordering::Relaxed);
            Error::limit(name, max, max.saturating_sub(left).saturating_add(found))
        };
        if requests > left.count {
            return Err(over("remote_requests", &self.count_max, left.count, requests));
        }
        if bytes > left.bytes {
            return Err(over("remote_bytes", &self.bytes_max, left.bytes, bytes));
        }
        self.count.fetch_add(requests, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// A source of which one reader's requests are limited, whatever others read of it meanwhile.
pub(super) struct Limited {
    backing: Arc<dyn ReadRanges>,
    meter: RequestMeter,
}

impl Limited {
    /// `None` if requests are not counted.
    pub(super) fn new(backing: &Arc<dyn ReadRanges>, limits: &Limits) -> Option<Limited> {
        backing.is_cached(0, 0)?;
        let meter = RequestMeter::default();
        meter.limit(Some(Requests { count: limits.remote_requests, bytes: limits.remote_bytes }));
        Some(Limited { backing: backing.clone(), meter })
    }

    /// Counts these ranges, but for those that the cache has; of a short one, the whole block that the cache reads.
    fn count(&self, ranges: impl Iterator<Item = (u64, u64)>, least: u64) -> Result<()> {
        let missing = ranges.filter(|&(offset, len)| self.backing.is_cached(offset, len) != Some(true));
        let (requests, bytes) = missing.fold((0_u64, 0_u64), |(requests, bytes), (_, len)| {
            (requests.saturating_add(1), bytes.saturating_add(len.max(least)))
        });
        self.meter.count(requests, bytes)
    }

    fn block(&self) -> u64 {
        self.access().metadata_block.min(self.len())
    }
}

impl ReadRanges for Limited {
    fn len(&self) -> u64 {
        self.backing.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        self.count([(offset, to_u64(out.len()))].into_iter(), self.block())?;
        self.backing.read_at(offset, out)
    }

    fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        self.count(ranges.iter().map(|range| (range.offset, to_u64(range.out.len()))), 0)?;
        self.backing.read_ranges(ranges)
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

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        // What fits into a block is counted when it is read.
        if len > self.block() {
            self.count([(offset, len)].into_iter(), 0)?;
        }
        self.backing.prefetch(offset, len)
    }

    fn requests_left(&self) -> Option<Requests> {
        self.meter.left()
    }

    fn as_memory(&self) -> Option<&Bytes> {
        self.backing.as_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Source;

    #[test]
    fn requests_are_counted_only_while_they_are_limited() {
        let meter = RequestMeter::default();
        meter.count(1 << 40, 1 << 60).unwrap();
        assert!(meter.left().is_none());
        assert!(meter.limit(Some(Requests { count: 3, bytes: 100 })));
        assert!(!meter.limit(Some(Requests { count: 30, bytes: 1000 })), "the outer limit holds");
        meter.count(2, 60).unwrap();
        assert_eq!(meter.left(), Some(Requests { count: 1, bytes: 40 }));
        let text = meter.count(1, 41).unwrap_err().to_string();
        assert!(text.contains("remote_bytes") && text.contains("101") && text.contains("100"), "{text}");
        let text = meter.count(2, 0).unwrap_err().to_string();
        assert!(text.contains("remote_requests") && text.contains('4') && text.contains('3'), "{text}");
        meter.count(1, 40).unwrap();
        assert!(meter.limit(None));
        meter.count(1, 1).unwrap();
        assert!(meter.limit(Some(Requests { count: 1, bytes: 1 })));
        meter.count(1, 1).unwrap();
    }

    struct Zeros;

    impl ReadRanges for Zeros {
        fn len(&self) -> u64 {
            1 << 20
        }

        fn read_at(&self, _: u64, out: &mut [u8]) -> Result<()> {
            out.fill(0);
            Ok(())
        }
    }

    #[test]
    fn the_requests_of_one_reader_are_limited_apart_from_those_of_others() {
        let source = Source::new(Arc::new(Zeros)).window(10, 900_000).unwrap();
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
        // Without its limit, the window is one of the same source again.
        let window = limited.window(600_000, 10).unwrap().unlimited(&limited, &source);
        window.read_at(0, &mut [0; 10]).unwrap();
        assert!(window.same_backing(&source) && !limited.same_backing(&source));
        assert_eq!(window.start_in(&source), Some(600_000));
    }

    #[test]
    fn memory_is_not_limited() {
        let memory = Source::memory(Arc::new([0; 10]));
        let limited = memory.limited(&Limits::new().remote_requests(0));
        assert_eq!(limited.requests_left(), None);
        limited.read_at(0, &mut [0; 10]).unwrap();
        let other = Source::new(Arc::new(Zeros));
        assert!(memory.clone().unlimited(&other.limited(&Limits::new()), &other).same_backing(&memory));
    }
}
