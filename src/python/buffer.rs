//! `Buffer`: an array in memory, exported by DLPack, and from host memory by the buffer protocol too.
//!
//! **Protocol.** An export of the buffer protocol holds a reference to the `Buffer` (`view.obj`), which owns the array, so the
//! address stays valid. The export marks the memory as exported, so that no slice of it is made any more. Shape and strides of an
//! export are in a box of its own, which the release frees. The bytes are writable if they are the result's own memory or a
//! copy-on-write mapping, and not if they are a read-only one.
//!
//! **Threads.** Nothing here relies on the GIL: a `Buffer` does not change, its mark is atomic, and each export is used by the caller
//! that asked for it. Writes to the bytes by several threads race as in any Python array: consumers order them.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::arguments::DTypeArg;
use super::capsule;
use super::classes::{Buffer, Tensor};
use crate::dtype::DType;
use crate::sink::{cuda, dlpack};

/// Whether C's long has 64 bits, as on 64-bit Linux and macOS.
const LONG_HAS_64_BITS: bool = size_of::<c_long>() == 8;

/// The memory that one export of the buffer protocol owns.
struct Export {
    shape: Box<[ffi::Py_ssize_t]>,
    strides: Box<[ffi::Py_ssize_t]>,
}

/// A buffer on contiguous bytes of GPU memory that another library allocated. It owns the capsule's structure.
#[pyfunction]
#[pyo3(signature = (capsule, *, managed_on=0))]
pub(crate) fn adopt(capsule: &Bound<'_, PyAny>, managed_on: u32) -> PyResult<Buffer> {
    Ok(Buffer(capsule::import(capsule)?.into_gpu(cuda::device_type(), managed_on)?))
}

#[pymethods]
impl Buffer {
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.strides())
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    #[getter]
    fn is_view(&self) -> bool {
        self.0.is_view()
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None, **_extra))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
        _extra: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.export(py, stream, max_version, dl_device, copy, false)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None, **_extra))]
    fn hand_over<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
        _extra: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.export(py, stream, max_version, dl_device, copy, true)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        let dlpack::Device { kind, id } = self.0.device();
        (kind, id)
    }

    /// The same memory as one-dimensional `uint8`. Fails for a strided buffer.
    fn as_bytes(&self) -> PyResult<Buffer> {
        let strided = || PyBufferError::new_err("the buffer is strided: its bytes are not contiguous");
        self.0.byte_array().map(Buffer).ok_or_else(strided)
    }

    /// A contiguous part of the same memory.
    fn part(&self, start: u64, dtype: DTypeArg, shape: Vec<u64>) -> PyResult<Buffer> {
        Ok(Buffer(self.0.part(start, dtype.0, shape.as_slice().into())?))
    }

    /// Parts for tensors, one behind another, as many as fit; and the byte after the last one.
    fn parts(
        &self,
        start: u64,
        alignment: u64,
        tensors: Vec<PyRef<'_, Tensor>>,
        dtypes: Vec<Option<DTypeArg>>,
    ) -> PyResult<(Vec<Buffer>, u64)> {
        let mut wanted = Vec::with_capacity(tensors.len());
        for (tensor, dtype) in tensors.iter().zip(&dtypes) {
            let dtype = dtype.map_or(tensor.0.dtype(), |dtype| dtype.0);
            wanted.push((dtype, tensor.0.shape().into()));
        }
        let (parts, end) = self.0.parts_that_fit(start, alignment, wanted)?;
        Ok((parts.into_iter().map(Buffer).collect(), end))
    }

    /// The elements' bytes in C order.
    fn tobytes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        let view = slf.py().import("builtins")?.getattr("memoryview")?.call1((slf,))?;
        Ok(view.call_method0("tobytes")?.cast_into()?)
    }

    fn __repr__(&self) -> String {
        let kind = if self.0.is_view() { "view" } else { "owned" };
        let device =
            if self.0.is_on_gpu() { format!(" on cuda:{}", self.0.device().id) } else { String::new() };
        format!("<rustload.Buffer {} {:?} {kind}{device}>", self.0.dtype(), self.0.shape())
    }

    /// # Safety
    /// Python calls it with a `view` that is null or writable.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return refused("there is no Py_buffer to fill");
        }
        // SAFETY: `view` is not null, so it is writable. The protocol requires that an error leaves `obj` null.
        unsafe { (*view).obj = ptr::null_mut() };
        let array = &slf.get().0;
        if array.is_on_gpu() {
            let id = array.device().id;
            return refused(format!(
                "the buffer is in the memory of GPU {id}, which the host cannot read; use DLPack"
            ));
        }
        let wants = |bits: c_int| flags & bits == bits;
        if wants(ffi::PyBUF_WRITABLE) && !array.is_writable() {
            return refused("the buffer is a read-only view: pass writable=True or copy=True");
        }
        let contiguous = array.is_contiguous();
        let wants_contiguous =
            !wants(ffi::PyBUF_STRIDES) || wants(ffi::PyBUF_C_CONTIGUOUS) || wants(ffi::PyBUF_ANY_CONTIGUOUS);
        if !contiguous && wants_contiguous {
            return refused("the buffer is strided and the consumer wants contiguous bytes");
        }
        if wants(ffi::PyBUF_F_CONTIGUOUS) && array.shape().len() > 1 {
            return refused("the buffer is not Fortran-contiguous");
        }
        let too_large = |_| PyBufferError::new_err("a size does not fit the buffer protocol");
        let item = array.dtype().itemsize();
        let numbers = |dims: &[u64], unit: u64| {
            dims.iter()
                .map(|&n| ffi::Py_ssize_t::try_from(n.saturating_mul(unit)))
                .collect::<Result<Box<[_]>, _>>()
        };
        let export = Export {
            shape: numbers(array.shape(), 1).map_err(too_large)?,
            strides: numbers(array.strides(), item).map_err(too_large)?,
        };
        array.mark_exported();
        let export = Box::into_raw(Box::new(export));
        // SAFETY: leaked from a box just now; `__releasebuffer__` frees it.
        let numbers = unsafe { &mut *export };
        let filled = ffi::Py_buffer {
            buf: array.address().as_ptr().cast(),
            obj: slf.clone().into_any().into_ptr(),
            len: ffi::Py_ssize_t::try_from(array.nbytes()).unwrap_or(ffi::Py_ssize_t::MAX),
            itemsize: ffi::Py_ssize_t::try_from(item).unwrap_or(1),
            readonly: c_int::from(!array.is_writable()),
            ndim: c_int::try_from(numbers.shape.len()).unwrap_or(0),
            format: if wants(ffi::PyBUF_FORMAT) {
                format(array.dtype()).as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            },
            shape: if wants(ffi::PyBUF_ND) { numbers.shape.as_mut_ptr() } else { ptr::null_mut() },
            strides: if wants(ffi::PyBUF_STRIDES) { numbers.strides.as_mut_ptr() } else { ptr::null_mut() },
            suboffsets: ptr::null_mut(),
            internal: export.cast::<c_void>(),
        };
        // SAFETY: `view` is not null, so it is writable.
        unsafe { view.write(filled) };
        Ok(())
    }

    /// # Safety
    /// Python calls it once for each `view` that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `view` is the `Py_buffer` that `__getbuffer__` filled.
        let export = unsafe { (*view).internal };
        // SAFETY: the box that `__getbuffer__` leaked for this view.
        drop(unsafe { Box::from_raw(export.cast::<Export>()) });
    }
}

impl Buffer {
    fn export<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
        hands_over: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (on_gpu, dlpack::Device { kind, id }) = (self.0.is_on_gpu(), self.0.device());
        if !on_gpu && stream.is_some_and(|stream| stream != -1) {
            return refused("a buffer in host memory takes no stream=");
        }
        // A buffer in GPU memory is complete before it is handed out, so any stream may use it without an event.
        let (unused, text) = match kind {
            dlpack::ROCM => (1..=2, "stream= is None, -1, 0 or a HIP stream's address"),
            _ => (0..=0, "stream= is None, -1, 1, 2 or a CUDA stream's address"),
        };
        if on_gpu && stream.is_some_and(|stream| stream < -1 || unused.contains(&stream)) {
            return refused(text);
        }
        if dl_device.is_some_and(|device| device != (kind, id)) {
            let text = if on_gpu {
                format!("a buffer on GPU {id} is exported to that GPU only")
            } else {
                "a buffer in host memory is exported to the CPU only".to_owned()
            };
            return refused(text);
        }
        if copy == Some(true) {
            return refused("a buffer is exported without a copy; materialize again for one");
        }
        capsule::export(py, &self.0, max_version.is_some_and(|(major, _)| major >= 1), hands_over)
    }
}

/// The error for what a buffer does not give.
fn refused<T>(text: impl Into<String>) -> PyResult<T> {
    Err(PyBufferError::new_err(text.into()))
}

/// The `struct` format of a dtype. Dtypes that NumPy does not have appear as unsigned integers of their bits.
///
/// Sizes are native ones. 64-bit integers are `l` and `L` where C's long has 64 bits, as in NumPy: torch accepts no array of `Q`
/// there. Elsewhere they are `q` and `Q`.
fn format(dtype: DType) -> &'static CStr {
    match dtype.numpy_code().map_or_else(|| DType::unsigned(dtype.itemsize()), |_| dtype) {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 if LONG_HAS_64_BITS => c"l",
        DType::I64 => c"q",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 if LONG_HAS_64_BITS => c"L",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => c"B",
    }
}
