//! The members of an archive that the strict parser accepts, and the first bytes of its storages.

use super::super::super::scanner::Scanner;
use super::{VisibleMember, propagate_if_not_file_fault, visible_members};
use crate::bytes::Source;
use crate::container::ahead::ReadAhead;
use crate::container::npy::MAGIC as NPY_MAGIC;
use crate::container::zip::{self, Archive, CheckedMember, Member};
use crate::error::Result;
use crate::num::to_u64;

/// Bytes that are read for the first ones of several short storages.
const STORAGES_READ_BYTES: u64 = 64 << 10;
/// The maximum number of mismatches between local headers and the directory that are findings of their own.
const MAX_LISTED_MISMATCHES: u64 = 1000;

impl Scanner<'_> {
    /// The members of a sound archive; `None` where a local header does not match the central directory.
    pub(super) fn sound_members(
        &mut self,
        archive: &Archive,
        label: Option<&str>,
    ) -> Result<Option<Vec<VisibleMember>>> {
        let (mut out, mut mismatches) = (Vec::new(), 0_u64);
        let mut checked = match archive.defers() {
            true => archive.check_members(to_u64(NPY_MAGIC.len()), &self.options.cancel)?,
            false => Vec::new(),
        };
        if !archive.defers() {
            archive.verify_headers(0..archive.members().len());
        }
        let mut beyond = Beyond::default();
        for (index, member) in archive.members().iter().enumerate() {
            if index.is_multiple_of(1024) {
                self.options.cancel.check()?;
            }
            let (payload, head) = match checked.get_mut(index).map(Option::take) {
                None => (archive.payload(index), None),
                Some(Some(CheckedMember { payload, head })) => (payload, head),
                Some(None) => {
                    beyond.add(member);
                    continue;
                }
            };
            match payload {
                Ok(region) => out.push(VisibleMember {
                    name: member.name().to_owned(),
                    region,
                    method: member.method(),
                    size: Some(member.size()),
                    encrypted: false,
                    listed: true,
                    head,
                    overlaps_earlier: false,
                }),
                Err(error) => {
                    propagate_if_not_file_fault(&error)?;
                    mismatches = mismatches.saturating_add(1);
                    if mismatches < MAX_LISTED_MISMATCHES {
                        self.report.add_error(&error, label);
                    }
                }
            }
        }
        if let Some((why, start)) = beyond.described() {
            self.report.unscanned(label, &why, start, beyond.nbytes);
        }
        if mismatches > 0 {
            return Ok(None);
        }
        for gap in archive.gaps()? {
            let salvaged =
                zip::salvage_range(archive.source(), gap, &self.options.limits, &self.options.cancel)?;
            out.extend(visible_members(salvaged));
        }
        Ok(Some(out))
    }
}

/// The members of a sound archive for which the limits on requests do not suffice.
#[derive(Default)]
struct Beyond {
    count: u64,
    start: Option<u64>,
    nbytes: u64,
}

impl Beyond {
    fn add(&mut self, member: &Member) {
        self.count = self.count.saturating_add(1);
        self.nbytes = self.nbytes.saturating_add(member.extent().len());
        let start = member.header_offset();
        self.start = Some(self.start.map_or(start, |first| first.min(start)));
    }

    /// What is said of them, and the offset of the first one; `None` if there are none.
    fn described(&self) -> Option<(String, u64)> {
        let text = format!("{} member(s), beyond the limits remote_requests and remote_bytes", self.count);
        Some((text, self.start?))
    }
}

/// Whether a member starts as an array. Where storages are short, one read covers the first bytes of several.
pub(super) fn is_array(ahead: &mut ReadAhead, source: &Source, member: &VisibleMember) -> Result<bool> {
    let len = to_u64(NPY_MAGIC.len());
    match member.method {
        0 if member.head.is_some() => Ok(member.head.as_deref() == Some(NPY_MAGIC)),
        0 if member.region.len() < len => Ok(false),
        0 => {
            let is_short = member.region.len() < STORAGES_READ_BYTES / 16;
            let read_bytes = if is_short { STORAGES_READ_BYTES } else { len };
            Ok(ahead.read(source, member.region.start(), len, read_bytes)?.starts_with(NPY_MAGIC))
        }
        method => Ok(zip::peek(source, member.region, method, len, 1)?.0 == NPY_MAGIC),
    }
}
