//! What a process says of its own memory. The one test of its process: others would give memory back beside it.

use rustload::Memory;

#[test]
fn this_process_uses_memory() {
    let before = Memory::now();
    let block = std::hint::black_box(vec![1_u8; 32 << 20]);
    let after = Memory::now();
    assert!(after.anon >= before.anon + (24 << 20), "{before:?} {after:?}");
    assert!(after.total > 0 && after.peak >= after.anon);
    drop(std::hint::black_box(block));
}
