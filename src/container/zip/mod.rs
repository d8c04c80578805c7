//! The strict zip reader: opens an archive only if every zip reader would see the same members in it.
//!
//! Refused: anything but one end-of-central-directory record at the exact end, a central directory that contradicts itself, names
//! that other readers decode differently, duplicate names, overlapping members, encryption, methods other than stored and deflate.
//! A member's local file header is compared with the central directory at the first access to the member. Follows PKWARE's APPNOTE
//! 6.3.10 and, past 4 GiB, what torch's writer does.

mod central_directory;
mod deferred;
mod eocd;
mod inflate;
mod local_header;
#[cfg(feature = "scan")]
mod salvage;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bytes::{Region, Source};
use crate::error::{Code, Error, Result, ResultExt, error};
use crate::limits::Limits;
use crate::num::to_usize;
use crate::parallel::Cancel;

pub use central_directory::Member;
pub use deferred::CheckedMember;
pub(super) use eocd::ends_in_zip;
#[cfg(feature = "scan")]
pub(crate) use eocd::{has_central_directory, has_directories_of, may_end_as_zip};
#[cfg(feature = "scan")]
pub use inflate::{InflatedTail, inflated_tail};
#[cfg(feature = "scan")]
pub use salvage::{SalvagedArchive, SalvagedMember, salvage, salvage_range};

/// An archive without members: the end record alone.
pub(crate) const EMPTY: [u8; 22] = *b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// What to do with trailing bytes, after the end-of-central-directory record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailing {
    /// Refuse the file.
    Error,
    /// Ignore up to 64 KiB of them.
    Ignore,
}

/// An open zip archive: its central directory is read, its local file headers are checked on first access.
#[derive(Debug)]
pub struct Archive {
    source: Source,
    members: Vec<Member>,
    by_name: HashMap<Arc<str>, usize>,
    /// The offset of each member's payload, plus one; 0 until its local file header is verified, and [`VERIFYING`] while a read of the
    /// payload verifies it.
    payloads: Vec<AtomicU64>,
    /// Whether requests are expensive, so that a local file header is read together with the payload.
    defers: bool,
    /// Larger payloads have their headers read first: the threads that read a part each have their own file descriptors.
    deferred_max: u64,
    has_checksums: bool,
    /// The limit of that name.
    inflate_ratio: u64,
}

/// What is stored in place of an offset while a header is being verified.
const VERIFYING: u64 = u64::MAX;

/// Bytes per read when a checksum is verified.
const VERIFY_CHUNK_BYTES: u64 = 1 << 20;

/// Bytes beside what is prefetched, in which torch's writer has its small members.
const NEIGHBOURS_BYTES: u64 = 4 << 10;

impl Archive {
    /// Reads the end-of-central-directory record and the central directory; no member is read yet.
    pub fn open(source: &Source, limits: &Limits, trailing: Trailing) -> Result<Archive> {
        Archive::open_inner(source, limits, trailing).map_err(|error| source.locate_error(error))
    }

    fn open_inner(source: &Source, limits: &Limits, trailing: Trailing) -> Result<Archive> {
        let end = eocd::find(source, trailing)?;
        let (members, by_name) = central_directory::read(source, end, limits)?;
        let payloads = members.iter().map(|_| AtomicU64::new(0)).collect();
        let has_checksums = members.iter().any(|member| member.crc() != 0);
        let (source, inflate_ratio) = (source.clone(), limits.inflate_ratio);
        let access = source.access();
        let defers = access.waits_for_requests();
        let deferred_max = if source.file().is_some() { access.small } else { u64::MAX };
        Ok(Archive { source, members, by_name, payloads, defers, deferred_max, has_checksums, inflate_ratio })
    }

    /// The source of the archive; regions are relative to it.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The members, in the order of the central directory.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The index of the member with exactly this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Whether local file headers are verified several at once or together with the bytes that follow them, since requests are
    /// expensive.
    pub fn defers(&self) -> bool {
        self.defers
    }

    /// Whether the local file header of a member is verified together with the bytes that follow it.
    pub fn defers_member(&self, index: usize) -> bool {
        let size = self.members.get(index).map_or(0, Member::compressed_size);
        self.defers && size > 0 && size <= self.deferred_max
    }

    /// Whether the archive has checksums; a writer that does not compute them writes all of them as zero.
    pub fn has_checksums(&self) -> bool {
        self.has_checksums
    }

    /// The region of the member's stored (maybe compressed) bytes in the source; it overlaps no other member.
    ///
    /// The first call for a member compares its local file header, and its data descriptor if it has one, with the central directory,
    /// and fails where they disagree.
    pub fn payload(&self, index: usize) -> Result<Region> {
        let member = self.member(index)?;
        self.payload_of(index, member).map_err(|error| self.locate(member, error))
    }

    fn payload_of(&self, index: usize, member: &Member) -> Result<Region> {
        if let Some(start) = self.verified_start(index) {
            return Region::new(start, member.compressed_size()).ok_or_else(|| no_member(index));
        }
        self.verify_header(index, member, |at, len| self.source.read_vec(at, len))
    }

    /// The offset of a member's payload; `None` until its local file header is verified.
    fn verified_start(&self, index: usize) -> Option<u64> {
        let stored = self.payloads.get(index)?.load(Ordering::Relaxed);
        stored.checked_sub(1).filter(|_| stored != VERIFYING)
    }

    /// Verifies a local file header with the bytes that `read` returns, and keeps where the payload is.
    fn verify_header(
        &self,
        index: usize,
        member: &Member,
        read: impl Fn(u64, u64) -> Result<Vec<u8>>,
    ) -> Result<Region> {
        let region = local_header::verify(read, member)?;
        if let Some(slot) = self.payloads.get(index) {
            slot.store(region.start().saturating_add(1), Ordering::Relaxed);
        }
        Ok(region)
    }

    /// Has a member of up to `limit` bytes, its header and a few KiB after it read by one request, where requests are expensive.
    pub fn prefetch(&self, index: usize, limit: u64) -> Result<()> {
        let member = self.member(index)?;
        let len = member.compressed_size();
        match len <= limit {
            true => self.source.prefetch(member.header_offset, len.saturating_add(2 * NEIGHBOURS_BYTES)),
            false => Ok(()),
        }
    }

    /// Reads a metadata member, inflated if it is compressed, and checks its checksum. Fails where it has more than `limit` bytes,
    /// or inflates to more than the limit `inflate_ratio` allows.
    pub fn read(
        &self,
        index: usize,
        limit_name: &'static str,
        limit: u64,
        cancel: &Cancel,
    ) -> Result<Vec<u8>> {
        let member = self.member(index)?;
        Limits::check(limit_name, limit, member.size())
            .and_then(|()| self.check_ratio(member))
            .and_then(|()| self.read_of(index, member, cancel))
            .map_err(|error| self.locate(member, error))
    }

    fn check_ratio(&self, member: &Member) -> Result<()> {
        match member.is_compressed() {
            true => Limits::check_inflate_ratio(self.inflate_ratio, member.compressed_size(), member.size()),
            false => Ok(()),
        }
    }

    /// Reads a deflated storage and checks its checksum; fails unless it inflates to exactly `expected` bytes.
    pub fn read_inflated(&self, index: usize, expected: u64, cancel: &Cancel) -> Result<Vec<u8>> {
        let member = self.member(index)?;
        let result = if member.size() == expected {
            self.read_of(index, member, cancel)
        } else {
            let text = format!("the member has {} byte(s), the tensors need {expected}", member.size());
            Err(Error::new(Code::StorageBounds, text))
        };
        result.map_err(|error| self.locate(member, error))
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
            for part in bytes.chunks(to_usize(VERIFY_CHUNK_BYTES)) {
                cancel.check()?;
                hasher.update(part);
            }
            check_crc(member, hasher.finalize())?;
        }
        Ok(bytes)
    }

    /// Up to `max_len` uncompressed bytes of a member, without a check of its size and checksum; also returns whether that is all of
    /// it.
    pub fn peek(&self, index: usize, max_len: u64) -> Result<(Vec<u8>, bool)> {
        let (member, region) = (self.member(index)?, self.payload(index)?);
        peek(&self.source, region, member.method(), max_len, self.inflate_ratio)
            .map_err(|error| self.locate(member, error))
    }

    /// As [`Archive::peek`], from the first stored bytes of the member, which were read already. `None` if they do not suffice.
    pub fn peek_head(&self, index: usize, head: &[u8], max_len: u64) -> Option<Vec<u8>> {
        let member = self.members.get(index)?;
        let wanted = to_usize(max_len.min(member.size()));
        let bytes = match member.is_compressed() {
            true => inflate::prefix_of(head, max_len, self.inflate_ratio)?,
            false => head.to_vec(),
        };
        bytes.get(..wanted).map(<[u8]>::to_vec)
    }

    /// Reads the member once, in chunks, and checks its checksum; does nothing where the archive has no checksums.
    pub fn verify(&self, index: usize, cancel: &Cancel) -> Result<()> {
        let member = self.member(index)?;
        self.verify_of(index, member, cancel).map_err(|error| self.locate(member, error))
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
                let len = region.end().saturating_sub(at).min(VERIFY_CHUNK_BYTES);
                buffer.resize(to_usize(len), 0);
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

    /// Adds the member and the file to an error.
    fn locate(&self, member: &Member, error: Error) -> Error {
        self.source.locate_error(error.in_member(member.name()))
    }
}

/// Up to `max_len` uncompressed bytes of a region stored with some method, and whether that is all of it; for hostile archives.
/// `ratio` is the limit `inflate_ratio`.
pub fn peek(
    source: &Source,
    region: Region,
    method: u16,
    max_len: u64,
    ratio: u64,
) -> Result<(Vec<u8>, bool)> {
    match method {
        8 => inflate::prefix(source, region, max_len, ratio),
        _ => {
            let len = region.len().min(max_len);
            Ok((source.read_vec(region.start(), len)?, len == region.len()))
        }
    }
}

/// A name without differences of case, for readers and file systems that ignore them: Unicode's full case folding.
pub fn fold_case(name: &str) -> String {
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    let lower = name.chars().flat_map(char::to_lowercase);
    lower.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

fn no_member(index: usize) -> Error {
    error!(Code::InternalError, "member {index} of the archive does not exist")
}

fn check_crc(member: &Member, found: u32) -> Result<()> {
    if found == member.crc() {
        return Ok(());
    }
    let text =
        format!("the bytes have checksum {found:08x}, the central directory states {:08x}", member.crc());
    Err(Error::new(Code::ZipCrc, text)).in_member(member.name())
}

/// A `ZipStructure` error.
fn structure(message: impl Into<String>) -> Error {
    Error::new(Code::ZipStructure, message)
}

/// Maps a cursor's `Truncated` error to `code`: the fault is in the field that stated too large a length, not in the file's end.
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
