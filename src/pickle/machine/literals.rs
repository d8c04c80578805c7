//! Opcodes with a literal argument: numbers, strings and names. The value is a range of the pickle where the bytes can be used as
//! they are, else a range of the arena's decode buffer.

use super::{Machine, fail};
use crate::error::{Code, Result};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};
use crate::pickle::Handle;
use crate::pickle::arena::{ByteRange, Node};
use crate::pickle::disasm::Op;
use crate::pickle::opcode::Opcode;
use crate::pickle::text::{self, Integer};

impl Machine<'_> {
    /// INT and LONG: an integer in decimal, or one of INT's two booleans.
    pub(super) fn integer_from_text(&mut self, opcode: Opcode, line: &[u8]) -> Result<()> {
        let digits = self.limits.int_digits;
        let integer = match opcode {
            Opcode::Long => text::long(line, digits)?,
            _ => match text::int(line, digits)? {
                Ok(integer) => integer,
                Err(true) => return self.stack.push(Handle::TRUE),
                Err(false) => return self.stack.push(Handle::FALSE),
            },
        };
        match integer {
            Integer::Small(value) => self.push(Node::Int(value)),
            Integer::Big(bytes) => {
                let range = self.decode(bytes.len(), |decoded| {
                    decoded.extend_from_slice(&bytes);
                    Ok(())
                })?;
                self.push(Node::BigInt(range))
            }
        }
    }

    /// LONG1 and LONG4: little-endian two's complement; zero bytes encode 0.
    pub(super) fn integer_from_bytes(&mut self, payload: usize, bytes: &[u8]) -> Result<()> {
        Limits::check("int_bytes", self.limits.int_bytes, to_u64(bytes.len()))?;
        let bytes = bytes.get(..text::minimal_len(bytes)).unwrap_or(bytes);
        match text::i64_from_twos_complement(bytes) {
            Some(value) => self.push(Node::Int(value)),
            None => self.push(Node::BigInt(range_in_pickle(payload, bytes))),
        }
    }

    /// UNICODE: a range of the pickle where there is nothing to decode.
    pub(super) fn unicode(&mut self, payload: usize, line: &[u8]) -> Result<()> {
        if line.is_ascii() && !line.contains(&b'\\') {
            return self.push(Node::Str(range_in_pickle(payload, line)));
        }
        let range = self.decode(line.len(), |decoded| text::raw_unicode(line, decoded))?;
        self.push(Node::Str(range))
    }

    /// STRING: a string literal of Python 2.
    pub(super) fn string(&mut self, line: &[u8]) -> Result<()> {
        let range = self.decode(line.len(), |decoded| text::string(line, decoded))?;
        let node = python2_string(self.arena.bytes(self.data, range), range);
        self.push(node)
    }

    /// Appends what `write` decodes to the decode buffer and returns its range. A result is at most twice as long as its source, of
    /// `len` bytes.
    fn decode(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<ByteRange> {
        let start = self.arena.decoded.len();
        let reserved = self.arena.decoded.try_reserve(len.saturating_mul(2));
        reserved.map_err(|_| fail(Code::Memory, "no memory for the decoded strings"))?;
        write(&mut self.arena.decoded)?;
        let end = self.arena.decoded.len();
        Limits::check("pickle_bytes", u64::from(u32::MAX), to_u64(end))?;
        Ok(ByteRange {
            start: to_u32(start),
            len: to_u32(end.saturating_sub(start)),
            decoded: true,
            is_byte_string: false,
        })
    }

    /// PERSID: a persistent id as a line of ASCII text.
    pub(super) fn text_persistent_id(&mut self, payload: usize, line: &[u8]) -> Result<()> {
        if !self.accepts_persid {
            return Err(fail(
                Code::PersistentId,
                format!("a persistent id is text: {}", text::preview(line)),
            ));
        }
        if !line.is_ascii() {
            return Err(fail(Code::PickleText, "a persistent id is not ASCII"));
        }
        let id = self.arena.add(Node::Str(range_in_pickle(payload, line)))?;
        self.push(Node::PersistentId(id))
    }

    /// GLOBAL and INST: module and name as two text lines.
    pub(super) fn global_from_lines(&mut self, op: &Op<'_>, module: &[u8], name: &[u8]) -> Result<Handle> {
        let after = op.payload.saturating_add(module.len()).saturating_add(1);
        let module = self.globals.name(&mut self.arena, self.data, range_in_pickle(op.payload, module))?;
        let name = self.globals.name(&mut self.arena, self.data, range_in_pickle(after, name))?;
        let python2 = self.protocol < 3;
        self.globals.global(&mut self.arena, self.data, (module, name), python2, op.offset)
    }

    /// STACK_GLOBAL: module and name as two strings on the stack.
    pub(super) fn stack_global(&mut self, offset: usize) -> Result<()> {
        let [module, name] = self.top_values()?;
        let module = self.globals.name_of(&mut self.arena, self.data, module)?;
        let name = self.globals.name_of(&mut self.arena, self.data, name)?;
        let python2 = self.protocol < 3;
        let handle = self.globals.global(&mut self.arena, self.data, (module, name), python2, offset)?;
        self.replace(2, handle)
    }
}

/// The range of `bytes`, which begin at `start` of the pickle.
#[inline]
pub(super) fn range_in_pickle(start: usize, bytes: &[u8]) -> ByteRange {
    ByteRange { start: to_u32(start), len: to_u32(bytes.len()), decoded: false, is_byte_string: false }
}

/// A `str` of Python 2: a string where it is UTF-8, else bytes.
pub(super) fn python2_string(bytes: &[u8], range: ByteRange) -> Node {
    if bytes.is_ascii() {
        Node::Str(range)
    } else if std::str::from_utf8(bytes).is_ok() {
        Node::Str(ByteRange { is_byte_string: true, ..range })
    } else {
        Node::Bytes(range)
    }
}
