//! Strided copies of any rank, fused with a cast.
//!
//! Axes of size 1 are dropped, and axes that are contiguous on both sides are merged. One of two inner loops copies the rest:
//! rows, where the same axis is innermost in source and destination (or too short for a tile), or the blocked transpose, where
//! different axes are. An outer loop iterates over the remaining axes.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::arch::Grid;
use super::cast::Cast;
use super::internal_error;
use super::strided::{self, Strided};
use super::transpose::{self, Matrix, Tile};
use crate::error::Result;

/// One dimension of a strided copy. Strides are in elements of their side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The number of elements along the dimension.
    pub size: usize,
    /// The distance from one element to the next in the source; 0 repeats one element.
    pub src_stride: usize,
    /// The distance from one element to the next in the destination.
    pub dst_stride: usize,
}

type Axes = SmallVec<[Axis; 6]>;

/// The minimum size of an axis for which tiles, or rows along it, save more than they cost.
const TILED_AXIS_MIN_SIZE: usize = 8;
/// With fewer columns, and more rows, gathering them one by one is faster.
const TILED_COLUMNS_MIN: usize = 32;

/// Copies elements with any strides on both sides and converts them; element 0 is at the start of each slice.
///
/// Source elements may repeat or overlap. Destination elements must not overlap, and destination axes must nest: the stride of
/// an axis is at least the span of all axes with smaller strides. The order of the axes does not matter. Both slices must hold
/// every element. Fails with `InternalError` before anything is written where one of these does not hold. Destination bytes
/// between elements keep their values.
pub fn gather(cast: Cast, src: &[u8], dst: &mut [u8], axes: &[Axis]) -> Result<()> {
    if axes.iter().any(|axis| axis.size == 0) {
        return Ok(());
    }
    let fits = |stride: fn(&Axis) -> usize, size: usize, len: usize| {
        span(axes, stride).and_then(|span| span.checked_mul(size)).is_some_and(|bytes| bytes <= len)
    };
    let sorted = sort(axes);
    if !fits(|axis| axis.src_stride, cast.src_size(), src.len())
        || !fits(|axis| axis.dst_stride, cast.dst_size(), dst.len())
        || overlaps(&sorted)
    {
        let (src, dst) = (src.len(), dst.len());
        return Err(internal_error(format!(
            "{cast:?} of {axes:?} does not fit {src} bytes into {dst} bytes"
        )));
    }
    let mut axes = merge(&sorted);
    match choose_inner_loop(&axes) {
        None => {
            cast.run(&src[..cast.src_size()], &mut dst[..cast.dst_size()]);
            Ok(())
        }
        Some(InnerLoop::Rows { along }) => {
            let axis = axes.remove(along);
            let width = axis.size * cast.dst_size();
            if (axis.src_stride, axis.dst_stride) == (1, 1)
                && transpose::is_streamed(cast, width, dst.len())
                && let Some(longest) = longest(&axes)
            {
                let rows = axes.remove(longest);
                return for_each_grid(cast, dst, &axes, (rows, width), |from, dst| {
                    let bytes = &src[from * cast.src_size()..];
                    (cast.level().copy_rows())(bytes, rows.src_stride * cast.src_size(), dst);
                });
            }
            let mut scratch = strided::Scratch::new();
            for_each_offset(&axes, |from, to| {
                let src = Strided { bytes: &src[from * cast.src_size()..], stride: axis.src_stride };
                let dst = Strided { bytes: &mut dst[to * cast.dst_size()..], stride: axis.dst_stride };
                strided::row(cast, src, dst, axis.size, &mut scratch);
            });
            Ok(())
        }
        Some(InnerLoop::Transpose { rows, columns }) => {
            let (row_axis, column_axis) = (axes[rows], axes[columns]);
            axes.remove(rows.max(columns));
            axes.remove(rows.min(columns));
            let mut tile = Tile::new(cast, row_axis.size, column_axis.size, Vec::new());
            let width = row_axis.size * cast.dst_size();
            for_each_grid(cast, dst, &axes, (column_axis, width), |from, dst| {
                let bytes = &src[from * cast.src_size()..];
                let (row_stride, column_stride) = (row_axis.src_stride, column_axis.src_stride);
                let src = Matrix { bytes, row_stride, column_stride };
                transpose::transpose_matrix(cast, src, dst, &mut tile);
            })
        }
    }
}

/// Calls `job` with the source offset and the destination of every index of `axes`: rows of `width` bytes along the axis `rows`.
fn for_each_grid(
    cast: Cast,
    dst: &mut [u8],
    axes: &[Axis],
    (rows, width): (Axis, usize),
    mut job: impl FnMut(usize, &mut Grid<'_>),
) -> Result<()> {
    let size = cast.dst_size();
    let mut fits = true;
    for_each_offset(axes, |from, to| {
        match Grid::new(&mut dst[to * size..], rows.size, width, rows.dst_stride * size) {
            Some(mut dst) => job(from, &mut dst),
            None => fits = false,
        }
    });
    if fits {
        Ok(())
    } else {
        Err(internal_error(format!("{cast:?}: the destination does not hold its rows")))
    }
}

/// The number of elements from the first to the last, both included; `None` on overflow.
fn span(axes: &[Axis], stride: fn(&Axis) -> usize) -> Option<usize> {
    axes.iter().try_fold(1_usize, |span, axis| span.checked_add((axis.size - 1).checked_mul(stride(axis))?))
}

/// The axes with more than one element, largest destination stride first.
fn sort(axes: &[Axis]) -> Axes {
    let mut sorted: Axes = axes.iter().copied().filter(|axis| axis.size > 1).collect();
    sorted.sort_by_key(|axis| Reverse((axis.dst_stride, axis.src_stride)));
    sorted
}

/// Whether the destination stride of an axis is smaller than the span of the axes inside it; the axes fit the slices.
fn overlaps(sorted: &[Axis]) -> bool {
    let mut span = 1_usize;
    sorted.iter().rev().any(|axis| {
        let overlaps = axis.dst_stride < span;
        span = span.saturating_add((axis.size - 1).saturating_mul(axis.dst_stride));
        overlaps
    })
}

/// The same copy with fewer axes: neighbours that are contiguous on both sides are merged.
fn merge(sorted: &[Axis]) -> Axes {
    let mut out = Axes::new();
    for &inner in sorted {
        match out.last_mut() {
            Some(outer) if are_contiguous(*outer, inner) => {
                *outer = Axis { size: outer.size * inner.size, ..inner };
            }
            _ => out.push(inner),
        }
    }
    out
}

fn are_contiguous(outer: Axis, inner: Axis) -> bool {
    inner.src_stride.checked_mul(inner.size) == Some(outer.src_stride)
        && inner.dst_stride.checked_mul(inner.size) == Some(outer.dst_stride)
}

/// The inner loop of a copy; its fields are indices of axes.
enum InnerLoop {
    /// A loop along one axis.
    Rows { along: usize },
    /// A blocked transpose of two axes: `rows` is contiguous in the destination, `columns` has the smallest stride in the source.
    Transpose { rows: usize, columns: usize },
}

/// The inner loop for merged axes; `None` for a single element.
fn choose_inner_loop(axes: &[Axis]) -> Option<InnerLoop> {
    let inner = axes.len().checked_sub(1)?;
    let source_stride = |&at: &usize| (axes[at].src_stride == 0, axes[at].src_stride, Reverse(at));
    let source = (0..axes.len()).min_by_key(source_stride)?;
    let longest = longest(axes)?;
    Some(if source == inner {
        InnerLoop::Rows { along: if axes[inner].size < TILED_AXIS_MIN_SIZE { longest } else { inner } }
    } else if axes[inner].dst_stride != 1 || axes[inner].size < TILED_AXIS_MIN_SIZE {
        InnerLoop::Rows { along: if axes[source].size < TILED_AXIS_MIN_SIZE { longest } else { source } }
    } else if axes[source].size < TILED_COLUMNS_MIN.min(axes[inner].size) {
        InnerLoop::Rows { along: inner }
    } else {
        InnerLoop::Transpose { rows: inner, columns: source }
    })
}

/// The index of the axis with the most elements.
fn longest(axes: &[Axis]) -> Option<usize> {
    (0..axes.len()).max_by_key(|&at| axes[at].size)
}

/// Calls `job` with the source and destination offset of every index of `axes`, the last axis innermost.
fn for_each_offset(axes: &[Axis], mut job: impl FnMut(usize, usize)) {
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, axes.len());
    let (mut src, mut dst) = (0, 0);
    loop {
        job(src, dst);
        let mut advanced = false;
        for (at, axis) in index.iter_mut().zip(axes).rev() {
            if *at + 1 < axis.size {
                *at += 1;
                src += axis.src_stride;
                dst += axis.dst_stride;
                advanced = true;
                break;
            }
            src -= *at * axis.src_stride;
            dst -= *at * axis.dst_stride;
            *at = 0;
        }
        if !advanced {
            return;
        }
    }
}
