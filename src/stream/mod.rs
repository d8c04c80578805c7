//! Fills destinations from sources: a tensor's layout becomes positional reads of bounded size, and each block is cast and written
//! to its destination at once. Many tensors become batches that are made ahead of their consumer, within a memory window.
#![forbid(unsafe_code)]

mod bands;
mod batch;
mod cut;
mod fill;
mod join;
mod plan;
mod queue;
mod read;
mod result;
#[cfg(feature = "cuda")]
pub mod upload;
mod write;

pub use batch::{Task, fill_all};
pub use cut::{ResultSlice, sample_slices, slices};
pub use fill::fill;
pub use join::{JoinPart, fill_joined};
pub use queue::{Queue, Taken};
pub use read::{
    Elements, Fill, Payload, Signs, allocate_aligned, destination_offset, is_worth_aligning, result_bytes,
};
pub use result::ResultData;
pub use write::{ByteTarget, WriteItem, write_all};
