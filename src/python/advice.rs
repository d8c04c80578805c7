//! The advice on errors in the words of the Python interface: its keywords and functions, which the core's own advice does not name.

use std::borrow::Cow;

use crate::error::{Code, Error, Subject};

/// The note for an error: the advice for what it is about, else the error's own, else that for its code.
pub(super) fn note(error: &Error) -> Option<Cow<'_, str>> {
    if let Subject::Limit { name, .. } = error.subject() {
        return Some(
            format!("raise it with limits=rustload.Limits({name}=...) if you trust the file").into(),
        );
    }
    let note = error.own_note().unwrap_or_else(|| next_step(error.code()));
    Some(note.into()).filter(|_| !note.is_empty())
}

/// What to try next for a code; empty for wrong arguments.
pub(super) fn next_step(code: Code) -> &'static str {
    match code {
        Code::ShardDuplicate => {
            "Open the shards one by one, or give the index file; rustload.concat joins the parts that tensor-parallel training saves."
        }
        Code::ZipTrailing | Code::TrailingData => {
            "Open it with trailing=\"ignore\" if you know why they are there."
        }
        Code::RecordCompressed | Code::Buffer => "Ask with copy=None or copy=True.",
        Code::DisallowedGlobal | Code::DisallowedCall => {
            "Open it with unknown=\"keep\" to get such values as inert data."
        }
        Code::MetaTensor => "Under framework=\"torch\" it comes out as a meta tensor.",
        Code::StDuplicateKey => "Open it with compat=True to take the last, as the reference reader does.",
        Code::NpyObjects => {
            "Look at it with rustload.scan(path); numpy.load(..., allow_pickle=True) runs what the pickle says."
        }
        Code::LossyCast => "Pass allow_lossy=True to do it anyway.",
        Code::NotFound => "List the names: list(ckpt).",
        Code::ModelMismatch => {
            "The error lists them with similar names; try key=, strip=, rename= or strict=False."
        }
        Code::NotSafetensors => "Convert it with dtype= or dequantize=True, or leave it out.",
        Code::QuantUnknown => {
            "Without dequantize=True it is read as it is stored: decode it with the library that wrote it. fp8 numbers that are \
             meant as they are become floats with dtype={'*.weight': 'bfloat16'} and without dequantize=True."
        }
        Code::TiedTensors => "Write each in full with ties=\"copy\", or one alone with ties=\"drop\".",
        Code::TargetExists => "Pass overwrite=True to replace it, or write to another name.",
        Code::HeaderTooLarge => "Write a folder with max_shard_size=, or shorter names.",
        Code::Device => "Ask for device=\"cpu\", or check that the driver finds the GPU.",
        code => code.next_step(),
    }
}

/// The error of a join, with the keyword that makes the tensors fit.
pub(super) fn on_join(error: Error) -> Error {
    match error.code() {
        Code::DtypeUnsupported => {
            error.note("Materialize each with dequantize=True, and join what that gives.")
        }
        // Of the wrong values, only dtypes that differ have advice.
        Code::Value if error.own_note().is_some() => {
            error.note("materialize one of them with dtype=... and join after")
        }
        _ => error,
    }
}
