//! A checked conversion between two dtypes, and its use on contiguous elements.
//!
//! A conversion is a chain of one to three row kernels. Narrow floats (f16, bf16, fp8) are met through f32 only: they
//! decode to it exactly and encode from it, which is what torch does and keeps the number of kernels small. Chains run in
//! blocks that stay in the first-level cache.

use std::fmt;

use super::arch::{self, Level, Row};
use super::misuse;
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};

/// What f32 -> fp8 does with values too large for the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// NaN, or infinity where the format has one (e5m2): the OCP rule, as in ml_dtypes.
    #[default]
    Nan,
    /// The largest finite value with the same sign; infinities too. NaN stays NaN.
    Saturate,
}

/// Elements per block of a chain.
const BLOCK: usize = 256;
/// No chain has a wider element between two of its rows (f64, complex64).
const WIDEST_BETWEEN: usize = 8;

/// A row kernel and the size of the elements it writes.
#[derive(Clone, Copy)]
struct Step {
    row: Row,
    out: usize,
}

/// A conversion that exists, from one dtype to another.
#[derive(Clone, Copy)]
pub struct Cast {
    from: DType,
    to: DType,
    src_size: usize,
    dst_size: usize,
    first: Step,
    second: Option<Step>,
    third: Option<Step>,
    level: Level,
    streams: bool,
}

impl Cast {
    /// The conversion between two dtypes; `DtypeUnsupported` where there is none (a packed dtype and any other).
    ///
    /// The result is torch 2.13's `.to()` to the bit, NaN payloads aside, with two exceptions: float to int saturates and
    /// takes NaN to 0, and too large values become what `overflow` says when the target is an fp8.
    /// - Ints wrap. Ints and f64 reach a narrow float by way of f32, so they may round twice.
    /// - Anything to bool is `x != 0`, so NaN is true; a complex number is true if either half is. A bool byte other than 0
    ///   counts as 1, also from bool to bool.
    /// - Real to complex has 0 as its imaginary half; complex to real takes the real half.
    /// - e8m0 has neither sign nor zero: the sign is dropped, 0 becomes the smallest power of two, infinity is an overflow.
    pub fn new(from: DType, to: DType, overflow: Overflow) -> Result<Cast> {
        Cast::at(Level::used(), from, to, overflow)
    }

    /// As [`Cast::new`], with the instructions of a level. They make no difference to the result.
    pub fn at(level: Level, from: DType, to: DType, overflow: Overflow) -> Result<Cast> {
        let unsupported =
            || Error::new(Code::DtypeUnsupported, format!("there is no conversion from {from} to {to}"));
        let mut path = Path { level, steps: [None; 3] };
        path.cast(from, to, overflow).ok_or_else(unsupported)?;
        let [Some(first), second, third] = path.steps else { return Err(unsupported()) };
        Ok(Cast {
            from,
            to,
            src_size: size(from),
            dst_size: size(to),
            first,
            second,
            third,
            level,
            streams: false,
        })
    }

    /// The same conversion, for a destination that [`gather`](super::gather) should write past the caches where it is large,
    /// transposed and aligned to cache lines, and the level can.
    ///
    /// For memory that has been in use before and will not be read at once. Memory that is touched for the first time is
    /// better written by way of the caches, as is the default. It makes no difference to the result.
    #[must_use]
    pub fn past_caches(self) -> Cast {
        Cast { streams: true, ..self }
    }

    /// Whether it is for memory that has been in use before.
    pub fn is_past_caches(self) -> bool {
        self.streams
    }

    /// The dtype of the source.
    pub fn from(self) -> DType {
        self.from
    }

    /// The dtype of the result.
    pub fn to(self) -> DType {
        self.to
    }

    /// Whether the dtypes are equal and the bytes go over as they are; never for bool, which is normalised.
    pub fn is_identity(self) -> bool {
        self.from == self.to && self.from != DType::Bool
    }

    /// The level that its kernels are of.
    pub(super) fn level(self) -> Level {
        self.level
    }

    /// Whether large transposes are written past the caches.
    pub(super) fn streams(self) -> bool {
        self.streams
    }

    /// Bytes of one source element.
    pub(super) fn src_size(self) -> usize {
        self.src_size
    }

    /// Bytes of one destination element.
    pub(super) fn dst_size(self) -> usize {
        self.dst_size
    }

    /// Converts whole elements; the slices hold equally many.
    pub(super) fn run(self, src: &[u8], dst: &mut [u8]) {
        match (self.second, self.third) {
            (None, _) => (self.first.row)(src, dst),
            (Some(second), None) => self.run_two(second, src, dst),
            (Some(second), Some(third)) => self.run_three(second, third, src, dst),
        }
    }

    fn run_two(self, second: Step, src: &[u8], dst: &mut [u8]) {
        let mut between = [0; BLOCK * WIDEST_BETWEEN];
        for (src, dst) in src.chunks(BLOCK * self.src_size).zip(dst.chunks_mut(BLOCK * second.out)) {
            let between = &mut between[..src.len() / self.src_size * self.first.out];
            (self.first.row)(src, between);
            (second.row)(between, dst);
        }
    }

    fn run_three(self, second: Step, third: Step, src: &[u8], dst: &mut [u8]) {
        let mut between = [[0; BLOCK * WIDEST_BETWEEN]; 2];
        for (src, dst) in src.chunks(BLOCK * self.src_size).zip(dst.chunks_mut(BLOCK * third.out)) {
            let count = src.len() / self.src_size;
            let [one, two] = &mut between;
            let (one, two) = (&mut one[..count * self.first.out], &mut two[..count * second.out]);
            (self.first.row)(src, one);
            (second.row)(one, two);
            (third.row)(two, dst);
        }
    }
}

impl fmt::Debug for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cast({} -> {})", self.from, self.to)
    }
}

/// Whether a cast would go down in the kind of number: complex to real, float to int, anything to bool.
pub fn is_lossy(from: DType, to: DType) -> bool {
    to.kind() < from.kind()
}

/// Converts contiguous elements; the slices must hold whole elements, equally many.
pub fn convert(cast: Cast, src: &[u8], dst: &mut [u8]) -> Result<()> {
    let whole = src.len().is_multiple_of(cast.src_size) && dst.len().is_multiple_of(cast.dst_size);
    if !whole || src.len() / cast.src_size != dst.len() / cast.dst_size {
        return Err(misuse(format!("{cast:?} of {} bytes into {} bytes", src.len(), dst.len())));
    }
    cast.run(src, dst);
    Ok(())
}

/// The steps of a conversion as they are found; `None` from a method means that there is no conversion.
struct Path {
    level: Level,
    steps: [Option<Step>; 3],
}

impl Path {
    fn cast(&mut self, from: DType, to: DType, overflow: Overflow) -> Option<()> {
        if from == to && from != DType::Bool {
            return self.push(arch::COPY, size(to));
        }
        match (from.real_part(), to.real_part()) {
            (None, None) => self.real(from, to, 1, overflow),
            // A complex number is two reals, so the rows of its halves do, over twice as many.
            (Some(from), Some(to)) => self.real(from, to, 2, overflow),
            (Some(from), None) if to == DType::Bool => {
                self.real(from, to, 2, overflow)?;
                self.push(self.level.either(), 1)
            }
            (Some(from), None) => {
                self.push(self.level.real_halves(from)?, size(from))?;
                self.real(from, to, 1, overflow)
            }
            (None, Some(half)) => {
                self.real(from, half, 1, overflow)?;
                self.push(self.level.with_zero_halves(half)?, size(to))
            }
        }
    }

    /// Between reals; `count` of them make an element.
    fn real(&mut self, from: DType, to: DType, count: usize, overflow: Overflow) -> Option<()> {
        if from == to && from != DType::Bool {
            return Some(());
        }
        if from.kind() == Kind::Packed || to.kind() == Kind::Packed {
            return None;
        }
        if let Some(row) = self.level.row(from, to, overflow) {
            return self.push(row, count * size(to));
        }
        self.push(self.level.row(from, DType::F32, overflow)?, count * size(DType::F32))?;
        self.push(self.level.row(DType::F32, to, overflow)?, count * size(to))
    }

    fn push(&mut self, row: Row, out: usize) -> Option<()> {
        let free = self.steps.iter_mut().find(|step| step.is_none())?;
        *free = Some(Step { row, out });
        Some(())
    }
}

/// Bytes of one element; 16 at most.
pub(super) fn size(dtype: DType) -> usize {
    usize::try_from(dtype.itemsize()).unwrap_or(usize::MAX)
}
