//! Tensors as torch before 0.4 pickled them: an empty object of a class, and a state that BUILD sets on it (torch/_tensor.py:
//! `Tensor.__setstate__`).

use super::Reader;
use crate::error::{Code, Error, Result};
use crate::index::known::TensorClass;
use crate::index::validate::{Flags, Tensor};
use crate::pickle::{Call, Handle, Value};

impl<'a> Reader<'a> {
    /// The tensor that such an object is; `None` for any other form, above all for a size, which would be an order to allocate.
    pub(super) fn old_tensor(&mut self, class: TensorClass, call: &Call<'a>) -> Result<Option<u32>> {
        let Value::Tuple(args) = self.values.get(call.args) else { return Ok(None) };
        let (data, mut grad) = match (class, args) {
            (_, []) => (None, class == TensorClass::Parameter),
            (TensorClass::Parameter | TensorClass::Variable, &[data]) => {
                (Some(data), class == TensorClass::Parameter)
            }
            (TensorClass::Parameter | TensorClass::Variable, &[data, grad]) => (Some(data), self.bool(grad)?),
            _ => return Ok(None),
        };
        let mut tensor = match data.map(|data| self.tensor_at(data)) {
            Some(None) => return Ok(None),
            found => found.flatten().cloned(),
        };
        let states: &'a [Handle] = call.states;
        for &state in states {
            match self.values.get(state) {
                // A tensor: storage, offset, size, strides.
                Value::Tuple(&[storage, offset, size, stride])
                    if matches!(self.values.get(storage), Value::PersistentId(_)) =>
                {
                    let spot = self.storage_of(storage)?;
                    tensor = Some(self.proved(spot, spot.dtype, [offset, size, stride], Flags::default())?);
                }
                // A variable: data, gradient, hooks, requires_grad, volatile.
                Value::Tuple(&[data, _, _, wants, _]) => {
                    let Some(found) = self.tensor_at(data).cloned() else { return Ok(None) };
                    (tensor, grad) = (Some(found), self.bool(wants)?);
                }
                // A variable that has its data already: requires_grad, volatile, hooks.
                Value::Tuple(&[wants, _, _]) => grad = self.bool(wants)?,
                _ => return Ok(None),
            }
        }
        let Some(mut tensor) = tensor else { return Ok(None) };
        tensor.flags.requires_grad = grad;
        tensor.flags.parameter |= class == TensorClass::Parameter;
        self.push(tensor).map(Some)
    }

    /// The tensor that a numpy array or another tensor was made of, on a device (torch/_utils.py:
    /// `_rebuild_device_tensor_from_numpy`, `_rebuild_device_tensor_from_cpu_tensor`); `None` where a cast would come first.
    pub(super) fn device_tensor(&mut self, args: &[Handle]) -> Result<Option<u32>> {
        let &[data, dtype, device, grad] = args else {
            return Err(Error::new(Code::PickleType, "a device tensor is data, dtype, device and a flag"));
        };
        let requires_grad = self.bool(grad)?;
        let is_device = matches!(self.values.get(device), Value::Str(_));
        let Some(super::Known::Dtype(dtype)) = self.known(dtype) else { return Ok(None) };
        let Some(found) = self.tensor_at(data).filter(|found| is_device && found.dtype() == dtype) else {
            return Ok(None);
        };
        let mut tensor: Tensor = found.clone();
        tensor.flags.requires_grad = requires_grad;
        self.push(tensor).map(Some)
    }
}
