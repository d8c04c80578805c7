//! A matrix whose columns are wanted as rows, cut into bands of its rows: each is read as it lies in the file, with few long
//! reads, and goes to some columns of the destination. Where it has few rows, which are long, bands are of its columns.

use super::plan::GAP;
use super::read::{Fill, PIECE, Payload, gap, scratch, to_usize};
use crate::bytes::{Reader, Scratch};
use crate::error::Result;
use crate::kernel::{self, Grid};
use crate::layout::Layout;

/// Rows, and columns, below which a matrix is no matter of bands.
const SHORT: u64 = 8;

/// Bytes of what one thread reads at a time. More than its second-level cache holds: rows that fill some lines are worth it.
const PANEL: u64 = 2 << 20;

/// Bytes of a cache line of the destination.
const LINE: u64 = 64;

/// Bytes of a destination row that are best written at one go.
const RUN: u64 = 4 * LINE;

/// Bytes of a part of a row that is worth a read of its own.
const LONG: u64 = 64 << 10;

/// Rows of a panel at least, where a row is too long for a whole panel of them.
const ROWS: u64 = 32;

/// Some rows of a matrix in a storage, or some columns of all of them. Numbers are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Band {
    /// The first element.
    src: u64,
    rows: u64,
    columns: u64,
    /// From one row to the next.
    pitch: u64,
}

/// Memory that a thread keeps from job to job, whatever it holds.
pub(super) struct Workspace {
    /// What is read.
    pub(super) scratch: Scratch,
    /// The kernel's.
    tile: Vec<u8>,
}

impl Default for Workspace {
    fn default() -> Workspace {
        Workspace { scratch: scratch(), tile: Vec::new() }
    }
}

impl Band {
    /// The whole matrix, if the layout is the transpose of one.
    pub(super) fn of(layout: &Layout) -> Option<Band> {
        let mut dims = layout.shape.iter().zip(&layout.strides).filter(|(size, _)| **size != 1);
        let (&columns, &step) = dims.next()?;
        let (mut rows, mut pitch) = (1_u64, 0);
        for (&size, &stride) in dims {
            if rows != 1 && stride.checked_mul(size) != Some(pitch) {
                return None;
            }
            rows = rows.checked_mul(size)?;
            pitch = stride;
        }
        let is_matrix = step == 1 && pitch >= columns && rows >= SHORT && columns >= SHORT;
        is_matrix.then_some(Band { src: layout.offset, rows, columns, pitch })
    }

    /// Cuts it, and its destination with it, for so many threads, of elements that have `from` bytes, and `to` in the destination.
    pub(super) fn cut(
        self,
        from: u64,
        to: u64,
        threads: usize,
        out: &mut [u8],
    ) -> Option<Vec<(Band, Grid<'_>)>> {
        let width = to_usize(self.rows.checked_mul(to)?);
        let whole = Grid::new(out, to_usize(self.columns), width, width)?;
        let threads = threads as u64;
        let count =
            (self.columns.checked_mul(self.rows)?.checked_mul(to)? / PIECE).clamp(threads, threads * 16);
        let run = (RUN / to).max(1);
        let part = self.columns.div_ceil(count);
        // Where there are too few rows for all threads, each takes some columns of all of them, if those are worth a read.
        Some(if self.rows / run < threads && part.saturating_mul(from) >= LONG {
            self.cut_columns(part, whole)
        } else {
            self.cut_rows(self.rows.div_ceil(count).next_multiple_of(run), to, whole)
        })
    }

    fn cut_rows(self, step: u64, size: u64, whole: Grid<'_>) -> Vec<(Band, Grid<'_>)> {
        let (mut bands, mut rest) = (Vec::new(), whole);
        let mut top = 0;
        while top < self.rows {
            let rows = step.min(self.rows - top);
            let (grid, right) = rest.split_columns(to_usize(rows * size));
            bands.push((Band { src: self.src + top * self.pitch, rows, ..self }, grid));
            rest = right;
            top += rows;
        }
        bands
    }

    fn cut_columns(self, step: u64, whole: Grid<'_>) -> Vec<(Band, Grid<'_>)> {
        let (mut bands, mut rest) = (Vec::new(), whole);
        let mut left = 0;
        while left < self.columns {
            let columns = step.min(self.columns - left);
            let (grid, below) = rest.split_rows(to_usize(columns));
            bands.push((Band { src: self.src + left, columns, ..self }, grid));
            rest = below;
            left += columns;
        }
        bands
    }

    /// Rows and columns of one panel, of elements that have `from` bytes, and `to` in the destination.
    fn panel(self, from: u64, to: u64) -> (u64, u64) {
        let rows = PANEL / self.step(from).saturating_mul(from).max(1);
        let (line, run) = ((LINE / to).max(1), (RUN / to).max(1));
        match rows {
            _ if rows >= run => (rows / run * run, self.columns),
            _ if rows >= line => (rows / line * line, self.columns),
            _ => {
                let rows = line.max(ROWS).min(self.rows);
                (rows, PANEL / (rows * from))
            }
        }
    }

    /// From one row to the next once they are read: small gaps are read along.
    fn step(self, size: u64) -> u64 {
        if (self.pitch - self.columns).saturating_mul(size) <= GAP { self.pitch } else { self.columns }
    }

    /// Reads all of it.
    fn read<'s>(self, size: u64, reader: &Reader<'_>, scratch: &'s mut Scratch) -> Result<&'s mut [u8]> {
        let step = self.step(size);
        let elements = (self.rows - 1).saturating_mul(step).saturating_add(self.columns);
        let len = to_usize(elements.saturating_mul(size));
        if step == self.pitch {
            return reader.read(self.src.saturating_mul(size), len, scratch);
        }
        let run = to_usize(step.saturating_mul(size));
        let runs = (0..self.rows).map(|row| {
            let start = to_usize(row).saturating_mul(run);
            ((self.src + row * self.pitch).saturating_mul(size), start..start.saturating_add(run))
        });
        reader.read_runs(len, runs, scratch)
    }
}

/// Reads a band into its part of the destination, panel by panel, cast on the way.
pub(super) fn fill_band(
    payload: &Payload,
    band: Band,
    how: &Fill,
    reader: &Reader<'_>,
    space: &mut Workspace,
    mut out: Grid<'_>,
) -> Result<()> {
    let (from, to) = (how.cast.from().itemsize(), how.cast.to().itemsize());
    if (out.rows(), out.width()) != (to_usize(band.columns), to_usize(band.rows.saturating_mul(to))) {
        return Err(gap());
    }
    let (height, width) = band.panel(from, to);
    for top in (0..band.rows).step_by(to_usize(height)) {
        let rows = height.min(band.rows - top);
        for left in (0..band.columns).step_by(to_usize(width)) {
            how.cancel.check()?;
            let columns = width.min(band.columns - left);
            let panel = Band { src: band.src + top * band.pitch + left, rows, columns, pitch: band.pitch };
            let bytes = panel.read(from, reader, &mut space.scratch)?;
            // Gaps that were read along change as well; nobody looks at them.
            how.prepare(payload, bytes)?;
            let across = to_usize(top * to)..to_usize((top + rows) * to);
            let part = out.sub_grid(to_usize(left)..to_usize(left + columns), across);
            kernel::transpose(how.cast, bytes, to_usize(panel.step(from)), part, &mut space.tile)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[u64], strides: &[u64]) -> Layout {
        Layout { shape: shape.into(), strides: strides.into(), offset: 3 }
    }

    #[test]
    fn a_transposed_matrix_is_seen_as_one() {
        let matrix = |rows, columns, pitch| Some(Band { src: 3, rows, columns, pitch });
        for (shape, strides, expected) in [
            (&[40_u64, 100][..], &[1_u64, 40][..], matrix(100, 40, 40)),
            (&[40, 100], &[1, 50], matrix(100, 40, 50)),
            (&[40, 1, 10, 10], &[1, 7, 400, 40], matrix(100, 40, 40)),
            (&[40, 10, 10], &[1, 410, 40], None),
            (&[40, 100], &[1, 39], None),
            (&[40, 100], &[2, 80], None),
            (&[40, 100], &[1, 0], None),
            (&[40, 100], &[100, 1], None),
            (&[5, 40, 100], &[4000, 1, 40], None),
            (&[7, 100], &[1, 7], None),
            (&[4000], &[1], None),
            (&[], &[], None),
        ] {
            assert_eq!(Band::of(&layout(shape, strides)), expected, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn bands_are_the_matrix_and_its_destination() {
        for (rows, columns, size, threads) in [
            (5000, 2000, 4, 2),
            (4999, 8, 1, 16),
            (8, 4_000_000, 2, 3),
            (65, 1 << 20, 4, 1),
            (127, 70_001, 4, 2),
            (1024, 1024, 2, 16),
            (512, 40_000, 2, 64),
        ] {
            let band = Band::of(&layout(&[columns, rows], &[1, columns])).unwrap();
            let mut out = vec![0; to_usize(rows * columns * size)];
            let mut bands = band.cut(size, size, threads, &mut out).unwrap();
            assert!(bands.len() > 1 || threads == 1, "{rows} {columns}");
            for (number, (band, grid)) in bands.iter_mut().enumerate() {
                assert_eq!((grid.rows() as u64, grid.width() as u64), (band.columns, band.rows * size));
                assert_eq!(band.pitch, columns);
                let (top, left) = ((band.src - 3) / columns, (band.src - 3) % columns);
                assert!((top * size).is_multiple_of(LINE), "a line of the destination has one band");
                assert_eq!((top, left) == (0, 0), number == 0);
                let is_part = band.columns < columns;
                assert!(!is_part || band.step(size) == band.columns, "a part of a row is read alone");
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
    fn a_panel_is_bounded_and_fills_lines() {
        for (rows, columns, pitch) in [
            (1_u64 << 20, 8_u64, 8_u64),
            (8192, 8192, 8192),
            (8, 1 << 40, 1 << 40),
            (4096, 100, 1 << 50),
            (4096, 14_336, 14_400),
            (8, 1 << 30, 1 << 30),
        ] {
            for (from, to) in [(1, 1), (4, 2), (4, 4), (8, 16), (16, 16), (1, 16), (16, 1)] {
                let band = Band { src: 0, rows, columns, pitch };
                let (height, width) = band.panel(from, to);
                let whole = (height * to).is_multiple_of(LINE) || height == rows;
                assert!(whole && width > 0, "{band:?} {from} {to}");
                let panel = Band { columns: width.min(columns), ..band };
                assert!(height * panel.step(from) * from <= PANEL, "{band:?} {from} {to}: {height} {width}");
            }
        }
    }
}
