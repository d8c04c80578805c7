//! A lazy tensor: numbers that say where elements lie, until somebody asks for them.

mod joined;
mod quantized;
mod sparse;
mod upload;
mod view;

use std::sync::Arc;

use crate::bytes::Mappings;
use crate::checkpoint::{Checkpoint, Inner};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::Path;
use crate::kernel::{self, Cast, Overflow};
use crate::layout::{Layout, TensorIndex};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::Handle;
use crate::sink::{self, Array, HostBuffer, Unfilled};
use crate::stream::{self, Fill, Signs, Task};

pub use joined::Joined;
pub use view::Standing;
pub(crate) use view::{check_bools, is_no_view};

/// A handle on a tensor of a checkpoint, or on a part of one. Cloning is cheap; nothing is read until it is materialized.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) checkpoint: Arc<Inner>,
    /// Which file, and which tensor of it.
    pub(crate) id: (u32, u32),
    /// The name it was asked for by; a module's buffers that are not saved by name have none.
    pub(crate) entry: Option<u32>,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    /// Of a tensor with a scale for each step along a dimension: which scale is whose.
    pub(crate) channels: Option<Box<Layout>>,
}

/// The order in which dimensions are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As in the file.
    #[default]
    Same,
    /// The last two swapped.
    Transpose,
    /// A full permutation; negative numbers count from the end.
    Permute(Vec<i64>),
}

/// What to make of a tensor.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The dtype; `None` for the file's.
    pub dtype: Option<DType>,
    /// The order of dimensions.
    pub order: Order,
    /// `Some(true)`: owned memory; `Some(false)`: a view or an error; `None`: a view where one is possible.
    pub copy: Option<bool>,
    /// Whether a cast may change the kind of number downwards.
    pub allow_lossy: bool,
    /// What a cast to fp8 makes of values that are too large.
    pub overflow: Overflow,
    /// Whether a quantized tensor's integers become the numbers that they stand for.
    pub dequantize: bool,
    /// Threads to use; `None` for one per core where the work is worth it.
    pub threads: Option<usize>,
    /// The mappings that a view is of; `None` for those that all views of the checkpoint share.
    pub mappings: Option<Arc<Mappings>>,
    /// The request to stop.
    pub cancel: Cancel,
}

impl Order {
    /// A layout in this order.
    fn of(&self, layout: &Layout) -> Result<Layout> {
        match self {
            Order::Same => Ok(layout.clone()),
            Order::Transpose => layout.transpose(),
            Order::Permute(dims) => layout.permute(dims),
        }
    }
}

impl Request {
    /// Whether two requests for the same elements give the same result.
    pub(crate) fn gives_as(&self, other: &Request) -> bool {
        let of = |request: &Request| (request.dtype, request.copy, request.allow_lossy, request.overflow);
        of(self) == of(other) && self.order == other.order && self.dequantize == other.dequantize
    }
}

/// What materializing a tensor comes to.
#[derive(Debug)]
pub(crate) enum Prospect {
    /// A view, which is there already.
    View(Array),
    /// Memory that is to be filled.
    Owned(Owned),
}

/// An owned result that is still to be made.
#[derive(Debug)]
pub(crate) struct Owned {
    /// The elements in the order wanted.
    layout: Layout,
    dtype: DType,
    /// Bytes of the result.
    nbytes: u64,
    /// Where in a block of the disk its first byte is best put.
    phase: u64,
}

impl Owned {
    /// Memory for the result, to be filled.
    pub(crate) fn memory(&self) -> Result<Unfilled> {
        HostBuffer::unfilled_at(self.nbytes, self.phase)
    }

    /// The result, once its memory is filled.
    pub(crate) fn finish(self, memory: HostBuffer) -> Result<Array> {
        Array::owned(memory, self.dtype, self.layout.shape)
    }
}

impl Tensor {
    /// The tensor of an opened file; `entry` is the name it was asked for by.
    pub(crate) fn new(checkpoint: &Arc<Inner>, id: (u32, u32), entry: Option<u32>) -> Tensor {
        let known = checkpoint.tensor(id);
        let (dtype, layout) = (known.dtype(), known.layout().clone());
        let channels = quantized::channels(checkpoint, id, &layout);
        Tensor { checkpoint: checkpoint.clone(), id, entry, dtype, layout, channels }
    }

    /// The name in the checkpoint; empty for a tensor that only the object tree leads to.
    pub fn name(&self) -> &str {
        self.entry.map_or("", |entry| &self.checkpoint.entry(entry).name)
    }

    /// The way from the checkpoint's root, for a tensor that has a name.
    pub fn path(&self) -> Option<&Path> {
        self.entry.map(|entry| &self.checkpoint.entry(entry).path)
    }

    /// Which file of the checkpoint holds it.
    pub fn shard(&self) -> u32 {
        self.id.0
    }

    /// The element type in the file.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, strides and offset, in elements.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of all elements together.
    pub fn nbytes(&self) -> u64 {
        self.layout.numel().saturating_mul(self.dtype.itemsize())
    }

    /// Whether the file has it as a `torch.nn.Parameter`.
    pub fn is_parameter(&self) -> bool {
        self.checkpoint.tensor(self.id).flags.parameter
    }

    /// Whether it was saved on the meta device, so that there are no elements to be had.
    pub fn is_meta(&self) -> bool {
        self.checkpoint.tensor(self.id).flags.meta
    }

    /// The subclass of `torch.Tensor` that the file has it as, as `module.name`.
    pub fn class_name(&self) -> Option<String> {
        let class = self.checkpoint.extra(self.id)?.class?;
        Some(self.checkpoint.tree(self.shard())?.name_of(class))
    }

    /// What the file sets on it: each a dict of attributes, or a pair of such a dict and one of slots.
    pub fn states(&self) -> &[Handle] {
        self.checkpoint.extra(self.id).map_or(&[], |extra| &extra.states)
    }

    /// Whether the file says that it wants gradients.
    pub fn requires_grad(&self) -> bool {
        self.checkpoint.tensor(self.id).flags.requires_grad
    }

    /// Whether its imaginary parts are to be negated, which torch does lazily.
    pub fn is_conjugate(&self) -> bool {
        self.checkpoint.tensor(self.id).flags.conjugate
    }

    /// Whether its values are to be negated, which torch does lazily.
    pub fn is_negative(&self) -> bool {
        self.checkpoint.tensor(self.id).flags.negative
    }

    /// A number for the storage, the same for all tensors that share it.
    pub fn storage(&self) -> (u32, u32) {
        (self.shard(), self.checkpoint.tensor(self.id).storage())
    }

    /// Which file it is in, and which tensor of that file it is, or is a part of.
    pub fn id(&self) -> (u32, u32) {
        self.id
    }

    /// A number for its file, the same for all tensors in it; files of one checkpoint are in shard order.
    pub(crate) fn file(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.checkpoint).addr(), self.shard())
    }

    /// Where the first element lies in the file, in bytes; for a member of an archive, near enough to sort by.
    pub(crate) fn position(&self) -> u64 {
        let offset = self.layout.offset.saturating_mul(self.dtype.itemsize());
        self.checkpoint.position(self.storage()).saturating_add(offset)
    }

    /// Whether it is all of a storage that no other name lies in, so that it stands on nothing that is shared.
    pub(crate) fn is_alone(&self) -> bool {
        let storage = self.storage();
        self.layout.offset == 0
            && self.nbytes() == self.checkpoint.storage(storage).nbytes
            && self.layout.is_contiguous()
            && !self.checkpoint.is_shared(storage)
    }

    /// Whether both are the same elements of the same storage, in the same order.
    pub(crate) fn is_tied_to(&self, other: &Tensor) -> bool {
        let signs = |tensor: &Tensor| {
            let flags = tensor.checkpoint.tensor(tensor.id).flags;
            (flags.conjugate, flags.negative)
        };
        self.file() == other.file()
            && self.storage() == other.storage()
            && (self.dtype, &self.layout) == (other.dtype, &other.layout)
            && signs(self) == signs(other)
    }

    /// The checkpoint it belongs to.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint::from_inner(self.checkpoint.clone())
    }

    /// A part, by basic indexing.
    pub fn index(&self, items: &[TensorIndex]) -> Result<Tensor> {
        self.with(|layout| layout.index(items))
    }

    /// The same elements with the dimensions in another order.
    pub fn permute(&self, dims: &[i64]) -> Result<Tensor> {
        self.with(|layout| layout.permute(dims))
    }

    /// The same elements with all dimensions reversed.
    pub fn reversed(&self) -> Tensor {
        let channels = self.channels.as_deref().map(|channels| Box::new(channels.reversed()));
        Tensor { layout: self.layout.reversed(), channels, ..self.clone() }
    }

    fn with(&self, narrow: impl Fn(&Layout) -> Result<Layout>) -> Result<Tensor> {
        let channels = self.channels.as_deref().map(|channels| narrow(channels).map(Box::new)).transpose()?;
        Ok(Tensor { layout: narrow(&self.layout)?, channels, ..self.clone() })
    }

    /// The elements in memory, as asked for.
    pub fn materialize(&self, request: &Request) -> Result<Array> {
        self.place(self.materialize_here(request))
    }

    fn materialize_here(&self, request: &Request) -> Result<Array> {
        match self.prospect(request)? {
            Prospect::View(view) => Ok(view),
            Prospect::Owned(owned) => {
                let mut memory = owned.memory()?;
                let recycled = memory.is_recycled();
                self.fill(&owned.layout, owned.dtype, request, recycled, memory.bytes_mut())?;
                owned.finish(memory.filled())
            }
        }
    }

    /// Bytes to go through: its own, those of the storage where that has to be inflated, and those between bools, which are
    /// looked at.
    pub fn work(&self) -> u64 {
        let bools = match self.dtype {
            DType::Bool => self.layout.end().unwrap_or(0).saturating_sub(self.layout.offset),
            _ => 0,
        };
        self.nbytes().max(self.inflated()).max(bools)
    }

    /// Bytes to go through for a request, read or written.
    pub fn work_for(&self, request: &Request) -> u64 {
        let result = stream::result_bytes(&self.layout, self.result_dtype(request)).unwrap_or(u64::MAX);
        if self.is_view(request) { 0 } else { self.work().max(result) }
    }

    /// Bytes of memory that the result of a request takes at most; none where it is a view.
    pub(crate) fn footprint(&self, request: &Request) -> u64 {
        let result = stream::result_bytes(&self.layout, self.result_dtype(request));
        if self.is_view(request) { 0 } else { sink::footprint(result.unwrap_or(u64::MAX)) }
    }

    /// Whether a view answers a request, for which nothing is read.
    pub fn is_view(&self, request: &Request) -> bool {
        let may_be = request.copy != Some(true) && self.dtype != DType::Bool && !self.is_converted(request);
        may_be && self.view(request.copy, &request.cancel, request.mappings.as_deref()).is_ok()
    }

    /// Whether a request changes dtype, order or numbers.
    pub(crate) fn is_converted(&self, request: &Request) -> bool {
        self.result_dtype(request) != self.dtype
            || request.order != Order::Same
            || self.dequantizes(request).is_some()
    }

    /// A view where the request allows one and the file has one, else what memory is to be filled. Reads no more than bools.
    pub(crate) fn prospect(&self, request: &Request) -> Result<Prospect> {
        self.check_elements()?;
        let converted = self.is_converted(request);
        if request.copy == Some(false) && converted {
            return Err(Error::new(Code::Buffer, "a cast or transpose needs a copy"));
        }
        if request.copy != Some(true) && !converted {
            match self.view(request.copy, &request.cancel, request.mappings.as_deref()) {
                Ok(view) => return Ok(Prospect::View(view)),
                Err(error) if request.copy == Some(false) || !is_no_view(&error) => return Err(error),
                Err(_) => {}
            }
        }
        let dtype = self.result_dtype(request);
        let layout = self.ordered(&request.order)?;
        let nbytes = self.result_bytes(&layout, dtype)?;
        let phase = self.phase(&layout, dtype, nbytes, request);
        Ok(Prospect::Owned(Owned { layout, dtype, nbytes, phase }))
    }

    /// Bytes that an owned result needs while it is made: its own, and those of the storage where that has to be inflated.
    pub(crate) fn weight(&self, owned: &Owned) -> u64 {
        sink::footprint(owned.nbytes.saturating_add(owned.phase)).saturating_add(self.inflated())
    }

    /// Bytes of the storage where that has to be inflated.
    fn inflated(&self) -> u64 {
        if self.checkpoint.is_compressed(self.storage()) {
            self.checkpoint.storage(self.storage()).nbytes
        } else {
            0
        }
    }

    /// Where in a block of the disk a result's first byte is best put. What is wrong with the request is told when it is made.
    fn phase(&self, layout: &Layout, dtype: DType, nbytes: u64, request: &Request) -> u64 {
        if !stream::is_worth_aligning(nbytes) || self.is_converted(request) {
            return 0;
        }
        match (self.checkpoint.stored(self.storage()), self.how(dtype, request, false)) {
            (Ok(Some(payload)), Ok(how)) => stream::destination_offset(&payload, layout, &how),
            _ => 0,
        }
    }

    /// The work of filling memory with an owned result; none where it is done by now, as for what is dequantized.
    pub(crate) fn task<'a>(
        &self,
        owned: &Owned,
        request: &Request,
        memory: &'a mut Unfilled,
    ) -> Result<Option<Task<'a>>> {
        if self.dequantizes(request).is_some() {
            self.fill(&owned.layout, owned.dtype, request, false, memory.bytes_mut())?;
            return Ok(None);
        }
        let how = self.how(owned.dtype, request, memory.is_recycled())?;
        let out = memory.bytes_mut();
        let payload = self.checkpoint.payload(self.storage(), &request.cancel)?;
        Ok(Some(Task { payload, layout: owned.layout.clone(), how, out }))
    }

    /// Writes the elements, C-contiguous in the order asked for, into `out`, which has exactly their size.
    pub fn materialize_into(&self, request: &Request, out: &mut [u8]) -> Result<()> {
        self.place(self.check_elements())?;
        let layout = self.ordered(&request.order)?;
        let dtype = self.result_dtype(request);
        let nbytes = stream::result_bytes(&layout, dtype).unwrap_or(u64::MAX);
        if nbytes != out.len() as u64 {
            let text = format!("the result takes {nbytes} byte(s), the destination has {}", out.len());
            return self.place(Err(Error::new(Code::Value, text)));
        }
        // The caller's memory: nobody knows whether it was touched before.
        self.place(self.fill(&layout, dtype, request, false, out))
    }

    /// The shape of what a request gives.
    pub fn ordered(&self, order: &Order) -> Result<Layout> {
        order.of(&self.layout)
    }

    fn result_bytes(&self, layout: &Layout, dtype: DType) -> Result<u64> {
        let nbytes = stream::result_bytes(layout, dtype);
        if layout.repeats_elements() {
            let limits = &self.checkpoint.options.limits;
            let storage = self.checkpoint.storage(self.storage()).nbytes;
            let most = storage.saturating_mul(limits.materialize_ratio).max(limits.materialize_bytes);
            Limits::check("materialize_bytes", most, nbytes.unwrap_or(u64::MAX))?;
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
        if let Some(quantization) = self.dequantizes(request) {
            return self.dequantize(quantization, layout, dtype, request, out);
        }
        let how = self.how(dtype, request, recycled)?;
        stream::fill(&self.checkpoint.payload(self.storage(), &request.cancel)?, layout, &how, out)
    }

    fn how(&self, dtype: DType, request: &Request, recycled: bool) -> Result<Fill> {
        if !request.allow_lossy && kernel::is_lossy(self.dtype, dtype) {
            return Err(Error::new(
                Code::LossyCast,
                format!("a cast from {} to {dtype} is lossy", self.dtype),
            ));
        }
        let cast = Cast::new(self.dtype, dtype, request.overflow)?;
        let cast = if recycled { cast.with_non_temporal_stores() } else { cast };
        let flags = self.checkpoint.tensor(self.id).flags;
        Ok(Fill {
            // As in torch: negate(x).to(dtype).
            signs: Signs { conjugate: flags.conjugate, negative: flags.negative },
            cast,
            threads: request.threads,
            cancel: request.cancel.clone(),
        })
    }

    /// Fails for a tensor of which the file has no elements.
    fn check_elements(&self) -> Result<()> {
        if self.is_meta() {
            self.checkpoint.stored(self.storage())?;
        }
        Ok(())
    }

    fn place<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.placed(error))
    }

    /// The error with this tensor's name and file; or that the file changed, where that explains it.
    pub(crate) fn placed(&self, error: Error) -> Error {
        self.checkpoint.blame(self.shard(), error).in_member(self.name())
    }
}
