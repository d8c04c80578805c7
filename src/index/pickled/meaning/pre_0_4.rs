//! Tensors of torch before 0.4: an empty object of a tensor class, and a state that BUILD sets on it (torch/_tensor.py:
//! `Tensor.__setstate__`). And tensors that were rebuilt from an array or tensor on a device.

use super::{CallInterpreter, Meaning};
use crate::error::{Code, Error, Result};
use crate::index::model::Flags;
use crate::index::pickled::known::{Known, TensorClass, tensor_dtype};
use crate::pickle::{Call, Handle, Value};

impl<'a> CallInterpreter<'a> {
    /// Adds the variable of a tensor: `Parameter(tensor)`. `None` for an empty object, which is a tensor once its state is set, and for
    /// any other form, such as a size, with which torch would allocate a tensor.
    pub(super) fn old_tensor(&mut self, class: TensorClass, args: &[Handle]) -> Result<Option<u32>> {
        let is_parameter = class == TensorClass::Parameter;
        let (data, requires_grad) = match (class, args) {
            (TensorClass::Parameter | TensorClass::Variable, &[data]) => (data, is_parameter),
            (TensorClass::Parameter | TensorClass::Variable, &[data, grad]) => (data, self.bool(grad)?),
            _ => return Ok(None),
        };
        let Some((source, _)) = self.tensor_id(data) else { return Ok(None) };
        self.copy(source, |flags| Flags { parameter: flags.parameter | is_parameter, requires_grad, ..flags })
            .map(Some)
    }

    /// Interprets the state of an object of a tensor class that is not a tensor yet: of an empty one, the state gives the elements. It
    /// remains opaque for any other state.
    pub(super) fn old_tensor_state(
        &mut self,
        class: TensorClass,
        call: &Call<'a>,
        state: Handle,
    ) -> Result<Meaning> {
        if !matches!(self.values.get(call.args), Value::Tuple([])) {
            return Ok(Meaning::Opaque);
        }
        let tensor = match (class, self.values.get(state)) {
            // The state of a tensor: storage, offset, size, strides.
            (TensorClass::Plain, Value::Tuple(&[storage, offset, size, stride]))
                if matches!(self.values.get(storage), Value::PersistentId(_)) =>
            {
                let slice = self.storage_of(storage)?;
                let is_quantized = self.quantized_class(storage).is_some();
                let class = self.values.global_at(call.callable);
                let dtype = class.and_then(|(module, name)| tensor_dtype(module, name));
                if is_quantized || dtype != Some(slice.dtype) {
                    return Ok(Meaning::Opaque);
                }
                self.tensor(slice, slice.dtype, [offset, size, stride], Flags::default())?
            }
            // The state of a variable: data, gradient, hooks, requires_grad, volatile.
            (
                TensorClass::Parameter | TensorClass::Variable,
                Value::Tuple(&[data, _, _, requires_grad, _]),
            ) => {
                let requires_grad = self.bool(requires_grad)?;
                let Some((source, _)) = self.tensor_id(data) else { return Ok(Meaning::Opaque) };
                if self.out.extras.get(&source).is_some_and(|extra| extra.quantization.is_some()) {
                    return Ok(Meaning::Opaque);
                }
                let parameter = class == TensorClass::Parameter;
                self.copy(source, |flags| Flags {
                    parameter: flags.parameter | parameter,
                    requires_grad,
                    ..flags
                })?
            }
            _ => return Ok(Meaning::Opaque),
        };
        Ok(Meaning::Tensor(tensor))
    }

    /// Sets the state of a variable whose data was an argument: requires_grad, volatile, hooks. Fails for any other state.
    pub(super) fn old_variable_state(
        &mut self,
        class: TensorClass,
        tensor: u32,
        state: Handle,
    ) -> Result<()> {
        match self.values.get(state) {
            Value::Tuple(&[requires_grad, _, _]) if class != TensorClass::Plain => {
                let requires_grad = self.bool(requires_grad)?;
                if let Some(tensor) = self.tensor_mut(tensor) {
                    tensor.flags.requires_grad = requires_grad;
                }
                Ok(())
            }
            _ => Err(Error::new(Code::StateUnsupported, "the data of a tensor are set a second time")),
        }
    }

    /// Adds a tensor that torch rebuilds on a device from a NumPy array or a CPU tensor (torch/_utils.py:
    /// `_rebuild_device_tensor_from_numpy`, `_rebuild_device_tensor_from_cpu_tensor`); `None` where torch would cast it first, or drop
    /// its elements.
    pub(super) fn device_tensor(
        &mut self,
        data: Handle,
        dtype: Handle,
        device: Handle,
        requires_grad: Handle,
    ) -> Result<Option<u32>> {
        let requires_grad = self.bool(requires_grad)?;
        let Value::Str(device) = self.values.get(device) else { return Ok(None) };
        let (has_elements, is_cpu) = (device.as_bytes() != b"meta", device.as_bytes() == b"cpu");
        let Some(Known::Dtype(dtype)) = self.known(dtype) else { return Ok(None) };
        match self.tensor_id(data) {
            Some((source, tensor)) if has_elements && tensor.dtype() == dtype => {
                if is_cpu && !self.is_array(data) {
                    // A tensor that is on its device already is returned as it is.
                    let tensor = self.tensor_mut(source);
                    tensor.into_iter().for_each(|tensor| tensor.flags.requires_grad = requires_grad);
                    return Ok(Some(source));
                }
                self.copy(source, |flags| Flags { requires_grad, ..flags }).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Whether a value is a call that makes a NumPy array.
    pub(super) fn is_array(&self, handle: Handle) -> bool {
        let known = self.values.call_at(handle).and_then(|call| self.known(call.callable));
        matches!(known, Some(Known::NumpyReconstruct | Known::NumpyFromBuffer))
    }
}
