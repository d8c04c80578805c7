//! Shapes and strides: the position of a tensor's elements in its storage, and how indexing and permuting change them.
//!
//! Sizes, strides and offsets count elements. A [`Layout`] is plain numbers. `index::validate` proves once that it is inside its
//! storage; every operation here only selects a subset of its elements.

use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

use smallvec::SmallVec;

use crate::error::{Code, Error, Result, bail, error};

/// One number per dimension; up to four are stored inline, without an allocation.
pub type Dims = SmallVec<[u64; 4]>;

/// Shape, strides and offset of a tensor, relative to the start of its storage.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements along each dimension.
    pub shape: Dims,
    /// The distance between neighbours along each dimension, in elements.
    pub strides: Dims,
    /// The index of the first element in the storage.
    pub offset: u64,
}

impl Clone for Layout {
    fn clone(&self) -> Layout {
        // Every read of a small tensor clones one: `SmallVec::clone` pushes the numbers one by one, this copies them at once.
        let copy = |dims: &Dims| SmallVec::from_slice(dims);
        Layout { shape: copy(&self.shape), strides: copy(&self.strides), offset: self.offset }
    }
}

/// One item of a basic index, as in NumPy and in torch's `TensorIndex`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorIndex {
    /// Selects one element along a dimension and removes the dimension; counts from the end if negative.
    At(i64),
    /// A slice with a positive step.
    Range {
        /// The first element; counts from the end if negative.
        start: Option<i64>,
        /// The end of the slice, exclusive; counts from the end if negative.
        stop: Option<i64>,
        /// The distance between selected elements.
        step: Option<i64>,
    },
    /// As many full slices as there are dimensions without an item.
    Ellipsis,
    /// A new dimension of size one.
    NewAxis,
}

impl From<i64> for TensorIndex {
    fn from(at: i64) -> TensorIndex {
        TensorIndex::At(at)
    }
}

impl From<Range<i64>> for TensorIndex {
    fn from(range: Range<i64>) -> TensorIndex {
        TensorIndex::Range { start: Some(range.start), stop: Some(range.end), step: None }
    }
}

impl From<RangeFrom<i64>> for TensorIndex {
    fn from(range: RangeFrom<i64>) -> TensorIndex {
        TensorIndex::Range { start: Some(range.start), stop: None, step: None }
    }
}

impl From<RangeTo<i64>> for TensorIndex {
    fn from(range: RangeTo<i64>) -> TensorIndex {
        TensorIndex::Range { start: None, stop: Some(range.end), step: None }
    }
}

impl From<RangeFull> for TensorIndex {
    fn from(_: RangeFull) -> TensorIndex {
        TensorIndex::Range { start: None, stop: None, step: None }
    }
}

/// The number of elements; `None` where it does not fit 64 bits.
pub fn numel(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_u64, |n, &size| n.checked_mul(size))
}

/// The strides of a C-contiguous tensor of this shape, as torch computes them (a dimension of size 0 counts as 1); `None` where they do
/// not fit 64 bits.
pub fn contiguous_strides(shape: &[u64]) -> Option<Dims> {
    let mut strides: Dims = SmallVec::from_elem(1, shape.len());
    let mut step = 1_u64;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.checked_mul(size.max(1))?;
    }
    Some(strides)
}

/// Whether a box of these sizes is a range of a C-contiguous tensor of this shape.
pub(crate) fn is_range(sizes: &[u64], shape: &[u64]) -> bool {
    let cut = sizes.iter().position(|&size| size != 1).unwrap_or(sizes.len());
    sizes.iter().zip(shape).skip(cut + 1).all(|(size, whole)| size == whole)
}

impl Layout {
    /// A C-contiguous layout at offset 0; fails with `TensorShape` where its size does not fit 64 bits.
    pub fn contiguous(shape: &[u64]) -> Result<Layout> {
        let strides = contiguous_strides(shape)
            .filter(|_| numel(shape).is_some())
            .ok_or_else(|| error!(Code::TensorShape, "the size of shape {shape:?} does not fit 64 bits"))?;
        Ok(Layout { shape: shape.into(), strides, offset: 0 })
    }

    /// The number of dimensions.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements; a layout is only constructed where it fits 64 bits.
    pub fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX)
    }

    /// The index one past the last element, in the storage; `None` where it does not fit 64 bits.
    pub fn end(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(self.offset);
        }
        let mut last = self.offset;
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add(size.saturating_sub(1).checked_mul(stride)?)?;
        }
        last.checked_add(1)
    }

    /// Whether the elements are C-contiguous; strides of dimensions of size 1 do not matter.
    pub fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut step = 1_u64;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 {
                if stride != step {
                    return false;
                }
                step = step.saturating_mul(size);
            }
        }
        true
    }

    /// Whether two different indices may refer to the same element (internal overlap).
    pub fn repeats_elements(&self) -> bool {
        if self.is_contiguous() {
            return false;
        }
        let mut dims: SmallVec<[(u64, u64); 4]> = self
            .shape
            .iter()
            .zip(&self.strides)
            .filter(|(size, _)| **size > 1)
            .map(|(&n, &s)| (s, n))
            .collect();
        dims.sort_unstable();
        let mut span = 1_u64;
        for (stride, size) in dims {
            if stride < span {
                return true;
            }
            span = span.saturating_add(size.saturating_sub(1).saturating_mul(stride));
        }
        false
    }

    /// The layout after basic indexing, as in NumPy and torch.
    ///
    /// A tensor without elements, or without elements in the file (meta device), may have any strides and offset; both saturate
    /// where they do not fit 64 bits. Fails where there are too many indices, an index is out of bounds, or a step is not positive.
    pub fn index(&self, items: &[TensorIndex]) -> Result<Layout> {
        let mut out = Layout { shape: Dims::new(), strides: Dims::new(), offset: self.offset };
        let mut dim = 0;
        for item in one_for_each_dim(items, self.ndim())? {
            if item == TensorIndex::NewAxis {
                out.push_dim(1, 0);
                continue;
            }
            let (size, stride) = (self.shape[dim], self.strides[dim]);
            if let TensorIndex::At(at) = item {
                out.advance(at_index(at, size, dim)?, stride);
            } else if let TensorIndex::Range { start, stop, step } = item {
                let (start, count, step) = range_index(start, stop, step, size)?;
                if count > 0 {
                    out.advance(start, stride);
                }
                // The step is not used with fewer than two elements: multiplied, it may not fit 63 bits.
                out.push_dim(count, stride.saturating_mul(if count > 1 { step } else { 1 }));
            }
            dim += 1;
        }
        Ok(out)
    }

    /// Moves the offset by `count` elements along a dimension.
    fn advance(&mut self, count: u64, stride: u64) {
        self.offset = self.offset.saturating_add(count.saturating_mul(stride));
    }

    /// Adds a dimension.
    fn push_dim(&mut self, size: u64, stride: u64) {
        self.shape.push(size);
        self.strides.push(stride);
    }

    /// The layout with its dimensions in the order `dims`, where negative numbers count from the end; fails where `dims` is not a
    /// permutation.
    pub fn permute(&self, dims: &[i64]) -> Result<Layout> {
        let order = normalize_dims(dims, self.ndim())?;
        Ok(Layout {
            shape: order.iter().map(|&dim| self.shape[dim]).collect(),
            strides: order.iter().map(|&dim| self.strides[dim]).collect(),
            offset: self.offset,
        })
    }

    /// The layout with its last two dimensions swapped; fails below two dimensions.
    pub fn transpose(&self) -> Result<Layout> {
        let n = self.ndim();
        if n < 2 {
            bail!(Code::Value, "transpose needs 2 dimensions or more, the tensor has {n}");
        }
        let mut out = self.clone();
        out.shape.swap(n - 2, n - 1);
        out.strides.swap(n - 2, n - 1);
        Ok(out)
    }

    /// The layout with all dimensions in reverse order.
    pub fn reversed(&self) -> Layout {
        let mut out = self.clone();
        out.shape.reverse();
        out.strides.reverse();
        out
    }
}

/// The items with full slices in place of the ellipsis, or at the end, so that each of `ndim` dimensions has one.
pub(crate) fn one_for_each_dim(items: &[TensorIndex], ndim: usize) -> Result<SmallVec<[TensorIndex; 4]>> {
    let is_of_dim = |item: &&TensorIndex| matches!(item, TensorIndex::At(_) | TensorIndex::Range { .. });
    let used = items.iter().filter(is_of_dim).count();
    if used > ndim {
        bail!(Code::Index, "too many indices: {used} for a tensor of {ndim} dimension(s)");
    }
    let (before, after) = match items.iter().position(|item| matches!(item, TensorIndex::Ellipsis)) {
        Some(at) => (&items[..at], &items[at + 1..]),
        None => (items, &[][..]),
    };
    if after.contains(&TensorIndex::Ellipsis) {
        bail!(Code::Value, "an index may contain at most one ellipsis");
    }
    let full = std::iter::repeat_n(TensorIndex::from(..), ndim - used);
    Ok(before.iter().copied().chain(full).chain(after.iter().copied()).collect())
}

/// `dims` as a permutation of `0..ndim`.
fn normalize_dims(dims: &[i64], ndim: usize) -> Result<SmallVec<[usize; 4]>> {
    let invalid = || error!(Code::Value, "{dims:?} is not a permutation of {ndim} dimension(s)");
    let mut seen: SmallVec<[bool; 8]> = SmallVec::from_elem(false, ndim);
    let mut order = SmallVec::new();
    for &dim in dims {
        let dim = if dim < 0 { dim + ndim as i64 } else { dim };
        let dim = usize::try_from(dim).map_err(|_| invalid())?;
        match seen.get_mut(dim) {
            Some(taken @ false) => *taken = true,
            _ => return Err(invalid()),
        }
        order.push(dim);
    }
    if order.len() == ndim { Ok(order) } else { Err(invalid()) }
}

fn at_index(at: i64, size: u64, dim: usize) -> Result<u64> {
    let from_start = if at < 0 { i128::from(at) + i128::from(size) } else { i128::from(at) };
    u64::try_from(from_start).ok().filter(|&index| index < size).ok_or_else(|| {
        Error::new(Code::Index, format!("index {at} is out of bounds for dimension {dim} of size {size}"))
    })
}

/// `(start, count, step)` of a slice over `size` elements, clipped as in Python.
fn range_index(
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
    size: u64,
) -> Result<(u64, u64, u64)> {
    let step = step.unwrap_or(1);
    let step = u64::try_from(step)
        .ok()
        .filter(|&step| step > 0)
        .ok_or_else(|| error!(Code::Value, "slice steps must be positive, got {step}"))?;
    let clip = |bound: Option<i64>, default: u64| -> u64 {
        let Some(bound) = bound else { return default };
        let bound = if bound < 0 { i128::from(bound) + i128::from(size) } else { i128::from(bound) };
        u64::try_from(bound.clamp(0, i128::from(size))).unwrap_or(size)
    };
    let (start, stop) = (clip(start, 0), clip(stop, size));
    Ok((start, stop.saturating_sub(start).div_ceil(step), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[u64]) -> Layout {
        Layout::contiguous(shape).unwrap()
    }

    #[test]
    fn basic_indexing_moves_the_offset_and_keeps_strides() {
        let whole = layout(&[4, 6, 8]);
        let range = TensorIndex::Range { start: Some(1), stop: Some(-1), step: Some(2) };
        let part = whole.index(&[TensorIndex::At(-1), TensorIndex::Ellipsis, range]).unwrap();
        assert_eq!((&part.shape[..], &part.strides[..], part.offset), (&[6, 3][..], &[8, 2][..], 3 * 48 + 1));
        assert_eq!(whole.index(&[TensorIndex::NewAxis]).unwrap().shape[..], [1, 4, 6, 8]);
        assert!(whole.index(&[TensorIndex::At(4)]).is_err());
        assert!(whole.index(&[TensorIndex::At(0); 4]).is_err());
    }

    #[test]
    fn numbers_and_ranges_are_indices() {
        let whole = layout(&[4, 6, 8]);
        let part = whole.index(&[(-1).into(), (2..).into(), (..3).into()]).unwrap();
        assert_eq!((&part.shape[..], part.offset), (&[4, 3][..], 3 * 48 + 2 * 8));
        assert_eq!(whole.index(&[(..).into(), (1..5).into()]).unwrap().shape[..], [4, 4, 8]);
    }

    #[test]
    fn layouts_without_stored_elements_saturate() {
        // A meta tensor, and one without elements: their strides and offset are not validated.
        for shape in [[1_u64 << 40, 1 << 20], [1 << 40, 0]] {
            let dims = |numbers: [u64; 2]| Dims::from_slice(&numbers);
            let whole = Layout { shape: dims(shape), strides: dims([1 << 62; 2]), offset: u64::MAX };
            let from = TensorIndex::Range { start: Some(3), stop: None, step: Some(1 << 40) };
            for items in [&[TensorIndex::At(5)][..], &[TensorIndex::At(-1), from], &[from, from]] {
                let part = whole.index(items).unwrap();
                assert_eq!(part.shape.contains(&0), shape.contains(&0));
                assert_eq!(part.offset, u64::MAX);
            }
        }
    }

    #[test]
    fn an_empty_slice_stays_inside_the_storage() {
        let part =
            layout(&[4]).index(&[TensorIndex::Range { start: Some(9), stop: None, step: None }]).unwrap();
        assert_eq!((part.shape[0], part.offset, part.end()), (0, 0, Some(0)));
    }

    #[test]
    fn contiguity_ignores_dimensions_of_size_one() {
        let part = Layout { shape: [3, 1, 2][..].into(), strides: [2, 77, 1][..].into(), offset: 5 };
        assert!(part.is_contiguous());
        assert!(!layout(&[2, 3]).transpose().unwrap().is_contiguous());
    }

    #[test]
    fn expanded_and_overlapping_layouts_repeat_elements() {
        let expanded = Layout { shape: [3, 2][..].into(), strides: [0, 1][..].into(), offset: 0 };
        let sliding = Layout { shape: [3, 2][..].into(), strides: [1, 1][..].into(), offset: 0 };
        assert!(expanded.repeats_elements() && sliding.repeats_elements());
        assert!(!layout(&[3, 2]).transpose().unwrap().repeats_elements());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert!(Layout::contiguous(&[1 << 40, 1 << 40]).is_err());
        assert_eq!(layout(&[0, 1 << 62]).numel(), 0);
        let far = Layout { shape: [2][..].into(), strides: [u64::MAX][..].into(), offset: 1 };
        assert_eq!(far.end(), None);
    }

    #[test]
    fn permutations_are_checked() {
        assert_eq!(layout(&[2, 3, 4]).permute(&[2, 0, -2]).unwrap().shape[..], [4, 2, 3]);
        for wrong in [&[0, 0, 1][..], &[0, 1], &[0, 1, 3]] {
            assert!(layout(&[2, 3, 4]).permute(wrong).is_err());
        }
    }
}
