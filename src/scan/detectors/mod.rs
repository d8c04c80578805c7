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

use super::file::Scanner;
use crate::bytes::{Region, Source};
use crate::container::Format;
use crate::error::Result;
use crate::index::Contents;
use crate::pickle::Pickle;

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

/// Bytes that readers may open.
pub(super) struct Input<'a> {
    pub(super) source: &'a Source,
    /// The name in findings; `None` is the file itself.
    pub(super) label: Option<&'a str>,
    /// The number of containers and pickles around it.
    pub(super) depth: u64,
    pub(super) origin: Origin,
    /// The first bytes.
    pub(super) head: Vec<u8>,
    /// The format that the strict reader detects.
    pub(super) format: Option<Format>,
}

/// Who refers to some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The caller of the scan.
    File,
    /// A call that loads them.
    Loaded,
    /// A reader that continues where another one ended.
    Remainder,
    /// An archive, by a name that says nothing.
    Member,
    /// An archive, by a name that a reader unpickles.
    PickleMember,
    /// A tar archive of torch 0.1: `pickle`, whose persistent ids are numbers.
    Keyed,
    /// A tar archive of torch 0.1: `storages`, pickles between elements.
    Storages,
    /// A tar archive of torch 0.1: `tensors`, pickles between numbers.
    Tensors,
    /// A torch archive: `data.pkl`, whose persistent ids are its storages.
    Main,
    /// The content of a compressed stream.
    Inflated,
}

impl Origin {
    /// Whether some reader unpickles the bytes, whatever they are.
    pub(super) fn is_pickle(self) -> bool {
        matches!(
            self,
            Origin::PickleMember | Origin::Main | Origin::Keyed | Origin::Storages | Origin::Tensors
        )
    }

    /// Whether they are a member of an archive, which `rustload.open` does not open by itself.
    pub(super) fn is_member(self) -> bool {
        self == Origin::Member || self.is_pickle()
    }
}

/// What the detectors found.
#[derive(Debug, Default)]
pub(super) struct Detected {
    pub(super) pickle: bool,
    pub(super) joblib: bool,
    pub(super) npy: bool,
    pub(super) tar: bool,
    pub(super) zip: bool,
    /// The ranges of a tar archive that were given to every detector.
    pub(super) members: Vec<Region>,
    /// The ranges of a tar archive in which a distributed checkpoint has its items, in order.
    items: Vec<Region>,
    /// An archive with an exported program.
    pub(super) exported: bool,
    /// A compressed stream; `Some(false)` where not all of it was inflated.
    pub(super) unpacked: Option<bool>,
    /// The pickle at the start of the source, all of which was there to be executed; or why the strict reader refuses it.
    pub(super) executed: Option<Result<Pickle>>,
    /// The `data.pkl` of an archive, likewise.
    pub(super) main: Option<Pickle>,
    /// What the strict reader makes of the source, once it was asked.
    pub(super) read: Option<Result<Contents>>,
    /// The format that the strict reader detects, or [`Format::Pickle`] where only other readers see a pickle.
    pub(super) format: Option<Format>,
}

impl Detected {
    /// The items in a range.
    fn items_in(&self, start: u64, len: u64) -> Vec<Region> {
        let from = self.items.partition_point(|item| item.start() < start);
        let items = self.items.get(from..).unwrap_or_default().iter();
        items.take_while(|item| item.end() <= start.saturating_add(len)).copied().collect()
    }

    /// Whether any detector found its format.
    pub(super) fn any(&self) -> bool {
        self.pickle || self.joblib || self.npy || self.tar || self.zip || self.unpacked.is_some()
    }
}
