//! Copies between files inside the kernel: copy_file_range(2).
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;

use rustix::fs::copy_file_range;
use rustix::io::Errno;

use crate::bytes::Region;
use crate::num::to_usize;

/// Copies a range of one file to an offset of another. False if the kernel cannot do that for these files, or the source ends early;
/// then some bytes may have been written.
pub(in crate::bytes) fn copy_range(from: &File, range: Region, to: &File, offset: u64) -> io::Result<bool> {
    let (mut source, mut target) = (range.start(), offset);
    while source < range.end() {
        let left = to_usize(range.end().saturating_sub(source));
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), left) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM | Errno::BADF) => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
