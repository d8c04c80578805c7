//! Calls that put a tensor together, by the argument forms of `torch/_utils.py` and `torch/_tensor.py`.

use super::storage::Spot;
use super::{Meaning, Reader};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::known::{Known, Rebuild};
use crate::index::validate::{Flags, RawTensor, Sizes, Tensor};
use crate::index::{Place, Storage};
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
                let Some((id, found)) = self.tensor_id(tensor) else { return Ok(None) };
                let mut tensor = found.clone();
                tensor.flags = Flags { parameter: true, requires_grad, ..tensor.flags };
                let quantization = self.out.extras.get(&id).and_then(|extra| extra.quantization.clone());
                let id = self.push(tensor)?;
                if quantization.is_some() {
                    self.extra(id).quantization = quantization;
                }
                if let Some(&state) = args.get(3) {
                    self.set_state(id, state);
                }
                return Ok(Some(id));
            }
            (Rebuild::FromType, &[function, class, inner, state]) => {
                let Some(Known::Rebuild(rebuild)) = self.known(function) else { return Ok(None) };
                let Value::Tuple(inner) = self.values.get(inner) else { return Err(wrong()) };
                if matches!(rebuild, Rebuild::FromType | Rebuild::Sparse) {
                    return Ok(None);
                }
                let Some(tensor) = self.rebuild(rebuild, inner)? else { return Ok(None) };
                if let Value::Global(id) = self.values.get(class) {
                    let global = self.values.global(id);
                    if (global.module, global.name) != ("torch", "Tensor") {
                        self.extra(tensor).class = Some(id);
                    }
                }
                self.set_state(tensor, state);
                return Ok(Some(tensor));
            }
            (Rebuild::Quantized, &[storage, offset, size, stride, params, grad, _]) => {
                let flags = self.flags(grad, None)?;
                return self.quantized(storage, [offset, size, stride], params, flags);
            }
            (Rebuild::Meta, &[dtype, size, stride, grad]) => {
                let requires_grad = self.bool(grad)?;
                let Some(Known::Dtype(dtype)) = self.known(dtype) else { return Ok(None) };
                return self.meta(dtype, size, stride, requires_grad).map(Some);
            }
            (Rebuild::FromDevice, _) => return self.device_tensor(args),
            _ => return Err(wrong()),
        }
        .map(Some)
    }

    /// Whether the arguments are of the kinds that `rebuild` takes; whether the tensor lies in its storage is not asked.
    pub(super) fn has_form(&self, rebuild: Rebuild, args: &[Handle]) -> bool {
        let is = |handle, test: fn(Value<'_>) -> bool| test(self.values.get(handle));
        let placed = |[storage, offset, size, stride]: [Handle; 4]| {
            (is(storage, |value| matches!(value, Value::PersistentId(_))) || self.is_nested(storage))
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
                    (Some(Known::Rebuild(Rebuild::FromType | Rebuild::Sparse)), _) => false,
                    (Some(Known::Rebuild(rebuild)), Value::Tuple(inner)) => self.has_form(rebuild, inner),
                    _ => false,
                }
            }
            (Rebuild::Quantized, &[storage, offset, size, stride, params, grad, _]) => {
                let is_tuple = matches!(self.values.get(params), Value::Tuple(_));
                is_tuple && is_bool(grad) && placed([storage, offset, size, stride])
            }
            (Rebuild::Sparse, &[_, parts]) => matches!(self.values.get(parts), Value::Tuple(_)),
            (Rebuild::Meta, &[dtype, _, _, grad]) => {
                matches!(self.known(dtype), Some(Known::Dtype(_))) && is_bool(grad)
            }
            (Rebuild::FromDevice, &[data, _, _, grad]) => is_call(data) && is_bool(grad),
            _ => false,
        }
    }

    /// The tensor that a value is, if it is one.
    pub(super) fn tensor_at(&self, handle: Handle) -> Option<&Tensor> {
        self.tensor_id(handle).map(|(_, tensor)| tensor)
    }

    fn tensor_id(&self, handle: Handle) -> Option<(u32, &Tensor)> {
        let Value::Call(id) = self.values.get(handle) else { return None };
        match self.out.calls.get(id.index()) {
            Some(&Meaning::Tensor(tensor)) => {
                self.out.tensors.get(usize::try_from(tensor).ok()?).map(|found| (tensor, found))
            }
            _ => None,
        }
    }

    pub(super) fn tensor(
        &mut self,
        spot: Spot,
        dtype: DType,
        place: [Handle; 3],
        flags: Flags,
    ) -> Result<u32> {
        let tensor = self.proved(spot, dtype, place, flags)?;
        self.push(tensor)
    }

    pub(super) fn proved(
        &self,
        spot: Spot,
        dtype: DType,
        place: [Handle; 3],
        flags: Flags,
    ) -> Result<Tensor> {
        let [offset, size, stride] = place;
        let (shape, strides) = (self.ints(size, "size")?, self.ints(stride, "stride")?);
        let offset = self.int(offset, "offset")?;
        let raw = RawTensor { dtype, shape, strides, offset, storage: spot.storage, flags };
        raw.prove(spot.nbytes, self.limits)?.shifted(spot.start)
    }

    /// A tensor without bytes, on a storage of its own that nothing can be read from.
    fn meta(&mut self, dtype: DType, size: Handle, stride: Handle, requires_grad: bool) -> Result<u32> {
        let (shape, strides) = (self.ints(size, "size")?, self.ints(stride, "stride")?);
        let storage = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        let flags = Flags { requires_grad, meta: true, ..Flags::default() };
        let tensor = RawTensor { dtype, shape, strides, offset: 0, storage, flags }.imagine(self.limits)?;
        let nowhere = Storage { place: Place::Meta, nbytes: 0, numel: 0, big_endian: false, location: None };
        self.out.storages.push(nowhere);
        self.push(tensor)
    }

    /// Keeps what is set on a tensor: attributes as a dict, or a pair of them and slots; nothing where there are none.
    fn set_state(&mut self, tensor: u32, state: Handle) {
        let is_empty = match self.values.get(state) {
            Value::None => true,
            Value::Dict(pairs) => pairs.is_empty(),
            _ => false,
        };
        if !is_empty {
            self.extra(tensor).states.push(state);
        }
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
                // torch writes True, and goes by the key alone when it reads.
                Some("conj") if self.bool(value)? => flags.conjugate = true,
                Some("neg") if self.bool(value)? => flags.negative = true,
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
