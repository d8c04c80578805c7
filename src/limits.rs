//! Resource limits, which every parser checks before it allocates or continues. Each has a name, a default and an override.

use crate::error::{Error, Result};

macro_rules! limits {
    ($($name:ident = $default:expr, $what:literal;)*) => {
        /// Upper bounds on the resources that a file may make the reader use. The defaults suffice for real checkpoints.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Limits { $(#[doc = $what] pub $name: u64,)* }

        impl Default for Limits {
            fn default() -> Limits {
                Limits { $($name: $default,)* }
            }
        }

        impl Limits {
            /// The defaults.
            pub fn new() -> Limits {
                Limits::default()
            }

            $(#[doc = concat!("Sets the limit `", stringify!($name), "`.")]
            #[must_use]
            pub fn $name(self, $name: u64) -> Limits {
                Limits { $name, ..self }
            })*

            /// The names of all limits, each with what it bounds.
            pub const NAMES: &'static [(&'static str, &'static str)] = &[$((stringify!($name), $what),)*];

            /// The limit named `name`, to read or set; `None` for an unknown name.
            pub fn by_name(&mut self, name: &str) -> Option<&mut u64> {
                match name { $(stringify!($name) => Some(&mut self.$name),)* _ => None }
            }
        }
    };
}

limits! {
    pickle_bytes = 256 << 20, "Bytes of one pickle, after inflation.";
    nodes = 32 << 20, "Values that one pickle may create.";
    stack = 16 << 20, "Values on the pickle machine's operand stack.";
    marks = 65_536, "Marks on the pickle machine's stack.";
    memo = 32 << 20, "Entries in the pickle machine's memo table.";
    line = 4096, "Bytes in a text line of a pickle (a module or class name, a number).";
    dotted = 16, "Parts of a dotted name in a pickle.";
    int_bytes = 1024, "Bytes of one binary integer.";
    int_digits = 4300, "Digits of one integer in text.";
    depth = 512, "Nesting depth of containers that is displayed or searched for tensor names.";
    key_depth = 4, "Nesting depth of tuples in a dict key.";
    key_nodes = 64, "Values inside one dict key.";
    export_nodes = 32 << 20, "Python objects that an object tree may become; items and every 64 bytes of text count too.";
    export_bytes = 256 << 20, "Bytes of the Python objects that an object tree may become, tensors' handles excepted; an estimate.";
    name_bytes_total = 256 << 20, "Bytes of all tensor names together, and of the other texts in a checkpoint's reports. A pickle of less than a sixteenth of it gets less.";
    tensors = 4_000_000, "Tensors in one checkpoint, and calls of any one class or function in a pickle.";
    rank = 64, "Dimensions of one tensor.";
    entries = 1 << 20, "Members of one zip or tar archive, and legacy streams inside one pickle.";
    directory_bytes = 256 << 20, "Bytes of one zip archive's central directory, or of all names in one tar archive.";
    name_bytes = 511, "Bytes of the name of one member of an archive.";
    inflate_bytes = 256 << 20, "Bytes that compressed metadata may inflate to.";
    inflate_ratio = 200, "How many times its compressed size metadata may inflate to, once that is more than 16 MiB.";
    header_bytes = 100_000_000, "Bytes of a safetensors header, or of the configurations of an exported program together. An extended header of a tar archive gets 1 MiB at most.";
    index_bytes = 256 << 20, "Bytes of an index file (`*.index.json`).";
    scan_depth = 3, "Nesting depth of archives and pickles that a scan follows.";
    scan_bytes = 64 << 20, "Bytes of one file that a scan inflates or copies to scan nested containers.";
    findings = 10_000, "Findings, and lines of each other list, in the report on one file.";
    report_bytes = 16 << 20, "Bytes of the report of one scan: its texts as JSON, and 256 bytes for each item of a list.";
    remote_requests = 10_000, "Requests for one file that is not on this machine, behind a URL or a file object, until it is open or scanned. What a scan would need more for is unscanned.";
    remote_bytes = 64 << 20, "Bytes that these requests may fetch.";
    materialize_ratio = 16, "How many times their storages tensors with repeated or shared elements may grow to, one alone or all that a call returns or writes together.";
    available_memory = 0, "Bytes of memory that the results of one call may take together. 0: what the cgroup, RLIMIT_AS, RLIMIT_DATA and the machine leave, compared before results of 64 MiB or more are made.";
    materialize_bytes = 1 << 30, "Bytes that tensors with repeated or shared elements may grow to, whatever their storages.";
}

/// Bytes that compressed metadata may inflate to whatever its compressed size.
const INFLATE_ANY_RATIO_BYTES: u64 = 16 << 20;

impl Limits {
    /// Fails with `InflateRatio` where metadata of `compressed` bytes inflates to so many bytes that it exceeds the limit
    /// `inflate_ratio`, which is `ratio`.
    pub(crate) fn check_inflate_ratio(ratio: u64, compressed: u64, inflated: u64) -> Result<()> {
        let max = compressed.saturating_mul(ratio).max(INFLATE_ANY_RATIO_BYTES);
        if inflated > max { Err(Error::inflate_ratio(ratio, compressed, inflated)) } else { Ok(()) }
    }

    /// Fails with the limit's name where `found` exceeds `limit`.
    pub fn check(name: &'static str, limit: u64, found: u64) -> Result<()> {
        if found > limit { Err(Error::limit(name, limit, found)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_may_inflate_to_a_multiple_of_its_size() {
        let code = |compressed, inflated| {
            Limits::check_inflate_ratio(200, compressed, inflated).err().map(|error| error.code().as_str())
        };
        assert_eq!(code(0, 16 << 20), None);
        assert_eq!(code(1, (16 << 20) + 1), Some("InflateRatio"));
        assert_eq!(code(1 << 20, 200 << 20), None);
        assert_eq!(code(1 << 20, (200 << 20) + 1), Some("InflateRatio"));
        assert_eq!(code(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn every_limit_is_found_by_name() {
        let mut limits = Limits::default();
        for (name, _) in Limits::NAMES {
            *limits.by_name(name).expect("a name from the list") = 1;
        }
        assert_eq!(limits.marks, 1);
        assert_eq!(Limits::new().marks(1), Limits { marks: 1, ..Limits::default() });
        assert!(limits.by_name("nonsense").is_none());
    }
}
