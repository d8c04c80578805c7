//! Measures how fast the CPU reads and casts, which decides between casting before the H2D copy and after it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bytes::memory_file;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Cast, Overflow, convert};
use crate::parallel::{self, lock};
use crate::sys::FileExt;

/// The bytes of one read and cast, which stay in the core's cache, like a block of a load.
const SOURCE_BYTES: usize = 256 << 10;

/// The bytes of page cache that each thread reads: more than the caches of its core hold.
const READ_BYTES: usize = 8 << 20;

/// The most bytes of page cache for all threads.
const READ_TOTAL_MAX_BYTES: usize = 128 << 20;

/// How long each thread casts.
const MEASURE_TIME: Duration = Duration::from_millis(2);

type Key = (DType, DType, usize);

/// Source bytes per second that `threads` threads read from the page cache and cast from one dtype to another. Measured at the first
/// call, in some milliseconds, and then kept. The table is not locked meanwhile, so concurrent callers may each measure. Fails if
/// there is no such cast.
pub fn cast_rate(from: DType, to: DType, threads: Option<usize>) -> Result<f64> {
    static RATES: Mutex<Option<HashMap<Key, f64>>> = Mutex::new(None);
    let threads = threads.unwrap_or_else(parallel::cores).max(1);
    let cast = Cast::new(from, to, Overflow::Nan)?;
    let key = (from, to, threads);
    let measured = parallel::lock_unless_stuck(&RATES).and_then(|rates| rates.as_ref()?.get(&key).copied());
    if let Some(rate) = measured {
        return Ok(rate);
    }
    let rate = measure(cast, threads)?;
    // The first rate is kept, so that all later calls decide alike.
    Ok(match parallel::lock_unless_stuck(&RATES) {
        Some(mut rates) => *rates.get_or_insert_default().entry(key).or_insert(rate),
        None => rate,
    })
}

fn measure(cast: Cast, threads: usize) -> Result<f64> {
    let sum = Mutex::new(0.0);
    let src_size = usize::try_from(cast.from().itemsize()).unwrap_or(1);
    let dst_size = usize::try_from(cast.to().itemsize()).unwrap_or(1);
    let share =
        (READ_TOTAL_MAX_BYTES / threads.max(1)).clamp(SOURCE_BYTES, READ_BYTES) / SOURCE_BYTES * SOURCE_BYTES;
    // A file in memory is page cache. Where the system refuses one, the cast alone is measured.
    let file = memory_file("rustload-rate");
    let io_error = |error| Error::io(error, None);
    parallel::for_each(
        threads,
        0..threads,
        || (vec![0_u8; SOURCE_BYTES], vec![0_u8; SOURCE_BYTES / src_size * dst_size]),
        |(src, dst), thread| {
            let offset = |block: usize| (thread * share + block * SOURCE_BYTES % share) as u64;
            // Warm-up: page faults and caches. The system may refuse the bytes of the file, too (RLIMIT_FSIZE).
            let write = |file: &&File| {
                (0..share / SOURCE_BYTES).all(|block| file.write_all_at(src, offset(block)).is_ok())
            };
            let file = file.as_ref().filter(write);
            convert(cast, src, dst)?;
            let (start, mut bytes, mut blocks) = (Instant::now(), 0, 0);
            while start.elapsed() < MEASURE_TIME {
                if let Some(file) = file {
                    file.read_exact_at(src, offset(blocks)).map_err(io_error)?;
                }
                convert(cast, src, dst)?;
                bytes += src.len();
                blocks += 1;
            }
            let rate = bytes as f64 / start.elapsed().as_secs_f64();
            *lock(&sum) += rate;
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
    fn a_rate_is_measured_once_and_an_unsupported_cast_is_an_error() {
        let rate = cast_rate(DType::F32, DType::BF16, Some(1)).unwrap();
        assert!(rate > 1e6, "{rate}");
        assert_eq!(cast_rate(DType::F32, DType::BF16, Some(1)).unwrap(), rate);
        let none = cast_rate(DType::F4E2M1FnX2, DType::F32, None).unwrap_err();
        assert_eq!(none.code(), Code::DtypeUnsupported);
    }
}
