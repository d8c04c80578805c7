//! Views: a tensor in the file's mapping, and how tensors stand on a storage that they share.

use std::ptr::NonNull;

use super::{Request, Tensor};
use crate::bytes::{Mappings, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::kernel::Cast;
use crate::layout::Layout;
use crate::parallel::Cancel;
use crate::sink::{Array, HostBuffer};
use crate::stream::{self, Fill, Signs};

/// How a tensor stands on a storage that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// On the file's mapping.
    View,
    /// On a copy of the storage.
    Copy,
}

impl Tensor {
    /// How this tensor can stand on a storage that it shares with others; reads no more than bools.
    ///
    /// Without a view, a copy of the whole storage is worth it where that says more than the elements: it keeps strides, and
    /// names tied. `None` where the bytes in the file are not the tensor's (a lazy sign, bools that are none, another byte order
    /// with numbers of several sizes on the storage), or where this is a part of a tensor, for which a whole storage would be too much.
    pub fn standing(&self, copy: Option<bool>, cancel: &Cancel) -> Result<Option<Standing>> {
        match self.view(copy, cancel, None) {
            Ok(_) => Ok(Some(Standing::View)),
            Err(error) if copy == Some(false) || !is_no_view(&error) => self.place(Err(error)),
            Err(_) if self.wants_whole_storage() => Ok(Some(Standing::Copy)),
            Err(_) => Ok(None),
        }
    }

    /// A view of a tensor that is all of a storage which no other name lies in, so that nothing has to be shared; `None` where
    /// it takes more to find out, or there is no view. Reads nothing. The mapping is that of `owner`, or else the checkpoint's.
    pub fn lone_view(&self, owner: Option<&Mappings>) -> Result<Option<Array>> {
        let is_simple = !self.is_meta() && self.dtype != DType::Bool && self.layout.numel() > 0;
        if !is_simple || !self.is_alone() {
            return Ok(None);
        }
        match self.view(None, &Cancel::new(), owner) {
            Ok(view) => Ok(Some(view)),
            Err(error) if is_no_view(&error) => Ok(None),
            Err(error) => self.place(Err(error)),
        }
    }

    /// Bytes that [`Tensor::storage_bytes`] goes through: none for a view.
    pub fn storage_work(&self, standing: Standing) -> u64 {
        match standing {
            Standing::View => 0,
            Standing::Copy => self.checkpoint.storage(self.storage()).nbytes,
        }
    }

    /// All bytes of the storage, as a view or a copy.
    pub fn storage_bytes(&self, standing: Standing, request: &Request) -> Result<Array> {
        self.place(match standing {
            Standing::View => self.storage_view(request.mappings.as_deref()),
            Standing::Copy => self.storage_copy(request),
        })
    }

    fn storage_view(&self, owner: Option<&Mappings>) -> Result<Array> {
        let source = self.checkpoint.plain_payload(self.storage())?;
        view_of(&source, DType::U8, Layout::contiguous(&[source.len()])?, owner)
    }

    /// Whether a copy of the whole storage says more than one of the elements: it keeps strides, and names tied.
    fn wants_whole_storage(&self) -> bool {
        let whole = self.checkpoint.tensor(self.id);
        let plain = self.layout == *whole.layout() && self.dtype == whole.dtype();
        let strange = self.dtype == DType::Bool
            || whole.flags.conjugate
            || whole.flags.negative
            || !self.has_one_swap();
        plain && !strange && (!self.layout.is_contiguous() || self.checkpoint.is_shared(self.storage()))
    }

    /// Whether swapping the bytes of each number of the storage is right for all tensors on it, where they are swapped at all.
    fn has_one_swap(&self) -> bool {
        let (id, whole) = (self.storage(), self.checkpoint.tensor(self.id));
        let storage = self.checkpoint.storage(id);
        !storage.big_endian
            || self.checkpoint.swap_unit(id, whole).is_some_and(|unit| storage.nbytes.is_multiple_of(unit))
    }

    fn storage_copy(&self, request: &Request) -> Result<Array> {
        let payload = self.checkpoint.payload(self.storage(), &request.cancel)?;
        // A row of the numbers that its tensors consist of, which change to this machine's byte order.
        let unit = if payload.big_endian { DType::unsigned(self.dtype.swap_unit()) } else { DType::U8 };
        let layout = Layout::contiguous(&[payload.source.len() / unit.itemsize()])?;
        let cast = Cast::new(unit, unit, request.overflow)?;
        let (threads, cancel) = (request.threads, request.cancel.clone());
        let how = Fill { signs: Signs::default(), cast, threads, cancel };
        let mut memory = HostBuffer::unfilled(payload.source.len())?;
        stream::fill(&payload, &layout, &how, memory.bytes_mut())?;
        Array::owned(memory.filled(), DType::U8, [payload.source.len()][..].into())
    }

    /// A view in the mapping of `owner` or else in the checkpoint's, or why there is none; `copy` is what the caller said about copies.
    pub(super) fn view(
        &self,
        copy: Option<bool>,
        cancel: &Cancel,
        owner: Option<&Mappings>,
    ) -> Result<Array> {
        let flags = self.checkpoint.tensor(self.id).flags;
        if flags.conjugate || flags.negative {
            return Err(Error::new(
                Code::Buffer,
                "the tensor is a lazy conjugate or negative, which needs a copy",
            ));
        }
        let source = self.checkpoint.plain_payload(self.storage())?;
        if let Some(place) = source.avoids_views().filter(|_| copy != Some(false)) {
            return Err(Error::new(Code::Buffer, format!("a view on {place} would be read page by page")));
        }
        if self.dtype == DType::Bool {
            check_bools(&source, &self.layout, cancel)?;
        }
        view_of(&source, self.dtype, self.layout.clone(), owner)
    }
}

/// Whether an error says that no view exists, so that a copy is the answer.
pub(crate) fn is_no_view(error: &Error) -> bool {
    matches!(error.code(), Code::Buffer | Code::RecordCompressed | Code::Memory)
}

/// A view of `layout` in the mapping of `source`, whose window is the storage.
fn view_of(source: &Source, dtype: DType, layout: Layout, owner: Option<&Mappings>) -> Result<Array> {
    let mapped = owner.map_or_else(|| source.map(), |owner| owner.map(source))?;
    let Some((mapping, window)) = mapped else {
        return Err(Error::new(Code::Buffer, "bytes in memory are not viewed but copied"));
    };
    let itemsize = dtype.itemsize();
    let start = if layout.numel() == 0 { 0 } else { layout.offset.saturating_mul(itemsize) };
    let part = window.subregion(start, 0);
    let part = part.ok_or_else(|| Error::new(Code::InternalError, "a view lies outside its file"))?;
    let array = Array::view(mapping, part.start(), dtype, layout)?;
    if !is_aligned(array.address(), dtype) {
        return Err(Error::new(
            Code::Buffer,
            format!("the file has {dtype} at an address that is not aligned for it"),
        ));
    }
    Ok(array)
}

fn is_aligned(address: NonNull<u8>, dtype: DType) -> bool {
    usize::try_from(dtype.align()).is_ok_and(|align| address.align_offset(align) == 0)
}

/// Fails if a byte is neither 0 nor 1: a view would hand out what is no bool.
pub(crate) fn check_bools(source: &Source, layout: &Layout, cancel: &Cancel) -> Result<()> {
    let end = if layout.numel() == 0 { layout.offset } else { layout.end().unwrap_or(layout.offset) };
    let mut at = layout.offset;
    let mut chunk = vec![0_u8; 64 << 10];
    while at < end {
        cancel.check()?;
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(chunk.len());
        let part = &mut chunk[..len];
        source.read_at(at, part)?;
        if part.iter().any(|&byte| byte > 1) {
            return Err(Error::new(Code::Buffer, "the file has bools that are neither 0 nor 1"));
        }
        at += len as u64;
    }
    Ok(())
}
