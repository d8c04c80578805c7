//! Reading the pickle of a state dict of 20,000 tensors, as torch writes it; and disassembling it alone.
//!
//! The limit to chase: 250 MB/s of pickle for reading. Run with `cargo bench --bench pickle`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput};
use rustload::limits::Limits;
use rustload::pickle::{Disasm, run};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let (data, limits) = (state_dict(20_000), Limits::default());
    let mut group = criterion.benchmark_group("pickle");
    group.throughput(Throughput::Bytes(data.len() as u64));
    group.bench_function("run", |bench| {
        let load = |data| run(data, 0, &limits).expect("a valid pickle");
        bench.iter_batched(|| data.clone(), load, BatchSize::LargeInput);
    });
    group.bench_function("entries", |bench| {
        let pickle = run(data.clone(), 0, &limits).expect("a valid pickle");
        bench.iter(|| pickle.values.entries(black_box(pickle.root)).expect("a dict"));
    });
    group.bench_function("disasm", |bench| {
        bench.iter(|| Disasm::lenient(black_box(&data), 0, &limits).filter(Result::is_ok).count());
    });
    group.finish();
    criterion.final_summary();
}

/// What `torch.save(OrderedDict(...))` puts into `data.pkl`, protocol 2.
fn state_dict(tensors: u32) -> Vec<u8> {
    let mut writer = Writer { data: b"\x80\x02ccollections\nOrderedDict\n".to_vec(), memo: 0 };
    writer.put();
    writer.data.extend(b")R");
    writer.put();
    for tensor in 0..tensors {
        if tensor % 1000 == 0 {
            writer.data.extend(if tensor == 0 { &b"("[..] } else { b"u(" });
        }
        writer.tensor(tensor);
    }
    writer.data.extend(b"u.");
    writer.data
}

struct Writer {
    data: Vec<u8>,
    memo: u32,
}

/// The memo numbers of what the first tensor writes and the others fetch.
const SHARED: [u8; 5] = [3, 4, 5, 7, 0];

impl Writer {
    fn put(&mut self) {
        match u8::try_from(self.memo) {
            Ok(number) => self.data.extend([b'q', number]),
            Err(_) => self.data.extend([&b"r"[..], &self.memo.to_le_bytes()].concat()),
        }
        self.memo += 1;
    }

    fn text(&mut self, text: &str) {
        let len = u32::try_from(text.len()).expect("a short name");
        self.data.extend([&b"X"[..], &len.to_le_bytes(), text.as_bytes()].concat());
        self.put();
    }

    fn first_or_get(&mut self, first: bool, slot: usize, write: impl FnOnce(&mut Writer)) {
        if first { write(self) } else { self.data.extend([b'h', SHARED[slot]]) }
    }

    fn tensor(&mut self, number: u32) {
        let first = number == 0;
        self.text(&format!("model.layers.{}.weight.{}", number / 10, number % 10));
        self.first_or_get(first, 0, |writer| {
            writer.data.extend(b"ctorch._utils\n_rebuild_tensor_v2\n");
            writer.put();
        });
        self.data.extend(b"((");
        self.first_or_get(first, 1, |writer| writer.text("storage"));
        self.first_or_get(first, 2, |writer| {
            writer.data.extend(b"ctorch\nFloatStorage\n");
            writer.put();
        });
        self.text(&number.to_string());
        self.first_or_get(first, 3, |writer| writer.text("cpu"));
        self.data.extend(b"J\0\0\x01\0t");
        self.put();
        self.data.extend(b"QK\0M\0\x01M\0\x01\x86");
        self.put();
        self.data.extend(b"M\0\x01K\x01\x86");
        self.put();
        self.data.extend([b'\x89', b'h', SHARED[4], b')', b'R']);
        self.put();
        self.data.push(b't');
        self.put();
        self.data.push(b'R');
        self.put();
    }
}
