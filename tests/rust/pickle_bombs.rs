//! The attack matrix, "Resource bombs": parsing takes linear time and memory, and nothing recurses.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;

use rustload::internals::pickle::{Pickle, Value, run};
use rustload::{Code, Error, Limits, Result, Subject};

/// An allocator that counts the bytes that each thread has allocated, and their peak.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let now = NOW.get() + change;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: every call is forwarded unchanged to the system allocator; the counters touch no memory of the caller and allocate none.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Large blocks are moved by mremap, so the old and the new block never exist at the same time.
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The memory bound of the attack matrix is 64 MiB plus 40 times the pickle's size; the machine meets one with 4 MiB, so that
/// small pickles can show a violation.
const SLACK: usize = 4 << 20;

/// Runs a pickle on a thread with a small stack, drop and Debug included, and checks the memory bound.
fn bomb(data: Vec<u8>, limits: Limits) -> Result<()> {
    let bound = SLACK + 40 * data.len();
    let small = thread::Builder::new().stack_size(256 << 10);
    let thread = small.spawn(move || {
        // The data was allocated by another thread; it counts too.
        let base = NOW.get() - data.len().cast_signed();
        let outcome = run(data, &limits).map(|pickle| visit(&pickle));
        (outcome, (PEAK.get() - base).unsigned_abs())
    });
    let (outcome, peak) = thread.expect("a thread").join().expect("no panic and no stack overflow");
    assert!(peak <= bound, "peak {peak}, bound {bound}");
    outcome
}

fn visit(pickle: &Pickle) {
    let values = &pickle.values;
    assert!(pickle.root.index() < values.len());
    assert!(!format!("{pickle:?} {:?}", values.get(pickle.root)).is_empty());
}

fn passes(data: Vec<u8>) {
    bomb(data, Limits::default()).expect("a harmless pickle");
}

fn limit(outcome: Result<()>) -> &'static str {
    match outcome.as_ref().map_err(Error::subject) {
        Err(&Subject::Limit { name, .. }) => name,
        other => panic!("{other:?}"),
    }
}

fn repeat(head: &[u8], body: &[u8], count: usize, tail: &[u8]) -> Vec<u8> {
    [head, &body.repeat(count), tail].concat()
}

const MILLION: usize = 1_000_000;

#[test]
fn r01_a_dag_of_depth_60_costs_60_values() {
    passes(repeat(b"N", b"2\x86", 60, b"."));
    passes(repeat(b"]", b"q\x000(h\0h\0l", 60, b"."));
    passes(repeat(b"]", b"q\x000(K\x01h\0K\x02h\0d", 60, b"."));
}

#[test]
fn r02_r03_billion_laughs_are_not_expanded() {
    let level = b"q\x000(h\0h\0h\0h\0h\0h\0h\0h\0h\0h\0t";
    passes(repeat(b"U\x03lol", level, 100, b"."));
    passes(repeat(b"cm\nn\n", level, 100, b"."));
    passes(repeat(b"(N", b"2", 10 * MILLION, b"t."));
}

#[test]
fn r04_to_r06_a_dag_as_a_key_is_a_limit_error() {
    let dag = repeat(b"N", b"2\x86", 60, b"");
    for data in [[b"}", &dag[..], b"Ns."].concat(), [b"\x8f(", &dag[..], b"\x90."].concat()] {
        assert_eq!(limit(bomb(data, Limits::default())), "key_depth");
    }
    let wide = repeat(b"}(", b"N", 65, b"tNs.");
    assert_eq!(limit(bomb(wide, Limits::default())), "key_nodes");
    // Two equal DAGs as keys, within the limits: they are compared level by level.
    let dag = b"N2\x862\x862\x86";
    passes([&b"}("[..], dag, b"N", dag, b"Nu."].concat());
}

#[test]
fn r07_r08_r14_deep_nesting_does_not_recurse_and_keeps_the_memory_bound() {
    passes(repeat(b"N", b"\x85", 10 * MILLION, b"."));
    passes(repeat(b"", b"]", 10 * MILLION, &repeat(b"", b"a", 10 * MILLION - 1, b".")));
    passes(repeat(b"N", b"Q", 10 * MILLION, b"."));
    passes(repeat(b"ca\nb\n", b")R", 5 * MILLION, b"."));
}

#[test]
fn r09_floods_stop_at_a_limit_or_keep_the_memory_bound() {
    assert_eq!(limit(bomb(vec![b'N'; 17 << 20], Limits::default())), "stack");
    assert_eq!(limit(bomb(vec![b')'; 17 << 20], Limits::default())), "stack");
    let few = Limits::new().nodes(1000);
    assert_eq!(limit(bomb(vec![b']'; MILLION], few)), "nodes");
    let few = Limits::new().memo(1000);
    assert_eq!(limit(bomb(repeat(b"N", b"\x94", MILLION, b"."), few)), "memo");
    let few = Limits::new().pickle_bytes(10);
    assert_eq!(limit(bomb(vec![b'N'; 11], few)), "pickle_bytes");
    let data = vec![b']'; 10 * MILLION];
    assert_eq!(bomb(data, Limits::default()).expect_err("no STOP").code(), Code::PickleStack);
}

#[test]
fn every_repeated_pattern_keeps_the_memory_bound() {
    for (head, body, tail) in [
        (&b"("[..], &b"]]a"[..], &b"t."[..]),
        (b"(", b"]2a", b"t."),
        (b"(", b"]Na", b"t."),
        (b"(", b"(Nl", b"t."),
        (b"(", b"(d", b"t."),
        (b"(", b"}NNs", b"t."),
        (b"(", b"\x8f(N\x90", b"t."),
        (b"(", b")\x85", b"t."),
        (b"(", b"\x8c\0", b"t."),
        (b"ca\nb\nq\0(", b"h\0)R", b"t\x86."),
        (b"ca\nb\n", b")R", b"."),
        (b"ca\nb\n", b")RNb", b"."),
        (b"ca\nb\n", b")RNa", b"."),
        (b"ca\nb\n", b")RNNs", b"."),
        (b"N", b"\x94", b"."),
        (b"(", b"]\x94", b"t."),
        (b"(", b"K\x01", b"t."),
        (b"\x8f(N", b"2Q\x85", b"\x90."),
        (b"}(N", b"2Q\x85N", b"Nu."),
        (b"\x8f(ca\nb\n", b"2)R", b"\x90."),
        (b"]q\0]q\x01(", b"h\0Na0h\x01Na0", b"t\x87."),
        (b"(", b"V\xff\n", b"t."),
        (b"(", b"S'\\0'\n", b"t."),
    ] {
        passes(repeat(head, body, 6 * MILLION / body.len(), tail));
    }
    // Two lists that grow alternately and double each time.
    let mut data = b"]q\0]q\x01".to_vec();
    for round in 0..21 {
        for list in [b"h\0(", b"h\x01("] {
            data.extend(list);
            data.extend(vec![b']'; 1 << round]);
            data.extend(b"e0");
        }
    }
    passes([&data[..], b"0."].concat());
}

#[test]
fn sparse_memo_numbers_and_distinct_names_keep_the_memory_bound() {
    let mut puts = b"N".to_vec();
    (0..1_000_000u32)
        .for_each(|at| puts.extend([&b"r"[..], &at.wrapping_mul(0x9e37_79b1).to_le_bytes()].concat()));
    passes([&puts[..], b"."].concat());
    let mut names = b"(".to_vec();
    (0..500_000u32).for_each(|at| names.extend(format!("cm\n{at:x}\n").bytes()));
    passes([&names[..], b"t."].concat());
}

#[test]
fn r10_a_large_list_fetched_many_times_is_one_list() {
    let list = repeat(b"](", b"N", 100_000, b"eq\0");
    passes([&list[..], &repeat(b"](", b"h\0", MILLION, b"e\x86.")].concat());
}

#[test]
fn names_and_keys_are_hashed_once_each() {
    // A name of 4,000 bytes, used a million times; a key of 1 MiB, used a million times.
    let name = [b"X\xa0\x0f\0\0", &[b'a'; 4000][..], b"q\0"].concat();
    passes([&name[..], &repeat(b"(", b"h\0h\0\x93", MILLION, b"t\x86.")].concat());
    let key = [b"X\0\0\x10\0", &[b'a'; 1 << 20][..], b"q\0"].concat();
    passes([&key[..], &repeat(b"}(", b"h\0N", MILLION, b"u\x86.")].concat());
    passes([&key[..], &repeat(b"}(", b"h\0\x85N", MILLION, b"u\x86.")].concat());
}

#[test]
fn r17_a_million_equal_keys_are_one_entry_in_linear_time() {
    let data = repeat(b"}(", b"U\x01aN", MILLION, b"u.");
    let pickle = run(data, &Limits::default()).expect("a dict");
    assert_eq!(pickle.values.entries(pickle.root).expect("a dict").len(), 1);
}

#[test]
fn r11_values_may_contain_themselves() {
    let read = |data: &[u8]| run(data.to_vec(), &Limits::default()).expect("a cyclic value");
    let list = read(b"]q\0h\0a.");
    assert_eq!(list.values.get(list.root), Value::List(&[list.root]));
    let dict = read(b"}q\0K\x01h\0s.");
    assert!(matches!(dict.values.get(dict.root), Value::Dict([(_, value)]) if *value == dict.root));
    // A tuple in its own list, as CPython writes it: POP, POP, GET.
    let tuple = read(b"]q\0h\0\x85q\x01a0h\x01.");
    let Value::Tuple([inner]) = tuple.values.get(tuple.root) else { panic!("no tuple") };
    assert_eq!(tuple.values.get(*inner), Value::List(&[tuple.root]));
    let state = read(b"ccollections\nOrderedDict\n)Rq\0}K\x01h\0sb.");
    assert!(matches!(state.values.get(state.root), Value::Call(_)));
}

#[test]
fn r16_an_endless_line_stops_at_the_limit() {
    assert_eq!(limit(bomb(repeat(b"c", b"a", 10 * MILLION, b""), Limits::default())), "line");
}
