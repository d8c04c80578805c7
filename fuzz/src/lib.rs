//! Fuzz targets: plain functions over bytes, each with its own seeds and structure-aware mutator.
//!
//! A [`Target`] panics where the library violates an invariant: it panics itself, reads outside its file, or contradicts a
//! second reader. `make test` runs every target over its seeds and a mutation loop with a fixed seed; `make fuzz` runs
//! them under libFuzzer, guided by coverage.
#![forbid(unsafe_code)]

mod mutate;
mod pickles;
mod targets;

#[path = "../../tests/rust/support/zip.rs"]
#[allow(dead_code, missing_docs, reason = "the zip writer of the tests, of which each user needs a part")]
mod zip;

pub use mutate::Random;
pub use targets::{TARGETS, Target};

/// The committed seeds of a target, by file name.
pub fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds: Vec<(String, Vec<u8>)> = files
        .map(|file| {
            let path = file.expect("a file in the folder").path();
            let name = path.file_name().expect("a file's name").to_string_lossy().into_owned();
            (name, std::fs::read(&path).expect("a seed that can be read"))
        })
        .collect();
    seeds.sort();
    seeds
}
