//! The values of a tensor that is written: a lazy tensor, joined tensors, or an array in memory.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::bytes::{Bytes, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail, error};
use crate::kernel::{Cast, is_lossy};
use crate::layout::{Dims, Layout};
use crate::stream::{Elements, Fill, Payload, ResultData, Signs};
use crate::tensor::{Growth, Joined, Request, Tensor};

/// The values of one tensor of a new file, and how they are converted as they are written. [`Request::copy`] has no effect.
#[derive(Clone)]
#[non_exhaustive]
pub enum Values {
    /// A tensor of a checkpoint, or a slice of one.
    Tensor(Tensor, Request),
    /// Concatenated or stacked tensors.
    Joined(Joined, Request),
    /// An array in memory.
    Array(HostArray, Request),
    /// An array that is made when its turn comes, such as one that is copied from a GPU.
    Deferred(DeferredArray, Request),
}

/// An array in host memory, of any strides.
#[derive(Clone)]
pub struct HostArray {
    bytes: Bytes,
    dtype: DType,
    layout: Layout,
}

/// A C-contiguous array whose bytes are made when its turn comes, and dropped when they are written.
#[derive(Clone)]
pub struct DeferredArray {
    /// The element type.
    pub dtype: DType,
    /// Elements along each dimension.
    pub shape: Dims,
    /// The storage that it shares with others, as any number; `None` for one of its own.
    pub tie: Option<u64>,
    /// Returns all bytes. Called once, and once more to verify the file ([`WriteOptions::verify`](super::WriteOptions::verify)); on
    /// any thread.
    pub make: Arc<dyn Fn() -> Result<Bytes> + Send + Sync>,
}

impl DeferredArray {
    fn layout(&self) -> Result<Layout> {
        Layout::contiguous(&self.shape)
    }
}

impl HostArray {
    /// The array with these elements in `bytes`. Fails if an element would lie outside them.
    pub fn new(bytes: Bytes, dtype: DType, layout: Layout) -> Result<HostArray> {
        let end = layout.end().and_then(|end| end.checked_mul(dtype.itemsize()));
        let len = (*bytes).as_ref().len() as u64;
        if layout.shape.len() == layout.strides.len() && end.is_some_and(|end| end <= len) {
            Ok(HostArray { bytes, dtype, layout })
        } else {
            Err(error!(Code::Value, "{dtype} of shape {:?} does not fit {len} bytes", &layout.shape[..]))
        }
    }

    fn elements(&self, request: &Request) -> Result<Elements> {
        let dtype = request.dtype.unwrap_or(self.dtype);
        if !request.allow_lossy && is_lossy(self.dtype, dtype) {
            bail!(Code::LossyCast, "a cast from {} to {dtype} is lossy", self.dtype);
        }
        Ok(Elements {
            payload: Payload {
                source: Source::memory(self.bytes.clone()),
                big_endian: cfg!(target_endian = "big"),
            },
            layout: request.order.apply(&self.layout)?,
            how: Fill {
                signs: Signs::default(),
                cast: Cast::new(self.dtype, dtype, request.overflow)?,
                threads: request.threads,
                cancel: request.cancel.clone(),
            },
        })
    }
}

/// Fails if tensors that view the same bytes would become too much together.
pub(crate) fn limit_growth<'a>(tensors: impl IntoIterator<Item = &'a Values>) -> Result<()> {
    let mut growth = Growth::default();
    for values in tensors {
        values.count(&mut growth).map_err(|error| values.add_context(error))?;
    }
    Ok(())
}

impl Values {
    /// The dtype and shape that they have in the file. Fails over the limit `materialize_bytes` where elements repeat.
    pub fn result(&self) -> Result<(DType, Dims)> {
        match self {
            Values::Tensor(tensor, request) => {
                tensor.check_scheme(request)?;
                let (dtype, layout) = (tensor.result_dtype(request), tensor.result_layout(&request.order)?);
                // A small file may describe a result that fills a disk.
                tensor.result_bytes(&layout, dtype)?;
                Ok((dtype, layout.shape))
            }
            Values::Joined(joined, request) => {
                joined.result_bytes(request)?;
                Ok((request.dtype.unwrap_or(joined.dtype()), joined.result_shape(&request.order)?))
            }
            Values::Array(array, request) => {
                let shape = request.order.apply(&array.layout)?.shape;
                Ok((request.dtype.unwrap_or(array.dtype), shape))
            }
            Values::Deferred(array, request) => {
                let shape = request.order.apply(&array.layout()?)?.shape;
                Ok((request.dtype.unwrap_or(array.dtype), shape))
            }
        }
    }

    /// Counts the tensors that are read: many may view the same bytes. Fails over the limit `materialize_bytes`.
    fn count(&self, growth: &mut Growth) -> Result<()> {
        match self {
            Values::Tensor(tensor, request) => growth.add(tensor, tensor.result_dtype(request)),
            Values::Joined(joined, request) => {
                let dtype = request.dtype.unwrap_or(joined.dtype());
                joined.parts().iter().try_for_each(|part| growth.add(part, dtype))
            }
            Values::Array(..) | Values::Deferred(..) => Ok(()),
        }
    }

    /// The position in their file, so that files are read in order. Arrays in memory come last.
    pub(super) fn position(&self) -> Option<((usize, u32), u64)> {
        let of = |tensor: &Tensor| (tensor.file(), tensor.position());
        match self {
            Values::Tensor(tensor, _) => Some(of(tensor)),
            Values::Joined(joined, _) => joined.parts().first().map(of),
            Values::Array(..) | Values::Deferred(..) => None,
        }
    }

    /// The storage that tied tensors share: equal for values that are. `None` if no others are.
    pub(super) fn tie(&self) -> Option<u64> {
        match self {
            Values::Tensor(tensor, _) => {
                let mut hasher = DefaultHasher::new();
                (tensor.file(), tensor.storage()).hash(&mut hasher);
                Some(hasher.finish())
            }
            Values::Deferred(array, _) => array.tie,
            Values::Joined(..) | Values::Array(..) => None,
        }
    }

    /// A text that another process also gets for the same values, and for nothing else. `None` for arrays in memory, and for sources
    /// without an identity.
    pub(super) fn identity(&self) -> Option<String> {
        let (values, request) = match self {
            Values::Tensor(tensor, request) => (tensor.identity()?, request),
            Values::Joined(joined, request) => (joined.identity()?, request),
            Values::Array(..) | Values::Deferred(..) => return None,
        };
        Some(format!("{values}, {}", request.identity()))
    }

    /// Opens their source.
    pub(crate) fn describe(self) -> Result<ResultData> {
        match self {
            Values::Tensor(tensor, request) => {
                tensor.clone().result_data(request).map_err(|error| tensor.add_context(error))
            }
            Values::Joined(joined, request) => joined.result_data(&request),
            Values::Array(array, request) => Ok(ResultData::Elements(Box::new(array.elements(&request)?))),
            Values::Deferred(array, request) => {
                let array = HostArray::new((array.make)()?, array.dtype, array.layout()?)?;
                Ok(ResultData::Elements(Box::new(array.elements(&request)?)))
            }
        }
    }

    /// The error with the place in the source that it is about.
    pub(crate) fn add_context(&self, error: Error) -> Error {
        match self {
            Values::Tensor(tensor, _) => tensor.add_context(error),
            Values::Joined(..) | Values::Array(..) | Values::Deferred(..) => error,
        }
    }

    /// The values, converted to this dtype.
    pub(super) fn cast_to(mut self, dtype: DType) -> Values {
        match &mut self {
            Values::Tensor(_, request)
            | Values::Joined(_, request)
            | Values::Array(_, request)
            | Values::Deferred(_, request) => request.dtype = Some(dtype),
        }
        self
    }
}
