//! Mutators that keep an input near its format: what a checksum or a length guards is made right again after the change.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustload::Limits;
use rustload::bytes::Source;
use rustload::container::zip::{Archive, Trailing};
use rustload::parallel::Cancel;

use crate::{pickles, zip as writer};

/// Where the mutators take their chances from; equal seeds give equal changes.
pub struct Random(SmallRng);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(SmallRng::seed_from_u64(seed))
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Numbers at which readers go wrong, and small ones.
pub(crate) fn number(random: &mut Random) -> u64 {
    const EDGES: &[u64] =
        &[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 62, 1 << 63, u64::MAX];
    if random.one_in(2) { EDGES[random.below(EDGES.len())] } else { random.below(300) as u64 }
}

/// One to four changes to bytes that know no format.
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
                let wide = 1 << random.below(4);
                let number = number(random).to_le_bytes();
                let end = (at + wide).min(out.len());
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

/// A pickle, by its opcodes; now and then by its bytes.
pub(crate) fn pickle(data: &[u8], random: &mut Random) -> Vec<u8> {
    if random.one_in(4) { bytes(data, random) } else { pickles::mutate(data, 0, random) }
}

/// One of a legacy stream's five pickles by its opcodes, or the bytes of all.
pub(crate) fn legacy(data: &[u8], random: &mut Random) -> Vec<u8> {
    if random.one_in(4) {
        return bytes(data, random);
    }
    let (mut start, which) = (0, random.below(5));
    for _ in 0..which {
        start = pickles::split(data, start).1;
    }
    pickles::mutate(data, start, random)
}

/// An archive, by its members, with right checksums and offsets; now and then by its bytes.
pub(crate) fn zip(data: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => bytes(data, random),
        1 => structure(data, random),
        _ => members(data, random).unwrap_or_else(|| bytes(data, random)),
    }
}

/// Changes near the places that say what an archive is: its headers' signatures.
fn structure(data: &[u8], random: &mut Random) -> Vec<u8> {
    let places: Vec<usize> =
        (0..data.len().saturating_sub(4)).filter(|&at| data[at..].starts_with(b"PK")).collect();
    if places.is_empty() {
        return bytes(data, random);
    }
    let start = places[random.below(places.len())];
    let end = data.len().min(start + 64);
    [&data[..start], &bytes(&data[start..end], random), &data[end..]].concat()
}

/// The archive written anew with a member changed, dropped, doubled or renamed.
fn members(data: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    const MOST: u64 = 1 << 20;
    let source = Source::memory(Arc::new(data.to_vec()));
    let archive = Archive::open(&source, &Limits::default(), Trailing::Ignore).ok()?;
    let mut members: Vec<(String, Vec<u8>)> = (archive.members().iter().enumerate())
        .map(|(index, member)| {
            let bytes = archive.read(index, "inflate_bytes", MOST, &Cancel::new()).unwrap_or_default();
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

/// A safetensors file with its header's text changed and its length right again; now and then by its bytes.
pub(crate) fn safetensors(data: &[u8], random: &mut Random) -> Vec<u8> {
    let header = data.first_chunk::<8>().and_then(|length| {
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        data.get(8..)?.split_at_checked(length)
    });
    match header {
        Some((header, rest)) if !random.one_in(4) => {
            let header = json(header, random);
            let rest = if random.one_in(6) { bytes(rest, random) } else { rest.to_vec() };
            [&(header.len() as u64).to_le_bytes()[..], &header, &rest].concat()
        }
        _ => bytes(data, random),
    }
}

/// JSON with a number, a piece between two marks, or some bytes changed.
fn json(text: &[u8], random: &mut Random) -> Vec<u8> {
    const PIECES: &[&str] = &[
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
    let marks: Vec<usize> =
        (0..text.len()).filter(|&at| matches!(text[at], b'{' | b'}' | b'[' | b']' | b',' | b':')).collect();
    if marks.len() < 2 || random.one_in(4) {
        return bytes(text, random);
    }
    let first = random.below(marks.len() - 1);
    let last = (first + 1 + random.below(3)).min(marks.len() - 1);
    let (start, end) = (marks[first] + 1, marks[last]);
    let piece = match random.below(4) {
        0 => Vec::new(),
        1 => number(random).to_string().into_bytes(),
        2 => {
            let from = random.below(marks.len() - 1);
            text[marks[from] + 1..marks[from + 1]].to_vec()
        }
        _ => PIECES[random.below(PIECES.len())].as_bytes().to_vec(),
    };
    [&text[..start], &piece, &text[end..]].concat()
}

/// An input of any format, by what it looks like.
pub(crate) fn any(data: &[u8], random: &mut Random) -> Vec<u8> {
    match data {
        [b'P', b'K', ..] => zip(data, random),
        [0x80, 2, 0x8a, 0x0a, ..] => legacy(data, random),
        [0x80, ..] => pickle(data, random),
        _ => safetensors(data, random),
    }
}
