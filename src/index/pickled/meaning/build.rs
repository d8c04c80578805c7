//! BUILD on values that rustload understands: as the `__setstate__` of torch and NumPy, or an error.
//!
//! An opaque value keeps any state as data. A tensor, an array or a dtype gets its contents once: a second state would also change
//! what other values took from it, in ways that no writer uses.

use super::{CallInterpreter, Meaning, check_item_opcodes};
use crate::error::{Code, Error, Result, bail};
use crate::index::model::{Flags, Tensor};
use crate::index::pickled::known::{Known, Rebuild, TensorClass};
use crate::pickle::{Build, Call, CallId, GlobalId, Handle, Snapshot, Value};

/// The attributes of `torch.Tensor` that set more than an entry of the instance's `__dict__`.
const PROPERTIES: [&str; 13] = [
    "__class__",
    "__dict__",
    "_backward_hooks",
    "_grad",
    "_grad_fn",
    "_post_accumulate_grad_hooks",
    "data",
    "grad",
    "grad_dtype",
    "imag",
    "real",
    "requires_grad",
    "volatile",
];

/// Those that replace the elements.
const ELEMENTS: [&str; 3] = ["data", "imag", "real"];

/// A dict of so few attributes is searched each time; the result for a longer one is kept, since any number of tensors may share it.
const UNCACHED_MAX_ATTRIBUTES: usize = 16;

/// The number of properties that are looked for in a dict, repetitions included.
const PROPERTIES_MAX: usize = 32;

impl<'a> CallInterpreter<'a> {
    /// Interprets a BUILD.
    pub(super) fn build(&mut self, build: &Build) -> Result<()> {
        let Value::Call(id) = self.values.get(build.target) else { return Ok(()) };
        self.now = build.offset;
        let before = self.meaning(id);
        let call = self.values.call(id);
        let after = self.built(id, &call, before, build.state)?;
        if after != before {
            let after = check_item_opcodes(after, &call)?;
            self.out.calls.get_mut(id.index()).into_iter().for_each(|meaning| *meaning = after);
        }
        Ok(())
    }

    /// The meaning of a call's result once its state is set.
    fn built(&mut self, id: CallId, call: &Call<'a>, before: Meaning, state: Handle) -> Result<Meaning> {
        let known = self.known(call.callable);
        Ok(match (before, known) {
            (Meaning::Opaque, Some(Known::TensorClass(class))) => {
                self.old_tensor_state(class, call, state)?
            }
            (Meaning::Opaque, Some(Known::NumpyReconstruct)) => self.array_state(state)?,
            (Meaning::Opaque, _) => before,
            (Meaning::Tensor(tensor), Some(Known::TensorClass(class))) => {
                self.old_variable_state(class, tensor, state)?;
                before
            }
            (Meaning::Tensor(tensor), Some(Known::Rebuild(Rebuild::FromType)))
                if self.unknown_class(tensor).is_some() =>
            {
                self.set_state(tensor, state)?;
                before
            }
            (Meaning::NumpyDtype(_), _) => self.dtype_state(id, call, state)?,
            (Meaning::Dict(Known::OrderedDict | Known::Counter), _)
                if matches!(self.get(state), Value::Dict(_)) =>
            {
                before
            }
            // A storage takes any attributes, also a dtype.
            (Meaning::Storage(_), _) => Meaning::Opaque,
            (Meaning::Tensor(_) | Meaning::Sparse(_), _) => {
                return Err(changed("a tensor's state is set after it was made"));
            }
            _ if matches!(self.values.get(state), Value::None) => before,
            _ => {
                bail!(Code::PickleType, "BUILD sets a state on a value of a type that has none");
            }
        })
    }

    /// Keeps a state of a tensor, unless it is empty: a dict of attributes, or a pair of it and a dict of slots (torch/_utils.py:
    /// `_set_obj_state`). Another state belongs to a class that rustload does not know, and is kept for such a class alone. Fails
    /// where the state sets more than attributes.
    pub(super) fn set_state(&mut self, tensor: u32, state: Handle) -> Result<()> {
        let parts: &[Handle] = match self.values.get(state) {
            Value::None => return Ok(()),
            Value::Tuple(parts @ [_, _]) => parts,
            _ => &[state],
        };
        let is_class_unknown = self.unknown_class(tensor).is_some();
        let mut is_empty = true;
        for &part in parts {
            match self.get(part) {
                Value::None => {}
                Value::Dict(pairs) => {
                    is_empty &= pairs.is_empty();
                    self.set_properties(tensor, part, pairs)?;
                }
                _ if is_class_unknown => is_empty = false,
                _ => {
                    bail!(Code::PickleType, "the attributes of a tensor are not a dict");
                }
            }
        }
        if !is_empty {
            let state = Snapshot { value: state, offset: self.now };
            self.extra(tensor).states.push(state);
        }
        Ok(())
    }

    /// Interprets attributes that are properties of a tensor. The elements must be those that the tensor has, as some classes write
    /// them. Fails for any other property, except in a class that rustload does not know.
    fn set_properties(&mut self, tensor: u32, dict: Handle, pairs: &'a [(Handle, Handle)]) -> Result<()> {
        let found = self.properties_in(dict);
        if found.len() == PROPERTIES_MAX {
            return Err(changed("the state of a tensor sets its properties many times"));
        }
        let is_class_unknown = self.unknown_class(tensor).is_some();
        for (at, name) in found {
            let Some(&(_, value)) = pairs.get(at) else { break };
            let is_elements = ELEMENTS.contains(&name);
            let is_unchanged = match self.values.get(value) {
                _ if is_elements => name == "data" && self.are_elements_of(value, tensor),
                Value::Bool(requires_grad) if name == "requires_grad" => {
                    if !is_class_unknown && let Some(tensor) = self.tensor_mut(tensor) {
                        tensor.flags.requires_grad = requires_grad;
                    }
                    true
                }
                Value::None => true,
                _ => is_class_unknown,
            };
            if !is_unchanged {
                return Err(changed(&format!("the state of a tensor sets its property {name:?}")));
            }
        }
        Ok(())
    }

    /// Whether a value is a tensor with the elements of another.
    fn are_elements_of(&self, value: Handle, tensor: u32) -> bool {
        let own = usize::try_from(tensor).ok().and_then(|tensor| self.out.tensors.get(tensor));
        own.zip(self.tensor_at(value)).is_some_and(|(own, other)| {
            let elements = |tensor: &Tensor| {
                let Flags { conjugate, negative, .. } = tensor.flags;
                (tensor.dtype(), tensor.storage(), conjugate, negative)
            };
            elements(own) == elements(other) && own.layout() == other.layout()
        })
    }

    pub(super) fn tensor_mut(&mut self, tensor: u32) -> Option<&mut Tensor> {
        usize::try_from(tensor).ok().and_then(|tensor| self.out.tensors.get_mut(tensor))
    }

    /// The positions of the first [`PROPERTIES`] in a dict, as it is at the end of the pickle: an earlier version is a prefix.
    fn properties_in(&mut self, dict: Handle) -> Vec<(usize, &'static str)> {
        let values = self.values;
        let Value::Dict(pairs) = values.get(dict) else { return Vec::new() };
        let find = || {
            let name = |key| match values.get(key) {
                Value::Str(name) => PROPERTIES.into_iter().find(|known| name.as_bytes() == known.as_bytes()),
                _ => None,
            };
            let found = pairs.iter().enumerate().filter_map(|(at, &(key, _))| Some((at, name(key)?)));
            found.take(PROPERTIES_MAX).collect()
        };
        if pairs.len() <= UNCACHED_MAX_ATTRIBUTES {
            return find();
        }
        self.properties.entry(dict).or_insert_with(find).clone()
    }

    /// The class of a tensor, where it is neither `torch.Tensor` nor `Parameter`.
    fn unknown_class(&self, tensor: u32) -> Option<GlobalId> {
        let class = self.out.extras.get(&tensor)?.class?;
        (!matches!(self.global(class), Some(Known::TensorClass(TensorClass::Parameter)))).then_some(class)
    }

    fn meaning(&self, id: CallId) -> Meaning {
        self.out.calls.get(id.index()).copied().unwrap_or(Meaning::Opaque)
    }
}

#[cold]
fn changed(text: &str) -> Error {
    Error::new(Code::StateUnsupported, text)
}
