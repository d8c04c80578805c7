//! Tensors of torch before 0.4: an empty object of a tensor class, and a state that BUILD sets on it (torch/_tensor.py:
//! `Tensor.__setstate__`). And tensors that were rebuilt from an array or tensor on a device.

use super::CallInterpreter;
use crate::error::Result;
use crate::index::known::TensorClass;
use crate::index::validate::{Flags, Tensor};
use crate::pickle::{Call, Handle, Value};

impl<'a> CallInterpreter<'a> {
    /// Adds the tensor of such an object; `None` for any other form, such as a size, with which torch would allocate a tensor.
    pub(super) fn pre_0_4_tensor(&mut self, class: TensorClass, call: &Call<'a>) -> Result<Option<u32>> {
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
                // The state of a tensor: storage, offset, size, strides.
                Value::Tuple(&[storage, offset, size, stride])
                    if matches!(self.values.get(storage), Value::PersistentId(_)) =>
                {
                    let slice = self.storage_of(storage)?;
                    tensor = Some(self.checked_tensor(
                        slice,
                        slice.dtype,
                        [offset, size, stride],
                        Flags::default(),
                    )?);
                }
                // The state of a variable: data, gradient, hooks, requires_grad, volatile.
                Value::Tuple(&[data, _, _, requires_grad, _]) => {
                    let Some(inner) = self.tensor_at(data).cloned() else { return Ok(None) };
                    (tensor, grad) = (Some(inner), self.bool(requires_grad)?);
                }
                // The state of a variable whose data was an argument: requires_grad, volatile, hooks.
                Value::Tuple(&[requires_grad, _, _]) => grad = self.bool(requires_grad)?,
                _ => return Ok(None),
            }
        }
        let Some(mut tensor) = tensor else { return Ok(None) };
        tensor.flags.requires_grad = grad;
        tensor.flags.parameter |= class == TensorClass::Parameter;
        self.push(tensor).map(Some)
    }

    /// Whether a call has the form of such an object. Does not check that its parts are tensors.
    pub(super) fn is_pre_0_4_tensor(&self, class: TensorClass, call: &Call<'_>) -> bool {
        let Value::Tuple(args) = self.values.get(call.args) else { return false };
        let has_form = match (class, args) {
            (_, []) => true,
            (TensorClass::Parameter | TensorClass::Variable, [data] | [data, _]) => {
                matches!(self.values.get(*data), Value::Call(_))
            }
            _ => false,
        };
        has_form && call.states.iter().all(|&state| matches!(self.values.get(state), Value::Tuple(_)))
    }

    /// Adds a tensor that torch rebuilds on a device from a NumPy array or a CPU tensor (torch/_utils.py:
    /// `_rebuild_device_tensor_from_numpy`, `_rebuild_device_tensor_from_cpu_tensor`); `None` where torch would cast it first.
    pub(super) fn device_tensor(
        &mut self,
        data: Handle,
        dtype: Handle,
        device: Handle,
        requires_grad: Handle,
    ) -> Result<Option<u32>> {
        let requires_grad = self.bool(requires_grad)?;
        let is_device = matches!(self.values.get(device), Value::Str(_));
        let Some(super::Known::Dtype(dtype)) = self.known(dtype) else { return Ok(None) };
        let Some(source) = self.tensor_at(data).filter(|source| is_device && source.dtype() == dtype) else {
            return Ok(None);
        };
        let mut tensor: Tensor = source.clone();
        tensor.flags.requires_grad = requires_grad;
        self.push(tensor).map(Some)
    }
}
