//! The restricted unpickler: turns a pickle into a tree of values and never calls anything.
//!
//! Every REDUCE, NEWOBJ, BUILD and the like is recorded as data ([`Call`]); the `index` module decides what it means. This
//! module knows neither torch nor zip. It refuses what CPython's two unpicklers read differently, out-of-band buffers, the
//! extension registry, and whatever exceeds [`Limits`]. Follows PEP 307, 3154, 574 and CPython's `pickletools`.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod arena;
mod bounded_vec;
mod compat;
mod disasm;
mod first_equal;
mod globals;
mod history;
mod ids;
mod keys;
mod machine;
mod memo;
mod opcode;
mod text;
mod value;

use crate::bytes::Chunk;
use crate::error::Result;
use crate::limits::Limits;
use crate::parallel::Cancel;

pub use disasm::{Arg, Disasm, Op};
pub use history::Build;
pub use ids::{CallId, CallKind, GlobalId, Handle, Snapshot};
#[cfg(feature = "scan")]
pub use machine::recover::{RUN_TIME_MODULE, RecoveredPickle};
pub use opcode::{ArgKind, Opcode};
pub use value::{BigInt, Call, Global, Text, Value, Values};

/// What one pickle describes.
#[derive(Debug)]
pub struct Pickle {
    /// The values, by handle.
    pub values: Values,
    /// The value that STOP returns.
    pub root: Handle,
    /// The offset one past STOP.
    pub end: usize,
    /// The protocol that PROTO states; 0 without PROTO.
    pub protocol: u8,
    /// The protocol of its newest opcode, where that is 2 or later; else 0.
    pub newest_protocol: u8,
}

/// Runs the pickle at the start of `data`, up to STOP. Bytes after STOP are not read.
pub fn run(data: impl Into<Chunk>, limits: &Limits) -> Result<Pickle> {
    run_cancellable(data, limits, &Cancel::new())
}

/// As [`run`]; fails with `Cancelled` once `cancel` is cancelled.
pub fn run_cancellable(data: impl Into<Chunk>, limits: &Limits, cancel: &Cancel) -> Result<Pickle> {
    machine::run(data.into(), false, limits, cancel)
}

/// As [`run_cancellable`], for a pickle that may have PERSID, a persistent id as text: torch 0.1 wrote it in protocol 0.
pub fn run_accepting_persid(data: impl Into<Chunk>, limits: &Limits, cancel: &Cancel) -> Result<Pickle> {
    machine::run(data.into(), true, limits, cancel)
}

/// Runs the pickle at the start of `data` in error-recovering mode: where the strict machine errors, records a defect
/// and continues as the most permissive unpickler would.
///
/// For scanning hostile files: the values must not be loaded. Fails where `data` is larger than `pickle_bytes`, where memory
/// runs out, and with `Cancelled` once `cancel` is cancelled.
#[cfg(feature = "scan")]
pub fn run_recovering(data: impl Into<Chunk>, limits: &Limits, cancel: &Cancel) -> Result<RecoveredPickle> {
    machine::recover::run(data.into(), limits, cancel)
}
