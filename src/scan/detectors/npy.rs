//! The detector of NumPy: an array, whose elements may be a pickle.
//!
//! Stands for `numpy.load(allow_pickle=True)`, NumPy 1.13 to 2.4 (`numpy/lib/_format_impl.py: read_array`), of a file and of any member of
//! a zip archive. NumPy evaluates the header and unpickles the elements if it finds objects in their dtype. So elements are
//! skipped only where the strict parser proves that they are plain numbers, text, times or bytes; in any other array they are
//! walked as a pickle.

use super::super::scanner::{Detected, Input, Origin};
use super::super::scanner::{Scanner, inside};
use crate::container::npy::{Elements, Header, MAGIC};
use crate::error::Result;

/// Walks an array.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<()> {
    let Input { source, label, ref head, .. } = *input;
    let Some(start) = elements_start(head) else { return Ok(()) };
    detected.npy = true;
    scanner.report.scanned(label, "npy header", 0, start.min(source.len()));
    let header = Header::read(|len| source.read_vec(0, source.len().min(len)));
    if let Ok(header) = &header
        && !header.elements.may_be_pickle()
    {
        // A reader may go on behind the array.
        return match header.end() {
            Some(end) if end < source.len() => scanner.remainder(input, end),
            Some(_) => Ok(()),
            None => {
                let why = "an array whose length is not plain";
                scanner.report.unscanned(label, why, start, source.len().saturating_sub(start));
                Ok(())
            }
        };
    }
    if start >= source.len() {
        return Ok(());
    }
    let is_objects = header.is_ok_and(|header| header.elements == Elements::Objects);
    let window = source.window(start, source.len().saturating_sub(start))?;
    let inner = inside(label, "objects");
    let origin = if is_objects { Origin::PickleMember } else { Origin::Member };
    let input = Input {
        source: &window,
        label: Some(&inner),
        depth: input.depth,
        origin,
        head: Vec::new(),
        format: None,
    };
    scanner.pickles(&input, 0, is_objects, &mut Detected::default())
}

/// The offset of the elements by the preamble; `None` where NumPy reads no array.
fn elements_start(head: &[u8]) -> Option<u64> {
    match head.strip_prefix(MAGIC)? {
        [1, 0, a, b, ..] => Some(u64::from(u16::from_le_bytes([*a, *b])).saturating_add(10)),
        [2 | 3, 0, a, b, c, d, ..] => {
            Some(u64::from(u32::from_le_bytes([*a, *b, *c, *d])).saturating_add(12))
        }
        _ => None,
    }
}
