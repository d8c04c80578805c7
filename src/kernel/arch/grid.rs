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
    order: Order,
    /// Bytes of the slice that it was constructed from.
    slice_len: usize,
    bytes: PhantomData<&'a mut [u8]>,
}

/// Which rows those of a grid are, counted from its start.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// One after the other.
    Successive,
    /// As [`Grid::in_groups`] says: the first row, the number of groups and the rows in each.
    Grouped { first: usize, groups: usize, rows: usize },
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
            order: Order::Successive,
            slice_len,
            bytes: PhantomData,
        })
    }

    /// The same rows in another order: first those whose index is a multiple of `groups`, then those after these, and so on. So rows
    /// numbered `(j, i)` become `(i, j)`, if there are `groups` of `i`. `None` where groups would differ in size, or are there already.
    pub fn in_groups(self, groups: usize) -> Option<Grid<'a>> {
        let rows = self.rows.checked_div(groups)?;
        let is_even = matches!(self.order, Order::Successive) && rows > 0 && rows * groups == self.rows;
        is_even.then_some(Grid { order: Order::Grouped { first: 0, groups, rows }, ..self })
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
        let right = Grid { start: self.column(width), width: self.width - width, ..self };
        (Grid { width, ..self }, right)
    }

    /// Splits after the first `rows` rows. Panics where there are fewer.
    pub fn split_rows(self, rows: usize) -> (Grid<'a>, Grid<'a>) {
        assert!(rows <= self.rows, "rows 0..{rows} of {}", self.rows);
        let (start, order) = self.skip(rows);
        let below = Grid { start, order, rows: self.rows - rows, ..self };
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
        let across = Grid { start: self.column(columns.start), width: columns.len(), ..*self };
        let (start, order) = across.skip(rows.start);
        Grid { start, order, rows: rows.len(), ..across }
    }

    /// The start and the order of the grid without its first `rows` rows.
    fn skip(&self, rows: usize) -> (NonNull<u8>, Order) {
        match self.order {
            Order::Successive => (self.address(rows.min(self.rows.saturating_sub(1))), self.order),
            Order::Grouped { first, groups, rows: size } => {
                (self.start, Order::Grouped { first: first + rows, groups, rows: size })
            }
        }
    }

    /// The bytes of a row. Panics where `row` is out of bounds.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the slice that the grid was constructed from contains the row and is mutably borrowed as long as the grid lives; no
        // other grid that is usable now overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.address(row).as_ptr(), self.width) }
    }

    /// The start without the first `byte` bytes of each row. Panics where rows are shorter.
    fn column(&self, byte: usize) -> NonNull<u8> {
        assert!(byte <= self.width, "byte {byte} of {}", self.width);
        // SAFETY: where there are rows, `new` has checked that the slice has this byte of them, or that they end before it.
        if self.rows == 0 { self.start } else { unsafe { self.start.add(byte) } }
    }

    /// The address of a row, or of one past the last byte where there is none.
    #[inline]
    fn address(&self, row: usize) -> NonNull<u8> {
        if self.rows == 0 {
            return self.start;
        }
        let row = match self.order {
            Order::Successive => row,
            Order::Grouped { first, groups, rows } => (first + row) % rows * groups + (first + row) / rows,
        };
        // SAFETY: the offset stays inside the slice: `new` has checked that for the end of the last row, and an order is one of the rows that
        // there are.
        unsafe { self.start.add(row * self.pitch) }
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
    fn rows_in_groups_are_the_same_rows_in_another_order() {
        fn new(bytes: &mut [u8]) -> Grid<'_> {
            Grid::new(bytes, 6, 2, 3).unwrap()
        }
        let mut bytes = [0; 5 * 3 + 2];
        assert!([0, 4, 7].into_iter().all(|groups| new(&mut bytes).in_groups(groups).is_none()));
        assert!(new(&mut bytes).in_groups(2).unwrap().in_groups(2).is_none());
        // Rows (j, i) of 3 x 2 in the order (i, j), cut in every way.
        for (split, part) in (0..=6).flat_map(|split| [(split, 0), (split, 1)]) {
            bytes.fill(0);
            let (left, right) = new(&mut bytes).in_groups(2).unwrap().split_columns(1);
            for (at, grid) in [left, right].into_iter().enumerate() {
                let (mut above, mut below) = grid.split_rows(split);
                assert_eq!((above.rows(), below.rows()), (split, 6 - split));
                for row in 0..split {
                    above.row(row).fill(row as u8 + 1);
                }
                let mut below = below.sub_grid(part.min(6 - split)..6 - split, 0..1);
                for row in 0..below.rows() {
                    below.row(row).fill((split + part + row) as u8 + 1 + 10 * at as u8);
                }
            }
            for (row, number) in [0, 3, 1, 4, 2, 5].into_iter().enumerate() {
                let value = if number == split && part == 1 { 0 } else { number as u8 + 1 };
                let of = |at: usize| if number < split || value == 0 { value } else { value + 10 * at as u8 };
                assert_eq!(bytes[row * 3..][..2], [of(0), of(1)], "{split} {part}");
            }
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
