//! Distributed checkpoints of torch: which file of a directory has their metadata.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Code, Error, Result};

/// The metadata of all ranks (torch/distributed/checkpoint/filesystem.py: `FileSystemWriter.finish`).
pub(super) const METADATA: &str = ".metadata";

/// The metadata while it is written.
const UNFINISHED: &str = ".metadata.tmp";

/// The extension of the files of chunks (`DEFAULT_SUFFIX` there).
const CHUNKS: &str = "distcp";

/// The most metadata files of single ranks that an error lists.
const LISTED_MAX: usize = 16;

/// Whether a path is that of a file of chunks.
pub(super) fn is_chunks(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == CHUNKS)
}

/// Whether a directory with these names has files of chunks.
pub(super) fn has_chunks(names: &BTreeSet<String>) -> bool {
    names.iter().any(|name| is_chunks(Path::new(name)))
}

/// Whether a directory with these names is a distributed checkpoint.
pub(super) fn is_checkpoint(names: &BTreeSet<String>) -> bool {
    names.contains(METADATA) || has_chunks(names)
}

/// The metadata of a directory with these names. Fails with `DcpRankLocal` where each rank has its own, and with `DcpUnfinished` where
/// there is none.
pub(super) fn pick(names: &BTreeSet<String>, hidden: &BTreeSet<String>, directory: &Path) -> Result<String> {
    if hidden.contains(METADATA) {
        return Ok(METADATA.to_owned());
    }
    let local: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| name.ends_with(METADATA)).take(LISTED_MAX).collect();
    if !local.is_empty() {
        let text = "every rank of this distributed checkpoint has metadata of its own";
        let error = Error::new(Code::DcpRankLocal, text).in_file(directory);
        return Err(error.note(format!(
            "Open one of: {}. Where tensors are sharded, none has all of them: load the directory with torch.distributed.checkpoint on as \
             many ranks, and save it with use_collectives=True.",
            local.join(", ")
        )));
    }
    let text = match hidden.contains(UNFINISHED) {
        true => "this distributed checkpoint was not finished: its metadata is .metadata.tmp",
        false => "this distributed checkpoint has no .metadata file, which is written last",
    };
    Err(Error::new(Code::DcpUnfinished, text).in_file(directory))
}

/// The error for a file of chunks without its metadata.
pub(super) fn lone_chunks(path: &Path) -> Error {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = "this is a file of chunks of a distributed checkpoint, which its .metadata describes";
    let error = Error::new(Code::UnknownFormat, text).in_file(path);
    error.note(format!("Open the folder: {}", directory.display()))
}
