//! `Joined`: the shell around tensors that are seen as one.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::buffer::Buffer;
use super::tensor::{Tensor, Wanted, index_items};
use super::{capsule, run};
use crate::error::{Code, Error, guarded};
use crate::tensor::Joined as Core;

/// Tensors of one dtype, end to end along one dimension.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Joined(Core);

/// The tensors one after the other along `dim`.
#[pyfunction]
pub(crate) fn concat(tensors: Vec<PyRef<'_, Tensor>>, dim: i64) -> PyResult<Joined> {
    Ok(Joined(Core::concat(tensors.iter().map(|tensor| tensor.0.clone()).collect(), dim)?))
}

/// The tensors side by side along a new dimension `dim`.
#[pyfunction]
pub(crate) fn stack(tensors: Vec<PyRef<'_, Tensor>>, dim: i64) -> PyResult<Joined> {
    Ok(Joined(Core::stack(tensors.iter().map(|tensor| tensor.0.clone()).collect(), dim)?))
}

#[pymethods]
impl Joined {
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    #[getter]
    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn parts(&self) -> Vec<Tensor> {
        self.0.parts().iter().cloned().map(Tensor).collect()
    }

    fn index(&self, key: &Bound<'_, PyAny>) -> PyResult<Joined> {
        let items = index_items(key)?;
        Ok(Joined(guarded(|| self.0.index(&items))?))
    }

    fn permute(&self, dims: Vec<i64>) -> PyResult<Joined> {
        Ok(Joined(self.0.permute(&dims)?))
    }

    fn reversed(&self) -> Joined {
        Joined(self.0.reversed())
    }

    fn materialize(&self, py: Python<'_>, wanted: Wanted) -> PyResult<Buffer> {
        let request = wanted.request()?;
        let array = run::interruptible(py, self.0.work(), &request.cancel, || self.0.materialize(&request))?;
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
        PyTuple::new(py, &self.0.ordered(&wanted.request()?.order)?)
    }

    /// None: that of the parts is with the parts.
    fn quantization(&self, _wrap: &Bound<'_, PyAny>) -> Option<Py<PyAny>> {
        None
    }

    /// None: it stands on no storage.
    fn standing(&self, copy: Option<bool>) -> PyResult<Option<&'static str>> {
        if copy == Some(false) && self.0.parts().len() > 1 {
            let text = "tensors that are joined lie apart, which needs a copy";
            return Err(Error::new(Code::Buffer, text).into());
        }
        Ok(None)
    }
}
