//! Bytes whose place in a source is not known exactly until a header near them was checked. Where requests are expensive, the header is
//! read together with the bytes, and no byte is given out before the check has passed.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;

use super::backing::Backing;
use super::fetched::Fetched;
use super::read_ranges::RangeRead;
use super::region::Region;
use crate::error::{Code, Error, Result};
use crate::num::{to_u64, to_usize};

/// How long a thread waits at most for the check that another thread has begun, and how often it looks. Then it checks by itself.
const WAIT_MAX: u32 = 2500;
const WAIT_INTERVAL: Duration = Duration::from_micros(200);

/// The check of a header that says where some bytes begin. Several threads may run it; the first result is kept.
///
/// Offsets are those of the source that [`Source::with_proof`](super::Source::with_proof) is called on.
pub trait Proof: Send + Sync {
    /// What [`Proof::prove`] reads, wherever the bytes begin.
    fn ranges(&self) -> SmallVec<[Region; 2]>;

    /// How much later than at the earliest place the bytes may begin.
    fn slack(&self) -> u64;

    /// How much later than at the earliest place the bytes begin; `None` before the check has passed.
    fn shift(&self) -> Option<u64>;

    /// Checks the header, and gives [`Proof::shift`]. `read` gives bytes by offset and length.
    fn prove(&self, read: &dyn Fn(u64, u64) -> Result<Vec<u8>>) -> Result<u64>;

    /// Claims the check for the calling thread; false if it has passed, or another thread has claimed it.
    fn begin(&self) -> bool;

    /// Whether a thread has claimed the check and neither passed nor abandoned it.
    fn is_begun(&self) -> bool;

    /// Takes back a claim.
    fn abandon(&self);
}

/// The proof of a window, and the offset in the backing from which the proof's offsets count.
#[derive(Clone)]
pub(super) struct Deferred {
    proof: Arc<dyn Proof>,
    base: u64,
}

impl Deferred {
    pub(super) fn new(proof: Arc<dyn Proof>, base: u64) -> Deferred {
        Deferred { proof, base }
    }

    /// See [`Proof::shift`].
    pub(super) fn shift(&self) -> Option<u64> {
        self.proof.shift()
    }

    /// What has to be read for a window that is not proved: the bytes wherever they begin, and what the check reads.
    pub(super) fn extents(&self, window: Region) -> Result<SmallVec<[Region; 3]>> {
        let mut out = SmallVec::new();
        out.push(self.widened(window.start(), window.len())?);
        out.extend(self.checked());
        Ok(out)
    }

    /// Fills ranges of the backing, whose offsets are those at the earliest place.
    pub(super) fn read(&self, backing: &Backing, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        let Some(shift) = self.shift() else { return self.read_and_prove(backing, ranges) };
        for range in &mut *ranges {
            range.offset = range.offset.saturating_add(shift);
        }
        match ranges {
            [range] => backing.read_at(range.offset, range.out),
            ranges => backing.read_ranges(ranges),
        }
    }

    fn read_and_prove(&self, backing: &Backing, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        let is_claimed = self.proof.begin();
        let mut wanted = Vec::with_capacity(ranges.len().saturating_add(2));
        for range in &*ranges {
            wanted.push(self.widened(range.offset, to_u64(range.out.len()))?);
        }
        if is_claimed {
            wanted.extend(self.checked());
        }
        let result = Fetched::hulls(backing, wanted).and_then(|fetched| {
            let shift = if is_claimed { None } else { self.wait() };
            let shift = shift.map_or_else(|| self.prove_with(backing, &fetched), Ok)?;
            Ok((fetched, shift))
        });
        if is_claimed && result.is_err() {
            self.proof.abandon();
        }
        let (fetched, shift) = result?;
        for range in ranges {
            let found = fetched.get(range.offset.saturating_add(shift), to_u64(range.out.len()));
            let found = found.ok_or_else(|| Error::new(Code::InternalError, "proved bytes were not read"))?;
            range.out.copy_from_slice(found);
        }
        Ok(())
    }

    /// Checks with bytes that were read already; reads what is missing.
    pub(super) fn prove_with(&self, backing: &Backing, fetched: &Fetched) -> Result<u64> {
        self.prove_from(backing, |offset, len| fetched.get(offset, len).map(<[u8]>::to_vec))
    }

    /// As [`Deferred::prove_with`]; `found` gives the bytes that are there, by their offset in the backing.
    pub(super) fn prove_from(
        &self,
        backing: &Backing,
        found: impl Fn(u64, u64) -> Option<Vec<u8>>,
    ) -> Result<u64> {
        if let Some(shift) = self.shift() {
            return Ok(shift);
        }
        self.proof.prove(&|offset, len| {
            let offset = self.base.saturating_add(offset);
            if let Some(bytes) = found(offset, len) {
                return Ok(bytes);
            }
            let mut bytes = vec![0; to_usize(len)];
            backing.read_at(offset, &mut bytes)?;
            Ok(bytes)
        })
    }

    /// Reads what the check needs, and checks.
    pub(super) fn prove(&self, backing: &Backing) -> Result<u64> {
        match self.shift() {
            Some(shift) => Ok(shift),
            None => self.prove_with(backing, &Fetched::hulls(backing, self.checked().into_vec())?),
        }
    }

    /// What the check reads, in the backing.
    fn checked(&self) -> SmallVec<[Region; 2]> {
        let moved = |region: Region| Region::new(self.base.saturating_add(region.start()), region.len());
        self.proof.ranges().into_iter().filter_map(moved).collect()
    }

    fn widened(&self, start: u64, len: u64) -> Result<Region> {
        let region = Region::new(start, len.saturating_add(self.proof.slack()));
        region.ok_or_else(|| Error::new(Code::InternalError, "a range does not fit 64 bits"))
    }

    /// Waits for the thread that has begun the check; `None` if it failed or takes too long.
    fn wait(&self) -> Option<u64> {
        for _ in 0..WAIT_MAX {
            match self.shift() {
                None if self.proof.is_begun() => thread::sleep(WAIT_INTERVAL),
                shift => return shift,
            }
        }
        None
    }
}
