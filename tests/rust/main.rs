//! The tests of the core that share a process. `memory`, `panics` and `pickle_bombs` are separate binaries (see Cargo.toml), because
//! they change or measure state of the whole process.

mod bomb_drops;
mod checkpoint;
mod circles;
mod container_real;
mod cuda;
mod layers;
mod materialize;
mod pickle;
mod sources;
mod stream;
mod support;
