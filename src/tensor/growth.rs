//! The total of what one call makes out of storages: many tensors may view the same bytes, and a small file can describe any number.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::sync::Arc;

use super::Tensor;
use crate::dtype::DType;
use crate::error::Result;
use crate::limits::Limits;
use crate::stream;

/// Counts the elements of results that are kept together, and the storages that they are read from.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Bytes of the elements, in the dtypes of the results.
    bytes: u64,
    /// Bytes of the distinct storages.
    storage_bytes: u64,
    /// The storages, by the address of their checkpoint.
    storages: HashSet<(usize, (u32, u32))>,
}

impl Growth {
    /// Adds a result of this dtype. Fails where the results together exceed `materialize_bytes`, and their storages
    /// `materialize_ratio` times.
    pub(crate) fn add(&mut self, tensor: &Tensor, dtype: DType) -> Result<()> {
        let nbytes = stream::result_bytes(&tensor.layout, dtype).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(nbytes);
        let storage = tensor.storage();
        if self.storages.insert((Arc::as_ptr(&tensor.opened).addr(), storage)) {
            let nbytes = tensor.opened.storage(storage).nbytes;
            self.storage_bytes = self.storage_bytes.saturating_add(nbytes);
        }
        let limits = &tensor.opened.options.limits;
        let max = self.storage_bytes.saturating_mul(limits.materialize_ratio).max(limits.materialize_bytes);
        Limits::check("materialize_bytes", max, self.bytes)
    }
}
