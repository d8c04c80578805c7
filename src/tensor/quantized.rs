//! Quantized tensors: integers as the numbers they stand for, a block at a time, equal to torch's `dequantize()` to the bit.

use std::mem::take;

use super::{Request, Tensor};
use crate::checkpoint::Inner;
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};
use crate::index::{Object, Quantization, Scale};
use crate::kernel::{Cast, convert};
use crate::layout::{Layout, TensorIndex};
use crate::parallel;
use crate::pickle::Handle;
use crate::stream::{self, Fill, Payload, Signs};

/// Elements of a block: with their integers and floats, it stays in a core's cache.
const BLOCK: u64 = 1 << 16;

/// A block of a result: where its integers are, which scales are theirs, and its bytes.
type Block<'a> = (Layout, Option<Layout>, &'a mut [u8]);

/// What to multiply with and which integer is zero, as torch's loops have them.
enum Scales {
    /// `scale * (q - zero_point)` in f32, the difference an integer.
    One(f32, i64),
    /// `(q - zero_point) * scale`: the difference in f32, the product in f64.
    Each(Vec<(f32, f64)>),
    /// The same in f32 (`per_channel_affine_float_qparams`).
    EachFloat(Vec<(f32, f32)>),
}

/// For a tensor with a scale for each step along a dimension: the layout of a tensor of the same shape on the scales.
pub(super) fn channels(checkpoint: &Inner, id: (u32, u32), layout: &Layout) -> Option<Box<Layout>> {
    match &checkpoint.extra(id)?.quantization.as_ref()?.scale {
        Scale::Channel { axis, .. } => {
            let strides = (0..layout.ndim() as u64).map(|dim| u64::from(dim == *axis)).collect();
            Some(Box::new(Layout { shape: layout.shape.clone(), strides, offset: 0 }))
        }
        Scale::Tensor { .. } => None,
    }
}

impl Tensor {
    /// How the integers stand for numbers, if the file says so.
    pub fn quantization(&self) -> Option<&Quantization> {
        self.checkpoint.extra(self.id)?.quantization.as_ref()
    }

    /// The quantization, if the request is to undo it.
    pub(super) fn dequantizes(&self, request: &Request) -> Option<&Quantization> {
        self.quantization().filter(|_| request.dequantize)
    }

    /// Whether equal integers stand for equal numbers in both.
    pub(crate) fn dequantizes_as(&self, other: &Tensor) -> bool {
        // A handle means something in its own file only.
        (self.file(), self.quantization(), &self.channels)
            == (other.file(), other.quantization(), &other.channels)
    }

    /// The dtype of what a request gives.
    pub(super) fn result_dtype(&self, request: &Request) -> DType {
        let own = if self.dequantizes(request).is_some() { DType::F32 } else { self.dtype };
        request.dtype.unwrap_or(own)
    }

    /// Writes the numbers that the integers of `layout` stand for, as floats of `dtype`.
    pub(super) fn dequantize(
        &self,
        quantization: &Quantization,
        layout: &Layout,
        dtype: DType,
        request: &Request,
        out: &mut [u8],
    ) -> Result<()> {
        if quantization.packed.is_some() {
            let text =
                format!("{} has several numbers to the byte, which are not unpacked", quantization.dtype);
            return Err(Error::new(Code::DtypeUnsupported, text));
        }
        if dtype.kind() != Kind::Float {
            let text = format!("a quantized tensor's numbers are floats, not {dtype}");
            return Err(Error::new(Code::Value, text));
        }
        let channels = self.channels.as_deref().map(|channels| request.order.of(channels)).transpose()?;
        let scales = self.scales(quantization)?;
        let payload = self.checkpoint.payload(self.storage(), &request.cancel)?;
        let to_ints = Cast::new(self.dtype, DType::I32, request.overflow)?;
        let to_dtype = Cast::new(DType::F32, dtype, request.overflow)?;
        let threads = parallel::threads(out.len() as u64, request.threads);
        let how =
            Fill { signs: Signs::default(), cast: to_ints, threads: Some(1), cancel: request.cancel.clone() };
        let blocks = Blocks { layout: layout.clone(), channels, itemsize: dtype.itemsize(), out, done: 0 };
        parallel::for_each(threads, blocks, Scratch::default, |scratch, block| {
            scratch.run(&payload, &how, &scales, to_dtype, block?)
        })
    }

    fn scales(&self, quantization: &Quantization) -> Result<Scales> {
        Ok(match &quantization.scale {
            // torch keeps the scale as a double and multiplies with a float.
            Scale::Tensor { scale, zero_point } => Scales::One(*scale as f32, *zero_point),
            Scale::Channel { scales, zero_points, .. } => {
                let zero_points = self.numbers(*zero_points)?.into_iter().map(|zero| zero as f32);
                let scales = self.numbers(*scales)?;
                if quantization.scheme == "per_channel_affine_float_qparams" {
                    Scales::EachFloat(zero_points.zip(scales.into_iter().map(|scale| scale as f32)).collect())
                } else {
                    Scales::Each(zero_points.zip(scales).collect())
                }
            }
        })
    }

    /// Memory for all elements as another dtype; a limit where elements repeat.
    pub(super) fn bytes_for(&self, dtype: DType) -> Result<Vec<u8>> {
        let nbytes = self.result_bytes(&self.layout, dtype)?;
        let gone = |_| Error::new(Code::Memory, format!("no memory for {nbytes} byte(s)"));
        let len = usize::try_from(nbytes).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(gone)?;
        bytes.resize(len, 0);
        Ok(bytes)
    }

    /// The numbers of a tensor or a list, all of them finite.
    fn numbers(&self, handle: Handle) -> Result<Vec<f64>> {
        let gone = || Error::new(Code::InternalError, "a quantized tensor's scales are gone");
        let checkpoint = self.checkpoint();
        let tree = self.checkpoint.tree(self.shard()).ok_or_else(gone)?;
        let numbers = match tree.get(handle)? {
            Object::Tensor(tensor) => {
                let tensor = checkpoint.unnamed(self.shard() as usize, tensor).ok_or_else(gone)?;
                let request = Request { dtype: Some(DType::F64), copy: Some(true), ..Request::default() };
                let mut bytes = tensor.bytes_for(DType::F64)?;
                tensor.materialize_into(&request, &mut bytes)?;
                bytes.as_chunks().0.iter().map(|&number| f64::from_le_bytes(number)).collect()
            }
            Object::List(items) => {
                let number = |&item| match tree.get(item)? {
                    Object::Int(number) => Ok(number as f64),
                    Object::Float(number) => Ok(number),
                    _ => Err(gone()),
                };
                items.iter().map(number).collect::<Result<Vec<_>>>()?
            }
            _ => return Err(gone()),
        };
        if numbers.iter().all(|number| number.is_finite()) {
            return Ok(numbers);
        }
        Err(Error::new(Code::TensorBounds, "a quantized tensor's scales hold what is no number"))
    }
}

/// Cuts a result into blocks: ranges of one dimension, with all the dimensions after it whole.
struct Blocks<'a> {
    layout: Layout,
    channels: Option<Layout>,
    itemsize: u64,
    out: &'a mut [u8],
    /// Elements that earlier blocks have.
    done: u64,
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<Block<'a>>;

    fn next(&mut self) -> Option<Result<Block<'a>>> {
        if self.out.is_empty() { None } else { Some(self.cut()) }
    }
}

impl<'a> Blocks<'a> {
    fn cut(&mut self) -> Result<Block<'a>> {
        let shape = &self.layout.shape;
        // The first dimension below which everything fits a block.
        let inside =
            |dim: usize| shape[dim + 1..].iter().fold(1_u64, |count, &size| count.saturating_mul(size));
        let dim = (0..shape.len()).find(|&dim| inside(dim) <= BLOCK);
        let mut items = Vec::new();
        let mut count = 1;
        if let Some(dim) = dim {
            let at = |dim: usize| self.done / inside(dim) % shape[dim];
            items.extend((0..dim).map(|outer| TensorIndex::At(at(outer) as i64)));
            let start = at(dim);
            let stop = shape[dim].min(start + (BLOCK / inside(dim)).max(1));
            items.push(TensorIndex::Range { start: Some(start as i64), stop: Some(stop as i64), step: None });
            count = (stop - start) * inside(dim);
        }
        // The numbers come from the shape itself, so no index is out of bounds.
        let layout = self.layout.index(&items)?;
        let channels = self.channels.as_ref().map(|channels| channels.index(&items)).transpose()?;
        let bytes = usize::try_from(count * self.itemsize).unwrap_or(usize::MAX);
        let gap = || Error::new(Code::InternalError, "a part of the destination would not be written");
        let (block, rest) = take(&mut self.out).split_at_mut_checked(bytes).ok_or_else(gap)?;
        self.out = rest;
        self.done += count;
        Ok((layout, channels, block))
    }
}

/// What a thread keeps from block to block.
#[derive(Default)]
struct Scratch {
    ints: Vec<u8>,
    floats: Vec<u8>,
}

impl Scratch {
    fn run(
        &mut self,
        payload: &Payload,
        how: &Fill,
        scales: &Scales,
        cast: Cast,
        (layout, channels, out): Block<'_>,
    ) -> Result<()> {
        let nbytes = layout.numel() as usize * size_of::<i32>();
        self.ints.resize(nbytes, 0);
        stream::fill(payload, &layout, how, &mut self.ints)?;
        let ints = self.ints.as_chunks().0.iter().map(|&int| i32::from_le_bytes(int));
        self.floats.clear();
        let floats = &mut self.floats;
        let mut each = |number: f32| floats.extend_from_slice(&number.to_le_bytes());
        match (scales, channels) {
            (Scales::One(scale, zero), _) => {
                ints.for_each(|int| each(scale * (i64::from(int) - zero) as f32));
            }
            (Scales::Each(scales), Some(channels)) => {
                for (int, channel) in ints.zip(offsets(&channels)) {
                    let &(zero, scale) = scale_of(scales, channel)?;
                    each((f64::from(int as f32 - zero) * scale) as f32);
                }
            }
            (Scales::EachFloat(scales), Some(channels)) => {
                for (int, channel) in ints.zip(offsets(&channels)) {
                    let &(zero, scale) = scale_of(scales, channel)?;
                    each((int as f32 - zero) * scale);
                }
            }
            _ => return Err(Error::new(Code::InternalError, "nobody knows which scale is whose")),
        }
        convert(cast, &self.floats, out)
    }
}

fn scale_of<T>(scales: &[T], channel: u64) -> Result<&T> {
    let gone = || Error::new(Code::InternalError, "a scale lies outside its tensor");
    usize::try_from(channel).ok().and_then(|channel| scales.get(channel)).ok_or_else(gone)
}

/// The offsets of a layout's elements, in C order.
fn offsets(layout: &Layout) -> impl Iterator<Item = u64> + '_ {
    let mut index = vec![0; layout.ndim()];
    let mut offset = layout.offset;
    (0..layout.numel()).map(move |_| {
        let found = offset;
        for ((at, &size), &stride) in index.iter_mut().zip(&layout.shape).zip(&layout.strides).rev() {
            *at += 1;
            offset += stride;
            if *at < size {
                break;
            }
            offset -= *at * stride;
            *at = 0;
        }
        found
    })
}
