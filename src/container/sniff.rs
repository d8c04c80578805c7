//! Detects the format by content, never by the file's name, and identifies files that are not checkpoints.

mod other_formats;

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

use super::compressed::compressed_format;
use super::{npy, zip};
use crate::bytes::Source;
use crate::error::{Code, Error, Result, error};
use crate::num::to_u64;

/// The outer byte format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A zip archive, as torch has written since 1.6.
    Zip,
    /// A safetensors file.
    Safetensors,
    /// A stream of pickles with torch's magic number, as torch wrote before 1.6.
    LegacyTorch,
    /// A pickle without torch's magic number.
    Pickle,
    /// A tar archive, as torch 0.1 wrote.
    Tar,
    /// A distributed checkpoint of torch: metadata, and files of chunks beside it.
    TorchDcp,
    /// A checkpoint of torch_checkpointing: metadata, and a file for each item and rank beside it.
    TorchCheckpointing,
    /// One NumPy array.
    Npy,
    /// A zip archive of NumPy arrays.
    Npz,
    /// A zip archive with an exported program, as `torch.export.save` writes.
    TorchExport,
}

impl Format {
    /// The name that Python and the CLI show.
    pub fn name(self) -> &'static str {
        match self {
            Format::Zip => "torch-zip",
            Format::Safetensors => "safetensors",
            Format::LegacyTorch => "torch-legacy",
            Format::Pickle => "pickle",
            Format::Tar => "torch-tar",
            Format::TorchDcp => "torch-dcp",
            Format::TorchCheckpointing => "torch-checkpointing",
            Format::Npy => "npy",
            Format::Npz => "npz",
            Format::TorchExport => "torch-export",
        }
    }
}

/// `pickle.dumps(0x1950a86a20f9469cfc6c, 2)` without its PROTO opcode; torch/serialization.py: MAGIC_NUMBER.
const LEGACY_MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
/// The magic number in protocols 0 and 1.
const LEGACY_TEXT: &[u8] = b"L119547037146038801333356L\n.";
/// The FRAME around the magic number in protocols 4 and 5.
const LEGACY_FRAME: &[u8] = b"\x95\x0d\0\0\0\0\0\0\0";
/// The start of what Git has in place of a file that LFS stores elsewhere; git-lfs: docs/spec.md.
pub const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// Bytes read for detection: a tar header's magic is at offset 257.
const HEAD_LEN: usize = 512;

/// Formats that are not checkpoints: magic bytes, what the file is, and what to read it with.
const OTHER_FORMATS: &[(&[u8], &str, &str)] = &[
    (b"GGUF", "a GGUF file", "Read it with llama.cpp or the gguf package."),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes", "Read it with h5py or keras.models.load_model."),
    // mxnet/src/ndarray/ndarray.cc: kMXAPINDArrayListMagic, and a reserved number
    (b"\x12\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "an MXNet parameter file", "Read it with mxnet.nd.load."),
    // tensorstore/kvstore/ocdbt/format: the magic number of manifests
    (
        b"\x0c\xdb\x3a\x2a",
        "the manifest of an OCDBT store, as orbax writes",
        "Read its folder with orbax.checkpoint or tensorstore.",
    ),
];

/// The source's format.
pub fn sniff(source: &Source) -> Result<Format> {
    sniff_inner(source).map_err(|error| source.locate_error(error))
}

fn sniff_inner(source: &Source) -> Result<Format> {
    let head = source.read_vec(0, source.len().min(to_u64(HEAD_LEN)))?;
    // The first bytes take precedence over the last: a legacy stream with a zip archive appended (a polyglot) is a legacy stream, as in
    // torch.
    if is_legacy(&head) {
        return Ok(Format::LegacyTorch);
    }
    match head.as_slice() {
        [b'P', b'K', 3, 4, ..] if is_npz(&head) => return Ok(Format::Npz),
        [b'P', b'K', 3, 4, ..] => return Ok(Format::Zip),
        [b'P', b'K', 5, 6, ..] => return Err(zip_start("the zip archive is empty")),
        [b'P', b'K', 7, 8, ..] => return Err(zip_start("the zip archive starts with a split marker")),
        _ if head.starts_with(npy::MAGIC) => return Ok(Format::Npy),
        _ => {}
    }
    if looks_like_safetensors(source, &head) {
        return Ok(Format::Safetensors);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Ok(Format::Tar);
    }
    if is_pickle(source, &head)? {
        return Ok(Format::Pickle);
    }
    Err(explain_unknown(source, &head)?)
}

/// Whether bytes are a container format that a reader may open: an archive, a legacy stream, an array.
pub fn is_container(head: &[u8]) -> bool {
    head.starts_with(b"PK\x03\x04")
        || head.starts_with(b"PK\x05\x06")
        || is_legacy(head)
        || head.starts_with(npy::MAGIC)
        || head.get(257..262) == Some(b"ustar")
        || compressed_format(head).is_some()
}

/// An upper bound on the metadata bytes of a file: the stated header length of a safetensors file, else the file's size, and
/// `u64::MAX` for an archive whose first member is deflated. 0 where there is no regular file.
pub fn metadata_bytes(path: &Path) -> u64 {
    let Some(metadata) = path.metadata().ok().filter(Metadata::is_file) else { return 0 };
    let mut head = [0; 10];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    match head.split_first_chunk::<8>() {
        Some((length, b"{\"")) if read.is_ok() => u64::from_le_bytes(*length).min(metadata.len()),
        // APPNOTE 4.3.7: the method is at byte 8.
        Some(([b'P', b'K', 3, 4, ..], [8, 0])) if read.is_ok() => u64::MAX,
        _ => metadata.len(),
    }
}

/// Whether bytes start with the magic number as a pickle of any protocol: torch's writer has a `pickle_protocol` argument.
fn is_legacy(head: &[u8]) -> bool {
    let [0x80, 2..=5, rest @ ..] = head else { return head.starts_with(LEGACY_TEXT) };
    rest.strip_prefix(LEGACY_FRAME).unwrap_or(rest).starts_with(LEGACY_MAGIC)
}

fn zip_start(text: &str) -> Error {
    Error::new(Code::ZipStructure, text).at(0)
}

/// Whether the first member of a zip archive is a NumPy array: torch writes `data.pkl` first. Another program may pack the members in
/// another order, so the index decides once it has all names.
fn is_npz(head: &[u8]) -> bool {
    // APPNOTE 4.3.7: the name's length is at byte 26, the name at byte 30.
    let name_len = match head.get(26..28) {
        Some(&[low, high]) => usize::from(u16::from_le_bytes([low, high])),
        _ => 0,
    };
    let name = head.get(30..).and_then(|rest| rest.get(..name_len)).unwrap_or_default();
    name.ends_with(b".npy")
}

/// Whether the file starts with a length and a plausible start of a header; the safetensors reader then reports an invalid header.
fn looks_like_safetensors(source: &Source, head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else { return false };
    let length_is_text = length.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'));
    let length = u64::from_le_bytes(*length);
    let plausible = length.checked_add(8).is_some_and(|end| end <= source.len());
    let start = rest.iter().position(|byte| !byte.is_ascii_whitespace() && !b"\xef\xbb\xbf\0".contains(byte));
    let brace = start.filter(|&start| rest.get(start) == Some(&b'{'));
    match brace.and_then(|start| start.checked_add(1)).and_then(|next| rest.get(next)) {
        Some(b'"' | b'}' | b' ' | b'\n' | b'\r' | b'\t') => {
            plausible || (brace == Some(0) && !length_is_text)
        }
        Some(_) => plausible && brace == Some(0),
        None => false,
    }
}

/// Whether the file starts with PROTO, or with a common first opcode of a text pickle and ends with STOP.
fn is_pickle(source: &Source, head: &[u8]) -> Result<bool> {
    match head {
        [0x80, 0..=5, _, ..] => Ok(true),
        [b'(' | b']' | b'}' | b'c' | b')', _, ..] => {
            let mut last = [0];
            source.read_at(source.len().saturating_sub(1), &mut last)?;
            Ok(last == *b".")
        }
        _ => Ok(false),
    }
}

/// The error for content that is not a checkpoint: what it is instead, and what to do with it.
fn explain_unknown(source: &Source, head: &[u8]) -> Result<Error> {
    if source.is_empty() {
        let error = Error::new(Code::UnknownFormat, "the file is empty");
        return Ok(error.note("The download or copy did not start or was interrupted: fetch the file again."));
    }
    let unknown = |what: &str, advice: &str| {
        Ok(error!(Code::UnknownFormat, "this is {what}, not a checkpoint").note(advice))
    };
    // The magic number of MXNet could also begin an lzma stream of no bytes.
    if let Some((_, what, advice)) = OTHER_FORMATS.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return unknown(what, advice);
    }
    if let Some(name) = compressed_format(head) {
        let error = error!(Code::UnsupportedContainer, "this is a {name} archive");
        return Ok(error.note("Unpack it, then open what it holds."));
    }
    if let Some((what, advice)) = other_formats::identify(head) {
        return unknown(what, advice);
    }
    if head.starts_with(LFS_POINTER) {
        return unknown("a Git LFS pointer", "Fetch the real file with `git lfs pull`.");
    }
    if zip::ends_in_zip(source)? {
        let text = "the file ends as a zip archive but starts with other bytes";
        return Ok(Error::new(Code::ZipPrefix, text).at(0));
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let starts =
        |prefix: &[u8]| text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    if starts(b"<!doctype") || starts(b"<html") {
        return unknown(
            "a saved web page",
            "The download gave an error or login page: fetch the file itself, logged in if need be.",
        );
    }
    if let Some(answer) = other_formats::error_response(head, to_u64(head.len()) == source.len()) {
        let advice = "If it was downloaded, that failed: fetch the file again, logged in if need be.";
        return unknown(&format!("the text {answer}"), advice);
    }
    if is_json(text) {
        return unknown("JSON text", "It is an index or a configuration: open its directory or the shards.");
    }
    if to_u64(head.len()) < 8 {
        let what = format!("{} byte(s), too few for any format", head.len());
        return unknown(&what, "The download or copy was probably interrupted: fetch the file again.");
    }
    let first: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(error!(Code::UnknownFormat, "no format starts with the bytes {}", first.join(" ")).at(0))
}

fn is_json(text: &[u8]) -> bool {
    let inside = |rest: &[u8]| matches!(rest.trim_ascii_start(), [] | [b'"' | b'}' | b'{' | b'[' | b']', ..]);
    match text {
        [b'{' | b'[', rest @ ..] => inside(rest),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
