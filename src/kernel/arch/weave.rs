//! Weaving: rows of small elements become rows of 64-bit words, each word holding one column's next few elements.
//!
//! Half of a transpose. It runs along the rows, so it is a vector loop; what remains is to pick one word of every row.

/// Bytes of a cache line, which a weave fills for each column.
pub(in crate::kernel) const LINE: usize = 64;
/// Columns woven at a time, at most.
pub(in crate::kernel) const COLUMNS: usize = 64;

/// The lines of some columns: word `k` of column `c` is `[k][c]`.
pub(in crate::kernel) type Words = [[u64; COLUMNS]; LINE / 8];

/// Fills the lines of the first columns of a tile.
pub(in crate::kernel) type Weave = fn(Panel<'_>, &mut Words);

/// The rows of a tile that make up lines, from the first column to weave on.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Panel<'a> {
    /// The rows, the last of which may be the end.
    pub(in crate::kernel) bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub(in crate::kernel) pitch: usize,
    /// How many columns to weave, up to [`COLUMNS`].
    pub(in crate::kernel) columns: usize,
}

impl<'a> Panel<'a> {
    /// The elements of a row.
    #[inline(always)]
    fn row<const N: usize>(self, row: usize) -> &'a [[u8; N]] {
        self.bytes[row * self.pitch..][..self.columns * N].as_chunks().0
    }
}

/// The weave for elements of a size.
pub(in crate::kernel) fn weave(size: usize) -> Weave {
    match size {
        1 => weave_1,
        2 => weave_2,
        4 => weave_4,
        8 => weave_8,
        _ => weave_16,
    }
}

fn weave_1(panel: Panel<'_>, words: &mut Words) {
    let mut pairs = [[[0; 2]; COLUMNS]; 4];
    let mut quads = [[[0; 4]; COLUMNS]; 2];
    for (k, words) in words.iter_mut().enumerate() {
        for (at, pairs) in pairs.iter_mut().enumerate() {
            join_1(panel.row(8 * k + 2 * at), panel.row(8 * k + 2 * at + 1), pairs);
        }
        let [a, b, c, d] = &pairs;
        let [low, high] = &mut quads;
        let columns = panel.columns.min(COLUMNS);
        join_2(&a[..columns], &b[..columns], low);
        join_2(&c[..columns], &d[..columns], high);
        join_4(&low[..columns], &high[..columns], words);
    }
}

fn weave_2(panel: Panel<'_>, words: &mut Words) {
    let mut pairs = [[[0; 4]; COLUMNS]; 2];
    for (k, words) in words.iter_mut().enumerate() {
        let [low, high] = &mut pairs;
        join_2(panel.row(4 * k), panel.row(4 * k + 1), low);
        join_2(panel.row(4 * k + 2), panel.row(4 * k + 3), high);
        let columns = panel.columns.min(COLUMNS);
        join_4(&low[..columns], &high[..columns], words);
    }
}

fn weave_4(panel: Panel<'_>, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        join_4(panel.row(2 * k), panel.row(2 * k + 1), words);
    }
}

fn weave_8(panel: Panel<'_>, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        for (word, element) in words.iter_mut().zip(panel.row(k)) {
            *word = u64::from_le_bytes(*element);
        }
    }
}

fn weave_16(panel: Panel<'_>, words: &mut Words) {
    let (pairs, _) = words.as_chunks_mut();
    for (k, [low, high]) in pairs.iter_mut().enumerate() {
        for ((low, high), element) in low.iter_mut().zip(high).zip(panel.row(k)) {
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
