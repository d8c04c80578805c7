//! Joins boxes of elements in one destination: concatenated tensors, and the chunks of a tensor. Every thread fills a range of whole
//! rows of the destination with the elements of all parts that meet it, so no part is ever in memory by itself.

use super::batch::{Task, fill_all};
use super::plan::{Piece, is_permuted};
use super::read::{BAND_MIN_BYTES, Elements, fill_piece, incomplete_write, prefault, read_mode, scratch};
use crate::error::{Error, Result};
use crate::layout::{Dims, contiguous_strides, is_range, numel};
use crate::num::to_usize;
use crate::parallel;

/// Elements, and where they belong in a destination: a box of its index space.
#[derive(Clone, Debug)]
pub struct JoinPart {
    /// The elements; their shape is that of the box. The number of threads of their conversion is ignored: that of the join counts.
    pub elements: Elements,
    /// The index of the box's first element along each dimension of the destination.
    pub offsets: Dims,
}

/// Fills `out`, which is C-contiguous and has this shape, with boxes that do not overlap and together cover it. Their casts are equal
/// except for the signs. An error comes with the index of the part that failed.
pub fn fill_joined(
    mut parts: Vec<JoinPart>,
    shape: &[u64],
    threads: Option<usize>,
    out: &mut [u8],
) -> Result<(), (usize, Error)> {
    let Some(itemsize) = parts.first().map(|part| part.elements.how.cast.to().itemsize()) else {
        return if out.is_empty() { Ok(()) } else { Err((0, incomplete_write())) };
    };
    let strides = contiguous_strides(shape).ok_or_else(|| (0, incomplete_write()))?;
    let mut nbytes = 0_usize;
    for (number, part) in parts.iter().enumerate() {
        let len = part.check(shape, itemsize).map_err(|error| (number, error))?;
        nbytes = nbytes.saturating_add(len);
    }
    let size = numel(shape).and_then(|numel| numel.checked_mul(itemsize));
    if nbytes != out.len() || size != Some(out.len() as u64) {
        return Err((0, incomplete_write()));
    }
    // Every part is a range of the destination, unless one has several rows that are not whole.
    let mut order: Vec<usize> =
        (0..parts.len()).filter(|&at| parts[at].elements.layout.numel() > 0).collect();
    if order.iter().all(|&at| is_range(&parts[at].elements.layout.shape, shape)) {
        order.sort_by_cached_key(|&at| parts[at].start(&strides));
        return fill_ranges(parts, &order, &strides, itemsize, threads, out);
    }
    let Some(outer) = shape.iter().position(|&size| size != 1) else {
        return Err((0, incomplete_write()));
    };
    for part in &mut parts {
        part.elements.how.threads = Some(1);
    }
    let rows = RowJoin { strides, outer, itemsize };
    rows.fill(&parts, shape[outer], threads, out)
}

impl JoinPart {
    /// Checks that it lies inside a destination of this shape, and gives its bytes there.
    fn check(&self, shape: &[u64], itemsize: u64) -> Result<usize> {
        let JoinPart { elements: Elements { layout, how, .. }, offsets } = self;
        let fits = |at: usize| offsets[at].checked_add(layout.shape[at]).is_some_and(|end| end <= shape[at]);
        if layout.shape.len() != shape.len()
            || offsets.len() != shape.len()
            || how.cast.to().itemsize() != itemsize
            || !(0..shape.len()).all(fits)
        {
            return Err(incomplete_write());
        }
        let len = to_usize(layout.numel().saturating_mul(itemsize));
        self.elements.check(len)?;
        Ok(len)
    }

    /// The position of its first element in the destination.
    fn start(&self, strides: &[u64]) -> u64 {
        self.offsets.iter().zip(strides).map(|(&offset, &stride)| offset.saturating_mul(stride)).sum()
    }
}

fn fill_ranges(
    parts: Vec<JoinPart>,
    order: &[usize],
    strides: &[u64],
    itemsize: u64,
    threads: Option<usize>,
    out: &mut [u8],
) -> Result<(), (usize, Error)> {
    let mut parts: Vec<Option<JoinPart>> = parts.into_iter().map(Some).collect();
    let mut tasks = Vec::with_capacity(order.len());
    let (mut rest, mut end) = (out, 0_u64);
    for &number in order {
        let failed = || (number, incomplete_write());
        let part = parts[number].take().ok_or_else(failed)?;
        if part.start(strides) != end {
            return Err(failed());
        }
        let numel = part.elements.layout.numel();
        end = end.saturating_add(numel);
        let len = to_usize(numel.saturating_mul(itemsize));
        let (out, tail) = rest.split_at_mut_checked(len).ok_or_else(failed)?;
        tasks.push(Task { elements: part.elements, out });
        rest = tail;
    }
    fill_all(tasks, threads).map_err(|(task, error)| (order.get(task).copied().unwrap_or(0), error))
}

/// A join inside rows of the destination, which are its indices along the outermost dimension.
struct RowJoin {
    /// The strides of the destination, in elements.
    strides: Dims,
    outer: usize,
    itemsize: u64,
}

impl RowJoin {
    fn fill(
        &self,
        parts: &[JoinPart],
        rows: u64,
        threads: Option<usize>,
        out: &mut [u8],
    ) -> Result<(), (usize, Error)> {
        let row_bytes = self.strides[self.outer].saturating_mul(self.itemsize);
        if row_bytes == 0 || rows == 0 {
            return Ok(());
        }
        let bytes = out.len() as u64;
        let threads = parallel::threads(bytes, threads);
        let rows_per_range = rows.div_ceil(threads as u64).min(BAND_MIN_BYTES.div_ceil(row_bytes)).max(1);
        let ranges = out.chunks_mut(to_usize(rows_per_range.saturating_mul(row_bytes))).enumerate();
        let ranges = ranges.map(|(number, out)| (number as u64 * rows_per_range, out));
        parallel::for_each(threads, ranges, scratch, |scratch, (first_row, out)| {
            let count = out.len() as u64 / row_bytes;
            let pieces: Vec<(usize, Piece, u64)> = (parts.iter().enumerate())
                .filter_map(|(number, part)| {
                    self.piece(part, first_row, count).map(|(piece, start)| (number, piece, start))
                })
                .collect();
            // Before any part is written, as the parts' elements interleave.
            let is_prefaulted = |Elements { layout, how, .. }: &Elements| {
                how.cast.uses_non_temporal_stores() || !is_permuted(layout)
            };
            if let Some(&(number, ..)) =
                pieces.iter().find(|(number, ..)| !is_prefaulted(&parts[*number].elements))
            {
                prefault(&parts[number].elements.how.cancel, out).map_err(|error| (number, error))?;
            }
            for (number, piece, start) in pieces {
                let elements = &parts[number].elements;
                let Elements { payload, layout, how } = elements;
                let part = out.get_mut(to_usize(start.saturating_mul(self.itemsize))..).unwrap_or_default();
                let bytes = piece.numel.saturating_mul(how.cast.from().itemsize());
                let reader = read_mode(payload, layout, bytes).reader(&payload.source);
                fill_piece(elements, &piece, &reader, scratch, part).map_err(|error| (number, error))?;
            }
            Ok(())
        })?;
        for (number, part) in parts.iter().enumerate() {
            part.elements.payload.source.check_unchanged().map_err(|error| (number, error))?;
        }
        Ok(())
    }

    /// A part's elements in `count` rows from `first_row`, and the position of the first one in these rows; `None` where it has none there.
    fn piece(&self, part: &JoinPart, first_row: u64, count: u64) -> Option<(Piece, u64)> {
        let JoinPart { elements: Elements { layout, .. }, offsets } = part;
        let (begin, size) = (offsets[self.outer], layout.shape[self.outer]);
        let first = first_row.max(begin);
        let end = (first_row + count).min(begin + size);
        if first >= end || layout.numel() == 0 {
            return None;
        }
        let mut shape = layout.shape.clone();
        shape[self.outer] = end - first;
        let src = layout.offset + (first - begin) * layout.strides[self.outer];
        let inner = offsets.iter().zip(&self.strides).skip(self.outer + 1);
        let start = (first - first_row) * self.strides[self.outer]
            + inner.map(|(&offset, &stride)| offset * stride).sum::<u64>();
        Some((Piece::strided(&shape, &layout.strides, &self.strides, src), start))
    }
}
