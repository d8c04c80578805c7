//! A GPU: its primary context, and streams and events in it.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::driver::{CallerStream, CaptureMode, Context, Driver, EventHandle, Pinned, StreamHandle};
use crate::error::{Code, Error, Result, bail, error};
use crate::memory::Memory;
use crate::num::to_u64;
use crate::parallel::{Cancel, lock};

/// How long a thread that waits for an event queries it again and again: about as long as the copy of a slot takes.
const EVENT_SPIN_TIME: Duration = Duration::from_micros(30);

/// How long it spins between these queries, each of which takes the driver's lock.
const EVENT_QUERY_INTERVAL: Duration = Duration::from_micros(1);

/// How long it sleeps between queries after that.
const EVENT_POLL_INTERVAL: Duration = Duration::from_micros(20);

thread_local! {
    /// The context that this thread, one of rustload's own, keeps current, in the relaxed capture mode.
    static KEPT_CONTEXT: Cell<Option<Context>> = const { Cell::new(None) };
}

/// The driver and its GPUs, found without creating a context.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Info {
    /// Why no GPU can be used; `None` if one can.
    pub reason: Option<String>,
    /// The driver library's name as it was opened.
    pub library: Option<String>,
    /// The newest version of CUDA that the driver supports, or its own of HIP: major and minor.
    pub version: Option<(i32, i32)>,
    /// The number of GPUs.
    pub devices: i32,
}

/// Describes the driver and its GPUs. Initializes the driver and creates no context.
pub fn info() -> Info {
    let mut info = Info::default();
    info.reason = fill_info(&mut info).err().map(|error| error.message().to_owned());
    info
}

fn fill_info(info: &mut Info) -> Result<()> {
    let driver = Driver::started()?;
    info.library = Some(driver.name().to_owned());
    info.version = Some(driver.version()?);
    info.devices = driver.device_count()?;
    match info.devices {
        0 => Err(error!(Code::Device, "the {} driver finds no GPU", driver.api.name())),
        _ => Ok(()),
    }
}

/// A GPU with its primary context. It lives as long as the process.
#[derive(Debug)]
pub struct Device {
    driver: &'static Driver,
    ordinal: u32,
    context: Context,
}

static DEVICES: Mutex<BTreeMap<u32, &'static Device>> = Mutex::new(BTreeMap::new());

impl Device {
    /// The GPU with this ordinal, as the driver numbers them in this process. Fails if there is none.
    pub fn of(ordinal: u32) -> Result<&'static Device> {
        // Before the lock, which in a forked child may stay locked by a thread of the parent.
        let driver = Driver::started()?;
        let mut devices = lock(&DEVICES);
        if let Some(device) = devices.get(&ordinal) {
            return Ok(device);
        }
        let count = driver.device_count()?;
        let Some(number) = i32::try_from(ordinal).ok().filter(|&number| number < count) else {
            bail!(Code::Device, "there is no CUDA device {ordinal}: there are {count}");
        };
        let context = driver.retain_primary_context(number)?;
        // Leaked: when the process ends, the driver may be unloaded before destructors run.
        let device: &Device = Box::leak(Box::new(Device { driver, ordinal, context }));
        devices.insert(ordinal, device);
        Ok(device)
    }

    /// The ordinal in this process.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its PCI address; `None` if the driver does not tell.
    pub(super) fn pci_address(&self) -> Option<String> {
        self.driver.pci_address(i32::try_from(self.ordinal).ok()?).ok()
    }

    /// Fails in a forked child of the process that initialized the driver.
    pub fn check_process(&self) -> Result<()> {
        Driver::started().map(|_| ())
    }

    /// Whether this process may use the device: false in a forked child.
    pub(crate) fn is_usable_in_this_process(&self) -> bool {
        self.driver.is_usable_in_this_process()
    }

    /// Runs `work` with this device's context current and apart from graph captures, then restores the thread's previous state.
    pub(super) fn with_context<T>(&self, work: impl FnOnce(&Driver) -> Result<T>) -> Result<T> {
        let _restore = self.enter()?;
        work(self.driver)
    }

    /// As [`Device::with_context`], to destroy something: making the context current is tried twice, and errors are ignored.
    pub(super) fn with_context_best_effort(&self, work: impl FnOnce(&Driver) -> Result<()>) {
        if self.is_usable_in_this_process() {
            // Called from destructors, which cannot report an error of the driver.
            let _ = self.enter().or_else(|_| self.enter()).and_then(|_restore| work(self.driver));
        }
    }

    /// Makes the context current on the calling thread, and its calls harmless for graphs that other code captures, until the guard
    /// is dropped.
    fn enter(&self) -> Result<Option<RestoreThread>> {
        let driver = Driver::started()?;
        // The thread may have run code of the caller's, such as a source's, which may have made another context current.
        if KEPT_CONTEXT.get() == Some(self.context) && driver.current_context()? == self.context {
            return Ok(None);
        }
        let capture_mode = driver.exchange_capture_mode(CaptureMode::RELAXED)?;
        let mut restore = RestoreThread { driver, context: None, capture_mode };
        let context = driver.current_context()?;
        if context != self.context {
            driver.set_current_context(self.context)?;
            restore.context = Some(context);
        }
        Ok(Some(restore))
    }

    /// Makes the context current on the calling thread for good, and its calls harmless for graph captures: for rustload's own
    /// threads. Without it, or after an error, each call does so for itself.
    pub(super) fn make_current(&self) -> Result<()> {
        let driver = Driver::started()?;
        driver.exchange_capture_mode(CaptureMode::RELAXED)?;
        driver.set_current_context(self.context)?;
        KEPT_CONTEXT.set(Some(self.context));
        Ok(())
    }

    /// The free bytes of its memory. Where that is the machine's, the driver counts page cache as used, which the system drops for
    /// those who need memory.
    pub fn free_memory(&self) -> Result<u64> {
        let free = to_u64(self.with_context(|driver| driver.free_memory())?);
        let ordinal = i32::try_from(self.ordinal).unwrap_or_default();
        let is_integrated = self.driver.is_integrated(ordinal).unwrap_or(false);
        Ok(if is_integrated { free.max(Memory::now().available) } else { free })
    }

    /// Creates a stream that does not synchronize with the default stream.
    pub(crate) fn stream(&'static self) -> Result<Stream> {
        let handle = self.with_context(Driver::create_stream)?;
        Ok(Stream { device: self, handle })
    }

    /// Creates an event.
    pub(crate) fn event(&'static self) -> Result<Event> {
        let handle = self.with_context(Driver::create_event)?;
        Ok(Event { device: self, handle })
    }

    /// Records `event` in a caller's stream, behind all work that is in it now. Fails if the stream captures a CUDA graph.
    pub(crate) fn record_event(&self, stream: CallerStream, event: &Event) -> Result<()> {
        let stream = StreamHandle::from_caller(stream);
        self.with_context(|driver| {
            if driver.is_capturing(&stream)? {
                return Err(Error::new(
                    Code::Device,
                    "the stream records a CUDA graph: nothing can be uploaded into one",
                )
                .note("load before the graph is captured"));
            }
            driver.record_event(&event.handle, &stream)
        })
    }

    /// Makes later work in a caller's stream wait for `event`.
    pub(crate) fn wait_event(&self, stream: CallerStream, event: &Event) -> Result<()> {
        self.with_context(|driver| {
            driver.stream_wait_event(&StreamHandle::from_caller(stream), &event.handle)
        })
    }
}

/// Restores a thread's previous context and capture mode when it is dropped.
struct RestoreThread {
    driver: &'static Driver,
    /// `None` if the context stays.
    context: Option<Context>,
    capture_mode: CaptureMode,
}

impl Drop for RestoreThread {
    fn drop(&mut self) {
        // Both were in use a moment ago. A destructor cannot report an error.
        if let Some(context) = self.context {
            let _ = self.driver.set_current_context(context);
        }
        if self.capture_mode != CaptureMode::RELAXED {
            let _ = self.driver.exchange_capture_mode(self.capture_mode);
        }
    }
}

/// A CUDA stream for copies, destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Stream {
    device: &'static Device,
    handle: StreamHandle,
}

/// A CUDA event, destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Event {
    device: &'static Device,
    handle: EventHandle,
}

impl Stream {
    /// Makes work that is enqueued in this stream from now on wait for `event`.
    pub(crate) fn wait_event(&self, event: &Event) -> Result<()> {
        self.device.with_context(|driver| driver.stream_wait_event(&self.handle, &event.handle))
    }

    /// Records `event` behind all work that is in this stream now.
    pub(crate) fn record_event(&self, event: &Event) -> Result<()> {
        self.device.with_context(|driver| driver.record_event(&event.handle, &self.handle))
    }

    /// Waits until all work in this stream is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.device.with_context(|driver| driver.synchronize_stream(&self.handle))
    }

    /// Enqueues an H2D copy of the first `len` bytes to a device address.
    pub(super) fn memcpy_h2d_async(&self, to: u64, from: &Pinned, len: usize) -> Result<()> {
        self.device.with_context(|driver| driver.memcpy_h2d_async(to, from, len, &self.handle))
    }
}

impl Event {
    /// Whether the work that the event was recorded behind is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.device.with_context(|driver| driver.is_event_done(&self.handle))
    }

    /// Waits until the work that the event was recorded behind is done, at most until `deadline`; whether it is done. Fails if
    /// `cancel` is cancelled.
    pub(crate) fn wait(&self, deadline: Option<Instant>, cancel: &Cancel) -> Result<bool> {
        if self.is_done()? {
            return Ok(true);
        }
        let start = Instant::now();
        loop {
            cancel.check()?;
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(false);
            }
            if now.duration_since(start) < EVENT_SPIN_TIME {
                while now.elapsed() < EVENT_QUERY_INTERVAL {
                    std::hint::spin_loop();
                }
            } else {
                thread::sleep(EVENT_POLL_INTERVAL);
            }
            if self.is_done()? {
                return Ok(true);
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let handle = mem::take(&mut self.handle);
        self.device.with_context_best_effort(|driver| driver.destroy_stream(handle));
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = mem::take(&mut self.handle);
        self.device.with_context_best_effort(|driver| driver.destroy_event(handle));
    }
}
