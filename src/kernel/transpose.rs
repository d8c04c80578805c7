//! The blocked transpose: source rows become destination columns, converted on the way.
//!
//! A tile is a panel of source rows, some hundred columns wide. Its rows are read in order, side by side, so that the
//! hardware prefetcher follows them; converted into scratch that stays in the cache, with a pitch that no power of two
//! divides; and turned into whole 64-byte lines, a few of which are written to each destination row at one go.

use super::arch::{LINE, LINES, Lines, Panel};
use super::cast::Cast;
use super::gather::Axis;
use super::strided::{self, Scratch, Strided};

/// Bytes of a converted row of a tile.
const ROW_BYTES: usize = 2048;
/// Bytes from the first column of a destination to the last above which a cast that may write past the caches does so: the
/// lines lie too far apart to stay there until their neighbours come, and each would be read before it is overwritten.
const STREAMING_SPAN: usize = 8 << 20;
/// Columns of a line that is not whole, written at a time.
const COLUMNS: usize = 64;

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
    streams: bool,
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
            lines: cast.level().lines(size),
            streams: cast.streams()
                && columns.size.saturating_mul(columns.dst_stride).saturating_mul(size) > STREAMING_SPAN,
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
    fn write(&self, dst: &mut [u8], pitch: usize, size: usize, height: usize, width: usize) {
        let lines = height / self.line_rows;
        if lines > 0 {
            let panel =
                Panel { bytes: &self.bytes, pitch: self.pitch, columns: width, lines, streams: self.streams };
            (self.lines)(panel, dst, pitch);
        }
        let rest = height % self.line_rows * size;
        if rest > 0 {
            let bytes = &self.bytes[lines * self.line_rows * self.pitch..];
            self.write_rest(bytes, &mut dst[lines * LINE..], pitch, size, width, rest);
        }
    }

    /// Writes the first `rest` bytes of a line to each column, by way of whole lines elsewhere.
    fn write_rest(&self, bytes: &[u8], dst: &mut [u8], pitch: usize, size: usize, width: usize, rest: usize) {
        let mut whole = [0; COLUMNS * LINE];
        for left in (0..width).step_by(COLUMNS) {
            let columns = COLUMNS.min(width - left);
            let bytes = &bytes[left * size..];
            let panel = Panel { bytes, pitch: self.pitch, columns, lines: 1, streams: false };
            (self.lines)(panel, &mut whole, LINE);
            let columns = dst[left * pitch..].chunks_mut(pitch).take(columns);
            for (dst, line) in columns.zip(whole.as_chunks::<LINE>().0) {
                dst[..rest].copy_from_slice(&line[..rest]);
            }
        }
    }
}
