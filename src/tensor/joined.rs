//! Lazy concatenation and stacking: the parts are boxes of one destination, and are read straight into it.

use super::{Order, Request, Tensor};
use crate::dtype::DType;
use crate::error::{Code, Error, Remedy, Result, Value, bail, error};
#[cfg(any(feature = "python", test))]
use crate::index::check_tiling;
use crate::layout::{Dims, Layout, TensorIndex, numel, one_for_each_dim};
use crate::sink::{Array, HostBuffer};
use crate::stream::{self, JoinPart};

/// The most parts of a joined tensor: joins of joins could double it each time.
const PARTS_MAX: usize = 1 << 20;

/// Tensors of one dtype, each a box of one larger tensor. Nothing is read until it is materialized.
///
/// A join of joined tensors has the parts of all of them, so that a part is never joined itself.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Never empty.
    pub(super) parts: Vec<Tensor>,
    /// For each part, the index of its first element along each dimension. The boxes do not overlap, and together are the whole.
    pub(super) offsets: Vec<Dims>,
    pub(super) shape: Dims,
}

impl From<Tensor> for Joined {
    fn from(tensor: Tensor) -> Joined {
        let shape = tensor.layout.shape.clone();
        Joined { offsets: vec![Dims::from_elem(0, shape.len())], parts: vec![tensor], shape }
    }
}

impl Joined {
    /// Concatenates tensors or joined ones along `dim`, which counts from the end if negative (`torch.cat`). Fails for an empty
    /// list, for tensors whose dtypes or other dimensions differ, and for quantized tensors, as each has a scale of its own.
    pub fn concat<T: Into<Joined>>(tensors: Vec<T>, dim: i64) -> Result<Joined> {
        let tensors: Vec<Joined> = tensors.into_iter().map(Into::into).collect();
        let Some(first) = tensors.first() else {
            bail!(Code::Value, "there is nothing to join: the list of tensors is empty");
        };
        let dim = resolve_dim(dim, first.shape.len())?;
        let mut size = 0_u64;
        for one in &tensors {
            check_compatible(first, one, dim)?;
            one.parts.iter().try_for_each(check_not_quantized)?;
            size = size.checked_add(one.shape[dim]).ok_or_else(too_large)?;
        }
        let mut shape = first.shape.clone();
        shape[dim] = Some(size).filter(|&size| size <= i64::MAX as u64).ok_or_else(too_large)?;
        numel(&shape).ok_or_else(too_large)?;
        let count = tensors.iter().map(|one| one.parts.len()).sum();
        if count > PARTS_MAX {
            return Err(error!(Code::Value, "a joined tensor has at most {PARTS_MAX} parts, not {count}")
                .note("Read some of them, and join the results."));
        }
        let (mut parts, mut offsets) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut begin = 0;
        for one in tensors {
            parts.extend(one.parts);
            offsets.extend(one.offsets.into_iter().map(|mut at| {
                at[dim] += begin;
                at
            }));
            begin += one.shape[dim];
        }
        Ok(Joined { parts, offsets, shape })
    }

    /// Joins tensors of equal shape along a new dimension `dim` (`torch.stack`). Fails as [`Joined::concat`] does.
    pub fn stack<T: Into<Joined>>(tensors: Vec<T>, dim: i64) -> Result<Joined> {
        let tensors: Vec<Joined> = tensors.into_iter().map(Into::into).collect();
        let ndim = tensors.first().map_or(0, |one| one.shape.len());
        let at = resolve_dim(dim, ndim + 1)?;
        let mut items = vec![(..).into(); at];
        items.push(TensorIndex::NewAxis);
        for one in &tensors {
            // `ndim` is not a dimension, so all of them have to agree.
            check_compatible(&tensors[0], one, ndim)?;
        }
        let tensors = tensors.iter().map(|one| one.index(&items)).collect::<Result<Vec<_>>>();
        Joined::concat(tensors?, at as i64)
    }

    /// The joined tensor of these parts at these offsets, which a pickle has. The numbers are not trusted: fails unless the parts
    /// have one dtype and are together a tensor of this shape.
    #[cfg(any(feature = "python", test))]
    pub(crate) fn restored(parts: Vec<Tensor>, offsets: Vec<Dims>, shape: Dims) -> Result<Joined> {
        let boxes: Vec<_> = (offsets.iter().zip(&parts))
            .map(|(offsets, part)| (&offsets[..], &part.layout.shape[..]))
            .collect();
        let dtype = parts.first().map(Tensor::dtype);
        let is_right = dtype.is_some()
            && parts.len() == offsets.len()
            && parts.iter().all(|part| Some(part.dtype) == dtype)
            && check_tiling(&shape, &boxes).is_ok();
        if !is_right {
            bail!(Code::Value, "the parts in the pickle are not those of a joined tensor");
        }
        parts.iter().try_for_each(check_not_quantized)?;
        Ok(Joined { parts, offsets, shape })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.first().dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The joined tensors, in order.
    pub fn parts(&self) -> &[Tensor] {
        &self.parts
    }

    /// For each part, the index of its first element along each dimension.
    pub fn offsets(&self) -> &[Dims] {
        &self.offsets
    }

    /// The part that is the whole tensor; `None` where there are several, or none with elements.
    pub(crate) fn only_part(&self) -> Option<&Tensor> {
        match &self.parts[..] {
            [part] if !self.shape.contains(&0) => Some(part),
            _ => None,
        }
    }

    /// As [`Tensor::identity`], of all parts.
    pub(crate) fn identity(&self) -> Option<String> {
        let parts = (self.parts.iter().zip(&self.offsets))
            .map(|(part, at)| Some(format!("{} at {:?}", part.identity()?, &at[..])));
        Some(format!("joined to {:?}: {}", &self.shape[..], parts.collect::<Option<Vec<_>>>()?.join("; ")))
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
        let mut sizes = self.shape.iter();
        let mut along = Vec::with_capacity(items.len());
        for item in one_for_each_dim(items, self.shape.len())? {
            along.push(match item {
                TensorIndex::NewAxis => None,
                item => {
                    let size = sizes.next().copied().unwrap_or(0);
                    Some(Layout::contiguous(&[size])?.index(&[item])?)
                }
            });
        }
        let (mut parts, mut offsets) = (Vec::new(), Vec::new());
        for (part, begin) in self.parts.iter().zip(&self.offsets) {
            if let Some((items, at)) = index_within(&along, begin, &part.layout.shape) {
                parts.push(part.index(&items)?);
                offsets.push(at);
            }
        }
        if parts.is_empty() {
            return self.empty(shape);
        }
        Ok(Joined { parts, offsets, shape })
    }

    /// A joined tensor of this shape, which has no elements.
    pub(super) fn empty(&self, shape: Dims) -> Result<Joined> {
        let none = self.first().map_layouts(|layout| {
            let strides = Dims::from_elem(0, shape.len());
            Ok(Layout { shape: shape.clone(), strides, offset: layout.offset })
        })?;
        Ok(Joined::from(none))
    }

    /// The joined tensor with its dimensions in the order `dims`. Fails where `dims` is not a permutation.
    pub fn permute(&self, dims: &[i64]) -> Result<Joined> {
        self.reordered(&Order::Permute(dims.to_vec()))
    }

    /// The joined tensor with its dimensions in reverse order.
    pub fn reversed(&self) -> Joined {
        let reversed = |dims: &Dims| dims.iter().rev().copied().collect();
        Joined {
            parts: self.parts.iter().map(Tensor::reversed).collect(),
            offsets: self.offsets.iter().map(reversed).collect(),
            shape: reversed(&self.shape),
        }
    }

    /// The joined tensor with its dimensions in this order.
    pub(super) fn reordered(&self, order: &Order) -> Result<Joined> {
        let reorder = |dims: &Dims| {
            Ok(order.apply(&Layout { shape: dims.clone(), strides: dims.clone(), offset: 0 })?.shape)
        };
        let parts = self.parts.iter().map(|part| part.map_layouts(|layout| order.apply(layout)));
        Ok(Joined {
            parts: parts.collect::<Result<_>>()?,
            offsets: self.offsets.iter().map(reorder).collect::<Result<_>>()?,
            shape: reorder(&self.shape)?,
        })
    }

    /// The shape in the order of the result.
    pub fn result_shape(&self, order: &Order) -> Result<Dims> {
        Ok(self.reordered(order)?.shape)
    }

    /// Returns the elements as an array in owned memory; with one part, as [`Tensor::materialize`] does.
    ///
    /// Fails where `copy=Some(false)` and there are several parts, where a request dequantizes, and as [`Tensor::materialize`] does.
    pub fn materialize(&self, request: &Request) -> Result<Array> {
        if let Some(part) = self.only_part() {
            return part.materialize(request);
        }
        if request.copy == Some(false) && self.nbytes() > 0 {
            bail!(Code::Buffer, "joined tensors are not contiguous in the file, which needs a copy");
        }
        let joined = self.reordered(&request.order)?;
        let nbytes = joined.result_bytes(request)?;
        if let Some(first) = joined.parts.first() {
            first.check_memory(nbytes)?;
        }
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
            bail!(Code::Value, "the result takes {nbytes} byte(s), the destination has {}", out.len());
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
            let how = part.fill_options(dtype, request, recycled)?;
            // Of what has no elements, only the cast is checked.
            if self.nbytes() == 0 { Ok(Vec::new()) } else { part.join_parts(&part.layout, &how) }
        };
        // A part may consist of several chunks.
        let (mut boxes, mut owners) = (Vec::new(), Vec::new());
        for (part, begin) in self.parts.iter().zip(&self.offsets) {
            for mut one in part.with_context(open(part))? {
                for (offset, begin) in one.offsets.iter_mut().zip(begin) {
                    *offset = offset.saturating_add(*begin);
                }
                boxes.push(one);
                owners.push(part);
            }
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

/// The dimension that `dim` means, counted from the end if negative. Fails where it is out of bounds.
fn resolve_dim(dim: i64, ndim: usize) -> Result<usize> {
    let from_start = if dim < 0 { dim.saturating_add(ndim as i64) } else { dim };
    usize::try_from(from_start)
        .ok()
        .filter(|&dim| dim < ndim)
        .ok_or_else(|| error!(Code::Index, "dim={dim} is out of bounds for {ndim} dimension(s)"))
}

/// Fails for a quantized tensor.
fn check_not_quantized(part: &Tensor) -> Result<()> {
    if part.quantization().is_none() {
        return Ok(());
    }
    Err(error!(Code::DtypeUnsupported, "tensor {:?} is quantized, and has a scale of its own", part.name())
        .remedy(Remedy::Pass("dequantize", Value::Flag(true), "when you read each, and join the results")))
}

/// Fails unless dtypes and shapes agree, except along `dim`. Joined tensors are named by their first part.
fn check_compatible(first: &Joined, other: &Joined, dim: usize) -> Result<()> {
    let names = || format!("{:?} and {:?}", first.first().name(), other.first().name());
    if first.dtype() != other.dtype() {
        let text = format!("{} cannot be joined: they are {} and {}", names(), first.dtype(), other.dtype());
        let cast = Remedy::Pass("dtype", Value::Any, "when you read one of them, and join the results");
        return Err(Error::new(Code::Value, text).remedy(cast));
    }
    let mut sizes = first.shape.iter().zip(&other.shape).enumerate();
    if first.shape.len() != other.shape.len()
        || sizes.any(|(at, (size, other_size))| at != dim && size != other_size)
    {
        bail!(
            Code::Value,
            "{} cannot be joined: their shapes are {:?} and {:?}",
            names(),
            &first.shape[..],
            &other.shape[..]
        );
    }
    Ok(())
}

/// Translates an index of the whole to one of the box at `begin` with these sizes, and gives the position of its first element in
/// the result; `None` where it selects none of the box. `along` has for each item the index applied to the positions of all elements
/// along its dimension, and `None` for a new dimension.
fn index_within(along: &[Option<Layout>], begin: &[u64], sizes: &[u64]) -> Option<(Vec<TensorIndex>, Dims)> {
    let mut dims = begin.iter().zip(sizes);
    let (mut items, mut at) = (Vec::with_capacity(along.len()), Dims::new());
    for one in along {
        let Some(one) = one else {
            items.push(TensorIndex::NewAxis);
            at.push(0);
            continue;
        };
        let (&begin, &size) = dims.next()?;
        let (item, before) = item_within(one, begin, size)?;
        items.push(item);
        at.extend(before);
    }
    Some((items, at))
}

/// The item along one dimension, for the `size` elements from `base` on, and how many elements it selects before them, if it keeps
/// the dimension; `None` where it selects none of them.
fn item_within(along: &Layout, base: u64, size: u64) -> Option<(TensorIndex, Option<u64>)> {
    let end = base + size;
    let inside = |at: u64| at >= base && at < end;
    let (&[count], &[step]) = (&along.shape[..], &along.strides[..]) else {
        return inside(along.offset).then(|| (TensorIndex::At((along.offset - base) as i64), None));
    };
    let before = base.saturating_sub(along.offset).div_ceil(step);
    let first = along.offset.checked_add(before.checked_mul(step)?)?;
    if before >= count || !inside(first) {
        return None;
    }
    let count = (count - before).min((end - first).div_ceil(step));
    let (start, stop) = (first - base, first - base + (count - 1) * step + 1);
    let (start, stop, step) = (Some(start as i64), Some(stop as i64), Some(step as i64));
    Some((TensorIndex::Range { start, stop, step }, Some(before)))
}
