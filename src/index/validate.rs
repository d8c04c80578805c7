//! The one proof of bounds that every tensor passes, whatever its format.
//!
//! Sizes, strides and the offset are not negative; `last = offset + sum((size - 1) * stride)` does not overflow; and, where
//! there is an element at all, `(last + 1) * itemsize` is at most the storage's bytes.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::{Dims, Layout, numel};
use crate::limits::Limits;

/// One number of a file per dimension; up to four without an allocation.
pub type Sizes = SmallVec<[i64; 4]>;

/// A tensor as a file describes it: nothing is checked yet.
#[derive(Clone, Debug)]
pub struct RawTensor {
    /// The element type.
    pub dtype: DType,
    /// Elements along each dimension.
    pub shape: Sizes,
    /// Elements between neighbours along each dimension.
    pub strides: Sizes,
    /// The first element, from the storage's start.
    pub offset: i64,
    /// Which storage.
    pub storage: u32,
    /// What else the file says.
    pub flags: Flags,
}

/// What a file says of a tensor beside its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Whether it is a `torch.nn.Parameter`.
    pub parameter: bool,
    /// Whether it wants gradients.
    pub requires_grad: bool,
    /// Whether its imaginary parts are to be negated.
    pub conjugate: bool,
    /// Whether its values are to be negated.
    pub negative: bool,
    /// Whether it is on the meta device: a shape without bytes, in a storage that cannot be read.
    pub meta: bool,
}

/// A tensor whose every element is proved to lie inside its storage.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    layout: Layout,
    storage: u32,
    /// What else the file says.
    pub flags: Flags,
}

impl Tensor {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the elements lie in the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Which storage.
    pub fn storage(&self) -> u32 {
        self.storage
    }

    /// The same elements counted from `bytes` earlier: of a tensor proved against a part of its storage that starts there.
    pub(super) fn shifted(mut self, bytes: u64) -> Result<Tensor> {
        let item = self.dtype.itemsize();
        let shift = bytes.checked_div(item).filter(|shift| shift.checked_mul(item) == Some(bytes));
        let offset = shift.and_then(|shift| self.layout.offset.checked_add(shift));
        self.layout.offset = offset.ok_or_else(|| {
            Error::new(
                Code::StorageBounds,
                format!("a view starts at byte {bytes}, inside an element of {}", self.dtype),
            )
        })?;
        Ok(self)
    }

    /// A C-contiguous tensor that is its whole storage of `nbytes`.
    pub(super) fn whole(dtype: DType, shape: &[u64], storage: u32, nbytes: u64) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        prove(&layout, dtype, nbytes)?;
        Ok(Tensor { dtype, layout, storage, flags: Flags::default() })
    }
}

impl RawTensor {
    /// The proof, against a storage of `nbytes`.
    pub fn prove(self, nbytes: u64, limits: &Limits) -> Result<Tensor> {
        let tensor = self.described(limits)?;
        prove(&tensor.layout, tensor.dtype, nbytes)?;
        Ok(tensor)
    }

    /// A tensor on the meta device, whose elements are nowhere, so that nothing is to be proved.
    pub(super) fn imagine(self, limits: &Limits) -> Result<Tensor> {
        let mut tensor = self.described(limits)?;
        tensor.flags.meta = true;
        Ok(tensor)
    }

    fn described(self, limits: &Limits) -> Result<Tensor> {
        let (shape, strides) = (&self.shape, &self.strides);
        let rank = u64::try_from(shape.len()).unwrap_or(u64::MAX);
        Limits::check("rank", limits.rank, rank)?;
        if shape.len() != strides.len() {
            let text = format!("{} sizes but {} strides", shape.len(), strides.len());
            return Err(Error::new(Code::TensorShape, text));
        }
        let layout = Layout {
            shape: counts(shape, Code::TensorShape, "size")?,
            strides: counts(strides, Code::TensorBounds, "stride")?,
            offset: u64::try_from(self.offset)
                .map_err(|_| Error::new(Code::TensorBounds, format!("negative offset {}", self.offset)))?,
        };
        if numel(&layout.shape).is_none() {
            return Err(Error::new(
                Code::TensorShape,
                format!("the size of shape {shape:?} does not fit 64 bits"),
            ));
        }
        Ok(Tensor { dtype: self.dtype, layout, storage: self.storage, flags: self.flags })
    }
}

fn counts(numbers: &[i64], code: Code, what: &str) -> Result<Dims> {
    (numbers.iter())
        .map(|&n| u64::try_from(n).map_err(|_| Error::new(code, format!("negative {what} {n}"))))
        .collect()
}

fn prove(layout: &Layout, dtype: DType, nbytes: u64) -> Result<()> {
    if layout.numel() == 0 {
        return Ok(());
    }
    match layout.end().and_then(|end| end.checked_mul(dtype.itemsize())) {
        Some(end) if end <= nbytes => Ok(()),
        end => {
            let reach = end.map_or_else(|| "beyond 64 bits".to_owned(), |end| format!("to byte {end}"));
            let text =
                format!("a tensor of shape {:?} reaches {reach} of a storage of {nbytes}", &layout.shape[..]);
            Err(Error::new(Code::TensorBounds, text))
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
    fn t07_to_t15_only_what_lies_inside_passes() {
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
        let shifted = |bytes| Tensor::whole(DType::F32, &[2], 0, 8).unwrap().shifted(bytes);
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
            let tensor = Tensor::whole(dtype, &[numel.unsigned_abs()], 0, whole - 1);
            assert_eq!(tensor.unwrap_err().code(), Code::TensorBounds, "{dtype}");
        }
    }
}
