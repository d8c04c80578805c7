//! A result that is made slice by slice: an upload's, or a file's.

use super::{Joined, Order, Request, Tensor};
use crate::error::{Code, Error, Result};
use crate::layout::TensorIndex;
use crate::stream::{Elements, ResultData, ResultSlice};

impl Tensor {
    /// Opens the source of a result that is made slice by slice.
    pub(crate) fn result_data(self, request: Request) -> Result<ResultData> {
        // At most one inflated storage is cached: this tensor's.
        self.opened.evict_inflated(Some(self.storage()));
        let dtype = self.result_dtype(&request);
        let in_chunks = self.is_in_chunks()?;
        if self.dequantization(&request).is_none() && !in_chunks {
            let how = self.fill_options(dtype, &request, false)?;
            let payload = self.opened.payload(self.storage(), &request.cancel)?;
            let layout = self.result_layout(&request.order)?;
            return Ok(ResultData::Elements(Box::new(Elements { payload, layout, how })));
        }
        let ordered = self.map_layouts(|layout| request.order.apply(layout))?;
        let mut request = Request { order: Order::Same, dtype: Some(dtype), ..request };
        if in_chunks {
            // Refused here rather than in the middle of the slices.
            self.fill_options(dtype, &request, false)?;
            request.threads = Some(1);
        }
        let shape = ordered.layout.shape.clone();
        let fill = move |slice: &ResultSlice, out: &mut [u8]| {
            let tensor = ordered.index(&slice_index(slice, ordered.layout.ndim())?)?;
            tensor.fill(&tensor.layout, dtype, &request, false, out)
        };
        Ok(ResultData::InSlices { shape, itemsize: dtype.itemsize(), fill: Box::new(fill) })
    }
}

impl Joined {
    /// As [`Tensor::result_data`].
    pub(crate) fn result_data(&self, request: &Request) -> Result<ResultData> {
        if let Some(part) = self.only_part() {
            return part.clone().result_data(request.clone()).map_err(|error| part.add_context(error));
        }
        let joined = self.reordered(&request.order)?;
        joined.result_bytes(request)?;
        let (shape, itemsize) = (joined.shape().into(), request.dtype.unwrap_or(self.dtype()).itemsize());
        let request = Request { order: Order::Same, threads: Some(1), ..request.clone() };
        let fill = move |slice: &ResultSlice, out: &mut [u8]| {
            joined.index(&slice_index(slice, joined.shape().len())?)?.materialize_into(&request, out)
        };
        Ok(ResultData::InSlices { shape, itemsize, fill: Box::new(fill) })
    }
}

/// The index that takes a slice out of a tensor of `ndim` dimensions.
fn slice_index(slice: &ResultSlice, ndim: usize) -> Result<Vec<TensorIndex>> {
    let number =
        |n: u64| i64::try_from(n).map_err(|_| Error::new(Code::InternalError, "a size does not fit 63 bits"));
    let mut items =
        slice.index.iter().map(|&at| number(at).map(TensorIndex::At)).collect::<Result<Vec<_>>>()?;
    if items.len() < ndim {
        let (start, stop) = (number(slice.first)?, number(slice.first + slice.count)?);
        items.push(TensorIndex::Range { start: Some(start), stop: Some(stop), step: None });
    }
    Ok(items)
}
