//! Checked reading of little-endian fields from bytes in memory.
#![forbid(unsafe_code)]

use crate::error::{Code, Error, Result, error};

/// A position in a slice. Every read checks the bounds; an error carries the offset.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    data: &'a [u8],
    position: usize,
    base: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `data`. Errors count offsets from `base`, the offset of the first byte in its file or member.
    pub fn new(data: &'a [u8], base: u64) -> Cursor<'a> {
        Cursor { data, position: 0, base }
    }

    /// The position, counted from the start of the slice.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The offset that errors report.
    pub fn offset(&self) -> u64 {
        self.base.saturating_add(self.position as u64)
    }

    /// The remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.position..).unwrap_or_default()
    }

    /// Whether no byte remains.
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let rest = self.rest();
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(taken) => {
                self.position = self.position.saturating_add(taken.len());
                Ok(taken)
            }
            None => {
                Err(error!(Code::Truncated, "{len} byte(s) announced, {} left", rest.len()).at(self.offset()))
            }
        }
    }

    /// The next `N` bytes, as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.rest().first_chunk::<N>() {
            Some(taken) => {
                self.position = self.position.saturating_add(N);
                Ok(*taken)
            }
            None => self.take(N as u64).map(|_| [0; N]),
        }
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// The next two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The bytes up to the next line feed, which is consumed and not returned.
    pub fn line(&mut self) -> Result<&'a [u8]> {
        let rest = self.rest();
        match rest.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let (line, _) = rest.split_at(end);
                self.position = self.position.saturating_add(end).saturating_add(1);
                Ok(line)
            }
            None => Err(Error::new(Code::Truncated, "a text line has no end").at(self.offset())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_little_endian_and_checked() {
        let mut cursor = Cursor::new(&[1, 2, 3, b'a', b'\n', 9], 100);
        assert_eq!(cursor.u16().unwrap(), 0x0201);
        assert_eq!(cursor.u8().unwrap(), 3);
        assert_eq!(cursor.line().unwrap(), b"a");
        assert_eq!(cursor.u32().unwrap_err().offset(), Some(105));
        assert_eq!(cursor.u8().unwrap(), 9);
        assert!(cursor.is_empty());
    }

    #[test]
    fn a_huge_length_is_a_truncation_error() {
        assert_eq!(Cursor::new(b"ab", 0).take(u64::MAX).unwrap_err().code(), Code::Truncated);
    }
}
