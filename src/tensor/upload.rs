//! A tensor as an item of an upload to a GPU.

use super::{Order, Request, Tensor};
use crate::error::{Code, Error, Result};
use crate::layout::TensorIndex;
use crate::sink::Array;
use crate::stream::upload::{ResultSlice, UploadData, UploadItem};

impl Tensor {
    /// The item that uploads this tensor to `destination` as the request says. Fails where `destination` is not contiguous or does
    /// not have exactly the result's bytes. Reads nothing.
    pub(crate) fn upload_item(&self, request: &Request, destination: Array) -> Result<UploadItem> {
        self.check_not_meta()?;
        let layout = self.result_layout(&request.order)?;
        let nbytes = self.result_bytes(&layout, self.result_dtype(request))?;
        if nbytes != destination.nbytes() || !destination.is_contiguous() {
            let text =
                format!("the result takes {nbytes} byte(s), the destination has {}", destination.nbytes());
            return Err(Error::new(Code::Value, text));
        }
        let (tensor, request) = (self.clone(), request.clone());
        Ok(UploadItem {
            destination,
            host_bytes: self.inflated_bytes(),
            describe: Box::new(move || tensor.upload_data(request)),
        })
    }

    /// Opens the source of the item when an upload's worker gets to it.
    fn upload_data(self, request: Request) -> Result<UploadData> {
        // At most one inflated storage is cached: this tensor's.
        self.opened.evict_inflated(Some(self.storage()));
        let dtype = self.result_dtype(&request);
        if self.dequantization(&request).is_none() {
            let how = self.fill_options(dtype, &request, false)?;
            let payload = self.opened.payload(self.storage(), &request.cancel)?;
            return Ok(UploadData::Elements { payload, layout: self.result_layout(&request.order)?, how });
        }
        let ordered = self.map_layouts(|layout| request.order.apply(layout))?;
        let request = Request { order: Order::Same, dtype: Some(dtype), ..request };
        let shape = ordered.layout.shape.clone();
        let fill = move |slice: &ResultSlice, out: &mut [u8]| {
            let tensor = ordered.index(&slice_index(slice, ordered.layout.ndim())?)?;
            tensor.fill(&tensor.layout, dtype, &request, false, out)
        };
        Ok(UploadData::InSlices { shape, itemsize: dtype.itemsize(), fill: Box::new(fill) })
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
