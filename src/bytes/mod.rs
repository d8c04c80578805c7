//! Byte sources: one trait for files, memory and everything else that is read by position, and one for folders; buffered and `O_DIRECT` reads, mappings,
//! and a checked little-endian cursor.

mod access;
mod backing;
mod chunk;
mod cursor;
mod deferred;
mod fetched;
mod file;
mod file_system;
mod folder;
mod handle;
mod io_choice;
mod manifest;
mod mapping;
mod mappings;
mod node;
mod os;
mod price;
mod probe;
mod read_mode;
mod read_ranges;
mod reader;
mod region;
mod remote;
mod request_meter;
mod scratch;
mod source;
mod unit_cache;
mod verified;

pub use access::Access;
pub use chunk::{Bytes, Chunk};
pub use cursor::Cursor;
pub use deferred::Proof;
pub use fetched::Fetched;
pub use file::{FileStamp, LocalFile};
pub use file_system::{FileSystem, FileSystemKind};
pub use folder::{Folder, is_plain_name};
pub use io_choice::{DIRECT_ALIGNMENT, Io, IoChoice};
pub use manifest::{Digest, ListedFile, Manifest, UNIT_MAX_BYTES};
pub use mapping::Mapping;
pub use mappings::Mappings;
pub use node::NodeShare;
#[cfg(feature = "cuda")]
pub(crate) use os::memory_file;
pub use probe::Probe;
pub use read_mode::{Descriptor, ReadMode, scratch_bounds};
pub use read_ranges::{RangeRead, ReadFolder, ReadRanges};
pub use reader::Reader;
pub use region::Region;
pub use request_meter::Requests;
pub use scratch::{AlignedMemory, AllocateAligned, Scratch};
pub use source::Source;
pub use verified::VerifiedFolder;
