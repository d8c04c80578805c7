//! A rectangle of a destination: rows of bytes at equal distances, which may be cut between rows and between columns, so that threads
//! can write to the same rows side by side.
//!
//! **Protocol.** A grid holds the right to write to the bytes of its rows, and to no byte between them. It is made from a slice that is
//! borrowed as long as the grid lives; cutting it gives each side its own bytes of every row; a part borrows the grid that it is
//! a part of. So the bytes of two grids that can be used at one time never overlap.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Rows of equal length in a destination, equally far apart.
#[derive(Debug)]
pub struct Grid<'a> {
    /// The first byte of the first row; of nothing, where there are no bytes.
    start: NonNull<u8>,
    rows: usize,
    /// Bytes of a row.
    width: usize,
    /// Bytes from one row to the next.
    pitch: usize,
    /// Bytes of the slice that it was made of.
    whole: usize,
    bytes: PhantomData<&'a mut [u8]>,
}

// SAFETY: a grid is what `&mut` to each of its rows would be, and those may go to other threads.
unsafe impl Send for Grid<'_> {}

impl<'a> Grid<'a> {
    /// `rows` rows of `width` bytes, `pitch` bytes apart; `None` where they overlap or reach past the slice.
    pub fn new(bytes: &'a mut [u8], rows: usize, width: usize, pitch: usize) -> Option<Grid<'a>> {
        let reach = match rows.checked_sub(1) {
            Some(steps) => steps.checked_mul(pitch)?.checked_add(width)?,
            None => 0,
        };
        let (start, whole) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        (reach <= whole && width <= pitch).then_some(Grid {
            start,
            rows,
            width,
            pitch,
            whole,
            bytes: PhantomData,
        })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of each row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes of the slice that it is some of.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// The first `width` bytes of every row, and the rest of them. Panics where a row has fewer.
    pub fn split_columns(self, width: usize) -> (Grid<'a>, Grid<'a>) {
        let right = Grid { start: self.at(0, width), width: self.width - width, ..self };
        (Grid { width, ..self }, right)
    }

    /// The first `rows` rows, and the rest of them. Panics where there are fewer.
    pub fn split_rows(self, rows: usize) -> (Grid<'a>, Grid<'a>) {
        assert!(rows <= self.rows, "rows 0..{rows} of {}", self.rows);
        let start = self.at(rows.min(self.rows.saturating_sub(1)), 0);
        let below = Grid { start, rows: self.rows - rows, ..self };
        (Grid { rows, ..self }, below)
    }

    /// Some bytes of some rows. Panics where there are none such.
    pub fn part(&mut self, rows: Range<usize>, columns: Range<usize>) -> Grid<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(
            columns.start <= columns.end && columns.end <= self.width,
            "bytes {columns:?} of {}",
            self.width
        );
        Grid {
            start: self.at(rows.start.min(self.rows.saturating_sub(1)), columns.start),
            rows: rows.len(),
            width: columns.len(),
            pitch: self.pitch,
            whole: self.whole,
            bytes: PhantomData,
        }
    }

    /// A row's bytes. Panics where there is no such row.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the slice that the grid was made of holds the bytes of its rows, is borrowed for as long as the grid lives, and
        // no other grid that can be used now has bytes of this row in common with it.
        unsafe { std::slice::from_raw_parts_mut(self.at(row, 0).as_ptr(), self.width) }
    }

    /// Where a byte of a row is; one past the row's end at most. Panics beyond.
    #[inline]
    fn at(&self, row: usize, byte: usize) -> NonNull<u8> {
        assert!(byte <= self.width, "byte {byte} of {}", self.width);
        if self.rows == 0 {
            return self.start;
        }
        // SAFETY: the slice holds every row, so the offset, which `new` has checked for the last one, stays inside it or one past.
        unsafe { self.start.add(row * self.pitch + byte) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_grid_are_the_bytes_of_their_place() {
        let mut bytes = [0; 3 * 10 + 6];
        let grid = Grid::new(&mut bytes, 4, 6, 10).unwrap();
        let (mut left, mut right) = grid.split_columns(2);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..4).for_each(|row| left.row(row).fill(1)));
            scope.spawn(|| (0..4).for_each(|row| right.row(row).fill(2)));
        });
        right.part(1..3, 1..3).row(1).fill(3);
        for (at, row) in bytes.chunks(10).enumerate() {
            let middle = if at == 2 { [2, 3, 3, 2] } else { [2; 4] };
            assert_eq!((&row[..2], &row[2..6]), (&[1, 1][..], &middle[..]));
            assert!(row[6..].iter().all(|&byte| byte == 0), "bytes between rows");
        }
    }

    #[test]
    fn a_grid_is_cut_below_a_row() {
        let mut bytes = [0; 3 * 10 + 6];
        let (mut above, mut below) = Grid::new(&mut bytes, 4, 6, 10).unwrap().split_rows(3);
        assert_eq!((above.rows(), below.rows(), below.width()), (3, 1, 6));
        (0..3).for_each(|row| above.row(row).fill(1));
        below.row(0).fill(2);
        for (at, row) in bytes.chunks(10).enumerate() {
            assert_eq!(row[..6], [if at < 3 { 1 } else { 2 }; 6]);
        }
    }

    #[test]
    fn a_grid_stays_inside_its_slice() {
        let mut bytes = [0; 36];
        for (rows, width, pitch) in
            [(4, 7, 10), (5, 6, 10), (2, 6, 5), (usize::MAX, 6, 10), (2, 0, usize::MAX), (1, 37, 40)]
        {
            assert!(Grid::new(&mut bytes, rows, width, pitch).is_none(), "{rows} {width} {pitch}");
        }
        for (rows, width, pitch) in [(0, 50, 100), (4, 6, 10), (1, 36, 1000), (3, 0, 18)] {
            let mut grid = Grid::new(&mut bytes, rows, width, pitch).unwrap();
            assert_eq!((grid.rows(), grid.width()), (rows, width));
            grid.part(0..rows, 0..width);
            grid.part(rows..rows, width..width);
            let (left, right) = grid.split_columns(width);
            assert_eq!((left.width(), right.width()), (width, 0));
            let (all, none) = left.split_rows(rows);
            assert_eq!((all.rows(), none.rows()), (rows, 0));
        }
    }

    #[test]
    #[should_panic(expected = "row 4 of 4")]
    fn a_row_too_far_is_refused() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().row(4);
    }

    #[test]
    #[should_panic(expected = "bytes 3..7 of 6")]
    fn a_part_too_wide_is_refused() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().part(0..1, 3..7);
    }

    #[test]
    #[should_panic(expected = "rows 0..5 of 4")]
    fn a_cut_too_low_is_refused() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().split_rows(5);
    }

    #[test]
    #[should_panic(expected = "byte 7 of 6")]
    fn a_cut_too_far_is_refused() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().split_columns(7);
    }
}
