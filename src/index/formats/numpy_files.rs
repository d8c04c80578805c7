//! NumPy's own files: `.npy`, which is one array, and `.npz`, a zip archive of them.
//!
//! Follows `numpy/lib/_npyio_impl.py`. An array of an archive has the name of its member without `.npy`; the array of a `.npy` file
//! has none, and gets the one that `numpy.savez` gives the first array without a name. Arrays of objects, strings, times and
//! records are not read: in an archive they are listed as inert values, and a file of one is an error. Stricter than NumPy: each
//! array fills its member, or its file.

use std::sync::Arc;

use super::torch::SKOPS_SCHEMA;
use crate::bytes::{Region, Source};
use crate::container::Format;
use crate::container::npy::{Elements, Header};
use crate::container::zip::{self, Archive, Member, fold_case};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, ResultExt, error};
use crate::index::model::{Entry, Index, Location, Options, Path, RawTensor, Storage, Unknown};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};

/// The name of the array of a `.npy` file.
const UNNAMED: &str = "arr_0";

/// The stored bytes that are read of each member of an archive at once: most headers, also of deflated members.
const HEADER_BYTES: u64 = 128;

/// The end of a member's name.
const SUFFIX: &str = ".npy";

/// Reads the index of a `.npy` file.
pub(crate) fn read_npy(source: &Source, options: &Options) -> Result<Index> {
    let header = Header::read(|len| source.read_vec(0, source.len().min(len)))?;
    let array = Array::new(&header)?;
    let (end, have) = (header.len.saturating_add(array.nbytes), source.len());
    if have < end {
        let text = format!("the file is cut short: it has {have} byte(s), the array ends at byte {end}");
        let error = Error::new(Code::Truncated, text).at(have);
        return Err(error.note("The download or copy is probably incomplete: fetch the file again."));
    }
    if have > end && !options.ignore_trailing {
        let text = format!("{} byte(s) after the end of the array", have.saturating_sub(end));
        return Err(Error::new(Code::TrailingData, text).at(end));
    }
    let mut index = Index::empty(Format::Npy, source);
    let range = Region::new(header.len, array.nbytes).unwrap_or_default();
    index.add(UNNAMED, &array, Location::Range(range), options)?;
    index.end = Some(end);
    Ok(index)
}

/// Whether an archive is one of NumPy's: it has arrays, no pickle of torch, and no schema of skops.
pub(crate) fn is_npz(archive: &Archive) -> bool {
    let is_pickle = |name: &str| name.rsplit('/').next().is_some_and(|name| fold_case(name) == "data.pkl");
    let has = |test: &dyn Fn(&str) -> bool| archive.members().iter().any(|member| test(member.name()));
    !has(&is_pickle) && archive.find(SKOPS_SCHEMA).is_none() && has(&|name| name.ends_with(SUFFIX))
}

/// Whether a file is what `numpy.savez` writes for no arrays: an archive without members. Under another name than NumPy's, such an
/// archive is more probably what is left of one.
pub(crate) fn is_empty_npz(source: &Source) -> Result<bool> {
    let is_named = source.path().is_some_and(|path| path.extension().is_some_and(|end| end == "npz"));
    if !is_named || source.len() != to_u64(zip::EMPTY.len()) {
        return Ok(false);
    }
    let mut bytes = [0; zip::EMPTY.len()];
    source.read_at(0, &mut bytes)?;
    Ok(bytes == zip::EMPTY)
}

/// Reads the index of a `.npz` archive.
pub(crate) fn read_npz(archive: Archive, options: &Options) -> Result<Index> {
    let archive = Arc::new(archive);
    let mut index = Index::empty(Format::Npz, archive.source());
    let mut others = 0_u64;
    // Where requests are expensive, the headers of all arrays are read with few of them, several at once.
    let heads = match archive.defers() {
        true => archive.check_members(HEADER_BYTES, &options.cancel)?,
        false => Vec::new(),
    };
    for (number, member) in archive.members().iter().enumerate() {
        options.cancel.check()?;
        match member.name().strip_suffix(SUFFIX) {
            Some(name) => {
                let head = heads.get(number).and_then(|head| head.as_ref()?.head.as_deref());
                index.add_member(&archive, number, head, name, options).in_member(member.name())?;
            }
            None if member.is_directory() => {}
            None if options.unknown == Unknown::Error => return Err(not_an_array(member)),
            None => others = others.saturating_add(1),
        }
    }
    if others > 0 {
        index.notes.push(format!("{others} member(s) of the archive are not arrays (.npy) and are not read"));
    }
    if !index.opaque.is_empty() {
        let total = index.opaque.iter().fold(0_u64, |total, class| total.saturating_add(class.count));
        let classes: Vec<&str> = index.opaque.iter().map(|class| class.class.as_str()).collect();
        index.notes.push(format!(
            "{total} array(s) are not read, as their elements are not numbers: {}",
            classes.join(", ")
        ));
    }
    Ok(index)
}

/// An array of numbers.
struct Array<'a> {
    header: &'a Header,
    dtype: DType,
    big_endian: bool,
    nbytes: u64,
}

impl Array<'_> {
    /// Fails with `NpyObjects` or `NpyDtype` where the elements are not numbers.
    fn new(header: &Header) -> Result<Array<'_>> {
        match header.elements {
            Elements::Numbers { dtype, big_endian } => {
                Ok(Array { header, dtype, big_endian, nbytes: header.nbytes(dtype)? })
            }
            Elements::Objects => Err(Error::new(
                Code::NpyObjects,
                "the elements of the array are Python objects, stored as a pickle",
            )),
            Elements::Others { class, .. } => {
                Err(error!(Code::NpyDtype, "the elements of the array are not numbers, but {class}"))
            }
        }
    }
}

impl Index {
    /// Adds the array of a member, of which the first stored bytes may be known.
    fn add_member(
        &mut self,
        archive: &Arc<Archive>,
        number: usize,
        head: Option<&[u8]>,
        name: &str,
        options: &Options,
    ) -> Result<()> {
        let header = Header::read(|len| {
            let known = head.and_then(|head| archive.peek_head(number, head, len));
            known.map_or_else(|| archive.peek(number, len).map(|(bytes, _)| bytes), Ok)
        })?;
        if let Some(class) = header.elements.class().filter(|_| options.unknown == Unknown::Keep) {
            self.add_opaque(class, name);
            return Ok(());
        }
        let array = Array::new(&header)?;
        let size = archive.members().get(number).map_or(0, Member::size);
        if header.len.checked_add(array.nbytes) != Some(size) {
            let (have, need) = (size.saturating_sub(header.len), array.nbytes);
            let text = format!(
                "an array of {} and shape {:?} has {have} byte(s), not {need}",
                array.dtype,
                &header.shape[..]
            );
            return Err(Error::new(Code::NdarrayBounds, text).at(header.len));
        }
        let location =
            Location::Member { archive: archive.clone(), number: to_u32(number), skip: header.len };
        self.add(name, &array, location, options)
    }

    /// Adds an array and its storage.
    fn add(&mut self, name: &str, array: &Array<'_>, location: Location, options: &Options) -> Result<()> {
        let Array { header, dtype, big_endian, nbytes } = *array;
        let number = to_u32(self.tensors.len());
        Limits::check("tensors", options.limits.tensors, u64::from(number).saturating_add(1))?;
        // The parser accepts only sizes of 63 bits.
        let shape = header.shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
        let raw = RawTensor::contiguous(dtype, shape, header.fortran_order, number)?;
        let tensor = raw.prove(nbytes, &options.limits)?;
        if options.verify {
            location.verify(&options.cancel)?;
        }
        let numel = tensor.layout().numel();
        self.storages.push(Storage { location, nbytes, numel, big_endian, device: None });
        self.tensors.push(tensor);
        self.entries.push(Entry { name: Arc::from(name), path: Path::Name, tensor: number });
        Ok(())
    }
}

/// The error for a member that is not an array.
fn not_an_array(member: &Member) -> Error {
    Error::new(Code::UnknownFormat, "a member of the archive is not an array (.npy)").in_member(member.name())
}
