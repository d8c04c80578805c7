//! `Handle`: what a lazy tensor of the Python package is made of, a tensor of the core and the context that it is read in.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use super::classes::Tensor;
use super::joined::Joined;
use crate::dtype::DType;

/// The base of `rustload.LazyTensor`, for what is asked of thousands of tensors.
#[pyclass(frozen, subclass, module = "rustload._rustload")]
pub(crate) struct Handle {
    core: Core,
    context: Py<PyAny>,
}

#[derive(FromPyObject)]
enum Core {
    Tensor(Py<Tensor>),
    Joined(Py<Joined>),
}

#[pymethods]
impl Handle {
    #[new]
    fn new(core: Core, context: Py<PyAny>) -> Handle {
        Handle { core, context }
    }

    #[getter]
    fn _core(&self, py: Python<'_>) -> Py<PyAny> {
        match &self.core {
            Core::Tensor(tensor) => tensor.clone_ref(py).into_any(),
            Core::Joined(joined) => joined.clone_ref(py).into_any(),
        }
    }

    #[getter]
    fn _context(&self, py: Python<'_>) -> Py<PyAny> {
        self.context.clone_ref(py)
    }

    /// The size of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match &self.core {
            Core::Tensor(tensor) => PyTuple::new(py, tensor.get().0.shape()),
            Core::Joined(joined) => PyTuple::new(py, joined.get().core().shape()),
        }
    }

    /// The dtype in the file: a str as torch spells it, `"bfloat16"`, that is also equal to `torch.bfloat16`.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        dtype_object(
            py,
            match &self.core {
                Core::Tensor(tensor) => tensor.get().0.dtype(),
                Core::Joined(joined) => joined.get().core().dtype(),
            },
        )
    }

    /// The size of all elements in bytes, in the file's dtype.
    #[getter]
    fn nbytes(&self) -> u64 {
        match &self.core {
            Core::Tensor(tensor) => tensor.get().0.nbytes(),
            Core::Joined(joined) => joined.get().core().nbytes(),
        }
    }
}

/// The package's `DType` of a dtype.
fn dtype_object(py: Python<'_>, dtype: DType) -> PyResult<Py<PyAny>> {
    static OBJECTS: PyOnceLock<Vec<(DType, Py<PyAny>)>> = PyOnceLock::new();
    let objects = OBJECTS.get_or_try_init(py, || -> PyResult<_> {
        let by_name = py.import("rustload._common.dtypes")?.getattr("DTYPES")?.cast_into::<PyDict>()?;
        DType::ALL.iter().map(|&one| Ok((one, by_name.as_any().get_item(one.name())?.unbind()))).collect()
    })?;
    let found = objects.iter().find(|(one, _)| *one == dtype);
    Ok(found.map_or_else(|| py.None(), |(_, object)| object.clone_ref(py)))
}
