//! A C-contiguous result in parts of bounded size, each of which is one range of it, and each reachable by its number.

use crate::layout::{Dims, Layout};

/// A range of a result's elements in C order: at `index` of the leading dimensions, `count` steps from `first` on of the one after
/// them, all of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of the leading dimensions, one index each.
    pub index: Dims,
    /// The first index of the dimension after them.
    pub first: u64,
    /// The number of indices of that dimension. A scalar has no such dimension, and one element.
    pub count: u64,
    /// Elements before it.
    pub start: u64,
    /// Elements in it.
    pub numel: u64,
}

impl Part {
    /// The same elements of a tensor of the result's shape.
    pub(super) fn of(&self, layout: &Layout) -> Layout {
        let at = self.index.len();
        let Some(&step) = layout.strides.get(at) else { return layout.clone() };
        let leading = self.index.iter().zip(&layout.strides).map(|(&index, &stride)| index * stride);
        let offset = layout.offset + leading.sum::<u64>() + self.first * step;
        let mut shape: Dims = layout.shape[at..].into();
        shape[0] = self.count;
        Layout { shape, strides: layout.strides[at..].into(), offset }
    }
}

/// How a result is cut.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    shape: Dims,
    /// The dimension that is cut; those before it are walked one index at a time.
    dim: usize,
    /// Indices of it in a part.
    step: u64,
    /// Parts along it.
    along: u64,
    /// All parts.
    len: u64,
    /// Elements of one index of it.
    inner: u64,
}

impl Cut {
    /// Parts of at most `most` elements, and no fewer than half as many but at an end.
    pub(super) fn new(shape: &[u64], most: u64) -> Cut {
        let most = most.max(1);
        let mut cut = Cut { shape: shape.into(), dim: 0, step: 1, along: 1, len: 1, inner: 1 };
        if shape.contains(&0) {
            return Cut { len: 0, ..cut };
        }
        let mut inner: u64 = shape.iter().product();
        for (dim, &size) in shape.iter().enumerate() {
            inner /= size;
            if inner <= most {
                // Parts of equal size, as near as can be.
                let count = size.div_ceil((most / inner).max(1));
                let step = size.div_ceil(count);
                cut = Cut { dim, step, along: size.div_ceil(step), inner, ..cut };
                break;
            }
        }
        let outer: u64 = shape[..cut.dim].iter().product();
        Cut { len: outer * cut.along, ..cut }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The part of that number.
    pub(super) fn part(&self, number: u64) -> Part {
        let Some(&size) = self.shape.get(self.dim) else {
            return Part { index: Dims::new(), first: 0, count: 1, start: 0, numel: 1 };
        };
        let (mut outer, along) = (number / self.along, number % self.along);
        let first = along * self.step;
        let count = self.step.min(size - first);
        let start = (outer * size + first) * self.inner;
        let mut index: Dims = self.shape[..self.dim].into();
        for at in index.iter_mut().rev() {
            let size = *at;
            *at = outer % size;
            outer /= size;
        }
        Part { index, first, count, start, numel: count * self.inner }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_and_are_no_larger_than_asked() {
        let shapes: [&[u64]; 9] =
            [&[], &[1], &[7], &[0, 3], &[5, 7], &[3, 1, 50], &[2, 3, 4, 5], &[1000, 3], &[1, 1, 9]];
        for shape in shapes {
            for most in [1, 2, 3, 5, 7, 10, 49, 100, 10_000] {
                let cut = Cut::new(shape, most);
                let mut next = 0;
                for number in 0..cut.len() {
                    let part = cut.part(number);
                    assert_eq!(part.start, next, "{shape:?} {most} {number}");
                    assert!((1..=most).contains(&part.numel), "{shape:?} {most} {part:?}");
                    next += part.numel;
                }
                assert_eq!(next, shape.iter().product::<u64>(), "{shape:?} {most}");
            }
        }
    }

    #[test]
    fn a_part_of_a_layout_has_the_elements_that_it_says() {
        let layout = Layout { shape: [3, 4, 5][..].into(), strides: [1, 100, 7][..].into(), offset: 9 };
        let all = |layout: &Layout| {
            let mut found = vec![layout.offset];
            for (&size, &stride) in layout.shape.iter().zip(&layout.strides) {
                found =
                    found.iter().flat_map(|&at| (0..size).map(move |index| at + index * stride)).collect();
            }
            found
        };
        for most in 1..70 {
            let cut = Cut::new(&layout.shape, most);
            let found: Vec<u64> =
                (0..cut.len()).flat_map(|number| all(&cut.part(number).of(&layout))).collect();
            assert_eq!(found, all(&layout), "{most}");
        }
        let scalar = Layout { shape: Dims::new(), strides: Dims::new(), offset: 4 };
        assert_eq!(Cut::new(&[], 100).part(0).of(&scalar), scalar);
    }

    #[test]
    fn parts_are_near_the_size_asked_for() {
        for shape in [&[1000_u64, 1000][..], &[3, 700][..], &[700, 3][..], &[10, 10, 10, 10][..]] {
            let cut = Cut::new(shape, 1000);
            let numel: u64 = shape.iter().product();
            assert!(cut.len() <= 2 * numel.div_ceil(500), "{shape:?}: {}", cut.len());
        }
    }
}
