//! NumPy arrays and scalars, whose bytes lie in the pickle itself (`numpy/_core/multiarray`, `numeric`).
//!
//! An array is `_reconstruct(ndarray, (0,), b'b')` with BUILD `(1, shape, dtype, is_fortran, bytes)`, or in protocol 5
//! `_frombuffer(bytes, dtype, shape, order)`. A dtype is `dtype('f4', False, True)` with BUILD `(3, byte order, ...)`. Arrays of
//! objects, records, strings and times remain opaque.

use super::{CallInterpreter, Found, Meaning};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::known::Known;
use crate::index::validate::RawTensor;
use crate::index::{Location, Storage};
use crate::pickle::{Call, Handle, Value};

/// A NumPy dtype that rustload supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) struct NumpyType {
    pub(in crate::index) dtype: DType,
    pub(in crate::index) big_endian: bool,
}

impl<'a> CallInterpreter<'a> {
    /// Interprets a call of a NumPy function.
    pub(super) fn numpy(&mut self, known: Known, call: &Call<'a>, args: &'a [Handle]) -> Result<Meaning> {
        let states: &'a [Handle] = call.states;
        let parts = match (known, args, states) {
            (Known::NumpyDtype, _, _) => return Ok(self.numpy_dtype(args, states)),
            (Known::NumpyScalar, &[dtype, bytes], []) => {
                let Some(numpy_type) = self.numpy_type(dtype) else { return Ok(Meaning::Opaque) };
                let Some(len) = self.byte_len(bytes) else { return Ok(Meaning::Opaque) };
                if len != numpy_type.dtype.itemsize() {
                    let text = format!("a scalar of {} has {len} byte(s)", numpy_type.dtype);
                    return Err(Error::new(Code::NdarrayBounds, text));
                }
                return Ok(Meaning::Scalar(numpy_type, bytes));
            }
            (Known::NumpyReconstruct, _, &[state]) => match self.values.get(state) {
                Value::Tuple(&[_, shape, dtype, fortran, bytes]) => matches!(
                    self.values.get(fortran),
                    Value::Bool(_) | Value::Int(_)
                )
                .then_some((shape, dtype, bytes, self.is_true(fortran))),
                _ => None,
            },
            (Known::NumpyFromBuffer, &[bytes, dtype, shape, order], []) => {
                Some((shape, dtype, bytes, self.is_string(order, "F")))
            }
            _ => None,
        };
        let Some((shape, dtype, bytes, fortran)) = parts else { return Ok(Meaning::Opaque) };
        let Some(numpy_type) = self.numpy_type(dtype) else { return Ok(Meaning::Opaque) };
        let Some(nbytes) = self.byte_len(bytes) else { return Ok(Meaning::Opaque) };
        self.array(shape, numpy_type, bytes, nbytes, fortran).map(Meaning::Tensor)
    }

    /// Adds an array and its storage. Fails with `NdarrayBounds` where shape and dtype do not give `nbytes`.
    fn array(
        &mut self,
        shape: Handle,
        numpy_type: NumpyType,
        bytes: Handle,
        nbytes: u64,
        fortran: bool,
    ) -> Result<u32> {
        let shape = self.ints(shape, "shape")?;
        let sizes: Option<Vec<u64>> = shape.iter().map(|&size| u64::try_from(size).ok()).collect();
        let numel = sizes.as_deref().and_then(crate::layout::numel);
        if numel.and_then(|numel| numel.checked_mul(numpy_type.dtype.itemsize())) != Some(nbytes) {
            let text = format!("an array of {} and shape {shape:?} has {nbytes} byte(s)", numpy_type.dtype);
            return Err(Error::new(Code::NdarrayBounds, text));
        }
        let storage = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        self.out.storages.push(Storage {
            location: Found::At(Location::Value(bytes, 0)),
            nbytes,
            numel: numel.unwrap_or(0),
            big_endian: numpy_type.big_endian,
            device: None,
        });
        let raw = RawTensor::contiguous(numpy_type.dtype, shape, fortran, storage)?;
        self.push(raw.prove(nbytes, self.limits)?)
    }

    /// Interprets `dtype('f4', False, True)` with the state `(3, '<', None, None, None, -1, -1, 0)` (numpy: `arraydescr_reduce`).
    fn numpy_dtype(&self, args: &[Handle], states: &[Handle]) -> Meaning {
        let (&[name] | &[name, _, _]) = args else { return Meaning::Opaque };
        let Value::Str(name) = self.values.get(name) else { return Meaning::Opaque };
        let name = if name.as_bytes().len() <= 8 { name.as_str().unwrap_or_default() } else { "" };
        let Some(dtype) = DType::from_numpy_code(name) else { return Meaning::Opaque };
        let order = match states {
            [] => Some("|"),
            [state] => match self.values.get(*state) {
                Value::Tuple([_, order, rest @ ..])
                    if rest.iter().take(3).all(|&item| self.is_none(item)) =>
                {
                    ["<", ">", "|", "="].into_iter().find(|known| self.is_string(*order, known))
                }
                _ => None,
            },
            _ => None,
        };
        match order {
            Some(order) => Meaning::NumpyDtype(NumpyType { dtype, big_endian: order == ">" }),
            None => Meaning::Opaque,
        }
    }

    /// The dtype that a value is. An array's dtype is in its BUILD state, so the dtype's call may follow the array's; it is interpreted
    /// again here.
    fn numpy_type(&self, handle: Handle) -> Option<NumpyType> {
        let Value::Call(id) = self.values.get(handle) else { return None };
        let call = self.values.call(id);
        let Value::Tuple(args) = self.values.get(call.args) else { return None };
        if self.known(call.callable) != Some(Known::NumpyDtype) {
            return None;
        }
        match self.numpy_dtype(args, call.states) {
            Meaning::NumpyDtype(numpy_type) => Some(numpy_type),
            _ => None,
        }
    }

    /// The length in bytes of bytes, a byte array, a string of Python 2, or `_codecs.encode(text, 'latin1')`; `None` for other values.
    fn byte_len(&mut self, handle: Handle) -> Option<u64> {
        let len = match self.values.get(handle) {
            Value::Bytes(bytes) | Value::ByteArray(bytes) => bytes.len(),
            // A byte string of Python 2 that is valid UTF-8.
            Value::Str(text) => text.as_bytes().len(),
            Value::Call(id) => {
                let call = self.values.call(id);
                let Value::Tuple(args) = self.values.get(call.args) else { return None };
                return match (self.known(call.callable), args) {
                    (Some(Known::Bytes), []) => Some(0),
                    (Some(Known::Encode), &[text, _]) if self.is_latin1(args) => Some(self.latin1_len(text)),
                    _ => None,
                };
            }
            _ => return None,
        };
        u64::try_from(len).ok()
    }

    /// The length of a string in latin-1. Cached, since any number of arrays may share it.
    fn latin1_len(&mut self, handle: Handle) -> u64 {
        let values = self.values;
        *self.lengths.entry(handle).or_insert_with(|| match values.get(handle) {
            Value::Str(text) => {
                text.as_str().map_or(0, |text| u64::try_from(text.chars().count()).unwrap_or(u64::MAX))
            }
            _ => 0,
        })
    }

    fn is_true(&self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::Bool(true) | Value::Int(1))
    }

    fn is_none(&self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::None)
    }

    fn is_string(&self, handle: Handle, expected: &str) -> bool {
        matches!(self.values.get(handle), Value::Str(text) if text.as_bytes() == expected.as_bytes())
    }
}
