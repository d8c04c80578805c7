//! Other shapes of the same elements in the same order: no element is moved or read.

use std::ops::Range;

use super::{Joined, Tensor};
use crate::error::{Code, Error, Result, error};
use crate::index::Location;
use crate::layout::{Dims, Layout, contiguous_strides, is_range, numel};

impl Tensor {
    /// The tensor in another shape, where one size may be -1 for what is left. Fails where the number of elements differs, where the
    /// elements do not lie in one strided block in that shape, and for a tensor in chunks.
    pub fn reshape(&self, shape: &[i64]) -> Result<Tensor> {
        self.with_context(self.with_shape(&resolve(shape, &self.layout.shape)?))
    }

    fn with_shape(&self, shape: &[u64]) -> Result<Tensor> {
        if self.layout.shape[..] == *shape {
            return Ok(self.clone());
        }
        if matches!(self.opened.storage(self.storage()).location, Location::Chunks(_)) {
            let text = "its elements are in chunks, which have the shape of the tensor";
            return Err(Error::new(Code::Value, text).note(READ_FIRST));
        }
        self.map_layouts(|layout| view(layout, shape))
    }
}

impl Joined {
    /// As [`Tensor::reshape`]. Fails also where a part is not a box of the new shape.
    pub fn reshape(&self, shape: &[i64]) -> Result<Joined> {
        let to = resolve(shape, self.shape())?;
        if to.contains(&0) {
            return self.empty(to);
        }
        let groups = groups(self.shape(), &to);
        let (mut parts, mut offsets) = (Vec::new(), Vec::new());
        for (part, begin) in self.parts().iter().zip(self.offsets()) {
            if part.layout.numel() == 0 {
                continue;
            }
            let (mut sizes, mut at) = (Dims::new(), Dims::new());
            for (old, new) in &groups {
                let (old_shape, new_shape) = (&self.shape()[old.clone()], &to[new.clone()]);
                let range = range_of(old_shape, &begin[old.clone()], &part.layout.shape[old.clone()]);
                let found = range.and_then(|range| box_of(new_shape, range)).ok_or_else(|| {
                    let text = format!(
                        "part {:?} of the joined tensor of shape {:?} is not a box of shape {:?}",
                        part.name(),
                        self.shape(),
                        &to[..]
                    );
                    let note = "Split or merge dimensions inside of which no parts meet, reshape the parts before they are \
                                joined, or read it first, and reshape the result.";
                    Error::new(Code::Value, text).note(note)
                })?;
                at.extend(found.0);
                sizes.extend(found.1);
            }
            parts.push(part.with_context(part.with_shape(&sizes))?);
            offsets.push(at);
        }
        Ok(Joined { parts, offsets, shape: to })
    }
}

const READ_FIRST: &str = "Read it first, and reshape the result: t.materialize().reshape(...).";

/// The sizes that a user gave for a tensor of shape `old`, one of which may be -1. Fails unless the number of elements is the same.
fn resolve(sizes: &[i64], old: &[u64]) -> Result<Dims> {
    let whole = numel(old).unwrap_or(u64::MAX);
    let fail = |why: &str| error!(Code::Value, "shape {old:?} cannot become {sizes:?}: {why}");
    let mut shape = Dims::new();
    let mut unknown = None;
    for (dim, &size) in sizes.iter().enumerate() {
        match u64::try_from(size) {
            Ok(size) => shape.push(size),
            Err(_) if size == -1 && unknown.is_none() => {
                unknown = Some(dim);
                shape.push(1);
            }
            Err(_) => return Err(fail("sizes are not negative, except for one -1")),
        }
    }
    let known = numel(&shape);
    if let Some(dim) = unknown {
        let rest = known.filter(|&known| known > 0 && whole.is_multiple_of(known)).map(|known| whole / known);
        shape[dim] = rest.ok_or_else(|| fail("no size in place of -1 gives the number of elements"))?;
    } else if known != Some(whole) {
        return Err(fail(&format!("the number of elements is {whole}")));
    }
    Ok(shape)
}

/// Runs of dimensions of two shapes of equally many elements, so that corresponding runs have equally many too, and as few
/// dimensions as possible. Neither shape has a size 0.
fn groups(old: &[u64], new: &[u64]) -> Vec<(Range<usize>, Range<usize>)> {
    let mut groups = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < old.len() && j < new.len() {
        let begin = (i, j);
        let (mut left, mut right) = (old[i], new[j]);
        (i, j) = (i + 1, j + 1);
        while left != right {
            // What is left of both has equally many elements, so the smaller one has a dimension left.
            if left < right {
                left = left.saturating_mul(old.get(i).copied().unwrap_or(u64::MAX));
                i += 1;
            } else {
                right = right.saturating_mul(new.get(j).copied().unwrap_or(u64::MAX));
                j += 1;
            }
        }
        groups.push((begin.0..i.min(old.len()), begin.1..j.min(new.len())));
    }
    // Sizes 1 are left.
    match groups.last_mut() {
        Some(last) => (last.0.end, last.1.end) = (old.len(), new.len()),
        None => groups.push((0..old.len(), 0..new.len())),
    }
    groups
}

/// The layout of the same elements in another shape, which has equally many. Fails where they would need to be moved.
fn view(layout: &Layout, shape: &[u64]) -> Result<Layout> {
    let mut strides = contiguous_strides(shape).unwrap_or_else(|| Dims::from_elem(0, shape.len()));
    if !shape.contains(&0) {
        for (old, new) in groups(&layout.shape, shape) {
            let step = step_of(&layout.shape[old.clone()], &layout.strides[old]).ok_or_else(|| {
                let text = format!(
                    "shape {:?} with strides {:?} cannot become {shape:?} without moving elements",
                    &layout.shape[..],
                    &layout.strides[..]
                );
                Error::new(Code::Value, text).note(READ_FIRST)
            })?;
            let inner = contiguous_strides(&shape[new.clone()]).unwrap_or_default();
            for (stride, inner) in strides[new].iter_mut().zip(inner) {
                *stride = inner.saturating_mul(step);
            }
        }
    }
    Ok(Layout { shape: shape.into(), strides, offset: layout.offset })
}

/// The distance between neighbours of these dimensions as one; `None` where it is not the same for all.
fn step_of(shape: &[u64], strides: &[u64]) -> Option<u64> {
    let mut dims = shape.iter().zip(strides).rev().filter(|(size, _)| **size > 1);
    let Some((&size, &step)) = dims.next() else { return Some(1) };
    let mut next = step.checked_mul(size)?;
    for (&size, &stride) in dims {
        if stride != next {
            return None;
        }
        next = next.checked_mul(size)?;
    }
    Some(step)
}

/// The range of positions in C order that a box is; `None` where it is no range.
fn range_of(shape: &[u64], begin: &[u64], sizes: &[u64]) -> Option<Range<u64>> {
    let strides = contiguous_strides(shape)?;
    let start = begin.iter().zip(&strides).map(|(&at, &stride)| at * stride).sum();
    is_range(sizes, shape).then(|| start..start + numel(sizes).unwrap_or(0))
}

/// Where the box of a range of positions begins, and its sizes; `None` where the range is no box.
fn box_of(shape: &[u64], range: Range<u64>) -> Option<(Dims, Dims)> {
    let strides = contiguous_strides(shape)?;
    let (mut begin, mut sizes) = (Dims::new(), Dims::new());
    let (mut start, mut count) = (range.start, range.end - range.start);
    for (&whole, &stride) in shape.iter().zip(&strides) {
        let size = (count / stride).max(1);
        let at = start / stride;
        if at + size > whole
            || (count > stride && !(count.is_multiple_of(stride) && start.is_multiple_of(stride)))
        {
            return None;
        }
        begin.push(at);
        sizes.push(size);
        (start, count) = (start % stride, count.min(stride));
    }
    Some((begin, sizes))
}
