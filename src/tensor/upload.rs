//! A tensor as an item of an upload to a GPU.

use super::{Order, Request, Tensor};
use crate::error::{Code, Error, Result};
use crate::layout::TensorIndex;
use crate::sink::Array;
use crate::stream::upload::{ResultSlice, UploadData, UploadItem};

impl Tensor {
    /// The item that makes this tensor as requested in `place`. Fails where `place` is not contiguous or does not have exactly
    /// the result's bytes. Reads nothing.
    pub(crate) fn upload_item(&self, request: &Request, place: Array) -> Result<UploadItem> {
        self.check_not_meta()?;
        let layout = self.result_layout(&request.order)?;
        let nbytes = self.result_bytes(&layout, self.result_dtype(request))?;
        if nbytes != place.nbytes() || !place.is_contiguous() {
            let text = format!("the result takes {nbytes} byte(s), the destination has {}", place.nbytes());
            return Err(Error::new(Code::Value, text));
        }
        let (tensor, request) = (self.clone(), request.clone());
        Ok(UploadItem {
            destination: place,
            host_bytes: self.inflated_bytes(),
            describe: Box::new(move || tensor.make(request)),
        })
    }

    /// Opens the source of the item when an upload's worker gets to it.
    fn make(self, request: Request) -> Result<UploadData> {
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
        let fill = move |part: &ResultSlice, out: &mut [u8]| {
            let tensor = ordered.index(&part_index(part, ordered.layout.ndim())?)?;
            tensor.fill(&tensor.layout, dtype, &request, false, out)
        };
        Ok(UploadData::InSlices { shape, itemsize: dtype.itemsize(), fill: Box::new(fill) })
    }
}

/// The index that takes a part out of a tensor of `ndim` dimensions.
fn part_index(part: &ResultSlice, ndim: usize) -> Result<Vec<TensorIndex>> {
    let number =
        |n: u64| i64::try_from(n).map_err(|_| Error::new(Code::InternalError, "a size does not fit 63 bits"));
    let mut found =
        part.index.iter().map(|&at| number(at).map(TensorIndex::At)).collect::<Result<Vec<_>>>()?;
    if found.len() < ndim {
        let (start, stop) = (number(part.first)?, number(part.first + part.count)?);
        found.push(TensorIndex::Range { start: Some(start), stop: Some(stop), step: None });
    }
    Ok(found)
}
