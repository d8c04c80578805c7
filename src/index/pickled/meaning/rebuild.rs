//! Calls that rebuild a tensor. The argument forms are those of `torch/_utils.py` and `torch/_tensor.py`.

use super::{CallInterpreter, Found, Meaning, StorageSlice};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail, error};
use crate::index::model::{Flags, Location, RawTensor, Sizes, Storage, Tensor};
use crate::index::pickled::known::{Known, Rebuild};
use crate::limits::Limits;
use crate::pickle::{Handle, Value};

/// The maximum number of items in a tensor's metadata dict; torch writes `conj` and `neg`.
const METADATA_MAX_ITEMS: usize = 16;

impl<'a> CallInterpreter<'a> {
    /// Adds the tensor that a known function rebuilds; `None` where a part of it is of an unknown class. Fails where the arguments
    /// have a wrong form.
    pub(super) fn rebuild(&mut self, rebuild: Rebuild, args: &[Handle]) -> Result<Option<u32>> {
        let wrong = || error!(Code::PickleType, "{rebuild:?} is called with {} argument(s)", args.len());
        match (rebuild, args) {
            (Rebuild::Tensor, &[storage, offset, size, stride]) => {
                self.strided(storage, [offset, size, stride], None, None)
            }
            (Rebuild::TensorV2, &[storage, offset, size, stride, requires_grad, _, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let flags = (requires_grad, rest.first().copied());
                self.strided(storage, [offset, size, stride], Some(flags), None)
            }
            (Rebuild::TensorV3, &[storage, offset, size, stride, requires_grad, _, dtype, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let flags = (requires_grad, rest.first().copied());
                self.strided(storage, [offset, size, stride], Some(flags), Some(dtype))
            }
            (Rebuild::Parameter, &[tensor, requires_grad, _]) => self.parameter(tensor, requires_grad),
            (Rebuild::ParameterWithState, &[tensor, requires_grad, _, state]) => {
                let parameter = self.parameter(tensor, requires_grad)?;
                if let Some(id) = parameter {
                    self.set_state(id, state)?;
                }
                Ok(parameter)
            }
            (Rebuild::FromType, &[function, class, inner, state]) => {
                let Some(Known::Rebuild(rebuild)) = self.known(function) else { return Ok(None) };
                let Value::Tuple(inner) = self.values.get(inner) else { return Err(wrong()) };
                if rebuild == Rebuild::WrapperSubclass {
                    return self.part(class, inner, state);
                }
                // `FromDevice` may return the tensor that it gets, and `as_subclass` another one.
                if matches!(rebuild, Rebuild::FromType | Rebuild::Sparse | Rebuild::FromDevice) {
                    return Ok(None);
                }
                let Some(tensor) = self.rebuild(rebuild, inner)? else { return Ok(None) };
                if let Value::Global(id) = self.values.get(class) {
                    if self.values.global_at(class) != Some(("torch", "Tensor")) {
                        self.extra(tensor).class = Some(id);
                    } else if let Some(tensor) = self.tensor_mut(tensor) {
                        tensor.flags.parameter = false;
                    }
                }
                self.set_state(tensor, state)?;
                Ok(Some(tensor))
            }
            (Rebuild::Quantized, &[storage, offset, size, stride, params, requires_grad, _]) => {
                let flags = self.flags(requires_grad, None)?;
                self.quantized(storage, [offset, size, stride], params, flags)
            }
            // A wrapper without its state.
            (Rebuild::WrapperSubclass, _) => Ok(None),
            (Rebuild::Meta, &[dtype, size, stride, requires_grad]) => {
                let requires_grad = self.bool(requires_grad)?;
                let Some(Known::Dtype(dtype)) = self.known(dtype) else { return Ok(None) };
                self.meta(dtype, size, stride, requires_grad).map(Some)
            }
            (Rebuild::FromDevice, &[data, dtype, device, requires_grad]) => {
                self.device_tensor(data, dtype, device, requires_grad)
            }
            _ => Err(wrong()),
        }
    }

    /// Adds the tensor of `_rebuild_tensor` and its versions 2 and 3. `geometry` is `[offset, size, stride]`, `flags` the handles of
    /// `requires_grad` and of the metadata.
    fn strided(
        &mut self,
        storage: Handle,
        geometry: [Handle; 3],
        flags: Option<(Handle, Option<Handle>)>,
        dtype: Option<Handle>,
    ) -> Result<Option<u32>> {
        let dtype = match dtype.map(|dtype| self.known(dtype)) {
            None => None,
            Some(Some(Known::Dtype(dtype))) => Some(dtype),
            Some(_) => return Ok(None),
        };
        let slice = self.storage_of(storage)?;
        if dtype.is_none() && self.quantized_class(storage).is_some() {
            bail!(Code::PickleType, "a tensor on a quantized storage has no scale");
        }
        if let Some(dtype) = dtype
            && slice.nbytes.checked_rem(dtype.itemsize()) != Some(0)
        {
            let nbytes = slice.nbytes;
            bail!(Code::StorageBounds, "a storage of {nbytes} byte(s) is not a whole number of {dtype}");
        }
        let flags = match flags {
            Some((requires_grad, metadata)) => self.flags(requires_grad, metadata)?,
            None => Flags::default(),
        };
        self.tensor(slice, dtype.unwrap_or(slice.dtype), geometry, flags).map(Some)
    }

    /// Adds a parameter of the elements of a tensor; `None` where that is of an unknown class.
    fn parameter(&mut self, tensor: Handle, requires_grad: Handle) -> Result<Option<u32>> {
        let requires_grad = self.bool(requires_grad)?;
        let Some((source, _)) = self.tensor_id(tensor) else { return Ok(None) };
        self.copy(source, |flags| Flags { parameter: true, requires_grad, ..flags }).map(Some)
    }

    /// The tensor that a value is; `None` where it is not one.
    pub(super) fn tensor_at(&self, handle: Handle) -> Option<&Tensor> {
        self.tensor_id(handle).map(|(_, tensor)| tensor)
    }

    pub(super) fn tensor_id(&self, handle: Handle) -> Option<(u32, &Tensor)> {
        let tensor = match self.values.get(handle) {
            Value::Call(id) => match self.out.calls.get(id.index()) {
                Some(&Meaning::Tensor(tensor)) => tensor,
                _ => return None,
            },
            Value::PersistentId(pid) => *self.out.keyed_tensors.get(&pid)?,
            _ => return None,
        };
        self.out.tensors.get(usize::try_from(tensor).ok()?).map(|found| (tensor, found))
    }

    /// Adds a tensor; see [`checked_tensor`](CallInterpreter::checked_tensor).
    pub(super) fn tensor(
        &mut self,
        slice: StorageSlice,
        dtype: DType,
        geometry: [Handle; 3],
        flags: Flags,
    ) -> Result<u32> {
        let tensor = self.checked_tensor(slice, dtype, geometry, flags)?;
        self.push(tensor)
    }

    /// A tensor of some offset, size and stride. Fails where it does not lie inside `slice`.
    pub(super) fn checked_tensor(
        &self,
        slice: StorageSlice,
        dtype: DType,
        geometry: [Handle; 3],
        flags: Flags,
    ) -> Result<Tensor> {
        let [offset, size, stride] = geometry;
        let (shape, strides) = (self.ints(size, "size")?, self.ints(stride, "stride")?);
        let offset = self.int(offset, "offset")?;
        self.check_swap_unit(slice, dtype)?;
        let raw = RawTensor { dtype, shape, strides, offset, storage: slice.storage, flags };
        raw.prove(slice.nbytes, self.limits)?.shifted(slice.start)
    }

    /// Fails with `ByteOrder` where a tensor lies on a big-endian storage whose numbers are not as wide as its own. torch swaps a storage
    /// once, by the storage's own class (torch/serialization.py: `load_tensor`), and one of bytes not at all: its numbers are not those
    /// that a big-endian machine wrote.
    fn check_swap_unit(&self, slice: StorageSlice, dtype: DType) -> Result<()> {
        let is_big_endian = self.storage_record(slice.storage).is_some_and(|storage| storage.big_endian);
        let (unit, swapped) = (dtype.swap_unit(), slice.dtype.swap_unit());
        if is_big_endian && unit != swapped {
            bail!(
                Code::ByteOrder,
                "a tensor of {dtype} is on a big-endian storage that torch reads as numbers of {swapped} byte(s)"
            );
        }
        Ok(())
    }

    /// Adds a tensor on the meta device, with an empty storage of its own.
    fn meta(&mut self, dtype: DType, size: Handle, stride: Handle, requires_grad: bool) -> Result<u32> {
        let (shape, strides) = (self.ints(size, "size")?, self.ints(stride, "stride")?);
        let storage = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        let flags = Flags { requires_grad, meta: true, ..Flags::default() };
        let tensor = RawTensor { dtype, shape, strides, offset: 0, storage, flags }.into_meta(self.limits)?;
        let location = Found::At(Location::Meta);
        self.out.storages.push(Storage { location, nbytes: 0, numel: 0, big_endian: false, device: None });
        self.push(tensor)
    }

    /// Adds a tensor of the elements of another one, with other flags.
    pub(super) fn copy(&mut self, source: u32, flags: impl FnOnce(Flags) -> Flags) -> Result<u32> {
        let missing = || Error::new(Code::InternalError, "a tensor is missing");
        let mut tensor = self.tensor_mut(source).ok_or_else(missing)?.clone();
        tensor.flags = flags(tensor.flags);
        let quantization = self.out.extras.get(&source).and_then(|extra| extra.quantization.clone());
        let id = self.push(tensor)?;
        if quantization.is_some() {
            self.extra(id).quantization = quantization;
        }
        Ok(id)
    }

    /// Adds a tensor; returns its number. Fails with `Limit` where there are too many.
    pub(super) fn push(&mut self, tensor: Tensor) -> Result<u32> {
        let id = u32::try_from(self.out.tensors.len()).unwrap_or(u32::MAX);
        Limits::check("tensors", self.limits.tensors, u64::from(id).saturating_add(1))?;
        self.out.tensors.push(tensor);
        Ok(id)
    }

    /// The size of a storage in bytes.
    pub(super) fn nbytes(&self, storage: u32) -> u64 {
        self.storage_record(storage).map_or(0, |storage| storage.nbytes)
    }

    fn storage_record(&self, storage: u32) -> Option<&Storage<Found>> {
        usize::try_from(storage).ok().and_then(|id| self.out.storages.get(id))
    }

    fn flags(&self, grad: Handle, metadata: Option<Handle>) -> Result<Flags> {
        let mut flags = Flags { requires_grad: self.bool(grad)?, ..Flags::default() };
        let Some(metadata) = metadata else { return Ok(flags) };
        let pairs = match self.get(metadata) {
            Value::Dict(pairs) => pairs,
            Value::None => &[],
            _ => return Err(Error::new(Code::PickleType, "a tensor's metadata is not a dict")),
        };
        if pairs.len() > METADATA_MAX_ITEMS {
            bail!(Code::TensorMetadata, "a tensor has {} metadata items, more than torch knows", pairs.len());
        }
        for &(key, value) in pairs {
            let Value::Str(key) = self.values.get(key) else {
                bail!(Code::PickleType, "a tensor's metadata has a key that is not a string");
            };
            match key.as_str() {
                // torch writes True, and looks only at the key when it reads.
                Some("conj") if self.bool(value)? => flags.conjugate = true,
                Some("neg") if self.bool(value)? => flags.negative = true,
                _ => {
                    let text = format!("a tensor has the unknown metadata item {:?}", key.to_string_lossy());
                    return Err(Error::new(Code::TensorMetadata, text));
                }
            }
        }
        Ok(flags)
    }

    pub(super) fn bool(&self, handle: Handle) -> Result<bool> {
        match self.values.get(handle) {
            Value::Bool(value) => Ok(value),
            _ => Err(Error::new(Code::PickleType, "a tensor's flag is not a bool")),
        }
    }

    pub(super) fn int(&self, handle: Handle, what: &str) -> Result<i64> {
        match self.values.get(handle) {
            Value::Int(value) => Ok(value),
            _ => Err(error!(Code::PickleType, "a tensor's {what} is not a 64-bit integer")),
        }
    }

    pub(super) fn ints(&self, handle: Handle, what: &str) -> Result<Sizes> {
        match self.values.get(handle) {
            Value::Tuple(items) => {
                Limits::check("rank", self.limits.rank, u64::try_from(items.len()).unwrap_or(u64::MAX))?;
                items.iter().map(|&item| self.int(item, what)).collect()
            }
            _ => Err(error!(Code::PickleType, "a tensor's {what} is not a tuple")),
        }
    }
}
