//! Writes a safetensors file whose tensors are declared first and come in any order, whole or in parts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::manifest::ManifestBeside;
use super::staged::StagedFile;
use super::{Values, WriteOptions, Written};
use crate::container::safetensors::{Declaration, FilePlan};
use crate::error::{Code, Error, Result, bail, error};
use crate::layout::{Dims, numel};
use crate::memory;
use crate::num::to_usize;
use crate::parallel::lock;
use crate::stream::{ByteTarget, WriteItem, write_all};

/// The most names in the error for tensors that were not written.
const MISSING_NAMES_MAX: usize = 5;

/// A safetensors file that is being written. It appears under its name with [`Writer::finish`]; dropped before, it leaves nothing.
///
/// ```
/// use std::sync::Arc;
/// use rustload::{Checkpoint, DType, Layout, Request};
/// use rustload::write::{Declaration, HostArray, Values, WriteOptions, Writer};
///
/// # let folder = std::env::temp_dir().join(format!("rustload-writer-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("model.safetensors");
/// let declared = vec![Declaration { name: "w".into(), dtype: DType::U8, shape: [2, 3][..].into() }];
/// let writer = Writer::create(&path, declared, &WriteOptions::new())?;
/// for row in 0..2_u8 {
///     let array = HostArray::new(Arc::new([row; 3]), DType::U8, Layout::contiguous(&[1, 3])?)?;
///     writer.write_part("w", &[row.into(), 0], Values::Array(array, Request::new()))?;
/// }
/// writer.finish()?;
/// assert_eq!(Checkpoint::open(&path)?.tensor("w")?.shape(), [2, 3]);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Writer {
    file: StagedFile,
    tensors: Vec<Declaration>,
    plan: FilePlan,
    by_name: HashMap<String, usize>,
    /// The parts of each tensor that are written, or being written.
    written: Mutex<Vec<Vec<Block>>>,
    options: WriteOptions,
    path: PathBuf,
}

/// A rectangular part of a tensor: first index and size along each dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    start: Dims,
    shape: Dims,
}

impl Block {
    fn overlaps(&self, other: &Block) -> bool {
        let dims = self.start.iter().zip(&self.shape).zip(other.start.iter().zip(&other.shape));
        dims.into_iter().all(|((start, size), (other_start, other_size))| {
            *start < other_start + other_size && *other_start < start + size
        })
    }

    fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX)
    }
}

impl Writer {
    /// Plans the file, and reserves its space. Fails for a dtype that the format lacks, for duplicate names, for a full disk, and if
    /// the file exists and `options` do not allow to replace it. Fails if they ask to verify: no source is left to compare with.
    pub fn create(
        path: impl AsRef<Path>,
        tensors: Vec<Declaration>,
        options: &WriteOptions,
    ) -> Result<Writer> {
        if options.verify || options.resume {
            bail!(Code::Value, "a file that is written in parts has no source, to verify or to resume it");
        }
        let plan = FilePlan::new(&tensors, &options.metadata)?;
        let path = path.as_ref().to_owned();
        ManifestBeside::of_file(&path, options)?;
        let mut file = StagedFile::create(&path, plan.len, options.overwrite)?;
        if options.manifest {
            file.hash_pieces(plan.len);
        }
        file.write_at(0, &plan.head)?;
        let by_name = tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        let written = Mutex::new(vec![Vec::new(); tensors.len()]);
        Ok(Writer { file, tensors, plan, by_name, written, options: options.clone(), path })
    }

    /// Writes a tensor, cast to the dtype that was declared. Fails for a name or shape that was not declared, and for a second
    /// write. Several threads may write at once.
    pub fn write(&self, name: &str, values: Values) -> Result<()> {
        let at = self.find(name)?;
        let start = self.tensors[at].shape.iter().map(|_| 0).collect();
        let shape = values.result()?.1;
        if shape != self.tensors[at].shape {
            let declared = &self.tensors[at].shape[..];
            let text = format!("the tensor has the shape {:?}, declared was {declared:?}", &shape[..]);
            return Err(Error::new(Code::Value, text).in_member(name));
        }
        self.write_block(at, Block { start, shape }, values)
    }

    /// Writes a part of a tensor, whose first element has the index `start`. Fails if it does not lie inside the tensor, or overlaps a
    /// part that was written.
    pub fn write_part(&self, name: &str, start: &[u64], values: Values) -> Result<()> {
        let at = self.find(name)?;
        let (declared, shape) = (&self.tensors[at].shape, values.result()?.1);
        let ends = start.iter().zip(&shape).map(|(start, size)| start.checked_add(*size));
        let is_inside = start.len() == declared.len()
            && shape.len() == declared.len()
            && ends.zip(declared).all(|(end, size)| end.is_some_and(|end| end <= *size));
        if !is_inside {
            let (shape, declared) = (&shape[..], &declared[..]);
            let text =
                format!("a part of shape {shape:?} at {start:?} does not lie inside the shape {declared:?}");
            return Err(Error::new(Code::Value, text).in_member(name));
        }
        self.write_block(at, Block { start: start.into(), shape }, values)
    }

    fn write_block(&self, at: usize, block: Block, values: Values) -> Result<()> {
        let tensor = &self.tensors[at];
        let numel = block.numel();
        if numel == 0 {
            return Ok(());
        }
        {
            let mut written = lock(&self.written);
            if written[at].iter().any(|other| other.overlaps(&block)) {
                let text = "these elements were written before";
                return Err(Error::new(Code::Value, text).in_member(&tensor.name));
            }
            written[at].push(block.clone());
        }
        let values = values.cast_to(tensor.dtype);
        let target = BlockTarget::new(&self.file, self.plan.regions[at].start(), tensor, &block);
        let (context, nbytes) = (values.clone(), numel * tensor.dtype.itemsize());
        let item = WriteItem { offset: 0, nbytes, describe: Box::new(move || values.describe()) };
        let WriteOptions { memory, threads, cancel, .. } = &self.options;
        write_all(vec![item], &target, memory::buffers(*memory), *threads, cancel).map_err(|(_, error)| {
            // It may be written again.
            lock(&self.written)[at].retain(|other| *other != block);
            context.add_context(error).in_member(&tensor.name)
        })
    }

    /// Gives the file its name. Fails unless all elements of all tensors were written. Returns the size of the file in bytes.
    pub fn finish(self) -> Result<u64> {
        let missing: Vec<&str> = {
            let written = lock(&self.written);
            let tensors = self.tensors.iter().zip(written.iter());
            let incomplete = tensors.filter(|(tensor, blocks)| {
                Some(blocks.iter().map(Block::numel).sum()) != numel(&tensor.shape)
            });
            incomplete.map(|(tensor, _)| tensor.name.as_str()).collect()
        };
        if !missing.is_empty() {
            let more = missing.len().saturating_sub(MISSING_NAMES_MAX);
            let listed = missing.iter().take(MISSING_NAMES_MAX).map(|name| format!("{name:?}"));
            let mut text = listed.collect::<Vec<_>>().join(", ");
            if more > 0 {
                text.push_str(&format!(" and {more} more"));
            }
            bail!(Code::WriterIncomplete, "not written, or not all of it: {text}");
        }
        let Writer { mut file, options, path, plan, .. } = self;
        let listed = file.listed()?;
        let manifest = ManifestBeside::new(&path, &options)?;
        Written { file, nbytes: plan.len, listed }.commit(manifest, &options)
    }

    /// The size that the file will have, in bytes.
    pub fn len(&self) -> u64 {
        self.plan.len
    }

    /// Whether the file will be empty, which no safetensors file is.
    pub fn is_empty(&self) -> bool {
        self.plan.len == 0
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.by_name
            .get(name)
            .copied()
            .ok_or_else(|| error!(Code::Value, "no tensor named {name:?} was declared"))
    }
}

/// Writes the bytes of a part of a tensor, which are contiguous in the part, to their ranges of the file.
struct BlockTarget<'w> {
    file: &'w StagedFile,
    /// The offset of the part's first element in the file.
    start: u64,
    /// Bytes that are contiguous in the file.
    run: u64,
    /// The dimensions of the runs, the last first: size in the part, and the distance in the file in bytes.
    dims: Vec<(u64, u64)>,
}

impl<'w> BlockTarget<'w> {
    /// `region` is where the tensor's bytes begin.
    fn new(file: &'w StagedFile, region: u64, tensor: &Declaration, block: &Block) -> BlockTarget<'w> {
        let (mut start, mut stride, mut run) = (region, tensor.dtype.itemsize(), tensor.dtype.itemsize());
        let (mut dims, mut is_whole) = (Vec::new(), true);
        let sizes = tensor.shape.iter().zip(block.start.iter().zip(&block.shape)).rev();
        for (&full, (&at, &size)) in sizes {
            start += at * stride;
            if is_whole {
                run *= size;
            } else {
                dims.push((size, stride));
            }
            // Along the first dimension that the part does not cover, its elements are still contiguous.
            is_whole &= size == full;
            stride *= full;
        }
        BlockTarget { file, start, run, dims }
    }

    /// The offset in the file of a run, by its number in the part.
    fn offset_of(&self, run: u64) -> u64 {
        let mut rest = run;
        self.dims.iter().fold(self.start, |offset, (size, stride)| {
            let index = rest % size;
            rest /= size;
            offset + index * stride
        })
    }
}

impl ByteTarget for BlockTarget<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut offset, mut bytes) = (offset, bytes);
        while !bytes.is_empty() {
            let (number, within) = (offset / self.run, offset % self.run);
            let len = to_usize(self.run - within).min(bytes.len());
            let (part, rest) = bytes.split_at(len);
            self.file.write_at(self.offset_of(number) + within, part)?;
            (offset, bytes) = (offset + len as u64, rest);
        }
        Ok(())
    }

    fn copy_at(&self, offset: u64, source: &crate::bytes::Source) -> Result<bool> {
        if self.dims.is_empty() { self.file.copy_at(self.start + offset, source) } else { Ok(false) }
    }
}
