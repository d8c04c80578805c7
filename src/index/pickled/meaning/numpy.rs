//! NumPy arrays and scalars, whose bytes lie in the pickle itself (`numpy/_core/multiarray`, `numeric`).
//!
//! An array is `_reconstruct(ndarray, (0,), b'b')` with BUILD `(1, shape, dtype, is_fortran, bytes)`, or in protocol 5
//! `_frombuffer(bytes, dtype, shape, order)`. A dtype is `dtype('f4', False, True)` with BUILD `(3, byte order, ...)`. Arrays of
//! objects, records, strings and times remain opaque.

use super::{CallInterpreter, Found, Meaning, NumpyType};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail};
use crate::index::model::{RawTensor, Storage};
use crate::index::pickled::known::Known;
use crate::pickle::{Call, CallId, Handle, Value};

/// What to know of arrays of uint16 in the form of Paddle.
const PADDLE_BFLOAT16: &str =
    "Paddle saves bfloat16 as uint16: the file does not say which its uint16 tensors are";

impl<'a> CallInterpreter<'a> {
    /// Interprets a call of a NumPy function. `_reconstruct` makes an array without elements, which remains opaque until its BUILD.
    pub(super) fn numpy(&mut self, known: Known, args: &'a [Handle]) -> Result<Meaning> {
        let opaque = Ok(Meaning::Opaque);
        match (known, args) {
            (Known::NumpyDtype, _) => Ok(self.numpy_dtype(args)),
            (Known::NumpyScalar, &[dtype, bytes]) => {
                let Some(numpy_type) = self.numpy_type(dtype) else { return opaque };
                let Some(len) = self.byte_len(bytes)? else { return opaque };
                if len != numpy_type.dtype.itemsize() {
                    bail!(Code::NdarrayBounds, "a scalar of {} has {len} byte(s)", numpy_type.dtype);
                }
                Ok(Meaning::Scalar(numpy_type, bytes))
            }
            (Known::NumpyFromBuffer, &[bytes, dtype, shape, order]) => {
                let fortran = match self.values.get(order) {
                    Value::Str(order) if order.as_bytes() == b"C" => false,
                    Value::Str(order) if order.as_bytes() == b"F" => true,
                    _ => return opaque,
                };
                if matches!(self.values.get(bytes), Value::Str(_)) {
                    return opaque;
                }
                self.array(shape, dtype, bytes, fortran)
            }
            _ => opaque,
        }
    }

    /// The array of a tensor of Paddle (paddle/framework/io.py: `_pickle_save`), which is saved as `tuple((name, array))`; `None` for other
    /// items. Paddle gives a tensor of that name.
    pub(super) fn paddle_tensor(&mut self, items: Handle) -> Option<u32> {
        let Value::Tuple(&[name, array]) = self.get(items) else { return None };
        if !matches!(self.values.get(name), Value::Str(_)) || !self.is_array(array) {
            return None;
        }
        let (tensor, found) = self.tensor_id(array)?;
        if found.dtype() == DType::U16 && !std::mem::replace(&mut self.has_paddle_uint16, true) {
            self.out.notes.push(PADDLE_BFLOAT16.to_owned());
        }
        Some(tensor)
    }

    /// Interprets the state of an array, `(1, shape, dtype, is_fortran, bytes)` (numpy: `array_setstate`). The array remains opaque for
    /// any other form.
    pub(super) fn array_state(&mut self, state: Handle) -> Result<Meaning> {
        let Value::Tuple(&[version, shape, dtype, fortran, bytes]) = self.values.get(state) else {
            return Ok(Meaning::Opaque);
        };
        let fortran = match self.values.get(fortran) {
            Value::Bool(fortran) => fortran,
            Value::Int(fortran) => fortran != 0,
            _ => return Ok(Meaning::Opaque),
        };
        let is_known_version = matches!(self.values.get(version), Value::Int(0 | 1) | Value::Bool(_));
        if !is_known_version || matches!(self.values.get(bytes), Value::ByteArray(_)) {
            return Ok(Meaning::Opaque);
        }
        self.array(shape, dtype, bytes, fortran)
    }

    /// Adds an array and its storage; opaque where its dtype is not one of numbers. Fails with `NdarrayBounds` where shape and dtype
    /// do not give the number of bytes.
    fn array(&mut self, shape: Handle, dtype: Handle, bytes: Handle, fortran: bool) -> Result<Meaning> {
        let Some(numpy_type) = self.numpy_type(dtype) else { return Ok(Meaning::Opaque) };
        let Some(nbytes) = self.byte_len(bytes)? else { return Ok(Meaning::Opaque) };
        let shape = self.ints(shape, "shape")?;
        let sizes: Option<Vec<u64>> = shape.iter().map(|&size| u64::try_from(size).ok()).collect();
        let numel = sizes.as_deref().and_then(crate::layout::numel);
        if numel.and_then(|numel| numel.checked_mul(numpy_type.dtype.itemsize())) != Some(nbytes) {
            let text = format!("an array of {} and shape {shape:?} has {nbytes} byte(s)", numpy_type.dtype);
            return Err(Error::new(Code::NdarrayBounds, text));
        }
        let storage = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        self.out.storages.push(Storage {
            location: Found::Value(bytes, 0),
            nbytes,
            numel: numel.unwrap_or(0),
            big_endian: numpy_type.big_endian,
            device: None,
        });
        let raw = RawTensor::contiguous(numpy_type.dtype, shape, fortran, storage)?;
        self.push(raw.prove(nbytes, self.limits)?).map(Meaning::Tensor)
    }

    /// Interprets `dtype('f4', False, True)`; a BUILD may set its byte order.
    fn numpy_dtype(&self, args: &[Handle]) -> Meaning {
        let (&[name] | &[name, _, _]) = args else { return Meaning::Opaque };
        let Value::Str(name) = self.values.get(name) else { return Meaning::Opaque };
        let name = if name.as_bytes().len() <= 8 { name.as_str().unwrap_or_default() } else { "" };
        match DType::from_numpy_code(name) {
            Some(dtype) => Meaning::NumpyDtype(NumpyType { dtype, big_endian: false }),
            None => Meaning::Opaque,
        }
    }

    /// Interprets the state of a dtype, `(3, '<', None, None, None, -1, -1, 0)` (numpy: `arraydescr_setstate`); opaque for a dtype with
    /// fields or a subarray. Fails unless the dtype is a copy that nothing uses yet: NumPy would change what was made of it, or
    /// ignore the state of a dtype that the whole process shares.
    pub(super) fn dtype_state(&mut self, id: CallId, call: &Call<'a>, state: Handle) -> Result<Meaning> {
        let is_copy = match self.values.get(call.args) {
            Value::Tuple(&[_, _, copy]) => matches!(self.values.get(copy), Value::Bool(true) | Value::Int(1)),
            _ => false,
        };
        let is_first = call.states.first().is_some_and(|first| first.offset == self.now);
        let shared =
            || Error::new(Code::StateUnsupported, "BUILD changes a NumPy dtype that is shared, or in use");
        if !is_first || self.used_dtypes.contains(&id) {
            return Err(shared());
        }
        let Some(&Meaning::NumpyDtype(NumpyType { dtype, .. })) = self.out.calls.get(id.index()) else {
            return Ok(Meaning::Opaque);
        };
        let Value::Tuple(&[version, order, ref rest @ ..]) = self.values.get(state) else {
            return Ok(Meaning::Opaque);
        };
        let is_form = matches!(self.values.get(version), Value::Int(0..=4))
            && matches!(rest.len(), 5..=7)
            && rest.iter().take(3).all(|&item| self.is_none(item))
            && rest.get(5).is_none_or(|&flags| matches!(self.values.get(flags), Value::Int(0)));
        let order = ["<", ">", "|", "="].into_iter().find(|known| self.is_string(order, known));
        match order.filter(|_| is_form) {
            Some(_) if !is_copy => Err(shared()),
            Some(order) => Ok(Meaning::NumpyDtype(NumpyType { dtype, big_endian: order == ">" })),
            None => Ok(Meaning::Opaque),
        }
    }

    /// The dtype that a value is at this moment. Where no BUILD has set its state yet, none may later.
    fn numpy_type(&mut self, handle: Handle) -> Option<NumpyType> {
        let Value::Call(id) = self.values.get(handle) else { return None };
        let Some(&Meaning::NumpyDtype(numpy_type)) = self.out.calls.get(id.index()) else { return None };
        let states = self.values.call(id).states;
        if states.first().is_some_and(|first| first.offset > self.now) {
            self.used_dtypes.insert(id);
        }
        Some(numpy_type)
    }

    /// The length in bytes of bytes, a byte array, a string, which NumPy encodes as latin-1, or `_codecs.encode(text, 'latin1')`;
    /// `None` for other values. Fails for a string that latin-1 cannot encode.
    fn byte_len(&mut self, handle: Handle) -> Result<Option<u64>> {
        let len = match self.values.get(handle) {
            Value::Bytes(bytes) | Value::ByteArray(bytes) => bytes.len(),
            Value::Str(text) if self.values.is_byte_string(handle) => text.as_bytes().len(),
            Value::Str(_) if self.is_latin1_text(handle) => return Ok(Some(self.latin1_len(handle))),
            Value::Str(_) => {
                bail!(Code::PickleText, "the bytes of an array are text that latin-1 cannot encode");
            }
            Value::Call(id) if self.out.calls.get(id.index()) == Some(&Meaning::Bytes) => {
                return Ok(match self.values.get(self.values.call(id).args) {
                    Value::Tuple(&[text, _]) => Some(self.latin1_len(text)),
                    _ => Some(0),
                });
            }
            _ => return Ok(None),
        };
        Ok(u64::try_from(len).ok())
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

    fn is_none(&self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::None)
    }

    fn is_string(&self, handle: Handle, expected: &str) -> bool {
        matches!(self.values.get(handle), Value::Str(text) if text.as_bytes() == expected.as_bytes())
    }
}
