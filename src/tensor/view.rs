//! Views of a mapping of the file, and memory for storages that several tensors share.

use std::ptr::NonNull;
use std::sync::Arc;

use super::quantized::Dequantization;
use super::{Request, Tensor};
use crate::bytes::{LocalFile, Mappings, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail};
use crate::index::Location;
use crate::kernel::Cast;
use crate::layout::Layout;
use crate::num::to_usize;
use crate::parallel::Cancel;
use crate::sink::{Array, HostBuffer};
use crate::stream::{self, Fill, Signs};

/// Where tensors that share a storage get its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedStorage {
    /// From the file's mapping.
    View,
    /// From a copy of the whole storage in memory.
    Copy,
}

impl Tensor {
    /// Where this tensor can get the storage that it shares with others; `None` where its elements have to be copied by
    /// themselves. Reads nothing but bools, which it validates.
    ///
    /// Without a view, a copy of the whole storage is preferred where it preserves strides or ties between names. `None` where
    /// the bytes in the file are not the tensor's (a lazy conjugate or negative, bools other than 0 and 1, a byte order to swap
    /// on a storage of several item sizes), and for a slice, which would need a fraction of the storage only.
    pub fn shared_storage(&self, copy: Option<bool>, cancel: &Cancel) -> Result<Option<SharedStorage>> {
        match self.view(&Request { copy, writable: true, cancel: cancel.clone(), ..Request::default() }) {
            Ok(_) => Ok(Some(SharedStorage::View)),
            Err(error) if copy == Some(false) || !is_view_unavailable(&error) => {
                self.with_context(Err(error))
            }
            Err(_) if self.should_copy_whole_storage() => Ok(Some(SharedStorage::Copy)),
            Err(_) => Ok(None),
        }
    }

    /// A view of a tensor that covers a whole storage which no other name uses. `None` where there is no view, or where finding
    /// out would need reads (bools). Reads nothing. The copy-on-write mapping is that of `mappings`, or else the checkpoint's.
    pub(crate) fn lone_view(&self, mappings: Option<Arc<Mappings>>) -> Result<Option<Array>> {
        let is_simple = !self.is_meta() && self.dtype != DType::Bool && self.layout.numel() > 0;
        if !is_simple || !self.has_own_storage() {
            return Ok(None);
        }
        match self.view(&Request { writable: true, mappings, ..Request::default() }) {
            Ok(view) => Ok(Some(view)),
            Err(error) if is_view_unavailable(&error) => Ok(None),
            Err(error) => self.with_context(Err(error)),
        }
    }

    /// Bytes that [`Tensor::storage_bytes`] reads: 0 for a view.
    pub fn storage_work(&self, shared: SharedStorage) -> u64 {
        match shared {
            SharedStorage::View => 0,
            SharedStorage::Copy => self.opened.storage(self.storage()).nbytes,
        }
    }

    /// All bytes of the storage as a one-dimensional `u8` array, a view or a copy. Fails where the storage has no view.
    pub fn storage_bytes(&self, shared: SharedStorage, request: &Request) -> Result<Array> {
        self.with_context(match shared {
            SharedStorage::View => self.storage_view(request),
            SharedStorage::Copy => self.storage_copy(request),
        })
    }

    fn storage_view(&self, request: &Request) -> Result<Array> {
        let source = self.opened.viewable_source(self.storage())?.proved()?;
        view_of(&source, DType::U8, Layout::contiguous(&[source.len()])?, request)
    }

    /// Whether to copy the whole storage instead of the elements, which preserves strides and ties between names.
    fn should_copy_whole_storage(&self) -> bool {
        let indexed = self.opened.tensor(self.id);
        let plain = self.layout == *indexed.layout() && self.dtype == indexed.dtype();
        let differs_from_file = self.dtype == DType::Bool
            || self.description().is_some()
            || self.dequantization(&Request::default()).is_some()
            || indexed.flags.conjugate
            || indexed.flags.negative
            || !self.has_uniform_byte_swap();
        plain && !differs_from_file && (!self.layout.is_contiguous() || self.opened.is_shared(self.storage()))
    }

    /// Whether one byte swap of the whole storage is right for all tensors in it. True for a storage in native byte order.
    fn has_uniform_byte_swap(&self) -> bool {
        let (id, indexed) = (self.storage(), self.opened.tensor(self.id));
        let storage = self.opened.storage(id);
        !storage.big_endian
            || self.opened.swap_unit(id, indexed).is_some_and(|unit| storage.nbytes.is_multiple_of(unit))
    }

    fn storage_copy(&self, request: &Request) -> Result<Array> {
        let storage = self.opened.storage(self.storage());
        if matches!(storage.location, Location::Chunks(_)) {
            // The only tensor of the storage has all of it in C order.
            self.check_memory(storage.nbytes)?;
            let mut memory = HostBuffer::unfilled(storage.nbytes)?;
            self.materialize_into(
                &Request { cancel: request.cancel.clone(), ..Request::default() },
                memory.bytes_mut(),
            )?;
            return Array::owned(memory.filled(), DType::U8, [storage.nbytes][..].into());
        }
        let payload = self.opened.payload(self.storage(), &request.cancel)?;
        // Read as integers of the width that is swapped, so that the result is in native byte order.
        let unit = if payload.big_endian { DType::unsigned(self.dtype.swap_unit()) } else { DType::U8 };
        let layout = Layout::contiguous(&[payload.source.len() / unit.itemsize()])?;
        let cast = Cast::new(unit, unit, request.overflow)?;
        let (threads, cancel) = (request.threads, request.cancel.clone());
        let how = Fill { signs: Signs::default(), cast, threads, cancel };
        self.check_memory(payload.source.len())?;
        let mut memory = HostBuffer::unfilled(payload.source.len())?;
        stream::fill(&payload, &layout, &how, memory.bytes_mut())?;
        Array::owned(memory.filled(), DType::U8, [payload.source.len()][..].into())
    }

    /// A view of the elements as a request maps them, which does not convert them, or an error that says why there is none. On a file
    /// system where mapped reads are slow it is given with `copy=Some(false)` only.
    pub(super) fn view(&self, request: &Request) -> Result<Array> {
        // Of codes that are left in the logical view.
        match self.dequantization(request) {
            Some(Dequantization::Refused) => return Err(self.refused_codes()),
            Some(Dequantization::Integers(_)) => {
                bail!(Code::Buffer, "the tensor is codes, and its numbers need a copy");
            }
            None => {}
        }
        let flags = self.opened.tensor(self.id).flags;
        if flags.conjugate || flags.negative {
            bail!(Code::Buffer, "the tensor is a lazy conjugate or negative, which needs a copy");
        }
        let source = self.opened.viewable_source(self.storage())?;
        if let Some(file_system) =
            source.file().and_then(LocalFile::avoids_views).filter(|_| request.copy != Some(false))
        {
            bail!(Code::Buffer, "a view of a file on {file_system} would be read page by page");
        }
        // Before anything is read.
        if source.file().is_none() {
            return Err(no_mapping(&source));
        }
        let source = source.proved()?;
        if self.dtype == DType::Bool {
            check_bools(&source, &self.layout, &request.cancel)?;
        }
        view_of(&source, self.dtype, self.layout.clone(), request)
    }
}

/// Whether an error means that no view is possible and a copy is needed.
pub(crate) fn is_view_unavailable(error: &Error) -> bool {
    matches!(error.code(), Code::Buffer | Code::RecordCompressed | Code::Memory)
}

/// The error for a source that cannot be mapped.
pub(crate) fn no_mapping(source: &Source) -> Error {
    let text = match source.name() {
        Some(_) => "only files on this machine have views: what is read through an object is copied",
        None => "bytes in memory have no view, they are copied",
    };
    Error::new(Code::Buffer, text)
}

/// A view of `layout` in the mapping of `source`, whose window is the storage. Fails for bytes in memory, and where the elements
/// are misaligned for the dtype.
fn view_of(source: &Source, dtype: DType, layout: Layout, request: &Request) -> Result<Array> {
    let mapped = match &request.mappings {
        Some(own) if request.writable => own.map(source)?,
        _ => source.map(request.writable)?,
    };
    let Some((mapping, window)) = mapped else {
        return Err(no_mapping(source));
    };
    let itemsize = dtype.itemsize();
    let start = if layout.numel() == 0 { 0 } else { layout.offset.saturating_mul(itemsize) };
    let start_region = window.subregion(start, 0);
    let start_region =
        start_region.ok_or_else(|| Error::new(Code::InternalError, "a view lies outside its file"))?;
    let array = Array::view(mapping, start_region.start(), dtype, layout)?;
    if !is_aligned(array.address(), dtype) {
        bail!(Code::Buffer, "the file has {dtype} at an address that is misaligned for it");
    }
    Ok(array)
}

fn is_aligned(address: NonNull<u8>, dtype: DType) -> bool {
    usize::try_from(dtype.align()).is_ok_and(|align| address.align_offset(align) == 0)
}

/// Fails if a bool's byte is neither 0 nor 1: a view would expose an invalid bool.
pub(crate) fn check_bools(source: &Source, layout: &Layout, cancel: &Cancel) -> Result<()> {
    let end = if layout.numel() == 0 { layout.offset } else { layout.end().unwrap_or(layout.offset) };
    let mut at = layout.offset;
    let mut chunk = vec![0_u8; 64 << 10];
    while at < end {
        cancel.check()?;
        let len = to_usize(end - at).min(chunk.len());
        let part = &mut chunk[..len];
        source.read_at(at, part)?;
        if part.iter().any(|&byte| byte > 1) {
            bail!(Code::Buffer, "the file has bools that are neither 0 nor 1");
        }
        at += len as u64;
    }
    Ok(())
}
