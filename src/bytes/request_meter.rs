//! Limits on what opening or scanning a file, or a part of one, fetches where requests are expensive.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

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

/// Counts requests up to the limits `remote_requests` and `remote_bytes`.
#[derive(Debug)]
pub(super) struct RequestMeter {
    max: Requests,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl RequestMeter {
    pub(super) fn new(limits: &Limits) -> RequestMeter {
        let max = Requests { count: limits.remote_requests, bytes: limits.remote_bytes };
        RequestMeter { max, count: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// What may still be requested.
    pub(super) fn left(&self) -> Requests {
        Requests {
            count: self.max.count.saturating_sub(self.count.load(Ordering::Relaxed)),
            bytes: self.max.bytes.saturating_sub(self.bytes.load(Ordering::Relaxed)),
        }
    }

    /// Counts requests that are about to be sent. Fails with the limit that they exceed.
    pub(super) fn count(&self, requests: u64, bytes: u64) -> Result<()> {
        let left = self.left();
        for (name, max, left, wanted) in [
            ("remote_requests", self.max.count, left.count, requests),
            ("remote_bytes", self.max.bytes, left.bytes, bytes),
        ] {
            if wanted > left {
                return Err(Error::limit(name, max, max.saturating_sub(left).saturating_add(wanted)));
            }
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
    fn requests_are_counted_and_an_error_says_how_many_would_have_been_sent() {
        let meter = RequestMeter::new(&Limits::new().remote_requests(3).remote_bytes(100));
        meter.count(2, 60).unwrap();
        assert_eq!(meter.left(), Requests { count: 1, bytes: 40 });
        let text = meter.count(1, 41).unwrap_err().to_string();
        assert!(text.contains("remote_bytes") && text.contains("101") && text.contains("100"), "{text}");
        let text = meter.count(2, 0).unwrap_err().to_string();
        assert!(text.contains("remote_requests") && text.contains('4') && text.contains('3'), "{text}");
        meter.count(1, 40).unwrap();
        assert_eq!(meter.left(), Requests::default());
    }
}
