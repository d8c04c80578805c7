//! Measures how fast a file is read, direct and buffered, with a few reads each. `rustload doctor` shows the result.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use super::os;
use super::{AllocateAligned, FileSystem, Io, IoChoice, LocalFile, ReadMode, Scratch, Source};
use crate::error::{Code, Error, Result};
use crate::num::to_usize;
use crate::parallel;
use crate::sys::Instant;

/// The most bytes that are read in each mode.
const PROBE_MAX_BYTES: u64 = 64 << 20;

/// Bytes of one read.
const READ_BYTES: u64 = 4 << 20;

/// The number of reading threads, as for tensors.
const THREADS: usize = 4;

/// No read of a mode begins after this time.
const PROBE_TIME: Duration = Duration::from_millis(500);

/// What is known about reading a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Bytes of the file.
    pub size: u64,
    /// The file system that it is on.
    pub file_system: FileSystem,
    /// How it would be read, and why.
    pub io_choice: IoChoice,
    /// The number of reads under way at once; `None` for one per core if there is enough work for several threads.
    pub in_flight: Option<usize>,
    /// The bytes of one read.
    pub block: u64,
    /// Whether tensors are views of a mapping by default, where their bytes allow it.
    pub views: bool,
    /// The share of the file that is in the page cache, from samples; `None` if the system does not tell.
    pub cached: Option<f64>,
    /// Whether the file system supports direct reads.
    pub direct: bool,
    /// Bytes per second of buffered reads; `None` if not measured.
    pub buffered_rate: Option<f64>,
    /// Bytes per second of direct reads; `None` if not measured.
    pub direct_rate: Option<f64>,
}

impl Probe {
    /// Examines a file that is to be read as `io` says. With `measure`, reads a part of it in both modes; `allocate` makes the
    /// bounce buffers.
    pub fn run(path: &Path, io: Io, measure: bool, allocate: AllocateAligned) -> Result<Probe> {
        let source = Source::open_with(path, io)?;
        let direct_source = Source::open_with(path, Io::Direct)?;
        let file = source.file().ok_or_else(|| Error::new(Code::InternalError, "a path without a file"))?;
        let cached = file.opened().ok().and_then(|opened| os::cached_share(&opened.file, source.len()));
        let direct = direct_source.file().and_then(LocalFile::direct).is_some();
        // Direct reads first: they leave the page cache as it is.
        let direct_rate = if measure && direct { read_rate(&direct_source, 0, allocate)? } else { None };
        let buffered_source = Source::open_with(path, Io::Buffered)?;
        let buffered_rate =
            if measure { read_rate(&buffered_source, buffered_source.len() / 2, allocate)? } else { None };
        let access = ReadMode::of(&source, source.len(), true).access();
        Ok(Probe {
            size: source.len(),
            file_system: file.file_system().clone(),
            io_choice: file.io_choice().clone(),
            in_flight: access.in_flight,
            block: access.block,
            views: file.avoids_views().is_none(),
            cached,
            direct,
            buffered_rate,
            direct_rate,
        })
    }
}

/// Bytes per second of reads from `start`; `None` if the file has less than one whole read there.
fn read_rate(source: &Source, start: u64, allocate: AllocateAligned) -> Result<Option<f64>> {
    let len = source.len().saturating_sub(start).min(PROBE_MAX_BYTES) / READ_BYTES * READ_BYTES;
    if len == 0 {
        return Ok(None);
    }
    let begun = Instant::now();
    let done = std::sync::atomic::AtomicU64::new(0);
    let chunks = (0..len / READ_BYTES).map(|chunk| start.saturating_add(chunk.saturating_mul(READ_BYTES)));
    parallel::for_each(
        THREADS,
        chunks,
        || (ReadMode::direct(source).reader(source), Scratch::new(allocate)),
        |(reader, scratch), at| {
            if begun.elapsed() < PROBE_TIME {
                reader.read(at, to_usize(READ_BYTES), scratch)?;
                done.fetch_add(READ_BYTES, std::sync::atomic::Ordering::Relaxed);
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
    fn a_probe_measures_files_of_at_least_one_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"small").unwrap();
        let found = Probe::run(file.path(), Io::Auto, true, |_| None).unwrap();
        assert_eq!((found.size, found.buffered_rate, found.io_choice.io), (5, None, Io::Buffered));
        file.write_all(&vec![1; 9 << 20]).unwrap();
        let found = Probe::run(file.path(), Io::Direct, true, |_| None).unwrap();
        assert!(found.buffered_rate.is_some_and(|rate| rate > 0.0));
        assert_eq!(found.direct_rate.is_some(), found.direct);
        assert_eq!(Probe::run(file.path(), Io::Direct, false, |_| None).unwrap().buffered_rate, None);
    }
}
