//! Values without items: numbers, texts, names of classes and functions, and tensors.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyComplex, PyDict, PyList, PyString};

use super::{Export, TEXT_NODE_BYTES};
use crate::error::{Code, Error};
use crate::index::{Object, Scale, Tree};
use crate::pickle::{BigInt, GlobalId, Handle, Snapshot, Text};
use crate::python::objects::target::Target;

const PARAMETER: &str = "torch.nn.parameter.Parameter";

impl<'a, 'py> Export<'a, 'py> {
    /// Makes a value without items.
    pub(super) fn plain(&mut self, handle: Handle, object: &Object<'a>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        self.charge(text_len(object) / TEXT_NODE_BYTES)?;
        if let Some(py_object) = self.byte_string(handle, object)? {
            return Ok(py_object);
        }
        Ok(match object {
            Object::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Object::Int(value) => value.into_pyobject(py)?.into_any(),
            Object::Uint(value) => value.into_pyobject(py)?.into_any(),
            Object::BigInt(value) => self.integer(value)?,
            Object::Float(value) => value.into_pyobject(py)?.into_any(),
            Object::Complex(re, im) => PyComplex::from_doubles(py, *re, *im).into_any(),
            Object::Str(value) => text(py, value)?,
            Object::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            Object::ByteArray(bytes) => PyByteArray::new(py, bytes).into_any(),
            Object::Global { module, name } => {
                let key = (module.as_ptr().addr(), module.len());
                let module = self.modules.entry(key).or_insert_with(|| PyString::new(py, module));
                let py_object = match &self.target {
                    Target::Torch(torch) => torch.global(module, name)?,
                    _ => None,
                };
                match py_object {
                    Some(py_object) => py_object,
                    None => self.inert.call_method1(intern!(py, "Global"), (&*module, *name))?,
                }
            }
            Object::Tensor(tensor) => self.tensor(handle, *tensor)?,
            _ => py.None().into_bound(py),
        })
    }

    /// A binary string of Python 2, where the target decodes them.
    fn byte_string(&self, handle: Handle, object: &Object<'a>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match (&self.target, object) {
            (Target::Torch(torch), Object::Str(text)) => {
                torch.byte_string(self.py, self.tree, handle, text.as_bytes())
            }
            (Target::Torch(torch), Object::Bytes(bytes)) => {
                torch.byte_string(self.py, self.tree, handle, bytes)
            }
            _ => Ok(None),
        }
    }

    fn tensor(&mut self, handle: Handle, tensor: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        if let Some(py_object) = self.tensors.get(&tensor) {
            return Ok(py_object.clone());
        }
        let py_object = match &self.target {
            Target::Keys => return Ok(py.None().into_bound(py)),
            Target::Lazy(lazy) => lazy.handle(py, tensor)?,
            Target::Torch(torch) => match self.tree.is_storage(handle) {
                true => torch.storage(py, tensor, self.tree.quantized_storage(tensor))?,
                false => torch.tensor(py, tensor, self.tree.has_hooks(handle))?,
            },
        };
        let py_object = py_object.ok_or_else(|| {
            Error::new(Code::InternalError, "the object tree refers to a tensor that does not exist")
        })?;
        self.tensors.insert(tensor, py_object.clone());
        Ok(py_object)
    }

    /// The name of an opaque value's class, made once.
    pub(super) fn class_name(&mut self, class: Option<GlobalId>) -> PyResult<Bound<'py, PyString>> {
        if let Some(name) = self.classes.get(&class) {
            return Ok(name.clone());
        }
        let name = PyString::new(self.py, &self.tree.name_of(class));
        self.classes.insert(class, name.clone());
        Ok(name)
    }

    /// A tensor of torch whose scales are made. Its attributes are set at the end.
    pub(super) fn tensor_of_parts(&mut self, handle: Handle, tensor: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let tree: &'a Tree = self.tree;
        let missing =
            || Error::new(Code::InternalError, "the object tree refers to a tensor that does not exist");
        if let (Target::Torch(torch), Some(quantization)) =
            (&mut self.target, tree.extra(tensor).and_then(|extra| extra.quantization.as_ref()))
            && let Scale::Channel { scales, zero_points, .. } = quantization.scale
        {
            torch.check_channels(tree, scales.value)?;
            torch.check_channels(tree, zero_points.value)?;
            torch.check_quantized(tensor, quantization)?;
        }
        let (Target::Torch(torch), Some(extra)) = (&self.target, tree.extra(tensor)) else {
            return Err(missing().into());
        };
        let py_object = match extra.quantization.as_ref().map(|quantization| &quantization.scale) {
            None => torch.tensor(py, tensor, self.tree.has_hooks(handle))?,
            Some(Scale::Tensor { scale, zero_point }) => {
                let (scale, zero_point) = (scale.into_pyobject(py)?, zero_point.into_pyobject(py)?);
                torch.quantized(py, tensor, extra, (scale.into_any(), zero_point.into_any(), None))?
            }
            Some(Scale::Channel { scales, zero_points, axis }) => {
                let scale = (self.channels(*scales)?, self.channels(*zero_points)?, Some(*axis));
                torch.quantized(py, tensor, extra, scale)?
            }
        };
        let py_object = py_object.ok_or_else(missing)?;
        let class = extra.class.map(|class| tree.name_of(Some(class)));
        let py_object = if class.as_deref() == Some(PARAMETER) {
            torch.builder.call_method1(intern!(py, "parameter"), (&py_object,))?
        } else {
            py_object
        };
        self.states.extend(extra.states.iter().map(|&state| (py_object.clone(), state)));
        self.tensors.insert(tensor, py_object.clone());
        Ok(py_object)
    }

    /// Scales or zero points: a tensor, or a list of numbers. The exported list may not be filled yet, so a new one is made.
    fn channels(&self, part: Snapshot) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let Some(items) = self.tree.list_at(part) else { return self.get(part.value) };
        let numbers = PyList::empty(py);
        for &item in items {
            match self.tree.get(item)? {
                Object::Int(number) => numbers.append(number)?,
                Object::Float(number) => numbers.append(number)?,
                _ => return Err(Error::new(Code::InternalError, "a scale is not a number").into()),
            }
        }
        Ok(numbers.into_any())
    }

    fn integer(&self, value: &BigInt<'_>) -> PyResult<Bound<'py, PyAny>> {
        let int = self.py.import("builtins")?.getattr("int")?;
        let signed = PyDict::new(self.py);
        signed.set_item("signed", true)?;
        int.getattr("from_bytes")?.call((PyBytes::new(self.py, value.as_le_bytes()), "little"), Some(&signed))
    }
}

/// The length of a string, bytes or global in bytes; 0 for other values.
fn text_len(object: &Object<'_>) -> u64 {
    let len = match object {
        Object::Str(text) => text.as_bytes().len(),
        Object::Bytes(bytes) | Object::ByteArray(bytes) => bytes.len(),
        Object::Global { module, name } => module.len() + name.len(),
        _ => 0,
    };
    len as u64
}

/// A Python string. Lone surrogates are kept, as Python's unpickler does.
pub(in crate::python::objects) fn text<'py>(py: Python<'py>, text: &Text<'_>) -> PyResult<Bound<'py, PyAny>> {
    match text.as_str() {
        Some(text) => Ok(text.into_pyobject(py)?.into_any()),
        None => PyBytes::new(py, text.as_bytes()).call_method1("decode", ("utf-8", "surrogatepass")),
    }
}
