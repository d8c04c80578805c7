//! A tensor as an item of an upload to a GPU.

use super::{Order, Request, Tensor};
use crate::error::{Code, Result, bail};
use crate::sink::Array;
use crate::stream::upload::UploadItem;

impl Tensor {
    /// The bytes of a result that the workers of an upload make straight in its place, without the GPU: the elements as they are, or
    /// cast to a narrower dtype if the tensor is smaller than `cast_below` bytes. `None` for any other result, an empty one, and a
    /// request that needs a closer look (`copy=False`, dequantization, a quantized weight, a tensor without data).
    pub(crate) fn direct_upload_bytes(&self, request: &Request, cast_below: u64) -> Option<u64> {
        let is_plain = request.copy != Some(false) && !request.dequantize && request.order == Order::Same;
        let numel = self.layout.numel();
        if !is_plain
            || numel == 0
            || self.is_meta()
            || self.description().is_some()
            || !self.layout.is_contiguous()
        {
            return None;
        }
        let dtype = request.dtype.unwrap_or(self.dtype);
        let narrows = dtype.itemsize() < self.dtype.itemsize() && self.nbytes() < cast_below;
        if dtype == self.dtype || narrows { numel.checked_mul(dtype.itemsize()) } else { None }
    }

    /// The item that uploads this tensor to `destination` as the request says. Fails where `destination` is not contiguous or does
    /// not have exactly the result's bytes. Reads nothing.
    pub(crate) fn upload_item(&self, request: &Request, destination: Array) -> Result<UploadItem> {
        self.check_not_meta()?;
        self.check_scheme(request)?;
        let layout = self.result_layout(&request.order)?;
        let dtype = self.result_dtype(request);
        let nbytes = self.result_bytes(&layout, dtype)?;
        if nbytes != destination.nbytes() || !destination.is_contiguous() {
            bail!(
                Code::Value,
                "the result takes {nbytes} byte(s), the destination has {}",
                destination.nbytes()
            );
        }
        let (tensor, request) = (self.clone(), request.clone());
        Ok(UploadItem {
            destination,
            host_bytes: self.inflated_bytes(),
            casts: dtype != self.dtype,
            describe: Box::new(move || tensor.result_data(request)),
        })
    }
}
