//! The transpose of a panel with SIMD vectors, written once for all vector widths.
//!
//! A [`Vector`] consists of 128-bit lanes. The unpack (interleave) instructions work inside each lane; one operation per
//! vector type moves lanes between vectors. A panel is cut into square blocks that are one vector wide; a block is
//! transposed in registers, and the vectors of its columns are stored as whole cache lines.
//!
//! Everything here is `#[inline(always)]`: it compiles to a level's instructions in the `#[target_feature]` functions that
//! instantiate it.

use super::Grid;
use super::portable_transpose::{CACHE_LINE_BYTES, COLUMNS_PER_PASS, CacheLine, LINES_PER_PASS, Panel};

/// Bytes of a lane.
const LANE_BYTES: usize = 16;

/// Implements an unpack method of [`Vector`] by the intrinsics for the lower and the upper halves of lanes.
macro_rules! unpack {
    ($name:ident, $low:ident, $high:ident) => {
        #[inline(always)]
        fn $name(self, other: Self) -> [Self; 2] {
            // SAFETY: a vector exists, so the CPU has the instruction.
            let low = unsafe { $low(self.0, other.0) };
            // SAFETY: as above.
            let high = unsafe { $high(self.0, other.0) };
            [Self(low), Self(high)]
        }
    };
}

/// Implements the methods of [`super::Instructions`] that every level has: safe pointers to functions of its module that need its
/// features. Those are there: `Level` has detected them, or every CPU of the architecture has them.
macro_rules! level_functions {
    ($($size:literal => $panel_transpose:ident),*) => {
        fn row_kernel(from: DType, to: DType, _overflow: Overflow) -> Option<RowKernel> {
            macro_rules! pointer {
                ($function:ident) => {
                    // SAFETY: the CPU has the level's features.
                    |src, dst| unsafe { $function(src, dst) }
                };
            }
            Some(match (from, to) {
                (DType::F32, DType::BF16) => pointer!(f32_to_bf16),
                (DType::F16, DType::F32) => pointer!(f16_to_f32),
                (DType::F32, DType::F16) => pointer!(f32_to_f16),
                (DType::F16, DType::BF16) => pointer!(f16_to_bf16),
                (DType::BF16, DType::F16) => pointer!(bf16_to_f16),
                _ => return None,
            })
        }

        fn panel_transpose(element_size: usize) -> PanelTranspose {
            match element_size {
                // SAFETY: the CPU has the level's features.
                $($size => |panel, dst| unsafe { $panel_transpose(panel, dst) },)*
                _ => portable_transpose::panel_transpose(element_size),
            }
        }

        fn look_up(codes: Lookup<'_>, tables: &[Table]) {
            // SAFETY: the CPU has the level's features.
            unsafe { look_up(codes, tables) }
        }

        fn copy_rows() -> CopyRows {
            // SAFETY: the CPU has the level's features.
            |bytes, pitch, dst| unsafe { stream_rows(bytes, pitch, dst) }
        }
    };
}

/// Defines `transpose_panel_1` to `transpose_panel_8`, one for each element size, and `stream_rows`, compiled for a level's features.
macro_rules! panel_transposes {
    ($features:tt, $vector:ty) => {
        panel_transposes! { $features, $vector, transpose_panel_1, transpose_1 }
        panel_transposes! { $features, $vector, transpose_panel_2, transpose_2 }
        panel_transposes! { $features, $vector, transpose_panel_4, transpose_4 }
        panel_transposes! { $features, $vector, transpose_panel_8, transpose_8 }
        panel_transposes! { $features, $vector, stream_rows }
    };
    ($features:tt, $vector:ty, stream_rows) => {
        #[target_feature(enable = $features)]
        fn stream_rows(bytes: &[u8], pitch: usize, dst: &mut Grid<'_>) {
            // SAFETY: this function's features are the instructions of the vector.
            unsafe { super::vector_transpose::stream_rows::<$vector, _, _>(bytes, pitch, dst) }
        }
    };
    ($features:tt, $vector:ty, $name:ident, $transpose_block:ident) => {
        #[target_feature(enable = $features)]
        fn $name(panel: Panel<'_>, dst: &mut Grid<'_>) {
            // SAFETY: this function's features are the instructions of the vector.
            unsafe { transpose_panel(panel, dst, $transpose_block::<$vector, _, _>) }
        }
    };
}

pub(super) use {level_functions, panel_transposes, unpack};

/// A SIMD vector of `LANES` 128-bit lanes; `PER_LINE` of them make a cache line.
///
/// A value exists only where the CPU has the vector's instructions: the constructors are unsafe, and the caller of one
/// promises that. So the other methods are safe.
pub(super) trait Vector<const LANES: usize, const PER_LINE: usize>: Copy {
    /// All bits zero.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions of this vector.
    unsafe fn zero() -> Self;

    /// Loads a vector from an address of any alignment.
    ///
    /// # Safety
    ///
    /// - The CPU has the instructions of this vector.
    /// - `address` is valid for reads of the vector's size.
    unsafe fn load(address: *const u8) -> Self;

    /// Interleaves the bytes of the lower halves of each lane, and those of the upper halves.
    fn unpack_8(self, other: Self) -> [Self; 2];

    /// As [`unpack_8`](Vector::unpack_8), for 16-bit elements.
    fn unpack_16(self, other: Self) -> [Self; 2];

    /// As [`unpack_8`](Vector::unpack_8), for 32-bit elements.
    fn unpack_32(self, other: Self) -> [Self; 2];

    /// As [`unpack_8`](Vector::unpack_8), for 64-bit elements.
    fn unpack_64(self, other: Self) -> [Self; 2];

    /// Transposes the square matrix of lanes: lane `i` of vector `j` becomes lane `j` of vector `i`.
    fn transpose_lanes(vectors: [Self; LANES]) -> [Self; LANES];

    /// Stores a cache line at any alignment.
    fn store_line(vectors: [Self; PER_LINE], line: &mut [u8; CACHE_LINE_BYTES]);

    /// Stores a cache line with non-temporal stores, which do not read it into the cache first. The caller issues a store
    /// fence afterwards.
    fn stream_line(vectors: [Self; PER_LINE], line: &mut CacheLine);
}

/// A square block: vectors of its rows, or of its columns. `PER_LANE` is the number of elements in a lane, so the block has
/// `LANES * PER_LANE` rows and as many columns.
type Block<V, const PER_LANE: usize, const LANES: usize> = [[V; PER_LANE]; LANES];

/// Transposes a panel into the destination, with the transpose of one block.
///
/// For every [`COLUMNS_PER_PASS`] columns and [`LINES_PER_PASS`] cache lines, all blocks are transposed first, and then the
/// lines of each column are stored.
///
/// # Safety
///
/// The CPU has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn transpose_panel<
    V: Vector<LANES, PER_LINE>,
    const LANES: usize,
    const PER_LINE: usize,
    const PER_LANE: usize,
>(
    panel: Panel<'_>,
    dst: &mut Grid<'_>,
    transpose_block: impl Fn(Block<V, PER_LANE, LANES>) -> Block<V, PER_LANE, LANES>,
) {
    const {
        assert!(LANES * LANE_BYTES * PER_LINE == CACHE_LINE_BYTES);
        assert!(LANE_BYTES.is_multiple_of(PER_LANE));
    };
    let (vector_bytes, element_bytes, side) = (LANES * LANE_BYTES, LANE_BYTES / PER_LANE, LANES * PER_LANE);
    let _fence = panel.non_temporal.then_some(FenceOnDrop);
    // SAFETY: the caller's promise.
    let zero = unsafe { V::zero() };
    let mut lines = [[[zero; COLUMNS_PER_PASS]; PER_LINE]; LINES_PER_PASS];
    for first_column in (0..panel.columns).step_by(COLUMNS_PER_PASS) {
        let columns = COLUMNS_PER_PASS.min(panel.columns - first_column);
        for first_line in (0..panel.lines).step_by(LINES_PER_PASS) {
            let lines = &mut lines[..LINES_PER_PASS.min(panel.lines - first_line)];
            for (at, vectors) in lines.as_flattened_mut().iter_mut().enumerate() {
                let rows = &panel.bytes[(PER_LINE * first_line + at) * side * panel.pitch..];
                let vectors = &mut vectors[..columns.next_multiple_of(side)];
                let blocks = vectors.as_chunks_mut::<PER_LANE>().0.as_chunks_mut::<LANES>().0;
                for (at, block) in blocks.iter_mut().enumerate() {
                    let bytes = &rows[first_column * element_bytes + at * vector_bytes..];
                    // SAFETY: the caller's promise.
                    *block = transpose_block(unsafe { load_rows(zero, bytes, panel.pitch) });
                }
            }
            for column in 0..columns {
                let dst = &mut dst.row(first_column + column)[first_line * CACHE_LINE_BYTES..]
                    [..lines.len() * CACHE_LINE_BYTES];
                if panel.non_temporal
                    && let Ok(dst) = bytemuck::try_cast_slice_mut(&mut *dst)
                {
                    for (line, dst) in lines.iter().zip(dst) {
                        V::stream_line(line_of_column(line, column, zero), dst);
                    }
                } else if let Some(lines) = lines.first_chunk::<LINES_PER_PASS>() {
                    // A fixed number of lines, so that the compiler unrolls the loop.
                    let dst = dst.as_chunks_mut().0;
                    for (line, dst) in lines.iter().zip(&mut dst[..LINES_PER_PASS]) {
                        V::store_line(line_of_column(line, column, zero), dst);
                    }
                } else {
                    for (line, dst) in lines.iter().zip(dst.as_chunks_mut().0) {
                        V::store_line(line_of_column(line, column, zero), dst);
                    }
                }
            }
        }
    }
}

/// Copies rows that are `pitch` bytes apart to those of the destination, with non-temporal stores to its whole cache lines.
///
/// # Safety
///
/// The CPU has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn stream_rows<V: Vector<LANES, PER_LINE>, const LANES: usize, const PER_LINE: usize>(
    bytes: &[u8],
    pitch: usize,
    dst: &mut Grid<'_>,
) {
    let _fence = FenceOnDrop;
    // SAFETY: the caller's promise.
    let zero = unsafe { V::zero() };
    for row in 0..dst.rows() {
        let dst = dst.row(row);
        let src = &bytes[row * pitch..][..dst.len()];
        let (start, lines, end) = bytemuck::pod_align_to_mut::<u8, CacheLine>(dst);
        let (src_start, src) = src.split_at(start.len());
        let (src_lines, src_end) = src.as_chunks::<CACHE_LINE_BYTES>();
        start.copy_from_slice(src_start);
        for (line, src) in lines.iter_mut().zip(src_lines) {
            let mut vectors = [zero; PER_LINE];
            for (vector, part) in vectors.iter_mut().zip(src.chunks_exact(LANES * LANE_BYTES)) {
                // SAFETY: the caller's promise; the part is as long as a vector.
                *vector = unsafe { V::load(part.as_ptr()) };
            }
            V::stream_line(vectors, line);
        }
        end.copy_from_slice(src_end);
    }
}

/// The cache line of a column that consists of these vectors.
#[inline(always)]
fn line_of_column<V: Copy, const PER_LINE: usize>(
    line: &[[V; COLUMNS_PER_PASS]; PER_LINE],
    column: usize,
    zero: V,
) -> [V; PER_LINE] {
    let mut vectors = [zero; PER_LINE];
    for (vector, columns) in vectors.iter_mut().zip(line) {
        *vector = columns[column];
    }
    vectors
}

/// The first vectors of rows that are `pitch` bytes apart. Panics where the vector of the last row reaches past the slice.
///
/// # Safety
///
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn load_rows<
    V: Vector<LANES, PER_LINE>,
    const LANES: usize,
    const PER_LINE: usize,
    const PER_LANE: usize,
>(
    zero: V,
    bytes: &[u8],
    pitch: usize,
) -> Block<V, PER_LANE, LANES> {
    let (count, vector_bytes) = (LANES * PER_LANE, LANES * LANE_BYTES);
    let end = pitch.saturating_mul(count - 1).saturating_add(vector_bytes);
    assert!(end <= bytes.len(), "{count} rows {pitch} apart");
    let mut rows = [[zero; PER_LANE]; LANES];
    for (at, row) in rows.as_flattened_mut().iter_mut().enumerate() {
        // No bounds check in the loop: the compiler unrolls it, and the loads overlap.
        let address = bytes.as_ptr().wrapping_add(at.wrapping_mul(pitch));
        // SAFETY: the caller's promise; the last row's vector ends inside the slice, so every earlier one lies in it.
        *row = unsafe { V::load(address) };
    }
    rows
}

/// Transposes a block of 1-byte elements: four rows are interleaved to 32-bit words, which [`transpose_4`] transposes. A lane
/// of a row has 16 columns; interleave `i` of four holds columns 4i to 4i + 3 of each lane.
#[inline(always)]
pub(super) fn transpose_1<V: Vector<LANES, PER_LINE>, const LANES: usize, const PER_LINE: usize>(
    rows: Block<V, 16, LANES>,
) -> Block<V, 16, LANES> {
    let zero = rows[0][0];
    let mut words = [[[zero; 4]; LANES]; 4];
    for (k, [a, b, c, d]) in rows.as_flattened().as_chunks().0.iter().enumerate() {
        let ([low, high], [low_2, high_2]) = (a.unpack_8(*b), c.unpack_8(*d));
        let ([first, second], [third, fourth]) = (low.unpack_16(low_2), high.unpack_16(high_2));
        words[0].as_flattened_mut()[k] = first;
        words[1].as_flattened_mut()[k] = second;
        words[2].as_flattened_mut()[k] = third;
        words[3].as_flattened_mut()[k] = fourth;
    }
    let mut columns = rows;
    for (part, words) in words.into_iter().enumerate() {
        for (lane, vectors) in transpose_4(words).into_iter().enumerate() {
            for (at, vector) in vectors.into_iter().enumerate() {
                columns[lane][part * 4 + at] = vector;
            }
        }
    }
    columns
}

/// As [`transpose_1`], for 2-byte elements: pairs of rows, and 8 columns in a lane.
#[inline(always)]
pub(super) fn transpose_2<V: Vector<LANES, PER_LINE>, const LANES: usize, const PER_LINE: usize>(
    rows: Block<V, 8, LANES>,
) -> Block<V, 8, LANES> {
    let zero = rows[0][0];
    let mut words = [[[zero; 4]; LANES]; 2];
    for (k, [a, b]) in rows.as_flattened().as_chunks().0.iter().enumerate() {
        let [low, high] = a.unpack_16(*b);
        words[0].as_flattened_mut()[k] = low;
        words[1].as_flattened_mut()[k] = high;
    }
    let mut columns = rows;
    for (part, words) in words.into_iter().enumerate() {
        for (lane, vectors) in transpose_4(words).into_iter().enumerate() {
            for (at, vector) in vectors.into_iter().enumerate() {
                columns[lane][part * 4 + at] = vector;
            }
        }
    }
    columns
}

/// Transposes a block of 4-byte elements: 4 rows by 4 columns inside each lane, then the lanes.
#[inline(always)]
pub(super) fn transpose_4<V: Vector<LANES, PER_LINE>, const LANES: usize, const PER_LINE: usize>(
    rows: Block<V, 4, LANES>,
) -> Block<V, 4, LANES> {
    // Lane `l` of `inside[i][j]` is rows 4i to 4i + 3 of column 4l + j.
    let mut inside = rows;
    for (out, [a, b, c, d]) in inside.iter_mut().zip(rows) {
        let ([low, high], [low_2, high_2]) = (a.unpack_32(b), c.unpack_32(d));
        let ([first, second], [third, fourth]) = (low.unpack_64(low_2), high.unpack_64(high_2));
        *out = [first, second, third, fourth];
    }
    transpose_lanes(inside)
}

/// Transposes a block of 8-byte elements: 2 rows by 2 columns inside each lane, then the lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn transpose_8<V: Vector<LANES, PER_LINE>, const LANES: usize, const PER_LINE: usize>(
    rows: Block<V, 2, LANES>,
) -> Block<V, 2, LANES> {
    let mut inside = rows;
    for (out, [a, b]) in inside.iter_mut().zip(rows) {
        *out = a.unpack_64(b);
    }
    transpose_lanes(inside)
}

/// Moves lane `l` of `block[i][j]` to lane `i` of `block[l][j]`.
#[inline(always)]
fn transpose_lanes<
    V: Vector<LANES, PER_LINE>,
    const LANES: usize,
    const PER_LINE: usize,
    const PER_LANE: usize,
>(
    block: Block<V, PER_LANE, LANES>,
) -> Block<V, PER_LANE, LANES> {
    let mut out = block;
    for j in 0..PER_LANE {
        let mut vectors = [block[0][j]; LANES];
        for (vector, group) in vectors.iter_mut().zip(&block) {
            *vector = group[j];
        }
        for (group, vector) in out.iter_mut().zip(V::transpose_lanes(vectors)) {
            group[j] = vector;
        }
    }
    out
}

/// Issues a store fence when it is dropped: non-temporal stores are weakly ordered, and other threads must see them before what this
/// thread stores next. Also on unwinding, since the code that catches the panic can read the destination.
pub(super) struct FenceOnDrop;

impl Drop for FenceOnDrop {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: every x86-64 CPU has SSE.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}
