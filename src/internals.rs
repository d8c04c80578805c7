//! The modules behind the façade, for the project's own tests, benches and fuzz targets. Anything here may change in any release.

use std::path;
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::index::{Path, Quantization, Tree};
use crate::tensor::Tensor;

macro_rules! modules {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("The module `", stringify!($name), "`.")]
            pub mod $name {
                pub use crate::$name::*;
            }
        )*
    };
}

modules! {
    bytes container dtype error index kernel layout limits memory num parallel pickle sink stream
}

/// The path and object tree of each file; both are `None` where there is none (bytes in memory; safetensors).
pub fn trees(checkpoint: &Checkpoint) -> impl Iterator<Item = (Option<&path::Path>, Option<&Arc<Tree>>)> {
    checkpoint.trees()
}

/// The path of a tensor from the root of the object tree; `None` for a tensor without a name.
pub fn path(tensor: &Tensor) -> Option<&Path> {
    tensor.path()
}

/// The quantization parameters of a tensor; `None` where it is not quantized.
pub fn quantization(tensor: &Tensor) -> Option<&Quantization> {
    tensor.quantization()
}
