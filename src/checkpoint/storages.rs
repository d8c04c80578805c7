//! Whole storages, for callers that make the tensors on them themselves: where they are, views of them, and copies in memory.

use super::Checkpoint;
use crate::dtype::DType;
use crate::error::{Code, Result, bail};
use crate::index::Index;
use crate::kernel::{Cast, Overflow};
use crate::layout::Layout;
use crate::parallel::{self, Cancel};
use crate::sink::{self, Array, HostBuffer};
use crate::stream::{self, Fill, Signs};
use crate::tensor::{Tensor, check_bools, is_view_unavailable, no_mapping};

/// The largest storage that is put in a slab with others.
const SLAB_STORAGE_MAX_BYTES: u64 = 64 << 10;

/// Bytes of a slab: the most that one small tensor keeps alive.
const SLAB_BYTES: u64 = 1 << 20;

/// The alignment of torch's allocator, and of storages in a slab.
const STORAGE_ALIGNMENT_BYTES: u64 = 64;

/// A storage as the file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StorageInfo {
    /// Its size in bytes.
    pub nbytes: u64,
    /// The device that it was saved from.
    pub device: Option<String>,
    /// The offset of its bytes from the checkpoint's beginning; `None` where the file does not have them as they are (compressed,
    /// big-endian, inside a pickle, absent), or where offsets were not asked for.
    pub file_offset: Option<u64>,
}

/// Copies of storages in memory.
#[derive(Clone, Debug)]
pub(crate) struct OwnedStorages {
    /// One-dimensional `u8` arrays, each with one storage or, as a slab, several small ones.
    pub arrays: Vec<Array>,
    /// For each storage the index of its array, and the byte offset in it.
    pub locations: Vec<(usize, u64)>,
}

/// What the dtypes of the tensors on a storage require of its bytes.
#[derive(Clone, Copy, Debug, Default)]
struct StorageUse {
    /// The widest unit whose bytes are swapped, in bytes.
    swap_unit: u64,
    /// The strictest alignment, in bytes.
    align: u64,
    has_bools: bool,
    has_others: bool,
}

/// How one storage is read.
struct ReadOptions<'a> {
    threads: Option<usize>,
    /// Whether the memory is recycled, so that its pages are faulted in.
    recycled: bool,
    cancel: &'a Cancel,
}

impl StorageUse {
    /// The integer dtype that a storage of that many bytes is read as, so that its bytes are swapped in the right units.
    fn swap_dtype(self, nbytes: u64) -> DType {
        let unit = DType::unsigned(self.swap_unit);
        // Bytes that are not a whole number of units belong to no element.
        if nbytes.is_multiple_of(unit.itemsize()) { unit } else { DType::U8 }
    }

    /// Whether all its bytes are bools.
    fn is_bools(self) -> bool {
        self.has_bools && !self.has_others
    }
}

impl Checkpoint {
    /// The number of files.
    pub(crate) fn shards(&self) -> usize {
        self.0.file_count()
    }

    /// Every storage of a file, in the order in which tensors refer to them first. `with_offsets` fills in
    /// [`StorageInfo::file_offset`], which reads the header of each archive member.
    pub(crate) fn storages(&self, shard: usize, with_offsets: bool) -> Result<Vec<StorageInfo>> {
        let index = self.0.file(shard)?;
        let base = index.source.start();
        if with_offsets {
            prefetch_headers(index);
        }
        let info = |(number, storage): (usize, &crate::index::Storage)| {
            let file_offset = if with_offsets && !storage.is_absent() {
                match self.0.viewable_source((shard as u32, number as u32)).and_then(|source| source.proved())
                {
                    Ok(source) => Some(source.start().saturating_sub(base)),
                    Err(error) if is_view_unavailable(&error) => None,
                    Err(error) => return Err(self.0.file_changed_or(shard as u32, error)),
                }
            } else {
                None
            };
            Ok(StorageInfo {
                nbytes: storage.nbytes,
                device: storage.device.as_deref().map(str::to_owned),
                file_offset,
            })
        };
        index.storages.iter().enumerate().map(info).collect()
    }

    /// A view of all bytes of a file, and the offset of each storage in it; `None` for a storage that has to be copied, as it is
    /// compressed, byte-swapped, misaligned, inside a pickle, or has bools other than 0 and 1. Fails for bytes in memory.
    pub(crate) fn storage_views(
        &self,
        shard: usize,
        writable: bool,
        cancel: &Cancel,
    ) -> Result<(Array, Vec<Option<u64>>)> {
        let source = &self.0.file(shard)?.source;
        let Some((mapping, window)) = source.map(writable)? else {
            return Err(no_mapping(source));
        };
        let row = Layout::contiguous(&[window.len()])?;
        let file_view = Array::view(mapping, window.start(), DType::U8, row)?;
        let uses = self.storage_uses(shard)?;
        prefetch_headers(self.0.file(shard)?);
        let starts = uses.iter().enumerate().map(|(number, storage_use)| {
            let id = (shard as u32, number as u32);
            let start = self.view_start(id, *storage_use, window.start(), cancel);
            start.map_err(|error| self.0.file_changed_or(id.0, error))
        });
        let starts = starts.collect::<Result<_>>()?;
        Ok((file_view, starts))
    }

    /// Bytes that [`Checkpoint::storage_views`] reads: storages with bools, which it validates.
    pub(crate) fn storage_views_work(&self, shard: usize) -> Result<u64> {
        let storage_uses = self.storage_uses(shard)?;
        let storages = storage_uses.iter().zip(&self.0.file(shard)?.storages);
        let bools =
            storages.filter(|(storage_use, _)| storage_use.has_bools).map(|(_, storage)| storage.nbytes);
        Ok(bools.fold(0, u64::saturating_add))
    }

    /// Copies some storages of a file into memory, in native byte order. Small ones share slabs.
    pub(crate) fn read_storages(
        &self,
        shard: usize,
        numbers: &[u32],
        cancel: &Cancel,
    ) -> Result<OwnedStorages> {
        let uses = self.storage_uses(shard)?;
        let mut plan = ArrayPlan::default();
        for &number in numbers {
            if number as usize >= uses.len() {
                bail!(Code::InternalError, "the file has no storage of that number");
            }
            plan.add(number, self.0.storage((shard as u32, number)).nbytes);
        }
        let fill = |number: u32, out: &mut [u8], options: ReadOptions<'_>| {
            let id = (shard as u32, number);
            let filled = self.fill_storage(id, uses[number as usize], out, options);
            filled.map_err(|error| self.0.file_changed_or(id.0, error))
        };
        let needed = plan.sizes.iter().fold(0, |sum: u64, &size| sum.saturating_add(size));
        sink::check_memory(needed, self.0.options.limits.available_memory)?;
        // The gaps between the storages of a slab are never written, so a slab starts out zeroed.
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
            fill(number, part, ReadOptions { threads: Some(1), recycled: false, cancel })
        };
        parallel::for_each(parallel::threads(nbytes, None), small.into_iter(), || (), job)?;
        let mut arrays = Vec::with_capacity(memory.len());
        for ((slab, parts), size) in memory.into_iter().zip(&plan.parts).zip(&plan.sizes) {
            let memory = match (slab, parts.first()) {
                (None, Some(&(number, _, _))) => {
                    let mut memory = HostBuffer::unfilled(*size)?;
                    let options = ReadOptions { threads: None, recycled: memory.is_recycled(), cancel };
                    fill(number, memory.bytes_mut(), options)?;
                    memory.filled()
                }
                (Some(memory), _) => memory,
                (None, None) => HostBuffer::new(*size)?,
            };
            arrays.push(Array::owned(memory, DType::U8, [*size][..].into())?);
        }
        Ok(OwnedStorages { arrays, locations: plan.locations })
    }

    /// Each storage of a file as a one-dimensional tensor of the dtype that [`Checkpoint::read_storages`] reads it as; `None` for
    /// an empty storage, and for one that only meta tensors, lazy conjugates or lazy negatives use.
    pub(crate) fn storage_tensors(&self, shard: usize) -> Result<Vec<Option<Tensor>>> {
        let index = self.0.file(shard)?;
        let uses = self.storage_uses(shard)?;
        let mut out = vec![None; index.storages.len()];
        for (number, tensor) in index.tensors.iter().enumerate() {
            let storage = tensor.storage() as usize;
            let (Some(slot), Some(info)) = (out.get_mut(storage), index.storages.get(storage)) else {
                continue;
            };
            let flags = tensor.flags;
            if slot.is_some() || info.nbytes == 0 || flags.meta || flags.conjugate || flags.negative {
                continue;
            }
            let unit =
                if uses[storage].is_bools() { DType::Bool } else { uses[storage].swap_dtype(info.nbytes) };
            *slot = Some(Tensor {
                opened: self.0.clone(),
                id: (shard as u32, number as u32),
                entry: None,
                dtype: unit,
                layout: Layout::contiguous(&[info.nbytes / unit.itemsize()])?,
                channel_layout: None,
            });
        }
        Ok(out)
    }

    /// Whether tensors are joined from parts in several files.
    pub(crate) fn is_joined(&self) -> bool {
        self.0.joins.is_some()
    }

    /// The end of the checkpoint in its file; `None` where the format does not tell.
    pub(crate) fn end(&self) -> Option<u64> {
        self.0.shards.first()?.index.end
    }

    /// Whether this is a TorchScript archive: one with a member `constants.pkl` (torch/serialization.py: `_is_torchscript_zip`).
    pub(crate) fn is_torchscript(&self) -> bool {
        self.0.shards.iter().any(|shard| shard.objects.is_torchscript)
    }
}

impl Checkpoint {
    /// For each storage of a file what the tensors on it require.
    fn storage_uses(&self, shard: usize) -> Result<Vec<StorageUse>> {
        let index = self.0.file(shard)?;
        let mut uses = vec![StorageUse::default(); index.storages.len()];
        for tensor in &index.tensors {
            let Some(storage_use) = uses.get_mut(tensor.storage() as usize) else { continue };
            storage_use.swap_unit = storage_use.swap_unit.max(tensor.dtype().swap_unit());
            storage_use.align = storage_use.align.max(tensor.dtype().align());
            match tensor.dtype() {
                DType::Bool => storage_use.has_bools = true,
                _ => storage_use.has_others = true,
            }
        }
        Ok(uses)
    }

    /// The offset of a storage from byte `base` of its file; `None` where it has to be copied.
    fn view_start(
        &self,
        id: (u32, u32),
        uses: StorageUse,
        base: u64,
        cancel: &Cancel,
    ) -> Result<Option<u64>> {
        if self.0.storage(id).nbytes == 0 {
            return Ok(None);
        }
        let source = match self.0.viewable_source(id).and_then(|source| source.proved()) {
            Ok(source) => source,
            Err(error) if is_view_unavailable(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if source.start() % uses.align.max(1) != 0 {
            return Ok(None);
        }
        if uses.has_bools {
            match check_bools(&source, &Layout::contiguous(&[source.len()])?, cancel) {
                Err(error) if is_view_unavailable(&error) => return Ok(None),
                checked => checked?,
            }
        }
        Ok(source.start().checked_sub(base))
    }

    /// Reads a whole storage in native byte order. In a storage of bools alone, any byte but 0 becomes 1.
    fn fill_storage(
        &self,
        id: (u32, u32),
        uses: StorageUse,
        out: &mut [u8],
        options: ReadOptions<'_>,
    ) -> Result<()> {
        let payload = self.0.payload(id, options.cancel)?;
        let unit = uses.swap_dtype(out.len() as u64);
        let layout = Layout::contiguous(&[out.len() as u64 / unit.itemsize()])?;
        let cast = Cast::new(unit, unit, Overflow::Nan)?;
        let cast = if options.recycled { cast.with_non_temporal_stores() } else { cast };
        let (threads, cancel) = (options.threads, options.cancel.clone());
        let how = Fill { signs: Signs::default(), cast, threads, cancel };
        stream::fill(&payload, &layout, &how, out)?;
        if uses.is_bools() {
            for part in out.chunks_mut(1 << 20) {
                options.cancel.check()?;
                part.iter_mut().for_each(|byte| *byte = (*byte).min(1));
            }
        }
        Ok(())
    }
}

/// Reads the headers of all members at once where requests are expensive, as nothing else is read of them.
fn prefetch_headers(index: &Index) {
    if index.source.access().waits_for_requests() {
        index.prefetch_headers((0..index.storages.len() as u32).map(|number| (number, 0)));
    }
}

/// Assigns storages to arrays.
#[derive(Default)]
struct ArrayPlan {
    /// Bytes of each array.
    sizes: Vec<u64>,
    /// The storages of each array: number, start, bytes.
    parts: Vec<Vec<(u32, u64, u64)>>,
    /// For each storage, in the requested order, its array and start.
    locations: Vec<(usize, u64)>,
    /// The array that small storages are added to.
    slab: Option<usize>,
}

impl ArrayPlan {
    fn add(&mut self, number: u32, nbytes: u64) {
        if nbytes > SLAB_STORAGE_MAX_BYTES {
            self.push(number, nbytes);
            return;
        }
        if let Some(slab) = self.slab {
            let start = self.sizes[slab].next_multiple_of(STORAGE_ALIGNMENT_BYTES);
            if start + nbytes <= SLAB_BYTES {
                self.sizes[slab] = start + nbytes;
                self.parts[slab].push((number, start, nbytes));
                self.locations.push((slab, start));
                return;
            }
        }
        self.slab = Some(self.sizes.len());
        self.push(number, nbytes);
    }

    fn push(&mut self, number: u32, nbytes: u64) {
        self.locations.push((self.sizes.len(), 0));
        self.sizes.push(nbytes);
        self.parts.push(vec![(number, 0, nbytes)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_storages_share_slabs_and_large_ones_do_not() {
        let mut plan = ArrayPlan::default();
        for (number, nbytes) in
            [1, SLAB_STORAGE_MAX_BYTES + 1, 100, 0, SLAB_STORAGE_MAX_BYTES].into_iter().enumerate()
        {
            plan.add(number as u32, nbytes);
        }
        assert_eq!(plan.locations, [(0, 0), (1, 0), (0, 64), (0, 192), (0, 192)]);
        assert_eq!(plan.sizes, [192 + SLAB_STORAGE_MAX_BYTES, SLAB_STORAGE_MAX_BYTES + 1]);
        for number in 0..100 {
            plan.add(number, SLAB_STORAGE_MAX_BYTES);
        }
        assert!(
            plan.parts.iter().zip(&plan.sizes).all(|(parts, &size)| parts.len() == 1 || size <= SLAB_BYTES)
        );
        let ends = plan.parts.iter().flat_map(|parts| parts.windows(2)).map(|pair| (pair[0], pair[1]));
        assert!(ends.into_iter().all(|((_, start, len), (_, next, _))| start + len <= next));
    }
}
