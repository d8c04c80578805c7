//! Runs every target over its seeds, then over mutations of them from a fixed random seed, for a bounded time.

use std::time::{Duration, Instant};

use rustload_fuzz::{Random, TARGETS, Target, seeds};

/// The duration of each target's mutation loop; a slow machine runs fewer mutations, and the first ones are always the same.
const LOOP_DURATION: Duration = Duration::from_secs(1);

/// The number of mutations that run on any machine, however slow.
const MUTATIONS_MIN: u32 = 500;

/// The maximal time of one input. A release build must stay within it; tests are built with less optimization.
const INPUT_DURATION_MAX: Duration = Duration::from_secs(10);

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("a target of this name")
}

fn run(target: &Target, data: &[u8], what: &str) {
    let start = Instant::now();
    let outcome = std::panic::catch_unwind(|| (target.run)(data));
    if outcome.is_err() {
        let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("{} failed on {what}: {hex}", target.name);
    }
    assert!(start.elapsed() < INPUT_DURATION_MAX, "{what} took {:?}", start.elapsed());
}

fn check_invariants(name: &str) {
    let target = target(name);
    let seeds = seeds(name);
    assert!(!seeds.is_empty());
    for (file, data) in &seeds {
        run(target, data, file);
    }
    let (start, mut random, mut done) = (Instant::now(), Random::new(1), 0);
    let mut pool: Vec<Vec<u8>> = seeds.into_iter().map(|(_, data)| data).collect();
    let committed = pool.len();
    while done < MUTATIONS_MIN || start.elapsed() < LOOP_DURATION {
        let from = random.below(pool.len());
        let mutated = (target.mutate)(&pool[from], &mut random);
        run(target, &mutated, &format!("mutation {done}"));
        // Some mutations are mutated again.
        if mutated.len() < 1 << 16 && random.below(4) == 0 {
            if pool.len() < committed + 64 {
                pool.push(mutated);
            } else {
                let at = committed + random.below(64);
                pool[at] = mutated;
            }
        }
        done += 1;
    }
    println!("{name}: {done} mutations in {:?}", start.elapsed());
}

#[test]
fn pickle_invariants_hold() {
    check_invariants("pickle");
}

#[test]
fn zip_invariants_hold() {
    check_invariants("zip");
}

#[test]
fn legacy_invariants_hold() {
    check_invariants("legacy");
}

#[test]
fn safetensors_invariants_hold() {
    check_invariants("safetensors");
}

#[test]
fn quantized_invariants_hold() {
    check_invariants("quantized");
}

#[test]
fn distributed_invariants_hold() {
    check_invariants("distributed");
}

#[test]
fn exported_invariants_hold() {
    check_invariants("exported");
}

#[test]
fn graph_invariants_hold() {
    check_invariants("graph");
}

#[test]
fn yaml_invariants_hold() {
    check_invariants("yaml");
}

#[test]
fn npy_invariants_hold() {
    check_invariants("npy");
}

#[test]
fn tar_invariants_hold() {
    check_invariants("tar");
}

#[test]
fn partitions_invariants_hold() {
    check_invariants("partitions");
}

#[test]
fn open_invariants_hold() {
    check_invariants("open");
}

#[test]
fn scan_invariants_hold() {
    check_invariants("scan");
}
