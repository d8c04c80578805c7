//! The kernels alone, on warm memory, at each level of the machine. Limit chased: a memcpy of the same bytes, the first rows.
//!
//! A row's levels run one after the other, so that what else the machine does falls on all of them. Throughput counts bytes read plus bytes written. `GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cargo bench --bench kernel`
//! (with huge pages, as rustload's own destinations have).

#![expect(clippy::unwrap_used, reason = "a bench that cannot run should stop")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rustload::dtype::DType::{self, BF16, Bool, F8E4M3Fn, F8E5M2, F16, F32, F64, I32, I64, U8};
use rustload::kernel::{Axis, Cast, Level, Overflow, convert, gather, swap_bytes_at};

/// Elements of a contiguous cast: far more than the second-level cache holds.
const COUNT: usize = 16 << 20;

fn size(dtype: DType) -> usize {
    usize::try_from(dtype.itemsize()).unwrap()
}

/// Floats of moderate size in any dtype, with all bits in use.
fn elements(dtype: DType, count: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let floats: Vec<u8> = (0..count)
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / 1e6 - 8.0).to_le_bytes()
        })
        .collect();
    let mut out = vec![0; count * size(dtype)];
    convert(Cast::new(F32, dtype, Overflow::Saturate).unwrap(), &floats, &mut out).unwrap();
    out
}

fn casts(c: &mut Criterion) {
    let mut group = c.benchmark_group("cast");
    let pairs = [
        (F32, F32),
        (F32, BF16),
        (F32, F16),
        (BF16, F32),
        (F16, F32),
        (F64, F32),
        (F16, BF16),
        (F8E4M3Fn, BF16),
        (BF16, F16),
        (F8E4M3Fn, F32),
        (F8E5M2, BF16),
        (F32, F8E4M3Fn),
        (F32, F8E5M2),
        (BF16, F8E4M3Fn),
        (F32, F64),
        (Bool, Bool),
        (Bool, F32),
        (U8, F32),
        (I32, F32),
        (I64, F32),
        (F32, I64),
    ];
    for (from, to) in pairs {
        let src = elements(from, COUNT);
        let mut dst = vec![1; COUNT * size(to)];
        group.throughput(Throughput::Bytes((src.len() + dst.len()) as u64));
        for level in Level::available() {
            let cast = Cast::at(level, from, to, Overflow::Nan).unwrap();
            group.bench_function(format!("{from}-{to}/{level}"), |b| {
                b.iter(|| convert(cast, black_box(&src), black_box(&mut dst)).unwrap());
            });
        }
    }
    group.finish();
}

/// In place, so every byte is read and written.
fn swaps(c: &mut Criterion) {
    let mut group = c.benchmark_group("swap");
    let mut data = elements(F32, COUNT);
    group.throughput(Throughput::Bytes(2 * data.len() as u64));
    for unit in [2, 4, 8] {
        for level in Level::available() {
            group.bench_function(format!("{unit}/{level}"), |b| {
                b.iter(|| swap_bytes_at(level, unit, black_box(&mut data)));
            });
        }
    }
    group.finish();
}

fn transposes(c: &mut Criterion) {
    let mut group = c.benchmark_group("transpose");
    let cases = [
        (F32, F32, 2048, 2048),
        (F32, BF16, 2048, 2048),
        (BF16, BF16, 2048, 2048),
        (F8E4M3Fn, F8E4M3Fn, 2048, 2048),
        (F64, F64, 2048, 2048),
        (F32, F32, 8192, 8192),
        (F32, BF16, 8192, 8192),
        (BF16, BF16, 8192, 8192),
        (F32, F32, 8224, 4128),
        (F32, BF16, 8224, 4128),
        (BF16, BF16, 8224, 4128),
    ];
    for (from, to, rows, columns) in cases {
        let src = elements(from, rows * columns);
        let mut dst = vec![1; rows * columns * size(to)];
        let axes = [
            Axis { size: columns, src_stride: 1, dst_stride: rows },
            Axis { size: rows, src_stride: columns, dst_stride: 1 },
        ];
        group.throughput(Throughput::Bytes((src.len() + dst.len()) as u64));
        for level in Level::available() {
            let cast = Cast::at(level, from, to, Overflow::Nan).unwrap();
            group.bench_function(format!("{from}-{to}/{rows}x{columns}/{level}"), |b| {
                b.iter(|| gather(cast, black_box(&src), black_box(&mut dst), &axes).unwrap());
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
    targets = casts, swaps, transposes
}
criterion_main!(benches);
