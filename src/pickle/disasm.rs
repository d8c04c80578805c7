//! The one disassembler, for loading and for scanning: opcodes with raw arguments, lazily, from a start offset.
//!
//! A strict reader refuses PROTO above 5 or anywhere but first, and frames that are nested, straddled, too long or cut by
//! STOP (PEP 3154). A lenient reader yields those opcodes as they stand and keeps the objection for whoever asks. Errors are
//! values: after a refused PROTO or FRAME the iterator goes on; a byte that is no opcode or an argument that is cut ends it.
//! Lengths are checked against the data, nothing is allocated.

use super::opcode::{ArgKind, Opcode};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;

/// An opcode's argument as it stands in the stream.
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
    /// Bytes that end where the opcode ends: counted ones, or a text line without its line feed.
    Bytes(&'a [u8]),
    /// Two text lines without their line feeds.
    Pair(&'a [u8], &'a [u8]),
}

/// One opcode of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op<'a> {
    /// Where the opcode's byte lies.
    pub offset: usize,
    /// The opcode.
    pub opcode: Opcode,
    /// Its argument.
    pub arg: Arg<'a>,
    /// Where its argument's bytes begin; for counted bytes this is past the length.
    pub payload: usize,
}

/// An iterator over the opcodes of one pickle; it ends after STOP.
#[derive(Debug)]
pub struct Disasm<'a> {
    data: &'a [u8],
    position: usize,
    start: usize,
    /// Where the open frame ends; past all data when none is open.
    frame_end: usize,
    strict: bool,
    /// What a strict reader would have refused at the last opcode.
    objection: Option<Error>,
    done: bool,
    /// Whether the data ended before the last opcode did.
    cut: bool,
    line: usize,
    digits: usize,
}

/// Where a reader stood between two opcodes, to go on from there when there is more data.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    start: usize,
    position: usize,
    frame_end: usize,
}

const NO_FRAME: usize = usize::MAX;

impl<'a> Disasm<'a> {
    /// Where the reader stands, between two opcodes.
    #[inline]
    pub fn pause(&self) -> Pause {
        Pause { start: self.start, position: self.position, frame_end: self.frame_end }
    }

    /// A strict reader that goes on where another stood, in the same data or in data that is longer.
    pub fn resume(data: &'a [u8], pause: Pause, limits: &Limits) -> Disasm<'a> {
        let Pause { start, position, frame_end } = pause;
        Disasm { start, position, frame_end, ..Disasm::strict(data, start, limits) }
    }

    /// A reader that refuses what pickle readers disagree about.
    pub fn strict(data: &'a [u8], start: usize, limits: &Limits) -> Disasm<'a> {
        Disasm::new(data, start, limits, true)
    }

    /// A reader that enforces neither PROTO nor FRAME; see [`Disasm::take_objection`].
    pub fn lenient(data: &'a [u8], start: usize, limits: &Limits) -> Disasm<'a> {
        Disasm::new(data, start, limits, false)
    }

    fn new(data: &'a [u8], start: usize, limits: &Limits, strict: bool) -> Disasm<'a> {
        let clamp = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        Disasm {
            data,
            position: start,
            start,
            frame_end: NO_FRAME,
            strict,
            objection: None,
            done: false,
            cut: false,
            line: clamp(limits.line),
            digits: clamp(limits.int_digits),
        }
    }

    /// Why a strict reader would have refused the opcode that a lenient one yielded last, once.
    #[inline]
    pub fn take_objection(&mut self) -> Option<Error> {
        self.objection.take()
    }

    /// Where the next opcode lies; after STOP, one past it.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether the last error says that the data ends too early; the same opcode may be whole in longer data.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.position.saturating_add(len);
        match self.data.get(self.position..end) {
            Some(taken) => {
                self.position = end;
                Ok(taken)
            }
            None => Err(self.truncated(u64::try_from(len).unwrap_or(u64::MAX))),
        }
    }

    #[cold]
    fn truncated(&mut self, want: u64) -> Error {
        self.cut = true;
        let left = self.data.len().saturating_sub(self.position);
        Error::new(Code::Truncated, format!("{want} byte(s) announced, {left} left"))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.data.get(self.position..).and_then(|rest| rest.first_chunk::<N>()) {
            Some(taken) => {
                self.position = self.position.saturating_add(N);
                Ok(*taken)
            }
            None => Err(self.truncated(u64::try_from(N).unwrap_or(u64::MAX))),
        }
    }

    #[inline]
    fn counted(&mut self, len: u64) -> Result<Arg<'a>> {
        match usize::try_from(len) {
            Ok(len) => self.take(len).map(Arg::Bytes),
            Err(_) => Err(self.truncated(len)),
        }
    }

    /// A line of at most `limit` bytes and `beside` others; it ends at a line feed and nowhere else (`pickletools: read_stringnl`).
    fn line(&mut self, name: &'static str, limit: usize, beside: usize) -> Result<&'a [u8]> {
        let rest = self.data.get(self.position..).unwrap_or_default();
        let most = limit.saturating_add(beside);
        let window = rest.get(..most.saturating_add(1)).unwrap_or(rest);
        match window.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let line = self.take(end)?;
                self.position = self.position.saturating_add(1);
                Ok(line)
            }
            None if window.len() > most => {
                let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
                Err(Error::limit(name, wide(limit), wide(limit.saturating_add(1))))
            }
            None => {
                self.cut = true;
                Err(Error::new(Code::Truncated, "a text line has no end"))
            }
        }
    }

    /// The opcode that comes next, where there is one.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Opcode> {
        if self.done { None } else { self.data.get(self.position).copied().and_then(Opcode::from_byte) }
    }

    /// Yields the opcode that `peek` told. To a caller that knows which it is, the compiler gives that opcode's path alone.
    #[inline(always)]
    pub(super) fn take_op(&mut self, opcode: Opcode) -> Result<Op<'a>> {
        let offset = self.position;
        let op = match self.decode(offset, opcode) {
            Ok(op) => op,
            Err(error) => return Err(self.stop_at(offset, error)),
        };
        self.done = op.opcode == Opcode::Stop;
        if let Err(error) = self.framing(&op) {
            let error = place(error, offset);
            if self.strict {
                return Err(error);
            }
            self.objection = Some(error);
        }
        Ok(op)
    }

    /// Ends the reading at an opcode that cannot be read.
    #[cold]
    fn stop_at(&mut self, offset: usize, error: Error) -> Error {
        self.done = true;
        self.position = offset;
        place(error, offset)
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
                    return Err(Error::new(Code::Truncated, format!("a length is negative: {len}")));
                };
                self.counted(len)?
            }
            ArgKind::Counted8 => {
                let len = u64::from_le_bytes(self.array()?);
                self.counted(len)?
            }
            ArgKind::Line => Arg::Bytes(self.line("line", self.line, 0)?),
            // A sign, the digits, and LONG's "L".
            ArgKind::Digits => Arg::Bytes(self.line("int_digits", self.digits, 2)?),
            ArgKind::Text => Arg::Bytes(self.line("pickle_bytes", self.data.len(), 0)?),
            ArgKind::Pair => Arg::Pair(self.line("line", self.line, 0)?, self.line("line", self.line, 0)?),
        };
        let payload = match arg {
            Arg::Bytes(bytes) => {
                let feed = matches!(opcode.arg(), ArgKind::Line | ArgKind::Digits | ArgKind::Text);
                self.position.saturating_sub(bytes.len()).saturating_sub(usize::from(feed))
            }
            _ => offset.saturating_add(1),
        };
        Ok(Op { offset, opcode, arg, payload })
    }

    /// PEP 3154: no frame inside a frame, no opcode across a frame's end, no frame past the data or past STOP.
    #[inline(always)]
    fn framing(&mut self, op: &Op<'a>) -> Result<()> {
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
                self.cut = true;
                Err(bad_frame(&format!("a frame of {len} byte(s) begins where {left} are left")))
            }
        }
    }

    fn protocol(&self, offset: usize, version: u64) -> Result<()> {
        if offset != self.start {
            return Err(Error::new(Code::PickleProto, "PROTO stands after the pickle's start"));
        }
        if version > 5 {
            return Err(Error::new(Code::PickleProto, format!("the pickle states protocol {version}")));
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
                self.cut = true;
                no_stop()
            }
        };
        Some(Err(self.stop_at(self.position, error)))
    }
}

#[cold]
fn place(error: Error, offset: usize) -> Error {
    error.at(u64::try_from(offset).unwrap_or(u64::MAX))
}

#[cold]
fn no_stop() -> Error {
    Error::new(Code::PickleStack, "the pickle ends without STOP")
        .note("The download or copy is probably incomplete: fetch the file again.")
}

#[cold]
fn no_opcode(byte: u8) -> Error {
    Error::new(Code::PickleOpcode, format!("0x{byte:02x} is no opcode"))
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
    fn a_strict_reader_goes_on_after_a_refused_proto_and_a_lenient_one_yields_it() {
        let data = b"\x80\x63N.rest";
        let limits = Limits::default();
        let strict = codes(Disasm::strict(data, 0, &limits));
        assert_eq!(strict, [Err(Code::PickleProto), Ok(Opcode::None), Ok(Opcode::Stop)]);
        let lenient = codes(Disasm::lenient(data, 0, &limits));
        assert_eq!(lenient, [Ok(Opcode::Proto), Ok(Opcode::None), Ok(Opcode::Stop)]);
    }

    #[test]
    fn reading_ends_after_stop_or_at_a_byte_that_is_no_opcode() {
        let limits = Limits::default();
        let mut disasm = Disasm::strict(b"xxN.N.", 2, &limits);
        assert_eq!(disasm.by_ref().count(), 2);
        assert_eq!(disasm.position(), 4);
        assert_eq!(codes(Disasm::strict(b"N\xffN", 0, &limits)), [Ok(Opcode::None), Err(Code::PickleOpcode)]);
    }

    #[test]
    fn payload_points_at_the_bytes_of_the_argument() {
        let limits = Limits::default();
        let data = b"X\x02\0\0\0abVxy\ncmm\nn\n";
        let ops: Vec<_> = Disasm::strict(data, 0, &limits).take(3).map(Result::unwrap).collect();
        assert_eq!((ops[0].payload, ops[0].arg), (5, Arg::Bytes(b"ab")));
        assert_eq!((ops[1].payload, ops[1].arg), (8, Arg::Bytes(b"xy")));
        assert_eq!((ops[2].payload, ops[2].arg), (12, Arg::Pair(b"mm", b"n")));
    }
}
