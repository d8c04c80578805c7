//! Materialized tensors, compared with a plain loop over their elements; and the rules of copies, views, limits and destinations.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic, and say so by failing")]

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::pickle::{Tensor, pickle, storage_class, torch_dict};
use crate::support::zip::Archive;
use crate::support::{code, f32s, open, opened, st};
use proptest::prelude::*;
use rustload::internals::kernel::{self, Cast, convert};
use rustload::{
    Array, Cancel, Checkpoint, Code, DType, Limits, Options, Order, Output, Overflow, Request, SharedStorage,
    Stream, StreamOptions, Taken, Tensor as Handle, TensorIndex,
};

/// Pseudo-random bytes, the same at each call.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut out: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    out.truncate(len);
    out
}

/// The layout of a tensor in a file.
#[derive(Clone, Debug)]
struct FileLayout {
    shape: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
}

impl FileLayout {
    fn new(shape: &[i64], strides: &[i64], offset: i64) -> FileLayout {
        FileLayout { shape: shape.to_vec(), strides: strides.to_vec(), offset }
    }

    fn permuted(&self, order: &[usize]) -> FileLayout {
        let pick = |from: &[i64]| order.iter().map(|&at| from[at]).collect();
        FileLayout { shape: pick(&self.shape), strides: pick(&self.strides), offset: self.offset }
    }

    /// The number of elements that the storage needs.
    fn end(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let last: i64 = self.shape.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum();
        usize::try_from(self.offset + last + 1).unwrap()
    }

    /// The position of every element in the storage, in C order.
    fn positions(&self) -> Vec<usize> {
        let mut out = vec![self.offset];
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            out = out.iter().flat_map(|&at| (0..size).map(move |index| at + index * stride)).collect();
        }
        out.into_iter().map(|at| usize::try_from(at).unwrap()).collect()
    }

    /// The expected result: elements are copied and swapped one by one, then cast as one row.
    fn reference(&self, storage: &[u8], from: DType, to: DType, big_endian: bool) -> Vec<u8> {
        let size = usize::try_from(from.itemsize()).unwrap();
        let unit = usize::try_from(from.swap_unit()).unwrap();
        let mut plain = Vec::with_capacity(self.positions().len() * size);
        for at in self.positions() {
            let mut element = storage[at * size..][..size].to_vec();
            if big_endian {
                element.chunks_mut(unit).for_each(<[u8]>::reverse);
            }
            plain.extend_from_slice(&element);
        }
        let count = plain.len() / size;
        let mut out = vec![0; count * usize::try_from(to.itemsize()).unwrap()];
        convert(Cast::new(from, to, Overflow::Nan).unwrap(), &plain, &mut out).unwrap();
        out
    }
}

/// An opened checkpoint, and its temporary file.
struct Opened {
    checkpoint: Checkpoint,
    file: Option<tempfile::NamedTempFile>,
}

fn open_from(bytes: Vec<u8>, in_file: bool, options: Options) -> Opened {
    if !in_file {
        let checkpoint = Checkpoint::from_bytes(Arc::new(bytes), options).unwrap();
        return Opened { checkpoint, file: None };
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let checkpoint = Checkpoint::open_all(&[file.path().to_owned()], options).unwrap();
    Opened { checkpoint, file: Some(file) }
}

fn archive(layout: &FileLayout, dtype: DType, storage: &[u8], big_endian: bool) -> Archive {
    let numel = storage.len() as i64 / dtype.itemsize() as i64;
    let tensor = Tensor::whole(dtype, &[numel], "0").part(&layout.shape, &layout.strides, layout.offset);
    let archive = Archive::new(torch_dict(&[("w", tensor)])).storage("0", storage);
    if big_endian { archive.big_endian() } else { archive }
}

/// Whether torch swaps a storage by the width of this dtype: not an untyped one, which it reads as bytes.
fn is_swapped_by_torch(dtype: DType) -> bool {
    storage_class(dtype).is_some() || dtype.swap_unit() == 1
}

fn into_vec(tensor: &Handle, request: &Request) -> Vec<u8> {
    let numel: u64 = tensor.layout().shape.iter().product();
    let len = numel * request.dtype.unwrap_or(tensor.dtype()).itemsize();
    let mut out = vec![0xa5; usize::try_from(len).unwrap()];
    tensor.materialize_into(request, &mut out).unwrap();
    out
}

/// The elements of an array, one by one through its strides.
fn elements(array: &Array) -> Vec<u8> {
    let size = usize::try_from(array.dtype().itemsize()).unwrap();
    let mut at = vec![0_u64];
    for (&count, &stride) in array.shape().iter().zip(array.strides()) {
        at = at.iter().flat_map(|&at| (0..count).map(move |index| at + index * stride)).collect();
    }
    let mut out = Vec::new();
    for at in at {
        let offset = usize::try_from(at).unwrap() * size;
        let mut element = vec![0; size];
        let start = array.address().as_ptr().wrapping_add(offset);
        // SAFETY: the array owns or maps every element that its shape and strides reach, and it outlives this loop.
        unsafe { std::ptr::copy_nonoverlapping(start, element.as_mut_ptr(), size) };
        out.extend_from_slice(&element);
    }
    out
}

fn any_layout() -> impl Strategy<Value = FileLayout> {
    let dim = (0_i64..6, 0_usize..4, 1_i64..4);
    (proptest::collection::vec(dim, 0..5), 0_i64..5, any::<u64>()).prop_map(|(dims, offset, seed)| {
        let mut strides = vec![0; dims.len()];
        let mut step = 1;
        // In a random order, each dimension is dense, stepped, broadcast (stride 0) or overlaps with the previous ones.
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|&at| (seed >> (8 * at)) & 0xff);
        for at in order {
            let (size, kind, factor) = dims[at];
            strides[at] = match kind {
                0 => step,
                1 => step * factor,
                2 => 0,
                _ => factor,
            };
            step = step.max(strides[at] * size.max(1));
        }
        FileLayout { shape: dims.iter().map(|dim| dim.0).collect(), strides, offset }
    })
}

fn any_dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(DType::ALL)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_materialized_tensor_is_its_elements_in_order(
        layout in any_layout(),
        (from, to) in (any_dtype(), any_dtype()),
        (big_endian, in_file, deflated) in any::<(bool, bool, bool)>(),
        threads in 1_usize..5,
        seed in any::<u64>(),
    ) {
        let to = if Cast::new(from, to, Overflow::Nan).is_ok() { to } else { from };
        let storage = noise((layout.end() + 3) * usize::try_from(from.itemsize()).unwrap());
        let big_endian = big_endian && is_swapped_by_torch(from);
        let built = archive(&layout, from, &storage, big_endian);
        let built = if deflated { built.deflated("data/0") } else { built };
        let opened = open_from(built.bytes(), in_file, Options::default());
        let tensor = opened.checkpoint.tensor("w").unwrap();
        let mut order: Vec<usize> = (0..layout.shape.len()).collect();
        order.sort_by_key(|&at| (seed >> (8 * at)) & 0xff);
        let request = Request::new().dtype(to).order(Order::Permute(order.iter().map(|&at| at as i64).collect())).allow_lossy(true).threads(threads);
        let expected = layout.permuted(&order).reference(&storage, from, to, big_endian);
        prop_assert_eq!(&into_vec(&tensor, &request), &expected);
        let array = tensor.materialize(&request).unwrap();
        prop_assert!(array.is_contiguous() && !array.is_view());
        prop_assert_eq!(elements(&array), expected);
    }

    #[test]
    fn slices_have_the_elements_of_pythons_rules(
        ranges in proptest::collection::vec((0_i64..7, -8_i64..9, -8_i64..9, 1_i64..4), 1..4),
        dtype in any_dtype(),
        in_file in any::<bool>(),
    ) {
        let shape: Vec<i64> = ranges.iter().map(|range| range.0).collect();
        let whole = Tensor::whole(dtype, &shape, "0");
        let layout = FileLayout::new(&shape, &whole.strides, 0);
        let storage: Vec<u8> =
            noise(layout.positions().len() * usize::try_from(dtype.itemsize()).unwrap()).iter().map(|b| b & 1).collect();
        let bytes = Archive::new(torch_dict(&[("w", whole)])).storage("0", &storage).bytes();
        let opened = open_from(bytes, in_file, Options::default());
        let items: Vec<TensorIndex> = (ranges.iter())
            .map(|&(_, start, stop, step)| TensorIndex::Range { start: Some(start), stop: Some(stop), step: Some(step) })
            .collect();
        let part = opened.checkpoint.tensor("w").unwrap().index(&items).unwrap();
        // Python's rule for bounds: negative ones count from the end, and all are clipped.
        let taken: Vec<Vec<i64>> = (ranges.iter())
            .map(|&(size, start, stop, step)| {
                let clip = |at: i64| (if at < 0 { at + size } else { at }).clamp(0, size);
                (clip(start)..clip(stop)).step_by(step as usize).collect()
            })
            .collect();
        let mut at = vec![0_i64];
        for (taken, stride) in taken.iter().zip(&layout.strides) {
            at = at.iter().flat_map(|&at| taken.iter().map(move |index| at + index * stride)).collect();
        }
        let size = usize::try_from(dtype.itemsize()).unwrap();
        let expected: Vec<u8> = at.iter().flat_map(|&at| storage[at as usize * size..][..size].to_vec()).collect();
        prop_assert_eq!(into_vec(&part, &Request::default()), expected.clone());
        prop_assert_eq!(elements(&part.materialize(&Request::default()).unwrap()), expected);
    }
}

#[test]
fn tensors_larger_than_every_buffer_are_read_completely() {
    // The buffers are 1 MiB of scratch, 2 MiB per panel, 4 MiB per piece and 8 MiB per direct read; the sizes are around these.
    let cases = [
        (DType::F32, DType::F32, FileLayout::new(&[3000, 1100], &[1100, 1], 0)),
        (DType::F32, DType::BF16, FileLayout::new(&[3000, 1100], &[1100, 1], 1)),
        (DType::F32, DType::F32, FileLayout::new(&[1100, 3000], &[1, 1100], 0)),
        (DType::BF16, DType::F32, FileLayout::new(&[70, 90, 500], &[1, 35_000, 70], 3)),
        (DType::U8, DType::U8, FileLayout::new(&[5_000_001], &[2], 0)),
        (DType::F64, DType::F32, FileLayout::new(&[700, 900], &[4000, 1], 0)),
        (DType::I16, DType::I64, FileLayout::new(&[3, 700_000], &[0, 1], 5)),
        (DType::U8, DType::F32, FileLayout::new(&[2000, 1000], &[1, 1], 0)),
        (DType::C64, DType::C64, FileLayout::new(&[2, 300_000, 2], &[1, 4, 2], 0)),
        (DType::F16, DType::F16, FileLayout::new(&[513, 1025, 5], &[1, 513, 525_825], 0)),
        (DType::Bool, DType::Bool, FileLayout::new(&[2049, 2049], &[1, 2049], 0)),
        // Matrices whose rows are larger than a buffer, and with gaps that are read or skipped.
        (DType::F32, DType::BF16, FileLayout::new(&[40_000, 61], &[1, 40_000], 7)),
        (DType::U8, DType::I16, FileLayout::new(&[100_000, 30], &[1, 100_000], 0)),
        // Matrices of so few rows that several threads share a row; one has a partial cache line at the end.
        (DType::F32, DType::F32, FileLayout::new(&[300_001, 8], &[1, 300_001], 0)),
        (DType::BF16, DType::F32, FileLayout::new(&[70_000, 65], &[1, 70_100], 3)),
        (DType::BF16, DType::BF16, FileLayout::new(&[1001, 801], &[1, 1100], 0)),
        (DType::F32, DType::F32, FileLayout::new(&[701, 999], &[1, 5001], 2)),
        // Three dimensions in reverse: many rows, few long ones with gaps, and four dimensions of which two are one.
        (DType::F32, DType::F32, FileLayout::new(&[70, 90, 500], &[1, 70, 6_300], 0)),
        (DType::BF16, DType::F32, FileLayout::new(&[30_000, 7, 9], &[1, 30_000, 210_100], 3)),
        (DType::U8, DType::U8, FileLayout::new(&[5, 3, 300, 600], &[3, 1, 15, 4_500], 0)),
        // Rows that are copied, also past every cache line, and matrices with few columns.
        (DType::F32, DType::F32, FileLayout::new(&[150, 301, 101], &[101, 15_150, 1], 1)),
        (DType::U8, DType::U8, FileLayout::new(&[99, 300, 301], &[301, 29_799, 1], 0)),
        (DType::F32, DType::BF16, FileLayout::new(&[7, 30, 400, 90], &[90, 630, 19_000, 1], 2)),
        (DType::F32, DType::F32, FileLayout::new(&[3, 40, 50, 600], &[1_200_000, 600, 24_000, 1], 0)),
        (DType::F32, DType::BF16, FileLayout::new(&[100, 9, 4000], &[36_000, 1, 9], 0)),
        (DType::I64, DType::I64, FileLayout::new(&[50, 31, 900], &[27_900, 1, 31], 0)),
    ];
    for (from, to, layout) in cases {
        let storage = noise(layout.end() * usize::try_from(from.itemsize()).unwrap());
        for (big_endian, in_file) in [(false, true), (true, false)] {
            let bytes = archive(&layout, from, &storage, big_endian).bytes();
            let opened = open_from(bytes, in_file, Options::default());
            let tensor = opened.checkpoint.tensor("w").unwrap();
            let expected = layout.reference(&storage, from, to, big_endian);
            for threads in 1..=4 {
                let request = Request::new().dtype(to).threads(threads);
                assert!(
                    into_vec(&tensor, &request) == expected,
                    "{from} to {to}, {layout:?}, {threads} thread(s)"
                );
            }
        }
    }
}

/// A tensor with the flags of a lazy conjugate or negative (`conj`, `neg`).
fn with_flags(layout: &FileLayout, dtype: DType, flags: &[&str], storage: &[u8]) -> Archive {
    let numel = storage.len() as i64 / dtype.itemsize() as i64;
    let tensor = Tensor::whole(dtype, &[numel], "0").part(&layout.shape, &layout.strides, layout.offset);
    let pickle = pickle(|p| {
        p.tensor_with(&tensor, |p| {
            p.dict_of(|p| {
                for flag in flags {
                    p.text(flag).bool(true);
                }
            });
        });
    });
    Archive::new(pickle).storage("0", storage)
}

#[test]
fn lazy_signs_are_applied_once_per_element_in_every_block_and_thread() {
    // Rows, a transpose, gaps that are read, gaps that are skipped, and broadcast elements.
    let layouts = [
        FileLayout::new(&[3_000, 500], &[500, 1], 0),
        FileLayout::new(&[500, 3_000], &[1, 500], 0),
        FileLayout::new(&[500, 900], &[1_001, 1], 3),
        FileLayout::new(&[64, 5_000], &[9_000, 1], 5),
        FileLayout::new(&[2, 300_000], &[0, 1], 0),
    ];
    for layout in layouts {
        for (dtype, to, flags) in [
            (DType::C64, DType::C64, &["conj"][..]),
            (DType::C64, DType::C128, &["conj", "neg"]),
            (DType::I16, DType::F64, &["neg"]),
        ] {
            let storage = noise(layout.end() * usize::try_from(dtype.itemsize()).unwrap());
            let mut signed = storage.clone();
            if flags.contains(&"conj") {
                kernel::conjugate(dtype, &mut signed).unwrap();
            }
            if flags.contains(&"neg") {
                kernel::negate(dtype, &mut signed).unwrap();
            }
            let tensor =
                opened(with_flags(&layout, dtype, flags, &storage).bytes()).tensor("tensor").unwrap();
            let expected = layout.reference(&signed, dtype, to, false);
            for threads in [1, 3] {
                let request = Request::new().dtype(to).threads(threads);
                let found = into_vec(&tensor, &request);
                assert!(found == expected, "{dtype} to {to}, {flags:?}, {layout:?}, {threads} thread(s)");
            }
        }
    }
}

#[test]
fn lazy_signs_are_applied_before_the_cast_and_in_slices() {
    let layout = FileLayout::new(&[3, 2], &[1, 3], 0);
    let values: Vec<f32> = (0..12_u8).map(f32::from).collect();
    let flagged = |dtype: DType, flag: &'static str, bytes: &[u8]| {
        opened(with_flags(&layout, dtype, &[flag], bytes).bytes()).tensor("tensor").unwrap()
    };
    let complex = flagged(DType::C64, "conj", &f32s(&values));
    let row = complex.index(&[TensorIndex::At(1)]).unwrap();
    assert_eq!(into_vec(&row, &Request::default()), f32s(&[2.0, -3.0, 8.0, -9.0]));
    let wide = Request::new().dtype(DType::C128).transpose();
    let first: Vec<u8> = [0.0_f64, -1.0, 2.0, -3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(into_vec(&complex, &wide)[..32], first);
    assert_eq!(complex.materialize(&Request::default()).unwrap().dtype(), DType::C64);
    // An unsigned integer wraps before it is widened, as in torch's negate(x).to(int16).
    let negative = flagged(DType::U8, "neg", &[0, 1, 2, 3, 4, 5]);
    let request = Request::new().dtype(DType::I16);
    let found: Vec<i16> =
        into_vec(&negative, &request).chunks(2).map(|x| i16::from_le_bytes([x[0], x[1]])).collect();
    assert_eq!(found, [0, 253, 255, 252, 254, 251]);
    let view = Request::new().copy(false);
    assert_eq!(negative.materialize(&view).unwrap_err().code(), Code::Buffer);
}

fn square() -> (FileLayout, Vec<u8>) {
    (FileLayout::new(&[4, 5], &[1, 4], 2), noise(22 * 4))
}

#[test]
fn views_keep_the_files_strides_and_have_the_elements_of_owned_results() {
    let (layout, storage) = square();
    let opened = open_from(archive(&layout, DType::F32, &storage, false).bytes(), true, Options::default());
    let tensor = opened.checkpoint.tensor("w").unwrap();
    // The builder does not align members, so whether there is a view depends on the offset.
    let array = tensor.materialize(&Request::default()).unwrap();
    let owned = tensor.materialize(&Request::new().copy(true)).unwrap();
    assert!(!owned.is_view() && owned.is_contiguous());
    assert_eq!(owned.strides(), [5, 1]);
    assert_eq!(elements(&array), elements(&owned));
    if array.is_view() {
        assert_eq!(array.strides(), [1, 4]);
    }
    let bytes = FileLayout::new(&[4, 22], &[22, 1], 0);
    let opened = open_from(archive(&bytes, DType::U8, &storage, false).bytes(), true, Options::default());
    let tensor = opened.checkpoint.tensor("w").unwrap();
    let view = tensor.permute(&[1, 0]).unwrap().materialize(&Request::default()).unwrap();
    assert!(view.is_view());
    assert_eq!((view.shape(), view.strides()), (&[22, 4][..], &[1, 22][..]));
    assert_eq!(elements(&view), bytes.permuted(&[1, 0]).reference(&storage, DType::U8, DType::U8, false));
    let part = tensor
        .index(&[TensorIndex::At(-1), TensorIndex::Range { start: Some(3), stop: None, step: Some(5) }])
        .unwrap();
    let part = part.materialize(&Request::new().copy(false)).unwrap();
    assert_eq!(elements(&part), [69, 74, 79, 84].map(|at| storage[at]));
    // On Windows no view can be written to, and this storage has no other name that a copy would keep tied.
    let shared = cfg!(unix).then_some(SharedStorage::View);
    assert_eq!(tensor.shared_storage(None, &Cancel::new()).unwrap(), shared);
    let whole = tensor.storage_bytes(SharedStorage::View, &Request::default()).unwrap();
    assert_eq!((whole.shape(), whole.is_view()), (&[88][..], true));
    assert_eq!(elements(&whole), storage);
    let copied = tensor.storage_bytes(SharedStorage::Copy, &Request::default()).unwrap();
    assert_eq!((elements(&copied), copied.is_view()), (storage, false));
}

#[test]
fn copy_rules_hold_for_every_source() {
    let (layout, storage) = square();
    let request = |copy, dtype, order| Request::new().copy(copy).dtype(dtype).order(order);
    let code = |tensor: &Handle, request: &Request| tensor.materialize(request).unwrap_err().code();
    for (in_file, big_endian) in [(true, false), (false, false), (true, true)] {
        let bytes = archive(&layout, DType::F32, &storage, big_endian).bytes();
        let opened = open_from(bytes, in_file, Options::default());
        let tensor = opened.checkpoint.tensor("w").unwrap();
        let no = Some(false);
        assert_eq!(code(&tensor, &request(no, Some(DType::F16), Order::Same)), Code::Buffer);
        assert_eq!(code(&tensor, &request(no, None, Order::Transpose)), Code::Buffer);
        assert_eq!(code(&tensor, &request(no, None, Order::Permute(vec![0, 1]))), Code::Buffer);
        if !in_file || big_endian {
            assert_eq!(code(&tensor, &request(no, Some(DType::F32), Order::Same)), Code::Buffer);
            assert!(!tensor.materialize(&Request::default()).unwrap().is_view());
        }
        let owned = tensor.materialize(&request(Some(true), None, Order::Transpose)).unwrap();
        assert_eq!((owned.shape(), owned.is_view()), (&[5, 4][..], false));
    }
}

#[test]
fn misaligned_tensors_of_safetensors_are_copied() {
    let storage = noise(48);
    let file =
        st::File::new().tensor("a", "F32", &[6], &storage[..24]).tensor("b", "U8", &[24], &storage[24..]);
    for padding in 0..8 {
        let opened = open_from(file.clone().pad(padding).bytes(), true, Options::default());
        let of = |name: &str, copy| {
            opened.checkpoint.tensor(name).unwrap().materialize(&Request::new().copy(copy))
        };
        let array = of("a", None).unwrap();
        assert_eq!(array.is_view(), padding % 4 == 0, "{padding}");
        assert_eq!(elements(&array), storage[..24]);
        assert_eq!(of("a", Some(false)).err().map(|error| error.code()).is_some(), padding % 4 != 0);
        let array = of("b", Some(false)).unwrap();
        assert!(array.is_view());
        assert_eq!(elements(&array), storage[24..]);
    }
}

#[test]
fn t25_bools_other_than_0_and_1_are_never_viewed() {
    let file = |bytes: &[u8]| st::File::new().tensor("b", "BOOL", &[bytes.len() as u64], bytes).bytes();
    let good = open_from(file(&[0, 1, 1]), true, Options::default());
    assert!(good.checkpoint.tensor("b").unwrap().materialize(&Request::default()).unwrap().is_view());
    let bad = open_from(file(&[0, 1, 2, 255]), true, Options::default());
    let tensor = bad.checkpoint.tensor("b").unwrap();
    assert_eq!(elements(&tensor.materialize(&Request::default()).unwrap()), [0, 1, 1, 1]);
    let view = Request::new().copy(false);
    assert_eq!(tensor.materialize(&view).unwrap_err().code(), Code::Buffer);
    // The invalid byte is the last one, after more bytes than are checked in one block.
    let long = [&[1; 200_000][..], &[2]].concat();
    let long = open_from(file(&long), true, Options::default());
    let found = long.checkpoint.tensor("b").unwrap().materialize(&Request::default()).unwrap();
    assert!(!found.is_view() && elements(&found) == [1; 200_001]);
    // Only the bytes of the slice are checked.
    let part = tensor.index(&[TensorIndex::Range { start: None, stop: Some(2), step: None }]).unwrap();
    assert!(part.materialize(&view).unwrap().is_view());
}

#[test]
fn tensors_that_share_big_endian_bytes_are_swapped_once_each() {
    let storage: Vec<u8> = (1_u8..=6).flat_map(|value| f32::from(value).to_be_bytes()).collect();
    let part = |offset| Tensor::whole(DType::F32, &[6], "0").part(&[4], &[1], offset);
    let offsets = [0, 2, 1];
    let pickle = torch_dict(&[("a", part(0)), ("b", part(2)), ("c", part(1))]);
    let opened =
        open_from(Archive::new(pickle).storage("0", &storage).big_endian().bytes(), true, Options::default());
    let request = Request::new().copy(true);
    let requests = ["a", "b", "c"].map(|name| (opened.checkpoint.tensor(name).unwrap(), request.clone()));
    let options = StreamOptions::new().window(64 << 20).threads(1);
    let mut stream = Stream::new(requests.to_vec(), options);
    let mut given = 0;
    loop {
        match stream.next_within(Duration::from_secs(10)).unwrap() {
            Taken::Item(found) => {
                let Output::Array(array) = found.output else { panic!("an owned array") };
                let first = offsets[found.index] as u8 + 1;
                let expected: Vec<f32> = (first..first + 4).map(f32::from).collect();
                assert_eq!(elements(&array), f32s(&expected), "tensor {}", found.index);
                given += 1;
            }
            Taken::Waiting => {}
            Taken::Finished => break,
        }
    }
    assert_eq!(given, 3);
}

#[test]
fn empty_tensors_and_scalars_are_materialized_with_every_request() {
    let file = st::File::new().tensor("none", "F32", &[0, 7], &[]).tensor("one", "F32", &[], &f32s(&[2.0]));
    for in_file in [true, false] {
        let opened = open_from(file.bytes(), in_file, Options::default());
        let of = |name: &str, request: &Request| opened.checkpoint.tensor(name).unwrap().materialize(request);
        for copy in [None, Some(true)] {
            let request = Request::new().copy(copy);
            assert_eq!(of("none", &request).unwrap().shape(), [0, 7]);
            assert_eq!(elements(&of("one", &request).unwrap()), f32s(&[2.0]));
        }
        let cast = Request::new().dtype(DType::F64);
        assert_eq!(elements(&of("one", &cast).unwrap()), 2.0_f64.to_le_bytes());
        assert_eq!(of("none", &cast).unwrap().nbytes(), 0);
        let transpose = Request::new().transpose();
        assert_eq!(of("one", &transpose).unwrap_err().code(), Code::Value);
    }
}

#[test]
fn a_file_that_is_truncated_after_opening_is_an_error_for_owned_results() {
    let storage = noise(20 << 20);
    let bytes = st::File::new().tensor("w", "U8", &[20 << 20], &storage).bytes();
    let opened = open_from(bytes, true, Options::default());
    let tensor = opened.checkpoint.tensor("w").unwrap();
    assert!(tensor.materialize(&Request::new().copy(true)).is_ok());
    opened.file.as_ref().unwrap().as_file().set_len(15 << 20).unwrap();
    for threads in [1, 4] {
        let cast = Request::new().dtype(DType::F32).threads(threads);
        assert_eq!(tensor.materialize(&cast).unwrap_err().code(), Code::FileChanged);
        let copy = Request::new().copy(true).threads(threads);
        assert_eq!(tensor.materialize(&copy).unwrap_err().code(), Code::FileChanged);
    }
    assert_eq!(tensor.materialize(&Request::default()).unwrap_err().code(), Code::FileChanged);
}

#[test]
fn t16_expanded_tensors_grow_up_to_a_limit() {
    let layout = FileLayout::new(&[100, 6], &[0, 1], 0);
    let storage = noise(24);
    let with = |ratio: u64, bytes: u64| {
        let limits = Limits::new().materialize_ratio(ratio).materialize_bytes(bytes);
        let options = Options::new().limits(limits);
        open_from(archive(&layout, DType::F32, &storage, false).bytes(), false, options)
    };
    let copy = Request::new().copy(true);
    let result = |opened: &Opened, request: &Request| {
        opened.checkpoint.tensor("w").unwrap().materialize(request).map(|array| array.nbytes())
    };
    assert_eq!(result(&with(16, 1000), &copy).unwrap_err().code(), Code::Limit);
    assert_eq!(result(&with(100, 1000), &copy).unwrap(), 2400);
    assert_eq!(result(&with(0, 2400), &copy).unwrap(), 2400);
    // The limit is on the result: a wider dtype takes more.
    let wide = Request::new().dtype(DType::F64);
    assert_eq!(result(&with(0, 2400), &wide).unwrap_err().code(), Code::Limit);
    // A single row has no broadcast dimension.
    let opened = with(0, 0);
    let row = opened.checkpoint.tensor("w").unwrap().index(&[TensorIndex::At(7)]).unwrap();
    assert_eq!(elements(&row.materialize(&copy).unwrap()), storage);
}

#[test]
fn a_destination_of_another_size_than_the_result_is_an_error() {
    let (layout, storage) = square();
    let checkpoint = opened(archive(&layout, DType::F32, &storage, false).bytes());
    let tensor = checkpoint.tensor("w").unwrap();
    for len in [0, 79, 81, 160] {
        let error = tensor.materialize_into(&Request::default(), &mut vec![0; len]).unwrap_err();
        assert_eq!(error.code(), Code::Value, "{len}");
    }
    let half = Request::new().dtype(DType::F16);
    assert_eq!(tensor.materialize_into(&half, &mut [0; 80]).unwrap_err().code(), Code::Value);
    tensor.materialize_into(&half, &mut [0; 40]).unwrap();
}

#[test]
fn casts_that_change_the_kind_of_number_need_allow_lossy() {
    let (layout, storage) = square();
    let checkpoint = opened(archive(&layout, DType::F32, &storage, false).bytes());
    let tensor = checkpoint.tensor("w").unwrap();
    let request = |dtype, allow_lossy| Request::new().dtype(dtype).allow_lossy(allow_lossy);
    for dtype in [DType::I32, DType::Bool, DType::U8] {
        assert_eq!(tensor.materialize(&request(dtype, false)).unwrap_err().code(), Code::LossyCast);
        assert!(kernel::is_lossy(DType::F32, dtype));
        tensor.materialize(&request(dtype, true)).unwrap();
    }
    tensor.materialize(&request(DType::C64, false)).unwrap();
    let packed = tensor.materialize(&request(DType::F4E2M1FnX2, true)).unwrap_err();
    assert_eq!(packed.code(), Code::DtypeUnsupported);
}

#[test]
fn a_cancelled_request_is_an_error() {
    let (layout, storage) = square();
    let checkpoint = opened(archive(&layout, DType::F32, &storage, false).bytes());
    let cancel = Cancel::new();
    let request = Request::new().copy(true).cancel(cancel.clone());
    checkpoint.tensor("w").unwrap().materialize(&request).unwrap();
    cancel.cancel();
    let error = checkpoint.tensor("w").unwrap().materialize(&request).unwrap_err();
    assert_eq!((error.code(), error.member()), (Code::Cancelled, Some("w")));
}

#[test]
fn tensors_outlive_their_checkpoint() {
    let (layout, storage) = square();
    let opened = open_from(archive(&layout, DType::F32, &storage, false).bytes(), true, Options::default());
    let tensor = opened.checkpoint.tensor("w").unwrap();
    let view = tensor.materialize(&Request::default()).unwrap();
    drop(opened);
    let expected = layout.reference(&storage, DType::F32, DType::F32, false);
    assert_eq!(elements(&view), expected);
    assert_eq!(into_vec(&tensor, &Request::default()), expected);
}

#[test]
fn z37_the_checksum_of_a_deflated_storage_is_verified() {
    let tensor = Tensor::whole(DType::U8, &[4096], "0");
    let built = Archive::new(torch_dict(&[("w", tensor)])).storage("0", &[7; 4096]).deflated("data/0");
    let checkpoint = opened(built.bytes());
    assert_eq!(into_vec(&checkpoint.tensor("w").unwrap(), &Request::default()), [7; 4096]);
    let wrong = built.wrong_crc("data/0");
    let error =
        open(wrong.bytes()).unwrap().tensor("w").unwrap().materialize(&Request::default()).unwrap_err();
    assert_eq!(error.code(), Code::ZipCrc);
}

#[test]
fn a_deflated_storage_is_inflated_once_for_all_its_slices() {
    const ROWS: i64 = 4096;
    let numel = ROWS * 8192;
    let bytes: Vec<u8> = (0..numel).map(|at| (at / 8192 % 251) as u8).collect();
    let tensor = |key: &str| Tensor::whole(DType::U8, &[ROWS, 8192], key);
    let pickle = torch_dict(&[("one", tensor("0")), ("two", tensor("1"))]);
    let archive = Archive::new(pickle).storage("0", &bytes).deflated("data/0");
    let archive = archive.storage("1", &bytes).deflated("data/1").wrong_crc("data/1");
    let opened = open_from(archive.bytes(), true, Options::default());
    let tensor = opened.checkpoint.tensor("one").unwrap();
    let row = |at: i64| into_vec(&tensor.index(&[TensorIndex::At(at)]).unwrap(), &Request::default());
    let start = Instant::now();
    assert_eq!(row(7), [7; 8192]);
    let first = start.elapsed();
    let start = Instant::now();
    for at in 0..100 {
        assert_eq!(row(at), [at as u8; 8192]);
    }
    assert!(start.elapsed() < first * 20, "{:?} for 100 slices, {first:?} for the first", start.elapsed());
    // The cache holds one storage: another one replaces it, even if it cannot be read; then the first is inflated again.
    let other = opened.checkpoint.tensor("two").unwrap();
    assert_eq!(other.materialize(&Request::default()).unwrap_err().code(), Code::ZipCrc);
    assert_eq!(row(9), [9; 8192]);
    // A change of the file is detected although the storage is cached.
    let file = std::fs::OpenOptions::new().append(true).open(opened.file.as_ref().unwrap().path()).unwrap();
    (&file).write_all(b"x").unwrap();
    let error = tensor.materialize(&Request::default()).unwrap_err();
    assert_eq!(error.code(), Code::FileChanged);
}

#[test]
fn a_whole_storage_is_copied_to_preserve_ties_and_strides() {
    let two = |one: Tensor, two: Tensor, dtype: DType| {
        let bytes = noise(usize::try_from(48 * dtype.itemsize()).unwrap());
        Archive::new(torch_dict(&[("one", one), ("two", two)])).storage("0", &bytes).deflated("data/0")
    };
    let shared_storage = |archive: Archive, name: &str| {
        opened(archive.bytes()).tensor(name).unwrap().shared_storage(None, &Cancel::new()).unwrap()
    };
    let whole = |dtype| Tensor::whole(dtype, &[48], "0");
    // Deflated, so there is no view: a copy of the whole storage preserves tied names and strides.
    let tied = || two(whole(DType::F32), whole(DType::F32).part(&[4], &[1], 1), DType::F32);
    assert_eq!(shared_storage(tied(), "one"), Some(SharedStorage::Copy));
    assert_eq!(shared_storage(tied(), "two"), Some(SharedStorage::Copy));
    // A big-endian storage is swapped as a whole.
    assert_eq!(shared_storage(tied().big_endian(), "one"), Some(SharedStorage::Copy));
    let mixed = two(Tensor::whole(DType::U16, &[96], "0"), whole(DType::U32).part(&[4], &[1], 1), DType::U32);
    assert_eq!(code(mixed.big_endian().bytes()), Code::ByteOrder);
    assert_eq!(shared_storage(two(whole(DType::Bool), whole(DType::Bool), DType::Bool), "one"), None);
    let error = opened(tied().bytes())
        .tensor("one")
        .unwrap()
        .shared_storage(Some(false), &Cancel::new())
        .unwrap_err();
    assert_eq!(error.code(), Code::RecordCompressed);
    // For a part of a tensor, the whole storage is not copied.
    let part = opened(tied().bytes()).tensor("one").unwrap().index(&[TensorIndex::At(0)]).unwrap();
    assert_eq!(part.shared_storage(None, &Cancel::new()).unwrap(), None);
}
