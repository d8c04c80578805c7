//! What a caller is told of the bytes of a file that is being written.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;

/// What was done with bytes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// They were written.
    Written,
    /// They were read back, and are equal to those of the source.
    Verified,
    /// An earlier run had written them, see [`WriteOptions::resume`](super::WriteOptions::resume).
    Reused,
}

/// Is called with a tensor's name, a number of bytes, and what was done with them.
type Report = dyn Fn(&str, u64, Step) + Send + Sync;

/// Is called once all was reported, before the target gets its name.
type Settle = dyn Fn() -> Result<()> + Send + Sync;

/// A function that is told what was done with how many bytes of which tensor. It is called on any thread, several at once, and more
/// than once for a large tensor.
#[derive(Clone)]
pub struct Progress {
    report: Arc<Report>,
    settle: Arc<Settle>,
}

impl Progress {
    /// Calls this function with a tensor's name, a number of bytes, and what was done with them.
    pub fn new(report: impl Fn(&str, u64, Step) + Send + Sync + 'static) -> Progress {
        Progress { report: Arc::new(report), settle: Arc::new(|| Ok(())) }
    }

    /// Also calls `settle` before the target gets its name: an error of it ends the writing, and leaves the target as it was.
    pub fn on_settle(self, settle: impl Fn() -> Result<()> + Send + Sync + 'static) -> Progress {
        Progress { settle: Arc::new(settle), ..self }
    }

    pub(super) fn report(&self, name: &str, nbytes: u64, step: Step) {
        (self.report)(name, nbytes, step);
    }

    pub(super) fn settle(&self) -> Result<()> {
        (self.settle)()
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}
