//! A device: its context, and streams and events in it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::driver::{Allocation, CallerStream, Context, Driver, EventHandle, Pinned, StreamHandle};
use super::ring::Ring;
use crate::error::{Code, Error, Result};
use crate::sink::HostBuffer;

/// What there is, found without a context.
#[derive(Clone, Debug, Default)]
pub struct Info {
    /// Why there is no GPU to be used; `None` where there is one.
    pub reason: Option<String>,
    /// The driver's library as it was opened.
    pub library: Option<String>,
    /// The newest CUDA that the driver knows: major and minor.
    pub version: Option<(i32, i32)>,
    /// The number of GPUs.
    pub devices: i32,
}

/// What there is. Starts the driver and makes no context.
pub fn info() -> Info {
    let mut found = Info::default();
    if let Err(error) = look(&mut found) {
        found.reason = Some(error.message().to_owned());
    }
    found
}

fn look(found: &mut Info) -> Result<()> {
    let driver = Driver::started()?;
    found.library = Some(driver.name().to_owned());
    let version = driver.version()?;
    found.version = Some((version / 1000, version % 1000 / 10));
    found.devices = driver.device_count()?;
    if found.devices == 0 { Err(Error::new(Code::Device, "the CUDA driver finds no GPU")) } else { Ok(()) }
}

/// A GPU with its primary context, there as long as the process is.
#[derive(Debug)]
pub struct Device {
    driver: &'static Driver,
    ordinal: u32,
    context: Context,
    /// Made at the first upload.
    ring: Mutex<Option<&'static Ring>>,
    /// Bytes per second, once measured.
    rate: Mutex<Option<f64>>,
}

static DEVICES: Mutex<BTreeMap<u32, &'static Device>> = Mutex::new(BTreeMap::new());

impl Device {
    /// The GPU of this ordinal, as the driver counts in this process.
    pub fn of(ordinal: u32) -> Result<&'static Device> {
        // Before the lock, which a thread of a forked child's parent may have held.
        let driver = Driver::started()?;
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.get(&ordinal) {
            return Ok(device);
        }
        let count = driver.device_count()?;
        let Some(number) = i32::try_from(ordinal).ok().filter(|&number| number < count) else {
            return Err(Error::new(
                Code::Device,
                format!("there is no CUDA device {ordinal}: there are {count}"),
            ));
        };
        let context = driver.context(number)?;
        let (ring, rate) = (Mutex::new(None), Mutex::new(None));
        // For the rest of the process: at its end the driver may be gone before us.
        let device: &Device = Box::leak(Box::new(Device { driver, ordinal, context, ring, rate }));
        devices.insert(ordinal, device);
        Ok(device)
    }

    /// The ordinal in this process.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Fails in a child of the process that started the driver.
    pub fn check_process(&self) -> Result<()> {
        Driver::started().map(|_| ())
    }

    /// Whether this process may use it.
    pub(crate) fn is_own(&self) -> bool {
        self.driver.is_own()
    }

    /// The pinned ring for uploads to it, made at the first call.
    pub(crate) fn ring(&'static self) -> Result<&'static Ring> {
        self.check_process()?;
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = *ring {
            return Ok(ring);
        }
        let made: &Ring = Box::leak(Box::new(Ring::new(self)?));
        Ok(ring.insert(made))
    }

    /// Bytes per second of copies out of the ring, measured once.
    pub fn rate(&'static self) -> Result<f64> {
        let ring = self.ring()?;
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rate) = *rate {
            return Ok(rate);
        }
        Ok(*rate.insert(ring.measure()?))
    }

    /// Runs `work` in this device's context and gives the thread back the one it had.
    pub(super) fn within<T>(&self, work: impl FnOnce(&Driver) -> Result<T>) -> Result<T> {
        let _back = self.borrow_thread()?;
        work(self.driver)
    }

    /// As [`Device::within`], to destroy something: what keeps it from being tried is tried again.
    fn at_last(&self, work: impl FnOnce(&Driver) -> Result<()>) {
        if self.is_own() {
            // Where the driver refuses to destroy, nobody can be told.
            let _ =
                self.borrow_thread().or_else(|_| self.borrow_thread()).and_then(|_back| work(self.driver));
        }
    }

    /// Makes the context the calling thread's until the guard is dropped; none where it is already.
    fn borrow_thread(&self) -> Result<Option<Back>> {
        let driver = Driver::started()?;
        let before = driver.current()?;
        if before == self.context {
            return Ok(None);
        }
        driver.set_current(self.context)?;
        Ok(Some(Back { driver, before }))
    }

    /// Makes the context the calling thread's, for a thread of our own.
    pub(crate) fn enter(&self) -> Result<()> {
        Driver::started()?.set_current(self.context)
    }

    pub(super) fn allocate(&self, nbytes: usize) -> Result<Allocation> {
        self.within(|driver| driver.allocate(nbytes))
    }

    pub(super) fn free(&self, memory: Allocation) {
        self.at_last(|driver| driver.free(memory));
    }

    pub(super) fn copy_out(&self, to: &mut [u8], from: u64) -> Result<()> {
        self.within(|driver| driver.copy_out(to, from))
    }

    pub(super) fn register(&self, memory: &mut HostBuffer) -> Result<()> {
        self.within(|driver| driver.register(memory))
    }

    /// A stream that waits for no other.
    pub(crate) fn stream(&'static self) -> Result<Stream> {
        let handle = self.within(Driver::create_stream)?;
        Ok(Stream { device: self, handle: Some(handle) })
    }

    /// An event.
    pub(crate) fn event(&'static self) -> Result<Event> {
        let handle = self.within(Driver::create_event)?;
        Ok(Event { device: self, handle: Some(handle) })
    }

    /// Marks, by `event`, all that a caller's stream has now. A stream that records a graph is refused.
    pub(crate) fn mark(&self, stream: CallerStream, event: &Event) -> Result<()> {
        let stream = StreamHandle::named(stream);
        self.within(|driver| {
            if driver.is_capturing(&stream)? {
                return Err(Error::new(
                    Code::Device,
                    "the stream records a CUDA graph: nothing can be uploaded into one",
                )
                .note("load before the graph is captured"));
            }
            driver.record(event.handle()?, &stream)
        })
    }

    /// Makes what comes after in a caller's stream wait for what `event` marks.
    pub(crate) fn hold(&self, stream: CallerStream, event: &Event) -> Result<()> {
        self.within(|driver| driver.wait(&StreamHandle::named(stream), event.handle()?))
    }
}

/// Gives a thread back its context.
struct Back {
    driver: &'static Driver,
    before: Context,
}

impl Drop for Back {
    fn drop(&mut self) {
        // One that was current a moment ago; where it is refused, there is nobody to tell.
        let _ = self.driver.set_current(self.before);
    }
}

/// A queue of copies, destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Stream {
    device: &'static Device,
    /// Until the drop.
    handle: Option<StreamHandle>,
}

/// A mark in a stream, destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Event {
    device: &'static Device,
    /// Until the drop.
    handle: Option<EventHandle>,
}

fn gone() -> Error {
    Error::new(Code::InternalError, "a stream or event is used after its end")
}

impl Stream {
    fn handle(&self) -> Result<&StreamHandle> {
        self.handle.as_ref().ok_or_else(gone)
    }

    /// Makes what is put in it from now on wait for what `event` marks.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        self.device.within(|driver| driver.wait(self.handle()?, event.handle()?))
    }

    /// Marks what is in it now.
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        self.device.within(|driver| driver.record(event.handle()?, self.handle()?))
    }

    /// Waits until all that is in it is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.device.within(|driver| driver.synchronize(self.handle()?))
    }

    /// Puts a copy of the first `len` bytes to a device's address into it.
    pub(super) fn copy(&self, to: u64, from: &Pinned, len: usize) -> Result<()> {
        self.device.within(|driver| driver.copy_in(to, from, len, self.handle()?))
    }
}

impl Event {
    fn handle(&self) -> Result<&EventHandle> {
        self.handle.as_ref().ok_or_else(gone)
    }

    /// Whether what it marks is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.device.within(|driver| driver.is_done(self.handle()?))
    }

    /// Waits until what it marks is done.
    pub(crate) fn finish(&self) -> Result<()> {
        self.device.within(|driver| driver.finish(self.handle()?))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.device.at_last(|driver| driver.destroy_stream(handle));
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.device.at_last(|driver| driver.destroy_event(handle));
        }
    }
}
