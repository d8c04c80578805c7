//! Enforces the layers of the crate: modules import only from layers below, `unsafe` is only in listed files, parsers forbid it,
//! and only the binding uses pyo3. It reads the tokens of the sources, without comments and literals.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Modules that every other module may import.
const BASE: &[&str] =
    &["error", "limits", "builder", "dtype", "layout", "memory", "num", "parallel", "sha256", "sys", "text"];

/// Each top-level module, from the top layer down, and the modules below it that it may import. A module may always import
/// itself and [`BASE`]. ARCHITECTURE.md draws the same layers.
const LAYERS: &[(&str, &[&str])] = &[
    // Only re-exports, for what is built outside the crate: tests, benches and fuzz targets.
    (
        "internals",
        &["checkpoint", "tensor", "stream", "sink", "kernel", "index", "pickle", "container", "bytes"],
    ),
    (
        "python",
        &[
            "document",
            "checkpoint",
            "write",
            "compare",
            "statistics",
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
    // The exports of the WebAssembly module.
    ("browser", &["document", "checkpoint", "tensor", "scan", "index", "bytes"]),
    ("document", &["checkpoint", "write", "statistics", "tensor"]),
    ("checkpoint", &["tensor", "opened", "stream", "sink", "kernel", "index", "container", "bytes"]),
    ("compare", &["write", "tensor", "stream", "sink", "kernel"]),
    ("statistics", &["write", "stream", "kernel", "bytes"]),
    ("write", &["tensor", "stream", "sink", "kernel", "container", "bytes"]),
    ("tensor", &["opened", "stream", "sink", "kernel", "index", "pickle", "bytes"]),
    // The files of a checkpoint and the bytes of its storages: below both the checkpoint and its tensors.
    ("opened", &["stream", "kernel", "index", "container", "bytes"]),
    // A scan reads no tensor data: it needs neither tensors nor streams.
    ("scan", &["index", "pickle", "container", "bytes"]),
    // It reads ranges of sources within a memory window; it knows nothing of checkpoints.
    ("stream", &["sink", "kernel", "bytes"]),
    // A view keeps its mapping (`bytes`) alive.
    ("sink", &["kernel", "bytes"]),
    ("kernel", &[]),
    ("index", &["pickle", "container", "bytes"]),
    ("pickle", &["bytes"]),
    ("container", &["bytes"]),
    ("bytes", &[]),
];

/// Files (or, with a trailing slash, folders) below `src` that may contain `unsafe`.
const UNSAFE_FILES: &[&str] = &[
    // Calls the page, and exports functions to it.
    "browser.rs",
    "bytes/mapping.rs",
    "kernel/arch/",
    "sha256.rs",
    "sink/host.rs",
    // Slices and copies of an array's elements.
    "sink/elements.rs",
    // Mappings that are split, merged and unmapped in parts, which an allocator cannot do.
    "sink/pages.rs",
    "sink/os/",
    "sink/dlpack.rs",
    "sink/dlpack/tests.rs",
    "sink/cuda/driver.rs",
    "sink/cuda/driver/table.rs",
    // The unsafe trait `GpuMemory`, and its implementation.
    "sink/gpu.rs",
    "sink/cuda/memory.rs",
    // Closes a descriptor, and says whether that failed.
    "sys/unix/close.rs",
    // A rename that replaces nothing; owners.
    "sys/windows/names.rs",
    "sys/windows/owner.rs",
    "python/buffer.rs",
    "python/capsule.rs",
    // The caller passes a CUDA stream as an address.
    "python/cuda.rs",
];

/// Modules whose root file forbids `unsafe` in all of the module.
const PARSERS: &[&str] = &["container", "pickle", "index", "scan"];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// Lints against unchecked arithmetic on a file's numbers, which parsers deny.
const DENIED: &[&str] = &[
    "clippy::indexing_slicing",
    "clippy::arithmetic_side_effects",
    "clippy::unwrap_used",
    "clippy::as_conversions",
];

#[test]
fn modules_import_only_from_layers_below() {
    check(|source, faults| {
        // `lib.rs` declares the modules and is in none of them.
        let Some(module) = source.module() else { return };
        if allowed_from(module).is_none() {
            let what = format!("module `{module}` is in no layer: add it to LAYERS in tests/rust/layers.rs");
            faults.add(source, what);
            return;
        }
        for fault in imports(source).into_iter().filter_map(|name| fault_of(module, name)) {
            faults.add(source, fault);
        }
    });
}

#[test]
fn only_the_binding_mentions_pyo3() {
    check(|source, faults| {
        if source.module() != Some("python") && source.has_word("pyo3") {
            faults.add(source, "mentions pyo3; allowed: src/python only".to_owned());
        }
    });
}

#[test]
fn unsafe_is_only_in_listed_files() {
    check(|source, faults| {
        let registered = UNSAFE_FILES.iter().any(|entry| match entry.strip_suffix('/') {
            Some(_) => source.path.starts_with(entry),
            None => source.path == *entry,
        });
        if !registered && source.has_word("unsafe") {
            faults.add(source, format!("contains unsafe; allowed: {}", UNSAFE_FILES.join(", ")));
        }
    });
}

#[test]
fn lazy_values_are_initialized_without_a_lock() {
    check(|source, faults| {
        for word in ["OnceLock", "LazyLock"].into_iter().filter(|word| source.has_word(word)) {
            let why = "a child forked during the initialization would deadlock; use once_cell::race, where the first result wins";
            faults.add(source, format!("uses {word}: {why}"));
        }
    });
}

#[test]
fn parsers_forbid_unsafe() {
    check(|source, faults| {
        let Some(module) = source.module() else { return };
        let is_root = source.path == format!("{module}.rs") || source.path == format!("{module}/mod.rs");
        let must = match module {
            "bytes" => !is_root && source.path != "bytes/mapping.rs",
            _ => is_root && PARSERS.contains(&module),
        };
        if must && !source.code.contains(FORBID) {
            faults.add(source, format!("lacks {FORBID}"));
        }
        let denied = |lint: &&&str| !source.code.contains(**lint);
        if is_root && PARSERS.contains(&module) && DENIED.iter().any(|lint| denied(&lint)) {
            faults.add(source, format!("does not deny {}", DENIED.join(", ")));
        }
    });
}

#[test]
fn the_release_profile_has_overflow_checks() {
    let manifest = include_str!("../../Cargo.toml");
    let release = manifest.split("[profile.release]").nth(1).and_then(|rest| rest.split("\n[").next());
    assert!(release.is_some_and(|release| release.contains("overflow-checks = true")));
}

#[test]
fn the_layers_have_no_cycle() {
    for (at, (module, below)) in LAYERS.iter().enumerate() {
        for lower in *below {
            let position = LAYERS.iter().position(|(name, _)| name == lower);
            assert!(position.is_some_and(|position| position > at), "{module} -> {lower} goes up");
        }
    }
}

#[test]
fn an_import_upwards_is_a_fault() {
    let source = Source::new("kernel/cast.rs", "use crate::error::Error;\nuse crate::index::Entry;\n");
    let found: Vec<_> = imports(&source).into_iter().filter_map(|name| fault_of("kernel", name)).collect();
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
    assert_eq!(imports(&source), ["error", "bytes", "layout", "dtype", "Checkpoint", "index"]);
}

/// The fault of an import of `name` in `module`, if it is one.
fn fault_of(module: &str, name: &str) -> Option<String> {
    let allowed = allowed_from(module)?;
    if name == module || allowed.contains(&name) {
        return None;
    }
    // The binding may use the names at the crate's root too.
    if module == "python" && name.starts_with(char::is_uppercase) {
        return None;
    }
    let hint = if allowed_from(name).is_some() {
        ""
    } else {
        " (import through the top-level module of the item: crate::module::Item)"
    };
    Some(format!("{module} imports {name}{hint}; allowed: {}", allowed.join(", ")))
}

/// The modules that `module` may import, or `None` if there is no such module.
fn allowed_from(module: &str) -> Option<Vec<&'static str>> {
    if BASE.contains(&module) {
        return Some(BASE.to_vec());
    }
    let (_, below) = LAYERS.iter().find(|(name, _)| *name == module)?;
    Some(BASE.iter().chain(*below).copied().collect())
}

/// One file below `src`.
pub(crate) struct Source {
    /// Relative to `src`, with `/` between parts.
    pub(crate) path: String,
    /// The tokens without comments and literals; a space where words would meet.
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let mut code = String::new();
        write_tokens(text.parse().expect("a source file is Rust"), &mut code);
        Source { path: path.to_owned(), code }
    }

    fn module(&self) -> Option<&str> {
        let first = self.path.split('/').next().unwrap_or_default();
        let module = first.strip_suffix(".rs").unwrap_or(first);
        (module != "lib").then_some(module)
    }

    fn has_word(&self, word: &str) -> bool {
        self.code.split(|c: char| !is_ident(c)).any(|found| found == word)
    }

    /// The depth of the file's module: 1 for the root of a top-level module.
    fn depth(&self) -> usize {
        let parts = self.path.split('/').count();
        if self.path.ends_with("/mod.rs") { parts - 1 } else { parts }
    }
}

/// All faults and their number, so that one run reports all of them.
#[derive(Default)]
struct Faults(String, usize);

impl Faults {
    fn add(&mut self, source: &Source, what: String) {
        writeln!(self.0, "  src/{}: {what}", source.path).expect("writing to a String cannot fail");
        self.1 += 1;
    }
}

/// Every file below `src`.
pub(crate) fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeSet::new();
    collect(&root, &mut files);
    assert!(!files.is_empty(), "no sources below {}", root.display());
    let read = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("a source file is UTF-8");
        let path = file.strip_prefix(&root).expect("it was found below the root");
        Source::new(&path.to_string_lossy().replace('\\', "/"), &text)
    };
    files.iter().map(read).collect()
}

fn check(rule: impl Fn(&Source, &mut Faults)) {
    let mut faults = Faults::default();
    for source in sources() {
        rule(&source, &mut faults);
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

/// Every name at the crate's root that the file uses, through `crate::` or enough `super::`.
fn imports(source: &Source) -> Vec<&str> {
    let code = &source.code;
    let mut found = Vec::new();
    for at in starts_of(code, "crate::") {
        // `pub(in crate::x)` restricts visibility and imports nothing.
        if code[..at].trim_end().ends_with("(in") {
            continue;
        }
        for (at, name) in heads(code, at + "crate::".len()) {
            // An exported macro is at the root wherever it is defined.
            if !code[at + name.len()..].starts_with('!') {
                found.push(name);
            }
        }
    }
    let to_root = "super::".repeat(source.depth());
    for at in starts_of(code, &to_root) {
        // Inside an inline module one `super` less reaches the root, so only the names of top-level modules count.
        let heads = heads(code, at + to_root.len()).into_iter().map(|(_, name)| name);
        found.extend(heads.filter(|name| allowed_from(name).is_some()));
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

pub(crate) fn ident_at(code: &str, at: usize) -> Option<(usize, &str)> {
    let rest = &code[at..];
    let end = rest.find(|c: char| !is_ident(c)).unwrap_or(rest.len());
    (end > 0).then(|| (at, &rest[..end]))
}

/// The positions where a path starts with `path`; not those in the middle of a longer path.
pub(crate) fn starts_of<'a>(code: &'a str, path: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(path)
        .map(|(at, _)| at)
        .filter(|at| !code[..*at].ends_with(|c: char| is_ident(c) || c == ':' || c == '$'))
}

fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn write_tokens(tokens: TokenStream, out: &mut String) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::None => ("", ""),
                };
                out.push_str(open);
                write_tokens(group.stream(), out);
                out.push_str(close);
            }
            TokenTree::Ident(word) => {
                if out.ends_with(is_ident) {
                    out.push(' ');
                }
                out.push_str(&word.to_string());
            }
            TokenTree::Punct(mark) => out.push(mark.as_char()),
            TokenTree::Literal(_) => out.push(' '),
        }
    }
}
