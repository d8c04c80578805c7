//! Several tensors seen as one: lazy concatenation and stacking, read into one destination with no copy between.

use super::{Order, Request, Tensor};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::{Dims, Layout, TensorIndex, numel};
use crate::sink::{Array, HostBuffer};
use crate::stream::{self, Fill, Payload};

/// Tensors of one dtype, end to end along one dimension. Nothing is read until it is materialized.
#[derive(Clone, Debug)]
pub struct Joined {
    /// One at least; of equal shape but along `dim`.
    parts: Vec<Tensor>,
    /// Of no account where there is one part.
    dim: usize,
    shape: Dims,
}

impl Joined {
    /// The tensors one after the other along `dim`, which counts from the end if negative.
    pub fn concat(parts: Vec<Tensor>, dim: i64) -> Result<Joined> {
        let Some(first) = parts.first() else {
            return Err(Error::new(Code::Value, "there is nothing to join: the list of tensors is empty"));
        };
        let dim = dimension(dim, first.layout.ndim())?;
        for part in &parts {
            check_alike(first, part, dim)?;
            if part.quantization().is_some() {
                let text = format!("tensor {:?} is quantized, and has a scale of its own", part.name());
                let error = Error::new(Code::DtypeUnsupported, text);
                return Err(error.note("Materialize each with dequantize=True, and join what that gives."));
            }
        }
        let mut shape = first.layout.shape.clone();
        let mut sizes = parts.iter().map(|part| part.layout.shape[dim]);
        let size = sizes.try_fold(0_u64, u64::checked_add);
        shape[dim] = size.filter(|&size| size <= i64::MAX as u64).ok_or_else(too_large)?;
        numel(&shape).ok_or_else(too_large)?;
        Ok(Joined { parts, dim, shape })
    }

    /// The tensors side by side along a new dimension `dim`.
    pub fn stack(parts: Vec<Tensor>, dim: i64) -> Result<Joined> {
        let ndim = parts.first().map_or(0, |part| part.layout.ndim());
        let at = dimension(dim, ndim + 1)?;
        let mut items = vec![full(); at];
        items.push(TensorIndex::NewAxis);
        for part in &parts {
            // No dimension is excepted.
            check_alike(&parts[0], part, ndim)?;
        }
        let parts = parts.iter().map(|part| part.index(&items)).collect::<Result<Vec<_>>>();
        Joined::concat(parts?, at as i64)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.first().dtype
    }

    /// The dimension along which the parts lie end to end. It says nothing where there is one part.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The tensors that it is made of, in order.
    pub fn parts(&self) -> &[Tensor] {
        &self.parts
    }

    /// Bytes of all elements together.
    pub fn nbytes(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX).saturating_mul(self.dtype().itemsize())
    }

    /// As [`Tensor::work`], for all parts together.
    pub fn work(&self) -> u64 {
        self.parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.work()))
    }

    /// A part, by basic indexing; parts of the tensors that lie outside it are let go of.
    pub fn index(&self, items: &[TensorIndex]) -> Result<Joined> {
        // As if it were one tensor: that is what bounds and counts are checked against.
        let shape = Layout::contiguous(&self.shape)?.index(items)?.shape;
        if let [part] = &self.parts[..] {
            return Ok(Joined { parts: vec![part.index(items)?], dim: self.dim, shape });
        }
        let mut items = explicit(items, self.shape.len());
        let consuming = |item: &TensorIndex| !matches!(item, TensorIndex::NewAxis);
        let at = (0..items.len()).filter(|&at| consuming(&items[at])).nth(self.dim);
        let at = at.ok_or_else(|| Error::new(Code::InternalError, "an index lost a dimension"))?;
        let dim = items[..at].iter().filter(|item| !matches!(item, TensorIndex::At(_))).count();
        let along = Layout::contiguous(&[self.shape[self.dim]])?.index(&items[at..=at])?;
        let mut parts = Vec::new();
        let mut base = 0_u64;
        for part in &self.parts {
            let size = part.layout.shape[self.dim];
            if let Some(item) = share(&along, base, size) {
                items[at] = item;
                parts.push(part.index(&items)?);
            }
            base += size;
        }
        if parts.is_empty() {
            items[at] = TensorIndex::Range { start: Some(0), stop: Some(0), step: None };
            parts.push(self.first().index(&items)?);
        }
        Ok(Joined { parts, dim, shape })
    }

    /// The same elements with the dimensions in another order.
    pub fn permute(&self, dims: &[i64]) -> Result<Joined> {
        self.in_order(&Order::Permute(dims.to_vec()))
    }

    /// The same elements with all dimensions reversed.
    pub fn reversed(&self) -> Joined {
        let parts = self.parts.iter().map(Tensor::reversed).collect();
        let shape: Dims = self.shape.iter().rev().copied().collect();
        Joined { parts, dim: shape.len().saturating_sub(1).saturating_sub(self.dim), shape }
    }

    fn in_order(&self, order: &Order) -> Result<Joined> {
        // Strides that number the dimensions say where each of them went.
        let numbers: Dims = (0..self.shape.len() as u64).collect();
        let found = order.of(&Layout { shape: self.shape.clone(), strides: numbers, offset: 0 })?;
        let dim = found.strides.iter().position(|&number| number == self.dim as u64).unwrap_or(0);
        let parts = self.parts.iter().map(|part| part.with(|layout| order.of(layout)));
        Ok(Joined { parts: parts.collect::<Result<_>>()?, dim, shape: found.shape })
    }

    /// The shape of what a request gives.
    pub fn ordered(&self, order: &Order) -> Result<Dims> {
        Ok(self.in_order(order)?.shape)
    }

    /// The elements in memory, as asked for. Never a view, unless there is only one part.
    pub fn materialize(&self, request: &Request) -> Result<Array> {
        if let [part] = &self.parts[..] {
            return part.materialize(request);
        }
        if request.copy == Some(false) {
            return Err(Error::new(Code::Buffer, "tensors that are joined lie apart, which needs a copy"));
        }
        let joined = self.in_order(&request.order)?;
        let nbytes = joined.result_bytes(request)?;
        let mut memory = HostBuffer::unfilled(nbytes)?;
        let recycled = memory.is_recycled();
        joined.fill(request, recycled, memory.bytes_mut())?;
        Array::owned(memory.filled(), request.dtype.unwrap_or(self.dtype()), joined.shape)
    }

    /// Writes the elements, C-contiguous in the order asked for, into `out`, which has exactly their size.
    pub fn materialize_into(&self, request: &Request, out: &mut [u8]) -> Result<()> {
        let joined = self.in_order(&request.order)?;
        let nbytes = joined.result_bytes(request)?;
        if nbytes != out.len() as u64 {
            let text = format!("the result takes {nbytes} byte(s), the destination has {}", out.len());
            return Err(Error::new(Code::Value, text));
        }
        joined.fill(request, false, out)
    }

    fn result_bytes(&self, request: &Request) -> Result<u64> {
        let dtype = request.dtype.unwrap_or(self.dtype());
        for part in &self.parts {
            if part.dequantizes(request).is_some() {
                let text = "quantized tensors are dequantized one by one, not joined";
                return part.place(Err(Error::new(Code::Value, text)));
            }
            part.place(part.result_bytes(&part.layout, dtype))?;
        }
        let itemsize = dtype.itemsize();
        numel(&self.shape).and_then(|numel| numel.checked_mul(itemsize)).ok_or_else(too_large)
    }

    fn fill(&self, request: &Request, recycled: bool, out: &mut [u8]) -> Result<()> {
        let dtype = request.dtype.unwrap_or(self.dtype());
        let ready = |part: &Tensor| -> Result<(Payload, Layout, Fill)> {
            let how = part.how(dtype, request, recycled)?;
            Ok((part.checkpoint.payload(part.storage(), &request.cancel)?, part.layout.clone(), how))
        };
        let parts = self.parts.iter().map(|part| part.place(ready(part))).collect::<Result<Vec<_>>>()?;
        let dim = if self.parts.len() == 1 { 0 } else { self.dim };
        stream::fill_joined(parts, dim, request.threads, out)
            .map_err(|(part, error)| self.parts.get(part).unwrap_or(self.first()).placed(error))
    }

    fn first(&self) -> &Tensor {
        // There is one: `concat` refuses an empty list, and indexing keeps one at least.
        &self.parts[0]
    }
}

fn too_large() -> Error {
    Error::new(Code::Value, "the joined tensor's size does not fit 64 bits")
}

fn full() -> TensorIndex {
    TensorIndex::Range { start: None, stop: None, step: None }
}

fn dimension(dim: i64, ndim: usize) -> Result<usize> {
    let from_start = if dim < 0 { dim.saturating_add(ndim as i64) } else { dim };
    usize::try_from(from_start)
        .ok()
        .filter(|&dim| dim < ndim)
        .ok_or_else(|| Error::new(Code::Index, format!("dim={dim} is out of bounds for {ndim} dimension(s)")))
}

fn check_alike(first: &Tensor, part: &Tensor, dim: usize) -> Result<()> {
    let (one, two) = (&first.layout.shape, &part.layout.shape);
    let names = || format!("{:?} and {:?}", first.name(), part.name());
    if first.dtype != part.dtype {
        let text = format!("{} cannot be joined: they are {} and {}", names(), first.dtype, part.dtype);
        return Err(
            Error::new(Code::Value, text).note("materialize one of them with dtype=... and join after")
        );
    }
    let mut sizes = one.iter().zip(two).enumerate();
    if one.len() != two.len() || sizes.any(|(at, (one, two))| at != dim && one != two) {
        let text =
            format!("{} cannot be joined: their shapes are {:?} and {:?}", names(), &one[..], &two[..]);
        return Err(Error::new(Code::Value, text));
    }
    Ok(())
}

/// The items with an item for every dimension.
fn explicit(items: &[TensorIndex], ndim: usize) -> Vec<TensorIndex> {
    let used =
        items.iter().filter(|item| matches!(item, TensorIndex::At(_) | TensorIndex::Range { .. })).count();
    let missing = ndim.saturating_sub(used);
    let mut out = Vec::with_capacity(ndim);
    let mut expanded = false;
    for &item in items {
        match item {
            TensorIndex::Ellipsis => {
                out.extend(std::iter::repeat_n(full(), missing));
                expanded = true;
            }
            item => out.push(item),
        }
    }
    if !expanded {
        out.extend(std::iter::repeat_n(full(), missing));
    }
    out
}

/// What an index along the joined dimension means for `size` elements of it from `base` on; `None` where none of them is in it.
/// `along` is the index applied to the numbers of all elements.
fn share(along: &Layout, base: u64, size: u64) -> Option<TensorIndex> {
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
