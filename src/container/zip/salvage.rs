//! Finds every member that some zip reader might see, for a scanner: by any end record, by the directory, by local headers.
//!
//! The strict door refuses archives that readers disagree about; here all of their readings are listed side by side, each as a
//! name, a method and a range inside the file. Nothing is believed: ranges are cut at the end of the file, names are kept as
//! they come, and where a local header contradicts the directory both descriptions are members. Payloads are not read, except
//! for the end of a member that states no size. Follows APPNOTE 4.3.

use std::collections::BTreeSet;

use super::Archive;
use super::end::all_directories;
use crate::bytes::{Cursor, Region, Source};
use crate::container::len64;
use crate::error::Result;
use crate::limits::Limits;
use crate::parallel::Cancel;

const ENTRY: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
const DESCRIPTOR: [u8; 4] = *b"PK\x07\x08";
const LOCAL_LEN: u64 = 30;
const HAS_DESCRIPTOR: u16 = 1 << 3;
/// Bytes searched for the signature of a next local header or of a descriptor, in all.
const SEARCH: u64 = 64 << 20;
/// Bytes read at a time in a search.
const CHUNK: u64 = 64 << 10;
/// Members that are looked at one by one; an archive with more is not salvaged whole.
const MOST: u64 = 1 << 16;

/// A member as one reader might see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Salvaged {
    /// Where its bytes lie in the file, as stored.
    pub start: u64,
    /// How many there are; up to the next member where no size is stated.
    pub len: u64,
    /// The compression method's number.
    pub method: u16,
    /// The name, with replacement characters for what is not UTF-8.
    pub name: String,
    /// Whether a directory lists it; else only its local header does.
    pub listed: bool,
    /// Whether the flags say that it is encrypted.
    pub encrypted: bool,
}

/// All that was found.
#[derive(Debug, Default)]
pub struct Salvage {
    /// The members in the order of their places; one twice where readers differ.
    pub members: Vec<Salvaged>,
    /// Whether every byte of the file belongs to something that was understood, and no range had to be cut.
    pub complete: bool,
}

/// What a header says, wherever it stands.
struct Header {
    name: String,
    flags: u16,
    method: u16,
    compressed_size: u64,
    /// For an entry of the directory where the local header lies; for a local header where its payload starts.
    place: u64,
}

/// Lists the members of a broken archive; fails only where the file cannot be read, or on a request to stop.
pub fn salvage(source: &Source, limits: &Limits, cancel: &Cancel) -> Result<Salvage> {
    let mut out = Finder::new(source, limits, cancel);
    let directories = all_directories(source)?;
    // Without a directory nobody knows what is missing.
    out.complete = !directories.is_empty();
    for directory in directories {
        out.directory(directory.start, directory.len, directory.shift)?;
    }
    out.chain()?;
    Ok(Salvage { members: out.found.into_iter().collect(), complete: out.complete })
}

/// Where a directory may lie, and how far the offsets in it are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) shift: u64,
}

impl Archive {
    /// The ranges between members that no member and no descriptor accounts for; readers of local headers see what is there.
    pub fn gaps(&self) -> Result<Vec<Region>> {
        let mut out = Vec::new();
        for (index, member) in self.members().iter().enumerate() {
            let end = self.payload(index)?.end();
            let gap = member.bound.saturating_sub(end);
            let descriptor = member.flags & HAS_DESCRIPTOR != 0 && matches!(gap, 16 | 24);
            if gap > 0 && !descriptor {
                out.extend(Region::new(end, gap));
            }
        }
        Ok(out)
    }
}

/// The members whose local headers stand in a range that the directory does not account for.
pub fn salvage_range(source: &Source, range: Region, limits: &Limits, cancel: &Cancel) -> Result<Salvage> {
    let window = source.window(range.start(), range.len())?;
    let mut out = Finder::new(&window, limits, cancel);
    out.chain()?;
    let shifted = |member: Salvaged| Salvaged { start: member.start.saturating_add(range.start()), ..member };
    Ok(Salvage { members: out.found.into_iter().map(shifted).collect(), complete: out.complete })
}

struct Finder<'a> {
    source: &'a Source,
    limits: &'a Limits,
    cancel: &'a Cancel,
    /// Entries of directories so far, equal ones too: many end records may lead to one directory.
    entries: u64,
    found: BTreeSet<Salvaged>,
    /// Where the members that directories list start and end, headers included.
    ends: Vec<(u64, u64)>,
    complete: bool,
    budget: u64,
}

impl<'a> Finder<'a> {
    fn new(source: &'a Source, limits: &'a Limits, cancel: &'a Cancel) -> Finder<'a> {
        Finder {
            source,
            limits,
            cancel,
            entries: 0,
            found: BTreeSet::new(),
            ends: Vec::new(),
            complete: true,
            budget: SEARCH,
        }
    }

    /// The entries of one directory, as far as they go: APPNOTE 4.3.12.
    fn directory(&mut self, start: u64, len: u64, shift: u64) -> Result<()> {
        let len = len.min(self.source.len().saturating_sub(start));
        if len > self.limits.directory_bytes {
            self.complete = false;
        }
        let bytes = self.source.read_vec(start, len.min(self.limits.directory_bytes))?;
        let mut cursor = Cursor::new(&bytes, start);
        while let Ok(header) = entry(&mut cursor) {
            self.cancel.check()?;
            if self.entries >= self.limits.entries.min(MOST) {
                self.complete = false;
                break;
            }
            self.entries = self.entries.saturating_add(1);
            let header = Header { place: header.place.saturating_add(shift), ..header };
            self.listed(header)?;
        }
        Ok(())
    }

    fn listed(&mut self, entry: Header) -> Result<()> {
        let at = entry.place;
        let Some(local) = self.local(at)? else {
            // Readers that trust the directory take the local header's length from its name.
            let start = at.saturating_add(LOCAL_LEN).saturating_add(len64(entry.name.len()));
            self.add(&entry, start, entry.compressed_size, true);
            return Ok(());
        };
        self.add(&entry, local.place, entry.compressed_size, true);
        let streamed = local.flags & HAS_DESCRIPTOR != 0 && local.compressed_size == 0;
        let size = if streamed { entry.compressed_size } else { local.compressed_size };
        self.add(&local, local.place, size, true);
        self.ends.push((at, local.place.saturating_add(entry.compressed_size)));
        Ok(())
    }

    fn add(&mut self, header: &Header, start: u64, len: u64, listed: bool) {
        let room = self.source.len().saturating_sub(start);
        if len > room {
            self.complete = false;
        }
        self.found.insert(Salvaged {
            start,
            len: len.min(room),
            method: header.method,
            name: header.name.clone(),
            listed,
            encrypted: header.flags & 1 != 0,
        });
    }

    /// The local header at an offset, if one is there: APPNOTE 4.3.7.
    fn local(&self, at: u64) -> Result<Option<Header>> {
        let room = self.source.len().saturating_sub(at);
        if room < LOCAL_LEN {
            return Ok(None);
        }
        let bytes = self.source.read_vec(at, room.min(1024))?;
        Ok(local(&mut Cursor::new(&bytes, at)).ok().flatten())
    }

    /// Follows the local headers from the start on, as readers that stream do.
    fn chain(&mut self) -> Result<()> {
        self.ends.sort_unstable();
        let (mut at, mut steps) = (0_u64, 0_u64);
        while at.saturating_add(LOCAL_LEN) <= self.source.len() {
            self.cancel.check()?;
            steps = steps.saturating_add(1);
            if steps > self.limits.entries.min(MOST).saturating_mul(2) {
                self.complete = false;
                break;
            }
            let place = self.ends.partition_point(|&(start, _)| start < at);
            if let Some(&(start, end)) = self.ends.get(place)
                && start == at
            {
                at = self.after(end)?.max(at.saturating_add(LOCAL_LEN));
                continue;
            }
            let mut signature = [0; 4];
            self.source.read_at(at, &mut signature)?;
            if signature == ENTRY || &signature == b"PK\x05\x06" || &signature == b"PK\x06\x06" {
                break;
            }
            match self.local(at)? {
                Some(header) => at = self.unlisted(&header)?,
                None => match self.find(at, &LOCAL)? {
                    Some(next) => at = next,
                    None => break,
                },
            }
        }
        Ok(())
    }

    /// A member that no directory lists; returns where it ends.
    fn unlisted(&mut self, header: &Header) -> Result<u64> {
        let start = header.place;
        if header.flags & HAS_DESCRIPTOR == 0 || header.compressed_size > 0 {
            self.add(header, start, header.compressed_size, false);
            return self.after(start.saturating_add(header.compressed_size));
        }
        // Its size stands behind it.
        let end = self.find(start, &DESCRIPTOR)?;
        let next = end.unwrap_or(self.source.len());
        self.add(header, start, next.saturating_sub(start), false);
        match end {
            Some(end) => self.after(end),
            None => {
                self.complete = false;
                Ok(self.source.len())
            }
        }
    }

    /// Where a member ends whose payload ends at `end`: past the descriptor, if there is one.
    fn after(&self, end: u64) -> Result<u64> {
        let len = self.source.len().saturating_sub(end).min(28);
        let bytes = self.source.read_vec(end.min(self.source.len()), len)?;
        if !bytes.starts_with(&DESCRIPTOR) {
            return Ok(end);
        }
        let signature_at = |at: usize| bytes.get(at..).is_some_and(|rest| rest.starts_with(b"PK"));
        Ok(end.saturating_add(if !signature_at(16) && signature_at(24) { 24 } else { 16 }))
    }

    /// The next place of a signature from `at` on, as far as the budget goes.
    fn find(&mut self, at: u64, signature: &[u8; 4]) -> Result<Option<u64>> {
        let mut at = at;
        while at < self.source.len() {
            if self.budget == 0 {
                self.complete = false;
                return Ok(None);
            }
            let len = self.source.len().saturating_sub(at).min(CHUNK);
            let bytes = self.source.read_vec(at, len)?;
            if let Some(found) = bytes.windows(4).position(|window| window == signature) {
                return Ok(Some(at.saturating_add(len64(found))));
            }
            self.budget = self.budget.saturating_sub(len);
            // A signature may lie across two chunks.
            at = if len < CHUNK { self.source.len() } else { at.saturating_add(len).saturating_sub(3) };
        }
        Ok(None)
    }
}

fn entry(cursor: &mut Cursor<'_>) -> Result<Header> {
    let signature: [u8; 4] = cursor.array()?;
    if signature != ENTRY {
        return Err(super::structure("no entry of a directory"));
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
    let mut wide = zip64(&mut extra);
    let mut value = |short: u32| match (short, &mut wide) {
        (u32::MAX, Some(field)) => field.u64().unwrap_or(u64::from(short)),
        _ => u64::from(short),
    };
    value(size);
    let (compressed_size, place) = (value(compressed_size), value(header));
    cursor.take(u64::from(comment_len).min(len64(cursor.rest().len())))?;
    Ok(Header { name, flags, method, compressed_size, place })
}

/// The first zip64 field among the extra fields: APPNOTE 4.5.3.
fn zip64<'a>(extra: &mut Cursor<'a>) -> Option<Cursor<'a>> {
    loop {
        let (id, len) = (extra.u16().ok()?, extra.u16().ok()?);
        let field = extra.take(len.into()).ok()?;
        if id == 1 {
            return Some(Cursor::new(field, 0));
        }
    }
}

fn local(cursor: &mut Cursor<'_>) -> Result<Option<Header>> {
    let signature: [u8; 4] = cursor.array()?;
    if signature != LOCAL {
        return Ok(None);
    }
    cursor.take(2)?;
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(8)?;
    let (compressed_size, _size) = (cursor.u32()?, cursor.u32()?);
    let (name_len, extra_len) = (cursor.u16()?, cursor.u16()?);
    let place = cursor.offset().saturating_add(name_len.into()).saturating_add(extra_len.into());
    let shown = u64::from(name_len).min(len64(cursor.rest().len()));
    let name = String::from_utf8_lossy(cursor.take(shown)?).into_owned();
    let mut extra = Cursor::new(cursor.take(u64::from(extra_len).min(len64(cursor.rest().len())))?, 0);
    let compressed_size = match compressed_size {
        u32::MAX => {
            let mut field = zip64(&mut extra);
            let size = field.as_mut().and_then(|field| field.u64().ok().and_then(|_| field.u64().ok()));
            size.unwrap_or(u64::from(u32::MAX))
        }
        size => u64::from(size),
    };
    Ok(Some(Header { name, flags, method, compressed_size, place }))
}
