//! What operating systems do in different ways: positional reads and writes, what tells a file from another one, names, attributes
//! and owners. All have the same functions, so that nothing above asks which one it is.

#[cfg(not(any(unix, windows)))]
mod none;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(not(any(unix, windows)))]
use none as system;
#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

#[cfg(not(any(unix, windows)))]
pub(crate) use none::{Instant, process_id};
#[cfg(any(unix, windows))]
pub(crate) use std::{process::id as process_id, time::Instant};
pub(crate) use system::{
    FileExt, HAS_COPY_ON_WRITE, already_exists, append_private_file, boot_id, copy_attributes, drop_cache,
    errno, exchange, existing_file, file_id, flush, has_too_many_files, is_own_file, is_private_folder,
    is_special_name, lock_file, modified, name_file, named_file, open_files_max, open_folder, path_id,
    private_file, private_folder, rename_to_free_name, reserve, start_write_back, symlink, sync_file,
    sync_folder, unnamed_file,
};

/// Two numbers that tell a file from all others: of its file system, and of the file there.
pub(crate) type FileId = (u64, u64);
