//! Error-recovering mode: the same machine as for loading; where it errors, this records a defect and continues as the most
//! permissive unpickler would.
//!
//! The unpicklers considered are CPython's two and torch's `weights_only` one. Where all of them stop (an unknown opcode, an empty
//! stack, an unset memo entry), and at a limit, the run stops too and records that. A lookup that an unpickler does at run time (a
//! global whose name a call computes, the extension registry) is recorded as a call of [`RUN_TIME_MODULE`].

use super::literals::range_in_pickle;
use super::{Machine, check_len, execute, fail};
use crate::bytes::Chunk;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::{to_u64, u32_to_usize};
use crate::parallel::Cancel;
use crate::pickle::Pickle;
use crate::pickle::arena::Node;
use crate::pickle::buffer_cache;
use crate::pickle::disasm::{Arg, Disasm, Op};
use crate::pickle::opcode::Opcode;
use crate::pickle::value::{CallKind, Handle, Values};

/// The module of the placeholder globals for an unpickler's lookups at run time: `find_class` of two strings, `extension` of a
/// number.
pub const RUN_TIME_MODULE: &str = "<run time>";

/// The number of defects that are kept; later ones repeat them.
const DEFECTS_MAX: usize = 1000;
/// Opcodes between two checks for cancellation.
const CANCEL_CHECK_INTERVAL_OPS: usize = 1 << 16;

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
    /// The errors of the strict machine, in program order; the first thousand.
    pub defects: Vec<Error>,
    /// Whether a list, dict, set or call was fetched from the memo or duplicated. Where none was, no value contains itself: a value
    /// that is being filled is on the stack, and a container took its values from the stack.
    pub aliased: bool,
    /// The first opcode that is newer than the stated protocol: offset and opcode.
    pub newer: Option<(usize, Opcode)>,
}

impl RecoveredPickle {
    /// The result as a loaded pickle, if it has no defects.
    pub fn into_pickle(self) -> Option<Pickle> {
        let RecoveredPickle { values, end, protocol, newest_protocol, .. } = self;
        let root = self.root.filter(|_| self.defects.is_empty());
        root.map(|root| Pickle { values, root, end, protocol, newest_protocol })
    }
}

pub(in crate::pickle) fn run(data: Chunk, limits: &Limits, cancel: &Cancel) -> Result<RecoveredPickle> {
    check_len(&data, limits)?;
    // Most pickles have no defects; for them the strict machine suffices, without a snapshot of the stack before each opcode.
    let mut disasm = Disasm::strict(&data, 0, limits);
    let mut machine = recovering_machine(&data, limits)?;
    let ended = execute(&mut disasm, &mut machine, cancel);
    let mut record = RunRecord { aliased: machine.arena.history.has_fetches(), ..RunRecord::default() };
    match ended {
        Ok(root) => {
            record.root = Some(root);
            if machine.newest_protocol() > machine.protocol.max(1) {
                let ops = Disasm::strict(&data, 0, limits);
                ops.filter_map(Result::ok).for_each(|op| record.check_newer(&op, machine.protocol));
            }
        }
        Err(error) if error.code() == Code::Cancelled => return Err(error),
        // A second run would end at this limit too: it holds in both modes, and no error came before it.
        Err(error) if error.code() == Code::Limit && is_call(&data, &error) => record.add_defect(error),
        Err(_) => {
            drop(machine);
            return run_with_snapshots(data, limits, cancel);
        }
    }
    let (stated, end) = ((machine.protocol, machine.newest_protocol()), disasm.position());
    let arena = machine.arena;
    Ok(record.finish(Values::new(data, arena), end, stated))
}

/// Whether the opcode at the error's offset makes a call.
fn is_call(data: &[u8], error: &Error) -> bool {
    let at = error.offset().and_then(|offset| usize::try_from(offset).ok());
    let opcode = at.and_then(|at| data.get(at)).copied().and_then(Opcode::from_byte);
    matches!(opcode, Some(Opcode::Reduce | Opcode::NewObj | Opcode::NewObjEx | Opcode::Inst | Opcode::Obj))
}

/// A machine that accepts PERSID and uses the cached buffers.
fn recovering_machine<'d>(data: &'d [u8], limits: &'d Limits) -> Result<Machine<'d>> {
    let machine = Machine::new(data, limits, Some(buffer_cache::take()))?;
    Ok(Machine { accepts_persid: true, ..machine })
}

/// Runs the pickle from the start again, with a snapshot of the stack before each opcode, and recovers from every error.
fn run_with_snapshots(data: Chunk, limits: &Limits, cancel: &Cancel) -> Result<RecoveredPickle> {
    // A value that is restored after an error may be on the stack twice, which is aliasing too.
    let (mut record, mut ops) = (RunRecord { aliased: true, ..RunRecord::default() }, 0_usize);
    let mut disasm = Disasm::lenient(&data, 0, limits);
    let mut machine = recovering_machine(&data, limits)?;
    machine.arena.history.fetch_all();
    while let Some(op) = disasm.next() {
        if let Some(strict_error) = disasm.take_strict_error() {
            record.add_defect(strict_error);
        }
        let op = match op {
            Ok(op) => op,
            Err(error) => {
                record.add_defect(error);
                break;
            }
        };
        ops = ops.wrapping_add(1);
        if ops.is_multiple_of(CANCEL_CHECK_INTERVAL_OPS) {
            cancel.check()?;
        }
        record.check_newer(&op, machine.protocol);
        let snapshot = StackSnapshot::of(&machine);
        match machine.step(&op) {
            Ok(None) => {}
            Ok(root) => record.root = root,
            Err(error) => {
                let error = error.at(to_u64(op.offset));
                let recovery = machine.recover(&op, &snapshot, &error);
                record.add_defect(error);
                match recovery {
                    Recovery::Continue => {}
                    Recovery::Return(root) => record.root = Some(root),
                    Recovery::End => break,
                }
            }
        }
    }
    let stated = (machine.protocol, machine.newest_protocol());
    let (end, arena) = (disasm.position(), machine.arena);
    Ok(record.finish(Values::new(data, arena), end, stated))
}

/// What a recovering run records beside the values.
#[derive(Default)]
struct RunRecord {
    root: Option<Handle>,
    defects: Vec<Error>,
    aliased: bool,
    newer: Option<(usize, Opcode)>,
}

impl RunRecord {
    fn add_defect(&mut self, error: Error) {
        if self.defects.len() < DEFECTS_MAX {
            self.defects.push(error);
        }
    }

    /// Keeps the first opcode that is newer than the stated protocol.
    fn check_newer(&mut self, op: &Op<'_>, stated: u8) {
        if self.newer.is_none() && op.opcode.protocol() > stated.max(1) && op.opcode != Opcode::Proto {
            self.newer = Some((op.offset, op.opcode));
        }
    }

    fn finish(self, values: Values, end: usize, (protocol, newest_protocol): (u8, u8)) -> RecoveredPickle {
        let RunRecord { root, defects, aliased, newer } = self;
        RecoveredPickle { values, root, end, protocol, newest_protocol, defects, aliased, newer }
    }
}

/// How a run goes on after an error.
enum Recovery {
    Continue,
    /// STOP returns this root, although values are left on the stack.
    Return(Handle),
    End,
}

/// The top of the stack before an opcode, to restore it where the opcode fails half-way.
struct StackSnapshot {
    len: usize,
    /// The third from the top, the second, and the top.
    top: [Handle; 3],
    marks: usize,
    mark: Option<u32>,
}

impl StackSnapshot {
    #[inline]
    fn of(machine: &Machine<'_>) -> StackSnapshot {
        let len = machine.stack.len();
        let from_top = |below: usize| {
            len.checked_sub(below).and_then(|at| machine.stack.get(at)).unwrap_or(Handle::NONE)
        };
        StackSnapshot {
            len,
            top: [from_top(3), from_top(2), from_top(1)],
            marks: machine.marks.len(),
            mark: machine.marks.last(),
        }
    }
}

impl Machine<'_> {
    /// Restores the stack and executes the failed opcode as the most permissive unpickler does.
    #[cold]
    fn recover(&mut self, op: &Op<'_>, snapshot: &StackSnapshot, error: &Error) -> Recovery {
        let recovery = match self.restore(snapshot) {
            Ok(()) => self.step_permissively(op, error),
            Err(error) => Err(error),
        };
        recovery.unwrap_or(Recovery::End)
    }

    /// Pushes back what a failed opcode popped from the stack and from the marks.
    fn restore(&mut self, snapshot: &StackSnapshot) -> Result<()> {
        self.stack.truncate(snapshot.len);
        let popped = snapshot.len.saturating_sub(self.stack.len());
        let from = snapshot.top.len().checked_sub(popped);
        let from = from.ok_or_else(|| fail(Code::PickleStack, "the stack cannot be restored"))?;
        for &handle in snapshot.top.get(from..).unwrap_or_default() {
            self.stack.push(handle)?;
        }
        if let Some(mark) = snapshot.mark.filter(|_| self.marks.len() < snapshot.marks) {
            self.marks.push(mark)?;
        }
        self.fence = self.marks.last().map_or(0, u32_to_usize);
        Ok(())
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
                self.stack.push(value)?;
            }
            (Opcode::Append, _) => self.drop_values(1)?,
            (Opcode::SetItem, _) => self.drop_values(2)?,
            (Opcode::Appends | Opcode::AddItems | Opcode::SetItems, _) => {
                let mark = self.pop_mark()?;
                self.below(mark)?;
                self.stack.truncate(mark);
            }
            (Opcode::Dict | Opcode::FrozenSet, _) => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
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
                self.push_lookup_call("find_class", &[module, name], op.offset)?;
            }
            // Without a mark `pickle.py` stops, too, but only after it imported the module.
            (Opcode::Inst, Arg::Pair(module, name)) if error.code() == Code::PickleStack => {
                self.global_from_lines(op, module, name)?;
                return Ok(Recovery::End);
            }
            (Opcode::StackGlobal, _) => {
                let (name, module) = (self.pop()?, self.pop()?);
                let may_be_string = |handle| {
                    matches!(
                        self.arena.node(handle),
                        Node::Call { .. } | Node::PersistentId(_) | Node::Str(_)
                    )
                };
                if !may_be_string(name) || !may_be_string(module) || error.code() == Code::PickleText {
                    return Ok(Recovery::End);
                }
                self.push_lookup_call("find_class", &[module, name], op.offset)?;
            }
            (Opcode::Ext1 | Opcode::Ext2 | Opcode::Ext4, arg) => {
                let number = match arg {
                    Arg::Unsigned(number) => i64::try_from(number).unwrap_or_default(),
                    Arg::Signed(number) => i64::from(number),
                    _ => 0,
                };
                let number = self.arena.add(Node::Int(number))?;
                self.push_lookup_call("extension", &[number], op.offset)?;
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
        for _ in 0..count {
            self.pop()?;
        }
        self.top().map(|_| ())
    }

    /// A call whose arguments are not a tuple: `pickle.py` unpacks any iterable.
    fn call_with_any_args(&mut self, op: &Op<'_>) -> Result<()> {
        let kind = match op.opcode {
            Opcode::Reduce => CallKind::Reduce,
            Opcode::NewObj => CallKind::NewObj,
            _ => CallKind::NewObjEx,
        };
        let kwargs = if kind == CallKind::NewObjEx { Some(self.pop()?) } else { None };
        let (args, callable) = (self.pop()?, self.pop()?);
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
        let handle = self.arena.add_call(kind, callable, args, kwargs, op.offset)?;
        self.stack.push(handle)
    }

    /// Module and name of GLOBAL as string values.
    fn name_strings(&mut self, op: &Op<'_>, module: &[u8], name: &[u8]) -> Result<(Handle, Handle)> {
        let after = op.payload.saturating_add(module.len()).saturating_add(1);
        let module = self.arena.add(Node::Str(range_in_pickle(op.payload, module)))?;
        let name = self.arena.add(Node::Str(range_in_pickle(after, name)))?;
        Ok((module, name))
    }

    /// Pushes a call that stands for an unpickler's lookup at run time.
    fn push_lookup_call(&mut self, name: &str, args: &[Handle], offset: usize) -> Result<()> {
        let module = self.globals.intern_constant(&mut self.arena, self.data, RUN_TIME_MODULE)?;
        let name = self.globals.intern_constant(&mut self.arena, self.data, name)?;
        let callable = self.globals.global(&mut self.arena, self.data, (module, name), false, offset)?;
        let args = self.arena.add_tuple(args)?;
        let handle = self.arena.add_call(CallKind::Reduce, callable, args, None, offset)?;
        self.stack.push(handle)
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
