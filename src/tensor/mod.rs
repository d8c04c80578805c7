//! A lazy tensor: dtype, shape, strides and offset within a storage. Elements are read when it is materialized.

mod joined;
mod quantized;
mod sparse;
#[cfg(feature = "cuda")]
mod upload;
mod view;

use std::sync::Arc;

use crate::bytes::Mappings;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::Path;
use crate::kernel::{self, Cast, Overflow};
use crate::layout::{Layout, TensorIndex};
use crate::limits::Limits;
use crate::opened::Opened;
use crate::parallel::Cancel;
use crate::pickle::Handle;
use crate::sink::{self, Array, HostBuffer, Unfilled};
use crate::stream::{self, Fill, Signs, Task};

pub use joined::Joined;
pub use view::SharedStorage;
pub(crate) use view::{check_bools, is_view_unavailable, no_mapping};

/// A lazy handle on a tensor of a checkpoint, or on a slice of one. Cloning is cheap; nothing is read until it is materialized.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) opened: Arc<Opened>,
    /// The shard, and the tensor's number within it.
    pub(crate) id: (u32, u32),
    /// The entry of the name that it was looked up by; `None` for a tensor that has no name, such as a non-persistent buffer.
    pub(crate) entry: Option<u32>,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    /// Of a tensor quantized per channel: the layout that maps each element to the index of its scale.
    pub(crate) channel_layout: Option<Box<Layout>>,
}

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
    /// The mappings that a view is of; `None` for the one that all views of the checkpoint share.
    pub(crate) mappings: Option<Arc<Mappings>>,
    /// The token that cancels the work.
    pub cancel: Cancel,
}

impl Order {
    /// The layout with its dimensions in this order.
    fn apply(&self, layout: &Layout) -> Result<Layout> {
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

    /// Sets `dtype`.
    #[must_use]
    pub fn dtype(self, dtype: impl Into<Option<DType>>) -> Request {
        Request { dtype: dtype.into(), ..self }
    }

    /// Sets `order`.
    #[must_use]
    pub fn order(self, order: Order) -> Request {
        Request { order, ..self }
    }

    /// Swaps the last two dimensions: `order(Order::Transpose)`.
    #[must_use]
    pub fn transpose(self) -> Request {
        self.order(Order::Transpose)
    }

    /// Sets `copy`.
    #[must_use]
    pub fn copy(self, copy: impl Into<Option<bool>>) -> Request {
        Request { copy: copy.into(), ..self }
    }

    /// Sets `allow_lossy`.
    #[must_use]
    pub fn allow_lossy(self, allow_lossy: bool) -> Request {
        Request { allow_lossy, ..self }
    }

    /// Sets `overflow`.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Request {
        Request { overflow, ..self }
    }

    /// Sets `dequantize`.
    #[must_use]
    pub fn dequantize(self, dequantize: bool) -> Request {
        Request { dequantize, ..self }
    }

    /// Sets `threads`.
    #[must_use]
    pub fn threads(self, threads: impl Into<Option<usize>>) -> Request {
        Request { threads: threads.into(), ..self }
    }

    /// Sets `cancel`.
    #[must_use]
    pub fn cancel(self, cancel: Cancel) -> Request {
        Request { cancel, ..self }
    }

    /// Whether both requests have the same result for the same elements. Threads and cancellation do not count.
    pub(crate) fn is_equivalent_to(&self, other: &Request) -> bool {
        let fields = |request: &Request| (request.dtype, request.copy, request.allow_lossy, request.overflow);
        fields(self) == fields(other) && self.order == other.order && self.dequantize == other.dequantize
    }
}

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
    /// The tensor with this id; `entry` is the name that it was looked up by.
    pub(crate) fn new(opened: &Arc<Opened>, id: (u32, u32), entry: Option<u32>) -> Tensor {
        let indexed = opened.tensor(id);
        let (dtype, layout) = (indexed.dtype(), indexed.layout().clone());
        let channel_layout = quantized::channel_layout(opened, id, &layout);
        Tensor { opened: opened.clone(), id, entry, dtype, layout, channel_layout }
    }

    /// Tensor number `tensor` of file `shard`, without a name; `None` where there is no such tensor.
    pub(crate) fn unnamed(opened: &Arc<Opened>, shard: usize, tensor: u32) -> Option<Tensor> {
        let id = (u32::try_from(shard).ok()?, tensor);
        opened.shards.get(shard)?.index.tensors.get(tensor as usize)?;
        Some(Tensor::new(opened, id, None))
    }

    /// The name in the checkpoint; empty for a tensor that is reachable through the object tree alone.
    pub fn name(&self) -> &str {
        self.entry.map_or("", |entry| &self.opened.entry(entry).name)
    }

    /// The path from the root of the object tree; `None` for a tensor without a name.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.entry.map(|entry| &self.opened.entry(entry).path)
    }

    /// The number of the file that holds it.
    pub fn shard(&self) -> u32 {
        self.id.0
    }

    /// The element type in the file.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.layout.shape
    }

    /// Shape, strides and offset, in elements.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of all elements.
    pub fn nbytes(&self) -> u64 {
        self.layout.numel().saturating_mul(self.dtype.itemsize())
    }

    /// Whether it was saved as a `torch.nn.Parameter`.
    pub fn is_parameter(&self) -> bool {
        self.opened.tensor(self.id).flags.parameter
    }

    /// Whether it was saved on the meta device, so that the file has no elements.
    pub fn is_meta(&self) -> bool {
        self.opened.tensor(self.id).flags.meta
    }

    /// The subclass of `torch.Tensor` that it was saved as, as `module.name`; `None` for a plain tensor.
    pub fn class_name(&self) -> Option<String> {
        let class = self.opened.extra(self.id)?.class?;
        Some(self.opened.tree(self.shard())?.name_of(class))
    }

    /// The attributes that the file sets on it: each a dict of attributes, or a pair of such a dict and a dict of slots.
    pub(crate) fn states(&self) -> &[Handle] {
        self.opened.extra(self.id).map_or(&[], |extra| &extra.states)
    }

    /// Whether it was saved with `requires_grad=True`.
    pub fn requires_grad(&self) -> bool {
        self.opened.tensor(self.id).flags.requires_grad
    }

    /// Whether it was saved with torch's lazy conjugate bit: readers negate the imaginary parts.
    pub fn is_conjugate(&self) -> bool {
        self.opened.tensor(self.id).flags.conjugate
    }

    /// Whether it was saved with torch's lazy negative bit: readers negate the values.
    pub fn is_negative(&self) -> bool {
        self.opened.tensor(self.id).flags.negative
    }

    /// The id of its storage (shard and number), the same for all tensors that share the storage.
    pub fn storage(&self) -> (u32, u32) {
        (self.shard(), self.opened.tensor(self.id).storage())
    }

    /// The shard, and the number within it of the tensor that this is or is a slice of.
    pub fn id(&self) -> (u32, u32) {
        self.id
    }

    /// An id of its file, the same for all tensors in it. The ids of one checkpoint's files sort in shard order.
    pub(crate) fn file(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.opened).addr(), self.shard())
    }

    /// The byte offset of the first element in the file. Within an archive it is approximate: good for sorting only.
    pub(crate) fn position(&self) -> u64 {
        let offset = self.layout.offset.saturating_mul(self.dtype.itemsize());
        self.opened.storage(self.storage()).position().saturating_add(offset)
    }

    /// Whether it covers a whole storage that no other name uses.
    pub(crate) fn has_own_storage(&self) -> bool {
        let storage = self.storage();
        self.layout.offset == 0
            && self.nbytes() == self.opened.storage(storage).nbytes
            && self.layout.is_contiguous()
            && !self.opened.is_shared(storage)
    }

    /// Whether both have the same elements: equal storage, dtype, layout and lazy signs.
    pub(crate) fn is_alias_of(&self, other: &Tensor) -> bool {
        let signs = |tensor: &Tensor| {
            let flags = tensor.opened.tensor(tensor.id).flags;
            (flags.conjugate, flags.negative)
        };
        self.file() == other.file()
            && self.storage() == other.storage()
            && (self.dtype, &self.layout) == (other.dtype, &other.layout)
            && signs(self) == signs(other)
    }

    /// A slice of the tensor, by basic indexing. Fails for an index that is out of bounds.
    pub fn index(&self, items: &[TensorIndex]) -> Result<Tensor> {
        self.map_layouts(|layout| layout.index(items))
    }

    /// The tensor with its dimensions in the order `dims`. Fails where `dims` is no permutation.
    pub fn permute(&self, dims: &[i64]) -> Result<Tensor> {
        self.map_layouts(|layout| layout.permute(dims))
    }

    /// The tensor with its dimensions in reverse order.
    pub fn reversed(&self) -> Tensor {
        let channel_layout =
            self.channel_layout.as_deref().map(|channel_layout| Box::new(channel_layout.reversed()));
        Tensor { layout: self.layout.reversed(), channel_layout, ..self.clone() }
    }

    /// Applies `map` to the layout of the elements and to that of the scales.
    fn map_layouts(&self, map: impl Fn(&Layout) -> Result<Layout>) -> Result<Tensor> {
        let channel_layout =
            self.channel_layout.as_deref().map(|layout| map(layout).map(Box::new)).transpose()?;
        Ok(Tensor { layout: map(&self.layout)?, channel_layout, ..self.clone() })
    }

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
        let result = stream::result_bytes(&self.layout, self.result_dtype(request)).unwrap_or(u64::MAX);
        if self.is_view(request) { 0 } else { self.work().max(result) }
    }

    /// The most memory that the result of a request occupies, in bytes; 0 for a view.
    pub(crate) fn footprint(&self, request: &Request) -> u64 {
        let result = stream::result_bytes(&self.layout, self.result_dtype(request));
        if self.is_view(request) { 0 } else { sink::footprint(result.unwrap_or(u64::MAX)) }
    }

    /// Whether the result of a request is a view that needs no reads. False for bools, which have to be validated.
    pub fn is_view(&self, request: &Request) -> bool {
        let may_be = request.copy != Some(true) && self.dtype != DType::Bool && !self.is_converted(request);
        may_be && self.view(request.copy, &request.cancel, request.mappings.as_deref()).is_ok()
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
        let converted = self.is_converted(request);
        if request.copy == Some(false) && converted {
            return Err(Error::new(Code::Buffer, "a cast or transpose needs a copy"));
        }
        if request.copy != Some(true) && !converted {
            match self.view(request.copy, &request.cancel, request.mappings.as_deref()) {
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

    /// Bytes of the storage once it is inflated; 0 where it is not compressed.
    fn inflated_bytes(&self) -> u64 {
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

    /// The task that fills memory with an owned result. A dequantized result is filled at once, and gives `None`.
    pub(crate) fn fill_task<'a>(
        &self,
        owned: &OwnedPlan,
        request: &Request,
        memory: &'a mut Unfilled,
    ) -> Result<Option<Task<'a>>> {
        if self.dequantization(request).is_some() {
            self.fill(&owned.layout, owned.dtype, request, false, memory.bytes_mut())?;
            return Ok(None);
        }
        let how = self.fill_options(owned.dtype, request, memory.is_recycled())?;
        let out = memory.bytes_mut();
        let payload = self.opened.payload(self.storage(), &request.cancel)?;
        Ok(Some(Task { payload, layout: owned.layout.clone(), how, out }))
    }

    /// Writes the result of a request into `out`, C-contiguous. Fails where `out` does not have exactly the result's size.
    pub fn materialize_into(&self, request: &Request, out: &mut [u8]) -> Result<()> {
        self.with_context(self.check_not_meta())?;
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

    /// Bytes of the result; fails over the limit `materialize_bytes` where elements repeat (expanded tensors).
    fn result_bytes(&self, layout: &Layout, dtype: DType) -> Result<u64> {
        let nbytes = stream::result_bytes(layout, dtype);
        if layout.repeats_elements() {
            let limits = &self.opened.options.limits;
            let storage = self.opened.storage(self.storage()).nbytes;
            let max = storage.saturating_mul(limits.materialize_ratio).max(limits.materialize_bytes);
            Limits::check("materialize_bytes", max, nbytes.unwrap_or(u64::MAX))?;
        }
        nbytes.ok_or_else(|| Error::new(Code::Memory, "the result does not fit 64 bits"))
    }

    fn fill(
        &self,
        layout: &Layout,
        dtype: DType,
        request: &Request,
        recycled: bool,
        out: &mut [u8],
    ) -> Result<()> {
        if let Some(quantization) = self.dequantization(request) {
            return self.dequantize(quantization, layout, dtype, request, out);
        }
        let how = self.fill_options(dtype, request, recycled)?;
        stream::fill(&self.opened.payload(self.storage(), &request.cancel)?, layout, &how, out)
    }

    fn fill_options(&self, dtype: DType, request: &Request, recycled: bool) -> Result<Fill> {
        if !request.allow_lossy && kernel::is_lossy(self.dtype, dtype) {
            return Err(Error::new(
                Code::LossyCast,
                format!("a cast from {} to {dtype} is lossy", self.dtype),
            ));
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
    fn check_not_meta(&self) -> Result<()> {
        if self.is_meta() {
            self.opened.stored_payload(self.storage())?;
        }
        Ok(())
    }

    /// The result, its error with this tensor's context.
    fn with_context<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.add_context(error))
    }

    /// The error with this tensor's name and file, or the error that the file has changed where it has.
    pub(crate) fn add_context(&self, error: Error) -> Error {
        self.opened.file_changed_or(self.shard(), error).in_member(self.name())
    }
}
