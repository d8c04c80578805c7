//! `Joined`: the Python class of lazily concatenated tensors.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::classes::{Buffer, Tensor};
use super::request::{self, Request, index_items};
use crate::error::{Code, Error, guarded};
use crate::tensor::Joined as Core;

/// Tensors of one dtype, each a box of one larger tensor.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Joined(Core);

/// A tensor, or a joined one.
#[derive(FromPyObject)]
pub(crate) enum TensorArg<'py> {
    Tensor(PyRef<'py, Tensor>),
    Joined(PyRef<'py, Joined>),
}

impl From<TensorArg<'_>> for Core {
    fn from(arg: TensorArg<'_>) -> Core {
        match arg {
            TensorArg::Tensor(tensor) => tensor.0.clone().into(),
            TensorArg::Joined(joined) => joined.0.clone(),
        }
    }
}

/// Concatenates tensors along `dim`.
#[pyfunction]
pub(crate) fn concat(tensors: Vec<TensorArg<'_>>, dim: i64) -> PyResult<Joined> {
    Ok(Joined(Core::concat(tensors, dim)?))
}

/// Stacks tensors along a new dimension `dim`.
#[pyfunction]
pub(crate) fn stack(tensors: Vec<TensorArg<'_>>, dim: i64) -> PyResult<Joined> {
    Ok(Joined(Core::stack(tensors, dim)?))
}

/// The joined tensor of these parts at these offsets.
#[pyfunction]
pub(crate) fn restored_join(
    parts: Vec<PyRef<'_, Tensor>>,
    offsets: Vec<Vec<u64>>,
    shape: Vec<u64>,
) -> PyResult<Joined> {
    let parts = parts.iter().map(|part| part.0.clone()).collect();
    let offsets = offsets.iter().map(|at| at.as_slice().into()).collect();
    Ok(Joined(guarded(|| Core::restored(parts, offsets, shape.as_slice().into()))?))
}

impl Joined {
    /// The core's.
    pub(super) fn core(&self) -> &Core {
        &self.0
    }
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

    fn parts(&self) -> Vec<Tensor> {
        self.0.parts().iter().cloned().map(Tensor).collect()
    }

    fn offsets(&self) -> Vec<Vec<u64>> {
        self.0.offsets().iter().map(|at| at.to_vec()).collect()
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

    fn reshape(&self, shape: Vec<i64>) -> PyResult<Joined> {
        Ok(Joined(self.0.reshape(&shape)?))
    }

    fn materialize(&self, py: Python<'_>, request: &Request) -> PyResult<Buffer> {
        request::materialize(py, request, |_| Ok(self.0.work()), |request| self.0.materialize(request))
    }

    fn materialize_into(&self, py: Python<'_>, request: &Request, out: &Bound<'_, PyAny>) -> PyResult<()> {
        request::materialize_into(py, request, out, self.0.work(), |request, out| {
            self.0.materialize_into(request, out)
        })
    }

    fn result_shape<'py>(&self, py: Python<'py>, request: &Request) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.result_shape(request.order())?)
    }

    #[getter]
    fn is_kept_as_stored(&self) -> bool {
        self.0.parts().iter().any(|part| part.is_kept_as_stored())
    }

    #[getter]
    fn is_quantized(&self) -> bool {
        self.0.parts().iter().any(|part| part.is_quantized())
    }

    /// None: it has no storage of its own. Fails with `copy=False` for several tensors.
    fn shared_storage(&self, copy: Option<bool>) -> PyResult<Option<&'static str>> {
        if copy == Some(false) && self.0.parts().len() > 1 {
            let text = "joined tensors are not contiguous in the file, which needs a copy";
            return Err(Error::new(Code::Buffer, text).into());
        }
        Ok(None)
    }
}
