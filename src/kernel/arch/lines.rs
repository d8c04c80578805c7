//! Lines of columns: the transpose of a panel whose rows lie side by side, into whole 64-byte lines of the destination.
//!
//! The generic way weaves first: rows of small elements become rows of 64-bit words, each word holding one column's next few
//! elements. That runs along the rows, so it is a vector loop; what remains is to pick one word of every row.

use super::Grid;

/// Bytes of a cache line.
pub(in crate::kernel) const LINE: usize = 64;
/// A line where a cache has its lines.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; LINE]);

/// Columns that are made into lines at a time, at most.
pub(super) const COLUMNS: usize = 64;
/// Lines that a column gets one after the other. One line at a time leaves the memory waiting.
pub(in crate::kernel) const LINES: usize = 4;

/// Writes a panel's columns: line `l` of column `c` goes to byte `l * LINE` of row `c` of the destination.
pub(in crate::kernel) type Lines = fn(Panel<'_>, &mut Grid<'_>);

/// Rows that are the columns of a destination. Elements of `size` bytes make a line of `LINE / size` rows.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Panel<'a> {
    /// The rows, at least [`LINE`] bytes apart. Where the columns are no multiple of a line's rows, others follow up to one, whatever
    /// they hold.
    pub(in crate::kernel) bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub(in crate::kernel) pitch: usize,
    /// How many elements of each row to write.
    pub(in crate::kernel) columns: usize,
    /// How many lines the rows fill.
    pub(in crate::kernel) lines: usize,
    /// Whether to write past the caches, where the level can.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only the levels above the generic one can")
    )]
    pub(in crate::kernel) streams: bool,
}

/// The lines of some columns: word `k` of column `c` is `[k][c]`.
type Words = [[u64; COLUMNS]; LINE / 8];

/// Fills the lines of some columns.
type Weave = fn(Strip<'_>, &mut Words);

/// The part of a panel that one weave takes: the rows of a line, up to [`COLUMNS`] columns.
#[derive(Clone, Copy)]
struct Strip<'a> {
    bytes: &'a [u8],
    pitch: usize,
    columns: usize,
}

impl<'a> Strip<'a> {
    /// The elements of a row.
    #[inline(always)]
    fn row<const N: usize>(self, row: usize) -> &'a [[u8; N]] {
        self.bytes[row * self.pitch..][..self.columns * N].as_chunks().0
    }
}

/// The transpose for elements of a size, in safe code.
pub(super) fn lines(size: usize) -> Lines {
    match size {
        1 => |panel, dst| weave_panel(weave_1, 1, panel, dst),
        2 => |panel, dst| weave_panel(weave_2, 2, panel, dst),
        4 => |panel, dst| weave_panel(weave_4, 4, panel, dst),
        8 => |panel, dst| weave_panel(weave_8, 8, panel, dst),
        _ => |panel, dst| weave_panel(weave_16, 16, panel, dst),
    }
}

fn weave_panel(weave: Weave, size: usize, panel: Panel<'_>, dst: &mut Grid<'_>) {
    let mut lines = [[[0; COLUMNS]; LINE / 8]; LINES];
    for left in (0..panel.columns).step_by(COLUMNS) {
        let columns = COLUMNS.min(panel.columns - left);
        for first in (0..panel.lines).step_by(LINES) {
            let count = LINES.min(panel.lines - first);
            for (line, words) in lines[..count].iter_mut().enumerate() {
                let row = (first + line) * (LINE / size);
                let bytes = &panel.bytes[row * panel.pitch + left * size..];
                weave(Strip { bytes, pitch: panel.pitch, columns }, words);
            }
            for column in 0..columns {
                let dst = &mut dst.row(left + column)[first * LINE..];
                write_column(&lines[..count], column, dst);
            }
        }
    }
}

/// Writes the lines of a column.
#[inline]
fn write_column(lines: &[Words], column: usize, dst: &mut [u8]) {
    for (words, line) in lines.iter().zip(dst.as_chunks_mut::<LINE>().0) {
        for (bytes, row) in line.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = row[column].to_le_bytes();
        }
    }
}

fn weave_1(strip: Strip<'_>, words: &mut Words) {
    let mut pairs = [[[0; 2]; COLUMNS]; 4];
    let mut quads = [[[0; 4]; COLUMNS]; 2];
    for (k, words) in words.iter_mut().enumerate() {
        for (at, pairs) in pairs.iter_mut().enumerate() {
            join_1(strip.row(8 * k + 2 * at), strip.row(8 * k + 2 * at + 1), pairs);
        }
        let [a, b, c, d] = &pairs;
        let [low, high] = &mut quads;
        let columns = strip.columns.min(COLUMNS);
        join_2(&a[..columns], &b[..columns], low);
        join_2(&c[..columns], &d[..columns], high);
        join_4(&low[..columns], &high[..columns], words);
    }
}

fn weave_2(strip: Strip<'_>, words: &mut Words) {
    let mut pairs = [[[0; 4]; COLUMNS]; 2];
    for (k, words) in words.iter_mut().enumerate() {
        let [low, high] = &mut pairs;
        join_2(strip.row(4 * k), strip.row(4 * k + 1), low);
        join_2(strip.row(4 * k + 2), strip.row(4 * k + 3), high);
        let columns = strip.columns.min(COLUMNS);
        join_4(&low[..columns], &high[..columns], words);
    }
}

fn weave_4(strip: Strip<'_>, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        join_4(strip.row(2 * k), strip.row(2 * k + 1), words);
    }
}

fn weave_8(strip: Strip<'_>, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        for (word, element) in words.iter_mut().zip(strip.row(k)) {
            *word = u64::from_le_bytes(*element);
        }
    }
}

fn weave_16(strip: Strip<'_>, words: &mut Words) {
    let (pairs, _) = words.as_chunks_mut();
    for (k, [low, high]) in pairs.iter_mut().enumerate() {
        for ((low, high), element) in low.iter_mut().zip(high).zip(strip.row(k)) {
            let value = u128::from_le_bytes(*element);
            *low = value as u64;
            *high = (value >> 64) as u64;
        }
    }
}

/// Joins the elements of two rows to elements of twice the size. Not inlined: where the compiler knows the length, it
/// unrolls the loop before it could make vectors of it.
#[inline(never)]
fn join_1(low: &[[u8; 1]], high: &[[u8; 1]], out: &mut [[u8; 2]]) {
    for (out, ([low], [high])) in out.iter_mut().zip(low.iter().zip(high)) {
        *out = (u16::from(*low) | u16::from(*high) << 8).to_le_bytes();
    }
}

/// As [`join_1`].
#[inline(never)]
fn join_2(low: &[[u8; 2]], high: &[[u8; 2]], out: &mut [[u8; 4]]) {
    for (out, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
        let (low, high) = (u16::from_le_bytes(*low), u16::from_le_bytes(*high));
        *out = (u32::from(low) | u32::from(high) << 16).to_le_bytes();
    }
}

/// As [`join_1`].
#[inline(never)]
fn join_4(low: &[[u8; 4]], high: &[[u8; 4]], out: &mut [u64]) {
    for (out, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
        let (low, high) = (u32::from_le_bytes(*low), u32::from_le_bytes(*high));
        *out = u64::from(low) | u64::from(high) << 32;
    }
}
