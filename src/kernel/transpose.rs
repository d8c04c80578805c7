//! The blocked transpose: source rows become destination columns, converted on the way.
//!
//! A tile is a panel of source rows, some hundred columns wide. Its rows are read in order, side by side, so that the
//! hardware prefetcher follows them; converted into scratch that stays in the cache, with a pitch that no power of two
//! divides; and woven into whole 64-byte lines, a few of which are written to each destination row at one go.

use super::arch::{self, COLUMNS, LINE, Panel, Weave, Words};
use super::cast::Cast;
use super::gather::Axis;
use super::strided::{self, Scratch, Strided};

/// Lines that a tile writes one after the other in each column. One line at a time leaves the memory waiting.
const LINES: usize = 4;
/// Bytes of a converted row of a tile.
const ROW_BYTES: usize = 2048;

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
    words: Vec<Words>,
    weave: Weave,
    strided: Scratch,
}

impl Tile {
    /// Scratch for a copy of `rows` by `columns`; its size has a fixed bound.
    pub(super) fn new(cast: Cast, rows: Axis, columns: Axis) -> Tile {
        let size = cast.dst_size();
        let line_rows = LINE / size;
        let width = (ROW_BYTES / size).min(columns.size);
        let height = (LINES * line_rows).min(rows.size.next_multiple_of(line_rows));
        let pitch = width * size + LINE;
        Tile {
            bytes: vec![0; height * pitch],
            pitch,
            rows: height,
            columns: width,
            line_rows,
            words: vec![[[0; COLUMNS]; LINE / 8]; height / line_rows],
            weave: arch::weave(size),
            strided: Scratch::new(),
        }
    }
}

/// Copies element (r, c) from `r * rows.src_stride + c * columns.src_stride` to `r + c * columns.dst_stride`.
pub(super) fn transpose(cast: Cast, rows: Axis, columns: Axis, src: &[u8], dst: &mut [u8], tile: &mut Tile) {
    let (src_size, dst_size) = (cast.src_size(), cast.dst_size());
    for left in (0..columns.size).step_by(tile.columns) {
        let width = tile.columns.min(columns.size - left);
        for top in (0..rows.size).step_by(tile.rows) {
            let height = tile.rows.min(rows.size - top);
            let src = &src[(top * rows.src_stride + left * columns.src_stride) * src_size..];
            tile.read(cast, src, rows.src_stride, columns.src_stride, height, width);
            let dst = &mut dst[(top + left * columns.dst_stride) * dst_size..];
            tile.write(dst, columns.dst_stride * dst_size, dst_size, height, width);
        }
    }
}

impl Tile {
    /// Converts a panel of the source into the tile.
    fn read(&mut self, cast: Cast, src: &[u8], rows: usize, columns: usize, height: usize, width: usize) {
        for (row, out) in self.bytes.chunks_mut(self.pitch).take(height).enumerate() {
            let src = Strided { bytes: &src[row * rows * cast.src_size()..], stride: columns };
            strided::row(cast, src, Strided { bytes: out, stride: 1 }, width, &mut self.strided);
        }
    }

    /// Writes the tile's columns, each as `height` elements, `pitch` bytes apart.
    fn write(&mut self, dst: &mut [u8], pitch: usize, size: usize, height: usize, width: usize) {
        let lines = height.div_ceil(self.line_rows);
        for left in (0..width).step_by(COLUMNS) {
            let columns = COLUMNS.min(width - left);
            for (line, words) in self.words.iter_mut().enumerate().take(lines) {
                let bytes = &self.bytes[line * self.line_rows * self.pitch + left * size..];
                (self.weave)(Panel { bytes, pitch: self.pitch, columns }, words);
            }
            write_columns(&self.words, &mut dst[left * pitch..], pitch, columns, height * size);
        }
    }
}

/// Writes `columns` columns of `len` bytes each, `pitch` bytes apart.
fn write_columns(lines: &[Words], dst: &mut [u8], pitch: usize, columns: usize, len: usize) {
    for (column, dst) in dst.chunks_mut(pitch).enumerate().take(columns.min(COLUMNS)) {
        for (words, dst) in lines.iter().zip(dst[..len].chunks_mut(LINE)) {
            match dst.first_chunk_mut() {
                Some(dst) => copy_line(words, column, dst),
                None => {
                    let mut line = [0; LINE];
                    copy_line(words, column, &mut line);
                    dst.copy_from_slice(&line[..dst.len()]);
                }
            }
        }
    }
}

/// Copies one column's line. A whole line goes straight to its place: by way of the stack it would wait for its own stores.
#[inline(always)]
fn copy_line(words: &Words, column: usize, line: &mut [u8; LINE]) {
    for (bytes, row) in line.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = row[column].to_le_bytes();
    }
}
