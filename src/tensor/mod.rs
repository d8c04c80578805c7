//! A lazy tensor: dtype, shape, strides and offset within a storage. Elements are read when it is materialized.

mod growth;
mod joined;
mod materialize;
mod quantized;
mod request;
mod reshape;
#[cfg(any(feature = "python", test))]
mod restore;
mod scheme;
mod slices;
mod sparse;
#[cfg(feature = "cuda")]
mod upload;
mod view;

use std::borrow::Borrow;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::index::{Part, Path};
use crate::layout::{Layout, TensorIndex};
#[cfg(feature = "python")]
use crate::opened::Handed;
use crate::opened::{Description, Opened};
use crate::pickle::Snapshot;

pub(crate) use growth::Growth;
pub use joined::Joined;
pub(crate) use materialize::{MaterializePlan, OwnedPlan};
pub use request::{Order, Request};
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

    /// The number of the file whose object tree its path is in.
    pub(crate) fn path_file(&self) -> u32 {
        self.opened.path_file(self.id)
    }

    /// Which part of a larger tensor it is; `None` for a whole one, and for a slice.
    pub(crate) fn part(&self) -> Option<&Part> {
        let index = self.opened.index(self.shard());
        index.part(self.id.1).filter(|_| self.layout == *self.opened.tensor(self.id).layout())
    }

    /// The number of the file that holds it.
    pub fn shard(&self) -> u32 {
        self.id.0
    }

    /// The number of its checkpoint, which no other one of this process has.
    #[cfg(feature = "python")]
    pub(crate) fn serial(&self) -> u64 {
        self.opened.serial
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
        Some(self.opened.tree(self.shard())?.name_of(Some(class)))
    }

    /// The attributes that the file sets on it: each a dict of attributes, or a pair of such a dict and a dict of slots.
    pub(crate) fn states(&self) -> &[Snapshot] {
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

    /// The bytes of its storage, which may have more elements than the tensor.
    pub fn storage_nbytes(&self) -> u64 {
        self.opened.storage(self.storage()).nbytes
    }

    /// The shard, and the number within it of the tensor that this is or is a slice of.
    pub fn id(&self) -> (u32, u32) {
        self.id
    }

    /// An id of its file, the same for all tensors in it. The ids of one checkpoint's files sort in shard order.
    pub(crate) fn file(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.opened).addr(), self.shard())
    }

    /// As [`Tensor::file`], with the file that its elements are made of, and the offset there, for sorting only.
    pub(crate) fn place(&self) -> (usize, u32, u64) {
        let (file, start) = self.opened.place(self.id);
        let offset = self.layout.offset.saturating_mul(self.dtype.itemsize());
        (self.file().0, file, start.saturating_add(if file == self.shard() { offset } else { 0 }))
    }

    /// What it is decoded from, if it is a quantized weight of the logical view.
    pub(crate) fn description(&self) -> Option<&Description> {
        self.opened.description(self.id)
    }

    /// What it is decoded from, as plain data for another decoder, if it is a quantized weight of the logical view. Reads the indices of
    /// groups.
    #[cfg(feature = "python")]
    pub(crate) fn decoding(&self) -> Result<Option<Handed>> {
        self.with_context(self.opened.decoding(self.id))
    }

    /// All elements of a stored tensor of the same files, in C order. Those of one byte are bytes, which are read in the logical view
    /// too: codes are not.
    #[cfg(feature = "python")]
    pub(crate) fn stored(&self, id: (u32, u32)) -> Result<Tensor> {
        let stored = Tensor::new(&self.opened, id, None);
        let dtype = if stored.dtype.itemsize() == 1 { DType::U8 } else { stored.dtype };
        Tensor { dtype, channel_layout: None, ..stored }.reshape(&[-1])
    }

    /// Reads the archive headers of these tensors, with few reads.
    pub(crate) fn prefetch_headers<T: Borrow<Tensor>>(tensors: &[T]) {
        for same_file in tensors.chunk_by(|one, two| one.borrow().file() == two.borrow().file()) {
            let tensors = || same_file.iter().map(Borrow::borrow);
            if let Some(first) = tensors().next() {
                let storages = tensors().map(|tensor: &Tensor| (tensor.storage().1, tensor.nbytes()));
                first.opened.index(first.shard()).prefetch_headers(storages);
            }
        }
    }

    /// The byte offset of the first element in the file. Within an archive it is approximate: good for sorting only.
    pub(crate) fn position(&self) -> u64 {
        let offset = self.layout.offset.saturating_mul(self.dtype.itemsize());
        self.opened.storage(self.storage()).position().saturating_add(offset)
    }

    /// A text that another process also gets for the same elements of the same version of the file, and for nothing else. `None` if
    /// the file's source has no identity.
    pub(crate) fn identity(&self) -> Option<String> {
        let source = self.opened.identity(self.shard())?;
        let (options, storage) = (&self.opened.options, self.opened.storage(self.storage()));
        let how = (options.ignore_trailing, options.compat, options.unknown, options.dequantize);
        Some(format!(
            "{source}, opened with {how:?}, tensor {} {:?}, storage {:?} at {} of {} bytes, {} {:?} {:?}",
            self.id.1,
            self.name(),
            self.storage(),
            storage.position(),
            storage.nbytes,
            self.dtype,
            self.layout,
            self.channel_layout,
        ))
    }

    /// Whether the result of a request may be made on a storage that other tensors share.
    pub(crate) fn may_share_storage(&self, request: &Request) -> bool {
        request.copy != Some(true) && !self.is_converted(request) && !self.has_own_storage()
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
        let signs = |tensor: &Tensor| (tensor.is_conjugate(), tensor.is_negative());
        self.file() == other.file()
            && self.storage() == other.storage()
            && (self.dtype, &self.layout) == (other.dtype, &other.layout)
            && signs(self) == signs(other)
    }

    /// A slice of the tensor, by basic indexing. Fails for an index that is out of bounds.
    pub fn index(&self, items: &[TensorIndex]) -> Result<Tensor> {
        self.map_layouts(|layout| layout.index(items))
    }

    /// The tensor with its dimensions in the order `dims`. Fails where `dims` is not a permutation.
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

    /// The result, its error with this tensor's context.
    fn with_context<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.add_context(error))
    }

    /// The error with this tensor's name and file, or the error that the file has changed where it has.
    pub(crate) fn add_context(&self, error: Error) -> Error {
        self.opened.file_changed_or(self.shard(), error).in_member(self.name())
    }
}
