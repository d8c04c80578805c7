//! The functions of a driver library: their types and names, and their look-up.
//!
//! **Protocol.** In cuda.h and hip_runtime_api.h the functions of a row have the type that it states. A table is used only while
//! its library is open.

use std::ffi::{c_char, c_int, c_uint};

use libloading::Library;

use super::{Api, device_error};
use crate::error::Result;

/// Declares the function table and its symbol look-up. Handles and device addresses are numbers as wide as pointers.
macro_rules! table {
    ($($field:ident: $cuda:literal $hip:literal ($($argument:ty),*);)*) => {
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Table {
            pub(super) fn of(library: &Library, api: Api) -> Result<Table> {
                Ok(Table {
                    // SAFETY: in cuda.h or hip_runtime_api.h the function of this name has this signature.
                    $($field: unsafe { symbol(library, api, api.choose($cuda, $hip)) }?,)*
                })
            }
        }
    };
}

table! {
    init: "cuInit" "hipInit"(c_uint);
    driver_version: "cuDriverGetVersion" "hipDriverGetVersion"(*mut c_int);
    device_count: "cuDeviceGetCount" "hipGetDeviceCount"(*mut c_int);
    device_get: "cuDeviceGet" "hipDeviceGet"(*mut c_int, c_int);
    device_attribute: "cuDeviceGetAttribute" "hipDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_pci_address: "cuDeviceGetPCIBusId" "hipDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
    context_retain: "cuDevicePrimaryCtxRetain" "hipDevicePrimaryCtxRetain"(*mut usize, c_int);
    context_current: "cuCtxGetCurrent" "hipCtxGetCurrent"(*mut usize);
    context_set: "cuCtxSetCurrent" "hipCtxSetCurrent"(usize);
    capture_mode: "cuThreadExchangeStreamCaptureMode" "hipThreadExchangeStreamCaptureMode"(*mut c_uint);
    memory_allocate: "cuMemAlloc_v2" "hipMalloc"(*mut u64, usize);
    memory_free: "cuMemFree_v2" "hipFree"(u64);
    memory_info: "cuMemGetInfo_v2" "hipMemGetInfo"(*mut usize, *mut usize);
    host_register: "cuMemHostRegister_v2" "hipHostRegister"(*mut u8, usize, c_uint);
    stream_create: "cuStreamCreate" "hipStreamCreateWithFlags"(*mut usize, c_uint);
    stream_destroy: "cuStreamDestroy_v2" "hipStreamDestroy"(usize);
    stream_synchronize: "cuStreamSynchronize" "hipStreamSynchronize"(usize);
    stream_wait: "cuStreamWaitEvent" "hipStreamWaitEvent"(usize, usize, c_uint);
    stream_capturing: "cuStreamIsCapturing" "hipStreamIsCapturing"(usize, *mut c_int);
    event_create: "cuEventCreate" "hipEventCreateWithFlags"(*mut usize, c_uint);
    event_destroy: "cuEventDestroy_v2" "hipEventDestroy"(usize);
    event_record: "cuEventRecord" "hipEventRecord"(usize, usize);
    event_query: "cuEventQuery" "hipEventQuery"(usize);
    memcpy_h2d_async: "cuMemcpyHtoDAsync_v2" "hipMemcpyHtoDAsync"(u64, *const u8, usize, usize);
    memcpy_d2h: "cuMemcpyDtoH_v2" "hipMemcpyDtoH"(*mut u8, u64, usize);
    error_name: "cuGetErrorName" "hipDrvGetErrorName"(c_int, *mut *const c_char);
}

/// Looks up a function of the library.
///
/// # Safety
/// `F` is the type of the function of that name.
unsafe fn symbol<F: Copy>(library: &Library, api: Api, name: &str) -> Result<F> {
    // SAFETY: promised by the caller.
    let function = unsafe { library.get::<F>(name) };
    function.map(|function| *function).map_err(|_| {
        device_error(format!("the {} driver has no {name}", api.name()))
            .note("install a newer driver of the GPU's maker")
    })
}
