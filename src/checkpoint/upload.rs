//! Uploads of tensors to a GPU, with errors that name the tensor.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::stream::TensorError;
use crate::error::{Code, Error, Result};
use crate::parallel::{Cancel, lock};
use crate::sink::Array;
use crate::sink::cuda::{CallerStream, Device};
use crate::stream::upload::{Session, Waited};
use crate::tensor::{Request, Tensor};

/// An upload session on one GPU. [`Upload::submit`] enqueues a batch and returns a ticket; [`Upload::wait`] makes a CUDA stream, or
/// the caller, wait for the ticket's copies.
///
/// Dropping it cancels pending work, and waits until no copy is in flight.
///
/// ```no_run
/// use std::{sync::Arc, time::Duration};
/// use rustload::cuda::{DeviceMemory, Upload, Waited};
/// use rustload::{Array, Checkpoint, Request};
///
/// let checkpoint = Checkpoint::open("model.bin")?;
/// let tensor = checkpoint.tensor("lm_head.weight")?;
/// let upload = Upload::new(0, 128 << 20, None)?;
/// let destination = Array::on_gpu(Arc::new(DeviceMemory::new(upload.device(), tensor.nbytes())?));
/// let ticket = upload.submit(vec![(tensor, Request::new())], vec![destination], None).map_err(|failed| failed.error)?;
/// while upload.wait(ticket, None, true, Duration::from_secs(1)).map_err(|failed| failed.error)? == Waited::Waiting {}
/// # Ok::<(), rustload::Error>(())
/// ```
pub struct Upload {
    session: Session,
    /// The tensors of each ticket, until it has been waited for.
    tensors: Mutex<HashMap<u64, Vec<Tensor>>>,
}

impl Upload {
    /// A session on a GPU. It uses at most `window` bytes of host memory beside the pinned ring buffer, which all sessions on the
    /// GPU share. `threads` fill the ring; `None` for as many as keep the link busy. Fails where there is no such GPU.
    pub fn new(device: u32, window: u64, threads: Option<usize>) -> Result<Upload> {
        let session = Session::new(Device::of(device)?, window, threads)?;
        Ok(Upload { session, tensors: Mutex::default() })
    }

    /// The GPU.
    pub fn device(&self) -> &'static Device {
        self.session.device()
    }

    /// Bytes per second of copies to the GPU, measured once.
    pub fn h2d_rate(&self) -> Result<f64> {
        self.session.h2d_rate()
    }

    /// Enqueues one upload per request, each into the array at the same index of `into`, and returns the ticket's number at once.
    /// No copy begins before the work that is in `stream` now is done.
    ///
    /// Fails unless each array is on this GPU, contiguous, and of exactly the result's bytes.
    pub fn submit(
        &self,
        mut requests: Vec<(Tensor, Request)>,
        into: Vec<Array>,
        stream: Option<CallerStream>,
    ) -> Result<u64, TensorError> {
        if requests.len() != into.len() {
            let text = format!("there are {} tensor(s) and {} destination(s)", requests.len(), into.len());
            return Err(TensorError::general(Error::new(Code::Value, text)));
        }
        let cancel = Cancel::new();
        let mut items = Vec::with_capacity(into.len());
        for (index, ((tensor, request), destination)) in requests.iter_mut().zip(into).enumerate() {
            request.cancel = cancel.clone();
            let item = self.check(&destination).and_then(|()| tensor.upload_item(request, destination));
            items.push(item.map_err(|error| TensorError::at(index, tensor, error))?);
        }
        let tensors: Vec<Tensor> = requests.into_iter().map(|(tensor, _)| tensor).collect();
        if let Some(first) = items.first_mut() {
            // The worker that gets to the first item reads the archive headers of all of them, many at a time.
            let all = tensors.clone();
            let describe = std::mem::replace(
                &mut first.describe,
                Box::new(|| Err(Error::new(Code::Cancelled, "stopped"))),
            );
            first.describe = Box::new(move || {
                Tensor::prefetch_headers(&all);
                describe()
            });
        }
        let ticket = self.session.submit(items, stream, cancel).map_err(TensorError::general)?;
        lock(&self.tensors).insert(ticket, tensors);
        Ok(ticket)
    }

    /// Fails unless the array is in this GPU's memory.
    fn check(&self, destination: &Array) -> Result<()> {
        let (actual, device) = (destination.device(), self.device().ordinal());
        let text = if !destination.is_on_gpu() {
            "the destination is in host memory".to_owned()
        } else if u32::try_from(actual.id) != Ok(device) {
            format!("the destination is on CUDA device {}, the upload goes to {device}", actual.id)
        } else {
            return Ok(());
        };
        Err(Error::new(Code::Value, text))
    }

    /// Waits up to `timeout` until all copies of a ticket are enqueued, and makes later work in `stream` wait for them; with
    /// `sync`, waits until they are done. Call it until it returns [`Waited::Done`]. Fails with the first error of the ticket, once
    /// none of its copies is in flight.
    pub fn wait(
        &self,
        ticket: u64,
        stream: Option<CallerStream>,
        sync: bool,
        timeout: Duration,
    ) -> Result<Waited, TensorError> {
        let waited = self.session.wait(ticket, stream, sync, timeout);
        if let Ok(Waited::Waiting) = waited {
            return Ok(Waited::Waiting);
        }
        let tensors = lock(&self.tensors).remove(&ticket);
        let tensors = tensors.unwrap_or_default();
        for same_file in tensors.chunk_by(|one, two| one.file() == two.file()) {
            same_file.iter().take(1).for_each(|tensor| tensor.opened.evict_inflated(None));
        }
        waited.map_err(|(index, error)| match index.and_then(|index| Some((index, tensors.get(index)?))) {
            Some((index, tensor)) => TensorError::at(index, tensor, error),
            None => TensorError::general(error),
        })
    }

    /// Cancels pending work, and returns once no copy is in flight. Tickets that were not waited for become invalid.
    pub fn close(&self) {
        self.session.close();
    }
}
