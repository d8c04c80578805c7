//! In which order a stream's tensors are made, and which of them are one and the same.

use std::collections::{HashMap, VecDeque};

use crate::tensor::{Request, Tensor};

/// Bytes that are taken from one file before the next has its turn.
const TURN: u64 = 8 << 20;

/// One tensor to be given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Its place in the list of wishes.
    pub(super) index: usize,
    /// The place of the wish that makes it: its own, or that of an earlier one with the same elements.
    pub(super) first: usize,
    /// Whether it is given again later.
    pub(super) again: bool,
}

/// The steps for these wishes: in the order of the data, up to `threads` files in turn, or as listed.
pub(super) fn steps(wishes: &[(Tensor, Request)], by_file: bool, threads: usize) -> Vec<Step> {
    let order = if by_file { file_order(wishes, threads) } else { (0..wishes.len()).collect() };
    let mut steps: Vec<Step> = Vec::with_capacity(order.len());
    // The last step of each set of equal tensors, by what is compared cheaply.
    let mut latest: HashMap<_, Vec<usize>> = HashMap::with_capacity(order.len());
    for index in order {
        let (tensor, request) = &wishes[index];
        let near = latest.entry((tensor.file(), tensor.storage().1, tensor.layout().offset)).or_default();
        let twin = near.iter_mut().find(|step| {
            let (other, wanted) = &wishes[steps[**step].index];
            let same_numbers = !request.dequantize || tensor.dequantizes_as(other);
            tensor.is_tied_to(other) && request.gives_as(wanted) && same_numbers
        });
        let next = steps.len();
        let first = match twin {
            Some(twin) => {
                let before = &mut steps[std::mem::replace(twin, next)];
                before.again = true;
                before.first
            }
            None => {
                near.push(next);
                index
            }
        };
        steps.push(Step { index, first, again: false });
    }
    steps
}

/// All wishes by file and place in it; several files take turns.
fn file_order(wishes: &[(Tensor, Request)], threads: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    let place = |index: &usize| {
        let tensor = &wishes[*index].0;
        (tensor.file(), tensor.position())
    };
    // Stable: tied names stay as listed.
    order.sort_by_cached_key(place);
    let mut files: Vec<Vec<usize>> = Vec::new();
    for index in order {
        match files.last_mut() {
            Some(file) if wishes[file[0]].0.file() == wishes[index].0.file() => file.push(index),
            _ => files.push(vec![index]),
        }
    }
    in_turn(files, threads, |index| wishes[index].0.nbytes())
}

/// The items of all files: `lanes` files at a time, some bytes of one, then some of the next.
fn in_turn(files: Vec<Vec<usize>>, lanes: usize, bytes: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut out = Vec::with_capacity(files.iter().map(Vec::len).sum());
    let mut waiting = files.into_iter().map(Vec::into_iter);
    let mut open: VecDeque<_> = waiting.by_ref().take(lanes.max(1)).collect();
    while let Some(mut file) = open.pop_front() {
        let mut taken = 0_u64;
        while taken < TURN {
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
    fn files_take_turns_and_keep_their_own_order() {
        let files = vec![vec![0, 1, 2], vec![3, 4], vec![5]];
        let half = |_| TURN / 2;
        assert_eq!(in_turn(files.clone(), 1, half), [0, 1, 2, 3, 4, 5]);
        assert_eq!(in_turn(files.clone(), 2, half), [0, 1, 3, 4, 2, 5]);
        assert_eq!(in_turn(files, 2, |_| 1), [0, 1, 2, 3, 4, 5]);
    }
}
