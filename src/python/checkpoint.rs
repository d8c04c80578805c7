//! `Checkpoint`: the Python class of an open checkpoint.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use super::arguments::{IoArg, TrailingArg, UnknownArg};
use super::classes::{Buffer, Checkpoint, Tensor};
use super::limits::changed;
use super::tensor::LayoutNumbers;
use super::{extra, objects, run};
use crate::bytes::{FileStamp, NodeShare};
use crate::container::Format;
use crate::error::{Code, Error};
use crate::index::{Options, SavedValue};
use crate::layout::Layout;
use crate::parallel::Cancel;

/// What opens the same checkpoint: paths, `unknown`, `trailing`, `compat`, `dequantize`, `io`, and limits that are not the
/// defaults.
type Reopening =
    (Vec<OsString>, &'static str, &'static str, bool, bool, &'static str, BTreeMap<&'static str, u64>);

/// Bytes, device and file offset of a storage.
type StorageInfo = (u64, Option<String>, Option<u64>);

/// Buffers, and for each storage the index of its buffer and the offset in it.
type OwnedStorages = (Vec<Buffer>, Vec<(usize, u64)>);

#[pymethods]
impl Checkpoint {
    #[getter]
    fn format(&self) -> &'static str {
        self.0.format().name()
    }

    #[getter]
    /// As strings: a `PathBuf` would become a `pathlib.Path`, which is slow to import.
    fn files(&self) -> Vec<OsString> {
        self.0.files().map(OsString::from).collect()
    }

    #[getter]
    fn file_formats(&self) -> Vec<&'static str> {
        self.0.file_formats().map(Format::name).collect()
    }

    #[getter]
    fn source_name(&self) -> Option<&str> {
        self.0.source_name()
    }

    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        self.0.metadata().iter().cloned().collect()
    }

    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes().to_vec()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.names().map(|name| PyString::new(py, name)))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn tensor(&self, name: &str) -> PyResult<Tensor> {
        Ok(Tensor(self.0.tensor(name)?))
    }

    /// The tensors at these positions of `names`, as many as there are.
    fn tensors(&self, start: usize, count: usize) -> Vec<Tensor> {
        (start..start.saturating_add(count))
            .map_while(|position| self.0.tensor_at(position))
            .map(Tensor)
            .collect()
    }

    fn tied(&self) -> Vec<Vec<String>> {
        self.0.tied().iter().map(|group| group.iter().map(|name| name.to_string()).collect()).collect()
    }

    fn opaque(&self) -> Vec<(String, u64, Vec<String>)> {
        self.0.opaque().into_iter().map(|class| (class.class, class.count, class.at)).collect()
    }

    fn globals(&self) -> PyResult<Vec<String>> {
        Ok(self.0.globals()?)
    }

    /// Each file's object tree, in shard order. `wrap` is called with each `Tensor` and returns the object for the tree.
    fn objects<'py>(&self, py: Python<'py>, wrap: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        objects::trees(py, &self.0, wrap)
    }

    /// The name and path of each value of a distributed checkpoint that is not a tensor.
    fn saved_values<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyTuple>)>> {
        let named = |value: &SavedValue| -> PyResult<_> {
            Ok((value.name.to_string(), objects::path_of(py, &self.0, 0, &value.path, &value.name)?))
        };
        self.0.saved_values().iter().map(named).collect()
    }

    /// Opens one of them.
    fn open_value(&self, py: Python<'_>, position: usize) -> PyResult<Checkpoint> {
        Ok(Checkpoint(run::detached(py, || self.0.open_value(position))?))
    }

    /// One file's object tree, made by a builder of torch's objects.
    fn rebuild<'py>(
        &self,
        py: Python<'py>,
        shard: usize,
        builder: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        objects::rebuild(py, &self.0, shard, builder)
    }

    /// Every distinct global of one file, in program order.
    fn globals_of(&self, shard: usize) -> Vec<String> {
        let tree = self.0.trees().nth(shard).and_then(|(_, tree)| tree);
        tree.map(|tree| tree.globals().collect()).unwrap_or_default()
    }

    #[getter]
    fn shards(&self) -> usize {
        self.0.shards()
    }

    #[getter]
    fn is_joined(&self) -> bool {
        self.0.is_joined()
    }

    fn check_dequantized(&self, py: Python<'_>) -> PyResult<()> {
        run::detached(py, || self.0.check_dequantized())
    }

    /// The quantized weights of known schemes: for each its name, dtype and elements, and what it is made of.
    fn quantized_weights(
        &self,
        py: Python<'_>,
    ) -> PyResult<Vec<(String, &'static str, u64, extra::SchemeOf)>> {
        let all = run::detached(py, || self.0.quantized_weights())?;
        let weight = |one: crate::checkpoint::Description| {
            let scheme = extra::scheme(&one);
            (one.name, one.dtype.name(), one.numel, scheme)
        };
        Ok(all.into_iter().map(weight).collect())
    }

    #[getter]
    fn serial(&self) -> u64 {
        self.0.serial()
    }

    /// Paths, options and limits; `None` unless it was opened by paths.
    fn reopening(&self) -> Option<Reopening> {
        let paths: Vec<OsString> = self.0.paths().into_iter().map(OsString::from).collect();
        let Options { unknown, ignore_trailing, compat, dequantize, io, .. } = self.0.options();
        let limits = changed(self.0.limits()).collect();
        let (unknown, trailing) = (UnknownArg(*unknown).word(), TrailingArg(*ignore_trailing).word());
        (!paths.is_empty())
            .then(|| (paths, unknown, trailing, *compat, *dequantize, IoArg(*io).word(), limits))
    }

    /// For each file its absolute path, size, time of modification in nanoseconds, and inode.
    fn file_stamps(&self, py: Python<'_>) -> PyResult<Vec<(OsString, u64, i128, u64)>> {
        let stamps = run::detached(py, || self.0.file_stamps())?;
        let numbers = |stamp: FileStamp| {
            let (seconds, nanoseconds) = stamp.modified;
            let modified = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
            (stamp.path.into_os_string(), stamp.len, modified, stamp.inode)
        };
        Ok(stamps.into_iter().map(numbers).collect())
    }

    /// The tensor that [`Tensor::state`] describes.
    fn restored(
        &self,
        name: Option<&str>,
        id: (u32, u32),
        layout: LayoutNumbers,
        channel_layout: Option<LayoutNumbers>,
    ) -> PyResult<Tensor> {
        let found = match name {
            Some(name) => Some(self.0.tensor(name)?),
            None => self.0.unnamed_tensor(id.0 as usize, id.1),
        };
        let changed = || Error::new(Code::FileChanged, "the checkpoint has other tensors than before");
        let whole = found.filter(|tensor| tensor.id() == id).ok_or_else(changed)?;
        let layout_of = |(shape, strides, offset): LayoutNumbers| Layout {
            shape: shape.into(),
            strides: strides.into(),
            offset,
        };
        Ok(Tensor(whole.restored(layout_of(layout), channel_layout.map(layout_of))?))
    }

    /// Shares what is read from stores from now on by the files of a folder, with `count` processes of which this has the number
    /// `number`. Returns of how many files of the checkpoint.
    fn share(&self, folder: PathBuf, number: usize, count: usize, window: u64) -> usize {
        self.0.share(Some(&Arc::new(NodeShare::new(folder, number, count, window))))
    }

    fn unshare(&self) {
        self.0.share(None);
    }

    #[getter]
    fn end(&self) -> Option<u64> {
        self.0.end()
    }

    #[getter]
    fn is_torchscript(&self) -> bool {
        self.0.is_torchscript()
    }

    fn storages(&self, py: Python<'_>, shard: usize, offsets: bool) -> PyResult<Vec<StorageInfo>> {
        let storages = run::detached(py, || self.0.storages(shard, offsets))?;
        Ok(storages.into_iter().map(|info| (info.nbytes, info.device, info.file_offset)).collect())
    }

    #[pyo3(signature = (shard, *, writable))]
    fn storage_views(
        &self,
        py: Python<'_>,
        shard: usize,
        writable: bool,
    ) -> PyResult<(Buffer, Vec<Option<u64>>)> {
        let cancel = Cancel::new();
        let work = run::detached(py, || self.0.storage_views_work(shard))?;
        let (file_view, starts) =
            run::interruptible(py, work, &cancel, || self.0.storage_views(shard, writable, &cancel))?;
        Ok((Buffer(file_view), starts))
    }

    fn storage_tensors(&self, py: Python<'_>, shard: usize) -> PyResult<Vec<Option<Tensor>>> {
        let tensors = run::detached(py, || self.0.storage_tensors(shard))?;
        Ok(tensors.into_iter().map(|tensor| tensor.map(Tensor)).collect())
    }

    fn read_storages(&self, py: Python<'_>, shard: usize, numbers: Vec<u32>) -> PyResult<OwnedStorages> {
        let cancel = Cancel::new();
        let owned =
            run::interruptible_if(py, true, &cancel, || self.0.read_storages(shard, &numbers, &cancel))?;
        Ok((owned.arrays.into_iter().map(Buffer).collect(), owned.locations))
    }
}

/// The names most similar to one that was not found.
#[pyfunction]
pub(crate) fn similar(name: &str, names: &Bound<'_, PyAny>, count: usize) -> PyResult<Vec<String>> {
    // Keys that are not strings, or have lone surrogates, are skipped.
    let texts = names.try_iter()?.filter_map(|name| name.and_then(|name| name.extract::<String>()).ok());
    Ok(crate::checkpoint::similar(name, texts, count))
}
