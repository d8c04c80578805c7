//! Compressed streams: which format begins with some bytes, and the content of those that are deflated.
//!
//! Follows RFC 1951 (deflate), RFC 1950 (zlib), RFC 1952 (gzip) and joblib's `numpy_pickle_compat.py: read_zfile`. A damaged stream
//! inflates as far as it goes, as for a reader that unpickles while it inflates. Checksums are not compared.

use std::ops::ControlFlow;
use std::sync::Arc;

use miniz_oxide::DataFormat;

use super::inflate::{CHUNK_BYTES, Ended, inflate_chunks};
use crate::bytes::{Region, Source};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::{to_u64, to_usize};
use crate::parallel::Cancel;

/// Formats that are not inflated, by magic bytes. Those of bzip2, lzma and zlib are short: see [`Compressed::begin`].
pub(super) const MAGIC: &[(&[u8], &str)] = &[
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x02\x21\x4c\x18", "lz4"),
    (b"LZIP\x01", "lzip"),
    (b"LZIP\0", "lzip"),
];

/// A compressed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressed {
    /// A deflated one.
    Deflate(Stream),
    /// One that is not inflated, by its name.
    Other(&'static str),
}

/// A deflated stream, by what is around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// RFC 1952: members one after another.
    Gzip,
    /// RFC 1950.
    Zlib,
    /// joblib before 0.10: a prefix and a length in 19 or 20 characters before a zlib stream.
    Zfile,
}

impl Stream {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Gzip => "gzip",
            Stream::Zlib => "zlib",
            Stream::Zfile => "joblib zlib",
        }
    }
}

impl Compressed {
    /// The stream that begins with these bytes, if they are a possible beginning.
    pub fn begin(head: &[u8]) -> Option<Compressed> {
        let deflate = match head {
            [0x1f, 0x8b, 8, ..] => Some(Stream::Gzip),
            [cmf, flg, ..] if is_zlib_header(*cmf, *flg) => Some(Stream::Zlib),
            _ if is_zfile(head) => Some(Stream::Zfile),
            _ => None,
        };
        let other = || MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map(|&(_, name)| name);
        match deflate {
            Some(stream) => Some(Compressed::Deflate(stream)),
            None => other().or_else(|| is_lzma(head)).or_else(|| is_skippable(head)).map(Compressed::Other),
        }
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Compressed::Deflate(stream) => stream.name(),
            Compressed::Other(name) => name,
        }
    }
}

/// RFC 1950, 2.2: deflate, a window of at most 32 KiB, a multiple of 31, no preset dictionary.
fn is_zlib_header(cmf: u8, flg: u8) -> bool {
    cmf & 0x0f == 8 && cmf >> 4 <= 7 && u16::from_be_bytes([cmf, flg]).is_multiple_of(31) && flg & 0x20 == 0
}

/// Whether bytes are joblib's old format (joblib/numpy_pickle_compat.py: `_read_zfile`): a prefix and a length in 19 characters
/// before a zlib stream.
fn is_zfile(head: &[u8]) -> bool {
    let is_digit =
        |byte: &u8| byte.is_ascii_hexdigit() || byte.is_ascii_whitespace() || b"xX_+".contains(byte);
    let length = head.strip_prefix(b"ZF").and_then(|rest| rest.get(..19));
    length.is_some_and(|length| length.iter().all(is_digit))
}

/// The header of lzma-alone as liblzma accepts it: properties, dictionary size, size, and the first byte of the coder, which is 0.
fn is_lzma(head: &[u8]) -> Option<&'static str> {
    let [properties, d0, d1, d2, d3, rest @ ..] = head else { return None };
    let (size, [0, ..]) = rest.split_first_chunk::<8>()? else { return None };
    let (dictionary, size) = (u32::from_le_bytes([*d0, *d1, *d2, *d3]), u64::from_le_bytes(*size));
    let is_dictionary = dictionary == u32::MAX
        || dictionary.is_power_of_two()
        || (dictionary % 3 == 0 && (dictionary / 3).is_power_of_two());
    let is_known = size == u64::MAX || size < 1 << 38;
    // `lc` and `lp` are at most 4 together. joblib reads what begins with 0x5d 0 whatever the dictionary.
    let lc_lp = (properties % 9).saturating_add(properties / 9 % 5);
    let is_joblib = *properties == 0x5d && *d0 == 0;
    (*properties < 225 && lc_lp <= 4 && (is_dictionary || is_joblib) && is_known).then_some("lzma")
}

/// A skippable frame, with which streams of lz4 and zstd may begin.
fn is_skippable(head: &[u8]) -> Option<&'static str> {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]).then_some("lz4 or zstd")
}

/// The format of a file that starts with these bytes, if it is a compressed one; at most the first 512 are considered.
pub fn compressed_format(head: &[u8]) -> Option<&'static str> {
    match Compressed::begin(head)? {
        // Numbers may begin with the two bytes of a zlib stream too, but they do not inflate.
        Compressed::Deflate(Stream::Zlib) => inflates(head).then_some("zlib"),
        found => Some(found.name()),
    }
}

/// Whether the first 512 bytes are the start of a zlib stream that inflates to something.
fn inflates(head: &[u8]) -> bool {
    const CONSIDERED: usize = 512;
    let head = head.get(..CONSIDERED).unwrap_or(head).to_vec();
    let Some(region) = Region::new(0, to_u64(head.len())) else { return false };
    let (source, mut inflates) = (Source::memory(Arc::new(head)), false);
    let ended = inflate_chunks(&source, region, DataFormat::ZLibIgnoreChecksum, CHUNK_BYTES, |bytes, _| {
        inflates |= !bytes.is_empty();
        Ok(ControlFlow::Continue(()))
    });
    inflates && ended.is_ok_and(|(_, ended)| ended != Ended::Damaged)
}

/// The content of a stream.
#[derive(Debug, Default)]
pub struct Inflated {
    /// The bytes, up to the first fault.
    pub bytes: Vec<u8>,
    /// The limit by which they end.
    pub cut: Option<Error>,
    /// Whether the stream is whole.
    pub is_whole: bool,
    /// The offset behind the last byte that was inflated.
    pub end: u64,
}

/// Inflates a source that begins with a stream to at most `max_len` bytes, the rest of the limit `scan_bytes`, and no more than the
/// limit `inflate_ratio` allows. Fails only where it cannot be read, or is cancelled.
pub fn inflate(
    source: &Source,
    stream: Stream,
    max_len: u64,
    limits: &Limits,
    cancel: &Cancel,
) -> Result<Inflated> {
    let mut out = Inflated::default();
    let bounds = (max_len, limits.inflate_ratio);
    match stream {
        // joblib reads streams one after another.
        Stream::Zlib => loop {
            let head = source.read_vec(out.end, source.len().saturating_sub(out.end).min(2))?;
            let [cmf, flg] = *head else { break };
            if !is_zlib_header(cmf, flg) || out.cut.is_some() {
                break;
            }
            out.add(source, out.end, DataFormat::ZLibIgnoreChecksum, bounds, cancel)?;
            if !out.is_whole {
                break;
            }
        },
        Stream::Zfile => {
            let wide = source.len() > 21 && source.read_vec(21, 1)? == b" ";
            out.add(source, if wide { 22 } else { 21 }, DataFormat::ZLibIgnoreChecksum, bounds, cancel)?;
        }
        Stream::Gzip => {
            let mut at = 0;
            while let Some(start) = gzip_payload(source, at)? {
                out.add(source, start, DataFormat::Raw, bounds, cancel)?;
                if !out.is_whole {
                    break;
                }
                // Checksum and size, and zeros up to the next member.
                at = find(source, out.end.saturating_add(8), |byte| byte != 0)?;
                out.end = at.min(source.len());
            }
        }
    }
    Ok(out)
}

/// The offset of the deflated bytes of a gzip member; `None` where there is no member (RFC 1952, 2.3).
fn gzip_payload(source: &Source, at: u64) -> Result<Option<u64>> {
    let left = source.len().saturating_sub(at);
    let head = source.read_vec(at.min(source.len()), left.min(12))?;
    let [0x1f, 0x8b, 8, flags, _, _, _, _, _, _, ref extra @ ..] = *head else { return Ok(None) };
    let mut at = at.saturating_add(10);
    if flags & 4 != 0 {
        let [low, high] = *extra else { return Ok(None) };
        at = at.saturating_add(2).saturating_add(u16::from_le_bytes([low, high]).into());
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            at = find(source, at, |byte| byte == 0)?.saturating_add(1);
        }
    }
    at = at.saturating_add(if flags & 2 != 0 { 2 } else { 0 });
    Ok((at <= source.len()).then_some(at))
}

/// The offset of the first such byte from `at` on; the end of the source if there is none.
fn find(source: &Source, mut at: u64, is_wanted: impl Fn(u8) -> bool) -> Result<u64> {
    while at < source.len() {
        let bytes = source.read_vec(at, source.len().saturating_sub(at).min(CHUNK_BYTES))?;
        match bytes.iter().position(|&byte| is_wanted(byte)) {
            Some(found) => return Ok(at.saturating_add(to_u64(found))),
            None => at = at.saturating_add(to_u64(bytes.len())),
        }
    }
    Ok(at)
}

impl Inflated {
    /// Adds the content of the stream at `at`.
    fn add(
        &mut self,
        source: &Source,
        at: u64,
        format: DataFormat,
        (max_len, ratio): (u64, u64),
        cancel: &Cancel,
    ) -> Result<()> {
        let start = at.min(source.len());
        let rest = Region::new(start, source.len().saturating_sub(start)).unwrap_or_default();
        let (end, ended) = inflate_chunks(source, rest, format, CHUNK_BYTES, |bytes, consumed| {
            cancel.check()?;
            let left = to_usize(max_len).saturating_sub(self.bytes.len());
            let taken = bytes.get(..bytes.len().min(left)).unwrap_or_default();
            let reserved = self.bytes.try_reserve(taken.len());
            reserved.map_err(|_| Error::new(Code::Memory, "no memory to inflate"))?;
            self.bytes.extend_from_slice(taken);
            let inflated = to_u64(self.bytes.len());
            self.cut = match bytes.len() > left {
                true => Some(Error::limit("scan_bytes", max_len, inflated.saturating_add(1))),
                false => Limits::check_inflate_ratio(ratio, start.saturating_add(consumed), inflated).err(),
            };
            Ok(if self.cut.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        (self.end, self.is_whole) = (end, ended == Ended::Whole);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn inflated(bytes: Vec<u8>, stream: Stream, max_len: u64) -> Inflated {
        inflate(&Source::memory(Arc::new(bytes)), stream, max_len, &Limits::default(), &Cancel::new())
            .unwrap()
    }

    /// A gzip member with every optional field.
    fn gzip(data: &[u8]) -> Vec<u8> {
        let head = b"\x1f\x8b\x08\x1e\0\0\0\0\0\xff\x03\0abcname\0comment\0hc";
        [&head[..], &miniz_oxide::deflate::compress_to_vec(data, 6), &[0; 8]].concat()
    }

    #[test]
    fn streams_one_after_another_are_one_content() {
        let two = [gzip(b"one, "), vec![0; 100], gzip(b"two"), b"rest".to_vec()].concat();
        let end = to_u64(two.len()).saturating_sub(4);
        let found = inflated(two, Stream::Gzip, 100);
        assert_eq!((&found.bytes[..], found.is_whole, found.end), (&b"one, two"[..], true, end));
        let zlib = |data: &[u8]| miniz_oxide::deflate::compress_to_vec_zlib(data, 6);
        let found = inflated([zlib(b"one, "), zlib(b"two")].concat(), Stream::Zlib, 100);
        assert_eq!((&found.bytes[..], found.is_whole), (&b"one, two"[..], true));
        for wide in [&b""[..], b" "] {
            let zfile = [&b"ZF0x3                "[..], wide, &zlib(b"abc")].concat();
            assert_eq!(inflated(zfile, Stream::Zfile, 100).bytes, b"abc");
        }
    }

    #[test]
    fn a_damaged_or_long_stream_inflates_as_far_as_it_goes() {
        let data: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        let whole = gzip(&data);
        let half = whole.split_at(whole.len() / 2).0.to_vec();
        let cut = inflated(half, Stream::Gzip, 1 << 20);
        assert!(!cut.is_whole && cut.cut.is_none() && data.starts_with(&cut.bytes) && !cut.bytes.is_empty());
        let limited = inflated(whole, Stream::Gzip, 1000);
        assert_eq!((limited.bytes.len(), limited.cut.unwrap().code()), (1000, Code::Limit));
        let zeros = inflated(gzip(&vec![0; 40 << 20]), Stream::Gzip, 1 << 30);
        assert_eq!(zeros.cut.unwrap().code(), Code::InflateRatio);
    }
}
