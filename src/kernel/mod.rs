//! Bytes in, bytes out: casts, strided copies, byte swaps and sign flips over elements that are only bytes and a dtype.
//!
//! A [`Cast`] is made once per tensor and says everything about a pair of dtypes; [`convert`] applies it to contiguous
//! elements, [`gather`] to elements that lie anywhere, [`transpose`] to a matrix whose result lies in a [`Grid`]. Neither knows files or threads: the caller splits the work. Lengths and
//! bounds are checked once at the door; no slice needs an alignment. What a cast means is written at [`Cast::new`].
//!
//! `arch` picks the row kernel of a pair of dtypes and the transpose of tiles, at the [`Level`] of the machine. The generic level
//! is plain loops that LLVM vectorises and the oracle of the others. `unsafe` is left to the levels above it, and to [`Grid`].

#![deny(unsafe_code)]

mod arch;
mod cast;
mod gather;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod levels;
mod signs;
mod strided;
#[cfg(test)]
mod tests;
mod transpose;

pub use arch::{Grid, Level};
pub use cast::{Cast, Overflow, convert, is_lossy};
pub use gather::{Axis, gather};
pub use signs::{conjugate, negate, swap_bytes, swap_bytes_at};
pub use transpose::transpose;

use crate::error::{Code, Error};

/// The error of a caller that gave slices and sizes that do not belong together.
fn misuse(message: impl Into<String>) -> Error {
    Error::new(Code::InternalError, message)
}
