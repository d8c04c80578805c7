//! rustload opens PyTorch and safetensors checkpoints safely, lazily and fast.
//!
//! A restricted unpickler recovers where each tensor's bytes lie and never calls anything that a file names. Opening reads
//! metadata only; a tensor's bytes are read when it is materialized, with the cast and the transpose done on the way.
//! `ARCHITECTURE.md` describes the layers; imports go down only, and a test holds them to it.

pub mod bytes;
pub mod dtype;
pub mod error;
pub mod layout;
pub mod limits;
pub mod parallel;
pub mod pickle;
