//! The blocked transpose: source rows become destination columns, converted on the way.
//!
//! A tile is a panel of source rows, some hundred columns wide. Its rows are read in order, side by side, so that the
//! hardware prefetcher follows them; converted into scratch that stays in the cache, with a pitch that no power of two
//! divides; and turned into whole 64-byte lines, a few of which are written to each destination row at one go. Rows that need
//! no conversion are turned where they lie.

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
    let mut first = 0;
    if cast.is_identity() && src.column == 1 && src.row * src_size >= LINE {
        let whole = rows - rows % tile.line_rows;
        for top in (0..whole).step_by(tile.rows) {
            let height = tile.rows.min(whole - top);
            // Lines are made of whole squares.
            let reach = (height - 1) * src.row + columns.next_multiple_of(tile.line_rows);
            let Some(bytes) = src.bytes[top * src.row * src_size..].get(..reach * src_size) else { break };
            let lines = height / tile.line_rows;
            let panel = Panel { bytes, pitch: src.row * src_size, columns, lines, streams };
            tile.write(panel, &mut dst.part(0..columns, top * dst_size..(top + height) * dst_size), dst_size);
            first = top + height;
        }
    }
    for left in (0..columns).step_by(tile.columns) {
        let width = tile.columns.min(columns - left);
        for top in (first..rows).step_by(tile.rows) {
            let height = tile.rows.min(rows - top);
            let from = Matrix { bytes: &src.bytes[(top * src.row + left * src.column) * src_size..], ..src };
            tile.read(cast, from, height, width);
            let lines = height / tile.line_rows;
            let panel = Panel { bytes: &tile.bytes, pitch: tile.pitch, columns: width, lines, streams };
            let mut dst = dst.part(left..left + width, top * dst_size..(top + height) * dst_size);
            tile.write(panel, &mut dst, dst_size);
        }
    }
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
            strided: Scratch::new(),
        }
    }

    /// Converts a panel of the source into the tile.
    fn read(&mut self, cast: Cast, src: Matrix<'_>, height: usize, width: usize) {
        for (row, out) in self.bytes.chunks_mut(self.pitch).take(height).enumerate() {
            let src = Strided { bytes: &src.bytes[row * src.row * cast.src_size()..], stride: src.column };
            strided::row(cast, src, Strided { bytes: out, stride: 1 }, width, &mut self.strided);
        }
    }

    /// Writes a panel's columns, each to a row of the destination, elements of `size` bytes.
    fn write(&self, panel: Panel<'_>, dst: &mut Grid<'_>, size: usize) {
        if panel.lines > 0 {
            (self.lines)(panel, dst);
        }
        let whole = panel.lines * LINE;
        if whole < dst.width() {
            let bytes = &panel.bytes[panel.lines * self.line_rows * panel.pitch..];
            self.write_rest(Panel { bytes, ..panel }, dst, whole, size);
        }
    }

    /// Writes what is less than a line to the end of each row, by way of whole lines elsewhere.
    fn write_rest(&self, panel: Panel<'_>, dst: &mut Grid<'_>, at: usize, size: usize) {
        let mut whole = [0; COLUMNS * LINE];
        for left in (0..panel.columns).step_by(COLUMNS) {
            let columns = COLUMNS.min(panel.columns - left);
            let bytes = &panel.bytes[left * size..];
            if let Some(mut whole) = Grid::new(&mut whole, columns, LINE, LINE) {
                (self.lines)(Panel { bytes, columns, lines: 1, streams: false, ..panel }, &mut whole);
            }
            for (column, line) in whole.as_chunks::<LINE>().0.iter().take(columns).enumerate() {
                let rest = &mut dst.row(left + column)[at..];
                rest.copy_from_slice(&line[..rest.len()]);
            }
        }
    }
}
