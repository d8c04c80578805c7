//! Which named byte ranges does this file hold? Zip archives, safetensors files, and directories of shards.
//!
//! This room turns a [`Source`](crate::bytes::Source) into names and regions. It knows no pickle and no torch: what a
//! member means is the index's business. Every reader here takes only what all readers of the format agree on.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod json;
pub mod safetensors;
pub mod shards;
mod sniff;
pub mod zip;

pub use sniff::{Format, is_container, metadata_bytes, packed, sniff};

/// A length in memory, as the 64 bits that files count in.
fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
