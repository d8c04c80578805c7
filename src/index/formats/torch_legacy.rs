//! A file that is a legacy stream of torch 0.1.10 to 1.5.

use std::collections::HashMap;

use super::contents::Contents;
use crate::bytes::Source;
use crate::container::Format;
use crate::error::{Code, Error, Result, ResultExt};
use crate::index::model::Options;
use crate::index::pickled::legacy::{self, MAGIC, OBJECT, PICKLES, PROTOCOL_PICKLE, pickle_end};
use crate::index::pickled::{self, PersistentIdForm, PersistentIds};
use crate::limits::Limits;
use crate::pickle::{self, Disasm, Pickle};

/// Reads the index of a legacy stream.
pub(super) fn read(source: &Source, options: &Options) -> Result<Contents> {
    let (head, keys, mut notes) = legacy::open(source, options)?;
    let positions = legacy::positions(&keys);
    let locate = |key: &str, _: u64| legacy::locate(&positions, key);
    let object = head.pickle(OBJECT).to_vec();
    let ids = PersistentIds::described(PersistentIdForm::Legacy, &locate);
    let mut read = pickle::run_cancellable(object, &options.limits, &options.cancel)
        .and_then(|pickle| pickled::read_executed(pickle, ids, HashMap::new(), options))
        .in_member(PICKLES[OBJECT])?;
    let end = legacy::locate_storages(source, &mut read.storages, &keys, head.end(), &options.cancel)?;
    legacy::check_end(source, end, options)?;
    notes.append(&mut read.notes);
    let (mut index, tree) = read.into_index(Format::LegacyTorch, notes, source)?;
    index.end = Some(end);
    Ok((index, tree).into())
}

/// Fails where a bare pickle is the start of a legacy stream with a wrong magic number, or with one that is the result of a call.
pub(super) fn check_not_legacy(data: &[u8], limits: &Limits) -> Result<()> {
    const MAGIC_MAX_BYTES: usize = 4096;
    let start = data.get(..MAGIC_MAX_BYTES).unwrap_or(data);
    let Ok(end) = pickle_end(&mut Disasm::strict(start, 0, limits)) else { return Ok(()) };
    if !data.get(end..).is_some_and(|rest| rest.starts_with(PROTOCOL_PICKLE)) {
        return Ok(());
    }
    let Pickle { values, root, .. } = pickle::run(start.get(..end).unwrap_or_default().to_vec(), limits)?;
    let Some(call) = values.call_at(root) else {
        let text = "the file starts as a legacy stream of torch, but has a wrong magic number";
        return Err(Error::new(Code::UnknownFormat, text).at(0));
    };
    let (module, name) = pickled::callee(&values, &call);
    let text = format!("the magic number is the result of a call of {module}.{name}");
    let error =
        Error::global(Code::DisallowedCall, module, name, text).at(call.offset).in_member(PICKLES[MAGIC]);
    Err(error.note("Nothing was called. torch writes a number there: the file was made by hand."))
}
