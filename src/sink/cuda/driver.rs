//! The CUDA driver API: a safe function that returns a `Result` for each function of the table, which is found at run time.
//!
//! The driver is not linked, and its library is not opened before a GPU is asked for. `RUSTLOAD_LIBCUDA` names another library: that
//! of HIP (AMD) has the same functions, flags and codes under other names.
//!
//! **Protocol.** The library is never closed, so its functions stay callable. Streams, events, allocations and contexts are numbers
//! that the driver returned: only this file makes them, only a context's can be copied, and destroying one consumes it. An `unsafe`
//! promise covers a caller's stream and memory that other code allocated ([`CallerStream::from_raw`],
//! [`GpuMemory`](crate::sink::GpuMemory), DLPack); a copy writes only into such memory (`Slot::copy_to_device` checks). A copy to
//! the device reads memory that is never freed ([`Pinned`]), so a copy that is late, or whose end is not known, reads wrong bytes
//! at worst.
//!
//! A forked child has the parent's memory and none of the driver's threads: there every call fails before it reaches the driver.

mod table;

use std::error::Error as _;
use std::ffi::{CStr, c_int, c_uint};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;
use once_cell::race::OnceBox;

use table::Table;

use crate::error::{Code, Error, Result, bail};
use crate::sink::HostBuffer;
use crate::sink::dlpack;
use crate::sink::os::CUDA_LIBRARY;

/// `CU_STREAM_NON_BLOCKING`: the stream does not synchronize with the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`. Without `CU_EVENT_BLOCKING_SYNC`, which makes records, queries and waits of streams slower; the host
/// waits by queries.
const EVENT_DISABLE_TIMING: c_uint = 2;

const CU_DEVICE_ATTRIBUTE_INTEGRATED: c_int = 18;
const HIP_DEVICE_ATTRIBUTE_INTEGRATED: c_int = 16;

const CUDA_SUCCESS: c_int = 0;
const CUDA_ERROR_NOT_INITIALIZED: c_int = 3;
const CUDA_ERROR_NO_DEVICE: c_int = 100;
const CUDA_ERROR_NOT_READY: c_int = 600;

/// How a thread's calls interact with streams that capture a CUDA graph (`CUstreamCaptureMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CaptureMode(c_uint);

/// A device's primary context, which is never released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context(usize);

/// A CUDA stream; by default the driver's default one, which is what a destroyed one leaves.
#[derive(Debug, Default)]
pub(super) struct StreamHandle(usize);

/// A stream that the caller owns, such as torch's current stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerStream(usize);

/// A CUDA event; by default none, which the driver refuses.
#[derive(Debug, Default)]
pub(super) struct EventHandle(usize);

/// Device memory.
#[derive(Debug)]
pub(super) struct Allocation(u64);

/// Host memory that is pinned (page-locked), if the system allows it, and lives as long as the process.
#[derive(Debug)]
pub(super) struct Pinned {
    start: ptr::NonNull<u8>,
    len: usize,
}

// SAFETY: made of a unique reference to memory that is never freed, and used through `&mut self` and the driver alone.
unsafe impl Send for Pinned {}
// SAFETY: a shared `Pinned` only returns its size and is read by the driver.
unsafe impl Sync for Pinned {}

/// Whose functions a driver library has.
#[derive(Clone, Copy)]
pub(super) enum Api {
    Cuda,
    Hip,
}

impl Api {
    fn of(library: &Library) -> Api {
        // SAFETY: the function is not called by this type; see `Table`.
        let found = unsafe { library.get::<unsafe extern "C" fn(c_uint) -> c_int>("hipInit") };
        if found.is_ok() { Api::Hip } else { Api::Cuda }
    }

    pub(super) fn name(self) -> &'static str {
        self.choose("CUDA", "HIP")
    }

    fn choose<T>(self, cuda: T, hip: T) -> T {
        match self {
            Api::Cuda => cuda,
            Api::Hip => hip,
        }
    }
}

/// The loaded driver library.
pub(super) struct Driver {
    table: Table,
    pub(super) api: Api,
    /// The library's name as it was opened.
    name: String,
    /// The process that called `cuInit`; 0 before.
    process: AtomicU32,
}

static DRIVER: OnceBox<Driver> = OnceBox::new();

impl Driver {
    /// The driver, initialized (`cuInit`). It is opened at the first call that succeeds; later calls cost nothing. Fails without a
    /// driver, and in a forked child.
    pub(super) fn started() -> Result<&'static Driver> {
        let driver = Driver::opened()?;
        match driver.process.load(Ordering::Acquire) {
            0 => {
                // SAFETY: takes no address; it may be called again and from several threads at once.
                match unsafe { (driver.table.init)(0) } {
                    // What cuInit returns in a forked child of a process that used the driver, by other code than this.
                    CUDA_ERROR_NOT_INITIALIZED => return Err(forked_error()),
                    code => driver.check("cuInit", code)?,
                }
                driver.process.store(process::id(), Ordering::Release);
            }
            owner if owner != process::id() => return Err(forked_error()),
            _ => {}
        }
        Ok(driver)
    }

    fn opened() -> Result<&'static Driver> {
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let name = match std::env::var("RUSTLOAD_LIBCUDA") {
            Ok(name) if !name.is_empty() => name,
            _ => CUDA_LIBRARY.to_owned(),
        };
        // SAFETY: the driver's library, or the one that the user names in its place, is trusted to start itself.
        let library = unsafe { Library::new(&name) }.map_err(|error| {
            // The dynamic linker's message: mostly which file, which Windows does not say, and what is wrong with it.
            let why = error.source().map_or_else(|| name.clone(), ToString::to_string);
            let file = if why.contains(&name) { String::new() } else { format!("{name}: ") };
            device_error(format!("there is no CUDA driver: {file}{why}"))
        })?;
        let api = Api::of(&library);
        let driver = Driver { table: Table::of(&library, api)?, api, name, process: AtomicU32::new(0) };
        // Never closed: its functions are used until the process ends.
        std::mem::forget(library);
        Ok(DRIVER.get_or_init(|| Box::new(driver)))
    }

    /// Whether this process may call the driver: false in a forked child of the process that initialized it.
    pub(super) fn is_usable_in_this_process(&self) -> bool {
        self.process.load(Ordering::Acquire) == process::id()
    }

    /// Whether the driver was initialized by this process. It is not opened for that.
    pub(super) fn is_started_by_this_process() -> bool {
        DRIVER.get().is_some_and(Driver::is_usable_in_this_process)
    }

    /// The library's name as it was opened.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What DLPack calls the devices of the driver that was opened; those of CUDA before.
    pub(super) fn device_type() -> i32 {
        DRIVER.get().map_or(Api::Cuda, |driver| driver.api).choose(dlpack::CUDA, dlpack::ROCM)
    }

    /// The newest version of CUDA that it supports, or its own of HIP: major and minor.
    pub(super) fn version(&self) -> Result<(i32, i32)> {
        let mut version = 0;
        // SAFETY: writes the number.
        self.check("cuDriverGetVersion", unsafe { (self.table.driver_version)(&raw mut version) })?;
        Ok(self.api.choose(
            (version / 1000, version % 1000 / 10),
            (version / 10_000_000, version % 10_000_000 / 100_000),
        ))
    }

    pub(super) fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: writes the number.
        self.check("cuDeviceGetCount", unsafe { (self.table.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// The driver's own number of a device.
    fn device(&self, ordinal: i32) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: writes the number.
        self.check("cuDeviceGet", unsafe { (self.table.device_get)(&raw mut device, ordinal) })?;
        Ok(device)
    }

    /// Whether the device's memory is that of the machine.
    pub(super) fn is_integrated(&self, ordinal: i32) -> Result<bool> {
        let (device, mut value) = (self.device(ordinal)?, 0);
        let attribute = self.api.choose(CU_DEVICE_ATTRIBUTE_INTEGRATED, HIP_DEVICE_ATTRIBUTE_INTEGRATED);
        // SAFETY: writes the number; the driver returned the device.
        let code = unsafe { (self.table.device_attribute)(&raw mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value != 0)
    }

    /// The device's PCI address, such as `0000:3B:00.0`.
    pub(super) fn pci_address(&self, ordinal: i32) -> Result<String> {
        const LEN: u8 = 32;
        let (device, mut text) = (self.device(ordinal)?, [0_u8; LEN as usize]);
        // SAFETY: writes at most so many bytes of text; the driver returned the device.
        let code = unsafe { (self.table.device_pci_address)(text.as_mut_ptr().cast(), LEN.into(), device) };
        self.check("cuDeviceGetPCIBusId", code)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Retains the device's primary context, which all libraries of the process share. It is never released.
    pub(super) fn retain_primary_context(&self, ordinal: i32) -> Result<Context> {
        let (device, mut context) = (self.device(ordinal)?, 0);
        // SAFETY: writes the handle; the driver returned the device.
        let code = unsafe { (self.table.context_retain)(&raw mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Context(context))
    }

    /// The calling thread's current context.
    pub(super) fn current_context(&self) -> Result<Context> {
        let mut context = 0;
        // SAFETY: writes the handle, which is null if there is none.
        self.check("cuCtxGetCurrent", unsafe { (self.table.context_current)(&raw mut context) })?;
        Ok(Context(context))
    }

    pub(super) fn set_current_context(&self, context: Context) -> Result<()> {
        // SAFETY: a context that the driver returned; null for none.
        self.check("cuCtxSetCurrent", unsafe { (self.table.context_set)(context.0) })
    }

    /// Sets how the calling thread's calls interact with graph captures, and returns how they did before.
    pub(super) fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut mode = mode.0;
        // SAFETY: reads and writes the number.
        let code = unsafe { (self.table.capture_mode)(&raw mut mode) };
        self.check("cuThreadExchangeStreamCaptureMode", code)?;
        Ok(CaptureMode(mode))
    }

    pub(super) fn allocate(&self, nbytes: usize) -> Result<Allocation> {
        let mut address = 0;
        // SAFETY: writes the address.
        self.check("cuMemAlloc", unsafe { (self.table.memory_allocate)(&raw mut address, nbytes) })?;
        Ok(Allocation(address))
    }

    pub(super) fn free(&self, memory: Allocation) -> Result<()> {
        // SAFETY: an allocation that is freed once, as the call consumes it.
        self.check("cuMemFree", unsafe { (self.table.memory_free)(memory.0) })
    }

    /// The free bytes of the current context's GPU.
    pub(super) fn free_memory(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes the two numbers.
        self.check("cuMemGetInfo", unsafe { (self.table.memory_info)(&raw mut free, &raw mut total) })?;
        Ok(free)
    }

    /// Page-locks host memory, which the caller never frees.
    pub(super) fn register_host_memory(&self, memory: &mut HostBuffer) -> Result<()> {
        let bytes = memory.bytes_mut();
        // SAFETY: the whole of a live buffer; the driver changes none of its bytes.
        let code = unsafe { (self.table.host_register)(bytes.as_mut_ptr(), bytes.len(), 0) };
        self.check("cuMemHostRegister", code)
    }

    pub(super) fn create_stream(&self) -> Result<StreamHandle> {
        let mut stream = 0;
        // SAFETY: writes the handle.
        self.check("cuStreamCreate", unsafe {
            (self.table.stream_create)(&raw mut stream, STREAM_NON_BLOCKING)
        })?;
        Ok(StreamHandle(stream))
    }

    pub(super) fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: a stream that the driver returned, destroyed once, as the call consumes it.
        self.check("cuStreamDestroy", unsafe { (self.table.stream_destroy)(stream.0) })
    }

    /// Waits until all work in the stream is done.
    pub(super) fn synchronize_stream(&self, stream: &StreamHandle) -> Result<()> {
        // SAFETY: a live stream.
        self.check("cuStreamSynchronize", unsafe { (self.table.stream_synchronize)(stream.0) })
    }

    /// Makes work that is enqueued in the stream from now on wait for the event's last record.
    pub(super) fn stream_wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        // SAFETY: a live stream and event.
        self.check("cuStreamWaitEvent", unsafe { (self.table.stream_wait)(stream.0, event.0, 0) })
    }

    /// Whether the stream captures a CUDA graph instead of executing its work.
    pub(super) fn is_capturing(&self, stream: &StreamHandle) -> Result<bool> {
        let mut status = 0;
        // SAFETY: a live stream; writes the number.
        let code = unsafe { (self.table.stream_capturing)(stream.0, &raw mut status) };
        self.check("cuStreamIsCapturing", code)?;
        Ok(status != 0)
    }

    pub(super) fn create_event(&self) -> Result<EventHandle> {
        let mut event = 0;
        // SAFETY: writes the handle.
        self.check("cuEventCreate", unsafe {
            (self.table.event_create)(&raw mut event, EVENT_DISABLE_TIMING)
        })?;
        Ok(EventHandle(event))
    }

    pub(super) fn destroy_event(&self, event: EventHandle) -> Result<()> {
        // SAFETY: an event that the driver returned, destroyed once, as the call consumes it.
        self.check("cuEventDestroy", unsafe { (self.table.event_destroy)(event.0) })
    }

    /// Records the event in the stream, behind all work that is in it now.
    pub(super) fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> Result<()> {
        // SAFETY: a live event and stream.
        self.check("cuEventRecord", unsafe { (self.table.event_record)(event.0, stream.0) })
    }

    /// Whether the work that the event was recorded behind is done.
    pub(super) fn is_event_done(&self, event: &EventHandle) -> Result<bool> {
        // SAFETY: a live event.
        match unsafe { (self.table.event_query)(event.0) } {
            CUDA_ERROR_NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Enqueues an asynchronous H2D copy of the first `len` pinned bytes to a device address in the stream.
    pub(super) fn memcpy_h2d_async(
        &self,
        to: u64,
        from: &Pinned,
        len: usize,
        stream: &StreamHandle,
    ) -> Result<()> {
        if len > from.len {
            bail!(Code::InternalError, "a copy is longer than its slot");
        }
        // SAFETY: `len` bytes that live as long as the process; the driver checks the device address.
        let code = unsafe { (self.table.memcpy_h2d_async)(to, from.start.as_ptr(), len, stream.0) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies from a device address to the host (D2H), and waits until it is done; synchronizes with the default stream.
    pub(super) fn memcpy_d2h(&self, to: &mut [u8], from: u64) -> Result<()> {
        // SAFETY: writes no more than the slice; the driver checks the device address.
        self.check("cuMemcpyDtoH", unsafe { (self.table.memcpy_d2h)(to.as_mut_ptr(), from, to.len()) })
    }

    /// A driver's result code as a `Result`; the error has the driver's name of the code.
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: writes the address of a C string, or null.
        let status = unsafe { (self.table.error_name)(code, &raw mut name) };
        let name = if status == CUDA_SUCCESS && !name.is_null() {
            // SAFETY: a C string of the driver's, which ends with a zero and is never freed.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("error {code}")
        };
        Err(match code {
            CUDA_ERROR_NO_DEVICE => {
                device_error(format!("the {} driver finds no GPU ({name})", self.api.name())).note(
                    self.api.choose(
                        "look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and at the container's devices",
                        "look at rocm-smi, at HIP_VISIBLE_DEVICES, and at the container's devices",
                    ),
                )
            }
            _ => device_error(format!("{call} failed: {name}")),
        })
    }
}

impl CaptureMode {
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls that do not concern a capturing stream neither fail nor end the capture.
    pub(super) const RELAXED: CaptureMode = CaptureMode(2);
}

impl CallerStream {
    /// The device's default stream, which always exists.
    pub const DEFAULT: CallerStream = CallerStream(0);

    /// The stream with this address, as in `torch.cuda.Stream.cuda_stream`; 0, 1 and 2 are the driver's default streams.
    ///
    /// # Safety
    /// `address` is 0, 1 or 2, or a `CUstream` of the primary context of the device that it is used with, which is destroyed only
    /// after the call that takes this value has returned.
    pub unsafe fn from_raw(address: u64) -> CallerStream {
        CallerStream(usize::try_from(address).unwrap_or(0))
    }
}

impl StreamHandle {
    /// The handle of a caller's stream. rustload never destroys it.
    pub(super) fn from_caller(stream: CallerStream) -> StreamHandle {
        StreamHandle(stream.0)
    }
}

impl Allocation {
    pub(super) fn address(&self) -> u64 {
        self.0
    }
}

impl Pinned {
    /// Memory that is page-locked, or about to be.
    pub(super) fn new(bytes: &'static mut [u8]) -> Pinned {
        Pinned { len: bytes.len(), start: ptr::NonNull::from(bytes).cast() }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: made of a unique reference to these bytes, which are never freed; `&mut self` keeps the access unique.
        // A copy that is still reading them would get the new bytes, which is why a slot waits for its event first.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.name)
    }
}

fn device_error(text: impl Into<String>) -> Error {
    Error::new(Code::Device, text)
}

fn forked_error() -> Error {
    device_error("CUDA was started before the process forked, and cannot be used in the child")
        .note("start the workers before CUDA is used, or by multiprocessing's \"spawn\"")
}
