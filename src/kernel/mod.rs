//! SIMD kernels over byte slices: dtype casts, strided copies, transposes, byte swaps and sign flips.
//!
//! A [`Cast`] is constructed once per tensor and holds the conversion between two dtypes. [`convert`] applies it to contiguous
//! elements, [`gather`] to elements with any strides, [`transpose`] and [`exchange`] to a matrix, of elements or of runs of them, whose
//! result is a [`Grid`]. None of them knows files or threads: the caller splits the work. Public functions check lengths and bounds
//! once; slices need no alignment.
//! [`Cast::new`] documents the conversion rules.
//!
//! `arch` selects the row kernel of a pair of dtypes and the transpose of panels, at the [`Level`] of the CPU. The generic level
//! is portable loops that LLVM vectorizes, and the oracle of the other levels. `unsafe` is limited to those, and to [`Grid`].

#![deny(unsafe_code)]

mod arch;
mod cast;
pub mod codes;
mod gather;
#[cfg(test)]
mod golden;
mod integers;
#[cfg(test)]
mod levels;
mod overflow;
pub mod scaling;
mod signs;
pub mod statistics;
mod strided;
#[cfg(test)]
mod tests;
mod transpose;

pub use arch::{Grid, Level};
pub use cast::{Cast, convert, is_lossy};
pub use gather::{Axis, gather};
pub use overflow::Overflow;
pub use signs::{conjugate, negate, swap_bytes, swap_bytes_with_level};
pub use transpose::{exchange, transpose};

use crate::error::{Code, Error};

/// The `InternalError` for a caller whose slices and sizes do not match.
fn internal_error(message: impl Into<String>) -> Error {
    Error::new(Code::InternalError, message)
}
