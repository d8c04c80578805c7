//! Reads the central directory of a zip archive into owned members: APPNOTE 4.3.12.
//!
//! Refused: an entry count that is too high or too low, zip64 fields that are missing, repeated or superfluous, encryption,
//! methods other than stored and deflate, names that other readers decode differently, duplicate names, and overlapping members.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::eocd::Eocd;
use super::{NEIGHBOURS_BYTES, recode, structure};
use crate::bytes::{Cursor, Region, Source};
use crate::error::{Code, Error, Result, error};
use crate::limits::Limits;
use crate::num::to_u64;

const SIGNATURE: [u8; 4] = *b"PK\x01\x02";
/// A central directory entry without its variable fields.
const ENTRY_LEN: u64 = 46;
/// A local file header without its name and extra field: APPNOTE 4.3.7.
const LOCAL_LEN: u64 = 30;
/// General purpose bits 0, 5, 6 and 13: encrypted, patched, strongly encrypted, masked headers (APPNOTE 4.4.4).
const UNSUPPORTED_FLAGS: u16 = 1 | 1 << 5 | 1 << 6 | 1 << 13;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// A member of an archive, as its central directory entry describes it.
#[derive(Clone)]
pub struct Member {
    name: Arc<str>,
    pub(super) flags: u16,
    method: u16,
    crc: u32,
    compressed_size: u64,
    size: u64,
    /// The offset of the local file header.
    pub(super) header_offset: u64,
    /// The offset of the next local file header, or of the central directory: the member ends there at the latest.
    pub(super) end_max: u64,
}

impl Member {
    /// The name; unique in the archive.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The compression method: 0 for stored, 8 for deflate.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// The CRC-32 of the uncompressed bytes, as the central directory states it.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Compressed size in bytes.
    pub fn compressed_size(&self) -> u64 {
        self.compressed_size
    }

    /// Uncompressed size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The offset of its local file header, in the archive.
    pub fn header_offset(&self) -> u64 {
        self.header_offset
    }

    /// Its local file header, its payload and what follows up to the next member, in the archive.
    pub fn extent(&self) -> Region {
        let len = self.end_max.saturating_sub(self.header_offset);
        Region::new(self.header_offset, len).unwrap_or_default()
    }

    /// Whether the member is deflated.
    pub fn is_compressed(&self) -> bool {
        self.method != STORED
    }

    /// Whether the entry is a directory, which has no bytes.
    pub fn is_directory(&self) -> bool {
        self.name.ends_with('/')
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({:?}, {} -> {} bytes)", self.name, self.compressed_size, self.size)
    }
}

type Members = (Vec<Member>, HashMap<Arc<str>, usize>);

/// Reads all members, in the order of the central directory, and an index of them by name.
pub(super) fn read(source: &Source, end: Eocd, limits: &Limits) -> Result<Members> {
    let Eocd { entries, directory } = end;
    Limits::check("entries", limits.entries, entries)?;
    Limits::check("directory_bytes", limits.directory_bytes, directory.len())?;
    if entries > directory.len() / ENTRY_LEN {
        let text =
            format!("{entries} members are stated, the central directory has {} byte(s)", directory.len());
        return Err(structure(text).at(directory.start()));
    }
    // The last members are small ones that are read on opening.
    let before = directory.start().min(NEIGHBOURS_BYTES);
    source.prefetch(directory.start().saturating_sub(before), directory.len().saturating_add(before))?;
    let bytes = source.read_vec(directory.start(), directory.len())?;
    let mut cursor = Cursor::new(&bytes, directory.start());
    let capacity = usize::try_from(entries).unwrap_or(0);
    let mut members = Vec::with_capacity(capacity);
    let mut by_name = HashMap::with_capacity(capacity);
    for index in 0..capacity {
        let offset = cursor.offset();
        let member = entry(&mut cursor, limits).map_err(recode(Code::ZipStructure))?;
        if by_name.insert(member.name.clone(), index).is_some() {
            return Err(error!(Code::ZipDuplicate, "two members are named {:?}", member.name).at(offset));
        }
        members.push(member);
    }
    if !cursor.is_empty() {
        let text =
            format!("{} byte(s) in the central directory after its {entries} entries", cursor.rest().len());
        return Err(structure(text).at(cursor.offset()));
    }
    check_overlaps(&mut members, directory)?;
    Ok((members, by_name))
}

/// Reads one entry, a central directory file header: APPNOTE 4.3.12.
fn entry(cursor: &mut Cursor<'_>, limits: &Limits) -> Result<Member> {
    let offset = cursor.offset();
    if cursor.array()? != SIGNATURE {
        return Err(structure("an entry of the central directory has no signature").at(offset));
    }
    cursor.take(4)?; // version made by, version needed
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(4)?; // time and date
    let crc = cursor.u32()?;
    let (compressed_size, size) = (cursor.u32()?, cursor.u32()?);
    let (name_len, extra_len, comment_len) = (cursor.u16()?, cursor.u16()?, cursor.u16()?);
    let disk = cursor.u16()?;
    cursor.take(6)?; // attributes
    let header_offset = cursor.u32()?;
    let raw_name = cursor.take(name_len.into())?;
    let extra = Cursor::new(cursor.take(extra_len.into())?, cursor.offset().saturating_sub(extra_len.into()));
    cursor.take(comment_len.into())?;

    let name = check_name(raw_name, limits).map_err(|error| error.at(offset))?;
    let zip64 = Zip64::read(extra, name, [size, compressed_size, header_offset], disk)
        .map_err(|error| error.at(offset).in_member(name))?;
    let [size, compressed_size, header_offset] = zip64.values;
    let (name, end_max) = (name.into(), header_offset);
    let member = Member { name, flags, method, crc, compressed_size, size, header_offset, end_max };
    let name = member.name();
    check_entry(&member).map_err(|error| error.in_member(name))?;
    Ok(member)
}

/// Checks what does not need the local file header: flags, method and sizes.
fn check_entry(member: &Member) -> Result<()> {
    let unsupported = |text: String| Err(Error::new(Code::ZipUnsupported, text));
    match member.flags & UNSUPPORTED_FLAGS {
        0 => {}
        bits => {
            return unsupported(format!("the member is encrypted or patched (flag bits {bits:#06x})"));
        }
    }
    match member.method {
        STORED if member.compressed_size != member.size => {
            let (stored, size) = (member.compressed_size, member.size);
            let text = format!("the member is stored, but its sizes differ: {stored} and {size} byte(s)");
            Err(Error::new(Code::ZipMismatch, text))
        }
        STORED | DEFLATED if member.is_directory() && (member.size, member.compressed_size) != (0, 0) => {
            Err(structure(format!("a directory entry has {} byte(s)", member.size)))
        }
        STORED | DEFLATED => Ok(()),
        method => unsupported(format!("compression method {method} is neither stored nor deflate")),
    }
}

/// Size, compressed size and offset, with the zip64 extra field's values for those that are sentinels: APPNOTE 4.5.3. The extra field
/// contains only these, in this order.
struct Zip64 {
    values: [u64; 3],
}

impl Zip64 {
    fn read(mut extra: Cursor<'_>, name: &str, fields: [u32; 3], disk: u16) -> Result<Zip64> {
        let mut zip64 = None;
        while !extra.is_empty() {
            let (id, len) = (extra.u16()?, extra.u16()?);
            let field = Cursor::new(extra.take(len.into())?, extra.offset().saturating_sub(len.into()));
            match id {
                0x0001 if zip64.is_some() => return Err(structure("an entry has two zip64 extra fields")),
                0x0001 => zip64 = Some(field),
                0x7075 => check_unicode_path(field, name)?,
                _ => {}
            }
        }
        let sentinels = fields.iter().filter(|&&field| field == u32::MAX).count();
        if zip64.is_none() && sentinels > 0 {
            return Err(structure(
                "a size or offset is a zip64 sentinel, but the entry has no zip64 extra field",
            ));
        }
        let mut zip64 = zip64.unwrap_or(Cursor::new(&[], 0));
        let mut values = fields.map(u64::from);
        for value in values.iter_mut().filter(|value| **value == u64::from(u32::MAX)) {
            *value = zip64.u64()?;
        }
        let disk = if disk == u16::MAX { zip64.u32()? } else { disk.into() };
        if disk != 0 {
            return Err(structure(format!("the member is on disk {disk}")));
        }
        if !zip64.is_empty() {
            let text = format!("{} byte(s) too many in a zip64 extra field", zip64.rest().len());
            return Err(structure(text));
        }
        Ok(Zip64 { values })
    }
}

/// Checks the Unicode path extra field (APPNOTE 4.6.9): some readers take the name from it, so it must be the same name.
pub(super) fn check_unicode_path(mut field: Cursor<'_>, name: &str) -> Result<()> {
    field.take(5)?; // version and checksum
    if field.rest() == name.as_bytes() {
        return Ok(());
    }
    Err(error!(Code::ZipName, "the Unicode path field of {name:?} contains another name"))
}

/// Accepts a name only if all readers decode it alike and no extractor would write it outside its folder.
fn check_name<'a>(raw: &'a [u8], limits: &Limits) -> Result<&'a str> {
    let refuse = |why: &str| {
        let shown: String = String::from_utf8_lossy(raw).chars().take(80).collect();
        Err(error!(Code::ZipName, "member name {shown:?} {why}"))
    };
    if to_u64(raw.len()) > limits.name_bytes {
        return refuse(&format!("has {} bytes, the limit name_bytes is {}", raw.len(), limits.name_bytes));
    }
    // APPNOTE 4.4.4: bit 11 states that the name is UTF-8; a name without it must be UTF-8 too.
    let Ok(name) = std::str::from_utf8(raw) else { return refuse("is not UTF-8") };
    let drive = matches!(raw, [letter, b':', ..] if letter.is_ascii_alphabetic());
    match name {
        "" => refuse("is empty"),
        _ if name.contains('\0') => refuse("contains a NUL"),
        _ if name.contains('\\') => refuse("contains a backslash"),
        _ if drive || name.starts_with('/') => refuse("is absolute"),
        _ if name
            .strip_suffix('/')
            .unwrap_or(name)
            .split('/')
            .any(|part| matches!(part, "" | "." | "..")) =>
        {
            refuse("contains an empty part, '.' or '..'")
        }
        _ => Ok(name),
    }
}

/// Sets each member's `end_max` and refuses members that must overlap.
fn check_overlaps(members: &mut [Member], directory: Region) -> Result<()> {
    let mut order: Vec<&mut Member> = members.iter_mut().collect();
    if !order.is_sorted_by_key(|member| member.header_offset) {
        order.sort_unstable_by_key(|member| member.header_offset);
    }
    if let Some(first) = order.first().map(|member| member.header_offset).filter(|&offset| offset != 0) {
        return Err(error!(Code::ZipPrefix, "{first} byte(s) before the archive's first member").at(0));
    }
    let mut next = directory.start();
    for member in order.into_iter().rev() {
        member.end_max = next;
        let min_header_len = LOCAL_LEN.saturating_add(to_u64(member.name.len()));
        let end = member.header_offset.saturating_add(min_header_len).saturating_add(member.compressed_size);
        if end > next {
            let text = format!("the member at {} ends at {end} or later, past {next}", member.header_offset);
            return Err(Error::new(Code::RecordOverlap, text).in_member(&member.name));
        }
        next = member.header_offset;
    }
    Ok(())
}
