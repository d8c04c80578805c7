//! The formats: each module reads the index of a file of one of them.

mod contents;
mod dcp;
mod nemo;
mod numpy_files;
mod pickle;
mod safetensors;
mod torch;
mod torch_checkpointing;
mod torch_export;
mod torch_legacy;
mod torch_tar;
mod zero;

pub use self::contents::{Contents, Objects};
pub use self::dcp::{SavedValue, SavedValues};
pub use self::pickle::read_pickle;
#[cfg(feature = "scan")]
pub use self::torch_checkpointing::imported_classes;
#[cfg(feature = "scan")]
pub use self::torch_tar::storage_itemsize;
pub use self::zero::{
    Padding, Run, Wrong, ZeroInput, ZeroJoin, flat as flat_partitions, join as join_zero,
    sharded as sharded_partitions,
};
use super::model::{Index, Options};
#[cfg(feature = "scan")]
pub(crate) use super::pickled::legacy::PICKLES as LEGACY_PICKLES;
use crate::bytes::Source;
use crate::container::tar;
use crate::container::zip::{Archive, Trailing};
use crate::container::{Format, sniff};
use crate::error::Result;
use crate::pickle::Pickle;

/// Reads the index of one file. Its format is detected by its first bytes.
pub fn read(source: &Source, options: &Options) -> Result<Contents> {
    read_executed(source, None, options)
}

/// As [`read`]; the `data.pkl` of an archive may have been executed already.
pub fn read_executed(source: &Source, executed: Option<Pickle>, options: &Options) -> Result<Contents> {
    // Checksums of storages are verified by reading them.
    let limited = (!options.verify).then(|| source.limited(&options.limits));
    let source = limited.as_deref().unwrap_or(source);
    if numpy_files::is_empty_npz(source)? {
        return Ok(Index::empty(Format::Npz, source).into());
    }
    match sniff(source)? {
        Format::Safetensors => safetensors::read(source, options).map(Contents::from),
        Format::Zip | Format::Npz | Format::TorchExport => {
            let trailing = if options.ignore_trailing { Trailing::Ignore } else { Trailing::Error };
            let archive = Archive::open(source, &options.limits, trailing)?;
            match () {
                () if torch_export::is_export(&archive) => torch_export::read(archive, options),
                () if numpy_files::is_npz(&archive) => {
                    numpy_files::read_npz(archive, options).map(Contents::from)
                }
                () => torch::read(archive, executed, options),
            }
        }
        Format::Npy => numpy_files::read_npy(source, options).map(Contents::from),
        Format::LegacyTorch => torch_legacy::read(source, options),
        Format::Pickle | Format::TorchDcp | Format::TorchCheckpointing => pickle::read(source, options),
        Format::Tar => tar_archive(source, options),
    }
}

/// Reads a tar archive: one of torch 0.1, or one that holds files of torch.
fn tar_archive(source: &Source, options: &Options) -> Result<Contents> {
    let archive = tar::Archive::open(source, &options.limits, options.ignore_trailing, &options.cancel)?;
    match torch_tar::is_torch(&archive) {
        true => torch_tar::read(&archive, options),
        false => nemo::read(&archive, options),
    }
}
