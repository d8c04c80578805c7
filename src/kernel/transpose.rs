//! The blocked transpose: source rows become destination columns, converted on the way.
//!
//! A tile is a panel of source rows, some hundred columns wide. Its rows are read in order, side by side, so that the
//! hardware prefetcher follows them; converted into scratch that stays in the cache, with a pitch that no power of two
//! divides; and woven into whole 64-byte lines, each of which is written to the destination at one go.

use super::arch::{self, COLUMNS, LINE, Panel, Weave, Words};
use super::cast::Cast;
use super::gather::Axis;
use super::strided::{self, Scratch, Strided};

/// Source rows of a tile, at least; a multiple of what fills a line.
const ROWS: usize = 32;
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
    words: Words,
    weave: Weave,
    strided: Scratch,
}

impl Tile {
    /// Scratch for a copy of `rows` by `columns`; its size has a fixed bound.
    pub(super) fn new(cast: Cast, rows: Axis, columns: Axis) -> Tile {
        let size = cast.dst_size();
        let line_rows = LINE / size;
        let width = (ROW_BYTES / size).min(columns.size);
        let height = ROWS.max(line_rows).min(rows.size.next_multiple_of(line_rows));
        let pitch = width * size + LINE;
        Tile {
            bytes: vec![0; height * pitch],
            pitch,
            rows: height,
            columns: width,
            line_rows,
            words: [[0; COLUMNS]; LINE / 8],
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
        for left in (0..width).step_by(COLUMNS) {
            let columns = COLUMNS.min(width - left);
            for top in (0..height).step_by(self.line_rows) {
                let bytes = &self.bytes[top * self.pitch + left * size..];
                (self.weave)(Panel { bytes, pitch: self.pitch, columns }, &mut self.words);
                let len = LINE.min((height - top) * size);
                let dst = &mut dst[left * pitch + top * size..];
                write_lines(&self.words, dst, pitch, columns, len);
            }
        }
    }
}

/// Writes the first `len` bytes of `columns` lines, `pitch` bytes apart.
fn write_lines(words: &Words, dst: &mut [u8], pitch: usize, columns: usize, len: usize) {
    for column in 0..columns.min(COLUMNS) {
        let dst = &mut dst[column * pitch..];
        match dst.first_chunk_mut::<LINE>() {
            Some(dst) if len == LINE => copy_line(words, column, dst),
            _ => {
                let mut line = [0; LINE];
                copy_line(words, column, &mut line);
                dst[..len].copy_from_slice(&line[..len]);
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
