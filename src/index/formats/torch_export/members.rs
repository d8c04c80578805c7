//! Which members of an archive have the weights and constants of its programs, by their names.

use crate::container::zip::{Archive, fold_case};
use crate::error::{Code, Error, Result, bail, error};
use crate::index::formats::torch;

/// Names that an archive may have only in this case, below its root folder: torch's zip reader ignores case.
const CASE_SENSITIVE_NAMES: [&str; 4] = ["archive_format", "archive_version", "byteorder", ".data/version"];

/// The member with the graph of a program in archives before torch 2.8, which have no root folder.
const OLD_GRAPH: &str = "serialized_exported_program.json";

/// The programs of an archive.
pub(super) struct Programs {
    pub(super) list: Vec<Program>,
    pub(super) big_endian: bool,
    pub(super) notes: Vec<String>,
}

/// The members of one program.
pub(super) struct Program {
    pub(super) name: String,
    pub(super) weights: Part,
    pub(super) constants: Part,
}

/// Where the weights or the constants of a program are.
pub(super) enum Part {
    /// A configuration, and the folder of the members that it names, with a slash.
    Config {
        /// The number of the configuration's member.
        member: usize,
        folder: String,
    },
    /// An archive of `torch.save`, which torch unpickles.
    Pickled {
        /// The number of its member.
        member: usize,
    },
}

/// Whether an archive is one of `torch.export.save`.
pub(crate) fn is_export(archive: &Archive) -> bool {
    let is_format = |name: &str| {
        let rest = root(archive).and_then(|root| name.strip_prefix(&*root));
        rest.is_some_and(|rest| !rest.contains('/') && fold_case(rest) == "archive_format")
    };
    archive.find(OLD_GRAPH).is_some() || archive.members().iter().any(|member| is_format(member.name()))
}

/// The folder of the first member, with its slash (inline_container.cc: `init`).
fn root(archive: &Archive) -> Option<String> {
    let (folder, _) = archive.members().first()?.name().split_once('/')?;
    Some(format!("{folder}/"))
}

/// Finds the programs. Fails where the archive is in another version, has none, or leaves open which members are meant.
pub(super) fn programs(archive: &Archive) -> Result<Programs> {
    let root = match root(archive) {
        Some(root) if archive.find(OLD_GRAPH).is_none() => root,
        _ => return old_program(archive),
    };
    check_names(archive, &root)?;
    let format = torch::small_member(archive, &format!("{root}archive_format"))?;
    if format.as_deref() != Some(b"pt2") {
        return Err(version("archive_format", format.as_deref().unwrap_or_default()));
    }
    match torch::small_member(archive, &format!("{root}archive_version"))?.as_deref() {
        None | Some(b"0") => {}
        Some(other) => return Err(version("archive_version", other)),
    }
    if !torch::has_version(archive, &root)? {
        return Err(torch::no_version(&root));
    }
    let big_endian = torch::is_big_endian(archive, &root)?;
    let mut list = Vec::new();
    for member in archive.members() {
        let Some(rest) = member.name().strip_prefix(&*root).and_then(|name| name.strip_prefix("models/"))
        else {
            continue;
        };
        let Some(name) = rest.strip_suffix(".json").filter(|name| !name.is_empty()) else {
            return Err(error!(Code::ExportConfig, "{rest:?} is not a name of a program's graph")
                .in_member(member.name()));
        };
        let weights = part(archive, &format!("{root}data/weights/"), name, "weights")?;
        let constants = part(archive, &format!("{root}data/constants/"), name, "constants")?;
        list.push(Program { name: name.to_owned(), weights, constants });
    }
    if list.is_empty() {
        return Err(no_program(archive, &root));
    }
    let is_config = |name: &str| {
        name.strip_prefix(&*root).is_some_and(|name| name.starts_with("data/"))
            && (name.ends_with("_weights_config.json") || name.ends_with("_constants_config.json"))
    };
    let configs = archive.members().iter().filter(|member| is_config(member.name())).count();
    let used = list.iter().flat_map(|program| [&program.weights, &program.constants]);
    let used = used.filter(|part| matches!(part, Part::Config { .. })).count();
    let unused = configs.saturating_sub(used);
    let note = (unused > 0)
        .then(|| format!("{unused} configuration(s) belong to no program of the archive and are not read"));
    Ok(Programs { list, big_endian, notes: note.into_iter().collect() })
}

/// The weights or constants of a program: `kind` is which of them.
fn part(archive: &Archive, folder: &str, name: &str, kind: &str) -> Result<Part> {
    let config = format!("{folder}{name}_{kind}_config.json");
    let pickled = format!("{folder}{name}.pt");
    match (archive.find(&config), archive.find(&pickled)) {
        // torch's Python reader takes the pickle, its C++ reader the configuration.
        (Some(_), Some(_)) => Err(error!(
            Code::ExportConfig,
            "the {kind} of {name:?} are there twice, as a configuration and as a pickle"
        )),
        (Some(member), None) => Ok(Part::Config { member, folder: folder.to_owned() }),
        (None, Some(member)) => Ok(Part::Pickled { member }),
        (None, None) => Err(error!(Code::RecordMissing, "the archive has no member {config:?}")),
    }
}

/// The program of an archive before torch 2.8. Its members are archives of `torch.save`, whatever their extension.
fn old_program(archive: &Archive) -> Result<Programs> {
    let version_text = torch::small_member(archive, "version")?;
    let version_text = version_text.ok_or_else(|| torch::no_version(""))?;
    if !version_text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') || version_text.is_empty() {
        return Err(version("version", &version_text));
    }
    let part = |kind: &str| {
        let names = ["pt", "json"].map(|extension| format!("serialized_{kind}.{extension}"));
        match names.each_ref().map(|name| archive.find(name)) {
            [Some(_), Some(_)] => Err(error!(Code::ExportConfig, "the {kind} is there twice")),
            [Some(member), None] | [None, Some(member)] => Ok(Part::Pickled { member }),
            [None, None] => {
                let [name, _] = names;
                Err(error!(Code::RecordMissing, "the archive has no member {name:?}"))
            }
        }
    };
    let (weights, constants) = (part("state_dict")?, part("constants")?);
    let program = Program { name: "model".to_owned(), weights, constants };
    Ok(Programs { list: vec![program], big_endian: false, notes: Vec::new() })
}

/// Fails where a member is outside the root folder, where the archive is one of `torch.save` too, and where a name differs from a
/// required one in case only.
fn check_names(archive: &Archive, root: &str) -> Result<()> {
    for member in archive.members() {
        let name = member.name();
        let Some(rest) = name.strip_prefix(root) else {
            bail!(Code::ZipName, "member {name:?} is outside the root folder {root:?}");
        };
        let folded = fold_case(rest);
        if folded == "data.pkl" {
            bail!(Code::ExportConfig, "member {name:?} makes it an archive of torch.save too");
        }
        if let Some(required) = CASE_SENSITIVE_NAMES.iter().find(|required| folded == **required)
            && rest != *required
        {
            bail!(Code::ZipCase, "member {name:?} differs from {required:?} in case");
        }
    }
    Ok(())
}

fn version(name: &str, found: &[u8]) -> Error {
    error!(Code::ExportVersion, "{name} is {:?}", String::from_utf8_lossy(found))
}

fn no_program(archive: &Archive, root: &str) -> Error {
    let folder = format!("{root}data/aotinductor/");
    let is_compiled = archive.members().iter().any(|member| member.name().starts_with(&folder));
    let error = Error::new(Code::UnknownFormat, "the archive has no exported program");
    match is_compiled {
        true => error.note("It has code that AOTInductor compiled, which rustload does not read."),
        false => error.note("It is an archive of torch.export without models."),
    }
}
