//! Lazy concatenation and stacking: the parts are read straight into one destination.

use super::{Order, Request, Tensor};
use crate::dtype::DType;
use crate::error::{Code, Error, Remedy, Result, Value};
use crate::layout::{Dims, Layout, TensorIndex, numel};
use crate::sink::{Array, HostBuffer};
use crate::stream::{self, JoinPart};

/// Tensors of one dtype, concatenated along one dimension. Nothing is read until it is materialized.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Never empty. The shapes are equal except along `dim`.
    parts: Vec<Tensor>,
    /// The concatenated dimension. Meaningless with one part.
    dim: usize,
    shape: Dims,
}

impl Joined {
    /// Concatenates tensors along `dim`, which counts from the end if negative (`torch.cat`). Fails for an empty list, for
    /// tensors whose dtypes or other dimensions differ, and for quantized tensors, as each has a scale of its own.
    pub fn concat(parts: Vec<Tensor>, dim: i64) -> Result<Joined> {
        let Some(first) = parts.first() else {
            return Err(Error::new(Code::Value, "there is nothing to join: the list of tensors is empty"));
        };
        let dim = resolve_dim(dim, first.layout.ndim())?;
        for part in &parts {
            check_compatible(first, part, dim)?;
            if part.quantization().is_some() {
                let text = format!("tensor {:?} is quantized, and has a scale of its own", part.name());
                let error = Error::new(Code::DtypeUnsupported, text);
                return Err(error.remedy(Remedy::Pass(
                    "dequantize",
                    Value::Flag(true),
                    "when you read each, and join the results",
                )));
            }
        }
        let mut shape = first.layout.shape.clone();
        let mut sizes = parts.iter().map(|part| part.layout.shape[dim]);
        let size = sizes.try_fold(0_u64, u64::checked_add);
        shape[dim] = size.filter(|&size| size <= i64::MAX as u64).ok_or_else(too_large)?;
        numel(&shape).ok_or_else(too_large)?;
        Ok(Joined { parts, dim, shape })
    }

    /// Joins tensors of equal shape along a new dimension `dim` (`torch.stack`). Fails as [`Joined::concat`] does.
    pub fn stack(parts: Vec<Tensor>, dim: i64) -> Result<Joined> {
        let ndim = parts.first().map_or(0, |part| part.layout.ndim());
        let at = resolve_dim(dim, ndim + 1)?;
        let mut items = vec![full_range(); at];
        items.push(TensorIndex::NewAxis);
        for part in &parts {
            // `ndim` is not a dimension, so all of them have to agree.
            check_compatible(&parts[0], part, ndim)?;
        }
        let parts = parts.iter().map(|part| part.index(&items)).collect::<Result<Vec<_>>>();
        Joined::concat(parts?, at as i64)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.first().dtype
    }

    /// The concatenated dimension. Meaningless with one part.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The concatenated tensors, in order.
    pub fn parts(&self) -> &[Tensor] {
        &self.parts
    }

    /// As [`Tensor::identity`], of all parts.
    pub(crate) fn identity(&self) -> Option<String> {
        let parts = self.parts.iter().map(Tensor::identity).collect::<Option<Vec<_>>>()?;
        Some(format!("joined along {}: {}", self.dim, parts.join("; ")))
    }

    /// Bytes of all elements.
    pub fn nbytes(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX).saturating_mul(self.dtype().itemsize())
    }

    /// The sum of [`Tensor::work`] over all parts.
    pub fn work(&self) -> u64 {
        self.parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.work()))
    }

    /// A slice, by basic indexing. Tensors that lie outside it are dropped. Fails for an index that is out of bounds.
    pub fn index(&self, items: &[TensorIndex]) -> Result<Joined> {
        // Bounds and counts are checked against the joined shape.
        let shape = Layout::contiguous(&self.shape)?.index(items)?.shape;
        if let [part] = &self.parts[..] {
            return Ok(Joined { parts: vec![part.index(items)?], dim: self.dim, shape });
        }
        let mut items = expand_ellipsis(items, self.shape.len());
        let consuming = |item: &TensorIndex| !matches!(item, TensorIndex::NewAxis);
        let item_at = (0..items.len()).filter(|&item_at| consuming(&items[item_at])).nth(self.dim);
        let item_at = item_at.ok_or_else(|| Error::new(Code::InternalError, "an index lost a dimension"))?;
        let dim = items[..item_at].iter().filter(|item| !matches!(item, TensorIndex::At(_))).count();
        let along = Layout::contiguous(&[self.shape[self.dim]])?.index(&items[item_at..=item_at])?;
        let mut parts = Vec::new();
        let mut base = 0_u64;
        for part in &self.parts {
            let size = part.layout.shape[self.dim];
            if let Some(item) = item_within(&along, base, size) {
                items[item_at] = item;
                parts.push(part.index(&items)?);
            }
            base += size;
        }
        if parts.is_empty() {
            items[item_at] = TensorIndex::Range { start: Some(0), stop: Some(0), step: None };
            parts.push(self.first().index(&items)?);
        }
        Ok(Joined { parts, dim, shape })
    }

    /// The joined tensor with its dimensions in the order `dims`. Fails where `dims` is not a permutation.
    pub fn permute(&self, dims: &[i64]) -> Result<Joined> {
        self.reordered(&Order::Permute(dims.to_vec()))
    }

    /// The joined tensor with its dimensions in reverse order.
    pub fn reversed(&self) -> Joined {
        let parts = self.parts.iter().map(Tensor::reversed).collect();
        let shape: Dims = self.shape.iter().rev().copied().collect();
        Joined { parts, dim: shape.len().saturating_sub(1).saturating_sub(self.dim), shape }
    }

    /// The joined tensor with its dimensions in this order.
    pub(super) fn reordered(&self, order: &Order) -> Result<Joined> {
        // Strides that number the dimensions show where the joined one ends up.
        let numbers: Dims = (0..self.shape.len() as u64).collect();
        let reordered = order.apply(&Layout { shape: self.shape.clone(), strides: numbers, offset: 0 })?;
        let dim = reordered.strides.iter().position(|&number| number == self.dim as u64).unwrap_or(0);
        let parts = self.parts.iter().map(|part| part.map_layouts(|layout| order.apply(layout)));
        Ok(Joined { parts: parts.collect::<Result<_>>()?, dim, shape: reordered.shape })
    }

    /// The shape in the order of the result.
    pub fn result_shape(&self, order: &Order) -> Result<Dims> {
        Ok(self.reordered(order)?.shape)
    }

    /// Returns the elements as an array in owned memory; with one part, as [`Tensor::materialize`] does.
    ///
    /// Fails where `copy=Some(false)` and there are several parts, where a request dequantizes, and as [`Tensor::materialize`] does.
    pub fn materialize(&self, request: &Request) -> Result<Array> {
        if let [part] = &self.parts[..] {
            return part.materialize(request);
        }
        if request.copy == Some(false) {
            return Err(Error::new(
                Code::Buffer,
                "joined tensors are not contiguous in the file, which needs a copy",
            ));
        }
        let joined = self.reordered(&request.order)?;
        let nbytes = joined.result_bytes(request)?;
        let mut memory = HostBuffer::unfilled(nbytes)?;
        let recycled = memory.is_recycled();
        joined.fill(request, recycled, memory.bytes_mut())?;
        Array::owned(memory.filled(), request.dtype.unwrap_or(self.dtype()), joined.shape)
    }

    /// Writes the result of a request into `out`, C-contiguous. Fails where `out` does not have exactly the result's size.
    pub fn materialize_into(&self, request: &Request, out: &mut [u8]) -> Result<()> {
        let joined = self.reordered(&request.order)?;
        let nbytes = joined.result_bytes(request)?;
        if nbytes != out.len() as u64 {
            let text = format!("the result takes {nbytes} byte(s), the destination has {}", out.len());
            return Err(Error::new(Code::Value, text));
        }
        joined.fill(request, false, out)
    }

    pub(crate) fn result_bytes(&self, request: &Request) -> Result<u64> {
        let dtype = request.dtype.unwrap_or(self.dtype());
        for part in &self.parts {
            if part.dequantization(request).is_some() {
                let text = "quantized tensors are dequantized one by one, not joined";
                return part.with_context(Err(Error::new(Code::Value, text)));
            }
            part.with_context(part.result_bytes(&part.layout, dtype))?;
        }
        let itemsize = dtype.itemsize();
        numel(&self.shape).and_then(|numel| numel.checked_mul(itemsize)).ok_or_else(too_large)
    }

    fn fill(&self, request: &Request, recycled: bool, out: &mut [u8]) -> Result<()> {
        let dtype = request.dtype.unwrap_or(self.dtype());
        let open = |part: &Tensor| -> Result<Vec<JoinPart>> {
            part.join_parts(&part.layout, &part.fill_options(dtype, request, recycled)?)
        };
        // A part may consist of several chunks.
        let (mut boxes, mut owners, mut begin) = (Vec::new(), Vec::new(), 0);
        for part in &self.parts {
            for mut one in part.with_context(open(part))? {
                if let Some(offset) = one.offsets.get_mut(self.dim) {
                    *offset = offset.saturating_add(begin);
                }
                boxes.push(one);
                owners.push(part);
            }
            begin = begin.saturating_add(part.layout.shape.get(self.dim).copied().unwrap_or(0));
        }
        stream::fill_joined(boxes, &self.shape, request.threads, out)
            .map_err(|(part, error)| owners.get(part).unwrap_or(&self.first()).add_context(error))
    }

    fn first(&self) -> &Tensor {
        // `concat` refuses an empty list, and indexing keeps at least one part.
        &self.parts[0]
    }
}

fn too_large() -> Error {
    Error::new(Code::Value, "the joined tensor's size does not fit 64 bits")
}

fn full_range() -> TensorIndex {
    TensorIndex::Range { start: None, stop: None, step: None }
}

/// The dimension that `dim` means, counted from the end if negative. Fails where it is out of bounds.
fn resolve_dim(dim: i64, ndim: usize) -> Result<usize> {
    let from_start = if dim < 0 { dim.saturating_add(ndim as i64) } else { dim };
    usize::try_from(from_start)
        .ok()
        .filter(|&dim| dim < ndim)
        .ok_or_else(|| Error::new(Code::Index, format!("dim={dim} is out of bounds for {ndim} dimension(s)")))
}

/// Fails unless dtypes and shapes agree, except along `dim`.
fn check_compatible(first: &Tensor, part: &Tensor, dim: usize) -> Result<()> {
    let (first_shape, part_shape) = (&first.layout.shape, &part.layout.shape);
    let names = || format!("{:?} and {:?}", first.name(), part.name());
    if first.dtype != part.dtype {
        let text = format!("{} cannot be joined: they are {} and {}", names(), first.dtype, part.dtype);
        let cast = Remedy::Pass("dtype", Value::Any, "when you read one of them, and join the results");
        return Err(Error::new(Code::Value, text).remedy(cast));
    }
    let mut sizes = first_shape.iter().zip(part_shape).enumerate();
    if first_shape.len() != part_shape.len()
        || sizes.any(|(at, (size, other_size))| at != dim && size != other_size)
    {
        let text = format!(
            "{} cannot be joined: their shapes are {:?} and {:?}",
            names(),
            &first_shape[..],
            &part_shape[..]
        );
        return Err(Error::new(Code::Value, text));
    }
    Ok(())
}

/// The items with the ellipsis expanded, so that there is one for every dimension.
fn expand_ellipsis(items: &[TensorIndex], ndim: usize) -> Vec<TensorIndex> {
    let used =
        items.iter().filter(|item| matches!(item, TensorIndex::At(_) | TensorIndex::Range { .. })).count();
    let missing = ndim.saturating_sub(used);
    let mut out = Vec::with_capacity(ndim);
    let mut expanded = false;
    for &item in items {
        match item {
            TensorIndex::Ellipsis => {
                out.extend(std::iter::repeat_n(full_range(), missing));
                expanded = true;
            }
            item => out.push(item),
        }
    }
    if !expanded {
        out.extend(std::iter::repeat_n(full_range(), missing));
    }
    out
}

/// Translates an index along the joined dimension to the part that has `size` elements of it from `base` on; `None` where it
/// selects none of them. `along` is the index applied to the positions of all elements.
fn item_within(along: &Layout, base: u64, size: u64) -> Option<TensorIndex> {
    let end = base + size;
    let inside = |at: u64| at >= base && at < end;
    let (&[count], &[step]) = (&along.shape[..], &along.strides[..]) else {
        return inside(along.offset).then(|| TensorIndex::At((along.offset - base) as i64));
    };
    let before = base.saturating_sub(along.offset).div_ceil(step);
    let first = along.offset.checked_add(before.checked_mul(step)?)?;
    if before >= count || !inside(first) {
        return None;
    }
    let count = (count - before).min((end - first).div_ceil(step));
    let (start, stop) = (first - base, first - base + (count - 1) * step + 1);
    Some(TensorIndex::Range { start: Some(start as i64), stop: Some(stop as i64), step: Some(step as i64) })
}
