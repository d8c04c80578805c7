//! Structure-aware mutators: they change an input within its format and recompute checksums and lengths after the change.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustload::internals::bytes::Source;
use rustload::internals::container::zip::{Archive, Trailing};
use rustload::{Cancel, Limits};

use crate::targets::files;
use crate::{pickles, zip as writer};

/// The mutators' random number generator; equal seeds give equal changes.
pub struct Random(SmallRng);

impl Random {
    /// A generator with a seed.
    pub fn new(seed: u64) -> Random {
        Random(SmallRng::seed_from_u64(seed))
    }

    /// A number below `count`, which must not be 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A boundary value, where readers tend to fail, or a small number.
pub(crate) fn number(random: &mut Random) -> u64 {
    const EDGES: &[u64] =
        &[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 62, 1 << 63, u64::MAX];
    if random.one_in(2) { EDGES[random.below(EDGES.len())] } else { random.below(300) as u64 }
}

/// Applies one to four changes to bytes, without regard to their format.
pub(crate) fn bytes(data: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = data.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(out.len() + 1);
        let len = random.below(16).min(out.len() - at);
        match random.below(6) {
            0 => out.truncate(at),
            1 => drop(out.drain(at..at + len)),
            2 => {
                let copy = out[at..at + len].to_vec();
                let to = random.below(out.len() + 1);
                out.splice(to..to, copy);
            }
            3 => {
                let width = 1 << random.below(4);
                let number = number(random).to_le_bytes();
                let end = (at + width).min(out.len());
                out[at..end].copy_from_slice(&number[..end - at]);
            }
            4 => out.insert(at, u8::try_from(random.below(256)).expect("a byte")),
            _ => {
                if let Some(byte) = out.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    out
}

/// Mutates a pickle: mostly its opcodes, sometimes its bytes.
pub(crate) fn pickle(data: &[u8], random: &mut Random) -> Vec<u8> {
    if random.one_in(4) { bytes(data, random) } else { pickles::mutate(data, 0, random) }
}

/// Mutates a legacy stream: mostly the opcodes of one of its five pickles, sometimes its bytes.
pub(crate) fn legacy(data: &[u8], random: &mut Random) -> Vec<u8> {
    if random.one_in(4) {
        return bytes(data, random);
    }
    let (mut start, skipped) = (0, random.below(5));
    for _ in 0..skipped {
        start = pickles::split(data, start).1;
    }
    pickles::mutate(data, start, random)
}

/// Mutates a tar archive, and mostly recomputes the checksums of its headers.
pub(crate) fn tar(data: &[u8], random: &mut Random) -> Vec<u8> {
    const BLOCK_BYTES: usize = 512;
    let blocks = data.len() / BLOCK_BYTES;
    let mut out = if blocks == 0 || random.one_in(4) {
        bytes(data, random)
    } else {
        // A change inside one block leaves the others where they are.
        let start = random.below(blocks) * BLOCK_BYTES;
        let mut block = bytes(&data[start..start + BLOCK_BYTES], random);
        block.resize(BLOCK_BYTES, 0);
        [&data[..start], &block, &data[start + BLOCK_BYTES..]].concat()
    };
    if !random.one_in(8) {
        let headers = out.chunks_exact_mut(BLOCK_BYTES).filter(|block| &block[257..262] == b"ustar");
        for block in headers {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    out
}

/// Mutates a zip archive: mostly its members, with correct checksums and offsets; sometimes its headers or its bytes.
pub(crate) fn zip(data: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => bytes(data, random),
        1 => headers(data, random),
        _ => members(data, random).unwrap_or_else(|| bytes(data, random)),
    }
}

/// Changes bytes near one of the archive's header signatures.
fn headers(data: &[u8], random: &mut Random) -> Vec<u8> {
    let signatures: Vec<usize> =
        (0..data.len().saturating_sub(4)).filter(|&at| data[at..].starts_with(b"PK")).collect();
    if signatures.is_empty() {
        return bytes(data, random);
    }
    let start = signatures[random.below(signatures.len())];
    let end = data.len().min(start + 64);
    [&data[..start], &bytes(&data[start..end], random), &data[end..]].concat()
}

/// Rewrites the archive with a member changed, removed, duplicated or renamed; `None` where it cannot be opened.
fn members(data: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    const MEMBER_MAX_BYTES: u64 = 1 << 20;
    let source = Source::memory(Arc::new(data.to_vec()));
    let archive = Archive::open(&source, &Limits::default(), Trailing::Ignore).ok()?;
    let mut members: Vec<(String, Vec<u8>)> = (archive.members().iter().enumerate())
        .map(|(index, member)| {
            let bytes =
                archive.read(index, "inflate_bytes", MEMBER_MAX_BYTES, &Cancel::new()).unwrap_or_default();
            (member.name().to_owned(), bytes)
        })
        .collect();
    if members.is_empty() {
        return None;
    }
    let at = random.below(members.len());
    let pickled = members.iter().position(|(name, _)| name.ends_with("/data.pkl"));
    match (random.below(6), pickled) {
        (0, _) => drop(members.remove(at)),
        (1, _) => members.insert(at, members[at].clone()),
        (2, _) => {
            members[at].0 = String::from_utf8_lossy(&bytes(members[at].0.as_bytes(), random)).into_owned()
        }
        (3, _) => members[at].1 = bytes(&members[at].1, random),
        (_, Some(pickled)) => members[pickled].1 = pickles::mutate(&members[pickled].1, 0, random),
        (_, None) => members[at].1 = bytes(&members[at].1, random),
    }
    let mut out = writer::Archive::bare();
    for (name, bytes) in &members {
        out = out.with_path(name, bytes);
    }
    if random.one_in(4) {
        out = out.descriptors();
    }
    Some(out.bytes())
}

/// Mutates a safetensors file: mostly its header's JSON, with a correct length; sometimes its bytes.
pub(crate) fn safetensors(data: &[u8], random: &mut Random) -> Vec<u8> {
    let header = data.first_chunk::<8>().and_then(|length| {
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        data.get(8..)?.split_at_checked(length)
    });
    match header {
        Some((header, rest)) if !random.one_in(4) => {
            let header = literal(header, JSON_TOKENS, random);
            let rest = if random.one_in(6) { bytes(rest, random) } else { rest.to_vec() };
            [&(header.len() as u64).to_le_bytes()[..], &header, &rest].concat()
        }
        _ => bytes(data, random),
    }
}

/// Mutates a `.npy` file: mostly the dict in its header, with a correct length; sometimes its bytes.
pub(crate) fn npy(data: &[u8], random: &mut Random) -> Vec<u8> {
    let (start, len) = match data {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (10, u32::from(u16::from_le_bytes([*a, *b]))),
        [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (12, u32::from_le_bytes([*a, *b, *c, *d])),
        _ => return bytes(data, random),
    };
    let (before, rest) = data.split_at(start);
    let found = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
    let Some((text, rest)) = found.filter(|_| !random.one_in(4)) else { return bytes(data, random) };
    let text = literal(text, PYTHON_TOKENS, random);
    let rest = if random.one_in(6) { bytes(rest, random) } else { rest.to_vec() };
    let len = u32::try_from(text.len()).expect("a short header").to_le_bytes();
    [&before[..8], &len[..start - 8], &text, &rest].concat()
}

const JSON_TOKENS: &[&str] = &[
    "\"F32\"",
    "\"F4\"",
    "\"F8_E4M3\"",
    "\"BF16\"",
    "\"BOOL\"",
    "[]",
    "[0]",
    "[0,0]",
    "[2,2]",
    "null",
    "-1",
    "1e1",
    "18446744073709551616",
    "{}",
    "\"\"",
    "\"\\ud800\"",
    "\"__metadata__\"",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
];

const PYTHON_TOKENS: &[&str] = &[
    "'<f4'",
    "'>c16'",
    "'|O'",
    "'=O8'",
    "'<U5'",
    "'|b1'",
    "[('a', '|O')]",
    "('<f4', (2,))",
    "()",
    "(0,)",
    "(2, 3)",
    "(3)",
    "3L",
    "True",
    "-1",
    "9223372036854775808",
    "'descr'",
    "'shape'",
    "'fortran_order'",
    "#",
];

/// Mutates JSON or a Python literal: replaces the text between two punctuation characters, or changes some bytes.
fn literal(text: &[u8], tokens: &[&str], random: &mut Random) -> Vec<u8> {
    let is_punctuation = |byte| matches!(byte, b'{' | b'}' | b'[' | b']' | b'(' | b')' | b',' | b':');
    let punctuation: Vec<usize> = (0..text.len()).filter(|&at| is_punctuation(text[at])).collect();
    if punctuation.len() < 2 || random.one_in(4) {
        return bytes(text, random);
    }
    let first = random.below(punctuation.len() - 1);
    let last = (first + 1 + random.below(3)).min(punctuation.len() - 1);
    let (start, end) = (punctuation[first] + 1, punctuation[last]);
    let replacement = match random.below(4) {
        0 => Vec::new(),
        1 => number(random).to_string().into_bytes(),
        2 => {
            let from = random.below(punctuation.len() - 1);
            text[punctuation[from] + 1..punctuation[from + 1]].to_vec()
        }
        _ => tokens[random.below(tokens.len())].as_bytes().to_vec(),
    };
    [&text[..start], &replacement, &text[end..]].concat()
}

const CONFIG_TOKENS: &[&str] = &[
    "{\"as_int\":2}",
    "{\"as_int\":-1}",
    "{\"as_int\":9223372036854775807}",
    "{\"as_expr\":{\"expr_str\":\"s0\"}}",
    "[{\"as_int\":3},{\"as_int\":1}]",
    "[]",
    "null",
    "true",
    "false",
    "NaN",
    "7",
    "12",
    "\"weight_0\"",
    "\"weight_1\"",
    "\"../weight_0\"",
    "\"cuda\"",
    "\"meta\"",
    "\"sizes\"",
    "\"strides\"",
    "\"config\"",
];

/// Mutates the configuration of an exported program.
pub(crate) fn exported(data: &[u8], random: &mut Random) -> Vec<u8> {
    literal(data, CONFIG_TOKENS, random)
}

const GRAPH_TOKENS: &[&str] = &[
    "{\"as_int\":2}",
    "{\"as_float\":\"NaN\"}",
    "{\"as_tensor\":{\"name\":\"x\"}}",
    "{\"as_string\":\"mean\"}",
    "{\"as_expr\":{\"expr_str\":\"Integer(2)\"}}",
    "{\"as_operator\":\"torch.ops.aten.add.Tensor\"}",
    "\"expr_str\"",
    "\"guards_code\"",
    "\"in_spec\"",
    "\"target\"",
    "\"metadata\"",
    "\"stack_trace\"",
    "\"nodes\"",
    "\"__class__\"",
    "\"\\u005f\\u005fclass__\"",
    "\"__import__('os')\"",
    "[]",
    "{}",
    "null",
    "1.5",
    "-0",
    "1e400",
];

/// Mutates the graph of an exported program.
pub(crate) fn graph(data: &[u8], random: &mut Random) -> Vec<u8> {
    literal(data, GRAPH_TOKENS, random)
}

const YAML_TOKENS: &[&str] = &[
    " _target_",
    " target",
    " ? a",
    " |\n  text\n",
    " >-\n  text\n",
    " &a b",
    " *a",
    " !!python/name:os.system ''",
    " !!str a",
    " !a b",
    "\n- ",
    "\n---\n",
    "\n...\n",
    "\n%TAG ! tag:a\n",
    " ${a.b}",
    " ${oc.env:HOME}",
    " '_target_'",
    " \"\\x5ftarget_\"",
    " # a",
    "\t",
    "\u{feff}",
    "\u{85}",
    "\u{2028}",
    "<<",
];

/// Mutates YAML.
pub(crate) fn yaml(data: &[u8], random: &mut Random) -> Vec<u8> {
    literal(data, YAML_TOKENS, random)
}

/// Mutates an input of any format, which is detected by its first bytes.
pub(crate) fn any(data: &[u8], random: &mut Random) -> Vec<u8> {
    match data {
        [b'P', b'K', ..] => zip(data, random),
        [0x80, 2, 0x8a, 0x0a, ..] => legacy(data, random),
        [0x80, ..] => pickle(data, random),
        [0x93, ..] => npy(data, random),
        _ => safetensors(data, random),
    }
}

/// Mutates one of the files in an input of the target `distributed`, or drops or repeats one.
pub(crate) fn distributed(data: &[u8], random: &mut Random) -> Vec<u8> {
    let mut files: Vec<Vec<u8>> = files(data).into_iter().map(<[u8]>::to_vec).collect();
    if files.is_empty() || random.one_in(32) {
        return bytes(data, random);
    }
    let at = random.below(files.len());
    match random.below(16) {
        0 => drop(files.remove(at)),
        1 => files.push(files[at].clone()),
        _ if files[at].starts_with(&[0x80]) => files[at] = pickle(&files[at], random),
        _ => files[at] = any(&files[at], random),
    }
    let len = |file: &[u8]| u32::try_from(file.len()).unwrap_or(u32::MAX).to_le_bytes();
    files.iter().flat_map(|file| [&len(file)[..], file].concat()).collect()
}
