//! The detector of torch's reader of `storages` and `tensors` in a tar archive of torch 0.1: pickles between numbers and elements.
//!
//! Stands for `torch/serialization.py: legacy_load`, torch 0.1 to 2.13, which unpickles a count, and then one pickle in front of each
//! storage or tensor; `storages` ends with the pickle of a list. It stops at a count that is not a number, a class that it cannot read
//! elements of, and numbers that the member has no bytes for.

use super::super::budget::take;
use super::super::scanner::Scanner;
use super::super::scanner::{Detected, Input, Origin};
use super::At;
use crate::error::Result;
use crate::index::{PersistentIdForm, storage_itemsize};
use crate::num::to_u64;
use crate::pickle::{Handle, Value, Values};

/// Walks the pickles; returns the offset at which the reader ends.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<u64> {
    detected.pickle = true;
    let mut walk = Walk { scanner, input, at: 0 };
    let count = match walk.pickle()? {
        Some(Read::Count(count)) => count,
        Some(_) => return Ok(walk.leave("the count of storages or tensors is not a number")),
        None => return Ok(walk.at),
    };
    for _ in 0..count {
        walk.scanner.options.cancel.check()?;
        let Some(read) = walk.pickle()? else { return Ok(walk.at) };
        let is_behind = match input.origin {
            Origin::Storages => match read {
                Read::Elements(itemsize) => walk.elements(itemsize)?,
                _ => return Ok(walk.leave("elements of an unknown class")),
            },
            _ => walk.numbers()?,
        };
        if !is_behind {
            return Ok(walk.at);
        }
    }
    if input.origin == Origin::Storages {
        walk.pickle()?;
    }
    Ok(walk.at)
}

/// What the reader takes from a pickle.
enum Read {
    Count(i64),
    /// The size of an element of the storage class.
    Elements(u64),
    Other,
}

struct Walk<'a, 'b, 'c> {
    scanner: &'a mut Scanner<'b>,
    input: &'a Input<'c>,
    at: u64,
}

impl Walk<'_, '_, '_> {
    /// Scans the next pickle; `None` where every reader ends in it.
    fn pickle(&mut self) -> Result<Option<Read>> {
        let Input { source, label, depth, .. } = *self.input;
        let left = source.len().saturating_sub(self.at);
        if left == 0 {
            return Ok(None);
        }
        if self.at > 0 && !take(&mut self.scanner.budget.following_pickles, 1) {
            self.scanner.report.unscanned(label, "too many concatenated pickles", self.at, left);
            self.at = source.len();
            return Ok(None);
        }
        let place = At { source, offset: self.at, known: false, ids: PersistentIdForm::Archive };
        let run = self.scanner.run_pickle(&place)?;
        let read = run.recovered.root.map(|root| read(&run.recovered.values, root));
        // What a member loads is one level below the archive.
        let scanned = self.scanner.report_pickle(run, &place, label, depth.saturating_sub(1), false)?;
        self.at = scanned.end;
        Ok(read.filter(|_| scanned.stopped))
    }

    /// Leaves what follows unscanned; returns where the reader would go on.
    fn leave(&mut self, why: &str) -> u64 {
        let Input { source, label, .. } = *self.input;
        self.scanner.report.unscanned(label, why, self.at, source.len().saturating_sub(self.at));
        self.at
    }

    /// Goes on behind an int64 count of elements, and the elements.
    fn elements(&mut self, itemsize: u64) -> Result<bool> {
        let Some(count) = self.number::<8>()?.map(i64::from_le_bytes) else { return Ok(false) };
        let nbytes = u64::try_from(count).ok().and_then(|count| count.checked_mul(itemsize));
        Ok(nbytes.is_some_and(|nbytes| self.skip(nbytes)))
    }

    /// Goes on behind the number of dimensions, four bytes, the sizes, strides and the offset.
    fn numbers(&mut self) -> Result<bool> {
        let Some(rank) = self.number::<4>()?.map(i32::from_le_bytes) else { return Ok(false) };
        let nbytes = u64::try_from(rank).ok().map(|rank| rank.saturating_mul(16).saturating_add(12));
        Ok(nbytes.is_some_and(|nbytes| self.skip(nbytes)))
    }

    fn number<const N: usize>(&mut self) -> Result<Option<[u8; N]>> {
        let (mut number, start) = ([0; N], self.at);
        if !self.skip(to_u64(N)) {
            return Ok(None);
        }
        self.input.source.read_at(start, &mut number)?;
        Ok(Some(number))
    }

    fn skip(&mut self, nbytes: u64) -> bool {
        let end = self.at.checked_add(nbytes).filter(|&end| end <= self.input.source.len());
        self.at = end.unwrap_or(self.at);
        end.is_some()
    }
}

fn read(values: &Values, root: Handle) -> Read {
    match values.get(root) {
        Value::Int(count) => Read::Count(count),
        Value::Tuple(&[_, _, class]) | Value::List(&[_, _, class]) => {
            let itemsize = values.global_at(class).and_then(|(module, name)| storage_itemsize(module, name));
            itemsize.map_or(Read::Other, Read::Elements)
        }
        _ => Read::Other,
    }
}
