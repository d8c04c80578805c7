//! Statistics of tensors: `statistics`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::request::Request;
use super::run;
use super::write::ValuesArg;
use crate::parallel::Cancel;
use crate::statistics::{self, Number, Statistics, StatisticsOptions};

/// Returns what the numbers of tensors are like, as dicts.
#[pyfunction]
#[pyo3(name = "statistics", signature = (tensors, request, *, bins, sample, threads))]
pub(crate) fn statistics_of<'py>(
    py: Python<'py>,
    tensors: Vec<ValuesArg<'py>>,
    request: &Request,
    bins: Option<usize>,
    sample: Option<u64>,
    threads: Option<usize>,
) -> PyResult<Vec<Option<Bound<'py, PyDict>>>> {
    let cancel = Cancel::new();
    let request = request.with(&cancel);
    let tensors: Vec<_> = tensors.into_iter().map(|values| values.values(request.clone())).collect();
    let options = StatisticsOptions::new().bins(bins).sample(sample).threads(threads).cancel(cancel.clone());
    // A small result may take elements from anywhere, so its size does not say how long it takes.
    let found = run::interruptible_if(py, true, &cancel, || statistics::statistics(&tensors, &options))?;
    found.into_iter().map(|found| found.map(|found| to_dict(py, found)).transpose()).collect()
}

fn to_dict(py: Python<'_>, found: Statistics) -> PyResult<Bound<'_, PyDict>> {
    let number = |number: Option<Number>| -> PyResult<Option<Bound<'_, PyAny>>> {
        number
            .map(|number| match number {
                Number::Int(int) => Ok(int.into_pyobject(py)?.into_any()),
                Number::Float(float) => Ok(float.into_pyobject(py)?.into_any()),
            })
            .transpose()
    };
    let dict = PyDict::new(py);
    dict.set_item("total", found.count)?;
    dict.set_item("nan", found.nan)?;
    dict.set_item("positive_infinity", found.positive_infinity)?;
    dict.set_item("negative_infinity", found.negative_infinity)?;
    dict.set_item("zeros", found.zeros)?;
    dict.set_item("subnormal", found.subnormal)?;
    dict.set_item("min", number(found.min)?)?;
    dict.set_item("max", number(found.max)?)?;
    dict.set_item("mean", found.mean)?;
    dict.set_item("std", found.std)?;
    dict.set_item("distinct", found.distinct)?;
    let exponents = found.exponents.iter().map(|count| (count.exponent, count.negative, count.positive));
    dict.set_item("exponents", exponents.collect::<Vec<_>>())?;
    dict.set_item("histogram", found.histogram.map(|bins| (bins.min, bins.max, bins.counts)))?;
    Ok(dict)
}
