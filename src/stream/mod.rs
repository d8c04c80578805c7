//! Which bytes when: a tensor's layout becomes positional reads of bounded size, each cast and put in place at once.
#![forbid(unsafe_code)]

mod plan;
mod read;

pub use read::{Fill, Payload, Signs, fill, result_bytes};
