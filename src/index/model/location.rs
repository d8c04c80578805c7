//! Where the bytes of a storage lie in its file, and how they are stored there.
//!
//! A reader of a format gives each storage one [`Location`]. [`Index::bytes`](super::Index::bytes) resolves it to [`StorageBytes`], which name no format, so
//! nothing above the index knows which formats exist.

use std::fmt;
use std::sync::Arc;

use super::chunks::Chunks;
use crate::bytes::{Bytes, Region, Source};
use crate::container::zip::{Archive, Member};
use crate::error::{Code, Error, Result};
use crate::parallel::Cancel;
use crate::pickle::Handle;

/// The location of a storage's bytes.
#[derive(Clone, Debug)]
pub enum Location {
    /// No bytes: the storage is empty.
    Empty,
    /// No bytes: the tensor is on the meta device, and its elements were not saved.
    Meta,
    /// A range of [`Index::source`](super::Index::source), as they are.
    Range(Region),
    /// In a member of a zip archive, stored or deflated.
    Member {
        /// The archive.
        archive: Arc<Archive>,
        /// The number of the member.
        number: u32,
        /// Bytes of a header before them, in the inflated member.
        skip: u64,
    },
    /// In chunks, each in a place of its own.
    Chunks(Arc<Chunks>),
    /// Made of other bytes of the checkpoint as it is read: a source, and the offset of those bytes in their file.
    Derived(Source, u64),
    /// In the pickle itself: the bytes of this value, from this offset on.
    Value(Arc<dyn ValueBytes>, Handle, u64),
}

/// A storage: bytes that one or more tensors refer to. `L` is the location of its bytes, or what is known of it so far.
#[derive(Clone, Debug)]
pub struct Storage<L = Location> {
    /// The location of its bytes.
    pub location: L,
    /// Its size in bytes.
    pub nbytes: u64,
    /// The number of elements of its class's dtype; bytes for an untyped one.
    pub numel: u64,
    /// Whether its elements are big-endian.
    pub big_endian: bool,
    /// The device that it was saved from (`location` in torch); `None` where the file names none.
    pub device: Option<Arc<str>>,
}

/// The values of a pickle.
pub trait ValueBytes: fmt::Debug + Send + Sync {
    /// The bytes of a value: bytes, a byte array, a byte string of Python 2, or a string as latin-1; `None` for other values.
    /// They are borrowed from the pickle, except where they have to be encoded.
    fn bytes(self: Arc<Self>, value: Handle) -> Option<Bytes>;
}

/// The bytes of a storage.
#[derive(Debug)]
pub enum StorageBytes<'a> {
    /// As they are: a range of a file or of memory.
    Stored(Source),
    /// Deflated in the file.
    Deflated(Deflated<'a>),
    /// In several chunks, or in one that is not in C order.
    Chunks(&'a Chunks),
    /// Part of a pickle, in memory.
    InPickle(Source),
    /// None: the storage is empty.
    Empty,
    /// None: the tensor is on the meta device, and its elements were not saved.
    Meta,
}

/// The bytes of a storage that are deflated in the file.
#[derive(Debug)]
pub struct Deflated<'a> {
    archive: &'a Archive,
    number: usize,
    skip: u64,
    nbytes: u64,
}

impl StorageBytes<'_> {
    /// The bytes of a chunk's storage as the file has them. Fails with `DcpChunk` where it has them in another form.
    pub(crate) fn into_stored(self) -> Result<Source> {
        match self {
            StorageBytes::Stored(source) | StorageBytes::InPickle(source) => Ok(source),
            StorageBytes::Empty => Ok(Source::memory(Arc::new([]))),
            _ => Err(Error::new(Code::DcpChunk, "the elements of a chunk are compressed or absent")),
        }
    }
}

impl Deflated<'_> {
    /// Inflates them into memory, and checks their checksum.
    pub fn inflate(&self, cancel: &Cancel) -> Result<Source> {
        let len = self.skip.saturating_add(self.nbytes);
        let bytes = self.archive.read_inflated(self.number, len, cancel)?;
        Source::memory(Arc::new(bytes)).window(self.skip, self.nbytes)
    }
}

impl Location {
    /// The member of a zip archive and its number; `None` elsewhere.
    pub(super) fn member(&self) -> Option<(&Arc<Archive>, usize)> {
        match self {
            Location::Member { archive, number, .. } => Some((archive, usize::try_from(*number).ok()?)),
            _ => None,
        }
    }

    /// The offset of the bytes in their file. Approximate in an archive, as good for sorting only; 0 inside a pickle.
    pub(crate) fn position(&self) -> u64 {
        match self {
            Location::Range(region) => region.start(),
            Location::Chunks(chunks) => chunks.position(),
            Location::Derived(_, position) => *position,
            location => location.member_entry().map_or(0, Member::header_offset),
        }
    }

    /// The bytes of a storage of `nbytes` in `source`: see [`Index::bytes`](super::Index::bytes).
    pub(crate) fn bytes(&self, source: &Source, nbytes: u64) -> Result<StorageBytes<'_>> {
        Ok(match self {
            Location::Empty => StorageBytes::Empty,
            Location::Meta => StorageBytes::Meta,
            Location::Range(region) => StorageBytes::Stored(source.window(region.start(), region.len())?),
            Location::Derived(source, _) => StorageBytes::Stored(source.clone()),
            Location::Chunks(chunks) => match chunks.as_stored()? {
                Some(source) => StorageBytes::Stored(source),
                None => StorageBytes::Chunks(chunks),
            },
            Location::Member { archive, number, skip } => {
                let (number, skip) = (usize::try_from(*number).unwrap_or(usize::MAX), *skip);
                if self.member_entry().is_some_and(Member::is_compressed) {
                    return Ok(StorageBytes::Deflated(Deflated { archive, number, skip, nbytes }));
                }
                let member = archive.payload_source(number)?;
                let is_inside = skip.checked_add(nbytes).is_some_and(|end| end <= member.len());
                StorageBytes::Stored(if is_inside {
                    member.window(skip, nbytes)?
                } else {
                    return Err(no_bytes());
                })
            }
            Location::Value(pickle, value, start) => {
                let bytes = pickle.clone().bytes(*value);
                let found = bytes.and_then(|bytes| Source::memory(bytes).window(*start, nbytes).ok());
                StorageBytes::InPickle(found.ok_or_else(no_bytes)?)
            }
        })
    }

    fn member_entry(&self) -> Option<&Member> {
        self.member().and_then(|(archive, number)| archive.members().get(number))
    }

    /// Reads all bytes once and checks their checksum; does nothing where the file has none for them.
    pub(crate) fn verify(&self, cancel: &Cancel) -> Result<()> {
        self.member().map_or(Ok(()), |(archive, number)| archive.verify(number, cancel))
    }
}

impl Storage {
    /// Whether the file has no bytes for it: it is empty, or on the meta device.
    pub fn is_absent(&self) -> bool {
        matches!(self.location, Location::Empty | Location::Meta)
    }

    /// The name of the member that has its bytes; `None` where they are not a member of an archive.
    pub(crate) fn member_name(&self) -> Option<String> {
        self.location.member_entry().map(|member| member.name().to_owned())
    }

    /// Whether it is compressed in the file.
    pub fn is_compressed(&self) -> bool {
        self.location.member_entry().is_some_and(Member::is_compressed)
    }

    /// The offset of its bytes in [`Index::source`](super::Index::source). Approximate in an archive, as good for sorting only; 0 inside a pickle.
    pub fn position(&self) -> u64 {
        self.location.position()
    }
}

fn no_bytes() -> Error {
    Error::new(Code::InternalError, "a storage's bytes are not where its location says")
}
