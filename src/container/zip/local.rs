//! Compares a member's local header and data descriptor with the directory: APPNOTE 4.3.7 and 4.3.9.
//!
//! Name, method and flags must be equal; checksum and sizes equal, or zero where a descriptor follows (bit 3). Version,
//! time and other extra fields may differ. Past 4 GiB torch's writer puts a zip64 field of 8 bytes (the header's own
//! offset), 16 (the sizes) or 24 (both) into the header, and the descriptor is 24 bytes long exactly if that field is
//! there, whatever the size.

use super::Member;
use super::directory::check_unicode_path;
use super::recode;
use crate::bytes::{Cursor, Region};
use crate::container::len64;
use crate::error::{Code, Error, Result};

const SIGNATURE: [u8; 4] = *b"PK\x03\x04";
const DESCRIPTOR_SIGNATURE: [u8; 4] = *b"PK\x07\x08";
const HEADER_LEN: u64 = 30;
/// Enough for the padding that torch writes and a zip64 field; a longer extra field costs a second read.
const EXTRA_HINT: u64 = 128;
const HAS_DESCRIPTOR: u16 = 1 << 3;

/// Where the member's payload lies, once its local header is found to agree with the directory. `read` gives bytes of the
/// archive by position and length.
pub(super) fn verify(read: impl Fn(u64, u64) -> Result<Vec<u8>>, member: &Member) -> Result<Region> {
    let room = member.bound.saturating_sub(member.header);
    let fixed = HEADER_LEN.saturating_add(len64(member.name().len()));
    let mut bytes = read(member.header, room.min(fixed.saturating_add(EXTRA_HINT)))?;
    let extra_len = match bytes.get(28..30) {
        Some(&[low, high]) => u64::from(u16::from_le_bytes([low, high])),
        _ => 0,
    };
    let len = fixed.saturating_add(extra_len);
    if len64(bytes.len()) < len && len <= room {
        bytes = read(member.header, len)?;
    }
    let mut cursor = Cursor::new(&bytes, member.header);
    let wide = check_header(&mut cursor, member).map_err(recode(Code::RecordOverlap))?;
    let start = cursor.offset();
    let descriptor_len = match (member.flags & HAS_DESCRIPTOR, wide) {
        (0, _) => 0,
        (_, false) => 16,
        (_, true) => 24,
    };
    let payload = Region::new(start, member.compressed_size());
    let payload = payload
        .filter(|payload| payload.end().saturating_add(descriptor_len) <= member.bound)
        .ok_or_else(|| {
            let (size, bound) = (member.compressed_size(), member.bound);
            let text =
                format!("{size} byte(s) at {start} and a descriptor of {descriptor_len} reach past {bound}");
            Error::new(Code::RecordOverlap, text)
        })?;
    if descriptor_len > 0 {
        let bytes = read(payload.end(), descriptor_len)?;
        check_descriptor(Cursor::new(&bytes, payload.end()), member, wide)?;
    }
    Ok(payload)
}

/// APPNOTE 4.3.7. Leaves the cursor at the payload and tells whether a zip64 field is there.
fn check_header(cursor: &mut Cursor<'_>, member: &Member) -> Result<bool> {
    if cursor.array()? != SIGNATURE {
        return Err(mismatch(member, "has no signature".to_owned()));
    }
    cursor.take(2)?; // version needed
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(4)?; // time and date
    let crc = cursor.u32()?;
    let (compressed_size, size) = (cursor.u32()?, cursor.u32()?);
    let (name_len, extra_len) = (cursor.u16()?, cursor.u16()?);
    if usize::from(name_len) != member.name().len()
        || cursor.take(name_len.into())? != member.name().as_bytes()
    {
        return Err(mismatch(member, "has another name".to_owned()));
    }
    if flags != member.flags {
        return Err(mismatch(member, format!("has flags {flags:#06x}, not {:#06x}", member.flags)));
    }
    if method != member.method() {
        return Err(mismatch(member, format!("has method {method}, not {}", member.method())));
    }
    let extra = Cursor::new(cursor.take(extra_len.into())?, cursor.offset());
    let streamed = flags & HAS_DESCRIPTOR != 0;
    let zip64 = read_extra(extra, member, streamed).map_err(recode(Code::ZipMismatch))?;
    let size_agrees = |found: u32, wanted: u64| {
        u64::from(found) == wanted || (streamed && found == 0) || (zip64.has_sizes && found == u32::MAX)
    };
    if !(crc == member.crc() || (streamed && crc == 0)) {
        return Err(mismatch(member, format!("has checksum {crc:08x}, not {:08x}", member.crc())));
    }
    if !size_agrees(size, member.size()) || !size_agrees(compressed_size, member.compressed_size()) {
        let (wanted, stored) = (member.size(), member.compressed_size());
        let text = format!("has sizes {compressed_size} and {size}, not {stored} and {wanted}");
        return Err(mismatch(member, text));
    }
    Ok(zip64.present)
}

#[derive(Default)]
struct LocalZip64 {
    present: bool,
    has_sizes: bool,
}

/// APPNOTE 4.5.3, and what torch's writer does past 4 GiB (see above).
fn read_extra(mut extra: Cursor<'_>, member: &Member, streamed: bool) -> Result<LocalZip64> {
    let mut found = LocalZip64::default();
    // Fewer than four bytes hold no field: aligners pad with them.
    while extra.rest().len() >= 4 {
        let (id, len) = (extra.u16()?, extra.u16()?);
        let mut field = Cursor::new(extra.take(len.into())?, extra.offset().saturating_sub(len.into()));
        match id {
            0x0001 if found.present => return Err(mismatch(member, "has two zip64 fields".to_owned())),
            0x0001 => {
                found = LocalZip64 { present: true, has_sizes: len >= 16 };
                let wanted: &[u64] = match len {
                    8 => &[member.header],
                    16 => &[member.size(), member.compressed_size()],
                    24 => &[member.size(), member.compressed_size(), member.header],
                    _ => return Err(mismatch(member, format!("has a zip64 field of {len} byte(s)"))),
                };
                for &wanted in wanted {
                    let value = field.u64()?;
                    if value != wanted && !(streamed && value == 0) {
                        return Err(mismatch(member, format!("has {value} as zip64 value, not {wanted}")));
                    }
                }
            }
            0x7075 => check_unicode_path(field, member.name())?,
            _ => {}
        }
    }
    Ok(found)
}

/// APPNOTE 4.3.9, always with its signature.
fn check_descriptor(mut cursor: Cursor<'_>, member: &Member, wide: bool) -> Result<()> {
    let place = cursor.offset();
    let (signature, crc) = (cursor.array()?, cursor.u32()?);
    let (compressed_size, size) =
        if wide { (cursor.u64()?, cursor.u64()?) } else { (cursor.u32()?.into(), cursor.u32()?.into()) };
    let agrees = signature == DESCRIPTOR_SIGNATURE
        && (crc, compressed_size, size) == (member.crc(), member.compressed_size(), member.size());
    if agrees {
        return Ok(());
    }
    let text = format!("the data descriptor at byte {place} of the file contradicts the directory");
    Err(Error::new(Code::ZipMismatch, text))
}

fn mismatch(member: &Member, what: String) -> Error {
    Error::new(Code::ZipMismatch, format!("the local header at byte {} of the file {what}", member.header))
}
