//! Arguments and calls that the shells of tensors and joined tensors share: requests, indices, materialization.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyEllipsis, PyList, PySlice, PyString, PyTuple};

use super::arguments::{CopyArg, DTypeArg, Flag, OrderArg, OverflowArg, ThreadsArg};
use super::classes::{Buffer, Tensor};
use super::{capsule, run};
use crate::bytes;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Overflow;
use crate::layout::TensorIndex;
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::tensor::{Order, Request as Core, Tensor as Lazy};

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

/// How the core makes a result. Without arguments, it is as in the file. Views are read-only, or writable and
/// of `mappings` or the checkpoint's mapping.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Request(Core);

#[pymethods]
impl Request {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one for each keyword")]
    #[pyo3(signature = (
        *,
        dtype=None,
        transpose=OrderArg(Order::Same),
        copy=CopyArg(None),
        writable=Flag(false),
        allow_lossy=Flag(false),
        dequantize=Flag(false),
        overflow=OverflowArg(Overflow::Nan),
        threads=ThreadsArg(None),
        mappings=None,
    ))]
    fn new(
        dtype: Option<DTypeArg>,
        transpose: OrderArg,
        copy: CopyArg,
        writable: Flag,
        allow_lossy: Flag,
        dequantize: Flag,
        overflow: OverflowArg,
        threads: ThreadsArg,
        mappings: Option<&Mappings>,
    ) -> Request {
        Request(Core {
            dtype: dtype.map(|dtype| dtype.0),
            order: transpose.0,
            copy: copy.0,
            writable: writable.0,
            allow_lossy: allow_lossy.0,
            dequantize: dequantize.0,
            overflow: overflow.0,
            threads: threads.0,
            mappings: mappings.map(|mappings| mappings.0.clone()),
            cancel: Cancel::new(),
        })
    }

    /// The same with another dtype, transpose, copy or writable.
    #[pyo3(signature = (**changes))]
    fn but(&self, changes: Option<&Bound<'_, PyDict>>) -> PyResult<Request> {
        let mut core = self.0.clone();
        for (name, value) in changes.into_iter().flatten() {
            match &*name.cast::<PyString>()?.to_cow()? {
                "dtype" => core.dtype = value.extract::<Option<DTypeArg>>()?.map(|dtype| dtype.0),
                "transpose" => core.order = value.extract::<OrderArg>()?.0,
                "copy" => core.copy = value.extract::<CopyArg>()?.0,
                "writable" => core.writable = value.extract::<Flag>()?.0,
                other => return Err(PyTypeError::new_err(format!("{other}= is not changed"))),
            }
        }
        Ok(Request(core))
    }

    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.0.dtype.map(DType::name)
    }

    /// True, a permutation, or None.
    #[getter]
    fn transpose<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match &self.0.order {
            Order::Same => None,
            Order::Transpose => Some(PyBool::new(py, true).to_owned().into_any()),
            Order::Permute(dims) => Some(PyList::new(py, dims)?.into_any()),
        })
    }

    #[getter]
    fn copy(&self) -> Option<bool> {
        self.0.copy
    }

    #[getter]
    fn writable(&self) -> bool {
        self.0.writable
    }

    #[getter]
    fn allow_lossy(&self) -> bool {
        self.0.allow_lossy
    }

    #[getter]
    fn dequantize(&self) -> bool {
        self.0.dequantize
    }

    #[getter]
    fn overflow(&self) -> &'static str {
        OverflowArg(self.0.overflow).word()
    }

    #[getter]
    fn threads(&self) -> Option<usize> {
        self.0.threads
    }
}

impl Request {
    /// The request of the core, which `cancel` stops.
    pub(super) fn with(&self, cancel: &Cancel) -> Core {
        self.0.clone().cancel(cancel.clone())
    }

    pub(super) fn order(&self) -> &Order {
        &self.0.order
    }
}

/// Tensors, and how to make the result of each; one token cancels all. In Python any iterable of pairs: a list of thousands of tuples
/// would make its garbage collector look through all objects.
pub(crate) struct Pairs(pub(super) Vec<(Lazy, Core)>);

impl FromPyObject<'_, '_> for Pairs {
    type Error = PyErr;

    fn extract(pairs: Borrowed<'_, '_, PyAny>) -> PyResult<Pairs> {
        let cancel = Cancel::new();
        let pair = |pair: PyResult<Bound<'_, PyAny>>| {
            let (tensor, request): (PyRef<'_, Tensor>, PyRef<'_, Request>) = pair?.extract()?;
            Ok((tensor.0.clone(), request.with(&cancel)))
        };
        pairs.try_iter()?.map(pair).collect::<PyResult<_>>().map(Pairs)
    }
}

/// Materializes a request as a buffer. `work` gives the bytes to process: long work can be interrupted.
pub(super) fn materialize(
    py: Python<'_>,
    request: &Request,
    work: impl FnOnce(&Core) -> PyResult<u64>,
    core: impl FnOnce(&Core) -> Result<Array> + Send,
) -> PyResult<Buffer> {
    let request = request.with(&Cancel::new());
    let work = work(&request)?;
    let array = run::interruptible(py, work, &request.cancel, || core(&request))?;
    Ok(Buffer(array))
}

/// Materializes a request into the memory behind a DLPack capsule. `work` is the number of bytes to process.
pub(super) fn materialize_into(
    py: Python<'_>,
    request: &Request,
    out: &Bound<'_, PyAny>,
    work: u64,
    core: impl FnOnce(&Core, &mut [u8]) -> Result<()> + Send,
) -> PyResult<()> {
    let request = request.with(&Cancel::new());
    let mut foreign = capsule::import(out)?;
    let out = foreign.bytes_mut()?;
    let work = work.max(out.len() as u64);
    run::interruptible(py, work, &request.cancel, || core(&request, out))
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
