//! The blocked (tiled) transpose: source rows become destination columns, converted by a cast.
//!
//! A tile is some source rows, a few hundred columns wide. Its rows are read sequentially, so that the hardware prefetcher
//! follows them, and converted into scratch that stays in the cache; the pitch of the scratch is not a power of two, which
//! avoids cache set conflicts. The tile is then transposed into whole 64-byte cache lines, a few of which are stored to each
//! destination row in succession. Rows that need no conversion are transposed straight from the source, and short ones without
//! gaps are converted together.

use std::ops::Range;

use super::arch::{CACHE_LINE_BYTES, Grid, LINES_PER_PASS, Panel, PanelTranspose};
use super::cast::Cast;
use super::internal_error;
use super::strided::{self, Scratch, Strided};
use crate::error::Result;

/// Maximum bytes of a converted row of a tile.
const TILE_ROW_BYTES: usize = 2048;
/// The result size, in bytes, above which a cast with non-temporal stores uses them: the lines of such a result would be evicted
/// before they are read again, and an ordinary store reads each line before it overwrites it.
const NON_TEMPORAL_MIN_BYTES: usize = 8 << 20;
/// Rows of fewer bytes are not worth non-temporal stores.
const STREAMED_ROW_MIN_BYTES: usize = 4 * CACHE_LINE_BYTES;
/// The number of columns whose partial cache line is stored at a time.
const PARTIAL_LINE_COLUMNS: usize = 256;
/// Source rows of at most this size that follow each other without gaps are converted together.
const JOINT_ROW_MAX_BYTES: usize = 4 * CACHE_LINE_BYTES;

/// The source of a transpose.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    /// The elements, the first at the start.
    pub(super) bytes: &'a [u8],
    /// The distance from one row to the next, in elements.
    pub(super) row_stride: usize,
    /// The distance from one column to the next, in elements.
    pub(super) column_stride: usize,
}

/// Scratch for one tile, allocated once per copy.
pub(super) struct Tile {
    bytes: Vec<u8>,
    /// Bytes from one row that was read to the next.
    pitch: usize,
    /// Rows and columns of a full tile.
    rows: usize,
    columns: usize,
    /// The number of rows that fill a cache line of a column.
    line_rows: usize,
    panel_transpose: PanelTranspose,
    /// Scratch for partial cache lines.
    partial_lines: Vec<u8>,
    strided: Scratch,
}

/// Transposes and converts a matrix whose rows are contiguous and `pitch` elements apart: its columns become the rows of `dst`.
///
/// `scratch` may hold anything; the caller passes it to the next call again, so that it is allocated once. Its size has a fixed
/// bound. Fails with `InternalError` where the source is too short for the sizes that `dst` has.
pub fn transpose(
    cast: Cast,
    src: &[u8],
    pitch: usize,
    mut dst: Grid<'_>,
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let (rows, columns) = (dst.width() / cast.dst_size(), dst.rows());
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let span_bytes = (rows - 1)
        .checked_mul(pitch)
        .and_then(|last| last.checked_add(columns)?.checked_mul(cast.src_size()));
    if span_bytes.is_none_or(|span_bytes| span_bytes > src.len())
        || !dst.width().is_multiple_of(cast.dst_size())
    {
        let len = src.len();
        return Err(internal_error(format!(
            "{cast:?} of {rows} rows of {columns}, {pitch} apart, does not fit {len} bytes"
        )));
    }
    let src = Matrix { bytes: src, row_stride: pitch, column_stride: 1 };
    let mut tile = Tile::new(cast, rows, columns, std::mem::take(scratch));
    transpose_matrix(cast, src, &mut dst, &mut tile);
    *scratch = tile.bytes;
    Ok(())
}

/// As [`transpose`], for a matrix whose elements are `run` successive ones: two dimensions change places, and those inside them do not.
pub fn exchange(cast: Cast, src: &[u8], pitch: usize, run: usize, mut dst: Grid<'_>) -> Result<()> {
    let (src_run, dst_run) = (run.saturating_mul(cast.src_size()), run.saturating_mul(cast.dst_size()));
    let (rows, columns) = (dst.width().checked_div(dst_run).unwrap_or(0), dst.rows());
    let pitch = pitch.saturating_mul(cast.src_size());
    let span = rows.saturating_sub(1).checked_mul(pitch).zip(columns.checked_mul(src_run));
    let fits = span.and_then(|(last, row)| last.checked_add(row)).is_some_and(|span| span <= src.len());
    if !fits || rows * dst_run != dst.width() {
        let len = src.len();
        return Err(internal_error(format!(
            "{cast:?} of {rows} rows of {columns} runs of {run} does not fit {len} bytes"
        )));
    }
    let is_streamed = is_streamed(cast, dst_run, dst.slice_len());
    for row in 0..rows {
        let bytes = &src[row * pitch..];
        let mut part = dst.sub_grid(0..columns, row * dst_run..(row + 1) * dst_run);
        if is_streamed {
            (cast.level().copy_rows())(bytes, src_run, &mut part);
            continue;
        }
        for column in 0..columns {
            cast.run(&bytes[column * src_run..][..src_run], part.row(column));
        }
    }
    Ok(())
}

/// Whether rows of `width` bytes of a destination of `len` bytes are copied with non-temporal stores.
pub(super) fn is_streamed(cast: Cast, width: usize, len: usize) -> bool {
    let is_worth_it = width >= STREAMED_ROW_MIN_BYTES && len > NON_TEMPORAL_MIN_BYTES;
    is_worth_it && cast.is_identity() && cast.uses_non_temporal_stores()
}

/// As [`transpose`], for columns at any distance. The source must hold all elements.
pub(super) fn transpose_matrix(cast: Cast, src: Matrix<'_>, dst: &mut Grid<'_>, tile: &mut Tile) {
    let (src_size, dst_size) = (cast.src_size(), cast.dst_size());
    let (rows, columns) = (dst.width() / dst_size, dst.rows());
    let non_temporal = cast.uses_non_temporal_stores() && dst.slice_len() > NON_TEMPORAL_MIN_BYTES;
    let is_direct = cast.is_identity() && src.column_stride == 1;
    // The number of rows that are transposed straight from the source: those that fill cache lines.
    let direct_rows = if is_direct { rows - rows % tile.line_rows } else { 0 };
    for top in (0..direct_rows).step_by(tile.rows) {
        let bottom = direct_rows.min(top + tile.rows);
        let bytes = &src.bytes[top * src.row_stride * src_size..];
        // A panel is transposed in square blocks; those of the last columns may reach past the end of the source.
        let span = (bottom - top - 1) * src.row_stride + columns.next_multiple_of(tile.line_rows);
        let width = if span * src_size <= bytes.len() { columns } else { columns - columns % tile.line_rows };
        let lines = (bottom - top) / tile.line_rows;
        let panel = Panel { bytes, pitch: src.row_stride * src_size, columns: width, lines, non_temporal };
        (tile.panel_transpose)(panel, &mut dst.sub_grid(0..width, top * dst_size..bottom * dst_size));
        tile.transpose(cast, src, dst, top..bottom, width..columns, non_temporal);
    }
    tile.transpose(cast, src, dst, direct_rows..rows, 0..columns, non_temporal);
}

impl Tile {
    /// Scratch for a source of `rows` by `columns`. `bytes` is empty, or the memory of an earlier tile; its size has a fixed bound.
    pub(super) fn new(cast: Cast, rows: usize, columns: usize, mut bytes: Vec<u8>) -> Tile {
        let size = cast.dst_size();
        let line_rows = CACHE_LINE_BYTES / size;
        let width = (TILE_ROW_BYTES / size).min(columns);
        let height = (LINES_PER_PASS * line_rows).min(rows.next_multiple_of(line_rows));
        let pitch = width * size + CACHE_LINE_BYTES;
        bytes.resize(bytes.len().max(height * pitch), 0);
        Tile {
            bytes,
            pitch,
            rows: height,
            columns: width,
            line_rows,
            panel_transpose: cast.level().panel_transpose(size),
            partial_lines: Vec::new(),
            strided: Scratch::new(),
        }
    }

    /// Transposes some rows and columns of the source through the tile.
    fn transpose(
        &mut self,
        cast: Cast,
        src: Matrix<'_>,
        dst: &mut Grid<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
        non_temporal: bool,
    ) {
        let (src_size, dst_size) = (cast.src_size(), cast.dst_size());
        for left in columns.clone().step_by(self.columns) {
            let width = self.columns.min(columns.end - left);
            for top in rows.clone().step_by(self.rows) {
                let height = self.rows.min(rows.end - top);
                let bytes = &src.bytes[(top * src.row_stride + left * src.column_stride) * src_size..];
                self.read(cast, Matrix { bytes, ..src }, height, width);
                let mut dst = dst.sub_grid(left..left + width, top * dst_size..(top + height) * dst_size);
                self.write(width, height, non_temporal, &mut dst, dst_size);
            }
        }
    }

    /// Converts rows of the source into the tile.
    fn read(&mut self, cast: Cast, src: Matrix<'_>, height: usize, width: usize) {
        let row_bytes = width * cast.dst_size();
        if (src.row_stride, src.column_stride) == (width, 1) && row_bytes <= JOINT_ROW_MAX_BYTES {
            self.pitch = row_bytes;
            let count = height * width;
            return cast.run(&src.bytes[..count * cast.src_size()], &mut self.bytes[..height * row_bytes]);
        }
        self.pitch = row_bytes + CACHE_LINE_BYTES;
        for (row, out) in self.bytes.chunks_mut(self.pitch).take(height).enumerate() {
            let src = Strided {
                bytes: &src.bytes[row * src.row_stride * cast.src_size()..],
                stride: src.column_stride,
            };
            strided::row(cast, src, Strided { bytes: out, stride: 1 }, width, &mut self.strided);
        }
    }

    /// Stores each column of the tile, with elements of `size` bytes, to a row of the destination.
    fn write(&mut self, columns: usize, height: usize, non_temporal: bool, dst: &mut Grid<'_>, size: usize) {
        let lines = height / self.line_rows;
        let panel = Panel { bytes: &self.bytes, pitch: self.pitch, columns, lines, non_temporal };
        if lines > 0 {
            (self.panel_transpose)(panel, dst);
        }
        let at = lines * CACHE_LINE_BYTES;
        if at == dst.width() {
            return;
        }
        // The rows left over fill only part of a cache line: transpose them to whole lines in scratch, then copy the partial lines.
        self.partial_lines.resize(PARTIAL_LINE_COLUMNS * CACHE_LINE_BYTES, 0);
        let bytes = &self.bytes[lines * self.line_rows * self.pitch..];
        for left in (0..columns).step_by(PARTIAL_LINE_COLUMNS) {
            let columns = PARTIAL_LINE_COLUMNS.min(columns - left);
            let bytes = &bytes[left * size..];
            if let Some(mut partial_lines) =
                Grid::new(&mut self.partial_lines, columns, CACHE_LINE_BYTES, CACHE_LINE_BYTES)
            {
                let panel = Panel { bytes, columns, lines: 1, non_temporal: false, ..panel };
                (self.panel_transpose)(panel, &mut partial_lines);
            }
            for (column, line) in
                self.partial_lines.as_chunks::<CACHE_LINE_BYTES>().0.iter().take(columns).enumerate()
            {
                let row_end = &mut dst.row(left + column)[at..];
                row_end.copy_from_slice(&line[..row_end.len()]);
            }
        }
    }
}
