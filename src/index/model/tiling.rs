//! Whether boxes tile a box: none reaches outside, no two overlap, and together they are all of it.
//!
//! The boxes are cut apart along one dimension after another, wherever no box crosses the cut. Real chunks are cells of a grid, so
//! a few rounds of sorting separate all of them. Boxes that no cut separates are compared pair by pair.

use crate::error::{Code, Error, Result, bail};
use crate::layout::numel;
use crate::num::to_u64;

/// The first index along each dimension, and the size.
pub(crate) type TensorBox<'a> = (&'a [u64], &'a [u64]);

/// The most boxes that no cut separates and that are compared pair by pair.
const PAIRS_MAX_BOXES: usize = 1024;

/// How often each box may be sorted, on average: twice for each dimension of a grid.
const ROUNDS_MAX: u64 = 128;

/// Fails with `DcpGrid` unless the boxes tile a tensor of this shape.
pub(crate) fn check(shape: &[u64], boxes: &[TensorBox<'_>]) -> Result<()> {
    let mut volume = 0_u64;
    for (offsets, sizes) in boxes {
        let ends = offsets.iter().zip(*sizes).zip(shape);
        let is_inside = |((&offset, &size), &whole): ((&u64, &u64), &u64)| {
            u64::checked_add(offset, size).is_some_and(|end| end <= whole)
        };
        if offsets.len() != shape.len() || sizes.len() != shape.len() || !ends.into_iter().all(is_inside) {
            let text = format!("a chunk of {sizes:?} at {offsets:?} reaches outside its tensor of {shape:?}");
            return Err(Error::new(Code::DcpGrid, text));
        }
        let numel =
            numel(sizes).ok_or_else(|| Error::new(Code::DcpGrid, "a chunk's size does not fit 64 bits"))?;
        volume = volume.saturating_add(numel);
    }
    // Empty chunks hold nothing and overlap nothing.
    let mut cells: Vec<TensorBox<'_>> =
        boxes.iter().copied().filter(|(_, sizes)| !sizes.contains(&0)).collect();
    separate(&mut cells, shape.len())?;
    match numel(shape) {
        Some(whole) if whole == volume => Ok(()),
        whole => {
            let whole = whole.unwrap_or(u64::MAX);
            let text = format!("the chunks of a tensor of {shape:?} hold {volume} element(s) of {whole}");
            Err(Error::new(Code::DcpGrid, text))
        }
    }
}

/// Fails where two boxes overlap.
fn separate(boxes: &mut [TensorBox<'_>], ndim: usize) -> Result<()> {
    let mut work = to_u64(boxes.len()).saturating_mul(ROUNDS_MAX).saturating_add(1 << 16);
    // Groups that are to be cut, each with the number of dimensions in a row along which it was not.
    let mut groups = vec![(boxes, 0_usize, 0_usize)];
    while let Some((group, dim, uncut)) = groups.pop() {
        if group.len() < 2 {
            continue;
        }
        if uncut >= ndim {
            compare(group)?;
            continue;
        }
        work = work
            .checked_sub(to_u64(group.len()))
            .ok_or_else(|| Error::new(Code::DcpGrid, "the chunks of a tensor are not the cells of a grid"))?;
        let bounds = |(offsets, sizes): &TensorBox<'_>| {
            let begin = offsets.get(dim).copied().unwrap_or(0);
            (begin, begin.saturating_add(sizes.get(dim).copied().unwrap_or(0)))
        };
        group.sort_unstable_by_key(|one| bounds(one).0);
        let next = dim.saturating_add(1).checked_rem(ndim).unwrap_or(0);
        let (mut rest, mut has_cut) = (group, false);
        loop {
            let mut end = 0;
            let cut = rest.iter().position(|one| {
                let (begin, own_end) = bounds(one);
                let is_cut = end > 0 && begin >= end;
                end = end.max(own_end);
                is_cut
            });
            let Some(cut) = cut.filter(|&cut| cut < rest.len()) else { break };
            let (head, tail) = rest.split_at_mut(cut);
            has_cut = true;
            groups.push((head, next, 0));
            rest = tail;
        }
        groups.push((rest, next, if has_cut { 0 } else { uncut.saturating_add(1) }));
    }
    Ok(())
}

/// Compares boxes pair by pair. Fails where two overlap.
fn compare(boxes: &[TensorBox<'_>]) -> Result<()> {
    if boxes.len() > PAIRS_MAX_BOXES {
        bail!(Code::DcpGrid, "the chunks of a tensor overlap, or are not the cells of a grid");
    }
    for (at, (offsets, sizes)) in boxes.iter().enumerate() {
        for (other_offsets, other_sizes) in boxes.iter().skip(at.saturating_add(1)) {
            let mut dims = offsets.iter().zip(*sizes).zip(other_offsets.iter().zip(*other_sizes));
            let overlaps = |((&begin, &size), (&other, &other_size)): ((&u64, &u64), (&u64, &u64))| {
                begin < u64::saturating_add(other, other_size) && other < u64::saturating_add(begin, size)
            };
            if dims.all(overlaps) {
                bail!(
                    Code::DcpGrid,
                    "two chunks overlap: {sizes:?} at {offsets:?}, and {other_sizes:?} at {other_offsets:?}"
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(shape: &[u64], boxes: &[(&[u64], &[u64])]) -> Option<Code> {
        check(shape, boxes).err().map(|error| error.code())
    }

    #[test]
    fn only_boxes_that_tile_pass() {
        assert_eq!(code(&[], &[(&[], &[])]), None);
        assert_eq!(code(&[5, 3], &[(&[0, 0], &[3, 3]), (&[3, 0], &[2, 3])]), None);
        assert_eq!(code(&[0, 4], &[(&[0, 0], &[0, 4])]), None);
        assert_eq!(code(&[4], &[]), Some(Code::DcpGrid));
        assert_eq!(code(&[4], &[(&[0], &[2])]), Some(Code::DcpGrid));
        assert_eq!(code(&[4], &[(&[0], &[3]), (&[2], &[2])]), Some(Code::DcpGrid));
        // The volume is right, the place is not.
        assert_eq!(code(&[4], &[(&[0], &[2]), (&[1], &[2])]), Some(Code::DcpGrid));
        assert_eq!(code(&[2, 2], &[(&[0, 0], &[2, 1]), (&[0, 0], &[1, 2])]), Some(Code::DcpGrid));
        assert_eq!(code(&[4], &[(&[2], &[3])]), Some(Code::DcpGrid));
        assert_eq!(code(&[4], &[(&[u64::MAX], &[2])]), Some(Code::DcpGrid));
        assert_eq!(code(&[2, 2], &[(&[0], &[4])]), Some(Code::DcpGrid));
        // Five boxes around a middle, which no cut separates.
        let wheel: [(&[u64], &[u64]); 5] = [
            (&[0, 0], &[1, 2]),
            (&[0, 2], &[2, 1]),
            (&[2, 1], &[1, 2]),
            (&[1, 0], &[2, 1]),
            (&[1, 1], &[1, 1]),
        ];
        assert_eq!(code(&[3, 3], &wheel), None);
    }

    #[test]
    fn a_grid_of_a_million_chunks_is_checked_fast_and_a_staircase_ends() {
        let grid: Vec<([u64; 3], [u64; 3])> =
            (0..1_000_000).map(|at| ([at % 100 * 2, at / 100 % 100 * 3, at / 10_000], [2, 3, 1])).collect();
        let boxes = |cells: &'_ [([u64; 3], [u64; 3])]| -> Vec<(Vec<u64>, Vec<u64>)> {
            cells.iter().map(|(offsets, sizes)| (offsets.to_vec(), sizes.to_vec())).collect()
        };
        let owned = boxes(&grid);
        let cells: Vec<_> = owned.iter().map(|(offsets, sizes)| (&offsets[..], &sizes[..])).collect();
        assert_eq!(code(&[200, 300, 100], &cells), None);
        // Each box spans all that is left in one dimension, so that every cut separates one box.
        let size = 40_000;
        let owned: Vec<(Vec<u64>, Vec<u64>)> = (0..size)
            .map(|at| match at % 2 {
                0 => (vec![at / 2, at / 2], vec![1, size - at / 2]),
                _ => (vec![at / 2 + 1, at / 2], vec![size - at / 2 - 1, 1]),
            })
            .collect();
        let cells: Vec<_> = owned.iter().map(|(offsets, sizes)| (&offsets[..], &sizes[..])).collect();
        assert_eq!(code(&[size, size], &cells), Some(Code::DcpGrid));
    }
}
