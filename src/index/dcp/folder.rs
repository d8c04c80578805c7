//! The folder of a distributed checkpoint: which files its metadata may name, and which ranges of them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path as FilePath, PathBuf};

use super::Place;
use crate::bytes::Region;
use crate::error::{Code, Error, Result};
use crate::num::to_u32;

/// The folder of a distributed checkpoint, and the files that its metadata names.
pub(super) struct Folder<'a> {
    path: PathBuf,
    /// The folders that files may be in once links are followed: that of the metadata, before and after its own link is followed.
    allowed: Vec<PathBuf>,
    numbers: HashMap<&'a str, u32>,
    /// Each file and its size.
    pub(super) files: Vec<(PathBuf, u64)>,
}

impl<'a> Folder<'a> {
    pub(super) fn new(metadata: &FilePath) -> Result<Folder<'a>> {
        let parent = metadata.parent().unwrap_or(FilePath::new(""));
        let path = if parent.as_os_str().is_empty() { FilePath::new(".") } else { parent }.to_owned();
        let failed = |error| Error::io(error, metadata.to_owned());
        let mut allowed = vec![fs::canonicalize(&path).map_err(failed)?];
        allowed.extend(fs::canonicalize(metadata).map_err(failed)?.parent().map(FilePath::to_owned));
        Ok(Folder { path, allowed, numbers: HashMap::new(), files: Vec::new() })
    }

    /// The number of a file. Fails with `DcpPath` unless its name is a plain one in the folder, and with `ShardMissing` where it does
    /// not exist.
    pub(super) fn file(&mut self, name: &'a str) -> Result<u32> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let escape = |why: &str| Err(Error::new(Code::DcpPath, format!("the file name {name:?} {why}")));
        let is_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
        if is_drive || matches!(name, "" | "." | "..") || name.contains(['/', '\\', '\0']) {
            return escape("is not a plain name in the checkpoint's folder");
        }
        let path = self.path.join(name);
        let real = match fs::canonicalize(&path) {
            Ok(real) => real,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = format!("the metadata names the file {name:?}, which is missing");
                return Err(Error::new(Code::ShardMissing, text));
            }
            Err(error) => return Err(Error::io(error, path)),
        };
        if !real.parent().is_some_and(|parent| self.allowed.iter().any(|allowed| allowed == parent)) {
            return escape("is a link out of the checkpoint's folder");
        }
        let metadata = fs::metadata(&path).map_err(|error| Error::io(error, path.clone()))?;
        if !metadata.is_file() {
            return Err(Error::new(Code::NotRegularFile, "this is no regular file").in_file(&path));
        }
        let number = to_u32(self.files.len());
        self.files.push((path, metadata.len()));
        self.numbers.insert(name, number);
        Ok(number)
    }

    /// A range of a file. Fails with `DcpRange` where the file is shorter.
    pub(super) fn range(&self, file: u32, start: u64, len: u64) -> Result<Region> {
        let size = usize::try_from(file).ok().and_then(|file| self.files.get(file)).map_or(0, |file| file.1);
        Region::new(start, len).filter(|region| region.end() <= size).ok_or_else(|| {
            let text = format!("{len} byte(s) at {start} reach outside a file of {size}");
            Error::new(Code::DcpRange, text)
        })
    }

    /// Fails with `DcpRange` where two items share bytes of a file.
    pub(super) fn check_overlaps(&self, places: impl Iterator<Item = Place>) -> Result<()> {
        let mut places: Vec<Place> = places.filter(|(_, region)| !region.is_empty()).collect();
        places.sort_unstable_by_key(|(file, region)| (*file, region.start()));
        for pair in places.windows(2) {
            let &[(file, one), (next_file, two)] = pair else { continue };
            if file == next_file && two.start() < one.end() {
                let text = format!("two items share bytes of a file, from byte {}", two.start());
                return Err(Error::new(Code::DcpRange, text).at(two.start()));
            }
        }
        Ok(())
    }
}
