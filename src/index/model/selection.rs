//! What a selection of elements of a tensor and one of its chunks have in common.

use smallvec::SmallVec;

use crate::error::{Code, Error, Result};
use crate::layout::{Dims, Layout, contiguous_strides, numel};

/// A selection of elements of a tensor, by dimension.
pub(super) struct Selection {
    /// For each dimension of the tensor, what is selected along it.
    dims: SmallVec<[Selected; 4]>,
    /// The shape of the selection.
    shape: Dims,
}

/// What is selected along one dimension of a tensor: `count` indices, `step` apart.
#[derive(Clone, Copy)]
struct Selected {
    start: u64,
    step: u64,
    count: u64,
    /// The dimension of the selection that runs along it; `None` for a single index.
    dim: Option<usize>,
}

/// The elements that a selection and a chunk have in common.
pub(super) struct Meeting {
    /// For each dimension of the tensor, the first index in the chunk, the step, and the dimension of the selection.
    dims: SmallVec<[(u64, u64, Option<usize>); 4]>,
    /// The shape, and the position of the first element in the selection.
    shape: Dims,
    offsets: Dims,
}

impl Selection {
    /// What `layout` selects of a C-contiguous tensor of this shape. Every dimension of more than one element runs along one
    /// dimension of the tensor: strides of the tensor's dimensions are each a multiple of the next one's, by its size.
    pub(super) fn of(shape: &[u64], layout: &Layout) -> Result<Selection> {
        let strides = contiguous_strides(shape).ok_or_else(internal)?;
        let mut rest = layout.offset;
        let mut dims: SmallVec<[Selected; 4]> = SmallVec::new();
        for &stride in &strides {
            let start = rest.checked_div(stride).ok_or_else(internal)?;
            rest = rest.checked_rem(stride).ok_or_else(internal)?;
            dims.push(Selected { start, step: 1, count: 1, dim: None });
        }
        let is_empty = layout.shape.contains(&0);
        for (at, (&count, &stride)) in layout.shape.iter().zip(&layout.strides).enumerate() {
            if count <= 1 || is_empty {
                continue;
            }
            let found = (strides.iter().zip(shape).enumerate())
                .find(|(_, (own, size))| **size > 1 && **own <= stride)
                .ok_or_else(internal)?;
            let (dim, (&own, &size)) = found;
            let step = stride.checked_div(own).ok_or_else(internal)?;
            let selected =
                dims.get_mut(dim).filter(|selected| selected.dim.is_none()).ok_or_else(internal)?;
            *selected = Selected { start: selected.start, step, count, dim: Some(at) };
            let last = count.checked_sub(1).and_then(|count| count.checked_mul(step));
            let last = last.and_then(|last| last.checked_add(selected.start));
            if step.checked_mul(own) != Some(stride) || last.is_none_or(|last| last >= size) {
                return Err(internal());
            }
        }
        Ok(Selection { dims, shape: layout.shape.clone() })
    }

    /// The elements that a chunk at these offsets has of it; `None` where it has none.
    pub(super) fn meet(&self, offsets: &[u64], sizes: &[u64]) -> Option<Meeting> {
        if numel(&self.shape) == Some(0) || numel(sizes) == Some(0) {
            return None;
        }
        let mut meeting = Meeting {
            dims: SmallVec::new(),
            shape: self.shape.clone(),
            offsets: SmallVec::from_elem(0, self.shape.len()),
        };
        for ((selected, &begin), &size) in self.dims.iter().zip(offsets).zip(sizes) {
            let Selected { start, step, count, dim } = *selected;
            let end = begin.checked_add(size)?;
            // Positions in the selection from the first index at or after a bound of the chunk.
            let at = |bound: u64| bound.saturating_sub(start).div_ceil(step).min(count);
            let (first, last) = (at(begin), at(end));
            if first >= last {
                return None;
            }
            let index = start.checked_add(first.checked_mul(step)?)?.checked_sub(begin)?;
            meeting.dims.push((index, step, dim));
            if let Some(dim) = dim {
                *meeting.shape.get_mut(dim)? = last.checked_sub(first)?;
                *meeting.offsets.get_mut(dim)? = first;
            }
        }
        Some(meeting)
    }
}

impl Meeting {
    /// The layout of the elements in the chunk's storage, and their position in the selection.
    pub(super) fn layout(self, chunk: &Layout) -> Option<(Layout, Dims)> {
        let mut offset = chunk.offset;
        let mut strides: Dims = SmallVec::from_elem(0, self.shape.len());
        for (&(index, step, dim), &stride) in self.dims.iter().zip(&chunk.strides) {
            offset = offset.checked_add(index.checked_mul(stride)?)?;
            if let Some(dim) = dim {
                *strides.get_mut(dim)? = step.saturating_mul(stride);
            }
        }
        Some((Layout { shape: self.shape, strides, offset }, self.offsets))
    }
}

pub(super) fn internal() -> Error {
    Error::new(Code::InternalError, "a selection of a tensor in chunks is none of its elements")
}
