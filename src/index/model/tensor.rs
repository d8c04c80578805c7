//! The bounds check that every tensor of every format passes.
//!
//! Sizes, strides and the offset are not negative; `last = offset + sum((size - 1) * stride)` does not overflow; and, unless the
//! tensor is empty, `(last + 1) * itemsize` is at most the size of the storage in bytes.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail, error};
use crate::layout::{Dims, Layout, contiguous_strides, numel};
use crate::limits::Limits;

/// One number per dimension, as the file states it; up to four are stored inline.
pub type Sizes = SmallVec<[i64; 4]>;

/// A tensor as a file describes it, unchecked.
#[derive(Clone, Debug)]
pub struct RawTensor {
    /// The element type.
    pub dtype: DType,
    /// The number of elements along each dimension.
    pub shape: Sizes,
    /// The stride of each dimension, in elements.
    pub strides: Sizes,
    /// The offset of the first element from the storage's start, in elements.
    pub offset: i64,
    /// The number of the storage in the index.
    pub storage: u32,
    /// The flags that the file sets.
    pub flags: Flags,
}

/// Boolean properties of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Whether it is a `torch.nn.Parameter`.
    pub parameter: bool,
    /// Its `requires_grad`.
    pub requires_grad: bool,
    /// torch's conjugate bit: a reader has to negate the imaginary parts.
    pub conjugate: bool,
    /// torch's negative bit: a reader has to negate the values.
    pub negative: bool,
    /// Whether it is on the meta device: it has a shape and no bytes, and its storage cannot be read.
    pub meta: bool,
}

/// A tensor whose elements all lie inside its storage: only a bounds check constructs one.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    layout: Layout,
    storage: u32,
    /// The flags that the file sets.
    pub flags: Flags,
}

impl Tensor {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, strides and offset in the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The number of the storage in the index.
    pub fn storage(&self) -> u32 {
        self.storage
    }

    /// Adds `bytes` to the offset, for a tensor that was checked against a slice of its storage that starts there. Fails with
    /// `StorageBounds` where that is inside an element.
    pub(crate) fn shifted(mut self, bytes: u64) -> Result<Tensor> {
        let item = self.dtype.itemsize();
        let shift = bytes.checked_div(item).filter(|shift| shift.checked_mul(item) == Some(bytes));
        let offset = shift.and_then(|shift| self.layout.offset.checked_add(shift));
        self.layout.offset = offset.ok_or_else(|| {
            error!(Code::StorageBounds, "a view starts at byte {bytes}, inside an element of {}", self.dtype)
        })?;
        Ok(self)
    }

    /// A C-contiguous tensor at the start of a storage of `nbytes`. Fails where it does not fit.
    pub(crate) fn contiguous(dtype: DType, shape: &[u64], storage: u32, nbytes: u64) -> Result<Tensor> {
        Tensor::of_layout(dtype, Layout::contiguous(shape)?, storage, nbytes)
    }

    /// A tensor of this layout in a storage of `nbytes`. Fails where it does not fit.
    pub(crate) fn of_layout(dtype: DType, layout: Layout, storage: u32, nbytes: u64) -> Result<Tensor> {
        check_bounds(&layout, dtype, nbytes)?;
        Ok(Tensor { dtype, layout, storage, flags: Flags::default() })
    }
}

impl RawTensor {
    /// A tensor at the start of its storage without gaps; with `fortran`, its first dimension varies fastest.
    pub(crate) fn contiguous(dtype: DType, shape: Sizes, fortran: bool, storage: u32) -> Result<RawTensor> {
        let mut sizes: Dims = shape.iter().map(|&size| u64::try_from(size).unwrap_or(0)).collect();
        if fortran {
            sizes.reverse();
        }
        let strides = contiguous_strides(&sizes);
        let strides: Option<Sizes> =
            strides.and_then(|strides| strides.iter().map(|&stride| i64::try_from(stride).ok()).collect());
        let mut strides =
            strides.ok_or_else(|| Error::new(Code::TensorShape, "an array's strides do not fit 63 bits"))?;
        if fortran {
            strides.reverse();
        }
        Ok(RawTensor { dtype, shape, strides, offset: 0, storage, flags: Flags::default() })
    }

    /// Checks the tensor against a storage of `nbytes`. Fails with `TensorShape`, `TensorBounds` or `Limit`.
    pub fn prove(self, nbytes: u64, limits: &Limits) -> Result<Tensor> {
        let tensor = self.checked_layout(limits)?;
        check_bounds(&tensor.layout, tensor.dtype, nbytes)?;
        Ok(tensor)
    }

    /// A tensor on the meta device. It has no elements in memory, so only its shape, strides and offset are checked.
    pub(crate) fn into_meta(self, limits: &Limits) -> Result<Tensor> {
        let mut tensor = self.checked_layout(limits)?;
        tensor.flags.meta = true;
        Ok(tensor)
    }

    fn checked_layout(self, limits: &Limits) -> Result<Tensor> {
        let (shape, strides) = (&self.shape, &self.strides);
        let rank = u64::try_from(shape.len()).unwrap_or(u64::MAX);
        Limits::check("rank", limits.rank, rank)?;
        if shape.len() != strides.len() {
            bail!(Code::TensorShape, "{} sizes but {} strides", shape.len(), strides.len());
        }
        let layout = Layout {
            shape: counts(shape, Code::TensorShape, "size")?,
            strides: counts(strides, Code::TensorBounds, "stride")?,
            offset: u64::try_from(self.offset)
                .map_err(|_| error!(Code::TensorBounds, "negative offset {}", self.offset))?,
        };
        if numel(&layout.shape).is_none() {
            bail!(Code::TensorShape, "the size of shape {shape:?} does not fit 64 bits");
        }
        Ok(Tensor { dtype: self.dtype, layout, storage: self.storage, flags: self.flags })
    }
}

fn counts(numbers: &[i64], code: Code, what: &str) -> Result<Dims> {
    (numbers.iter()).map(|&n| u64::try_from(n).map_err(|_| error!(code, "negative {what} {n}"))).collect()
}

fn check_bounds(layout: &Layout, dtype: DType, nbytes: u64) -> Result<()> {
    if layout.numel() == 0 {
        return Ok(());
    }
    match layout.end().and_then(|end| end.checked_mul(dtype.itemsize())) {
        Some(end) if end <= nbytes => Ok(()),
        end => {
            let extent = end.map_or_else(|| "beyond 64 bits".to_owned(), |end| format!("to byte {end}"));
            Err(error!(
                Code::TensorBounds,
                "a tensor of shape {:?} reaches {extent} of a storage of {nbytes}",
                &layout.shape[..]
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(shape: &[i64], strides: &[i64], offset: i64) -> RawTensor {
        let (shape, strides) = (shape.into(), strides.into());
        RawTensor { dtype: DType::F32, shape, strides, offset, storage: 0, flags: Flags::default() }
    }

    fn code(shape: &[i64], strides: &[i64], offset: i64) -> Option<Code> {
        raw(shape, strides, offset).prove(24, &Limits::default()).err().map(|error| error.code())
    }

    #[test]
    fn t07_to_t15_only_tensors_inside_their_storage_pass() {
        assert_eq!(code(&[2, 3], &[3, 1], 0), None);
        assert_eq!(code(&[2, 3], &[1, 2], 0), None);
        assert_eq!(code(&[2, 3], &[3, 1], 1), Some(Code::TensorBounds));
        assert_eq!(code(&[2, 4], &[3, 1], 0), Some(Code::TensorBounds));
        assert_eq!(code(&[1], &[1], -1), Some(Code::TensorBounds));
        assert_eq!(code(&[2], &[-1], 1), Some(Code::TensorBounds));
        assert_eq!(code(&[-1], &[1], 0), Some(Code::TensorShape));
        assert_eq!(code(&[1 << 40, 1 << 40], &[0, 0], 0), Some(Code::TensorShape));
        assert_eq!(code(&[3], &[i64::MAX], 0), Some(Code::TensorBounds));
        assert_eq!(code(&[0, 1 << 62], &[1, 1], 0), None);
        assert_eq!(code(&[2], &[1, 1], 0), Some(Code::TensorShape));
        assert_eq!(code(&[1; 65], &[1; 65], 0), Some(Code::Limit));
        assert_eq!(code(&[1 << 62], &[0], 5), None);
    }

    #[test]
    fn a_part_of_a_storage_begins_at_an_element() {
        let shifted = |bytes| Tensor::contiguous(DType::F32, &[2], 0, 8).unwrap().shifted(bytes);
        assert_eq!(shifted(8).unwrap().layout().offset, 2);
        for bytes in [1, 2, 3, 7, 9, u64::MAX] {
            assert_eq!(shifted(bytes).unwrap_err().code(), Code::StorageBounds, "{bytes}");
        }
    }

    #[test]
    fn the_bound_holds_to_the_byte_for_every_item_size() {
        for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64, DType::C128] {
            let item = dtype.itemsize();
            let numel = i64::try_from(24 / item).unwrap();
            let code = |shape: i64, stride: i64, offset: i64, nbytes: u64| {
                let tensor = RawTensor { dtype, ..raw(&[shape], &[stride], offset) };
                tensor.prove(nbytes, &Limits::default()).err().map(|error| error.code())
            };
            let whole = numel.unsigned_abs() * item;
            assert_eq!(code(numel, 1, 0, whole), None, "{dtype}");
            assert_eq!(code(2, numel - 1, 0, whole), None, "{dtype}");
            assert_eq!(code(1, 1, numel - 1, whole), None, "{dtype}");
            // One element past the end, by its size, its stride and its offset; then one byte short of the last element.
            assert_eq!(code(numel + 1, 1, 0, whole), Some(Code::TensorBounds), "{dtype}");
            assert_eq!(code(2, numel, 0, whole), Some(Code::TensorBounds), "{dtype}");
            assert_eq!(code(1, 1, numel, whole), Some(Code::TensorBounds), "{dtype}");
            assert_eq!(code(numel, 1, 0, whole - 1), Some(Code::TensorBounds), "{dtype}");
            let tensor = Tensor::contiguous(dtype, &[numel.unsigned_abs()], 0, whole - 1);
            assert_eq!(tensor.unwrap_err().code(), Code::TensorBounds, "{dtype}");
        }
    }
}
