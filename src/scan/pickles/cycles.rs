//! Detects reference cycles among the values of a pickle, in linear time and without recursion.
//!
//! Kahn's topological sort: a value without referrers is not part of a cycle; it is removed, and then the values that only it
//! referred to have no referrers either. The values that are never removed are on a cycle or reachable from one. Most pickles
//! need no sort: see `refers_back`.

use crate::pickle::{Handle, Value, Values};

/// Whether there is a reference cycle, reachable from the root or not.
pub(super) fn has_cycle(values: &Values) -> bool {
    if !values.handles().any(|handle| refers_back(values, handle)) {
        return false;
    }
    let mut referrers = vec![0_u32; values.len()];
    for handle in values.handles() {
        children(values, handle, |child| {
            if let Some(count) = referrers.get_mut(child.index()) {
                *count = count.saturating_add(1);
            }
        });
    }
    let has_no_referrer = |handle: &Handle| referrers.get(handle.index()) == Some(&0);
    let mut ready: Vec<Handle> = values.handles().filter(has_no_referrer).collect();
    let mut removed = 0_usize;
    while let Some(handle) = ready.pop() {
        removed = removed.saturating_add(1);
        children(values, handle, |child| {
            if let Some(count) = referrers.get_mut(child.index()).filter(|count| **count > 0) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    ready.push(child);
                }
            }
        });
    }
    removed < values.len()
}

/// Whether a value refers to itself, or to an older value that was filled after its creation. Every cycle has such a reference:
/// from a younger value to the oldest one in the cycle, which was filled later.
#[inline]
fn refers_back(values: &Values, handle: Handle) -> bool {
    let mut refers_back = false;
    children(values, handle, |child| refers_back |= child <= handle && was_filled(values, child));
    refers_back
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
fn children(values: &Values, handle: Handle, mut each: impl FnMut(Handle)) {
    if let Some(call) = values.call_at(handle) {
        each(call.callable);
    }
    values.for_each_part(handle, each);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::parallel::Cancel;
    use crate::pickle;

    #[test]
    fn reference_cycles_are_told_from_shared_values() {
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
            let recovered =
                pickle::run_recovering(data.to_vec(), &Limits::default(), &Cancel::new()).unwrap();
            assert_eq!(has_cycle(&recovered.values), expected, "{data:?}");
            assert!(recovered.aliased || !expected, "{data:?}");
        }
    }

    #[test]
    fn a_cycle_needs_a_memo_fetch_of_a_mutable_value() {
        // Every program of five of these opcodes, after a list or a call and one more value.
        let opcodes: [&[u8]; 11] =
            [b"N", b"]", b"}", b"\x85", b"\x86", b"2", b"q\0", b"h\0", b"a", b"s", b"b"];
        let (mut cycles, mut without_fetch) = (0, 0);
        for start in [&b"]N"[..], b"cm\nA\n)\x81N"] {
            for mut number in 0..opcodes.len().pow(5) {
                let mut program = start.to_vec();
                for _ in 0..5 {
                    program.extend_from_slice(opcodes[number % opcodes.len()]);
                    number /= opcodes.len();
                }
                program.push(b'.');
                let recovered =
                    pickle::run_recovering(program.clone(), &Limits::default(), &Cancel::new()).unwrap();
                if has_cycle(&recovered.values) {
                    assert!(recovered.aliased, "{program:?}");
                    cycles += u32::from(recovered.defects.is_empty());
                }
                without_fetch += u32::from(!recovered.aliased);
            }
        }
        assert!(cycles > 100 && without_fetch > 100, "{cycles} {without_fetch}");
    }
}
