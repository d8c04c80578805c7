//! Shapes and strides: how a tensor's elements lie in its storage, and what indexing and permuting make of that.
//!
//! Sizes, strides and offsets count elements. A [`Layout`] is plain numbers; whether it stays inside its storage is
//! proved once, in `index::validate`, and every operation here only narrows it.

use smallvec::SmallVec;

use crate::error::{Code, Error, Result};

/// One number per dimension; up to four without an allocation.
pub type Dims = SmallVec<[u64; 4]>;

/// Where the elements of a tensor lie, relative to the start of its storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements along each dimension.
    pub shape: Dims,
    /// Elements between neighbours along each dimension.
    pub strides: Dims,
    /// The first element.
    pub offset: u64,
}

/// One step of basic indexing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Takes one element along a dimension and drops the dimension; counts from the end if negative.
    At(i64),
    /// Takes a range with a positive step.
    Range {
        /// First element; counts from the end if negative.
        start: Option<i64>,
        /// End of the range, exclusive; counts from the end if negative.
        stop: Option<i64>,
        /// Distance between the elements taken.
        step: Option<i64>,
    },
    /// As many whole dimensions as are left.
    Ellipsis,
    /// A new dimension of size one.
    NewAxis,
}

/// The number of elements, or `None` where it does not fit 64 bits.
pub fn numel(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_u64, |n, &size| n.checked_mul(size))
}

/// The strides of a C-contiguous tensor of this shape, as torch gives them (a dimension of size 0 counts as 1).
pub fn contiguous_strides(shape: &[u64]) -> Option<Dims> {
    let mut strides: Dims = shape.iter().map(|_| 1).collect();
    let mut step = 1_u64;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.checked_mul(size.max(1))?;
    }
    Some(strides)
}

impl Layout {
    /// A C-contiguous layout at offset 0.
    pub fn contiguous(shape: &[u64]) -> Result<Layout> {
        let strides = contiguous_strides(shape).filter(|_| numel(shape).is_some()).ok_or_else(|| {
            Error::new(Code::TensorShape, format!("the size of shape {shape:?} does not fit 64 bits"))
        })?;
        Ok(Layout { shape: shape.into(), strides, offset: 0 })
    }

    /// The number of dimensions.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements; layouts are only made where it fits.
    pub fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX)
    }

    /// Elements from the storage's start to one past the last element; `None` where that does not fit 64 bits.
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

    /// Whether the elements lie one after the other in C order; strides of dimensions of size 1 do not matter.
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

    /// Whether two different indices can mean the same element.
    pub fn repeats_elements(&self) -> bool {
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

    /// The layout that basic indexing gives, in NumPy's and torch's words.
    ///
    /// Where there are no elements, or none in the file, any strides are right, and the offset means nothing: it may be too large
    /// for a number, and is the largest then.
    pub fn index(&self, items: &[Index]) -> Result<Layout> {
        let used = items.iter().filter(|item| matches!(item, Index::At(_) | Index::Range { .. })).count();
        if used > self.ndim() {
            let text = format!("too many indices: {used} for a tensor of {} dimension(s)", self.ndim());
            return Err(Error::new(Code::Index, text));
        }
        if items.iter().filter(|item| matches!(item, Index::Ellipsis)).count() > 1 {
            return Err(Error::new(Code::Value, "an index holds at most one ellipsis"));
        }
        let mut out = Layout { shape: Dims::new(), strides: Dims::new(), offset: self.offset };
        let mut dim = 0;
        for item in items {
            match *item {
                Index::NewAxis => {
                    out.shape.push(1);
                    out.strides.push(0);
                }
                Index::Ellipsis => {
                    for _ in 0..self.ndim() - used {
                        out.keep(self.shape[dim], self.strides[dim]);
                        dim += 1;
                    }
                }
                Index::At(at) => {
                    out.skip(at_index(at, self.shape[dim], dim)?, self.strides[dim]);
                    dim += 1;
                }
                Index::Range { start, stop, step } => {
                    let (start, count, step) = range_index(start, stop, step, self.shape[dim])?;
                    if count > 0 {
                        out.skip(start, self.strides[dim]);
                    }
                    // A step that leads nowhere does not count: multiplied, it may not fit 63 bits.
                    out.keep(count, self.strides[dim].saturating_mul(if count > 1 { step } else { 1 }));
                    dim += 1;
                }
            }
        }
        while dim < self.ndim() {
            out.keep(self.shape[dim], self.strides[dim]);
            dim += 1;
        }
        Ok(out)
    }

    fn skip(&mut self, count: u64, stride: u64) {
        self.offset = self.offset.saturating_add(count.saturating_mul(stride));
    }

    fn keep(&mut self, size: u64, stride: u64) {
        self.shape.push(size);
        self.strides.push(stride);
    }

    /// The layout with its dimensions in the order `dims`; negative numbers count from the end.
    pub fn permute(&self, dims: &[i64]) -> Result<Layout> {
        let order = normalize_dims(dims, self.ndim())?;
        Ok(Layout {
            shape: order.iter().map(|&dim| self.shape[dim]).collect(),
            strides: order.iter().map(|&dim| self.strides[dim]).collect(),
            offset: self.offset,
        })
    }

    /// The layout with its last two dimensions swapped.
    pub fn transpose(&self) -> Result<Layout> {
        let n = self.ndim();
        if n < 2 {
            return Err(Error::new(
                Code::Value,
                format!("transpose needs 2 dimensions or more, the tensor has {n}"),
            ));
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

/// `dims` as a permutation of `0..ndim`.
fn normalize_dims(dims: &[i64], ndim: usize) -> Result<SmallVec<[usize; 4]>> {
    let wrong = || Error::new(Code::Value, format!("{dims:?} is no permutation of {ndim} dimension(s)"));
    let mut seen: SmallVec<[bool; 8]> = SmallVec::from_elem(false, ndim);
    let mut order = SmallVec::new();
    for &dim in dims {
        let dim = if dim < 0 { dim + ndim as i64 } else { dim };
        let dim = usize::try_from(dim).map_err(|_| wrong())?;
        match seen.get_mut(dim) {
            Some(taken @ false) => *taken = true,
            _ => return Err(wrong()),
        }
        order.push(dim);
    }
    if order.len() == ndim { Ok(order) } else { Err(wrong()) }
}

fn at_index(at: i64, size: u64, dim: usize) -> Result<u64> {
    let from_start = if at < 0 { i128::from(at) + i128::from(size) } else { i128::from(at) };
    u64::try_from(from_start).ok().filter(|&index| index < size).ok_or_else(|| {
        Error::new(Code::Index, format!("index {at} is out of bounds for dimension {dim} of size {size}"))
    })
}

/// `(start, count, step)` of a range over `size` elements, clipped as Python clips slices.
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
        .ok_or_else(|| Error::new(Code::Value, format!("slice steps must be positive, got {step}")))?;
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
        let range = Index::Range { start: Some(1), stop: Some(-1), step: Some(2) };
        let part = whole.index(&[Index::At(-1), Index::Ellipsis, range]).unwrap();
        assert_eq!((&part.shape[..], &part.strides[..], part.offset), (&[6, 3][..], &[8, 2][..], 3 * 48 + 1));
        assert_eq!(whole.index(&[Index::NewAxis]).unwrap().shape[..], [1, 4, 6, 8]);
        assert!(whole.index(&[Index::At(4)]).is_err());
        assert!(whole.index(&[Index::At(0); 4]).is_err());
    }

    #[test]
    fn where_nothing_is_any_strides_are_taken() {
        // A tensor of the meta device, and one without elements: nobody has proved these.
        for shape in [[1_u64 << 40, 1 << 20], [1 << 40, 0]] {
            let dims = |numbers: [u64; 2]| Dims::from_slice(&numbers);
            let whole = Layout { shape: dims(shape), strides: dims([1 << 62; 2]), offset: u64::MAX };
            let from = Index::Range { start: Some(3), stop: None, step: Some(1 << 40) };
            for items in [&[Index::At(5)][..], &[Index::At(-1), from], &[from, from]] {
                let part = whole.index(items).unwrap();
                assert_eq!(part.shape.contains(&0), shape.contains(&0));
                assert_eq!(part.offset, u64::MAX);
            }
        }
    }

    #[test]
    fn an_empty_range_stays_inside() {
        let part = layout(&[4]).index(&[Index::Range { start: Some(9), stop: None, step: None }]).unwrap();
        assert_eq!((part.shape[0], part.offset, part.end()), (0, 0, Some(0)));
    }

    #[test]
    fn contiguity_ignores_dimensions_of_one() {
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
