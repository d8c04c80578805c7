//! Dequantizes torch's quantized tensors a block at a time; results are bit-identical to torch's `dequantize()`.

use std::mem::take;

use super::{Request, Tensor};
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result, bail, error};
use crate::index::{Object, Quantization, Scale};
use crate::kernel::{Cast, convert};
use crate::layout::Layout;
use crate::num::to_usize;
use crate::opened::Opened;
use crate::parallel::{self, Cancel};
use crate::pickle::Snapshot;
use crate::stream::{self, Fill, Payload, Signs};

/// Elements of a block: its integers and floats fit a core's cache.
const BLOCK_ELEMENTS: u64 = 1 << 16;

/// A block of a result: the layout of its integers, that of its scales, and its bytes.
type Block<'a> = (Layout, Option<Layout>, &'a mut [u8]);

/// How a tensor is dequantized.
pub(super) enum Dequantization<'a> {
    /// Integers of torch, with scales and zero points.
    Integers(&'a Quantization),
    /// Not at all: codes that the logical view has not replaced.
    Refused,
}

/// Scales and zero points, with the arithmetic of torch's kernels. Per channel they are pairs `(zero_point, scale)`.
enum Scales {
    /// `per_tensor_affine`: `scale * (q - zero_point)` in f32, the difference an integer.
    Tensor(f32, i64),
    /// `per_channel_affine`: `(q - zero_point) * scale`, the difference in f32, the product in f64.
    Channels(Vec<(f32, f64)>),
    /// `per_channel_affine_float_qparams`: the same, all in f32.
    ChannelsFloat(Vec<(f32, f32)>),
}

/// For a tensor quantized per channel: a layout of the same shape that maps each element to the index of its scale.
pub(super) fn channel_layout(opened: &Opened, id: (u32, u32), layout: &Layout) -> Option<Box<Layout>> {
    match &opened.extra(id)?.quantization.as_ref()?.scale {
        Scale::Channel { axis, .. } => {
            let strides = (0..layout.ndim() as u64).map(|dim| u64::from(dim == *axis)).collect();
            Some(Box::new(Layout { shape: layout.shape.clone(), strides, offset: 0 }))
        }
        Scale::Tensor { .. } => None,
    }
}

impl Tensor {
    /// The quantization parameters; `None` for a tensor that is not quantized.
    pub(crate) fn quantization(&self) -> Option<&Quantization> {
        self.opened.extra(self.id)?.quantization.as_ref()
    }

    /// How the request dequantizes the tensor; `None` where it does not.
    pub(super) fn dequantization(&self, request: &Request) -> Option<Dequantization<'_>> {
        if request.dequantize
            && let Some(quantization) = self.quantization()
        {
            return Some(Dequantization::Integers(quantization));
        }
        // In the logical view, codes are never numbers.
        let is_asked = request.dequantize || self.opened.options.dequantize;
        (is_asked && self.is_codes()).then_some(Dequantization::Refused)
    }

    /// Whether equal elements of both have equal values.
    pub(crate) fn has_same_dequantization(&self, other: &Tensor) -> bool {
        // Handles to scales are valid within one file only.
        (self.file(), self.quantization(), &self.channel_layout)
            == (other.file(), other.quantization(), &other.channel_layout)
    }

    /// The dtype of the result of a request.
    pub(crate) fn result_dtype(&self, request: &Request) -> DType {
        let own = if self.dequantization(request).is_some() { DType::F32 } else { self.dtype };
        request.dtype.unwrap_or(own)
    }

    /// Writes the dequantized elements of `layout` to `out` as floats of `dtype`. Fails where `dtype` is not a float type, and for
    /// packed integers (several to a byte).
    pub(super) fn dequantize(
        &self,
        quantization: &Quantization,
        layout: &Layout,
        dtype: DType,
        request: &Request,
        out: &mut [u8],
    ) -> Result<()> {
        if quantization.packed.is_some() {
            bail!(
                Code::DtypeUnsupported,
                "{} packs several integers in a byte, which cannot be dequantized",
                quantization.dtype
            );
        }
        if dtype.kind() != Kind::Float {
            bail!(Code::Value, "a tensor is dequantized to a float dtype, not to {dtype}");
        }
        let channel_layout = self
            .channel_layout
            .as_deref()
            .map(|channel_layout| request.order.apply(channel_layout))
            .transpose()?;
        let scales = self.scales(quantization, &request.cancel)?;
        let payload = self.opened.payload(self.storage(), &request.cancel)?;
        let to_ints = Cast::new(self.dtype, DType::I32, request.overflow)?;
        let to_dtype = Cast::new(DType::F32, dtype, request.overflow)?;
        let threads = parallel::threads(out.len() as u64, request.threads);
        let to_ints =
            Fill { signs: Signs::default(), cast: to_ints, threads: Some(1), cancel: request.cancel.clone() };
        let mut rest = out;
        let blocks = stream::slices(&layout.shape, BLOCK_ELEMENTS).map(|slice| {
            let (out, behind) = take(&mut rest).split_at_mut(to_usize(slice.numel * dtype.itemsize()));
            rest = behind;
            let channels = channel_layout.as_ref().map(|channel_layout| slice.layout_of(channel_layout));
            (slice.layout_of(layout), channels, out)
        });
        parallel::for_each(threads, blocks, Scratch::default, |scratch, block| {
            scratch.dequantize(&payload, &to_ints, &scales, to_dtype, block)
        })
    }

    fn scales(&self, quantization: &Quantization, cancel: &Cancel) -> Result<Scales> {
        Ok(match &quantization.scale {
            // torch stores the scale as a double and multiplies with it as a float.
            Scale::Tensor { scale, zero_point } => Scales::Tensor(*scale as f32, *zero_point),
            Scale::Channel { scales, zero_points, .. } => {
                let zero_points = self.qparams(*zero_points, cancel)?.into_iter().map(|zero| zero as f32);
                let scales = self.qparams(*scales, cancel)?;
                if quantization.scheme == "per_channel_affine_float_qparams" {
                    Scales::ChannelsFloat(
                        zero_points.zip(scales.into_iter().map(|scale| scale as f32)).collect(),
                    )
                } else {
                    Scales::Channels(zero_points.zip(scales).collect())
                }
            }
        })
    }

    /// All elements as numbers of this dtype, in C order. Fails over the limit `materialize_bytes` where elements repeat.
    pub(super) fn numbers(&self, dtype: DType, threads: Option<usize>, cancel: &Cancel) -> Result<Vec<u8>> {
        let nbytes = self.result_bytes(&self.layout, dtype)?;
        let no_memory = |_| error!(Code::Memory, "no memory for {nbytes} byte(s)");
        let len = to_usize(nbytes);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(no_memory)?;
        bytes.resize(len, 0);
        let cancel = cancel.clone();
        let request = Request { dtype: Some(dtype), copy: Some(true), threads, cancel, ..Request::default() };
        self.materialize_into(&request, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads scales or zero points, which the file has as a tensor or a list. Fails unless all of them are finite.
    fn qparams(&self, part: Snapshot, cancel: &Cancel) -> Result<Vec<f64>> {
        let missing = || Error::new(Code::InternalError, "a quantized tensor's scales are missing");

        let tree = self.opened.tree(self.shard()).ok_or_else(missing)?;
        let numbers = match tree.get(part.value)? {
            Object::Tensor(tensor) => {
                let tensor =
                    Tensor::unnamed(&self.opened, self.shard() as usize, tensor).ok_or_else(missing)?;
                // The numbers take this much while they are converted.
                tensor.repeated_bytes(DType::C128)?;
                let bytes = tensor.numbers(DType::F64, None, cancel)?;
                bytes.as_chunks().0.iter().map(|&number| f64::from_le_bytes(number)).collect()
            }
            _ => {
                let number = |&item| match tree.get(item)? {
                    Object::Int(number) => Ok(number as f64),
                    Object::Float(number) => Ok(number),
                    _ => Err(missing()),
                };
                let items = tree.list_at(part).ok_or_else(missing)?;
                items.iter().map(number).collect::<Result<Vec<_>>>()?
            }
        };
        if numbers.iter().all(|number| number.is_finite()) {
            return Ok(numbers);
        }
        Err(Error::new(
            Code::TensorBounds,
            "a quantized tensor has scales or zero points that are not finite",
        ))
    }
}

/// Buffers that a thread reuses for all its blocks.
#[derive(Default)]
struct Scratch {
    ints: Vec<u8>,
    floats: Vec<u8>,
}

impl Scratch {
    fn dequantize(
        &mut self,
        payload: &Payload,
        to_ints: &Fill,
        scales: &Scales,
        cast: Cast,
        (layout, channel_layout, out): Block<'_>,
    ) -> Result<()> {
        let nbytes = layout.numel() as usize * size_of::<i32>();
        self.ints.resize(nbytes, 0);
        stream::fill(payload, &layout, to_ints, &mut self.ints)?;
        let ints = self.ints.as_chunks().0.iter().map(|&int| i32::from_le_bytes(int));
        self.floats.clear();
        let floats = &mut self.floats;
        let mut push = |number: f32| floats.extend_from_slice(&number.to_le_bytes());
        match (scales, channel_layout) {
            (Scales::Tensor(scale, zero), _) => {
                ints.for_each(|int| push(scale * (i64::from(int) - zero) as f32));
            }
            (Scales::Channels(scales), Some(channel_layout)) => {
                for (int, channel) in ints.zip(offsets(&channel_layout)) {
                    let &(zero, scale) = scale_of(scales, channel)?;
                    push((f64::from(int as f32 - zero) * scale) as f32);
                }
            }
            (Scales::ChannelsFloat(scales), Some(channel_layout)) => {
                for (int, channel) in ints.zip(offsets(&channel_layout)) {
                    let &(zero, scale) = scale_of(scales, channel)?;
                    push((int as f32 - zero) * scale);
                }
            }
            _ => return Err(Error::new(Code::InternalError, "scales per channel have no channel layout")),
        }
        convert(cast, &self.floats, out)
    }
}

fn scale_of<T>(scales: &[T], channel: u64) -> Result<&T> {
    let outside = || Error::new(Code::InternalError, "a channel is out of bounds of the scales");
    usize::try_from(channel).ok().and_then(|channel| scales.get(channel)).ok_or_else(outside)
}

/// The offsets of a layout's elements, in C order.
fn offsets(layout: &Layout) -> impl Iterator<Item = u64> + '_ {
    let mut index = vec![0; layout.ndim()];
    let mut offset = layout.offset;
    (0..layout.numel()).map(move |_| {
        let current = offset;
        for ((at, &size), &stride) in index.iter_mut().zip(&layout.shape).zip(&layout.strides).rev() {
            *at += 1;
            offset += stride;
            if *at < size {
                break;
            }
            offset -= *at * stride;
            *at = 0;
        }
        current
    })
}
