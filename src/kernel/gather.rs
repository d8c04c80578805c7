//! Strided copies of any rank, with a cast on the way.
//!
//! Axes of size 1 go, axes that lie end to end on both sides become one, and one of two cores does the rest: rows, where the
//! axis contiguous in the destination is the one contiguous in the source (or too short to be worth a tile), and the
//! blocked transpose, where they differ. The axes left over are counted through in a plain loop.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::arch::Grid;
use super::cast::Cast;
use super::misuse;
use super::strided::{self, Strided};
use super::transpose::{self, Matrix, Tile};
use crate::error::Result;

/// One dimension of a strided copy. Strides are in elements of their side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The number of elements along the dimension.
    pub size: usize,
    /// From one element to the next in the source; 0 repeats one element.
    pub src_stride: usize,
    /// From one element to the next in the destination.
    pub dst_stride: usize,
}

type Axes = SmallVec<[Axis; 6]>;

/// Below this many elements along an axis, tiles and rows along it cost more than they save.
const SHORT: usize = 8;

/// Copies elements with any strides on both sides, converting them; element 0 lies at the start of each slice.
///
/// Source elements may repeat or overlap; destination elements must not, and no destination axis may lie between the steps
/// of another. The order of the axes does not matter. Both slices must hold every element. All of this is checked before
/// anything is written. Destination bytes between the elements stay as they are.
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
        return Err(misuse(format!("{cast:?} of {axes:?} does not fit {src} bytes into {dst} bytes")));
    }
    let mut axes = merge(&sorted);
    match choose(&axes) {
        None => cast.run(&src[..cast.src_size()], &mut dst[..cast.dst_size()]),
        Some(Core::Rows { along }) => {
            let axis = axes.remove(along);
            let mut scratch = strided::Scratch::new();
            for_each_offset(&axes, |from, to| {
                let src = Strided { bytes: &src[from * cast.src_size()..], stride: axis.src_stride };
                let dst = Strided { bytes: &mut dst[to * cast.dst_size()..], stride: axis.dst_stride };
                strided::row(cast, src, dst, axis.size, &mut scratch);
            });
        }
        Some(Core::Transpose { rows, columns }) => {
            let (row_axis, column_axis) = (axes[rows], axes[columns]);
            axes.remove(rows.max(columns));
            axes.remove(rows.min(columns));
            let mut tile = Tile::new(cast, row_axis.size, column_axis.size, Vec::new());
            let (width, pitch) = (row_axis.size * cast.dst_size(), column_axis.dst_stride * cast.dst_size());
            let reach = (column_axis.size - 1) * pitch + width;
            let mut fits = true;
            for_each_offset(&axes, |from, to| {
                let bytes = &src[from * cast.src_size()..];
                let src = Matrix { bytes, row: row_axis.src_stride, column: column_axis.src_stride };
                let dst = &mut dst[to * cast.dst_size()..][..reach];
                match Grid::new(dst, column_axis.size, width, pitch) {
                    Some(mut dst) => transpose::turn(cast, src, &mut dst, &mut tile),
                    None => fits = false,
                }
            });
            if !fits {
                return Err(misuse(format!("{cast:?}: a part of the destination would not be written")));
            }
        }
    }
    Ok(())
}

/// Elements from the first to one past the last; `None` where that does not fit.
fn span(axes: &[Axis], stride: fn(&Axis) -> usize) -> Option<usize> {
    axes.iter().try_fold(1_usize, |span, axis| span.checked_add((axis.size - 1).checked_mul(stride(axis))?))
}

/// The axes that matter, largest destination stride first.
fn sort(axes: &[Axis]) -> Axes {
    let mut kept: Axes = axes.iter().copied().filter(|axis| axis.size > 1).collect();
    kept.sort_by_key(|axis| Reverse((axis.dst_stride, axis.src_stride)));
    kept
}

/// Whether an axis steps less far in the destination than those inside it reach; the axes fit the slices.
fn overlaps(sorted: &[Axis]) -> bool {
    let mut reach = 1_usize;
    sorted.iter().rev().any(|axis| {
        let overlaps = axis.dst_stride < reach;
        reach = reach.saturating_add((axis.size - 1).saturating_mul(axis.dst_stride));
        overlaps
    })
}

/// The same copy with fewer axes: those that lie end to end on both sides become one.
fn merge(sorted: &[Axis]) -> Axes {
    let mut out = Axes::new();
    for &inner in sorted {
        match out.last_mut() {
            Some(outer) if lies_end_to_end(*outer, inner) => {
                *outer = Axis { size: outer.size * inner.size, ..inner };
            }
            _ => out.push(inner),
        }
    }
    out
}

fn lies_end_to_end(outer: Axis, inner: Axis) -> bool {
    inner.src_stride.checked_mul(inner.size) == Some(outer.src_stride)
        && inner.dst_stride.checked_mul(inner.size) == Some(outer.dst_stride)
}

/// What the innermost loops are; numbers are positions among the axes.
enum Core {
    /// One axis, element by element or run by run.
    Rows { along: usize },
    /// Two axes: `rows` contiguous in the destination, `columns` densest in the source.
    Transpose { rows: usize, columns: usize },
}

/// The core for merged axes; `None` for a single element.
fn choose(axes: &[Axis]) -> Option<Core> {
    let inner = axes.len().checked_sub(1)?;
    let densest = |&at: &usize| (axes[at].src_stride == 0, axes[at].src_stride, Reverse(at));
    let source = (0..axes.len()).min_by_key(densest)?;
    let longest = (0..axes.len()).max_by_key(|&at| axes[at].size)?;
    Some(if source == inner {
        Core::Rows { along: if axes[inner].size < SHORT { longest } else { inner } }
    } else if axes[inner].dst_stride != 1 || axes[inner].size < SHORT {
        Core::Rows { along: if axes[source].size < SHORT { longest } else { source } }
    } else if axes[source].size < SHORT {
        Core::Rows { along: inner }
    } else {
        Core::Transpose { rows: inner, columns: source }
    })
}

/// Calls `job` with the source and destination offset of every index of `axes`, the last axis fastest.
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
