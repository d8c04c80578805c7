//! The extension module `rustload._rustload`: thin wrappers around the core. They parse arguments, detach from the interpreter,
//! call the core and wrap the result. Framework objects are made in Python.

mod arguments;
mod buffer;
mod capsule;
mod checkpoint;
mod classes;
mod compare;
mod cuda;
mod decoding;
mod doctor;
mod document;
mod error;
mod extra;
mod file_object;
mod folder;
mod folder_stage;
mod handle;
mod joined;
mod limits;
mod manifest;
mod memory;
mod objects;
mod open;
mod reports;
mod request;
mod run;
mod scan;
mod statistics;
mod stream;
mod tensor;
mod write;

use pyo3::prelude::*;

/// The compiled core of rustload; use the package `rustload` instead.
///
/// It does not need the GIL: its classes are frozen, and what they own is `Send` and `Sync`. So importing it into a free-threaded
/// Python leaves the GIL off.
#[pymodule(gil_used = false)]
mod _rustload {
    use super::PyModule;
    use crate::dtype::DType;
    use crate::limits::Limits as Bounds;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::buffer::adopt;
    #[pymodule_export]
    use super::checkpoint::similar;
    #[pymodule_export]
    use super::classes::{Buffer, Checkpoint, Tensor};
    #[pymodule_export]
    use super::compare::compare_pairs;
    #[pymodule_export]
    use super::cuda::{
        Upload, cast_rate, check_gpu_memory, cuda_info, direct_upload_bytes, end_upload_workers,
        gpu_free_memory, upload,
    };
    #[pymodule_export]
    use super::doctor::{finish_publication, machine, probe};
    #[pymodule_export]
    use super::document::{document, spell_numbers, tree_rows};
    #[pymodule_export]
    use super::extra::check_sparse;
    #[pymodule_export]
    use super::folder_stage::FolderStage;
    #[pymodule_export]
    use super::handle::Handle;
    #[pymodule_export]
    use super::joined::{Joined, concat, restored_join, stack};
    #[pymodule_export]
    use super::limits::Limits;
    #[pymodule_export]
    use super::manifest::{Manifest, VerifiedFile};
    #[pymodule_export]
    use super::memory::{memory, trim};
    #[pymodule_export]
    use super::open::{OpenOptions, open};
    #[pymodule_export]
    use super::request::{Mappings, Request};
    #[pymodule_export]
    use super::run::is_cancelled;
    #[pymodule_export]
    use super::scan::{ScanOptions, check_allowance, scan};
    #[pymodule_export]
    use super::statistics::statistics_of;
    #[pymodule_export]
    use super::stream::{Stream, check_memory, needed_memory, order, stream};
    #[pymodule_export]
    use super::tensor::dtype_name;
    #[pymodule_export]
    use super::write::{PreparedText, Writer, write_file, write_folder, write_object};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEBUG", cfg!(debug_assertions))?;
        let dtype = |dtype: &DType| {
            let kind = format!("{:?}", dtype.kind());
            let (code, rank) = (dtype.safetensors(), dtype.safetensors_rank());
            (dtype.name(), dtype.itemsize(), kind, code, rank, dtype.numpy_code())
        };
        let dtypes: Vec<_> = DType::ALL.iter().map(dtype).collect();
        module.add("DTYPES", dtypes)?;
        let mut defaults = Bounds::default();
        let limits: Vec<_> = Bounds::NAMES
            .iter()
            .map(|(name, what)| (*name, defaults.by_name(name).copied(), *what))
            .collect();
        module.add("LIMITS", limits)?;
        let codes: Vec<_> = crate::Code::ALL
            .iter()
            .map(|&code| {
                let kind = format!("{:?}", code.kind());
                let remedies = super::error::remedies(module.py(), code.remedies())?;
                Ok((code.as_str(), kind, code.meaning(), remedies))
            })
            .collect::<PyResult<_>>()?;
        let globals = crate::index::globals::rows().filter(|(_, _, row)| row.in_torch);
        let globals: Vec<(&str, &str)> = globals.map(|(module, name, _)| (module, name)).collect();
        module.add("TORCH_GLOBALS", globals)?;
        module.add("CODES", codes)
    }
}
