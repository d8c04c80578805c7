//! What a folder has besides its files: owner, group, mode with setgid, access control lists, and other extended attributes.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

/// Gives a folder the attributes of another one. Fails if it does not have all of them then: the kernel drops some without an error.
pub(crate) fn copy_attributes(from: &Path, to: &Path) -> io::Result<()> {
    let (wanted, found) = (fs::metadata(from)?, fs::metadata(to)?);
    if (found.uid(), found.gid()) != (wanted.uid(), wanted.gid()) {
        chown(to, Some(wanted.uid()), Some(wanted.gid()))?;
    }
    let (names, present) = (extended_names(from)?, extended_names(to)?);
    for name in present.iter().filter(|name| !names.contains(name)) {
        removexattr(to, name.as_c_str())?;
    }
    for name in &names {
        let value = extended(from, name)?;
        if !present.contains(name) || extended(to, name)? != value {
            setxattr(to, name.as_c_str(), &value, XattrFlags::empty())?;
        }
    }
    // Last, as a change of the owner clears setgid. The bits of the group are the mask of the list.
    fs::set_permissions(to, wanted.permissions())?;
    let found = fs::metadata(to)?;
    let owners = |of: &fs::Metadata| (of.uid(), of.gid(), of.mode());
    match owners(&found) == owners(&wanted) {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// The names of a folder's extended attributes, which include the lists; none where the file system has none.
fn extended_names(path: &Path) -> io::Result<Vec<CString>> {
    let list = match read(|buffer| listxattr(path, buffer)) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        list => list?,
    };
    let names = list.split_inclusive(|&byte| byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()).map(CStr::to_owned).collect())
}

fn extended(path: &Path, name: &CStr) -> io::Result<Vec<u8>> {
    Ok(read(|buffer| getxattr(path, name, buffer))?)
}

/// The largest list of names, and the largest value, that Linux has.
const VALUE_MAX_BYTES: usize = 64 << 10;

fn read(call: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; VALUE_MAX_BYTES];
    let len = call(&mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}
