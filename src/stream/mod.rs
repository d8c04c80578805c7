//! Which bytes when: a tensor's layout becomes positional reads of bounded size, each cast and put in place at once; many
//! tensors become batches that are made ahead of whoever takes them, inside a window of memory.
#![forbid(unsafe_code)]

mod bands;
mod batch;
mod join;
mod plan;
mod queue;
mod read;
pub mod upload;

pub use batch::{Task, fill_all};
pub use join::fill_joined;
pub use queue::{Queue, Taken};
pub use read::{
    Fill, Payload, SCRATCH, Signs, blocks, disk_threads, fill, is_worth_shifting, phase, result_bytes,
};
