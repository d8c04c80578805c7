//! The members of an exported program (`.pt2`), by what its readers do with them. Part of the detector of zip readers.
//!
//! Stands for `torch.export.load` and `torch.export.pt2_archive.load_pt2`, torch 2.1 to 2.13. They call `torch.load` without a restriction on
//! the sample inputs, on pickled tensors and on the weights of older archives, `pickle.loads` on constants that are Python objects, and
//! `dlopen` on what AOTInductor compiled. The shapes in the graph are expressions as text, which torch passes to
//! `sympy.sympify`, and so to `eval`; `ExportedProgram.module` runs the text of the guards. A text that is not plain arithmetic is a finding,
//! and a graph or configuration with anything that [`schema`] does not have is unscanned.

mod expression;
mod operator;
mod pytree;
mod schema;

use std::collections::HashSet;

use self::expression::{Kind, Texts};
use super::super::report::Finding;
use super::super::scanner::{Detected, Origin};
use super::super::scanner::{Scanner, inside};
use super::super::verdict::Verdict;
use super::VisibleMember;
use crate::bytes::Source;
use crate::container::payload_config::PayloadConfig;
use crate::container::zip::{self, fold_case};
use crate::error::Result;
use crate::index;
use crate::num::to_u64;

/// The member that states the format of an archive since torch 2.8.
const FORMAT: &str = "archive_format";
/// The graph in archives before that, which have no root folder.
const OLD_GRAPH: &str = "serialized_exported_program.json";
/// The folder of compiled code.
const COMPILED: &str = "data/aotinductor/";
/// Extensions of libraries, which run code when they are loaded.
const LIBRARIES: [&str; 5] = [".so", ".dylib", ".dll", ".pyd", ".cubin"];

/// What readers do with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// They pass it to `torch.load`.
    Load,
    /// They unpickle it.
    Unpickle,
    /// They evaluate the expressions in it.
    Graph,
    /// They take the places and shapes of tensors from it.
    Config,
    /// They run it.
    Run,
    /// Nothing of these.
    Other,
}

impl Use {
    /// The origin of the member, where readers of exported programs decide it.
    pub(super) fn origin(self) -> Option<Origin> {
        match self {
            Use::Load => Some(Origin::Loaded),
            Use::Unpickle => Some(Origin::PickleMember),
            Use::Graph | Use::Config | Use::Run | Use::Other => None,
        }
    }
}

/// Whether the members are those of an exported program.
pub(super) fn is_export(members: &[VisibleMember]) -> bool {
    members.iter().any(|member| {
        let name = fold_case(&member.name);
        name.rsplit('/').next() == Some(FORMAT) || name == OLD_GRAPH
    })
}

/// What readers of exported programs do with the member of this name.
pub(super) fn member_use(name: &str) -> Use {
    let name = fold_case(name);
    let file = name.rsplit('/').next().unwrap_or_default();
    let in_folder = |folder: &str| name.starts_with(folder) || name.contains(&format!("/{folder}"));
    let is_payload = in_folder("data/weights/") || in_folder("data/constants/");
    match () {
        () if name == OLD_GRAPH || in_folder("models/") => Use::Graph,
        () if is_payload && file.ends_with("_config.json") => Use::Config,
        () if in_folder(COMPILED) && !file.ends_with(".json") => Use::Run,
        () if in_folder("data/sample_inputs/") => Use::Load,
        () if name.starts_with("serialized_") => Use::Load,
        () if in_folder("data/constants/") && file.starts_with("opaque_obj_") => Use::Unpickle,
        () if is_payload => Use::Load,
        () => Use::Other,
    }
}

impl Scanner<'_> {
    /// The names of the members that readers take as elements of tensors only; none where the strict reader refuses the archive, or where
    /// it has compiled code, whose reader loads weights in a way of its own.
    pub(super) fn export_storages(
        &mut self,
        source: &Source,
        members: &[VisibleMember],
        detected: &mut Detected,
    ) -> Result<HashSet<String>> {
        if members.iter().any(|member| member_use(&member.name) == Use::Run) {
            return Ok(HashSet::new());
        }
        let storages = self.read_once(source, detected)?.map_or(&[][..], |read| &read.index.storages);
        Ok(storages.iter().filter_map(index::Storage::member_name).collect())
    }

    /// Adds findings for compiled code.
    pub(super) fn compiled_code(&mut self, members: &[VisibleMember], label: Option<&str>) {
        let is_library = |name: &str| {
            let name = fold_case(name);
            LIBRARIES.iter().any(|extension| name.ends_with(extension))
        };
        let uses = |member: &&VisibleMember| member_use(&member.name) == Use::Run;
        let loaded = members.iter().filter(uses);
        let others = members.iter().filter(|member| !uses(member) && is_library(&member.name));
        let text = "which torch.export.load and load_pt2 run";
        self.code_members(loaded, Verdict::WouldExecute, text, label);
        self.code_members(others, Verdict::Unknown, "a library", label);
    }

    /// Adds one finding for members with native code.
    fn code_members<'m>(
        &mut self,
        mut members: impl Iterator<Item = &'m VisibleMember>,
        verdict: Verdict,
        text: &str,
        label: Option<&str>,
    ) {
        let Some(first) = members.next() else { return };
        let text = format!("native code, such as {:?}, {text}", first.name);
        let times = to_u64(members.count()).saturating_add(1);
        let finding = Finding::new("CodeInArchive", verdict, Some(&inside(label, &first.name)), text);
        self.report.add(Finding { offset: Some(0), times, readers: &["torch"], ..finding });
    }

    /// Judges the JSON of a graph or of a configuration. What is not in its schema is unscanned.
    pub(super) fn export_json(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        member_use: Use,
        inner: &str,
    ) -> Result<()> {
        let limits = &self.options.limits;
        let (bytes, is_whole) =
            zip::peek(source, member.region, member.method, limits.header_bytes, limits.inflate_ratio)?;
        let why = match std::str::from_utf8(&bytes) {
            _ if !is_whole => Some("the JSON is too large".to_owned()),
            Err(_) => Some("the JSON is not UTF-8".to_owned()),
            Ok(text) if member_use == Use::Graph => {
                self.evaluated_texts(text, inner)?;
                self.report.scanned(
                    Some(inner),
                    "the texts of a graph that torch evaluates",
                    0,
                    to_u64(bytes.len()),
                );
                schema::oddity(text)
            }
            Ok(_) => match PayloadConfig::parse(&bytes, limits) {
                Ok(config) if config.unknown_fields == 0 => None,
                Ok(_) => Some("a field that its schema does not have".to_owned()),
                Err(error) => Some(error.message().to_owned()),
            },
        };
        if let Some(why) = why {
            self.report.unscanned(Some(inner), &why, 0, member.region.len());
        }
        Ok(())
    }

    /// Adds findings for the texts in a graph that torch evaluates.
    fn evaluated_texts(&mut self, graph: &str, inner: &str) -> Result<()> {
        for evaluated in Texts::of(graph) {
            self.options.cancel.check()?;
            let verdict = evaluated.verdict();
            if verdict == Verdict::Inert {
                continue;
            }
            let what = match evaluated.kind {
                Kind::Expression => "is not plain arithmetic, and torch.export.load evaluates it",
                Kind::Guard => "is not plain arithmetic, and ExportedProgram.module runs it",
                Kind::Pytree => {
                    "names a type that is none of Python's containers, and torch.export.load imports it"
                }
                Kind::Operator => {
                    "is not an operator of torch that is known to compute, and the program calls it"
                }
            };
            let text = format!("a text of the graph {what}: {}", evaluated.text);
            let finding = Finding::new("CodeInArchive", verdict, Some(inner), text);
            self.report.add(Finding { offset: Some(evaluated.offset), readers: &["torch"], ..finding });
        }
        Ok(())
    }
}
