//! Byte sources: one trait for files, memory and everything else that is read by position, and one for folders; buffered and `O_DIRECT` reads, mappings,
//! and a checked little-endian cursor.

mod block_cache;
mod chunk;
mod cursor;
mod deferred;
mod fetched;
mod file;
mod file_system;
mod folder;
mod handle;
mod in_memory;
mod io_choice;
mod mapping;
mod mappings;
mod os;
mod probe;
mod read_ranges;
mod reader;
mod region;
mod request_limits;
mod scratch;
mod source;

pub use chunk::Chunk;
pub use cursor::Cursor;
pub use deferred::Proof;
pub use fetched::Fetched;
pub use file::{FileStamp, LocalFile};
pub use file_system::{FileSystem, FileSystemKind};
pub use folder::{LocalFolder, ReadFolder, is_plain_name};
pub use io_choice::{DIRECT_ALIGNMENT, Io, IoChoice};
pub use mapping::Mapping;
pub use mappings::Mappings;
#[cfg(feature = "cuda")]
pub(crate) use os::memory_file;
pub use probe::Probe;
pub use read_ranges::{Access, RangeRead, ReadRanges};
pub use reader::{Descriptor, ReadMode, Reader, scratch_bounds};
pub use region::Region;
pub use request_limits::{RequestLimit, Requests};
pub use scratch::{AlignedMemory, AllocateAligned, Scratch};
pub use source::{Bytes, Source};
