//! Comparison of tensors: `compare`.

use pyo3::prelude::*;

use super::request::Request;
use super::run;
use super::write::ValuesArg;
use crate::compare::{self, CompareOptions};
use crate::parallel::Cancel;

/// Total, different, distant, the first one's number, NaN in one only, the largest absolute and relative differences, and the relative
/// L2, RMS and cosine.
type Found = (u64, u64, u64, Option<u64>, u64, f64, f64, Option<f64>, Option<f64>, Option<f64>);

/// Compares pairs of tensors, as their requests convert them.
#[pyfunction]
#[pyo3(name = "compare", signature = (pairs, *, atol, rtol, threads))]
pub(crate) fn compare_pairs(
    py: Python<'_>,
    pairs: Vec<(ValuesArg<'_>, PyRef<'_, Request>, ValuesArg<'_>, PyRef<'_, Request>)>,
    atol: f64,
    rtol: f64,
    threads: Option<usize>,
) -> PyResult<Vec<Found>> {
    let cancel = Cancel::new();
    let values = |values: ValuesArg<'_>, request: &Request| values.values(request.with(&cancel));
    let pairs =
        pairs.into_iter().map(|(one, of_one, two, of_two)| (values(one, &of_one), values(two, &of_two)));
    let pairs: Vec<_> = pairs.collect();
    let options = CompareOptions::new().atol(atol).rtol(rtol).threads(threads).cancel(cancel.clone());
    let found = run::interruptible_if(py, true, &cancel, || compare::compare(&pairs, &options))?;
    let found = found.into_iter().map(|found| {
        let compare::Comparison { total, different, distant, first, nan, max_absolute, max_relative, .. } =
            found;
        let (relative_l2, rms, cosine) = (found.relative_l2, found.rms, found.cosine);
        (total, different, distant, first, nan, max_absolute, max_relative, relative_l2, rms, cosine)
    });
    Ok(found.collect())
}
