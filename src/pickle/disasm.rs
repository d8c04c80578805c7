//! The pickle disassembler, for loading and for scanning: a lazy iterator over opcodes with raw arguments, from a start offset.
//!
//! In strict mode it refuses PROTO above 5 or anywhere but first, and frames that are nested, straddled by an opcode, longer than
//! the data or open at STOP (PEP 3154). In lenient mode it yields those opcodes. Errors are items: after a refused PROTO or FRAME the
//! iterator continues; an unknown opcode or a truncated argument ends it. Lengths are checked against the data; nothing is allocated.

use super::opcode::{ArgKind, Opcode};
use crate::error::{Code, Error, Result, bail, error};
use crate::limits::Limits;
use crate::num::{to_u64, to_usize};

/// An opcode's argument, decoded from the stream but not interpreted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg<'a> {
    /// No argument.
    None,
    /// An unsigned number of one to eight bytes.
    Unsigned(u64),
    /// A signed number of four bytes.
    Signed(i32),
    /// A double.
    Double(f64),
    /// Bytes after a length, or a text line without its line feed. They end where the opcode ends, or at the line feed.
    Bytes(&'a [u8]),
    /// Two text lines without their line feeds.
    Pair(&'a [u8], &'a [u8]),
}

/// One opcode of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op<'a> {
    /// The offset of the opcode's byte.
    pub offset: usize,
    /// The opcode.
    pub opcode: Opcode,
    /// Its argument.
    pub arg: Arg<'a>,
    /// The offset of its argument; for bytes with a length, the offset past the length.
    pub payload: usize,
}

/// An iterator over the opcodes of one pickle; it ends after STOP.
#[derive(Debug)]
pub struct Disasm<'a> {
    data: &'a [u8],
    position: usize,
    start: usize,
    /// The end of the open frame; `NO_FRAME` when none is open.
    frame_end: usize,
    strict: bool,
    done: bool,
    /// Whether the data ends inside the last opcode.
    is_truncated: bool,
    /// The limit `line`.
    line: usize,
    /// The limit `int_digits`.
    digits: usize,
}

const NO_FRAME: usize = usize::MAX;

impl<'a> Disasm<'a> {
    /// A disassembler that refuses what unpicklers treat differently.
    pub fn strict(data: &'a [u8], start: usize, limits: &Limits) -> Disasm<'a> {
        Disasm {
            data,
            position: start,
            start,
            frame_end: NO_FRAME,
            strict: true,
            done: false,
            is_truncated: false,
            line: to_usize(limits.line),
            digits: to_usize(limits.int_digits),
        }
    }

    /// A disassembler that enforces neither PROTO nor FRAME.
    pub fn lenient(data: &'a [u8], start: usize, limits: &Limits) -> Disasm<'a> {
        Disasm { strict: false, ..Disasm::strict(data, start, limits) }
    }

    /// The offset of the next opcode; after STOP, one past it.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether the data ends inside the opcode that failed last, or before STOP: with more data, it may be valid.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.position.saturating_add(len);
        match self.data.get(self.position..end) {
            Some(taken) => {
                self.position = end;
                Ok(taken)
            }
            None => Err(self.truncated(to_u64(len))),
        }
    }

    #[cold]
    fn truncated(&mut self, len: u64) -> Error {
        self.is_truncated = true;
        let left = self.data.len().saturating_sub(self.position);
        error!(Code::Truncated, "the argument has {len} byte(s), the data has {left} left")
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.data.get(self.position..).and_then(|rest| rest.first_chunk::<N>()) {
            Some(taken) => {
                self.position = self.position.saturating_add(N);
                Ok(*taken)
            }
            None => Err(self.truncated(to_u64(N))),
        }
    }

    #[inline]
    fn counted(&mut self, len: u64) -> Result<Arg<'a>> {
        match usize::try_from(len) {
            Ok(len) => self.take(len).map(Arg::Bytes),
            Err(_) => Err(self.truncated(len)),
        }
    }

    /// A line of at most `limit` + `extra` bytes; only a line feed ends it (`pickletools: read_stringnl`). `name` is the limit's.
    fn line(&mut self, name: &'static str, limit: usize, extra: usize) -> Result<&'a [u8]> {
        let rest = self.data.get(self.position..).unwrap_or_default();
        let max_len = limit.saturating_add(extra);
        let window = rest.get(..max_len.saturating_add(1)).unwrap_or(rest);
        match window.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let line = self.take(end)?;
                self.position = self.position.saturating_add(1);
                Ok(line)
            }
            None if window.len() > max_len => {
                Err(Error::limit(name, to_u64(limit), to_u64(limit.saturating_add(1))))
            }
            None => {
                self.is_truncated = true;
                Err(Error::new(Code::Truncated, "a text line has no line feed"))
            }
        }
    }

    /// The next opcode; `None` at the end, and at a byte that is not an opcode.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Opcode> {
        if self.done { None } else { self.data.get(self.position).copied().and_then(Opcode::from_byte) }
    }

    /// Decodes the opcode that `peek` returned. Where a caller passes a constant, the compiler keeps that opcode's path only.
    #[inline(always)]
    pub(super) fn take_op(&mut self, opcode: Opcode) -> Result<Op<'a>> {
        let offset = self.position;
        let op = match self.decode(offset, opcode) {
            Ok(op) => op,
            Err(error) => return Err(self.stop_at(offset, error)),
        };
        self.done = op.opcode == Opcode::Stop;
        match self.check_framing(&op) {
            Err(error) if self.strict => Err(at_offset(error, offset)),
            _ => Ok(op),
        }
    }

    /// The opcode at `offset` again, which failed last; `None` where it cannot be decoded, so that nothing follows it.
    #[cfg(feature = "scan")]
    pub(super) fn failed_op(&mut self, offset: usize) -> Option<Op<'a>> {
        let opcode = self.data.get(offset).copied().and_then(Opcode::from_byte)?;
        if self.position == offset { None } else { self.decode(offset, opcode).ok() }
    }

    /// Ends the iteration at an opcode that cannot be decoded.
    #[cold]
    fn stop_at(&mut self, offset: usize, error: Error) -> Error {
        self.done = true;
        self.position = offset;
        at_offset(error, offset)
    }

    #[inline(always)]
    fn decode(&mut self, offset: usize, opcode: Opcode) -> Result<Op<'a>> {
        self.position = offset.saturating_add(1);
        let arg = match opcode.arg() {
            ArgKind::None => Arg::None,
            ArgKind::U8 => Arg::Unsigned(u64::from(u8::from_le_bytes(self.array()?))),
            ArgKind::U16 => Arg::Unsigned(u64::from(u16::from_le_bytes(self.array()?))),
            ArgKind::U32 => Arg::Unsigned(u64::from(u32::from_le_bytes(self.array()?))),
            ArgKind::I32 => Arg::Signed(i32::from_le_bytes(self.array()?)),
            ArgKind::U64 => Arg::Unsigned(u64::from_le_bytes(self.array()?)),
            ArgKind::F64 => Arg::Double(f64::from_be_bytes(self.array()?)),
            ArgKind::Counted1 => {
                let [len] = self.array()?;
                self.counted(u64::from(len))?
            }
            ArgKind::Counted4 => {
                let len = u32::from_le_bytes(self.array()?);
                self.counted(u64::from(len))?
            }
            ArgKind::Counted4Signed => {
                let len = i32::from_le_bytes(self.array()?);
                let Ok(len) = u64::try_from(len) else {
                    bail!(Code::Truncated, "a length is negative: {len}");
                };
                self.counted(len)?
            }
            ArgKind::Counted8 => {
                let len = u64::from_le_bytes(self.array()?);
                self.counted(len)?
            }
            ArgKind::Line => Arg::Bytes(self.line("line", self.line, 0)?),
            // Besides the digits: a sign and LONG's "L".
            ArgKind::Digits => Arg::Bytes(self.line("int_digits", self.digits, 2)?),
            ArgKind::Text => Arg::Bytes(self.line("pickle_bytes", self.data.len(), 0)?),
            ArgKind::Pair => Arg::Pair(self.line("line", self.line, 0)?, self.line("line", self.line, 0)?),
        };
        let payload = match arg {
            Arg::Bytes(bytes) => {
                let has_line_feed = matches!(opcode.arg(), ArgKind::Line | ArgKind::Digits | ArgKind::Text);
                self.position.saturating_sub(bytes.len()).saturating_sub(usize::from(has_line_feed))
            }
            _ => offset.saturating_add(1),
        };
        Ok(Op { offset, opcode, arg, payload })
    }

    /// PEP 3154: fails at a frame inside a frame, an opcode across a frame's end, a frame past the data or past STOP; and at a
    /// misplaced or unknown PROTO.
    #[inline(always)]
    fn check_framing(&mut self, op: &Op<'a>) -> Result<()> {
        if self.frame_end != NO_FRAME {
            if op.opcode == Opcode::Frame {
                return Err(bad_frame("a frame begins inside another"));
            }
            if self.position > self.frame_end {
                self.frame_end = NO_FRAME;
                return Err(bad_frame("an opcode straddles the end of a frame"));
            }
            if self.position == self.frame_end {
                self.frame_end = NO_FRAME;
            } else if op.opcode == Opcode::Stop {
                return Err(bad_frame("a frame reaches past STOP"));
            }
        }
        match (op.opcode, op.arg) {
            (Opcode::Frame, Arg::Unsigned(len)) => self.open_frame(len),
            (Opcode::Proto, Arg::Unsigned(version)) => self.protocol(op.offset, version),
            _ => Ok(()),
        }
    }

    fn open_frame(&mut self, len: u64) -> Result<()> {
        let left = self.data.len().saturating_sub(self.position);
        match usize::try_from(len) {
            Ok(0) => Ok(()),
            Ok(len) if len <= left => {
                self.frame_end = self.position.saturating_add(len);
                Ok(())
            }
            _ => {
                self.is_truncated = true;
                Err(bad_frame(&format!("a frame has {len} byte(s), the data has {left} left")))
            }
        }
    }

    fn protocol(&self, offset: usize, version: u64) -> Result<()> {
        if offset != self.start {
            bail!(Code::PickleProto, "PROTO is not at the pickle's start");
        }
        if version > 5 {
            bail!(Code::PickleProto, "the pickle states protocol {version}");
        }
        Ok(())
    }
}

impl<'a> Iterator for Disasm<'a> {
    type Item = Result<Op<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Result<Op<'a>>> {
        if self.done {
            return None;
        }
        if let Some(opcode) = self.peek() {
            return Some(self.take_op(opcode));
        }
        let error = match self.data.get(self.position) {
            Some(&byte) => no_opcode(byte),
            None => {
                self.is_truncated = true;
                no_stop()
            }
        };
        Some(Err(self.stop_at(self.position, error)))
    }
}

#[cold]
fn at_offset(error: Error, offset: usize) -> Error {
    error.at(to_u64(offset))
}

#[cold]
fn no_stop() -> Error {
    Error::new(Code::PickleStack, "the pickle ends without STOP")
        .note("The download or copy is probably incomplete: fetch the file again.")
}

#[cold]
fn no_opcode(byte: u8) -> Error {
    error!(Code::PickleOpcode, "0x{byte:02x} is not an opcode")
}

#[cold]
fn bad_frame(text: &str) -> Error {
    Error::new(Code::PickleFrame, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(mut disasm: Disasm<'_>) -> Vec<Result<Opcode, Code>> {
        disasm.by_ref().map(|op| op.map(|op| op.opcode).map_err(|error| error.code())).collect()
    }

    #[test]
    fn strict_mode_continues_after_a_refused_proto_and_lenient_mode_yields_it() {
        let data = b"\x80\x63N.rest";
        let limits = Limits::default();
        let strict = codes(Disasm::strict(data, 0, &limits));
        assert_eq!(strict, [Err(Code::PickleProto), Ok(Opcode::None), Ok(Opcode::Stop)]);
        let lenient = codes(Disasm::lenient(data, 0, &limits));
        assert_eq!(lenient, [Ok(Opcode::Proto), Ok(Opcode::None), Ok(Opcode::Stop)]);
    }

    #[test]
    fn iteration_ends_after_stop_or_at_an_unknown_opcode() {
        let limits = Limits::default();
        let mut disasm = Disasm::strict(b"xxN.N.", 2, &limits);
        assert_eq!(disasm.by_ref().count(), 2);
        assert_eq!(disasm.position(), 4);
        assert_eq!(codes(Disasm::strict(b"N\xffN", 0, &limits)), [Ok(Opcode::None), Err(Code::PickleOpcode)]);
    }

    #[test]
    fn payload_is_the_offset_of_the_argument() {
        let limits = Limits::default();
        let data = b"X\x02\0\0\0abVxy\ncmm\nn\n";
        let ops: Vec<_> = Disasm::strict(data, 0, &limits).take(3).map(Result::unwrap).collect();
        assert_eq!((ops[0].payload, ops[0].arg), (5, Arg::Bytes(b"ab")));
        assert_eq!((ops[1].payload, ops[1].arg), (8, Arg::Bytes(b"xy")));
        assert_eq!((ops[2].payload, ops[2].arg), (12, Arg::Pair(b"mm", b"n")));
    }
}
