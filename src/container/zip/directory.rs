//! Reads the central directory into owned members: APPNOTE 4.3.12.
//!
//! Refused: a count that is wrong either way, zip64 fields that are missing, repeated or superfluous, encryption and
//! foreign methods, names that other readers would read otherwise, duplicates, and members that share bytes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::end::End;
use super::{recode, structure};
use crate::bytes::{Cursor, Region, Source};
use crate::container::len64;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;

const SIGNATURE: [u8; 4] = *b"PK\x01\x02";
const ENTRY_LEN: u64 = 46;
/// A local header without its name and extra field: APPNOTE 4.3.7.
const LOCAL_LEN: u64 = 30;
/// General purpose bits 0, 5, 6 and 13: encrypted, patched, strongly encrypted, masked headers (APPNOTE 4.4.4).
const UNSUPPORTED_FLAGS: u16 = 1 | 1 << 5 | 1 << 6 | 1 << 13;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// A named byte range of an archive, as the directory describes it.
#[derive(Clone)]
pub struct Member {
    name: Arc<str>,
    pub(super) flags: u16,
    method: u16,
    crc: u32,
    compressed_size: u64,
    size: u64,
    /// Where the local header starts.
    pub(super) header: u64,
    /// Where the next local header, or the directory, starts.
    pub(super) bound: u64,
}

impl Member {
    /// The name; unique in the archive.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The compression method's number: 0 for stored, 8 for deflate.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// The checksum of the bytes after inflation, as the directory states it.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Bytes in the file.
    pub fn compressed_size(&self) -> u64 {
        self.compressed_size
    }

    /// Bytes after inflation.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where its local header starts, in the archive.
    pub fn position(&self) -> u64 {
        self.header
    }

    /// Whether the bytes in the file are deflated.
    pub fn is_compressed(&self) -> bool {
        self.method != STORED
    }

    /// Whether this only names a directory; it holds no bytes.
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

/// Reads all members, in the directory's order, and finds them by name.
pub(super) fn read(source: &Source, end: End, limits: &Limits) -> Result<Members> {
    let End { entries, directory } = end;
    Limits::check("entries", limits.entries, entries)?;
    Limits::check("directory_bytes", limits.directory_bytes, directory.len())?;
    if entries > directory.len() / ENTRY_LEN {
        let text = format!("{entries} members announced, the directory has {} byte(s)", directory.len());
        return Err(structure(text).at(directory.start()));
    }
    let bytes = source.read_vec(directory.start(), directory.len())?;
    let mut cursor = Cursor::new(&bytes, directory.start());
    let capacity = usize::try_from(entries).unwrap_or(0);
    let mut members = Vec::with_capacity(capacity);
    let mut by_name = HashMap::with_capacity(capacity);
    for index in 0..capacity {
        let place = cursor.offset();
        let member = entry(&mut cursor, limits).map_err(recode(Code::ZipStructure))?;
        if by_name.insert(member.name.clone(), index).is_some() {
            let text = format!("two members are named {:?}", member.name);
            return Err(Error::new(Code::ZipDuplicate, text).at(place));
        }
        members.push(member);
    }
    if !cursor.is_empty() {
        let text = format!("{} byte(s) of directory after its {entries} members", cursor.rest().len());
        return Err(structure(text).at(cursor.offset()));
    }
    bound(&mut members, directory)?;
    Ok((members, by_name))
}

/// One file header: APPNOTE 4.3.12.
fn entry(cursor: &mut Cursor<'_>, limits: &Limits) -> Result<Member> {
    let place = cursor.offset();
    if cursor.array()? != SIGNATURE {
        return Err(structure("a member of the directory has no signature").at(place));
    }
    cursor.take(4)?; // version made by, version needed
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(4)?; // time and date
    let crc = cursor.u32()?;
    let (compressed_size, size) = (cursor.u32()?, cursor.u32()?);
    let (name_len, extra_len, comment_len) = (cursor.u16()?, cursor.u16()?, cursor.u16()?);
    let disk = cursor.u16()?;
    cursor.take(6)?; // attributes
    let header = cursor.u32()?;
    let raw_name = cursor.take(name_len.into())?;
    let extra = Cursor::new(cursor.take(extra_len.into())?, cursor.offset().saturating_sub(extra_len.into()));
    cursor.take(comment_len.into())?;

    let name = check_name(raw_name, limits).map_err(|error| error.at(place))?;
    let wide = Zip64::read(extra, name, [size, compressed_size, header], disk)
        .map_err(|error| error.at(place).in_member(name))?;
    let [size, compressed_size, header] = wide.values;
    let member =
        Member { name: name.into(), flags, method, crc, compressed_size, size, header, bound: header };
    check_entry(&member).map_err(|error| error.in_member(name))?;
    Ok(member)
}

/// What can be said of an entry without its local header.
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
            let text = format!("stored without compression, yet {stored} byte(s) become {size}");
            Err(Error::new(Code::ZipMismatch, text))
        }
        STORED | DEFLATED if member.is_directory() && (member.size, member.compressed_size) != (0, 0) => {
            Err(structure(format!("a directory's name carries {} byte(s)", member.size)))
        }
        STORED | DEFLATED => Ok(()),
        method => unsupported(format!("compression method {method} is neither stored nor deflate")),
    }
}

/// The 64-bit values behind sentinels: APPNOTE 4.5.3. Only the fields that are sentinels are there, in this order.
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
                0x0001 if zip64.is_some() => return Err(structure("two zip64 fields in one entry")),
                0x0001 => zip64 = Some(field),
                0x7075 => check_unicode_path(field, name)?,
                _ => {}
            }
        }
        let wanted = fields.iter().filter(|&&field| field == u32::MAX).count();
        if zip64.is_none() && wanted > 0 {
            return Err(structure("a size or offset is left to a zip64 field that is absent"));
        }
        let mut zip64 = zip64.unwrap_or(Cursor::new(&[], 0));
        let mut values = fields.map(u64::from);
        for value in values.iter_mut().filter(|value| **value == u64::from(u32::MAX)) {
            *value = zip64.u64()?;
        }
        let disk = if disk == u16::MAX { zip64.u32()? } else { disk.into() };
        if disk != 0 {
            return Err(structure(format!("the member lies on disk {disk}")));
        }
        if !zip64.is_empty() {
            let text = format!("{} byte(s) too many in a zip64 field", zip64.rest().len());
            return Err(structure(text));
        }
        Ok(Zip64 { values })
    }
}

/// APPNOTE 4.6.9: some readers take the name from here, so it must be the same one.
pub(super) fn check_unicode_path(mut field: Cursor<'_>, name: &str) -> Result<()> {
    field.take(5)?; // version and checksum
    if field.rest() == name.as_bytes() {
        return Ok(());
    }
    Err(Error::new(Code::ZipName, format!("the Unicode name field of {name:?} holds another name")))
}

/// A name that every reader reads the same way and that no extractor would put elsewhere.
fn check_name<'a>(raw: &'a [u8], limits: &Limits) -> Result<&'a str> {
    let refuse = |why: &str| {
        let shown: String = String::from_utf8_lossy(raw).chars().take(80).collect();
        Err(Error::new(Code::ZipName, format!("member name {shown:?} {why}")))
    };
    if len64(raw.len()) > limits.name_bytes {
        return refuse(&format!("has {} bytes, the limit name_bytes is {}", raw.len(), limits.name_bytes));
    }
    // APPNOTE 4.4.4 bit 11 promises UTF-8; without it a name is taken only if it is UTF-8 all the same.
    let Ok(name) = std::str::from_utf8(raw) else { return refuse("is not UTF-8") };
    let drive = matches!(raw, [letter, b':', ..] if letter.is_ascii_alphabetic());
    match name {
        "" => refuse("is empty"),
        _ if name.contains('\0') => refuse("holds a NUL"),
        _ if name.contains('\\') => refuse("holds a backslash"),
        _ if drive || name.starts_with('/') => refuse("is absolute"),
        _ if name
            .strip_suffix('/')
            .unwrap_or(name)
            .split('/')
            .any(|part| matches!(part, "" | "." | "..")) =>
        {
            refuse("holds an empty part, '.' or '..'")
        }
        _ => Ok(name),
    }
}

/// Gives each member the start of the next one as its bound, and refuses members that cannot be disjoint.
fn bound(members: &mut [Member], directory: Region) -> Result<()> {
    let mut order: Vec<&mut Member> = members.iter_mut().collect();
    if !order.is_sorted_by_key(|member| member.header) {
        order.sort_unstable_by_key(|member| member.header);
    }
    if let Some(first) = order.first().map(|member| member.header).filter(|&header| header != 0) {
        let text = format!("{first} byte(s) before the archive's first member");
        return Err(Error::new(Code::ZipPrefix, text).at(0));
    }
    let mut next = directory.start();
    for member in order.into_iter().rev() {
        member.bound = next;
        let least = LOCAL_LEN.saturating_add(len64(member.name.len()));
        let end = member.header.saturating_add(least).saturating_add(member.compressed_size);
        if end > next {
            let text = format!("the member at {} reaches at least to {end}, past {next}", member.header);
            return Err(Error::new(Code::RecordOverlap, text).in_member(&member.name));
        }
        next = member.header;
    }
    Ok(())
}
