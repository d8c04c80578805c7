//! What lies inside a value, and by which step: for walks that name tensors, and for what such a walk costs.

use std::collections::HashSet;

use super::{Object, View};
use crate::error::Result;
use crate::index::Step;
use crate::index::extra::{Part, Scale};
use crate::index::meaning::{Meaning, SHORT};
use crate::index::script::{self, ScriptClass};
use crate::pickle::{Call, Handle, Text, Value};

/// What a `torch.nn.Module` keeps its state dict in, and which of its buffers are left out of it.
const MODULE: [&str; 4] = ["_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"];

/// Which tensors that a value leads to have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Naming {
    /// All of them.
    All,
    /// The value itself, or its parts where it is sparse: it is an entry of a module's state dict, which leaves out a tensor's
    /// attributes and scales.
    Entry,
    /// None: they belong to a module, and its state dict leaves them out.
    None,
}

/// A value inside another.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct Child {
    /// The step that leads to it.
    pub(in crate::index) step: Step,
    pub(in crate::index) value: Handle,
    pub(in crate::index) naming: Naming,
}

impl From<(Step, Handle)> for Child {
    fn from((step, value): (Step, Handle)) -> Child {
        Child { step, value, naming: Naming::All }
    }
}

impl<'a> View<'a> {
    /// What it costs to list a value's children: the items and pairs that are looked at, also where equal keys leave few.
    pub(in crate::index) fn weight(self, handle: Handle) -> u64 {
        let count = match self.values.get(handle) {
            Value::Dict(pairs) => pairs.len(),
            Value::Call(id) => {
                let call = self.values.call(id);
                let own = call.items.len().saturating_add(call.appended.len());
                let parts: &[Handle] = match self.meaning(id) {
                    Meaning::Tensor(tensor) => {
                        let states = self.extra(tensor).map_or(&[][..], |extra| &extra.states[..]);
                        let own = states
                            .iter()
                            .fold(0, |count: usize, &state| count.saturating_add(self.state_width(state)));
                        return u64::try_from(own).unwrap_or(u64::MAX);
                    }
                    Meaning::Sparse(layout) => {
                        let own = layout.parts().len();
                        let own = (call.states.iter())
                            .fold(own, |count, &state| count.saturating_add(self.state_width(state)));
                        return u64::try_from(own).unwrap_or(u64::MAX);
                    }
                    Meaning::Dict(_) | Meaning::Sequence(_) | Meaning::Size => self.args(&call),
                    Meaning::Record | Meaning::Opaque | Meaning::NumpyDtype(_) => &[call.args],
                    _ => return 0,
                };
                let states = call.kwargs.iter().chain(call.states);
                let own = parts.iter().fold(own, |count, &part| count.saturating_add(self.width(part)));
                states.fold(own, |count, &state| count.saturating_add(self.state_width(state)))
            }
            _ => self.items(handle).len(),
        };
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// The items or pairs of an argument or a state.
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

    /// A state and the dicts of a module that are listed with it.
    fn state_width(self, state: Handle) -> usize {
        let of = |dict| match self.values.get(dict) {
            Value::Call(id) => {
                let call = self.values.call(id);
                let own = call.items.len().saturating_add(call.appended.len());
                self.args(&call).iter().fold(own, |count, &part| count.saturating_add(self.width(part)))
            }
            _ => self.width(dict),
        };
        let module = |state| match self.values.get(state) {
            Value::Dict(pairs) => {
                let named = MODULE.map(|name| self.attribute(pairs, name));
                named.into_iter().flatten().fold(0, |count: usize, dict| count.saturating_add(of(dict)))
            }
            _ => 0,
        };
        let halves: &[Handle] = match self.values.get(state) {
            Value::Tuple(halves @ [_, _]) => halves,
            _ => &[state],
        };
        halves.iter().fold(self.width(state), |count, &half| count.saturating_add(module(half)))
    }

    /// Every value that a value is made of: a superset of its children, each as often as the file has it. Of a tensor, what the
    /// file says beside its place.
    pub(in crate::index) fn parts(self, handle: Handle, mut each: impl FnMut(Handle)) {
        match self.values.get(handle) {
            Value::Dict(pairs) => pairs.iter().for_each(|&(_, value)| each(value)),
            Value::Call(id) => {
                match self.meaning(id) {
                    Meaning::Bytes | Meaning::ByteArray | Meaning::Complex | Meaning::Storage(_) => return,
                    Meaning::Tensor(tensor) if self.extra(tensor).is_none() => return,
                    _ => {}
                }
                let call = self.values.call(id);
                each(call.args);
                each(call.callable);
                call.kwargs.iter().chain(call.states).chain(call.appended).for_each(|&part| each(part));
                call.items.iter().for_each(|&(_, value)| each(value));
            }
            _ => self.items(handle).iter().for_each(|&item| each(item)),
        }
    }

    /// The values inside a value, each with the step that leads to it; tensors have none.
    pub(in crate::index) fn children(self, handle: Handle) -> Result<Vec<Child>> {
        let mut out = Vec::new();
        match self.values.get(handle) {
            Value::Dict(pairs) => self.keyed(pairs, &mut out)?,
            Value::Call(id) => {
                let call = self.values.call(id);
                match self.meaning(id) {
                    Meaning::Tensor(tensor) => self.extra_children(tensor, &mut out)?,
                    Meaning::Sparse(_) => {
                        if let Object::Sparse(sparse) = self.get(handle)? {
                            let part = |(part, tensor)| Child::from((Step::Part(part), tensor));
                            out.extend(sparse.parts.into_iter().map(part));
                        }
                        for &state in call.states {
                            self.state_children(state, &mut out)?;
                        }
                    }
                    Meaning::Dict(_) | Meaning::Sequence(_) | Meaning::Size => match self.get(handle)? {
                        Object::Tuple(items) => indexed(items, &mut out),
                        Object::Deque(items, _) | Object::Set(items) | Object::FrozenSet(items) => {
                            indexed(&items, &mut out);
                        }
                        Object::Dict { entries, states, .. } => {
                            let entry = |(key, value)| Child::from((Step::Key(key), value));
                            out.extend(entries.into_iter().map(entry));
                            for &state in states {
                                self.state_children(state, &mut out)?;
                            }
                        }
                        _ => {}
                    },
                    Meaning::Record | Meaning::Opaque | Meaning::NumpyDtype(_) => {
                        self.made_children(&call, &mut out)?;
                    }
                    _ => {}
                }
            }
            _ => indexed(self.items(handle), &mut out),
        }
        Ok(out)
    }

    /// The values inside one of a class that is kept as data: arguments, attributes, items.
    fn made_children(self, call: &Call<'a>, out: &mut Vec<Child>) -> Result<()> {
        if self.is_call(call.callable) {
            out.push((Step::Part(Part::Function), call.callable).into());
        }
        let mut args = self.args(call);
        if self.is_from_type(call)
            && let Some((&state, others)) = args.split_last()
        {
            self.state_children(state, out)?;
            args = others;
        }
        if self.is_graph_module(call)
            && let Some((&state, others)) = args.split_first()
        {
            self.state_children(state, out)?;
            args = others;
        }
        let class = self.class_id(call).and_then(|id| self.meanings.scripts.get(&id));
        out.extend((0..).map(Step::Argument).zip(args.iter().copied()).map(Child::from));
        for &state in call.kwargs.iter().chain(call.states) {
            match (class, self.values.get(state)) {
                (Some(class), Value::Dict(pairs)) if class.is_module => {
                    self.script_attributes(class, pairs, out)?;
                }
                // What a class of its own writes for itself is in no state dict.
                (Some(class), _) if class.is_module => {
                    out.push(Child { step: Step::Argument(0), value: state, naming: Naming::None });
                }
                _ => self.state_children(state, out)?,
            }
        }
        self.keyed(call.items, out)?;
        indexed(call.appended, out);
        Ok(())
    }

    /// Whether a call is `reduce_graph_module(attributes, ...)` (torch/fx/graph_module.py).
    fn is_graph_module(self, call: &Call<'a>) -> bool {
        let Value::Global(id) = self.values.get(call.callable) else { return false };
        let global = self.values.global(id);
        (global.module, global.name) == ("torch.fx.graph_module", "reduce_graph_module")
    }

    /// The attributes of a module of TorchScript, as `torch.jit.load(...).state_dict()` names them: parameters, buffers, modules;
    /// then whatever else there is.
    fn script_attributes(
        self,
        class: &ScriptClass,
        pairs: &[(Handle, Handle)],
        out: &mut Vec<Child>,
    ) -> Result<()> {
        let [mut parameters, mut buffers, mut modules, mut others] = [const { Vec::new() }; 4];
        for (key, value) in self.values.unique(pairs)? {
            let name = self.text(key).filter(|name| name.as_bytes().len() <= SHORT).and_then(Text::as_str);
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
            list.push(Child { step: Step::Key(key), value, naming });
        }
        [parameters, buffers, modules, others].iter().for_each(|list| out.extend_from_slice(list));
        Ok(())
    }

    /// Whether a value is a module of TorchScript, or of a class of TorchScript's that nothing is known of.
    fn is_script_module(self, handle: Handle) -> bool {
        let Value::Call(id) = self.values.get(handle) else { return false };
        let Some(class) = self.class_id(&self.values.call(id)) else { return false };
        match self.meanings.scripts.get(&class) {
            Some(class) => class.is_module,
            None => script::is_class(self.values.global(class).module),
        }
    }

    /// What the file says of a tensor beside its place: scales, and attributes.
    fn extra_children(self, tensor: u32, out: &mut Vec<Child>) -> Result<()> {
        let Some(extra) = self.extra(tensor) else { return Ok(()) };
        if let Some(Scale::Channel { scales, zero_points, .. }) =
            extra.quantization.as_ref().map(|quantization| &quantization.scale)
        {
            out.push((Step::Part(Part::Scale), *scales).into());
            out.push((Step::Part(Part::ZeroPoint), *zero_points).into());
        }
        for &state in &extra.states {
            self.state_children(state, out)?;
        }
        Ok(())
    }

    /// Whether a value is a tensor or a storage of the index, or may become one.
    pub(in crate::index) fn is_tensor(self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Call(id) => matches!(self.meaning(id), Meaning::Tensor(_) | Meaning::Storage(_)),
            Value::PersistentId(_) => true,
            _ => false,
        }
    }

    /// Whether a value is the result of a call.
    pub(in crate::index) fn is_call(self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::Call(_))
    }

    /// A state's attributes: a dict, or a pair of the dict and the slots (copyreg.py: `__reduce_ex__`).
    fn state_children(self, state: Handle, out: &mut Vec<Child>) -> Result<()> {
        match self.values.get(state) {
            Value::Dict(_) => self.attributes(state, out),
            Value::Tuple(&[attributes, slots])
                if [attributes, slots]
                    .iter()
                    .all(|&half| matches!(self.values.get(half), Value::Dict(_) | Value::None)) =>
            {
                self.attributes(attributes, out)?;
                self.attributes(slots, out)
            }
            Value::None => Ok(()),
            _ => {
                out.push((Step::Argument(0), state).into());
                Ok(())
            }
        }
    }

    /// The attributes of a dict of them. Those of a `torch.nn.Module` come as `state_dict()` names them: parameters, then
    /// persistent buffers, then modules (torch/nn/modules/module.py: `_save_to_state_dict`), then whatever else there is, which
    /// has no names.
    fn attributes(self, attributes: Handle, out: &mut Vec<Child>) -> Result<()> {
        let Value::Dict(pairs) = self.values.get(attributes) else { return Ok(()) };
        let [parameters, buffers, modules, hidden] = MODULE.map(|name| self.attribute(pairs, name));
        let (Some(parameters), Some(buffers), Some(modules)) = (parameters, buffers, modules) else {
            return self.keyed(pairs, out);
        };
        let own = [parameters, buffers, modules];
        let short = |name| self.text(name).filter(|name| name.as_bytes().len() <= SHORT);
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
                out.extend(shown.map(|(key, value)| Child { step: Step::Key(key), value, naming }));
            }
        }
        let others = self.values.unique(pairs)?.into_iter().filter(|(_, value)| !own.contains(value));
        let unnamed = |(key, value)| Child { step: Step::Key(key), value, naming: Naming::None };
        out.extend(others.map(unnamed));
        Ok(())
    }

    /// The value of a dict's last key that is this text.
    fn attribute(self, pairs: &[(Handle, Handle)], name: &str) -> Option<Handle> {
        let is_name = |key| self.text(key).is_some_and(|key| key.as_bytes() == name.as_bytes());
        pairs.iter().rev().find(|&&(key, _)| is_name(key)).map(|&(_, value)| value)
    }

    fn text(self, handle: Handle) -> Option<Text<'a>> {
        match self.values.get(handle) {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The values of a dict, the last of equal keys winning.
    fn keyed(self, pairs: &[(Handle, Handle)], out: &mut Vec<Child>) -> Result<()> {
        let child = |(key, value)| Child::from((Step::Key(key), value));
        out.extend(self.values.unique(pairs)?.into_iter().map(child));
        Ok(())
    }
}

fn indexed(items: &[Handle], out: &mut Vec<Child>) {
    out.extend((0..).map(Step::Index).zip(items.iter().copied()).map(Child::from));
}
