//! `Tensor`: the shell around a lazy tensor.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};

use super::buffer::Buffer;
use super::{capsule, extra, objects, run};
use crate::bytes;
use crate::dtype::DType;
use crate::error::guarded;
use crate::kernel::Overflow;
use crate::layout::TensorIndex;
use crate::parallel::Cancel;
use crate::tensor::{Order, Request, Standing, Tensor as Core};

/// A handle on a tensor of a checkpoint, or on a part of one.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Tensor(pub(super) Core);

/// The dtype's own name, from torch's, safetensors' or NumPy's words.
#[pyfunction]
pub(crate) fn parse_dtype(name: &str) -> PyResult<&'static str> {
    Ok(DType::parse(name)?.name())
}

/// How `materialize` wants its result.
#[derive(FromPyObject)]
pub(crate) struct Wanted {
    dtype: Option<String>,
    /// False, true, or a permutation.
    transpose: Option<Transpose>,
    copy: Option<bool>,
    allow_lossy: bool,
    dequantize: bool,
    overflow: String,
    threads: Option<usize>,
    mappings: Option<Py<Mappings>>,
}

#[derive(FromPyObject)]
enum Transpose {
    Flag(bool),
    Dims(Vec<i64>),
}

impl Wanted {
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

#[pymethods]
impl Tensor {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        objects::path(py, &self.0)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.layout().shape)
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.layout().strides)
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.0.layout().offset
    }

    #[getter]
    fn size(&self) -> u64 {
        self.0.layout().numel()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    #[getter]
    fn is_contiguous(&self) -> bool {
        self.0.layout().is_contiguous()
    }

    #[getter]
    fn is_parameter(&self) -> bool {
        self.0.is_parameter()
    }

    #[getter]
    fn is_meta(&self) -> bool {
        self.0.is_meta()
    }

    #[getter]
    fn class_name(&self) -> Option<String> {
        self.0.class_name()
    }

    #[getter]
    fn requires_grad(&self) -> bool {
        self.0.requires_grad()
    }

    #[getter]
    fn id(&self) -> (u32, u32) {
        self.0.id()
    }

    #[getter]
    fn storage(&self) -> (u32, u32) {
        self.0.storage()
    }

    fn attributes<'py>(&self, py: Python<'py>, wrap: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let states = self.0.states().iter();
        states.map(|&state| objects::value(py, &self.0, state, wrap)).collect()
    }

    fn quantization<'py>(
        &self,
        py: Python<'py>,
        wrap: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        extra::quantization(py, &self.0, wrap)
    }

    fn index(&self, key: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let items = index_items(key)?;
        Ok(Tensor(guarded(|| self.0.index(&items))?))
    }

    fn permute(&self, dims: Vec<i64>) -> PyResult<Tensor> {
        Ok(Tensor(self.0.permute(&dims)?))
    }

    fn reversed(&self) -> Tensor {
        Tensor(self.0.reversed())
    }

    fn materialize(&self, py: Python<'_>, wanted: Wanted) -> PyResult<Buffer> {
        let request = wanted.request()?;
        let work = self.work(py, &request)?;
        let array = run::interruptible(py, work, &request.cancel, || self.0.materialize(&request))?;
        Ok(Buffer(array))
    }

    fn materialize_into(&self, py: Python<'_>, wanted: Wanted, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let request = wanted.request()?;
        let mut foreign = capsule::import(out)?;
        run::interruptible(py, self.0.work(), &request.cancel, || {
            self.0.materialize_into(&request, foreign.bytes_mut()?)
        })
    }

    fn result_shape<'py>(&self, py: Python<'py>, wanted: Wanted) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.ordered(&wanted.request()?.order)?.shape)
    }

    fn standing(&self, py: Python<'_>, copy: Option<bool>) -> PyResult<Option<&'static str>> {
        let cancel = Cancel::new();
        let work = if self.0.dtype() == DType::Bool { self.0.work() } else { 0 };
        let standing = run::interruptible(py, work, &cancel, || self.0.standing(copy, &cancel))?;
        Ok(standing.map(|standing| match standing {
            Standing::View => "view",
            Standing::Copy => "copy",
        }))
    }

    /// The storage, and a DLPack capsule of the view.
    #[pyo3(signature = (mappings=None))]
    fn lone_view<'py>(
        &self,
        py: Python<'py>,
        mappings: Option<&Mappings>,
    ) -> PyResult<Option<((u32, u32), Bound<'py, PyAny>)>> {
        let owner = mappings.map(|mappings| &*mappings.0);
        let Some(view) = run::detached(py, || self.0.lone_view(owner))? else { return Ok(None) };
        Ok(Some((self.0.storage(), capsule::export(py, &view, false, false)?)))
    }

    fn storage_bytes(&self, py: Python<'_>, standing: &str, wanted: Wanted) -> PyResult<Buffer> {
        let request = wanted.request()?;
        let standing = if standing == "view" { Standing::View } else { Standing::Copy };
        let work = self.0.storage_work(standing);
        let found =
            run::interruptible(py, work, &request.cancel, || self.0.storage_bytes(standing, &request))?;
        Ok(Buffer(found))
    }
}

impl Tensor {
    /// Bytes to go through, where that is long: none for a view, unless they are bools.
    fn work(&self, py: Python<'_>, request: &Request) -> PyResult<u64> {
        if run::is_long(self.0.work()) { run::detached(py, || Ok(self.0.work_for(request))) } else { Ok(0) }
    }
}

/// Private mappings of files that one owner of views has to itself.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Mappings(Arc<bytes::Mappings>);

#[pymethods]
impl Mappings {
    #[new]
    fn new() -> Mappings {
        Mappings(Arc::default())
    }
}

/// What stands between the brackets.
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
