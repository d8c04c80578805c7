//! The CUDA driver: a table of its functions, found at run time, and each of them as a function that gives a `Result`.
//!
//! Nothing is linked, and nothing is opened before somebody asks for a GPU. `RUSTLOAD_LIBCUDA` names another library.
//!
//! **Protocol.** The library is never closed, so its functions stay callable. Streams, events, allocations and contexts are numbers
//! that the driver gave: only this file makes them, none can be copied but a context's, and what destroys one takes it away. A
//! caller's stream and memory that somebody else allocated are what an `unsafe` promise says of them ([`CallerStream::from_raw`],
//! [`GpuMemory`](crate::sink::GpuMemory), DLPack); a copy goes nowhere but into such memory (`Slot::send` checks). A copy to the device reads memory that is never given back ([`Pinned`]), so that a copy that is late, or of which
//! nobody knows the end, reads wrong bytes at worst.
//!
//! After a fork the child has the parent's memory and none of the driver's threads: there every call is refused before it is made.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;
use once_cell::race::OnceBox;

use crate::error::{Code, Error, Result};
use crate::sink::HostBuffer;

/// What is opened where `RUSTLOAD_LIBCUDA` names nothing.
const LIBRARY: &str = "libcuda.so.1";

/// `CU_STREAM_NON_BLOCKING`: no waiting for the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: whoever waits sleeps.
const PLAIN_EVENT: c_uint = 3;

const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;
const NOT_READY: c_int = 600;

/// A context, which belongs to a device and is never given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context(usize);

/// A queue of work on a device.
#[derive(Debug)]
pub(super) struct StreamHandle(usize);

/// A stream that somebody else made and keeps, such as torch's current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerStream(usize);

/// A mark in a stream.
#[derive(Debug)]
pub(super) struct EventHandle(usize);

/// Memory of a device.
#[derive(Debug)]
pub(super) struct Allocation(u64);

/// Host memory that the driver has pinned, and that lives as long as the process.
#[derive(Debug)]
pub(super) struct Pinned {
    start: ptr::NonNull<u8>,
    len: usize,
}

// SAFETY: made of a unique reference to memory that nobody gives back, and used through `&mut self` and the driver alone.
unsafe impl Send for Pinned {}
// SAFETY: a shared `Pinned` only tells its size and is read by the driver.
unsafe impl Sync for Pinned {}

/// Fields for the functions, and their look-up. Handles and device addresses are numbers as wide as pointers.
macro_rules! table {
    ($($field:ident: $name:literal ($($argument:ty),*);)*) => {
        struct Table {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Table {
            fn of(library: &Library) -> Result<Table> {
                Ok(Table {
                    // SAFETY: in cuda.h the function of this name has this signature.
                    $($field: unsafe { symbol(library, $name) }?,)*
                })
            }
        }
    };
}

table! {
    init: "cuInit"(c_uint);
    driver_version: "cuDriverGetVersion"(*mut c_int);
    device_count: "cuDeviceGetCount"(*mut c_int);
    device_get: "cuDeviceGet"(*mut c_int, c_int);
    context_retain: "cuDevicePrimaryCtxRetain"(*mut usize, c_int);
    context_current: "cuCtxGetCurrent"(*mut usize);
    context_set: "cuCtxSetCurrent"(usize);
    memory_allocate: "cuMemAlloc_v2"(*mut u64, usize);
    memory_free: "cuMemFree_v2"(u64);
    host_register: "cuMemHostRegister_v2"(*mut u8, usize, c_uint);
    stream_create: "cuStreamCreate"(*mut usize, c_uint);
    stream_destroy: "cuStreamDestroy_v2"(usize);
    stream_synchronize: "cuStreamSynchronize"(usize);
    stream_wait: "cuStreamWaitEvent"(usize, usize, c_uint);
    stream_capturing: "cuStreamIsCapturing"(usize, *mut c_int);
    event_create: "cuEventCreate"(*mut usize, c_uint);
    event_destroy: "cuEventDestroy_v2"(usize);
    event_record: "cuEventRecord"(usize, usize);
    event_query: "cuEventQuery"(usize);
    event_synchronize: "cuEventSynchronize"(usize);
    copy_in: "cuMemcpyHtoDAsync_v2"(u64, *const u8, usize, usize);
    copy_out: "cuMemcpyDtoH_v2"(*mut u8, u64, usize);
    error_name: "cuGetErrorName"(c_int, *mut *const c_char);
}

/// # Safety
/// `F` is the type of the function of that name.
unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: promised by the caller.
    let found = unsafe { library.get::<F>(name) };
    found.map(|found| *found).map_err(|_| {
        refused(format!("the CUDA driver has no {name}")).note("install a newer driver of the GPU's maker")
    })
}

/// The driver of this machine.
pub(super) struct Driver {
    table: Table,
    /// As it was opened.
    name: String,
    /// The process that started it; 0 before.
    process: AtomicU32,
}

static DRIVER: OnceBox<Driver> = OnceBox::new();

impl Driver {
    /// The driver, started. It is opened at the first call that succeeds; later ones cost nothing.
    pub(super) fn started() -> Result<&'static Driver> {
        let driver = Driver::opened()?;
        match driver.process.load(Ordering::Acquire) {
            0 => {
                // SAFETY: takes no address; it may be called again and from several threads at once.
                driver.check("cuInit", unsafe { (driver.table.init)(0) })?;
                driver.process.store(process::id(), Ordering::Release);
            }
            owner if owner != process::id() => return Err(forked()),
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
            _ => LIBRARY.to_owned(),
        };
        // SAFETY: the driver's library, or the one that the user names in its place, is trusted to start itself.
        let library = unsafe { Library::new(&name) }.map_err(|error| {
            // What the system says: mostly which file, and what about it.
            let why = error.source().map_or_else(|| name.clone(), ToString::to_string);
            refused(format!("there is no CUDA driver: {why}"))
        })?;
        let driver = Driver { table: Table::of(&library)?, name, process: AtomicU32::new(0) };
        // Its functions are used until the process ends.
        std::mem::forget(library);
        Ok(DRIVER.get_or_init(|| Box::new(driver)))
    }

    /// Whether this process may call it: not a child of the one that started it.
    pub(super) fn is_own(&self) -> bool {
        self.process.load(Ordering::Acquire) == process::id()
    }

    /// The library, as it was opened.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The newest CUDA that it knows, as `1000 * major + 10 * minor`.
    pub(super) fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: writes the number.
        self.check("cuDriverGetVersion", unsafe { (self.table.driver_version)(&raw mut version) })?;
        Ok(version)
    }

    pub(super) fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: writes the number.
        self.check("cuDeviceGetCount", unsafe { (self.table.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// The device's primary context, which every library of the process shares. It is never given back.
    pub(super) fn context(&self, ordinal: i32) -> Result<Context> {
        let (mut device, mut context) = (0, 0);
        // SAFETY: writes the number.
        self.check("cuDeviceGet", unsafe { (self.table.device_get)(&raw mut device, ordinal) })?;
        // SAFETY: writes the handle; the device is one that the driver gave.
        let done = unsafe { (self.table.context_retain)(&raw mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", done)?;
        Ok(Context(context))
    }

    /// The calling thread's context.
    pub(super) fn current(&self) -> Result<Context> {
        let mut context = 0;
        // SAFETY: writes the handle, which is null where there is none.
        self.check("cuCtxGetCurrent", unsafe { (self.table.context_current)(&raw mut context) })?;
        Ok(Context(context))
    }

    pub(super) fn set_current(&self, context: Context) -> Result<()> {
        // SAFETY: a context that the driver gave; null for none.
        self.check("cuCtxSetCurrent", unsafe { (self.table.context_set)(context.0) })
    }

    pub(super) fn allocate(&self, nbytes: usize) -> Result<Allocation> {
        let mut address = 0;
        // SAFETY: writes the address.
        self.check("cuMemAlloc", unsafe { (self.table.memory_allocate)(&raw mut address, nbytes) })?;
        Ok(Allocation(address))
    }

    pub(super) fn free(&self, memory: Allocation) -> Result<()> {
        // SAFETY: an allocation that is freed once, as it is taken away.
        self.check("cuMemFree", unsafe { (self.table.memory_free)(memory.0) })
    }

    /// Pins host memory, which the caller never gives back.
    pub(super) fn register(&self, memory: &mut HostBuffer) -> Result<()> {
        let bytes = memory.bytes_mut();
        // SAFETY: the whole of a buffer that is there; the driver changes none of its bytes.
        let done = unsafe { (self.table.host_register)(bytes.as_mut_ptr(), bytes.len(), 0) };
        self.check("cuMemHostRegister", done)
    }

    pub(super) fn create_stream(&self) -> Result<StreamHandle> {
        let mut stream = 0;
        // SAFETY: writes the handle.
        self.check("cuStreamCreate", unsafe { (self.table.stream_create)(&raw mut stream, NON_BLOCKING) })?;
        Ok(StreamHandle(stream))
    }

    pub(super) fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: a stream that the driver gave, destroyed once, as it is taken away.
        self.check("cuStreamDestroy", unsafe { (self.table.stream_destroy)(stream.0) })
    }

    /// Waits until all that is in the stream is done.
    pub(super) fn synchronize(&self, stream: &StreamHandle) -> Result<()> {
        // SAFETY: a stream that is there.
        self.check("cuStreamSynchronize", unsafe { (self.table.stream_synchronize)(stream.0) })
    }

    /// Makes what is put in the stream from now on wait for what the event marks now.
    pub(super) fn wait(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        // SAFETY: a stream and an event that are there.
        self.check("cuStreamWaitEvent", unsafe { (self.table.stream_wait)(stream.0, event.0, 0) })
    }

    /// Whether the stream records a graph, in place of doing what it is given.
    pub(super) fn is_capturing(&self, stream: &StreamHandle) -> Result<bool> {
        let mut status = 0;
        // SAFETY: a stream that is there; writes the number.
        let done = unsafe { (self.table.stream_capturing)(stream.0, &raw mut status) };
        self.check("cuStreamIsCapturing", done)?;
        Ok(status != 0)
    }

    pub(super) fn create_event(&self) -> Result<EventHandle> {
        let mut event = 0;
        // SAFETY: writes the handle.
        self.check("cuEventCreate", unsafe { (self.table.event_create)(&raw mut event, PLAIN_EVENT) })?;
        Ok(EventHandle(event))
    }

    pub(super) fn destroy_event(&self, event: EventHandle) -> Result<()> {
        // SAFETY: an event that the driver gave, destroyed once, as it is taken away.
        self.check("cuEventDestroy", unsafe { (self.table.event_destroy)(event.0) })
    }

    /// Marks what is in the stream now.
    pub(super) fn record(&self, event: &EventHandle, stream: &StreamHandle) -> Result<()> {
        // SAFETY: an event and a stream that are there.
        self.check("cuEventRecord", unsafe { (self.table.event_record)(event.0, stream.0) })
    }

    /// Whether what the event marks is done.
    pub(super) fn is_done(&self, event: &EventHandle) -> Result<bool> {
        // SAFETY: an event that is there.
        match unsafe { (self.table.event_query)(event.0) } {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until what the event marks is done.
    pub(super) fn finish(&self, event: &EventHandle) -> Result<()> {
        // SAFETY: an event that is there.
        self.check("cuEventSynchronize", unsafe { (self.table.event_synchronize)(event.0) })
    }

    /// Puts a copy of the first `len` pinned bytes to a device's address into the stream.
    pub(super) fn copy_in(&self, to: u64, from: &Pinned, len: usize, stream: &StreamHandle) -> Result<()> {
        if len > from.len {
            return Err(Error::new(Code::InternalError, "a copy is longer than its slot"));
        }
        // SAFETY: `len` bytes that are there as long as the process is; the driver checks the device's address.
        let done = unsafe { (self.table.copy_in)(to, from.start.as_ptr(), len, stream.0) };
        self.check("cuMemcpyHtoDAsync", done)
    }

    /// Copies from a device's address, waiting for the default stream.
    pub(super) fn copy_out(&self, to: &mut [u8], from: u64) -> Result<()> {
        // SAFETY: writes no more than the slice; the driver checks the device's address.
        self.check("cuMemcpyDtoH", unsafe { (self.table.copy_out)(to.as_mut_ptr(), from, to.len()) })
    }

    /// The driver's code as an error, with its name for it.
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: writes the address of a text, or null.
        let known = unsafe { (self.table.error_name)(code, &raw mut name) };
        let name = if known == SUCCESS && !name.is_null() {
            // SAFETY: a text of the driver's that ends with a zero and is never freed.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("error {code}")
        };
        Err(match code {
            NO_DEVICE => refused("the CUDA driver finds no GPU (CUDA_ERROR_NO_DEVICE)")
                .note("look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and at the container's devices"),
            _ => refused(format!("{call} failed: {name}")),
        })
    }
}

impl CallerStream {
    /// The device's default stream, which is always there.
    pub const DEFAULT: CallerStream = CallerStream(0);

    /// The stream with this address, as `torch.cuda.Stream.cuda_stream` has it; 0, 1 and 2 are the driver's default streams.
    ///
    /// # Safety
    /// `address` is one of those numbers, or a `CUstream` of the primary context of the device that it is used with, and that stream
    /// is destroyed only after the call that this value is given to has returned.
    pub unsafe fn from_raw(address: u64) -> CallerStream {
        CallerStream(usize::try_from(address).unwrap_or(0))
    }
}

impl StreamHandle {
    /// A stream of the caller's. It is never destroyed from here.
    pub(super) fn named(stream: CallerStream) -> StreamHandle {
        StreamHandle(stream.0)
    }
}

impl Allocation {
    pub(super) fn address(&self) -> u64 {
        self.0
    }
}

impl Pinned {
    /// Memory that is pinned, or about to be.
    pub(super) fn new(bytes: &'static mut [u8]) -> Pinned {
        Pinned { len: bytes.len(), start: ptr::NonNull::from(bytes).cast() }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: made of a unique reference to these bytes, which are never given back; `&mut self` keeps the access unique.
        // A copy that still reads them gets what is written, which is why a slot waits for its event.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.name)
    }
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(Code::Device, text)
}

fn forked() -> Error {
    refused("CUDA was started before the process forked, and cannot be used in the child")
        .note("start the workers before CUDA is used, or by multiprocessing's \"spawn\"")
}
