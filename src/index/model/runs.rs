//! Tensors whose elements lie in runs: ranges of the elements in C order, each a range of a flat tensor of an open file.
//!
//! A run is cut into boxes, at most two for each dimension, so that a tensor of runs is one of chunks like any other.

use super::selection::internal;
use super::{Index, TensorPart};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, error};
use crate::layout::{Dims, Layout, contiguous_strides, numel};
use crate::num::u32_to_usize;

/// The next elements of a tensor, which are a range of a flat tensor.
#[derive(Debug)]
pub(crate) struct TensorRun<'a> {
    /// The file.
    pub index: &'a Index,
    /// The number of the flat tensor in it.
    pub tensor: u32,
    /// The first element in the flat tensor.
    pub start: u64,
    /// The number of elements.
    pub len: u64,
}

impl Index {
    /// Adds the tensor of this dtype and shape whose elements are these runs one after another, without a name; returns its number. Fails
    /// with `DcpGrid` where they are more or fewer elements, and with `DcpChunk` where one is not inside a flat tensor of the dtype.
    pub(crate) fn join_runs(&mut self, dtype: DType, shape: Dims, runs: &[TensorRun<'_>]) -> Result<u32> {
        let whole = numel(&shape).ok_or_else(too_large)?;
        let mut chunks = Vec::new();
        let mut begin = 0_u64;
        for run in runs {
            let end = begin.checked_add(run.len).filter(|&end| end <= whole).ok_or_else(|| {
                error!(Code::DcpGrid, "the runs of a tensor of {:?} are more than its elements", &shape[..])
            })?;
            let flat = run.index.tensors.get(u32_to_usize(run.tensor)).ok_or_else(internal)?;
            let &Layout { shape: ref flat_shape, ref strides, offset } = flat.layout();
            let (&[size], &[stride]) = (&flat_shape[..], &strides[..]) else { return Err(no_run(run)) };
            let is_inside = run.start.checked_add(run.len).is_some_and(|end| end <= size);
            if flat.dtype() != dtype || !is_inside || (stride != 1 && size > 1) {
                return Err(no_run(run));
            }
            for (offsets, sizes) in boxes(&shape, begin, end)? {
                let strides = contiguous_strides(&sizes).ok_or_else(too_large)?;
                let layout = Layout {
                    strides,
                    offset: position(&shape, &offsets)
                        .and_then(|at| at.checked_sub(begin))
                        .and_then(|at| at.checked_add(run.start)?.checked_add(offset))
                        .ok_or_else(internal)?,
                    shape: sizes,
                };
                let part = TensorPart { index: run.index, tensor: run.tensor, offsets };
                chunks.push(part.chunk_of(layout)?);
            }
            begin = end;
        }
        let flags = runs.first().and_then(|run| run.index.tensors.get(u32_to_usize(run.tensor)));
        let flags = flags.map(|flat| flat.flags).unwrap_or_default();
        self.add_chunks(dtype, shape, flags, chunks)
    }
}

/// The boxes that elements `begin` to `end`, in C order, of a tensor are. Each is the largest one at its place.
fn boxes(shape: &[u64], mut begin: u64, end: u64) -> Result<Vec<(Dims, Dims)>> {
    let strides = contiguous_strides(shape).ok_or_else(too_large)?;
    let mut found = Vec::new();
    if begin < end && shape.is_empty() {
        return Ok(vec![(Dims::new(), Dims::new())]);
    }
    while begin < end {
        let mut rest = begin;
        let mut offsets = Dims::new();
        for &stride in &strides {
            offsets.push(rest.checked_div(stride).ok_or_else(internal)?);
            rest = rest.checked_rem(stride).ok_or_else(internal)?;
        }
        let left = end.saturating_sub(begin);
        // The outermost dimension along which whole blocks fit.
        let fits = |stride: u64| begin.checked_rem(stride) == Some(0) && stride <= left;
        let outer = strides.iter().position(|&stride| fits(stride)).ok_or_else(internal)?;
        let (Some(&stride), Some(&size), Some(&at)) =
            (strides.get(outer), shape.get(outer), offsets.get(outer))
        else {
            return Err(internal());
        };
        let count = left.checked_div(stride).ok_or_else(internal)?.min(size.saturating_sub(at));
        let mut sizes = Dims::from_slice(shape);
        sizes.iter_mut().take(outer).for_each(|size| *size = 1);
        sizes.iter_mut().skip(outer).take(1).for_each(|size| *size = count);
        begin = begin.saturating_add(count.saturating_mul(stride)).max(begin.saturating_add(1));
        found.push((offsets, sizes));
    }
    Ok(found)
}

/// The position, in C order, of an element.
fn position(shape: &[u64], at: &[u64]) -> Option<u64> {
    let strides = contiguous_strides(shape)?;
    at.iter().zip(&strides).try_fold(0_u64, |sum, (&at, &stride)| sum.checked_add(at.checked_mul(stride)?))
}

fn too_large() -> Error {
    Error::new(Code::TensorShape, "a tensor's size does not fit 64 bits")
}

fn no_run(run: &TensorRun<'_>) -> Error {
    let text = format!("{} element(s) from {} on are not in a flat tensor of the dtype", run.len, run.start);
    Error::new(Code::DcpChunk, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_few_boxes_that_are_its_elements_in_order() {
        for shape in [&[][..], &[7], &[3, 4], &[2, 3, 4], &[3, 1, 5], &[1, 1], &[2, 2, 2, 2]] {
            let whole: u64 = shape.iter().product();
            for begin in 0..=whole {
                for end in begin..=whole {
                    let found = boxes(shape, begin, end).unwrap();
                    assert!(found.len() <= (2 * shape.len()).max(1), "{shape:?} {begin} {end}");
                    let mut elements = Vec::new();
                    for (offsets, sizes) in found {
                        let first = position(shape, &offsets).unwrap();
                        elements.extend(first..first + sizes.iter().product::<u64>());
                        assert!(
                            offsets.iter().zip(&sizes).zip(shape).all(|((at, size), all)| at + size <= *all)
                        );
                    }
                    assert_eq!(elements, (begin..end).collect::<Vec<_>>(), "{shape:?}");
                }
            }
        }
    }
}
