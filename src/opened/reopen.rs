//! What another process needs to open the same version of the same files.

use std::env;
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Opened;
use crate::bytes::FileStamp;
use crate::error::Result;

/// A number that no checkpoint of this process has yet.
pub(super) fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Opened {
    /// Notes the paths that it was opened by, and the working directory if they depend on it.
    pub(super) fn remember(&mut self, paths: &[PathBuf]) {
        if paths.iter().any(|path| path.is_relative()) {
            self.directory = env::current_dir().ok();
        }
        self.paths = paths.to_vec();
    }

    /// The absolute paths that it was opened by; none for bytes in memory and other sources.
    pub(crate) fn absolute_paths(&self) -> Vec<PathBuf> {
        self.paths.iter().map(|path| self.absolute(path)).collect()
    }

    /// The stamps of all files on disk that it was opened from, and of those that the metadata of a distributed checkpoint names.
    /// Fails where one of the latter cannot be read, or has another size than at opening.
    pub(crate) fn file_stamps(&self) -> Result<Vec<FileStamp>> {
        let mut stamps = Vec::new();
        for shard in self.shards.iter().filter(|shard| shard.path.is_some()) {
            stamps.extend(shard.index.source.file_stamp());
            if let Some(saved) = &shard.objects.saved {
                stamps.extend(saved.file_stamps()?);
            }
        }
        stamps.dedup();
        for stamp in &mut stamps {
            stamp.path = self.absolute(&stamp.path);
        }
        Ok(stamps)
    }

    fn absolute(&self, path: &FilePath) -> PathBuf {
        self.directory.as_ref().map_or_else(|| path.to_owned(), |directory| directory.join(path))
    }
}
