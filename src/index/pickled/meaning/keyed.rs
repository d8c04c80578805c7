//! Persistent ids of torch 0.1: numbers that refer to tensors and storages which the file describes before the pickle that has them
//! (torch/serialization.py: `legacy_load`).

use super::short_string;
use super::storage::is_key;
use super::{CallInterpreter, Keyed, StorageSlice};
use crate::error::{Code, Error, Result, error};
use crate::pickle::{Handle, Value, Values};

impl CallInterpreter<'_> {
    /// Resolves every persistent id. Fails for one that is neither a class nor the key of a tensor or storage.
    pub(super) fn resolve_keys(&mut self) -> Result<()> {
        let values = self.values;
        for value in values.iter() {
            let Value::PersistentId(pid) = value else { continue };
            if self.out.module(values, pid).is_some() {
                continue;
            }
            if let Keyed::Tensor(tensor) = self.keyed(pid)? {
                self.out.keyed_tensors.insert(pid, tensor);
            }
        }
        Ok(())
    }

    /// What a persistent id refers to.
    fn keyed(&self, pid: Handle) -> Result<Keyed> {
        let key = key(self.values, pid).ok_or_else(|| {
            Error::new(Code::PersistentId, "a persistent id is neither a number nor (class, file, source)")
        })?;
        self.keys.get(&key).copied().ok_or_else(|| {
            error!(Code::TarContent, "the pickle refers to {key}, which is neither a tensor nor a storage")
        })
    }

    /// The storage that a persistent id refers to.
    pub(super) fn keyed_storage(&self, pid: Handle) -> Result<StorageSlice> {
        match self.keyed(pid)? {
            Keyed::Storage(slice) => Ok(slice),
            Keyed::Tensor(_) => Err(Error::new(Code::TarContent, "a tensor stands where a storage belongs")),
        }
    }
}

/// The number that a persistent id is: an integer, or its digits (`legacy_load` calls `int`).
fn key(values: &Values, pid: Handle) -> Option<i64> {
    match values.get(pid) {
        Value::Int(key) => Some(key),
        _ => short_string(values, pid).filter(|key| is_key(key))?.parse().ok(),
    }
}
