//! Weaving: rows of small elements become rows of 64-bit words, each word holding one column's next few elements.
//!
//! Half of a transpose. It runs along the rows, so it is a vector loop; what remains is to pick one word of every row.

/// Bytes of a cache line, which a weave fills for each column.
pub(in crate::kernel) const LINE: usize = 64;
/// Columns woven at a time.
pub(in crate::kernel) const COLUMNS: usize = 32;

/// The lines of some columns: word `k` of column `c` is `[k][c]`.
pub(in crate::kernel) type Words = [[u64; COLUMNS]; LINE / 8];

/// Fills the lines of the first columns of a tile, whose rows lie the given number of bytes apart.
pub(in crate::kernel) type Weave = fn(&[u8], usize, &mut Words);

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

/// The columns' elements in a row of a tile.
#[inline(always)]
fn row<const N: usize>(tile: &[u8], pitch: usize, row: usize) -> &[[u8; N]; COLUMNS] {
    let (elements, _) = tile[row * pitch..].as_chunks::<N>();
    elements.first_chunk().unwrap_or(&[[0; N]; COLUMNS])
}

fn weave_1(tile: &[u8], pitch: usize, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        let mut quads = [[0_u32; COLUMNS]; 2];
        for (half, quads) in quads.iter_mut().enumerate() {
            let [a, b, c, d] = [0, 1, 2, 3].map(|at| row::<1>(tile, pitch, 8 * k + 4 * half + at));
            for (quad, (((a, b), c), d)) in quads.iter_mut().zip(a.iter().zip(b).zip(c).zip(d)) {
                let (low, high) = (u16::from_le_bytes([a[0], b[0]]), u16::from_le_bytes([c[0], d[0]]));
                *quad = u32::from(low) | u32::from(high) << 16;
            }
        }
        let [low, high] = &quads;
        join(low, high, words);
    }
}

fn weave_2(tile: &[u8], pitch: usize, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        let mut pairs = [[0_u32; COLUMNS]; 2];
        for (half, pairs) in pairs.iter_mut().enumerate() {
            let [a, b] = [0, 1].map(|at| row::<2>(tile, pitch, 4 * k + 2 * half + at));
            for (pair, (a, b)) in pairs.iter_mut().zip(a.iter().zip(b)) {
                *pair = u32::from(u16::from_le_bytes(*a)) | u32::from(u16::from_le_bytes(*b)) << 16;
            }
        }
        let [low, high] = &pairs;
        join(low, high, words);
    }
}

fn weave_4(tile: &[u8], pitch: usize, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        let [low, high] = [0, 1].map(|at| row::<4>(tile, pitch, 2 * k + at));
        for (word, (low, high)) in words.iter_mut().zip(low.iter().zip(high)) {
            *word = u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32;
        }
    }
}

fn weave_8(tile: &[u8], pitch: usize, words: &mut Words) {
    for (k, words) in words.iter_mut().enumerate() {
        for (word, element) in words.iter_mut().zip(row::<8>(tile, pitch, k)) {
            *word = u64::from_le_bytes(*element);
        }
    }
}

fn weave_16(tile: &[u8], pitch: usize, words: &mut Words) {
    for (k, words) in words.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let [low, high] = words;
        for ((low, high), element) in low.iter_mut().zip(high).zip(row::<16>(tile, pitch, k)) {
            let value = u128::from_le_bytes(*element);
            *low = value as u64;
            *high = (value >> 64) as u64;
        }
    }
}

#[inline(always)]
fn join(low: &[u32; COLUMNS], high: &[u32; COLUMNS], words: &mut [u64; COLUMNS]) {
    for (word, (low, high)) in words.iter_mut().zip(low.iter().zip(high)) {
        *word = u64::from(*low) | u64::from(*high) << 32;
    }
}
