//! Scans formats other than zip: concatenated pickles, the legacy torch stream, safetensors, NumPy arrays, tar archives.

use std::collections::HashSet;
use std::sync::Arc;

use super::budget::take;
use super::file::{Scanner, inside};
use super::pickles::{self, Nested, PickleContext, ScannedPickle};
use super::report::{Finding, Verdict};
use crate::bytes::Source;
use crate::container::is_container;
use crate::container::npy::{Elements, Header};
use crate::error::{Code, Error, Result};
use crate::index::LEGACY_PICKLES;
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::{Disasm, Pickle};

/// Bytes that are read first where a pickle's end is unknown; quadrupled until it is found.
const INITIAL_READ_BYTES: u64 = 64 << 10;
/// Bytes of a tar block.
const TAR_BLOCK_BYTES: u64 = 512;

/// The result of disassembling the start of some bytes.
enum Probe {
    /// A pickle with a STOP, or with an error at which every reader stops.
    Ends,
    /// A pickle that continues past the end of the bytes.
    Truncated,
    /// Not a pickle.
    NotPickle,
}

impl Scanner<'_> {
    /// Scans the concatenated pickles at the start of a source. `sure` is true where the first is known to be a pickle. Returns
    /// whether there is one.
    pub(super) fn stream(
        &mut self,
        source: &Source,
        label: Option<&str>,
        sure: bool,
        depth: u64,
    ) -> Result<bool> {
        let mut at = 0;
        for number in 0_u64.. {
            if number > 0 && !take(&mut self.budget.following_pickles, 1) {
                let rest = source.len().saturating_sub(at);
                self.report.unscanned(label, "too many concatenated pickles", at, rest);
                break;
            }
            let Some(mut scanned) = self.pickle(source, at, label, sure && number == 0, false, label)? else {
                break;
            };
            let end = at.saturating_add(to_u64(scanned.end));
            self.report.scanned(label, "pickle", at, end.saturating_sub(at));
            self.nested(scanned.nested, source, at, label, depth)?;
            self.keys.extend(scanned.keys);
            let is_whole_source =
                |pickle: &Pickle| number == 0 && to_u64(pickle.values.data().len()) == source.len();
            self.executed = scanned.pickle.take().filter(is_whole_source);
            let start = at;
            at = end;
            if number > 0 {
                self.trailing(label, start, "another pickle follows the first");
            }
            if !scanned.stopped || at >= source.len() {
                return Ok(true);
            }
        }
        if at > 0 && at < source.len() {
            self.trailing(label, at, "bytes follow the pickle's end");
            self.scan_remainder(source, at, label, depth)?;
        }
        Ok(at > 0)
    }

    /// As [`stream`](Scanner::stream); also returns the storage keys that the pickles name.
    pub(super) fn stream_with_keys(
        &mut self,
        source: &Source,
        label: &str,
        sure: bool,
        depth: u64,
    ) -> Result<(bool, HashSet<String>)> {
        let outer = std::mem::take(&mut self.keys);
        self.wants_keys = true;
        let has_pickle = self.stream(source, Some(label), sure, depth);
        self.wants_keys = false;
        let keys = std::mem::replace(&mut self.keys, outer);
        has_pickle.map(|has_pickle| (has_pickle, keys))
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

    /// Scans what follows the last pickle, where it is a container.
    fn scan_remainder(&mut self, source: &Source, at: u64, label: Option<&str>, depth: u64) -> Result<()> {
        let len = source.len().saturating_sub(at);
        let window = source.window(at, len)?;
        let head = window.read_vec(0, len.min(TAR_BLOCK_BYTES))?;
        if is_container(&head) {
            let inner = inside(label, &format!("byte {at}"));
            self.source(&window, Some(&inner), depth.saturating_add(1))?;
        }
        Ok(())
    }

    /// Scans one pickle at an offset of a source; `None` where `sure` is false and the bytes are not a pickle. `label` names the
    /// source in the error of a limit, `member` the pickle in its findings.
    fn pickle(
        &mut self,
        source: &Source,
        at: u64,
        label: Option<&str>,
        sure: bool,
        legacy: bool,
        member: Option<&str>,
    ) -> Result<Option<ScannedPickle>> {
        let limits = &self.options.limits;
        let available = source.len().saturating_sub(at);
        let ceiling = available.min(limits.pickle_bytes);
        // A pickle that is known to extend to the end of the source is read at once.
        let mut len = if sure && !legacy { ceiling } else { ceiling.min(INITIAL_READ_BYTES) };
        let data = loop {
            let data = source.chunk(at, len)?;
            if sure && len == available {
                break data;
            }
            match probe(&data, limits) {
                Probe::NotPickle if !sure => return Ok(None),
                Probe::Truncated if len < ceiling => len = len.saturating_mul(4).min(ceiling),
                _ => break data,
            }
        };
        if len == ceiling && ceiling < available && matches!(probe(&data, limits), Probe::Truncated) {
            let error = Error::limit("pickle_bytes", limits.pickle_bytes, available);
            self.report.add_error(&error, label);
        }
        let context = PickleContext { member, base_offset: at, legacy, wants_keys: self.wants_keys };
        let cancel = &self.options.cancel;
        pickles::scan(&mut self.report, data, 0, &context, sure, limits, cancel)
    }

    /// Scans the bytes that a pickle passes to a loader.
    pub(super) fn nested(
        &mut self,
        nested_bytes: Vec<Nested>,
        source: &Source,
        base: u64,
        label: Option<&str>,
        depth: u64,
    ) -> Result<()> {
        for nested in nested_bytes {
            let (window, at) = match nested {
                Nested::Inside(region) => {
                    let at = base.saturating_add(region.start());
                    (source.window(at, region.len())?, at)
                }
                Nested::Decoded(bytes) => {
                    if !take(&mut self.budget.decoded_bytes, to_u64(bytes.len())) {
                        let why = "the budget scan_bytes is spent";
                        self.report.unscanned(label, why, base, to_u64(bytes.len()));
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
                    "bytes passed to a loader, in an unknown format",
                    0,
                    window.len(),
                );
            }
        }
        Ok(())
    }

    /// Scans the five pickles of a legacy stream.
    pub(super) fn legacy(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let mut at = 0;
        for name in LEGACY_PICKLES {
            let member = inside(label, name);
            let Some(scanned) = self.pickle(source, at, label, true, true, Some(&member))? else { break };
            let end = at.saturating_add(to_u64(scanned.end));
            self.report.scanned(Some(&member), "pickle", at, end.saturating_sub(at));
            self.nested(scanned.nested, source, at, Some(&member), depth)?;
            at = end;
            if !scanned.stopped {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Scans the bytes after the last storage of a legacy stream.
    pub(super) fn after_legacy(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let is_trailing_data = |finding: &&Finding| {
            finding.code == Code::TrailingData.as_str() && finding.member.as_deref() == label
        };
        let at = self.report.findings.iter().find(is_trailing_data).and_then(|finding| finding.offset);
        let Some(at) = at.filter(|&at| at < source.len()) else { return Ok(()) };
        let window = source.window(at, source.len().saturating_sub(at))?;
        let inner = inside(label, &format!("byte {at}"));
        if !self.stream(&window, Some(&inner), false, depth)? {
            self.scan_remainder(source, at, label, depth)?;
        }
        Ok(())
    }

    /// Scans a safetensors file: its tensor names, and a pickle after the tensors (a polyglot).
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
            let odd_entries: Vec<_> = index.entries.iter().filter(|entry| odd(&entry.name)).collect();
            if let Some(first) = odd_entries.first() {
                self.report.add(Finding {
                    message: format!("a tensor is named {:?}", first.name),
                    member: label.map(str::to_owned),
                    times: to_u64(odd_entries.len()),
                    ..Finding::new("OddName")
                });
            }
            return Ok(());
        }
        // The error of the strict reader has the offset of the first byte that no tensor covers.
        let is_offsets_error = |finding: &&Finding| {
            finding.code == Code::StOffsets.as_str() && finding.member.as_deref() == label
        };
        let start = self.report.findings.iter().find(is_offsets_error).and_then(|finding| finding.offset);
        let Some(start) = start else { return Ok(()) };
        if start < source.len() {
            let window = source.window(start, source.len().saturating_sub(start))?;
            let inner = inside(label, &format!("byte {start}"));
            if self.stream(&window, Some(&inner), false, depth)? {
                self.polyglot(label, "a pickle follows the tensors");
            }
        }
        Ok(())
    }

    /// Scans a NumPy array: an array of dtype object has a pickle in place of its elements (numpy/lib/format.py).
    pub(super) fn npy(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let head = source.read_vec(0, source.len().min(16))?;
        let (start, len) = match head.as_slice() {
            [_, _, _, _, _, _, 1, _, a, b, ..] => (10, u64::from(u16::from_le_bytes([*a, *b]))),
            [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (12, u64::from(u32::from_le_bytes([*a, *b, *c, *d]))),
            _ => {
                self.report.unscanned(label, "a truncated NumPy array", 0, source.len());
                return Ok(());
            }
        };
        let available = source.len().saturating_sub(start);
        let text = source.read_vec(start, len.min(available).min(INITIAL_READ_BYTES))?;
        self.report.scanned(label, "npy header", 0, start.saturating_add(to_u64(text.len())));
        let header = Header::read(|len| source.read_vec(0, source.len().min(len)));
        let is_numbers = header.as_ref().is_ok_and(|header| !header.elements.may_be_pickle());
        if is_numbers {
            return Ok(());
        }
        let descr: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let objects = [&b"'|O'"[..], b"'O'", b"\"|O\"", b"\"O\"", b"'|O8'", b"'O8'", b"|O"];
        let contains = |needle: &[u8]| descr.windows(needle.len()).any(|window| window == needle);
        // NumPy reads some headers that the strict reader refuses, and unpickles the elements if it finds objects in them.
        let sure = header.is_ok_and(|header| header.elements == Elements::Objects)
            || objects.iter().any(|needle| contains(needle))
            || len > available;
        let start = start.saturating_add(len).min(source.len());
        let window = source.window(start, source.len().saturating_sub(start))?;
        let inner = inside(label, "objects");
        if !self.stream(&window, Some(&inner), sure, depth)? && sure {
            self.report.unscanned(label, "an object array without a pickle", start, window.len());
        }
        Ok(())
    }

    /// Scans the members of a tar archive, by their headers (POSIX ustar).
    pub(super) fn tar(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let mut at = 0_u64;
        let mut members = 0_u64;
        while at.saturating_add(TAR_BLOCK_BYTES) <= source.len() {
            self.options.cancel.check()?;
            members = members.saturating_add(1);
            if members > self.options.limits.entries {
                self.report.unscanned(label, "too many members", at, source.len().saturating_sub(at));
                break;
            }
            let block = source.read_vec(at, TAR_BLOCK_BYTES)?;
            at = at.saturating_add(TAR_BLOCK_BYTES);
            if block.iter().all(|&byte| byte == 0) {
                continue;
            }
            let name = block.get(..100).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            let Some(size) = tar_number(block.get(124..136).unwrap_or_default()) else {
                self.report.unscanned(label, "an invalid tar header", at, source.len().saturating_sub(at));
                break;
            };
            let available = source.len().saturating_sub(at);
            let inner = inside(label, &name);
            if size > available {
                self.report.unscanned(Some(&inner), "a truncated member", 0, size.saturating_sub(available));
            }
            let window = source.window(at, size.min(available))?;
            if matches!(block.get(156), Some(b'0' | 0 | b'7')) {
                self.tar_member(&window, &name, &inner, depth)?;
            }
            at = at.saturating_add(size.div_ceil(TAR_BLOCK_BYTES).saturating_mul(TAR_BLOCK_BYTES));
        }
        Ok(())
    }

    fn tar_member(&mut self, window: &Source, name: &str, inner: &str, depth: u64) -> Result<()> {
        let is_torch_member =
            matches!(name.trim_start_matches("./"), "pickle" | "sys_info" | "tensors" | "storages");
        if is_torch_member || !is_container(&window.read_vec(0, window.len().min(TAR_BLOCK_BYTES))?) {
            let has_pickle = self.stream(window, Some(inner), is_torch_member, depth)?;
            // In these two members of a torch 0.1 archive, raw numbers and elements lie between the pickles.
            if has_pickle && matches!(name, "tensors" | "storages") {
                self.report.unscanned(Some(inner), "pickles between raw numbers", 0, window.len());
            }
            return Ok(());
        }
        self.source(window, Some(inner), depth.saturating_add(1)).map(|_| ())
    }
}

/// Whether bytes may be the start of a pickle.
pub(super) fn may_be_pickle(head: &[u8], limits: &Limits) -> bool {
    !matches!(probe(head, limits), Probe::NotPickle)
}

/// Whether bytes are the start of a pickle that continues past their end.
pub(super) fn is_truncated_pickle(bytes: &[u8], limits: &Limits) -> bool {
    matches!(probe(bytes, limits), Probe::Truncated)
}

/// Disassembles the start of some bytes.
fn probe(data: &[u8], limits: &Limits) -> Probe {
    let mut disasm = Disasm::lenient(data, 0, limits);
    let mut opcodes = 0_u64;
    loop {
        match disasm.next() {
            None => return Probe::Ends,
            Some(Ok(_)) => opcodes = opcodes.saturating_add(1),
            // Where the first opcode already fails, the bytes are not a pickle.
            Some(Err(error)) => {
                let truncated = error.code() == Code::Truncated || disasm.position() >= data.len();
                return match (truncated, opcodes) {
                    (_, 0) => Probe::NotPickle,
                    (true, _) => Probe::Truncated,
                    (false, _) => Probe::Ends,
                };
            }
        }
    }
}

/// Parses a number of a tar header: octal text, or base 256 where the first bit is set (GNU); `None` where it is neither.
fn tar_number(field: &[u8]) -> Option<u64> {
    if let Some((&first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        let start = u64::from(first & 0x7f);
        return rest.iter().try_fold(start, |sum, &byte| sum.checked_mul(256)?.checked_add(u64::from(byte)));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}
