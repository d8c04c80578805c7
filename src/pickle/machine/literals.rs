//! What opcodes carry with them: numbers, texts and names, decoded where they stand or into the arena's side buffer.

use super::{Machine, fail};
use crate::error::{Code, Result};
use crate::limits::Limits;
use crate::pickle::arena::{Node, Piece};
use crate::pickle::disasm::Op;
use crate::pickle::opcode::Opcode;
use crate::pickle::text::{self, Integer};
use crate::pickle::value::Handle;
use crate::pickle::{narrow, wide};

impl Machine<'_> {
    pub(super) fn text_integer(&mut self, opcode: Opcode, line: &[u8]) -> Result<()> {
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
                let piece = self.store(bytes.len(), |side| {
                    side.extend_from_slice(&bytes);
                    Ok(())
                })?;
                self.push(Node::BigInt(piece))
            }
        }
    }

    /// LONG1 and LONG4: little-endian two's complement; no bytes are zero.
    pub(super) fn binary_integer(&mut self, payload: usize, bytes: &[u8]) -> Result<()> {
        Limits::check("int_bytes", self.limits.int_bytes, wide(bytes.len()))?;
        let bytes = bytes.get(..text::shortest(bytes)).unwrap_or(bytes);
        match text::small(bytes) {
            Some(value) => self.push(Node::Int(value)),
            None => self.push(Node::BigInt(in_data(payload, bytes))),
        }
    }

    /// UNICODE: as it stands when there is nothing to decode.
    pub(super) fn unicode(&mut self, payload: usize, line: &[u8]) -> Result<()> {
        if line.is_ascii() && !line.contains(&b'\\') {
            return self.push(Node::Str(in_data(payload, line)));
        }
        let piece = self.store(line.len(), |side| text::raw_unicode(line, side))?;
        self.push(Node::Str(piece))
    }

    pub(super) fn string(&mut self, line: &[u8]) -> Result<()> {
        let piece = self.store(line.len(), |side| text::string(line, side))?;
        let node = native_string(self.arena.bytes(self.data, piece), piece);
        self.push(node)
    }

    /// What `write` adds to the side buffer, which is at most twice as long as what it decodes.
    fn store(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<Piece> {
        let start = self.arena.side.len();
        let reserved = self.arena.side.try_reserve(len.saturating_mul(2));
        reserved.map_err(|_| fail(Code::Memory, "no memory for the decoded strings"))?;
        write(&mut self.arena.side)?;
        let end = self.arena.side.len();
        Limits::check("pickle_bytes", u64::from(u32::MAX), wide(end))?;
        Ok(Piece { start: narrow(start), len: narrow(end.saturating_sub(start)), side: true })
    }

    pub(super) fn text_id(&mut self, payload: usize, line: &[u8]) -> Result<()> {
        if !self.text_ids {
            return Err(fail(
                Code::PersistentId,
                format!("a persistent id is text: {}", text::preview(line)),
            ));
        }
        if !line.is_ascii() {
            return Err(fail(Code::PickleText, "a persistent id is not ASCII"));
        }
        let id = self.arena.add(Node::Str(in_data(payload, line)))?;
        self.push(Node::PersistentId(id))
    }

    /// GLOBAL and INST: module and name in two lines.
    pub(super) fn global_line(&mut self, op: &Op<'_>, module: &[u8], name: &[u8]) -> Result<Handle> {
        let after = op.payload.saturating_add(module.len()).saturating_add(1);
        let module = self.globals.name(&mut self.arena, self.data, in_data(op.payload, module))?;
        let name = self.globals.name(&mut self.arena, self.data, in_data(after, name))?;
        let old = self.protocol < 3;
        self.globals.global(&mut self.arena, self.data, (module, name), old, op.offset)
    }

    pub(super) fn stack_global(&mut self, offset: usize) -> Result<()> {
        let (name, module) = (self.pop()?, self.pop()?);
        let module = self.globals.name_of(&mut self.arena, self.data, module)?;
        let name = self.globals.name_of(&mut self.arena, self.data, name)?;
        let old = self.protocol < 3;
        let handle = self.globals.global(&mut self.arena, self.data, (module, name), old, offset)?;
        self.stack.push(handle)
    }
}

#[inline]
pub(super) fn in_data(start: usize, bytes: &[u8]) -> Piece {
    Piece { start: narrow(start), len: narrow(bytes.len()), side: false }
}

/// A `str` of Python 2: text if it is UTF-8, else bytes.
pub(super) fn native_string(bytes: &[u8], piece: Piece) -> Node {
    if std::str::from_utf8(bytes).is_ok() { Node::Str(piece) } else { Node::Bytes(piece) }
}
