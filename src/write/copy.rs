//! Copies files into a folder that is written.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;

use super::manifest::PieceDigests;
use crate::bytes::{Io, ListedFile, Source};
use crate::error::{Error, Result};
use crate::num::to_usize;
use crate::parallel::{self, Cancel};
use crate::sys::{self, FileExt};

/// The bytes of a copy, and how a manifest lists them: `None` where nobody asked, or there are none.
type Copied = (u64, Option<ListedFile>);

/// Copies a regular file with its permissions. The copy is not linked to it, as many programs edit files in place. With `is_hashed`,
/// the bytes are hashed as they are written.
pub(super) fn copy(
    source: &Path,
    target: &Path,
    sync: bool,
    is_hashed: bool,
    cancel: &Cancel,
) -> Result<Copied> {
    let failed = |error| Error::io(error, source.to_owned());
    let permissions = fs::metadata(source).map_err(failed)?.permissions();
    let copied = fetch(&Source::open_with(source, Io::Buffered)?, target, sync, is_hashed, cancel)?;
    fs::set_permissions(target, permissions).map_err(failed)?;
    Ok(copied)
}

/// Writes the bytes of a source to a file: inside the kernel if that can do it, unless they are hashed.
pub(super) fn fetch(
    source: &Source,
    target: &Path,
    sync: bool,
    is_hashed: bool,
    cancel: &Cancel,
) -> Result<Copied> {
    let failed = |error| Error::io(error, target.to_owned());
    let file = File::options().read(true).write(true).create(true).truncate(true).open(target);
    let file = file.map_err(failed)?;
    let (len, access) = (source.len(), source.data_access());
    let digests = is_hashed.then(|| PieceDigests::new(len));
    let threads = if access.concurrent { access.in_flight.unwrap_or(1) } else { 1 };
    let block = access.block.max(1);
    let is_copied = !is_hashed && source.copy_to_file(&file, 0)?;
    let blocks = if is_copied { 0 } else { len.div_ceil(block) };
    let starts = (0..blocks).map(|number| number.saturating_mul(block));
    let threads = threads.min(to_usize(blocks)).max(1);
    parallel::for_each(threads, starts, Vec::new, |buffer: &mut Vec<u8>, start| {
        cancel.check()?;
        buffer.resize(to_usize(block.min(len.saturating_sub(start))), 0);
        source.read_at(start, buffer)?;
        file.write_all_at(buffer, start).map_err(failed)?;
        if let Some(digests) = &digests {
            digests.update(start, buffer);
        }
        Ok(())
    })?;
    source.check_unchanged()?;
    if sync {
        sys::sync_file(&file).map_err(failed)?;
    }
    let read = |offset, out: &mut [u8]| file.read_exact_at(out, offset).map_err(failed);
    let listed = digests.map_or(Ok(None), |digests| digests.finish(read))?;
    Ok((len, listed))
}
