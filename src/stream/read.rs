//! Fills a destination: positional reads on scoped threads. Each block is byte-swapped, cast and copied while it is in the CPU's
//! cache.

use super::plan::{Block, BlockGrid, Piece};
use crate::bytes::{AlignedMemory, DIRECT_ALIGNMENT, ReadMode, Reader, Scratch, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail};
use crate::kernel::{self, Cast};
use crate::layout::{self, Layout};
use crate::num::to_usize;
use crate::parallel::{self, Cancel};
use crate::sink::{self, HostBuffer};

/// Results of at least this size start at the file's offset in a disk block, so that direct reads can go straight into them.
const ALIGNED_RESULT_MIN_BYTES: u64 = 8 << 20;

/// The size of a huge page.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The most bytes of one read without scratch; bounded so that a cancellation is noticed soon.
pub(super) const PLAIN_READ_MAX_BYTES: u64 = 8 << 20;

/// Smaller bands of a transposed matrix, and ranges of a joined one, are not worth a job of their own.
pub(super) const BAND_MIN_BYTES: u64 = 4 << 20;

/// The bytes of one storage.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The window with the storage's bytes.
    pub source: Source,
    /// Whether the elements are big-endian.
    pub big_endian: bool,
}

/// Sign changes that a file may request, like torch's lazy conjugate and negative bits. They are applied before the cast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Whether imaginary parts are negated.
    pub conjugate: bool,
    /// Whether all numbers are negated.
    pub negative: bool,
}

impl Signs {
    fn is_none(self) -> bool {
        self == Signs::default()
    }

    pub(super) fn apply(self, dtype: DType, data: &mut [u8]) -> Result<()> {
        if self.conjugate {
            kernel::conjugate(dtype, data)?;
        }
        if self.negative {
            kernel::negate(dtype, data)?;
        }
        Ok(())
    }
}

/// How to fill a destination.
#[derive(Clone, Debug)]
pub struct Fill {
    /// The sign changes.
    pub signs: Signs,
    /// The conversion from the file's dtype to the result's.
    pub cast: Cast,
    /// The number of threads; `None` for one per core if there is enough work.
    pub threads: Option<usize>,
    /// Checked before each block.
    pub cancel: Cancel,
}

impl Fill {
    /// Whether the result's bytes are the file's bytes.
    pub(super) fn is_copy(&self, payload: &Payload) -> bool {
        self.cast.is_identity() && self.signs.is_none() && !self.needs_byte_swap(payload)
    }

    fn needs_byte_swap(&self, payload: &Payload) -> bool {
        payload.big_endian && self.cast.from().swap_unit() > 1
    }

    /// Prepares bytes as they were read for the cast: swaps them to this machine's byte order and applies the sign changes.
    pub(super) fn prepare_for_cast(&self, payload: &Payload, bytes: &mut [u8]) -> Result<()> {
        if self.needs_byte_swap(payload) {
            kernel::swap_bytes(to_usize(self.cast.from().swap_unit()), bytes);
        }
        self.signs.apply(self.cast.from(), bytes)
    }
}

/// Elements of a storage, and their conversion.
#[derive(Clone, Debug)]
pub struct Elements {
    /// The storage's bytes.
    pub payload: Payload,
    /// The elements, in the order of the result.
    pub layout: Layout,
    /// The conversion.
    pub how: Fill,
}

impl Elements {
    /// Fails as [`check_bounds`], and for a dtype whose signs cannot be changed, even if there is nothing to read.
    pub(super) fn check(&self, nbytes: usize) -> Result<()> {
        let Elements { payload, layout, how } = self;
        check_bounds(payload, layout, how.cast, nbytes)?;
        how.signs.apply(how.cast.from(), &mut [])
    }

    /// How they are read.
    pub(super) fn read_mode(&self) -> ReadMode {
        let Elements { payload, layout, how } = self;
        read_mode(payload, layout, layout.numel().saturating_mul(how.cast.from().itemsize()))
    }
}

/// How the payload is read for `bytes` bytes of work on this layout.
pub(super) fn read_mode(payload: &Payload, layout: &Layout, bytes: u64) -> ReadMode {
    ReadMode::of(&payload.source, bytes, layout.is_contiguous())
}

/// The number of threads for `bytes` bytes of work that are read in these ways: `requested` at most, one alone if a source does not
/// support several, and otherwise enough for the disk or the network, or for the cores.
pub(super) fn reading_threads(
    modes: impl Iterator<Item = ReadMode>,
    bytes: u64,
    requested: Option<usize>,
) -> usize {
    let (mut in_flight, mut waits_for_requests) = (None, false);
    for access in modes.map(ReadMode::access) {
        if !access.concurrent {
            return 1;
        }
        in_flight = in_flight.max(access.in_flight);
        waits_for_requests |= access.waits_for_requests();
    }
    match in_flight {
        // Waiting for answers takes no core, so the number of requests counts and not that of bytes.
        Some(in_flight) if waits_for_requests => requested.unwrap_or(in_flight).max(1),
        Some(in_flight) => parallel::threads(bytes, Some(requested.unwrap_or(in_flight))),
        None => parallel::threads(bytes, requested),
    }
}

/// Scratch for one thread.
pub(super) fn scratch() -> Scratch {
    Scratch::new(allocate_aligned)
}

/// Allocates memory for a bounce buffer, like that of results: on huge pages, and recycled.
pub fn allocate_aligned(len: u64) -> Option<AlignedMemory> {
    HostBuffer::unfilled(len).ok().map(|memory| Box::new(memory) as AlignedMemory)
}

/// Whether a result of this size may start at the file's offset in a disk block, which wastes a part of a page.
pub fn is_worth_aligning(nbytes: u64) -> bool {
    nbytes >= ALIGNED_RESULT_MIN_BYTES
}

/// The best offset of this result's first byte from a block boundary: the file's offset, if the file is read with `O_DIRECT` and
/// its bytes are the result's, so that they are read straight into place; else 0.
pub fn destination_offset(payload: &Payload, layout: &Layout, how: &Fill) -> u64 {
    let src = how.cast.from().itemsize();
    let reads_directly = || read_mode(payload, layout, layout.numel().saturating_mul(src)).is_direct();
    if how.is_copy(payload) && layout.is_contiguous() && reads_directly() {
        payload.source.block_offset(layout.offset.saturating_mul(src), DIRECT_ALIGNMENT)
    } else {
        0
    }
}

/// Fails unless every element of the layout lies inside the payload and all elements, cast, take `nbytes` bytes together.
///
/// All code that cuts and reads relies on it: in a layout that passes, all numbers, and all sums and products of indices and
/// strides made of them, are at most the payload's or the destination's size. So nothing overflows, whether or not the depending
/// crate's profile enables overflow checks.
pub(super) fn check_bounds(payload: &Payload, layout: &Layout, cast: Cast, nbytes: usize) -> Result<()> {
    let size = layout::numel(&layout.shape).and_then(|numel| numel.checked_mul(cast.to().itemsize()));
    if size != Some(nbytes as u64) {
        bail!(Code::InternalError, "the destination's size is not the result's");
    }
    let end = layout.end().and_then(|end| end.checked_mul(cast.from().itemsize()));
    let inside = layout.shape.len() == layout.strides.len() && end <= Some(payload.source.len());
    if nbytes > 0 && (end.is_none() || !inside) {
        bail!(Code::InternalError, "an element lies outside the bytes of its storage");
    }
    Ok(())
}

/// The number of pieces, of at least `block` bytes: more than threads, so that these end soon after each other, if the layout is
/// contiguous; else one per thread, so that runs stay long.
pub(super) fn piece_count(layout: &Layout, bytes: u64, threads: u64, block: u64) -> u64 {
    if layout.is_contiguous() { (bytes / block).clamp(threads, threads * 16) } else { threads }
}

/// Reads a piece of some elements and writes it, converted, to its destination.
pub(super) fn fill_piece(
    elements: &Elements,
    piece: &Piece,
    reader: &Reader<'_>,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<()> {
    let Elements { payload, how, .. } = elements;
    let (src, dst) = (how.cast.from().itemsize(), how.cast.to().itemsize());
    let plain = how.is_copy(payload) && is_contiguous_piece(piece);
    // Memory that is written with non-temporal stores is resident, and direct reads fault in what they write to.
    let is_fresh = !how.cast.uses_non_temporal_stores() && is_contiguous_piece(piece) && !reader.is_direct();
    let block = reader.access().block;
    let block_max = if plain && !is_fresh { PLAIN_READ_MAX_BYTES.max(block) } else { block };
    let grid = BlockGrid::new(piece, src, block_max, reader.access().gap);
    // Blocks do not overlap. So if they have as many elements as the piece, every byte of it is written: the destination may be
    // memory of an earlier result.
    let mut written = 0_u64;
    for block in grid.iter() {
        how.cancel.check()?;
        written = written.saturating_add(block.numel());
        let start = usize::try_from(block.dst.saturating_mul(dst)).unwrap_or(usize::MAX);
        let part = out.get_mut(start..).unwrap_or_default();
        if plain && block.is_contiguous_copy() {
            let len = usize::try_from(block.run.saturating_mul(src)).unwrap_or(usize::MAX);
            let part =
                part.get_mut(..len).ok_or_else(|| Error::new(Code::InternalError, "a block is too large"))?;
            if is_fresh {
                sink::populate(part);
            }
            let offset = block.src.saturating_mul(src);
            match how.cast.uses_non_temporal_stores() && !reader.is_direct() {
                true => payload.source.read_at_non_temporal(offset, part)?,
                false => reader.read_at(offset, part, scratch)?,
            }
            continue;
        }
        let bytes = match block.reads.is_empty() {
            true => {
                let len = to_usize(block.run.saturating_mul(src));
                reader.read(block.src.saturating_mul(src), len, scratch)?
            }
            false => read_block(reader, &block, src, scratch)?,
        };
        // Bytes of gaps are changed too; they are not used.
        how.prepare_for_cast(payload, bytes)?;
        if is_fresh {
            let len = to_usize(block.numel().saturating_mul(dst)).min(part.len());
            sink::populate(&mut part[..len]);
        }
        kernel::gather(how.cast, bytes, part, &block.axes)?;
    }
    if written == piece.numel { Ok(()) } else { Err(incomplete_write()) }
}

pub(super) fn incomplete_write() -> Error {
    Error::new(Code::InternalError, "a part of the destination would not be written")
}

fn is_contiguous_piece(piece: &Piece) -> bool {
    piece.dims.iter().all(|dim| dim.src == dim.dst)
}

/// Faults in fresh memory, and checks for cancellation after each huge page.
pub(super) fn prefault(cancel: &Cancel, out: &mut [u8]) -> Result<()> {
    out.chunks_mut(HUGE_PAGE_BYTES).try_for_each(|page| {
        sink::populate(page);
        cancel.check()
    })
}

/// Reads a block's runs into the scratch, at the positions that its axes expect.
fn read_block<'s>(
    reader: &Reader<'_>,
    block: &Block,
    itemsize: u64,
    scratch: &'s mut Scratch,
) -> Result<&'s mut [u8]> {
    let size = |elements: u64| to_usize(elements.saturating_mul(itemsize));
    let count = block.reads.iter().map(|dim| dim.size).product();
    let runs = (0..count).map(|number: u64| {
        // The innermost dimension comes first in `reads`.
        let (mut rest, mut src, mut dst) = (number, block.src, 0);
        for dim in &block.reads {
            src += rest % dim.size * dim.src;
            dst += rest % dim.size * dim.dst;
            rest /= dim.size;
        }
        (src.saturating_mul(itemsize), size(dst)..size(dst.saturating_add(block.run)))
    });
    reader.read_runs(size(block.scratch), runs, scratch)
}

/// The bytes of an owned result of this layout and dtype; `None` if that does not fit 64 bits.
pub fn result_bytes(layout: &Layout, dtype: DType) -> Option<u64> {
    layout.numel().checked_mul(dtype.itemsize())
}
