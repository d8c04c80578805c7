//! The parts of a legacy stream (torch 0.1.10 to 1.5): five concatenated pickles, then the storages in the order of the keys in the
//! last pickle. A file may be one, and the bytes of a storage in another pickle.
//!
//! Follows `torch/serialization.py: _legacy_load`: magic number, protocol 1001, system information, the object, the list of
//! storage keys; then for each key an int64 count of elements and the bytes. Stricter than torch: every storage that a tensor
//! names is in the list, the list names nothing else, and the last storage ends with the file.

use crate::bytes::{Fetched, Region, Requests, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, ResultExt, bail, error};
use crate::index::model::{Location, Options, Storage};
use crate::index::pickled::checks::check_side_pickle;
use crate::index::pickled::meanings::{Found, SHORT_STRING_MAX_BYTES};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::parallel::Cancel;
use crate::pickle::{self, Disasm, Opcode, Pickle, Value};
use std::collections::{HashMap, HashSet};

/// `torch/serialization.py: PROTOCOL_VERSION`.
const PROTOCOL: i64 = 1001;

/// `pickle.dumps(1001, 2)`, which follows the magic number.
pub(crate) const PROTOCOL_PICKLE: &[u8] = b"\x80\x02M\xe9\x03.";

/// Bytes that are read first; doubled until all pickles are read.
const INITIAL_READ_BYTES: u64 = 1 << 20;

/// The pickles of a stream, in order.
pub(crate) const PICKLES: [&str; 5] =
    ["magic number", "protocol version", "system information", "object", "storage keys"];
/// Indices in `PICKLES`.
pub(crate) const MAGIC: usize = 0;
const VERSION: usize = 1;
const SYSTEM: usize = 2;
pub(crate) const OBJECT: usize = 3;
const KEYS: usize = 4;

/// A legacy stream that consists of one storage.
pub(crate) struct SingleStorage {
    /// The storage; its location is a region of the stream.
    pub(crate) storage: Storage<Found>,
    pub(crate) dtype: DType,
    /// The name of its class.
    pub(crate) class: Box<str>,
}

/// Reads the pickles, the storage keys, and notes about the writer's system.
pub(crate) fn open(source: &Source, options: &Options) -> Result<(Head, Vec<String>, Vec<String>)> {
    let limits = &options.limits;
    let head = Head::read(source, limits)?;
    let mut notes = Vec::new();
    let mut side_pickle = |number, name| -> Result<Pickle> {
        let pickle = head.run(number, limits).in_member(name)?;
        notes.extend(check_side_pickle(&pickle, name, |_, _| false, options).in_member(name)?);
        Ok(pickle)
    };
    let version = side_pickle(VERSION, PICKLES[VERSION])?;
    check_protocol(&version).in_member(PICKLES[VERSION])?;
    let system = side_pickle(SYSTEM, PICKLES[SYSTEM])?;
    let listing = side_pickle(KEYS, PICKLES[KEYS])?;
    notes.extend(system_notes(&system));
    let keys = keys(&listing).in_member(PICKLES[KEYS])?;
    Ok((head, keys, notes))
}

pub(crate) fn positions(keys: &[String]) -> HashMap<&str, usize> {
    keys.iter().enumerate().map(|(at, key)| (key.as_str(), at)).collect()
}

/// The position of a storage in the key list. Its offset depends on the sizes of the storages before it, so `locate_storages`
/// computes it once all are known.
pub(crate) fn locate(positions: &HashMap<&str, usize>, key: &str) -> Result<Found> {
    match positions.get(key) {
        Some(&at) => Ok(Found::Listed(at)),
        None => Err(error!(
            Code::LegacyKeys,
            "storage {key} is not in the list of storage keys, so it has no bytes"
        )),
    }
}

/// Fails with `TrailingData` where bytes follow the last storage.
pub(crate) fn check_end(source: &Source, end: u64, options: &Options) -> Result<()> {
    if end != source.len() && !options.ignore_trailing {
        let text = format!("{} byte(s) after the last storage", source.len().saturating_sub(end));
        return Err(Error::new(Code::TrailingData, text).at(end));
    }
    Ok(())
}

/// The bytes of the five pickles.
pub(crate) struct Head {
    data: Vec<u8>,
    ends: [usize; 5],
}

impl Head {
    /// Reads the file until it has the end of the fifth pickle. A pickle ends at its STOP opcode.
    fn read(source: &Source, limits: &Limits) -> Result<Head> {
        let mut data = source.read_vec(0, source.len().min(INITIAL_READ_BYTES))?;
        loop {
            let len = to_u64(data.len());
            match pickle_ends(&data, limits) {
                Ok(ends) => return Ok(Head { data, ends }),
                // Read more only where the data ended too early.
                Err((_, true)) if len < source.len() => {
                    Limits::check("pickle_bytes", limits.pickle_bytes, len.saturating_add(1))?;
                    let target_len = len
                        .saturating_mul(2)
                        .min(source.len())
                        .min(limits.pickle_bytes.max(INITIAL_READ_BYTES));
                    data.append(&mut source.read_vec(len, target_len.saturating_sub(len))?);
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    pub(crate) fn pickle(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(number).copied().unwrap_or(0);
        self.data.get(start..end).unwrap_or_default()
    }

    pub(super) fn run(&self, number: usize, limits: &Limits) -> Result<Pickle> {
        pickle::run(self.pickle(number).to_vec(), limits)
    }

    pub(crate) fn end(&self) -> u64 {
        self.ends.last().map_or(u64::MAX, |&end| to_u64(end))
    }
}

/// The error for a stream that ends where this pickle would start.
fn missing_pickle(name: &str) -> Error {
    let code = if name == PICKLES[KEYS] { Code::LegacyKeys } else { Code::Truncated };
    error!(code, "the stream ends before its {name}")
        .note("The download or copy is probably incomplete: fetch the file again.")
}

/// The ends of the pickles; or an error, and whether it is that the data ends too early.
fn pickle_ends(data: &[u8], limits: &Limits) -> Result<[usize; 5], (Error, bool)> {
    let (mut ends, mut start) = ([0; 5], 0);
    for (end, name) in ends.iter_mut().zip(PICKLES) {
        if start > 0 && start == data.len() {
            return Err((missing_pickle(name).at(to_u64(start)).in_member(name), true));
        }
        let mut disasm = Disasm::strict(data, start, limits);
        let ended = pickle_end(&mut disasm).in_member(name);
        start = ended.map_err(|error| (error, disasm.is_truncated()))?;
        *end = start;
    }
    Ok(ends)
}

/// The offset after the STOP of a pickle.
pub(crate) fn pickle_end(disasm: &mut Disasm<'_>) -> Result<usize> {
    for op in disasm.by_ref() {
        if op?.opcode == Opcode::Stop {
            return Ok(Disasm::position(disasm));
        }
    }
    let end = to_u64(Disasm::position(disasm));
    Err(Error::new(Code::Truncated, "the pickle has no STOP opcode").at(end))
}

fn check_protocol(pickle: &Pickle) -> Result<()> {
    match pickle.values.get(pickle.root) {
        Value::Int(PROTOCOL) => Ok(()),
        Value::Int(other) => Err(error!(Code::LegacyVersion, "protocol {other} is not {PROTOCOL}")),
        _ => Err(Error::new(Code::LegacyVersion, "the protocol version is not a number")),
    }
}

/// Notes on the writer's system information. The reader does not need it, and torch ignores it too.
pub(crate) fn system_notes(pickle: &Pickle) -> Vec<String> {
    let values = &pickle.values;
    let Value::Dict(pairs) = values.get(pickle.root) else { return Vec::new() };
    let is_big = |&(key, value): &(pickle::Handle, pickle::Handle)| {
        matches!(values.get(key), Value::Str(key) if key.as_str() == Some("little_endian"))
            && values.get(value) == Value::Bool(false)
    };
    let text = "the writer was big-endian; its storages are little-endian nevertheless";
    pairs.iter().any(is_big).then(|| text.to_owned()).into_iter().collect()
}

fn keys(pickle: &Pickle) -> Result<Vec<String>> {
    let wrong = || Error::new(Code::LegacyKeys, "the storage keys are not a list of strings");
    let Value::List(items) = pickle.values.get(pickle.root) else { return Err(wrong()) };
    // One string may be listed any number of times, so long and repeated ones are refused before they are copied.
    let mut seen = HashSet::new();
    let text = |&item| match pickle.values.get(item) {
        Value::Str(key) if key.as_bytes().len() <= SHORT_STRING_MAX_BYTES => {
            if !seen.insert(key) {
                bail!(Code::LegacyKeys, "a storage key is listed twice");
            }
            key.as_str().map(str::to_owned).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    };
    items.iter().map(text).collect()
}

/// Sets the range of every storage in the file; returns the end of the last one.
pub(crate) fn locate_storages(
    source: &Source,
    storages: &mut [Storage<Found>],
    keys: &[String],
    start: u64,
    cancel: &Cancel,
) -> Result<u64> {
    let mut by_key: Vec<Option<&mut Storage<Found>>> = keys.iter().map(|_| None).collect();
    for storage in storages {
        if let Found::Listed(at) = storage.location
            && let Some(slot) = by_key.get_mut(at)
        {
            *slot = Some(storage);
        }
    }
    let mut at = start;
    let sizes = by_key.iter().map(|storage| storage.as_ref().map_or(0, |storage| storage.nbytes));
    let counts = read_counts(source, start, sizes, cancel)?;
    for (key, storage) in keys.iter().zip(by_key) {
        let Some(storage) = storage else {
            let text = format!("storage {key} is in the list of storage keys, but no tensor states its size");
            return Err(Error::new(Code::LegacyKeys, text));
        };
        let bytes = counts.get(at, 8).map_or_else(|| source.read_vec(at, 8), |bytes| Ok(bytes.to_vec()))?;
        let count = bytes.first_chunk().copied().map(i64::from_le_bytes);
        let count = count.ok_or_else(|| Error::new(Code::InternalError, "a count was read in part"))?;
        let numel = storage.numel;
        if u64::try_from(count) != Ok(numel) {
            let text = format!("storage {key} has {count} element(s), the pickle states {numel}");
            return Err(Error::new(Code::StorageBounds, text).at(at));
        }
        let region = at.checked_add(8).and_then(|start| Region::new(start, storage.nbytes));
        let region = region.filter(|region| region.end() <= source.len()).ok_or_else(|| {
            let end = at.saturating_add(8).saturating_add(storage.nbytes);
            let have = source.len();
            let text =
                format!("the file is cut short: it has {have} byte(s), storage {key} ends at byte {end}");
            Error::new(Code::Truncated, text).at(at)
        })?;
        storage.location = Found::At(Location::Range(region));
        at = region.end();
    }
    Ok(at)
}

/// Reads the element counts before storages, near ones by one read and several at once, if the limits allow that. `sizes` are those of
/// the storages, the first of which has its count at `start`.
fn read_counts(
    source: &Source,
    start: u64,
    sizes: impl Iterator<Item = u64>,
    cancel: &Cancel,
) -> Result<Fetched> {
    let (mut at, mut wanted) = (start, Vec::new());
    for nbytes in sizes {
        let Some(region) = Region::new(at, 8).filter(|region| region.end() <= source.len()) else {
            break;
        };
        wanted.push(region);
        at = region.end().saturating_add(nbytes);
    }
    match source.affordable_gap(&wanted, Requests::default())? {
        Some(gap) => source.gather(&wanted, gap, cancel),
        None => Ok(Fetched::default()),
    }
}
