//! `Tensor`: the Python class of a lazy tensor.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arguments::DTypeArg;
use super::classes::{Buffer, Checkpoint, Tensor};
use super::request::{self, Mappings, Request, index_items};
use super::{capsule, decoding, extra, objects, run};
use crate::dtype::DType;
use crate::error::guarded;
use crate::layout::Layout;
use crate::parallel::Cancel;
use crate::tensor::{Request as CoreRequest, SharedStorage};

/// The checkpoint's serial and the storage's id, and a DLPack capsule of a view of all of it.
type LoneView<'py> = ((u64, u32, u32), Bound<'py, PyAny>);

/// Shape, strides and offset, in elements.
pub(super) type LayoutNumbers = (Vec<u64>, Vec<u64>, u64);

/// Name, id, layout, and layout of the scales.
type TensorState = (Option<String>, (u32, u32), LayoutNumbers, Option<LayoutNumbers>);

/// The name of a dtype as torch spells it.
#[pyfunction]
pub(crate) fn dtype_name(dtype: DTypeArg) -> &'static str {
    dtype.0.name()
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

    fn check_repeats(&self) -> PyResult<()> {
        Ok(self.0.repeated_bytes(self.0.dtype()).map(|_| ())?)
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
    fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.0.checkpoint())
    }

    /// Name, id and layouts, from which [`Checkpoint::restored`] makes it again.
    fn state(&self) -> TensorState {
        let numbers = |layout: &Layout| (layout.shape.to_vec(), layout.strides.to_vec(), layout.offset);
        let name = self.0.entry.map(|_| self.0.name().to_owned());
        (name, self.0.id(), numbers(self.0.layout()), self.0.channel_layout.as_deref().map(numbers))
    }

    #[getter]
    fn storage(&self) -> (u32, u32) {
        self.0.storage()
    }

    /// Whether torch's lazy conjugate and negative bits are set.
    #[getter]
    fn signs(&self) -> (bool, bool) {
        (self.0.is_conjugate(), self.0.is_negative())
    }

    #[getter]
    fn storage_nbytes(&self) -> u64 {
        self.0.storage_nbytes()
    }

    /// The number of the file that its elements are made of.
    #[getter]
    fn file(&self) -> u32 {
        self.0.place().1
    }

    fn attributes<'py>(&self, py: Python<'py>, wrap: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let states = self.0.states().iter();
        states.map(|&state| objects::attributes(py, &self.0, state, wrap)).collect()
    }

    fn quantization<'py>(
        &self,
        py: Python<'py>,
        wrap: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        extra::quantization(py, &self.0, wrap)
    }

    #[getter]
    fn is_kept_as_stored(&self) -> bool {
        self.0.is_kept_as_stored()
    }

    /// The name of the codes that it belongs to.
    #[getter]
    fn companion_of(&self) -> Option<&str> {
        self.0.companion_of()
    }

    /// The scheme, bits of a code, names of the codes and of what belongs to them, and their bytes; `None` unless it is a quantized
    /// weight of the logical view.
    #[getter]
    fn scheme(&self) -> Option<extra::SchemeOf> {
        self.0.description().map(extra::scheme)
    }

    /// What it is decoded from, for a decoder that has the bytes of the stored tensors elsewhere.
    fn decoding(&self, py: Python<'_>) -> PyResult<Option<decoding::Fields<Tensor>>> {
        run::detached(py, || decoding::decoding(&self.0, Tensor))
    }

    #[getter]
    fn is_quantized(&self) -> bool {
        self.0.is_quantized()
    }

    #[getter]
    fn casts_without_scales(&self) -> bool {
        self.0.casts_without_scales()
    }

    fn check_scheme(&self) -> PyResult<()> {
        let request = CoreRequest::new().dequantize(true);
        Ok(self.0.check_scheme(&request).map_err(|error| self.0.add_context(error))?)
    }

    #[getter]
    fn part<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        extra::part(py, &self.0)
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

    fn reshape(&self, shape: Vec<i64>) -> PyResult<Tensor> {
        Ok(Tensor(self.0.reshape(&shape)?))
    }

    fn materialize(&self, py: Python<'_>, request: &Request) -> PyResult<Buffer> {
        request::materialize(
            py,
            request,
            |request| self.work(py, request),
            |request| self.0.materialize(request),
        )
    }

    fn materialize_into(&self, py: Python<'_>, request: &Request, out: &Bound<'_, PyAny>) -> PyResult<()> {
        request::materialize_into(py, request, out, self.0.work(), |request, out| {
            self.0.materialize_into(request, out)
        })
    }

    fn result_shape<'py>(&self, py: Python<'py>, request: &Request) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.result_layout(request.order())?.shape)
    }

    fn shared_storage(&self, py: Python<'_>, copy: Option<bool>) -> PyResult<Option<&'static str>> {
        let cancel = Cancel::new();
        let work = if self.0.dtype() == DType::Bool { self.0.work() } else { 0 };
        let shared = run::interruptible(py, work, &cancel, || self.0.shared_storage(copy, &cancel))?;
        Ok(shared.map(|shared| match shared {
            SharedStorage::View => "view",
            SharedStorage::Copy => "copy",
        }))
    }

    /// The key of the storage, and a DLPack capsule of the view.
    #[pyo3(signature = (mappings=None))]
    fn lone_view<'py>(
        &self,
        py: Python<'py>,
        mappings: Option<&Mappings>,
    ) -> PyResult<Option<LoneView<'py>>> {
        let mappings = mappings.map(|mappings| mappings.0.clone());
        let Some(view) = run::detached(py, || self.0.lone_view(mappings))? else { return Ok(None) };
        let (shard, storage) = self.0.storage();
        Ok(Some(((self.0.serial(), shard, storage), capsule::export(py, &view, false, false)?)))
    }

    fn storage_bytes(&self, py: Python<'_>, kind: &str, request: &Request) -> PyResult<Buffer> {
        let request = request.with(&Cancel::new());
        let kind = if kind == "view" { SharedStorage::View } else { SharedStorage::Copy };
        let work = self.0.storage_work(kind);
        let owned = run::interruptible(py, work, &request.cancel, || self.0.storage_bytes(kind, &request))?;
        Ok(Buffer(owned))
    }
}

impl Tensor {
    /// Bytes to process where that may be long, else 0. A view needs none, unless it is of bools.
    fn work(&self, py: Python<'_>, request: &CoreRequest) -> PyResult<u64> {
        match run::is_long(self.0.work_unless_view(request)) {
            true => run::detached(py, || Ok(self.0.work_for(request))),
            false => Ok(0),
        }
    }
}
