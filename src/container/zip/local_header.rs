//! Compares a member's local file header and data descriptor with the central directory: APPNOTE 4.3.7 and 4.3.9.
//!
//! Name, method and flags must be equal; checksum and sizes equal, or zero where a data descriptor follows (bit 3). Version, time
//! and other extra fields may differ. Past 4 GiB torch's writer adds a zip64 extra field of 8 bytes (the header's own offset), 16
//! (the sizes) or 24 (both) to the header; the data descriptor is 24 bytes long if and only if that field exists, whatever the
//! size. Python's `zipfile` with `force_zip64`, and so `numpy.savez`, adds the field of 16 bytes whatever the size: the header's own
//! sizes are then ffffffff, those of the central directory plain.

use smallvec::SmallVec;

use super::Member;
use super::central_directory::check_unicode_path;
use super::recode;
use crate::bytes::{Cursor, Region};
use crate::error::{Code, Error, Result, error};
use crate::num::to_u64;

const SIGNATURE: [u8; 4] = *b"PK\x03\x04";
const DESCRIPTOR_SIGNATURE: [u8; 4] = *b"PK\x07\x08";
const HEADER_LEN: u64 = 30;
/// Bytes that the first read leaves for the extra field: enough for torch's padding and a zip64 field. A longer one costs a second
/// read.
const EXTRA_READ_BYTES: u64 = 128;
/// General purpose bit 3: a data descriptor with checksum and sizes follows the payload.
const HAS_DESCRIPTOR: u16 = 1 << 3;

/// Checks a member's local file header and data descriptor and returns the region of its payload. `read` returns bytes of the archive
/// by offset and length. Fails with `ZipMismatch` where they contradict the central directory, and with `RecordOverlap` where the
/// member reaches past its `end_max`.
pub(super) fn verify(read: impl Fn(u64, u64) -> Result<Vec<u8>>, member: &Member) -> Result<Region> {
    let available = member.end_max.saturating_sub(member.header_offset);
    let fixed_len = HEADER_LEN.saturating_add(to_u64(member.name().len()));
    let mut bytes = read(member.header_offset, available.min(fixed_len.saturating_add(EXTRA_READ_BYTES)))?;
    let extra_len = match bytes.get(28..30) {
        Some(&[low, high]) => u64::from(u16::from_le_bytes([low, high])),
        _ => 0,
    };
    let len = fixed_len.saturating_add(extra_len);
    if to_u64(bytes.len()) < len && len <= available {
        bytes = read(member.header_offset, len)?;
    }
    let mut cursor = Cursor::new(&bytes, member.header_offset);
    let has_zip64 = check_header(&mut cursor, member).map_err(recode(Code::RecordOverlap))?;
    let start = cursor.offset();
    let descriptor_len = match (member.flags & HAS_DESCRIPTOR, has_zip64) {
        (0, _) => 0,
        (_, false) => 16,
        (_, true) => 24,
    };
    let payload = Region::new(start, member.compressed_size());
    let payload = payload
        .filter(|payload| payload.end().saturating_add(descriptor_len) <= member.end_max)
        .ok_or_else(|| {
            let (size, bound) = (member.compressed_size(), member.end_max);
            error!(
                Code::RecordOverlap,
                "{size} byte(s) at {start} and a data descriptor of {descriptor_len} end past {bound}"
            )
        })?;
    if descriptor_len > 0 {
        let bytes = read(payload.end(), descriptor_len)?;
        check_descriptor(Cursor::new(&bytes, payload.end()), member, has_zip64)?;
    }
    Ok(payload)
}

/// What [`verify`] reads, before it is known where the payload begins.
pub(super) struct Unverified {
    /// The least offset of the payload. The header has a name as long as the central directory says.
    pub(super) earliest: u64,
    /// How much later it may begin at most.
    pub(super) slack: u64,
    /// The header, and the data descriptor if there is one.
    pub(super) ranges: SmallVec<[Region; 2]>,
}

/// `None` where the member's bytes do not fit; then [`verify`] fails.
pub(super) fn unverified(member: &Member) -> Option<Unverified> {
    let fixed_len = HEADER_LEN.checked_add(to_u64(member.name().len()))?;
    let earliest = member.header_offset.checked_add(fixed_len)?;
    let has_descriptor = member.flags & HAS_DESCRIPTOR != 0;
    let descriptor_len = if has_descriptor { 16 } else { 0 };
    let end = earliest.checked_add(member.compressed_size())?;
    let slack = member.end_max.checked_sub(end)?.checked_sub(descriptor_len)?;
    let available = member.end_max.checked_sub(member.header_offset)?;
    let header_len = fixed_len.checked_add(slack.max(EXTRA_READ_BYTES))?.min(available);
    let mut ranges = SmallVec::new();
    ranges.push(Region::new(member.header_offset, header_len)?);
    if has_descriptor {
        ranges.push(Region::new(end, member.end_max.checked_sub(end)?)?);
    }
    Some(Unverified { earliest, slack, ranges })
}

/// Checks the local file header (APPNOTE 4.3.7). Leaves the cursor at the payload; returns whether there is a zip64 extra field.
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
    let has_descriptor = flags & HAS_DESCRIPTOR != 0;
    let zip64 = read_extra(extra, member, has_descriptor).map_err(recode(Code::ZipMismatch))?;
    let size_agrees = |found: u32, expected: u64| {
        u64::from(found) == expected
            || (has_descriptor && found == 0)
            || (zip64.has_sizes && found == u32::MAX)
    };
    if !(crc == member.crc() || (has_descriptor && crc == 0)) {
        return Err(mismatch(member, format!("has checksum {crc:08x}, not {:08x}", member.crc())));
    }
    // Readers take the sizes in the field one by one for each sentinel, so a single sentinel could be read as the other size.
    let has_one_sentinel = (size == u32::MAX) != (compressed_size == u32::MAX);
    if (zip64.has_sizes && has_one_sentinel)
        || !size_agrees(size, member.size())
        || !size_agrees(compressed_size, member.compressed_size())
    {
        let (expected, stored) = (member.size(), member.compressed_size());
        let text = format!("has sizes {compressed_size} and {size}, not {stored} and {expected}");
        return Err(mismatch(member, text));
    }
    Ok(zip64.present)
}

#[derive(Default)]
struct LocalZip64 {
    present: bool,
    has_sizes: bool,
}

/// Checks the extra fields: zip64 (APPNOTE 4.5.3, in the forms of torch's writer, see above) and Unicode path.
fn read_extra(mut extra: Cursor<'_>, member: &Member, has_descriptor: bool) -> Result<LocalZip64> {
    let mut zip64 = LocalZip64::default();
    // Fewer than four bytes are padding of an alignment tool, not a field.
    while extra.rest().len() >= 4 {
        let (id, len) = (extra.u16()?, extra.u16()?);
        let mut field = Cursor::new(extra.take(len.into())?, extra.offset().saturating_sub(len.into()));
        match id {
            0x0001 if zip64.present => return Err(mismatch(member, "has two zip64 extra fields".to_owned())),
            0x0001 => {
                zip64 = LocalZip64 { present: true, has_sizes: len >= 16 };
                let expected: &[u64] = match len {
                    8 => &[member.header_offset],
                    16 => &[member.size(), member.compressed_size()],
                    24 => &[member.size(), member.compressed_size(), member.header_offset],
                    _ => return Err(mismatch(member, format!("has a zip64 extra field of {len} byte(s)"))),
                };
                for &expected in expected {
                    let value = field.u64()?;
                    if value != expected && !(has_descriptor && value == 0) {
                        return Err(mismatch(member, format!("has zip64 value {value}, not {expected}")));
                    }
                }
            }
            0x7075 => check_unicode_path(field, member.name())?,
            _ => {}
        }
    }
    Ok(zip64)
}

/// Checks the data descriptor (APPNOTE 4.3.9), whose optional signature is required here. `zip64`: its sizes have 8 bytes.
fn check_descriptor(mut cursor: Cursor<'_>, member: &Member, zip64: bool) -> Result<()> {
    let offset = cursor.offset();
    let (signature, crc) = (cursor.array()?, cursor.u32()?);
    let (compressed_size, size) =
        if zip64 { (cursor.u64()?, cursor.u64()?) } else { (cursor.u32()?.into(), cursor.u32()?.into()) };
    let agrees = signature == DESCRIPTOR_SIGNATURE
        && (crc, compressed_size, size) == (member.crc(), member.compressed_size(), member.size());
    if agrees {
        return Ok(());
    }
    let text = format!("the data descriptor at byte {offset} of the file contradicts the central directory");
    Err(Error::new(Code::ZipMismatch, text))
}

fn mismatch(member: &Member, what: String) -> Error {
    error!(Code::ZipMismatch, "the local header at byte {} of the file {what}", member.header_offset)
}
