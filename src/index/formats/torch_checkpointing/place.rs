//! Makes tensors of a file the parts of larger ones that the metadata states.

use std::collections::HashMap;

use super::metadata::{Described, Piece};
use crate::error::{Code, Error, Result};
use crate::index::model::{Entry, Index, Part, Tensor};
use crate::layout::{Dims, TensorIndex};
use crate::num::{to_u32, u32_to_usize};

/// The tensors of a file that are parts by now: for each what was stated, and the numbers of the tensors that are its boxes.
#[derive(Default)]
pub(super) struct Placed<'a>(HashMap<u32, (&'a Dims, Vec<&'a Piece>, Vec<u32>)>);

impl<'a> Placed<'a> {
    /// Makes the tensor of an entry the parts that are stated. Fails where it has another dtype or shape, or states another part itself.
    pub(super) fn place(
        &mut self,
        index: &mut Index,
        entry: usize,
        stated: &'a Described,
        pieces: &[&'a Piece],
        is_alone: bool,
    ) -> Result<()> {
        let entry = index.entries.get(entry).cloned().ok_or_else(|| wrong("a name is missing".to_owned()))?;
        if let Some((shape, known, numbers)) = self.0.get(&entry.tensor) {
            // Tied tensors.
            if *shape != &stated.shape || known != pieces {
                return Err(wrong("one tensor of the file is described in two ways".to_owned()));
            }
            let others = numbers.iter().map(|&tensor| Entry { tensor, ..entry.clone() });
            index.entries.extend(others.collect::<Vec<_>>());
            return Ok(());
        }
        let Some(stored) = index.tensors.get(u32_to_usize(entry.tensor)).cloned() else {
            return Err(wrong("a tensor is missing".to_owned()));
        };
        let own = index.parts.remove(&entry.tensor);
        let mut numbers = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            check(&stored, own.as_ref(), stated, piece)?;
            if is_alone && piece.is_all && piece.sizes == stated.shape {
                continue;
            }
            // The tensor itself is the first box; the others are tensors of the same name.
            let (tensor, mut number) = (cut(index, &stored, piece)?, entry.tensor);
            match index.tensors.get_mut(u32_to_usize(number)) {
                Some(slot) if at == 0 => *slot = tensor,
                _ => {
                    number = to_u32(index.tensors.len());
                    index.tensors.push(tensor);
                    index.entries.push(Entry { tensor: number, ..entry.clone() });
                    numbers.push(number);
                }
            }
            let placement = own.as_ref().and_then(|own| own.placement.clone());
            let part =
                Part { shape: Some(stated.shape.clone()), offsets: Some(piece.global.clone()), placement };
            index.parts.insert(number, part);
        }
        self.0.insert(entry.tensor, (&stated.shape, pieces.to_vec(), numbers));
        Ok(())
    }
}

/// Fails where a tensor of a file is not what the metadata states.
fn check(stored: &Tensor, own: Option<&Part>, stated: &Described, piece: &Piece) -> Result<()> {
    let shape = &stored.layout().shape;
    if stored.dtype() != stated.dtype {
        return Err(wrong(format!("the tensor is {}, the metadata states {}", stored.dtype(), stated.dtype)));
    }
    if piece.is_all && *shape != piece.sizes {
        let (shape, sizes) = (&shape[..], &piece.sizes[..]);
        return Err(wrong(format!("the tensor is of shape {shape:?}, the metadata states {sizes:?}")));
    }
    let is_other = |own: &Part| {
        own.shape.as_ref().is_some_and(|shape| *shape != stated.shape)
            || own.offsets.as_ref().is_some_and(|offsets| piece.is_all && *offsets != piece.global)
    };
    if own.is_some_and(is_other) {
        return Err(wrong("the tensor is another part than the metadata states".to_owned()));
    }
    Ok(())
}

/// The box of a tensor of a file that a piece states.
fn cut(index: &Index, stored: &Tensor, piece: &Piece) -> Result<Tensor> {
    let shape = &stored.layout().shape;
    let mut ranges = Vec::new();
    for ((&start, &size), &whole) in piece.local.iter().zip(&piece.sizes).zip(shape) {
        let stop = start.checked_add(size).filter(|&stop| stop <= whole);
        let number = |number: Option<u64>| number.and_then(|number| i64::try_from(number).ok());
        let (Some(start), Some(stop)) = (number(Some(start)), number(stop)) else { break };
        ranges.push(TensorIndex::Range { start: Some(start), stop: Some(stop), step: None });
    }
    if ranges.len() != shape.len() || piece.local.len() != shape.len() || piece.sizes.len() != shape.len() {
        let (local, sizes, shape) = (&piece.local[..], &piece.sizes[..], &shape[..]);
        return Err(wrong(format!(
            "a box of {sizes:?} at {local:?} reaches outside the tensor of {shape:?}"
        )));
    }
    let nbytes = index.storages.get(u32_to_usize(stored.storage())).map_or(0, |storage| storage.nbytes);
    let layout = stored.layout().index(&ranges)?;
    let mut tensor = Tensor::of_layout(stored.dtype(), layout, stored.storage(), nbytes)?;
    tensor.flags = stored.flags;
    Ok(tensor)
}

pub(super) fn wrong(text: String) -> Error {
    Error::new(Code::DcpChunk, text)
}
