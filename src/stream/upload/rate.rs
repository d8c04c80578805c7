//! How fast the CPU casts, measured: what decides between casting before the link and behind it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Cast, Overflow, convert};
use crate::parallel;

/// Bytes of source that a thread casts again and again: they stay in its own cache, as a block that was just read does.
const SOURCE: usize = 256 << 10;

/// How long each thread casts.
const TIME: Duration = Duration::from_millis(2);

/// How often a result looks for the table of rates while another thread is at it.
const TRIES: u32 = 64;

type Key = (DType, DType, usize);

/// Bytes of source per second that `threads` cast from one dtype to another; measured in a few milliseconds and then
/// remembered. The table is not locked meanwhile, so threads that ask at once may each measure.
pub fn cast_rate(from: DType, to: DType, threads: Option<usize>) -> Result<f64> {
    static KNOWN: Mutex<Option<HashMap<Key, f64>>> = Mutex::new(None);
    let threads = threads.unwrap_or_else(parallel::cores).max(1);
    let cast = Cast::new(from, to, Overflow::Nan)?;
    let key = (from, to, threads);
    let known = parallel::lock_within(&KNOWN, TRIES).and_then(|known| known.as_ref()?.get(&key).copied());
    if let Some(rate) = known {
        return Ok(rate);
    }
    let rate = measure(cast, threads)?;
    // The first rate stays, so that all who ask later decide alike.
    Ok(match parallel::lock_within(&KNOWN, TRIES) {
        Some(mut known) => *known.get_or_insert_default().entry(key).or_insert(rate),
        None => rate,
    })
}

fn measure(cast: Cast, threads: usize) -> Result<f64> {
    let sum = Mutex::new(0.0);
    let items = usize::try_from(cast.from().itemsize()).unwrap_or(1);
    let out = usize::try_from(cast.to().itemsize()).unwrap_or(1);
    parallel::for_each(
        threads,
        0..threads,
        || (vec![0_u8; SOURCE], vec![0_u8; SOURCE / items * out]),
        |(src, dst), _| {
            // Once for the pages and the caches.
            convert(cast, src, dst)?;
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < TIME {
                convert(cast, src, dst)?;
                bytes += src.len();
            }
            let rate = bytes as f64 / start.elapsed().as_secs_f64();
            *sum.lock().unwrap_or_else(PoisonError::into_inner) += rate;
            Ok(())
        },
    )?;
    Ok(sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn a_rate_is_measured_once_and_a_cast_that_is_none_is_an_error() {
        let rate = cast_rate(DType::F32, DType::BF16, Some(1)).unwrap();
        assert!(rate > 1e6, "{rate}");
        assert_eq!(cast_rate(DType::F32, DType::BF16, Some(1)).unwrap(), rate);
        let none = cast_rate(DType::F4E2M1FnX2, DType::F32, None).unwrap_err();
        assert_eq!(none.code(), Code::DtypeUnsupported);
    }
}
