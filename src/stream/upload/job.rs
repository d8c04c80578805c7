//! The jobs of an upload's workers: fill slots of the ring, and enqueue the copy of each as soon as it is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bytes::Scratch;
use crate::error::{Code, Error, Result};
use crate::parallel::{self, Cancel};
use crate::sink::cuda::{Ring, Stream};
use crate::sink::{Array, HostBuffer};
use crate::stream::batch::{Task, fill_all};
use crate::stream::cut::{ResultCutter, ResultSlice};
use crate::stream::plan::Piece;
use crate::stream::read::{Elements, fill_piece, scratch};
use crate::stream::result::ResultData;

/// The host memory in use beside the ring, in bytes.
#[derive(Debug, Default)]
pub(super) struct HostBudget {
    /// Inflated sources.
    sources: AtomicU64,
    /// Bands.
    bands: AtomicU64,
}

/// Reserved bytes of the window, released on drop.
#[derive(Debug)]
pub(super) struct HostReservation {
    bytes: u64,
    budget: Arc<HostBudget>,
    is_band: bool,
}

impl HostBudget {
    /// Whether so many bytes more fit the window. A single source or band always may be made: an inflated source would wait for its own
    /// bands otherwise.
    pub(super) fn fits(&self, bytes: u64, window: u64, is_band: bool) -> bool {
        let reserved = self.sources.load(Ordering::SeqCst).saturating_add(self.bands.load(Ordering::SeqCst));
        bytes == 0
            || self.counter(is_band).load(Ordering::SeqCst) == 0
            || reserved.saturating_add(bytes) <= window
    }

    fn counter(&self, is_band: bool) -> &AtomicU64 {
        if is_band { &self.bands } else { &self.sources }
    }

    pub(super) fn reserve(self: &Arc<HostBudget>, bytes: u64, is_band: bool) -> Option<HostReservation> {
        (bytes > 0).then(|| {
            self.counter(is_band).fetch_add(bytes, Ordering::SeqCst);
            HostReservation { bytes, budget: self.clone(), is_band }
        })
    }
}

impl Drop for HostReservation {
    fn drop(&mut self) {
        self.budget.counter(self.is_band).fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// A result that is made in slices.
pub(super) struct CutResult {
    pub(super) data: ResultData,
    pub(super) cutter: ResultCutter,
    pub(super) itemsize: u64,
    /// Its memory on the device.
    pub(super) destination: Array,
    pub(super) _reservation: Option<HostReservation>,
}

/// A small result in a slot that it shares with neighbours.
pub(super) struct PackedResult {
    pub(super) item: usize,
    pub(super) elements: Elements,
    /// Its offset in the slot.
    pub(super) offset: usize,
    pub(super) len: usize,
}

pub(super) enum Job {
    /// Whole results that are neighbours on the device, with one copy.
    Pack { parts: Vec<PackedResult>, destination: Array, address: u64, len: usize },
    /// Some slices of a result, each in a slot.
    Slots { item: usize, result: Arc<CutResult>, first: u64, count: u64 },
    /// A slice of a result that is made in host memory of its own first.
    Band { item: usize, result: Arc<CutResult>, number: u64, threads: usize },
}

/// A worker's state.
pub(super) struct Worker<'w> {
    ring: &'w Ring,
    scratch: Scratch,
}

impl Job {
    /// The host memory that it takes beside its slots, in bytes.
    pub(super) fn host_bytes(&self) -> u64 {
        match self {
            Job::Band { result, number, .. } => {
                result.cutter.slice(*number).numel.saturating_mul(result.itemsize)
            }
            Job::Pack { .. } | Job::Slots { .. } => 0,
        }
    }

    /// The index of its first result.
    pub(super) fn item(&self) -> usize {
        match self {
            Job::Pack { parts, .. } => parts.first().map_or(0, |packed| packed.item),
            Job::Slots { item, .. } | Job::Band { item, .. } => *item,
        }
    }
}

impl<'w> Worker<'w> {
    pub(super) fn new(ring: &'w Ring) -> Worker<'w> {
        Worker { ring, scratch: scratch() }
    }

    /// Runs a job; its copies are enqueued in `stream`. An error comes with the index of the result that failed.
    pub(super) fn run(&mut self, job: Job, stream: &Stream, cancel: &Cancel) -> Result<(), (usize, Error)> {
        match job {
            Job::Pack { parts, destination, address, len } => {
                self.pack(parts, (&destination, address, len), stream, cancel)
            }
            Job::Slots { item, result, first, count } => {
                self.slots(&result, (first, count), stream, cancel).map_err(|error| (item, error))
            }
            Job::Band { item, result, number, threads } => self
                .band(&result, &result.cutter.slice(number), threads, stream, cancel)
                .map_err(|error| (item, error)),
        }
    }

    fn pack(
        &self,
        parts: Vec<PackedResult>,
        (destination, address, len): (&Array, u64, usize),
        stream: &Stream,
        cancel: &Cancel,
    ) -> Result<(), (usize, Error)> {
        let first_item = parts.first().map_or(0, |packed| packed.item);
        let items: Vec<usize> = parts.iter().map(|packed| packed.item).collect();
        let mut slot = self.ring.take(cancel).map_err(|error| (first_item, error))?;
        let mut rest = slot.bytes_mut().get_mut(..len).ok_or_else(|| (first_item, slot_overflow()))?;
        let mut tasks = Vec::with_capacity(parts.len());
        let mut end = 0;
        for PackedResult { item, elements, offset, len } in parts {
            let (gap, tail) =
                rest.split_at_mut_checked(offset - end).ok_or_else(|| (item, slot_overflow()))?;
            // Old bytes of the slot must not reach the device.
            gap.fill(0);
            let (out, tail) = tail.split_at_mut_checked(len).ok_or_else(|| (item, slot_overflow()))?;
            tasks.push(Task { elements, out });
            (rest, end) = (tail, offset + len);
        }
        let item_of = |task: usize| items.get(task).copied().unwrap_or(first_item);
        fill_all(tasks, Some(1)).map_err(|(task, error)| (item_of(task), error))?;
        slot.copy_to_device(destination, address, len, stream).map_err(|error| (first_item, error))
    }

    fn slots(
        &mut self,
        result: &CutResult,
        (first, count): (u64, u64),
        stream: &Stream,
        cancel: &Cancel,
    ) -> Result<()> {
        let reader = match &result.data {
            ResultData::Elements(elements) => Some(elements.read_mode().reader(&elements.payload.source)),
            ResultData::InSlices { .. } => None,
        };
        for number in first..first + count {
            let slice = result.cutter.slice(number);
            let len = result.len(&slice);
            let mut slot = self.ring.take(cancel)?;
            let out = slot.bytes_mut().get_mut(..len).ok_or_else(slot_overflow)?;
            match (&result.data, &reader) {
                (ResultData::Elements(elements), Some(reader)) => {
                    let piece = Piece::whole(&slice.layout_of(&elements.layout));
                    fill_piece(elements, &piece, reader, &mut self.scratch, out)?;
                }
                (data, _) => data.fill_slice(&slice, 1, out)?,
            }
            slot.copy_to_device(&result.destination, result.address_of(&slice), len, stream)?;
        }
        // Before the job is reported as done.
        match &result.data {
            ResultData::Elements(elements) => elements.payload.source.check_unchanged(),
            ResultData::InSlices { .. } => Ok(()),
        }
    }

    /// Makes a slice in host memory of its own, on all threads, and copies it from there into slots.
    fn band(
        &self,
        result: &CutResult,
        slice: &ResultSlice,
        threads: usize,
        stream: &Stream,
        cancel: &Cancel,
    ) -> Result<()> {
        let len = result.len(slice);
        let mut memory = HostBuffer::unfilled(len as u64)?;
        result.data.fill_slice(slice, threads, memory.bytes_mut())?;
        let address = result.address_of(slice);
        let size = self.ring.slot_bytes();
        let copies = memory.bytes_mut().chunks(size).enumerate();
        parallel::for_each(
            parallel::threads(len as u64, Some(threads)),
            copies,
            || (),
            |(), (number, bytes)| {
                let mut slot = self.ring.take(cancel)?;
                slot.bytes_mut().get_mut(..bytes.len()).ok_or_else(slot_overflow)?.copy_from_slice(bytes);
                let address = address.saturating_add((number as u64).saturating_mul(size as u64));
                slot.copy_to_device(&result.destination, address, bytes.len(), stream)
            },
        )
    }
}

impl CutResult {
    fn len(&self, slice: &ResultSlice) -> usize {
        usize::try_from(slice.numel.saturating_mul(self.itemsize)).unwrap_or(usize::MAX)
    }

    fn address_of(&self, slice: &ResultSlice) -> u64 {
        (self.destination.address().addr().get() as u64)
            .saturating_add(slice.start.saturating_mul(self.itemsize))
    }
}

fn slot_overflow() -> Error {
    Error::new(Code::InternalError, "a slice is longer than a slot")
}
