//! From results to jobs: small neighbours share a slot, large ones are cut into slots, and what slots would make slow is made
//! in bands.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cut::Cut;
use super::job::{Elements, From, Job, Plan, Room, Small};
use super::{Item, Make};
use crate::error::{Code, Error, Result};
use crate::kernel::Cast;
use crate::layout::Layout;
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::stream::plan::{Blocks, pieces};
use crate::stream::read::{SCRATCH, check_bounds};

/// A result of at most this many bytes shares a slot with its neighbours.
const PACKED: u64 = 256 << 10;

/// Allocators place on multiples of this many bytes, and what lies between two such results is nobody's.
const ALIGNMENT: u64 = 256;

/// Bytes that one worker makes of a result before it takes another job, at most: long enough for the system to read ahead.
const STRETCH: u64 = 16 << 20;

/// Bytes of a band, at most.
const BAND: u64 = 64 << 20;

/// Bytes of one read below which a part of a result in another order than the file's is better made in a band.
const RUN: u64 = 16 << 10;

/// Jobs that are made in one go.
const JOBS: usize = 64;

/// The numbers that plans are made by.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) slot: u64,
    pub(super) workers: u64,
    /// Bytes of host memory beside the ring.
    pub(super) window: u64,
    pub(super) room: Arc<Room>,
}

/// The results of a ticket that are still to become jobs.
pub(super) struct Planner {
    pub(super) ticket: u64,
    pub(super) cancel: Cancel,
    items: VecDeque<Item>,
    /// The number of the next item.
    next: usize,
    pack: Option<Pack>,
    large: Option<Large>,
}

/// Small results that are put into one slot.
struct Pack {
    parts: Vec<Small>,
    start: u64,
    end: u64,
    /// They lie in the memory of one owner.
    last: Array,
}

/// A result that is being cut.
struct Large {
    item: usize,
    plan: Arc<Plan>,
    next: u64,
    /// Parts of one job.
    step: u64,
    banded: bool,
}

impl Planner {
    pub(super) fn new(ticket: u64, items: Vec<Item>, cancel: Cancel) -> Planner {
        Planner { ticket, cancel, items: items.into(), next: 0, pack: None, large: None }
    }

    /// Whether there are no more jobs to be made.
    pub(super) fn is_done(&self) -> bool {
        self.items.is_empty() && self.pack.is_none() && self.large.is_none()
    }

    /// Bytes of host memory that the next step takes.
    pub(super) fn weight(&self) -> u64 {
        if self.large.is_some() { 0 } else { self.items.front().map_or(0, |item| item.host) }
    }

    /// The next jobs. An error comes with the number of the item that it is about.
    pub(super) fn step(&mut self, sizes: &Sizes) -> Result<Vec<Job>, (usize, Error)> {
        let mut jobs = Vec::new();
        while jobs.len() < JOBS {
            if let Some(large) = &mut self.large {
                if let Some(job) = large.job(sizes) {
                    jobs.push(job);
                    continue;
                }
                self.large = None;
                // Whoever looks at the weight of the next item has to be asked first.
                if self.weight() > 0 {
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
            if self.large.is_none() && self.weight() > 0 {
                break;
            }
        }
        Ok(jobs)
    }

    fn add(&mut self, item: usize, wish: Item, sizes: &Sizes, jobs: &mut Vec<Job>) -> Result<()> {
        let Item { place, host, make } = wish;
        let nbytes = place.nbytes();
        let address = place.address().addr().get() as u64;
        let held = sizes.room.hold(host, false);
        let (from, shape, itemsize) = match make()? {
            Make::Elements { payload, layout, how } => {
                // A dtype without a sign is refused before anything is read, also where there is nothing to read.
                how.signs.apply(how.cast.from(), &mut [])?;
                check_bounds(&payload, &layout, how.cast, usize::try_from(nbytes).unwrap_or(usize::MAX))?;
                let (shape, itemsize) = (layout.shape.clone(), how.cast.to().itemsize());
                (From::Elements(Box::new(Elements { payload, layout, how })), shape, itemsize)
            }
            Make::Parts { shape, itemsize, fill } => (From::Made(fill), shape, itemsize),
        };
        let numel = crate::layout::numel(&shape).unwrap_or(u64::MAX);
        if numel.checked_mul(itemsize) != Some(nbytes) {
            return Err(Error::new(Code::InternalError, "the destination's size is not the result's"));
        }
        if numel == 0 {
            return Ok(());
        }
        let from = match from {
            From::Elements(elements) if nbytes <= PACKED.min(sizes.slot) && held.is_none() => {
                let small = Small {
                    item,
                    elements: *elements,
                    at: 0,
                    len: usize::try_from(nbytes).unwrap_or(usize::MAX),
                };
                jobs.extend(self.pack(small, place, address, sizes.slot));
                return Ok(());
            }
            from => from,
        };
        let cut = Cut::new(&shape, sizes.slot / itemsize);
        let banded = match &from {
            From::Elements(elements) => {
                cut.len() > 1 && !cuts_well(&elements.layout, elements.how.cast, &cut)
            }
            From::Made(_) => cut.len() > 1,
        };
        let cut = if banded {
            Cut::new(&shape, BAND.min(sizes.window / 2).max(sizes.slot) / itemsize)
        } else {
            cut
        };
        let step = if banded { 1 } else { sizes.stretch(nbytes) };
        let plan = Arc::new(Plan { from, cut, itemsize, place, _held: held });
        jobs.extend(self.pack.take().map(Pack::job));
        self.large = Some(Large { item, plan, next: 0, step, banded });
        Ok(())
    }

    /// Adds a small result to the slot that is being planned, or begins another; the job that is complete by that.
    fn pack(&mut self, mut small: Small, place: Array, address: u64, slot: u64) -> Option<Job> {
        let end = address.saturating_add(small.len as u64);
        if let Some(pack) = &mut self.pack
            && pack.takes(address, &place)
            && end - pack.start <= slot
        {
            small.at = usize::try_from(address - pack.start).unwrap_or(usize::MAX);
            (pack.end, pack.last) = (end, place);
            pack.parts.push(small);
            return None;
        }
        self.pack.replace(Pack { parts: vec![small], start: address, end, last: place }).map(Pack::job)
    }
}

impl Pack {
    /// Whether a result at this address can go by the same copy: right behind the last one or where an allocator puts the next.
    fn takes(&self, address: u64, place: &Array) -> bool {
        let next = self.end.checked_next_multiple_of(ALIGNMENT);
        (address == self.end || Some(address) == next) && place.shares_owner_with(&self.last)
    }

    fn job(self) -> Job {
        let len = usize::try_from(self.end - self.start).unwrap_or(usize::MAX);
        Job::Pack { parts: self.parts, place: self.last, address: self.start, len }
    }
}

impl Large {
    fn job(&mut self, sizes: &Sizes) -> Option<Job> {
        let first = self.next;
        let count = self.step.min(self.plan.cut.len().saturating_sub(first));
        if count == 0 {
            return None;
        }
        self.next += count;
        let (item, plan) = (self.item, self.plan.clone());
        Some(if self.banded {
            let threads = usize::try_from(sizes.workers).unwrap_or(1);
            Job::Band { item, plan, number: first, threads }
        } else {
            Job::Slots { item, plan, first, count }
        })
    }
}

impl Sizes {
    /// Slots of one job, so that all workers have some of a result.
    fn stretch(&self, nbytes: u64) -> u64 {
        let share = nbytes / (self.workers.max(1) * 8);
        (share.min(STRETCH) / self.slot).max(1)
    }
}

/// Whether a result can be made in parts of a slot: not where such a part is read in short runs, or with much that is not wanted,
/// as a part of a transposed matrix mostly is.
fn cuts_well(layout: &Layout, cast: Cast, cut: &Cut) -> bool {
    let Some(piece) = pieces(&cut.part(0).of(layout), 1).into_iter().next() else { return true };
    // In the file's order, larger parts are no better.
    if piece
        .dims
        .windows(2)
        .all(|pair| matches!(pair, [outer, inner] if outer.src >= inner.src || outer.src == 0))
    {
        return true;
    }
    let itemsize = cast.from().itemsize();
    let block = Blocks::new(&piece, itemsize, SCRATCH).iter().next();
    block.is_none_or(|block| {
        block.run.saturating_mul(itemsize) >= RUN && block.scratch <= block.numel().saturating_mul(2)
    })
}
