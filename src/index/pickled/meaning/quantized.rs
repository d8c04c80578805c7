//! Quantized tensors: integers, with scales and zero points (torch/_utils.py: `_rebuild_qtensor`).

use super::forms::leading;
use super::{CallInterpreter, Meaning};
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result, bail, error};
use crate::index::model::{Extra, Flags, Packed, Quantization, Scale, Tensor};
use crate::index::pickled::known::Known;
use crate::layout::Dims;
use crate::pickle::{Handle, Snapshot, Value};

/// The quantized storage classes: name, dtype, elements per byte.
const STORAGE_CLASSES: [(&str, &str, u64); 5] = [
    ("QInt8Storage", "qint8", 1),
    ("QUInt8Storage", "quint8", 1),
    ("QInt32Storage", "qint32", 1),
    ("QUInt4x2Storage", "quint4x2", 2),
    ("QUInt2x4Storage", "quint2x4", 4),
];

/// The quantization schemes of torch.
const SCHEMES: [&str; 5] = [
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
];

/// The quantized dtype of a storage class, and its elements per byte; `None` where the class is not a quantized one.
pub(super) fn quantized_dtype(class: &str) -> Option<(&'static str, u64)> {
    let found = STORAGE_CLASSES.iter().find(|(name, _, _)| *name == class);
    found.map(|&(_, dtype, per_byte)| (dtype, per_byte))
}

impl<'a> CallInterpreter<'a> {
    /// Adds the integers of a quantized tensor; `None` where a part of it is of an unknown class.
    pub(super) fn quantized(
        &mut self,
        storage: Handle,
        geometry: [Handle; 3],
        params: Handle,
        flags: Flags,
    ) -> Result<Option<u32>> {
        let Some((dtype, per_byte)) = self.quantized_class(storage) else {
            bail!(Code::PickleType, "the storage of a quantized tensor is not of a quantized class");
        };
        let slice = self.storage_of(storage)?;
        let [offset, size, stride] = geometry;
        let shape = self.counts(size, "size")?;
        let Some((scheme, scale)) = self.scale(params, &shape)? else { return Ok(None) };
        let mut quantization = Quantization { dtype, scheme, scale, packed: None };
        let tensor = if per_byte == 1 {
            self.tensor(slice, slice.dtype, geometry, flags)?
        } else {
            let strides = self.counts(stride, "stride")?;
            let offset = u64::try_from(self.int(offset, "offset")?).unwrap_or(u64::MAX);
            let packed = Packed { shape, strides, offset };
            if slice.nbytes < self.nbytes(slice.storage) {
                // Views are of torch before 0.4, which had no such tensors.
                bail!(Code::PersistentId, "a quantized tensor is on a view of a storage");
            }
            packed.check(slice.nbytes, per_byte)?;
            quantization.packed = Some(packed);
            let packed_bytes = Tensor::contiguous(DType::U8, &[slice.nbytes], slice.storage, slice.nbytes)?;
            let mut packed_bytes = packed_bytes.shifted(slice.start)?;
            packed_bytes.flags = flags;
            self.push(packed_bytes)?
        };
        self.extra(tensor).quantization = Some(quantization);
        Ok(Some(tensor))
    }

    /// The further properties of a tensor, to be set.
    pub(super) fn extra(&mut self, tensor: u32) -> &mut Extra {
        self.out.extras.entry(tensor).or_default()
    }

    /// The quantized dtype of a storage's class, and its elements per byte; `None` where the class is not a quantized one.
    pub(super) fn quantized_class(&self, storage: Handle) -> Option<(&'static str, u64)> {
        match self.values.get(storage) {
            Value::PersistentId(pid) => self.quantized_id(pid),
            _ => quantized_dtype(self.embedded_class(storage)?),
        }
    }

    /// As `quantized_class`, for the persistent id of a storage.
    pub(super) fn quantized_id(&self, pid: Handle) -> Option<(&'static str, u64)> {
        let Value::Tuple(&[_, class, ..]) = self.values.get(pid) else { return None };
        // The usual case, without a look at its name.
        if matches!(self.known(class), Some(Known::Storage(Some(dtype))) if dtype.kind() != Kind::Int) {
            return None;
        }
        quantized_dtype(self.values.global_at(class)?.1)
    }

    /// Reads `(scheme, scale, zero_point)`, or `(scheme, scales, zero_points, axis)` with tensors or lists; `None` where the scheme is
    /// unknown, or the scales are of an unknown class.
    fn scale(&mut self, params: Handle, shape: &[u64]) -> Result<Option<(&'static str, Scale)>> {
        let wrong = |text: String| Error::new(Code::TensorBounds, text);
        let scheme = |handle| match self.values.global_at(handle) {
            Some(("torch", name)) => SCHEMES.iter().copied().find(|scheme| *scheme == name),
            _ => None,
        };
        match self.values.get(params) {
            Value::Tuple(&[name, scale, zero_point]) => {
                let Some(name) = scheme(name).filter(|name| name.starts_with("per_tensor")) else {
                    return Ok(None);
                };
                let scale = self.number(scale).filter(|scale| scale.is_finite());
                let scale = scale
                    .ok_or_else(|| wrong("a quantized tensor's scale is not a finite number".to_owned()))?;
                let zero_point = self.int(zero_point, "zero point")?;
                Ok(Some((name, Scale::Tensor { scale, zero_point })))
            }
            Value::Tuple(&[name, scales, zero_points, axis]) => {
                let Some(name) = scheme(name).filter(|name| name.starts_with("per_channel")) else {
                    return Ok(None);
                };
                let axis = self.int(axis, "axis")?;
                let size = usize::try_from(axis).ok().and_then(|axis| shape.get(axis).copied());
                let (Some(size), Ok(axis)) = (size, u64::try_from(axis)) else {
                    let text = format!("axis {axis} of a quantized tensor with {} dimension(s)", shape.len());
                    return Err(wrong(text));
                };
                for (what, part) in [("scale", scales), ("zero point", zero_points)] {
                    let Some(count) = self.channels(part)? else { return Ok(None) };
                    if count != size {
                        let text = format!("{count} {what}(s) for dimension {axis} of size {size}");
                        return Err(wrong(text));
                    }
                }
                // torch decides by the dtype of the zero points: they may be floats in a scheme that the file calls affine.
                let name = match self.tensor_at(zero_points).map(|zeros| zeros.dtype().kind()) {
                    Some(Kind::Float) => "per_channel_affine_float_qparams",
                    Some(_) if name.ends_with("float_qparams") => "per_channel_affine",
                    _ => name,
                };
                let at_call = |value| Snapshot { value, offset: self.now };
                let (scales, zero_points) = (at_call(scales), at_call(zero_points));
                Ok(Some((name, Scale::Channel { scales, zero_points, axis })))
            }
            _ => Err(Error::new(
                Code::PickleType,
                "a quantized tensor's parameters are not a tuple of three or four",
            )),
        }
    }

    /// The length of a 1-D tensor or a list of numbers; `None` for anything else.
    fn channels(&mut self, handle: Handle) -> Result<Option<u64>> {
        if let Some(tensor) = self.tensor_at(handle) {
            let is_number = matches!(tensor.dtype().kind(), Kind::Float | Kind::Int);
            return match &tensor.layout().shape[..] {
                &[count] if is_number => Ok(Some(count)),
                shape => Err(error!(
                    Code::TensorBounds,
                    "the scales of a quantized tensor are {} of {shape:?}",
                    tensor.dtype()
                )),
            };
        }
        let Value::List(items) = self.get(handle) else { return Ok(None) };
        let values = self.values;
        let is_number = |&item: &Handle| match values.get(item) {
            Value::Int(_) => true,
            Value::Float(number) => number.is_finite(),
            _ => false,
        };
        let numbers = self.numbers.entry(handle).or_insert_with(|| leading(values, handle, is_number));
        if *numbers < items.len() {
            bail!(Code::TensorBounds, "the scales of a quantized tensor are not all finite numbers");
        }
        Ok(u64::try_from(items.len()).ok())
    }

    #[expect(
        clippy::as_conversions,
        reason = "an i64 has no lossless conversion to f64; Python rounds the same way"
    )]
    fn number(&self, handle: Handle) -> Option<f64> {
        match self.values.get(handle) {
            Value::Float(value) => Some(value),
            Value::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// Reads sizes or strides from a tuple or a `torch.Size`. Fails where one is negative.
    pub(super) fn counts(&self, handle: Handle, what: &str) -> Result<Dims> {
        let tuple = match self.values.get(handle) {
            Value::Call(id) if self.out.calls.get(id.index()) == Some(&Meaning::Tuple) => {
                match self.values.get(self.values.call(id).args) {
                    Value::Tuple(&[sizes]) => sizes,
                    _ => handle,
                }
            }
            _ => handle,
        };
        let count = |n: i64| u64::try_from(n).map_err(|_| error!(Code::TensorShape, "negative {what} {n}"));
        self.ints(tuple, what)?.into_iter().map(count).collect()
    }
}

impl Packed {
    /// Checks that the last element lies inside `nbytes`. The file does not state how torch pads rows, so there may be more bytes.
    fn check(&self, nbytes: u64, per_byte: u64) -> Result<()> {
        let wrong = |text: String| Err(Error::new(Code::TensorBounds, text));
        if self.shape.len() != self.strides.len() {
            return wrong(format!("{} sizes but {} strides", self.shape.len(), self.strides.len()));
        }
        if self.shape.contains(&0) {
            return Ok(());
        }
        let last = self.shape.iter().zip(&self.strides).try_fold(self.offset, |last, (&size, &stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(stride)?)
        });
        let count = crate::layout::numel(&self.shape);
        match last.filter(|_| count.is_some()) {
            Some(last) if last.checked_div(per_byte).is_some_and(|byte| byte < nbytes) => Ok(()),
            _ => wrong(format!(
                "a tensor of shape {:?} with {per_byte} elements per byte reaches outside a storage of {nbytes} byte(s)",
                &self.shape[..]
            )),
        }
    }
}
