//! The folder of a distributed checkpoint, on disk, in a store or in a tar archive: which files its metadata may name, and which ranges of them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path as FilePath, PathBuf};

use super::files::{ChunkFile, Place};
use crate::bytes::{self, Region, Source, is_plain_name};
use crate::container::tar::Archive;
use crate::error::{Code, Error, Result, error};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};

/// The folder of a distributed checkpoint, and the files that its metadata names.
pub(in crate::index::formats) struct Folder<'a> {
    place: FolderPlace<'a>,
    numbers: HashMap<String, u32>,
    pub(super) files: Vec<ChunkFile>,
}

/// Where a folder is.
enum FolderPlace<'a> {
    /// On disk, or in a store.
    Folder {
        folder: bytes::Folder,
        /// The folders on disk that files may be in once links are followed: that of the metadata, before and after its own link is
        /// followed. `None` in a store, which has no links.
        allowed: Option<Vec<PathBuf>>,
        /// The most files in a store, each of which is asked for.
        requests_max: u64,
    },
    /// In an archive, which has no links. The folder has no slash at its end.
    Archive(&'a Archive, &'a str),
}

impl<'a> Folder<'a> {
    /// The folder of an archive that has the metadata.
    pub(in crate::index::formats) fn in_archive(archive: &'a Archive, folder: &'a str) -> Folder<'a> {
        Folder { place: FolderPlace::Archive(archive, folder), numbers: HashMap::new(), files: Vec::new() }
    }

    /// The folder that has the metadata; `path` is that of the metadata, if it is on disk.
    pub(in crate::index::formats) fn of(
        folder: bytes::Folder,
        metadata: Option<&FilePath>,
        limits: &Limits,
    ) -> Result<Folder<'a>> {
        let allowed = match (&folder, metadata) {
            (bytes::Folder::Disk(path, _), Some(metadata)) => {
                let failed = |error| Error::io(error, metadata.to_owned());
                let path = if path.as_os_str().is_empty() { FilePath::new(".") } else { path };
                let mut allowed = vec![fs::canonicalize(path).map_err(failed)?];
                allowed.extend(fs::canonicalize(metadata).map_err(failed)?.parent().map(FilePath::to_owned));
                Some(allowed)
            }
            _ => None,
        };
        let place = FolderPlace::Folder { folder, allowed, requests_max: limits.remote_requests };
        Ok(Folder { place, numbers: HashMap::new(), files: Vec::new() })
    }

    /// The number of a file. Fails with `DcpPath` unless its name is a plain one in the folder, and with `ShardMissing` where it does
    /// not exist.
    pub(super) fn file(&mut self, name: &str) -> Result<u32> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        if !is_plain_name(name) {
            return Err(escape(name, "is not a plain name in the checkpoint's folder"));
        }
        let file = match &self.place {
            FolderPlace::Folder { folder, allowed: Some(allowed), .. } => on_disk(folder, allowed, name)?,
            FolderPlace::Folder { folder, allowed: None, requests_max } => {
                Limits::check("remote_requests", *requests_max, to_u64(self.files.len()).saturating_add(1))?;
                let size = folder.sizes(&[name])?.first().copied().flatten();
                ChunkFile::named(folder, name, size.ok_or_else(|| missing(name))?)
            }
            FolderPlace::Archive(archive, folder) => {
                let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
                let member = archive.find(&path).ok_or_else(|| missing(name))?;
                ChunkFile::Window(archive.window(member)?)
            }
        };
        let number = to_u32(self.files.len());
        self.files.push(file);
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Opens a file in the folder or below it; not in an archive. Fails as [`file`](Folder::file) does.
    pub(in crate::index::formats) fn open(&self, path: &str) -> Result<Source> {
        if !path.split('/').all(is_plain_name) {
            return Err(escape(path, "is not one of plain names in the checkpoint's folder"));
        }
        let FolderPlace::Folder { folder, allowed, .. } = &self.place else { return Err(missing(path)) };
        match allowed {
            Some(allowed) => on_disk(folder, allowed, path).map(|_| ())?,
            None if path.contains('/') => {
                let text =
                    format!("the metadata names the file {path:?}, and subfolders of a store are not read");
                return Err(Error::new(Code::ShardMissing, text).note("Download the folder, and open that."));
            }
            None if folder.sizes(&[path])?.first().copied().flatten().is_none() => return Err(missing(path)),
            None => {}
        }
        folder.open(path)
    }

    /// Its path, or a URL; empty in an archive.
    pub(in crate::index::formats) fn path(&self) -> &FilePath {
        match &self.place {
            FolderPlace::Folder { folder, .. } => folder.path(),
            FolderPlace::Archive(..) => FilePath::new(""),
        }
    }

    /// The names of the files in it; none in an archive.
    pub(in crate::index::formats) fn names(&self) -> Result<Vec<String>> {
        match &self.place {
            FolderPlace::Folder { folder, .. } => folder.names(),
            FolderPlace::Archive(..) => Ok(Vec::new()),
        }
    }

    /// A range of a file. Fails with `DcpRange` where the file is shorter.
    pub(super) fn range(&self, file: u32, start: u64, len: u64) -> Result<Region> {
        let size = usize::try_from(file).ok().and_then(|file| self.files.get(file)).map_or(0, ChunkFile::len);
        Region::new(start, len)
            .filter(|region| region.end() <= size)
            .ok_or_else(|| error!(Code::DcpRange, "{len} byte(s) at {start} reach outside a file of {size}"))
    }

    /// Fails with `DcpRange` where two items share bytes of a file.
    pub(super) fn check_overlaps(&self, places: impl Iterator<Item = Place>) -> Result<()> {
        let mut places: Vec<Place> = places.filter(|(_, region)| !region.is_empty()).collect();
        places.sort_unstable_by_key(|(file, region)| (*file, region.start()));
        for pair in places.windows(2) {
            let &[(file, one), (next_file, two)] = pair else { continue };
            if file == next_file && two.start() < one.end() {
                let text = format!("two items share bytes of a file, from byte {}", two.start());
                return Err(Error::new(Code::DcpRange, text).at(two.start()));
            }
        }
        Ok(())
    }
}

fn escape(name: &str, why: &str) -> Error {
    error!(Code::DcpPath, "the file name {name:?} {why}")
}

fn missing(name: &str) -> Error {
    error!(Code::ShardMissing, "the metadata names the file {name:?}, which is missing")
}

/// A file in a folder on disk.
fn on_disk(folder: &bytes::Folder, allowed: &[PathBuf], name: &str) -> Result<ChunkFile> {
    let path = folder.path().join(name);
    let real = match fs::canonicalize(&path) {
        Ok(real) => real,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing(name)),
        Err(error) => return Err(Error::io(error, path)),
    };
    // A file below the folder may be in any folder below it.
    let is_in = |parent: &FilePath, allowed: &PathBuf| match name.contains('/') {
        true => parent.starts_with(allowed),
        false => allowed == parent,
    };
    if !real.parent().is_some_and(|parent| allowed.iter().any(|allowed| is_in(parent, allowed))) {
        return Err(escape(name, "is a link out of the checkpoint's folder"));
    }
    let metadata = fs::metadata(&path).map_err(|error| Error::io(error, path.clone()))?;
    if !metadata.is_file() {
        return Err(Error::new(Code::NotRegularFile, "this is not a regular file").in_file(&path));
    }
    Ok(ChunkFile::named(folder, name, metadata.len()))
}
