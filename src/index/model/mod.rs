//! What tensors are, and where their bytes lie.

mod chunks;
mod extra;
mod index;
mod join;
mod location;
mod options;
mod part;
mod runs;
mod selection;
mod tensor;
mod tiling;

#[cfg(feature = "scan")]
pub use self::chunks::ChunkItem;
pub(crate) use self::chunks::{Chunk, ChunkPlace};
pub use self::chunks::{ChunkBytes, ChunkPart, Chunks};
pub use self::extra::{Component, Extra, Packed, Quantization, Scale, Sparse, SparseLayout};
pub use self::index::{Entry, Index, OpaqueClass, Path, PathStep};
pub use self::join::TensorPart;
pub use self::location::{Deflated, Location, Storage, StorageBytes, ValueBytes};
pub use self::options::{Options, Unknown};
pub use self::part::{Along, Part, Placement};
pub(crate) use self::runs::TensorRun;
pub(crate) use self::tensor::Flags;
pub use self::tensor::{RawTensor, Sizes, Tensor};
pub(crate) use self::tiling::check as check_tiling;
