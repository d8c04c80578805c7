//! The detectors: each follows one family of readers through any bytes.
//!
//! *Inert* is a statement about readers. So every byte string that a scan meets (a file, a member of an archive, bytes passed to a
//! loader) is given to every detector, and none is skipped because another one detected its format. A detector stands for readers in a range of
//! versions. It goes as far as they go, ends where all of them stop, and what would have run until then is judged. What they would
//! read and the scan did not is in the coverage. docs/reference/scan.md has the table.

mod compressed;
mod exported;
mod joblib;
mod legacy;
mod npy;
mod pickle;
pub(super) mod safetensors;
mod tar;
mod texts;
mod torch_checkpointing;
mod torch_tar;
mod yaml;
mod zip;

use super::scanner::{Detected, Input, Scanner};
use crate::bytes::{Region, Source};
use crate::error::Result;
use crate::index::PersistentIdForm;

/// A detector: walks what its readers would read of some bytes, and records whether they accept them.
type Detector = fn(&mut Scanner<'_>, &Input<'_>, &mut Detected) -> Result<()>;

/// Every detector. The legacy stream and joblib's files are pickles with other bytes between them, so their detectors start from that of
/// pickles.
pub(super) const DETECTORS: [Detector; 7] = [
    pickle::walk,
    torch_checkpointing::walk,
    npy::walk,
    tar::walk,
    compressed::walk,
    safetensors::walk,
    zip::walk,
];

/// Where a pickle begins.
struct At<'a> {
    source: &'a Source,
    offset: u64,
    /// Whether some reader unpickles the bytes, whatever they are.
    known: bool,
    /// The form of persistent ids.
    ids: PersistentIdForm,
}

/// A member, as at least one reader sees it.
struct VisibleMember {
    name: String,
    region: Region,
    method: u16,
    /// Its inflated size by the central directory of a sound archive.
    size: Option<u64>,
    encrypted: bool,
    /// Whether the central directory lists it.
    listed: bool,
    /// Its first bytes, where they were read together with the local header.
    head: Option<Vec<u8>>,
    /// Whether it starts inside an earlier member. No sound archive has such a member.
    overlaps_earlier: bool,
}
