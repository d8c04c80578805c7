//! What requests to a source cost, as they were timed, and the sizes of reads that follow from it.
//!
//! While one request waits for its answer, another one could have moved `latency x rate` bytes. So that many unneeded bytes between two
//! ranges cost as much as a second request, and reads should be a few times longer.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::access::Access;
use crate::error::Result;
use crate::sys::Instant;

/// Answers of at most this many bytes tell the latency.
const SMALL_MAX_BYTES: u64 = 256 << 10;

/// Answers of at least this many bytes tell the rate.
const LARGE_MIN_BYTES: u64 = 1 << 20;

/// What comes sooner was in memory or in a cache on the way: no request was waited for.
const REQUEST_MIN: Duration = Duration::from_micros(100);

/// At shorter latencies the sizes are those that the source suggests.
const PRICED_MIN: Duration = Duration::from_millis(2);

/// From this latency on, reads are longer and more of them are under way.
const FAR_MIN: Duration = Duration::from_millis(5);

const FAR_BLOCKS: u64 = 2;
const FAR_IN_FLIGHT: usize = 16;

/// Bytes per second of one of several requests, before any was timed.
const RATE_UNKNOWN: u64 = 125_000_000;

/// The largest gap that is read through.
const GAP_MAX_BYTES: u64 = 16 << 20;

/// Of the rates that were timed, the last one has this share of the mean: 1 in so many.
const RATE_SHARE: u64 = 4;

/// The latency and the rate of a source's requests.
pub(super) struct Price {
    /// Nanoseconds of the fastest small request; `u64::MAX` before the first. It only falls, so bounds on scratch hold.
    latency: AtomicU64,
    /// Bytes per second of one request while others are under way.
    rate: AtomicU64,
    /// How many more answers were waited for than came at once. One slow answer of a near source is a busy machine's.
    waited: AtomicI64,
}

impl Price {
    pub(super) fn new() -> Price {
        Price {
            latency: AtomicU64::new(u64::MAX),
            rate: AtomicU64::new(RATE_UNKNOWN),
            waited: AtomicI64::new(0),
        }
    }

    /// Sends a request for so many bytes, and times it.
    pub(super) fn time(&self, bytes: u64, request: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        request()?;
        self.note(bytes, start.elapsed());
        Ok(())
    }

    fn note(&self, bytes: u64, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let is_request = took >= REQUEST_MIN;
        self.waited.fetch_add(if is_request { 1 } else { -1 }, Ordering::Relaxed);
        if !is_request {
            return;
        }
        if bytes <= SMALL_MAX_BYTES {
            self.latency.fetch_min(nanos, Ordering::Relaxed);
        } else if bytes >= LARGE_MIN_BYTES {
            let waited = self.latency.load(Ordering::Relaxed).min(nanos / 2);
            let moving = u128::from(nanos.saturating_sub(waited).max(1));
            let rate = u128::from(bytes).saturating_mul(1_000_000_000) / moving;
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            let before = self.rate.load(Ordering::Relaxed);
            // A lost update is one sample less.
            self.rate.store(before - before / RATE_SHARE + rate / RATE_SHARE, Ordering::Relaxed);
        }
    }

    /// The sizes for reads of tensor data, where the source suggests `base`.
    pub(super) fn access(&self, base: Access) -> Access {
        let latency = self.latency.load(Ordering::Relaxed);
        let is_at_least = |least: Duration| latency != u64::MAX && u128::from(latency) >= least.as_nanos();
        let is_near = self.waited.load(Ordering::Relaxed) < 0 || !is_at_least(PRICED_MIN);
        if is_near || !base.waits_for_requests() {
            return base;
        }
        let rate = u128::from(self.rate.load(Ordering::Relaxed));
        let meanwhile = u64::try_from(rate * u128::from(latency) / 1_000_000_000).unwrap_or(u64::MAX);
        let access = Access { gap: meanwhile.min(GAP_MAX_BYTES).max(base.gap), ..base };
        match is_at_least(FAR_MIN) && base.concurrent {
            true => Access {
                block: base.block.saturating_mul(FAR_BLOCKS),
                in_flight: base.in_flight.map(|in_flight| in_flight.max(FAR_IN_FLIGHT)),
                ..access
            },
            false => access,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(samples: &[(u64, u64)]) -> Access {
        let price = Price::new();
        for &(bytes, micros) in samples {
            price.note(bytes, Duration::from_micros(micros));
        }
        price.access(Access::default())
    }

    #[test]
    fn a_gap_is_what_one_request_moves_in_one_latency() {
        assert_eq!(price(&[(4096, 20_000)]).gap, 2_500_000);
        assert_eq!(price(&[(4096, 90_000), (4096, 20_000), (4096, 30_000)]).gap, 2_500_000);
        assert_eq!(price(&[(4096, 3_600_000)]).gap, GAP_MAX_BYTES);
        // 4 MiB in 20 + 67 ms are 62.6 MB/s, many times.
        let mut samples = vec![(4096, 20_000)];
        samples.extend([(4 << 20, 87_000); 30]);
        assert!((1_200_000..1_350_000).contains(&price(&samples).gap), "{:?}", price(&samples));
    }

    #[test]
    fn near_sources_are_read_as_they_suggest() {
        for samples in [&[][..], &[(4096, 1_900)], &[(4096, 20_000), (4096, 500)], &[(4 << 20, 50_000)]] {
            assert_eq!(price(samples), Access::default(), "{samples:?}");
        }
        // What was in a cache tells nothing of the latency, but that one answer was late says as little of memory.
        assert_ne!(price(&[(4096, 20_000), (4096, 20)]), Access::default());
        assert_eq!(price(&[(4096, 20_000), (4096, 20), (4096, 20)]), Access::default());
        let price = Price::new();
        price.note(1, Duration::from_secs(1));
        let base = Access { metadata_block: 0, ..Access::default() };
        assert_eq!(price.access(base), base);
    }

    #[test]
    fn far_sources_get_longer_reads_and_more_of_them() {
        let far = price(&[(4096, 5_000)]);
        assert_eq!((far.block, far.in_flight), (8 << 20, Some(16)));
        assert_eq!((price(&[(4096, 4_000)]).block, price(&[(4096, 4_000)]).in_flight), (4 << 20, Some(8)));
        let price = Price::new();
        price.note(1, Duration::from_millis(50));
        let one = price.access(Access { concurrent: false, in_flight: Some(1), ..Access::default() });
        assert_eq!((one.in_flight, one.block, one.gap), (Some(1), 4 << 20, 6_250_000));
    }

    #[test]
    fn no_time_overflows() {
        let price = Price::new();
        for (bytes, took) in [(1, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0), (0, 1 << 40), (u64::MAX, 1)]
        {
            price.note(bytes, Duration::from_millis(took));
            assert!(price.access(Access::default()).gap <= GAP_MAX_BYTES);
        }
    }

    #[test]
    fn a_failed_request_is_not_timed() {
        let price = Price::new();
        let failed = || Err(crate::error::Error::new(crate::error::Code::Io, "the connection broke"));
        assert!(price.time(1, failed).is_err());
        assert_eq!(price.latency.load(Ordering::Relaxed), u64::MAX);
        price
            .time(1, || {
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            })
            .unwrap();
        assert!(price.latency.load(Ordering::Relaxed) >= 1_000_000);
    }
}
