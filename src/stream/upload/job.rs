//! What one worker does at a time: fill slots of the ring, and send each off as soon as it is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cut::{Cut, Part};
use crate::bytes::{Reader, Scratch};
use crate::error::{Code, Error, Result};
use crate::layout::Layout;
use crate::parallel::{self, Cancel};
use crate::sink::cuda::{Ring, Stream};
use crate::sink::{Array, HostBuffer};
use crate::stream::batch::{Task, fill_all};
use crate::stream::plan::pieces;
use crate::stream::read::{Fill, Manner, Payload, fill, fill_piece, scratch};

/// Makes a part of a result in memory of exactly its size.
pub type FillPart = Box<dyn Fn(&Part, &mut [u8]) -> Result<()> + Send + Sync>;

/// Host memory beside the ring, in bytes.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// What sources were inflated to.
    sources: AtomicU64,
    /// What bands are made in.
    bands: AtomicU64,
}

/// Bytes that count in the window until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    bytes: u64,
    room: Arc<Room>,
    is_band: bool,
}

impl Room {
    /// Whether a source of so many bytes may be inflated. One alone always may.
    pub(super) fn fits_source(&self, bytes: u64, window: u64) -> bool {
        bytes == 0 || self.sources.load(Ordering::SeqCst) == 0 || self.fits(bytes, window)
    }

    /// Whether a band of so many bytes may be made. One alone always may, or an inflated source would wait for its own bands.
    pub(super) fn fits_band(&self, bytes: u64, window: u64) -> bool {
        bytes == 0 || self.bands.load(Ordering::SeqCst) == 0 || self.fits(bytes, window)
    }

    fn fits(&self, bytes: u64, window: u64) -> bool {
        let held = self.sources.load(Ordering::SeqCst).saturating_add(self.bands.load(Ordering::SeqCst));
        held.saturating_add(bytes) <= window
    }

    fn of(&self, is_band: bool) -> &AtomicU64 {
        if is_band { &self.bands } else { &self.sources }
    }

    pub(super) fn hold(self: &Arc<Room>, bytes: u64, is_band: bool) -> Option<Held> {
        (bytes > 0).then(|| {
            self.of(is_band).fetch_add(bytes, Ordering::SeqCst);
            Held { bytes, room: self.clone(), is_band }
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.of(self.is_band).fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// Elements of a storage, converted on the way.
pub(super) struct Elements {
    pub(super) payload: Payload,
    /// In the order wanted.
    pub(super) layout: Layout,
    pub(super) how: Fill,
}

/// Where a result comes from.
pub(super) enum From {
    Elements(Box<Elements>),
    Made(FillPart),
}

/// A result that is made in parts.
pub(super) struct Plan {
    pub(super) from: From,
    pub(super) cut: Cut,
    pub(super) itemsize: u64,
    /// Where it goes, on the device.
    pub(super) place: Array,
    pub(super) _held: Option<Held>,
}

/// A small result in a slot that it shares with its neighbours.
pub(super) struct Small {
    pub(super) item: usize,
    pub(super) elements: Elements,
    /// Where it starts in the slot.
    pub(super) at: usize,
    pub(super) len: usize,
}

pub(super) enum Job {
    /// Whole results that lie next to one another on the device, by one copy.
    Pack { parts: Vec<Small>, place: Array, address: u64, len: usize },
    /// Some parts of a result, each filled in a slot.
    Slots { item: usize, plan: Arc<Plan>, first: u64, count: u64 },
    /// A part of a result that is made in memory of its own first.
    Band { item: usize, plan: Arc<Plan>, number: u64, threads: usize },
}

/// What a worker has.
pub(super) struct Worker<'w> {
    ring: &'w Ring,
    stream: &'w Stream,
    scratch: Scratch,
}

impl Job {
    /// Host memory that it takes beside its slots.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Job::Band { plan, number, .. } => plan.cut.part(*number).numel.saturating_mul(plan.itemsize),
            Job::Pack { .. } | Job::Slots { .. } => 0,
        }
    }

    /// The first result that it is about.
    pub(super) fn item(&self) -> usize {
        match self {
            Job::Pack { parts, .. } => parts.first().map_or(0, |small| small.item),
            Job::Slots { item, .. } | Job::Band { item, .. } => *item,
        }
    }
}

impl<'w> Worker<'w> {
    pub(super) fn new(ring: &'w Ring, stream: &'w Stream) -> Worker<'w> {
        Worker { ring, stream, scratch: scratch() }
    }

    /// Does a job. An error comes with the number of the result that it is about.
    pub(super) fn run(&mut self, job: Job, cancel: &Cancel) -> Result<(), (usize, Error)> {
        match job {
            Job::Pack { parts, place, address, len } => self.pack(parts, (&place, address, len), cancel),
            Job::Slots { item, plan, first, count } => {
                self.slots(&plan, first, count, cancel).map_err(|error| (item, error))
            }
            Job::Band { item, plan, number, threads } => {
                self.band(&plan, &plan.cut.part(number), threads, cancel).map_err(|error| (item, error))
            }
        }
    }

    fn pack(
        &self,
        parts: Vec<Small>,
        (place, address, len): (&Array, u64, usize),
        cancel: &Cancel,
    ) -> Result<(), (usize, Error)> {
        let first = parts.first().map_or(0, |small| small.item);
        let items: Vec<usize> = parts.iter().map(|small| small.item).collect();
        let mut slot = self.ring.take(cancel).map_err(|error| (first, error))?;
        let mut rest = slot.bytes_mut().get_mut(..len).ok_or_else(|| (first, too_long()))?;
        let mut tasks = Vec::with_capacity(parts.len());
        let mut end = 0;
        for Small { item, elements, at, len } in parts {
            let (gap, tail) = rest.split_at_mut_checked(at - end).ok_or_else(|| (item, too_long()))?;
            // What a slot held before is nobody's business, on the device neither.
            gap.fill(0);
            let (out, tail) = tail.split_at_mut_checked(len).ok_or_else(|| (item, too_long()))?;
            let Elements { payload, layout, how } = elements;
            tasks.push(Task { payload, layout, how, out });
            (rest, end) = (tail, at + len);
        }
        let about = |task: usize| items.get(task).copied().unwrap_or(first);
        fill_all(tasks, Some(1)).map_err(|(task, error)| (about(task), error))?;
        slot.copy_to_device(place, address, len, self.stream).map_err(|error| (first, error))
    }

    fn slots(&mut self, plan: &Plan, first: u64, count: u64, cancel: &Cancel) -> Result<()> {
        match &plan.from {
            From::Elements(elements) => {
                let Elements { payload, layout, how } = &**elements;
                let manner =
                    Manner::of(payload, layout, layout.numel().saturating_mul(how.cast.from().itemsize()));
                let reader = manner.reader(&payload.source);
                self.read(plan, elements, &reader, (first, count), cancel)?;
                // Before anybody is told that it is done.
                payload.source.check_unchanged()
            }
            From::Made(make) => (first..first + count).try_for_each(|number| {
                let part = plan.cut.part(number);
                let mut slot = self.ring.take(cancel)?;
                let len = plan.len(&part);
                make(&part, slot.bytes_mut().get_mut(..len).ok_or_else(too_long)?)?;
                slot.copy_to_device(&plan.place, plan.address_of(&part), len, self.stream)
            }),
        }
    }

    fn read(
        &mut self,
        plan: &Plan,
        elements: &Elements,
        reader: &Reader<'_>,
        (first, count): (u64, u64),
        cancel: &Cancel,
    ) -> Result<()> {
        for number in first..first + count {
            let part = plan.cut.part(number);
            let len = plan.len(&part);
            let mut slot = self.ring.take(cancel)?;
            let mut out = slot.bytes_mut().get_mut(..len).ok_or_else(too_long)?;
            for piece in pieces(&part.of(&elements.layout), 1) {
                let bytes = usize::try_from(piece.numel.saturating_mul(plan.itemsize)).unwrap_or(usize::MAX);
                let (here, rest) = out.split_at_mut_checked(bytes).ok_or_else(too_long)?;
                fill_piece(&elements.payload, &piece, &elements.how, reader, &mut self.scratch, here)?;
                out = rest;
            }
            if !out.is_empty() {
                return Err(Error::new(Code::InternalError, "a slot would not be filled"));
            }
            slot.copy_to_device(&plan.place, plan.address_of(&part), len, self.stream)?;
        }
        Ok(())
    }

    /// In memory of its own, by all threads, and from there into slots.
    fn band(&self, plan: &Plan, part: &Part, threads: usize, cancel: &Cancel) -> Result<()> {
        let len = plan.len(part);
        let mut memory = HostBuffer::unfilled(len as u64)?;
        match &plan.from {
            From::Elements(elements) => {
                let Elements { payload, layout, how } = &**elements;
                let how = Fill { threads: Some(threads), ..how.clone() };
                fill(payload, &part.of(layout), &how, memory.bytes_mut())?;
            }
            From::Made(make) => make(part, memory.bytes_mut())?,
        }
        let address = plan.address_of(part);
        let size = self.ring.slot_bytes();
        let copies = memory.bytes_mut().chunks(size).enumerate();
        parallel::for_each(
            parallel::threads(len as u64, Some(threads)),
            copies,
            || (),
            |(), (number, bytes)| {
                let mut slot = self.ring.take(cancel)?;
                slot.bytes_mut().get_mut(..bytes.len()).ok_or_else(too_long)?.copy_from_slice(bytes);
                let address = address.saturating_add((number as u64).saturating_mul(size as u64));
                slot.copy_to_device(&plan.place, address, bytes.len(), self.stream)
            },
        )
    }
}

impl Plan {
    fn len(&self, part: &Part) -> usize {
        usize::try_from(part.numel.saturating_mul(self.itemsize)).unwrap_or(usize::MAX)
    }

    fn address_of(&self, part: &Part) -> u64 {
        (self.place.address().addr().get() as u64).saturating_add(part.start.saturating_mul(self.itemsize))
    }
}

fn too_long() -> Error {
    Error::new(Code::InternalError, "a part is longer than a slot")
}
