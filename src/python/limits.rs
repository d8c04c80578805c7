//! `Limits`: the Python class of upper bounds.

use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple};

use crate::limits::Limits as Core;

/// The limit that may be None: no bound.
const UNBOUNDED: &str = "available_memory";

/// Upper bounds on the memory and work that a file can cause; the defaults fit real checkpoints.
///
/// >>> import rustload
/// >>> rustload.Limits(tensors=10_000_000).tensors
/// 10000000
///
/// `available_memory=None` ends its comparison. `Limits.describe()` lists the names. Another name, a negative value, or one above 64 bits is a ValueError.
#[pyclass(frozen, module = "rustload")]
pub(crate) struct Limits(pub(super) Core);

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (**limits))]
    fn new(limits: Option<&Bound<'_, PyDict>>) -> PyResult<Limits> {
        let mut core = Core::default();
        for (name, value) in limits.into_iter().flatten() {
            let name: String = name.extract()?;
            let limit = core.by_name(&name).ok_or_else(|| {
                let known: Vec<_> = Core::NAMES.iter().map(|(name, _)| *name).collect();
                PyValueError::new_err(format!("no limit is named '{name}'; there are: {}", known.join(", ")))
            })?;
            if name == UNBOUNDED && value.is_none() {
                *limit = u64::MAX;
                continue;
            }
            let number = value
                .call_method0("__index__")
                .map_err(|_| PyTypeError::new_err(format!("limit {name} is a number, not {value:?}")))?;
            if number.lt(0)? {
                return Err(PyValueError::new_err(format!("limit {name} is negative")));
            }
            *limit = number
                .extract()
                .map_err(|_| PyValueError::new_err(format!("limit {name} does not fit in 64 bits")))?;
        }
        Ok(Limits(core))
    }

    /// The limit of that name.
    fn __getattr__(&self, name: String) -> PyResult<u64> {
        let value = self.0.clone().by_name(&name).copied();
        value.ok_or_else(|| PyAttributeError::new_err(name))
    }

    /// The limits that differ from their defaults.
    fn __repr__(&self) -> String {
        let changed: Vec<_> = changed(&self.0).map(|(name, value)| format!("{name}={value}")).collect();
        format!("Limits({})", changed.join(", "))
    }

    /// For pickles.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        Ok((PyTuple::empty(py), changed(&self.0).into_py_dict(py)?))
    }

    /// The description of each limit, by name.
    #[staticmethod]
    fn describe(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let known = PyDict::new(py);
        Core::NAMES.iter().try_for_each(|(name, what)| known.set_item(name, what))?;
        Ok(known)
    }
}

/// The limits that differ from their defaults.
pub(super) fn changed(limits: &Core) -> impl Iterator<Item = (&'static str, u64)> {
    let (mut limits, mut defaults) = (limits.clone(), Core::default());
    Core::NAMES.iter().filter_map(move |(name, _)| {
        let value = *limits.by_name(name)?;
        (value != *defaults.by_name(name)?).then_some((*name, value))
    })
}
