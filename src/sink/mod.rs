//! The memory that arrays are in, and its owners: host memory allocated for a result, GPU memory, or the file mapping that a view
//! points into. Also DLPack export and import of arrays, and CUDA: the driver and the pinned ring that uploads go through.

mod budgets;
mod claims;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dlpack;
mod elements;
mod gpu;
mod host;
mod huge_page_probe;
mod os;
mod pages;
mod pool;
mod slab;

use std::ptr::NonNull;
use std::sync::Arc;

pub use elements::Element;
pub use gpu::GpuMemory;
pub use host::{HostBuffer, Unfilled, check_memory, trim};
pub use pages::populate;
pub use pool::{CarriedOver, enforce_limits, footprint, limit_while_alive, usage as pool_usage};

use crate::bytes::{Mapping, Region};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail, error};
use crate::layout::{Dims, Layout, contiguous_strides, numel};

/// What keeps an array's bytes alive.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// Host memory allocated for it.
    Memory(Arc<HostBuffer>),
    /// A private mapping of the file.
    Mapping(Arc<Mapping>),
    /// GPU memory.
    Gpu(Arc<dyn GpuMemory>),
}

/// A tensor in memory: owner, offset, dtype, shape and strides. Cloning shares the memory.
#[derive(Clone, Debug)]
pub struct Array {
    owner: Owner,
    /// The byte offset of the first element in the owner's memory.
    start: u64,
    dtype: DType,
    shape: Dims,
    strides: Dims,
}

impl Array {
    /// An owned, C-contiguous array over all of `memory`. Fails unless that has exactly the bytes that the elements take.
    pub(crate) fn owned(memory: HostBuffer, dtype: DType, shape: Dims) -> Result<Array> {
        let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
        let strides = contiguous_strides(&shape).filter(|_| nbytes == Some(memory.len() as u64));
        let strides = strides.ok_or_else(|| {
            error!(Code::InternalError, "{dtype} of shape {shape:?} is not what {} bytes hold", memory.len())
        })?;
        Ok(Array { owner: Owner::Memory(Arc::new(memory)), start: 0, dtype, shape, strides })
    }

    /// A view of mapped bytes, whose first element is at byte `start` of the mapping; the layout's own offset is ignored. Fails if
    /// an element lies outside the mapping.
    pub(crate) fn view(mapping: Arc<Mapping>, start: u64, dtype: DType, layout: Layout) -> Result<Array> {
        let outside = || Error::new(Code::InternalError, "a view lies outside its file");
        let layout = Layout { offset: 0, ..layout };
        if layout.shape.len() != layout.strides.len() {
            return Err(outside());
        }
        let nbytes = layout.end().and_then(|end| end.checked_mul(dtype.itemsize()));
        let range = nbytes.and_then(|nbytes| Region::new(start, nbytes));
        range.and_then(|range| mapping.address(range)).ok_or_else(outside)?;
        let Layout { shape, strides, .. } = layout;
        Ok(Array { owner: Owner::Mapping(mapping), start, dtype, shape, strides })
    }

    /// All of `memory` as a one-dimensional array of `uint8`.
    pub fn on_gpu(memory: Arc<dyn GpuMemory>) -> Array {
        let shape = [memory.nbytes()][..].into();
        Array { owner: Owner::Gpu(memory), start: 0, dtype: DType::U8, shape, strides: [1][..].into() }
    }

    /// A C-contiguous part of a contiguous array, from its byte `start`. It shares the owner. Fails if this array is strided, or
    /// the part would lie outside it or be misaligned for `dtype`.
    pub fn part(&self, start: u64, dtype: DType, shape: Dims) -> Result<Array> {
        let wrong = |text: String| Error::new(Code::Value, text);
        if !self.is_contiguous() {
            bail!(Code::Buffer, "the buffer is strided: its bytes are not contiguous");
        }
        let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
        let end = nbytes.and_then(|nbytes| nbytes.checked_add(start));
        if end.is_none_or(|end| end > self.nbytes()) {
            let have = self.nbytes();
            return Err(wrong(format!(
                "{dtype} of shape {shape:?} from byte {start} does not fit {have} bytes"
            )));
        }
        let strides = contiguous_strides(&shape).unwrap_or_default();
        let part = Array { owner: self.owner.clone(), start: self.start + start, dtype, shape, strides };
        if !(part.address().addr().get() as u64).is_multiple_of(dtype.itemsize()) {
            return Err(wrong(format!("byte {start} is not aligned for {dtype}")));
        }
        Ok(part)
    }

    /// As many C-contiguous parts as fit, of these dtypes and shapes, one behind another from the byte `start`, each at a multiple of
    /// `alignment`; and the byte after the last one. Errors are those of [`Array::part`].
    #[cfg(feature = "cuda")]
    pub(crate) fn parts_that_fit(
        &self,
        start: u64,
        alignment: u64,
        wanted: impl IntoIterator<Item = (DType, Dims)>,
    ) -> Result<(Vec<Array>, u64)> {
        let (available, mut end) = (self.nbytes(), start);
        let mut parts = Vec::new();
        for (dtype, shape) in wanted {
            let start = end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
            let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
            let Some(part_end) = nbytes.and_then(|nbytes| nbytes.checked_add(start)) else { break };
            if part_end > available {
                break;
            }
            parts.push(self.part(start, dtype, shape)?);
            end = part_end;
        }
        Ok((parts, end))
    }

    /// The same bytes as a one-dimensional array of `uint8`; `None` if this array is not contiguous.
    pub fn byte_array(&self) -> Option<Array> {
        let nbytes = self.nbytes();
        let (shape, strides) = ([nbytes][..].into(), [1][..].into());
        let bytes = Array { owner: self.owner.clone(), start: self.start, dtype: DType::U8, shape, strides };
        self.is_contiguous().then_some(bytes)
    }

    /// The address of the first element: in GPU memory for an array on a GPU. It stays valid as long as the array or a clone lives.
    ///
    /// Code that writes through it makes sure that no slice of the same memory is alive ([`Array::as_bytes`] of this array, of a
    /// clone or of a part), and that no other thread copies it meanwhile.
    pub fn address(&self) -> NonNull<u8> {
        let address = match &self.owner {
            Owner::Memory(memory) => usize::try_from(self.start)
                .ok()
                .and_then(|start| NonNull::new(memory.address().as_ptr().wrapping_add(start))),
            Owner::Mapping(mapping) => Region::new(self.start, 0).and_then(|at| mapping.address(at)),
            // Only a number: the host never accesses it.
            Owner::Gpu(memory) => usize::try_from(memory.address().wrapping_add(self.start))
                .ok()
                .and_then(|at| NonNull::new(std::ptr::without_provenance_mut(at))),
        };
        // Never dangling: views are made of proved layouts, so `start` lies inside the mapping.
        address.unwrap_or(NonNull::dangling())
    }

    /// The device that it is on, as DLPack describes it.
    pub(crate) fn device(&self) -> dlpack::Device {
        match &self.owner {
            Owner::Gpu(memory) => dlpack::Device {
                #[cfg(feature = "cuda")]
                kind: cuda::device_type(),
                #[cfg(not(feature = "cuda"))]
                kind: dlpack::CUDA,
                id: i32::try_from(memory.device()).unwrap_or(i32::MAX),
            },
            Owner::Memory(_) | Owner::Mapping(_) => dlpack::Device { kind: dlpack::CPU, id: 0 },
        }
    }

    /// Whether it is in GPU memory, which the host cannot read.
    pub fn is_on_gpu(&self) -> bool {
        matches!(self.owner, Owner::Gpu(_))
    }

    /// Whether `len` bytes at `address` of GPU `device` lie inside this array's owner, inside the array or beside it.
    pub(crate) fn gpu_memory_contains(&self, device: u32, address: u64, len: u64) -> bool {
        let Owner::Gpu(memory) = &self.owner else { return false };
        let available =
            address.checked_sub(memory.address()).and_then(|start| memory.nbytes().checked_sub(start));
        memory.device() == device && available.is_some_and(|available| len <= available)
    }

    /// Whether both have the same owner, so that the bytes between them belong to the same allocation.
    pub fn shares_owner_with(&self, other: &Array) -> bool {
        match (&self.owner, &other.owner) {
            (Owner::Memory(one), Owner::Memory(two)) => Arc::ptr_eq(one, two),
            (Owner::Mapping(one), Owner::Mapping(two)) => Arc::ptr_eq(one, two),
            (Owner::Gpu(one), Owner::Gpu(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The stride of each dimension, in elements.
    pub fn strides(&self) -> &[u64] {
        &self.strides
    }

    /// The bytes of all elements together, without gaps between them.
    pub fn nbytes(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX).saturating_mul(self.dtype.itemsize())
    }

    /// Whether the elements are C-contiguous.
    pub fn is_contiguous(&self) -> bool {
        Layout { shape: self.shape.clone(), strides: self.strides.clone(), offset: 0 }.is_contiguous()
    }

    /// Marks the memory as exported: code that knows its address may write to it at any time. No slice of it is made afterwards.
    pub(crate) fn mark_exported(&self) {
        if let Owner::Memory(memory) = &self.owner {
            memory.mark_exported();
        }
    }

    /// Whether this is host memory that no other array shares.
    pub fn is_sole_owner(&self) -> bool {
        matches!(&self.owner, Owner::Memory(memory) if Arc::strong_count(memory) == 1)
    }

    /// Whether code may write to the elements: not to a view of a read-only mapping.
    pub fn is_writable(&self) -> bool {
        !matches!(&self.owner, Owner::Mapping(mapping) if !mapping.is_writable())
    }

    /// Whether the bytes are a view of the file's private mapping.
    pub fn is_view(&self) -> bool {
        matches!(self.owner, Owner::Mapping(_))
    }
}
