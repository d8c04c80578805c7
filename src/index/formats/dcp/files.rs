//! The files that the chunks and values of a distributed checkpoint lie in, and its values.

use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use once_cell::race::OnceBox;

use crate::bytes::{FileStamp, Folder, Region, Source};
use crate::error::{Code, Error, Result, error};
#[cfg(feature = "scan")]
use crate::index::model::ChunkItem;
use crate::index::model::{Options, Path};
use crate::num::u32_to_usize;

/// Where an item is stored: the number of its file, and the range.
pub(super) type Place = (u32, Region);

/// A value that is not a tensor, stored as an archive of torch in a range of a file.
#[derive(Clone, Debug)]
pub struct SavedValue {
    /// Its name.
    pub name: Arc<str>,
    /// Its path from the root of what was saved.
    pub path: Path,
    pub(super) place: Place,
}

/// The values of a distributed checkpoint that are not tensors. Each is read when it is asked for.
#[derive(Debug)]
pub struct SavedValues {
    pub(super) values: Vec<SavedValue>,
    pub(super) files: Arc<ChunkFiles>,
}

impl SavedValues {
    /// The values, in the order of the metadata.
    pub fn list(&self) -> &[SavedValue] {
        &self.values
    }

    /// The stamps of the files beside the metadata.
    pub fn file_stamps(&self) -> Result<Vec<FileStamp>> {
        self.files.stamps()
    }

    /// The bytes of a value: an archive.
    pub fn source(&self, value: &SavedValue) -> Result<Source> {
        self.files.window(value.place)
    }

    /// The file of a value, and the range in it, or in the member of an archive.
    pub fn place(&self, value: &SavedValue) -> (Option<&FilePath>, Region) {
        (self.files.path(value.place.0), value.place.1)
    }

    /// As [`SavedValues::place`], for a scan.
    #[cfg(feature = "scan")]
    pub(in crate::index::formats) fn item(&self, value: &SavedValue) -> Option<ChunkItem<'_>> {
        self.files.item(value.place)
    }
}

/// The files that the chunks and values of a distributed checkpoint lie in. Each is opened when it is first read.
#[derive(Debug)]
pub(super) struct ChunkFiles {
    files: Box<[ChunkFile]>,
    pub(super) options: Options,
}

pub(super) enum ChunkFile {
    /// A file in a folder.
    Named {
        folder: Folder,
        name: String,
        /// The path, or URL, of the file.
        path: PathBuf,
        /// Its size when the checkpoint was opened.
        len: u64,
        source: OnceBox<Source>,
    },
    /// A range of an open file.
    Window(Source),
}

impl fmt::Debug for ChunkFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkFile::Named { path, .. } => write!(f, "ChunkFile({})", path.display()),
            ChunkFile::Window(source) => source.fmt(f),
        }
    }
}

impl ChunkFile {
    /// A file of this size in a folder.
    pub(super) fn named(folder: &Folder, name: &str, len: u64) -> ChunkFile {
        let (path, name) = (folder.path().join(name), name.to_owned());
        ChunkFile::Named { folder: folder.clone(), name, path, len, source: OnceBox::new() }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            ChunkFile::Named { len, .. } => *len,
            ChunkFile::Window(source) => source.len(),
        }
    }
}

impl ChunkFiles {
    pub(super) fn new(files: Vec<ChunkFile>, options: &Options) -> ChunkFiles {
        ChunkFiles { files: files.into(), options: options.clone() }
    }

    /// The stamps of the files on disk: of one that was read as it was then, of the others as they are now. Fails where a file has
    /// another size than when the checkpoint was opened.
    pub(super) fn stamps(&self) -> Result<Vec<FileStamp>> {
        let mut stamps = Vec::new();
        for file in &self.files {
            let ChunkFile::Named { folder, path, len, source, .. } = file else { continue };
            if matches!(folder, Folder::Store(_)) {
                continue;
            }
            let stamp = match source.get().and_then(|source| source.file_stamp()) {
                Some(stamp) => stamp,
                None => FileStamp::of_path(path)?,
            };
            if stamp.len != *len {
                return Err(size_changed(path, *len, stamp.len));
            }
            stamps.push(stamp);
        }
        Ok(stamps)
    }

    /// A range of a file. Fails where the file has another size than when the checkpoint was opened.
    pub(super) fn window(&self, (file, region): Place) -> Result<Source> {
        let file = self
            .files
            .get(u32_to_usize(file))
            .ok_or_else(|| Error::new(Code::InternalError, "a chunk is in no file"))?;
        let source = match file {
            ChunkFile::Window(source) => source,
            ChunkFile::Named { folder, name, path, len, source } => source.get_or_try_init(|| {
                let source = folder.open(name)?;
                match source.len() == *len {
                    true => Ok(Box::new(source)),
                    false => Err(size_changed(path, *len, source.len())),
                }
            })?,
        };
        source.window(region.start(), region.len())
    }

    /// The path or URL of a file, or of the archive that it is in; `None` for an archive in memory.
    pub(super) fn path(&self, file: u32) -> Option<&FilePath> {
        match self.files.get(u32_to_usize(file))? {
            ChunkFile::Named { path, .. } => Some(path),
            ChunkFile::Window(source) => source.path(),
        }
    }

    #[cfg(feature = "scan")]
    pub(super) fn item(&self, (file, region): Place) -> Option<ChunkItem<'_>> {
        Some(match self.files.get(u32_to_usize(file))? {
            ChunkFile::Named { path, .. } => ChunkItem::File(path, region),
            ChunkFile::Window(source) => ChunkItem::Window(source, region),
        })
    }
}

fn size_changed(path: &FilePath, before: u64, now: u64) -> Error {
    error!(Code::FileChanged, "the file had {before} byte(s) and now has {now}").in_file(path)
}
