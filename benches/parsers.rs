//! Time to open files of 20,000 tensors from memory, and time of each parser.
//!
//! The target is 250 MB/s for executing a pickle. Run `cargo bench --features internals --bench parsers [SUBSTRING OF A NAME]`.
//! `make counts` counts the instructions, which do not depend on the load of the machine.

#[path = "../tests/rust/support/mod.rs"]
#[expect(dead_code, reason = "a benchmark uses only some of the test builders")]
mod support;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput};
use rustload::DType::{BF16, F32};
use rustload::internals::bytes::Source;
use rustload::internals::container::safetensors::Header;
use rustload::internals::container::zip::{Archive, Trailing};
use rustload::internals::pickle::{Disasm, run};
use rustload::scan;
use rustload::{Checkpoint, Limits, Options, Request};
use support::pickle::{Pickle, Tensor, torch_state_dict};
use support::{st, zip};

const TENSORS: usize = 20_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let names: Vec<String> =
        (0..TENSORS).map(|at| format!("model.layers.{}.weight.{}", at / 10, at % 10)).collect();
    let entries: Vec<(&str, Tensor)> = (names.iter().enumerate())
        .map(|(at, name)| (name.as_str(), Tensor::whole(F32, &[4, 4], &at.to_string())))
        .collect();
    let pickle = torch_state_dict(&entries);
    bench_parsers(&mut criterion, &pickle);
    let safetensors =
        names.iter().fold(st::File::new(), |file, name| file.tensor(name, "F32", &[4, 4], &[0; 64]));
    let files = [
        (".bin", archive(pickle)),
        (".bin of an optimizer", archive(optimizer())),
        (".safetensors", Arc::new(safetensors.bytes())),
    ];
    bench_files(&mut criterion, &files);
    criterion.final_summary();
}

/// The pickle of Adam's state: a dict from parameter number to a step and two tensors.
fn optimizer() -> Vec<u8> {
    let mut pickle = Pickle::memoizing();
    pickle.dict_of(|pickle| {
        pickle.text("state").dict_of(|pickle| {
            for at in 0..TENSORS / 3 {
                pickle.int(at as i64).dict_of(|pickle| {
                    for (part, name) in ["step", "exp_avg", "exp_avg_sq"].iter().enumerate() {
                        let key = (at * 3 + part).to_string();
                        pickle.text(name).tensor(&Tensor::whole(F32, &[4, 4], &key));
                    }
                });
            }
        });
        pickle.text("param_groups").list();
    });
    pickle.stop()
}

fn archive(pickle: Vec<u8>) -> Arc<Vec<u8>> {
    let empty = zip::Archive::new(pickle).descriptors();
    let full = (0..TENSORS).fold(empty, |archive, key| archive.storage(&key.to_string(), &[0; 64]));
    Arc::new(full.bytes())
}

fn bench_parsers(criterion: &mut Criterion, data: &[u8]) {
    let limits = Limits::default();
    let mut group = criterion.benchmark_group("pickle");
    group.throughput(Throughput::Bytes(data.len() as u64));
    group.bench_function("run", |bench| {
        let load = |data| run(data, &limits).expect("a valid pickle");
        bench.iter_batched(|| data.to_vec(), load, BatchSize::LargeInput);
    });
    group.bench_function("entries", |bench| {
        let pickle = run(data.to_vec(), &limits).expect("a valid pickle");
        bench.iter(|| pickle.values.entries(black_box(pickle.root)).expect("a dict"));
    });
    group.bench_function("disassemble", |bench| {
        bench.iter(|| Disasm::lenient(black_box(data), 0, &limits).filter(Result::is_ok).count());
    });
    group.finish();
}

fn bench_files(criterion: &mut Criterion, files: &[(&str, Arc<Vec<u8>>)]) {
    let limits = Limits::default();
    let mut group = criterion.benchmark_group("files");
    group.throughput(Throughput::Elements(TENSORS as u64));
    for (name, data) in files {
        let source = Source::memory(data.clone());
        if name.starts_with(".bin") {
            group.bench_function(format!("{name}: directory"), |bench| {
                bench.iter(|| Archive::open(black_box(&source), &limits, Trailing::Error).expect("a zip"));
            });
            group.bench_function(format!("{name}: scan"), |bench| {
                let scan = || scan::scan_bytes(black_box(data.clone()), &scan::Options::default());
                bench.iter(|| scan().expect("a report"));
            });
        } else {
            group.bench_function(format!("{name}: header"), |bench| {
                bench.iter(|| Header::read(black_box(&source), &limits, false).expect("a header"));
            });
        }
        let open =
            || Checkpoint::from_bytes(black_box(data.clone()), Options::default()).expect("a checkpoint");
        group.bench_function(format!("{name}: open"), |bench| bench.iter(open));
        let checkpoint = open();
        let owned = Request::new().copy(true);
        let cast = Request::new().dtype(BF16);
        for (what, request) in [("read", owned), ("view", Request::default()), ("read as bfloat16", cast)] {
            group.bench_function(format!("{name}: {what} each tensor"), |bench| {
                bench.iter(|| {
                    for at in 0..checkpoint.len() {
                        let tensor = checkpoint.tensor_at(at).expect("a tensor");
                        drop(black_box(tensor.materialize(&request).expect("an array")));
                    }
                });
            });
        }
    }
    group.finish();
}
