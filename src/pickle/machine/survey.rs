//! Runs a pickle as far as any reader goes: the same machine as for loading, and where it refuses, the reading of whoever goes
//! on, with the refusal kept as a defect.
//!
//! Readers that go on are CPython's two unpicklers and torch's `weights_only` one. Where all of them stop (an opcode that is
//! none, an empty stack, a memo entry that is not set), and at a limit, the survey stops too and says so. What a reader would
//! look up at run time (a global whose name a call computes, the extension registry) stands as a call of that look-up.

use super::literals::in_data;
use super::{Machine, drive, fail, wide};
use crate::bytes::Chunk;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::arena::Node;
use crate::pickle::disasm::{Arg, Disasm, Op};
use crate::pickle::opcode::Opcode;
use crate::pickle::spare;
use crate::pickle::value::{CallKind, Handle, Values};
use crate::pickle::{Pickle, index};

/// The module of names that stand for a reader's look-up at run time: `find_class` of two texts, `extension` of a number.
pub const RUN_TIME: &str = "<run time>";

/// Defects that are kept; what comes after repeats them.
const DEFECTS: usize = 1000;
/// Opcodes after which a request to stop is looked for.
const TICK: usize = 1 << 16;

/// What one pickle does, as far as any reader would run it.
#[derive(Debug)]
pub struct Survey {
    /// The values, by handle.
    pub values: Values,
    /// The value that STOP left; `None` where nothing reaches STOP.
    pub root: Option<Handle>,
    /// One past STOP, or where reading ended.
    pub end: usize,
    /// The protocol that PROTO states; 0 without PROTO.
    pub protocol: u8,
    /// The protocol of the newest opcode in it, where that is 2 or later.
    pub needed: u8,
    /// What a strict reader refuses, in program order; the first thousand.
    pub defects: Vec<Error>,
    /// The BUILDs in program order: where, and on what.
    pub builds: Vec<(u32, Handle)>,
    /// Whether a list, dict, set or call was fetched from the memo or duplicated. Where none was, no value holds itself: what is
    /// filled stands on the stack, and a value that holds it took it from there.
    pub fetched: bool,
    /// The first opcode that is newer than the stated protocol.
    pub newer: Option<(usize, Opcode)>,
}

impl Survey {
    /// The same as a pickle that was loaded, if a strict reader refuses nothing in it.
    pub fn into_pickle(self) -> Option<Pickle> {
        let Survey { values, end, protocol, needed, .. } = self;
        let root = self.root.filter(|_| self.defects.is_empty());
        root.map(|root| Pickle { values, root, end, protocol, needed })
    }
}

pub(in crate::pickle) fn run(data: Chunk, start: usize, limits: &Limits, cancel: &Cancel) -> Result<Survey> {
    let ceiling = u64::from(u32::MAX).saturating_sub(1).min(limits.pickle_bytes);
    Limits::check("pickle_bytes", ceiling, wide(data.len()))?;
    // Most pickles have no defects, and then need no look at the stack before each opcode.
    let mut disasm = Disasm::strict(&data, start, limits);
    let mut machine = surveyor(&data, limits)?;
    match drive(&mut disasm, &mut machine, cancel) {
        Ok(root) => {
            let mut found = Found { root: Some(root), ..Found::default() };
            if machine.needed() > machine.protocol.max(1) {
                let ops = Disasm::strict(&data, start, limits);
                ops.filter_map(Result::ok).for_each(|op| found.newer(&op, machine.protocol));
            }
            found.builds = machine.builds.take().unwrap_or_default();
            found.fetched = machine.fetched;
            let (stated, end) = ((machine.protocol, machine.needed()), disasm.position());
            let arena = machine.arena;
            Ok(found.survey(Values { data, arena }, end, stated))
        }
        Err(error) if error.code() == Code::Cancelled => Err(error),
        // At a limit of calls every reading ends, and up to there nothing was refused.
        Err(error) if error.code() == Code::Limit && is_call(&data, &error) => {
            let builds = machine.builds.take().unwrap_or_default();
            let mut found = Found { builds, fetched: machine.fetched, ..Found::default() };
            found.defect(error);
            let (stated, end) = ((machine.protocol, machine.needed()), disasm.position());
            let arena = machine.arena;
            Ok(found.survey(Values { data, arena }, end, stated))
        }
        Err(_) => {
            drop(machine);
            permissive(data, start, limits, cancel)
        }
    }
}

/// Whether the opcode that an error is about makes a call.
fn is_call(data: &[u8], error: &Error) -> bool {
    let at = error.offset().and_then(|offset| usize::try_from(offset).ok());
    let opcode = at.and_then(|at| data.get(at)).copied().and_then(Opcode::from_byte);
    matches!(opcode, Some(Opcode::Reduce | Opcode::NewObj | Opcode::NewObjEx | Opcode::Inst | Opcode::Obj))
}

fn surveyor<'d>(data: &'d [u8], limits: &'d Limits) -> Result<Machine<'d>> {
    let machine = Machine::new(data, limits, Some(spare::take()))?;
    Ok(Machine { builds: Some(Vec::new()), text_ids: true, ..machine })
}

/// The same from the start on, past every refusal.
fn permissive(data: Chunk, start: usize, limits: &Limits, cancel: &Cancel) -> Result<Survey> {
    // What is put back after a refusal may stand on the stack twice.
    let (mut found, mut ticks) = (Found { fetched: true, ..Found::default() }, 0_usize);
    let mut disasm = Disasm::lenient(&data, start, limits);
    let mut machine = surveyor(&data, limits)?;
    while let Some(op) = disasm.next() {
        if let Some(objection) = disasm.take_objection() {
            found.defect(objection);
        }
        let op = match op {
            Ok(op) => op,
            Err(error) => {
                found.defect(error);
                break;
            }
        };
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(TICK) {
            cancel.check()?;
        }
        found.newer(&op, machine.protocol);
        let before = Before::of(&machine);
        match machine.step(&op) {
            Ok(None) => {}
            Ok(root) => found.root = root,
            Err(error) => {
                let error = error.at(wide(op.offset));
                let next = machine.go_on(&op, &before, &error);
                found.defect(error);
                match next {
                    Next::On => {}
                    Next::Root(root) => found.root = Some(root),
                    Next::End => break,
                }
            }
        }
    }
    found.builds = machine.builds.take().unwrap_or_default();
    let stated = (machine.protocol, machine.needed());
    let (end, arena) = (disasm.position(), machine.arena);
    Ok(found.survey(Values { data, arena }, end, stated))
}

/// What a survey notes beside the values.
#[derive(Default)]
struct Found {
    root: Option<Handle>,
    defects: Vec<Error>,
    builds: Vec<(u32, Handle)>,
    fetched: bool,
    newer: Option<(usize, Opcode)>,
}

impl Found {
    fn defect(&mut self, error: Error) {
        if self.defects.len() < DEFECTS {
            self.defects.push(error);
        }
    }

    /// Keeps the first opcode that is newer than the stated protocol.
    fn newer(&mut self, op: &Op<'_>, stated: u8) {
        if self.newer.is_none() && op.opcode.protocol() > stated.max(1) && op.opcode != Opcode::Proto {
            self.newer = Some((op.offset, op.opcode));
        }
    }

    fn survey(self, values: Values, end: usize, (protocol, needed): (u8, u8)) -> Survey {
        let Found { root, defects, builds, fetched, newer } = self;
        Survey { values, root, end, protocol, needed, defects, builds, fetched, newer }
    }
}

/// How a survey continues after a refusal.
enum Next {
    On,
    Root(Handle),
    End,
}

/// The stack as it was before an opcode that was refused half-way.
struct Before {
    len: usize,
    /// The third from the top, the second, and the top.
    top: [Handle; 3],
    marks: usize,
    mark: Option<u32>,
}

impl Before {
    #[inline]
    fn of(machine: &Machine<'_>) -> Before {
        let len = machine.stack.len();
        let from_top = |below: usize| {
            len.checked_sub(below).and_then(|at| machine.stack.get(at)).unwrap_or(Handle::NONE)
        };
        Before {
            len,
            top: [from_top(3), from_top(2), from_top(1)],
            marks: machine.marks.len(),
            mark: machine.marks.last(),
        }
    }
}

impl Machine<'_> {
    /// Does what the most permissive reader does at an opcode that was refused.
    #[cold]
    fn go_on(&mut self, op: &Op<'_>, before: &Before, error: &Error) -> Next {
        let done = match self.restore(before) {
            Ok(()) => self.permissive(op, error),
            Err(error) => Err(error),
        };
        done.unwrap_or(Next::End)
    }

    /// Puts back what a refused opcode took from the stack.
    fn restore(&mut self, before: &Before) -> Result<()> {
        self.stack.truncate(before.len);
        let lost = before.len.saturating_sub(self.stack.len());
        let from = before.top.len().checked_sub(lost);
        let from = from.ok_or_else(|| fail(Code::PickleStack, "the stack cannot be restored"))?;
        for &handle in before.top.get(from..).unwrap_or_default() {
            self.stack.push(handle)?;
        }
        if let Some(mark) = before.mark.filter(|_| self.marks.len() < before.marks) {
            self.marks.push(mark)?;
        }
        self.fence = self.marks.last().map_or(0, index);
        Ok(())
    }

    fn permissive(&mut self, op: &Op<'_>, error: &Error) -> Result<Next> {
        match (op.opcode, op.arg) {
            // The value is of no matter, its place on the stack is.
            (Opcode::Int | Opcode::Long, Arg::Bytes(line)) => {
                let value = loose(line).and_then(|text| text.trim_end_matches('L').parse().ok());
                self.push(Node::Int(value.unwrap_or_default()))?;
            }
            (Opcode::Long1 | Opcode::Long4, _) => self.push(Node::Int(0))?,
            (Opcode::Float, Arg::Bytes(line)) => {
                let value = loose(line).and_then(|text| text.parse().ok());
                self.push(Node::Float(value.unwrap_or(f64::NAN)))?;
            }
            (Opcode::Put, Arg::Bytes(line)) => {
                let top = self.top()?;
                if let Some(number) = loose(line).and_then(|text| text.parse().ok()) {
                    self.memo.put(number, top)?;
                }
            }
            (Opcode::Get, Arg::Bytes(line)) => {
                let number = loose(line).and_then(|text| text.parse().ok());
                let number = number.ok_or_else(|| fail(Code::PickleMemo, "no memo index"))?;
                let value = self.memo.fetch(number)?;
                self.stack.push(value)?;
            }
            (Opcode::Append, _) => self.drop_values(1)?,
            (Opcode::SetItem, _) => self.drop_values(2)?,
            (Opcode::Appends | Opcode::AddItems | Opcode::SetItems, _) => {
                let mark = self.unmark()?;
                self.below(mark)?;
                self.stack.truncate(mark);
            }
            (Opcode::Dict | Opcode::FrozenSet, _) => {
                let mark = self.unmark()?;
                self.stack.truncate(mark);
                let empty = Default::default();
                self.push(if op.opcode == Opcode::Dict {
                    Node::Dict(empty)
                } else {
                    Node::FrozenSet(empty)
                })?;
            }
            (Opcode::Reduce | Opcode::NewObj | Opcode::NewObjEx, _) if error.code() != Code::Limit => {
                self.loose_call(op)?;
            }
            (Opcode::Build, _) => self.drop_values(1)?,
            (Opcode::Global, Arg::Pair(module, name)) if error.code() == Code::Limit => {
                let (module, name) = self.spelled(op, module, name)?;
                self.look_up("find_class", &[module, name], op.offset)?;
            }
            (Opcode::StackGlobal, _) => {
                let (name, module) = (self.pop()?, self.pop()?);
                let may_be_text = |handle| {
                    matches!(
                        self.arena.node(handle),
                        Node::Call { .. } | Node::PersistentId(_) | Node::Str(_)
                    )
                };
                if !may_be_text(name) || !may_be_text(module) || error.code() == Code::PickleText {
                    return Ok(Next::End);
                }
                self.look_up("find_class", &[module, name], op.offset)?;
            }
            (Opcode::Ext1 | Opcode::Ext2 | Opcode::Ext4, arg) => {
                let number = match arg {
                    Arg::Unsigned(number) => i64::try_from(number).unwrap_or_default(),
                    Arg::Signed(number) => i64::from(number),
                    _ => 0,
                };
                let number = self.arena.add(Node::Int(number))?;
                self.look_up("extension", &[number], op.offset)?;
            }
            (Opcode::NextBuffer, _) => self.push(Node::Bytes(in_data(op.payload, &[])))?,
            (Opcode::ReadonlyBuffer, _) => {
                self.top()?;
            }
            // Readers take the top and leave the rest.
            (Opcode::Stop, _) => return self.top().map(Next::Root),
            _ => return Ok(Next::End),
        }
        Ok(Next::On)
    }

    fn drop_values(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.pop()?;
        }
        self.top().map(|_| ())
    }

    /// A call whose arguments are no tuple: `pickle.py` unpacks whatever they are.
    fn loose_call(&mut self, op: &Op<'_>) -> Result<()> {
        let kind = match op.opcode {
            Opcode::Reduce => CallKind::Reduce,
            Opcode::NewObj => CallKind::NewObj,
            _ => CallKind::NewObjEx,
        };
        let kwargs = if kind == CallKind::NewObjEx { Some(self.pop()?) } else { None };
        let (args, callable) = (self.pop()?, self.pop()?);
        if !matches!(self.arena.node(callable), Node::Global(_) | Node::Call { .. } | Node::PersistentId(_)) {
            return Err(fail(Code::PickleType, "what is called is no class or function"));
        }
        let kwargs = match kwargs {
            Some(kwargs) if matches!(self.arena.node(kwargs), Node::Dict(_)) => Some(kwargs),
            _ => None,
        };
        let args = match self.arena.node(args) {
            Node::Tuple { .. } => args,
            Node::List(span) | Node::Set(span) | Node::FrozenSet(span) => {
                let items = self.arena.run(span).to_vec();
                self.arena.add_tuple(&items)?
            }
            _ => self.arena.add_tuple(&[args])?,
        };
        let handle = self.arena.add_call(kind, callable, args, kwargs, op.offset)?;
        self.stack.push(handle)
    }

    fn spelled(&mut self, op: &Op<'_>, module: &[u8], name: &[u8]) -> Result<(Handle, Handle)> {
        let after = op.payload.saturating_add(module.len()).saturating_add(1);
        let module = self.arena.add(Node::Str(in_data(op.payload, module)))?;
        let name = self.arena.add(Node::Str(in_data(after, name)))?;
        Ok((module, name))
    }

    /// Pushes a call of what a reader asks at run time.
    fn look_up(&mut self, name: &str, args: &[Handle], offset: usize) -> Result<()> {
        let module = self.globals.constant(&mut self.arena, self.data, RUN_TIME)?;
        let name = self.globals.constant(&mut self.arena, self.data, name)?;
        let callable = self.globals.global(&mut self.arena, self.data, (module, name), false, offset)?;
        let args = self.arena.add_tuple(args)?;
        let handle = self.arena.add_call(CallKind::Reduce, callable, args, None, offset)?;
        self.stack.push(handle)
    }
}

/// A number as Python's `int()` and `float()` take it: blanks around it and underscores in it are passed over.
fn loose(line: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(line).ok()?.trim();
    Some(text.trim_start_matches('+').replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(data: &[u8]) -> Survey {
        run(data.to_vec().into(), 0, &Limits::default(), &Cancel::new()).unwrap()
    }

    fn calls(survey: &Survey) -> Vec<String> {
        let values = &survey.values;
        let name = |handle| match values.get(handle) {
            crate::pickle::Value::Global(id) => {
                format!("{}.{}", values.global(id).module, values.global(id).name)
            }
            _ => "?".to_owned(),
        };
        values.calls().map(|(id, _)| name(values.call(id).callable)).collect()
    }

    fn codes(survey: &Survey) -> Vec<Code> {
        survey.defects.iter().map(Error::code).collect()
    }

    #[test]
    fn a_clean_pickle_has_no_defects_and_its_builds_in_order() {
        let found = survey(b"\x80\x02cm\nC\n)\x81}b.");
        assert_eq!((codes(&found), calls(&found)), (vec![], vec!["m.C".to_owned()]));
        assert_eq!(found.builds.iter().map(|&(offset, _)| offset).collect::<Vec<_>>(), [10]);
        assert!(found.root.is_some() && found.newer.is_none());
    }

    #[test]
    fn what_one_reader_refuses_and_another_runs_is_run() {
        for (data, code) in [
            (&b"cm\nf\n]R."[..], Code::PickleType), // arguments that are no tuple: pickle.py unpacks them
            (b"I 5\n0cm\nf\n)R.", Code::AmbiguousNumber), // a blank in a number
            (b"F1_0.0\n0cm\nf\n)R.", Code::AmbiguousNumber), // an underscore in a float
            (b"Np 1\n0g01\n0cm\nf\n)R.", Code::PickleMemo), // a memo index with a blank
            (b"]N}s0cm\nf\n)R.", Code::PickleType), // an unhashable key, on a list that has no keys
            (b"\x80\x63cm\nf\n)R.", Code::PickleProto), // a protocol that is none
            (b"N\x80\x02cm\nf\n)R0.", Code::PickleProto), // PROTO in the middle
            (b"\x80\x04\x95\x01\0\0\0\0\0\0\0cm\nf\n)R.", Code::PickleFrame), // a frame's end is straddled
            (b"NNcm\nf\n)R.", Code::PickleStack),   // values left behind
            (b"\x82\x01cm\nf\n)R.", Code::ExtRegistry),
            (b"\x97cm\nf\n)R.", Code::OutOfBand),
            (b"]Nbcm\nf\n)R.", Code::PickleType),
        ] {
            let found = survey(data);
            assert_eq!(codes(&found).first(), Some(&code), "{data:?}");
            assert_eq!(calls(&found).last().map(String::as_str), Some("m.f"), "{data:?}");
        }
    }

    #[test]
    fn where_every_reader_stops_the_calls_before_are_known() {
        for data in
            [&b"cm\nf\n)R\xff"[..], b"cm\nf\n)R00", b"cm\nf\n)Rh\x07.", b"cm\nf\n)RX\xff\0\0\0", b"cm\nf\n)R"]
        {
            let found = survey(data);
            assert!(found.root.is_none() && !found.defects.is_empty(), "{data:?}");
            assert_eq!(calls(&found), ["m.f"], "{data:?}");
        }
    }

    #[test]
    fn a_name_that_a_call_computes_is_a_look_up() {
        // STACK_GLOBAL on the result of a call, and its result called.
        let found = survey(b"\x80\x04\x8c\x02oscm\nf\n)R\x93)R.");
        assert_eq!(calls(&found), ["m.f", "<run time>.find_class", "?"]);
    }

    #[test]
    fn a_name_with_too_many_parts_is_a_look_up_too() {
        let long = format!("cm\n{}\n)R.", ["x"; 40].join("."));
        assert_eq!(calls(&survey(long.as_bytes())), ["<run time>.find_class", "?"]);
    }

    #[test]
    fn an_opcode_newer_than_the_protocol_is_told() {
        assert_eq!(survey(b"\x80\x02\x8f.").newer, Some((2, Opcode::EmptySet)));
        assert_eq!(survey(b"\x80\x04\x8f.").newer, None);
        assert_eq!(survey(b"].").newer, None);
    }
}
