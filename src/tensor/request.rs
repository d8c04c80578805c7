//! What a caller wants of a tensor: dtype, order of the dimensions, a view or a copy.

use std::sync::Arc;

use crate::builder::setters;
use crate::bytes::Mappings;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Overflow;
use crate::layout::Layout;
use crate::parallel::Cancel;

/// The order of a result's dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// As in the file.
    #[default]
    Same,
    /// The last two dimensions swapped.
    Transpose,
    /// A full permutation; negative numbers count from the end.
    Permute(Vec<i64>),
}

/// How to materialize a tensor.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Request {
    /// The result's dtype; `None` for the file's.
    pub dtype: Option<DType>,
    /// The order of the result's dimensions.
    pub order: Order,
    /// `Some(true)`: owned memory; `Some(false)`: a view, or an error; `None`: a view where one is possible, else owned memory.
    pub copy: Option<bool>,
    /// Whether a cast may be to a narrower kind of number (complex to float, float to integer).
    pub allow_lossy: bool,
    /// What a cast to fp8 makes of values that are out of range.
    pub overflow: Overflow,
    /// Whether to dequantize a quantized tensor.
    pub dequantize: bool,
    /// Threads to use; `None` for one per core, or one alone where the work is too small for more.
    pub threads: Option<usize>,
    /// Whether a view may be written to: it is of a copy-on-write mapping then. A write to a read-only one ends the process.
    pub writable: bool,
    /// The copy-on-write mappings that a writable view is of; `None` for the mapping that all views of the checkpoint share.
    pub(crate) mappings: Option<Arc<Mappings>>,
    /// The token that cancels the work.
    pub cancel: Cancel,
}

impl Order {
    /// The layout with its dimensions in this order.
    pub(crate) fn apply(&self, layout: &Layout) -> Result<Layout> {
        match self {
            Order::Same => Ok(layout.clone()),
            Order::Transpose => layout.transpose(),
            Order::Permute(dims) => layout.permute(dims),
        }
    }
}

impl Request {
    /// A request for the elements as the file has them: a view where one is possible, else owned memory.
    pub fn new() -> Request {
        Request::default()
    }

    setters! {
        dtype: impl Into<Option<DType>>,
        order: Order,
        copy: impl Into<Option<bool>>,
        writable: bool,
        allow_lossy: bool,
        overflow: Overflow,
        dequantize: bool,
        threads: impl Into<Option<usize>>,
        cancel: Cancel,
    }

    /// Swaps the last two dimensions: `order(Order::Transpose)`.
    #[must_use]
    pub fn transpose(self) -> Request {
        self.order(Order::Transpose)
    }

    /// A text that is equal for requests with the same result for the same elements, also in another process.
    pub(crate) fn identity(&self) -> String {
        let Request { dtype, order, allow_lossy, overflow, dequantize, .. } = self;
        format!("to {dtype:?}, {order:?}, lossy {allow_lossy}, {overflow:?}, dequantized {dequantize}")
    }

    /// Whether both requests have the same result for the same elements. Threads and cancellation do not count.
    pub(crate) fn is_equivalent_to(&self, other: &Request) -> bool {
        let fields = |request: &Request| (request.dtype, request.copy, request.allow_lossy, request.overflow);
        fields(self) == fields(other) && self.order == other.order && self.dequantize == other.dequantize
    }
}
