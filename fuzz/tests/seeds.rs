//! Every target over its seeds, and over changes to them from a fixed seed, for a bounded time.

use std::time::{Duration, Instant};

use rustload_fuzz::{Random, TARGETS, Target, seeds};

/// How long each target's loop runs; a slow machine makes fewer changes, and the first ones are always the same.
const TIME: Duration = Duration::from_secs(4);

/// Changes made at least, however slow the machine.
const LEAST: u32 = 500;

/// Law of the reader: no input takes longer, in a release build; tests are built with less optimization.
const SLOW: Duration = Duration::from_secs(10);

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
    assert!(start.elapsed() < SLOW, "{what} took {:?}", start.elapsed());
}

fn holds(name: &str) {
    let target = target(name);
    let seeds = seeds(name);
    assert!(!seeds.is_empty());
    for (file, data) in &seeds {
        run(target, data, file);
    }
    let (start, mut random, mut done) = (Instant::now(), Random::new(1), 0);
    let mut pool: Vec<Vec<u8>> = seeds.into_iter().map(|(_, data)| data).collect();
    let committed = pool.len();
    while done < LEAST || start.elapsed() < TIME {
        let from = random.below(pool.len());
        let changed = (target.mutate)(&pool[from], &mut random);
        run(target, &changed, &format!("change {done}"));
        // Some changes are changed again.
        if changed.len() < 1 << 16 && random.below(4) == 0 {
            if pool.len() < committed + 64 {
                pool.push(changed);
            } else {
                let at = committed + random.below(64);
                pool[at] = changed;
            }
        }
        done += 1;
    }
    println!("{name}: {done} changes in {:?}", start.elapsed());
}

#[test]
fn pickle_holds() {
    holds("pickle");
}

#[test]
fn zip_holds() {
    holds("zip");
}

#[test]
fn legacy_holds() {
    holds("legacy");
}

#[test]
fn safetensors_holds() {
    holds("safetensors");
}

#[test]
fn open_holds() {
    holds("open");
}

#[test]
fn scan_holds() {
    holds("scan");
}
