//! Error-recovering mode: the same machine as for loading; where it errors, this records a defect and continues as the most
//! permissive unpickler would.
//!
//! The unpicklers considered are CPython's two and torch's `weights_only` one. Where all of them stop (an unknown opcode, an empty
//! stack, an unset memo entry), and at a limit, the run stops too and records that. A lookup that an unpickler does at run time (a
//! global whose name a call computes, the extension registry) is recorded as a call of [`RUN_TIME_MODULE`].

use super::literals::range_in_pickle;
use super::stack::underflow;
use super::{Machine, check_len, execute, fail};
use crate::bytes::Chunk;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::parallel::Cancel;
use crate::pickle::Pickle;
use crate::pickle::arena::Node;
use crate::pickle::disasm::{Arg, Disasm, Op};
use crate::pickle::opcode::Opcode;
use crate::pickle::{CallKind, Handle, Values};

/// The module of the placeholder globals for an unpickler's lookups at run time: `find_class` of two strings, `extension` of a
/// number.
pub const RUN_TIME_MODULE: &str = "<run time>";

/// Errors after which a run ends. Each costs as much time as many opcodes.
const DEFECTS_MAX: usize = 10_000;

/// The result of an error-recovering run over one pickle.
#[derive(Debug)]
pub struct RecoveredPickle {
    /// The values, by handle.
    pub values: Values,
    /// The value that STOP returns; `None` where no unpickler reaches STOP.
    pub root: Option<Handle>,
    /// The offset one past STOP, or where the run ended.
    pub end: usize,
    /// The protocol that PROTO states; 0 without PROTO.
    pub protocol: u8,
    /// The protocol of its newest opcode, where that is 2 or later; else 0.
    pub newest_protocol: u8,
    /// The errors of the strict machine, in program order.
    pub defects: Vec<Error>,
    /// Whether a list, dict, set or call was fetched from the memo or duplicated. Where none was, no value contains itself: a value
    /// that is being filled is on the stack, and a container took its values from the stack.
    pub aliased: bool,
    /// The first opcode that is newer than the stated protocol: offset and opcode.
    pub newer: Option<(usize, Opcode)>,
}

impl RecoveredPickle {
    /// The result as a loaded pickle. Fails with its first defect.
    pub fn into_pickle(self) -> Result<Pickle> {
        let RecoveredPickle { values, end, protocol, newest_protocol, defects, .. } = self;
        match (defects.into_iter().next(), self.root) {
            (Some(error), _) => Err(error),
            (None, Some(root)) => Ok(Pickle { values, root, end, protocol, newest_protocol }),
            (None, None) => Err(fail(Code::InternalError, "a run without a defect has no result")),
        }
    }
}

pub(in crate::pickle) fn run(data: Chunk, limits: &Limits, cancel: &Cancel) -> Result<RecoveredPickle> {
    check_len(&data, limits)?;
    let mut disasm = Disasm::strict(&data, 0, limits);
    let machine = Machine::new(&data, limits)?;
    let mut machine = Machine { accepts_persid: true, ..machine };
    let mut defects = Vec::new();
    let root = loop {
        let error = match execute(&mut disasm, &mut machine, cancel) {
            Ok(root) => break Some(root),
            Err(error) if error.code() == Code::Cancelled => return Err(error),
            Err(error) => error,
        };
        let op = error.offset().and_then(|offset| disasm.failed_op(usize::try_from(offset).ok()?));
        let Some(op) = op else {
            defects.push(error);
            break None;
        };
        if defects.len() >= DEFECTS_MAX {
            let text = format!("after {DEFECTS_MAX} errors the rest of the pickle is not read");
            defects.push(fail(Code::Limit, text).at(to_u64(op.offset)));
            break None;
        }
        match machine.recover(&op, error, &mut defects) {
            Recovery::Continue => {}
            Recovery::Return(root) => break Some(root),
            Recovery::End => break None,
        }
    };
    let (end, protocol, newest_protocol) = (disasm.position(), machine.protocol, machine.newest_protocol());
    let changes = defects.iter().any(|error| error.code() == Code::PickleProto);
    let newer =
        (changes || newest_protocol > protocol.max(1)).then(|| first_newer(&data, end, limits)).flatten();
    let (aliased, arena) = (machine.arena.history.has_fetches(), machine.arena);
    let values = Values::new(data, arena);
    Ok(RecoveredPickle { values, root, end, protocol, newest_protocol, defects, aliased, newer })
}

/// The first opcode before `end` that is newer than the protocol that the pickle states there, and its offset.
fn first_newer(data: &[u8], end: usize, limits: &Limits) -> Option<(usize, Opcode)> {
    let mut stated = 1;
    let ops = Disasm::lenient(data, 0, limits).map_while(Result::ok);
    for op in ops.take_while(|op| op.offset < end) {
        match (op.opcode, op.arg) {
            (Opcode::Proto, Arg::Unsigned(version)) => {
                stated = u8::try_from(version).unwrap_or(u8::MAX).max(1)
            }
            (opcode, _) if opcode.protocol() > stated => return Some((op.offset, opcode)),
            _ => {}
        }
    }
    None
}

/// How a run goes on after an error.
enum Recovery {
    Continue,
    /// STOP returns this root, although values are left on the stack.
    Return(Handle),
    End,
}

impl Machine<'_> {
    /// Executes an opcode that failed as the most permissive unpickler does, and adds its errors to `defects`.
    #[cold]
    fn recover(&mut self, op: &Op<'_>, error: Error, defects: &mut Vec<Error>) -> Recovery {
        let error = match error.code() {
            // The disassembler refused it before it was executed.
            Code::PickleProto | Code::PickleFrame => {
                defects.push(error);
                match self.step(op) {
                    Ok(None) => return Recovery::Continue,
                    Ok(Some(root)) => return Recovery::Return(root),
                    Err(error) => error.at(to_u64(op.offset)),
                }
            }
            _ => error,
        };
        let recovery = self.step_permissively(op, &error).unwrap_or(Recovery::End);
        defects.push(error);
        recovery
    }

    fn step_permissively(&mut self, op: &Op<'_>, error: &Error) -> Result<Recovery> {
        match (op.opcode, op.arg) {
            // The value of a number does not matter here, only that the stack has one.
            (Opcode::Int | Opcode::Long, Arg::Bytes(line)) => {
                let value = python_number_text(line).and_then(|text| text.trim_end_matches('L').parse().ok());
                self.push(Node::Int(value.unwrap_or_default()))?;
            }
            (Opcode::Long1 | Opcode::Long4, _) => self.push(Node::Int(0))?,
            (Opcode::Float, Arg::Bytes(line)) => {
                let value = python_number_text(line).and_then(|text| text.parse().ok());
                self.push(Node::Float(value.unwrap_or(f64::NAN)))?;
            }
            (Opcode::Put, Arg::Bytes(line)) => {
                let top = self.top()?;
                if let Some(number) = python_number_text(line).and_then(|text| text.parse().ok()) {
                    self.memo.put(number, top)?;
                }
            }
            (Opcode::Get, Arg::Bytes(line)) => {
                let number = python_number_text(line).and_then(|text| text.parse().ok());
                let number = number.ok_or_else(|| fail(Code::PickleMemo, "not a memo index"))?;
                let value = self.memo.get(number)?;
                self.push_existing(value)?;
            }
            (Opcode::Append, _) => self.drop_values(1)?,
            (Opcode::SetItem, _) => self.drop_values(2)?,
            (Opcode::Appends | Opcode::AddItems | Opcode::SetItems, _) => {
                self.below_mark()?;
                self.drop_to_mark();
            }
            (Opcode::Dict | Opcode::FrozenSet, _) => {
                self.mark()?;
                self.drop_to_mark();
                let empty = Default::default();
                self.push(if op.opcode == Opcode::Dict {
                    Node::Dict(empty)
                } else {
                    Node::FrozenSet(empty)
                })?;
            }
            (Opcode::Reduce | Opcode::NewObj | Opcode::NewObjEx, _) if error.code() != Code::Limit => {
                self.call_with_any_args(op)?;
            }
            (Opcode::Build, _) => self.drop_values(1)?,
            (Opcode::Global, Arg::Pair(module, name)) if error.code() == Code::Limit => {
                let (module, name) = self.name_strings(op, module, name)?;
                let found = self.lookup_call("find_class", &[module, name], op.offset)?;
                self.stack.push(found)?;
            }
            // Without a mark `pickle.py` stops, too, but only after it imported the module.
            (Opcode::Inst, Arg::Pair(module, name)) if error.code() == Code::PickleStack => {
                self.global_from_lines(op, module, name)?;
                return Ok(Recovery::End);
            }
            (Opcode::StackGlobal, _) => {
                let [module, name] = self.top_values()?;
                let may_be_string = |handle| {
                    matches!(
                        self.arena.node(handle),
                        Node::Call { .. } | Node::PersistentId(_) | Node::Str(_)
                    )
                };
                if !may_be_string(name) || !may_be_string(module) || error.code() == Code::PickleText {
                    return Ok(Recovery::End);
                }
                let found = self.lookup_call("find_class", &[module, name], op.offset)?;
                self.replace(2, found)?;
            }
            (Opcode::Ext1 | Opcode::Ext2 | Opcode::Ext4, arg) => {
                let number = match arg {
                    Arg::Unsigned(number) => i64::try_from(number).unwrap_or_default(),
                    Arg::Signed(number) => i64::from(number),
                    _ => 0,
                };
                let number = self.arena.add(Node::Int(number))?;
                let found = self.lookup_call("extension", &[number], op.offset)?;
                self.stack.push(found)?;
            }
            (Opcode::NextBuffer, _) => self.push(Node::Bytes(range_in_pickle(op.payload, &[])))?,
            (Opcode::ReadonlyBuffer, _) => {
                self.top()?;
            }
            // Unpicklers return the top and ignore the rest.
            (Opcode::Stop, _) => return self.top().map(Recovery::Return),
            _ => return Ok(Recovery::End),
        }
        Ok(Recovery::Continue)
    }

    /// Pops `count` values; fails where no target is left below them.
    fn drop_values(&mut self, count: usize) -> Result<()> {
        let left = self.stack.len().checked_sub(count).filter(|&left| left > self.fence);
        self.stack.truncate(left.ok_or_else(underflow)?);
        Ok(())
    }

    /// A call whose arguments are not a tuple: `pickle.py` unpacks any iterable.
    fn call_with_any_args(&mut self, op: &Op<'_>) -> Result<()> {
        let (kind, (callable, args, kwargs)) = match op.opcode {
            Opcode::NewObjEx => {
                let [callable, args, kwargs] = self.top_values()?;
                (CallKind::NewObjEx, (callable, args, Some(kwargs)))
            }
            opcode => {
                let [callable, args] = self.top_values()?;
                let kind = if opcode == Opcode::Reduce { CallKind::Reduce } else { CallKind::NewObj };
                (kind, (callable, args, None))
            }
        };
        let count = if kwargs.is_some() { 3 } else { 2 };
        if !matches!(self.arena.node(callable), Node::Global(_) | Node::Call { .. } | Node::PersistentId(_)) {
            return Err(fail(Code::PickleType, "the called value is not a class or function"));
        }
        let kwargs = match kwargs {
            Some(kwargs) if matches!(self.arena.node(kwargs), Node::Dict(_)) => Some(kwargs),
            _ => None,
        };
        let args = match self.arena.node(args) {
            Node::Tuple { .. } => args,
            Node::List(span) | Node::Set(span) | Node::FrozenSet(span) => {
                let items = self.arena.handles_in(span).to_vec();
                self.arena.add_tuple(&items)?
            }
            _ => self.arena.add_tuple(&[args])?,
        };
        let result = self.arena.add_call(kind, callable, args, kwargs, op.offset)?;
        self.replace(count, result)
    }

    /// Module and name of GLOBAL as string values.
    fn name_strings(&mut self, op: &Op<'_>, module: &[u8], name: &[u8]) -> Result<(Handle, Handle)> {
        let after = op.payload.saturating_add(module.len()).saturating_add(1);
        let module = self.arena.add(Node::Str(range_in_pickle(op.payload, module)))?;
        let name = self.arena.add(Node::Str(range_in_pickle(after, name)))?;
        Ok((module, name))
    }

    /// A call that stands for an unpickler's lookup at run time.
    fn lookup_call(&mut self, name: &str, args: &[Handle], offset: usize) -> Result<Handle> {
        let module = self.globals.intern_constant(&mut self.arena, self.data, RUN_TIME_MODULE)?;
        let name = self.globals.intern_constant(&mut self.arena, self.data, name)?;
        let callable = self.globals.global(&mut self.arena, self.data, (module, name), false, offset)?;
        let args = self.arena.add_tuple(args)?;
        self.arena.add_call(CallKind::Reduce, callable, args, None, offset)
    }
}

/// The text of a number as Python's `int()` and `float()` read it: without surrounding whitespace, a plus sign and underscores.
fn python_number_text(line: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(line).ok()?.trim();
    Some(text.trim_start_matches('+').replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovered(data: &[u8]) -> RecoveredPickle {
        run(data.to_vec().into(), &Limits::default(), &Cancel::new()).unwrap()
    }

    fn calls(pickle: &RecoveredPickle) -> Vec<String> {
        let values = &pickle.values;
        let name = |handle| match values.get(handle) {
            crate::pickle::Value::Global(id) => {
                format!("{}.{}", values.global(id).module, values.global(id).name)
            }
            _ => "?".to_owned(),
        };
        values.calls().map(|(id, _)| name(values.call(id).callable)).collect()
    }

    fn codes(pickle: &RecoveredPickle) -> Vec<Code> {
        pickle.defects.iter().map(Error::code).collect()
    }

    #[test]
    fn a_clean_pickle_has_no_defects_and_its_builds_in_order() {
        let found = recovered(b"\x80\x02cm\nC\n)\x81}b.");
        assert_eq!((codes(&found), calls(&found)), (vec![], vec!["m.C".to_owned()]));
        assert_eq!(found.values.builds().iter().map(|build| build.offset).collect::<Vec<_>>(), [10]);
        assert!(found.root.is_some() && found.newer.is_none());
    }

    #[test]
    fn an_error_that_one_unpickler_tolerates_does_not_end_the_run() {
        for (data, code) in [
            (&b"cm\nf\n]R."[..], Code::PickleType), // arguments that are not a tuple: pickle.py unpacks them
            (b"I 5\n0cm\nf\n)R.", Code::AmbiguousNumber), // a blank in a number
            (b"F1_0.0\n0cm\nf\n)R.", Code::AmbiguousNumber), // an underscore in a float
            (b"Np 1\n0g01\n0cm\nf\n)R.", Code::PickleMemo), // a memo index with a blank
            (b"]N}s0cm\nf\n)R.", Code::PickleType), // an unhashable key, on a list that has no keys
            (b"\x80\x63cm\nf\n)R.", Code::PickleProto), // an unknown protocol
            (b"N\x80\x02cm\nf\n)R0.", Code::PickleProto), // PROTO in the middle
            (b"\x80\x04\x95\x01\0\0\0\0\0\0\0cm\nf\n)R.", Code::PickleFrame), // an opcode straddles a frame's end
            (b"NNcm\nf\n)R.", Code::PickleStack),                             // values left behind
            (b"\x82\x01cm\nf\n)R.", Code::ExtRegistry),
            (b"\x97cm\nf\n)R.", Code::OutOfBand),
            (b"]Nbcm\nf\n)R.", Code::PickleType),
        ] {
            let found = recovered(data);
            assert_eq!(codes(&found).first(), Some(&code), "{data:?}");
            assert_eq!(calls(&found).last().map(String::as_str), Some("m.f"), "{data:?}");
        }
    }

    #[test]
    fn an_opcode_that_fails_leaves_the_stack_as_it_was() {
        let values = ["N", "]", "}", ")", "K\x01", "(", "cm\nf\n", "]q\0", "Vm\n"];
        let mut stacks = vec![String::new()];
        for _ in 0..3 {
            let longer = stacks.iter().flat_map(|stack| values.map(|value| format!("{stack}{value}")));
            stacks = stacks.iter().cloned().chain(longer).collect();
        }
        let arguments = ["", "\0\0\0\0\0\0\0\0", "\x01\0\0\0\0\0\0\0\0", "1\n", " 5\n", "m\nf\n"];
        // With few nodes, what an opcode makes is one too many.
        for limits in [Limits::default(), Limits::default().nodes(2)] {
            let run = |data: &[u8]| {
                let mut disasm = Disasm::strict(data, 0, &limits);
                let mut machine = Machine::new(data, &limits).unwrap();
                let error = execute(&mut disasm, &mut machine, &Cancel::new()).err();
                let failed = error.and_then(|error| disasm.failed_op(usize::try_from(error.offset()?).ok()?));
                let stack = (machine.stack.slice_from(0).to_vec(), machine.marks.slice_from(0).to_vec());
                (stack, failed.map(|op| (op.offset, op.opcode)))
            };
            let mut failed = std::collections::HashSet::new();
            for stack in &stacks {
                let (before, _) = run(stack.as_bytes());
                for (opcode, argument) in
                    Opcode::ALL.iter().flat_map(|&opcode| arguments.map(|one| (opcode, one)))
                {
                    let data = [stack.as_bytes(), &[opcode.byte()], argument.as_bytes()].concat();
                    let (after, error) = run(&data);
                    if error == Some((stack.len(), opcode)) {
                        assert_eq!(after, before, "{opcode:?} after {stack:?}");
                        failed.insert(opcode.byte());
                    }
                }
            }
            assert!(failed.len() > 35, "{}", failed.len());
        }
    }

    #[test]
    fn calls_before_a_fatal_error_are_recorded() {
        for data in
            [&b"cm\nf\n)R\xff"[..], b"cm\nf\n)R00", b"cm\nf\n)Rh\x07.", b"cm\nf\n)RX\xff\0\0\0", b"cm\nf\n)R"]
        {
            let found = recovered(data);
            assert!(found.root.is_none() && !found.defects.is_empty(), "{data:?}");
            assert_eq!(calls(&found), ["m.f"], "{data:?}");
        }
    }

    #[test]
    fn a_name_that_a_call_computes_is_a_lookup() {
        // STACK_GLOBAL on the result of a call, and its result called.
        let found = recovered(b"\x80\x04\x8c\x02oscm\nf\n)R\x93)R.");
        assert_eq!(calls(&found), ["m.f", "<run time>.find_class", "?"]);
    }

    #[test]
    fn a_name_with_too_many_parts_is_a_lookup_too() {
        let long = format!("cm\n{}\n)R.", ["x"; 40].join("."));
        assert_eq!(calls(&recovered(long.as_bytes())), ["<run time>.find_class", "?"]);
    }

    #[test]
    fn an_opcode_newer_than_the_protocol_is_reported() {
        assert_eq!(recovered(b"\x80\x02\x8f.").newer, Some((2, Opcode::EmptySet)));
        assert_eq!(recovered(b"\x80\x04\x8f.").newer, None);
        assert_eq!(recovered(b"].").newer, None);
    }
}
