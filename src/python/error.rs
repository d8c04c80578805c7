//! Converts core errors to Python exceptions. The classes are in `rustload/errors.py`; this passes the fields on.

use std::io;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyBaseException, PyException};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PyTuple};

use crate::error::{Code, Error, Remedy, Subject, Value};
use crate::sys;

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        Python::attach(|py| exception(py, error).unwrap_or_else(|failed| failed))
    }
}

fn exception(py: Python<'_>, mut error: Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    fields.set_item("argument", error.take_argument())?;
    fields.set_item("kind", format!("{:?}", error.kind()))?;
    fields.set_item("code", error.code().as_str())?;
    fields.set_item("message", error.to_string())?;
    fields.set_item("path", error.path().map(|path| path.as_os_str().to_owned()))?;
    fields.set_item("member", error.member())?;
    fields.set_item("offset", error.offset())?;
    fields.set_item("remedies", remedies(py, error.remedies())?)?;
    fields.set_item("errno", error.io_error().and_then(sys::errno))?;
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
        Subject::Memory { needed, available, bound } => {
            fields.set_item("needed", needed)?;
            fields.set_item("available", available)?;
            fields.set_item("bound", bound)?;
        }
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

/// Remedies as the fields of Python's class: what to do, with what, its value, and why.
pub(super) fn remedies<'py>(py: Python<'py>, remedies: &[Remedy]) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    let any = || PyEllipsis::get(py).to_owned().into_any();
    let fields = remedies.iter().map(|remedy| {
        let (act, name, value, why) = match remedy {
            Remedy::Say(words) => ("say", &**words, any(), ""),
            Remedy::Raise(limit, when) => ("raise", *limit, any(), *when),
            Remedy::Pass(name, value, why) => {
                let value = match value {
                    Value::Any => any(),
                    Value::Flag(flag) => flag.into_bound_py_any(py)?,
                    Value::Word(word) => word.into_bound_py_any(py)?,
                };
                ("pass", *name, value, *why)
            }
            Remedy::Call(function, why) => ("call", *function, any(), *why),
            Remedy::List => ("list", "", any(), ""),
        };
        (act, name, value, why).into_pyobject(py)
    });
    fields.collect()
}

/// Whether it has a code of the catalogue: an exception that rustload's own Python code made, in a source that it wrote.
fn is_ours(exception: &Bound<'_, PyBaseException>) -> bool {
    let code = exception.getattr("code").and_then(|code| code.extract::<String>());
    code.is_ok_and(|code| Code::ALL.iter().any(|known| known.as_str() == code))
}
