//! Statistics of tensors as rows: counts, extremes and moments, and the histogram as a text of heights.

use serde_json::{Value as Json, json};

use super::{Numbered, Read, number};
use crate::error::Result;
use crate::statistics::{Number, Statistics, StatisticsOptions, statistics};
use crate::tensor::Tensor;
use crate::write::Values;

/// The bins of a histogram.
const BINS: usize = 48;

/// The elements of a tensor that a sample has.
const SAMPLE: u64 = 1 << 16;

/// The characters for the heights of bars.
const LEVELS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

/// The height of the highest bar of a histogram.
const HEIGHT_MAX: u128 = 63;

/// Reads tensors, each once; the rows of all.
pub(super) fn rows(tensors: &[&Tensor], read: &Read) -> Result<Json> {
    let mut different = Numbered::default();
    let numbers: Vec<usize> = tensors.iter().map(|tensor| different.number(tensor.id())).collect();
    let mut values = Vec::with_capacity(different.all.len());
    for (tensor, &number) in tensors.iter().zip(&numbers) {
        if number == values.len() {
            values.push(Values::Tensor((*tensor).clone(), read.request.clone()));
        }
    }
    let found = statistics(&values, &options(read))?;
    let is_sampled = |(tensor, &number): (&&Tensor, &usize)| {
        let parts = if tensor.dtype().real_part().is_some() { 2 } else { 1 };
        let all = tensor.layout().numel().saturating_mul(parts);
        found[number].as_ref().is_some_and(|found| found.count < all)
    };
    let sampled = tensors.iter().zip(&numbers).any(is_sampled);
    let rows: Vec<Json> = numbers.iter().map(|&number| row(found[number].as_ref())).collect();
    Ok(json!({"sampled": sampled, "rows": rows}))
}

fn options(read: &Read) -> StatisticsOptions {
    let options = StatisticsOptions::new().bins(BINS).sample(read.is_sample.then_some(SAMPLE));
    options.threads(read.request.threads).cancel(read.request.cancel.clone())
}

/// Reads one tensor; its row.
#[cfg(all(feature = "browser", target_arch = "wasm32"))]
pub(crate) fn row_of(tensor: Tensor, read: &Read) -> Result<Json> {
    let found = statistics(&[Values::Tensor(tensor, read.request.clone())], &options(read))?;
    Ok(row(found.first().and_then(Option::as_ref)))
}

/// The row of one tensor; without numbers for a packed dtype.
fn row(found: Option<&Statistics>) -> Json {
    let Some(found) = found else { return json!([0, 0, 0, 0, 0, null, null, null, null, ""]) };
    let extreme = |one: Option<Number>| match one {
        None => Json::Null,
        Some(Number::Int(int)) => number(int),
        Some(Number::Float(float)) => short(float),
    };
    let infinite = found.positive_infinity + found.negative_infinity;
    json!([
        found.count,
        found.nan,
        infinite,
        found.zeros,
        found.subnormal,
        extreme(found.min),
        extreme(found.max),
        found.mean.map(short),
        found.std.map(short),
        found.histogram.as_ref().map_or_else(String::new, |histogram| bars(&histogram.counts)),
    ])
}

/// Heights from 0 to [`HEIGHT_MAX`], a character each; a bin that is not empty is at least 1.
fn bars(counts: &[u64]) -> String {
    let most = u128::from(counts.iter().copied().max().unwrap_or(0).max(1));
    let height = |&count: &u64| (u128::from(count) * HEIGHT_MAX).div_ceil(most);
    counts.iter().map(|count| char::from(LEVELS[usize::try_from(height(count)).unwrap_or(0)])).collect()
}

/// A number of six digits; as text where JSON has none.
fn short(number: f64) -> Json {
    let rounded: f64 = format!("{number:.5e}").parse().unwrap_or(number);
    if rounded.is_finite() { rounded.into() } else { rounded.to_string().to_lowercase().into() }
}
