//! Makes the bytes of a file's tensors for a target: once to write them, and once more to verify them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::progress::Step;
use super::resume::ResumedFile;
use super::{Values, WriteOptions};
use crate::bytes::Source;
use crate::container::safetensors::FilePlan;
use crate::error::Result;
use crate::memory;
use crate::stream::{ByteTarget, WriteItem, write_all};

/// A pass over the tensors of a file.
pub(super) struct Pass<'p> {
    pub(super) tensors: &'p [(String, Values)],
    /// Where they lie in the file.
    pub(super) plan: &'p FilePlan,
    pub(super) options: &'p WriteOptions,
    /// What is done with the bytes, for the progress.
    pub(super) step: Step,
    /// What an earlier run has written, which is left out.
    pub(super) resumed: Option<&'p ResumedFile<'p>>,
}

impl Pass<'_> {
    /// Gives the target the bytes of all tensors, sorted by `position` and, where that is equal, by their place in the file.
    pub(super) fn run(
        &self,
        target: &dyn ByteTarget,
        position: impl Fn(&Values) -> Option<((usize, u32), u64)>,
    ) -> Result<()> {
        let Pass { tensors, plan, options, .. } = self;
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        if let Some(resumed) = self.resumed {
            order.retain(|&at| !resumed.has_tensor(at, &tensors[at].1));
            self.report_reused(&order);
        }
        order.sort_by_key(|&at| {
            let position = position(&tensors[at].1);
            (position.is_none(), position, plan.regions[at].start())
        });
        let items = order.iter().map(|&at| {
            let values = tensors[at].1.clone();
            let (offset, nbytes) = (plan.regions[at].start(), plan.regions[at].len());
            WriteItem { offset, nbytes, describe: Box::new(move || values.describe()) }
        });
        let target = TrackingTarget {
            target,
            pass: self,
            missing: order.iter().map(|&at| AtomicU64::new(plan.regions[at].len())).collect(),
            order: &order,
        };
        let buffers = memory::buffers(options.memory);
        let written = write_all(items.collect(), &target, buffers, options.threads, &options.cancel);
        written.map_err(|(item, error)| {
            let (name, values) = &tensors[order[item]];
            values.add_context(error).in_member(name)
        })
    }

    /// Reports the tensors that are not in `order`, which is sorted.
    fn report_reused(&self, order: &[usize]) {
        let Some(progress) = &self.options.progress else { return };
        for (at, (name, _)) in self.tensors.iter().enumerate() {
            if order.binary_search(&at).is_err() {
                progress.report(name, self.plan.regions[at].len(), Step::Reused);
            }
        }
    }
}

/// A target that reports progress, and notes which tensors are finished.
struct TrackingTarget<'t> {
    target: &'t dyn ByteTarget,
    pass: &'t Pass<'t>,
    /// The tensor of each item.
    order: &'t [usize],
    /// The bytes of each item that are not yet in the target.
    missing: Vec<AtomicU64>,
}

impl ByteTarget for TrackingTarget<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.target.write_at(offset, bytes)
    }

    fn copy_at(&self, offset: u64, source: &Source) -> Result<bool> {
        self.target.copy_at(offset, source)
    }

    fn written(&self, item: usize, nbytes: u64) -> Result<()> {
        let at = self.order[item];
        let (name, values) = &self.pass.tensors[at];
        if let Some(progress) = &self.pass.options.progress {
            progress.report(name, nbytes, self.pass.step);
        }
        // The thread that finishes a tensor says so for all of them: what the others wrote comes before.
        let is_finished = self.missing[item].fetch_sub(nbytes, Ordering::AcqRel) == nbytes;
        match self.pass.resumed {
            Some(resumed) if is_finished => resumed.finish_tensor(at, values),
            _ => Ok(()),
        }
    }
}
