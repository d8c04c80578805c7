//! Fills a destination with one tensor.

use super::batch::{Task, fill_all};
use super::read::{Elements, Fill, PLAIN_READ_MAX_BYTES, Payload, check_bounds, read_mode, reading_threads};
use crate::error::Result;
use crate::layout::Layout;

/// Results of at most this many bytes are read by one thread with one read.
const ONE_READ_MAX_BYTES: u64 = 1 << 20;

/// Reads the elements of `layout` (in units of the cast's source dtype) into `out`, C-contiguous, cast on the way.
///
/// Fails if an element lies outside the payload, `out` has not exactly the result's bytes, or the file changed.
pub fn fill(payload: &Payload, layout: &Layout, how: &Fill, out: &mut [u8]) -> Result<()> {
    check_bounds(payload, layout, how.cast, out.len())?;
    let src = how.cast.from().itemsize();
    let bytes = layout.numel().saturating_mul(src);
    let plain = bytes == out.len() as u64 && how.is_copy(payload) && layout.is_contiguous();
    // Most tensors of most files: one read, no plan. Up to this size it is the same read in every mode.
    let is_small = || bytes <= ONE_READ_MAX_BYTES;
    let is_one_read = || {
        let mode = read_mode(payload, layout, bytes);
        let threads = || reading_threads(std::iter::once(mode), bytes, how.threads);
        bytes <= PLAIN_READ_MAX_BYTES && !mode.is_direct() && threads() == 1
    };
    if plain && (is_small() || is_one_read()) {
        how.cancel.check()?;
        if !out.is_empty() {
            payload.source.read_at(layout.offset.saturating_mul(src), out)?;
        }
        return payload.source.check_unchanged();
    }
    let elements = Elements { payload: payload.clone(), layout: layout.clone(), how: how.clone() };
    fill_all(vec![Task { elements, out }], how.threads).map_err(|(_, error)| error)
}
