//! The pinned ring: slots of page-locked host memory that are filled, copied to the device, and filled again once the copy is done.
//!
//! It is allocated once per process and device and shared by all uploads to it. All of it fits the last-level cache, so that the
//! copy engine reads what a worker has just written from the cache, not from memory. A slot has one holder at a time; the
//! next holder waits for the event recorded behind its last copy.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::device::{Device, Event, Stream};
use super::driver::{Driver, Pinned};
use super::memory::DeviceMemory;
use super::numa::Cpus;
use super::workers::Workers;
use crate::error::{Code, Error, Result, bail};
use crate::parallel::{self, Cancel, lock};
use crate::sink::{Array, HostBuffer, os};

/// The size of a slot, if enough slots of this size fit the cache; otherwise a half, a quarter or an eighth of it.
const SLOT_BYTES_MAX: usize = 2 << 20;
const SLOT_BYTES_MIN: usize = 256 << 10;

/// Slots for each worker: one being filled, one being copied, one spare.
const SLOTS_PER_WORKER: usize = 3;

/// More workers do not help: these fill slots as fast as the link copies them, at about 5 GB/s each.
const WORKERS_MAX: usize = 12;

/// The smallest ring, however small the cache is.
const RING_MIN_BYTES: usize = 8 << 20;

/// The assumed size of the last-level cache if the system does not tell.
const DEFAULT_CACHE_BYTES: usize = 32 << 20;

/// Buffers of at least this size have pages of their own.
const OWN_PAGES_MIN_BYTES: usize = 2 << 20;

/// How often a thread that waits for a slot checks whether it was cancelled.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes that are copied to measure the link, per round.
const MEASURED_COPY_BYTES: usize = 64 << 20;

/// Pinned slots, and streams and events for the sessions that use them.
#[derive(Debug)]
pub(crate) struct Ring {
    device: &'static Device,
    slot_bytes: usize,
    state: Mutex<State>,
    slot_returned: Condvar,
    /// Where the workers run; the ring is in the memory near them.
    cpus: Cpus,
    workers: Workers,
    /// Bytes per second of H2D copies, once measured.
    h2d_rate: Mutex<Option<f64>>,
}

/// The rings, by the ordinals of their devices.
static RINGS: Mutex<BTreeMap<u32, &'static Ring>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
struct State {
    /// Free slots, in the order in which their copies began.
    slots: VecDeque<SlotMemory>,
    /// The number of all slots, held ones included.
    count: usize,
    streams: Vec<Stream>,
    events: Vec<Event>,
}

#[derive(Debug)]
struct SlotMemory {
    memory: Pinned,
    event: Event,
    /// Whether the copy may still be in flight, so that the event has to be waited for.
    in_flight: bool,
}

/// A held slot. It returns to the ring when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot<'r> {
    ring: &'r Ring,
    /// `Some` until the drop.
    slot_memory: Option<SlotMemory>,
}

/// The size of a ring: bytes of a slot, and the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingSize {
    slot: usize,
    count: usize,
}

/// The number of an upload's workers if the caller does not set it.
pub(super) fn default_workers(cores: usize) -> usize {
    // The others are the caller's, the driver's, and the kernel's.
    (cores * 3 / 4).clamp(1, WORKERS_MAX)
}

impl RingSize {
    /// The size in `RUSTLOAD_RING` (bytes of a slot, `x`, number of slots), or one that fits this machine.
    fn now(cores: usize) -> Result<RingSize> {
        match std::env::var("RUSTLOAD_RING") {
            Ok(text) if !text.trim().is_empty() => RingSize::parse(&text).ok_or_else(|| {
                let text =
                    format!("RUSTLOAD_RING={text}: expected the bytes of a slot, x, and the number of slots");
                Error::new(Code::Value, text)
                    .note("for example RUSTLOAD_RING=1048576x16; slots are multiples of 4096 bytes")
            }),
            _ => Ok(RingSize::fitting_cache(
                os::last_level_cache_bytes().unwrap_or(DEFAULT_CACHE_BYTES),
                default_workers(cores),
            )),
        }
    }

    fn parse(text: &str) -> Option<RingSize> {
        let (slot, count) = text.split_once('x')?;
        let (slot, count) = (slot.trim().parse().ok()?, count.trim().parse().ok()?);
        let fits =
            slot >= 4096 && slot % 4096 == 0 && count >= 1 && usize::checked_mul(slot, count)? <= 4 << 30;
        fits.then_some(RingSize { slot, count })
    }

    fn fitting_cache(cache_bytes: usize, workers: usize) -> RingSize {
        // What the workers read goes through the same cache.
        let budget = (cache_bytes / 4 * 3).max(RING_MIN_BYTES);
        let count = workers * SLOTS_PER_WORKER;
        let mut slot = SLOT_BYTES_MAX;
        while slot > SLOT_BYTES_MIN && slot * count > budget {
            slot /= 2;
        }
        RingSize { slot, count: count.max(RING_MIN_BYTES / slot) }
    }
}

impl Ring {
    /// The ring for uploads to this device, allocated at the first call.
    pub(crate) fn of(device: &'static Device) -> Result<&'static Ring> {
        // Before the lock, which in a forked child may stay locked by a thread of the parent.
        device.check_process()?;
        let mut rings = lock(&RINGS);
        if let Some(ring) = rings.get(&device.ordinal()) {
            return Ok(ring);
        }
        let ring: &Ring = Box::leak(Box::new(Ring::new(device)?));
        rings.insert(device.ordinal(), ring);
        Ok(ring)
    }

    /// The rings that this process has allocated. None in a forked child, which takes no lock here.
    pub(crate) fn all() -> Vec<&'static Ring> {
        let is_started = Driver::is_started_by_this_process();
        if is_started { lock(&RINGS).values().copied().collect() } else { Vec::new() }
    }

    fn new(device: &'static Device) -> Result<Ring> {
        let cpus = Cpus::of_gpu(device.pci_address().as_deref())?;
        let size = RingSize::now(cpus.count(parallel::cores()))?;
        let events = (0..size.count).map(|_| device.event()).collect::<Result<Vec<_>>>()?;
        // Memory of this size lies on pages of its own, and on huge pages, which are pinned much faster. Pinning touches them.
        let memory = cpus.run(|| {
            let mut memory = HostBuffer::new((size.slot * size.count).max(OWN_PAGES_MIN_BYTES) as u64)?;
            // Refused where the GPU may not read the host's memory (confidential computing), for example. Slots that are not pinned
            // are slower: the driver copies them to memory of its own first.
            device.with_context(|driver| Ok(driver.register_host_memory(&mut memory).is_ok()))?;
            Ok(memory)
        })?;
        // Only now, as it never returns to the pool from here on.
        memory.exclude_from_fork();
        let memory = Box::leak(Box::new(memory)).bytes_mut();
        let slots = memory.chunks_exact_mut(size.slot).zip(events);
        let slots =
            slots.map(|(memory, event)| SlotMemory { memory: Pinned::new(memory), event, in_flight: false });
        let slots: VecDeque<SlotMemory> = slots.collect();
        let state = State { count: slots.len(), slots, streams: Vec::new(), events: Vec::new() };
        Ok(Ring {
            device,
            slot_bytes: size.slot,
            state: Mutex::new(state),
            slot_returned: Condvar::new(),
            workers: Workers::new(device, cpus.clone()),
            cpus,
            h2d_rate: Mutex::new(None),
        })
    }

    /// The device that it copies to.
    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// The bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The threads that fill slots.
    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// The number of threads that fill slots: `requested`, or as many as keep the link busy; if they cast too, one per core near the
    /// device. At most one per slot.
    pub(crate) fn worker_count(&self, requested: Option<usize>, casts: bool) -> usize {
        let cores = self.cpus.count(parallel::cores());
        let count = requested.unwrap_or_else(|| if casts { cores } else { default_workers(cores) });
        count.clamp(1, lock(&self.state).count.max(1))
    }

    /// Takes the slot whose copy began first, once that copy is done. Waits for a slot; fails if `cancel` is cancelled, the device
    /// reports an error, or no slot is left.
    pub(crate) fn take(&self, cancel: &Cancel) -> Result<Slot<'_>> {
        let mut state = lock(&self.state);
        let mut slot_memory = loop {
            cancel.check()?;
            if let Some(slot_memory) = state.slots.pop_front() {
                break slot_memory;
            }
            if state.count == 0 {
                bail!(Code::Device, "no pinned slot is left: earlier errors of the GPU took them");
            }
            state = self
                .slot_returned
                .wait_timeout(state, CANCEL_CHECK_INTERVAL)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        drop(state);
        let copied = if slot_memory.in_flight { slot_memory.event.wait(None, cancel) } else { Ok(true) };
        slot_memory.in_flight = !copied.as_ref().is_ok_and(|&is_done| is_done);
        let slot = Slot { ring: self, slot_memory: Some(slot_memory) };
        copied.map(|_| slot)
    }

    /// An idle stream, or a new one, to be returned by [`Ring::return_stream`]: its next user's work runs after the work in it.
    pub(crate) fn stream(&self) -> Result<Stream> {
        let idle = lock(&self.state).streams.pop();
        idle.map_or_else(|| self.device.stream(), Ok)
    }

    /// Keeps a stream for reuse.
    pub(crate) fn return_stream(&self, stream: Stream) {
        lock(&self.state).streams.push(stream);
    }

    /// An event, to be returned by [`Ring::return_event`].
    pub(crate) fn event(&self) -> Result<Event> {
        let idle = lock(&self.state).events.pop();
        idle.map_or_else(|| self.device.event(), Ok)
    }

    /// Keeps an event for reuse. Streams that wait for it already are not affected.
    pub(crate) fn return_event(&self, event: Event) {
        lock(&self.state).events.push(event);
    }

    /// Bytes per second of H2D copies from the slots, measured once.
    pub(crate) fn h2d_rate(&self) -> Result<f64> {
        let mut rate = lock(&self.h2d_rate);
        if let Some(rate) = *rate {
            return Ok(rate);
        }
        Ok(*rate.insert(self.measure_h2d_rate()?))
    }

    /// The best of three rounds.
    fn measure_h2d_rate(&self) -> Result<f64> {
        let target = Array::on_gpu(Arc::new(DeviceMemory::new(self.device, self.slot_bytes as u64)?));
        let address = target.address().addr().get() as u64;
        let stream = self.stream()?;
        let copies = MEASURED_COPY_BYTES.div_ceil(self.slot_bytes);
        let mut best = Duration::MAX;
        let mut measured = Ok(());
        for _ in 0..3 {
            let start = Instant::now();
            measured = (0..copies).try_for_each(|_| {
                self.take(&Cancel::new())?.copy_to_device(&target, address, self.slot_bytes, &stream)
            });
            // After an error too, since the target is freed below. Tried twice, as the first error may concern other work.
            measured = stream.synchronize().or_else(|_| stream.synchronize()).and(measured);
            if measured.is_err() {
                break;
            }
            best = best.min(start.elapsed());
        }
        self.return_stream(stream);
        measured.map(|()| (copies * self.slot_bytes) as f64 / best.as_secs_f64())
    }
}

fn slot_lost() -> Error {
    Error::new(Code::InternalError, "a slot is used after its end")
}

impl Slot<'_> {
    /// The bytes, to be overwritten; they hold what was copied last.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.slot_memory.as_mut().map(|slot_memory| slot_memory.memory.bytes_mut()).unwrap_or_default()
    }

    /// Enqueues the copy of the first `len` bytes to `address` in `stream`, and returns the slot to the ring. Fails unless the
    /// bytes at `address` lie in the memory of `destination`, which the caller keeps alive until the copy is done.
    pub(crate) fn copy_to_device(
        mut self,
        destination: &Array,
        address: u64,
        len: usize,
        stream: &Stream,
    ) -> Result<()> {
        if !destination.gpu_memory_contains(self.ring.device.ordinal(), address, len as u64) {
            bail!(Code::InternalError, "a copy would go past its destination");
        }
        let slot_memory = self.slot_memory.as_mut().ok_or_else(slot_lost)?;
        stream.memcpy_h2d_async(address, &slot_memory.memory, len)?;
        let recorded = stream.record_event(&slot_memory.event);
        slot_memory.in_flight = recorded.is_ok();
        if recorded.is_err() && stream.synchronize().is_err() {
            // It is not known when the copy is done, so the slot must not be written to again.
            self.slot_memory = None;
            let mut state = lock(&self.ring.state);
            state.count = state.count.saturating_sub(1);
        }
        recorded
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let Some(slot_memory) = self.slot_memory.take() else { return };
        let mut state = lock(&self.ring.state);
        if slot_memory.in_flight {
            state.slots.push_back(slot_memory);
        } else {
            state.slots.push_front(slot_memory);
        }
        drop(state);
        self.ring.slot_returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_fits_the_cache_and_has_three_slots_per_worker_whatever_the_cache() {
        let of = |cache_mib: usize, workers| {
            let RingSize { slot, count } = RingSize::fitting_cache(cache_mib << 20, workers);
            (slot >> 10, count)
        };
        assert_eq!(of(105, 12), (2048, 36));
        assert_eq!(of(64, 12), (1024, 36));
        assert_eq!(of(32, 12), (512, 36));
        assert_eq!(of(32, 6), (1024, 18));
        assert_eq!(of(32, 1), (2048, 4));
        assert_eq!(of(1, 12), (256, 36));
        assert_eq!(of(1, 200), (256, 600));
        assert_eq!([1, 2, 5, 16, 200].map(default_workers), [1, 1, 3, 12, 12]);
    }

    #[test]
    fn the_size_can_be_set_by_the_environment() {
        let of = |text| RingSize::parse(text).map(|size| (size.slot, size.count));
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
