//! The blocked transpose: source rows become destination columns, converted on the way.
//!
//! A tile is a panel of source rows, some hundred columns wide. Its rows are read in order, side by side, so that the
//! hardware prefetcher follows them; converted into scratch that stays in the cache, with a pitch that no power of two
//! divides; and turned into whole 64-byte lines, a few of which are written to each destination row at one go. Rows that need
//! no conversion are turned where they lie.

use std::ops::Range;

use super::arch::{Grid, LINE, LINES, Lines, Panel};
use super::cast::Cast;
use super::misuse;
use super::strided::{self, Scratch, Strided};
use crate::error::Result;

/// Bytes of a converted row of a tile.
const ROW_BYTES: usize = 2048;
/// Bytes of a result above which a cast that may write past the caches does so: the lines do not stay there until somebody reads
/// them, and each would be read before it is overwritten.
const STREAMED: usize = 8 << 20;
/// Columns of a line that is not whole, written at a time.
const COLUMNS: usize = 256;

/// The source of a transpose.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    /// The elements.
    pub(super) bytes: &'a [u8],
    /// From one row to the next, in elements.
    pub(super) row: usize,
    /// From one column to the next, in elements.
    pub(super) column: usize,
}

/// Scratch for one tile, made once per copy.
pub(super) struct Tile {
    bytes: Vec<u8>,
    /// Bytes from one row of the tile to the next.
    pitch: usize,
    /// Rows and columns of a full tile.
    rows: usize,
    columns: usize,
    /// Rows that fill a line.
    line_rows: usize,
    lines: Lines,
    /// Lines that are not whole, on their way.
    rest: Vec<u8>,
    strided: Scratch,
}

/// Copies a matrix whose rows are contiguous, `pitch` elements apart, to a destination whose rows are its columns.
///
/// `scratch` is memory to be handed in again for the next one, whatever it holds; its size has a fixed bound.
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
    let reach = (rows - 1)
        .checked_mul(pitch)
        .and_then(|last| last.checked_add(columns)?.checked_mul(cast.src_size()));
    if reach.is_none_or(|reach| reach > src.len()) || !dst.width().is_multiple_of(cast.dst_size()) {
        let len = src.len();
        return Err(misuse(format!(
            "{cast:?} of {rows} rows of {columns}, {pitch} apart, does not fit {len} bytes"
        )));
    }
    let src = Matrix { bytes: src, row: pitch, column: 1 };
    let mut tile = Tile::new(cast, rows, columns, std::mem::take(scratch));
    turn(cast, src, &mut dst, &mut tile);
    *scratch = tile.bytes;
    Ok(())
}

/// As [`transpose`], for columns at any distance; the source holds all elements.
pub(super) fn turn(cast: Cast, src: Matrix<'_>, dst: &mut Grid<'_>, tile: &mut Tile) {
    let (src_size, dst_size) = (cast.src_size(), cast.dst_size());
    let (rows, columns) = (dst.width() / dst_size, dst.rows());
    let streams = cast.streams() && dst.whole() > STREAMED;
    let as_it_lies = cast.is_identity() && src.column == 1 && src.row * src_size >= LINE;
    // Rows that fill lines.
    let full = if as_it_lies { rows - rows % tile.line_rows } else { 0 };
    for top in (0..full).step_by(tile.rows) {
        let bottom = full.min(top + tile.rows);
        let bytes = &src.bytes[top * src.row * src_size..];
        // Lines are made of whole squares; those of the last columns may reach past the source's end.
        let reach = (bottom - top - 1) * src.row + columns.next_multiple_of(tile.line_rows);
        let width =
            if reach * src_size <= bytes.len() { columns } else { columns - columns % tile.line_rows };
        let lines = (bottom - top) / tile.line_rows;
        let panel = Panel { bytes, pitch: src.row * src_size, columns: width, lines, streams };
        (tile.lines)(panel, &mut dst.part(0..width, top * dst_size..bottom * dst_size));
        tile.turn(cast, src, dst, top..bottom, width..columns, streams);
    }
    tile.turn(cast, src, dst, full..rows, 0..columns, streams);
}

impl Tile {
    /// Scratch for a source of `rows` by `columns`, in memory that was one before or is empty; its size has a fixed bound.
    pub(super) fn new(cast: Cast, rows: usize, columns: usize, mut bytes: Vec<u8>) -> Tile {
        let size = cast.dst_size();
        let line_rows = LINE / size;
        let width = (ROW_BYTES / size).min(columns);
        let height = (LINES * line_rows).min(rows.next_multiple_of(line_rows));
        let pitch = width * size + LINE;
        bytes.resize(bytes.len().max(height * pitch), 0);
        Tile {
            bytes,
            pitch,
            rows: height,
            columns: width,
            line_rows,
            lines: cast.level().lines(size),
            rest: Vec::new(),
            strided: Scratch::new(),
        }
    }

    /// Turns some rows and columns of the source by way of the tile.
    fn turn(
        &mut self,
        cast: Cast,
        src: Matrix<'_>,
        dst: &mut Grid<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
        streams: bool,
    ) {
        let (src_size, dst_size) = (cast.src_size(), cast.dst_size());
        for left in columns.clone().step_by(self.columns) {
            let width = self.columns.min(columns.end - left);
            for top in rows.clone().step_by(self.rows) {
                let height = self.rows.min(rows.end - top);
                let bytes = &src.bytes[(top * src.row + left * src.column) * src_size..];
                self.read(cast, Matrix { bytes, ..src }, height, width);
                let mut dst = dst.part(left..left + width, top * dst_size..(top + height) * dst_size);
                self.write(width, height, streams, &mut dst, dst_size);
            }
        }
    }

    /// Converts a panel of the source into the tile.
    fn read(&mut self, cast: Cast, src: Matrix<'_>, height: usize, width: usize) {
        for (row, out) in self.bytes.chunks_mut(self.pitch).take(height).enumerate() {
            let src = Strided { bytes: &src.bytes[row * src.row * cast.src_size()..], stride: src.column };
            strided::row(cast, src, Strided { bytes: out, stride: 1 }, width, &mut self.strided);
        }
    }

    /// Writes the tile's columns, each to a row of the destination, elements of `size` bytes.
    fn write(&mut self, columns: usize, height: usize, streams: bool, dst: &mut Grid<'_>, size: usize) {
        let lines = height / self.line_rows;
        let panel = Panel { bytes: &self.bytes, pitch: self.pitch, columns, lines, streams };
        if lines > 0 {
            (self.lines)(panel, dst);
        }
        let at = lines * LINE;
        if at == dst.width() {
            return;
        }
        // What is less than a line goes to the end of each row by way of whole lines elsewhere.
        self.rest.resize(COLUMNS * LINE, 0);
        let bytes = &self.bytes[lines * self.line_rows * self.pitch..];
        for left in (0..columns).step_by(COLUMNS) {
            let columns = COLUMNS.min(columns - left);
            let bytes = &bytes[left * size..];
            if let Some(mut rest) = Grid::new(&mut self.rest, columns, LINE, LINE) {
                (self.lines)(Panel { bytes, columns, lines: 1, streams: false, ..panel }, &mut rest);
            }
            for (column, line) in self.rest.as_chunks::<LINE>().0.iter().take(columns).enumerate() {
                let rest = &mut dst.row(left + column)[at..];
                rest.copy_from_slice(&line[..rest.len()]);
            }
        }
    }
}
