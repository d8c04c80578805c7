//! Kinds of arguments: each is parsed once, here, and its error lists what it may be.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyString, PyTuple, PyType};

use super::limits::Limits;
use crate::bytes::Io;
use crate::dtype::DType;
use crate::error::{Code, Error};
use crate::index::Unknown;
use crate::kernel::Overflow;
use crate::limits::Limits as CoreLimits;
use crate::tensor::Order;

/// The error for an argument that has none of its values.
fn wrong(code: Code, argument: &'static str, allowed: &str, given: Borrowed<'_, '_, PyAny>) -> PyErr {
    match given.repr() {
        Ok(given) => {
            let text = format!("is {allowed}, not {}", given.to_string_lossy());
            Error::new(code, text).on_argument(argument).into()
        }
        Err(error) => error,
    }
}

/// Arguments whose values are words.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident($inner:ty) $argument:literal: $allowed:literal { $($word:literal => $value:expr,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq)]
        pub(crate) struct $name(pub(super) $inner);

        impl $name {
            /// The word for the value.
            pub(super) fn word(self) -> &'static str {
                [$(($value, $word),)+].into_iter().find_map(|(value, word)| (value == self.0).then_some(word)).unwrap_or_default()
            }
        }

        impl<'a, 'py> FromPyObject<'a, 'py> for $name {
            type Error = PyErr;

            fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<$name> {
                let word = given.cast::<PyString>().ok().and_then(|word| word.extract::<String>().ok());
                match word.as_deref() {
                    $(Some($word) => Ok($name($value)),)+
                    _ => Err(wrong(Code::Value, $argument, $allowed, given)),
                }
            }
        }
    )+};
}

words! {
    /// `unknown=`
    UnknownArg(Unknown) "unknown": "'keep' or 'error'" { "keep" => Unknown::Keep, "error" => Unknown::Error, }
    /// `trailing=`: whether trailing bytes are ignored.
    TrailingArg(bool) "trailing": "'error' or 'ignore'" { "error" => false, "ignore" => true, }
    /// `io=`
    IoArg(Io) "io": "'auto', 'buffered' or 'direct'" {
        "auto" => Io::Auto, "buffered" => Io::Buffered, "direct" => Io::Direct,
    }
    /// `overflow=`
    OverflowArg(Overflow) "overflow": "'nan' or 'saturate'" { "nan" => Overflow::Nan, "saturate" => Overflow::Saturate, }
}

/// A flag: anything that is true or false in Python.
pub(crate) struct Flag(pub(super) bool);

impl<'a, 'py> FromPyObject<'a, 'py> for Flag {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Flag> {
        given.is_truthy().map(Flag)
    }
}

/// `copy=`
#[derive(Default)]
pub(crate) struct CopyArg(pub(super) Option<bool>);

impl<'a, 'py> FromPyObject<'a, 'py> for CopyArg {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<CopyArg> {
        if given.is_none() {
            return Ok(CopyArg(None));
        }
        let flag =
            given.cast::<PyBool>().map_err(|_| wrong(Code::Type, "copy", "True, False or None", given))?;
        Ok(CopyArg(Some(flag.is_true())))
    }
}

/// `threads=`
#[derive(Default)]
pub(crate) struct ThreadsArg(pub(super) Option<usize>);

impl<'a, 'py> FromPyObject<'a, 'py> for ThreadsArg {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<ThreadsArg> {
        const THREADS_MAX: usize = 1 << 16;
        if given.is_none() {
            return Ok(ThreadsArg(None));
        }
        let number = given
            .call_method0("__index__")
            .map_err(|_| wrong(Code::Type, "threads", "a positive number or None", given))?;
        if number.le(0)? {
            return Err(wrong(Code::Value, "threads", "a positive number or None", given));
        }
        // What does not fit is larger.
        Ok(ThreadsArg(Some(number.extract().unwrap_or(THREADS_MAX).min(THREADS_MAX))))
    }
}

/// `transpose=` of one tensor: None, a flag, or a permutation.
pub(crate) struct OrderArg(pub(super) Order);

impl<'a, 'py> FromPyObject<'a, 'py> for OrderArg {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<OrderArg> {
        if given.is_none() {
            return Ok(OrderArg(Order::Same));
        }
        if let Ok(flag) = given.cast::<PyBool>() {
            return Ok(OrderArg(if flag.is_true() { Order::Transpose } else { Order::Same }));
        }
        if !given.is_instance_of::<PyTuple>() && !given.is_instance_of::<PyList>() {
            return Err(wrong(Code::Type, "transpose", "True, False, None or a tuple of dimensions", given));
        }
        // `extract` takes what has `__index__`: integers of NumPy, but no floats.
        let dims = given.try_iter()?.map(|dim| dim?.extract());
        dims.collect::<PyResult<_>>().map(|dims| OrderArg(Order::Permute(dims)))
    }
}

/// A dtype: a name as torch, safetensors or NumPy spells it, or a dtype of a framework.
#[derive(Clone, Copy)]
pub(crate) struct DTypeArg(pub(super) DType);

impl<'a, 'py> FromPyObject<'a, 'py> for DTypeArg {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<DTypeArg> {
        let name = dtype_name(given)?;
        // A lone surrogate, of which this makes another character, is in no name.
        let name = name.to_string_lossy();
        DType::parse(&name).map(DTypeArg).map_err(|error| with_similar(given.py(), error.into(), &name))
    }
}

/// The name of what stands for a dtype. Fails for what does not.
fn dtype_name<'py>(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    if let Ok(name) = given.cast::<PyString>() {
        return Ok(name.to_owned());
    }
    let is_builtin =
        given.cast::<PyType>().is_ok_and(|class| class.module().is_ok_and(|module| module == "builtins"));
    let mut named = None;
    for attribute in ["name", "__name__"] {
        if named.is_none() {
            named = given.getattr_opt(attribute)?.filter(|name| name.is_truthy().unwrap_or(false));
        }
    }
    let name = match named {
        Some(name) => name.cast_into::<PyString>().ok(),
        None => Some(given.str()?),
    };
    name.filter(|_| !is_builtin).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{given:?} is not a dtype; use a string such as 'bfloat16', a torch.dtype or a NumPy dtype"
        ))
    })
}

/// The error for the name of no dtype; a note has the names that are similar.
fn with_similar(py: Python<'_>, error: PyErr, name: &str) -> PyErr {
    let wanted = name.to_lowercase();
    let wanted =
        if name.contains("float") { wanted } else { wanted.replace("fp", "float").replace("bf", "bfloat") };
    let known = || DType::ALL.iter().map(|dtype| dtype.name().to_owned());
    let begin: Vec<String> = known().filter(|one| one.starts_with(&wanted)).collect();
    let near = if begin.is_empty() { crate::checkpoint::similar(&wanted, known(), 3) } else { begin };
    let note = match (name, near.as_slice()) {
        ("auto", _) => "omit dtype= to keep the file's dtype".to_owned(),
        ("", _) | (_, []) => return error,
        _ => format!("did you mean: {}", near.join(", ")),
    };
    match error.value(py).call_method1("add_note", (note,)) {
        Ok(_) => error,
        Err(failed) => failed,
    }
}

/// `limits=`
#[derive(Default)]
pub(crate) struct LimitsArg(pub(super) CoreLimits);

impl<'a, 'py> FromPyObject<'a, 'py> for LimitsArg {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<LimitsArg> {
        if given.is_none() {
            return Ok(LimitsArg::default());
        }
        let limits = given.cast::<Limits>();
        let limits = limits.map_err(|_| wrong(Code::Type, "limits", "a rustload.Limits", given))?;
        Ok(LimitsArg(limits.get().0.clone()))
    }
}
