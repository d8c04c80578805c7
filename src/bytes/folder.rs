//! A folder whose files are opened by their names: on disk, or in a store.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use super::io_choice::Io;
use super::read_ranges::ReadFolder;
use super::source::Source;
use crate::error::{Error, Result};
use crate::sys;

/// A folder of files.
#[derive(Clone)]
pub enum Folder {
    /// The folder at a path; an empty path is the working directory. Links are followed.
    Disk(PathBuf, Io),
    /// In a store.
    Store(Arc<dyn ReadFolder>),
}

impl Folder {
    /// The folder that a file is in: see [`ReadRanges::folder`](super::ReadRanges::folder). `None` for a window that does not begin at
    /// the file's first byte.
    pub fn of(source: &Source) -> Option<Folder> {
        match source.file() {
            _ if source.start() > 0 => None,
            Some(file) => {
                Some(Folder::Disk(file.path().parent().unwrap_or(Path::new("")).to_owned(), file.io()))
            }
            None => source.store().map(Folder::Store),
        }
    }

    /// As [`Folder::of`], for a window too, if it is in a store.
    pub fn in_store(source: &Source) -> Option<Folder> {
        source.store().map(Folder::Store)
    }

    /// Its path, or a URL without credentials.
    pub fn path(&self) -> &Path {
        match self {
            Folder::Disk(path, _) => path,
            Folder::Store(store) => store.path(),
        }
    }

    /// Whether its files are read as a manifest lists them.
    pub fn is_verified(&self) -> bool {
        matches!(self, Folder::Store(store) if store.is_verified())
    }

    /// The names of the files in it; on disk, of the regular files whose names are UTF-8.
    pub fn names(&self) -> Result<Vec<String>> {
        match self {
            Folder::Disk(path, _) => list(path, Path::is_file),
            Folder::Store(store) => store.names(),
        }
    }

    /// The names of the folders in it, as in [`names`](Folder::names), sorted.
    pub fn folders(&self) -> Result<Vec<String>> {
        let mut names = match self {
            Folder::Disk(path, _) => list(path, Path::is_dir)?,
            Folder::Store(store) => store.folders()?,
        };
        names.retain(|name| is_plain_name(name));
        names.sort();
        Ok(names)
    }

    /// A folder in it. `None` where there is none, and for a name that is not a plain one.
    pub fn folder(&self, name: &str) -> Result<Option<Folder>> {
        match self {
            _ if !is_plain_name(name) => Ok(None),
            Folder::Disk(path, io) => {
                let path = path.join(name);
                Ok(path.is_dir().then_some(Folder::Disk(path, *io)))
            }
            Folder::Store(store) => Ok(store.folder(name)?.map(Folder::Store)),
        }
    }

    /// The size of each of these files in bytes; `None` for one that does not exist.
    pub fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
        let size =
            |path: PathBuf| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len());
        match self {
            Folder::Disk(path, _) => Ok(names.iter().map(|name| size(path.join(name))).collect()),
            Folder::Store(store) => store.sizes(names),
        }
    }

    /// Opens a file of it, or one of a folder in it, `folder/name`. Fails if it does not exist.
    pub fn open(&self, name: &str) -> Result<Source> {
        match self {
            Folder::Disk(path, io) => Source::open_with(&path.join(name), *io),
            Folder::Store(store) => match name.split_once('/') {
                None => store.open(name).map(Source::new),
                Some((folder, rest)) => match self.folder(folder)? {
                    Some(folder) => folder.open(rest),
                    None => Err(Error::io(io::ErrorKind::NotFound.into(), self.path().join(name))),
                },
            },
        }
    }
}

/// The names in a folder on disk that are UTF-8 and of this kind.
fn list(path: &Path, is_listed: fn(&Path) -> bool) -> Result<Vec<String>> {
    let failed = |error| Error::io(error, path.to_owned());
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Ok(name) = entry.file_name().into_string()
            && is_listed(&entry.path())
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Whether a name is a single path component that cannot leave its folder, in any file system.
pub fn is_plain_name(name: &str) -> bool {
    let is_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    !is_drive
        && !matches!(name, "" | "." | "..")
        && !name.contains(['/', '\\', '\0'])
        && !sys::is_special_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn a_local_folder_lists_sizes_and_opens_regular_files() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), b"123").unwrap();
        fs::write(root.path().join(".hidden"), b"").unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        // On Windows, links need a privilege.
        #[cfg(unix)]
        std::os::unix::fs::symlink("/nonexistent", root.path().join("dangling")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();
        #[cfg(not(unix))]
        fs::write(root.path().join("link"), b"123").unwrap();
        let folder = Folder::Disk(root.path().to_owned(), Io::Auto);
        let mut names = folder.names().unwrap();
        names.sort();
        assert_eq!(names, [".hidden", "a", "link"]);
        assert_eq!(folder.folders().unwrap(), ["folder"]);
        assert_eq!(folder.folder("folder").unwrap().unwrap().names().unwrap(), Vec::<String>::new());
        assert!(
            [".", "..", "a", "absent", "folder/.."].iter().all(|name| folder.folder(name).unwrap().is_none())
        );
        let sizes = folder.sizes(&["a", "folder", "dangling", "absent", "link"]).unwrap();
        assert_eq!(sizes, [Some(3), None, None, None, Some(3)]);
        assert_eq!(folder.open("link").unwrap().read_vec(1, 2).unwrap(), b"23");
        assert_eq!(folder.open("absent").err().map(|error| error.code()), Some(Code::Io));
        assert_eq!(Folder::Disk("/nonexistent".into(), Io::Auto).names().unwrap_err().code(), Code::Io);
    }

    #[test]
    fn a_plain_name_is_one_component() {
        for name in ["a", ".metadata", "..a", "%2e%2e", "a b", "a?b#c", "é"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "/a", "a\\b", "C:a", "a\0", "s3://a"] {
            assert!(!is_plain_name(name), "{name}");
        }
        // On Windows it is a stream of the file "ab".
        assert_eq!(is_plain_name("ab:c"), cfg!(unix));
    }
}
