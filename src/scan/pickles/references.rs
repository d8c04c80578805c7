//! Finds the globals that a pickle uses as values, and not only calls.
//!
//! A function that is a value may be called by whatever gets it: an attribute, an argument, the factory of a `defaultdict`.

use crate::pickle::{GlobalId, Handle, Value, Values};

/// By global id, whether any container, argument, state or root is this global.
pub(super) fn used_as_values(values: &Values, root: Option<Handle>) -> Vec<bool> {
    let mut used = vec![false; values.globals().len()];
    let mut refer = |handle: Handle| {
        if let Value::Global(id) = values.get(handle) {
            mark(&mut used, id);
        }
    };
    root.into_iter().for_each(&mut refer);
    for value in values.iter() {
        match value {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
                items.iter().copied().for_each(&mut refer);
            }
            Value::Dict(pairs) => pairs.iter().for_each(|&(key, value)| {
                refer(key);
                refer(value);
            }),
            Value::PersistentId(id) => refer(id),
            // Arguments are a tuple, and so a value of their own.
            Value::Call(id) => {
                let call = values.call(id);
                call.states.iter().map(|state| state.value).for_each(&mut refer);
                call.appended.iter().copied().for_each(&mut refer);
                call.items.iter().for_each(|&(key, value)| {
                    refer(key);
                    refer(value);
                });
            }
            _ => {}
        }
    }
    used
}

fn mark(used: &mut [bool], id: GlobalId) {
    if let Some(used) = used.get_mut(id.index()) {
        *used = true;
    }
}
