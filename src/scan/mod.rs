//! Static analysis of untrusted checkpoints: reports what a file would do in a reader that executes pickles. Executes nothing.
//!
//! A scan uses the loader's own container parsers, disassembler and pickle machine. An error of the strict reader is a finding,
//! and the scan continues where other readers would: through damaged archives, past a pickle's end, into unreferenced members
//! and into nested archives. Ranges that were not scanned are listed, and a file with such ranges is never inert. Tensor data is
//! not read.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod budget;
mod detectors;
mod distributed;
mod encoded;
mod exclude;
mod file;
mod gadgets;
mod pickles;
mod policy;
mod preview;
mod report;
mod scanner;
mod verdict;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::distributed::Folders;
use self::exclude::Exclude;
use crate::builder::setters;
use crate::bytes::{Bytes, Folder, Io, Manifest, ReadFolder, ReadRanges, Source, VerifiedFolder};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::parallel::Cancel;

pub use policy::Policy;
pub use report::{ByteRange, FileReport, Finding, GlobalUse, Report, Status, TraceStep};
pub use verdict::Verdict;

/// How to scan.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Bounds on memory and work that a file can cause.
    pub limits: Limits,
    /// Cancels the scan.
    pub cancel: Cancel,
    /// The names that are accepted.
    pub policy: Arc<Policy>,
    /// What is not scanned where it is found in a directory.
    exclude: Arc<Exclude>,
    /// The file of the manifest, which is not scanned where it is found in a directory.
    manifest_file: Option<PathBuf>,
    /// What files have to be: those that it does not list, or that differ, are not read. Names are relative to the folder that is
    /// scanned.
    pub(crate) manifest: Option<Arc<Manifest>>,
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    setters! {
        limits: Limits,
        cancel: Cancel,
        policy: impl Into<Arc<Policy>>,
    }

    /// Leaves out files and directories in directories: by their names, in which `*` stands for any characters, or, with a `/`, by
    /// their paths, as they are or from the directory that is scanned.
    #[must_use]
    pub fn exclude(self, exclude: Vec<String>) -> Options {
        Options { exclude: Arc::new(Exclude::new(exclude)), ..self }
    }

    /// Whether the file or directory at `path`, in the directory `root` that is scanned, is left out.
    #[cfg(feature = "python")]
    pub(crate) fn excludes(&self, root: &str, path: &str) -> bool {
        self.exclude.has(Path::new(root), Path::new(path))
    }

    /// What `exclude` has, and no scan with these options has met.
    pub fn not_found(&self) -> Vec<String> {
        self.exclude.not_found()
    }

    /// The path of the file that the manifest was read from.
    #[cfg(feature = "python")]
    pub(crate) fn manifest_file(self, path: Option<PathBuf>) -> Options {
        Options { manifest_file: path.and_then(|path| path.canonicalize().ok()), ..self }
    }
}

/// Scans files, and all files in directories. Faults of a file are in the report. Fails where a path does not exist, or when
/// the scan is cancelled.
///
/// ```
/// use rustload::scan::{self, Verdict};
///
/// # let folder = std::env::temp_dir().join(format!("rustload-scan-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("model.pkl");
/// std::fs::write(&path, b"cos\nsystem\n(S'id'\ntR.")?;
/// let report = scan::scan([&path], &scan::Options::new())?;
/// assert_eq!(report.verdict(), Verdict::WouldExecute);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn scan<P>(paths: impl IntoIterator<Item = P>, options: &Options) -> Result<Report>
where
    P: AsRef<Path>,
{
    let mut report = Report::default();
    let mut options = options.clone();
    let mut folders = Folders::default();
    for path in paths {
        let root = path.as_ref();
        let folder = if root.is_dir() { root } else { root.parent().unwrap_or(Path::new("")) };
        let listed = options.manifest.clone();
        let verified =
            listed.map(|listed| VerifiedFolder::new(Folder::Disk(folder.to_owned(), Io::Auto), listed));
        let open = |path: &Path| match &verified {
            None => walk::open(path),
            Some(verified) => {
                let name = path.strip_prefix(folder).ok().and_then(Path::to_str);
                let no_name =
                    || Error::new(Code::ManifestMissing, "the name of the file is not UTF-8").in_file(path);
                match verified.open(name.ok_or_else(no_name)?) {
                    // A manifest need not list what has no bytes.
                    Err(error) if error.code() == Code::ManifestMissing && walk::is_empty(path) => {
                        Ok(Source::memory(Arc::new(Vec::new())))
                    }
                    opened => opened.map(Source::new),
                }
            }
        };
        let (files, excluded) = walk::files(root, &options.exclude, options.manifest_file.as_deref())?;
        report.excluded = report.excluded.saturating_add(excluded);
        for (path, named) in files {
            options.cancel.check()?;
            let metadata = |folder: &Path| open(&folder.join(distributed::METADATA));
            let items = folders.items(&path, metadata, &options)?;
            let file = file::scan_file(open(&path), &path, named, items.as_deref(), &options)?;
            options.limits.report_bytes = options.limits.report_bytes.saturating_sub(file.bytes());
            report.files.push(file);
        }
    }
    Ok(report)
}

/// Scans files of a folder in a store, as [`scan`] does with a folder on disk: those of these names, or all files. Subfolders are not
/// scanned.
pub fn scan_folder(folder: Arc<dyn ReadFolder>, names: &[String], options: &Options) -> Result<Report> {
    let root = folder.path().to_owned();
    scan_below(&root, folder, names, options)
}

/// As [`scan_folder`], for a folder that is in the folder `root`, or is it.
pub(crate) fn scan_below(
    root: &Path,
    folder: Arc<dyn ReadFolder>,
    names: &[String],
    options: &Options,
) -> Result<Report> {
    let mut report = Report::default();
    let mut options = options.clone();
    let folder: Arc<dyn ReadFolder> = match options.manifest.clone() {
        None => folder,
        Some(listed) => {
            let inner = folder.path().strip_prefix(root).unwrap_or(Path::new(""));
            let prefix = inner.iter().map(|part| format!("{}/", part.to_string_lossy())).collect();
            Arc::new(VerifiedFolder::below(Folder::Store(folder), prefix, listed))
        }
    };
    let mut folders = Folders::default();
    let mut all = if names.is_empty() { folder.names()? } else { names.to_vec() };
    let listed = all.len();
    all.retain(|name| !names.is_empty() || !options.exclude.has(root, &folder.path().join(name)));
    report.excluded = to_u64(listed.saturating_sub(all.len()));
    all.sort();
    for name in all {
        options.cancel.check()?;
        let path = folder.path().join(&name);
        let open = |name: &str| folder.open(name).map(Source::new);
        let items = folders.items(&path, |_| open(distributed::METADATA), &options)?;
        let file = file::scan_file(open(&name), &path, !names.is_empty(), items.as_deref(), &options)?;
        options.limits.report_bytes = options.limits.report_bytes.saturating_sub(file.bytes());
        report.files.push(file);
    }
    Ok(report)
}

/// Scans the bytes of one file.
pub fn scan_bytes(bytes: Bytes, options: &Options) -> Result<Report> {
    scan_source(&Source::memory(bytes), options)
}

/// Scans anything that is read by position, such as an object in a store.
pub fn scan_ranges(source: Arc<dyn ReadRanges>, options: &Options) -> Result<Report> {
    scan_source(&Source::new(source), options)
}

/// As [`scan_ranges`], for a window of a source.
pub(crate) fn scan_source(source: &Source, options: &Options) -> Result<Report> {
    let name = source.name().map(str::to_owned);
    Ok(Report { files: vec![file::scan_source(source, name, true, options)?], excluded: 0 })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Code;

    /// Bytes that cancel the scan on read number `cancel_at`, counted from 0.
    struct CancellingBytes {
        bytes: Vec<u8>,
        reads: AtomicUsize,
        cancel_at: usize,
        cancel: Cancel,
    }

    impl AsRef<[u8]> for CancellingBytes {
        fn as_ref(&self) -> &[u8] {
            if self.reads.fetch_add(1, Ordering::Relaxed) == self.cancel_at {
                self.cancel.cancel();
            }
            &self.bytes
        }
    }

    fn legacy_stream() -> Vec<u8> {
        let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
        let object = [b"\x80\x02](", &[b'N'; 1 << 20][..], b"e."].concat();
        [&magic[..], b"\x80\x02M\xe9\x03.", b"\x80\x02}.", &object, b"\x80\x02]."].concat()
    }

    #[test]
    fn the_strict_reader_inside_a_scan_can_be_cancelled() {
        let scan = |cancel_at| {
            let options = Options::default();
            let reads = AtomicUsize::new(0);
            let bytes = Arc::new(CancellingBytes {
                bytes: legacy_stream(),
                reads,
                cancel_at,
                cancel: options.cancel.clone(),
            });
            let done = scan_bytes(bytes.clone(), &options);
            (done, bytes.reads.load(Ordering::Relaxed))
        };
        let (done, reads) = scan(usize::MAX);
        assert_eq!(done.unwrap().verdict(), Verdict::Inert);
        // The strict reader runs last, and reads the stream before it executes the pickles.
        let (stopped, _) = scan(reads.saturating_sub(1));
        assert_eq!(stopped.unwrap_err().code(), Code::Cancelled);
    }
}
