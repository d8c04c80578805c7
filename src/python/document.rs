//! The data of the page that `rustload view` writes, and the tree of names that is printed.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::classes::Checkpoint;
use super::request::Request;
use super::run;
use crate::document::tree::{self, Leaf, Row};
use crate::document::{Read, document as core};
use crate::parallel::Cancel;

/// The data of the page as JSON: what a checkpoint holds, the report of a scan, which is JSON, and with a request the statistics of all
/// tensors.
#[pyfunction]
#[pyo3(signature = (checkpoint, report=None, request=None, *, sample=false))]
pub(crate) fn document(
    py: Python<'_>,
    checkpoint: &Checkpoint,
    report: Option<&str>,
    request: Option<&Request>,
    sample: bool,
) -> PyResult<String> {
    let report = report.map(serde_json::from_str).transpose();
    let report = report.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let cancel = Cancel::new();
    let read = request.map(|request| Read { request: request.with(&cancel), is_sample: sample });
    let made =
        run::interruptible_if(py, true, &cancel, || core(&checkpoint.0, report.as_ref(), read.as_ref()))?;
    Ok(made.0.to_string())
}

/// The rows of the tree of tensors: of each tensor, its name, the number of its kind, its bytes that count towards sums, and its bytes.
/// A row is its level, label, the number of subtrees in it, its tensor, and the sums of tensors, counted bytes and bytes.
#[pyfunction]
pub(crate) fn tree_rows(tensors: Vec<(String, usize, u64, u64)>) -> Vec<TreeRow> {
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, kind, counted, nbytes)| {
            (Leaf { name, kind: *kind }, [1, u128::from(*counted), u128::from(*nbytes)])
        })
        .collect();
    let row = |Row { label, level, times, leaf, sums: [tensors, counted, nbytes] }| {
        (level, label, times, leaf, tensors, counted, nbytes)
    };
    tree::rows(&tensors).into_iter().map(row).collect()
}

type TreeRow = (usize, String, usize, Option<usize>, u128, u128, u128);

/// Abbreviates sorted numbers: `0..31`, `0..30 step 2`, `0..2, 5, 7..9`, each filled with zeros to `digits` digits.
#[pyfunction]
#[pyo3(signature = (numbers, digits=0))]
pub(crate) fn spell_numbers(numbers: Vec<u64>, digits: usize) -> String {
    tree::spelled(&numbers, digits)
}
