//! `scan` and `check_allowance`: wrap scanning. A report is passed to Python as JSON, which is written item by item.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::arguments::LimitsArg;
use super::file_object::FileObject;
use super::folder::Folder;
use super::manifest::Manifest;
use super::open::{Source, no_folder};
use super::run;
use crate::bytes::ReadFolder as _;
use crate::parallel::Cancel;
use crate::scan::{self as core, Options, Policy, Report};

/// What a scan accepts and leaves out.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct ScanOptions(Options);

#[pymethods]
impl ScanOptions {
    #[new]
    #[pyo3(signature = (
        *, limits=LimitsArg::default(), allow=Vec::new(), exclude=Vec::new(), manifest=None, manifest_file=None
    ))]
    fn new(
        limits: LimitsArg,
        allow: Vec<String>,
        exclude: Vec<String>,
        manifest: Option<&Manifest>,
        manifest_file: Option<PathBuf>,
    ) -> PyResult<ScanOptions> {
        let policy = allow.iter().try_fold(Policy::new(), |policy, pattern| policy.allow(pattern))?;
        let options = Options::new().limits(limits.0).policy(policy).exclude(exclude);
        let mut options = options.manifest_file(manifest_file);
        options.manifest = manifest.map(|manifest| manifest.0.clone());
        Ok(ScanOptions(options))
    }

    /// Whether a file or folder at `path`, in the folder `root` that is scanned, is left out.
    fn excludes(&self, root: &str, path: &str) -> bool {
        self.0.excludes(root, path)
    }

    /// What `exclude` has, and no scan with these options has met.
    fn not_found(&self) -> Vec<String> {
        self.0.not_found()
    }
}

/// Scans files, or all in directories; bytes; an object; or a folder of a store, which is in the folder `root`, or is it.
#[pyfunction]
#[pyo3(signature = (source, options, root=None))]
pub(crate) fn scan(
    py: Python<'_>,
    source: Source<'_>,
    options: &ScanOptions,
    root: Option<&str>,
) -> PyResult<String> {
    let cancel = Cancel::new();
    let options = options.0.clone().cancel(cancel.clone());
    let run = |work: &mut (dyn FnMut() -> crate::error::Result<Report> + Send)| {
        run::interruptible_if(py, true, &cancel, || work().map(|report| report.to_json()))
    };
    if options.manifest.is_some() && !matches!(source, Source::Paths(_) | Source::Folder(_)) {
        return Err(no_folder().into());
    }
    match source {
        Source::Content(data) => {
            let data = Arc::new(data);
            run(&mut || core::scan_bytes(data.clone(), &options))
        }
        Source::Paths(paths) => run(&mut || core::scan(&paths, &options)),
        Source::At(_) => Err(PyTypeError::new_err("a file is scanned from its start")),
        Source::Object((file, start, name)) => {
            let source = FileObject::source(&file, start, name)?;
            run(&mut || core::scan_source(&source, &options))
        }
        Source::Folder(Folder(folder, chosen)) => {
            let folder = Arc::new(folder);
            let root = root.map_or_else(|| folder.path().to_owned(), PathBuf::from);
            run(&mut || core::scan_below(&root, folder.clone(), &chosen, &options))
        }
    }
}

/// Fails where a pattern is not one that a policy can allow.
#[pyfunction]
pub(crate) fn check_allowance(pattern: &str) -> PyResult<()> {
    Policy::new().allow(pattern)?;
    Ok(())
}
