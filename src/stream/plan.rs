//! Cuts a layout into blocks: boxes of elements that are read with few reads into a bounded scratch.
//!
//! The destination is C-contiguous. It is cut into [`pieces`], which are contiguous byte ranges, so that threads write to separate
//! ranges. Inside a piece the source decides the order: the dimensions are taken by falling source stride, and a [`BlockGrid`]
//! covers the piece with blocks whose bytes fit the scratch. Neighbouring runs are coalesced into one read if the gap between them
//! is small.

use smallvec::SmallVec;

use super::cut::ResultCutter;
use crate::kernel::Axis;
use crate::layout::Layout;
use crate::num::to_usize;

/// The least number of source rows in a transposing block: a full cache line of 2-byte results.
const TRANSPOSE_ROWS_MIN: u64 = 32;

/// A transposing block with more source rows takes a multiple of this number, so that the next block starts on a cache line.
const CACHE_LINE_ROWS: u64 = 64;

/// One dimension: its size, and its strides in the source and in the destination, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub(super) size: u64,
    pub(super) src: u64,
    pub(super) dst: u64,
}

/// A short list of dimensions.
pub(super) type DimVec = SmallVec<[Dim; 4]>;

/// A box of elements. Its destination is one contiguous range; that of [`Piece::strided`] may have gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The dimensions in destination order; the last one is contiguous there.
    pub(super) dims: DimVec,
    /// The index of the first source element.
    pub(super) src: u64,
    /// The number of elements.
    pub(super) numel: u64,
}

impl Piece {
    /// All elements of a layout.
    pub(super) fn whole(layout: &Layout) -> Piece {
        Piece { dims: merged(layout), src: layout.offset, numel: layout.numel() }
    }

    /// A box with any strides on both sides. No dimension is empty.
    pub(super) fn strided(shape: &[u64], src: &[u64], dst: &[u64], first: u64) -> Piece {
        let mut dims = DimVec::new();
        for ((&size, &src), &dst) in shape.iter().zip(src).zip(dst) {
            if size == 1 {
                continue;
            }
            let spans = |stride: u64, outer: u64| stride.checked_mul(size) == Some(outer);
            match dims.last_mut() {
                Some(last) if spans(src, last.src) && spans(dst, last.dst) => {
                    last.size = last.size.saturating_mul(size);
                    (last.src, last.dst) = (src, dst);
                }
                _ => dims.push(Dim { size, src, dst }),
            }
        }
        Piece { dims, src: first, numel: shape.iter().product() }
    }
}

/// The layout's dimensions, without those of size 1, and with neighbours merged that are contiguous with each other in the source.
pub(super) fn merged(layout: &Layout) -> DimVec {
    let mut dims = DimVec::new();
    for (&size, &src) in layout.shape.iter().zip(&layout.strides) {
        if size == 1 {
            continue;
        }
        match dims.last_mut() {
            Some(last) if src.checked_mul(size) == Some(last.src) => {
                last.size = last.size.saturating_mul(size);
                last.src = src;
            }
            _ => dims.push(Dim { size, src, dst: 0 }),
        }
    }
    let mut step = 1_u64;
    for dim in dims.iter_mut().rev() {
        dim.dst = step;
        step = step.saturating_mul(dim.size);
    }
    dims
}

/// Whether the dimensions have another order in the source than in the destination.
pub(super) fn is_permuted(layout: &Layout) -> bool {
    !merged(layout).is_sorted_by(|outer, inner| outer.src >= inner.src)
}

/// Cuts the destination into about `count` contiguous pieces, in order, which together cover it.
pub(super) fn pieces(layout: &Layout, count: u64) -> impl Iterator<Item = Piece> + '_ {
    let cutter = ResultCutter::new(&layout.shape, layout.numel().div_ceil(count));
    (0..cutter.len()).map(move |number| Piece::whole(&cutter.slice(number).layout_of(layout)))
}

/// Cuts a contiguous layout into pieces of about `step` bytes. All but the first start on a block boundary (or at the last element that
/// starts before it), so that no block is read twice, or written to by two threads. The first byte of the layout is `block_offset` bytes
/// into a block of `alignment` bytes, in the file or in memory.
pub(super) fn aligned_pieces(
    layout: &Layout,
    itemsize: u64,
    (block_offset, alignment): (u64, u64),
    step: u64,
) -> Vec<Piece> {
    let (numel, step) = (layout.numel(), step.max(alignment));
    let mut out = Vec::new();
    let mut first = 0;
    while first < numel {
        let from = block_offset.saturating_add(first.saturating_mul(itemsize));
        let end = (from.saturating_add(step) / alignment * alignment).saturating_sub(block_offset) / itemsize;
        let size = end.saturating_sub(first).clamp(1, numel - first);
        out.push(Piece::strided(&[size], &[1], &[1], layout.offset.saturating_add(first)));
        first += size;
    }
    out
}

/// The blocks that cover a piece.
#[derive(Clone, Debug)]
pub(super) struct BlockGrid {
    /// The piece's dimensions by falling source stride.
    dims: DimVec,
    /// The size of a block in each dimension.
    chunk: SmallVec<[u64; 4]>,
    src: u64,
    itemsize: u64,
    /// Gaps between runs of up to this many bytes are read and discarded, not skipped.
    gap: u64,
}

/// A box of elements that is read into the scratch and copied to the destination.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The index of its first element in the source.
    pub(super) src: u64,
    /// The index of its first element in the piece's destination.
    pub(super) dst: u64,
    /// The number of elements of one read.
    pub(super) run: u64,
    /// The dimensions iterated over reads: `src` is the stride in the source, `dst` the stride in the scratch, in elements.
    pub(super) reads: DimVec,
    /// The strided copy from the scratch to the destination.
    pub(super) axes: SmallVec<[Axis; 4]>,
    /// The number of elements in the scratch, gaps included.
    pub(super) scratch: u64,
}

impl Block {
    /// The number of elements that it copies to the destination.
    pub(super) fn numel(&self) -> u64 {
        self.axes.iter().fold(1, |numel, axis| numel.saturating_mul(axis.size as u64))
    }

    /// Whether the block is one run that is contiguous in the source and in the destination.
    pub(super) fn is_contiguous_copy(&self) -> bool {
        match &self.axes[..] {
            [] => true,
            [axis] => self.reads.is_empty() && axis.src_stride == 1 && axis.dst_stride == 1,
            _ => false,
        }
    }
}

impl BlockGrid {
    /// Chooses blocks that take at most `window` bytes of scratch, or one element. Gaps of up to `gap` bytes are read too.
    pub(super) fn new(piece: &Piece, itemsize: u64, window: u64, gap: u64) -> BlockGrid {
        let mut dims = piece.dims.clone();
        dims.sort_by_key(|dim| std::cmp::Reverse(dim.src));
        let mut grid =
            BlockGrid { chunk: SmallVec::from_elem(1, dims.len()), dims, src: piece.src, itemsize, gap };
        let fits = |grid: &BlockGrid| grid.block(&grid.chunk).scratch.saturating_mul(itemsize) <= window;
        // A transposing block first takes several source rows, then makes them longer: the destination is contiguous across rows.
        let rows = grid.dims.iter().position(|dim| dim.dst == 1).filter(|row| row + 1 != grid.dims.len());
        if let Some(row) = rows {
            grid.grow(row, TRANSPOSE_ROWS_MIN, &fits);
        }
        for dim in (0..grid.dims.len()).rev() {
            if !grid.grow(dim, u64::MAX, &fits) {
                break;
            }
        }
        if let Some(row) = rows
            && grid.chunk[row] > CACHE_LINE_ROWS
            && grid.chunk[row] < grid.dims[row].size
        {
            grid.chunk[row] -= grid.chunk[row] % CACHE_LINE_ROWS;
        }
        grid
    }

    /// Makes the chunk of `dim` as large as fits, up to `max`. Returns whether that is the whole dimension.
    fn grow(&mut self, dim: usize, max: u64, fits: &impl Fn(&BlockGrid) -> bool) -> bool {
        let size = self.dims[dim].size;
        let (mut low, mut high) = (self.chunk[dim], size.min(max).max(self.chunk[dim]));
        while low < high {
            let middle = high - (high - low) / 2;
            self.chunk[dim] = middle;
            if fits(self) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        self.chunk[dim] = low;
        low == size
    }

    /// The block of these sizes at the piece's start.
    fn block(&self, sizes: &[u64]) -> Block {
        let mut block =
            Block { src: self.src, dst: 0, run: 1, reads: DimVec::new(), axes: SmallVec::new(), scratch: 1 };
        for (dim, &size) in self.dims.iter().zip(sizes).rev() {
            if size == 1 {
                continue;
            }
            let near = dim.src.saturating_mul(self.itemsize)
                <= block.run.saturating_mul(self.itemsize).saturating_add(self.gap);
            let stride = if block.reads.is_empty() && near {
                block.run = block.run.saturating_add((size - 1).saturating_mul(dim.src));
                block.scratch = block.run;
                dim.src
            } else {
                let pitch = block.scratch;
                block.reads.push(Dim { size, src: dim.src, dst: pitch });
                block.scratch = pitch.saturating_mul(size);
                pitch
            };
            block.axes.push(Axis {
                size: to_usize(size),
                src_stride: to_usize(stride),
                dst_stride: to_usize(dim.dst),
            });
        }
        block
    }

    /// All blocks of the piece, in source order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        let count = |dim: usize| self.dims[dim].size.div_ceil(self.chunk[dim]);
        let all = (0..self.dims.len()).map(count).product();
        (0..all).map(move |number: u64| {
            let (mut rest, mut src, mut dst) = (number, 0, 0);
            let mut sizes = self.chunk.clone();
            for (at, dim) in self.dims.iter().enumerate().rev() {
                let index = rest % count(at) * self.chunk[at];
                rest /= count(at);
                sizes[at] = self.chunk[at].min(dim.size - index);
                src += index * dim.src;
                dst += index * dim.dst;
            }
            let block = self.block(&sizes);
            Block { src: block.src + src, dst, ..block }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::DIRECT_ALIGNMENT;

    /// The gap of buffered reads.
    const GAP: u64 = 4096;

    fn layout(shape: &[u64], strides: &[u64]) -> Layout {
        Layout { shape: shape.into(), strides: strides.into(), offset: 3 }
    }

    #[test]
    fn a_contiguous_tensor_is_one_run() {
        let found: Vec<_> = pieces(&layout(&[4, 5, 6], &[30, 6, 1]), 1).collect();
        assert_eq!(
            found,
            [Piece { dims: [Dim { size: 120, src: 1, dst: 1 }][..].into(), src: 3, numel: 120 }]
        );
        let grid: Vec<_> = BlockGrid::new(&found[0], 4, 100, GAP).iter().collect();
        assert!(grid.iter().all(Block::is_contiguous_copy));
        assert_eq!(grid.iter().map(|block| block.run).collect::<Vec<_>>(), [25, 25, 25, 25, 20]);
    }

    #[test]
    fn pieces_are_contiguous_and_cover_the_destination() {
        for count in [1, 2, 3, 7, 100] {
            let whole = layout(&[3, 5, 4], &[1, 60, 3]);
            assert_eq!(pieces(&whole, count).map(|piece| piece.numel).sum::<u64>(), 60, "{count}");
        }
    }

    #[test]
    fn aligned_pieces_start_on_disk_blocks() {
        for (numel, itemsize, block_offset, count) in [
            (1 << 20, 4, 0, 16),
            (1 << 20, 4, 64, 16),
            ((1 << 20) + 77, 8, 4032, 3),
            (5, 2, 100, 9),
            (99_999, 1, 7, 1),
        ] {
            let step = numel * itemsize / count;
            let found =
                aligned_pieces(&layout(&[numel], &[1]), itemsize, (block_offset, DIRECT_ALIGNMENT), step);
            assert!(found.len() as u64 <= count + 2, "{} pieces", found.len());
            let mut next = 3;
            for piece in &found {
                assert!(
                    piece.src == next
                        && (next == 3
                            || (block_offset + (next - 3) * itemsize).is_multiple_of(DIRECT_ALIGNMENT))
                );
                next += piece.numel;
            }
            assert_eq!(next, numel + 3);
        }
        // If a disk block starts inside an element, the piece starts with that element.
        let found = aligned_pieces(&layout(&[10_000], &[1]), 8, (3, DIRECT_ALIGNMENT), 20_000);
        assert!(
            found[1..]
                .iter()
                .all(|piece| (3 + (piece.src - 3) * 8) % DIRECT_ALIGNMENT >= DIRECT_ALIGNMENT - 8)
        );
    }

    #[test]
    fn a_transposing_block_takes_many_rows_before_long_ones() {
        // 1000 x 100000 in the file, requested as 100000 x 1000.
        let piece = &Piece::whole(&layout(&[100_000, 1000], &[1, 100_000]));
        let block = BlockGrid::new(piece, 4, 1 << 20, GAP).iter().next().unwrap();
        assert_eq!(block.reads[..], [Dim { size: 32, src: 100_000, dst: 8192 }]);
        assert_eq!(block.run, 8192);
    }

    #[test]
    fn small_gaps_are_read_and_large_ones_skipped() {
        let near = &Piece::whole(&layout(&[8, 10], &[20, 1]));
        let block = BlockGrid::new(near, 4, 1 << 20, GAP).iter().next().unwrap();
        assert_eq!((block.run, block.reads.len()), (7 * 20 + 10, 0));
        let far = &Piece::whole(&layout(&[8, 10], &[20_000, 1]));
        let block = BlockGrid::new(far, 4, 1 << 20, GAP).iter().next().unwrap();
        assert_eq!((block.run, block.scratch), (10, 80));
    }

    #[test]
    fn a_block_never_exceeds_the_scratch() {
        for (shape, strides) in [
            (&[7_u64, 300, 11, 13][..], &[1_u64, 7000, 91, 7][..]),
            (&[1000, 1000][..], &[0, 1][..]),
            (&[50, 40, 30][..], &[1, 50, 2000][..]),
            (&[100, 100][..], &[1 << 40, 1 << 20][..]),
        ] {
            let whole = layout(shape, strides);
            for piece in pieces(&whole, 3) {
                let mut numel = 0;
                for block in BlockGrid::new(&piece, 2, 4096, GAP).iter() {
                    assert!(block.scratch * 2 <= 4096);
                    numel += block.axes.iter().map(|axis| axis.size as u64).product::<u64>();
                }
                assert_eq!(numel, piece.numel);
            }
        }
    }
}
