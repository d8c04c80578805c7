//! Recovers every member that any zip reader might see, for a scanner: by every EOCD record, by central directories, by local file
//! headers.
//!
//! The strict reader refuses archives that readers disagree about; this lists all their interpretations side by side, each as a
//! name, a method and a range inside the file. Nothing is trusted: ranges are clipped to the end of the file, names are kept as they
//! are, and where a local file header contradicts the central directory, both descriptions become members. Payloads are not read,
//! except to find the end of a member without a stated size. Follows APPNOTE 4.3.

use std::collections::BTreeSet;

use super::Archive;
use super::eocd::directory_candidates;
use crate::bytes::{Cursor, Region, Source};
use crate::error::Result;
use crate::limits::Limits;
use crate::num::to_u64;
use crate::parallel::Cancel;

const ENTRY_SIGNATURE: [u8; 4] = *b"PK\x01\x02";
const LOCAL_SIGNATURE: [u8; 4] = *b"PK\x03\x04";
const DESCRIPTOR_SIGNATURE: [u8; 4] = *b"PK\x07\x08";
const LOCAL_LEN: u64 = 30;
/// General purpose bit 3: a data descriptor with checksum and sizes follows the payload.
const HAS_DESCRIPTOR: u16 = 1 << 3;
/// Bytes searched for the signatures of local file headers and data descriptors, in total.
const SEARCH_MAX_BYTES: u64 = 64 << 20;
/// Bytes per read in a search.
const SEARCH_CHUNK_BYTES: u64 = 64 << 10;
/// Entries that are followed; the result for an archive with more is incomplete.
const MEMBERS_MAX: u64 = 1 << 16;

/// A member as some zip reader might see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SalvagedMember {
    /// The offset of its stored bytes in the file.
    pub start: u64,
    /// The number of stored bytes; up to the next member where no size is stated.
    pub len: u64,
    /// The compression method.
    pub method: u16,
    /// The name, with replacement characters for what is not UTF-8.
    pub name: String,
    /// Whether a central directory lists it; else only its local file header does.
    pub listed: bool,
    /// Whether the flags say that it is encrypted.
    pub encrypted: bool,
}

/// The result of salvaging an archive.
#[derive(Debug, Default)]
pub struct SalvagedArchive {
    /// The members in the order of their offsets; several per member where readers differ.
    pub members: Vec<SalvagedMember>,
    /// Whether nothing was missed: no range was clipped, no limit ended the search, and a whole archive has a central directory.
    pub complete: bool,
}

/// The fields of a central directory entry or of a local file header.
struct Header {
    name: String,
    flags: u16,
    method: u16,
    compressed_size: u64,
    /// Of a central directory entry: the offset of the local file header. Of a local file header: the offset of the payload.
    offset: u64,
}

/// Lists the members of a broken archive; fails only where the file cannot be read, or with `Cancelled`.
pub fn salvage(source: &Source, limits: &Limits, cancel: &Cancel) -> Result<SalvagedArchive> {
    let mut out = Finder::new(source, limits, cancel);
    let directories = directory_candidates(source)?;
    // Without a central directory, a missing member goes unnoticed.
    out.complete = !directories.is_empty();
    for directory in directories {
        out.add_directory(directory.start, directory.len, directory.shift)?;
    }
    out.walk_local_headers()?;
    Ok(SalvagedArchive { members: out.found.into_iter().collect(), complete: out.complete })
}

impl Archive {
    /// The gaps between members, without data descriptors and those after members that were not verified; a reader that follows local file headers sees what is in them.
    pub fn gaps(&self) -> Result<Vec<Region>> {
        let mut out = Vec::new();
        for (index, member) in self.members().iter().enumerate() {
            // Those that a limit left out are unscanned as a whole.
            if self.defers && self.verified_start(index).is_none() {
                continue;
            }
            let end = self.payload(index)?.end();
            let gap = member.end_max.saturating_sub(end);
            let descriptor = member.flags & HAS_DESCRIPTOR != 0 && matches!(gap, 16 | 24);
            if gap > 0 && !descriptor {
                out.extend(Region::new(end, gap));
            }
        }
        Ok(out)
    }
}

/// Lists the members whose local file headers are in a range outside all listed members.
pub fn salvage_range(
    source: &Source,
    range: Region,
    limits: &Limits,
    cancel: &Cancel,
) -> Result<SalvagedArchive> {
    let window = source.window(range.start(), range.len())?;
    let mut out = Finder::new(&window, limits, cancel);
    out.walk_local_headers()?;
    let shifted = |member: SalvagedMember| SalvagedMember {
        start: member.start.saturating_add(range.start()),
        ..member
    };
    Ok(SalvagedArchive { members: out.found.into_iter().map(shifted).collect(), complete: out.complete })
}

struct Finder<'a> {
    source: &'a Source,
    limits: &'a Limits,
    cancel: &'a Cancel,
    /// Central directory entries read so far, duplicates included: many EOCD records may point to one directory.
    entries: u64,
    found: BTreeSet<SalvagedMember>,
    /// Start and end of the members that central directories list, headers included.
    listed_extents: Vec<(u64, u64)>,
    complete: bool,
    search_budget: u64,
}

impl<'a> Finder<'a> {
    fn new(source: &'a Source, limits: &'a Limits, cancel: &'a Cancel) -> Finder<'a> {
        Finder {
            source,
            limits,
            cancel,
            entries: 0,
            found: BTreeSet::new(),
            listed_extents: Vec::new(),
            complete: true,
            search_budget: SEARCH_MAX_BYTES,
        }
    }

    /// Adds the entries of one central directory, up to the first invalid one: APPNOTE 4.3.12.
    fn add_directory(&mut self, start: u64, len: u64, shift: u64) -> Result<()> {
        let len = len.min(self.source.len().saturating_sub(start));
        if len > self.limits.directory_bytes {
            self.complete = false;
        }
        let bytes = self.source.read_vec(start, len.min(self.limits.directory_bytes))?;
        let mut cursor = Cursor::new(&bytes, start);
        while let Ok(header) = entry(&mut cursor) {
            self.cancel.check()?;
            if self.entries >= self.limits.entries.min(MEMBERS_MAX) {
                self.complete = false;
                break;
            }
            self.entries = self.entries.saturating_add(1);
            let header = Header { offset: header.offset.saturating_add(shift), ..header };
            self.add_listed(header)?;
        }
        Ok(())
    }

    /// Adds the member of a central directory entry, once by the entry and once by its local file header.
    fn add_listed(&mut self, entry: Header) -> Result<()> {
        let at = entry.offset;
        let Some(local) = self.local(at)? else {
            // Readers that trust the central directory compute the local file header's length from the entry's name.
            let start = at.saturating_add(LOCAL_LEN).saturating_add(to_u64(entry.name.len()));
            self.add(&entry, start, entry.compressed_size, true);
            return Ok(());
        };
        self.add(&entry, local.offset, entry.compressed_size, true);
        let unsized_local = local.flags & HAS_DESCRIPTOR != 0 && local.compressed_size == 0;
        let size = if unsized_local { entry.compressed_size } else { local.compressed_size };
        self.add(&local, local.offset, size, true);
        self.listed_extents.push((at, local.offset.saturating_add(entry.compressed_size)));
        Ok(())
    }

    /// Adds a member, clipped to the end of the file.
    fn add(&mut self, header: &Header, start: u64, len: u64, listed: bool) {
        let available = self.source.len().saturating_sub(start);
        if len > available {
            self.complete = false;
        }
        self.found.insert(SalvagedMember {
            start,
            len: len.min(available),
            method: header.method,
            name: header.name.clone(),
            listed,
            encrypted: header.flags & 1 != 0,
        });
    }

    /// The local file header at an offset, if there is one: APPNOTE 4.3.7.
    fn local(&self, at: u64) -> Result<Option<Header>> {
        let available = self.source.len().saturating_sub(at);
        if available < LOCAL_LEN {
            return Ok(None);
        }
        let bytes = self.source.read_vec(at, available.min(1024))?;
        Ok(local(&mut Cursor::new(&bytes, at)).ok().flatten())
    }

    /// Follows the local file headers from the start on, as streaming readers do, and adds members that no directory lists.
    fn walk_local_headers(&mut self) -> Result<()> {
        self.listed_extents.sort_unstable();
        let (mut at, mut steps) = (0_u64, 0_u64);
        while at.saturating_add(LOCAL_LEN) <= self.source.len() {
            self.cancel.check()?;
            steps = steps.saturating_add(1);
            if steps > self.limits.entries.min(MEMBERS_MAX).saturating_mul(2) {
                self.complete = false;
                break;
            }
            let index = self.listed_extents.partition_point(|&(start, _)| start < at);
            if let Some(&(start, end)) = self.listed_extents.get(index)
                && start == at
            {
                at = self.skip_descriptor(end)?.max(at.saturating_add(LOCAL_LEN));
                continue;
            }
            let mut signature = [0; 4];
            self.source.read_at(at, &mut signature)?;
            if signature == ENTRY_SIGNATURE || &signature == b"PK\x05\x06" || &signature == b"PK\x06\x06" {
                break;
            }
            match self.local(at)? {
                Some(header) => at = self.add_unlisted(&header)?,
                None => match self.find(at, &LOCAL_SIGNATURE)? {
                    Some(next) => at = next,
                    None => break,
                },
            }
        }
        Ok(())
    }

    /// Adds a member that no central directory lists; returns its end.
    fn add_unlisted(&mut self, header: &Header) -> Result<u64> {
        let start = header.offset;
        if header.flags & HAS_DESCRIPTOR == 0 || header.compressed_size > 0 {
            self.add(header, start, header.compressed_size, false);
            return self.skip_descriptor(start.saturating_add(header.compressed_size));
        }
        // Its size is in the data descriptor after the payload.
        let end = self.find(start, &DESCRIPTOR_SIGNATURE)?;
        let next = end.unwrap_or(self.source.len());
        self.add(header, start, next.saturating_sub(start), false);
        match end {
            Some(end) => self.skip_descriptor(end),
            None => {
                self.complete = false;
                Ok(self.source.len())
            }
        }
    }

    /// The end of a member whose payload ends at `end`: past the data descriptor, if there is one.
    fn skip_descriptor(&self, end: u64) -> Result<u64> {
        let len = self.source.len().saturating_sub(end).min(28);
        let bytes = self.source.read_vec(end.min(self.source.len()), len)?;
        if !bytes.starts_with(&DESCRIPTOR_SIGNATURE) {
            return Ok(end);
        }
        let signature_at = |at: usize| bytes.get(at..).is_some_and(|rest| rest.starts_with(b"PK"));
        Ok(end.saturating_add(if !signature_at(16) && signature_at(24) { 24 } else { 16 }))
    }

    /// The offset of the next occurrence of a signature from `at` on; `None` also once the search budget is spent.
    fn find(&mut self, at: u64, signature: &[u8; 4]) -> Result<Option<u64>> {
        let mut at = at;
        while at < self.source.len() {
            if self.search_budget == 0 {
                self.complete = false;
                return Ok(None);
            }
            let len = self.source.len().saturating_sub(at).min(SEARCH_CHUNK_BYTES);
            let bytes = self.source.read_vec(at, len)?;
            if let Some(found) = bytes.windows(4).position(|window| window == signature) {
                return Ok(Some(at.saturating_add(to_u64(found))));
            }
            self.search_budget = self.search_budget.saturating_sub(len);
            // Chunks overlap by three bytes, since a signature may straddle two.
            at = if len < SEARCH_CHUNK_BYTES {
                self.source.len()
            } else {
                at.saturating_add(len).saturating_sub(3)
            };
        }
        Ok(None)
    }
}

/// Reads a central directory entry.
fn entry(cursor: &mut Cursor<'_>) -> Result<Header> {
    let signature: [u8; 4] = cursor.array()?;
    if signature != ENTRY_SIGNATURE {
        return Err(super::structure("not a central directory entry"));
    }
    cursor.take(4)?;
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(8)?;
    let (compressed_size, size) = (cursor.u32()?, cursor.u32()?);
    let (name_len, extra_len, comment_len) = (cursor.u16()?, cursor.u16()?, cursor.u16()?);
    cursor.take(8)?;
    let header = cursor.u32()?;
    let name = String::from_utf8_lossy(cursor.take(name_len.into())?).into_owned();
    let mut extra = Cursor::new(cursor.take(extra_len.into())?, 0);
    let mut zip64 = zip64(&mut extra);
    let mut value = |short: u32| match (short, &mut zip64) {
        (u32::MAX, Some(field)) => field.u64().unwrap_or(u64::from(short)),
        _ => u64::from(short),
    };
    // The zip64 field has the size first: taking it moves on to the values after it.
    value(size);
    let (compressed_size, offset) = (value(compressed_size), value(header));
    cursor.take(u64::from(comment_len).min(to_u64(cursor.rest().len())))?;
    Ok(Header { name, flags, method, compressed_size, offset })
}

/// The first zip64 extra field: APPNOTE 4.5.3.
fn zip64<'a>(extra: &mut Cursor<'a>) -> Option<Cursor<'a>> {
    loop {
        let (id, len) = (extra.u16().ok()?, extra.u16().ok()?);
        let field = extra.take(len.into()).ok()?;
        if id == 1 {
            return Some(Cursor::new(field, 0));
        }
    }
}

/// Reads a local file header; `None` where the signature is another.
fn local(cursor: &mut Cursor<'_>) -> Result<Option<Header>> {
    let signature: [u8; 4] = cursor.array()?;
    if signature != LOCAL_SIGNATURE {
        return Ok(None);
    }
    cursor.take(2)?;
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(8)?;
    let (compressed_size, _size) = (cursor.u32()?, cursor.u32()?);
    let (name_len, extra_len) = (cursor.u16()?, cursor.u16()?);
    let offset = cursor.offset().saturating_add(name_len.into()).saturating_add(extra_len.into());
    let available_name_len = u64::from(name_len).min(to_u64(cursor.rest().len()));
    let name = String::from_utf8_lossy(cursor.take(available_name_len)?).into_owned();
    let mut extra = Cursor::new(cursor.take(u64::from(extra_len).min(to_u64(cursor.rest().len())))?, 0);
    let compressed_size = match compressed_size {
        u32::MAX => {
            let mut field = zip64(&mut extra);
            let size = field.as_mut().and_then(|field| field.u64().ok().and_then(|_| field.u64().ok()));
            size.unwrap_or(u64::from(u32::MAX))
        }
        size => u64::from(size),
    };
    Ok(Some(Header { name, flags, method, compressed_size, offset }))
}
