//! Throughput of the kernels on resident memory, at each SIMD level of the CPU. The limit is a memcpy of the same bytes, which is
//! the first row.
//!
//! The rounds of a row's levels are interleaved, so that other load on the machine affects all of them. The result is the fastest
//! round, because on a shared machine the mean measures the other load. Throughput is bytes read plus bytes written.
//! `GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cargo bench --features internals --bench kernel [SUBSTRING OF A NAME]` (with huge pages, as
//! rustload's own destinations have).

#![expect(clippy::unwrap_used, reason = "a bench that cannot run should stop")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustload::DType::{self, BF16, Bool, F8E4M3Fn, F8E5M2, F16, F32, F64, I32, I64, U8};
use rustload::internals::kernel::{Axis, Cast, Level, Overflow, convert, gather, swap_bytes_with_level};

/// Element counts of contiguous casts: far larger than the L2 cache, and small enough that source and destination fit it.
const COUNTS: [(usize, &str); 2] = [(16 << 20, "in memory"), (32 << 10, "in cache")];
/// Casts per measured round of the small count.
const REPEATS: usize = 32;

/// The minimal duration of a row's measurement.
const ROW_DURATION_MIN: Duration = Duration::from_millis(1000);
/// The minimal number of measured rounds of a row.
const ROUNDS_MIN: usize = 5;

const CASTS: [(DType, DType); 22] = [
    (F32, F32),
    (F32, BF16),
    (F32, F16),
    (BF16, F32),
    (F16, F32),
    (F64, F32),
    (F32, F64),
    (F16, BF16),
    (BF16, F16),
    (F32, F8E4M3Fn),
    (F32, F8E5M2),
    (BF16, F8E4M3Fn),
    (F8E4M3Fn, F32),
    (F8E4M3Fn, BF16),
    (F8E5M2, F32),
    (F8E5M2, BF16),
    (Bool, Bool),
    (Bool, F32),
    (U8, F32),
    (I32, F32),
    (I64, F32),
    (F32, I64),
];

const TRANSPOSES: [(DType, DType, usize, usize); 14] = [
    (F8E4M3Fn, F8E4M3Fn, 2048, 2048),
    (BF16, BF16, 2048, 2048),
    (F32, BF16, 2048, 2048),
    (F32, F32, 2048, 2048),
    (F64, F64, 2048, 2048),
    (F8E4M3Fn, F8E4M3Fn, 8192, 8192),
    (BF16, BF16, 8192, 8192),
    (F32, BF16, 8192, 8192),
    (F32, F32, 8192, 8192),
    (BF16, BF16, 8224, 4128),
    (F32, BF16, 8224, 4128),
    (F32, F32, 8224, 4128),
    // The panels that `stream` reads a file's rows into.
    (F32, BF16, 32, 8192),
    (F32, F32, 32, 8192),
];

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

/// Bytes of a cache line.
const CACHE_LINE_BYTES: usize = 64;

/// The bytes from the first cache line boundary on, one cache line fewer: aligned as rustload's own destinations are.
fn aligned(bytes: &mut [u8]) -> &mut [u8] {
    let start = bytes.as_ptr().align_offset(CACHE_LINE_BYTES);
    let len = bytes.len() - CACHE_LINE_BYTES;
    &mut bytes[start..][..len]
}

/// Prints the GB/s of each level; `job` runs the kernel once at a level.
fn row(name: &str, bytes: usize, mut job: impl FnMut(Level)) {
    let levels = Level::available();
    let mut best = vec![Duration::MAX; levels.len()];
    let start = Instant::now();
    let mut round = 0;
    while round <= ROUNDS_MIN || start.elapsed() < ROW_DURATION_MIN {
        for (level, best) in levels.iter().zip(&mut best) {
            let start = Instant::now();
            job(*level);
            // The first round is not measured: it faults the pages in.
            *best = if round == 0 { *best } else { start.elapsed().min(*best) };
        }
        round += 1;
    }
    let columns: Vec<String> = (levels.iter().zip(best))
        .map(|(level, best)| format!("{level} {:5.1}", bytes as f64 / best.as_secs_f64() / 1e9))
        .collect();
    println!("{name:44} {}", columns.join("  "));
}

fn main() {
    let filter: String =
        std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let cast = |level, from, to| Cast::with_level(level, from, to, Overflow::Nan).unwrap();
    for (count, memory) in COUNTS {
        for (from, to) in CASTS {
            let name = format!("cast {from} {to} {memory}");
            if name.contains(&filter) {
                let repeats = if count < REPEATS * COUNTS[1].0 { REPEATS } else { 1 };
                let src = elements(from, count);
                let mut dst = vec![1; count * size(to) + CACHE_LINE_BYTES];
                let dst = aligned(&mut dst);
                row(&name, repeats * (src.len() + dst.len()), |level| {
                    for _ in 0..repeats {
                        convert(cast(level, from, to), black_box(&src), black_box(dst)).unwrap();
                    }
                });
            }
        }
    }
    for unit in [2, 4, 8] {
        let name = format!("swap in place {unit}");
        if name.contains(&filter) {
            let mut data = elements(F32, COUNTS[0].0);
            row(&name, 2 * data.len(), |level| swap_bytes_with_level(level, unit, black_box(&mut data)));
        }
    }
    for (from, to, rows, columns) in TRANSPOSES {
        for (suffix, non_temporal) in [("", false), (" non-temporal", true)] {
            let name = format!("transpose {from} {to} {rows}x{columns}{suffix}");
            if name.contains(&filter) {
                let src = elements(from, rows * columns);
                let mut dst = vec![1; rows * columns * size(to) + CACHE_LINE_BYTES];
                let dst = aligned(&mut dst);
                let axes = [
                    Axis { size: columns, src_stride: 1, dst_stride: rows },
                    Axis { size: rows, src_stride: columns, dst_stride: 1 },
                ];
                row(&name, src.len() + dst.len(), |level| {
                    let cast = cast(level, from, to);
                    let cast = if non_temporal { cast.with_non_temporal_stores() } else { cast };
                    gather(cast, black_box(&src), black_box(dst), &axes).unwrap();
                });
            }
        }
    }
}
