//! Enforces the layers of the crate: imports go down only, `unsafe` stays in its register, parsers forbid it, and only the
//! binding uses Python. It reads the sources as text, with comments and literals blanked, and reports file and line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that every other module may import.
const BASE: &[&str] = &["error", "limits", "dtype", "layout", "memory", "num", "parallel"];

/// Each top-level module, from the top layer down, and the modules below it that it may import. A module may always import
/// itself and [`BASE`]. ARCHITECTURE.md draws the same layers.
const FLOOR_PLAN: &[(&str, &[&str])] = &[
    (
        "python",
        &[
            "checkpoint",
            "tensor",
            "scan",
            "stream",
            "sink",
            "kernel",
            "index",
            "pickle",
            "container",
            "bytes",
        ],
    ),
    ("checkpoint", &["tensor", "opened", "stream", "sink", "kernel", "index", "container", "bytes"]),
    ("tensor", &["opened", "stream", "sink", "kernel", "index", "pickle", "bytes"]),
    // The files of a checkpoint and the bytes of its storages: below both the checkpoint and its tensors.
    ("opened", &["stream", "index", "container", "bytes"]),
    // A scan opens nothing for use: it needs neither tensors nor streams.
    ("scan", &["index", "pickle", "container", "bytes"]),
    // It reads by position inside a memory window, so it knows sources; what a checkpoint is stays above it.
    ("stream", &["sink", "kernel", "bytes"]),
    // A view's owner is the mapping it points into.
    ("sink", &["kernel", "bytes"]),
    ("kernel", &[]),
    ("index", &["pickle", "container", "bytes"]),
    ("pickle", &["bytes"]),
    ("container", &["bytes"]),
    ("bytes", &[]),
];

/// Files (or, with a trailing slash, folders) below `src` that may say `unsafe`.
const UNSAFE_REGISTER: &[&str] = &[
    "bytes/mapping.rs",
    "kernel/arch/",
    "sink/host.rs",
    // Ranges of memory that are cut, joined and given back: no allocator does that.
    "sink/pages.rs",
    "sink/dlpack.rs",
    "sink/dlpack/tests.rs",
    "sink/cuda/driver.rs",
    // The promise that `GpuMemory` is, and who makes it.
    "sink/gpu.rs",
    "sink/cuda/memory.rs",
    "python/buffer.rs",
    "python/capsule.rs",
    // A caller's stream comes as a number.
    "python/cuda.rs",
];

/// Rooms whose root file forbids `unsafe` for all of the room.
const PARSERS: &[&str] = &["container", "pickle", "index", "scan"];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// What parsers may not do with a file's numbers.
const DENIED: &[&str] = &[
    "clippy::indexing_slicing",
    "clippy::arithmetic_side_effects",
    "clippy::unwrap_used",
    "clippy::as_conversions",
];

#[test]
fn imports_go_down_only() {
    check(|source, faults| {
        // `lib.rs` lists the rooms; it is in none.
        let Some(room) = source.room() else { return };
        if allowed_from(room).is_none() {
            faults.add(
                source,
                1,
                format!("`{room}` is no room of the floor plan: add it to tests/rust/layers.rs"),
            );
            return;
        }
        for import in imports(source) {
            if let Some(fault) = fault_of(room, &import.name) {
                faults.add(source, import.line, fault);
            }
        }
    });
}

#[test]
fn only_the_binding_mentions_pyo3() {
    check(|source, faults| {
        if source.room() == Some("python") {
            return;
        }
        for (line, _) in words(&source.code).filter(|(_, word)| *word == "pyo3") {
            faults.add(source, line, "mentions pyo3; allowed: src/python only".to_owned());
        }
    });
}

#[test]
fn unsafe_stays_in_its_register() {
    check(|source, faults| {
        let registered = UNSAFE_REGISTER.iter().any(|entry| match entry.strip_suffix('/') {
            Some(_) => source.path.starts_with(entry),
            None => source.path == *entry,
        });
        if registered {
            return;
        }
        for (line, _) in words(&source.code).filter(|(_, word)| *word == "unsafe") {
            faults.add(source, line, format!("says unsafe; allowed: {}", UNSAFE_REGISTER.join(", ")));
        }
    });
}

#[test]
fn no_lock_is_held_while_a_value_is_made() {
    check(|source, faults| {
        for (line, word) in words(&source.code).filter(|(_, word)| ["OnceLock", "LazyLock"].contains(word)) {
            let why = "a child forked meanwhile would wait for ever; use once_cell::race, where the first result wins";
            faults.add(source, line, format!("says {word}: {why}"));
        }
    });
}

#[test]
fn parsers_forbid_unsafe() {
    check(|source, faults| {
        let Some(room) = source.room() else { return };
        let is_root = source.path == format!("{room}.rs") || source.path == format!("{room}/mod.rs");
        let must = match room {
            "bytes" => !is_root && source.path != "bytes/mapping.rs",
            _ => is_root && PARSERS.contains(&room),
        };
        if must && !source.code.contains(FORBID) {
            faults.add(source, 1, format!("does not say {FORBID}"));
        }
        let denied = |lint: &&&str| !source.code.contains(**lint);
        if is_root && PARSERS.contains(&room) && DENIED.iter().any(|lint| denied(&lint)) {
            faults.add(source, 1, format!("does not deny {}", DENIED.join(", ")));
        }
    });
}

#[test]
fn overflow_is_checked_in_a_release() {
    let manifest = include_str!("../../Cargo.toml");
    let release = manifest.split("[profile.release]").nth(1).and_then(|rest| rest.split("\n[").next());
    assert!(release.is_some_and(|release| release.contains("overflow-checks = true")));
}

#[test]
fn the_floor_plan_has_no_cycle() {
    for (at, (room, below)) in FLOOR_PLAN.iter().enumerate() {
        for lower in *below {
            let place = FLOOR_PLAN.iter().position(|(name, _)| name == lower);
            assert!(place.is_some_and(|place| place > at), "{room} -> {lower} goes up");
        }
    }
}

#[test]
fn an_import_upwards_is_a_fault() {
    let source = Source::new("kernel/cast.rs", "use crate::error::Error;\nuse crate::index::Entry;\n");
    let found: Vec<_> =
        imports(&source).iter().filter_map(|import| fault_of("kernel", &import.name)).collect();
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("kernel imports index; allowed: error, limits, "), "{}", found[0]);
    assert!(fault_of("pickle", "container").is_some());
    assert!(fault_of("container", "pickle").is_some());
    assert!(fault_of("scan", "pickle").is_none());
    assert!(fault_of("checkpoint", "tensor").is_none());
    assert!(fault_of("tensor", "checkpoint").is_some());
    assert!(fault_of("opened", "tensor").is_some());
    assert!(fault_of("error", "kernel").is_some());
}

#[test]
fn every_spelling_of_an_import_is_read() {
    let text = r##"//! crate::scan
        use crate::{error::{Code, Error}, bytes::Source as S,
            layout};
        /* use crate::tensor; /* nested */ crate::tensor */
        const A: &str = "crate::tensor"; const B: &str = r#"crate::"tensor"#; const C: char = '"';
        fn f<'a>(x: &'a crate::dtype::DType) -> super::super::index::Entry { crate::trace!("x") }
        pub(in crate::pickle) struct D;
        use crate::Checkpoint;
    "##;
    let source = Source::new("pickle/machine.rs", text);
    let names: Vec<_> = imports(&source).into_iter().map(|import| (import.line, import.name)).collect();
    let expected = [(2, "error"), (2, "bytes"), (3, "layout"), (6, "dtype"), (8, "Checkpoint"), (6, "index")];
    assert_eq!(names, expected.map(|(line, name)| (line, name.to_owned())));
}

#[test]
fn literals_and_comments_are_blanked_line_by_line() {
    assert_eq!(blank("a // b\nc"), "a     \nc");
    assert_eq!(blank("a /* b\nc */ d"), "a     \n     d");
    assert_eq!(blank(r#"x("a\"b", 'c', '\'', b'"') y"#), r"x(      ,    ,     , b   ) y");
    assert_eq!(blank("&'a str"), "&'a str");
    assert_eq!(blank("r\"a\\\" unsafe"), "r     unsafe");
}

/// What is wrong with an import of `name` from `room`, if anything.
fn fault_of(room: &str, name: &str) -> Option<String> {
    let allowed = allowed_from(room)?;
    if name == room || allowed.contains(&name) {
        return None;
    }
    // The binding may use the names at the crate's root too.
    if room == "python" && name.starts_with(char::is_uppercase) {
        return None;
    }
    let hint = if allowed_from(name).is_some() {
        ""
    } else {
        " (spell the room an item lives in: crate::room::Item)"
    };
    Some(format!("{room} imports {name}{hint}; allowed: {}", allowed.join(", ")))
}

/// The rooms that `room` may import, or `None` where there is no such room.
fn allowed_from(room: &str) -> Option<Vec<&'static str>> {
    if BASE.contains(&room) {
        return Some(BASE.to_vec());
    }
    let (_, below) = FLOOR_PLAN.iter().find(|(name, _)| *name == room)?;
    Some(BASE.iter().chain(*below).copied().collect())
}

/// One file below `src`.
struct Source {
    /// Relative to `src`, with `/` between parts.
    path: String,
    /// The text with comments and literals blanked; lines stay where they are.
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), code: blank(text) }
    }

    fn room(&self) -> Option<&str> {
        let first = self.path.split('/').next().unwrap_or_default();
        let room = first.strip_suffix(".rs").unwrap_or(first);
        (room != "lib").then_some(room)
    }

    /// How many modules deep the file is: 1 for a room's root.
    fn depth(&self) -> usize {
        let parts = self.path.split('/').count();
        if self.path.ends_with("/mod.rs") { parts - 1 } else { parts }
    }
}

/// Everything wrong, so that one run shows all of it.
#[derive(Default)]
struct Faults(String, usize);

impl Faults {
    fn add(&mut self, source: &Source, line: usize, what: String) {
        writeln!(self.0, "  src/{}:{line}: {what}", source.path).expect("a String takes all");
        self.1 += 1;
    }
}

fn check(rule: impl Fn(&Source, &mut Faults)) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeSet::new();
    collect(&root, &mut files);
    assert!(!files.is_empty(), "no sources below {}", root.display());
    let mut faults = Faults::default();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file is UTF-8");
        let path = file.strip_prefix(&root).expect("it was found below the root");
        rule(&Source::new(&path.to_string_lossy().replace('\\', "/"), &text), &mut faults);
    }
    assert!(faults.1 == 0, "{} fault(s):\n{}", faults.1, faults.0);
}

fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources can be listed") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.insert(path);
        }
    }
}

struct Import {
    line: usize,
    name: String,
}

/// Every name that the file reaches at the crate's root, through `crate::` or enough `super::`.
fn imports(source: &Source) -> Vec<Import> {
    let code = &source.code;
    let mut found = Vec::new();
    let mut add = |at: usize, name: &str| {
        found.push(Import { line: line_of(code, at), name: name.to_owned() });
    };
    for at in starts_of(code, "crate::") {
        // `pub(in crate::x)` says who may look in, and imports nothing.
        if code[..at].trim_end().ends_with("(in") {
            continue;
        }
        for (at, name) in heads(code, at + "crate::".len()) {
            // A macro lives at the root wherever it is written.
            if !code[at + name.len()..].starts_with('!') {
                add(at, name);
            }
        }
    }
    let to_root = "super::".repeat(source.depth());
    for at in starts_of(code, &to_root) {
        for (at, name) in heads(code, at + to_root.len()) {
            // Inside an inline module one `super` less reaches the root, so only the name of a room counts.
            if allowed_from(name).is_some() {
                add(at, name);
            }
        }
    }
    found
}

/// The first segment of the path at `at`, or of each path in the braces there.
fn heads(code: &str, at: usize) -> Vec<(usize, &str)> {
    if !code[at..].starts_with('{') {
        return ident_at(code, at).into_iter().collect();
    }
    let mut found = Vec::new();
    let (mut depth, mut expects) = (0_usize, false);
    for (offset, c) in code[at..].char_indices() {
        match c {
            '{' => {
                depth += 1;
                expects = depth == 1;
            }
            '}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            ',' => expects = depth == 1,
            c if expects && !c.is_whitespace() => {
                expects = false;
                found.extend(ident_at(code, at + offset));
            }
            _ => {}
        }
    }
    found
}

fn ident_at(code: &str, at: usize) -> Option<(usize, &str)> {
    let rest = &code[at..];
    let end = rest.find(|c: char| !is_ident(c)).unwrap_or(rest.len());
    (end > 0).then(|| (at, &rest[..end]))
}

/// Where `path` starts a path: not in the middle of a longer one.
fn starts_of<'a>(code: &'a str, path: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(path)
        .map(|(at, _)| at)
        .filter(|at| !code[..*at].ends_with(|c: char| is_ident(c) || c == ':' || c == '$'))
}

/// Each word of the code and its line.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines()
        .enumerate()
        .flat_map(|(at, line)| line.split(|c: char| !is_ident(c)).map(move |word| (at + 1, word)))
        .filter(|(_, word)| !word.is_empty())
}

fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// Replaces comments and literals by as many spaces, and keeps the line ends.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after_word = out.ends_with(is_ident);
        let len = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' if out.ends_with('r') => raw_string(rest, 0),
            '"' => quoted(rest, '"'),
            '#' if out.ends_with('r') => match rest.trim_start_matches('#') {
                raw if raw.starts_with('"') => raw_string(rest, rest.len() - raw.len()),
                _ => 0,
            },
            '\'' if (!after_word || out.ends_with('b')) && is_char(rest) => quoted(rest, '\''),
            _ => 0,
        };
        if len == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.extend(rest[..len].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[len..];
        }
    }
    out
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

fn raw_string(rest: &str, hashes: usize) -> usize {
    let close = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 1;
    rest[start..].find(&close).map_or(rest.len(), |at| start + at + close.len())
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Tells `'a'` from the lifetime `'a`.
fn is_char(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    matches!((chars.next(), chars.next()), (Some('\\'), _) | (Some(_), Some('\'')))
}
