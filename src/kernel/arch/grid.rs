//! A mutable 2-D view of a destination: rows of bytes with a constant pitch (row stride). It can be split between rows and between
//! columns, so that threads write to disjoint columns of the same rows.
//!
//! **Safety argument.** A grid has exclusive access to the bytes of its rows, and none to the bytes between them. It is constructed from
//! a slice that stays mutably borrowed as long as the grid lives. Splitting consumes the grid and gives each side its own bytes of
//! every row; a sub-grid mutably borrows its parent. So two grids that are usable at the same time never overlap.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Rows of equal length in a mutable slice, at a constant pitch.
#[derive(Debug)]
pub struct Grid<'a> {
    /// The first byte of the first row; dangling where there are no bytes.
    start: NonNull<u8>,
    rows: usize,
    /// Bytes of a row.
    width: usize,
    /// Bytes from one row to the next.
    pitch: usize,
    /// Bytes of the slice that it was constructed from.
    slice_len: usize,
    bytes: PhantomData<&'a mut [u8]>,
}

// SAFETY: a grid gives what a `&mut [u8]` to each of its rows gives, and that is Send.
unsafe impl Send for Grid<'_> {}

impl<'a> Grid<'a> {
    /// A view of `rows` rows of `width` bytes, `pitch` bytes apart; `None` where rows overlap or reach past the slice.
    pub fn new(bytes: &'a mut [u8], rows: usize, width: usize, pitch: usize) -> Option<Grid<'a>> {
        let reach = match rows.checked_sub(1) {
            Some(steps) => steps.checked_mul(pitch)?.checked_add(width)?,
            None => 0,
        };
        let (start, slice_len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        (reach <= slice_len && width <= pitch).then_some(Grid {
            start,
            rows,
            width,
            pitch,
            slice_len,
            bytes: PhantomData,
        })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of each row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes of the slice that this grid, or the grid it was split from, was constructed from.
    pub fn slice_len(&self) -> usize {
        self.slice_len
    }

    /// Splits every row after its first `width` bytes. Panics where rows are shorter.
    pub fn split_columns(self, width: usize) -> (Grid<'a>, Grid<'a>) {
        let right = Grid { start: self.address(0, width), width: self.width - width, ..self };
        (Grid { width, ..self }, right)
    }

    /// Splits after the first `rows` rows. Panics where there are fewer.
    pub fn split_rows(self, rows: usize) -> (Grid<'a>, Grid<'a>) {
        assert!(rows <= self.rows, "rows 0..{rows} of {}", self.rows);
        let start = self.address(rows.min(self.rows.saturating_sub(1)), 0);
        let below = Grid { start, rows: self.rows - rows, ..self };
        (Grid { rows, ..self }, below)
    }

    /// The sub-grid of some rows and some bytes of each. Panics where a range is out of bounds.
    pub fn sub_grid(&mut self, rows: Range<usize>, columns: Range<usize>) -> Grid<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(
            columns.start <= columns.end && columns.end <= self.width,
            "bytes {columns:?} of {}",
            self.width
        );
        Grid {
            start: self.address(rows.start.min(self.rows.saturating_sub(1)), columns.start),
            rows: rows.len(),
            width: columns.len(),
            pitch: self.pitch,
            slice_len: self.slice_len,
            bytes: PhantomData,
        }
    }

    /// The bytes of a row. Panics where `row` is out of bounds.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the slice that the grid was constructed from contains the row and is mutably borrowed as long as the grid lives; no
        // other grid that is usable now overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.address(row, 0).as_ptr(), self.width) }
    }

    /// The address of a byte of a row, or of one past the row's end. Panics beyond.
    #[inline]
    fn address(&self, row: usize, byte: usize) -> NonNull<u8> {
        assert!(byte <= self.width, "byte {byte} of {}", self.width);
        if self.rows == 0 {
            return self.start;
        }
        // SAFETY: the offset stays inside the slice or one past its end: `new` has checked that for the end of the last row.
        unsafe { self.start.add(row * self.pitch + byte) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_and_sub_grids_write_only_their_own_bytes() {
        let mut bytes = [0; 3 * 10 + 6];
        let grid = Grid::new(&mut bytes, 4, 6, 10).unwrap();
        let (mut left, mut right) = grid.split_columns(2);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..4).for_each(|row| left.row(row).fill(1)));
            scope.spawn(|| (0..4).for_each(|row| right.row(row).fill(2)));
        });
        right.sub_grid(1..3, 1..3).row(1).fill(3);
        for (at, row) in bytes.chunks(10).enumerate() {
            let middle = if at == 2 { [2, 3, 3, 2] } else { [2; 4] };
            assert_eq!((&row[..2], &row[2..6]), (&[1, 1][..], &middle[..]));
            assert!(row[6..].iter().all(|&byte| byte == 0), "bytes between rows");
        }
    }

    #[test]
    fn a_grid_is_split_between_rows() {
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
            grid.sub_grid(0..rows, 0..width);
            grid.sub_grid(rows..rows, width..width);
            let (left, right) = grid.split_columns(width);
            assert_eq!((left.width(), right.width()), (width, 0));
            let (all, none) = left.split_rows(rows);
            assert_eq!((all.rows(), none.rows()), (rows, 0));
        }
    }

    #[test]
    #[should_panic(expected = "row 4 of 4")]
    fn a_row_out_of_bounds_panics() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().row(4);
    }

    #[test]
    #[should_panic(expected = "bytes 3..7 of 6")]
    fn a_sub_grid_wider_than_the_rows_panics() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().sub_grid(0..1, 3..7);
    }

    #[test]
    #[should_panic(expected = "rows 0..5 of 4")]
    fn a_split_past_the_last_row_panics() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().split_rows(5);
    }

    #[test]
    #[should_panic(expected = "byte 7 of 6")]
    fn a_split_past_the_row_end_panics() {
        Grid::new(&mut [0; 36], 4, 6, 10).unwrap().split_columns(7);
    }
}
