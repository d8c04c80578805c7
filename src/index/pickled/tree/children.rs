//! The children of a value, with the path step to each, and the cost of listing them; for traversals of the tree.

use std::collections::HashSet;

use super::object::Object;
use super::view::View;
use crate::error::Result;
use crate::index::model::{Component, PathStep, Scale};
use crate::index::pickled::meanings::{Meaning, SHORT_STRING_MAX_BYTES, short_string};
use crate::index::pickled::script::{self, ScriptClass};
use crate::pickle::{Call, Handle, Snapshot, Text, Value};

/// The attributes of a `torch.nn.Module` that hold its state dict, and the names of buffers that are excluded from it.
const MODULE_ATTRIBUTES: [&str; 4] = ["_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"];

/// Which tensors that are reachable from a value have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// All tensors.
    All,
    /// The value itself, or its components where it is sparse: it is an entry of a module's state dict, which excludes a tensor's
    /// attributes and scales.
    Entry,
    /// No tensor: they belong to a module, and its state dict excludes them.
    None,
}

/// A child of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    /// The path step to it.
    pub(crate) step: PathStep,
    pub(crate) value: Handle,
    pub(crate) naming: Naming,
}

impl From<(PathStep, Handle)> for Child {
    fn from((step, value): (PathStep, Handle)) -> Child {
        Child { step, value, naming: Naming::All }
    }
}

impl<'a> View<'a> {
    /// The cost of listing a value's children: the number of items and pairs that are read, before duplicate keys are merged.
    pub(crate) fn weight(self, handle: Handle) -> u64 {
        let count = match self.values.get(handle) {
            Value::Dict(pairs) => pairs.len(),
            Value::Call(id) => {
                let call = self.values.call(id);
                let own = call.items.len().saturating_add(call.appended.len());
                let parts: &[Handle] = match self.meaning(id) {
                    Meaning::Tensor(tensor) => {
                        let states = self.extra(tensor).map_or(&[][..], |extra| &extra.states[..]);
                        let own = states.iter().fold(0, |count: usize, state| {
                            count.saturating_add(self.state_width(state.value))
                        });
                        return u64::try_from(own).unwrap_or(u64::MAX);
                    }
                    Meaning::Sparse(layout) => {
                        return u64::try_from(layout.components().len()).unwrap_or(u64::MAX);
                    }
                    Meaning::Dict(_) | Meaning::Sequence(_) | Meaning::Tuple => self.args(&call),
                    Meaning::Record | Meaning::Opaque | Meaning::NumpyDtype(_) => &[call.args],
                    _ => return 0,
                };
                let states = call.kwargs.into_iter().chain(call.states.iter().map(|state| state.value));
                let own = parts.iter().fold(own, |count, &part| count.saturating_add(self.width(part)));
                states.fold(own, |count, state| count.saturating_add(self.state_width(state)))
            }
            _ => self.items(handle).len(),
        };
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// The number of items or pairs of an argument or a state.
    fn width(self, handle: Handle) -> usize {
        let own = |handle| match self.values.get(handle) {
            Value::Dict(pairs) => pairs.len(),
            _ => self.items(handle).len(),
        };
        match self.values.get(handle) {
            Value::Tuple(&[one, two]) => own(one).saturating_add(own(two)).saturating_add(2),
            _ => own(handle),
        }
    }

    /// The number of items of a state, and of the module dicts that are listed with it.
    fn state_width(self, state: Handle) -> usize {
        let dict_width = |dict| match self.values.get(dict) {
            Value::Call(id) => {
                let call = self.values.call(id);
                let own = call.items.len().saturating_add(call.appended.len());
                self.args(&call).iter().fold(own, |count, &part| count.saturating_add(self.width(part)))
            }
            _ => self.width(dict),
        };
        let module = |state| match self.values.get(state) {
            Value::Dict(pairs) => {
                let named = MODULE_ATTRIBUTES.map(|name| self.attribute(pairs, name));
                named
                    .into_iter()
                    .flatten()
                    .fold(0, |count: usize, dict| count.saturating_add(dict_width(dict)))
            }
            _ => 0,
        };
        let halves: &[Handle] = match self.values.get(state) {
            Value::Tuple(halves @ [_, _]) => halves,
            _ => &[state],
        };
        halves.iter().fold(self.width(state), |count, &half| count.saturating_add(module(half)))
    }

    /// Calls `visit` for every value that a value refers to: a superset of its children, with repetitions. For a tensor these are
    /// its further properties.
    pub(crate) fn for_each_referenced(self, handle: Handle, mut visit: impl FnMut(Handle)) {
        if let Value::Call(id) = self.values.get(handle) {
            match self.meaning(id) {
                Meaning::Bytes | Meaning::ByteArray | Meaning::Complex | Meaning::Storage(_) => return,
                Meaning::Tensor(tensor) if self.extra(tensor).is_none() => return,
                _ => visit(self.values.call(id).callable),
            }
        }
        self.values.for_each_part(handle, visit);
    }

    /// The children of a value, each with the path step to it. A tensor has only those of its further properties.
    pub(crate) fn children(self, handle: Handle) -> Result<Vec<Child>> {
        let mut out = Vec::new();
        match self.values.get(handle) {
            Value::Dict(pairs) => self.add_keyed(pairs, &mut out)?,
            Value::Call(id) => {
                let call = self.values.call(id);
                match self.meaning(id) {
                    Meaning::Tensor(tensor) => self.extra_children(tensor, &mut out)?,
                    Meaning::Sparse(_) => {
                        if let Object::Sparse(sparse) = self.get(handle)? {
                            let child =
                                |(component, tensor)| Child::from((PathStep::Component(component), tensor));
                            out.extend(sparse.components.into_iter().map(child));
                        }
                    }
                    Meaning::Dict(_) | Meaning::Sequence(_) | Meaning::Tuple => match self.get(handle)? {
                        Object::Tuple(items) => add_indexed(items, &mut out),
                        Object::List(items) => add_indexed(&items, &mut out),
                        Object::Deque(items, _) | Object::Set(items) | Object::FrozenSet(items) => {
                            add_indexed(&items, &mut out);
                        }
                        Object::Dict { entries, states, .. } => {
                            let entry = |(key, value)| Child::from((PathStep::Key(key), value));
                            out.extend(entries.into_iter().map(entry));
                            for &state in states {
                                self.state_children(state, &mut out)?;
                            }
                        }
                        _ => {}
                    },
                    Meaning::Record | Meaning::Opaque | Meaning::NumpyDtype(_) => {
                        self.opaque_children(&call, &mut out)?;
                    }
                    _ => {}
                }
            }
            _ => add_indexed(self.items(handle), &mut out),
        }
        Ok(out)
    }

    /// Adds the children of a value of an unknown class: arguments, attributes, items.
    fn opaque_children(self, call: &Call<'a>, out: &mut Vec<Child>) -> Result<()> {
        if self.is_call(call.callable) {
            out.push((PathStep::Component(Component::Function), call.callable).into());
        }
        let mut args = self.args(call);
        let at_call = |value| Snapshot { value, offset: call.offset };
        if self.is_from_type(call)
            && let Some((&state, others)) = args.split_last()
        {
            self.state_children(at_call(state), out)?;
            args = others;
        }
        if self.is_graph_module(call)
            && let Some((&state, others)) = args.split_first()
        {
            self.state_children(at_call(state), out)?;
            args = others;
        }
        let class = self.class_id(call).and_then(|id| self.meanings.scripts.get(&id));
        out.extend((0..).map(PathStep::Argument).zip(args.iter().copied()).map(Child::from));
        for state in call.kwargs.map(at_call).into_iter().chain(call.states.iter().copied()) {
            match (class, self.values.get_at(state)) {
                (Some(class), Value::Dict(pairs)) if class.is_module => {
                    self.script_attributes(class, pairs, out)?;
                }
                // A state dict excludes the state that a class with its own `__getstate__` pickles.
                (Some(class), _) if class.is_module => {
                    out.push(Child { step: PathStep::Argument(0), value: state.value, naming: Naming::None });
                }
                _ => self.state_children(state, out)?,
            }
        }
        self.add_keyed(call.items, out)?;
        add_indexed(call.appended, out);
        Ok(())
    }

    /// Whether a call is `reduce_graph_module(attributes, ...)` (torch/fx/graph_module.py).
    fn is_graph_module(self, call: &Call<'a>) -> bool {
        self.values.global_at(call.callable) == Some(("torch.fx.graph_module", "reduce_graph_module"))
    }

    /// Adds the attributes of a TorchScript module in the order of `torch.jit.load(...).state_dict()`: parameters, buffers, submodules;
    /// then all other attributes.
    fn script_attributes(
        self,
        class: &ScriptClass,
        pairs: &[(Handle, Handle)],
        out: &mut Vec<Child>,
    ) -> Result<()> {
        let [mut parameters, mut buffers, mut modules, mut others] = [const { Vec::new() }; 4];
        for (key, value) in self.unique(pairs)? {
            let name = short_string(self.values, key);
            let is_parameter = name.is_some_and(|name| class.parameters.contains(name));
            let is_buffer = match &class.buffers {
                Some(buffers) => name.is_some_and(|name| buffers.contains(name)),
                None => self.is_tensor(value),
            };
            let (list, naming) = match (is_parameter, is_buffer) {
                (true, _) => (&mut parameters, Naming::Entry),
                (_, true) => (&mut buffers, Naming::Entry),
                _ if self.is_script_module(value) => (&mut modules, Naming::All),
                _ => (&mut others, Naming::None),
            };
            list.push(Child { step: PathStep::Key(key), value, naming });
        }
        [parameters, buffers, modules, others].iter().for_each(|list| out.extend_from_slice(list));
        Ok(())
    }

    /// Whether a value is a TorchScript module, or of an unknown TorchScript class.
    fn is_script_module(self, handle: Handle) -> bool {
        let Value::Call(id) = self.values.get(handle) else { return false };
        let Some(class) = self.class_id(&self.values.call(id)) else { return false };
        match self.meanings.scripts.get(&class) {
            Some(class) => class.is_module,
            None => script::is_class(self.values.global(class).module),
        }
    }

    /// Adds the further properties of a tensor: scales, zero points and attributes.
    fn extra_children(self, tensor: u32, out: &mut Vec<Child>) -> Result<()> {
        let Some(extra) = self.extra(tensor) else { return Ok(()) };
        if let Some(Scale::Channel { scales, zero_points, .. }) =
            extra.quantization.as_ref().map(|quantization| &quantization.scale)
        {
            out.push((PathStep::Component(Component::Scale), scales.value).into());
            out.push((PathStep::Component(Component::ZeroPoint), zero_points.value).into());
        }
        let own = out.len();
        for &state in &extra.states {
            self.state_children(state, out)?;
        }
        // Those of a part are the part itself, and how its mesh numbers the processes.
        if extra.part.is_some() {
            out.iter_mut().skip(own).for_each(|child| child.naming = Naming::None);
        }
        Ok(())
    }

    /// Whether a value is a tensor or a storage of the index, or may become one.
    pub(crate) fn is_tensor(self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Call(id) => matches!(self.meaning(id), Meaning::Tensor(_) | Meaning::Storage(_)),
            Value::PersistentId(_) => true,
            _ => false,
        }
    }

    /// Whether a value is the result of a call.
    pub(crate) fn is_call(self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::Call(_))
    }

    /// Adds the attributes that a state sets, or else the state.
    fn state_children(self, state: Snapshot, out: &mut Vec<Child>) -> Result<()> {
        match self.state_parts(state) {
            Some(parts) => parts.into_iter().try_for_each(|pairs| self.attributes(pairs, out)),
            None => {
                out.push((PathStep::Argument(0), state.value).into());
                Ok(())
            }
        }
    }

    /// Adds the attributes in a dict. Those of a `torch.nn.Module` are in the order of `state_dict()`: parameters, persistent buffers,
    /// submodules (torch/nn/modules/module.py: `_save_to_state_dict`); then all other attributes, whose tensors have no names.
    fn attributes(self, pairs: &[(Handle, Handle)], out: &mut Vec<Child>) -> Result<()> {
        let [parameters, buffers, modules, hidden] =
            MODULE_ATTRIBUTES.map(|name| self.attribute(pairs, name));
        let (Some(parameters), Some(buffers), Some(modules)) = (parameters, buffers, modules) else {
            return self.add_keyed(pairs, out);
        };
        let own = [parameters, buffers, modules];
        let short = |name| self.text(name).filter(|name| name.as_bytes().len() <= SHORT_STRING_MAX_BYTES);
        let hidden: HashSet<Text<'_>> = match hidden.map(|set| self.get(set)) {
            Some(Ok(Object::Set(names) | Object::FrozenSet(names))) => {
                names.into_iter().filter_map(short).collect()
            }
            _ => HashSet::new(),
        };
        for dict in own {
            if let Object::Dict { entries, .. } = self.get(dict)? {
                let is_hidden = |key| dict == buffers && short(key).is_some_and(|key| hidden.contains(&key));
                let naming = if dict == modules { Naming::All } else { Naming::Entry };
                let shown = entries.into_iter().filter(|&(key, _)| !is_hidden(key));
                out.extend(shown.map(|(key, value)| Child { step: PathStep::Key(key), value, naming }));
            }
        }
        let others = self.unique(pairs)?.into_iter().filter(|(_, value)| !own.contains(value));
        let unnamed = |(key, value)| Child { step: PathStep::Key(key), value, naming: Naming::None };
        out.extend(others.map(unnamed));
        Ok(())
    }

    /// The value of a dict's last key that is `name`.
    fn attribute(self, pairs: &[(Handle, Handle)], name: &str) -> Option<Handle> {
        let is_name = |key| self.text(key).is_some_and(|key| key.as_bytes() == name.as_bytes());
        pairs.iter().rev().find(|&&(key, _)| is_name(key)).map(|&(_, value)| value)
    }

    pub(super) fn text(self, handle: Handle) -> Option<Text<'a>> {
        match self.values.get(handle) {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Adds the values of a dict; of duplicate keys, the last one.
    fn add_keyed(self, pairs: &[(Handle, Handle)], out: &mut Vec<Child>) -> Result<()> {
        let child = |(key, value)| Child::from((PathStep::Key(key), value));
        out.extend(self.unique(pairs)?.into_iter().map(child));
        Ok(())
    }
}

fn add_indexed(items: &[Handle], out: &mut Vec<Child>) {
    out.extend((0..).map(PathStep::Index).zip(items.iter().copied()).map(Child::from));
}
