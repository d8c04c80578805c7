//! Streams and joins of the core: order, ties, errors, and how streams end.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic, and say so by failing")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::{f32s, st};
use rustload::internals::bytes::Source;
use rustload::internals::kernel::Cast;
use rustload::internals::stream::{self, Elements, Fill, JoinPart, Payload, Signs};
use rustload::{
    Cancel, Checkpoint, Code, DType, Joined, Layout, Options, Order, Output, Request, Stream, StreamOptions,
    Taken, TensorIndex,
};

fn options() -> StreamOptions {
    StreamOptions::new().window(64 << 20).threads(2)
}

fn safetensors(tensors: &[(&str, &[u64], Vec<f32>)]) -> Checkpoint {
    let file = st::File::new();
    let file = tensors
        .iter()
        .fold(file, |file, (name, shape, values)| file.tensor(name, "F32", shape, &f32s(values)));
    Checkpoint::from_bytes(std::sync::Arc::new(file.bytes()), Options::default()).unwrap()
}

fn counting(count: usize) -> Vec<f32> {
    (0_u16..).map(f32::from).take(count).collect()
}

fn all(ckpt: &Checkpoint, request: &Request) -> Vec<(rustload::Tensor, Request)> {
    ckpt.names().map(|name| (ckpt.tensor(name).unwrap(), request.clone())).collect()
}

/// All outputs of a stream, or the index and code of its error.
fn drain(mut stream: Stream) -> Result<Vec<(usize, Output)>, (usize, Code)> {
    let mut out = Vec::new();
    loop {
        match stream.next_within(Duration::from_secs(10)) {
            Ok(Taken::Item(item)) => out.push((item.index, item.output)),
            Ok(Taken::Finished) => return Ok(out),
            Ok(Taken::Waiting) => {}
            Err(failed) => return Err((failed.index, failed.error.code())),
        }
    }
}

fn shape_of(output: &Output) -> Vec<u64> {
    match output {
        Output::Array(array) => array.shape().to_vec(),
        other => panic!("{other:?} is not an array"),
    }
}

#[test]
fn order_is_that_of_the_list_or_of_the_data_in_the_file() {
    let ckpt = safetensors(&[("a", &[2], counting(2)), ("b", &[3], counting(3)), ("c", &[4], counting(4))]);
    let copy = Request::new().copy(true);
    let mut requests = all(&ckpt, &copy);
    requests.reverse();
    let found = drain(Stream::new(requests.clone(), options().by_file(false))).unwrap();
    assert_eq!(found.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1, 2]);
    let found = drain(Stream::new(requests, options())).unwrap();
    assert_eq!(found.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [2, 1, 0]);
    assert_eq!(found.iter().map(|(_, made)| shape_of(made)[0]).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn equal_requests_are_materialized_once() {
    let ckpt = safetensors(&[("a", &[2], counting(2))]);
    let tensor = ckpt.tensor("a").unwrap();
    let cast = Request::new().dtype(DType::F16);
    let requests = vec![(tensor.clone(), cast.clone()), (tensor.clone(), cast), (tensor, Request::default())];
    let found = drain(Stream::new(requests, options())).unwrap();
    assert!(matches!(&found[0].1, Output::Array(array) if array.dtype() == DType::F16));
    assert!(matches!(found[1].1, Output::Alias));
    assert!(matches!(&found[2].1, Output::Array(array) if array.dtype() == DType::F32));
}

#[test]
fn an_error_names_its_tensor_and_ends_the_stream() {
    let ckpt = safetensors(&[("a", &[2], counting(2)), ("b", &[3], counting(3))]);
    let mut requests = all(&ckpt, &Request::new().copy(true));
    requests[1].1.dtype = Some(DType::I8);
    assert_eq!(drain(Stream::new(requests.clone(), options())).unwrap_err(), (1, Code::LossyCast));
    let mut stream = Stream::new(requests, options().window(1));
    assert!(matches!(stream.next_within(Duration::from_secs(10)), Ok(Taken::Item(_))));
    let failed = stream.next_within(Duration::from_secs(10)).unwrap_err();
    assert_eq!((failed.index, &*failed.name, failed.error.member()), (1, "b", Some("b")));
    assert!(matches!(stream.next_within(Duration::from_secs(10)), Ok(Taken::Finished)));
}

#[test]
fn a_stream_that_is_closed_early_ends() {
    let tensors: Vec<(String, Vec<f32>)> = (0..50).map(|n| (format!("t{n:02}"), counting(10_000))).collect();
    let tensors: Vec<(&str, &[u64], Vec<f32>)> =
        tensors.iter().map(|(name, values)| (&**name, &[100, 100][..], values.clone())).collect();
    let ckpt = safetensors(&tensors);
    for taken in 0..3 {
        let request = Request::new().transpose();
        let mut stream = Stream::new(all(&ckpt, &request), options().window(100_000));
        for _ in 0..taken {
            assert!(matches!(stream.next_within(Duration::from_secs(10)), Ok(Taken::Item(_))));
        }
        stream.close();
        assert!(matches!(stream.next_within(Duration::ZERO), Ok(Taken::Finished)));
    }
}

#[test]
fn a_join_is_filled_with_the_strides_of_each_part() {
    let ckpt = safetensors(&[("a", &[3, 2], counting(6)), ("b", &[3, 1], vec![90.0, 91.0, 92.0])]);
    let parts = || vec![ckpt.tensor("a").unwrap(), ckpt.tensor("b").unwrap()];
    let joined = Joined::concat(parts(), 1).unwrap();
    let read = |joined: &Joined, order: Order| {
        let mut out = vec![0; 4 * 9];
        joined.materialize_into(&Request::new().order(order), &mut out).unwrap();
        out
    };
    assert_eq!(read(&joined, Order::Same), f32s(&[0.0, 1.0, 90.0, 2.0, 3.0, 91.0, 4.0, 5.0, 92.0]));
    let transposed = f32s(&[0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 90.0, 91.0, 92.0]);
    assert_eq!(read(&joined, Order::Transpose), transposed);
    assert_eq!(read(&joined.reversed(), Order::Same), transposed);
    let one = joined.index(&[TensorIndex::Ellipsis, TensorIndex::At(2)]).unwrap();
    assert_eq!((one.shape(), one.parts()[0].name()), (&[3][..], "b"));
    assert_eq!(Joined::concat(parts(), 0).unwrap_err().code(), Code::Value);
    assert_eq!(Joined::stack(parts(), 0).unwrap_err().code(), Code::Value);
    let mut short = vec![0; 4];
    assert_eq!(joined.materialize_into(&Request::default(), &mut short).unwrap_err().code(), Code::Value);
}

#[test]
fn a_join_of_joins_has_the_parts_of_all() {
    let names = ["a", "b", "c", "d"];
    let values = |at: usize| (0..4).map(|n| (10 * at + n) as f32).collect::<Vec<f32>>();
    let tensors: Vec<(&str, &[u64], Vec<f32>)> =
        names.iter().enumerate().map(|(at, name)| (*name, &[2, 2][..], values(at))).collect();
    let ckpt = safetensors(&tensors);
    let stack = |names: &[&str]| {
        Joined::stack(names.iter().map(|name| ckpt.tensor(name).unwrap()).collect(), 0).unwrap()
    };
    let fused = Joined::concat(vec![stack(&names[..2]), stack(&names[2..])], 1).unwrap();
    assert_eq!((fused.shape(), fused.parts().len()), (&[2, 4, 2][..], 4));
    let read = |joined: &Joined| {
        let mut out = vec![0; usize::try_from(joined.nbytes()).unwrap()];
        joined.materialize_into(&Request::default(), &mut out).unwrap();
        out
    };
    // Of the first pair a and c, of the second b and d.
    let expected: Vec<f32> = [0, 2, 1, 3].into_iter().flat_map(values).collect();
    assert_eq!(read(&fused), f32s(&expected));
    let split = fused.reshape(&[2, 2, -1]).unwrap();
    assert_eq!((split.shape(), read(&split)), (&[2, 2, 4][..], f32s(&expected)));
    let one = split.index(&[TensorIndex::At(1), TensorIndex::At(0)]).unwrap();
    assert_eq!((one.parts()[0].name(), one.parts().len()), ("b", 1));
    assert_eq!(fused.permute(&[2, 0, 1]).unwrap().reshape(&[4, 4]).unwrap_err().code(), Code::Value);
    let none = fused.index(&[TensorIndex::from(1..1)]).unwrap().reshape(&[4, 0]).unwrap();
    assert_eq!((none.shape(), read(&none)), (&[4, 0][..], Vec::new()));
}

#[test]
fn a_layout_outside_its_storage_is_an_internal_error() {
    let bytes = [7_u8; 4096];
    let payload = Payload { source: Source::memory(Arc::new(bytes)), big_endian: false };
    let cast = Cast::new(DType::F32, DType::F32, rustload::Overflow::Nan).unwrap();
    let options = Fill { signs: Signs::default(), cast, threads: Some(1), cancel: Cancel::new() };
    let huge = u64::MAX / 3;
    let cases: [(&[u64], &[u64], u64); 7] = [
        (&[4, 4], &[huge, 1], 0),
        (&[4, 4], &[1, huge], 5),
        (&[4, 4], &[4, 1], u64::MAX - 3),
        (&[4, 4], &[4, 1], 1009),
        (&[16], &[1 << 62], 0),
        (&[16, 1], &[1], 0),
        (&[huge, huge], &[1, 1], 0),
    ];
    for (shape, strides, offset) in cases {
        let layout = Layout { shape: shape.into(), strides: strides.into(), offset };
        let mut out = [0_u8; 64];
        let found = stream::fill(&payload, &layout, &options, &mut out);
        assert_eq!(found.unwrap_err().code(), Code::InternalError, "{layout:?}");
        let offsets = layout.shape.iter().map(|_| 0).collect();
        let elements = Elements { payload: payload.clone(), layout: layout.clone(), how: options.clone() };
        let part = JoinPart { elements, offsets };
        let mut other = part.clone();
        other.offsets[0] = layout.shape[0];
        let mut whole = layout.shape.clone();
        whole[0] = whole[0].saturating_mul(2);
        let found = stream::fill_joined(vec![part, other], &whole, Some(1), &mut [0; 128]);
        assert_eq!(found.unwrap_err().1.code(), Code::InternalError, "{layout:?}");
        assert_eq!(out, [0; 64]);
    }
    let last = Layout { shape: [4, 4][..].into(), strides: [4, 1][..].into(), offset: 1008 };
    let mut out = [0_u8; 64];
    stream::fill(&payload, &last, &options, &mut out).unwrap();
    assert_eq!(out, [7; 64]);
}
