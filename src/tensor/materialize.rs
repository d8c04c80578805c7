//! Plans the result of a request, a view or owned memory, and fills owned memory.

use super::quantized::Dequantization;
use super::{Order, Request, Tensor, is_view_unavailable};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail};
use crate::index::ChunkBytes;
use crate::kernel::{self, Cast};
use crate::layout::{Dims, Layout};
use crate::limits::Limits;
use crate::sink::{self, Array, HostBuffer, Unfilled};
use crate::stream::{self, Elements, Fill, JoinPart, Payload, Signs, Task};

/// How a tensor is materialized for one request.
#[derive(Debug)]
pub(crate) enum MaterializePlan {
    /// A view, which needs no more work.
    View(Array),
    /// Memory to allocate and fill.
    Owned(OwnedPlan),
}

/// The size, layout and dtype of a result in memory of its own.
#[derive(Debug)]
pub(crate) struct OwnedPlan {
    /// The source layout in the order of the result.
    layout: Layout,
    dtype: DType,
    /// Bytes of the result.
    nbytes: u64,
    /// Offset of the first byte within a block of the disk, so that direct reads need no bounce buffer.
    block_offset: u64,
}

impl OwnedPlan {
    /// Allocates memory for the result.
    pub(crate) fn memory(&self) -> Result<Unfilled> {
        HostBuffer::unfilled_at(self.nbytes, self.block_offset)
    }

    /// The array on the filled memory.
    pub(crate) fn finish(self, memory: HostBuffer) -> Result<Array> {
        Array::owned(memory, self.dtype, self.layout.shape)
    }
}

impl Tensor {
    /// Returns the elements as an array: a view of the file's mapping, or owned memory.
    ///
    /// Fails where `copy=Some(false)` and no view is possible, for a lossy cast that is not allowed, for a tensor on the meta
    /// device, and where the file cannot be read or has changed.
    pub fn materialize(&self, request: &Request) -> Result<Array> {
        self.with_context(self.try_materialize(request))
    }

    fn try_materialize(&self, request: &Request) -> Result<Array> {
        match self.materialize_plan(request)? {
            MaterializePlan::View(view) => Ok(view),
            MaterializePlan::Owned(owned) => {
                self.check_memory(self.peak_bytes(&owned))?;
                let mut memory = owned.memory()?;
                let recycled = memory.is_recycled();
                self.fill(&owned.layout, owned.dtype, request, recycled, memory.bytes_mut())?;
                owned.finish(memory.filled())
            }
        }
    }

    /// Bytes to process: the largest of its own bytes, of the storage's where that is compressed, and of the range from the first
    /// to the last bool, which is validated.
    pub fn work(&self) -> u64 {
        let bools = match self.dtype {
            DType::Bool => self.layout.end().unwrap_or(0).saturating_sub(self.layout.offset),
            _ => 0,
        };
        self.nbytes().max(self.inflated_bytes()).max(bools)
    }

    /// Bytes to process for a request: the larger of source and result, and 0 for a view.
    pub fn work_for(&self, request: &Request) -> u64 {
        if self.is_view(request) { 0 } else { self.work_unless_view(request) }
    }

    /// As [`work_for`](Tensor::work_for), of a result that is no view.
    pub fn work_unless_view(&self, request: &Request) -> u64 {
        let result = stream::result_bytes(&self.layout, self.result_dtype(request));
        self.work().max(result.unwrap_or(u64::MAX))
    }

    /// The most memory that the result of a request occupies, in bytes; 0 for a view.
    pub(crate) fn footprint(&self, request: &Request) -> u64 {
        let result = stream::result_bytes(&self.layout, self.result_dtype(request));
        if self.is_view(request) { 0 } else { sink::footprint(result.unwrap_or(u64::MAX)) }
    }

    /// Whether the result of a request is a view that needs no reads. False for bools, which have to be validated.
    pub fn is_view(&self, request: &Request) -> bool {
        let may_be = request.copy != Some(true) && self.dtype != DType::Bool && !self.is_converted(request);
        may_be && self.view(request).is_ok()
    }

    /// Whether a request casts, permutes or dequantizes.
    pub(crate) fn is_converted(&self, request: &Request) -> bool {
        self.result_dtype(request) != self.dtype
            || request.order != Order::Same
            || self.dequantization(request).is_some()
    }

    /// Plans a view where the request allows one and the file has one, else an owned result. Reads nothing but bools, which it
    /// validates before it gives a view of them.
    pub(crate) fn materialize_plan(&self, request: &Request) -> Result<MaterializePlan> {
        self.check_not_meta()?;
        self.check_scheme(request)?;
        let converted = self.is_converted(request);
        if request.copy == Some(false) && converted {
            bail!(Code::Buffer, "a cast or transpose needs a copy");
        }
        if request.copy != Some(true) && !converted {
            match self.view(request) {
                Ok(view) => return Ok(MaterializePlan::View(view)),
                Err(error) if request.copy == Some(false) || !is_view_unavailable(&error) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        let dtype = self.result_dtype(request);
        let layout = self.result_layout(&request.order)?;
        let nbytes = self.result_bytes(&layout, dtype)?;
        let block_offset = self.block_offset(&layout, dtype, nbytes, request);
        Ok(MaterializePlan::Owned(OwnedPlan { layout, dtype, nbytes, block_offset }))
    }

    /// Memory in use while an owned result is made, in bytes: the result's, and the inflated storage's.
    pub(crate) fn peak_bytes(&self, owned: &OwnedPlan) -> u64 {
        sink::footprint(owned.nbytes.saturating_add(owned.block_offset)).saturating_add(self.inflated_bytes())
    }

    /// Fails where `needed` bytes do not fit the memory that the process may take.
    pub(crate) fn check_memory(&self, needed: u64) -> Result<()> {
        sink::check_memory(needed, self.opened.options.limits.available_memory)
    }

    /// Bytes of the storage once it is inflated; 0 where it is not compressed.
    pub(crate) fn inflated_bytes(&self) -> u64 {
        let storage = self.opened.storage(self.storage());
        if storage.is_compressed() { storage.nbytes } else { 0 }
    }

    /// The offset within a block of the disk at which a result's first byte is to be, so that direct reads need no bounce
    /// buffer; 0 where it does not matter. An invalid request gives 0 too: filling the result reports its error.
    fn block_offset(&self, layout: &Layout, dtype: DType, nbytes: u64, request: &Request) -> u64 {
        if !stream::is_worth_aligning(nbytes) || self.is_converted(request) {
            return 0;
        }
        match (self.opened.stored_payload(self.storage()), self.fill_options(dtype, request, false)) {
            (Ok(Some(payload)), Ok(how)) => stream::destination_offset(&payload, layout, &how),
            _ => 0,
        }
    }

    /// The task that fills memory with an owned result. A dequantized result, and one in chunks, is
    /// filled at once, and gives `None`.
    pub(crate) fn fill_task<'a>(
        &self,
        owned: &OwnedPlan,
        request: &Request,
        memory: &'a mut Unfilled,
    ) -> Result<Option<Task<'a>>> {
        if self.dequantization(request).is_some() || self.is_in_chunks()? {
            self.fill(&owned.layout, owned.dtype, request, false, memory.bytes_mut())?;
            return Ok(None);
        }
        let how = self.fill_options(owned.dtype, request, memory.is_recycled())?;
        let out = memory.bytes_mut();
        let payload = self.opened.payload(self.storage(), &request.cancel)?;
        Ok(Some(Task { elements: Elements { payload, layout: owned.layout.clone(), how }, out }))
    }

    /// Writes the result of a request into `out`, C-contiguous. Fails where `out` does not have exactly the result's size.
    pub fn materialize_into(&self, request: &Request, out: &mut [u8]) -> Result<()> {
        self.with_context(self.check_not_meta().and_then(|()| self.check_scheme(request)))?;
        let layout = self.result_layout(&request.order)?;
        let dtype = self.result_dtype(request);
        let nbytes = stream::result_bytes(&layout, dtype).unwrap_or(u64::MAX);
        if nbytes != out.len() as u64 {
            let text = format!("the result takes {nbytes} byte(s), the destination has {}", out.len());
            return self.with_context(Err(Error::new(Code::Value, text)));
        }
        // The caller's memory may not be faulted in yet, so it does not count as recycled.
        self.with_context(self.fill(&layout, dtype, request, false, out))
    }

    /// The layout of the elements in the order of the result.
    pub fn result_layout(&self, order: &Order) -> Result<Layout> {
        order.apply(&self.layout)
    }

    /// Bytes of all elements as `dtype` where elements repeat, which a file can claim without having them; 0 otherwise. Fails over
    /// the limit `materialize_bytes`.
    pub(crate) fn repeated_bytes(&self, dtype: DType) -> Result<u64> {
        if self.layout.repeats_elements() { self.result_bytes(&self.layout, dtype) } else { Ok(0) }
    }

    /// Bytes of the result; fails over the limit `materialize_bytes` where elements repeat (expanded tensors).
    pub(crate) fn result_bytes(&self, layout: &Layout, dtype: DType) -> Result<u64> {
        let nbytes = stream::result_bytes(layout, dtype);
        if layout.repeats_elements() {
            let limits = &self.opened.options.limits;
            let storage = self.opened.storage(self.storage()).nbytes;
            let max = storage.saturating_mul(limits.materialize_ratio).max(limits.materialize_bytes);
            Limits::check("materialize_bytes", max, nbytes.unwrap_or(u64::MAX))?;
        }
        nbytes.ok_or_else(|| Error::new(Code::Memory, "the result does not fit 64 bits"))
    }

    pub(super) fn fill(
        &self,
        layout: &Layout,
        dtype: DType,
        request: &Request,
        recycled: bool,
        out: &mut [u8],
    ) -> Result<()> {
        match self.dequantization(request) {
            Some(Dequantization::Integers(quantization)) => {
                return self.dequantize(quantization, layout, dtype, request, out);
            }
            Some(Dequantization::Refused) => return Err(self.refused_codes()),
            None => {}
        }
        let how = self.fill_options(dtype, request, recycled)?;
        if self.is_in_chunks()? {
            let parts = self.join_parts(layout, &how)?;
            return stream::fill_joined(parts, &layout.shape, request.threads, out)
                .map_err(|(_, error)| error);
        }
        stream::fill(&self.opened.payload(self.storage(), &request.cancel)?, layout, &how, out)
    }

    /// Whether the elements are in several chunks, or in one that is not in C order.
    pub(super) fn is_in_chunks(&self) -> Result<bool> {
        Ok(self.opened.chunks(self.storage())?.is_some())
    }

    /// The parts that a selection of the storage's elements is joined from: one, or those of the chunks that it meets.
    pub(super) fn join_parts(&self, layout: &Layout, how: &Fill) -> Result<Vec<JoinPart>> {
        let Some(chunks) = self.opened.chunks(self.storage())? else {
            let payload = self.opened.payload(self.storage(), &how.cancel)?;
            let offsets = Dims::from_elem(0, layout.ndim());
            let elements = Elements { payload, layout: layout.clone(), how: how.clone() };
            return Ok(vec![JoinPart { elements, offsets }]);
        };
        let parts = chunks.parts(layout, &how.cancel)?.into_iter().map(|part| {
            let ChunkBytes { source, big_endian, flags, .. } = part.bytes;
            let payload = Payload { source: source.clone(), big_endian: *big_endian };
            let signs = Signs { conjugate: flags.conjugate, negative: flags.negative };
            let elements = Elements { payload, layout: part.layout, how: Fill { signs, ..how.clone() } };
            JoinPart { elements, offsets: part.offsets }
        });
        Ok(parts.collect())
    }

    pub(super) fn fill_options(&self, dtype: DType, request: &Request, recycled: bool) -> Result<Fill> {
        if !request.allow_lossy && kernel::is_lossy(self.dtype, dtype) {
            bail!(Code::LossyCast, "a cast from {} to {dtype} is lossy", self.dtype);
        }
        let cast = Cast::new(self.dtype, dtype, request.overflow)?;
        let cast = if recycled { cast.with_non_temporal_stores() } else { cast };
        let flags = self.opened.tensor(self.id).flags;
        Ok(Fill {
            // As in torch: negate(x).to(dtype).
            signs: Signs { conjugate: flags.conjugate, negative: flags.negative },
            cast,
            threads: request.threads,
            cancel: request.cancel.clone(),
        })
    }

    /// Fails for a tensor on the meta device.
    pub(super) fn check_not_meta(&self) -> Result<()> {
        if self.is_meta() {
            self.opened.stored_payload(self.storage())?;
        }
        Ok(())
    }
}
