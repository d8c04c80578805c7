//! The bytes of a storage: in the file, in a pickle, or inflated in memory.

use std::sync::Arc;

use super::Opened;
use crate::bytes::Source;
use crate::error::{Code, Error, Result, bail};
use crate::index::{Chunks, Deflated, Location, StorageBytes};
use crate::parallel::{Cancel, lock_unless_stuck};
use crate::stream::Payload;

/// The largest inflated storage that is cached for the next read. Streams evict it unless their next tensor needs it.
const INFLATED_CACHE_MAX_BYTES: u64 = 256 << 20;

impl Opened {
    /// A storage's bytes as the file has them, maybe not [proved](Source::proved) yet. Fails with the reason where no view of them is
    /// possible.
    pub(crate) fn viewable_source(&self, id: (u32, u32)) -> Result<Source> {
        if self.storage(id).big_endian {
            bail!(Code::Buffer, "the elements are big-endian, which needs a copy");
        }
        match self.index(id.0).bytes(id.1)? {
            StorageBytes::Stored(source) => Ok(source),
            StorageBytes::Empty => Ok(empty()),
            StorageBytes::InPickle(_) => Err(Error::new(Code::Buffer, "the bytes are part of a pickle")),
            StorageBytes::Chunks(_) => {
                Err(Error::new(Code::Buffer, "the elements are in several chunks, or not in C order"))
            }
            StorageBytes::Deflated(_) => {
                Err(Error::new(Code::RecordCompressed, "the storage is compressed in the file"))
            }
            StorageBytes::Meta => Err(meta_error()),
        }
    }

    /// A storage's bytes, inflated where they are compressed.
    pub(crate) fn payload(&self, id: (u32, u32), cancel: &Cancel) -> Result<Payload> {
        let source = match self.index(id.0).bytes(id.1)? {
            StorageBytes::Stored(source) | StorageBytes::InPickle(source) => source,
            StorageBytes::Deflated(deflated) => self.inflate(id, &deflated, cancel)?,
            StorageBytes::Chunks(_) => {
                bail!(Code::DtypeUnsupported, "a tensor in chunks has no storage: read the tensor");
            }
            StorageBytes::Empty => empty(),
            StorageBytes::Meta => return Err(meta_error()),
        };
        Ok(Payload { source, big_endian: self.storage(id).big_endian })
    }

    /// A storage's bytes as they are stored; `None` where they are compressed or in chunks. Fails for a storage on the meta device.
    pub(crate) fn stored_payload(&self, id: (u32, u32)) -> Result<Option<Payload>> {
        let source = match self.index(id.0).bytes(id.1)? {
            StorageBytes::Stored(source) | StorageBytes::InPickle(source) => source,
            StorageBytes::Deflated(_) | StorageBytes::Chunks(_) => return Ok(None),
            StorageBytes::Empty => empty(),
            StorageBytes::Meta => return Err(meta_error()),
        };
        Ok(Some(Payload { source, big_endian: self.storage(id).big_endian }))
    }

    /// The chunks of a storage; `None` where its bytes are in one place.
    pub(crate) fn chunks(&self, id: (u32, u32)) -> Result<Option<&Chunks>> {
        if !matches!(self.storage(id).location, Location::Chunks(_)) {
            return Ok(None);
        }
        Ok(match self.index(id.0).bytes(id.1)? {
            StorageBytes::Chunks(chunks) => Some(chunks),
            _ => None,
        })
    }

    /// Inflates a deflated storage, or takes it from the cache. Threads do not wait for each other: two may inflate the same
    /// storage.
    fn inflate(&self, id: (u32, u32), deflated: &Deflated<'_>, cancel: &Cancel) -> Result<Source> {
        let cache = || lock_unless_stuck(&self.inflated_cache);
        let cached = cache().and_then(|cache| {
            cache.as_ref().filter(|(cached, _)| *cached == id).map(|(_, source)| source.clone())
        });
        let source = match cached {
            Some(source) => source,
            None => {
                // Evict first, so that one read never holds two inflated storages.
                let evicted = cache().and_then(|mut cache| cache.take());
                drop(evicted);
                let source = deflated.inflate(cancel)?;
                if source.len() <= INFLATED_CACHE_MAX_BYTES {
                    // A storage that another thread cached meanwhile is freed after the lock is released.
                    let evicted = cache().and_then(|mut cache| cache.replace((id, source.clone())));
                    drop(evicted);
                }
                source
            }
        };
        // Reads of memory do not check whether the file has changed, so it is checked here.
        self.index(id.0).source.check_unchanged()?;
        Ok(source)
    }

    /// Evicts the cached inflated storage, unless it is `except`.
    pub(crate) fn evict_inflated(&self, except: Option<(u32, u32)>) {
        let evicted = lock_unless_stuck(&self.inflated_cache)
            .and_then(|mut cache| cache.take_if(|(id, _)| Some(*id) != except));
        drop(evicted);
    }
}

fn empty() -> Source {
    Source::memory(Arc::new([]))
}

fn meta_error() -> Error {
    Error::new(Code::MetaTensor, "the tensor is on the meta device: it has a shape and no elements")
}
