//! A checked conversion between two dtypes, and its use on contiguous elements.
//!
//! A conversion is a chain of one to three row kernels. Narrow floats (f16, bf16, fp8) convert through f32: they widen to it
//! exactly and narrow from it, as torch does, which keeps the number of kernels small. A chain runs in blocks whose
//! intermediate results stay in the L1 cache.

use std::fmt;

use super::arch::{self, Level, RowKernel};
use super::{Overflow, internal_error};
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};
use crate::num::to_usize;

/// Elements per block of a chain.
const BLOCK_ELEMENTS: usize = 256;
/// The widest intermediate element of a chain, in bytes (f64, complex64).
const INTERMEDIATE_MAX_BYTES: usize = 8;

/// A row kernel of a chain.
#[derive(Clone, Copy)]
struct Step {
    kernel: RowKernel,
    /// Bytes of an element that it writes.
    out_size: usize,
}

/// A supported conversion from one dtype to another.
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
    non_temporal: bool,
}

impl Cast {
    /// The conversion between two dtypes. Fails with `DtypeUnsupported` between a packed dtype and any other.
    ///
    /// The result equals torch 2.13's `.to()` bit for bit, except for NaN payloads and two cases: float to int saturates and
    /// converts NaN to 0, and `overflow` decides about values out of range of an fp8.
    /// - Narrowing ints wrap. Ints and f64 convert to a narrow float through f32, so they may round twice.
    /// - Anything to bool is `x != 0`, so NaN is true; a complex number is true if either part is. A bool byte other than 0
    ///   counts as 1, also from bool to bool.
    /// - Real to complex sets the imaginary part to 0; complex to real takes the real part.
    /// - e8m0 has neither sign nor zero: the sign is dropped, 0 becomes the smallest power of two, infinity is out of range.
    pub fn new(from: DType, to: DType, overflow: Overflow) -> Result<Cast> {
        Cast::with_level(Level::used(), from, to, overflow)
    }

    /// As [`Cast::new`], at a given SIMD level, for tests and benches. The level does not change the result.
    pub fn with_level(level: Level, from: DType, to: DType, overflow: Overflow) -> Result<Cast> {
        let unsupported =
            || Error::new(Code::DtypeUnsupported, format!("there is no conversion from {from} to {to}"));
        let mut chain = Chain { level, steps: [None; 3] };
        chain.cast(from, to, overflow).ok_or_else(unsupported)?;
        let [Some(first), second, third] = chain.steps else { return Err(unsupported()) };
        Ok(Cast {
            from,
            to,
            src_size: size(from),
            dst_size: size(to),
            first,
            second,
            third,
            level,
            non_temporal: false,
        })
    }

    /// The same conversion with non-temporal stores, which [`gather`](super::gather) and [`transpose`](super::transpose) use for
    /// large transposes into destinations aligned to cache lines, at levels that have them.
    ///
    /// For resident memory (it has been in use before) that is not read right after. Ordinary stores, the default, are better for
    /// memory that is touched for the first time. The choice does not change the result.
    #[must_use]
    pub fn with_non_temporal_stores(self) -> Cast {
        Cast { non_temporal: true, ..self }
    }

    /// Whether large transposes, and copies of rows to large destinations, use non-temporal stores.
    pub fn uses_non_temporal_stores(self) -> bool {
        self.non_temporal
    }

    /// The dtype of the source.
    pub fn from(self) -> DType {
        self.from
    }

    /// The dtype of the result.
    pub fn to(self) -> DType {
        self.to
    }

    /// Whether the dtypes are equal and bytes are copied unchanged; false for bool, which is normalized.
    pub fn is_identity(self) -> bool {
        self.from == self.to && self.from != DType::Bool
    }

    /// The SIMD level of its kernels.
    pub(super) fn level(self) -> Level {
        self.level
    }

    /// Bytes of one source element.
    pub(super) fn src_size(self) -> usize {
        self.src_size
    }

    /// Bytes of one destination element.
    pub(super) fn dst_size(self) -> usize {
        self.dst_size
    }

    /// Converts contiguous elements; the slices hold equally many.
    pub(super) fn run(self, src: &[u8], dst: &mut [u8]) {
        match (self.second, self.third) {
            (None, _) => (self.first.kernel)(src, dst),
            (Some(second), None) => self.run_two(second, src, dst),
            (Some(second), Some(third)) => self.run_three(second, third, src, dst),
        }
    }

    fn run_two(self, second: Step, src: &[u8], dst: &mut [u8]) {
        let mut intermediate = [0; BLOCK_ELEMENTS * INTERMEDIATE_MAX_BYTES];
        for (src, dst) in
            src.chunks(BLOCK_ELEMENTS * self.src_size).zip(dst.chunks_mut(BLOCK_ELEMENTS * second.out_size))
        {
            let intermediate = &mut intermediate[..src.len() / self.src_size * self.first.out_size];
            (self.first.kernel)(src, intermediate);
            (second.kernel)(intermediate, dst);
        }
    }

    fn run_three(self, second: Step, third: Step, src: &[u8], dst: &mut [u8]) {
        let mut intermediate = [[0; BLOCK_ELEMENTS * INTERMEDIATE_MAX_BYTES]; 2];
        for (src, dst) in
            src.chunks(BLOCK_ELEMENTS * self.src_size).zip(dst.chunks_mut(BLOCK_ELEMENTS * third.out_size))
        {
            let count = src.len() / self.src_size;
            let [first_out, second_out] = &mut intermediate;
            let (first_out, second_out) =
                (&mut first_out[..count * self.first.out_size], &mut second_out[..count * second.out_size]);
            (self.first.kernel)(src, first_out);
            (second.kernel)(first_out, second_out);
            (third.kernel)(second_out, dst);
        }
    }
}

impl fmt::Debug for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cast({} -> {})", self.from, self.to)
    }
}

/// Whether a cast goes to a lower kind of number: complex to real, float to int, anything to bool.
pub fn is_lossy(from: DType, to: DType) -> bool {
    to.kind() < from.kind()
}

/// Converts contiguous elements. Fails with `InternalError` unless the slices hold whole elements, equally many.
pub fn convert(cast: Cast, src: &[u8], dst: &mut [u8]) -> Result<()> {
    let are_whole_elements =
        src.len().is_multiple_of(cast.src_size) && dst.len().is_multiple_of(cast.dst_size);
    if !are_whole_elements || src.len() / cast.src_size != dst.len() / cast.dst_size {
        return Err(internal_error(format!("{cast:?} of {} bytes into {} bytes", src.len(), dst.len())));
    }
    cast.run(src, dst);
    Ok(())
}

/// Builds the chain of a conversion; a method returns `None` where there is no conversion.
struct Chain {
    level: Level,
    steps: [Option<Step>; 3],
}

impl Chain {
    fn cast(&mut self, from: DType, to: DType, overflow: Overflow) -> Option<()> {
        if from == to && from != DType::Bool {
            return self.push(arch::COPY, size(to));
        }
        match (from.real_part(), to.real_part()) {
            (None, None) => self.real(from, to, 1, overflow),
            // A complex number is two reals: the row kernels of its parts apply, with twice as many elements.
            (Some(from), Some(to)) => self.real(from, to, 2, overflow),
            (Some(from), None) if to == DType::Bool => {
                self.real(from, to, 2, overflow)?;
                self.push(self.level.or_pairs(), 1)
            }
            (Some(from), None) => {
                self.push(self.level.real_parts(from)?, size(from))?;
                self.real(from, to, 1, overflow)
            }
            (None, Some(part)) => {
                self.real(from, part, 1, overflow)?;
                self.push(self.level.with_zero_imaginary(part)?, size(to))
            }
        }
    }

    /// Appends the conversion between reals, of which `count` make an element.
    fn real(&mut self, from: DType, to: DType, count: usize, overflow: Overflow) -> Option<()> {
        if from == to && from != DType::Bool {
            return Some(());
        }
        if from.kind() == Kind::Packed || to.kind() == Kind::Packed {
            return None;
        }
        if let Some(kernel) = self.level.row_kernel(from, to, overflow) {
            return self.push(kernel, count * size(to));
        }
        self.push(self.level.row_kernel(from, DType::F32, overflow)?, count * size(DType::F32))?;
        self.push(self.level.row_kernel(DType::F32, to, overflow)?, count * size(to))
    }

    fn push(&mut self, kernel: RowKernel, out_size: usize) -> Option<()> {
        let free = self.steps.iter_mut().find(|step| step.is_none())?;
        *free = Some(Step { kernel, out_size });
        Some(())
    }
}

/// Bytes of one element; 16 at most.
pub(super) fn size(dtype: DType) -> usize {
    to_usize(dtype.itemsize())
}
