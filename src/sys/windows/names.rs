//! Names of files: those that mean something else, and a rename that replaces nothing.
//!
//! **Protocol.** A path is passed on as UTF-16 with one zero, at its end, in memory that lives until the call returns.
#![expect(unsafe_code, reason = "the standard library always replaces the file that has the new name")]

use std::ffi::OsString;
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::path::{Component, Path, Prefix};

use windows_sys::Win32::Storage::FileSystem::MoveFileExW;

/// Names that mean devices in every folder, also with an extension.
const DEVICES: &[&str] = &["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// Numbered devices, and their numbers.
const PORTS: &[&str] = &["COM", "LPT"];
const PORT_NUMBERS: &str = "123456789\u{b9}\u{b2}\u{b3}";

/// Whether a name in a folder means something else than the file of this name: a device, a stream of a file, or the name without the
/// dots and spaces at its end.
pub(crate) fn is_special_name(name: &str) -> bool {
    let stem = name.split(['.', ':']).next().unwrap_or(name).trim_end_matches(' ').to_ascii_uppercase();
    let is_port = PORTS.iter().any(|port| {
        let number = stem.strip_prefix(port).map(str::chars);
        number.is_some_and(|mut number| {
            number.next().is_some_and(|digit| PORT_NUMBERS.contains(digit)) && number.next().is_none()
        })
    });
    is_port || DEVICES.contains(&&*stem) || name.contains(':') || name.ends_with(['.', ' '])
}

/// Renames a file or folder, in one step. Fails with `AlreadyExists` if the new name is taken.
pub(crate) fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (wide(from)?, wide(to)?);
    // SAFETY: both end with a zero, and live until the call returns.
    match unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), 0) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A path in the form that has no limit of length, with a zero at its end.
fn wide(path: &Path) -> io::Result<Vec<u16>> {
    let path = std::path::absolute(path)?;
    let prefix = match path.components().next() {
        Some(Component::Prefix(prefix)) => prefix.kind(),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let mut long = OsString::new();
    match prefix {
        Prefix::Disk(_) => {
            long.push(r"\\?\");
            long.push(&path);
        }
        Prefix::UNC(server, share) => {
            long.push(r"\\?\UNC\");
            long.push(server);
            long.push(r"\");
            long.push(share);
            long.push(path.components().skip(1).collect::<std::path::PathBuf>());
        }
        _ => long.push(&path),
    }
    let mut wide: Vec<u16> = long.encode_wide().collect();
    if wide.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    wide.push(0);
    Ok(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_streams_and_shortened_names_are_special() {
        for name in ["NUL", "con.safetensors", "Aux ", "COM1", "lpt9.bin", "com\u{b2}.x", "a:b", "a.", "a "] {
            assert!(is_special_name(name), "{name}");
        }
        for name in
            ["a", "console.bin", "COM", "COM0", "com10.x", "model-00001-of-00002.safetensors", ".a", "a. b"]
        {
            assert!(!is_special_name(name), "{name}");
        }
    }

    #[test]
    fn paths_have_a_form_without_a_limit() {
        let text = |path: &str| String::from_utf16(&wide(Path::new(path)).unwrap()).unwrap();
        assert_eq!(text(r"C:\a\b/c"), "\\\\?\\C:\\a\\b\\c\0");
        assert_eq!(text(r"\\server\share\a"), "\\\\?\\UNC\\server\\share\\a\0");
        assert_eq!(text(r"\\?\C:\a"), "\\\\?\\C:\\a\0");
        assert!(wide(Path::new("a\0b")).is_err());
    }

    #[test]
    fn a_rename_replaces_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        std::fs::write(&one, "1").unwrap();
        rename_to_free_name(&one, &two).unwrap();
        std::fs::write(&one, "other").unwrap();
        assert_eq!(rename_to_free_name(&one, &two).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&two).unwrap(), b"1");
    }
}
