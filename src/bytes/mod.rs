//! What is at which offset: files and memory, positional reads, mappings, and a checked little-endian cursor.

mod chunk;
mod cursor;
mod direct;
mod mapping;
mod mappings;
mod place;
mod probe;
mod reader;
mod region;
mod scratch;
mod source;

pub use chunk::Chunk;
pub use cursor::Cursor;
pub use direct::{BLOCK, Choice, Io};
pub use mapping::Mapping;
pub use mappings::Mappings;
pub use place::{Place, PlaceKind};
pub use probe::Probe;
pub use reader::Reader;
pub use region::Region;
pub use scratch::{Blocks, MakeBlocks, Scratch};
pub use source::{Bytes, Source};
