//! R14: what becomes of every resource bomb is looked at, shown, compared by its parts and dropped on a stack of 256 KiB.

mod support;

use rustload::index::Object;
use rustload::limits::Limits;
use rustload::pickle::run;
use support::pickle::{Pickle, pickle};
use support::zip::Archive;
use support::{on_small_stack, open};

const DEEP: usize = 1_000_000;

/// `levels` containers, each holding the one before twice.
fn dag(p: &mut Pickle, levels: u32, tie: impl Fn(&mut Pickle, u32)) {
    p.none();
    for level in 0..levels {
        p.put_at(level).pop();
        tie(p, level);
    }
}

/// Every bomb of the matrix that loads, and those that only fail later.
fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    let made = |build: &dyn Fn(&mut Pickle)| pickle(|p| build(p));
    vec![
        ("R01 tuples", made(&|p| dag(p, 60, |p, at| drop(p.get(at).get(at).op(0x86))))),
        ("R01 lists", made(&|p| dag(p, 60, |p, at| drop(p.list().mark().get(at).get(at).op(b'e'))))),
        ("R02 dup", made(&|p| dag(p, 60, |p, at| drop(p.get(at).dup().op(0x86))))),
        ("R03 calls", made(&|p| dag(p, 60, |p, at| drop(p.global("mine", "Node").get(at).get(at).op(0x86).op(b'R'))))),
        ("R07 tuples", made(&|p| drop(p.none().times(DEEP, |p| drop(p.op(0x85)))))),
        ("R07 keys", made(&|p| drop(p.dict().int(1).times(DEEP, |p| drop(p.op(0x85))).none().op(b's')))),
        ("R08 lists", made(&|p| drop(p.list().raw(&b"]".repeat(DEEP)).raw(&b"a".repeat(DEEP))))),
        ("R08 calls", made(&|p| drop(p.none().times(DEEP, |p| drop(p.op(0x85).raw(b"cmine\nNode\n"))).pop()))),
        ("R10", made(&|p| drop(p.list().put_at(0).pop().list().mark().times(DEEP, |p| drop(p.get(0))).op(b'e')))),
        ("R11 itself", made(&|p| drop(p.list().put_at(0).get(0).op(b'a')))),
        ("R17 keys", made(&|p| drop(p.dict().mark().times(DEEP, |p| drop(p.raw(b"K\x01N"))).op(b'u')))),
        ("wide", made(&|p| drop(p.list().mark().raw(&b"}".repeat(DEEP)).op(b'e')))),
    ]
}

#[test]
fn every_bomb_is_dropped_on_a_small_stack() {
    for (name, bytes) in bombs() {
        let ((), time) = on_small_stack(move || {
            // The values of the machine: shown, and compared with those of a second run.
            match run(bytes.clone(), 0, &Limits::default()) {
                Ok(one) => {
                    let two = run(bytes.clone(), 0, &Limits::default()).expect("the same once more");
                    let shown = format!("{one:?} {:?}", one.values);
                    assert!(shown.len() < 10_000, "{name}");
                    assert_eq!(one.values.get(one.root), two.values.get(two.root), "{name}");
                }
                Err(error) => drop(format!("{error} {error:?}")),
            }
            // The checkpoint: its tree, its tables, and a look at the root.
            if let Ok(checkpoint) = open(Archive::new(bytes).bytes()) {
                drop((checkpoint.tied(), checkpoint.opaque().len(), checkpoint.globals()));
                for (_, tree) in checkpoint.trees() {
                    let Some(tree) = tree else { continue };
                    let root = tree.get(tree.root()).expect("the root is a value");
                    assert!(!matches!(root, Object::Tensor(_)), "{name}");
                }
                drop(checkpoint.clone());
                drop(checkpoint);
            }
        });
        assert!(time.as_secs() < 20, "{name}: {time:?}"); // unoptimised, beside others
    }
}
