//! Runtime dispatch to the SIMD level: selects the row kernel of a pair of dtypes, the transpose of a panel, the copy of rows, and
//! the lookup of codes.
//!
//! Only this module knows levels. Each kernel is written once, as a safe loop over arrays of bytes without bounds checks. A
//! level compiles it for its instructions ([`Instructions::run`]) and may replace it by intrinsics; the portable loop is the
//! oracle of the intrinsics in the tests.
//!
//! `unsafe` is limited to `avx2`, `avx512`, `neon` and `vector_transpose`, for two purposes:
//!
//! - A function with `target_feature` is called from one without. [`Level`] promises that the CPU has the features: a level is
//!   constructed only after they were detected, and a level's code is reached only through it.
//! - Vectors are loaded from and stored to references to arrays of their size, which the compiler checks, or loaded from rows at
//!   equal distances, where the end of the last row is checked. Non-temporal stores need aligned cache lines, which are a type
//!   of their own, and a store fence, which a drop guard issues.
//!
//! The only other pointers are those of a [`Grid`], which documents its own safety argument.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads and stores, and functions that need the level's instructions")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads and stores, and functions that need the level's instructions")]
// The intrinsics are stable since 1.89; remove this once the manifest's rust-version is at least that.
#[clippy::msrv = "1.89"]
mod avx512;
mod complex;
mod fp8;
mod generic;
#[expect(unsafe_code, reason = "rows that are split between columns are not slices")]
mod grid;
mod half_precision;
mod level;
mod lookup;
#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "vector loads and stores, and instructions without stable intrinsics")]
mod neon;
mod numbers;
mod portable_transpose;
mod statistics;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[expect(unsafe_code, reason = "vector loads from rows at equal distances")]
mod vector_transpose;

pub use grid::Grid;
pub use level::Level;
pub(super) use lookup::Lookup;
pub use lookup::{Groups, Table};
pub(super) use portable_transpose::{CACHE_LINE_BYTES, LINES_PER_PASS, Panel, PanelTranspose};

use super::Overflow;
use crate::dtype::DType;

/// A row kernel: converts contiguous elements. Source and destination hold equally many, at any alignment.
pub(super) type RowKernel = fn(&[u8], &mut [u8]);

/// Copies rows so many bytes apart to those of the destination.
pub(super) type CopyRows = fn(&[u8], usize, &mut Grid<'_>);

/// The row kernel that copies bytes.
pub(super) const COPY: RowKernel = |src, dst| dst.copy_from_slice(src);

/// What a level runs with its instructions. Its method must be `#[inline(always)]`.
///
/// A closure is inlined where it has one caller, in a function that is generic over the level. Of a closure that all levels call, the
/// compiler may make one function, with the instructions of none.
pub(in crate::kernel) trait Job {
    fn run(self);
}

impl<F: FnOnce()> Job for F {
    #[inline(always)]
    fn run(self) {
        self();
    }
}

/// The kernels of a level. The defaults are the portable loops, compiled for the level.
trait Instructions: 'static {
    /// Runs `job`. What is inlined into `job` is compiled for the level's instructions.
    fn run(job: impl Job);

    /// The row kernel that is written with intrinsics, where they are faster than the compiled loop.
    fn row_kernel(_from: DType, _to: DType, _overflow: Overflow) -> Option<RowKernel> {
        None
    }

    /// The transpose of panels whose elements have `element_size` bytes.
    fn panel_transpose(element_size: usize) -> PanelTranspose {
        portable_transpose::panel_transpose(element_size)
    }

    /// Looks up codes of 4 bits in the table of their group.
    fn look_up(codes: Lookup<'_>, tables: &[Table]) {
        codes.run(tables.iter(), |table, is_high_first, bytes, out| {
            lookup::portable(table, is_high_first, bytes, out);
        });
    }

    /// Looks up codes of 4 bits in what their groups say, if that takes no tables. Returns whether it did.
    fn scale_and_look_up(_codes: Lookup<'_>, _groups: Groups<'_>) -> bool {
        false
    }

    /// The copy of rows with non-temporal stores, where the level has them.
    fn copy_rows() -> CopyRows {
        |bytes, pitch, dst| {
            for row in 0..dst.rows() {
                let dst = dst.row(row);
                dst.copy_from_slice(&bytes[row * pitch..][..dst.len()]);
            }
        }
    }
}

/// The row kernel that converts between two real dtypes directly; `None` where the conversion needs f32 in between.
///
/// There is one between any two of bool, ints, f32 and f64, and between f32 and each narrow float.
fn row_kernel<I: Instructions>(from: DType, to: DType, overflow: Overflow) -> Option<RowKernel> {
    (I::row_kernel(from, to, overflow))
        .or_else(|| numbers::row_kernel::<I>(from, to))
        .or_else(|| half_precision::row_kernel::<I>(from, to))
        .or_else(|| fp8::row_kernel::<I>(from, to, overflow))
}

/// Applies `convert` to each source element and writes the result to the destination. The loop is vectorized where `convert` has no
/// branches.
#[inline(always)]
fn map<I: Instructions, const SRC: usize, const DST: usize>(
    src: &[u8],
    dst: &mut [u8],
    convert: impl Fn([u8; SRC]) -> [u8; DST],
) {
    I::run(|| {
        let (src, _) = src.as_chunks();
        let (dst, _) = dst.as_chunks_mut();
        for (dst, src) in dst.iter_mut().zip(src) {
            *dst = convert(*src);
        }
    });
}

/// Applies `convert` to each element in place. A remainder shorter than an element stays as it is.
#[inline(always)]
fn map_in_place<I: Instructions, const N: usize>(data: &mut [u8], convert: impl Fn([u8; N]) -> [u8; N]) {
    I::run(|| {
        let (units, _) = data.as_chunks_mut();
        for unit in units {
            *unit = convert(*unit);
        }
    });
}

/// Applies a SIMD operation to each full vector of a row, and to the remainder padded with zeros.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn map_vectors<const SRC: usize, const DST: usize>(
    src: &[u8],
    dst: &mut [u8],
    convert: impl Fn(&[u8; SRC], &mut [u8; DST]),
) {
    let (src, src_rest) = src.as_chunks();
    let (dst, dst_rest) = dst.as_chunks_mut();
    for (dst, src) in dst.iter_mut().zip(src) {
        convert(src, dst);
    }
    if !src_rest.is_empty() {
        let (mut padded, mut out) = ([0; SRC], [0; DST]);
        padded[..src_rest.len()].copy_from_slice(src_rest);
        convert(&padded, &mut out);
        dst_rest.copy_from_slice(&out[..dst_rest.len()]);
    }
}
