//! What a library of stores implements: bytes that are read by position, and folders of them.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use super::access::Access;
use crate::error::Result;

/// Bytes that are read by position, such as a file or an object in a store.
///
/// One value is one version of the bytes: if they change under way, [`ReadRanges::check_unchanged`] fails, or a read does. Only
/// `size` and `read_at` must be written. Reads block the calling thread, and several threads may read at once.
///
/// ```
/// use std::sync::Arc;
///
/// use rustload::{Checkpoint, Code, Error, Options, ReadRanges, Result};
///
/// struct Object(Vec<u8>);
///
/// impl ReadRanges for Object {
///     fn size(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
///         let rest = self.0.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
///         out.copy_from_slice(rest.ok_or_else(|| Error::new(Code::Io, "the object is shorter"))?);
///         Ok(())
///     }
/// }
///
/// let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[7, 8, 9]].concat();
/// let checkpoint = Checkpoint::from_ranges(Arc::new(Object(bytes)), Options::new())?;
/// assert_eq!(checkpoint.tensor("w")?.materialize(&Default::default())?.as_slice::<u8>(), Some(&[7, 8, 9][..]));
/// # Ok::<(), Error>(())
/// ```
pub trait ReadRanges: Send + Sync {
    /// The number of bytes. It does not change.
    fn size(&self) -> u64;

    /// Fills `out` with the bytes from `offset` on. Fails if not all of them can be read; then `out` may be filled in part.
    ///
    /// Callers keep the range inside [`ReadRanges::size`].
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// As [`ReadRanges::read_at`], into memory that has been in use before and is not read right after: a source that computes its bytes
    /// may write them with non-temporal stores. By default it does not.
    fn read_at_non_temporal(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_at(offset, out)
    }

    /// Reads several ranges. They come in any order and may overlap. Fails if one of them fails.
    ///
    /// By default they are read one after another; a source whose reads take long should send all requests at once.
    fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        ranges.iter_mut().try_for_each(|range| self.read_at(range.offset, range.out))
    }

    /// How the bytes are read best. Asked once.
    fn access(&self) -> Access {
        Access::default()
    }

    /// Fails with [`Code::FileChanged`](crate::error::Code::FileChanged) if these are no longer the bytes that were opened. Asked
    /// after each batch of reads, not after each read. By default they never change.
    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }

    /// A name for messages, such as a URL without credentials. `None` if there is none.
    fn name(&self) -> Option<&str> {
        None
    }

    /// A text that another process also gets for the same version of the same bytes and for nothing else, such as a URL without
    /// credentials and the ETag. `None` if there is none. Only what has one can be resumed, see
    /// [`WriteOptions::resume`](crate::write::WriteOptions::resume).
    fn identity(&self) -> Option<String> {
        None
    }

    /// The folder that it is in, if its content may name other files there, as the metadata of a distributed checkpoint does. `None` if
    /// there is none.
    fn folder(&self) -> Option<Arc<dyn ReadFolder>> {
        None
    }
}

/// One range to read, and where to.
#[derive(Debug)]
pub struct RangeRead<'a> {
    /// The offset of its first byte.
    pub offset: u64,
    /// The destination; its length is the range's.
    pub out: &'a mut [u8],
}

/// A folder of files, such as the objects in a store that have a common prefix.
///
/// Callers ask for plain names only: none has a `/`, `\` or NUL, or is empty, `.` or `..`.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use rustload::{Checkpoint, Code, Error, Options, ReadFolder, ReadRanges, Result};
/// # struct Object(Vec<u8>);
/// # impl ReadRanges for Object {
/// #     fn size(&self) -> u64 {
/// #         self.0.len() as u64
/// #     }
/// #     fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
/// #         let rest = self.0.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
/// #         out.copy_from_slice(rest.ok_or_else(|| Error::new(Code::Io, "the object is shorter"))?);
/// #         Ok(())
/// #     }
/// # }
///
/// struct Bucket(BTreeMap<String, Vec<u8>>);
///
/// impl ReadFolder for Bucket {
///     fn path(&self) -> &Path {
///         Path::new("bucket://model")
///     }
///
///     fn names(&self) -> Result<Vec<String>> {
///         Ok(self.0.keys().cloned().collect())
///     }
///
///     fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
///         Ok(names.iter().map(|&name| Some(self.0.get(name)?.len() as u64)).collect())
///     }
///
///     fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>> {
///         let bytes = self.0.get(name).ok_or_else(|| Error::new(Code::Io, "there is no such object"))?;
///         Ok(Arc::new(Object(bytes.clone()))) // as in the example of `ReadRanges`
///     }
/// }
///
/// # let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// # let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[7, 8, 9]].concat();
/// let bucket = Bucket(BTreeMap::from([("model.safetensors".to_owned(), bytes)]));
/// let checkpoint = Checkpoint::from_folder(Arc::new(bucket), &[], Options::new())?;
/// assert_eq!(checkpoint.files().collect::<Vec<_>>(), [Path::new("bucket://model/model.safetensors")]);
/// # Ok::<(), Error>(())
/// ```
pub trait ReadFolder: Send + Sync {
    /// Its path, or a URL without credentials; for messages.
    fn path(&self) -> &Path;

    /// The names of the files in it.
    fn names(&self) -> Result<Vec<String>>;

    /// The size of each of these files in bytes; `None` for one that does not exist.
    fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>>;

    /// Opens a file. Fails if it does not exist.
    fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>>;

    /// The names of the folders in it, in which checkpoints of ranks have their files. By default none.
    fn folders(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// A folder in it, which need not be listed; one that does not exist may fail later. By default there is none.
    fn folder(&self, _name: &str) -> Result<Option<Arc<dyn ReadFolder>>> {
        Ok(None)
    }

    /// Whether its files are read as a manifest lists them, so that what is beside a file has to be read through it too.
    #[doc(hidden)]
    fn is_verified(&self) -> bool {
        false
    }
}
