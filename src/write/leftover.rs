//! What a killed writer of a folder has left: its publication is finished or taken back, and its hidden folder removed.

use std::fs;
use std::path::Path;

use super::lock::{TargetLock, hidden_name};
use super::publication::Publication;
use super::staged::folder_of;
use super::walk::remove_all;
use crate::error::{Error, Result};
use crate::sys;

/// The ends of the names of hidden folders: of a run, and of one that can be resumed.
pub(super) const ENDS: [&str; 2] = ["part", "resume"];

/// Locks a target whose hidden folder has the name for `anchor`, and finishes what a killed run has begun to publish. What it has left
/// is removed, unless that is for a later run and was not published.
pub(super) fn lock_target(anchor: &Path, target: &Path) -> Result<TargetLock> {
    let lock = TargetLock::take(anchor)?;
    for end in ENDS.iter().filter(|_| lock.excludes_others()) {
        let outer = hidden_name(anchor, end);
        // What another user has put there would say which files are moved and removed.
        let is_own = sys::is_private_folder(&outer).unwrap_or(false);
        if is_own && (Publication::finish(&outer, target)? || *end == ENDS[0]) {
            remove_all(&outer).map_err(|error| Error::io(error, outer.clone()))?;
        }
    }
    Ok(lock)
}

/// Finishes or takes back what a killed writer has begun to publish, given its hidden folder. If its target is gone, there is nothing
/// to do. Fails if another writer has the target.
#[cfg(feature = "python")]
pub(crate) fn finish_publication(outer: &Path) -> Result<()> {
    let failed = |error| Error::io(error, outer.to_owned());
    let outer = std::path::absolute(outer).map_err(failed)?;
    let above = folder_of(&outer);
    let is_for = |anchor: &Path| ENDS.iter().any(|end| hidden_name(anchor, end) == outer);
    // Inside its target it has the name of that.
    let inside = above.join(above.file_name().unwrap_or("folder".as_ref()));
    if is_for(&inside) {
        drop(lock_target(&inside, above)?);
    }
    for entry in fs::read_dir(above).map_err(failed)? {
        let target = entry.map_err(failed)?.path();
        if target.is_dir() && is_for(&target) {
            drop(lock_target(&target, &target)?);
        }
    }
    Ok(())
}
