//! Whether a value holds itself, however far inside, without recursion and in time that follows the values.
//!
//! A value that nothing holds is not part of a cycle; once it is set aside, neither is what nothing else holds (Kahn's
//! topological order). What is never set aside holds itself, or is held by what does. Most pickles need no order: see
//! `holds_older`.

use crate::pickle::{Handle, Value, Values};

/// Whether any value that a reader could reach from `root` may hold itself; of values that nothing leads to, whichever.
pub(super) fn holds_itself(values: &Values, root: Option<Handle>) -> bool {
    if !values.handles().any(|handle| holds_older(values, handle)) {
        return false;
    }
    let mut held = vec![0_u32; values.len()];
    let mut shared = false;
    for handle in values.handles() {
        children(values, handle, |child| {
            if let Some(count) = held.get_mut(child.index())
                && is_container(values, child)
            {
                shared |= *count > 0 || Some(child) == root;
                *count = count.saturating_add(1);
            }
        });
    }
    // Where every value is held once and the root by nothing, they are a tree.
    if !shared && root.is_some() {
        return false;
    }
    let free = |handle: &Handle| held.get(handle.index()) == Some(&0);
    let mut open: Vec<Handle> = values.handles().filter(free).collect();
    let mut set_aside = 0_usize;
    while let Some(handle) = open.pop() {
        set_aside = set_aside.saturating_add(1);
        children(values, handle, |child| {
            if let Some(count) = held.get_mut(child.index()).filter(|count| **count > 0) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    open.push(child);
                }
            }
        });
    }
    set_aside < values.len()
}

/// Whether a value holds itself or an older one that was filled after it was made. Of the values in a cycle, the oldest was
/// filled later, and a younger one holds it.
#[inline]
fn holds_older(values: &Values, handle: Handle) -> bool {
    let mut found = false;
    children(values, handle, |child| found |= child <= handle && was_filled(values, child));
    found
}

#[inline]
fn was_filled(values: &Values, handle: Handle) -> bool {
    match values.get(handle) {
        Value::List(items) | Value::Set(items) => !items.is_empty(),
        Value::Dict(pairs) => !pairs.is_empty(),
        Value::Call(id) => {
            let call = values.call(id);
            !(call.states.is_empty() && call.items.is_empty() && call.appended.is_empty())
        }
        _ => false,
    }
}

#[inline]
fn is_container(values: &Values, handle: Handle) -> bool {
    match values.get(handle) {
        Value::Tuple(items) => !items.is_empty(),
        Value::List(_)
        | Value::Dict(_)
        | Value::Set(_)
        | Value::FrozenSet(_)
        | Value::Call(_)
        | Value::PersistentId(_) => true,
        _ => false,
    }
}

#[inline]
fn children(values: &Values, handle: Handle, mut each: impl FnMut(Handle)) {
    match values.get(handle) {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.iter().for_each(|&item| each(item));
        }
        Value::Dict(pairs) => pairs.iter().for_each(|&(key, value)| {
            each(key);
            each(value);
        }),
        Value::PersistentId(id) => each(id),
        Value::Call(id) => {
            let call = values.call(id);
            each(call.callable);
            each(call.args);
            call.kwargs.iter().chain(call.states).chain(call.appended).for_each(|&part| each(part));
            call.items.iter().for_each(|&(key, value)| {
                each(key);
                each(value);
            });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::parallel::Cancel;
    use crate::pickle;

    #[test]
    fn values_that_hold_themselves_are_told_from_values_that_are_shared() {
        for (data, expected) in [
            (&b"]q\0h\0a."[..], true),
            (b"}q\0K\x01h\0s.", true),
            (b"]q\0h\0\x85q\x01a0h\x01.", true),
            (b"cm\nA\n)\x81q\0h\0b.", true),
            (b"](]q\0h\0ae.", true),
            (b"]q\0h\0h\0\x86.", false),
            (b"]q\0]h\0a\x86.", false),
            (b"]].", false),
            (b"N.", false),
        ] {
            let survey = pickle::survey(data.to_vec(), 0, &Limits::default(), &Cancel::new()).unwrap();
            assert_eq!(holds_itself(&survey.values, survey.root), expected, "{data:?}");
            assert!(survey.fetched || !expected, "{data:?}");
        }
    }

    #[test]
    fn nothing_holds_itself_unless_something_that_can_be_filled_was_fetched() {
        // Every program of five of these, on a list and on a call, and one more value to begin with.
        let opcodes: [&[u8]; 11] =
            [b"N", b"]", b"}", b"\x85", b"\x86", b"2", b"q\0", b"h\0", b"a", b"s", b"b"];
        let (mut cycles, mut straight) = (0, 0);
        for start in [&b"]N"[..], b"cm\nA\n)\x81N"] {
            for mut number in 0..opcodes.len().pow(5) {
                let mut program = start.to_vec();
                for _ in 0..5 {
                    program.extend_from_slice(opcodes[number % opcodes.len()]);
                    number /= opcodes.len();
                }
                program.push(b'.');
                let survey = pickle::survey(program.clone(), 0, &Limits::default(), &Cancel::new()).unwrap();
                if holds_itself(&survey.values, survey.root) {
                    assert!(survey.fetched, "{program:?}");
                    cycles += u32::from(survey.defects.is_empty());
                }
                straight += u32::from(!survey.fetched);
            }
        }
        assert!(cycles > 100 && straight > 100, "{cycles} {straight}");
    }
}
