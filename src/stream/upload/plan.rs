//! Turns results into jobs: small neighbours share a slot, large results are cut into slots, and results that would be read
//! inefficiently slot by slot are made in bands.

use std::collections::VecDeque;
use std::sync::Arc;

use super::UploadItem;
use super::job::{CutResult, HostBudget, Job, PackedResult};
use crate::error::{Error, Result};
use crate::num::to_usize;
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::stream::cut::ResultCutter;
use crate::stream::plan::{BlockGrid, Piece};
use crate::stream::read::Elements;
use crate::stream::result::ResultData;

/// A result of at most this many bytes shares a slot with its neighbours.
const PACKED_MAX_BYTES: u64 = 1 << 20;

/// GPU allocators align to this many bytes; the padding between two results in one allocation is unused.
const ALLOCATOR_ALIGNMENT: u64 = 256;

/// The most bytes of a result in one job: enough for the kernel's read-ahead.
const JOB_MAX_BYTES: u64 = 16 << 20;

/// The most bytes of a band.
const BAND_MAX_BYTES: u64 = 64 << 20;

/// If a result in another order than the file's would be read in shorter runs than this, it is made in bands.
const SLOT_READ_RUN_MIN_BYTES: u64 = 16 << 10;

/// The most jobs that are planned at once.
const PLANNED_JOBS_MAX: usize = 64;

/// The sizes that plans are made by.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) slot: u64,
    /// The number of workers.
    pub(super) workers: u64,
    /// The number of workers of results that the CPU casts.
    pub(super) casting_workers: u64,
    /// The bytes of host memory beside the ring.
    pub(super) window: u64,
    pub(super) budget: Arc<HostBudget>,
}

/// Plans a ticket: the results that are not jobs yet.
pub(super) struct Planner {
    pub(super) ticket: u64,
    pub(super) cancel: Cancel,
    items: VecDeque<UploadItem>,
    /// The index of the next item.
    next: usize,
    pack: Option<Pack>,
    large: Option<Large>,
}

/// Small results that share a slot.
struct Pack {
    parts: Vec<PackedResult>,
    /// The device address of the first result.
    start: u64,
    /// The device address after the last result.
    end: u64,
    /// The last result's destination. All destinations of a pack have one owner.
    last: Array,
}

/// A result that is being cut.
struct Large {
    item: usize,
    result: Arc<CutResult>,
    /// The number of the next slice.
    next: u64,
    /// Whether each slice is a band.
    banded: bool,
}

impl Planner {
    pub(super) fn new(ticket: u64, items: Vec<UploadItem>, cancel: Cancel) -> Planner {
        Planner { ticket, cancel, items: items.into(), next: 0, pack: None, large: None }
    }

    /// Whether no more jobs are left to plan.
    pub(super) fn is_done(&self) -> bool {
        self.items.is_empty() && self.pack.is_none() && self.large.is_none()
    }

    /// The bytes of host memory that the next step takes.
    pub(super) fn next_host_bytes(&self) -> u64 {
        if self.large.is_some() { 0 } else { self.items.front().map_or(0, |item| item.host_bytes) }
    }

    /// Plans the next jobs. An error comes with the index of the item that failed.
    pub(super) fn step(&mut self, sizes: &Sizes) -> Result<Vec<Job>, (usize, Error)> {
        let mut jobs = Vec::new();
        while jobs.len() < PLANNED_JOBS_MAX {
            if let Some(large) = &mut self.large {
                if let Some(job) = large.job(sizes) {
                    jobs.push(job);
                    continue;
                }
                self.large = None;
                // The next item takes host memory, so the caller checks first whether it fits the budget.
                if self.next_host_bytes() > 0 {
                    break;
                }
            }
            let Some(item) = self.items.pop_front() else {
                jobs.extend(self.pack.take().map(Pack::job));
                break;
            };
            let number = self.next;
            self.next += 1;
            self.cancel
                .check()
                .and_then(|()| self.add(number, item, sizes, &mut jobs))
                .map_err(|error| (number, error))?;
            if self.large.is_none() && self.next_host_bytes() > 0 {
                break;
            }
        }
        Ok(jobs)
    }

    fn add(&mut self, item: usize, upload: UploadItem, sizes: &Sizes, jobs: &mut Vec<Job>) -> Result<()> {
        let UploadItem { destination, host_bytes, describe, .. } = upload;
        let nbytes = destination.nbytes();
        let address = destination.address().addr().get() as u64;
        let reservation = sizes.budget.reserve(host_bytes, false);
        let data = describe()?;
        data.check(nbytes)?;
        if nbytes == 0 {
            return Ok(());
        }
        let data = match data {
            ResultData::Elements(elements)
                if nbytes <= PACKED_MAX_BYTES.min(sizes.slot) && reservation.is_none() =>
            {
                let packed = PackedResult {
                    item,
                    elements: *elements,
                    offset: 0,
                    len: usize::try_from(nbytes).unwrap_or(usize::MAX),
                };
                jobs.extend(self.pack(packed, destination, address, sizes.slot));
                return Ok(());
            }
            data => data,
        };
        let (shape, itemsize) = data.shape();
        let cut = ResultCutter::new(shape, sizes.slot / itemsize);
        let banded = match &data {
            ResultData::Elements(elements) => cut.len() > 1 && !fills_slots_efficiently(elements, &cut),
            ResultData::InSlices { .. } => cut.len() > 1,
        };
        let cut = if banded {
            ResultCutter::new(shape, BAND_MAX_BYTES.min(sizes.window / 2).max(sizes.slot) / itemsize)
        } else {
            cut
        };
        let result =
            Arc::new(CutResult { data, cutter: cut, itemsize, destination, _reservation: reservation });
        jobs.extend(self.pack.take().map(Pack::job));
        self.large = Some(Large { item, result, next: 0, banded });
        Ok(())
    }

    /// Adds a small result to the pack that is being planned. If it does not fit there, begins another pack and returns the
    /// completed one as a job.
    fn pack(&mut self, mut packed: PackedResult, destination: Array, address: u64, slot: u64) -> Option<Job> {
        let end = address.saturating_add(packed.len as u64);
        if let Some(pack) = &mut self.pack
            && pack.continues_with(address, &destination)
            && end - pack.start <= slot
        {
            packed.offset = usize::try_from(address - pack.start).unwrap_or(usize::MAX);
            (pack.end, pack.last) = (end, destination);
            pack.parts.push(packed);
            return None;
        }
        self.pack.replace(Pack { parts: vec![packed], start: address, end, last: destination }).map(Pack::job)
    }
}

impl Pack {
    /// Whether a result at this address can be part of the same copy: it is directly behind the last one, or at the next address
    /// that an allocator would use, in the memory of the same owner.
    fn continues_with(&self, address: u64, destination: &Array) -> bool {
        let next = self.end.checked_next_multiple_of(ALLOCATOR_ALIGNMENT);
        (address == self.end || Some(address) == next) && destination.shares_owner_with(&self.last)
    }

    fn job(self) -> Job {
        let len = usize::try_from(self.end - self.start).unwrap_or(usize::MAX);
        Job::Pack { parts: self.parts, destination: self.last, address: self.start, len }
    }
}

impl Large {
    fn job(&mut self, sizes: &Sizes) -> Option<Job> {
        let first = self.next;
        let left = self.result.cutter.len().saturating_sub(first);
        if left == 0 {
            return None;
        }
        let count = if self.banded { 1 } else { sizes.slots_of_next_job(left) };
        self.next += count;
        let (item, result) = (self.item, self.result.clone());
        Some(if self.banded {
            let threads = usize::try_from(sizes.workers).unwrap_or(1);
            Job::Band { item, result, number: first, threads }
        } else {
            Job::Slots { item, result, first, count }
        })
    }
}

impl Sizes {
    /// The number of workers that a batch of results can use.
    pub(super) fn workers_for(&self, items: &[UploadItem]) -> usize {
        let bytes = items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.destination.nbytes()));
        let most = if items.iter().any(|item| item.casts) { self.casting_workers } else { self.workers };
        to_usize(bytes.div_ceil(self.slot.max(1)).clamp(1, most.max(1)))
    }

    /// The number of slots of a job, of the `left` ones of its result: half of an even share, so that jobs shrink toward the end and
    /// the workers end together.
    fn slots_of_next_job(&self, left: u64) -> u64 {
        let most = (JOB_MAX_BYTES / self.slot.max(1)).max(1);
        (left / (2 * self.workers.max(1))).clamp(1, most)
    }
}

/// Whether a result can be made slot by slot. Not if a slot would be read in short runs, or with many unused bytes in gaps, as
/// with most transposed matrices.
fn fills_slots_efficiently(elements: &Elements, cut: &ResultCutter) -> bool {
    let Elements { payload, layout, how } = elements;
    let piece = Piece::whole(&cut.slice(0).layout_of(layout));
    // In the file's order, larger slices are no better.
    if piece
        .dims
        .windows(2)
        .all(|pair| matches!(pair, [outer, inner] if outer.src >= inner.src || outer.src == 0))
    {
        return true;
    }
    let (itemsize, access) = (how.cast.from().itemsize(), payload.source.data_access());
    let block = BlockGrid::new(&piece, itemsize, access.block, access.gap).iter().next();
    block.is_none_or(|block| {
        block.run.saturating_mul(itemsize) >= SLOT_READ_RUN_MIN_BYTES
            && block.scratch <= block.numel().saturating_mul(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(slot: u64, workers: u64) -> Sizes {
        Sizes { slot, workers, casting_workers: 2 * workers, window: 0, budget: Arc::default() }
    }

    #[test]
    fn jobs_of_a_large_result_shrink_toward_its_end() {
        let sizes = sizes(2 << 20, 12);
        let (mut left, mut jobs) = (512, Vec::new());
        while left > 0 {
            let job = sizes.slots_of_next_job(left);
            jobs.push(job);
            left -= job;
        }
        assert!(jobs.is_sorted_by(|one, next| one >= next), "{jobs:?}");
        assert_eq!(jobs.first(), Some(&8), "no more than the kernel reads ahead");
        assert!(jobs.iter().rev().take(24).all(|&job| job == 1), "{jobs:?}");
        assert_eq!(jobs.iter().sum::<u64>(), 512);
        assert_eq!(sizes.slots_of_next_job(1), 1);
        assert_eq!(self::sizes(64 << 20, 1).slots_of_next_job(100), 1);
    }

    #[test]
    fn a_batch_has_a_worker_per_slot_at_most() {
        assert_eq!(sizes(2 << 20, 12).workers_for(&[]), 1);
        assert_eq!(sizes(0, 0).workers_for(&[]), 1);
    }
}
