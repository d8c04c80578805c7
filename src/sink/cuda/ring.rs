//! The pinned ring: slots of host memory that are filled, copied to the device, and filled again once the copy is done.
//!
//! It is made once per process and device and shared by all uploads to it. All of it fits half of the last-level cache, so that
//! the copy engine finds in the cache what a worker has just written, and memory is left alone. A slot has one holder at a
//! time; whoever takes it next waits for the event behind its last copy.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::device::{Device, Event, Stream};
use super::driver::Pinned;
use super::memory::DeviceMemory;
use crate::error::{Code, Error, Result};
use crate::parallel::{self, Cancel};
use crate::sink::{Array, HostBuffer};

/// Bytes of a slot, the larger where the cache has room for it.
const SLOT: usize = 2 << 20;
const SMALL_SLOT: usize = 1 << 20;

/// Slots for each worker: one that is filled, one in flight, one to spare.
const PER_WORKER: usize = 3;

/// Workers beyond these fill no faster than the link takes.
const WORKERS: usize = 8;

/// The least that the ring has, however small the cache is.
const LEAST: usize = 8 << 20;

/// The cache where the system does not tell.
const CACHE: usize = 32 << 20;

/// The size from which on a buffer has pages of its own.
const PAGES: usize = 2 << 20;

/// How often somebody who waits for a slot looks whether to stop.
const TICK: Duration = Duration::from_millis(20);

/// Bytes that are copied to measure the link.
const MEASURED: usize = 64 << 20;

/// Pinned slots, and streams and events for those who use them.
#[derive(Debug)]
pub(crate) struct Ring {
    device: &'static Device,
    slot_bytes: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    /// Those that nobody holds, in the order in which their copies were begun.
    slots: VecDeque<Part>,
    /// All that there are.
    count: usize,
    streams: Vec<Stream>,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Part {
    memory: Pinned,
    event: Event,
    /// Whether the event may not have come yet.
    in_flight: bool,
}

/// A slot that is held. It goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot<'r> {
    ring: &'r Ring,
    /// Until the drop.
    part: Option<Part>,
}

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    slot: usize,
    count: usize,
}

/// The workers of an upload where nobody says how many.
pub(super) fn workers(cores: usize) -> usize {
    (cores / 2).clamp(1, WORKERS)
}

impl Size {
    /// What `RUSTLOAD_RING` says, as bytes of a slot `x` slots, or what fits the machine.
    fn now() -> Result<Size> {
        match std::env::var("RUSTLOAD_RING") {
            Ok(text) if !text.trim().is_empty() => Size::parse(&text).ok_or_else(|| {
                let text =
                    format!("RUSTLOAD_RING={text}: bytes of a slot, x, and the number of slots are wanted");
                Error::new(Code::Value, text)
                    .note("for example RUSTLOAD_RING=1048576x16; slots are multiples of 4096 bytes")
            }),
            _ => Ok(Size::fitting(cache().unwrap_or(CACHE), workers(parallel::cores()))),
        }
    }

    fn parse(text: &str) -> Option<Size> {
        let (slot, count) = text.split_once('x')?;
        let (slot, count) = (slot.trim().parse().ok()?, count.trim().parse().ok()?);
        let fits =
            slot >= 4096 && slot % 4096 == 0 && count >= 1 && usize::checked_mul(slot, count)? <= 4 << 30;
        fits.then_some(Size { slot, count })
    }

    fn fitting(cache: usize, workers: usize) -> Size {
        let room = (cache / 2).max(LEAST);
        let wanted = workers * PER_WORKER;
        let slot = if wanted * SLOT <= room { SLOT } else { SMALL_SLOT };
        // A small machine's ring is no smaller than the least; a large one's has no more than it needs.
        let count = wanted.max(LEAST / slot).min(room / slot);
        Size { slot, count }
    }
}

/// Bytes of the last-level cache, as Linux tells them ("32768K").
fn cache() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok()?;
    let kilobytes: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    kilobytes.checked_mul(1 << 10)
}

impl Ring {
    pub(super) fn new(device: &'static Device) -> Result<Ring> {
        let size = Size::now()?;
        let events = (0..size.count).map(|_| device.event()).collect::<Result<Vec<_>>>()?;
        // The last that can fail, so that nothing has to be unpinned. From this size on memory lies on huge pages, which are
        // pinned much faster, and on pages of its own in any case.
        let mut memory = HostBuffer::new((size.slot * size.count).max(PAGES) as u64)?;
        device.register(&mut memory)?;
        // Only now that it never goes back to others.
        memory.withhold();
        let memory = Box::leak(Box::new(memory)).bytes_mut();
        let slots = memory.chunks_exact_mut(size.slot).zip(events);
        let slots =
            slots.map(|(memory, event)| Part { memory: Pinned::new(memory), event, in_flight: false });
        let slots: VecDeque<Part> = slots.collect();
        let state = State { count: slots.len(), slots, streams: Vec::new(), events: Vec::new() };
        Ok(Ring { device, slot_bytes: size.slot, state: Mutex::new(state), returned: Condvar::new() })
    }

    /// The device that it copies to.
    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// How many threads to fill slots with: as many as are asked for, or that keep the link busy, and no more than there are slots.
    pub(crate) fn workers(&self, wanted: Option<usize>) -> usize {
        wanted.unwrap_or_else(|| workers(parallel::cores())).clamp(1, self.lock().count.max(1))
    }

    /// A slot to be filled: the one whose copy was begun first, once that is done.
    pub(crate) fn take(&self, cancel: &Cancel) -> Result<Slot<'_>> {
        let mut state = self.lock();
        let mut part = loop {
            cancel.check()?;
            if let Some(part) = state.slots.pop_front() {
                break part;
            }
            if state.count == 0 {
                return Err(Error::new(
                    Code::Device,
                    "the pinned memory was lost to earlier errors of the GPU",
                ));
            }
            state = self.returned.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        let landed = if part.in_flight { part.landed() } else { Ok(()) };
        let slot = Slot { ring: self, part: Some(part) };
        landed.map(|()| slot)
    }

    /// A stream, to be given back by [`Ring::return_stream`] once all in it is done or to be followed by others'.
    pub(crate) fn stream(&self) -> Result<Stream> {
        let found = self.lock().streams.pop();
        found.map_or_else(|| self.device.stream(), Ok)
    }

    /// Keeps a stream for the next who wants one.
    pub(crate) fn return_stream(&self, stream: Stream) {
        self.lock().streams.push(stream);
    }

    /// An event, to be given back by [`Ring::return_event`].
    pub(crate) fn event(&self) -> Result<Event> {
        let found = self.lock().events.pop();
        found.map_or_else(|| self.device.event(), Ok)
    }

    /// Keeps an event for the next who wants one. What waits for it already still does.
    pub(crate) fn return_event(&self, event: Event) {
        self.lock().events.push(event);
    }

    /// Bytes per second of copies out of the slots: the best of a few rounds.
    pub(super) fn measure(&self) -> Result<f64> {
        let target = Array::on_gpu(Arc::new(DeviceMemory::new(self.device, self.slot_bytes as u64)?));
        let stream = self.stream()?;
        let copies = MEASURED.div_ceil(self.slot_bytes);
        let mut best = Duration::MAX;
        let mut measured = Ok(());
        for _ in 0..3 {
            let start = Instant::now();
            measured = self.copy_all(copies, &target, &stream);
            // In any case: the target goes.
            measured = stream.synchronize().or_else(|_| stream.synchronize()).and(measured);
            if measured.is_err() {
                break;
            }
            best = best.min(start.elapsed());
        }
        self.return_stream(stream);
        measured.map(|()| (copies * self.slot_bytes) as f64 / best.as_secs_f64())
    }

    fn copy_all(&self, copies: usize, target: &Array, stream: &Stream) -> Result<()> {
        for _ in 0..copies {
            let address = target.address().addr().get() as u64;
            self.take(&Cancel::new())?.send(target, address, self.slot_bytes, stream)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Waits until its copy is done.
    fn landed(&mut self) -> Result<()> {
        if !self.event.is_done()? {
            self.event.finish()?;
        }
        self.in_flight = false;
        Ok(())
    }
}

fn lost() -> Error {
    Error::new(Code::InternalError, "a slot is used after its end")
}

impl Slot<'_> {
    /// The bytes, to be written to; they hold what was copied last.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.part.as_mut().map(|part| part.memory.bytes_mut()).unwrap_or_default()
    }

    /// Begins the copy of the first `len` bytes to `address`, which is in the memory that `place` keeps, and gives the slot back.
    /// Whoever holds `place` keeps it until the copy is done.
    pub(crate) fn send(mut self, place: &Array, address: u64, len: usize, stream: &Stream) -> Result<()> {
        if !place.gpu_memory_has(self.ring.device.ordinal(), address, len as u64) {
            return Err(Error::new(Code::InternalError, "a copy would go past its destination"));
        }
        let part = self.part.as_mut().ok_or_else(lost)?;
        stream.copy(address, &part.memory, len)?;
        let marked = stream.record(&part.event);
        part.in_flight = marked.is_ok();
        if marked.is_err() && stream.synchronize().is_err() {
            // Nobody knows when the copy is done, so nobody may write to it again.
            self.part = None;
            let mut state = self.ring.lock();
            state.count = state.count.saturating_sub(1);
        }
        marked
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let Some(part) = self.part.take() else { return };
        let mut state = self.ring.lock();
        if part.in_flight {
            state.slots.push_back(part);
        } else {
            state.slots.push_front(part);
        }
        drop(state);
        self.ring.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_stays_in_half_the_cache_and_has_three_slots_for_each_worker() {
        let of = |cache: usize, workers| {
            let Size { slot, count } = Size::fitting(cache << 20, workers);
            (slot >> 20, count)
        };
        assert_eq!(of(105, 8), (2, 24));
        assert_eq!(of(32, 8), (1, 16));
        assert_eq!(of(32, 1), (2, 4));
        assert_eq!(of(1, 8), (1, 8));
        assert_eq!([1, 2, 5, 16, 200].map(workers), [1, 1, 2, 8, 8]);
    }

    #[test]
    fn the_size_can_be_told() {
        let of = |text| Size::parse(text).map(|size| (size.slot, size.count));
        assert_eq!(of("1048576x24"), Some((1 << 20, 24)));
        assert_eq!(of(" 4096 x 3 "), Some((4096, 3)));
        for wrong in [
            "",
            "7",
            "4096",
            "4096x0",
            "4097x3",
            "0x3",
            "-4096x3",
            "4096x99999999999999999999",
            "4294967296x2",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
