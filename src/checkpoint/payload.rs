//! Where a storage's bytes are: in the file, in a pickle, or inflated in memory.

use std::sync::Arc;

use super::Inner;
use crate::bytes::Source;
use crate::error::{Code, Error, Result};
use crate::index::{Contents, StorageLocation};
use crate::parallel::{Cancel, lock_within};
use crate::stream::Payload;

/// Bytes of the largest inflated storage that is kept for the next read. Streams keep none but for their next tensor.
const KEPT: u64 = 256 << 20;

/// How often a read looks for the storage that is kept while another thread is at it, which takes it about as long as a move.
const TRIES: u32 = 64;

impl Inner {
    /// A storage's bytes as the file has them, or an error that says why no view of them exists.
    pub(crate) fn plain_payload(&self, id: (u32, u32)) -> Result<Source> {
        let storage = self.storage(id);
        if storage.big_endian {
            let text = "the numbers are big-endian, so a view would show wrong ones";
            return Err(Error::new(Code::Buffer, text));
        }
        if let StorageLocation::Value(..) = storage.location {
            return Err(Error::new(Code::Buffer, "the bytes are part of a pickle"));
        }
        let compressed = || Error::new(Code::RecordCompressed, "the storage is compressed in the file");
        Ok(self.stored(id)?.ok_or_else(compressed)?.source)
    }

    /// A storage's bytes, inflated if need be.
    pub(crate) fn payload(&self, id: (u32, u32), cancel: &Cancel) -> Result<Payload> {
        match self.stored(id)? {
            Some(payload) => Ok(payload),
            None => {
                Ok(Payload { source: self.inflated(id, cancel)?, big_endian: self.storage(id).big_endian })
            }
        }
    }

    /// A storage's bytes where they lie; `None` where they have to be inflated.
    pub(crate) fn stored(&self, id: (u32, u32)) -> Result<Option<Payload>> {
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
                let found = bytes.and_then(|bytes| Source::memory(bytes).window(start, storage.nbytes).ok());
                found.ok_or_else(|| {
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
            _ => return Err(nowhere()),
        };
        Ok(Some(Payload { source, big_endian: storage.big_endian }))
    }

    /// A deflated storage's bytes in memory. Nobody waits for another's inflating; two at once may do it twice.
    fn inflated(&self, id: (u32, u32), cancel: &Cancel) -> Result<Source> {
        let (nbytes, location) = (self.storage(id).nbytes, self.storage(id).location);
        let (Contents::Archive(archive), StorageLocation::Member(member)) =
            (&self.index(id.0).contents, location)
        else {
            return Err(nowhere());
        };
        let slot = || lock_within(&self.inflated, TRIES);
        let kept = slot()
            .and_then(|slot| slot.as_ref().filter(|(kept, _)| *kept == id).map(|(_, source)| source.clone()));
        let source = match kept {
            Some(source) => source,
            None => {
                // First, so that two storages are never held for one read.
                let gone = slot().and_then(|mut slot| slot.take());
                drop(gone);
                let source = Source::memory(Arc::new(archive.read_inflated(member, nbytes, cancel)?));
                if nbytes <= KEPT {
                    // What another thread has put there meanwhile goes once the lock is free again.
                    let gone = slot().and_then(|mut slot| slot.replace((id, source.clone())));
                    drop(gone);
                }
                source
            }
        };
        // Bytes in memory do not tell whoever reads them that the file is another one by now.
        archive.source().check_unchanged()?;
        Ok(source)
    }

    /// Lets go of the storage that was inflated last, unless it is this one.
    pub(crate) fn forget_inflated(&self, except: Option<(u32, u32)>) {
        let gone = lock_within(&self.inflated, TRIES)
            .and_then(|mut kept| kept.take_if(|(id, _)| Some(*id) != except));
        drop(gone);
    }
}

fn nowhere() -> Error {
    Error::new(Code::InternalError, "a storage has no place in its file")
}
