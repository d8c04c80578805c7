//! The choice of kernels: which code converts a row of one dtype into another, and which makes lines of columns.
//!
//! This is the only place that knows levels. The kernels are safe loops over arrays of bytes, without bounds checks, written
//! once; a level compiles them for its instructions ([`Instructions::run`]) and may replace single ones by intrinsics, for
//! which the loops are the oracle.
//!
//! `unsafe` is left to `avx2` and `avx512`, for two things. Functions with a `target_feature` are called from functions without:
//! [`Level`] promises that the machine has the features, since one is made only of what was detected and nothing else leads
//! to a level's code. Vectors are loaded from and stored to references to arrays of their size, which the compiler has
//! checked, or loaded from rows at equal distances, of which the last is checked; what bypasses the caches wants aligned lines, which
//! is a type, and fences before it returns. The only other pointers are those of a [`Grid`], which says itself why they hold.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads and stores, and functions that need the level's instructions")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads and stores, and functions that need the level's instructions")]
// The intrinsics are stable since then; superfluous once the manifest's rust-version says so, too.
#[clippy::msrv = "1.89"]
mod avx512;
mod complex;
mod fp8;
mod generic;
#[expect(unsafe_code, reason = "rows that are cut between columns are no slices")]
mod grid;
mod halves;
mod level;
mod lines;
mod numbers;

pub use grid::Grid;
pub use level::Level;
pub(super) use lines::{LINE, LINES, Lines, Panel};

#[cfg(target_arch = "x86_64")]
use lines::{COLUMNS, Line};

use super::Overflow;
use crate::dtype::DType;

/// Converts a whole row of elements; source and destination hold equally many, at any alignment.
pub(super) type Row = fn(&[u8], &mut [u8]);

/// The row that changes nothing.
pub(super) const COPY: Row = |src, dst| dst.copy_from_slice(src);

/// What a level can do that the next lower one cannot, or not as well.
trait Instructions: 'static {
    /// Runs `job`, which is compiled for the level's instructions as far as it is inlined.
    fn run(job: impl FnOnce());

    /// The rows that intrinsics do better than the compiler.
    fn row(_from: DType, _to: DType, _overflow: Overflow) -> Option<Row> {
        None
    }

    /// The transpose of panels of elements of a size.
    fn lines(size: usize) -> Lines {
        lines::lines(size)
    }
}

/// The row kernel between two real dtypes, where one does it in one go.
///
/// There is always one between bool, ints, f32 and f64, and between f32 and a narrow float; the rest goes through f32.
fn row<I: Instructions>(from: DType, to: DType, overflow: Overflow) -> Option<Row> {
    (I::row(from, to, overflow))
        .or_else(|| numbers::row::<I>(from, to))
        .or_else(|| halves::row::<I>(from, to))
        .or_else(|| fp8::row::<I>(from, to, overflow))
}

/// Applies `one` to each element of a row. Compiles to a vector loop where `one` has no branches.
#[inline(always)]
fn map<I: Instructions, const SRC: usize, const DST: usize>(
    src: &[u8],
    dst: &mut [u8],
    one: impl Fn([u8; SRC]) -> [u8; DST],
) {
    I::run(|| {
        let (src, _) = src.as_chunks();
        let (dst, _) = dst.as_chunks_mut();
        for (dst, src) in dst.iter_mut().zip(src) {
            *dst = one(*src);
        }
    });
}

/// Replaces each element by `one` of it.
#[inline(always)]
fn each<I: Instructions, const N: usize>(data: &mut [u8], one: impl Fn([u8; N]) -> [u8; N]) {
    I::run(|| {
        let (units, _) = data.as_chunks_mut();
        for unit in units {
            *unit = one(*unit);
        }
    });
}

/// Applies a vector operation to each full vector of a row, and to the rest filled up with zeros.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn vectors<const SRC: usize, const DST: usize>(
    src: &[u8],
    dst: &mut [u8],
    one: impl Fn(&[u8; SRC], &mut [u8; DST]),
) {
    let (src, src_rest) = src.as_chunks();
    let (dst, dst_rest) = dst.as_chunks_mut();
    for (dst, src) in dst.iter_mut().zip(src) {
        one(src, dst);
    }
    if !src_rest.is_empty() {
        let (mut padded, mut out) = ([0; SRC], [0; DST]);
        padded[..src_rest.len()].copy_from_slice(src_rest);
        one(&padded, &mut out);
        dst_rest.copy_from_slice(&out[..dst_rest.len()]);
    }
}
