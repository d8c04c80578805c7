//! Concatenates several tensors into one destination along a dimension: every thread fills a range of whole rows of the
//! destination with the elements of all parts, so no part is ever in memory by itself.

use super::batch::{Task, fill_all};
use super::plan::Piece;
use super::read::{
    Fill, PIECE_MIN_BYTES, Payload, check_bounds, fill_piece, incomplete_write, needs_prefault, prefault,
    read_mode, scratch,
};
use crate::error::Error;
use crate::layout::{Dims, Layout, contiguous_strides};
use crate::num::to_usize;
use crate::parallel;

/// Fills `out` with the parts concatenated along `dim`, C-contiguous. Their shapes are equal except in `dim`, and their casts are
/// equal except for the signs. An error comes with the index of the part that failed.
pub fn fill_joined(
    parts: Vec<(Payload, Layout, Fill)>,
    dim: usize,
    threads: Option<usize>,
    out: &mut [u8],
) -> Result<(), (usize, Error)> {
    let Some((_, first, how)) = parts.first() else { return Ok(()) };
    let itemsize = how.cast.to().itemsize();
    let mut shape = first.shape.clone();
    if let Some(size) = shape.get_mut(dim) {
        let mut sizes = parts.iter().map(|(_, layout, _)| layout.shape.get(dim));
        let sum = sizes.try_fold(0_u64, |sum, size| sum.checked_add(*size?));
        *size = sum.ok_or_else(|| (0, incomplete_write()))?;
    }
    let mut nbytes = 0_usize;
    for (number, (payload, layout, how)) in parts.iter().enumerate() {
        let same = |at: usize| at == dim || layout.shape.get(at) == shape.get(at);
        if layout.shape.len() != shape.len()
            || how.cast.to().itemsize() != itemsize
            || !(0..shape.len()).all(same)
        {
            return Err((number, incomplete_write()));
        }
        let len = to_usize(layout.numel().saturating_mul(itemsize));
        check_bounds(payload, layout, how.cast, len).map_err(|error| (number, error))?;
        nbytes = nbytes.saturating_add(len);
    }
    if nbytes != out.len() {
        return Err((0, incomplete_write()));
    }
    // The first dimension whose size is not 1. Unless it comes before `dim`, every part is a range of the destination.
    match shape.iter().position(|&size| size != 1) {
        Some(outer) if outer < dim => {
            let rows =
                RowJoin { strides: contiguous_strides(&shape).unwrap_or_default(), outer, dim, itemsize };
            rows.fill(&parts, shape[outer], threads, out)
        }
        _ => fill_ranges(parts, itemsize, threads, out),
    }
}

fn fill_ranges(
    parts: Vec<(Payload, Layout, Fill)>,
    itemsize: u64,
    threads: Option<usize>,
    out: &mut [u8],
) -> Result<(), (usize, Error)> {
    let mut tasks = Vec::with_capacity(parts.len());
    let mut rest = out;
    for (number, (payload, layout, how)) in parts.into_iter().enumerate() {
        let len = to_usize(layout.numel().saturating_mul(itemsize));
        let (out, tail) = rest.split_at_mut_checked(len).ok_or_else(|| (number, incomplete_write()))?;
        tasks.push(Task { payload, layout, how, out });
        rest = tail;
    }
    fill_all(tasks, threads)
}

/// A join inside rows of the destination, which are its indices along the outermost dimension.
struct RowJoin {
    /// The strides of the destination, in elements.
    strides: Dims,
    outer: usize,
    dim: usize,
    itemsize: u64,
}

impl RowJoin {
    fn fill(
        &self,
        parts: &[(Payload, Layout, Fill)],
        rows: u64,
        threads: Option<usize>,
        out: &mut [u8],
    ) -> Result<(), (usize, Error)> {
        let Some(row_bytes) = self.strides.get(self.outer).map(|stride| stride.saturating_mul(self.itemsize))
        else {
            return Err((0, incomplete_write()));
        };
        if row_bytes == 0 || rows == 0 {
            return Ok(());
        }
        for (number, (_, _, how)) in parts.iter().enumerate() {
            how.signs.apply(how.cast.from(), &mut []).map_err(|error| (number, error))?;
        }
        let bytes = out.len() as u64;
        let threads = parallel::threads(bytes, threads);
        let rows_per_range = rows.div_ceil(threads as u64).min(PIECE_MIN_BYTES.div_ceil(row_bytes)).max(1);
        let ranges = out.chunks_mut(to_usize(rows_per_range.saturating_mul(row_bytes))).enumerate();
        let ranges = ranges.map(|(number, out)| (number as u64 * rows_per_range, out));
        parallel::for_each(threads, ranges, scratch, |scratch, (first_row, out)| {
            let count = out.len() as u64 / row_bytes;
            // Before any part is written, as the parts' elements interleave.
            let mut filled_parts = parts.iter().filter(|(_, layout, _)| layout.numel() > 0);
            let transposed = filled_parts
                .find(|(_, layout, how)| needs_prefault(&self.piece(layout, first_row, count), how));
            if let Some((_, _, how)) = transposed {
                prefault(&how.cancel, out).map_err(|error| (0, error))?;
            }
            let mut start_in_dim = 0_u64;
            for (number, (payload, layout, how)) in parts.iter().enumerate() {
                let start = to_usize(
                    start_in_dim.saturating_mul(self.strides[self.dim]).saturating_mul(self.itemsize),
                );
                start_in_dim += layout.shape[self.dim];
                if layout.numel() == 0 {
                    continue;
                }
                let part = out.get_mut(start..).unwrap_or_default();
                let piece = self.piece(layout, first_row, count);
                let bytes = piece.numel.saturating_mul(how.cast.from().itemsize());
                let reader = read_mode(payload, layout, bytes).reader(&payload.source);
                fill_piece(payload, &piece, how, &reader, scratch, part).map_err(|error| (number, error))?;
            }
            Ok(())
        })?;
        for (number, (payload, _, _)) in parts.iter().enumerate() {
            payload.source.check_unchanged().map_err(|error| (number, error))?;
        }
        Ok(())
    }

    /// A part's elements of `count` rows from `first_row`.
    fn piece(&self, layout: &Layout, first_row: u64, count: u64) -> Piece {
        let mut shape = layout.shape.clone();
        shape[self.outer] = count;
        let src = layout.offset + first_row * layout.strides[self.outer];
        Piece::strided(&shape, &layout.strides, &self.strides, src)
    }
}
