//! A fixed job for each parser and kernel. `make counts` counts their instructions, which do not depend on the machine's load.
//!
//! Without arguments it lists the jobs, each with its number of units and the name of a unit. `JOB TIMES` prepares a job and runs
//! it TIMES times; the difference between two runs and one is the job without its preparation.

#[expect(dead_code, reason = "a benchmark uses only some of the test builders")]
mod support;

use std::hint::black_box;
use std::sync::Arc;

use rustload::DType::{self, BF16, Bool, F8E4M3Fn, F16, F32, F64, I32};
use rustload::internals::bytes::Source;
use rustload::internals::container::safetensors::Header;
use rustload::internals::container::zip::{Archive as Zip, Trailing};
use rustload::internals::kernel::{Axis, Cast, Level, Overflow, convert, gather, swap_bytes_with_level};
use rustload::internals::pickle::{Disasm, run};
use rustload::scan;
use rustload::{Checkpoint, Limits, Options, Request};
use support::pickle::{Tensor, torch_state_dict};
use support::{st, zip};

const TENSORS: usize = 2000;
const ELEMENTS: usize = 64 << 10;
const SIDE: usize = 512;

const CASTS: [(DType, DType); 14] = [
    (F32, F32),
    (F32, BF16),
    (F32, F16),
    (BF16, F32),
    (F16, F32),
    (F64, F32),
    (F32, F64),
    (F16, BF16),
    (F32, F8E4M3Fn),
    (F8E4M3Fn, F32),
    (F8E4M3Fn, BF16),
    (Bool, F32),
    (I32, F32),
    (F32, I32),
];
const TRANSPOSES: [(DType, DType); 5] =
    [(F8E4M3Fn, F8E4M3Fn), (BF16, BF16), (F32, BF16), (F32, F32), (F64, F64)];

struct Job {
    name: String,
    units: usize,
    unit: &'static str,
    prepare: Box<dyn Fn() -> Box<dyn FnMut()>>,
}

fn main() {
    // Cargo passes its own options too.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let Some(name) = arguments.next() else {
        for job in jobs() {
            println!("{}\t{}\t{}", job.name, job.units, job.unit);
        }
        return;
    };
    let times: usize = arguments.next().and_then(|times| times.parse().ok()).expect("TIMES is a number");
    let job = jobs().into_iter().find(|job| job.name == name).expect("a job of that name");
    let mut work = (job.prepare)();
    for _ in 0..times {
        work();
    }
}

fn jobs() -> Vec<Job> {
    let mut jobs = parsers();
    for level in Level::available() {
        jobs.extend(CASTS.map(|(from, to)| cast(level, from, to)));
        jobs.extend(TRANSPOSES.map(|(from, to)| transpose(level, from, to)));
        jobs.push(element(format!("swap 4 bytes, {level}"), ELEMENTS, move || {
            let mut data = elements(F32, ELEMENTS);
            Box::new(move || swap_bytes_with_level(level, 4, black_box(&mut data)))
        }));
    }
    jobs
}

fn parsers() -> Vec<Job> {
    vec![
        tensor("pickle: run", || {
            let data = pickle();
            Box::new(move || drop(run(black_box(data.clone()), &Limits::default()).expect("a pickle")))
        }),
        tensor("pickle: disassemble", || {
            let data = pickle();
            Box::new(move || {
                let opcodes = Disasm::lenient(black_box(&data), 0, &Limits::default());
                assert!(opcodes.filter(Result::is_ok).count() > TENSORS);
            })
        }),
        tensor("zip: open", || {
            let source = Source::memory(Arc::new(archive()));
            Box::new(move || {
                drop(Zip::open(black_box(&source), &Limits::default(), Trailing::Error).expect("a zip"));
            })
        }),
        tensor("safetensors: read the header", || {
            let source = Source::memory(Arc::new(safetensors()));
            Box::new(move || {
                drop(Header::read(black_box(&source), &Limits::default(), false).expect("a header"));
            })
        }),
        tensor("open .bin", || opening(archive())),
        tensor("open .safetensors", || opening(safetensors())),
        tensor("scan .bin", || {
            let data = Arc::new(archive());
            Box::new(move || {
                let report = scan::scan_bytes(black_box(data.clone()), &scan::Options::default());
                drop(report.expect("a report"));
            })
        }),
        tensor("read each tensor of a .bin", || reading(archive())),
        tensor("read each tensor of a .safetensors", || reading(safetensors())),
    ]
}

fn opening(file: Vec<u8>) -> Box<dyn FnMut()> {
    let data = Arc::new(file);
    Box::new(move || {
        let checkpoint = Checkpoint::from_bytes(black_box(data.clone()), Options::default());
        assert_eq!(checkpoint.expect("a checkpoint").len(), TENSORS);
    })
}

fn reading(file: Vec<u8>) -> Box<dyn FnMut()> {
    let checkpoint = support::opened(file);
    let request = Request::new().copy(true);
    Box::new(move || {
        for at in 0..checkpoint.len() {
            let tensor = checkpoint.tensor_at(at).expect("a tensor");
            drop(black_box(tensor.materialize(&request).expect("an array")));
        }
    })
}

fn cast(level: Level, from: DType, to: DType) -> Job {
    element(format!("cast {from} to {to}, {level}"), ELEMENTS, move || {
        let src = elements(from, ELEMENTS);
        let mut dst = vec![1; ELEMENTS * size(to)];
        let cast = Cast::with_level(level, from, to, Overflow::Nan).expect("a cast");
        Box::new(move || convert(cast, black_box(&src), black_box(&mut dst)).expect("a row"))
    })
}

fn transpose(level: Level, from: DType, to: DType) -> Job {
    element(format!("transpose {from} to {to}, {level}"), SIDE * SIDE, move || {
        let src = elements(from, SIDE * SIDE);
        let mut dst = vec![1; SIDE * SIDE * size(to)];
        let cast = Cast::with_level(level, from, to, Overflow::Nan).expect("a cast");
        let axes = [
            Axis { size: SIDE, src_stride: 1, dst_stride: SIDE },
            Axis { size: SIDE, src_stride: SIDE, dst_stride: 1 },
        ];
        Box::new(move || gather(cast, black_box(&src), black_box(&mut dst), &axes).expect("a matrix"))
    })
}

fn tensor(name: &str, prepare: impl Fn() -> Box<dyn FnMut()> + 'static) -> Job {
    Job { name: name.to_owned(), units: TENSORS, unit: "tensor", prepare: Box::new(prepare) }
}

fn element(name: String, units: usize, prepare: impl Fn() -> Box<dyn FnMut()> + 'static) -> Job {
    Job { name, units, unit: "element", prepare: Box::new(prepare) }
}

fn size(dtype: DType) -> usize {
    usize::try_from(dtype.itemsize()).expect("a small number")
}

/// Small whole numbers in any dtype.
fn elements(dtype: DType, count: usize) -> Vec<u8> {
    let floats: Vec<u8> = (0..count).flat_map(|at| ((at % 32) as f32).to_le_bytes()).collect();
    let mut out = vec![0; count * size(dtype)];
    convert(Cast::new(F32, dtype, Overflow::Saturate).expect("a cast"), &floats, &mut out).expect("a row");
    out
}

fn name(at: usize) -> String {
    let parts =
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "input_layernorm"];
    format!("model.layers.{}.{}.weight", at / parts.len(), parts[at % parts.len()])
}

fn pickle() -> Vec<u8> {
    let names: Vec<String> = (0..TENSORS).map(name).collect();
    let entries: Vec<(&str, Tensor)> = (names.iter().enumerate())
        .map(|(at, name)| (name.as_str(), Tensor::whole(F32, &[4, 4], &at.to_string())))
        .collect();
    torch_state_dict(&entries)
}

fn archive() -> Vec<u8> {
    let empty = zip::Archive::new(pickle()).descriptors();
    (0..TENSORS).fold(empty, |archive, key| archive.storage(&key.to_string(), &[0; 64])).bytes()
}

fn safetensors() -> Vec<u8> {
    (0..TENSORS).fold(st::File::new(), |file, at| file.tensor(&name(at), "F32", &[4, 4], &[0; 64])).bytes()
}
