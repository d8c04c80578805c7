//! Transposes of matrices, and permutations that are the transpose of one, cut into bands of source rows: each band is read in the file's
//! order, with few long reads, and written to some columns of the destination. A matrix with few, long rows is cut into bands of
//! columns instead.

use super::plan::merged;
use super::read::{BAND_MIN_BYTES, Elements, incomplete_write, scratch};
use crate::bytes::{Access, Reader, Scratch};
use crate::error::Result;
use crate::kernel::{self, Grid};
use crate::layout::Layout;
use crate::num::to_usize;

/// Matrices with fewer rows or columns are not cut into bands.
const MATRIX_SIDE_MIN: u64 = 8;

/// The most bytes that one thread reads at a time. More than the L2 cache holds: rows that fill whole cache lines are worth it.
const PANEL_MAX_BYTES: u64 = 2 << 20;

/// The size of a cache line of the destination.
const CACHE_LINE_BYTES: u64 = 64;

/// The bytes of a destination row that are best written together.
const DST_RUN_BYTES: u64 = 4 * CACHE_LINE_BYTES;

/// A part of a source row of at least this size is worth a read of its own.
const COLUMN_READ_MIN_BYTES: u64 = 64 << 10;

/// The least number of rows of a panel, if the rows are too long for a panel of whole ones.
const PANEL_ROWS_MIN: u64 = 32;

/// The sizes of units that are moved as bands. Longer ones are read well one by one.
const UNIT_BYTES: std::ops::RangeInclusive<u64> = 4 * CACHE_LINE_BYTES..=PANEL_MAX_BYTES;

/// Some rows of a matrix in a storage, or some columns of all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Band {
    /// The index of the first element.
    src: u64,
    rows: u64,
    columns: u64,
    /// The successive elements that are moved together: one, or the last dimension, if those before it change places.
    unit: u64,
    /// The stride from one row to the next, in elements.
    pitch: u64,
    /// The columns of the whole matrix are so many groups of successive ones. The transposed matrix has the first column of each group as
    /// its first rows, then the second ones, and so on: its dimensions are those of three in reverse.
    groups: u64,
}

/// Memory that a thread reuses from job to job; it is not cleared.
pub(super) struct Workspace {
    /// For bytes that were read.
    pub(super) scratch: Scratch,
    /// The transpose kernel's.
    tile: Vec<u8>,
}

impl Default for Workspace {
    fn default() -> Workspace {
        Workspace { scratch: scratch(), tile: Vec::new() }
    }
}

impl Band {
    /// The whole matrix, if the layout is the transpose of one, or the reverse of three dimensions; else `None`. What is moved are elements
    /// of `size` bytes, or all of the last dimension.
    pub(super) fn of(layout: &Layout, size: u64) -> Option<Band> {
        let dims = merged(layout);
        let (unit, dims) = match &dims[..] {
            [outer @ .., last] if last.src == 1 => (last.size, outer),
            all => (1, all),
        };
        let (inner, groups, outer) = match *dims {
            [inner, outer] => (inner, 1, outer),
            [inner, middle, outer] if inner.src.checked_mul(inner.size) == Some(middle.src) => {
                (inner, middle.size, outer)
            }
            _ => return None,
        };
        let columns = inner.size.checked_mul(groups)?;
        let band = Band { src: layout.offset, rows: outer.size, columns, unit, pitch: outer.src, groups };
        let is_matrix = inner.src == unit
            && band.pitch >= columns.checked_mul(unit)?
            && match unit {
                1 => band.rows >= MATRIX_SIDE_MIN && columns >= MATRIX_SIDE_MIN,
                _ => UNIT_BYTES.contains(&unit.saturating_mul(size)),
            };
        is_matrix.then_some(band)
    }

    /// Cuts it into bands, each with its part of the destination, for `threads` threads. Elements have `from` bytes in the source
    /// and `to` in the destination. A cache line of the destination belongs to one band, unless reads wait for answers. `None` if `out` has
    /// another size.
    pub(super) fn cut(
        self,
        from: u64,
        to: u64,
        threads: usize,
        access: Access,
        out: &mut [u8],
    ) -> Option<Vec<(Band, Grid<'_>)>> {
        let (from, to) = (self.unit.checked_mul(from)?, self.unit.checked_mul(to)?);
        let width = to_usize(self.rows.checked_mul(to)?);
        let mut grid = Grid::new(out, to_usize(self.columns), width, width)?;
        if self.groups > 1 {
            grid = grid.in_groups(to_usize(self.groups))?;
        }
        let threads = threads as u64;
        let band_count = (self.columns.checked_mul(self.rows)?.checked_mul(to)? / BAND_MIN_BYTES)
            .clamp(threads, threads * 16);
        let (run, read_min) = match access.waits_for_requests() {
            true => (1, access.block),
            false => ((DST_RUN_BYTES / to).max(1), COLUMN_READ_MIN_BYTES),
        };
        let band_columns = self.columns.div_ceil(band_count);
        // If there are too few rows for all threads, each band is some columns of all rows, if those are worth a read of their own.
        Some(if self.rows / run < threads && band_columns.saturating_mul(from) >= read_min {
            self.cut_columns(band_columns, grid)
        } else {
            self.cut_rows(self.rows.div_ceil(band_count).next_multiple_of(run), to, grid)
        })
    }

    fn cut_rows(self, band_rows: u64, size: u64, destination: Grid<'_>) -> Vec<(Band, Grid<'_>)> {
        let (mut bands, mut rest) = (Vec::new(), destination);
        let mut top = 0;
        while top < self.rows {
            let rows = band_rows.min(self.rows - top);
            let (grid, right) = rest.split_columns(to_usize(rows * size));
            bands.push((Band { src: self.src + top * self.pitch, rows, ..self }, grid));
            rest = right;
            top += rows;
        }
        bands
    }

    fn cut_columns(self, band_columns: u64, destination: Grid<'_>) -> Vec<(Band, Grid<'_>)> {
        let (mut bands, mut rest) = (Vec::new(), destination);
        let mut left = 0;
        while left < self.columns {
            let columns = band_columns.min(self.columns - left);
            let (grid, below) = rest.split_rows(to_usize(columns));
            bands.push((Band { src: self.src + left * self.unit, columns, ..self }, grid));
            rest = below;
            left += columns;
        }
        bands
    }

    /// The rows and columns of one panel. Elements have `from` bytes in the source and `to` in the destination; gaps between rows that are
    /// small for the source are read too. Where reads wait for answers, few of them count more than whole cache lines.
    fn panel(self, from: u64, to: u64, access: Access) -> (u64, u64) {
        let rows_of = |bytes: u64| (bytes / (to * self.unit)).max(1);
        let (line, run) = (rows_of(CACHE_LINE_BYTES), rows_of(DST_RUN_BYTES));
        let (bytes, rows_min) = match access.waits_for_requests() {
            true => (access.block, 1),
            false if self.unit > 1 => (PANEL_MAX_BYTES, 1),
            false => (PANEL_MAX_BYTES, run.max(PANEL_ROWS_MIN)),
        };
        let rows = bytes / self.row_step(from, access.gap).saturating_mul(from).max(1);
        match rows {
            _ if rows >= run => (rows / run * run, self.columns),
            _ if rows >= line => (rows / line * line, self.columns),
            _ => {
                let rows = rows.max(rows_min).min(self.rows);
                (rows, (bytes / (rows * from * self.unit)).max(1))
            }
        }
    }

    /// The stride from one row to the next in the scratch: gaps between rows of up to `gap` bytes are read too.
    fn row_step(self, size: u64, gap: u64) -> u64 {
        let row = self.columns * self.unit;
        if (self.pitch - row).saturating_mul(size) <= gap { self.pitch } else { row }
    }

    /// Reads the rows into scratch, one [`Band::row_step`] apart.
    fn read<'s>(self, size: u64, reader: &Reader<'_>, scratch: &'s mut Scratch) -> Result<&'s mut [u8]> {
        let row_step = self.row_step(size, reader.access().gap);
        let elements = (self.rows - 1).saturating_mul(row_step).saturating_add(self.columns * self.unit);
        let len = to_usize(elements.saturating_mul(size));
        if row_step == self.pitch {
            return reader.read(self.src.saturating_mul(size), len, scratch);
        }
        let run = to_usize(row_step.saturating_mul(size));
        let runs = (0..self.rows).map(|row| {
            let start = to_usize(row).saturating_mul(run);
            ((self.src + row * self.pitch).saturating_mul(size), start..start.saturating_add(run))
        });
        reader.read_runs(len, runs, scratch)
    }
}

/// Reads a band and writes it, cast and transposed, to its part of the destination, panel by panel.
pub(super) fn fill_band(
    elements: &Elements,
    band: Band,
    reader: &Reader<'_>,
    space: &mut Workspace,
    mut out: Grid<'_>,
) -> Result<()> {
    let Elements { payload, how, .. } = elements;
    let (from, to) = (how.cast.from().itemsize(), how.cast.to().itemsize());
    let unit = band.unit.saturating_mul(to);
    if (out.rows(), out.width()) != (to_usize(band.columns), to_usize(band.rows.saturating_mul(unit))) {
        return Err(incomplete_write());
    }
    let access = reader.access();
    let (height, width) = band.panel(from, to, access);
    for top in (0..band.rows).step_by(to_usize(height)) {
        let rows = height.min(band.rows - top);
        for left in (0..band.columns).step_by(to_usize(width)) {
            how.cancel.check()?;
            let columns = width.min(band.columns - left);
            let panel = Band { src: band.src + top * band.pitch + left * band.unit, rows, columns, ..band };
            let bytes = panel.read(from, reader, &mut space.scratch)?;
            // Bytes of gaps are changed too; they are not used.
            how.prepare_for_cast(payload, bytes)?;
            let across = to_usize(top * unit)..to_usize((top + rows) * unit);
            let part = out.sub_grid(to_usize(left)..to_usize(left + columns), across);
            let row_step = to_usize(panel.row_step(from, access.gap));
            match band.unit {
                1 => kernel::transpose(how.cast, bytes, row_step, part, &mut space.tile)?,
                unit => kernel::exchange(how.cast, bytes, row_step, to_usize(unit), part)?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gap of buffered reads.
    const GAP: u64 = 4096;

    fn buffered() -> Access {
        Access { metadata_block: 0, gap: GAP, ..Access::default() }
    }

    fn layout(shape: &[u64], strides: &[u64]) -> Layout {
        Layout { shape: shape.into(), strides: strides.into(), offset: 3 }
    }

    #[test]
    fn a_transposed_matrix_is_recognized() {
        let grouped =
            |groups, rows, columns, pitch| Some(Band { src: 3, rows, columns, unit: 1, pitch, groups });
        let units =
            |groups, rows, columns, pitch| Some(Band { src: 3, rows, columns, unit: 64, pitch, groups });
        let matrix = |rows, columns, pitch| grouped(1, rows, columns, pitch);
        for (shape, strides, expected) in [
            (&[40_u64, 100][..], &[1_u64, 40][..], matrix(100, 40, 40)),
            (&[40, 100], &[1, 50], matrix(100, 40, 50)),
            (&[40, 1, 10, 10], &[1, 7, 400, 40], matrix(100, 40, 40)),
            (&[40, 10, 10], &[1, 410, 40], None),
            (&[4, 10, 20], &[1, 4, 40], grouped(10, 20, 40, 40)),
            (&[3, 3, 10, 2, 10], &[3, 1, 9, 1000, 100], grouped(10, 20, 90, 100)),
            (&[4, 10, 20], &[1, 5, 50], None),
            (&[2, 4, 10, 20], &[1, 2, 8, 80], None),
            (&[10, 20, 64], &[64, 640, 1], units(1, 20, 10, 640)),
            (&[3, 10, 20, 64], &[64, 192, 2000, 1], units(10, 20, 30, 2000)),
            (&[10, 20, 63], &[63, 630, 1], None),
            (&[10, 20, 64], &[65, 650, 1], None),
            (&[10, 64], &[64, 1], None),
            (&[40, 100], &[1, 39], None),
            (&[40, 100], &[2, 80], None),
            (&[40, 100], &[1, 0], None),
            (&[40, 100], &[100, 1], None),
            (&[5, 40, 100], &[4000, 1, 40], None),
            (&[7, 100], &[1, 7], None),
            (&[4000], &[1], None),
            (&[], &[], None),
        ] {
            assert_eq!(Band::of(&layout(shape, strides), 4), expected, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn bands_cover_the_matrix_and_its_destination() {
        for (rows, columns, size, threads) in [
            (5000, 2000, 4, 2),
            (4999, 8, 1, 16),
            (8, 4_000_000, 2, 3),
            (65, 1 << 20, 4, 1),
            (127, 70_001, 4, 2),
            (1024, 1024, 2, 16),
            (512, 40_000, 2, 64),
        ] {
            let band = Band::of(&layout(&[columns, rows], &[1, columns]), size).unwrap();
            let mut out = vec![0; to_usize(rows * columns * size)];
            let mut bands = band.cut(size, size, threads, buffered(), &mut out).unwrap();
            assert!(bands.len() > 1 || threads == 1, "{rows} {columns}");
            for (number, (band, grid)) in bands.iter_mut().enumerate() {
                assert_eq!((grid.rows() as u64, grid.width() as u64), (band.columns, band.rows * size));
                assert_eq!(band.pitch, columns);
                let (top, left) = ((band.src - 3) / columns, (band.src - 3) % columns);
                assert!(
                    (top * size).is_multiple_of(CACHE_LINE_BYTES),
                    "a cache line of the destination belongs to one band"
                );
                assert_eq!((top, left) == (0, 0), number == 0);
                let is_part = band.columns < columns;
                assert!(
                    !is_part || band.row_step(size, GAP) == band.columns,
                    "a part of a row is read without its gap"
                );
                for column in 0..grid.rows() {
                    grid.row(column).fill(1);
                }
            }
            let area = bands.iter().map(|(band, _)| band.rows * band.columns).sum::<u64>();
            assert_eq!(area, rows * columns);
            assert!(out.iter().all(|&byte| byte == 1));
        }
    }

    #[test]
    fn a_panel_is_bounded_and_fills_cache_lines() {
        for (rows, columns, pitch) in [
            (1_u64 << 20, 8_u64, 8_u64),
            (8192, 8192, 8192),
            (8, 1 << 40, 1 << 40),
            (4096, 100, 1 << 50),
            (4096, 14_336, 14_400),
            (8, 1 << 30, 1 << 30),
        ] {
            for (from, to) in [(1, 1), (4, 2), (4, 4), (8, 16), (16, 16), (1, 16), (16, 1)] {
                let of = |unit| Band { src: 0, rows: 1 << 20, columns: 3, unit, pitch: 3 * unit, groups: 1 };
                for unit in [UNIT_BYTES.start() / from, UNIT_BYTES.end() / from] {
                    let (height, width) = of(unit).panel(from, to, buffered());
                    let row = width.min(3) * unit * from;
                    assert!(
                        height > 0 && width > 0 && height * row <= PANEL_MAX_BYTES,
                        "{unit}: {height} {width}"
                    );
                }
                for (access, max) in
                    [(buffered(), PANEL_MAX_BYTES), (Access::default(), Access::default().block)]
                {
                    let band = Band { src: 0, rows, columns, unit: 1, pitch, groups: 1 };
                    let (height, width) = band.panel(from, to, access);
                    let is_whole = (height * to).is_multiple_of(CACHE_LINE_BYTES) || height == rows;
                    let is_read = width.min(columns) * from * height * 2 > max || width >= columns;
                    assert!(width > 0 && (is_whole || access == Access::default()), "{band:?} {from} {to}");
                    assert!(is_read || access == buffered(), "{band:?} {from} {to}");
                    let panel = Band { columns: width.min(columns), ..band };
                    assert!(
                        height * panel.row_step(from, access.gap) * from <= max,
                        "{band:?} {from} {to}: {height} {width}"
                    );
                }
            }
        }
    }
}
