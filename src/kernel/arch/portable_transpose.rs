//! The portable transpose of a panel: source rows with contiguous elements become whole cache lines of the destination's rows.
//!
//! It first interleaves rows of small elements to rows of 64-bit words; a word holds the next few elements of one column.
//! The interleave runs along the rows, so the compiler vectorizes it. After that, a destination row takes one word of every
//! row.

use super::Grid;

/// Bytes of a cache line.
pub(in crate::kernel) const CACHE_LINE_BYTES: usize = 64;
/// A cache line at its alignment.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct CacheLine(pub(super) [u8; CACHE_LINE_BYTES]);

/// The maximum number of columns that are transposed before they are stored.
pub(super) const COLUMNS_PER_PASS: usize = 64;
/// The maximum number of cache lines that are stored to a destination row one after the other. One line at a time leaves
/// memory bandwidth unused.
pub(in crate::kernel) const LINES_PER_PASS: usize = 4;

/// Transposes a panel: cache line `l` of column `c` goes to byte `l * CACHE_LINE_BYTES` of row `c` of the destination.
pub(in crate::kernel) type PanelTranspose = fn(Panel<'_>, &mut Grid<'_>);

/// Source rows to transpose. `CACHE_LINE_BYTES / element size` rows fill a cache line of each column.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Panel<'a> {
    /// The rows. Where `columns` is not a multiple of the rows that fill a cache line, other elements follow up to the next multiple;
    /// their values are ignored.
    pub(in crate::kernel) bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub(in crate::kernel) pitch: usize,
    /// How many elements of each row to transpose.
    pub(in crate::kernel) columns: usize,
    /// How many cache lines the rows fill in each column.
    pub(in crate::kernel) lines: usize,
    /// Whether to use non-temporal stores, at levels that have them.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(dead_code, reason = "only the levels above the generic one have non-temporal stores")
    )]
    pub(in crate::kernel) non_temporal: bool,
}

/// One cache line of each column: word `k` of column `c` is `[k][c]`.
type ColumnWords = [[u64; COLUMNS_PER_PASS]; CACHE_LINE_BYTES / 8];

/// Interleaves the rows of a strip to one cache line of each column.
type Interleave = fn(Strip<'_>, &mut ColumnWords);

/// The part of a panel that is interleaved at a time: the rows that fill one cache line, up to [`COLUMNS_PER_PASS`] columns.
#[derive(Clone, Copy)]
struct Strip<'a> {
    bytes: &'a [u8],
    pitch: usize,
    columns: usize,
}

impl<'a> Strip<'a> {
    /// The elements of a row, each of `N` bytes.
    #[inline(always)]
    fn row<const N: usize>(self, row: usize) -> &'a [[u8; N]] {
        self.bytes[row * self.pitch..][..self.columns * N].as_chunks().0
    }
}

/// The portable transpose of panels whose elements have `element_size` bytes.
pub(super) fn panel_transpose(element_size: usize) -> PanelTranspose {
    match element_size {
        1 => |panel, dst| transpose_with(interleave_1, 1, panel, dst),
        2 => |panel, dst| transpose_with(interleave_2, 2, panel, dst),
        4 => |panel, dst| transpose_with(interleave_4, 4, panel, dst),
        8 => |panel, dst| transpose_with(interleave_8, 8, panel, dst),
        _ => |panel, dst| transpose_with(interleave_16, 16, panel, dst),
    }
}

fn transpose_with(interleave: Interleave, size: usize, panel: Panel<'_>, dst: &mut Grid<'_>) {
    let mut lines = [[[0; COLUMNS_PER_PASS]; CACHE_LINE_BYTES / 8]; LINES_PER_PASS];
    for first_column in (0..panel.columns).step_by(COLUMNS_PER_PASS) {
        let columns = COLUMNS_PER_PASS.min(panel.columns - first_column);
        for first_line in (0..panel.lines).step_by(LINES_PER_PASS) {
            let count = LINES_PER_PASS.min(panel.lines - first_line);
            for (line, words) in lines[..count].iter_mut().enumerate() {
                let row = (first_line + line) * (CACHE_LINE_BYTES / size);
                let bytes = &panel.bytes[row * panel.pitch + first_column * size..];
                interleave(Strip { bytes, pitch: panel.pitch, columns }, words);
            }
            for column in 0..columns {
                let dst = &mut dst.row(first_column + column)[first_line * CACHE_LINE_BYTES..];
                write_column(&lines[..count], column, dst);
            }
        }
    }
}

/// Stores the cache lines of a column.
#[inline]
fn write_column(lines: &[ColumnWords], column: usize, dst: &mut [u8]) {
    for (words, line) in lines.iter().zip(dst.as_chunks_mut::<CACHE_LINE_BYTES>().0) {
        for (bytes, row) in line.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = row[column].to_le_bytes();
        }
    }
}

fn interleave_1(strip: Strip<'_>, words: &mut ColumnWords) {
    let mut pairs = [[[0; 2]; COLUMNS_PER_PASS]; 4];
    let mut quads = [[[0; 4]; COLUMNS_PER_PASS]; 2];
    for (k, words) in words.iter_mut().enumerate() {
        for (at, pairs) in pairs.iter_mut().enumerate() {
            interleave_rows_1(strip.row(8 * k + 2 * at), strip.row(8 * k + 2 * at + 1), pairs);
        }
        let [a, b, c, d] = &pairs;
        let [low, high] = &mut quads;
        let columns = strip.columns.min(COLUMNS_PER_PASS);
        interleave_rows_2(&a[..columns], &b[..columns], low);
        interleave_rows_2(&c[..columns], &d[..columns], high);
        interleave_rows_4(&low[..columns], &high[..columns], words);
    }
}

fn interleave_2(strip: Strip<'_>, words: &mut ColumnWords) {
    let mut pairs = [[[0; 4]; COLUMNS_PER_PASS]; 2];
    for (k, words) in words.iter_mut().enumerate() {
        let [low, high] = &mut pairs;
        interleave_rows_2(strip.row(4 * k), strip.row(4 * k + 1), low);
        interleave_rows_2(strip.row(4 * k + 2), strip.row(4 * k + 3), high);
        let columns = strip.columns.min(COLUMNS_PER_PASS);
        interleave_rows_4(&low[..columns], &high[..columns], words);
    }
}

fn interleave_4(strip: Strip<'_>, words: &mut ColumnWords) {
    for (k, words) in words.iter_mut().enumerate() {
        interleave_rows_4(strip.row(2 * k), strip.row(2 * k + 1), words);
    }
}

fn interleave_8(strip: Strip<'_>, words: &mut ColumnWords) {
    for (k, words) in words.iter_mut().enumerate() {
        for (word, element) in words.iter_mut().zip(strip.row(k)) {
            *word = u64::from_le_bytes(*element);
        }
    }
}

fn interleave_16(strip: Strip<'_>, words: &mut ColumnWords) {
    let (pairs, _) = words.as_chunks_mut();
    for (k, [low, high]) in pairs.iter_mut().enumerate() {
        for ((low, high), element) in low.iter_mut().zip(high).zip(strip.row(k)) {
            let value = u128::from_le_bytes(*element);
            *low = value as u64;
            *high = (value >> 64) as u64;
        }
    }
}

/// Interleaves the elements of two rows to elements of twice the size. Not inlined: where the compiler knows the length, it
/// unrolls the loop instead of vectorizing it.
#[inline(never)]
fn interleave_rows_1(low: &[[u8; 1]], high: &[[u8; 1]], out: &mut [[u8; 2]]) {
    for (out, ([low], [high])) in out.iter_mut().zip(low.iter().zip(high)) {
        *out = (u16::from(*low) | u16::from(*high) << 8).to_le_bytes();
    }
}

/// As [`interleave_rows_1`].
#[inline(never)]
fn interleave_rows_2(low: &[[u8; 2]], high: &[[u8; 2]], out: &mut [[u8; 4]]) {
    for (out, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
        let (low, high) = (u16::from_le_bytes(*low), u16::from_le_bytes(*high));
        *out = (u32::from(low) | u32::from(high) << 16).to_le_bytes();
    }
}

/// As [`interleave_rows_1`].
#[inline(never)]
fn interleave_rows_4(low: &[[u8; 4]], high: &[[u8; 4]], out: &mut [u64]) {
    for (out, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
        let (low, high) = (u32::from_le_bytes(*low), u32::from_le_bytes(*high));
        *out = u64::from(low) | u64::from(high) << 32;
    }
}
