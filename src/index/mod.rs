//! Which tensors does a checkpoint hold, where, with which dtype, shape and strides?
//!
//! An index holds numbers and no borrow: an [`Entry`] names a [`Tensor`], a tensor lies in a [`Storage`], a storage is a range
//! of bytes of the file. A [`Tensor`] can only be made by the proof in `validate`, so whoever has one may read its range.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod extra;
mod known;
mod meaning;
mod names;
mod pickled;
mod safetensors;
mod script;
mod torch;
mod torch_legacy;
mod tree;
mod understood;
mod validate;

use std::collections::HashMap;
use std::sync::Arc;

use crate::bytes::{Io, Source};
use crate::container::zip::{Archive, Trailing};
use crate::container::{Format, sniff};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{self, Handle, Pickle};

pub use extra::{Extra, Packed, Part, Quantization, Scale, Sparse, SparseLayout};
pub(crate) use torch_legacy::PARTS as LEGACY_PARTS;
pub use tree::{DictKind, Object, Tree};
pub use understood::{Understood, understand};
pub use validate::{RawTensor, Sizes, Tensor};

/// What to do with a value that no known class describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// Keep it as inert data.
    #[default]
    Keep,
    /// Refuse the file.
    Error,
}

/// How to open a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Bounds on what the file may make the reader do.
    pub limits: Limits,
    /// What to do with values of unknown classes.
    pub unknown: Unknown,
    /// Whether bytes after the end of an archive or a pickle are passed over.
    pub ignore_trailing: bool,
    /// Whether a duplicate key of a safetensors header is taken as the reference reader takes it: the last one wins.
    pub compat: bool,
    /// Whether every storage's checksum is checked at once.
    pub verify: bool,
    /// How payload is read.
    pub io: Io,
    /// The request to stop.
    pub cancel: Cancel,
}

/// All that one file says about tensors.
#[derive(Debug)]
pub struct Index {
    /// The file's format.
    pub format: Format,
    /// The names, in the file's order.
    pub entries: Vec<Entry>,
    /// The tensors that names point to.
    pub tensors: Vec<Tensor>,
    /// The storages that tensors lie in.
    pub storages: Vec<Storage>,
    /// The file's own metadata, text to text.
    pub metadata: Vec<(String, String)>,
    /// The object tree of a pickle.
    pub tree: Option<Arc<Tree>>,
    /// Values of unknown classes, by class.
    pub opaque: Vec<OpaqueClass>,
    /// Things worth knowing that are no error.
    pub notes: Vec<String>,
    /// Where the storages' bytes come from.
    pub contents: Contents,
    /// One past the last byte that belongs to the checkpoint; `None` where that is all of the source.
    pub end: Option<u64>,
}

/// A name and what it names.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The dotted name.
    pub name: Arc<str>,
    /// The keys and indices from the root.
    pub path: Path,
    /// Which tensor.
    pub tensor: u32,
}

/// The way from the root to a tensor.
#[derive(Clone, Debug)]
pub enum Path {
    /// One key: the name itself.
    Name,
    /// The steps through an object tree.
    Steps(Box<[Step]>),
}

/// One step down an object tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value of a dict key, or an attribute.
    Key(Handle),
    /// The item of a list or tuple.
    Index(u32),
    /// An argument of an unknown class's constructor.
    Argument(u32),
    /// A part of a value that is put together from several: `indices`.
    Part(Part),
}

/// A storage: what tensors share.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Where the bytes are.
    pub place: Place,
    /// How many there are.
    pub nbytes: u64,
    /// How many elements of its class's dtype; bytes for an untyped one.
    pub numel: u64,
    /// Whether its numbers lie big-endian.
    pub big_endian: bool,
    /// The device that it was saved from; `None` where the file names none.
    pub location: Option<Arc<str>>,
}

/// Where a storage's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A range of the file.
    Region(crate::bytes::Region),
    /// A member of the archive.
    Member(usize),
    /// Bytes of the pickle itself: of this value, from this byte of it on.
    Value(Handle, u64),
    /// Nowhere: a storage without bytes.
    Empty,
    /// Nowhere: a tensor on the meta device has a shape, and no bytes were ever saved.
    Meta,
}

/// Where storages' bytes come from.
#[derive(Debug)]
pub enum Contents {
    /// Ranges of the file itself.
    Plain(Source),
    /// Members of the archive.
    Archive(Archive),
}

/// An unknown class and where its values sit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpaqueClass {
    /// `module.name`.
    pub class: String,
    /// How many values there are.
    pub count: u64,
    /// The names of the first few.
    pub at: Vec<String>,
}

/// Reads the index of one file, whatever its format.
pub fn read(source: &Source, options: &Options) -> Result<Index> {
    let refused = |code, text: &str| Err(Error::new(code, text));
    match sniff(source)? {
        Format::Safetensors => safetensors::read(source, options),
        Format::Zip => {
            let trailing = if options.ignore_trailing { Trailing::Ignore } else { Trailing::Error };
            torch::read(Archive::open(source, &options.limits, trailing)?, options)
        }
        Format::LegacyTorch => torch_legacy::read(source, options),
        Format::Pickle => plain_pickle(source, options),
        Format::Tar => refused(
            Code::TarUnsupported,
            "this is a tar archive, which is not read: that of torch 0.1 is a format of its own",
        ),
    }
}

/// A bare pickle: its tensors have their bytes in it.
fn plain_pickle(source: &Source, options: &Options) -> Result<Index> {
    Limits::check("pickle_bytes", options.limits.pickle_bytes, source.len())?;
    let data = source.chunk(0, source.len())?;
    let pickle = pickle::run_until(data, 0, &options.limits, &options.cancel)?;
    read_pickle(source, pickle, options)
}

/// Reads the index of a bare pickle that was run already, of all that `source` holds.
pub fn read_pickle(source: &Source, pickle: Pickle, options: &Options) -> Result<Index> {
    torch_legacy::wrong_magic(pickle.values.data(), &options.limits)?;
    let locate = |key: &str, _: u64| {
        let text = format!("the pickle names storage {key}, but a bare pickle holds no storages");
        Err(Error::new(Code::PersistentId, text))
    };
    let mut read = pickled::read_run(pickle, meaning::Ids::Archive, &locate, HashMap::new(), options)?;
    let notes = std::mem::take(&mut read.notes);
    Ok(read.into_index(Format::Pickle, notes, Contents::Plain(source.clone())))
}
