//! A tensor as an item of an upload to a GPU.

use super::{Request, Tensor};
use crate::error::{Code, Error, Result};
use crate::sink::Array;
use crate::stream::upload::UploadItem;

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
            describe: Box::new(move || tensor.result_data(request)),
        })
    }
}
