//! The strict tar reader: members by name, each a range of the file.
//!
//! Accepts uncompressed archives in which every reader sees the same members: POSIX ustar and pax, and GNU's format. Refuses links,
//! devices and sparse members, members that share a name, names that leave the folder, wrong checksums, numbers that readers read
//! differently, and bytes after the archive's end. A pax `size` must be that of the header; but for a member of 8 GiB or more, whose
//! size the header cannot state in octal, writers put 0 there (GNU tar's `create.c: start_header`, `tarfile.py: create_pax_header`).
//! Nothing is ever extracted. Follows POSIX.1-2017 `pax`, and GNU tar's manual, "Basic Tar Format".

mod header;

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "scan")]
pub use self::header::python_number;
pub use self::header::{BLOCK_BYTES, Header, records, text};
use self::header::{decimal, plain_number};
use crate::bytes::{Region, Source};
use crate::container::ahead::ReadAhead;
use crate::error::{Code, Error, Result, error};
use crate::limits::Limits;
use crate::num::{to_u64, to_usize, u32_to_usize};
use crate::parallel::Cancel;

/// Bytes that are read where a header is expected: extended headers often precede it.
const READ_BYTES: u64 = 4096;
/// Bytes of a long name or of an extended header.
const EXTENDED_MAX_BYTES: u64 = 1 << 20;
/// Bytes of zeros that may follow the blocks at the end: writers pad an archive to a whole number of records.
const PADDING_MAX_BYTES: u64 = 1 << 20;
/// The least size that a header cannot state in octal.
const OCTAL_SIZE_END: u64 = 1 << 33;

/// A tar archive whose structure was checked.
#[derive(Debug)]
pub struct Archive {
    source: Source,
    members: Vec<Member>,
    by_name: HashMap<Arc<str>, u32>,
    end: u64,
}

/// A regular file in an archive.
#[derive(Clone, Debug)]
pub struct Member {
    name: Arc<str>,
    region: Region,
    has_long_name: bool,
}

impl Member {
    /// The name, without a leading `./`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bytes, as a range of the archive's source.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Whether the name is in a header of its own (pax `path`, GNU long name): readers of ustar alone see another one.
    pub fn has_long_name(&self) -> bool {
        self.has_long_name
    }
}

impl Archive {
    /// Reads all headers, and no contents. With `ignore_trailing`, bytes after the end are accepted.
    pub fn open(source: &Source, limits: &Limits, ignore_trailing: bool, cancel: &Cancel) -> Result<Archive> {
        let mut walk = Walk { source, limits, at: 0, ahead: ReadAhead::default(), name_bytes: 0 };
        let mut archive =
            Archive { source: source.clone(), members: Vec::new(), by_name: HashMap::new(), end: 0 };
        let mut folders = HashMap::new();
        let (mut described, mut headers) = (Described::default(), 0_u64);
        loop {
            cancel.check()?;
            let at = walk.at;
            let block = walk.block()?;
            let header = Header::new(&block).filter(|header| !header.is_zero());
            let Some(header) = header else { break };
            headers = headers.saturating_add(1);
            Limits::check("entries", limits.entries, headers)?;
            check(header, at)?;
            let size = plain_number(header.size())
                .ok_or_else(|| wrong("a size has a form that readers disagree about", at))?;
            let kind = header.kind();
            if matches!(kind, b'x' | b'g' | b'L') {
                let text = walk.extended(size)?;
                described.add(kind, &text, at)?;
                continue;
            }
            if !matches!(kind, b'0' | b'5' | 0) {
                return Err(wrong(&format!("a member is {}", kind_name(kind)), at));
            }
            let Described { name: long_name, size: stated, .. } = std::mem::take(&mut described);
            let size = sized(size, stated, at)?;
            let has_long_name = long_name.is_some();
            // A slash at the end of a name makes a folder of a member of this kind: that of the header for some readers, that of
            // the long name for others.
            let is_of_folder = |name: &[u8]| kind == 0 && name.ends_with(b"/");
            if let Some(long) = &long_name
                && (is_of_folder(long.as_bytes()) || is_of_folder(header.name()))
            {
                return Err(wrong("readers disagree whether a member is a folder", at));
            }
            let name = long_name.map_or_else(|| name(header), Ok).map_err(|error| error.at(at))?;
            let (name, is_folder) = plain_name(&name, kind).map_err(|error| error.at(at))?;
            walk.count_name(name)?;
            let name: Arc<str> = Arc::from(name);
            if archive.by_name.contains_key(&name) || (folders.contains_key(&name) && !is_folder) {
                return Err(wrong(&format!("two members have the name {name:?}"), at));
            }
            if is_folder {
                if size != 0 {
                    return Err(wrong("a folder has contents", at));
                }
                folders.insert(name, ());
                continue;
            }
            let region = walk.skip(size).map_err(|error| error.in_member(&name))?;
            let number = u32::try_from(archive.members.len()).unwrap_or(u32::MAX);
            archive.by_name.insert(name.clone(), number);
            archive.members.push(Member { name, region, has_long_name });
        }
        if !described.is_empty() {
            return Err(wrong("an extended header describes no member", walk.at));
        }
        archive.check_files_are_no_folders()?;
        archive.end = walk.end(ignore_trailing)?;
        Ok(archive)
    }

    /// Fails where the name of a member is the folder of another one.
    fn check_files_are_no_folders(&self) -> Result<()> {
        for member in &self.members {
            for (slash, _) in member.name.match_indices('/') {
                if let Some(folder) = member.name.get(..slash)
                    && self.by_name.contains_key(folder)
                {
                    let text = format!("member {folder:?} is the folder of another one");
                    return Err(wrong(&text, member.region.start()));
                }
            }
        }
        Ok(())
    }

    /// The bytes that it was read from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The regular files, in the order of the archive.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of this name.
    pub fn find(&self, name: &str) -> Option<&Member> {
        self.by_name.get(name).and_then(|&number| self.members.get(u32_to_usize(number)))
    }

    /// A member's bytes.
    pub fn window(&self, member: &Member) -> Result<Source> {
        self.source.window(member.region.start(), member.region.len())
    }

    /// One past the blocks at the end. Only zeros follow, unless trailing bytes were ignored.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// What headers before a member say about it.
#[derive(Debug, Default)]
struct Described {
    name: Option<String>,
    size: Option<u64>,
    /// Whether there was an extended header for one member.
    is_pax: bool,
}

impl Described {
    fn is_empty(&self) -> bool {
        self.name.is_none() && !self.is_pax
    }

    /// Adds what a long name or an extended header says.
    fn add(&mut self, kind: u8, text_: &[u8], at: u64) -> Result<()> {
        if !self.is_empty() {
            return Err(wrong("two headers describe one member", at));
        }
        let utf8 = |name: &[u8]| {
            let name = std::str::from_utf8(name).ok().map(str::to_owned);
            name.ok_or_else(|| wrong("a member's name is not UTF-8", at))
        };
        if kind == b'L' {
            self.name = Some(utf8(text(text_))?);
            return Ok(());
        }
        let malformed = || wrong("an extended header is malformed", at);
        let (records, rest) = records(text_).ok_or_else(malformed)?;
        if !rest.is_empty() {
            return Err(malformed());
        }
        self.is_pax = kind == b'x';
        for (key, value) in records {
            match key {
                b"path" if kind == b'x' && self.name.is_none() => self.name = Some(utf8(value)?),
                b"size" if kind == b'x' && self.size.is_none() => {
                    self.size = Some(decimal(value).ok_or_else(malformed)?);
                }
                b"path" | b"size" | b"linkpath" | b"hdrcharset" | b"SCHILY.realsize" => {
                    let key = String::from_utf8_lossy(key);
                    let text = format!("an extended header sets {key}, about which readers disagree");
                    return Err(wrong(&text, at));
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(wrong("a member is sparse", at));
                }
                // Times, owners, comments.
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads headers, with those that lie close together in one read.
struct Walk<'a> {
    source: &'a Source,
    limits: &'a Limits,
    /// The offset of the next header.
    at: u64,
    ahead: ReadAhead,
    /// Bytes of all names.
    name_bytes: u64,
}

impl Walk<'_> {
    /// The next block.
    fn block(&mut self) -> Result<[u8; 512]> {
        let left = self.source.len().saturating_sub(self.at);
        if left < BLOCK_BYTES {
            let text = "the archive is cut short: it has no blocks of zeros at its end";
            return Err(Error::new(Code::Truncated, text).at(self.at));
        }
        let held = self.ahead.read(self.source, self.at, BLOCK_BYTES, READ_BYTES)?;
        let block = held.first_chunk().copied();
        self.at = self.at.saturating_add(BLOCK_BYTES);
        block.ok_or_else(|| Error::new(Code::InternalError, "a block was read in part"))
    }

    /// The range of the next `size` bytes, and goes on behind their padding.
    fn skip(&mut self, size: u64) -> Result<Region> {
        let region = Region::new(self.at, size).filter(|region| region.end() <= self.source.len());
        let region = region.ok_or_else(|| {
            let left = self.source.len().saturating_sub(self.at);
            error!(Code::Truncated, "the archive is cut short: a member has {size} byte(s), {left} are left")
                .at(self.at)
        })?;
        self.at = self.at.saturating_add(size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES));
        Ok(region)
    }

    /// The text of a long name or an extended header.
    fn extended(&mut self, size: u64) -> Result<Vec<u8>> {
        Limits::check("header_bytes", self.limits.header_bytes.min(EXTENDED_MAX_BYTES), size)?;
        let region = self.skip(size)?;
        let held = self.ahead.read(self.source, region.start(), size, READ_BYTES)?;
        Ok(held.get(..to_usize(size)).unwrap_or_default().to_vec())
    }

    fn count_name(&mut self, name: &str) -> Result<()> {
        let len = to_u64(name.len());
        Limits::check("name_bytes", self.limits.name_bytes, len)?;
        self.name_bytes = self.name_bytes.saturating_add(len);
        Limits::check("directory_bytes", self.limits.directory_bytes, self.name_bytes)
    }

    /// The archive's end, after the first block of zeros. Fails where other bytes than the zeros of a record's padding follow.
    fn end(&mut self, ignore_trailing: bool) -> Result<u64> {
        let left = self.source.len().saturating_sub(self.at);
        // POSIX has two blocks of zeros; `tarfile` and GNU tar end at the first one.
        let tail = self.source.read_vec(self.at, left.min(PADDING_MAX_BYTES))?;
        let zeros = tail.iter().position(|&byte| byte != 0).map_or(left.min(PADDING_MAX_BYTES), to_u64);
        if zeros == left && !left.is_multiple_of(BLOCK_BYTES) && !ignore_trailing {
            let text = "the archive ends inside a block of zeros";
            return Err(Error::new(Code::TrailingData, text).at(self.at));
        }
        if zeros == left || ignore_trailing {
            return Ok(self.at.saturating_add(zeros.min(BLOCK_BYTES)));
        }
        let at = self.at.saturating_add(zeros);
        let text = format!("{} byte(s) after the archive's end", self.source.len().saturating_sub(at));
        Err(Error::new(Code::TrailingData, text).at(at))
    }
}

fn wrong(text: &str, at: u64) -> Error {
    Error::new(Code::TarStructure, text).at(at)
}

/// Checks a header's checksum and format.
fn check(header: Header<'_>, at: u64) -> Result<()> {
    let stated = plain_number(header.checksum()).and_then(|sum| i64::try_from(sum).ok());
    if stated != Some(header.sum()) {
        return Err(wrong("a header's checksum is wrong", at));
    }
    match header.magic() {
        b"ustar\x0000" => Ok(()),
        // GNU's headers have times in place of `prefix`, and some readers take them for a part of the name.
        b"ustar  \0" if header.prefix_field().iter().all(|&byte| byte == 0) => Ok(()),
        b"ustar  \0" => {
            Err(wrong("a GNU header has more fields than a name, about which readers disagree", at))
        }
        _ => Err(wrong("a header is neither of POSIX nor of GNU", at)),
    }
}

/// The size of a member: that of its header, which an extended header may repeat.
fn sized(size: u64, stated: Option<u64>, at: u64) -> Result<u64> {
    match stated {
        None => Ok(size),
        Some(stated) if stated == size || (size == 0 && stated >= OCTAL_SIZE_END) => Ok(stated),
        Some(stated) => {
            let text =
                format!("a member has {size} byte(s) by its header and {stated} by its extended header");
            Err(wrong(&text, at))
        }
    }
}

/// The name that a header states.
fn name(header: Header<'_>) -> Result<String> {
    let not_utf8 = || Error::new(Code::TarStructure, "a member's name is not UTF-8");
    let utf8 = |field| std::str::from_utf8(field).map_err(|_| not_utf8());
    let (prefix, name) = (utf8(header.prefix())?, utf8(header.name())?);
    Ok(if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") })
}

/// The name without a leading `./` and without the slash of a folder, and whether the member is a folder. Fails for a name that
/// another reader may take for another path, or that leaves the folder.
fn plain_name(name: &str, kind: u8) -> Result<(&str, bool)> {
    let refused = |why: &str| Err(error!(Code::TarStructure, "a member's name {name:?} {why}"));
    let stripped = name.strip_suffix('/');
    // V7's regular files with such a name are folders (POSIX.1-2017 `pax`, typeflag).
    let is_folder = kind == b'5' || (kind == 0 && stripped.is_some());
    let plain = match stripped {
        Some(plain) if is_folder => plain,
        Some(_) => return refused("is that of a folder"),
        None => name,
    };
    if is_folder && plain == "." {
        return Ok(("", true));
    }
    let plain = plain.strip_prefix("./").unwrap_or(plain);
    if plain.split('/').any(|part| part == "..") || plain.starts_with('/') {
        return refused("leaves the archive's folder");
    }
    if plain.split('/').any(|part| matches!(part, "" | ".")) || plain.contains('\\') {
        return refused("is not a plain path");
    }
    if plain.chars().any(char::is_control) {
        return refused("has control characters");
    }
    Ok((plain, is_folder))
}

/// What a member of this type is.
fn kind_name(kind: u8) -> String {
    let name = match kind {
        b'1' | b'2' | b'K' => "a link",
        b'3' | b'4' => "a device",
        b'6' => "a pipe",
        b'S' => "sparse",
        _ => return format!("of the unknown type {:?}", char::from(kind)),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests;
