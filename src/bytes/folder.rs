//! A folder whose files are opened by their names: on disk, or in a store.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Io, LocalFile, ReadRanges};
use crate::error::{Error, Result};

/// A folder of files, such as the objects in a store that have a common prefix.
///
/// Subfolders are no part of it. Callers ask for plain names only: none has a `/`, `\` or NUL, or is empty, `.` or `..`.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use rustload::{Checkpoint, Code, Error, Options, ReadFolder, ReadRanges, Result};
/// # struct Object(Vec<u8>);
/// # impl ReadRanges for Object {
/// #     fn len(&self) -> u64 {
/// #         self.0.len() as u64
/// #     }
/// #     fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
/// #         let rest = self.0.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
/// #         out.copy_from_slice(rest.ok_or_else(|| Error::new(Code::Io, "the object is shorter"))?);
/// #         Ok(())
/// #     }
/// # }
///
/// struct Bucket(BTreeMap<String, Vec<u8>>);
///
/// impl ReadFolder for Bucket {
///     fn path(&self) -> &Path {
///         Path::new("bucket://model")
///     }
///
///     fn names(&self) -> Result<Vec<String>> {
///         Ok(self.0.keys().cloned().collect())
///     }
///
///     fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
///         Ok(names.iter().map(|&name| Some(self.0.get(name)?.len() as u64)).collect())
///     }
///
///     fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>> {
///         let bytes = self.0.get(name).ok_or_else(|| Error::new(Code::Io, "there is no such object"))?;
///         Ok(Arc::new(Object(bytes.clone()))) // as in the example of `ReadRanges`
///     }
/// }
///
/// # let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// # let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[7, 8, 9]].concat();
/// let bucket = Bucket(BTreeMap::from([("model.safetensors".to_owned(), bytes)]));
/// let checkpoint = Checkpoint::from_folder(&bucket, &[], Options::new())?;
/// assert_eq!(checkpoint.files().collect::<Vec<_>>(), [Path::new("bucket://model/model.safetensors")]);
/// # Ok::<(), Error>(())
/// ```
pub trait ReadFolder: Send + Sync {
    /// Its path, or a URL without credentials; for messages.
    fn path(&self) -> &Path;

    /// The names of the files in it.
    fn names(&self) -> Result<Vec<String>>;

    /// The size of each of these files in bytes; `None` for one that does not exist.
    fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>>;

    /// Opens a file. Fails if it does not exist.
    fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>>;

    /// Its path, if it is a folder on disk.
    #[doc(hidden)]
    fn on_disk(&self) -> Option<&Path> {
        None
    }
}

/// A folder on disk. Links are followed.
#[derive(Debug)]
pub struct LocalFolder {
    path: PathBuf,
    io: Io,
}

impl LocalFolder {
    /// The folder at a path; an empty path is the working directory. `io` says how tensor data of its files is read.
    pub fn new(path: PathBuf, io: Io) -> LocalFolder {
        LocalFolder { path, io }
    }
}

impl ReadFolder for LocalFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the regular files that are UTF-8.
    fn names(&self) -> Result<Vec<String>> {
        let failed = |error| Error::io(error, self.path.clone());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().into_string()
                && entry.path().is_file()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
        let size = |name: &&str| {
            let metadata = fs::metadata(self.path.join(name)).ok()?;
            metadata.is_file().then_some(metadata.len())
        };
        Ok(names.iter().map(size).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>> {
        Ok(Arc::new(LocalFile::open(&self.path.join(name), self.io)?))
    }

    fn on_disk(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

/// Whether a name is a single path component that cannot leave its folder, in any file system.
pub fn is_plain_name(name: &str) -> bool {
    let is_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    !is_drive && !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0'])
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
        std::os::unix::fs::symlink("/nonexistent", root.path().join("dangling")).unwrap();
        std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();
        let folder = LocalFolder::new(root.path().to_owned(), Io::Auto);
        let mut names = folder.names().unwrap();
        names.sort();
        assert_eq!(names, [".hidden", "a", "link"]);
        let sizes = folder.sizes(&["a", "folder", "dangling", "absent", "link"]).unwrap();
        assert_eq!(sizes, [Some(3), None, None, None, Some(3)]);
        let mut bytes = [0; 2];
        folder.open("link").unwrap().read_at(1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"23");
        assert_eq!(folder.open("absent").err().map(|error| error.code()), Some(Code::Io));
        assert_eq!(LocalFolder::new("/nonexistent".into(), Io::Auto).names().unwrap_err().code(), Code::Io);
    }

    #[test]
    fn a_plain_name_is_one_component() {
        for name in ["a", ".metadata", "ab:c", "..a", "%2e%2e", "a b", "a?b#c", "é"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "/a", "a\\b", "C:a", "a\0", "s3://a"] {
            assert!(!is_plain_name(name), "{name}");
        }
    }
}
