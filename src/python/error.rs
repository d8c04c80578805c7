//! Converts core errors to Python exceptions. The classes are in `rustload/errors.py`; this passes the fields on.

use std::io;

use pyo3::exceptions::{PyBaseException, PyException};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::advice;
use crate::error::{Code, Error, Subject};

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        Python::attach(|py| exception(py, &error).unwrap_or_else(|failed| failed))
    }
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    fields.set_item("kind", format!("{:?}", error.kind()))?;
    fields.set_item("code", error.code().as_str())?;
    fields.set_item("message", error.to_string())?;
    fields.set_item("path", error.path().map(|path| path.as_os_str().to_owned()))?;
    fields.set_item("member", error.member())?;
    fields.set_item("offset", error.offset())?;
    fields.set_item("note", advice::note(error))?;
    fields.set_item("errno", error.io_error().and_then(std::io::Error::raw_os_error))?;
    match error.subject() {
        Subject::Global { module, name } => {
            fields.set_item("module", module)?;
            fields.set_item("name", name)?;
        }
        Subject::Limit { name, limit, found } => {
            fields.set_item("name", name)?;
            fields.set_item("limit", limit)?;
            fields.set_item("found", found)?;
        }
        Subject::Name(name) => fields.set_item("name", name)?,
        Subject::Nothing => {}
    }
    let cause = error.io_error().and_then(io::Error::get_ref).and_then(|cause| cause.downcast_ref::<PyErr>());
    if let Some(cause) = cause.filter(|cause| !cause.is_instance_of::<PyException>(py)) {
        // KeyboardInterrupt and the like are passed on as they are.
        return Ok(cause.clone_ref(py));
    }
    if let Some(cause) = cause.filter(|cause| is_ours(cause.value(py))) {
        return Ok(cause.clone_ref(py));
    }
    let exception = py.import("rustload.errors")?.getattr("_from_core")?.call((), Some(&fields))?;
    let exception = PyErr::from_value(exception);
    if let Some(cause) = cause {
        exception.set_cause(py, Some(cause.clone_ref(py)));
    }
    Ok(exception)
}

/// Whether it has a code of the catalogue: an exception that rustload's own Python code made, in a source that it wrote.
fn is_ours(exception: &Bound<'_, PyBaseException>) -> bool {
    let code = exception.getattr("code").and_then(|code| code.extract::<String>());
    code.is_ok_and(|code| Code::ALL.iter().any(|known| known.as_str() == code))
}
