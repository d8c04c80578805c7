//! Writes safetensors files: byte for byte those of the reference writer, in bounded memory, and never half a file.
//!
//! Bytes are planned from dtypes and shapes alone. Then workers read, convert and write slices of the tensors, in the order of their
//! sources (`stream::write_all`). The file gets its name when it is complete.
#![deny(unsafe_code)]

mod copy;
mod folder;
mod leftover;
mod lock;
mod manifest;
mod plan;
mod planned;
mod progress;
mod publication;
mod resume;
mod shards;
#[cfg(feature = "python")]
mod stage;
mod staged;
mod staged_folder;
mod target;
mod tensors;
mod values;
mod verify;
mod walk;
mod writer;

use std::io;
use std::path::Path;
use std::sync::Mutex;

use crate::builder::setters;
use crate::bytes::ListedFile;
use crate::container::safetensors::FilePlan;
use crate::error::{Code, Error, Result, bail};
use crate::num::to_u64;
use crate::parallel::{Cancel, lock};
use crate::stream::ByteTarget;
use manifest::ManifestBeside;
use resume::{ResumedFile, Staging};
use staged::StagedFile;
use tensors::Pass;

pub use crate::container::safetensors::Declaration;
pub use folder::{FolderOptions, write_folder};
#[cfg(feature = "python")]
pub(crate) use leftover::finish_publication;
#[cfg(feature = "python")]
pub(crate) use manifest::statement;
pub use plan::{FolderPlan, SafetensorsFile, WrittenFile};
pub use progress::{Progress, Step};
#[cfg(feature = "python")]
pub(crate) use stage::{FolderStage, Place};
pub(crate) use values::limit_growth;
pub use values::{DeferredArray, HostArray, Values};
pub use writer::Writer;

/// The default of [`WriteOptions::memory`].
const MEMORY_BYTES: u64 = 256 << 20;

/// How a file is written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteOptions {
    /// The header's metadata. The reference reader of transformers wants `("format", "pt")`.
    pub metadata: Vec<(String, String)>,
    /// Whether a file of this name is replaced.
    pub overwrite: bool,
    /// Whether file and folder are on the disk before the file gets its name (fsync).
    pub sync: bool,
    /// Whether every byte is read back and compared with its source, made again, before the file gets its name. Waits for the disk
    /// also without `sync`.
    pub verify: bool,
    /// Whether what is written stays if this process is killed or fails, beside the target, so that the same call later writes only
    /// what is missing. It does if nothing has changed that decides the bytes; otherwise it starts anew. Arrays in memory, and
    /// sources without [an identity](crate::ReadRanges::identity), are written again.
    pub resume: bool,
    /// Whether the digests of what is written are in a manifest beside the file or folder: its name, and `.manifest.json`. They are
    /// taken from the bytes as they are written.
    pub manifest: bool,
    /// Bytes of buffers, at most; less where a quarter of what the process may still take is less. At least 1 MiB per
    /// thread.
    pub memory: u64,
    /// Threads to use; `None` for one per core.
    pub threads: Option<usize>,
    /// Is told of the bytes of each tensor; with `verify`, twice of each byte.
    pub progress: Option<Progress>,
    /// Cancels the writing.
    pub cancel: Cancel,
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions {
            metadata: Vec::new(),
            overwrite: false,
            sync: true,
            verify: false,
            resume: false,
            manifest: false,
            memory: MEMORY_BYTES,
            threads: None,
            progress: None,
            cancel: Cancel::new(),
        }
    }
}

impl WriteOptions {
    /// The defaults: no metadata, an existing file is an error, fsync, 256 MiB of buffers.
    pub fn new() -> WriteOptions {
        WriteOptions::default()
    }

    setters! {
        metadata: Vec<(String, String)>,
        overwrite: bool,
        sync: bool,
        verify: bool,
        resume: bool,
        manifest: bool,
        memory: u64,
        threads: impl Into<Option<usize>>,
        progress: impl Into<Option<Progress>>,
        cancel: Cancel,
    }

    /// Waits until the caller has heard of all progress. What follows gives the target its name, and may not be ended by the caller.
    fn settle(&self) -> Result<()> {
        self.cancel.check()?;
        self.progress.as_ref().map_or(Ok(()), Progress::settle)
    }
}

/// Writes one safetensors file with these tensors, and returns its size in bytes.
///
/// Fails for a dtype that the format lacks, for duplicate names, for a lossy cast that is not allowed, for a full disk, if the file
/// exists and `options` do not allow to replace it, if a source cannot be read or changes, and if `options` ask to verify the file and it
/// differs from its source. Then nothing is left, unless `options` ask to resume, and a file of that name stays as it was.
///
/// ```
/// use rustload::{Checkpoint, DType, Request};
/// use rustload::write::{Values, WriteOptions, write_file};
///
/// # let folder = std::env::temp_dir().join(format!("rustload-write-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let (source, target) = (folder.join("a.safetensors"), folder.join("b.safetensors"));
/// # let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// # std::fs::write(&source, [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat())?;
/// let checkpoint = Checkpoint::open(&source)?;
/// let request = Request::new().dtype(DType::BF16);
/// let tensors = checkpoint
///     .names()
///     .map(|name| Ok((name.to_string(), Values::Tensor(checkpoint.tensor(name)?, request.clone()))))
///     .collect::<rustload::Result<Vec<_>>>()?;
/// write_file(&target, tensors, &WriteOptions::new())?;
/// assert_eq!(Checkpoint::open(&target)?.tensor("w")?.dtype(), DType::BF16);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_file(
    path: impl AsRef<Path>,
    tensors: Vec<(String, Values)>,
    options: &WriteOptions,
) -> Result<u64> {
    let path = path.as_ref();
    let plan = plan(&tensors, options)?;
    let manifest = ManifestBeside::of_file(path, options)?;
    if !options.resume {
        return write_planned(path, &tensors, &plan, options, None)?.commit(manifest, options);
    }
    let target = staged::check_target(path, options.overwrite)?.0;
    let mut text = String::new();
    resume::describe(&mut text, "", &plan, &tensors);
    let staging = Staging::open(&target, &text)?;
    let written = write_planned(&target, &tensors, &plan, options, Some(&staging.single_file()))?;
    let nbytes = written.commit(manifest, options)?;
    staging.remove();
    Ok(nbytes)
}

/// A file that is complete and has no name yet, its size, and how a manifest lists it.
struct Written {
    file: StagedFile,
    nbytes: u64,
    listed: Option<ListedFile>,
}

impl Written {
    /// Gives the file its name, and then its manifest; returns its size.
    fn commit(self, manifest: Option<ManifestBeside>, options: &WriteOptions) -> Result<u64> {
        let prepare = |mut manifest: ManifestBeside| {
            manifest.add(manifest.name(), self.listed);
            manifest.prepare(options)
        };
        let manifest = manifest.map(prepare).transpose()?;
        options.settle()?;
        self.file.commit(options.sync)?;
        manifest.map_or(Ok(()), PreparedFile::commit)?;
        Ok(self.nbytes)
    }
}

/// Writes a planned file. With `resumed`, writes what that lacks.
fn write_planned(
    path: &Path,
    tensors: &[(String, Values)],
    plan: &FilePlan,
    options: &WriteOptions,
    resumed: Option<&ResumedFile<'_>>,
) -> Result<Written> {
    let mut file = match resumed {
        None => StagedFile::create(path, plan.len, options.overwrite)?,
        Some(resumed) => resumed.open(path, plan.len, options.overwrite)?,
    };
    if options.sync || options.verify {
        file.start_write_back();
    }
    if options.manifest {
        file.hash_pieces(plan.len);
    }
    file.write_at(0, &plan.head)?;
    let pass = Pass { tensors, plan, options, step: Step::Written, resumed };
    // Bytes are hashed in the order of the file.
    pass.run(&file, |values| if options.manifest { None } else { values.position() })?;
    let listed = file.listed()?;
    if options.sync || options.verify {
        resumed.map_or(Ok(()), ResumedFile::begin_sync)?;
        file.sync()?;
        resumed.map_or(Ok(()), ResumedFile::finish)?;
    }
    if options.verify {
        verify::verify(&mut file, &pass)?;
    }
    Ok(Written { file, nbytes: plan.len, listed })
}

/// As [`write_file`], to anything that takes bytes in order. One thread writes. Returns the number of bytes. Fails if `options` ask to
/// verify, to resume or for a manifest, for which a file is needed.
pub fn write_in_order(
    target: &mut (dyn io::Write + Send),
    tensors: Vec<(String, Values)>,
    options: &WriteOptions,
) -> Result<u64> {
    if options.verify || options.resume || options.manifest {
        bail!(
            Code::Value,
            "what is written in order has no file to verify, to resume or to write a manifest beside: write to a file"
        );
    }
    let plan = plan(&tensors, options)?;
    let target = InOrder(Mutex::new((target, 0)));
    target.write_at(0, &plan.head)?;
    let options = WriteOptions { threads: Some(1), ..options.clone() };
    let pass = Pass { tensors: &tensors, plan: &plan, options: &options, step: Step::Written, resumed: None };
    pass.run(&target, |_| None)?;
    Ok(plan.len)
}

/// Writes a file of these bytes as [`write_file`] writes its own.
pub fn write_bytes(path: impl AsRef<Path>, bytes: &[u8], overwrite: bool, sync: bool) -> Result<()> {
    PreparedFile::new(path, bytes, overwrite, sync)?.commit()
}

/// A complete file that has no name yet. Dropping it removes it.
#[derive(Debug)]
pub struct PreparedFile {
    file: StagedFile,
    sync: bool,
}

impl PreparedFile {
    /// Writes the bytes. With `sync`, waits until they are on the disk. Fails as [`write_file`] does.
    pub fn new(path: impl AsRef<Path>, bytes: &[u8], overwrite: bool, sync: bool) -> Result<PreparedFile> {
        let mut file = StagedFile::create(path.as_ref(), to_u64(bytes.len()), overwrite)?;
        file.write_at(0, bytes)?;
        if sync {
            file.sync()?;
        }
        Ok(PreparedFile { file, sync })
    }

    /// Gives the file its name.
    pub fn commit(self) -> Result<()> {
        self.file.commit(self.sync)
    }
}

/// A target without offsets, and the offset of the next byte.
struct InOrder<'w>(Mutex<(&'w mut (dyn io::Write + Send), u64)>);

impl ByteTarget for InOrder<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut guard = lock(&self.0);
        let (target, position) = &mut *guard;
        if offset != *position {
            bail!(Code::InternalError, "bytes would not be written in order");
        }
        *position += to_u64(bytes.len());
        target.write_all(bytes).map_err(|error| Error::io(error, None))
    }
}

fn plan(tensors: &[(String, Values)], options: &WriteOptions) -> Result<FilePlan> {
    let declarations = tensors.iter().map(|(name, values)| {
        let (dtype, shape) = values.result().map_err(|error| error.in_member(name))?;
        Ok(Declaration { name: name.clone(), dtype, shape })
    });
    let declarations = declarations.collect::<Result<Vec<_>>>()?;
    limit_growth(tensors.iter().map(|(_, values)| values))?;
    FilePlan::new(&declarations, &options.metadata)
}
