//! Lists the tensors of a checkpoint: `cargo run --example list model.bin`. Reads metadata only.

use std::error::Error;

use rustload::Checkpoint;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("give the path of a checkpoint")?;
    let checkpoint = Checkpoint::open(path)?;
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name)?;
        println!("{name}\t{}\t{:?}\t{} bytes", tensor.dtype(), tensor.shape(), tensor.nbytes());
    }
    println!("{:?}, {} names, {} bytes", checkpoint.format(), checkpoint.len(), checkpoint.nbytes());
    Ok(())
}
