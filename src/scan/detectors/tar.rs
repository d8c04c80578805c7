//! The detector of tar readers: every member, as Python's `tarfile` finds it.
//!
//! Stands for `tarfile.open` of CPython 3.8 to 3.15, with which torch reads what torch 0.1 wrote. The checksum of the first header
//! decides, not the word `ustar`. A member of an unknown type is a regular file. Long names (GNU) and extended headers (pax) precede
//! the member that they describe. A sparse member, a size below zero, and extended headers for all members that change names or
//! sizes end in unscanned bytes: their contents are assembled from other places.
//!
//! The strict reader reads the archive too. It refuses what readers may see in different ways, and its error is a finding, so that an
//! archive is inert only if its members are the same for all.
//!
//! The files of a distributed checkpoint in an archive are scanned item by item, as on disk, if the strict reader accepts the archive.

use super::super::scanner::{Detected, Input, Origin};
use super::super::scanner::{Scanner, inside};
use super::texts::{self, Meaning};
use super::zip::propagate_if_not_file_fault;
use crate::bytes::{Region, Source};
use crate::container::tar::{self, BLOCK_BYTES, python_number};
use crate::error::Result;
use crate::index::ChunkItem;

/// Bytes of a long name or of an extended header that are read.
const EXTENDED_MAX_BYTES: u64 = 1 << 20;

/// The end of the name of a distributed checkpoint's metadata, which names the files of chunks.
const METADATA: &str = ".metadata";

/// A header (POSIX ustar, GNU, V7).
struct Header {
    name: String,
    size: i64,
    kind: u8,
    /// Whether a GNU sparse header continues in the next block.
    is_extended: bool,
}

/// What headers before a member say about it.
#[derive(Default)]
struct Described {
    name: Option<String>,
    size: Option<i64>,
    /// Whether its content is not what follows its header.
    is_moved: bool,
}

/// Walks the members.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<()> {
    let Input { source, label, depth, ref head, .. } = *input;
    if head.get(..512).and_then(header).is_none() {
        return Ok(());
    }
    detected.tar = true;
    scanner.report.format.get_or_insert("tar");
    let end = source.len();
    if depth > scanner.options.limits.scan_depth {
        scanner.report.unscanned(label, "nested too deep", 0, end);
        return Ok(());
    }
    // What readers may read in different ways, the strict reader refuses.
    if let Err(error) = tar::Archive::open(source, &scanner.options.limits, false, &scanner.options.cancel) {
        propagate_if_not_file_fault(&error)?;
        scanner.report.add_error(&error, label);
    }
    let (mut at, mut members, mut described) = (0_u64, 0_u64, Described::default());
    let mut is_broken = false;
    while at.saturating_add(BLOCK_BYTES) <= end {
        scanner.options.cancel.check()?;
        members = members.saturating_add(1);
        if members > scanner.options.limits.entries {
            scanner.report.unscanned(label, "too many members", at, end.saturating_sub(at));
            break;
        }
        let block = source.read_vec(at, BLOCK_BYTES)?;
        at = at.saturating_add(BLOCK_BYTES);
        // `ignore_zeros=True` reads on behind the end of an archive.
        if block.iter().all(|&byte| byte == 0) {
            continue;
        }
        let Some(mut header) = header(&block) else {
            // `ignore_zeros=True` goes on at the next block, other readers end here.
            let start = at.saturating_sub(BLOCK_BYTES);
            if !std::mem::replace(&mut is_broken, true) {
                scanner.report.unscanned(
                    label,
                    "a block that is no header",
                    start,
                    end.saturating_sub(start),
                );
            }
            continue;
        };
        if header.kind == b'S' {
            described.is_moved = true;
            while header.is_extended && at.saturating_add(BLOCK_BYTES) <= end {
                header.is_extended = source.read_vec(at.saturating_add(504), 1)? != [0];
                at = at.saturating_add(BLOCK_BYTES);
            }
        }
        let describes_next = matches!(header.kind, b'L' | b'K' | b'x' | b'X' | b'g');
        let size = described.size.filter(|_| !describes_next).unwrap_or(header.size);
        let Ok(size) = u64::try_from(size) else {
            scanner.report.unscanned(label, "a size below zero", at, end.saturating_sub(at));
            break;
        };
        let next = at.saturating_add(size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES));
        let len = size.min(end.saturating_sub(at));
        if describes_next {
            let text = source.read_vec(at, len.min(EXTENDED_MAX_BYTES))?;
            if len > EXTENDED_MAX_BYTES || !described.add(header.kind, &text) {
                let why = "an extended header that moves the contents of members";
                scanner.report.unscanned(label, why, at, end.saturating_sub(at));
            }
            at = next;
            continue;
        }
        let described = std::mem::take(&mut described);
        let name = described.name.unwrap_or(header.name);
        let inner = inside(label, &name);
        // Links, folders, devices and pipes have no content. torch extracts members, and then reads the file that a link names.
        if matches!(header.kind, b'1'..=b'6') {
            if matches!(header.kind, b'1' | b'2') {
                scanner.report.unscanned(Some(&inner), "a link to another file", 0, 0);
            }
            continue;
        }
        if described.is_moved {
            scanner.report.unscanned(Some(&inner), "a sparse member, which is not assembled", 0, size);
        }
        if size > len {
            scanner.report.unscanned(Some(&inner), "a truncated member", 0, size.saturating_sub(len));
        }
        if name.ends_with(METADATA) {
            detected.items = scanner.items_of_archive(source, detected)?;
        }
        let window = source.window(at, len)?;
        scanner.tar_member(&window, &name, &inner, input, detected)?;
        at = next;
    }
    scanner.report.scanned(label, "tar", 0, end);
    Ok(())
}

impl Scanner<'_> {
    fn tar_member(
        &mut self,
        window: &Source,
        name: &str,
        inner: &str,
        input: &Input<'_>,
        detected: &mut Detected,
    ) -> Result<()> {
        if window.is_empty() {
            return Ok(());
        }
        let depth = input.depth.saturating_add(1);
        // torch reads these members of a file of torch 0.1.
        let origin = match name.trim_start_matches("./") {
            "sys_info" => Origin::PickleMember,
            "pickle" => Origin::Keyed,
            "storages" => Origin::Storages,
            "tensors" => Origin::Tensors,
            _ => Origin::Member,
        };
        let start = window.start_in(input.source).unwrap_or_default();
        let items = detected.items_in(start, window.len());
        if items.is_empty() {
            detected.members.extend(Region::new(start, window.len()));
            let found = self.source(window, Some(inner), depth, origin)?;
            let meaning =
                if origin == Origin::Member { texts::meaning(name, false) } else { Meaning::Judged };
            return self.interpreted(window, meaning, inner, &found);
        }
        let shift = |item: &Region| Region::new(item.start().saturating_sub(start), item.len());
        let within: Vec<Region> = items.iter().filter_map(shift).collect();
        detected.members.extend(items);
        self.items(window, Some(inner), &within, depth)
    }

    /// The ranges of the source in which a distributed checkpoint inside the archive has its chunks and values, if the strict reader
    /// accepts it.
    fn items_of_archive(&self, source: &Source, detected: &mut Detected) -> Result<Vec<Region>> {
        let Some(read) = self.read_once(source, detected)? else { return Ok(Vec::new()) };
        let place = |item: ChunkItem<'_>| match item {
            ChunkItem::Window(file, region) => {
                let start = file.start_in(source)?.saturating_add(region.start());
                Region::new(start, region.len())
            }
            ChunkItem::File(..) => None,
        };
        let mut items: Vec<Region> = read.items().filter_map(place).collect();
        items.sort_unstable_by_key(|item| item.start());
        Ok(items)
    }
}

impl Described {
    /// Adds what a long name or an extended header says; returns whether it leaves contents where they are.
    fn add(&mut self, kind: u8, text: &[u8]) -> bool {
        match kind {
            b'L' => self.name = Some(lossy(tar::text(text))),
            b'K' => {}
            kind => {
                let Some((records, _)) = tar::records(text) else { return false };
                for (key, value) in records {
                    let is_harmless = match key {
                        b"path" if kind != b'g' => {
                            self.name = Some(lossy(value));
                            true
                        }
                        b"size" if kind != b'g' => {
                            let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                            self.size = size.or(self.size);
                            size.is_some()
                        }
                        b"path" | b"size" => false,
                        key if key.starts_with(b"GNU.sparse.") => {
                            self.is_moved = true;
                            kind != b'g'
                        }
                        _ => true,
                    };
                    if !is_harmless {
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// The header in a block, if its checksum is right (`tarfile.py: TarInfo.frombuf`).
fn header(block: &[u8]) -> Option<Header> {
    let header = tar::Header::new(block)?;
    let stated = python_number(header.checksum())?;
    // Some writers summed signed bytes.
    if ![header.sum(), header.signed_sum()].contains(&stated) {
        return None;
    }
    let kind = header.kind();
    let (name, prefix) = (lossy(header.name()), lossy(header.prefix()));
    let is_folder = kind == 0 && name.ends_with('/');
    let has_prefix = !prefix.is_empty() && !matches!(kind, b'L' | b'K' | b'S');
    Some(Header {
        name: if has_prefix { format!("{prefix}/{name}") } else { name },
        size: python_number(header.size())?,
        kind: if is_folder { b'5' } else { kind },
        is_extended: header.is_continued(),
    })
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}
