//! Finds the globals that a pickle uses as values, and not only calls.
//!
//! A function that is a value may be called by whatever gets it: an attribute, an argument, the factory of a `defaultdict`.

use crate::pickle::{Handle, Value, Values};

/// By global id, whether any container, argument, state or root is this global.
pub(super) fn used_as_values(values: &Values, root: Option<Handle>) -> Vec<bool> {
    let mut used = vec![false; values.globals().len()];
    let mut refer = |handle: Handle| {
        if let Value::Global(id) = values.get(handle)
            && let Some(used) = used.get_mut(id.index())
        {
            *used = true;
        }
    };
    root.into_iter().for_each(&mut refer);
    values.handles().for_each(|handle| values.for_each_part(handle, &mut refer));
    used
}
