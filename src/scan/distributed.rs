//! The files of distributed checkpoints. Each is a row of archives, and readers load the ranges that `.metadata` in the same folder
//! states, each by itself. So they are scanned by these ranges, if `rustload.open` accepts the metadata; otherwise as any file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::Options;
use crate::bytes::{Region, Source};
use crate::container::Format;
use crate::error::{Code, Result};
use crate::index::{self, ChunkItem};

/// The file that states the ranges.
pub(super) const METADATA: &str = ".metadata";

/// The extension of the files.
const EXTENSION: &str = "distcp";

/// The ranges of items in the files of the folders that were met.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// By folder: its files, each with its items in order; none where the metadata was not read.
    folders: HashMap<PathBuf, HashMap<PathBuf, Vec<Region>>>,
}

impl Folders {
    /// The items of a file, in order; `None` for other files. The first call for a folder reads its metadata, which `open` opens.
    pub(super) fn items(
        &mut self,
        path: &Path,
        open: impl FnOnce(&Path) -> Result<Source>,
        options: &Options,
    ) -> Result<Option<Vec<Region>>> {
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            return Ok(None);
        }
        let Some(folder) = path.parent() else { return Ok(None) };
        if !self.folders.contains_key(folder) {
            // The items of one folder at a time are enough, as files come in the order of their paths.
            self.folders.clear();
            self.folders.insert(folder.to_owned(), read(open(folder), options)?);
        }
        Ok(self.folders.get(folder).and_then(|files| files.get(path)).cloned())
    }
}

/// The items that metadata states, by file; none where it is refused.
fn read(metadata: Result<Source>, options: &Options) -> Result<HashMap<PathBuf, Vec<Region>>> {
    let (limits, cancel) = (options.limits.clone(), options.cancel.clone());
    let strict = index::Options { limits, cancel, ..index::Options::default() };
    let mut files: HashMap<PathBuf, Vec<Region>> = HashMap::new();
    match metadata.and_then(|source| index::read(&source, &strict)) {
        Ok(read) if read.index.format == Format::TorchDcp => {
            for item in read.items() {
                let ChunkItem::File(path, region) = item else { continue };
                files.entry(path.to_owned()).or_default().push(region);
            }
        }
        Err(error) if error.code() == Code::Cancelled => return Err(error),
        _ => {}
    }
    for items in files.values_mut() {
        items.sort_unstable_by_key(|region| region.start());
    }
    Ok(files)
}
