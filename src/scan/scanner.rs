//! The state of the scan of one file, what a detector is given, and what it leaves.

use std::collections::HashSet;

use super::Options;
use super::budget::Budget;
use super::report::{FileReport, short};
use crate::bytes::{Region, Source};
use crate::container::Format;
use crate::error::Result;
use crate::index::Contents;
use crate::pickle::Pickle;

/// The state of the scan of one file.
pub(super) struct Scanner<'a> {
    pub(super) options: &'a Options,
    pub(super) report: FileReport,
    /// The work that is left.
    pub(super) budget: Budget,
    /// The storage keys that the pickle of the current archive names.
    pub(super) keys: HashSet<String>,
}

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
    pub(super) items: Vec<Region>,
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
    pub(super) fn items_in(&self, start: u64, len: u64) -> Vec<Region> {
        let from = self.items.partition_point(|item| item.start() < start);
        let items = self.items.get(from..).unwrap_or_default().iter();
        items.take_while(|item| item.end() <= start.saturating_add(len)).copied().collect()
    }

    /// Whether any detector found its format.
    pub(super) fn any(&self) -> bool {
        self.pickle || self.joblib || self.npy || self.tar || self.zip || self.unpacked.is_some()
    }
}

/// The label of something inside `label`, as reports show it.
pub(super) fn inside(label: Option<&str>, name: &str) -> String {
    match label {
        Some(label) => short(&format!("{label}!{name}")),
        None => short(name),
    }
}
