//! Reads all floating-point tensors of a checkpoint as bfloat16: `cargo run --release --example materialize_bf16 model.bin`.
//!
//! The stream reads and casts ahead of the loop. Whatever the size of the checkpoint, it holds at most 64 MiB in addition to the
//! array that the loop has.

use std::error::Error;

use rustload::{Checkpoint, DType, NumberKind, Output, Request, Stream, StreamOptions, bf16};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("give the path of a checkpoint")?;
    let checkpoint = Checkpoint::open(path)?;
    let request = Request::new().dtype(DType::BF16);
    let mut requests = Vec::new();
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name)?;
        if tensor.dtype().kind() == NumberKind::Float {
            requests.push((tensor, request.clone()));
        }
    }
    let names: Vec<String> = requests.iter().map(|(tensor, _)| tensor.name().to_owned()).collect();
    for item in Stream::new(requests, StreamOptions::new().window(64 << 20)) {
        let item = item?;
        let name = &names[item.index];
        match item.output {
            Output::Array(array) => {
                println!("{name}\t{:?}\tlargest {}", array.shape(), largest(&array.to_vec()?))
            }
            _ => println!("{name}\tthe same as {}", names[item.first]),
        }
    }
    Ok(())
}

fn largest(numbers: &[bf16]) -> f32 {
    numbers.iter().map(|number| number.to_f32().abs()).fold(0.0, f32::max)
}
