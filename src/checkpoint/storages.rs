//! Whole storages, for whoever puts tensors on them itself: where they lie, and their bytes in memory of their own.

use super::{Checkpoint, Inner};
use crate::bytes::Source;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::{Contents, Index, StorageLocation};
use crate::kernel::{Cast, Overflow};
use crate::layout::Layout;
use crate::parallel::{self, Cancel};
use crate::sink::{Array, HostBuffer};
use crate::stream::{self, Fill, Payload, Signs};
use crate::tensor::{Tensor, check_bools, is_no_view};

/// Bytes of the largest storage that shares its memory with others, and of that memory: one small tensor that stays alive
/// holds no more than a slab.
const SMALL: u64 = 64 << 10;
const SLAB: u64 = 1 << 20;

/// What torch aligns a storage's memory to.
const ALIGNMENT: u64 = 64;

/// What the file says of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageInfo {
    /// How many bytes it has.
    pub nbytes: u64,
    /// The device that it was saved from.
    pub location: Option<String>,
    /// Where it starts, counted from the checkpoint's beginning, if its bytes lie there as they are.
    pub at: Option<u64>,
}

/// Storages in memory of their own.
#[derive(Clone, Debug)]
pub struct OwnedStorages {
    /// Rows of bytes, each with one storage or several small ones.
    pub arrays: Vec<Array>,
    /// For each storage the array and the byte of it where it starts.
    pub places: Vec<(usize, u64)>,
}

/// What the tensors on a storage ask of its bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// Bytes of the numbers that are swapped where their order is another: the widest of any tensor.
    unit: u64,
    /// What addresses must be multiples of for all tensors.
    align: u64,
    bools: bool,
    others: bool,
}

/// How to read one storage.
struct How<'a> {
    threads: Option<usize>,
    /// Whether the memory was in use before.
    recycled: bool,
    cancel: &'a Cancel,
}

impl Uses {
    /// The numbers that a storage of that many bytes is read as.
    fn unit(self, nbytes: u64) -> DType {
        let unit = DType::unsigned(self.unit);
        // What is no whole number of elements is none of any tensor on it.
        if nbytes.is_multiple_of(unit.itemsize()) { unit } else { DType::U8 }
    }

    /// Whether its bytes are bools and nothing else.
    fn is_bools(self) -> bool {
        self.bools && !self.others
    }
}

impl Checkpoint {
    /// The number of files.
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// Every storage of a file, in the order in which tensors name them first. Where they start (`places`) takes a look at each
    /// member's header, and is left out otherwise.
    pub fn storages(&self, shard: usize, places: bool) -> Result<Vec<StorageInfo>> {
        let index = self.0.file(shard)?;
        let base = source_of(index).start();
        let info = |(number, storage): (usize, &crate::index::Storage)| {
            let nowhere = matches!(storage.location, StorageLocation::Empty | StorageLocation::Meta);
            let plain = if places && !nowhere {
                self.0.plain_payload((shard as u32, number as u32))
            } else {
                Err(skipped())
            };
            let at = match plain {
                Ok(source) => Some(source.start().saturating_sub(base)),
                Err(error) if is_no_view(&error) => None,
                Err(error) => return Err(self.0.blame(shard as u32, error)),
            };
            Ok(StorageInfo {
                nbytes: storage.nbytes,
                location: storage.device.as_deref().map(str::to_owned),
                at,
            })
        };
        index.storages.iter().enumerate().map(info).collect()
    }

    /// A row of all bytes of a file, mapped, and for each storage where it starts in it; `None` for one that must be copied,
    /// as it is compressed, in another byte order, misaligned, inside a pickle, or has bools other than 0 and 1.
    pub fn storage_views(&self, shard: usize, cancel: &Cancel) -> Result<(Array, Vec<Option<u64>>)> {
        let source = source_of(self.0.file(shard)?);
        let Some((mapping, window)) = source.map()? else {
            return Err(Error::new(Code::Buffer, "bytes in memory are not viewed but copied"));
        };
        let row = Layout::contiguous(&[window.len()])?;
        let whole = Array::view(mapping, window.start(), DType::U8, row)?;
        let uses = self.0.uses(shard)?;
        let starts = uses.iter().enumerate().map(|(number, uses)| {
            let id = (shard as u32, number as u32);
            let found = self.0.view_start(id, *uses, window.start(), cancel);
            found.map_err(|error| self.0.blame(id.0, error))
        });
        let starts = starts.collect::<Result<_>>()?;
        Ok((whole, starts))
    }

    /// Bytes that [`Checkpoint::storage_views`] goes through: those that are bools.
    pub fn views_work(&self, shard: usize) -> Result<u64> {
        let uses = self.0.uses(shard)?;
        let storages = uses.iter().zip(&self.0.file(shard)?.storages);
        let bools = storages.filter(|(uses, _)| uses.bools).map(|(_, storage)| storage.nbytes);
        Ok(bools.fold(0, u64::saturating_add))
    }

    /// The bytes of some storages of a file in memory of their own, in this machine's byte order.
    pub fn read_storages(&self, shard: usize, wanted: &[u32], cancel: &Cancel) -> Result<OwnedStorages> {
        let uses = self.0.uses(shard)?;
        let mut plan = Plan::default();
        for &number in wanted {
            if number as usize >= uses.len() {
                return Err(Error::new(Code::InternalError, "there is no storage of that number"));
            }
            plan.add(number, self.0.storage((shard as u32, number)).nbytes);
        }
        let fill = |number: u32, out: &mut [u8], how: How<'_>| {
            let id = (shard as u32, number);
            let filled = self.0.fill_storage(id, uses[number as usize], out, how);
            filled.map_err(|error| self.0.blame(id.0, error))
        };
        // What lies between the storages of a slab is written by nobody, so a slab is made of zeros.
        let slab = |(size, parts): (&u64, &Vec<_>)| match parts.len() {
            1 => Ok(None),
            _ => HostBuffer::new(*size).map(Some),
        };
        let mut memory = plan.sizes.iter().zip(&plan.parts).map(slab).collect::<Result<Vec<_>>>()?;
        let mut small: Vec<(u32, &mut [u8])> = Vec::new();
        let mut nbytes = 0;
        for (buffer, parts) in memory.iter_mut().zip(&plan.parts) {
            let Some(buffer) = buffer else { continue };
            let (mut rest, mut at) = (buffer.bytes_mut(), 0);
            for &(number, start, len) in parts {
                let (_, tail) = rest.split_at_mut((start - at) as usize);
                let (part, tail) = tail.split_at_mut(len as usize);
                small.push((number, part));
                (rest, at) = (tail, start + len);
                nbytes += len;
            }
        }
        let job = |_: &mut (), (number, part): (u32, &mut [u8])| {
            fill(number, part, How { threads: Some(1), recycled: false, cancel })
        };
        parallel::for_each(parallel::threads(nbytes, None), small.into_iter(), || (), job)?;
        let mut arrays = Vec::with_capacity(memory.len());
        for ((slab, parts), size) in memory.into_iter().zip(&plan.parts).zip(&plan.sizes) {
            let memory = match (slab, parts.first()) {
                (None, Some(&(number, _, _))) => {
                    let mut memory = HostBuffer::unfilled(*size)?;
                    let how = How { threads: None, recycled: memory.is_recycled(), cancel };
                    fill(number, memory.bytes_mut(), how)?;
                    memory.filled()
                }
                (Some(memory), _) => memory,
                (None, None) => HostBuffer::new(*size)?,
            };
            arrays.push(Array::owned(memory, DType::U8, [*size][..].into())?);
        }
        Ok(OwnedStorages { arrays, places: plan.places })
    }

    /// Each storage of a file as a row of numbers that [`Checkpoint::read_storages`] would read it as; `None` for one that has no
    /// bytes, or that no plain tensor lies in.
    pub fn storage_tensors(&self, shard: usize) -> Result<Vec<Option<Tensor>>> {
        let index = self.0.file(shard)?;
        let uses = self.0.uses(shard)?;
        let mut out = vec![None; index.storages.len()];
        for (number, tensor) in index.tensors.iter().enumerate() {
            let storage = tensor.storage() as usize;
            let (Some(found), Some(info)) = (out.get_mut(storage), index.storages.get(storage)) else {
                continue;
            };
            let flags = tensor.flags;
            if found.is_some() || info.nbytes == 0 || flags.meta || flags.conjugate || flags.negative {
                continue;
            }
            let unit = if uses[storage].is_bools() { DType::Bool } else { uses[storage].unit(info.nbytes) };
            *found = Some(Tensor {
                checkpoint: self.0.clone(),
                id: (shard as u32, number as u32),
                entry: None,
                dtype: unit,
                layout: Layout::contiguous(&[info.nbytes / unit.itemsize()])?,
                channels: None,
            });
        }
        Ok(out)
    }

    /// One past the last byte of the file that belongs to the checkpoint, where the format tells.
    pub fn end(&self) -> Option<u64> {
        self.0.shards.first()?.index.end
    }

    /// Whether this is a TorchScript archive, by the member that torch goes by (torch/serialization.py: `_is_torchscript_zip`).
    pub fn is_torchscript(&self) -> bool {
        self.0.shards.iter().any(|shard| match &shard.index.contents {
            Contents::Archive(archive) => {
                let is_it =
                    |name: &str| name.split_once('/').is_some_and(|(_, name)| name == "constants.pkl");
                archive.members().iter().any(|member| is_it(member.name()))
            }
            Contents::Plain(_) => false,
        })
    }
}

impl Inner {
    fn file(&self, shard: usize) -> Result<&Index> {
        let found = self.shards.get(shard).map(|shard| &shard.index);
        found.ok_or_else(|| Error::new(Code::InternalError, "there is no file of that number"))
    }

    fn uses(&self, shard: usize) -> Result<Vec<Uses>> {
        let index = self.file(shard)?;
        let mut uses = vec![Uses::default(); index.storages.len()];
        for tensor in &index.tensors {
            let Some(of) = uses.get_mut(tensor.storage() as usize) else { continue };
            of.unit = of.unit.max(tensor.dtype().swap_unit());
            of.align = of.align.max(tensor.dtype().align());
            match tensor.dtype() {
                DType::Bool => of.bools = true,
                _ => of.others = true,
            }
        }
        Ok(uses)
    }

    /// Where a storage starts after byte `base` of its file, if tensors can stand on it as it lies there.
    fn view_start(&self, id: (u32, u32), uses: Uses, base: u64, cancel: &Cancel) -> Result<Option<u64>> {
        if self.storage(id).nbytes == 0 {
            return Ok(None);
        }
        let source = match self.plain_payload(id) {
            Ok(source) => source,
            Err(error) if is_no_view(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if source.start() % uses.align.max(1) != 0 {
            return Ok(None);
        }
        if uses.bools {
            match check_bools(&source, &Layout::contiguous(&[source.len()])?, cancel) {
                Err(error) if is_no_view(&error) => return Ok(None),
                checked => checked?,
            }
        }
        Ok(source.start().checked_sub(base))
    }

    /// Reads a whole storage. Numbers change to this machine's byte order; bytes that only bools are made of become 0 and 1.
    fn fill_storage(&self, id: (u32, u32), uses: Uses, out: &mut [u8], wanted: How<'_>) -> Result<()> {
        let payload: Payload = self.payload(id, wanted.cancel)?;
        let unit = uses.unit(out.len() as u64);
        let layout = Layout::contiguous(&[out.len() as u64 / unit.itemsize()])?;
        let cast = Cast::new(unit, unit, Overflow::Nan)?;
        let cast = if wanted.recycled { cast.with_non_temporal_stores() } else { cast };
        let (threads, cancel) = (wanted.threads, wanted.cancel.clone());
        let how = Fill { signs: Signs::default(), cast, threads, cancel };
        stream::fill(&payload, &layout, &how, out)?;
        if uses.is_bools() {
            for part in out.chunks_mut(1 << 20) {
                wanted.cancel.check()?;
                part.iter_mut().for_each(|byte| *byte = (*byte).min(1));
            }
        }
        Ok(())
    }
}

/// Which storage goes where.
#[derive(Default)]
struct Plan {
    /// Bytes of each array.
    sizes: Vec<u64>,
    /// What lies in each array: storage, start, bytes.
    parts: Vec<Vec<(u32, u64, u64)>>,
    /// For each storage, in the order asked for, its array and start.
    places: Vec<(usize, u64)>,
    /// The array that takes small storages.
    slab: Option<usize>,
}

impl Plan {
    fn add(&mut self, number: u32, nbytes: u64) {
        if nbytes > SMALL {
            self.push(number, nbytes);
            return;
        }
        if let Some(slab) = self.slab {
            let start = self.sizes[slab].next_multiple_of(ALIGNMENT);
            if start + nbytes <= SLAB {
                self.sizes[slab] = start + nbytes;
                self.parts[slab].push((number, start, nbytes));
                self.places.push((slab, start));
                return;
            }
        }
        self.slab = Some(self.sizes.len());
        self.push(number, nbytes);
    }

    fn push(&mut self, number: u32, nbytes: u64) {
        self.places.push((self.sizes.len(), 0));
        self.sizes.push(nbytes);
        self.parts.push(vec![(number, 0, nbytes)]);
    }
}

impl Inner {
    /// Whether this file may be read around the page cache.
    pub(super) fn may_be_direct(&self, shard: u32) -> bool {
        source_of(self.index(shard)).may_be_direct()
    }
}

/// All bytes of a file that belong to the checkpoint.
fn source_of(index: &Index) -> &Source {
    match &index.contents {
        Contents::Plain(source) => source,
        Contents::Archive(archive) => archive.source(),
    }
}

/// No place was asked for.
fn skipped() -> Error {
    Error::new(Code::Buffer, "not asked for")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_storages_share_slabs_and_large_ones_do_not() {
        let mut plan = Plan::default();
        for (number, nbytes) in [1, SMALL + 1, 100, 0, SMALL].into_iter().enumerate() {
            plan.add(number as u32, nbytes);
        }
        assert_eq!(plan.places, [(0, 0), (1, 0), (0, 64), (0, 192), (0, 192)]);
        assert_eq!(plan.sizes, [192 + SMALL, SMALL + 1]);
        for number in 0..100 {
            plan.add(number, SMALL);
        }
        assert!(plan.parts.iter().zip(&plan.sizes).all(|(parts, &size)| parts.len() == 1 || size <= SLAB));
        let ends = plan.parts.iter().flat_map(|parts| parts.windows(2)).map(|pair| (pair[0], pair[1]));
        assert!(ends.into_iter().all(|((_, start, len), (_, next, _))| start + len <= next));
    }
}
