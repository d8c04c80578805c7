//! The stored bytes of one tensor: codes, or what belongs to codes.

use crate::bytes::{RangeRead, Source};
use crate::dtype::DType;
use crate::error::{Code, Result, bail};
use crate::index::{Location, StorageBytes};
use crate::kernel::{self, Cast, Overflow, convert};
use crate::layout::{Dims, numel};
use crate::num::to_usize;
use crate::opened::Opened;

/// From here on, a read of a remote file asks for no more than its bytes; those of fewer may be near each other.
const EXACT_MIN_BYTES: usize = 4 << 10;

/// A tensor of a file, in C order.
#[derive(Debug)]
pub(super) struct Part {
    /// The number of its file, and its own there.
    id: (u32, u32),
    source: Source,
    location: Location,
    nbytes: u64,
    big_endian: bool,
    /// The offset of the first element in the storage, in bytes.
    offset: u64,
    pub(super) dtype: DType,
    pub(super) shape: Dims,
}

impl Part {
    /// The tensor of an entry. Fails with `QuantUnknown` where its elements are not in one place and in C order.
    pub(super) fn of(opened: &Opened, entry: u32) -> Result<Part> {
        let named = opened.entry(entry);
        let tensor = opened.tensor(opened.id(named));
        let storage = opened.storage(opened.storage_of(named));
        let (layout, flags) = (tensor.layout(), tensor.flags);
        let is_in_place = !storage.is_compressed() && !matches!(storage.location, Location::Chunks(_));
        let is_plain =
            is_in_place && layout.is_contiguous() && !flags.conjugate && !flags.negative && !flags.meta;
        if !is_plain {
            let name = &named.name;
            bail!(
                Code::QuantUnknown,
                "{name:?} is not stored in one place and in C order: first convert the checkpoint without dequantize"
            );
        }
        Ok(Part {
            id: opened.id(named),
            source: opened.index(named.shard).source.clone(),
            location: storage.location.clone(),
            nbytes: storage.nbytes,
            big_endian: storage.big_endian,
            offset: layout.offset.saturating_mul(tensor.dtype().itemsize()),
            dtype: tensor.dtype(),
            shape: layout.shape.clone(),
        })
    }

    /// The same bytes as elements of another dtype of the same size.
    pub(super) fn with_dtype(self, dtype: DType) -> Part {
        Part { dtype, ..self }
    }

    /// The number of its file, and its own there.
    #[cfg(feature = "python")]
    pub(super) fn id(&self) -> (u32, u32) {
        self.id
    }

    /// Where it begins in its file: good for sorting only.
    pub(super) fn position(&self) -> u64 {
        self.location.position().saturating_add(self.offset)
    }

    /// Its elements; all that there can be where their number does not fit 64 bits.
    pub(super) fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(u64::MAX)
    }

    /// Whether both have bytes in common.
    pub(super) fn overlaps(&self, other: &Part) -> bool {
        let end =
            |part: &Part| part.position().saturating_add(part.numel().saturating_mul(part.dtype.itemsize()));
        self.id.0 == other.id.0 && self.position() < end(other) && other.position() < end(self)
    }

    /// The file that it is in.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Fails where the file has changed since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.source.check_unchanged()
    }

    /// Fills `out` with its bytes from `start` on, as those of a little-endian machine.
    pub(super) fn read(&self, start: u64, out: &mut [u8]) -> Result<()> {
        let unit = self.dtype.swap_unit();
        if !self.big_endian || unit == 1 {
            return self.read_stored(start, out);
        }
        let before = start % unit;
        let len = before.saturating_add(out.len() as u64).next_multiple_of(unit);
        let mut whole = vec![0; to_usize(len)];
        self.read_stored(start - before, &mut whole)?;
        kernel::swap_bytes(to_usize(unit), &mut whole);
        out.copy_from_slice(&whole[to_usize(before)..][..out.len()]);
        Ok(())
    }

    fn read_stored(&self, start: u64, out: &mut [u8]) -> Result<()> {
        let source = self.location.bytes(&self.source, self.nbytes).and_then(StorageBytes::into_stored);
        let offset = self.offset.saturating_add(start);
        let read = source.and_then(|source| match out.len() >= EXACT_MIN_BYTES {
            // Not by way of the blocks of a remote file's cache, which would ask for more.
            true if source.access().waits_for_requests() => {
                source.read_ranges(&mut [RangeRead { offset, out }])
            }
            _ => source.read_at(offset, out),
        });
        read.map_err(|error| error.in_known_file(self.source.path()))
    }

    /// `count` bytes from `start` on.
    pub(super) fn bytes(&self, start: u64, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; to_usize(count)];
        self.read(start, &mut bytes)?;
        Ok(bytes)
    }

    /// `count` elements from number `start` on, as f32. Bytes are exponents (`float8_e8m0fnu`).
    pub(super) fn floats(&self, start: u64, count: u64) -> Result<Vec<f32>> {
        let dtype = if self.dtype == DType::U8 { DType::F8E8M0Fnu } else { self.dtype };
        let item = dtype.itemsize();
        let bytes = self.bytes(start.saturating_mul(item), count.saturating_mul(item))?;
        let mut floats = vec![0.0; to_usize(count)];
        let to_floats = Cast::new(dtype, DType::F32, Overflow::default())?;
        convert(to_floats, &bytes, bytemuck::cast_slice_mut(&mut floats))?;
        Ok(floats)
    }

    /// `count` integers from number `start` on.
    pub(super) fn integers(&self, start: u64, count: u64) -> Result<Vec<i64>> {
        let item = self.dtype.itemsize();
        let bytes = self.bytes(start.saturating_mul(item), count.saturating_mul(item))?;
        let mut integers = vec![0_i64; to_usize(count)];
        let to_integers = Cast::new(self.dtype, DType::I64, Overflow::default())?;
        convert(to_integers, &bytes, bytemuck::cast_slice_mut(&mut integers))?;
        Ok(integers)
    }
}
