//! Finds the end of central directory record and its zip64 companion: APPNOTE 4.3.14, 4.3.15, 4.3.16.
//!
//! Refused: no record, two that both reach the end of the file, one inside the other's comment, bytes after it (unless
//! asked to pass over them), several disks, 32-bit and 64-bit records that disagree, a directory that does not end where
//! the end records begin.

use crate::bytes::{Cursor, Region, Source};
use crate::container::len64;
use crate::error::{Code, Error, Result};

use super::salvage::Candidate;
use super::{Trailing, recode, structure};

const SIGNATURE: &[u8; 4] = b"PK\x05\x06";
const SIGNATURE_LOCATOR: &[u8; 4] = b"PK\x06\x07";
const SIGNATURE_64: &[u8; 4] = b"PK\x06\x06";
const RECORD_LEN: u64 = 22;
const LOCATOR_LEN: u64 = 20;
const RECORD_64_LEN: u64 = 56;
/// End records that are believed at once.
const RECORDS: usize = 16;
const TAIL_LEN: u64 = RECORD_64_LEN + LOCATOR_LEN + RECORD_LEN + 0xffff;

/// What the end records say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Members in the directory.
    pub(super) entries: u64,
    /// Where the directory lies in the source.
    pub(super) directory: Region,
}

/// Finds and checks the end records.
pub(super) fn find(source: &Source, trailing: Trailing) -> Result<End> {
    let tail = Tail::read(source)?;
    let record = tail.select(trailing)?;
    let mut first = [0; 4];
    source.read_at(0, &mut first)?;
    match &first {
        b"PK\x03\x04" => {}
        b"PK\x05\x06" | b"PK\x06\x06" => return Err(structure("the archive has no members").at(0)),
        _ => {
            let text = "the archive does not start with a member, though it ends as a zip";
            return Err(Error::new(Code::ZipPrefix, text).at(0));
        }
    }
    let end = tail.parse(record).map_err(recode(Code::ZipStructure))?;
    if end.entries == 0 {
        return Err(structure("the archive has no members").at(record));
    }
    tail.meets(&end, record)?;
    Ok(end)
}

/// Whether the source ends with exactly one plausible end record, whatever it starts with.
pub(in crate::container) fn ends_in_zip(source: &Source) -> Result<bool> {
    let tail = Tail::read(source)?;
    Ok(tail.select(Trailing::Error).is_ok())
}

/// Whether an end record near the source's end leads to a directory, whatever stands before and behind.
pub(crate) fn leads_to_directory(source: &Source) -> Result<bool> {
    Ok(!all_directories(source)?.is_empty())
}

/// Every place where some end record says that a directory lies, for a reader that believes all of them.
pub(super) fn all_directories(source: &Source) -> Result<Vec<Candidate>> {
    let tail = Tail::read(source)?;
    let mut out = Vec::new();
    for record in tail.records().iter().rev().take(RECORDS) {
        let mut cursor = tail.cursor(record.offset);
        let stated = cursor.take(12).and_then(|_| Ok((u64::from(cursor.u32()?), u64::from(cursor.u32()?))));
        let mut ends = vec![(record.offset, stated.ok())];
        if let Some(mut locator) = tail.locator(record.offset) {
            let before = record.offset.saturating_sub(LOCATOR_LEN);
            let stated = locator.take(4).and_then(|_| locator.u64()).unwrap_or_default();
            for place in [stated, before.saturating_sub(RECORD_64_LEN)] {
                ends.push((place, record_64(source, place)));
            }
        }
        for (end, stated) in ends {
            let Some((len, start)) = stated else { continue };
            // Some readers go to the offset, others go back from the end record: bytes may stand before the archive.
            let real = end.saturating_sub(len);
            for (at, shift) in [(start, 0), (real, real.saturating_sub(start))] {
                let candidate = Candidate { start: at, len, shift };
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

/// Size and offset of the directory that a zip64 end record states, if one is there.
fn record_64(source: &Source, place: u64) -> Option<(u64, u64)> {
    let bytes = source.read_vec(place, RECORD_64_LEN).ok()?;
    let mut cursor = Cursor::new(&bytes, place);
    let signature: [u8; 4] = cursor.array().ok()?;
    cursor.take(36).ok()?;
    let (len, start) = (cursor.u64().ok()?, cursor.u64().ok()?);
    (&signature == SIGNATURE_64).then_some((len, start))
}

/// The last bytes of the source, long enough for the longest comment.
struct Tail {
    bytes: Vec<u8>,
    start: u64,
}

/// A place where the end record's signature stands.
#[derive(Clone, Copy)]
struct Record {
    offset: u64,
    /// Where its comment ends; `None` where the file ends inside the fixed fields.
    end: Option<u64>,
}

impl Tail {
    fn read(source: &Source) -> Result<Tail> {
        let len = source.len().min(TAIL_LEN);
        let start = source.len().saturating_sub(len);
        Ok(Tail { bytes: source.read_vec(start, len)?, start })
    }

    fn file_end(&self) -> u64 {
        self.start.saturating_add(len64(self.bytes.len()))
    }

    /// A cursor at an offset of the source; empty where the tail does not hold it.
    fn cursor(&self, offset: u64) -> Cursor<'_> {
        let at = offset.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        Cursor::new(at.and_then(|at| self.bytes.get(at..)).unwrap_or_default(), offset)
    }

    fn records(&self) -> Vec<Record> {
        let signatures = self.bytes.windows(4).enumerate().filter(|(_, window)| window == SIGNATURE);
        let offsets = signatures.map(|(at, _)| self.start.saturating_add(len64(at)));
        offsets.map(|offset| Record { offset, end: self.comment_end(offset).ok() }).collect()
    }

    fn comment_end(&self, record: u64) -> Result<u64> {
        let mut cursor = self.cursor(record);
        cursor.take(20)?;
        let comment = cursor.u16()?;
        Ok(cursor.offset().saturating_add(comment.into()))
    }

    /// The one end record: the last signature in the file, with its comment ending where the file ends.
    fn select(&self, trailing: Trailing) -> Result<u64> {
        let records = self.records();
        let exact: Vec<_> = records.iter().filter(|record| record.end == Some(self.file_end())).collect();
        match (exact.as_slice(), records.last()) {
            ([one], Some(last)) if one.offset == last.offset => Ok(one.offset),
            ([one, ..], Some(last)) => {
                let text =
                    format!("a second end record at byte {} lies in the comment of the first", last.offset);
                Err(Error::new(Code::ZipAmbiguous, text)
                    .at(one.offset)
                    .note("Zip readers disagree about which of the two counts."))
            }
            (_, last) => self.select_inexact(&records, last, trailing),
        }
    }

    fn select_inexact(&self, records: &[Record], last: Option<&Record>, trailing: Trailing) -> Result<u64> {
        let whole = records.iter().rev().find(|record| self.closes_a_directory(record));
        if let Some((record, end)) = whole.and_then(|record| Some((record, record.end?))) {
            if trailing == Trailing::Ignore {
                return Ok(record.offset);
            }
            let count = self.file_end().saturating_sub(end);
            let text = format!("{count} byte(s) after the archive's end");
            return Err(Error::new(Code::ZipTrailing, text).at(end));
        }
        let have = self.file_end();
        let text = match last {
            Some(Record { end: Some(end), .. }) if *end > have => {
                format!("the end record's comment would end at byte {end}, the file has {have} byte(s)")
            }
            _ => format!(
                "the file is cut short: it has {have} byte(s), and the record that ends every archive is missing"
            ),
        };
        let error = Error::new(Code::ZipAmbiguous, text);
        Err(error.note("The file is probably truncated: fetch it again and compare its size."))
    }

    /// Whether an end record with bytes after it is the archive's own: a directory ends where it begins.
    fn closes_a_directory(&self, record: &Record) -> bool {
        let fits = record.end.is_some_and(|end| end < self.file_end());
        let mut cursor = self.cursor(record.offset);
        let directory_end = cursor.take(12).and_then(|_| {
            let size = cursor.u32()?;
            Ok(u64::from(size).saturating_add(cursor.u32()?.into()))
        });
        fits && (directory_end.ok() == Some(record.offset) || self.locator(record.offset).is_some())
    }

    /// A cursor behind the signature of the zip64 locator that stands directly before the end record.
    fn locator(&self, record: u64) -> Option<Cursor<'_>> {
        let mut cursor = self.cursor(record.checked_sub(LOCATOR_LEN)?);
        (cursor.array().ok()? == *SIGNATURE_LOCATOR).then_some(cursor)
    }

    /// APPNOTE 4.3.16, and 4.3.14 where a locator says so.
    fn parse(&self, record: u64) -> Result<End> {
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
            return Ok(End { entries: entries.map(u64::from).into_iter().max().unwrap_or(0), directory });
        };
        let end = self.parse_64(locator, record)?;
        let agrees = disks.iter().all(|&disk| disk == 0 || disk == u16::MAX)
            && entries.iter().all(|&found| found == u16::MAX || u64::from(found) == end.entries)
            && (size == u32::MAX || u64::from(size) == end.directory.len())
            && (start == u32::MAX || u64::from(start) == end.directory.start());
        if agrees {
            Ok(end)
        } else {
            Err(structure("the zip64 and the plain end record disagree").at(record))
        }
    }

    /// APPNOTE 4.3.15 (locator) and 4.3.14 (zip64 end record).
    fn parse_64(&self, mut locator: Cursor<'_>, record: u64) -> Result<End> {
        let disk = locator.u32()?;
        let offset = locator.u64()?;
        let disks = locator.u32()?;
        if disk != 0 || disks > 1 {
            return Err(structure(format!("the archive spans {disks} disks")).at(record));
        }
        if record.checked_sub(LOCATOR_LEN + RECORD_64_LEN) != Some(offset) {
            let text = format!("the zip64 locator points to byte {offset}, not to the record before it");
            return Err(structure(text).at(record));
        }
        let mut cursor = self.cursor(offset);
        let signature: [u8; 4] = cursor.array()?;
        let len = cursor.u64()?;
        if signature != *SIGNATURE_64 || len != RECORD_64_LEN - 12 {
            return Err(structure("the zip64 end record is not where its locator points").at(offset));
        }
        cursor.take(4)?; // versions: APPNOTE 4.4.2, 4.4.3
        let disks = [cursor.u32()?, cursor.u32()?];
        let entries = [cursor.u64()?, cursor.u64()?];
        let (size, start) = (cursor.u64()?, cursor.u64()?);
        match entries {
            [here, entries] if here == entries && disks == [0, 0] => {
                Ok(End { entries, directory: region(start, size, offset)? })
            }
            _ => {
                Err(structure(format!("the archive spans several disks: {disks:?}, {entries:?}")).at(offset))
            }
        }
    }

    /// The directory ends exactly where the end records begin.
    fn meets(&self, end: &End, record: u64) -> Result<()> {
        let before = if self.locator(record).is_some() { LOCATOR_LEN + RECORD_64_LEN } else { 0 };
        let begin = record.saturating_sub(before);
        if end.directory.end() == begin {
            return Ok(());
        }
        let text = format!(
            "the directory is said to lie at {}..{}, the end record is at {begin}",
            end.directory.start(),
            end.directory.end()
        );
        Err(structure(text).at(begin))
    }
}

fn region(start: u64, len: u64, place: u64) -> Result<Region> {
    Region::new(start, len)
        .ok_or_else(|| structure(format!("{len} bytes of directory at {start}: too large")).at(place))
}
