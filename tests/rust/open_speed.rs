//! How long it takes to open a .bin of 20,000 small tensors and to read them all, warm: `cargo bench --bench open_speed [count]`.
//!
//! The limit chased is one pass over the zip directory and one over the pickle; both are timed alone beside the whole.

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustload::bytes::Source;
use rustload::container::zip::{Archive as Zip, Trailing};
use rustload::limits::Limits;
use rustload::{Checkpoint, DType, Options, Request};
use support::pickle::{Pickle, Tensor, torch_state_dict};
use support::zip::Archive;

fn main() {
    let count = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(20_000_usize);
    let parts =
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "input_layernorm"];
    let names: Vec<String> = (0..count)
        .map(|n| format!("model.layers.{}.{}.weight", n / parts.len(), parts[n % parts.len()]))
        .collect();
    let entries: Vec<(&str, Tensor)> = (names.iter().enumerate())
        .map(|(at, name)| (name.as_str(), Tensor::whole(DType::F32, &[4, 4], &at.to_string())))
        .collect();
    time("state dict", torch_state_dict(&entries), count);
    time("optimizer", optimizer(count / 3), count / 3 * 3);
}

/// Adam's state: a dict by parameter number, with a step and two tensors each.
fn optimizer(count: usize) -> Vec<u8> {
    let mut p = Pickle::memoizing();
    p.dict_of(|p| {
        p.text("state").dict_of(|p| {
            for at in 0..count {
                p.int(at as i64).dict_of(|p| {
                    for (part, name) in ["step", "exp_avg", "exp_avg_sq"].iter().enumerate() {
                        let key = (at * 3 + part).to_string();
                        p.text(name).tensor(&Tensor::whole(DType::F32, &[4, 4], &key));
                    }
                });
            }
        });
        p.text("param_groups").list();
    });
    p.stop()
}

fn time(title: &str, pickle: Vec<u8>, storages: usize) {
    let archive = Archive::new(pickle.clone()).descriptors();
    let archive = (0..storages).fold(archive, |archive, key| archive.storage(&key.to_string(), &[0; 64]));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let bytes = archive.bytes();
    std::fs::write(file.path(), &bytes).expect("a written file");
    let paths: Vec<PathBuf> = vec![file.path().to_owned()];
    let source = Source::memory(Arc::new(bytes));
    let limits = Limits::default();
    println!("{title}: {storages} tensors, pickle of {} KiB", pickle.len() >> 10);
    report("open", || drop(Checkpoint::open(&paths, Options::default()).expect("a checkpoint")));
    let checkpoint = Checkpoint::open(&paths, Options::default()).expect("a checkpoint");
    let owned = Request { copy: Some(true), ..Request::default() };
    let cast = Request { dtype: Some(DType::BF16), ..Request::default() };
    for (what, request) in [("read", &owned), ("view", &Request::default()), ("read as bf16", &cast)] {
        let best = report(what, || {
            for at in 0..checkpoint.len() {
                let tensor = checkpoint.tensor_at(at).expect("a tensor");
                drop(tensor.materialize(request).expect("an array"));
            }
        });
        println!("{:>18}  {:8.0} ns a tensor", "", best.as_secs_f64() * 1e9 / checkpoint.len() as f64);
    }
    report("  zip directory", || drop(Zip::open(&source, &limits, Trailing::Error).expect("an archive")));
    report("  pickle", || drop(rustload::pickle::run(pickle.clone(), 0, &limits).expect("a pickle")));
    report("  checksum", || {
        std::hint::black_box(crc32fast::hash(&pickle));
    });
}

fn report(what: &str, job: impl Fn()) -> Duration {
    let best = (0..20).map(|_| timed(&job)).min().unwrap_or_default();
    println!("{what:>18}: {:8.2} ms", best.as_secs_f64() * 1e3);
    best
}

fn timed(job: &impl Fn()) -> Duration {
    let start = Instant::now();
    job();
    start.elapsed()
}
