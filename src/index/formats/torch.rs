//! The torch zip format (torch 1.6 and later): a root folder with `data.pkl`, `version`, `byteorder`, and one member per storage.
//!
//! Follows `torch/serialization.py: _load` and `caffe2/serialize/inline_container.cc`, and is stricter where readers differ:
//! no member is outside the root folder, required names have this exact case, and each storage has exactly the size that the pickle
//! states.

use std::sync::Arc;

use super::contents::{Contents, Objects};
use crate::container::Format;
use crate::container::zip::{Archive, fold_case};
use crate::error::{Code, Error, Result, ResultExt, bail, error};
use crate::index::model::{Location, Options};
use crate::index::pickled;
use crate::index::pickled::{Found, PersistentIdForm, PersistentIds, ScriptClasses, read_scripts};
use crate::parallel::Cancel;
use crate::pickle::{self, Pickle};

/// Names that an archive may have only in this case.
const CASE_SENSITIVE_NAMES: [&str; 4] = ["data.pkl", "constants.pkl", "version", "byteorder"];

/// The member that describes the objects of a skops file (skops/io/_persist.py: `_save`). Arrays are members beside it.
pub(crate) const SKOPS_SCHEMA: &str = "schema.json";

/// Reads the index of an opened archive. `executed` is its `data.pkl`, if that was executed already.
pub(crate) fn read(archive: Archive, executed: Option<Pickle>, options: &Options) -> Result<Contents> {
    let archive = Arc::new(archive);
    let root = root(&archive)?;
    let mut notes = Vec::new();
    if let Some(position) = archive.find(&format!("{root}data.pkl")) {
        archive.prefetch(position, options.limits.pickle_bytes)?;
    }
    check_version(&archive, &root)?;
    let big_endian = is_big_endian(&archive, &root)?;
    let is_script = archive.find(&format!("{root}constants.pkl")).is_some();
    if is_script {
        notes.push("this is a TorchScript archive: its weights are read, its code is not run".to_owned());
        let constants = format!("{root}constants/");
        let count = archive.members().iter().filter(|member| member.name().starts_with(&constants)).count();
        if count > 0 {
            notes.push(format!(
                "its code has {count} tensor(s) as constants, which are not read: torch.jit.freeze makes them of all weights"
            ));
        }
    }
    if !archive.has_checksums() {
        notes.push("no checksums were computed when the file was saved".to_owned());
    }
    let member = format!("{root}data.pkl");
    let Some(position) = archive.find(&member) else { return Err(no_pickle(&archive)) };
    let limits = &options.limits;
    let deflated = archive.members().get(position).is_some_and(|member| member.is_compressed());
    // The other members that are read here have only a few bytes.
    let (limit_name, max_bytes) = match deflated && limits.inflate_bytes < limits.pickle_bytes {
        true => ("inflate_bytes", limits.inflate_bytes),
        false => ("pickle_bytes", limits.pickle_bytes),
    };
    let data = archive.read(position, limit_name, max_bytes, &options.cancel)?;
    let locate = |key: &str, nbytes: u64| locate(&archive, &root, key, nbytes);
    let pickle = match executed.filter(|pickle| pickle.values.data() == &data[..]) {
        Some(pickle) => pickle,
        None => pickle::run_cancellable(data, limits, &options.cancel).in_member(&member)?,
    };
    let scripts = match is_script {
        true => read_scripts(&archive, &root, &pickle.values, options)?,
        false => ScriptClasses::new(),
    };
    let ids = PersistentIds::described(PersistentIdForm::Archive, &locate).big_endian(big_endian);
    let mut read = pickled::read_executed(pickle, ids, scripts, options).in_member(&member)?;
    notes.append(&mut read.notes);
    let (index, tree) = read.into_index(Format::Zip, notes, archive.source())?;
    if options.verify {
        for storage in &index.storages {
            storage.location.verify(&options.cancel)?;
        }
    }
    let objects = Objects { tree: Some(tree), is_torchscript: is_script, ..Objects::default() };
    Ok(Contents { index, objects, inner: Vec::new() })
}

/// The root folder with its slash: that of the first member (inline_container.cc: `init`). Fails with `ZipName` where another
/// member is outside it.
fn root(archive: &Archive) -> Result<String> {
    let first_name = archive.members().first().map_or("", |member| member.name());
    let Some((folder, _)) = first_name.split_once('/') else {
        if archive.find("data.pkl").is_some() {
            bail!(Code::ZipName, "member {first_name:?} is not in a root folder");
        }
        return Err(no_pickle(archive));
    };
    let root = format!("{folder}/");
    for member in archive.members() {
        let Some(rest) = member.name().strip_prefix(&*root) else {
            if !archive.members().iter().any(|member| member.name().ends_with("/data.pkl")) {
                return Err(no_pickle(archive));
            }
            bail!(Code::ZipName, "member {:?} is outside the root folder {root:?}", member.name());
        };
        let folded = if rest.contains('/') { String::new() } else { fold_case(rest) };
        if let Some(required) = CASE_SENSITIVE_NAMES.iter().find(|required| folded == **required)
            && rest != *required
        {
            bail!(Code::ZipCase, "member {:?} differs from {required:?} in case", member.name());
        }
    }
    Ok(root)
}

/// The error for an archive without `data.pkl`; it names the format that the archive probably has.
fn no_pickle(archive: &Archive) -> Error {
    let has = |test: &dyn Fn(&str) -> bool| archive.members().iter().any(|member| test(member.name()));
    let (text, note) = if has(&|name| name.ends_with("model.weights.h5")) {
        ("this is a Keras model", "open it with keras.saving.load_model")
    } else if archive.find(SKOPS_SCHEMA).is_some() {
        ("this is a skops file", "open it with skops.io.load, after a look at skops.io.get_untrusted_types")
    } else if has(&|name| name == "[Content_Types].xml" || name == "META-INF/MANIFEST.MF") {
        ("this is an office document or a Java archive", "check that the path names a checkpoint")
    } else if has(&|name| name.ends_with("/.data/extern_modules")) {
        let note = "torch.package.PackageImporter opens it, and runs code of the archive: scan it first, and open it only if you trust its origin";
        ("this is an archive of torch.package", note)
    } else {
        let text = "the archive has no data.pkl in a root folder, as torch.save writes";
        let error = Error::new(Code::RecordMissing, text);
        let is_checkpoint =
            |name: &&str| [".pt", ".pth", ".safetensors"].iter().any(|end| name.ends_with(end));
        let inside = archive.members().iter().map(|member| member.name()).filter(is_checkpoint);
        let inside: Vec<&str> = inside.take(4).collect();
        if inside.is_empty() {
            return error;
        }
        return error.note(format!("The archive has checkpoints inside: unpack it and open {inside:?}."));
    };
    Error::new(Code::UnknownFormat, text).note(note)
}

/// Checks `version`, and `.data/version`, which versions from 6 on may have: 1 to 10 (inline_container.h). Some readers prefer one
/// and some the other, so both are checked where both exist.
fn check_version(archive: &Archive, root: &str) -> Result<()> {
    if has_version(archive, root)? {
        return Ok(());
    }
    if archive.find(&format!("{root}data.pkl")).is_none() {
        return Err(no_pickle(archive));
    }
    Err(no_version(root))
}

/// The error for an archive that states no version.
pub(crate) fn no_version(root: &str) -> Error {
    error!(Code::RecordMissing, "the archive has no member \"{root}version\"")
}

/// Whether the archive states a version. Fails with `ZipVersion` where that is not one of torch's.
pub(crate) fn has_version(archive: &Archive, root: &str) -> Result<bool> {
    let mut has_version = false;
    for name in [format!("{root}version"), format!("{root}.data/version")] {
        let Some(bytes) = small_member(archive, &name)? else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let digits = text.strip_suffix('\n').unwrap_or(&text);
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_plain || !matches!(digits.parse::<u8>(), Ok(1..=10)) {
            return Err(error!(Code::ZipVersion, "version {text:?} is not one of 1 to 10").in_member(&name));
        }
        has_version = true;
    }
    Ok(has_version)
}

pub(crate) fn is_big_endian(archive: &Archive, root: &str) -> Result<bool> {
    let name = format!("{root}byteorder");
    match small_member(archive, &name)?.as_deref() {
        None | Some(b"little") => Ok(false),
        Some(b"big") => Ok(true),
        Some(other) => {
            Err(error!(Code::ByteOrder, "byteorder is {:?}", String::from_utf8_lossy(other)).in_member(&name))
        }
    }
}

/// Reads a member of at most 64 bytes; `None` where it does not exist. For a longer one, returns its length as text, which is not a
/// valid value.
pub(crate) fn small_member(archive: &Archive, name: &str) -> Result<Option<Vec<u8>>> {
    const MAX_BYTES: u64 = 64;
    let Some(position) = archive.find(name) else { return Ok(None) };
    let size = archive.members().get(position).map_or(0, |member| member.size());
    if size > MAX_BYTES {
        return Ok(Some(format!("({size} bytes)").into_bytes()));
    }
    archive.read(position, "line", MAX_BYTES, &Cancel::new()).map(Some)
}

/// The member of a storage. Fails where it does not exist, or its size is not what the pickle states.
fn locate(archive: &Arc<Archive>, root: &str, key: &str, nbytes: u64) -> Result<Found> {
    let name = [root, "data/", key].concat();
    let member = archive.find(&name).and_then(|position| Some((position, archive.members().get(position)?)));
    match member {
        None if nbytes == 0 => Ok(Found::At(Location::Empty)),
        None => Err(error!(Code::RecordMissing, "the archive has no member {name:?} of {nbytes} byte(s)")),
        Some((position, member)) if member.size() == nbytes => {
            let number = u32::try_from(position).unwrap_or(u32::MAX);
            Ok(Found::At(Location::Member { archive: archive.clone(), number, skip: 0 }))
        }
        Some((_, member)) => {
            let text = format!("{name:?} has {} byte(s), the pickle states {nbytes}", member.size());
            Err(Error::new(Code::StorageBounds, text))
        }
    }
}
