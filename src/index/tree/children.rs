//! What lies inside a value, and by which step: for walks that name tensors, and for what such a walk costs.

use std::collections::HashSet;

use super::{Object, View};
use crate::error::Result;
use crate::index::Step;
use crate::index::extra::{Part, Scale};
use crate::index::meaning::{Meaning, SHORT};
use crate::pickle::{Handle, Text, Value};

/// What a `torch.nn.Module` keeps its state dict in, and which of its buffers are left out of it.
const MODULE: [&str; 4] = ["_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"];

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
    pub(in crate::index) fn children(self, handle: Handle) -> Result<Vec<(Step, Handle)>> {
        let mut out = Vec::new();
        match self.values.get(handle) {
            Value::Dict(pairs) => self.keyed(pairs, &mut out)?,
            Value::Call(id) => {
                let call = self.values.call(id);
                match self.meaning(id) {
                    Meaning::Tensor(tensor) => self.extra_children(tensor, &mut out)?,
                    Meaning::Sparse(_) => {
                        if let Object::Sparse(sparse) = self.get(handle)? {
                            out.extend(
                                sparse.parts.into_iter().map(|(part, tensor)| (Step::Part(part), tensor)),
                            );
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
                            out.extend(entries.into_iter().map(|(key, value)| (Step::Key(key), value)));
                            for &state in states {
                                self.state_children(state, &mut out)?;
                            }
                        }
                        _ => {}
                    },
                    Meaning::Record | Meaning::Opaque | Meaning::NumpyDtype(_) => {
                        if self.is_call(call.callable) {
                            out.push((Step::Part(Part::Function), call.callable));
                        }
                        let mut args = self.args(&call);
                        if self.is_from_type(&call)
                            && let Some((&state, others)) = args.split_last()
                        {
                            self.state_children(state, &mut out)?;
                            args = others;
                        }
                        out.extend((0..).map(Step::Argument).zip(args.iter().copied()));
                        for &state in call.kwargs.iter().chain(call.states) {
                            self.state_children(state, &mut out)?;
                        }
                        self.keyed(call.items, &mut out)?;
                        indexed(call.appended, &mut out);
                    }
                    _ => {}
                }
            }
            _ => indexed(self.items(handle), &mut out),
        }
        Ok(out)
    }

    /// What the file says of a tensor beside its place: scales, and attributes.
    fn extra_children(self, tensor: u32, out: &mut Vec<(Step, Handle)>) -> Result<()> {
        let Some(extra) = self.extra(tensor) else { return Ok(()) };
        if let Some(Scale::Channel { scales, zero_points, .. }) =
            extra.quantization.as_ref().map(|quantization| &quantization.scale)
        {
            out.push((Step::Part(Part::Scale), *scales));
            out.push((Step::Part(Part::ZeroPoint), *zero_points));
        }
        for &state in &extra.states {
            self.state_children(state, out)?;
        }
        Ok(())
    }

    /// Whether a value is the result of a call.
    pub(in crate::index) fn is_call(self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::Call(_))
    }

    /// A state's attributes: a dict, or a pair of the dict and the slots (copyreg.py: `__reduce_ex__`).
    fn state_children(self, state: Handle, out: &mut Vec<(Step, Handle)>) -> Result<()> {
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
                out.push((Step::Argument(0), state));
                Ok(())
            }
        }
    }

    /// The attributes of a dict of them. Those of a `torch.nn.Module` come as `state_dict()` names them: parameters, then
    /// persistent buffers, then modules (torch/nn/modules/module.py: `_save_to_state_dict`), then whatever else there is.
    fn attributes(self, attributes: Handle, out: &mut Vec<(Step, Handle)>) -> Result<()> {
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
                let shown = entries.into_iter().filter(|&(key, _)| !is_hidden(key));
                out.extend(shown.map(|(key, value)| (Step::Key(key), value)));
            }
        }
        let others = self.values.unique(pairs)?.into_iter().filter(|(_, value)| !own.contains(value));
        out.extend(others.map(|(key, value)| (Step::Key(key), value)));
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
    fn keyed(self, pairs: &[(Handle, Handle)], out: &mut Vec<(Step, Handle)>) -> Result<()> {
        out.extend(self.values.unique(pairs)?.into_iter().map(|(key, value)| (Step::Key(key), value)));
        Ok(())
    }
}

fn indexed(items: &[Handle], out: &mut Vec<(Step, Handle)>) {
    out.extend((0..).map(Step::Index).zip(items.iter().copied()));
}
