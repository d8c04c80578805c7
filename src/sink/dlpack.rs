//! DLPack structures (header 1.3): export of arrays to torch, NumPy, JAX and others, and import of a tensor to write to.
//!
//! **Protocol.** An exported tensor is a box that owns a clone of the array. The consumer calls the deleter once, from any thread,
//! with or without the interpreter, even after the interpreter has ended: the deleter only drops the box. The consumer may write to
//! the elements, so an export marks their memory as exported: no slice of it is made any more. A [`Foreign`] owns an
//! imported tensor; its drop calls the producer's deleter. An imported tensor in GPU memory can be adopted ([`Foreign::into_gpu`]):
//! then the arrays made of it keep it alive.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::claims::Claim;
use super::{Array, GpuMemory};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, error};
use crate::layout::contiguous_strides;

/// `kDLCPU`.
pub const CPU: i32 = 1;
/// `kDLCUDA`.
pub const CUDA: i32 = 2;
/// `kDLROCM`.
pub const ROCM: i32 = 10;
/// `kDLCUDAManaged`: memory of no one GPU, so its `id` says nothing.
const CUDA_MANAGED: i32 = 13;

/// `DLDevice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Device {
    /// `DLDeviceType`.
    pub kind: i32,
    /// The device's ordinal.
    pub id: i32,
}

/// `DLDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DataType {
    /// `DLDataTypeCode`.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes of one element.
    pub lanes: u16,
}

/// `DLTensor`.
#[derive(Debug)]
#[repr(C)]
pub struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, the form from before version 1.
#[repr(C)]
pub struct ManagedTensor {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub struct ManagedTensorVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensorVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 2;

/// What an exported tensor owns: the array, and the shape and strides that the structure points to.
struct Context {
    _array: Array,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
}

/// The DLPack type of a dtype.
pub fn data_type(dtype: DType) -> DataType {
    let (code, lanes) = dtype.dlpack();
    let bits = u8::try_from(dtype.itemsize() * 8).unwrap_or(u8::MAX) / lanes;
    DataType { code, bits, lanes: lanes.into() }
}

/// Shape and strides as the structure needs them; dimensions of size 1, and all of an empty array, get the contiguous strides.
fn context(array: &Array) -> Result<Context> {
    let too_large = |_| Error::new(Code::Buffer, "a size does not fit DLPack's 63 bits");
    let numbers = |dims: &[u64]| dims.iter().map(|&n| i64::try_from(n)).collect::<Result<Box<[i64]>, _>>();
    let plain = contiguous_strides(array.shape()).unwrap_or_default();
    let empty = array.shape().contains(&0);
    let strides: Vec<u64> = (array.shape().iter().zip(array.strides()).zip(&plain))
        .map(|((&size, &stride), &plain)| if empty || size == 1 { plain } else { stride })
        .collect();
    let (shape, strides) = (numbers(array.shape()), numbers(&strides));
    Ok(Context {
        _array: array.clone(),
        shape: shape.map_err(too_large)?,
        strides: strides.map_err(too_large)?,
    })
}

fn tensor(array: &Array, context: &mut Context) -> Result<Tensor> {
    let ndim =
        i32::try_from(context.shape.len()).map_err(|_| Error::new(Code::Buffer, "too many dimensions"))?;
    Ok(Tensor {
        data: if array.nbytes() == 0 { ptr::null_mut() } else { array.address().as_ptr().cast() },
        device: array.device(),
        ndim,
        dtype: data_type(array.dtype()),
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    })
}

/// Exports the array as a `DLManagedTensorVersioned` of version 1.1, to be freed by [`delete_versioned`] or its own deleter.
///
/// `hands_over`: whether the caller drops `array` at once. The consumer is then the only owner of the memory, and `IS_COPIED` is
/// set, unless the array is a view, a part, or memory of another library.
pub fn export_versioned(array: &Array, hands_over: bool) -> Result<NonNull<ManagedTensorVersioned>> {
    let is_copied = hands_over && array.is_sole_owner();
    let mut context = Box::new(context(array)?);
    let tensor = tensor(array, &mut context)?;
    array.mark_exported();
    let managed = Box::new(ManagedTensorVersioned {
        major: 1,
        minor: 1,
        context: Box::into_raw(context).cast(),
        deleter: Some(delete_versioned),
        flags: if is_copied { IS_COPIED } else { 0 } | if array.is_writable() { 0 } else { READ_ONLY },
        tensor,
    });
    Ok(NonNull::from(Box::leak(managed)))
}

/// Exports the array as a `DLManagedTensor`, to be freed by [`delete_legacy`] or its own deleter. The structure cannot say that a
/// view is read-only.
pub fn export_legacy(array: &Array) -> Result<NonNull<ManagedTensor>> {
    let mut context = Box::new(context(array)?);
    let tensor = tensor(array, &mut context)?;
    array.mark_exported();
    let context = Box::into_raw(context).cast();
    let managed = Box::new(ManagedTensor { tensor, context, deleter: Some(delete_legacy) });
    Ok(NonNull::from(Box::leak(managed)))
}

/// Frees what [`export_versioned`] made.
///
/// # Safety
/// `managed` comes from [`export_versioned`] and is not used afterwards.
pub unsafe extern "C" fn delete_versioned(managed: *mut ManagedTensorVersioned) {
    if !managed.is_null() {
        // SAFETY: the caller promises that this is the box leaked by `export_versioned`, deleted once.
        let managed = unsafe { Box::from_raw(managed) };
        // SAFETY: the context is the box that `export_versioned` put there.
        drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
    }
}

/// Frees what [`export_legacy`] made.
///
/// # Safety
/// `managed` comes from [`export_legacy`] and is not used afterwards.
pub unsafe extern "C" fn delete_legacy(managed: *mut ManagedTensor) {
    if !managed.is_null() {
        // SAFETY: the caller promises that this is the box leaked by `export_legacy`, deleted once.
        let managed = unsafe { Box::from_raw(managed) };
        // SAFETY: the context is the box that `export_legacy` put there.
        drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
    }
}

/// A tensor that another library exported, to be written to.
pub struct Foreign {
    structure: Structure,
    /// Held from the first [`Foreign::bytes_mut`].
    claim: Option<Claim>,
}

enum Structure {
    Versioned(NonNull<ManagedTensorVersioned>),
    Legacy(NonNull<ManagedTensor>),
}

impl From<Structure> for Foreign {
    fn from(structure: Structure) -> Foreign {
        Foreign { structure, claim: None }
    }
}

// SAFETY: the structure is owned by this value alone, and the DLPack specification lets any thread call its deleter.
unsafe impl Send for Foreign {}

impl Foreign {
    /// Takes ownership of a versioned structure.
    ///
    /// # Safety
    /// `managed` is a valid `DLManagedTensorVersioned` that no other code frees.
    pub unsafe fn versioned(managed: NonNull<ManagedTensorVersioned>) -> Foreign {
        Structure::Versioned(managed).into()
    }

    /// Takes ownership of a structure from before version 1.
    ///
    /// # Safety
    /// `managed` is a valid `DLManagedTensor` that no other code frees.
    pub unsafe fn legacy(managed: NonNull<ManagedTensor>) -> Foreign {
        Structure::Legacy(managed).into()
    }

    /// The bytes of a one-dimensional, contiguous, writable tensor of `uint8` in host memory. Fails if it is something else, or
    /// another `Foreign` holds overlapping bytes.
    ///
    /// While this value lives, no other `Foreign` returns bytes that overlap them: of two calls with one `out=`, from two threads
    /// or by two exports of one buffer, the second fails. The caller that passed the tensor ensures that nothing else, in this
    /// process or on a device, reads or writes the bytes meanwhile. They may be uninitialized: another allocator made them, and
    /// they are read only after they were written.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let bytes = self.writable_byte_array().map_err(unwritable)?;
        if bytes.device.kind != CPU {
            return Err(unwritable("it is not in host memory"));
        }
        if bytes.len == 0 {
            return Ok(&mut []);
        }
        if self.claim.is_none() {
            let claim = Claim::new(bytes.start.addr(), bytes.len);
            self.claim = Some(claim.ok_or_else(|| unwritable("another call is writing to the same memory"))?);
        }
        // SAFETY: `len` bytes from `start` belong to the tensor; the caller of `out=` hands them over for the time of the
        // call, as with `out=` in NumPy, and `&mut self` and the claim keep rustload's own access unique.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.start, bytes.len) })
    }

    /// The bytes of a one-dimensional, contiguous tensor of `uint8` in host memory, to read. Fails if it is something else.
    ///
    /// The caller that passed the tensor ensures that nothing, in this process or on a device, writes to the bytes while the result
    /// lives.
    pub fn into_bytes(self) -> Result<ForeignBytes> {
        let unfit = |what: &str| error!(Code::Value, "no contiguous uint8 array in host memory: {what}");
        let ByteArray { device, start, len, .. } = self.byte_array().map_err(unfit)?;
        if device.kind != CPU {
            return Err(unfit("it is on a device"));
        }
        Ok(ForeignBytes { _foreign: self, start, len })
    }

    /// Adopts a one-dimensional, contiguous, writable tensor of `uint8` in the memory of a GPU of this `device_type`, or in managed
    /// memory, as the memory of GPU `managed_on`. Fails if it is something else.
    pub fn into_gpu(self, device_type: i32, managed_on: u32) -> Result<Array> {
        let unfit = |what: &str| error!(Code::Buffer, "no contiguous uint8 array in GPU memory: {what}");
        let bytes = self.writable_byte_array().map_err(unfit)?;
        let device = match bytes.device {
            Device { kind: CUDA_MANAGED, .. } => Some(managed_on),
            Device { kind, id } => u32::try_from(id).ok().filter(|_| kind == device_type),
        };
        let device = device.ok_or_else(|| unfit("it is not in the memory of a GPU"))?;
        let (address, nbytes) = (bytes.start.addr() as u64, bytes.len as u64);
        Ok(Array::on_gpu(Arc::new(Adopted { _foreign: self, device, address, nbytes })))
    }

    /// As [`Foreign::byte_array`], of a writable tensor.
    fn writable_byte_array(&self) -> Result<ByteArray, &'static str> {
        let bytes = self.byte_array()?;
        if bytes.is_read_only { Err("it is read-only") } else { Ok(bytes) }
    }

    /// The device, address and length of a one-dimensional, contiguous tensor of `uint8`, or why it is not one.
    fn byte_array(&self) -> Result<ByteArray, &'static str> {
        let (tensor, flags) = match &self.structure {
            Structure::Versioned(managed) => {
                let managed = managed.as_ptr();
                // SAFETY: valid as promised to `versioned`. Only this field is read, which lies before all that a version may
                // change.
                let major = unsafe { (*managed).major };
                if major != 1 {
                    return Err("its DLPack version is unknown");
                }
                // SAFETY: valid as promised, and of a major version whose layout is known.
                let managed = unsafe { &*managed };
                (&managed.tensor, managed.flags)
            }
            // SAFETY: valid as promised to `legacy`.
            Structure::Legacy(managed) => (unsafe { &(*managed.as_ptr()).tensor }, 0),
        };
        if tensor.dtype != data_type(DType::U8) || tensor.ndim != 1 {
            return Err("it is not a one-dimensional uint8 array");
        }
        // SAFETY: with ndim 1, shape points to one number; null, which no valid structure has, is reported.
        let Some(&len) = (unsafe { tensor.shape.as_ref() }) else {
            return Err("it has no shape");
        };
        let Ok(len) = usize::try_from(len) else {
            return Err("its size is negative");
        };
        // SAFETY: with ndim 1, strides is null (contiguous) or points to one number.
        let stride = unsafe { tensor.strides.as_ref() }.copied().unwrap_or(1);
        if len > 1 && stride != 1 {
            return Err("it is not contiguous");
        }
        let Ok(offset) = usize::try_from(tensor.byte_offset) else {
            return Err("its offset is too large");
        };
        // The first element lies inside the producer's allocation; an empty tensor may have a null address.
        if len > 0 && tensor.data.is_null() {
            return Err("it has no address");
        }
        let start = tensor.data.cast::<u8>().wrapping_add(offset);
        Ok(ByteArray { device: tensor.device, start, len, is_read_only: flags & READ_ONLY != 0 })
    }
}

/// The device, address and length of an imported one-dimensional tensor of bytes.
struct ByteArray {
    device: Device,
    start: *mut u8,
    len: usize,
    is_read_only: bool,
}

/// The bytes of a tensor in host memory that another library exported.
pub struct ForeignBytes {
    _foreign: Foreign,
    start: *mut u8,
    len: usize,
}

// SAFETY: `Foreign` is Send, and the address is that of its bytes, which no thread owns.
unsafe impl Send for ForeignBytes {}
// SAFETY: a shared reference only reads the bytes; only the drop touches the structure.
unsafe impl Sync for ForeignBytes {}

impl AsRef<[u8]> for ForeignBytes {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `len` bytes from `start` belong to the tensor, which `_foreign` keeps alive. Nothing writes to them meanwhile, as
        // the caller of `into_bytes` ensures.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

fn unwritable(what: &str) -> Error {
    error!(Code::Value, "cannot be written to: {what}").on_argument("out")
}

/// GPU memory that another library allocated; its deleter is called when this is dropped.
struct Adopted {
    _foreign: Foreign,
    device: u32,
    address: u64,
    nbytes: u64,
}

// SAFETY: a shared reference only reads three numbers; only the drop touches the structure.
unsafe impl Sync for Adopted {}

// SAFETY: the numbers are those of a writable GPU tensor of the DLPack producer's, kept until the drop; they never change.
unsafe impl GpuMemory for Adopted {
    fn device(&self) -> u32 {
        self.device
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn nbytes(&self) -> u64 {
        self.nbytes
    }
}

impl std::fmt::Debug for Adopted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Adopted({} bytes at {:#x} of GPU {})", self.nbytes, self.address, self.device)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        match self.structure {
            Structure::Versioned(managed) => {
                // SAFETY: valid and owned by this value.
                if let Some(deleter) = unsafe { (*managed.as_ptr()).deleter } {
                    // SAFETY: the producer's deleter, called once.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Structure::Legacy(managed) => {
                // SAFETY: valid and owned by this value.
                if let Some(deleter) = unsafe { (*managed.as_ptr()).deleter } {
                    // SAFETY: the producer's deleter, called once.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
