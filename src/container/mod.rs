//! Container formats: zip archives, safetensors files, NumPy arrays and directories of shards, as named byte ranges.
//!
//! This module turns a [`Source`](crate::bytes::Source) into names and regions. It knows neither pickle nor torch: the `index`
//! module interprets the members. Every reader here accepts only what all readers of the format interpret alike.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

pub(crate) mod ahead;
pub mod compressed;
mod inflate;
mod json;
pub mod npy;
pub mod payload_config;
pub mod safetensors;
pub mod shards;
mod sniff;
pub mod tar;
pub mod zip;

pub use compressed::compressed_format;
pub use sniff::{Format, LFS_POINTER, is_container, metadata_bytes, sniff};
