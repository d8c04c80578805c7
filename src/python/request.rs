//! Arguments and calls that the shells of tensors and joined tensors share: requests, indices, materialization.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};

use super::buffer::Buffer;
use super::{capsule, run};
use crate::bytes;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Overflow;
use crate::layout::TensorIndex;
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::tensor::{Order, Request};

/// The private file mappings of one owner of views, such as a model.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Mappings(pub(super) Arc<bytes::Mappings>);

#[pymethods]
impl Mappings {
    #[new]
    fn new() -> Mappings {
        Mappings(Arc::default())
    }
}

/// The attributes of a request as Python has it.
#[derive(FromPyObject)]
pub(crate) struct RequestArgs {
    dtype: Option<String>,
    transpose: Option<Transpose>,
    copy: Option<bool>,
    allow_lossy: bool,
    dequantize: bool,
    overflow: String,
    threads: Option<usize>,
    mappings: Option<Py<Mappings>>,
}

/// `transpose=`: a bool, or a permutation.
#[derive(FromPyObject)]
enum Transpose {
    Flag(bool),
    Dims(Vec<i64>),
}

impl RequestArgs {
    /// The request of the core. Fails for an unknown dtype.
    pub(super) fn request(self) -> PyResult<Request> {
        Ok(Request {
            dtype: self.dtype.as_deref().map(DType::parse).transpose()?,
            order: match self.transpose {
                None | Some(Transpose::Flag(false)) => Order::Same,
                Some(Transpose::Flag(true)) => Order::Transpose,
                Some(Transpose::Dims(dims)) => Order::Permute(dims),
            },
            copy: self.copy,
            allow_lossy: self.allow_lossy,
            dequantize: self.dequantize,
            overflow: if self.overflow == "saturate" { Overflow::Saturate } else { Overflow::Nan },
            threads: self.threads,
            mappings: self.mappings.map(|mappings| mappings.get().0.clone()),
            cancel: Cancel::new(),
        })
    }
}

/// Materializes a request as a buffer. `work` gives the bytes to process: long work can be interrupted.
pub(super) fn materialize(
    py: Python<'_>,
    request: RequestArgs,
    work: impl FnOnce(&Request) -> PyResult<u64>,
    core: impl FnOnce(&Request) -> Result<Array> + Send,
) -> PyResult<Buffer> {
    let request = request.request()?;
    let work = work(&request)?;
    let array = run::interruptible(py, work, &request.cancel, || core(&request))?;
    Ok(Buffer(array))
}

/// Materializes a request into the memory behind a DLPack capsule. `work` is the number of bytes to process.
pub(super) fn materialize_into(
    py: Python<'_>,
    request: RequestArgs,
    out: &Bound<'_, PyAny>,
    work: u64,
    core: impl FnOnce(&Request, &mut [u8]) -> Result<()> + Send,
) -> PyResult<()> {
    let request = request.request()?;
    let mut foreign = capsule::import(out)?;
    run::interruptible(py, work, &request.cancel, || core(&request, foreign.bytes_mut()?))
}

/// The items of an index expression `tensor[...]`.
pub(super) fn index_items(key: &Bound<'_, PyAny>) -> PyResult<Vec<TensorIndex>> {
    match key.cast::<PyTuple>() {
        Ok(items) => items.iter().map(|item| index_item(&item)).collect(),
        Err(_) => Ok(vec![index_item(key)?]),
    }
}

fn index_item(item: &Bound<'_, PyAny>) -> PyResult<TensorIndex> {
    if item.is_none() {
        return Ok(TensorIndex::NewAxis);
    }
    if item.is_instance_of::<PyEllipsis>() {
        return Ok(TensorIndex::Ellipsis);
    }
    if let Ok(slice) = item.cast::<PySlice>() {
        // Bounds that do not fit are clipped, as Python clips slices of lists.
        let bound = |name: &str| -> PyResult<Option<i64>> {
            let bound = slice.getattr(name)?;
            if bound.is_none() { Ok(None) } else { Ok(Some(clipped(&integer(&bound)?)?)) }
        };
        return Ok(TensorIndex::Range { start: bound("start")?, stop: bound("stop")?, step: bound("step")? });
    }
    let at = integer(item)?;
    Ok(TensorIndex::At(
        at.extract().map_err(|_| PyIndexError::new_err(format!("index {at} is out of bounds")))?,
    ))
}

/// An integer or what has `__index__`; a bool of any framework would mean a mask, so it is refused.
fn integer<'py>(item: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let wrong = || {
        PyTypeError::new_err("an index is an int, a slice, ..., or None; masks and lists are not read lazily")
    };
    let dtype = item.getattr_opt("dtype")?.map(|dtype| dtype.to_string()).unwrap_or_default();
    if item.is_instance_of::<PyBool>() || dtype.ends_with("bool") {
        return Err(wrong());
    }
    item.call_method0("__index__").map_err(|_| wrong())
}

fn clipped(number: &Bound<'_, PyAny>) -> PyResult<i64> {
    match number.extract() {
        Ok(number) => Ok(number),
        Err(_) => Ok(if number.lt(0)? { i64::MIN } else { i64::MAX }),
    }
}
