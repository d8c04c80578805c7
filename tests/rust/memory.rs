//! The memory use of the process itself. The only test in its process, because a concurrent test would free memory.

use rustload::internals::memory::Memory;

#[test]
fn an_allocation_raises_anonymous_memory() {
    let before = Memory::now();
    let block = std::hint::black_box(vec![1_u8; 32 << 20]);
    let after = Memory::now();
    assert!(after.anon >= before.anon + (24 << 20), "{before:?} {after:?}");
    assert!(after.total > 0 && after.peak >= after.anon);
    drop(std::hint::black_box(block));
}
