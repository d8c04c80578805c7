//! The restricted unpickler: a pickle becomes a tree of values, and nothing is ever called.
//!
//! Every REDUCE, NEWOBJ, BUILD and the like is recorded as data ([`Call`]); what it means is for a later layer to say. The
//! room knows no torch and no zip. It refuses what CPython's two unpicklers read differently, out-of-band buffers and the
//! extension registry, and whatever exceeds [`Limits`]. Follows PEP 307, 3154, 574 and CPython's `pickletools`.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod arena;
mod disasm;
mod globals;
mod keys;
mod machine;
mod memo;
mod names;
mod nodes;
mod opcode;
mod pool;
mod spare;
mod text;
mod value;

use crate::bytes::Chunk;
use crate::error::Result;
use crate::limits::Limits;
use crate::parallel::Cancel;

pub use disasm::{Arg, Disasm, Op, Pause};
pub use machine::survey::{RUN_TIME, Survey};
pub use opcode::{ArgKind, Opcode};
pub use value::{BigInt, Call, CallId, CallKind, Global, GlobalId, Handle, Text, Value, Values};

/// What one pickle describes.
#[derive(Debug)]
pub struct Pickle {
    /// The values, by handle.
    pub values: Values,
    /// The value that STOP left.
    pub root: Handle,
    /// The offset one past STOP.
    pub end: usize,
    /// The protocol that PROTO states; 0 without PROTO.
    pub protocol: u8,
    /// The protocol of the newest opcode in it, where that is 2 or later.
    pub needed: u8,
}

/// Runs the pickle that begins at `start` of `data`, up to STOP; what follows is left alone.
pub fn run(data: impl Into<Chunk>, start: usize, limits: &Limits) -> Result<Pickle> {
    run_until(data, start, limits, &Cancel::new())
}

/// As [`run`], until it is asked to stop.
pub fn run_until(data: impl Into<Chunk>, start: usize, limits: &Limits, cancel: &Cancel) -> Result<Pickle> {
    machine::run(data.into(), start, limits, cancel)
}

/// Runs the pickle that begins at `start` of `data` as far as any reader would go, and lists what a strict one refuses.
///
/// For looking at hostile files: its values are not to be loaded. Fails where `data` is larger than `pickle_bytes`, where
/// memory is short, and on a request to stop.
pub fn survey(data: impl Into<Chunk>, start: usize, limits: &Limits, cancel: &Cancel) -> Result<Survey> {
    machine::survey::run(data.into(), start, limits, cancel)
}

/// A 32-bit index as a position in memory.
#[inline]
fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A position that is known to fit 32 bits: pickles of 4 GiB or more are refused, and pools are shorter.
#[inline]
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

#[inline]
fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
