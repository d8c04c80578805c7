//! Checks of a pickle that need no interpretation of its calls.

use crate::error::{Code, Error, Result, error};
use crate::index::model::{Options, Unknown};
use crate::pickle::{Call, Pickle, Values};

/// The module and name of what a call calls, for an error.
pub(crate) fn callee<'a>(values: &'a Values, call: &Call<'_>) -> (&'a str, &'a str) {
    values.global_at(call.callable).unwrap_or(("", "(result of a call)"))
}

/// Fails with `TrailingData` where bytes follow the pickle, unless these are ignored.
pub(crate) fn check_end(pickle: &Pickle, options: &Options) -> Result<()> {
    let (end, total) = (pickle.end, pickle.values.data().len());
    if end == total || options.ignore_trailing {
        return Ok(());
    }
    Err(error!(Code::TrailingData, "{} byte(s) after the pickle's end", total.saturating_sub(end))
        .at(u64::try_from(end).unwrap_or(u64::MAX)))
}

/// What a pickle beside the object's imports or calls although its writer never does: an error if unknown names are refused, else
/// the text of a note. `content` is what the pickle holds; `is_written` says which names torch writes there. It writes no calls.
pub(crate) fn check_side_pickle(
    pickle: &Pickle,
    content: &str,
    is_written: impl Fn(&str, &str) -> bool,
    options: &Options,
) -> Result<Option<String>> {
    let values = &pickle.values;
    let mut globals = values.globals().map(|(id, _)| values.global(id));
    let foreign = globals.find(|global| !is_written(global.module, global.name));
    let (code, module, name, verb, offset) = match (foreign, values.calls().next()) {
        (Some(global), _) => (Code::DisallowedGlobal, global.module, global.name, "imports", global.offset),
        (None, Some((id, _))) => {
            let call = values.call(id);
            let (module, name) = callee(values, &call);
            (Code::DisallowedCall, module, name, "calls", call.offset)
        }
        (None, None) => return Ok(None),
    };
    let text = format!("the pickle of the {content} {verb} {module}.{name}, which torch never writes there");
    match options.unknown {
        Unknown::Error => Err(Error::global(code, module, name, text).at(offset)),
        Unknown::Keep => Ok(Some(text)),
    }
}
