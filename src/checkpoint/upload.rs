//! Tensors to a GPU: a session of uploads whose errors name the tensor.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::stream::Failed;
use crate::error::{Code, Error, Result};
use crate::parallel::Cancel;
use crate::sink::Array;
use crate::sink::cuda::{CallerStream, Device};
use crate::sink::dlpack::CUDA;
use crate::stream::upload::{Session, Waited};
use crate::tensor::{Request, Tensor};

/// Uploads of tensors to one GPU, in tickets: [`Upload::submit`] takes a batch on, [`Upload::wait`] orders what comes after behind it.
///
/// Dropping it stops what is under way, and waits until nothing is in flight.
///
/// ```no_run
/// use std::{sync::Arc, time::Duration};
/// use rustload::sink::cuda::DeviceMemory;
/// use rustload::stream::upload::Waited;
/// use rustload::{Array, Checkpoint, Options, Request, Upload};
///
/// let checkpoint = Checkpoint::open(&["model.bin".into()], Options::default())?;
/// let tensor = checkpoint.tensor("lm_head.weight")?;
/// let upload = Upload::new(0, 128 << 20, None)?;
/// let place = Array::on_gpu(Arc::new(DeviceMemory::new(upload.device(), tensor.nbytes())?));
/// let ticket = upload.submit(vec![(tensor, Request::default())], vec![place], None).map_err(|failed| failed.error)?;
/// while upload.wait(ticket, None, true, Duration::from_secs(1)).map_err(|failed| failed.error)? == Waited::Waiting {}
/// # Ok::<(), rustload::Error>(())
/// ```
pub struct Upload {
    session: Session,
    /// What the tickets are about, until they are waited for.
    tensors: Mutex<HashMap<u64, Vec<Tensor>>>,
}

impl Upload {
    /// A session on a GPU. It takes at most `window` bytes of host memory beside the pinned ring, which all sessions on the GPU
    /// share; `threads` fill its slots, `None` for as many as keep the link busy.
    pub fn new(device: u32, window: u64, threads: Option<usize>) -> Result<Upload> {
        let session = Session::new(Device::of(device)?, window, threads)?;
        Ok(Upload { session, tensors: Mutex::default() })
    }

    /// The GPU.
    pub fn device(&self) -> &'static Device {
        self.session.device()
    }

    /// Takes on to make each tensor as requested in the memory beside it, which lies on this GPU, is contiguous, and has exactly the
    /// result's bytes. Returns at once, with the ticket's number. No copy begins before what is in `stream` now is done.
    pub fn submit(
        &self,
        mut wishes: Vec<(Tensor, Request)>,
        into: Vec<Array>,
        stream: Option<CallerStream>,
    ) -> Result<u64, Failed> {
        if wishes.len() != into.len() {
            let text = format!("{} tensor(s) do not go into {} destination(s)", wishes.len(), into.len());
            return Err(Failed::whole(Error::new(Code::Value, text)));
        }
        let cancel = Cancel::new();
        let mut items = Vec::with_capacity(into.len());
        for (index, ((tensor, request), place)) in wishes.iter_mut().zip(into).enumerate() {
            request.cancel = cancel.clone();
            let here = self.check(&place).and_then(|()| tensor.upload(request, place));
            items.push(here.map_err(|error| Failed::at(index, tensor, error))?);
        }
        let tensors: Vec<Tensor> = wishes.into_iter().map(|(tensor, _)| tensor).collect();
        if let Some(first) = items.first_mut() {
            // Headers of an archive's members are read many at a time.
            let near = tensors.clone();
            let cancelled = Box::new(|| Err(Error::new(Code::Cancelled, "stopped")));
            let describe = std::mem::replace(&mut first.describe, cancelled);
            first.describe = Box::new(move || {
                prepare(&near);
                describe()
            });
        }
        let ticket = self.session.submit(items, stream, cancel).map_err(Failed::whole)?;
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner).insert(ticket, tensors);
        Ok(ticket)
    }

    fn check(&self, place: &Array) -> Result<()> {
        let (found, device) = (place.device(), self.device().ordinal());
        let text = if !place.is_on_gpu() {
            "the destination is in host memory".to_owned()
        } else if found.kind != CUDA || u32::try_from(found.id) != Ok(device) {
            format!("the destination is on CUDA device {}, the upload goes to {device}", found.id)
        } else {
            return Ok(());
        };
        Err(Error::new(Code::Value, text))
    }

    /// Waits, no longer than `patience`, until all copies of a ticket are begun, and makes what comes after in `stream` wait for them;
    /// with `sync`, waits until they are done. Call it until it is done. The first error of the ticket comes here, once nothing of
    /// it is in flight.
    pub fn wait(
        &self,
        ticket: u64,
        stream: Option<CallerStream>,
        sync: bool,
        patience: Duration,
    ) -> Result<Waited, Failed> {
        let waited = self.session.wait(ticket, stream, sync, patience);
        if let Ok(Waited::Waiting) = waited {
            return Ok(Waited::Waiting);
        }
        let tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
        let tensors = tensors.unwrap_or_default();
        for near in tensors.chunk_by(|one, two| one.file() == two.file()) {
            near.iter().take(1).for_each(|tensor| tensor.checkpoint.forget_inflated(None));
        }
        waited.map_err(|(index, error)| match index.and_then(|index| Some((index, tensors.get(index)?))) {
            Some((index, tensor)) => Failed::at(index, tensor, error),
            None => Failed::whole(error),
        })
    }

    /// Stops, and returns once nothing is in flight. Tickets that were not waited for are lost.
    pub fn close(&self) {
        self.session.close();
    }
}

/// Makes ready to read tensors.
fn prepare(tensors: &[Tensor]) {
    for near in tensors.chunk_by(|one, two| one.file() == two.file()) {
        if let Some(first) = near.first() {
            first.checkpoint.prepare(first.shard(), near.iter().map(Tensor::storage));
        }
    }
}
