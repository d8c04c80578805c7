//! The order of a stream's items, and which of them alias each other.

use std::collections::{HashMap, VecDeque};

use crate::tensor::{Request, Tensor};

/// Bytes taken from one file before the next one's turn.
const INTERLEAVE_BYTES: u64 = 8 << 20;

/// One step of a stream: which request comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamStep {
    /// The index of the request.
    pub(crate) index: usize,
    /// The index of the first request with the same result: its own, or an earlier step's.
    pub(crate) first: usize,
    /// Whether a later step has the same result.
    pub(crate) has_later_alias: bool,
}

/// The steps for these requests: in file order, with up to `threads` files interleaved, or in the order of the list.
pub(super) fn steps(requests: &[(Tensor, Request)], by_file: bool, threads: usize) -> Vec<StreamStep> {
    let order = if by_file { file_order(requests, threads) } else { (0..requests.len()).collect() };
    let mut steps: Vec<StreamStep> = Vec::with_capacity(order.len());
    // The last step of each set of aliases, by a key that is cheap to compare.
    let mut latest: HashMap<_, Vec<usize>> = HashMap::with_capacity(order.len());
    for index in order {
        let (tensor, request) = &requests[index];
        let candidates =
            latest.entry((tensor.file(), tensor.storage().1, tensor.layout().offset)).or_default();
        let alias = candidates.iter_mut().find(|step| {
            let (other, other_request) = &requests[steps[**step].index];
            let same_values = !request.dequantize || tensor.has_same_dequantization(other);
            tensor.is_alias_of(other) && request.is_equivalent_to(other_request) && same_values
        });
        let next = steps.len();
        let first = match alias {
            Some(alias) => {
                let previous = &mut steps[std::mem::replace(alias, next)];
                previous.has_later_alias = true;
                previous.first
            }
            None => {
                candidates.push(next);
                index
            }
        };
        steps.push(StreamStep { index, first, has_later_alias: false });
    }
    steps
}

/// All requests sorted by file and position in it, with up to `threads` files interleaved.
fn file_order(requests: &[(Tensor, Request)], threads: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let position = |index: &usize| requests[*index].0.place();
    let file = |index: usize| {
        let (checkpoint, file, _) = requests[index].0.place();
        (checkpoint, file)
    };
    // The sort is stable, so tied names stay in the order of the list.
    order.sort_by_cached_key(position);
    let mut files: Vec<Vec<usize>> = Vec::new();
    for index in order {
        match files.last_mut() {
            Some(files) if file(files[0]) == file(index) => files.push(index),
            _ => files.push(vec![index]),
        }
    }
    interleave(files, threads, |index| requests[index].0.nbytes())
}

/// The items of all files, [`INTERLEAVE_BYTES`] of each in turn, `concurrent` files at a time.
fn interleave(files: Vec<Vec<usize>>, concurrent: usize, bytes: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut out = Vec::with_capacity(files.iter().map(Vec::len).sum());
    let mut waiting = files.into_iter().map(Vec::into_iter);
    let mut open: VecDeque<_> = waiting.by_ref().take(concurrent.max(1)).collect();
    while let Some(mut file) = open.pop_front() {
        let mut taken = 0_u64;
        while taken < INTERLEAVE_BYTES {
            let Some(index) = file.next() else { break };
            taken = taken.saturating_add(bytes(index));
            out.push(index);
        }
        if file.as_slice().is_empty() {
            open.extend(waiting.next());
        } else {
            open.push_back(file);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_interleaved_and_keep_their_own_order() {
        let files = vec![vec![0, 1, 2], vec![3, 4], vec![5]];
        let half = |_| INTERLEAVE_BYTES / 2;
        assert_eq!(interleave(files.clone(), 1, half), [0, 1, 2, 3, 4, 5]);
        assert_eq!(interleave(files.clone(), 2, half), [0, 1, 3, 4, 2, 5]);
        assert_eq!(interleave(files, 2, |_| 1), [0, 1, 2, 3, 4, 5]);
    }
}
