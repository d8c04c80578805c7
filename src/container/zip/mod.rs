//! The strict zip door: an archive is opened only if every zip reader would see the same members in it.
//!
//! Refused: anything but one end record at the exact end, a directory that contradicts itself, names that other readers
//! read otherwise, duplicates, members that share bytes, encryption, methods other than stored and deflate. A member's
//! local header is compared with the directory when the member is first touched. Follows PKWARE's APPNOTE 6.3.10 and,
//! past 4 GiB, what torch's writer does.

mod directory;
mod end;
mod inflate;
mod local;
mod salvage;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bytes::{Region, Source};
use crate::error::{Code, Error, Result, ResultExt};
use crate::limits::Limits;
use crate::parallel::Cancel;

pub use directory::Member;
pub(super) use end::ends_in_zip;
pub(crate) use end::leads_to_directory;
pub use salvage::{Salvage, Salvaged, salvage, salvage_range};

/// What to do with bytes after the archive's end record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailing {
    /// Refuse the file.
    Error,
    /// Pass over up to 64 KiB of them.
    Ignore,
}

/// The members of a zip archive, known from its directory alone.
#[derive(Debug)]
pub struct Archive {
    source: Source,
    members: Vec<Member>,
    by_name: HashMap<Arc<str>, usize>,
    /// Where each member's payload starts, plus one; 0 until its local header was verified.
    payloads: Vec<AtomicU64>,
    has_checksums: bool,
}

/// Payload bytes read at a time when only their checksum is wanted.
const VERIFY_CHUNK: u64 = 1 << 20;

/// Members up to this size are verified along with their neighbours.
const SMALL: u64 = 128 << 10;

impl Archive {
    /// Reads the end record and the whole directory; no member is touched yet.
    pub fn open(source: &Source, limits: &Limits, trailing: Trailing) -> Result<Archive> {
        Archive::open_unplaced(source, limits, trailing).map_err(|error| source.place(error))
    }

    fn open_unplaced(source: &Source, limits: &Limits, trailing: Trailing) -> Result<Archive> {
        let end = end::find(source, trailing)?;
        let (members, by_name) = directory::read(source, end, limits)?;
        let payloads = members.iter().map(|_| AtomicU64::new(0)).collect();
        let has_checksums = members.iter().any(|member| member.crc() != 0);
        Ok(Archive { source: source.clone(), members, by_name, payloads, has_checksums })
    }

    /// Where the archive is read from; regions are counted in it.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The members, in the directory's order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The index of the member with exactly this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Whether checksums were computed when the archive was written: all of them zero means they were not.
    pub fn has_checksums(&self) -> bool {
        self.has_checksums
    }

    /// Where the member's bytes, as stored, lie in the source: inside it and disjoint from every other member.
    ///
    /// The first call for a member compares its local header, and its data descriptor if it has one, with the directory.
    pub fn payload(&self, index: usize) -> Result<Region> {
        let member = self.member(index)?;
        self.payload_of(index, member).map_err(|error| self.place(member, error))
    }

    fn payload_of(&self, index: usize, member: &Member) -> Result<Region> {
        let slot = self.payloads.get(index);
        if let Some(start) = slot.and_then(|slot| slot.load(Ordering::Relaxed).checked_sub(1)) {
            return Region::new(start, member.compressed_size()).ok_or_else(|| no_member(index));
        }
        let region = local::verify(|at, len| self.source.read_vec(at, len), member)?;
        if let Some(slot) = slot {
            slot.store(region.start().saturating_add(1), Ordering::Relaxed);
        }
        Ok(region)
    }

    /// Does for many small members what [`Archive::payload`] does at the first call for each, with one read for neighbours. Members
    /// that have something wrong with them are left for that call to tell.
    pub fn verify_near(&self, indices: impl IntoIterator<Item = usize>) {
        let mut run: Vec<usize> = Vec::new();
        let (mut start, mut end) = (0_u64, 0_u64);
        for index in indices {
            let Some(member) = self.members.get(index) else { continue };
            let is_small = member.bound.saturating_sub(member.header) <= SMALL;
            let is_new = self.payloads.get(index).is_some_and(|slot| slot.load(Ordering::Relaxed) == 0);
            if !is_small || !is_new {
                continue;
            }
            if run.is_empty() || member.header < end || member.bound.saturating_sub(start) > VERIFY_CHUNK {
                self.verify_run(&run, start, end);
                run.clear();
                start = member.header;
            }
            run.push(index);
            end = member.bound;
        }
        self.verify_run(&run, start, end);
    }

    /// Verifies members that lie between two positions of the archive.
    fn verify_run(&self, run: &[usize], start: u64, end: u64) {
        if run.len() < 2 {
            return;
        }
        let Ok(bytes) = self.source.read_vec(start, end.saturating_sub(start)) else { return };
        let read = |at: u64, len: u64| {
            let place = |position: u64| usize::try_from(position.checked_sub(start)?).ok();
            let found = place(at).zip(place(at.saturating_add(len))).and_then(|(at, end)| bytes.get(at..end));
            found.map_or_else(|| self.source.read_vec(at, len), |found| Ok(found.to_vec()))
        };
        for (slot, member) in
            run.iter().filter_map(|&index| self.payloads.get(index).zip(self.members.get(index)))
        {
            if let Ok(region) = local::verify(read, member) {
                slot.store(region.start().saturating_add(1), Ordering::Relaxed);
            }
        }
    }

    /// The bytes of a metadata member, inflated if need be, at most `limit` of them; its checksum is always checked.
    pub fn read(
        &self,
        index: usize,
        limit_name: &'static str,
        limit: u64,
        cancel: &Cancel,
    ) -> Result<Vec<u8>> {
        let member = self.member(index)?;
        Limits::check(limit_name, limit, member.size())
            .and_then(|()| self.read_of(index, member, cancel))
            .map_err(|error| self.place(member, error))
    }

    /// The bytes of a deflated storage that must inflate to exactly `expected`.
    pub fn read_inflated(&self, index: usize, expected: u64, cancel: &Cancel) -> Result<Vec<u8>> {
        let member = self.member(index)?;
        let result = if member.size() == expected {
            self.read_of(index, member, cancel)
        } else {
            let text = format!("the member has {} byte(s), the tensors want {expected}", member.size());
            Err(Error::new(Code::StorageBounds, text))
        };
        result.map_err(|error| self.place(member, error))
    }

    fn read_of(&self, index: usize, member: &Member, cancel: &Cancel) -> Result<Vec<u8>> {
        let region = self.payload_of(index, member)?;
        let bytes = if member.is_compressed() {
            inflate::to_vec(&self.source, region, member.size(), cancel)?
        } else {
            self.source.read_vec(region.start(), region.len())?
        };
        if self.has_checksums {
            let mut hasher = crc32fast::Hasher::new();
            for part in bytes.chunks(usize::try_from(VERIFY_CHUNK).unwrap_or(usize::MAX)) {
                cancel.check()?;
                hasher.update(part);
            }
            check_crc(member, hasher.finalize())?;
        }
        Ok(bytes)
    }

    /// Up to `most` bytes of a member as it comes out, however wrong its size and checksum are; whether that is all of it.
    pub fn peek(&self, index: usize, most: u64) -> Result<(Vec<u8>, bool)> {
        let (member, region) = (self.member(index)?, self.payload(index)?);
        peek(&self.source, region, member.method(), most).map_err(|error| self.place(member, error))
    }

    /// Reads the member's bytes once, in pieces, and checks their checksum; does nothing where none was computed.
    pub fn verify(&self, index: usize, cancel: &Cancel) -> Result<()> {
        let member = self.member(index)?;
        self.verify_of(index, member, cancel).map_err(|error| self.place(member, error))
    }

    fn verify_of(&self, index: usize, member: &Member, cancel: &Cancel) -> Result<()> {
        let region = self.payload_of(index, member)?;
        if !self.has_checksums {
            return Ok(());
        }
        let mut hasher = crc32fast::Hasher::new();
        if member.is_compressed() {
            inflate::stream(&self.source, region, member.size(), |bytes| {
                hasher.update(bytes);
                cancel.check()
            })?;
        } else {
            let mut buffer = Vec::new();
            let mut at = region.start();
            while at < region.end() {
                let len = region.end().saturating_sub(at).min(VERIFY_CHUNK);
                buffer.resize(usize::try_from(len).unwrap_or(0), 0);
                self.source.read_at(at, &mut buffer)?;
                hasher.update(&buffer);
                cancel.check()?;
                at = at.saturating_add(len);
            }
        }
        check_crc(member, hasher.finalize())
    }

    fn member(&self, index: usize) -> Result<&Member> {
        self.members.get(index).ok_or_else(|| no_member(index))
    }

    fn place(&self, member: &Member, error: Error) -> Error {
        self.source.place(error.in_member(member.name()))
    }
}

/// Up to `most` bytes of what is stored in a range by some method, and whether that is all of it; for hostile archives.
pub fn peek(source: &Source, region: Region, method: u16, most: u64) -> Result<(Vec<u8>, bool)> {
    match method {
        8 => inflate::lenient(source, region, most),
        _ => {
            let len = region.len().min(most);
            Ok((source.read_vec(region.start(), len)?, len == region.len()))
        }
    }
}

fn no_member(index: usize) -> Error {
    Error::new(Code::InternalError, format!("member {index} of the archive does not exist"))
}

fn check_crc(member: &Member, found: u32) -> Result<()> {
    if found == member.crc() {
        return Ok(());
    }
    let text = format!(
        "the bytes have checksum {found:08x}, the archive's list of members says {:08x}",
        member.crc()
    );
    Err(Error::new(Code::ZipCrc, text)).in_member(member.name())
}

/// An error of the archive's structure, for a cursor that ran out of bytes too.
fn structure(message: impl Into<String>) -> Error {
    Error::new(Code::ZipStructure, message)
}

/// The same error under another code: a field that runs out is the fault of whoever announced it.
fn recode(code: Code) -> impl Fn(Error) -> Error {
    move |error| match (error.code(), error.offset()) {
        (Code::Truncated, Some(offset)) => Error::new(code, error.message()).at(offset),
        _ => error,
    }
}

#[cfg(test)]
#[expect(
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "the builders write small numbers of their own"
)]
mod tests;
