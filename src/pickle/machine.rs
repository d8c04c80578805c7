//! The pickle machine: executes opcodes on an operand stack of handles, and records what CPython would call.
//!
//! Follows the stack, mark and memo semantics of CPython's C unpickler (`Modules/_pickle.c` as of 3.13). Every case that
//! unpicklers treat differently is a typed error at the opcode's offset.

mod literals;
#[cfg(feature = "scan")]
pub(super) mod recover;
mod stack;

use self::literals::{python2_string, range_in_pickle};
use self::stack::underflow;
use super::Pickle;
use super::arena::{Arena, Node, Span};
use super::bounded_vec::BoundedVec;
use super::disasm::{Arg, Disasm, Op};
use super::globals::Globals;
use super::ids::{CallKind, GlobalId, Handle};
use super::keys::Interner;
use super::memo::Memo;
use super::opcode::Opcode;
use super::text;
use super::value::Values;
use crate::bytes::Chunk;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};
use crate::parallel::Cancel;

/// Opcodes between two checks for cancellation.
const CANCEL_CHECK_INTERVAL_OPS: u32 = 1 << 14;

pub(super) fn run(data: Chunk, accepts_persid: bool, limits: &Limits, cancel: &Cancel) -> Result<Pickle> {
    check_len(&data, limits)?;
    let mut disasm = Disasm::strict(&data, 0, limits);
    let mut machine = Machine { accepts_persid, ..Machine::new(&data, limits)? };
    let root = execute(&mut disasm, &mut machine, cancel)?;
    let (end, protocol, newest_protocol) = (disasm.position(), machine.protocol, machine.newest_protocol());
    let arena = machine.arena;
    Ok(Pickle { values: Values::new(data, arena), root, end, protocol, newest_protocol })
}

/// Fails where the pickle is longer than the limit `pickle_bytes`, or than the 32 bits that the arena keeps of an offset.
fn check_len(data: &[u8], limits: &Limits) -> Result<()> {
    let limit = u64::from(u32::MAX).saturating_sub(1).min(limits.pickle_bytes);
    Limits::check("pickle_bytes", limit, to_u64(data.len()))
}

/// Executes opcodes up to STOP, for loading and for scanning; returns the root.
#[inline(never)]
fn execute(disasm: &mut Disasm<'_>, machine: &mut Machine<'_>, cancel: &Cancel) -> Result<Handle> {
    // Most of a checkpoint consists of these opcodes. Each gets its own copy of decoding and execution, specialized by the compiler
    // and dispatched once. An opcode that makes a value is mostly followed by one that puts the value into the memo.
    macro_rules! dispatch {
        ($opcode:ident: $($frequent:ident)*; $($memoized:ident)*) => {
            match $opcode {
                $(Opcode::$frequent => machine.next(disasm, Opcode::$frequent),)*
                $(Opcode::$memoized => {
                    machine.next(disasm, Opcode::$memoized)?;
                    match disasm.peek() {
                        Some(Opcode::BinPut) => machine.next(disasm, Opcode::BinPut),
                        Some(Opcode::LongBinPut) => machine.next(disasm, Opcode::LongBinPut),
                        Some(Opcode::Memoize) => machine.next(disasm, Opcode::Memoize),
                        _ => Ok(None),
                    }
                })*
                other => machine.next(disasm, other),
            }
        };
    }
    let mut ops = 0_u32;
    while let Some(opcode) = disasm.peek() {
        ops = ops.wrapping_add(1);
        if ops.is_multiple_of(CANCEL_CHECK_INTERVAL_OPS) {
            cancel.check()?;
        }
        let root = dispatch!(opcode: Mark BinGet LongBinGet BinInt1 BinInt NewFalse EmptyTuple BinPersId;
            BinUnicode ShortBinUnicode Tuple Tuple1 Tuple2 Reduce)?;
        if let Some(root) = root {
            return Ok(root);
        }
    }
    match disasm.next() {
        Some(Err(error)) => Err(error),
        _ => Err(Error::new(Code::PickleStack, "the pickle ends without STOP")),
    }
}

struct Machine<'d> {
    data: &'d [u8],
    arena: Arena,
    stack: BoundedVec<Handle>,
    marks: BoundedVec<u32>,
    /// The stack's length at the topmost mark, `fence` in `_pickle.c` too: opcodes do not reach below it.
    fence: usize,
    memo: Memo,
    interner: Interner,
    globals: Globals,
    /// The number of calls of each global.
    call_counts: Vec<u64>,
    protocol: u8,
    /// The byte of the newest opcode so far: from 0x80 on, opcodes of later protocols have greater bytes.
    newest: u8,
    /// Whether BINBYTES or SHORT_BINBYTES occurred: the only opcodes of protocol 3, whose bytes are below 0x80.
    has_binbytes: bool,
    /// Whether PERSID, a persistent id as text, is accepted: the tar files of torch 0.1 contain it.
    accepts_persid: bool,
    limits: &'d Limits,
}

impl<'d> Machine<'d> {
    fn new(data: &'d [u8], limits: &'d Limits) -> Result<Machine<'d>> {
        Ok(Machine {
            data,
            arena: Arena::new(limits, data.len())?,
            stack: BoundedVec::new("stack", limits.stack),
            marks: BoundedVec::new("marks", limits.marks),
            fence: 0,
            memo: Memo::with_capacity_hint(limits.memo, data.len() / 12),
            interner: Interner::new(limits),
            globals: Globals::new(limits),
            call_counts: Vec::new(),
            protocol: 0,
            newest: 0,
            has_binbytes: false,
            accepts_persid: false,
            limits,
        })
    }

    /// Decodes and executes the next opcode, which `Disasm::peek` returned as `opcode`.
    #[inline(always)]
    fn next(&mut self, disasm: &mut Disasm<'_>, opcode: Opcode) -> Result<Option<Handle>> {
        let op = disasm.take_op(opcode)?;
        self.step(&op).map_err(|error| error.at(to_u64(op.offset)))
    }

    /// Executes one opcode; returns the root at STOP.
    #[inline(always)]
    fn step(&mut self, op: &Op<'_>) -> Result<Option<Handle>> {
        self.newest = self.newest.max(op.opcode.byte());
        match (op.opcode, op.arg) {
            (Opcode::Proto, Arg::Unsigned(version)) => {
                self.protocol = u8::try_from(version).unwrap_or(u8::MAX);
            }
            (Opcode::Frame, _) => {}
            (Opcode::Stop, _) => return self.stop().map(Some),

            (Opcode::None, _) => self.stack.push(Handle::NONE)?,
            (Opcode::NewTrue, _) => self.stack.push(Handle::TRUE)?,
            (Opcode::NewFalse, _) => self.stack.push(Handle::FALSE)?,
            (Opcode::BinInt1, Arg::Unsigned(value)) => {
                self.stack.push(Handle::small_int(u8::try_from(value).unwrap_or_default()))?;
            }
            (Opcode::BinInt2, Arg::Unsigned(value)) => {
                self.push(Node::Int(i64::try_from(value).unwrap_or_default()))?;
            }
            (Opcode::BinInt, Arg::Signed(value)) => self.push(Node::Int(i64::from(value)))?,
            (Opcode::Int | Opcode::Long, Arg::Bytes(line)) => self.integer_from_text(op.opcode, line)?,
            (Opcode::Long1 | Opcode::Long4, Arg::Bytes(bytes)) => {
                self.integer_from_bytes(op.payload, bytes)?
            }
            (Opcode::BinFloat, Arg::Double(value)) => self.push(Node::Float(value))?,
            (Opcode::Float, Arg::Bytes(line)) => self.push(Node::Float(text::float(line)?))?,

            (Opcode::BinUnicode | Opcode::ShortBinUnicode | Opcode::BinUnicode8, Arg::Bytes(bytes)) => {
                if !bytes.is_ascii() && !text::is_wtf8(bytes) {
                    return Err(fail(Code::PickleText, "a string is not UTF-8"));
                }
                self.push(Node::Str(range_in_pickle(op.payload, bytes)))?;
            }
            (Opcode::Unicode, Arg::Bytes(line)) => self.unicode(op.payload, line)?,
            (Opcode::String, Arg::Bytes(line)) => self.string(line)?,
            (Opcode::BinString | Opcode::ShortBinString, Arg::Bytes(bytes)) => {
                self.push(python2_string(bytes, range_in_pickle(op.payload, bytes)))?;
            }
            (Opcode::BinBytes | Opcode::ShortBinBytes | Opcode::BinBytes8, Arg::Bytes(bytes)) => {
                self.has_binbytes = true;
                self.push(Node::Bytes(range_in_pickle(op.payload, bytes)))?;
            }
            (Opcode::ByteArray8, Arg::Bytes(bytes)) => {
                self.push(Node::ByteArray(range_in_pickle(op.payload, bytes)))?;
            }

            (Opcode::Mark, _) => {
                self.marks.push(to_u32(self.stack.len()))?;
                self.fence = self.stack.len();
            }
            (Opcode::Pop, _) => self.pop_value_or_mark()?,
            (Opcode::PopMark, _) => {
                self.mark()?;
                self.drop_to_mark();
            }
            (Opcode::Dup, _) => {
                let top = self.top()?;
                self.push_existing(top)?;
            }

            (Opcode::EmptyTuple, _) => self.stack.push(Handle::EMPTY_TUPLE)?,
            (Opcode::Tuple1, _) => self.tuple(1)?,
            (Opcode::Tuple2, _) => self.tuple(2)?,
            (Opcode::Tuple3, _) => self.tuple(3)?,
            (Opcode::Tuple, _) => {
                let mark = self.mark()?;
                let tuple = self.arena.add_tuple(self.stack.slice_from(mark))?;
                self.drop_to_mark();
                self.stack.push(tuple)?;
            }
            (Opcode::EmptyList, _) => self.push(Node::List(Span::default()))?,
            (Opcode::EmptyDict, _) => self.push(Node::Dict(Span::default()))?,
            (Opcode::EmptySet, _) => self.push(Node::Set(Span::default()))?,
            (Opcode::List | Opcode::FrozenSet | Opcode::Dict, _) => self.container(op.opcode, op.offset)?,
            (Opcode::Append, _) => {
                let [target, value] = self.top_values()?;
                self.arena.append(target, &[value], op.offset)?;
                self.stack.pop();
            }
            (Opcode::Appends | Opcode::AddItems, _) => self.extend(op.opcode, op.offset)?,
            (Opcode::SetItem, _) => {
                let [target, key, value] = self.top_values()?;
                self.interner.check(&mut self.arena, self.data, key)?;
                self.arena.set_items(target, &[key, value], op.offset)?;
                self.replace(3, target)?;
            }
            (Opcode::SetItems, _) => {
                let (mark, target) = (self.mark()?, self.below_mark()?);
                for &key in self.stack.slice_from(mark).iter().step_by(2) {
                    self.interner.check(&mut self.arena, self.data, key)?;
                }
                self.arena.set_items(target, self.stack.slice_from(mark), op.offset)?;
                self.drop_to_mark();
            }

            (Opcode::BinPut | Opcode::LongBinPut, Arg::Unsigned(number)) => {
                let top = self.top()?;
                self.memo.put(binary_memo_index(number)?, top)?;
            }
            (Opcode::BinGet | Opcode::LongBinGet, Arg::Unsigned(number)) => {
                let value = self.memo.get(binary_memo_index(number)?)?;
                self.push_existing(value)?;
            }
            (Opcode::Put, Arg::Bytes(line)) => {
                let (number, top) = (text::memo_index(line)?, self.top()?);
                self.memo.put(number, top)?;
            }
            (Opcode::Get, Arg::Bytes(line)) => {
                let value = self.memo.get(text::memo_index(line)?)?;
                self.push_existing(value)?;
            }
            (Opcode::Memoize, _) => {
                let top = self.top()?;
                self.memo.put(self.memo.next_index(), top)?;
            }

            (Opcode::Global, Arg::Pair(module, name)) => {
                let handle = self.global_from_lines(op, module, name)?;
                self.stack.push(handle)?;
            }
            (Opcode::StackGlobal, _) => self.stack_global(op.offset)?,
            (Opcode::Reduce, _) => self.call(CallKind::Reduce, op.offset)?,
            (Opcode::NewObj, _) => self.call(CallKind::NewObj, op.offset)?,
            (Opcode::NewObjEx, _) => self.call(CallKind::NewObjEx, op.offset)?,
            (Opcode::Inst, Arg::Pair(module, name)) => {
                let mark = self.mark()?;
                let class = self.global_from_lines(op, module, name)?;
                self.call_from_mark(CallKind::Inst, class, mark, op.offset)?;
            }
            (Opcode::Obj, _) => {
                let mark = self.mark()?;
                let class = self.stack.get(mark).ok_or_else(underflow)?;
                self.call_from_mark(CallKind::Obj, class, mark.saturating_add(1), op.offset)?;
            }
            (Opcode::Build, _) => {
                let [target, state] = self.top_values()?;
                self.arena.build(target, state, op.offset)?;
                self.stack.pop();
            }

            (Opcode::BinPersId, _) => {
                let id = self.arena.add(Node::PersistentId(self.top()?))?;
                self.replace(1, id)?;
            }
            (Opcode::PersId, Arg::Bytes(line)) => self.text_persistent_id(op.payload, line)?,
            (Opcode::Ext1 | Opcode::Ext2 | Opcode::Ext4, _) => {
                return Err(fail(
                    Code::ExtRegistry,
                    "an EXT opcode refers to a class by its code in the extension registry",
                ));
            }
            (Opcode::NextBuffer | Opcode::ReadonlyBuffer, _) => {
                return Err(fail(Code::OutOfBand, "the pickle needs an out-of-band buffer"));
            }
            _ => return Err(fail(Code::InternalError, "the argument does not match its opcode")),
        }
        Ok(None)
    }

    /// The protocol of the newest opcode that was executed.
    fn newest_protocol(&self) -> u8 {
        let newest = Opcode::from_byte(self.newest).filter(|opcode| opcode.byte() >= Opcode::Proto.byte());
        newest.map_or(0, Opcode::protocol).max(if self.has_binbytes { 3 } else { 0 })
    }

    #[inline]
    fn tuple(&mut self, len: usize) -> Result<()> {
        let start = self.stack.len().checked_sub(len).filter(|&start| start >= self.fence);
        let start = start.ok_or_else(underflow)?;
        let tuple = self.arena.add_tuple(self.stack.slice_from(start))?;
        self.replace(len, tuple)
    }

    /// LIST, FROZENSET and DICT: a container of the values above the mark.
    fn container(&mut self, opcode: Opcode, offset: usize) -> Result<()> {
        let mark = self.mark()?;
        let step = match opcode {
            Opcode::Dict => 2,
            Opcode::FrozenSet => 1,
            _ => usize::MAX,
        };
        if step < usize::MAX {
            for &key in self.stack.slice_from(mark).iter().step_by(step) {
                self.interner.check(&mut self.arena, self.data, key)?;
            }
        }
        let values = self.stack.slice_from(mark);
        let handle = if opcode == Opcode::Dict {
            let handle = self.arena.add(Node::Dict(Span::default()))?;
            self.arena.set_items(handle, values, offset)?;
            handle
        } else {
            let span = Span::of(to_u32(self.arena.items.len()), to_u32(values.len()));
            self.arena.items.extend(values.len(), values.iter().copied())?;
            self.arena.add(if opcode == Opcode::List { Node::List(span) } else { Node::FrozenSet(span) })?
        };
        self.drop_to_mark();
        self.stack.push(handle)
    }

    /// APPENDS and ADDITEMS.
    fn extend(&mut self, opcode: Opcode, offset: usize) -> Result<()> {
        let (mark, target) = (self.mark()?, self.below_mark()?);
        if opcode == Opcode::AddItems && matches!(self.arena.node(target), Node::Set(_)) {
            for &item in self.stack.slice_from(mark) {
                self.interner.check(&mut self.arena, self.data, item)?;
            }
        }
        let values = self.stack.slice_from(mark);
        match opcode {
            Opcode::AddItems => self.arena.add_items(target, values, offset)?,
            _ => self.arena.append(target, values, offset)?,
        }
        self.drop_to_mark();
        Ok(())
    }

    fn call(&mut self, kind: CallKind, offset: usize) -> Result<()> {
        let (callable, args, kwargs) = if kind == CallKind::NewObjEx {
            let [callable, args, kwargs] = self.top_values()?;
            (callable, args, Some(kwargs))
        } else {
            let [callable, args] = self.top_values()?;
            (callable, args, None)
        };
        if !matches!(self.arena.node(args), Node::Tuple { .. }) {
            return Err(fail(Code::PickleType, "the arguments of a call are not a tuple"));
        }
        if kwargs.is_some_and(|kwargs| !matches!(self.arena.node(kwargs), Node::Dict(_))) {
            return Err(fail(Code::PickleType, "the keyword arguments of a call are not a dict"));
        }
        let result = self.add_call(kind, callable, args, kwargs, offset)?;
        self.replace(if kwargs.is_some() { 3 } else { 2 }, result)
    }

    /// Records a call; returns its result. Fails where `callable` is not a global, the result of a call or a persistent object:
    /// nothing else can be callable.
    fn add_call(
        &mut self,
        kind: CallKind,
        callable: Handle,
        args: Handle,
        kwargs: Option<Handle>,
        offset: usize,
    ) -> Result<Handle> {
        match self.arena.node(callable) {
            Node::Global(id) => self.count_call(id)?,
            Node::Call { .. } | Node::PersistentId(_) => {}
            _ => return Err(fail(Code::PickleType, "the called value is not a class or function")),
        }
        self.arena.add_call(kind, callable, args, kwargs, offset)
    }

    /// Counts the calls of a global against the limit `tensors`. A function that makes tensors is called once per tensor, so this
    /// stops a flood of them early.
    fn count_call(&mut self, id: GlobalId) -> Result<()> {
        if self.call_counts.len() <= id.index() {
            self.call_counts.resize(id.index().saturating_add(1), 0);
        }
        let Some(count) = self.call_counts.get_mut(id.index()) else { return Ok(()) };
        *count = count.saturating_add(1);
        Limits::check("tensors", self.limits.tensors, *count)
    }

    /// A call of `callable` with the values from `first_arg` on; takes all above the topmost mark off the stack.
    fn call_from_mark(
        &mut self,
        kind: CallKind,
        callable: Handle,
        first_arg: usize,
        offset: usize,
    ) -> Result<()> {
        let args = self.arena.add_tuple(self.stack.slice_from(first_arg))?;
        let result = self.add_call(kind, callable, args, None, offset)?;
        self.drop_to_mark();
        self.stack.push(result)
    }
}

#[inline]
fn binary_memo_index(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| fail(Code::PickleMemo, "a memo index exceeds 32 bits"))
}

#[cold]
#[inline(never)]
fn fail(code: Code, text: impl Into<String>) -> Error {
    Error::new(code, text)
}
