//! The level of every machine: the loops as they are, for the instructions that the build assumes (SSE2, NEON).

use super::Instructions;

/// Nothing to detect.
pub(super) struct Generic;

impl Instructions for Generic {
    #[inline(always)]
    fn run(job: impl FnOnce()) {
        job();
    }
}
