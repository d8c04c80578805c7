//! Calls that put a tensor together, by the argument forms of `torch/_utils.py` and `torch/_tensor.py`.

use super::storage::Spot;
use super::{Meaning, Reader};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::known::{Known, Rebuild};
use crate::index::validate::{Flags, RawTensor, Sizes, Tensor};
use crate::limits::Limits;
use crate::pickle::{Handle, Value};

/// Pairs in a tensor's metadata dict; torch writes `conj` and `neg`.
const PROPERTIES: usize = 16;

impl<'a> Reader<'a> {
    /// The tensor that a known function puts together; `None` where a part of it is of an unknown class.
    pub(super) fn rebuild(&mut self, rebuild: Rebuild, args: &'a [Handle]) -> Result<Option<u32>> {
        let wrong =
            || Error::new(Code::PickleType, format!("{rebuild:?} is called with {} argument(s)", args.len()));
        match (rebuild, args) {
            (Rebuild::Tensor, &[storage, offset, size, stride]) => {
                let spot = self.storage_of(storage)?;
                self.tensor(spot, spot.dtype, [offset, size, stride], Flags::default())
            }
            (Rebuild::TensorV2, &[storage, offset, size, stride, grad, _, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let spot = self.storage_of(storage)?;
                let flags = self.flags(grad, rest.first())?;
                self.tensor(spot, spot.dtype, [offset, size, stride], flags)
            }
            (Rebuild::TensorV3, &[storage, offset, size, stride, grad, _, dtype, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let Some(Known::Dtype(dtype)) = self.known(dtype) else { return Ok(None) };
                let spot = self.storage_of(storage)?;
                if spot.nbytes.checked_rem(dtype.itemsize()) != Some(0) {
                    let text =
                        format!("a storage of {} byte(s) holds no whole number of {dtype}", spot.nbytes);
                    return Err(Error::new(Code::StorageBounds, text));
                }
                let flags = self.flags(grad, rest.first())?;
                self.tensor(spot, dtype, [offset, size, stride], flags)
            }
            (Rebuild::Parameter, &[tensor, grad, _])
            | (Rebuild::ParameterWithState, &[tensor, grad, _, _]) => {
                let requires_grad = self.bool(grad)?;
                let Some(found) = self.tensor_at(tensor) else { return Ok(None) };
                let mut tensor = found.clone();
                tensor.flags = Flags { parameter: true, requires_grad, ..tensor.flags };
                return self.push(tensor).map(Some);
            }
            (Rebuild::FromType, &[function, _, inner, _]) => {
                let Some(Known::Rebuild(rebuild)) = self.known(function) else { return Ok(None) };
                let Value::Tuple(inner) = self.values.get(inner) else { return Err(wrong()) };
                if rebuild == Rebuild::FromType {
                    return Ok(None);
                }
                return self.rebuild(rebuild, inner);
            }
            _ => return Err(wrong()),
        }
        .map(Some)
    }

    /// Whether the arguments are of the kinds that `rebuild` takes; whether the tensor lies in its storage is not asked.
    pub(super) fn has_form(&self, rebuild: Rebuild, args: &[Handle]) -> bool {
        let is = |handle, test: fn(Value<'_>) -> bool| test(self.values.get(handle));
        let placed = |[storage, offset, size, stride]: [Handle; 4]| {
            is(storage, |value| matches!(value, Value::PersistentId(_)))
                && is(offset, |value| matches!(value, Value::Int(_)))
                && [size, stride].into_iter().all(|dims| is(dims, |value| matches!(value, Value::Tuple(_))))
        };
        let is_bool = |handle| is(handle, |value| matches!(value, Value::Bool(_)));
        let is_call = |handle| is(handle, |value| matches!(value, Value::Call(_)));
        match (rebuild, args) {
            (Rebuild::Tensor, &[storage, offset, size, stride]) => placed([storage, offset, size, stride]),
            (Rebuild::TensorV2, &[storage, offset, size, stride, grad, _, ref rest @ ..]) => {
                rest.len() <= 1 && is_bool(grad) && placed([storage, offset, size, stride])
            }
            (Rebuild::TensorV3, &[storage, offset, size, stride, grad, _, dtype, ref rest @ ..]) => {
                rest.len() <= 1
                    && is_bool(grad)
                    && matches!(self.known(dtype), Some(Known::Dtype(_)))
                    && placed([storage, offset, size, stride])
            }
            (Rebuild::Parameter, &[tensor, grad, _])
            | (Rebuild::ParameterWithState, &[tensor, grad, _, _]) => is_call(tensor) && is_bool(grad),
            (Rebuild::FromType, &[function, _, inner, _]) => {
                match (self.known(function), self.values.get(inner)) {
                    (Some(Known::Rebuild(Rebuild::FromType)), _) => false,
                    (Some(Known::Rebuild(rebuild)), Value::Tuple(inner)) => self.has_form(rebuild, inner),
                    _ => false,
                }
            }
            _ => false,
        }
    }

    fn tensor_at(&self, handle: Handle) -> Option<&Tensor> {
        let Value::Call(id) = self.values.get(handle) else { return None };
        match self.out.calls.get(id.index()) {
            Some(&Meaning::Tensor(tensor)) => self.out.tensors.get(usize::try_from(tensor).ok()?),
            _ => None,
        }
    }

    fn tensor(&mut self, spot: Spot, dtype: DType, place: [Handle; 3], flags: Flags) -> Result<u32> {
        let [offset, size, stride] = place;
        let (shape, strides) = (self.ints(size, "size")?, self.ints(stride, "stride")?);
        let offset = self.int(offset, "offset")?;
        let raw = RawTensor { dtype, shape, strides, offset, storage: spot.storage, flags };
        self.push(raw.prove(spot.nbytes, self.limits)?.shifted(spot.start)?)
    }

    pub(super) fn push(&mut self, tensor: Tensor) -> Result<u32> {
        let id = u32::try_from(self.out.tensors.len()).unwrap_or(u32::MAX);
        Limits::check("tensors", self.limits.tensors, u64::from(id).saturating_add(1))?;
        self.out.tensors.push(tensor);
        Ok(id)
    }

    pub(super) fn nbytes(&self, storage: u32) -> u64 {
        let found = usize::try_from(storage).ok().and_then(|id| self.out.storages.get(id));
        found.map_or(0, |storage| storage.nbytes)
    }

    fn flags(&self, grad: Handle, metadata: Option<&Handle>) -> Result<Flags> {
        let mut flags = Flags { requires_grad: self.bool(grad)?, ..Flags::default() };
        let Some(&metadata) = metadata else { return Ok(flags) };
        let pairs = match self.values.get(metadata) {
            Value::Dict(pairs) => pairs,
            Value::None => &[],
            _ => return Err(Error::new(Code::PickleType, "a tensor's metadata is no dict")),
        };
        if pairs.len() > PROPERTIES {
            let text = format!("a tensor carries {} properties, more than there are", pairs.len());
            return Err(Error::new(Code::TensorMetadata, text));
        }
        for &(key, value) in pairs {
            let Value::Str(key) = self.values.get(key) else {
                return Err(Error::new(Code::PickleType, "a tensor's metadata has a key that is no text"));
            };
            match key.as_str() {
                Some("conj") => flags.conjugate = self.bool(value)?,
                Some("neg") => flags.negative = self.bool(value)?,
                _ => {
                    let text = format!("a tensor carries the unknown property {:?}", key.to_string_lossy());
                    return Err(Error::new(Code::TensorMetadata, text));
                }
            }
        }
        Ok(flags)
    }

    pub(super) fn bool(&self, handle: Handle) -> Result<bool> {
        match self.values.get(handle) {
            Value::Bool(value) => Ok(value),
            _ => Err(Error::new(Code::PickleType, "a tensor's flag is no bool")),
        }
    }

    pub(super) fn int(&self, handle: Handle, what: &str) -> Result<i64> {
        match self.values.get(handle) {
            Value::Int(value) => Ok(value),
            _ => Err(Error::new(Code::PickleType, format!("a tensor's {what} is no integer of 64 bits"))),
        }
    }

    pub(super) fn ints(&self, handle: Handle, what: &str) -> Result<Sizes> {
        match self.values.get(handle) {
            Value::Tuple(items) => {
                Limits::check("rank", self.limits.rank, u64::try_from(items.len()).unwrap_or(u64::MAX))?;
                items.iter().map(|&item| self.int(item, what)).collect()
            }
            _ => Err(Error::new(Code::PickleType, format!("a tensor's {what} is no tuple"))),
        }
    }
}
