//! The targets: each runs one reader and asserts its invariants for any input.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustload::internals::bytes::Source;
use rustload::internals::container::npy;
use rustload::internals::container::payload_config::PayloadConfig;
use rustload::internals::container::safetensors::Header;
use rustload::internals::container::tar;
use rustload::internals::container::zip::{Archive, Trailing};
use rustload::internals::index::{Padding, Run, flat_partitions, sharded_partitions};
use rustload::internals::pickle::{self, Disasm, Handle, Value, Values};
use rustload::scan::{self, Verdict};
use rustload::{
    Cancel, Checkpoint, DType, Format, Limits, Options, Order, Request, Tensor, TensorIndex, Unknown,
};

use crate::mutate::{self, Random};
use crate::zip as writer;

/// A fuzz target.
pub struct Target {
    /// Its name, which is also the name of its seeds' folder.
    pub name: &'static str,
    /// Runs an input; panics where an invariant is violated.
    pub run: fn(&[u8]),
    /// Mutates an input within its format.
    pub mutate: fn(&[u8], &mut Random) -> Vec<u8>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "pickle", run: pickle_machine, mutate: mutate::pickle },
    Target { name: "zip", run: zip, mutate: mutate::zip },
    Target { name: "legacy", run: legacy, mutate: mutate::legacy },
    Target { name: "safetensors", run: safetensors, mutate: mutate::safetensors },
    Target { name: "quantized", run: quantized, mutate: mutate::safetensors },
    Target { name: "npy", run: npy, mutate: mutate::npy },
    Target { name: "tar", run: tar_archive, mutate: mutate::tar },
    Target { name: "exported", run: exported, mutate: mutate::exported },
    Target { name: "graph", run: graph, mutate: mutate::graph },
    Target { name: "yaml", run: yaml, mutate: mutate::yaml },
    Target { name: "distributed", run: distributed, mutate: mutate::distributed },
    Target { name: "partitions", run: partitions, mutate: mutate::bytes },
    Target { name: "open", run: open, mutate: mutate::any },
    Target { name: "scan", run: scan, mutate: mutate::any },
];

/// Limits so low that no input within them is slow.
fn limits() -> Limits {
    Limits::new()
        .pickle_bytes(1 << 20)
        .inflate_bytes(1 << 20)
        .nodes(1 << 16)
        .name_bytes_total(1 << 20)
        .materialize_bytes(1 << 16)
}

fn memory(data: &[u8]) -> Source {
    Source::memory(Arc::new(data.to_vec()))
}

/// The pickle machine: the disassembler accepts whatever it accepts, and every handle is valid.
fn pickle_machine(data: &[u8]) {
    let limits = limits();
    let Ok(found) = pickle::run(data.to_vec(), &limits) else { return };
    let mut disasm = Disasm::strict(data, 0, &limits);
    assert!(disasm.by_ref().all(|op| op.is_ok()), "the machine runs what the disassembler refuses");
    assert_eq!(disasm.position(), found.end, "machine and disassembler end at different offsets");
    let values = &found.values;
    assert!(values.len() <= 300 + 4 * data.len(), "{} values from {} bytes", values.len(), data.len());
    for handle in values.handles() {
        for child in children(values, handle) {
            assert!(child.index() < values.len());
        }
    }
    let _ = format!("{found:?}");
    let lenient = Disasm::lenient(data, 0, &limits).filter(Result::is_ok).count();
    let strict = Disasm::strict(data, 0, &limits).filter(Result::is_ok).count();
    assert!(lenient >= strict, "lenient mode yields fewer opcodes than strict mode");
}

fn children(values: &Values, handle: Handle) -> Vec<Handle> {
    let pairs = |pairs: &[(Handle, Handle)]| pairs.iter().flat_map(|&(key, value)| [key, value]).collect();
    match values.get(handle) {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.to_vec()
        }
        Value::Dict(entries) => pairs(entries),
        Value::PersistentId(id) => vec![id],
        Value::Call(id) => {
            let call = values.call(id);
            let mut out: Vec<Handle> = pairs(call.items);
            out.extend([call.callable, call.args]);
            out.extend(call.kwargs);
            out.extend(call.states.iter().map(|state| state.value));
            out.extend_from_slice(call.appended);
            out
        }
        _ => Vec::new(),
    }
}

/// The zip reader: members are inside the file and do not overlap, and a reader that ignores trailing bytes sees the same ones.
fn zip(data: &[u8]) {
    let limits = limits();
    let source = memory(data);
    let Ok(archive) = Archive::open(&source, &limits, Trailing::Error) else { return };
    let tolerant =
        Archive::open(&source, &limits, Trailing::Ignore).expect("opens without trailing bytes too");
    assert_eq!(archive.members().len(), tolerant.members().len());
    let mut regions = Vec::new();
    for (index, member) in archive.members().iter().enumerate() {
        assert_eq!(archive.find(member.name()), Some(index), "a name resolves to another member");
        if let Ok(region) = archive.payload(index) {
            assert!(region.end() <= source.len());
            regions.push((region.start(), region.end()));
        }
        if let Ok(bytes) = archive.read(index, "inflate_bytes", limits.inflate_bytes, &Cancel::new()) {
            assert_eq!(bytes.len() as u64, member.size());
            archive.verify(index, &Cancel::new()).expect("what was read can be verified");
        }
    }
    regions.retain(|(start, end)| start < end);
    regions.sort_unstable();
    assert!(regions.is_sorted_by(|one, two| one.1 <= two.0), "two members overlap");
}

/// The partitions of DeepSpeed's ranks: what is accepted is every element of every parameter once, where a reader that concatenates the
/// ranks finds it.
///
/// An input is the kind, the number of ranks and that of parameters, then numbers of two bytes, or of eight after two of 255: the elements
/// of each rank, the paddings of ranks, and for each parameter its elements and the padding that follows.
fn partitions(data: &[u8]) {
    let [kind, ranks, count, rest @ ..] = data else { return };
    let mut rest = rest;
    let mut next = || {
        let short = rest.split_first_chunk().map(|(two, tail)| (u64::from(u16::from_le_bytes(*two)), tail));
        let (number, tail) = match short {
            Some((0xffff, tail)) => {
                tail.split_first_chunk().map(|(eight, tail)| (u64::from_le_bytes(*eight), tail))?
            }
            found => found?,
        };
        rest = tail;
        Some(number)
    };
    let mut numbers = |count: usize| -> Vec<u64> { (0..count).map(|_| next().unwrap_or(0)).collect() };
    let (ranks, count) = (usize::from(ranks % 17), usize::from(count % 17));
    let (lens, paddings) = (numbers(ranks), numbers(ranks));
    let parameters: Vec<(u64, u64)> =
        numbers(2 * count).as_chunks().0.iter().map(|&[numel, after]| (numel, after)).collect();
    let numels: Vec<u64> = parameters.iter().map(|&(numel, _)| numel).collect();
    let padding = Padding { by_rank: (kind % 2 == 1).then_some(&paddings[..]), is_stored: kind % 8 >= 4 };
    let is_sharded = kind % 4 >= 2;
    let found: Vec<Vec<Run>> = match is_sharded {
        true => sharded_partitions(&numels, &lens).unwrap_or_default(),
        false => flat_partitions(&parameters, &lens, padding).map(|(runs, _)| runs).unwrap_or_default(),
    };
    if found.is_empty() {
        return;
    }
    assert_eq!(found.len(), count);
    let mut used = Vec::new();
    let mut offset = 0_u64;
    for (runs, (numel, after)) in found.iter().zip(parameters) {
        let mut at = offset;
        for run in runs {
            let end = run.start + run.len;
            assert!(run.len > 0 && end <= lens[run.rank], "a run reaches outside its rank");
            used.push((run.rank, run.start, end));
            if !is_sharded {
                assert_eq!(lens[..run.rank].iter().sum::<u64>() + run.start, at, "an element is elsewhere");
            }
            at += run.len;
        }
        assert_eq!(at - offset, numel, "the runs are not the parameter");
        assert!(runs.is_sorted_by(|one, two| one.rank < two.rank));
        offset += if is_sharded { 0 } else { numel + after };
        if is_sharded {
            let all_but_last = &runs[..runs.len().saturating_sub(1)];
            assert!(all_but_last.iter().all(|run| run.len == numel.div_ceil(lens.len() as u64)));
        }
    }
    used.sort_unstable();
    assert!(used.is_sorted_by(|one, two| one.0 < two.0 || one.2 <= two.1), "two parameters share elements");
}

/// The legacy stream: adds the magic number where the input does not start with it.
fn legacy(data: &[u8]) {
    const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
    match data.strip_prefix(MAGIC) {
        Some(_) => open(data),
        None => open(&[MAGIC, data].concat()),
    }
}

/// The safetensors header against the `safetensors` crate: the reference accepts whatever ours accepts, with the same result.
fn safetensors(data: &[u8]) {
    let source = memory(data);
    let Ok(header) = Header::read(&source, &limits(), false) else { return };
    let reference = ::safetensors::SafeTensors::read_metadata(data);
    let (length, metadata) = reference.expect("the reference accepts what we accept");
    let start = (length + 8) as u64;
    assert_eq!(header.data.start(), start);
    let theirs = metadata.tensors();
    assert_eq!(header.tensors.len(), theirs.len());
    for ours in &header.tensors {
        let info = theirs.get(&ours.name).expect("a name that both see");
        let region = (ours.region.start() - start, ours.region.end() - start);
        assert_eq!(region, (info.data_offsets.0 as u64, info.data_offsets.1 as u64));
        let mut shape: Vec<u64> = info.shape.iter().map(|&size| size as u64).collect();
        if info.dtype == ::safetensors::Dtype::F4 {
            // The reference counts elements, rustload pairs of elements.
            *shape.last_mut().expect("a dimension to halve") /= 2;
        }
        assert_eq!(ours.shape[..], shape[..]);
        assert_eq!(ours.dtype.itemsize() * 8, bits(info.dtype), "{}", ours.dtype);
    }
    let ours: BTreeMap<_, _> = header.metadata.into_iter().flatten().collect();
    let theirs: BTreeMap<_, _> = metadata.metadata().clone().unwrap_or_default().into_iter().collect();
    assert_eq!(ours, theirs);
}

fn bits(dtype: ::safetensors::Dtype) -> u64 {
    // rustload's element is two F4 elements.
    if dtype == ::safetensors::Dtype::F4 { 8 } else { dtype.bitsize() as u64 }
}

/// The most bytes that a stored byte means: a code of one bit is a number of four bytes.
const GROWTH: u64 = 32;

/// The weights of quantized tensors: no larger than their codes can mean, and the same elements read whole, in slices and permuted.
fn quantized(data: &[u8]) {
    let options = Options::new().limits(limits()).dequantize(true);
    let Ok(checkpoint) = Checkpoint::from_bytes(Arc::new(data.to_vec()), options) else { return };
    for name in checkpoint.names().take(64) {
        let tensor = checkpoint.tensor(name).expect("a name of the checkpoint");
        let fits = tensor.nbytes() <= GROWTH * data.len() as u64;
        assert!(fits, "{} bytes from {}", tensor.nbytes(), data.len());
        if tensor.nbytes() <= 1 << 16 {
            elements(&tensor);
            columns(&tensor);
        }
    }
}

/// Parts of the last dimension are those of the whole.
fn columns(tensor: &Tensor) {
    let Ok(whole) = read(tensor) else { return };
    let Some(width) = tensor.layout().shape.last().copied().filter(|&width| width > 0) else { return };
    let third = (width / 3).cast_signed();
    let range = |start, stop| [TensorIndex::Ellipsis, TensorIndex::Range { start, stop, step: None }];
    let item = whole.len().checked_div(usize::try_from(tensor.layout().numel()).expect("a small tensor"));
    let Some(item) = item else { return };
    let (width, third_len) = (usize::try_from(width).expect("few"), usize::try_from(third).expect("few"));
    for (start, stop, columns) in [
        (None, Some(third), 0..third_len),
        (Some(third), None, third_len..width),
        (Some(-1), None, width - 1..width),
    ] {
        let part = tensor.index(&range(start, stop)).expect("a valid slice");
        let wanted: Vec<u8> = whole
            .chunks(width * item)
            .flat_map(|row| &row[columns.start * item..columns.end * item])
            .copied()
            .collect();
        assert_eq!(read(&part).expect("a part"), wanted, "columns differ from those of the whole");
    }
}

/// The header of a NumPy array: it ends inside the file, whose start alone gives the same header, and a file of it opens only with as
/// many bytes as its array has.
fn npy(data: &[u8]) {
    let prefix = |len: u64| Ok(data[..data.len().min(usize::try_from(len).unwrap_or(usize::MAX))].to_vec());
    let found = npy::Header::read(prefix);
    let opened = Checkpoint::from_bytes(Arc::new(data.to_vec()), Options::new().limits(limits()));
    let Ok(header) = found else {
        assert!(opened.is_err() || !data.starts_with(npy::MAGIC), "opens with a header that is refused");
        return;
    };
    let len = usize::try_from(header.len).expect("a short header");
    let again = npy::Header::read(|wanted| prefix(wanted.min(header.len))).expect("the same header");
    assert_eq!(again, header);
    assert!(len <= data.len());
    let npy::Elements::Numbers { dtype, .. } = header.elements else {
        assert!(opened.is_err(), "an array of no numbers opens");
        return;
    };
    let fits = header.nbytes(dtype).is_ok_and(|nbytes| nbytes == (data.len() - len) as u64);
    match opened {
        Ok(checkpoint) => {
            assert!(fits);
            let tensor = checkpoint.tensor("arr_0").expect("the name of the only array");
            assert_eq!((tensor.dtype(), &tensor.layout().shape[..]), (dtype, &header.shape[..]));
            if tensor.nbytes() <= 1 << 16 {
                elements(&tensor);
            }
        }
        // Too many dimensions, or empty with strides beyond 63 bits.
        Err(error) => {
            assert!(
                !fits || matches!(error.code(), rustload::Code::Limit | rustload::Code::TensorShape),
                "{error}"
            );
        }
    }
}

/// A tar archive: members lie in the file, in order, and share no bytes; then what `open` checks of its checkpoint.
fn tar_archive(data: &[u8]) {
    let source = memory(data);
    if let Ok(archive) = tar::Archive::open(&source, &limits(), true, &Cancel::new()) {
        let mut end = 0;
        for member in archive.members() {
            assert!(
                member.region().start() >= end + tar::BLOCK_BYTES,
                "a member lies in another one's header"
            );
            end = member.region().end();
            assert!(end <= data.len() as u64, "a member is outside the file");
            assert_eq!(archive.find(member.name()).map(|found| found.region()), Some(member.region()));
        }
        assert!(archive.end() >= end, "the archive ends before a member");
    }
    open(data);
}

/// An exported program without tensors, to which the rest is added.
fn program(graph: &[u8]) -> writer::Archive {
    writer::Archive::bare()
        .with_path("m/data/constants/model_constants_config.json", NO_TENSORS)
        .with_path("m/models/model.json", graph)
        .with_path("m/archive_format", b"pt2")
        .with_path("m/.data/version", b"6\n")
}

/// The configuration of no tensors.
const NO_TENSORS: &[u8] = b"{\"config\": {}}";

/// The configuration of an exported program: names are unique, path names are plain, and an archive with it opens only if it is accepted.
fn exported(data: &[u8]) {
    let config = PayloadConfig::parse(data, &limits());
    let archive = program(b"{}")
        .with_path("m/data/weights/weight_0", &[1; 96])
        .with_path("m/data/weights/weight_1", b"")
        .with_path("m/data/weights/model_weights_config.json", data)
        .bytes();
    let opened = Checkpoint::from_bytes(Arc::new(archive.clone()), Options::new().limits(limits()));
    open(&archive);
    let Ok(config) = config else {
        assert!(opened.is_err(), "opens with a configuration that is refused");
        return;
    };
    let names: BTreeSet<&str> = config.payloads.iter().map(|payload| &*payload.name).collect();
    assert_eq!(names.len(), config.payloads.len(), "a name twice");
    for payload in &config.payloads {
        assert!(!payload.path_name.contains(['/', '\\']) && !payload.path_name.starts_with('.'));
    }
    let Ok(checkpoint) = opened else { return };
    assert!(config.payloads.iter().all(|payload| payload.use_pickle || checkpoint.contains(&payload.name)));
}

/// Opens a checkpoint and lists, slices and materializes its tensors.
fn open(data: &[u8]) {
    let options = |unknown| Options::new().limits(limits()).unknown(unknown);
    let bytes = Arc::new(data.to_vec());
    let strict = Checkpoint::from_bytes(bytes.clone(), options(Unknown::Error));
    let Ok(checkpoint) = Checkpoint::from_bytes(bytes, options(Unknown::Keep)) else {
        assert!(strict.is_err(), "unknown=error accepts what unknown=keep refuses");
        return;
    };
    if let Ok(strict) = strict {
        assert!(strict.names().eq(checkpoint.names()), "the names depend on unknown=");
    }
    let names: Vec<_> = checkpoint.names().cloned().collect();
    for group in checkpoint.tied() {
        assert!(group.iter().all(|name| checkpoint.contains(name)));
    }
    let _ = (checkpoint.globals(), checkpoint.opaque(), checkpoint.metadata(), checkpoint.notes());
    for (position, name) in names.iter().enumerate().take(64) {
        let tensor = checkpoint.tensor(name).expect("a name of the checkpoint");
        assert_eq!(checkpoint.tensor_at(position).expect("a position").name(), &**name);
        if tensor.nbytes() <= 1 << 16 {
            elements(&tensor);
        }
    }
}

/// The graph of an exported program: what the schema accepts is an object for another reader of JSON, without names of Python's own, and is
/// accepted as that one writes it.
fn graph(data: &[u8]) {
    let accepts = |graph: &[u8]| {
        let report = reported(
            &program(graph).with_path("m/data/weights/model_weights_config.json", NO_TENSORS).bytes(),
        );
        (report.is_complete(), report.verdict())
    };
    let (is_complete, verdict) = accepts(data);
    if !is_complete {
        return;
    }
    let found: serde_json::Value =
        serde_json::from_slice(data).expect("the reference accepts what we accept");
    assert!(found.is_object(), "a graph that is not an object");
    assert!(!has_own_name(&found), "a key is a name of Python's own");
    let (is_complete, again) = accepts(found.to_string().as_bytes());
    // Of equal keys, the other reader keeps one.
    assert!(is_complete && again <= verdict, "the same graph, written by another writer, is {again:?}");
}

/// Whether any key in a JSON value has two underscores in a row.
fn has_own_name(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Array(items) => items.iter().any(has_own_name),
        serde_json::Value::Object(fields) => {
            fields.iter().any(|(key, value)| key.contains("__") || has_own_name(value))
        }
        _ => false,
    }
}

/// The YAML of a `.nemo`: it is not inert where the bytes have the key that hydra calls or are not text, and a comment before it changes
/// nothing.
fn yaml(data: &[u8]) {
    let judged = |text: &[u8]| {
        let report = reported(&tar_of("model_config.yaml", text));
        (report.is_complete(), report.verdict())
    };
    let found = judged(data);
    if found == (true, Verdict::Inert) {
        let text = std::str::from_utf8(data).expect("a text");
        assert!(!text.contains("_target_"), "the key that hydra calls is not seen");
        // A byte order mark is one only at the start.
        if !text.starts_with('\u{feff}') {
            let commented = ["# a comment\n", text].concat();
            assert_eq!(judged(commented.as_bytes()), found, "a comment changes what is read");
        }
    }
}

/// A tar archive of one member.
fn tar_of(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644");
    put(124, &format!("{:011o}", content.len()));
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let padding = content.len().next_multiple_of(512) - content.len() + 1024;
    [&header[..], content, &vec![0; padding]].concat()
}

/// The report on some bytes, which is consistent in itself.
fn reported(data: &[u8]) -> scan::Report {
    let options = scan::Options::new().limits(limits().scan_bytes(1 << 20));
    let report = scan::scan_bytes(Arc::new(data.to_vec()), &options).expect("bytes can be read");
    let _ = report.to_json();
    let file = report.files.first().expect("a report of the one file");
    let findings = file.findings.iter().map(|found| found.verdict);
    for found in findings.chain(file.trace.iter().map(|step| step.verdict)) {
        assert!(found <= report.verdict(), "a finding is worse than the verdict");
    }
    assert!(report.is_complete() || report.verdict() != Verdict::Inert, "inert, but the scan is incomplete");
    report
}

/// The scanner: its report is consistent, and agrees with the loader about the globals of a file and about unknown calls.
fn scan(data: &[u8]) {
    let report = reported(data);
    let (bytes, verdict) = (Arc::new(data.to_vec()), report.verdict());
    let file = report.files.first().expect("a report of the one file");
    let open = |unknown| Options::new().limits(limits()).unknown(unknown);
    // Opening a program reads neither its graph nor its sample inputs, which the scan judges too.
    let reads_all = |checkpoint: &Checkpoint| checkpoint.format() != Format::TorchExport;
    if Checkpoint::from_bytes(bytes.clone(), open(Unknown::Error)).is_ok_and(|found| reads_all(&found)) {
        assert_ne!(verdict, Verdict::WouldExecute, "unknown=error accepts what would execute");
    }
    let Ok(checkpoint) = Checkpoint::from_bytes(bytes, open(Unknown::Keep)) else { return };
    let Ok(named) = checkpoint.globals() else { return };
    let seen = file.globals.iter().map(|named| format!("{}.{}", named.global.0, named.global.1));
    let seen: BTreeSet<String> = seen.collect();
    for name in named {
        assert!(file.truncated || seen.contains(&name), "the scan does not see {name}, which loading sees");
    }
}

/// A tensor has the same elements read whole, in slices, reversed twice and permuted.
fn elements(tensor: &Tensor) {
    let Ok(whole) = read(tensor) else { return };
    let shape = tensor.layout().shape.to_vec();
    let Some(&rows) = shape.first() else { return };
    let half = (rows / 2).cast_signed();
    let part =
        |start, stop| tensor.index(&[TensorIndex::Range { start, stop, step: None }]).expect("a valid slice");
    let parts = [part(None, Some(half)), part(Some(half), None)].map(|part| read(&part).expect("a part"));
    assert_eq!(parts.concat(), whole, "the slices differ from the whole");
    let twice = read(&tensor.reversed().reversed()).expect("the same tensor");
    assert_eq!(twice, whole, "reversing twice changes it");
    let reversed = read(&tensor.reversed()).expect("a transposed tensor");
    let all: Vec<i64> = (0..shape.len()).rev().map(|dim| i64::try_from(dim).expect("few")).collect();
    let request = Request::new().order(Order::Permute(all));
    let mut permuted = vec![0; whole.len()];
    tensor.materialize_into(&request, &mut permuted).expect("a permuted tensor");
    assert_eq!(permuted, reversed, "a permuted request differs from a reversed tensor");
    let cast = Request::new().dtype(DType::F64).allow_lossy(true);
    let _ = tensor.materialize(&cast);
}

fn read(tensor: &Tensor) -> Result<Vec<u8>, rustload::Error> {
    let mut out = vec![0; usize::try_from(tensor.nbytes()).expect("a small tensor")];
    tensor.materialize_into(&Request::default(), &mut out)?;
    Ok(out)
}

/// The most files of an input of [`distributed`].
pub(crate) const FILES_MAX: usize = 4;

/// The files in an input: each a length of four bytes, little-endian, and that many bytes. The last one may be shorter.
pub(crate) fn files(mut data: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let (Some((len, rest)), true) = (data.split_first_chunk(), found.len() < FILES_MAX) {
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX).min(rest.len());
        let (file, others) = rest.split_at(len);
        found.push(file);
        data = others;
    }
    found
}

/// Opens a distributed checkpoint, or the files of single processes, and slices and materializes its tensors. If the first file is a
/// pickle, it is the metadata of a folder, and the others are its files `__0_0.distcp`, `__1_0.distcp` and so on.
fn distributed(data: &[u8]) {
    let files = files(data);
    let folder = Folder::new();
    let is_folder = files.first().is_some_and(|first| first.starts_with(&[0x80]));
    let name = |at: usize| match at {
        0 if is_folder => ".metadata".to_owned(),
        _ if is_folder => format!("__{}_0.distcp", at - 1),
        _ => format!("rank{at}"),
    };
    let paths: Vec<_> = (0..files.len()).map(|at| folder.0.join(name(at))).collect();
    for (path, file) in paths.iter().zip(&files) {
        std::fs::write(path, file).expect("a file in the temporary folder");
    }
    let options = Options::new().limits(limits());
    let opened = match is_folder {
        true => Checkpoint::open_with(&paths[0], options),
        false => Checkpoint::open_all(&paths, options),
    };
    let Ok(checkpoint) = opened else { return };
    for name in checkpoint.names().take(64) {
        let tensor = checkpoint.tensor(name).expect("a name of the checkpoint");
        if tensor.nbytes() <= 1 << 16 {
            elements(&tensor);
            let _ = tensor.materialize(&Request::new().dequantize(true));
        }
    }
    for value in 0..checkpoint.value_names().len().min(64) {
        let _ = checkpoint.open_value(value);
    }
}

/// A temporary folder, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rustload-fuzz-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
