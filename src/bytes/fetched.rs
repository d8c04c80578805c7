//! Several ranges of a source, fetched with few requests: near ranges by one request, and several requests at once.
#![forbid(unsafe_code)]

use std::mem;

use super::access::Access;
use super::backing::Backing;
use super::read_ranges::RangeRead;
use super::region::Region;
use super::request_meter::Requests;
use super::scratch::zeroed;
use crate::error::{Code, Error, Result};
use crate::num::{to_u64, to_usize};
use crate::parallel::{self, Cancel};

/// A range that was fetched: its offset, and its bytes.
type Part = (u64, Vec<u8>);

/// Bytes of some ranges of a source.
#[derive(Debug, Default)]
pub struct Fetched {
    /// The ranges in order, which do not overlap.
    parts: Vec<Part>,
    /// What is added to an offset that is asked for.
    base: u64,
}

impl Fetched {
    /// Reads what covers these ranges by one call, with one range for those that are near each other.
    pub(super) fn hulls(backing: &Backing, wanted: Vec<Region>) -> Result<Fetched> {
        let mut parts = allocate(&merged(wanted, backing.access().gap, u64::MAX))?;
        match &mut parts[..] {
            // A short range may be served by a cache, which has a whole block of it then.
            [(offset, out)] => backing.read_at(*offset, out)?,
            parts => {
                let mut ranges: Vec<_> =
                    parts.iter_mut().map(|(offset, out)| RangeRead { offset: *offset, out }).collect();
                backing.read_ranges(&mut ranges)?;
            }
        }
        Ok(Fetched { parts, base: 0 })
    }

    /// Reads these ranges and keeps nothing else, however much lies between them: as many requests at once as the source likes, each of
    /// at most [`Access::block`] bytes with gaps of at most `gap` bytes. They are got by their offsets in a window that begins at `base`.
    pub(super) fn gather(
        backing: &Backing,
        base: u64,
        wanted: Vec<Region>,
        gap: u64,
        cancel: &Cancel,
    ) -> Result<Fetched> {
        let access = backing.access();
        let wanted = merged(wanted, 0, u64::MAX);
        let mut parts = allocate(&wanted)?;
        let mut rest = &mut parts[..];
        let runs = merged(wanted, gap, access.block).into_iter().map(|run| {
            let count = rest.partition_point(|part| part.0 < run.end());
            let (now, later) = mem::take(&mut rest).split_at_mut(count);
            rest = later;
            (run, now)
        });
        let runs: Vec<_> = runs.collect();
        let threads = if access.concurrent { access.in_flight.unwrap_or(1).min(runs.len()) } else { 1 };
        parallel::for_each(threads, runs.into_iter(), Vec::new, |buffer: &mut Vec<u8>, (run, parts)| {
            cancel.check()?;
            read_run(backing, run, parts, buffer)
        })?;
        Ok(Fetched { parts, base })
    }

    /// `len` bytes at an offset of the source; `None` if they were not fetched.
    pub fn get(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let offset = offset.checked_add(self.base)?;
        let after = self.parts.partition_point(|(start, _)| *start <= offset);
        let (start, bytes) = self.parts.get(after.checked_sub(1)?)?;
        let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
        bytes.get(from..from.checked_add(usize::try_from(len).ok()?)?)
    }
}

/// The requests that [`Fetched::gather`] would send.
pub(super) fn cost(wanted: Vec<Region>, gap: u64, access: Access) -> Requests {
    let runs = merged(merged(wanted, 0, u64::MAX), gap, access.block);
    let bytes = runs.iter().fold(0, |sum: u64, run| sum.saturating_add(run.len()));
    Requests { count: to_u64(runs.len()), bytes }
}

/// Reads one run and copies its parts out of it.
fn read_run(backing: &Backing, run: Region, parts: &mut [Part], buffer: &mut Vec<u8>) -> Result<()> {
    if let [(offset, out)] = parts {
        return backing.read_ranges(&mut [RangeRead { offset: *offset, out }]);
    }
    buffer.resize(to_usize(run.len()), 0);
    backing.read_ranges(&mut [RangeRead { offset: run.start(), out: buffer }])?;
    for (offset, out) in parts {
        let from = to_usize(offset.saturating_sub(run.start()));
        let found = buffer.get(from..from.saturating_add(out.len()));
        out.copy_from_slice(found.ok_or_else(|| Error::new(Code::InternalError, "a part outside its run"))?);
    }
    Ok(())
}

/// The ranges in order; those with up to `gap` bytes between them are one, if that has at most `max` bytes.
fn merged(mut wanted: Vec<Region>, gap: u64, max: u64) -> Vec<Region> {
    wanted.sort_unstable_by_key(|region| region.start());
    let mut out: Vec<Region> = Vec::with_capacity(wanted.len());
    for region in wanted {
        match out.last_mut() {
            Some(last)
                if region.start().saturating_sub(last.end()) <= gap && last.hull(region).len() <= max =>
            {
                *last = last.hull(region);
            }
            _ => out.push(region),
        }
    }
    out
}

fn allocate(regions: &[Region]) -> Result<Vec<Part>> {
    regions.iter().map(|region| Ok((region.start(), zeroed(region.len())?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::read_ranges::ReadRanges;
    use crate::bytes::remote::Remote;
    use std::sync::{Arc, Mutex};

    /// Bytes with the low byte of their offset, and what was asked for.
    struct Recording(Mutex<Vec<(u64, u64)>>);

    impl ReadRanges for Recording {
        fn size(&self) -> u64 {
            1 << 30
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
            self.0.lock().unwrap().push((offset, to_u64(out.len())));
            for (at, byte) in out.iter_mut().enumerate() {
                *byte = (offset + to_u64(at)) as u8;
            }
            Ok(())
        }
    }

    fn recording() -> (Arc<Recording>, Backing) {
        let recording = Arc::new(Recording(Mutex::default()));
        (recording.clone(), Backing::Remote(Remote::new(recording, None)))
    }

    fn regions(all: &[(u64, u64)]) -> Vec<Region> {
        all.iter().map(|&(start, len)| Region::new(start, len).unwrap()).collect()
    }

    fn check(fetched: &Fetched, all: &[(u64, u64)]) {
        for &(start, len) in all {
            let expected: Vec<u8> = (start..start + len).map(|at| at as u8).collect();
            assert_eq!(fetched.get(start, len), Some(&expected[..]), "{start} {len}");
        }
    }

    #[test]
    fn near_ranges_are_one_request_and_the_rest_is_not_kept() {
        let wanted = [(5_000_000, 10), (100, 50), (120, 100), (60_000, 7), (5_000_010, 3)];
        let (source, backing) = recording();
        let fetched = Fetched::gather(&backing, 0, regions(&wanted), 64 << 10, &Cancel::new()).unwrap();
        check(&fetched, &wanted);
        check(&fetched, &[(100, 120), (5_000_000, 13)]);
        assert_eq!((fetched.get(221, 1), fetched.get(60_000, 8), fetched.get(0, 1)), (None, None, None));
        let mut asked = source.0.lock().unwrap().clone();
        asked.sort_unstable();
        assert_eq!(asked, [(100, 59_907), (5_000_000, 13)]);
        assert_eq!(
            cost(regions(&wanted), 64 << 10, Access::default()),
            Requests { count: 2, bytes: 59_907 + 13 }
        );
        assert_eq!(cost(regions(&wanted), 0, Access::default()), Requests { count: 3, bytes: 120 + 7 + 13 });
        assert_eq!(cost(Vec::new(), 0, Access::default()), Requests { count: 0, bytes: 0 });
    }

    #[test]
    fn no_request_is_larger_than_a_block() {
        let wanted: Vec<(u64, u64)> = (0..1000).map(|number| (number * 10_000, 10)).collect();
        let (source, backing) = recording();
        let fetched = Fetched::gather(&backing, 0, regions(&wanted), 64 << 10, &Cancel::new()).unwrap();
        check(&fetched, &wanted);
        let asked = source.0.lock().unwrap();
        assert!(asked.len() == 3 && asked.iter().all(|&(_, len)| len <= 4 << 20), "{asked:?}");
    }

    #[test]
    fn hulls_are_read_by_one_call() {
        let (source, backing) = recording();
        let wanted = [(0, 10), (1000, 10), (1 << 20, 10)];
        check(&Fetched::hulls(&backing, regions(&wanted)).unwrap(), &wanted);
        assert_eq!(*source.0.lock().unwrap(), [(0, 1010), (1 << 20, 10)]);
    }

    #[test]
    fn a_cancelled_fetch_stops() {
        let ((source, backing), cancel) = (recording(), Cancel::new());
        cancel.cancel();
        let error = Fetched::gather(&backing, 0, regions(&[(0, 1)]), 0, &cancel).unwrap_err();
        assert_eq!((error.code(), source.0.lock().unwrap().len()), (Code::Cancelled, 0));
    }
}
