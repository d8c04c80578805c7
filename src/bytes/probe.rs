//! How fast a file is read here, in either way: short reads for whoever wonders which way is better.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::{Duration, Instant};

use super::direct::cached;
use super::{Choice, Io, MakeBlocks, Place, Reader, Scratch, Source};
use crate::error::{Code, Error, Result};
use crate::parallel;

/// Bytes that are read in each way at most.
const MOST: u64 = 64 << 20;

/// Bytes of one read.
const CHUNK: u64 = 4 << 20;

/// Threads that read, as when tensors are read.
const THREADS: usize = 4;

/// How long each way is tried at most; a read that was begun is ended.
const LONG: Duration = Duration::from_millis(500);

/// What is known of a file before it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Bytes of the file.
    pub size: u64,
    /// Where it lies.
    pub place: Place,
    /// How it would be read, and why.
    pub choice: Choice,
    /// The share of it that is in the page cache, from samples; `None` where the system does not tell.
    pub cached: Option<f64>,
    /// Whether reads around the page cache can be had.
    pub direct: bool,
    /// Bytes per second through the page cache; `None` where not measured.
    pub buffered_rate: Option<f64>,
    /// Bytes per second around it.
    pub direct_rate: Option<f64>,
}

impl Probe {
    /// Looks at a file that is to be read in the given way; reads a part of it in both ways if asked to `measure`,
    /// by way of what `make` makes.
    pub fn run(path: &Path, io: Io, measure: bool, make: MakeBlocks) -> Result<Probe> {
        let source = Source::open_with(path, io)?;
        let around = Source::open_with(path, Io::Direct)?;
        let (Some(place), Some(choice)) = (source.file_system(), source.choice()) else {
            return Err(Error::new(Code::InternalError, "a file has no place"));
        };
        let shared = source.descriptor().and_then(|file| cached(file, source.len()));
        let direct = around.direct().is_some();
        // The direct way first: it leaves the cache as it is.
        let direct_rate = if measure && direct { rate(&around, 0, make)? } else { None };
        let through = Source::open_with(path, Io::Buffered)?;
        let buffered_rate = if measure { rate(&through, through.len() / 2, make)? } else { None };
        let (place, choice) = (place.clone(), choice.clone());
        Ok(Probe { size: source.len(), place, choice, cached: shared, direct, buffered_rate, direct_rate })
    }
}

/// Bytes per second of reads from `start` on; `None` for files without a whole chunk there.
fn rate(source: &Source, start: u64, make: MakeBlocks) -> Result<Option<f64>> {
    let len = source.len().saturating_sub(start).min(MOST) / CHUNK * CHUNK;
    if len == 0 {
        return Ok(None);
    }
    let begun = Instant::now();
    let done = std::sync::atomic::AtomicU64::new(0);
    let chunks = (0..len / CHUNK).map(|chunk| start.saturating_add(chunk.saturating_mul(CHUNK)));
    parallel::for_each(
        THREADS,
        chunks,
        || (Reader::around(source), Scratch::new(make)),
        |(reader, scratch), at| {
            if begun.elapsed() < LONG {
                reader.read(at, usize::try_from(CHUNK).unwrap_or(usize::MAX), scratch)?;
                done.fetch_add(CHUNK, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        },
    )?;
    Ok(Some(done.into_inner() as f64 / begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_probe_tells_rates_of_files_that_have_a_chunk() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"small").unwrap();
        let found = Probe::run(file.path(), Io::Auto, true, |_| None).unwrap();
        assert_eq!((found.size, found.buffered_rate, found.choice.io), (5, None, Io::Buffered));
        file.write_all(&vec![1; 9 << 20]).unwrap();
        let found = Probe::run(file.path(), Io::Direct, true, |_| None).unwrap();
        assert!(found.buffered_rate.is_some_and(|rate| rate > 0.0));
        assert_eq!(found.direct_rate.is_some(), found.direct);
        assert_eq!(Probe::run(file.path(), Io::Direct, false, |_| None).unwrap().buffered_rate, None);
    }
}
