//! The memory that the results of many requests take together, compared with what is left before any is made.

use std::collections::HashSet;
use std::sync::Arc;

use super::order;
#[cfg(feature = "cuda")]
use super::order::StreamStep;
use crate::error::Result;
use crate::memory;
use crate::sink;
use crate::stream;
use crate::tensor::{Request, SharedStorage, Tensor};

/// The most bytes of host memory in use while all results of these requests are made and kept: those of tied names and of shared
/// storages once, those of views none, and the largest storage that is inflated. Results share storages with `share_storages`.
pub(crate) fn needed_bytes(requests: &[(Tensor, Request)], share_storages: bool) -> Result<u64> {
    let mut storages = HashSet::new();
    let (mut needed, mut inflated) = (0_u64, 0);
    for step in order::steps(requests, false, 1).iter().filter(|step| step.first == step.index) {
        let (tensor, request) = &requests[step.index];
        if tensor.is_meta() {
            continue;
        }
        let shared = if share_storages && tensor.may_share_storage(request) {
            tensor.shared_storage(request.copy, &request.cancel)?
        } else {
            None
        };
        let bytes = match shared {
            Some(SharedStorage::View) => 0,
            Some(SharedStorage::Copy) => {
                let is_new = storages.insert((Arc::as_ptr(&tensor.opened).addr(), tensor.storage()));
                if is_new { sink::footprint(tensor.storage_nbytes()) } else { 0 }
            }
            None => tensor.footprint(request),
        };
        if bytes > 0 {
            inflated = tensor.inflated_bytes().max(inflated);
        }
        needed = needed.saturating_add(bytes);
    }
    Ok(needed.saturating_add(inflated))
}

/// The largest limit `available_memory` of the checkpoints.
fn available_memory(requests: &[(Tensor, Request)]) -> u64 {
    let limits = requests.iter().map(|(tensor, _)| tensor.opened.options.limits.available_memory);
    limits.max().unwrap_or(0)
}

/// Fails where the results of these requests, which the caller keeps, and `more` bytes do not fit the memory that the process may
/// take. Reads nothing where they surely fit.
pub(crate) fn check_memory(requests: &[(Tensor, Request)], share_storages: bool, more: i64) -> Result<()> {
    let given = available_memory(requests);
    let total = |bytes: u64| bytes.saturating_add_signed(more);
    // No result takes more than its elements, or its storage where that is shared.
    let most = requests.iter().fold(0_u64, |most, (tensor, request)| {
        let elements =
            stream::result_bytes(tensor.layout(), tensor.result_dtype(request)).unwrap_or(u64::MAX);
        let shared = if share_storages { tensor.storage_nbytes() } else { 0 };
        most.saturating_add(elements.max(shared)).saturating_add(tensor.inflated_bytes())
    });
    if memory::fits(total(most), given) {
        return Ok(());
    }
    sink::check_memory(total(needed_bytes(requests, share_storages)?), given)
}

/// Fails where the results of these requests on a GPU, which has `free` bytes left and frees `freed` more meanwhile, do not fit it,
/// nor the limit `available_memory`: a smaller one is the host's.
#[cfg(feature = "cuda")]
pub(crate) fn check_gpu_memory(requests: &[(Tensor, Request)], free: u64, freed: u64) -> Result<()> {
    let is_distinct = |step: &&StreamStep| step.first == step.index;
    let needed = order::steps(requests, false, 1).iter().filter(is_distinct).fold(0_u64, |sum, step| {
        let (tensor, request) = &requests[step.index];
        let bytes = stream::result_bytes(tensor.layout(), tensor.result_dtype(request)).unwrap_or(u64::MAX);
        if tensor.is_meta() { sum } else { sum.saturating_add(bytes) }
    });
    memory::check_gpu(needed.saturating_sub(freed), free, available_memory(requests))
}
