//! Byte sources: files and memory, positional reads (buffered or `O_DIRECT`), mappings, and a checked little-endian cursor.

mod chunk;
mod cursor;
mod direct;
mod file_system;
mod mapping;
mod mappings;
mod probe;
mod reader;
mod region;
mod scratch;
mod source;

pub use chunk::Chunk;
pub use cursor::Cursor;
pub use direct::{DIRECT_ALIGNMENT, Io, IoChoice};
pub use file_system::{FileSystem, FileSystemKind};
pub use mapping::Mapping;
pub use mappings::Mappings;
pub use probe::Probe;
pub use reader::Reader;
pub use region::Region;
pub use scratch::{AlignedMemory, AllocateAligned, Scratch};
pub use source::{Bytes, Source};
