//! Finds the end-of-central-directory record (EOCD), the zip64 EOCD record and its locator: APPNOTE 4.3.16, 4.3.14, 4.3.15.
//!
//! Refused: no EOCD, two that both reach the end of the file, one inside the other's comment, trailing bytes (unless
//! [`Trailing::Ignore`]), several disks, an EOCD and a zip64 EOCD that disagree, a central directory that does not end where these
//! records begin.

use crate::bytes::{Cursor, Region, Source};
use crate::error::{Code, Error, Result, error};
use crate::num::to_u64;

use super::{Trailing, recode, structure};

const SIGNATURE: &[u8; 4] = b"PK\x05\x06";
const ZIP64_LOCATOR_SIGNATURE: &[u8; 4] = b"PK\x06\x07";
const ZIP64_EOCD_SIGNATURE: &[u8; 4] = b"PK\x06\x06";
const EOCD_LEN: u64 = 22;
const ZIP64_LOCATOR_LEN: u64 = 20;
const ZIP64_EOCD_LEN: u64 = 56;
/// The number of EOCD records that [`directory_candidates`] follows, the last ones first.
#[cfg(feature = "scan")]
const EOCD_RECORDS_MAX: usize = 16;
const TAIL_LEN: u64 = ZIP64_EOCD_LEN + ZIP64_LOCATOR_LEN + EOCD_LEN + 0xffff;

/// The number of entries and the location of the central directory, from the EOCD or the zip64 EOCD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Eocd {
    /// Entries of the central directory.
    pub(super) entries: u64,
    /// The central directory, in the source.
    pub(super) directory: Region,
}

/// Finds and checks the EOCD records.
pub(super) fn find(source: &Source, trailing: Trailing) -> Result<Eocd> {
    let tail = Tail::read(source)?;
    let record = tail.select(trailing)?;
    let mut first = [0; 4];
    source.read_at(0, &mut first)?;
    match &first {
        b"PK\x03\x04" => {}
        b"PK\x05\x06" | b"PK\x06\x06" => return Err(structure("the archive has no members").at(0)),
        _ => {
            let text = "the file ends as a zip archive but does not start with a member (prefix)";
            return Err(Error::new(Code::ZipPrefix, text).at(0));
        }
    }
    let end = tail.parse(record).map_err(recode(Code::ZipStructure))?;
    if end.entries == 0 {
        return Err(structure("the archive has no members").at(record));
    }
    tail.check_directory_end(&end, record)?;
    Ok(end)
}

/// Whether the source ends with exactly one plausible EOCD record, whatever its first bytes are.
pub(in crate::container) fn ends_in_zip(source: &Source) -> Result<bool> {
    let tail = Tail::read(source)?;
    Ok(tail.select(Trailing::Error).is_ok())
}

/// Whether an EOCD record near the source's end points to a central directory, with any prefix and any trailing bytes.
#[cfg(feature = "scan")]
pub(crate) fn has_central_directory(source: &Source) -> Result<bool> {
    Ok(!directory_candidates(source)?.is_empty())
}

/// Whether every central directory that a reader of a source may find is one that a reader of one of these parts of it finds, with the
/// same members. The parts are in order.
#[cfg(feature = "scan")]
pub(crate) fn has_directories_of(source: &Source, parts: &[Region]) -> Result<bool> {
    for candidate in directory_candidates(source)? {
        let before = parts.partition_point(|part| part.start() <= candidate.start);
        let Some(part) = before.checked_sub(1).and_then(|at| parts.get(at)) else { return Ok(false) };
        let moved = |offset: u64| offset.checked_sub(part.start());
        let (Some(start), Some(shift)) = (moved(candidate.start), moved(candidate.shift)) else {
            return Ok(false);
        };
        let wanted = DirectoryCandidate { start, len: candidate.len, shift };
        let window = source.window(part.start(), part.len())?;
        if window.len() <= EOCD_LEN || !directory_candidates(&window)?.contains(&wanted) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the last bytes of a source have the signature of an EOCD record.
#[cfg(feature = "scan")]
pub(crate) fn may_end_as_zip(tail: &[u8]) -> bool {
    tail.windows(4).any(|window| window == SIGNATURE)
}

/// A possible central directory, and the length of the prefix to add to the offsets in it.
#[cfg(feature = "scan")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryCandidate {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) shift: u64,
}

/// The central directories that any EOCD record near the source's end points to, for a reader that accepts all of them.
#[cfg(feature = "scan")]
pub(super) fn directory_candidates(source: &Source) -> Result<Vec<DirectoryCandidate>> {
    let tail = Tail::read(source)?;
    let mut out = Vec::new();
    for record in tail.records().iter().rev().take(EOCD_RECORDS_MAX) {
        let mut cursor = tail.cursor(record.offset);
        let stated = cursor.take(12).and_then(|_| Ok((u64::from(cursor.u32()?), u64::from(cursor.u32()?))));
        let mut ends = vec![(record.offset, stated.ok())];
        if let Some(mut locator) = tail.locator(record.offset) {
            let locator_start = record.offset.saturating_sub(ZIP64_LOCATOR_LEN);
            let stated = locator.take(4).and_then(|_| locator.u64()).unwrap_or_default();
            for offset in [stated, locator_start.saturating_sub(ZIP64_EOCD_LEN)] {
                ends.push((offset, zip64_eocd(source, offset)));
            }
        }
        for (end, stated) in ends {
            let Some((len, start)) = stated else { continue };
            // Some readers use the stated offset; others subtract the size from the EOCD's offset, to allow for a prefix.
            let computed_start = end.saturating_sub(len);
            for (at, shift) in [(start, 0), (computed_start, computed_start.saturating_sub(start))] {
                let candidate = DirectoryCandidate { start: at, len, shift };
                let mut signature = [0; 4];
                if at.saturating_add(4) <= source.len() && !out.contains(&candidate) {
                    source.read_at(at, &mut signature)?;
                    if &signature == b"PK\x01\x02" {
                        out.push(candidate);
                    }
                }
            }
        }
    }
    Ok(out)
}

/// Size and offset of the central directory, from the zip64 EOCD record at `offset`; `None` where there is no such record.
#[cfg(feature = "scan")]
fn zip64_eocd(source: &Source, offset: u64) -> Option<(u64, u64)> {
    let bytes = source.read_vec(offset, ZIP64_EOCD_LEN).ok()?;
    let mut cursor = Cursor::new(&bytes, offset);
    let signature: [u8; 4] = cursor.array().ok()?;
    cursor.take(36).ok()?;
    let (len, start) = (cursor.u64().ok()?, cursor.u64().ok()?);
    (&signature == ZIP64_EOCD_SIGNATURE).then_some((len, start))
}

/// The last bytes of the source: as many as the EOCD records and the longest comment take.
struct Tail {
    bytes: Vec<u8>,
    start: u64,
}

/// An occurrence of the EOCD signature.
#[derive(Clone, Copy)]
struct EocdRecord {
    offset: u64,
    /// The end of its comment; `None` where the file ends inside the fixed fields.
    end: Option<u64>,
}

impl Tail {
    fn read(source: &Source) -> Result<Tail> {
        let len = source.len().min(TAIL_LEN);
        let start = source.len().saturating_sub(len);
        Ok(Tail { bytes: source.read_vec(start, len)?, start })
    }

    fn file_end(&self) -> u64 {
        self.start.saturating_add(to_u64(self.bytes.len()))
    }

    /// A cursor at an offset of the source; empty where the offset is outside the tail.
    fn cursor(&self, offset: u64) -> Cursor<'_> {
        let at = offset.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        Cursor::new(at.and_then(|at| self.bytes.get(at..)).unwrap_or_default(), offset)
    }

    fn records(&self) -> Vec<EocdRecord> {
        let signatures = self.bytes.windows(4).enumerate().filter(|(_, window)| window == SIGNATURE);
        let offsets = signatures.map(|(at, _)| self.start.saturating_add(to_u64(at)));
        offsets.map(|offset| EocdRecord { offset, end: self.comment_end(offset).ok() }).collect()
    }

    fn comment_end(&self, record: u64) -> Result<u64> {
        let mut cursor = self.cursor(record);
        cursor.take(20)?;
        let comment = cursor.u16()?;
        Ok(cursor.offset().saturating_add(comment.into()))
    }

    /// The offset of the only valid EOCD record: its signature is the last in the file, and its comment ends where the file ends.
    fn select(&self, trailing: Trailing) -> Result<u64> {
        let records = self.records();
        let exact: Vec<_> = records.iter().filter(|record| record.end == Some(self.file_end())).collect();
        match (exact.as_slice(), records.last()) {
            ([one], Some(last)) if one.offset == last.offset => Ok(one.offset),
            ([one, ..], Some(last)) => Err(error!(
                Code::ZipAmbiguous,
                "a second end-of-central-directory record at byte {} is in the comment of the first",
                last.offset
            )
            .at(one.offset)
            .note("Zip readers disagree about which of the two is valid.")),
            (_, last) => self.select_with_trailing(&records, last, trailing),
        }
    }

    /// The EOCD record where none ends with the file: with trailing bytes, or an error that says what is missing.
    fn select_with_trailing(
        &self,
        records: &[EocdRecord],
        last: Option<&EocdRecord>,
        trailing: Trailing,
    ) -> Result<u64> {
        let complete = records.iter().rev().find(|record| self.follows_a_directory(record));
        if let Some((record, end)) = complete.and_then(|record| Some((record, record.end?))) {
            if trailing == Trailing::Ignore {
                return Ok(record.offset);
            }
            let count = self.file_end().saturating_sub(end);
            return Err(error!(Code::ZipTrailing, "{count} byte(s) after the archive's end").at(end));
        }
        let have = self.file_end();
        let text = match last {
            Some(EocdRecord { end: Some(end), .. }) if *end > have => {
                format!("the archive comment would end at byte {end}, the file has {have} byte(s)")
            }
            _ => format!(
                "the file is truncated: it has {have} byte(s), and the end-of-central-directory record is missing"
            ),
        };
        let error = Error::new(Code::ZipAmbiguous, text);
        Err(error.note("The file is probably truncated: fetch it again and compare its size."))
    }

    /// Whether an EOCD record with trailing bytes belongs to an archive: a central directory ends where the record begins, or a zip64
    /// locator precedes it.
    fn follows_a_directory(&self, record: &EocdRecord) -> bool {
        let fits = record.end.is_some_and(|end| end < self.file_end());
        let mut cursor = self.cursor(record.offset);
        let directory_end = cursor.take(12).and_then(|_| {
            let size = cursor.u32()?;
            Ok(u64::from(size).saturating_add(cursor.u32()?.into()))
        });
        fits && (directory_end.ok() == Some(record.offset) || self.locator(record.offset).is_some())
    }

    /// A cursor past the signature of the zip64 EOCD locator, if one is directly before the EOCD record.
    fn locator(&self, record: u64) -> Option<Cursor<'_>> {
        let mut cursor = self.cursor(record.checked_sub(ZIP64_LOCATOR_LEN)?);
        (cursor.array().ok()? == *ZIP64_LOCATOR_SIGNATURE).then_some(cursor)
    }

    /// Parses the EOCD record (APPNOTE 4.3.16), and the zip64 EOCD record (4.3.14) where there is a locator.
    fn parse(&self, record: u64) -> Result<Eocd> {
        let mut cursor = self.cursor(record);
        cursor.take(4)?;
        let disks = [cursor.u16()?, cursor.u16()?];
        let entries = [cursor.u16()?, cursor.u16()?];
        let (size, start) = (cursor.u32()?, cursor.u32()?);
        let Some(locator) = self.locator(record) else {
            if disks != [0, 0] || entries.first() != entries.last() {
                return Err(
                    structure(format!("the archive spans several disks: {disks:?}, {entries:?}")).at(record)
                );
            }
            let directory = region(start.into(), size.into(), record)?;
            return Ok(Eocd { entries: entries.map(u64::from).into_iter().max().unwrap_or(0), directory });
        };
        let end = self.parse_zip64(locator, record)?;
        let agrees = disks.iter().all(|&disk| disk == 0 || disk == u16::MAX)
            && entries.iter().all(|&found| found == u16::MAX || u64::from(found) == end.entries)
            && (size == u32::MAX || u64::from(size) == end.directory.len())
            && (start == u32::MAX || u64::from(start) == end.directory.start());
        if agrees {
            Ok(end)
        } else {
            Err(structure("the end-of-central-directory record and its zip64 record disagree").at(record))
        }
    }

    /// Parses the zip64 EOCD locator (APPNOTE 4.3.15) and the zip64 EOCD record (4.3.14).
    fn parse_zip64(&self, mut locator: Cursor<'_>, record: u64) -> Result<Eocd> {
        let disk = locator.u32()?;
        let offset = locator.u64()?;
        let disks = locator.u32()?;
        if disk != 0 || disks > 1 {
            return Err(structure(format!("the archive spans {disks} disks")).at(record));
        }
        if record.checked_sub(ZIP64_LOCATOR_LEN + ZIP64_EOCD_LEN) != Some(offset) {
            let text =
                format!("the zip64 locator points to byte {offset}, not to the record directly before it");
            return Err(structure(text).at(record));
        }
        let mut cursor = self.cursor(offset);
        let signature: [u8; 4] = cursor.array()?;
        let len = cursor.u64()?;
        if signature != *ZIP64_EOCD_SIGNATURE || len != ZIP64_EOCD_LEN - 12 {
            return Err(structure(
                "there is no zip64 end-of-central-directory record where its locator points",
            )
            .at(offset));
        }
        cursor.take(4)?; // versions: APPNOTE 4.4.2, 4.4.3
        let disks = [cursor.u32()?, cursor.u32()?];
        let entries = [cursor.u64()?, cursor.u64()?];
        let (size, start) = (cursor.u64()?, cursor.u64()?);
        match entries {
            [here, entries] if here == entries && disks == [0, 0] => {
                Ok(Eocd { entries, directory: region(start, size, offset)? })
            }
            _ => {
                Err(structure(format!("the archive spans several disks: {disks:?}, {entries:?}")).at(offset))
            }
        }
    }

    /// Fails unless the central directory ends where the EOCD records begin.
    fn check_directory_end(&self, end: &Eocd, record: u64) -> Result<()> {
        let zip64_len = if self.locator(record).is_some() { ZIP64_LOCATOR_LEN + ZIP64_EOCD_LEN } else { 0 };
        let begin = record.saturating_sub(zip64_len);
        if end.directory.end() == begin {
            return Ok(());
        }
        let text = format!(
            "the central directory's stated range is {}..{}, the record after it is at {begin}",
            end.directory.start(),
            end.directory.end()
        );
        Err(structure(text).at(begin))
    }
}

fn region(start: u64, len: u64, record: u64) -> Result<Region> {
    Region::new(start, len).ok_or_else(|| {
        structure(format!("a central directory of {len} bytes at {start} is too large")).at(record)
    })
}
