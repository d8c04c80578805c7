//! The bytes of a storage: in the file, in a pickle, or inflated in memory.

use std::sync::Arc;

use super::Opened;
use crate::bytes::Source;
use crate::error::{Code, Error, Result};
use crate::index::{Contents, StorageLocation};
use crate::parallel::{Cancel, lock_within};
use crate::stream::Payload;

/// The largest inflated storage that is cached for the next read. Streams evict it unless their next tensor needs it.
const INFLATED_CACHE_MAX_BYTES: u64 = 256 << 20;

/// Attempts to lock the cache. Other threads hold the lock only to move a value in or out.
const CACHE_LOCK_ATTEMPTS: u32 = 64;

impl Opened {
    /// A storage's bytes as the file has them. Fails with the reason where no view of them is possible.
    pub(crate) fn viewable_source(&self, id: (u32, u32)) -> Result<Source> {
        let storage = self.storage(id);
        if storage.big_endian {
            let text = "the elements are big-endian, which needs a copy";
            return Err(Error::new(Code::Buffer, text));
        }
        if let StorageLocation::Value(..) = storage.location {
            return Err(Error::new(Code::Buffer, "the bytes are part of a pickle"));
        }
        let compressed = || Error::new(Code::RecordCompressed, "the storage is compressed in the file");
        Ok(self.stored_payload(id)?.ok_or_else(compressed)?.source)
    }

    /// A storage's bytes, inflated where they are compressed.
    pub(crate) fn payload(&self, id: (u32, u32), cancel: &Cancel) -> Result<Payload> {
        match self.stored_payload(id)? {
            Some(payload) => Ok(payload),
            None => {
                Ok(Payload { source: self.inflate(id, cancel)?, big_endian: self.storage(id).big_endian })
            }
        }
    }

    /// A storage's bytes as they are stored; `None` where they are compressed. Fails for a storage on the meta device.
    pub(crate) fn stored_payload(&self, id: (u32, u32)) -> Result<Option<Payload>> {
        let storage = self.storage(id);
        let index = self.index(id.0);
        let source = match (&index.contents, storage.location) {
            (_, StorageLocation::Empty) => Source::memory(Arc::new([])),
            (_, StorageLocation::Meta) => {
                let text = "the tensor is on the meta device: it has a shape and no elements";
                return Err(Error::new(Code::MetaTensor, text));
            }
            (_, StorageLocation::Value(handle, start)) => {
                let bytes = index.tree.as_ref().and_then(|tree| tree.bytes(handle));
                let window = bytes.and_then(|bytes| Source::memory(bytes).window(start, storage.nbytes).ok());
                window.ok_or_else(|| {
                    Error::new(Code::InternalError, "a storage's bytes are not in its pickle")
                })?
            }
            (Contents::Plain(source), StorageLocation::Region(region)) => {
                source.window(region.start(), region.len())?
            }
            (Contents::Archive(_), StorageLocation::Member(_)) if self.is_compressed(id) => return Ok(None),
            (Contents::Archive(archive), StorageLocation::Member(member)) => {
                let region = archive.payload(member)?;
                archive.source().window(region.start(), region.len())?
            }
            _ => return Err(no_location()),
        };
        Ok(Some(Payload { source, big_endian: storage.big_endian }))
    }

    /// Inflates a deflated storage, or takes it from the cache. Threads do not wait for each other: two may inflate the same
    /// storage.
    fn inflate(&self, id: (u32, u32), cancel: &Cancel) -> Result<Source> {
        let (nbytes, location) = (self.storage(id).nbytes, self.storage(id).location);
        let (Contents::Archive(archive), StorageLocation::Member(member)) =
            (&self.index(id.0).contents, location)
        else {
            return Err(no_location());
        };
        let cache = || lock_within(&self.inflated_cache, CACHE_LOCK_ATTEMPTS);
        let cached = cache().and_then(|cache| {
            cache.as_ref().filter(|(cached, _)| *cached == id).map(|(_, source)| source.clone())
        });
        let source = match cached {
            Some(source) => source,
            None => {
                // Evict first, so that one read never holds two inflated storages.
                let evicted = cache().and_then(|mut cache| cache.take());
                drop(evicted);
                let source = Source::memory(Arc::new(archive.read_inflated(member, nbytes, cancel)?));
                if nbytes <= INFLATED_CACHE_MAX_BYTES {
                    // A storage that another thread cached meanwhile is freed after the lock is released.
                    let evicted = cache().and_then(|mut cache| cache.replace((id, source.clone())));
                    drop(evicted);
                }
                source
            }
        };
        // Reads of memory do not check whether the file has changed, so it is checked here.
        archive.source().check_unchanged()?;
        Ok(source)
    }

    /// Evicts the cached inflated storage, unless it is `except`.
    pub(crate) fn evict_inflated(&self, except: Option<(u32, u32)>) {
        let evicted = lock_within(&self.inflated_cache, CACHE_LOCK_ATTEMPTS)
            .and_then(|mut cache| cache.take_if(|(id, _)| Some(*id) != except));
        drop(evicted);
    }
}

fn no_location() -> Error {
    Error::new(Code::InternalError, "a storage has no location in its file")
}
