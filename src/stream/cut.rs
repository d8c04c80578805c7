//! Cuts a C-contiguous result into slices of bounded size. Each slice is one contiguous range and is found by its number.

use crate::layout::{Dims, Layout};

/// A contiguous range of a result's elements in C order: one index of each leading dimension, `count` indices from `first` of the
/// dimension after them, and all of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultSlice {
    /// The index of each leading dimension.
    pub index: Dims,
    /// The first index of the dimension after them.
    pub first: u64,
    /// The number of indices of that dimension. For a scalar, which has no such dimension, 1.
    pub count: u64,
    /// The number of the result's elements before the slice.
    pub start: u64,
    /// The number of elements in the slice.
    pub numel: u64,
}

impl ResultSlice {
    /// The layout of the slice's elements in a tensor with `layout`, which has the result's shape.
    pub fn layout_of(&self, layout: &Layout) -> Layout {
        let at = self.index.len();
        let Some(&step) = layout.strides.get(at) else { return layout.clone() };
        let leading = self.index.iter().zip(&layout.strides).map(|(&index, &stride)| index * stride);
        let offset = layout.offset + leading.sum::<u64>() + self.first * step;
        let mut shape: Dims = layout.shape[at..].into();
        shape[0] = self.count;
        Layout { shape, strides: layout.strides[at..].into(), offset }
    }

    /// The slice of a result of this shape whose elements are `numel` ones from `start`; `None` if no slice has just those.
    pub(super) fn of_range(shape: &[u64], start: u64, numel: u64) -> Option<ResultSlice> {
        let mut inner: u64 = shape.iter().product();
        let mut rest = start;
        let mut index = Dims::new();
        for &size in shape {
            inner = inner.checked_div(size)?;
            let first = rest.checked_div(inner)?;
            let count = numel / inner;
            if count > 0 && count * inner == numel && rest.is_multiple_of(inner) && first + count <= size {
                return Some(ResultSlice { index, first, count, start, numel });
            }
            index.push(first);
            rest %= inner;
        }
        (shape.is_empty() && start == 0 && numel == 1).then_some(ResultSlice {
            index,
            first: 0,
            count: 1,
            start,
            numel,
        })
    }

    /// The slice of the whole result that is `part` of this slice.
    pub(super) fn part(&self, part: &ResultSlice) -> ResultSlice {
        let (mut index, mut first) = (self.index.clone(), self.first + part.first);
        if let Some((&outermost, inner)) = part.index.split_first() {
            index.push(self.first + outermost);
            index.extend(inner.iter().copied());
            first = part.first;
        }
        ResultSlice { index, first, count: part.count, start: self.start + part.start, numel: part.numel }
    }
}

/// Cuts a result into numbered slices.
#[derive(Clone, Debug)]
pub(super) struct ResultCutter {
    shape: Dims,
    /// The dimension that is cut; those before it are iterated one index at a time.
    dim: usize,
    /// The indices of `dim` in one slice.
    step: u64,
    /// The slices along `dim`.
    slices_along_dim: u64,
    /// The number of all slices.
    len: u64,
    /// The elements of one index of `dim`.
    inner: u64,
}

impl ResultCutter {
    /// Slices of at most `max_numel` elements, and of at least half as many except at an end.
    pub(super) fn new(shape: &[u64], max_numel: u64) -> ResultCutter {
        let max_numel = max_numel.max(1);
        let mut cut =
            ResultCutter { shape: shape.into(), dim: 0, step: 1, slices_along_dim: 1, len: 1, inner: 1 };
        if shape.contains(&0) {
            return ResultCutter { len: 0, ..cut };
        }
        let mut inner: u64 = shape.iter().product();
        for (dim, &size) in shape.iter().enumerate() {
            inner /= size;
            if inner <= max_numel {
                // Slices of nearly equal size.
                let count = size.div_ceil((max_numel / inner).max(1));
                let step = size.div_ceil(count);
                cut = ResultCutter { dim, step, slices_along_dim: size.div_ceil(step), inner, ..cut };
                break;
            }
        }
        let outer: u64 = shape[..cut.dim].iter().product();
        ResultCutter { len: outer * cut.slices_along_dim, ..cut }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The slice with this number.
    pub(super) fn slice(&self, number: u64) -> ResultSlice {
        let Some(&size) = self.shape.get(self.dim) else {
            return ResultSlice { index: Dims::new(), first: 0, count: 1, start: 0, numel: 1 };
        };
        let (mut outer, slice_in_dim) = (number / self.slices_along_dim, number % self.slices_along_dim);
        let first = slice_in_dim * self.step;
        let count = self.step.min(size - first);
        let start = (outer * size + first) * self.inner;
        let mut index: Dims = self.shape[..self.dim].into();
        for position in index.iter_mut().rev() {
            let size = *position;
            *position = outer % size;
            outer /= size;
        }
        ResultSlice { index, first, count, start, numel: count * self.inner }
    }
}

/// Cuts a result of this shape into slices of at most `max_numel` elements, in the order of its elements.
pub fn slices(shape: &[u64], max_numel: u64) -> impl Iterator<Item = ResultSlice> {
    let cutter = ResultCutter::new(shape, max_numel);
    (0..cutter.len()).map(move |number| cutter.slice(number))
}

/// Slices of a result that together have about `numel` elements: at most `runs`, spread evenly from the first to the last element.
pub fn sample_slices(shape: &[u64], runs: u64, numel: u64) -> Vec<ResultSlice> {
    let cutter = ResultCutter::new(shape, numel / runs.max(1));
    let count = cutter.len().min(runs);
    let number = |run: u64| match count {
        0 | 1 => 0,
        count => (u128::from(run) * u128::from(cutter.len() - 1) / u128::from(count - 1)) as u64,
    };
    (0..count).map(|run| cutter.slice(number(run))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_evenly_over_a_result() {
        let sample = sample_slices(&[1000, 1000], 4, 400);
        let starts: Vec<u64> = sample.iter().map(|slice| slice.start).collect();
        assert_eq!(starts, [0, 333_300, 666_600, 999_900]);
        assert!(sample.iter().all(|slice| slice.numel == 100));
        assert_eq!(sample_slices(&[3], 64, 1 << 16).len(), 1);
        assert_eq!(sample_slices(&[0, 9], 64, 1 << 16), []);
        assert_eq!(sample_slices(&[], 64, 1 << 16)[0].numel, 1);
    }

    #[test]
    fn slices_are_consecutive_and_within_the_limit() {
        let shapes: [&[u64]; 9] =
            [&[], &[1], &[7], &[0, 3], &[5, 7], &[3, 1, 50], &[2, 3, 4, 5], &[1000, 3], &[1, 1, 9]];
        for shape in shapes {
            for max_numel in [1, 2, 3, 5, 7, 10, 49, 100, 10_000] {
                let cut = ResultCutter::new(shape, max_numel);
                let mut next = 0;
                for number in 0..cut.len() {
                    let slice = cut.slice(number);
                    assert_eq!(slice.start, next, "{shape:?} {max_numel} {number}");
                    assert!((1..=max_numel).contains(&slice.numel), "{shape:?} {max_numel} {slice:?}");
                    next += slice.numel;
                }
                assert_eq!(next, shape.iter().product::<u64>(), "{shape:?} {max_numel}");
            }
        }
    }

    #[test]
    fn a_slice_of_a_layout_has_the_elements_of_its_range() {
        let layout = Layout { shape: [3, 4, 5][..].into(), strides: [1, 100, 7][..].into(), offset: 9 };
        let all = |layout: &Layout| {
            let mut found = vec![layout.offset];
            for (&size, &stride) in layout.shape.iter().zip(&layout.strides) {
                found =
                    found.iter().flat_map(|&at| (0..size).map(move |index| at + index * stride)).collect();
            }
            found
        };
        for max_numel in 1..70 {
            let found: Vec<u64> =
                slices(&layout.shape, max_numel).flat_map(|slice| all(&slice.layout_of(&layout))).collect();
            assert_eq!(found, all(&layout), "{max_numel}");
        }
        let scalar = Layout { shape: Dims::new(), strides: Dims::new(), offset: 4 };
        assert_eq!(ResultCutter::new(&[], 100).slice(0).layout_of(&scalar), scalar);
    }

    #[test]
    fn a_slice_is_found_by_its_range() {
        let shapes: [&[u64]; 6] = [&[], &[1], &[7], &[5, 7], &[3, 1, 50], &[2, 3, 4, 5]];
        for shape in shapes {
            let layout = Layout::contiguous(shape).unwrap();
            for max_numel in [1, 3, 5, 7, 12, 50, 100] {
                for slice in slices(shape, max_numel) {
                    let found = ResultSlice::of_range(shape, slice.start, slice.numel).unwrap();
                    let own = found.layout_of(&layout);
                    assert_eq!((own.offset, own.numel()), (slice.start, slice.numel));
                    assert!(own.is_contiguous());
                }
            }
        }
        assert_eq!(ResultSlice::of_range(&[5, 7], 3, 9), None);
        assert_eq!(ResultSlice::of_range(&[5, 7], 28, 14), None);
        assert_eq!(ResultSlice::of_range(&[0, 7], 0, 7), None);
    }

    #[test]
    fn a_part_of_a_slice_is_a_slice_of_the_whole() {
        let shape = [3, 4, 5];
        let layout = Layout::contiguous(&shape).unwrap();
        for max_numel in [7, 20, 40] {
            for slice in slices(&shape, max_numel) {
                let own = slice.layout_of(&layout);
                for part in slices(&own.shape, 3) {
                    let whole = slice.part(&part);
                    assert_eq!(whole.layout_of(&layout), part.layout_of(&own));
                    assert_eq!(whole.start, whole.layout_of(&layout).offset);
                }
            }
        }
    }

    #[test]
    fn slices_are_near_the_requested_size() {
        for shape in [&[1000_u64, 1000][..], &[3, 700][..], &[700, 3][..], &[10, 10, 10, 10][..]] {
            let cut = ResultCutter::new(shape, 1000);
            let numel: u64 = shape.iter().product();
            assert!(cut.len() <= 2 * numel.div_ceil(500), "{shape:?}: {}", cut.len());
        }
    }
}
