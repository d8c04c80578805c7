//! Core errors as Python exceptions. The classes are written in `rustload/errors.py`; this only hands over the parts.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Error, Subject};

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        Python::attach(|py| exception(py, &error).unwrap_or_else(|failed| failed))
    }
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let parts = PyDict::new(py);
    parts.set_item("kind", format!("{:?}", error.kind()))?;
    parts.set_item("code", error.code().as_str())?;
    parts.set_item("message", error.to_string())?;
    parts.set_item("path", error.path().map(|path| path.as_os_str().to_owned()))?;
    parts.set_item("member", error.member())?;
    parts.set_item("offset", error.offset())?;
    parts.set_item("note", error.next_step())?;
    parts.set_item("errno", error.io_error().and_then(std::io::Error::raw_os_error))?;
    match error.subject() {
        Subject::Global { module, name } => {
            parts.set_item("module", module)?;
            parts.set_item("name", name)?;
        }
        Subject::Limit { name, limit, found } => {
            parts.set_item("name", name)?;
            parts.set_item("limit", limit)?;
            parts.set_item("found", found)?;
        }
        Subject::Name(name) => parts.set_item("name", name)?,
        Subject::Nothing => {}
    }
    let made = py.import("rustload.errors")?.getattr("_from_core")?.call((), Some(&parts))?;
    Ok(PyErr::from_value(made))
}
