//! The core's tests that share a process. What needs a process of its own is a binary of its own, in Cargo.toml:
//! `memory`, `panics` and `pickle_bombs` change or measure something that the whole process has.

mod bomb_drops;
mod checkpoint;
mod container_real;
mod cuda;
mod layers;
mod materialize;
mod pickle;
mod pickle_attacks;
mod stream;
mod support;
mod torch_attacks;
mod torch_index;
