//! The generic level, which every CPU has: the portable loops, compiled for the baseline of the build target (SSE2, NEON).

use super::{Instructions, Job};

/// The baseline instructions, which need no detection.
pub(super) struct Generic;

impl Instructions for Generic {
    #[inline(always)]
    fn run(job: impl Job) {
        job.run();
    }
}
