//! Who owns the destination: memory made for a result, or a mapping that a view points into, and their export by DLPack.

pub mod dlpack;
mod host;
mod pages;
mod pool;
mod slab;
mod trial;

use std::ptr::NonNull;
use std::sync::Arc;

pub use host::{HostBuffer, Unfilled, kept, trim};
pub use pool::{bound_by, footprint, keep_bounds};

use crate::bytes::{Mapping, Region};
use crate::dtype::DType;
use crate::layout::{Dims, Layout, contiguous_strides, numel};

/// What keeps an array's bytes alive.
#[derive(Clone, Debug)]
pub enum Owner {
    /// Memory of its own.
    Memory(Arc<HostBuffer>),
    /// A private mapping of the file.
    Mapping(Arc<Mapping>),
}

/// A tensor in host memory: an address, its meaning, and its owner. Cloning shares the memory.
#[derive(Clone, Debug)]
pub struct Array {
    owner: Owner,
    /// The first element, in bytes from the owner's start.
    start: u64,
    dtype: DType,
    shape: Dims,
    strides: Dims,
}

impl Array {
    /// An owned, C-contiguous array over all of `memory`.
    pub fn owned(memory: HostBuffer, dtype: DType, shape: Dims) -> Array {
        let strides = contiguous_strides(&shape).unwrap_or_default();
        Array { owner: Owner::Memory(Arc::new(memory)), start: 0, dtype, shape, strides }
    }

    /// A view of mapped bytes, its first element at byte `start` of the mapping; the layout's own offset does not count.
    pub fn view(mapping: Arc<Mapping>, start: u64, dtype: DType, layout: Layout) -> Array {
        Array { owner: Owner::Mapping(mapping), start, dtype, shape: layout.shape, strides: layout.strides }
    }

    /// The same bytes as a row of `uint8`; `None` where the elements do not lie one after the other.
    pub fn as_bytes(&self) -> Option<Array> {
        let nbytes = self.nbytes();
        let (shape, strides) = ([nbytes][..].into(), [1][..].into());
        let bytes = Array { owner: self.owner.clone(), start: self.start, dtype: DType::U8, shape, strides };
        self.is_contiguous().then_some(bytes)
    }

    /// The address of the first element.
    pub fn address(&self) -> NonNull<u8> {
        let found = match &self.owner {
            Owner::Memory(memory) => Some(memory.address()),
            Owner::Mapping(mapping) => Region::new(self.start, 0).and_then(|at| mapping.address(at)),
        };
        // A start outside the mapping cannot be: views are made of proved layouts. Dangling is never read through.
        found.unwrap_or(NonNull::dangling())
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements between neighbours along each dimension.
    pub fn strides(&self) -> &[u64] {
        &self.strides
    }

    /// Bytes of all elements together (not of the gaps between them).
    pub fn nbytes(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX).saturating_mul(self.dtype.itemsize())
    }

    /// Whether the elements lie one after the other.
    pub fn is_contiguous(&self) -> bool {
        Layout { shape: self.shape.clone(), strides: self.strides.clone(), offset: 0 }.is_contiguous()
    }

    /// Whether the bytes are a view of the file's private mapping.
    pub fn is_view(&self) -> bool {
        matches!(self.owner, Owner::Mapping(_))
    }
}
