//! Limits on what opening or scanning a file fetches where requests are expensive.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::ReadRanges;
use crate::error::{Error, Result};
use crate::limits::Limits;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
