//! Interprets a pickle as tensors, names and an object tree, for all formats that have a pickle.

use std::sync::Arc;

use crate::bytes::Source;
use crate::container::Format;
use crate::error::{Code, Error, Result};
use crate::index::model::{Entry, Index, OpaqueClass, Options, Storage, Tensor, Unknown};
use crate::index::pickled::checks::{callee, check_end};
use crate::index::pickled::meaning::CallInterpreter;
use crate::index::pickled::meanings::{Found, Meaning, PersistentIds};
use crate::index::pickled::names;
use crate::index::pickled::script::ScriptClasses;
use crate::index::pickled::tree::{Tree, View};
use crate::pickle::Pickle;

/// The interpretation of one pickle.
pub(crate) struct Pickled {
    pub(crate) entries: Vec<Entry>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) storages: Vec<Storage<Found>>,
    pub(crate) opaque: Vec<OpaqueClass>,
    pub(crate) notes: Vec<String>,
    tree: Tree,
}

/// Interprets the calls of a pickle. `scripts` are the TorchScript classes of its values.
pub(crate) fn read_executed(
    pickle: Pickle,
    ids: PersistentIds<'_>,
    scripts: ScriptClasses,
    options: &Options,
) -> Result<Pickled> {
    check_end(&pickle, options)?;
    let Pickle { values, root, protocol, newest_protocol, .. } = pickle;
    let mut interpreter = CallInterpreter::new(&values, &options.limits, ids, &options.cancel)?;
    interpreter.set_scripts(scripts);
    if options.unknown == Unknown::Error {
        refuse_unknown(interpreter.view())?;
    }
    let mut traversal = names::find(interpreter.view(), root, &options.limits, &options.cancel)?;
    if !traversal.bare.is_empty() {
        interpreter.add_bare(&traversal.bare)?;
        traversal = names::find(interpreter.view(), root, &options.limits, &options.cancel)?;
    }
    let mut meanings = interpreter.finish();
    if newest_protocol > protocol {
        meanings.notes.push(format!(
            "the pickle declares protocol {protocol} and has opcodes of protocol {newest_protocol}"
        ));
    }
    Ok(Pickled {
        entries: traversal.entries,
        tensors: std::mem::take(&mut meanings.tensors),
        storages: std::mem::take(&mut meanings.storages),
        opaque: traversal.opaque,
        notes: std::mem::take(&mut meanings.notes),
        tree: Tree::new(values, meanings, root),
    })
}

impl Pickled {
    /// The index of a file that has only this pickle, and the object tree. The locations of all storages are known.
    pub(crate) fn into_index(
        self,
        format: Format,
        notes: Vec<String>,
        source: &Source,
    ) -> Result<(Index, Arc<Tree>)> {
        let tree = Arc::new(self.tree);
        let storages = self.storages.into_iter().map(|storage| storage.located(&tree));
        let parts = tree.parts();
        let mut notes = notes;
        let is_flat =
            |entry: &&Entry| entry.name.ends_with("flat_param") && parts.contains_key(&entry.tensor);
        if let Some(flat) = self.entries.iter().find(is_flat) {
            notes.push(format!(
                "{} is the flat parameter of a unit of FSDP (LOCAL_STATE_DICT): the names and shapes of the parameters in it are not in the file",
                flat.name
            ));
        }
        let index = Index {
            entries: self.entries,
            tensors: self.tensors,
            storages: storages.collect::<Result<_>>()?,
            opaque: self.opaque,
            notes,
            parts,
            ..Index::empty(format, source)
        };
        Ok((index, tree))
    }
}

/// Fails on the first unknown global or call.
fn refuse_unknown(view: View<'_>) -> Result<()> {
    for ((id, _), known) in view.values.globals().zip(&view.meanings.globals) {
        if known.is_none() {
            let global = view.values.global(id);
            let text =
                format!("the pickle imports {}.{}, which rustload does not know", global.module, global.name);
            return Err(
                Error::global(Code::DisallowedGlobal, global.module, global.name, text).at(global.offset)
            );
        }
    }
    for (id, _) in view.values.calls() {
        if view.meanings.calls.get(id.index()) == Some(&Meaning::Opaque) {
            let call = view.values.call(id);
            let (module, name) = callee(view.values, &call);
            let text =
                format!("the pickle calls {} in an unknown way", view.class_name(view.class_id(&call)));
            return Err(Error::global(Code::DisallowedCall, module, name, text).at(call.offset));
        }
    }
    Ok(())
}
