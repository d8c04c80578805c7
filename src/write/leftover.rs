//! What a killed writer of a folder has left: its publication is finished or taken back, and its hidden folder removed.

use std::fs;
use std::path::Path;

use super::lock::{TargetLock, hidden_name};
use super::publication::Publication;
use super::resume;
use super::staged::folder_of;
use super::walk::remove_all;
use crate::error::{Error, Result};

/// The ends of the names of hidden folders: of a run, and of one that can be resumed.
pub(super) const ENDS: [&str; 2] = ["part", "resume"];

/// Locks a target whose hidden folder has the name for `anchor`, and finishes what a killed run has begun to publish. What it has left
/// is removed, unless that is for a later run and was not published.
pub(super) fn lock_target(anchor: &Path, target: &Path) -> Result<TargetLock> {
    let lock = TargetLock::take(anchor)?;
    for end in ENDS.iter().filter(|_| lock.excludes_others()) {
        let outer = hidden_name(anchor, end);
        // What another user has put there would say which files are moved and removed.
        let is_own = fs::symlink_metadata(&outer)
            .is_ok_and(|found| found.is_dir() && resume::check_owner(&found, &outer).is_ok());
        if is_own && (Publication::finish(&outer, target)? || *end == ENDS[0]) {
            remove_all(&outer).map_err(|error| Error::io(error, outer.clone()))?;
        }
    }
    Ok(lock)
}
