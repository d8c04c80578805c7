//! What is at which offset: files and memory, positional reads, mappings, and a checked little-endian cursor.

mod cursor;
mod mapping;
mod region;
mod source;

pub use cursor::Cursor;
pub use mapping::Mapping;
pub use region::Region;
pub use source::{Bytes, Source};
