//! The options of a stream.

use crate::builder::setters;

/// The default window of a stream.
const WINDOW_BYTES: u64 = 256 << 20;

/// Options of a stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Bytes that may be in flight beyond what the consumer holds; lowered where the process's cgroup has little memory left.
    pub window: u64,
    /// Threads to use; `None` for one per core, or one alone where the work is too small for more.
    pub threads: Option<usize>,
    /// Whether tensors come in file order, with several files interleaved, or in the order of the requests.
    pub by_file: bool,
    /// Whether to return [`Output::SharedStorage`](super::Output::SharedStorage) for tensors that share a storage: the consumer then
    /// gets the storage once and creates the tensors on it (in torch they stay tied).
    pub share_storages: bool,
    /// Whether the consumer keeps all results, as in a full load. Otherwise memory of dropped results that is cached for reuse
    /// counts in the window.
    pub results_kept: bool,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            window: WINDOW_BYTES,
            threads: None,
            by_file: true,
            share_storages: false,
            results_kept: false,
        }
    }
}

impl StreamOptions {
    /// The defaults: file order, a window of 256 MiB, as many threads as are of use.
    pub fn new() -> StreamOptions {
        StreamOptions::default()
    }

    setters! {
        window: u64,
        threads: impl Into<Option<usize>>,
        by_file: bool,
        share_storages: bool,
        results_kept: bool,
    }
}
