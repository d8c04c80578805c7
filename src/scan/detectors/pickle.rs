//! The detector of unpicklers: a pickle from byte 0, and pickles one behind another.
//!
//! Stands for `pickle.load` and `pickle._load` of CPython 3.8 to 3.15, called once or repeatedly, and for what calls them: torch's
//! legacy reader, `numpy.load` of what is not an array, `joblib.load`. Any bytes may be a pickle, as protocols 0 and 1 have no PROTO. Where
//! no name says that they are one, it is detected if they name a global or make a call, or if they are plain data up to their end.

use std::sync::Arc;

use super::super::budget::take;
use super::super::pickles::{self, Nested, PickleContext};
use super::super::report::{Finding, readers};
use super::super::scanner::{Detected, Input, Origin};
use super::super::scanner::{Scanner, inside};
use super::super::verdict::Verdict;
use super::{At, joblib, legacy, torch_tar};
use crate::bytes::Source;
use crate::container::Format;
use crate::error::{Code, Error, Result};
use crate::index::PersistentIdForm;
use crate::num::to_u64;
use crate::pickle::{self, Opcode, Pickle, RecoveredPickle};

/// Bytes that are read first; quadrupled until the pickle ends. The last step reads all that is left, as a run over a part is lost.
const FIRST_READ_BYTES: u64 = 64 << 10;
/// As [`FIRST_READ_BYTES`], for a pickle behind another one, of which there may be many.
const FOLLOWING_FIRST_READ_BYTES: u64 = 4 << 10;
/// As [`FIRST_READ_BYTES`], for a pickle of a legacy stream, which storages follow.
const LEGACY_FIRST_READ_BYTES: u64 = 1 << 20;
/// As [`FIRST_READ_BYTES`], for bytes that are known to be a pickle, which mostly ends with them.
const KNOWN_FIRST_READ_BYTES: u64 = 16 << 20;

/// The run of one pickle.
pub(super) struct Run {
    pub(super) recovered: RecoveredPickle,
    /// The limit that ended the run, where readers go on.
    pub(super) limit: Option<Error>,
}

impl Run {
    /// Whether a reader reaches STOP.
    pub(super) fn stopped(&self) -> bool {
        self.recovered.root.is_some()
    }
}

/// The result of a pickle that was reported.
pub(super) struct Reported {
    /// The offset after STOP, or where all readers end.
    pub(super) end: u64,
    pub(super) stopped: bool,
    /// The executed pickle, or why the strict reader refuses it, if its source was all there to be executed.
    pub(super) executed: Option<Result<Pickle>>,
}

/// Walks the pickles from byte 0.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<()> {
    if input.format == Some(Format::LegacyTorch) {
        return match legacy::walk(scanner, input, detected)? {
            Some(end) => scanner.pickles(input, end, false, detected),
            None => Ok(()),
        };
    }
    if matches!(input.origin, Origin::Storages | Origin::Tensors) {
        let end = torch_tar::walk(scanner, input, detected)?;
        return if end < input.source.len() { scanner.pickles(input, end, false, detected) } else { Ok(()) };
    }
    let is_detected = input.format == Some(Format::Pickle) && !input.origin.is_member();
    let known = input.origin.is_pickle() || is_detected;
    scanner.pickles(input, 0, known, detected)
}

impl Scanner<'_> {
    /// Walks the pickles one behind another from `start` on. `known` is whether some reader unpickles the first one, whatever it is.
    pub(super) fn pickles(
        &mut self,
        input: &Input<'_>,
        start: u64,
        known: bool,
        detected: &mut Detected,
    ) -> Result<()> {
        let Input { source, label, .. } = *input;
        // What a member of an archive loads is one level below the archive.
        let depth = input.depth.saturating_sub(input.origin.is_member().into());
        let (mut at, mut count, mut is_entered) = (start, 0_u64, false);
        let ids = match input.origin {
            Origin::Keyed => PersistentIdForm::Keyed,
            _ => PersistentIdForm::Archive,
        };
        // Pickles of plain data. They count as pickles once another one acts, or if the source ends with them.
        let mut plain = Vec::new();
        while at < source.len() || (known && count == 0) {
            let follows = count > 0 || start > 0;
            if follows && !take(&mut self.budget.following_pickles, 1) {
                self.report.unscanned(
                    label,
                    "too many concatenated pickles",
                    at,
                    source.len().saturating_sub(at),
                );
                at = source.len();
                break;
            }
            let place = At { source, offset: at, known: known && count == 0, ids };
            let run = self.run_pickle(&place)?;
            let array = if at == 0 { joblib::first_array(&run.recovered) } else { None };
            if array.is_some() {
                joblib::walk(self, input, detected)?;
            }
            // Up to the first array of a joblib file, what runs was reported.
            let acts = pickles::acts(&run.recovered, array.unwrap_or_default())
                || pickles::imports_at_end(&run.recovered);
            let is_pickle = (place.known && array.is_none()) || acts || (is_entered && run.stopped());
            let end = at.saturating_add(to_u64(run.recovered.end));
            count = count.saturating_add(1);
            if !is_pickle {
                if let Some(limit) = &run.limit {
                    let why = format!("readers may go on with a pickle: {}", limit.message());
                    self.report.unscanned(label, &why, end, source.len().saturating_sub(end));
                    return Ok(());
                }
                if !run.stopped() {
                    break;
                }
                plain.push((at, end));
                at = end;
                continue;
            }
            for (start, end) in plain.drain(..) {
                self.report.scanned(label, "pickle", start, end.saturating_sub(start));
            }
            if follows {
                self.trailing(label, at, "another pickle follows the first");
            }
            (is_entered, detected.pickle) = (true, true);
            let reported =
                self.report_pickle(run, &place, label, depth, input.origin == Origin::Main && at == 0)?;
            if at == 0 {
                let is_strict =
                    |executed: &Result<Pickle>| executed.is_ok() || input.format == Some(Format::Pickle);
                detected.executed = reported.executed.filter(is_strict);
            }
            at = reported.end;
            if !reported.stopped {
                return Ok(());
            }
        }
        if start > 0 || at == start {
            return Ok(());
        }
        if at < source.len() {
            if is_entered {
                self.trailing(label, at, "bytes follow the pickle's end");
            }
            return self.remainder(input, at);
        }
        detected.pickle |= !plain.is_empty();
        for (start, end) in plain {
            self.report.scanned(label, "pickle", start, end.saturating_sub(start));
        }
        Ok(())
    }

    /// Runs one pickle, of as many bytes as it needs. Fails where the budget of the file is spent.
    pub(super) fn run_pickle(&mut self, place: &At<'_>) -> Result<Run> {
        let limits = &self.options.limits;
        let available = place.source.len().saturating_sub(place.offset);
        let whole = available.min(limits.pickle_bytes);
        let mut len = match (place.known, place.ids == PersistentIdForm::Legacy) {
            (true, true) => LEGACY_FIRST_READ_BYTES,
            (true, false) => KNOWN_FIRST_READ_BYTES,
            _ if place.offset > 0 => FOLLOWING_FIRST_READ_BYTES,
            _ => FIRST_READ_BYTES,
        };
        loop {
            let ceiling = whole.min(self.budget.executable());
            if len >= ceiling / 4 {
                len = ceiling;
            }
            let data = place.source.chunk(place.offset, len)?;
            let recovered = pickle::run_recovering(data, limits, &self.options.cancel)?;
            self.budget.must_recover(to_u64(recovered.end), recovered.defects.len())?;
            let reads_on = !readers_stop(&recovered);
            if !(reads_on && is_cut(&recovered) && len < available) {
                let limit = recovered.defects.last().filter(|error| reads_on && error.code() == Code::Limit);
                let limit = limit.map(|error| Error::new(Code::Limit, error.message()));
                return Ok(Run { recovered, limit });
            }
            if len == ceiling {
                if ceiling < whole {
                    // It fails: that is more than may still be executed.
                    self.budget.must_execute(whole)?;
                }
                let limit = Some(Error::limit("pickle_bytes", limits.pickle_bytes, available));
                return Ok(Run { recovered, limit });
            }
            len = len.saturating_mul(4);
        }
    }

    /// Adds to the report what a pickle would do, and scans the bytes that it would load. `member` names it in findings.
    pub(super) fn report_pickle(
        &mut self,
        run: Run,
        place: &At<'_>,
        member: Option<&str>,
        depth: u64,
        wants_keys: bool,
    ) -> Result<Reported> {
        let Run { recovered, limit } = run;
        self.budget.judge(to_u64(recovered.values.calls().len()))?;
        if let Some(error) = limit {
            self.report.add_error(&error, member);
        }
        let At { source, offset, ids, .. } = *place;
        let context = PickleContext { member, base_offset: offset, ids, wants_keys };
        let (limits, cancel) = (&self.options.limits, &self.options.cancel);
        let is_whole = offset == 0 && to_u64(recovered.values.data().len()) == source.len();
        let scanned = pickles::classify(&mut self.report, recovered, &context, limits, cancel)?;
        let len = to_u64(scanned.end);
        self.report.scanned(member, "pickle", offset, len);
        self.keys.extend(scanned.keys);
        self.nested(scanned.nested, source, offset, member, depth)?;
        let executed = is_whole.then_some(scanned.pickle);
        Ok(Reported { end: offset.saturating_add(len), stopped: scanned.stopped, executed })
    }

    pub(super) fn trailing(&mut self, label: Option<&str>, at: u64, text: &str) {
        let finding = Finding::new(Code::TrailingData.as_str(), Verdict::Unknown, label, text);
        self.report.add(Finding { offset: Some(at), readers: readers(Code::TrailingData), ..finding });
    }

    /// Gives what follows the end of one reader to all detectors.
    pub(in crate::scan) fn remainder(&mut self, input: &Input<'_>, at: u64) -> Result<()> {
        let len = input.source.len().saturating_sub(at);
        if len == 0 {
            return Ok(());
        }
        if input.depth >= self.options.limits.scan_depth {
            self.report.unscanned(input.label, "nested too deep", at, len);
            return Ok(());
        }
        let window = input.source.window(at, len)?;
        let inner = inside(input.label, &format!("byte {at}"));
        self.source(&window, Some(&inner), input.depth.saturating_add(1), Origin::Remainder).map(|_| ())
    }

    /// Scans the bytes that a pickle passes to a loader.
    fn nested(
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
            if depth >= self.options.limits.scan_depth {
                self.report.unscanned(Some(&inner), "nested too deep", 0, window.len());
                continue;
            }
            let detected = self.source(&window, Some(&inner), depth.saturating_add(1), Origin::Loaded)?;
            if !detected.any() && detected.format.is_none() {
                let why = "bytes passed to a loader, in an unknown format";
                self.report.unscanned(Some(&inner), why, 0, window.len());
            }
        }
        Ok(())
    }
}

/// Whether the data ends before the pickle does, or inside the opcode at which the run ended.
fn is_cut(recovered: &RecoveredPickle) -> bool {
    let last = recovered.defects.last().map(Error::code);
    recovered.root.is_none()
        && (recovered.end >= recovered.values.data().len() || last == Some(Code::Truncated))
}

/// Whether every reader stops at the opcode at which the run ended, although the line after it was not read to its end.
fn readers_stop(recovered: &RecoveredPickle) -> bool {
    let rest = recovered.values.data().get(recovered.end..).unwrap_or_default();
    let Some((&opcode, rest)) = rest.split_first() else { return false };
    let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
    // `_pickle.c` takes lines for C strings.
    let text = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let is_number =
        text.iter().all(|byte| byte.is_ascii_alphanumeric() || b" \t\r\x0b\x0c+-._".contains(byte));
    match Opcode::from_byte(opcode) {
        None => true,
        // Both unpicklers decode the id as ASCII.
        Some(Opcode::PersId) => !line.is_ascii(),
        // No module has such a name.
        Some(Opcode::Global | Opcode::Inst) => !pickles::may_be_module(line),
        Some(Opcode::Int) => !is_number,
        Some(Opcode::Long | Opcode::Float | Opcode::Get | Opcode::Put) => !is_number || text.is_empty(),
        Some(Opcode::String) => !matches!(line.first(), Some(b'\'' | b'"')),
        _ => false,
    }
}
