//! The choice of kernels: which code converts a row of one dtype into another, and which weaves tiles.
//!
//! This is the only place that knows levels. So far there is one, the generic level: safe loops without bounds checks.

mod complex;
mod fp8;
mod halves;
mod numbers;
mod weave;

pub(super) use complex::{EITHER, real_halves, with_zero_halves};
pub(super) use weave::{COLUMNS, LINE, Panel, Weave, Words, weave};

use super::Overflow;
use crate::dtype::DType;

/// Converts a whole row of elements; source and destination hold equally many, at any alignment.
pub(super) type Row = fn(&[u8], &mut [u8]);

/// The row that changes nothing.
pub(super) const COPY: Row = |src, dst| dst.copy_from_slice(src);

/// The row kernel between two real dtypes, where one does it in one go.
///
/// There is always one between bool, ints, f32 and f64, and between f32 and a narrow float; the rest goes through f32.
pub(super) fn row(from: DType, to: DType, overflow: Overflow) -> Option<Row> {
    numbers::row(from, to).or_else(|| halves::row(from, to)).or_else(|| fp8::row(from, to, overflow))
}

/// Applies `one` to each element of a row. Compiles to a vector loop where `one` has no branches.
#[inline(always)]
fn map<const SRC: usize, const DST: usize>(src: &[u8], dst: &mut [u8], one: impl Fn([u8; SRC]) -> [u8; DST]) {
    let (src, _) = src.as_chunks();
    let (dst, _) = dst.as_chunks_mut();
    for (dst, src) in dst.iter_mut().zip(src) {
        *dst = one(*src);
    }
}
