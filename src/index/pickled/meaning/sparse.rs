//! Sparse tensors: a layout and its component tensors (torch/_utils.py: `_rebuild_sparse_tensor`).

use super::{CallInterpreter, Meaning, short_string};
use crate::error::{Code, Error, Result, bail};
use crate::index::model::SparseLayout;
use crate::pickle::{Handle, Value, Values};

impl<'a> CallInterpreter<'a> {
    /// Interprets a call as a sparse tensor; opaque where a component is not a tensor. Fails where the other arguments do not have
    /// the form that torch writes.
    pub(super) fn sparse(&self, args: &[Handle]) -> Result<Meaning> {
        let wrong = |text: &str| Error::new(Code::PickleType, text);
        let &[layout, data] = args else {
            return Err(wrong("the arguments of a sparse tensor are not a layout and its components"));
        };
        let Some(layout) = layout_of(self.values, layout) else { return Ok(Meaning::Opaque) };
        let Value::Tuple(data) = self.values.get(data) else {
            return Err(wrong("the components of a sparse tensor are not a tuple"));
        };
        let count = layout.components().len();
        let (Some(parts), Some((&size, rest))) =
            (data.get(..count), data.get(count..).and_then(<[Handle]>::split_first))
        else {
            return Err(wrong("a sparse tensor has fewer components than its layout"));
        };
        match (layout, rest) {
            (_, []) => {}
            (SparseLayout::Coo, &[coalesced]) => {
                if !matches!(self.values.get(coalesced), Value::None) {
                    self.bool(coalesced)?;
                }
            }
            _ => return Err(wrong("a sparse tensor has more components than its layout")),
        }
        if parts.iter().any(|&part| self.tensor_at(part).is_none()) {
            return Ok(Meaning::Opaque);
        }
        let shape = self.counts(size, "size")?;
        if crate::layout::numel(&shape).is_none() {
            bail!(Code::TensorShape, "the size of shape {:?} does not fit 64 bits", &shape[..]);
        }
        Ok(Meaning::Sparse(layout))
    }
}

/// The layout of a call `_get_layout('torch.sparse_coo')` (torch/serialization.py). The name is looked up in a table.
fn layout_of(values: &Values, handle: Handle) -> Option<SparseLayout> {
    let call = values.call_at(handle)?;
    if values.global_at(call.callable)? != ("torch.serialization", "_get_layout") {
        return None;
    }
    let Value::Tuple(&[name]) = values.get(call.args) else { return None };
    let name = short_string(values, name)?.strip_prefix("torch.")?;
    SparseLayout::ALL.into_iter().find(|layout| layout.name() == name)
}
