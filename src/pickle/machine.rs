//! The machine: executes opcodes on a stack of handles, and records what CPython would call.
//!
//! Follows the stack, mark and memo semantics of CPython's C unpickler (`Modules/_pickle.c` as of 3.13), with every grey case
//! refused by a typed error at the opcode's offset.

mod literals;
mod stack;
pub(super) mod survey;

use self::literals::{in_data, native_string};
use self::stack::underflow;
use super::arena::{Arena, Node, Span};
use super::disasm::{Arg, Disasm, Op};
use super::globals::Globals;
use super::keys::Interner;
use super::memo::Memo;
use super::opcode::Opcode;
use super::pool::Pool;
use super::spare::Spare;
use super::text;
use super::value::{CallKind, GlobalId, Handle, Values};
use super::{Pickle, narrow, wide};
use crate::bytes::Chunk;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::parallel::Cancel;

/// Opcodes between two looks at whether the work was asked to stop.
const TICK: u32 = 1 << 14;

pub(super) fn run(data: Chunk, start: usize, limits: &Limits, cancel: &Cancel) -> Result<Pickle> {
    // Offsets are kept in 32 bits.
    let ceiling = u64::from(u32::MAX).saturating_sub(1).min(limits.pickle_bytes);
    Limits::check("pickle_bytes", ceiling, wide(data.len()))?;
    let mut disasm = Disasm::strict(&data, start, limits);
    let mut machine = Machine::new(&data, limits, None)?;
    let root = drive(&mut disasm, &mut machine, cancel)?;
    let (end, protocol, needed) = (disasm.position(), machine.protocol, machine.needed());
    let arena = machine.arena;
    Ok(Pickle { values: Values { data, arena }, root, end, protocol, needed })
}

/// Executes opcodes up to STOP, for loading and for scanning alike; gives the root.
#[inline(never)]
fn drive(disasm: &mut Disasm<'_>, machine: &mut Machine<'_>, cancel: &Cancel) -> Result<Handle> {
    // Most of a checkpoint consists of these. Each has a path of its own, decoded and executed without asking twice which it is;
    // what makes a value is mostly followed by what puts it into the memo.
    macro_rules! paths {
        ($opcode:ident: $($frequent:ident)*; $($makes:ident)*) => {
            match $opcode {
                $(Opcode::$frequent => machine.next(disasm, Opcode::$frequent),)*
                $(Opcode::$makes => {
                    machine.next(disasm, Opcode::$makes)?;
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
        if ops.is_multiple_of(TICK) {
            cancel.check()?;
        }
        let root = paths!(opcode: Mark BinGet LongBinGet BinInt1 BinInt NewFalse EmptyTuple BinPersId;
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
    stack: Pool<Handle>,
    marks: Pool<u32>,
    /// The stack's length at the topmost mark: opcodes do not reach below it.
    fence: usize,
    memo: Memo,
    interner: Interner,
    globals: Globals,
    /// How often each global was called.
    called: Vec<u64>,
    protocol: u8,
    /// The newest opcode so far: from 0x80 on, later protocols have greater bytes.
    newest: u8,
    /// Whether a BINBYTES or SHORT_BINBYTES stood there, protocol 3's only opcodes and of smaller bytes.
    binbytes: bool,
    /// The BUILDs in program order, where they are wanted: where, and on what.
    builds: Option<Vec<(u32, Handle)>>,
    /// Whether a value that may be filled later was fetched from the memo or duplicated.
    fetched: bool,
    /// Whether persistent ids may be texts (PERSID), as the tar files of torch 0.1 have them.
    text_ids: bool,
    limits: &'d Limits,
}

impl<'d> Machine<'d> {
    /// A machine in memory of its own, or in what a survey before has left.
    fn new(data: &'d [u8], limits: &'d Limits, mut spare: Option<Spare>) -> Result<Machine<'d>> {
        let memo = spare.as_mut().map(|spare| std::mem::take(&mut spare.memo));
        Ok(Machine {
            data,
            arena: Arena::new(limits, data.len(), spare)?,
            stack: Pool::new("stack", limits.stack),
            marks: Pool::new("marks", limits.marks),
            fence: 0,
            memo: Memo::with_room(limits.memo, memo, data.len() / 12),
            interner: Interner::new(limits),
            globals: Globals::new(limits),
            called: Vec::new(),
            protocol: 0,
            newest: 0,
            binbytes: false,
            builds: None,
            fetched: false,
            text_ids: false,
            limits,
        })
    }

    /// Reads and executes the opcode that comes next.
    #[inline(always)]
    fn next(&mut self, disasm: &mut Disasm<'_>, opcode: Opcode) -> Result<Option<Handle>> {
        let op = disasm.take_op(opcode)?;
        self.step(&op).map_err(|error| error.at(wide(op.offset)))
    }

    /// Executes one opcode; gives the root at STOP.
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
                self.stack.push(Handle::small(u8::try_from(value).unwrap_or_default()))?;
            }
            (Opcode::BinInt2, Arg::Unsigned(value)) => {
                self.push(Node::Int(i64::try_from(value).unwrap_or_default()))?;
            }
            (Opcode::BinInt, Arg::Signed(value)) => self.push(Node::Int(i64::from(value)))?,
            (Opcode::Int | Opcode::Long, Arg::Bytes(line)) => self.text_integer(op.opcode, line)?,
            (Opcode::Long1 | Opcode::Long4, Arg::Bytes(bytes)) => self.binary_integer(op.payload, bytes)?,
            (Opcode::BinFloat, Arg::Double(value)) => self.push(Node::Float(value))?,
            (Opcode::Float, Arg::Bytes(line)) => self.push(Node::Float(text::float(line)?))?,

            (Opcode::BinUnicode | Opcode::ShortBinUnicode | Opcode::BinUnicode8, Arg::Bytes(bytes)) => {
                if !bytes.is_ascii() && !text::is_wtf8(bytes) {
                    return Err(fail(Code::PickleText, "a string is not UTF-8"));
                }
                self.push(Node::Str(in_data(op.payload, bytes)))?;
            }
            (Opcode::Unicode, Arg::Bytes(line)) => self.unicode(op.payload, line)?,
            (Opcode::String, Arg::Bytes(line)) => self.string(line)?,
            (Opcode::BinString | Opcode::ShortBinString, Arg::Bytes(bytes)) => {
                self.push(native_string(bytes, in_data(op.payload, bytes)))?;
            }
            (Opcode::BinBytes | Opcode::ShortBinBytes | Opcode::BinBytes8, Arg::Bytes(bytes)) => {
                self.binbytes = true;
                self.push(Node::Bytes(in_data(op.payload, bytes)))?;
            }
            (Opcode::ByteArray8, Arg::Bytes(bytes)) => {
                self.push(Node::ByteArray(in_data(op.payload, bytes)))?;
            }

            (Opcode::Mark, _) => {
                self.marks.push(narrow(self.stack.len()))?;
                self.fence = self.stack.len();
            }
            (Opcode::Pop, _) => self.pop_or_unmark()?,
            (Opcode::PopMark, _) => {
                let mark = self.unmark()?;
                self.stack.truncate(mark);
            }
            (Opcode::Dup, _) => {
                let top = self.top()?;
                self.push_again(top)?;
            }

            (Opcode::EmptyTuple, _) => self.stack.push(Handle::EMPTY_TUPLE)?,
            (Opcode::Tuple1, _) => self.tuple(1)?,
            (Opcode::Tuple2, _) => self.tuple(2)?,
            (Opcode::Tuple3, _) => self.tuple(3)?,
            (Opcode::Tuple, _) => {
                let mark = self.unmark()?;
                let tuple = self.arena.add_tuple(self.stack.from(mark))?;
                self.stack.truncate(mark);
                self.stack.push(tuple)?;
            }
            (Opcode::EmptyList, _) => self.push(Node::List(Span::default()))?,
            (Opcode::EmptyDict, _) => self.push(Node::Dict(Span::default()))?,
            (Opcode::EmptySet, _) => self.push(Node::Set(Span::default()))?,
            (Opcode::List | Opcode::FrozenSet | Opcode::Dict, _) => self.container(op.opcode)?,
            (Opcode::Append, _) => {
                let value = self.pop()?;
                let target = self.top()?;
                self.arena.append(target, &[value])?;
            }
            (Opcode::Appends | Opcode::AddItems, _) => self.extend(op.opcode)?,
            (Opcode::SetItem, _) => {
                let (value, key) = (self.pop()?, self.pop()?);
                let target = self.top()?;
                self.interner.check(&mut self.arena, self.data, key)?;
                self.arena.set_items(target, &[key, value])?;
            }
            (Opcode::SetItems, _) => {
                let mark = self.unmark()?;
                let target = self.below(mark)?;
                for &key in self.stack.from(mark).iter().step_by(2) {
                    self.interner.check(&mut self.arena, self.data, key)?;
                }
                self.arena.set_items(target, self.stack.from(mark))?;
                self.stack.truncate(mark);
            }

            (Opcode::BinPut | Opcode::LongBinPut, Arg::Unsigned(number)) => {
                let top = self.top()?;
                self.memo.put(memo_number(number)?, top)?;
            }
            (Opcode::BinGet | Opcode::LongBinGet, Arg::Unsigned(number)) => {
                let value = self.memo.fetch(memo_number(number)?)?;
                self.push_again(value)?;
            }
            (Opcode::Put, Arg::Bytes(line)) => {
                let (number, top) = (text::memo_index(line)?, self.top()?);
                self.memo.put(number, top)?;
            }
            (Opcode::Get, Arg::Bytes(line)) => {
                let value = self.memo.fetch(text::memo_index(line)?)?;
                self.push_again(value)?;
            }
            (Opcode::Memoize, _) => {
                let top = self.top()?;
                self.memo.put(self.memo.count(), top)?;
            }

            (Opcode::Global, Arg::Pair(module, name)) => {
                let handle = self.global_line(op, module, name)?;
                self.stack.push(handle)?;
            }
            (Opcode::StackGlobal, _) => self.stack_global(op.offset)?,
            (Opcode::Reduce, _) => self.call(CallKind::Reduce, op.offset)?,
            (Opcode::NewObj, _) => self.call(CallKind::NewObj, op.offset)?,
            (Opcode::NewObjEx, _) => self.call(CallKind::NewObjEx, op.offset)?,
            (Opcode::Inst, Arg::Pair(module, name)) => {
                let mark = self.unmark()?;
                let class = self.global_line(op, module, name)?;
                self.call_from_mark(CallKind::Inst, class, mark, mark, op.offset)?;
            }
            (Opcode::Obj, _) => {
                let mark = self.unmark()?;
                let class = self.stack.get(mark).ok_or_else(underflow)?;
                self.call_from_mark(CallKind::Obj, class, mark.saturating_add(1), mark, op.offset)?;
            }
            (Opcode::Build, _) => {
                let state = self.pop()?;
                let target = self.top()?;
                self.note_build(op.offset, target)?;
                self.arena.build(target, state)?;
            }

            (Opcode::BinPersId, _) => {
                let id = self.pop()?;
                self.push(Node::PersistentId(id))?;
            }
            (Opcode::PersId, Arg::Bytes(line)) => self.text_id(op.payload, line)?,
            (Opcode::Ext1 | Opcode::Ext2 | Opcode::Ext4, _) => {
                return Err(fail(
                    Code::ExtRegistry,
                    "a class is named by its number in the extension registry",
                ));
            }
            (Opcode::NextBuffer | Opcode::ReadonlyBuffer, _) => {
                return Err(fail(Code::OutOfBand, "a buffer from outside the pickle is wanted"));
            }
            _ => return Err(fail(Code::InternalError, "an opcode has an argument of another kind")),
        }
        Ok(None)
    }

    fn note_build(&mut self, offset: usize, target: Handle) -> Result<()> {
        if let Some(builds) = &mut self.builds {
            builds.try_reserve(1).map_err(|_| fail(Code::Memory, "no memory for the builds"))?;
            builds.push((narrow(offset), target));
        }
        Ok(())
    }

    /// The protocol of the newest opcode that was executed.
    fn needed(&self) -> u8 {
        let newest = Opcode::from_byte(self.newest).filter(|opcode| opcode.byte() >= Opcode::Proto.byte());
        newest.map_or(0, Opcode::protocol).max(if self.binbytes { 3 } else { 0 })
    }

    #[inline]
    fn tuple(&mut self, len: usize) -> Result<()> {
        let start = self.stack.len().checked_sub(len).filter(|&start| start >= self.fence);
        let start = start.ok_or_else(underflow)?;
        let tuple = self.arena.add_tuple(self.stack.from(start))?;
        self.stack.truncate(start);
        self.stack.push(tuple)
    }

    /// LIST, FROZENSET and DICT: a container of what stands on the mark.
    fn container(&mut self, opcode: Opcode) -> Result<()> {
        let mark = self.unmark()?;
        let step = match opcode {
            Opcode::Dict => 2,
            Opcode::FrozenSet => 1,
            _ => usize::MAX,
        };
        if step < usize::MAX {
            for &key in self.stack.from(mark).iter().step_by(step) {
                self.interner.check(&mut self.arena, self.data, key)?;
            }
        }
        let values = self.stack.from(mark);
        let handle = if opcode == Opcode::Dict {
            let handle = self.arena.add(Node::Dict(Span::default()))?;
            self.arena.set_items(handle, values)?;
            handle
        } else {
            let span = Span::of(narrow(self.arena.items.len()), narrow(values.len()));
            self.arena.items.extend(values.len(), values.iter().copied())?;
            self.arena.add(if opcode == Opcode::List { Node::List(span) } else { Node::FrozenSet(span) })?
        };
        self.stack.truncate(mark);
        self.stack.push(handle)
    }

    /// APPENDS and ADDITEMS.
    fn extend(&mut self, opcode: Opcode) -> Result<()> {
        let mark = self.unmark()?;
        let target = self.below(mark)?;
        if opcode == Opcode::AddItems && matches!(self.arena.node(target), Node::Set(_)) {
            for &item in self.stack.from(mark) {
                self.interner.check(&mut self.arena, self.data, item)?;
            }
        }
        let values = self.stack.from(mark);
        match opcode {
            Opcode::AddItems => self.arena.add_items(target, values)?,
            _ => self.arena.append(target, values)?,
        }
        self.stack.truncate(mark);
        Ok(())
    }

    fn call(&mut self, kind: CallKind, offset: usize) -> Result<()> {
        let kwargs = if kind == CallKind::NewObjEx { Some(self.pop()?) } else { None };
        let (args, callable) = (self.pop()?, self.pop()?);
        if !matches!(self.arena.node(args), Node::Tuple { .. }) {
            return Err(fail(Code::PickleType, "the arguments of a call are no tuple"));
        }
        if kwargs.is_some_and(|kwargs| !matches!(self.arena.node(kwargs), Node::Dict(_))) {
            return Err(fail(Code::PickleType, "the keyword arguments of a call are no dict"));
        }
        self.push_call(kind, callable, args, kwargs, offset)
    }

    /// Only a name, what a call would have made, or what the host knows under an id can be called at all.
    fn push_call(
        &mut self,
        kind: CallKind,
        callable: Handle,
        args: Handle,
        kwargs: Option<Handle>,
        offset: usize,
    ) -> Result<()> {
        match self.arena.node(callable) {
            Node::Global(id) => self.count_call(id)?,
            Node::Call { .. } | Node::PersistentId(_) => {}
            _ => return Err(fail(Code::PickleType, "what is called is no class or function")),
        }
        let handle = self.arena.add_call(kind, callable, args, kwargs, offset)?;
        self.stack.push(handle)
    }

    /// Whatever makes tensors is called once for each, so a flood of them is seen before all of it is there.
    fn count_call(&mut self, id: GlobalId) -> Result<()> {
        if self.called.len() <= id.index() {
            self.called.resize(id.index().saturating_add(1), 0);
        }
        let Some(count) = self.called.get_mut(id.index()) else { return Ok(()) };
        *count = count.saturating_add(1);
        Limits::check("tensors", self.limits.tensors, *count)
    }

    fn call_from_mark(
        &mut self,
        kind: CallKind,
        callable: Handle,
        first: usize,
        mark: usize,
        offset: usize,
    ) -> Result<()> {
        let args = self.arena.add_tuple(self.stack.from(first))?;
        self.stack.truncate(mark);
        self.push_call(kind, callable, args, None, offset)
    }
}

#[inline]
fn memo_number(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| fail(Code::PickleMemo, "a memo index exceeds 32 bits"))
}

#[cold]
#[inline(never)]
fn fail(code: Code, text: impl Into<String>) -> Error {
    Error::new(code, text)
}
