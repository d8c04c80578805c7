//! The detector of joblib: a pickle with the bytes of arrays between its opcodes.
//!
//! Stands for `joblib.load`, joblib 0.10 to 1.6 (`numpy_pickle.py: NumpyUnpickler.load_build`): where BUILD gives a `NumpyArrayWrapper` its
//! state, the array follows the opcode. From 1.2 on it follows a byte with the length of a padding and the padding; as versions
//! before read no padding, a file with padding is walked in both ways. Arrays are skipped. Where an array's length is not plain
//! from its state, the detector ends and the rest is unscanned. An array of objects is a pickle of its own.
//!
//! What is a wrapper is decided by what an object is, however it was made: an object of the class can only come from a call that gets
//! the class, so the detector ends wherever the class is anything but the callee of a NEWOBJ without arguments.

use std::sync::Arc;

use super::super::pickles;
use super::super::scanner::{Detected, Input};
use super::super::scanner::{Scanner, inside};
use super::At;
use crate::bytes::Source;
use crate::dtype::DType;
use crate::error::Result;
use crate::index::PersistentIdForm;
use crate::index::globals;
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::{self, Arg, Build, CallKind, Disasm, Handle, Op, Opcode, RecoveredPickle, Value, Values};

/// The class whose BUILD an array follows.
pub(in crate::scan) const WRAPPER: (&str, &str) = ("joblib.numpy_pickle", "NumpyArrayWrapper");

/// Bytes of the file that are read behind each array.
const READ_BYTES: u64 = 16 << 10;
/// Fields in fields that a dtype may have.
const DTYPE_DEPTH_MAX: usize = 8;

/// What follows the BUILD of a wrapper.
enum Array {
    Numbers {
        nbytes: u64,
        /// Whether padding precedes them since joblib 1.2.
        is_padded: bool,
    },
    Objects,
    Unknown,
}

/// The pickle without its arrays.
#[derive(Default)]
struct Parts {
    bytes: Vec<u8>,
    /// The length of `bytes` at the first array with padding, behind which versions of joblib differ.
    first_padded: Option<u64>,
    /// The offset in the file behind STOP.
    end: Option<u64>,
    /// Where the walk ended before all readers do, and why.
    gap: Option<(u64, &'static str)>,
}

/// The offset behind the BUILD of the first wrapper in a pickle.
pub(super) fn first_array(recovered: &RecoveredPickle) -> Option<u64> {
    next_array(recovered, 0).map(|(offset, _)| offset.saturating_add(1))
}

/// Walks the pickle around its arrays.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<()> {
    detected.joblib = true;
    scanner.report.format.get_or_insert("joblib");
    let parts = scanner.without_arrays(input, true, true)?;
    let (end, first_padded) = (parts.end, parts.first_padded);
    scanner.report_parts(input, parts, "pickle without its arrays", None)?;
    if first_padded.is_some() {
        let parts = scanner.without_arrays(input, false, false)?;
        scanner.report_parts(
            input,
            parts,
            "pickle without its arrays, in joblib before 1.2",
            first_padded,
        )?;
    }
    if let Some(end) = end.filter(|&end| end < input.source.len()) {
        scanner.trailing(input.label, end, "bytes follow the pickle's end");
        scanner.remainder(input, end)?;
    }
    Ok(())
}

impl Scanner<'_> {
    /// The pickle of a file without its arrays. Pickles of arrays of objects are reported, if `reports`.
    fn without_arrays(&mut self, input: &Input<'_>, skips_padding: bool, reports: bool) -> Result<Parts> {
        let (source, limits) = (input.source, &self.options.limits);
        let (mut parts, mut at, mut read) = (Parts::default(), 0_u64, READ_BYTES);
        loop {
            self.options.cancel.check()?;
            let known = to_u64(parts.bytes.len());
            let left = source.len().saturating_sub(at);
            let read_len = left.min(read);
            // The pickle is executed up to each array.
            let len = known.saturating_add(read_len);
            if len > limits.pickle_bytes || !self.budget.execute(len) {
                parts.gap = Some((at, "too many arrays between the opcodes"));
                return Ok(parts);
            }
            let mut data = parts.bytes.clone();
            data.extend(source.read_vec(at, read_len)?);
            let recovered = pickle::run_recovering(data, limits, &self.options.cancel)?;
            self.budget.must_recover(0, recovered.defects.len())?;
            let in_file = |offset: u64| at.saturating_add(offset.saturating_sub(known));
            let Some((build, array)) = next_array(&recovered, known) else {
                let is_inside = recovered.root.is_none() && read_len < left;
                if is_inside && to_u64(recovered.end) >= known.saturating_add(read_len / 2) {
                    read = read.saturating_mul(4);
                    continue;
                }
                let end = recovered.end;
                parts.end = recovered.root.map(|_| in_file(to_u64(end)));
                // Where the pickle goes wrong, the report shows how.
                let shown = if parts.end.is_some() { end } else { recovered.values.data().len() };
                parts.bytes = recovered.values.data().get(..shown).unwrap_or_default().to_vec();
                return Ok(parts);
            };
            let end = build.saturating_add(1);
            at = in_file(end);
            read = READ_BYTES;
            let len = usize::try_from(end).unwrap_or(usize::MAX);
            parts.bytes = recovered.values.data().get(..len).unwrap_or_default().to_vec();
            match array {
                _ if reaches_past(&parts.bytes, limits) => {
                    // joblib holds the frame in memory, and reads arrays behind it.
                    parts.gap = Some((at, "an array inside a frame"));
                    return Ok(parts);
                }
                Array::Numbers { nbytes, is_padded } => {
                    if is_padded {
                        parts.first_padded.get_or_insert(end);
                    }
                    if is_padded && skips_padding && at < source.len() {
                        let padding = source.read_vec(at, 1)?.first().copied().unwrap_or_default();
                        at = at.saturating_add(1).saturating_add(padding.into());
                    }
                    at = at.saturating_add(nbytes);
                }
                Array::Objects => {
                    let place = At { source, offset: at, known: true, ids: PersistentIdForm::Archive };
                    let run = self.run_pickle(&place)?;
                    let end = at.saturating_add(to_u64(run.recovered.end));
                    let stopped = run.stopped();
                    if reports || pickles::acts(&run.recovered, 0) {
                        let inner = inside(input.label, "objects");
                        self.report_pickle(run, &place, Some(&inner), input.depth, false)?;
                    }
                    if !stopped {
                        return Ok(parts);
                    }
                    at = end;
                }
                Array::Unknown => {
                    parts.gap = Some((at, "an array whose length its wrapper does not state plainly"));
                    return Ok(parts);
                }
            }
            if at > source.len() {
                parts.gap = Some((source.len(), "the file ends inside an array"));
                return Ok(parts);
            }
        }
    }

    /// Reports a pickle without its arrays; with `shared`, only if it acts from that offset on.
    fn report_parts(
        &mut self,
        input: &Input<'_>,
        parts: Parts,
        name: &str,
        shared: Option<u64>,
    ) -> Result<()> {
        if let Some((at, why)) = parts.gap {
            self.report.unscanned(input.label, why, at, input.source.len().saturating_sub(at));
        }
        let is_cut = parts.gap.is_some();
        let source = Source::memory(Arc::new(parts.bytes));
        let place = At { source: &source, offset: 0, known: true, ids: PersistentIdForm::Archive };
        let mut run = self.run_pickle(&place)?;
        if is_cut {
            // That it has no STOP is the scan's doing.
            run.recovered.defects.clear();
        }
        if shared.is_some_and(|shared| !pickles::acts(&run.recovered, shared)) {
            return Ok(());
        }
        let inner = inside(input.label, name);
        self.report_pickle(run, &place, Some(&inner), input.depth, false).map(|_| ())
    }
}

/// Whether a frame reaches past the end of these opcodes.
fn reaches_past(opcodes: &[u8], limits: &Limits) -> bool {
    let end = |op: Op<'_>| match (op.opcode, op.arg) {
        (Opcode::Frame, Arg::Unsigned(len)) => to_u64(op.payload).saturating_add(8).saturating_add(len),
        _ => 0,
    };
    Disasm::lenient(opcodes, 0, limits).flatten().any(|op| end(op) > to_u64(opcodes.len()))
}

/// The first BUILD of a wrapper at or behind an offset, or the first one that may be, and what follows it.
fn next_array(recovered: &RecoveredPickle, from: u64) -> Option<(u64, Array)> {
    let values = &recovered.values;
    let (class, _) = values.globals().find(|&(_, handle)| values.global_at(handle) == Some(WRAPPER))?;
    let is_value = pickles::is_used_as_value(recovered, class);
    let builds = values.builds();
    let follows = |build: &&Build| {
        build.offset >= from
            && (made_of(values, build.target).is_some_and(|made| made != Made::Other) || is_value)
    };
    let build = builds.iter().find(follows)?;
    let (offset, target) = (build.offset, build.target);
    let is_first =
        builds.iter().filter(|other| other.target == target && other.offset <= offset).count() == 1;
    let is_plain = is_first && made_of(values, target) == Some(Made::Wrapper) && !is_value;
    let array = if is_plain { array(values, target) } else { None };
    Some((offset, array.unwrap_or(Array::Unknown)))
}

/// What a call makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// A wrapper whose attributes are those of its states.
    Wrapper,
    /// A wrapper that its class was called for, with attributes of its own, or what a function returns of its arguments.
    Unclear,
    /// Something else, unless its arguments have the class itself.
    Other,
}

/// What a value is, if a call makes it.
fn made_of(values: &Values, target: Handle) -> Option<Made> {
    let call = values.call_at(target)?;
    let is_plain = call.kind == CallKind::NewObj && values.get(call.args) == Value::Tuple(&[]);
    Some(match values.global_at(call.callable) {
        Some(WRAPPER) if is_plain => Made::Wrapper,
        None | Some(WRAPPER) => Made::Unclear,
        Some((module, name)) => match globals::row(module, name) {
            Some(row) if row.kind == "alias" => Made::Unclear,
            _ => Made::Other,
        },
    })
}

/// What follows the first BUILD of a wrapper.
fn array(values: &Values, wrapper: Handle) -> Option<Array> {
    let Value::Dict(pairs) = values.get_at(*values.call_at(wrapper)?.states.first()?) else { return None };
    let of = |name: &str| {
        let is_named = |key: Handle| matches!(values.get(key), Value::Str(key) if key.as_str() == Some(name));
        pairs.iter().rev().find(|(key, _)| is_named(*key)).map(|&(_, value)| value)
    };
    let Value::Tuple(shape) = values.get(of("shape")?) else { return None };
    let numel = shape.iter().try_fold(1_u64, |numel, &size| numel.checked_mul(values.count_at(size)?))?;
    let Some(itemsize) = itemsize(values, of("dtype")?, DTYPE_DEPTH_MAX)? else {
        // `mmap_mode` maps what may be mapped.
        return (values.get(of("allow_mmap")?) == Value::Bool(false)).then_some(Array::Objects);
    };
    let is_padded = of("numpy_array_alignment_bytes").is_some_and(|value| values.get(value) != Value::None);
    Some(Array::Numbers { nbytes: numel.checked_mul(itemsize)?, is_padded })
}

/// The size of an element of a dtype as NumPy pickles it; `Some(None)` for objects, `None` where it is not plain.
fn itemsize(values: &Values, dtype: Handle, depth: usize) -> Option<Option<u64>> {
    let depth = depth.checked_sub(1)?;
    let call = values.call_at(dtype)?;
    let callee = values.global_at(call.callable)?;
    let Value::Tuple(&[code, _, _]) = values.get(call.args) else { return None };
    let Value::Str(code) = values.get(code) else { return None };
    let code = code.as_str()?;
    if callee != ("numpy", "dtype") || call.states.len() > 1 {
        return None;
    }
    // `dtype.__setstate__`: version, order, (base, shape), names, fields, size, ...
    let state = match call.states.first() {
        None => None,
        Some(&state) => match values.get_at(state) {
            Value::Tuple(state) => Some(state),
            _ => return None,
        },
    };
    let part = |index: usize| state.and_then(|state| state.get(index)).map(|&part| values.get(part));
    let form = (part(0), state.map_or(8, <[Handle]>::len));
    if !matches!(form, (None | Some(Value::Int(3)), 8) | (Some(Value::Int(4)), 9)) {
        return None;
    }
    // What an array has is decided by the flags, whatever the code is (NPY_ITEM_HASOBJECT).
    let has_objects = match part(7) {
        None => false,
        Some(Value::Int(flags)) => flags & 1 == 1,
        Some(_) => return None,
    };
    let is_plain = [2, 3, 4].iter().all(|&index| part(index).is_none_or(|part| part == Value::None));
    if has_objects {
        return (matches!(code, "O8" | "O4" | "O") && is_plain).then_some(None);
    }
    if let Some(dtype) = DType::from_numpy_code(code).filter(|_| is_plain) {
        return Some(Some(dtype.itemsize()));
    }
    let (kind, size) = code.split_at_checked(1)?;
    let size: u64 = size.parse().ok()?;
    let size = if kind == "U" { size.checked_mul(4)? } else { size };
    if !matches!(kind, "M" | "m") && part(5).is_some_and(|stated| stated != Value::Int(size.cast_signed())) {
        return None;
    }
    match (kind, part(2), part(4)) {
        ("U" | "S" | "V", ..) if is_plain => Some(Some(size)),
        ("V", Some(Value::Tuple([base, _])), Some(Value::None)) => {
            itemsize(values, *base, depth)?.map(|_| Some(size))
        }
        ("M" | "m", ..) if is_plain && size == 8 => Some(Some(size)),
        ("V", Some(Value::None), Some(Value::Dict(fields))) => {
            let is_number = |&(_, field): &(Handle, Handle)| match values.get(field) {
                Value::Tuple([dtype, ..]) => matches!(itemsize(values, *dtype, depth), Some(Some(_))),
                _ => false,
            };
            fields.iter().all(is_number).then_some(Some(size))
        }
        _ => None,
    }
}
