//! Formats that are no zip: pickles one after another, the legacy stream, safetensors, NumPy arrays, tar archives.

use std::collections::HashSet;
use std::sync::Arc;

use super::budget::take;
use super::file::{Scanner, inside};
use super::pickles::{self, Nested, Place, Scanned};
use super::report::{Finding, Verdict};
use crate::bytes::Source;
use crate::container::is_container;
use crate::error::{Code, Error, Result};
use crate::index::LEGACY_PARTS;
use crate::limits::Limits;
use crate::pickle::{Disasm, Pickle};

/// Bytes read first where a pickle's end is not known; four times as many as long as it goes on.
const FIRST: u64 = 64 << 10;
const BLOCK: u64 = 512;

/// How the first opcodes of some bytes read.
enum Reads {
    /// To a STOP, or to a place where every reader stops.
    Ends,
    /// To the end of the bytes: there may be more.
    Cut,
    /// They are no pickle at all.
    Not,
}

impl Scanner<'_> {
    /// The pickles that stand one after another from the start of a source. `sure` tells that the first is a pickle; returns
    /// whether one was found.
    pub(super) fn stream(
        &mut self,
        source: &Source,
        label: Option<&str>,
        sure: bool,
        depth: u64,
    ) -> Result<bool> {
        let mut at = 0;
        for number in 0_u64.. {
            if number > 0 && !take(&mut self.budget.pickles, 1) {
                let rest = source.len().saturating_sub(at);
                self.report.unscanned(label, "too many pickles behind one another", at, rest);
                break;
            }
            let Some(mut found) = self.one(source, at, label, sure && number == 0, false, label)? else {
                break;
            };
            let end = at.saturating_add(len64(found.end));
            self.report.scanned(label, "pickle", at, end.saturating_sub(at));
            self.nested(found.nested, source, at, label, depth)?;
            self.keys.extend(found.keys);
            let whole = |pickle: &Pickle| number == 0 && len64(pickle.values.data().len()) == source.len();
            self.ran = found.pickle.take().filter(whole);
            let start = at;
            at = end;
            if number > 0 {
                self.trailing(label, start, "another pickle follows the first");
            }
            if !found.stopped || at >= source.len() {
                return Ok(true);
            }
        }
        if at > 0 && at < source.len() {
            self.trailing(label, at, "bytes follow the pickle's end");
            self.rest(source, at, label, depth)?;
        }
        Ok(at > 0)
    }

    /// As `stream`, and the keys of storages that the pickles name.
    pub(super) fn keyed(
        &mut self,
        source: &Source,
        label: &str,
        sure: bool,
        depth: u64,
    ) -> Result<(bool, HashSet<String>)> {
        let outer = std::mem::take(&mut self.keys);
        self.wants_keys = true;
        let found = self.stream(source, Some(label), sure, depth);
        self.wants_keys = false;
        let keys = std::mem::replace(&mut self.keys, outer);
        found.map(|found| (found, keys))
    }

    fn trailing(&mut self, label: Option<&str>, at: u64, text: &str) {
        self.report.add(Finding {
            verdict: Verdict::Unknown,
            message: text.to_owned(),
            member: label.map(str::to_owned),
            offset: Some(at),
            readers: &["c", "python", "weights_only"],
            ..Finding::new(Code::TrailingData.as_str())
        });
    }

    /// What follows the last pickle: another archive, or bytes of no known kind.
    fn rest(&mut self, source: &Source, at: u64, label: Option<&str>, depth: u64) -> Result<()> {
        let len = source.len().saturating_sub(at);
        let window = source.window(at, len)?;
        let head = window.read_vec(0, len.min(BLOCK))?;
        if is_container(&head) {
            let inner = inside(label, &format!("byte {at}"));
            self.source(&window, Some(&inner), depth.saturating_add(1))?;
        }
        Ok(())
    }

    /// One pickle at an offset of a source.
    fn one(
        &mut self,
        source: &Source,
        at: u64,
        label: Option<&str>,
        sure: bool,
        legacy: bool,
        member: Option<&str>,
    ) -> Result<Option<Scanned>> {
        let limits = &self.options.limits;
        let most = source.len().saturating_sub(at);
        let ceiling = most.min(limits.pickle_bytes);
        // A pickle that is known to fill the rest is read at once.
        let mut len = if sure && !legacy { ceiling } else { ceiling.min(FIRST) };
        let data = loop {
            let data = source.chunk(at, len)?;
            if sure && len == most {
                break data;
            }
            match reads(&data, limits) {
                Reads::Not if !sure => return Ok(None),
                Reads::Cut if len < ceiling => len = len.saturating_mul(4).min(ceiling),
                _ => break data,
            }
        };
        if len == ceiling && ceiling < most && matches!(reads(&data, limits), Reads::Cut) {
            let error = Error::limit("pickle_bytes", limits.pickle_bytes, most);
            self.report.add_error(&error, label);
        }
        let place = Place { member, shift: at, legacy, keys: self.wants_keys };
        let cancel = &self.options.cancel;
        pickles::scan(&mut self.report, data, 0, &place, sure, limits, cancel)
    }

    /// Bytes that a pickle hands to a loader.
    pub(super) fn nested(
        &mut self,
        found: Vec<Nested>,
        source: &Source,
        base: u64,
        label: Option<&str>,
        depth: u64,
    ) -> Result<()> {
        for nested in found {
            let (window, at) = match nested {
                Nested::Inside(region) => {
                    let at = base.saturating_add(region.start());
                    (source.window(at, region.len())?, at)
                }
                Nested::Decoded(bytes) => {
                    if !take(&mut self.budget.made, len64(bytes.len())) {
                        let why = "the budget scan_bytes is spent";
                        self.report.unscanned(label, why, base, len64(bytes.len()));
                        continue;
                    }
                    (Source::memory(Arc::new(bytes)), base)
                }
            };
            let inner = inside(label, &format!("bytes at {at}"));
            let before = self.report.scanned.len();
            let format = self.source(&window, Some(&inner), depth.saturating_add(1))?;
            if format.is_none() && self.report.scanned.len() == before && !self.report.truncated {
                self.report.unscanned(
                    Some(&inner),
                    "bytes for a loader, of no known format",
                    0,
                    window.len(),
                );
            }
        }
        Ok(())
    }

    /// The five pickles of a legacy stream.
    pub(super) fn legacy(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let mut at = 0;
        for part in LEGACY_PARTS {
            let member = inside(label, part);
            let Some(found) = self.one(source, at, label, true, true, Some(&member))? else { break };
            let end = at.saturating_add(len64(found.end));
            self.report.scanned(Some(&member), "pickle", at, end.saturating_sub(at));
            self.nested(found.nested, source, at, Some(&member), depth)?;
            at = end;
            if !found.stopped {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Bytes after the last storage of a legacy stream.
    pub(super) fn after_legacy(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let wanted = |finding: &&Finding| {
            finding.code == Code::TrailingData.as_str() && finding.member.as_deref() == label
        };
        let at = self.report.findings.iter().find(wanted).and_then(|finding| finding.offset);
        let Some(at) = at.filter(|&at| at < source.len()) else { return Ok(()) };
        let window = source.window(at, source.len().saturating_sub(at))?;
        let inner = inside(label, &format!("byte {at}"));
        if !self.stream(&window, Some(&inner), false, depth)? {
            self.rest(source, at, label, depth)?;
        }
        Ok(())
    }

    /// A safetensors file: data only, unless something is hidden behind it.
    pub(super) fn safetensors(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let index = self.strict(source, label)?;
        let mut length = [0; 8];
        source.read_at(0, &mut length)?;
        let header = u64::from_le_bytes(length).min(source.len());
        self.report.scanned(label, "safetensors header", 0, header.saturating_add(8).min(source.len()));
        if let Some(index) = index {
            let odd = |name: &str| {
                name.is_empty()
                    || name.contains('\\')
                    || name.contains(char::is_control)
                    || name.starts_with('/')
                    || name.split('/').any(|part| part == "..")
            };
            let found: Vec<_> = index.entries.iter().filter(|entry| odd(&entry.name)).collect();
            if let Some(first) = found.first() {
                self.report.add(Finding {
                    message: format!("a tensor is named {:?}", first.name),
                    member: label.map(str::to_owned),
                    times: len64(found.len()),
                    ..Finding::new("OddName")
                });
            }
            return Ok(());
        }
        // The strict reader says where the bytes begin that no tensor covers.
        let wanted = |finding: &&Finding| {
            finding.code == Code::StOffsets.as_str() && finding.member.as_deref() == label
        };
        let start = self.report.findings.iter().find(wanted).and_then(|finding| finding.offset);
        let Some(start) = start else { return Ok(()) };
        if start < source.len() {
            let window = source.window(start, source.len().saturating_sub(start))?;
            let inner = inside(label, &format!("byte {start}"));
            if self.stream(&window, Some(&inner), false, depth)? {
                self.polyglot(label, "a pickle stands behind the tensors");
            }
        }
        Ok(())
    }

    /// A NumPy array: one of objects has a pickle in place of its elements (numpy/lib/format.py).
    pub(super) fn npy(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let head = source.read_vec(0, source.len().min(16))?;
        let (start, len) = match head.as_slice() {
            [_, _, _, _, _, _, 1, _, a, b, ..] => (10, u64::from(u16::from_le_bytes([*a, *b]))),
            [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (12, u64::from(u32::from_le_bytes([*a, *b, *c, *d]))),
            _ => {
                self.report.unscanned(label, "a NumPy array that is cut short", 0, source.len());
                return Ok(());
            }
        };
        let room = source.len().saturating_sub(start);
        let text = source.read_vec(start, len.min(room).min(FIRST))?;
        self.report.scanned(label, "npy header", 0, start.saturating_add(len64(text.len())));
        let descr: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let objects = [&b"'|O'"[..], b"'O'", b"\"|O\"", b"\"O\"", b"'|O8'", b"'O8'", b"|O"];
        let holds = |wanted: &[u8]| descr.windows(wanted.len()).any(|window| window == wanted);
        if !objects.iter().any(|wanted| holds(wanted)) && len <= room {
            return Ok(());
        }
        let start = start.saturating_add(len).min(source.len());
        let window = source.window(start, source.len().saturating_sub(start))?;
        let inner = inside(label, "objects");
        if !self.stream(&window, Some(&inner), true, depth)? {
            self.report.unscanned(label, "an array of objects without its pickle", start, window.len());
        }
        Ok(())
    }

    /// The members of a tar archive, by their headers (POSIX ustar).
    pub(super) fn tar(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let mut at = 0_u64;
        let mut members = 0_u64;
        while at.saturating_add(BLOCK) <= source.len() {
            self.options.cancel.check()?;
            members = members.saturating_add(1);
            if members > self.options.limits.entries {
                self.report.unscanned(label, "too many members", at, source.len().saturating_sub(at));
                break;
            }
            let block = source.read_vec(at, BLOCK)?;
            at = at.saturating_add(BLOCK);
            if block.iter().all(|&byte| byte == 0) {
                continue;
            }
            let name = block.get(..100).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            let Some(size) = octal(block.get(124..136).unwrap_or_default()) else {
                self.report.unscanned(
                    label,
                    "a tar header that cannot be read",
                    at,
                    source.len().saturating_sub(at),
                );
                break;
            };
            let room = source.len().saturating_sub(at);
            let inner = inside(label, &name);
            if size > room {
                self.report.unscanned(
                    Some(&inner),
                    "a member that is cut short",
                    0,
                    size.saturating_sub(room),
                );
            }
            let window = source.window(at, size.min(room))?;
            if matches!(block.get(156), Some(b'0' | 0 | b'7')) {
                self.tar_member(&window, &name, &inner, depth)?;
            }
            at = at.saturating_add(size.div_ceil(BLOCK).saturating_mul(BLOCK));
        }
        Ok(())
    }

    fn tar_member(&mut self, window: &Source, name: &str, inner: &str, depth: u64) -> Result<()> {
        let known = matches!(name.trim_start_matches("./"), "pickle" | "sys_info" | "tensors" | "storages");
        if known || !is_container(&window.read_vec(0, window.len().min(BLOCK))?) {
            let found = self.stream(window, Some(inner), known, depth)?;
            // Numbers and elements stand between the pickles of these two.
            if found && matches!(name, "tensors" | "storages") {
                self.report.unscanned(Some(inner), "pickles between raw numbers", 0, window.len());
            }
            return Ok(());
        }
        self.source(window, Some(inner), depth.saturating_add(1)).map(|_| ())
    }
}

/// Whether bytes could begin a pickle.
pub(super) fn may_be_pickle(head: &[u8], limits: &Limits) -> bool {
    !matches!(reads(head, limits), Reads::Not)
}

/// Whether bytes are the beginning of a pickle that has no end in them.
pub(super) fn goes_on(bytes: &[u8], limits: &Limits) -> bool {
    matches!(reads(bytes, limits), Reads::Cut)
}

/// Disassembles some bytes, to see where they lead.
fn reads(data: &[u8], limits: &Limits) -> Reads {
    let mut disasm = Disasm::lenient(data, 0, limits);
    let mut opcodes = 0_u64;
    loop {
        match disasm.next() {
            None => return Reads::Ends,
            Some(Ok(_)) => opcodes = opcodes.saturating_add(1),
            // A length beyond all data is no pickle's beginning.
            Some(Err(error)) => {
                let cut = error.code() == Code::Truncated || disasm.position() >= data.len();
                return match (cut, opcodes) {
                    (_, 0) => Reads::Not,
                    (true, _) => Reads::Cut,
                    (false, _) => Reads::Ends,
                };
            }
        }
    }
}

/// A tar header's number: octal text, or base 256 where its first bit is set (GNU).
fn octal(field: &[u8]) -> Option<u64> {
    if let Some((&first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        let start = u64::from(first & 0x7f);
        return rest.iter().try_fold(start, |sum, &byte| sum.checked_mul(256)?.checked_add(u64::from(byte)));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

pub(super) fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
