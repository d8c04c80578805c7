//! R14: the values and the checkpoint of every resource bomb are inspected, formatted, compared and dropped on a 256 KiB stack.

use crate::support::pickle::{Pickle, pickle};
use crate::support::zip::Archive;
use crate::support::{on_small_stack, open};
use rustload::Limits;
use rustload::internals::index::Object;
use rustload::internals::pickle::run;
use rustload::internals::trees;

const DEEP: usize = 1_000_000;

fn written(build: impl for<'a> FnOnce(&'a mut Pickle) -> &'a mut Pickle) -> Vec<u8> {
    pickle(|p| {
        build(p);
    })
}

/// 60 containers, each of which contains the previous one twice.
fn dag(tie: impl for<'a> Fn(&'a mut Pickle, u32) -> &'a mut Pickle) -> Vec<u8> {
    written(|p| {
        p.none();
        for level in 0..60 {
            p.put_at(level).pop();
            tie(p, level);
        }
        p
    })
}

/// Repeats an opcode a million times.
fn deep(p: &mut Pickle, opcode: u8) -> &mut Pickle {
    p.raw(&[opcode].repeat(DEEP))
}

/// Every bomb of the attack matrix that the machine reads, also those that fail later.
fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("R01 tuples", dag(|p, at| p.get(at).get(at).op(0x86))),
        ("R01 lists", dag(|p, at| p.list().mark().get(at).get(at).op(b'e'))),
        ("R02 dup", dag(|p, at| p.get(at).dup().op(0x86))),
        ("R03 calls", dag(|p, at| p.global("mine", "Node").get(at).get(at).op(0x86).op(b'R'))),
        ("R07 tuples", written(|p| deep(p.none(), 0x85))),
        ("R07 keys", written(|p| deep(p.dict().int(1), 0x85).none().op(b's'))),
        ("R08 lists", written(|p| deep(deep(p.list(), b']'), b'a'))),
        ("R08 calls", written(|p| deep(deep(p.global("mine", "Node"), b'2').empty_tuple(), b'R'))),
        ("R10", written(|p| p.list().put_at(0).pop().list().mark().raw(&b"h\0".repeat(DEEP)).op(b'e'))),
        ("R11 itself", written(|p| p.list().put_at(0).get(0).op(b'a'))),
        ("R17 keys", written(|p| p.dict().mark().raw(&b"K\x01N".repeat(DEEP)).op(b'u'))),
        ("wide", written(|p| deep(p.list().mark(), b'}').op(b'e'))),
    ]
}

#[test]
fn every_bomb_is_dropped_on_a_small_stack() {
    for (name, bytes) in bombs() {
        let ((), time) = on_small_stack(move || {
            // The values of the machine: formatted, and compared with those of a second run.
            match run(bytes.clone(), &Limits::default()) {
                Ok(one) => {
                    let two = run(bytes.clone(), &Limits::default()).expect("the second run succeeds too");
                    let shown = format!("{one:?} {:?}", one.values);
                    assert!(shown.len() < 10_000, "{name}");
                    assert_eq!(one.values.get(one.root), two.values.get(two.root), "{name}");
                }
                Err(error) => drop(format!("{error} {error:?}")),
            }
            // The checkpoint: its tables, its trees and their roots.
            if let Ok(checkpoint) = open(Archive::new(bytes).bytes()) {
                drop((checkpoint.tied(), checkpoint.opaque().len(), checkpoint.globals()));
                for (_, tree) in trees(&checkpoint) {
                    let Some(tree) = tree else { continue };
                    let root = tree.get(tree.root()).expect("the root is a value");
                    assert!(!matches!(root, Object::Tensor(_)), "{name}");
                }
                drop(checkpoint.clone());
                drop(checkpoint);
            }
        });
        assert!(time.as_secs() < 20, "{name}: {time:?}"); // a debug build, and other tests run concurrently
    }
}
