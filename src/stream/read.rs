//! Runs a plan: positional reads on scoped threads, each block swapped, cast and put in place while it is in the cache.

use super::batch::{Task, fill_all};
use super::plan::{Block, Blocks, Piece};
use crate::bytes::{AlignedMemory, Reader, Scratch, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::kernel::{self, Cast};
use crate::layout::{self, Layout};
use crate::parallel::{self, Cancel};
use crate::sink::HostBuffer;

/// Bytes of one thread's scratch: a good part of a core's L2 cache.
pub const SCRATCH: u64 = 1 << 20;

/// Bytes from which on a result is put where it can be read straight into place.
const SHIFTED: u64 = 8 << 20;

/// A huge page.
pub(super) const HUGE: usize = 2 << 20;

/// Bytes of one read that needs no scratch; bounded so that a request to stop is seen soon.
const DIRECT: u64 = 8 << 20;

/// Bytes of one block that is read around the page cache: the disk is slower than the second-level cache is missed.
const AROUND: u64 = Reader::DIRECT_READ_MAX_BYTES;

/// Bytes from which on each thread reads by a description of its own.
const FORWARD: u64 = 16 << 20;

/// Threads that keep a disk busy, however few cores there are.
const DISK_THREADS: usize = 4;

/// Bytes below which a piece is not worth being cut off.
pub(super) const PIECE: u64 = 4 << 20;

/// The bytes of one storage.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The window of the storage's bytes.
    pub source: Source,
    /// Whether numbers lie big-endian.
    pub big_endian: bool,
}

/// The sign changes that a file may ask for, as torch's lazy conjugates and negatives do. They come before the cast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Whether imaginary halves change their sign.
    pub conjugate: bool,
    /// Whether every number does.
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
    /// The sign changes before the cast.
    pub signs: Signs,
    /// The conversion on the way.
    pub cast: Cast,
    /// Threads to use; `None` for one per core where the work is worth it.
    pub threads: Option<usize>,
    /// The request to stop.
    pub cancel: Cancel,
}

impl Fill {
    /// Whether the destination's elements are the file's bytes.
    fn is_copy(&self, payload: &Payload) -> bool {
        self.cast.is_identity() && self.signs.is_none() && !self.swaps(payload)
    }

    fn swaps(&self, payload: &Payload) -> bool {
        payload.big_endian && self.cast.from().swap_unit() > 1
    }

    /// Makes of bytes as they were read what the cast takes: in this machine's order, with the signs changed.
    pub(super) fn prepare(&self, payload: &Payload, bytes: &mut [u8]) -> Result<()> {
        if self.swaps(payload) {
            kernel::swap_bytes(to_usize(self.cast.from().swap_unit()), bytes);
        }
        self.signs.apply(self.cast.from(), bytes)
    }
}

/// How a tensor's bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Through the page cache.
    Cached,
    /// Through the page cache, each thread for itself, as it reads much.
    Forward,
    /// Around the page cache.
    Around,
}

impl Manner {
    /// The manner for `bytes` of work. Strided layouts are read in short runs, which the page cache puts together.
    pub(super) fn of(payload: &Payload, layout: &Layout, bytes: u64) -> Manner {
        if bytes >= AROUND && layout.is_contiguous() && payload.source.direct().is_some() {
            Manner::Around
        } else if bytes >= FORWARD {
            Manner::Forward
        } else {
            Manner::Cached
        }
    }

    pub(super) fn is_around(self) -> bool {
        self == Manner::Around
    }

    pub(super) fn reader(self, source: &Source) -> Reader<'_> {
        match self {
            Manner::Cached => Reader::new(source),
            Manner::Forward => Reader::sequential(source),
            Manner::Around => Reader::direct(source),
        }
    }
}

/// Threads for reads around the page cache: what was asked for, else enough for the disk and the cores.
pub fn disk_threads(wanted: Option<usize>) -> usize {
    wanted.unwrap_or_else(|| DISK_THREADS.max(parallel::cores()))
}

/// A thread's scratch.
pub(super) fn scratch() -> Scratch {
    Scratch::new(blocks)
}

/// Memory for reads around the page cache, as for results: on huge pages, and recycled.
pub fn blocks(len: u64) -> Option<AlignedMemory> {
    HostBuffer::unfilled(len).ok().map(|memory| Box::new(memory) as AlignedMemory)
}

/// Whether a result of this size may be put where its bytes can be read straight into place: a part of a page is lost to that.
pub fn is_worth_shifting(nbytes: u64) -> bool {
    nbytes >= SHIFTED
}

/// Where in a block of the disk the first byte of this result is best put: where the file has it, if the file is read around
/// the page cache and its bytes are the result's; else 0.
pub fn phase(payload: &Payload, layout: &Layout, how: &Fill) -> u64 {
    let src = how.cast.from().itemsize();
    let is_around = || Manner::of(payload, layout, layout.numel().saturating_mul(src)).is_around();
    if how.is_copy(payload) && layout.is_contiguous() && is_around() {
        payload.source.block_offset(layout.offset.saturating_mul(src))
    } else {
        0
    }
}

/// Fails unless every element of the layout lies inside the payload and all together, cast, take `nbytes` bytes.
///
/// All that cuts and reads relies on it: numbers of a layout that passes, and the sums and products of indices and strides that
/// are made of them, are at most the payload's or the destination's size. So nothing overflows, whether or not the crate that this
/// one is compiled for checks for it.
pub(super) fn check_bounds(payload: &Payload, layout: &Layout, cast: Cast, nbytes: usize) -> Result<()> {
    let size = layout::numel(&layout.shape).and_then(|numel| numel.checked_mul(cast.to().itemsize()));
    if size != Some(nbytes as u64) {
        return Err(Error::new(Code::InternalError, "the destination's size is not the result's"));
    }
    let end = layout.end().and_then(|end| end.checked_mul(cast.from().itemsize()));
    let inside = layout.shape.len() == layout.strides.len() && end <= Some(payload.source.len());
    if nbytes > 0 && (end.is_none() || !inside) {
        return Err(Error::new(Code::InternalError, "an element lies outside the bytes of its storage"));
    }
    Ok(())
}

/// Reads the elements of `layout` (in units of the cast's source dtype) into `out`, C-contiguous, cast on the way.
///
/// Fails where an element lies outside the payload, or `out` has more or fewer bytes than the result.
pub fn fill(payload: &Payload, layout: &Layout, how: &Fill, out: &mut [u8]) -> Result<()> {
    check_bounds(payload, layout, how.cast, out.len())?;
    let src = how.cast.from().itemsize();
    let bytes = layout.numel().saturating_mul(src);
    let plain = bytes == out.len() as u64 && how.is_copy(payload) && layout.is_contiguous();
    let cached = !Manner::of(payload, layout, bytes).is_around();
    if plain && cached && bytes <= DIRECT && parallel::threads(bytes, how.threads) == 1 {
        // Most tensors of most files: one read, nothing to plan.
        how.cancel.check()?;
        if !out.is_empty() {
            payload.source.read_at(layout.offset.saturating_mul(src), out)?;
        }
        return payload.source.check_unchanged();
    }
    let task = Task { payload: payload.clone(), layout: layout.clone(), how: how.clone(), out };
    fill_all(vec![task], how.threads).map_err(|(_, error)| error)
}

/// One piece per thread where the source's order differs (its runs stay long), more for balance where it does not.
pub(super) fn piece_count(layout: &Layout, bytes: u64, threads: u64) -> u64 {
    if layout.is_contiguous() { (bytes / PIECE).clamp(threads, threads * 16) } else { threads }
}

pub(super) fn fill_piece(
    payload: &Payload,
    piece: &Piece,
    how: &Fill,
    reader: &Reader<'_>,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<()> {
    let (src, dst) = (how.cast.from().itemsize(), how.cast.to().itemsize());
    let plain = how.is_copy(payload) && is_plain(piece);
    let blocks = Blocks::new(
        piece,
        src,
        if plain {
            DIRECT
        } else if reader.is_direct() {
            AROUND
        } else {
            SCRATCH
        },
    );
    // Blocks do not overlap, so where they have as many elements as the piece, no byte of it stays as it was: the
    // destination may be memory of an earlier result.
    let mut written = 0_u64;
    for block in blocks.iter() {
        how.cancel.check()?;
        written = written.saturating_add(block.numel());
        let start = usize::try_from(block.dst.saturating_mul(dst)).unwrap_or(usize::MAX);
        let part = out.get_mut(start..).unwrap_or_default();
        if plain && block.is_plain() {
            let len = usize::try_from(block.run.saturating_mul(src)).unwrap_or(usize::MAX);
            let part =
                part.get_mut(..len).ok_or_else(|| Error::new(Code::InternalError, "a block is too large"))?;
            reader.read_at(block.src.saturating_mul(src), part, scratch)?;
            continue;
        }
        let bytes = match block.reads.is_empty() {
            true => {
                let len = to_usize(block.run.saturating_mul(src));
                reader.read(block.src.saturating_mul(src), len, scratch)?
            }
            false => read_block(reader, &block, src, scratch)?,
        };
        // Gaps that were read along change as well; nobody looks at them.
        how.prepare(payload, bytes)?;
        kernel::gather(how.cast, bytes, part, &block.axes)?;
    }
    if written == piece.numel { Ok(()) } else { Err(gap()) }
}

pub(super) fn gap() -> Error {
    Error::new(Code::InternalError, "a part of the destination would not be written")
}

fn is_plain(piece: &Piece) -> bool {
    piece.dims.iter().all(|dim| dim.src == dim.dst)
}

/// Whether rows of the destination are columns of the source.
fn is_transposing(piece: &Piece) -> bool {
    piece.dims.last().is_some_and(|last| piece.dims.iter().any(|dim| dim.src < last.src))
}

/// Whether memory for a piece is to be touched first: the first block of a transpose writes to every page, and a request to stop
/// would wait for all of them to be made.
pub(super) fn wants_touch(piece: &Piece, how: &Fill) -> bool {
    is_transposing(piece) && !how.cast.uses_non_temporal_stores()
}

/// Has the system make fresh memory now, a huge page at a time. What was in it is lost.
pub(super) fn touch(cancel: &Cancel, out: &mut [u8]) -> Result<()> {
    for page in out.chunks_mut(HUGE) {
        cancel.check()?;
        if let Some(first) = page.first_mut() {
            *first = 0;
        }
    }
    Ok(())
}

/// Reads a block's runs into the scratch, at the places that its axes expect.
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

/// A number that is bounded by the scratch or the destination, both of which are in memory.
pub(super) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// What an owned result of this layout and dtype costs in bytes, or `None` where that does not fit 64 bits.
pub fn result_bytes(layout: &Layout, dtype: DType) -> Option<u64> {
    layout.numel().checked_mul(dtype.itemsize())
}
