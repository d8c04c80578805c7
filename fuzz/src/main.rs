//! `fuzz`: runs one target under libFuzzer. `RUSTLOAD_FUZZ` names the target; the arguments are libFuzzer's.
#![no_main]
#![allow(unsafe_code, reason = "the entry points that libFuzzer calls are extern functions")]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rustload_fuzz::{Random, TARGETS, Target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("RUSTLOAD_FUZZ").unwrap_or_default();
    let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("RUSTLOAD_FUZZ is {name:?}, not one of {}", known.join(", ")))
});

fuzz_target!(|data: &[u8]| (TARGET.run)(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = Random::new(u64::from(seed));
    if random.below(3) == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let changed = (TARGET.mutate)(&data[..size], &mut random);
    let len = changed.len().min(max_size);
    data[..len].copy_from_slice(&changed[..len]);
    len
});
