//! What a name means to a scanner: three words, and for names that run code or touch the system, the reason.
//!
//! A name that rustload has a meaning for is inert, as long as it is called in a known form. A name in the table below would
//! execute when it is called. All others are unknown: classes of somebody's library, of which a scanner can say nothing. Names
//! are compared as readers look them up, without blanks around them.

use super::report::Verdict;

/// What to think of a global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    /// Why; empty for what is merely unknown.
    pub(super) reason: &'static str,
}

const RUNS: &str = "runs programs";
const EVALUATES: &str = "runs code from text or bytes";
const IMPORTS: &str = "imports modules by name";
const REACHES: &str = "gives access to any attribute of an object";
const LOADS: &str = "loads another pickle or program";
const FILES: &str = "reads, writes or deletes files";
const NETWORK: &str = "uses the network";
const NATIVE: &str = "runs native code or reads any memory";
const MAKES_CODE: &str = "makes functions from bytecode";
const CALLS: &str = "calls what it is given";
const OUTPUT: &str = "writes to the terminal";
const INTERPRETER: &str = "changes the running interpreter";

/// Modules of which every name is in the table; one that ends with a dot is a package, with all that is below it.
const MODULES: &[(&str, &str)] = &[
    ("os.", RUNS),
    ("posix", RUNS),
    ("nt", RUNS),
    ("subprocess.", RUNS),
    ("_posixsubprocess", RUNS),
    ("_winapi", RUNS),
    ("pty", RUNS),
    ("commands", RUNS),
    ("popen2", RUNS),
    ("multiprocessing.popen_fork", RUNS),
    ("multiprocessing.popen_spawn_posix", RUNS),
    ("multiprocessing.util", RUNS),
    ("asyncio.", RUNS),
    ("webbrowser", RUNS),
    ("antigravity", RUNS),
    ("distutils.", RUNS),
    ("setuptools.", RUNS),
    ("pip.", RUNS),
    ("ensurepip.", RUNS),
    ("venv.", RUNS),
    ("test.support.", RUNS),
    ("numpy.distutils.", RUNS),
    ("numpy.f2py.", RUNS),
    ("torch.utils.cpp_extension.", RUNS),
    ("torch.utils.collect_env.", RUNS),
    ("runpy", EVALUATES),
    ("code", EVALUATES),
    ("codeop", EVALUATES),
    ("pdb", EVALUATES),
    ("bdb", EVALUATES),
    ("timeit", EVALUATES),
    ("profile", EVALUATES),
    ("cProfile", EVALUATES),
    ("trace", EVALUATES),
    ("doctest", EVALUATES),
    ("idlelib.", EVALUATES),
    ("_pyrepl.", EVALUATES),
    ("numpy.testing.", EVALUATES),
    ("torch._dynamo.guards", EVALUATES),
    ("torch._inductor.", EVALUATES),
    ("torch.utils._config_module", EVALUATES),
    ("importlib.", IMPORTS),
    ("_frozen_importlib", IMPORTS),
    ("_frozen_importlib_external", IMPORTS),
    ("imp", IMPORTS),
    ("_imp", IMPORTS),
    ("zipimport", IMPORTS),
    ("pkgutil", IMPORTS),
    ("pydoc", IMPORTS),
    ("pkg_resources.", IMPORTS),
    ("pickle", LOADS),
    ("_pickle", LOADS),
    ("pickletools", LOADS),
    ("dill.", LOADS),
    ("cloudpickle.", LOADS),
    ("marshal", LOADS),
    ("shelve", LOADS),
    ("torch.hub", LOADS),
    ("torch.package.", LOADS),
    ("shutil", FILES),
    ("tempfile", FILES),
    ("fileinput", FILES),
    ("zipfile", FILES),
    ("tarfile", FILES),
    ("glob", FILES),
    ("sqlite3.", FILES),
    ("_sqlite3", FILES),
    ("dbm.", FILES),
    ("site", IMPORTS),
    ("socket", NETWORK),
    ("_socket", NETWORK),
    ("socketserver", NETWORK),
    ("ssl", NETWORK),
    ("http.", NETWORK),
    ("urllib.", NETWORK),
    ("requests.", NETWORK),
    ("urllib3.", NETWORK),
    ("aiohttp.", NETWORK),
    ("httpx.", NETWORK),
    ("ftplib", NETWORK),
    ("smtplib", NETWORK),
    ("telnetlib", NETWORK),
    ("poplib", NETWORK),
    ("imaplib", NETWORK),
    ("xmlrpc.", NETWORK),
    ("paramiko.", NETWORK),
    ("torch.distributed.rpc.", NETWORK),
    ("ctypes.", NATIVE),
    ("_ctypes", NATIVE),
    ("cffi.", NATIVE),
    ("mmap", NATIVE),
    ("sys", INTERPRETER),
    ("gc", INTERPRETER),
    ("inspect", INTERPRETER),
    ("signal", INTERPRETER),
    ("faulthandler", INTERPRETER),
    ("threading", INTERPRETER),
    ("_thread", INTERPRETER),
    ("atexit", INTERPRETER),
    ("logging.config", IMPORTS),
];

/// What a path does to the file that it names.
const PATH_METHODS: &[&str] = &[
    "chmod",
    "hardlink_to",
    "lchmod",
    "link_to",
    "mkdir",
    "open",
    "read_bytes",
    "read_text",
    "rename",
    "replace",
    "rmdir",
    "symlink_to",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
];

/// Longer walks are nobody's, and are not looked at step by step.
const MOST_PARTS: usize = 64;

/// Single names.
const NAMES: &[(&str, &[&str], &str)] = &[
    ("builtins", &["eval", "exec", "compile", "execfile", "breakpoint", "input", "help"], EVALUATES),
    ("builtins", &["__import__", "reload"], IMPORTS),
    (
        "builtins",
        &["getattr", "setattr", "delattr", "vars", "globals", "locals", "dir", "type", "super"],
        REACHES,
    ),
    ("builtins", &["apply", "map", "filter", "reduce", "sorted", "min", "max", "iter"], CALLS),
    ("builtins", &["open", "file"], FILES),
    ("builtins", &["memoryview", "exit", "quit", "__build_class__"], INTERPRETER),
    ("builtins", &["print"], OUTPUT),
    ("io", &["open", "open_code", "FileIO", "OpenWrapper"], FILES),
    ("_io", &["open", "open_code", "FileIO"], FILES),
    ("codecs", &["open"], FILES),
    // Methods, reached by dotted names such as `Path.unlink`.
    ("pathlib", PATH_METHODS, FILES),
    ("pathlib._local", PATH_METHODS, FILES),
    (
        "torch.fx.graph_module",
        &["reduce_graph_module", "reduce_package_graph_module", "reduce_deploy_graph_module"],
        EVALUATES,
    ),
    ("numpy", &["fromfile", "memmap", "save", "savez", "savetxt", "genfromtxt", "loadtxt"], FILES),
    ("torch", &["save", "from_file"], FILES),
    ("torch.serialization", &["save"], FILES),
    ("operator", &["attrgetter", "itemgetter", "methodcaller", "call"], REACHES),
    ("_operator", &["attrgetter", "itemgetter", "methodcaller", "call"], REACHES),
    ("functools", &["partial", "partialmethod", "reduce", "singledispatch", "cached_property"], CALLS),
    ("_functools", &["partial", "reduce"], CALLS),
    ("itertools", &["starmap", "accumulate", "takewhile", "dropwhile", "filterfalse", "groupby"], CALLS),
    ("types", &["CodeType", "FunctionType", "LambdaType", "MethodType"], MAKES_CODE),
    ("_types", &["CodeType", "FunctionType"], MAKES_CODE),
    ("new", &["code", "function", "instancemethod"], MAKES_CODE),
    ("copyreg", &["add_extension", "pickle"], INTERPRETER),
    ("torch", &["load"], LOADS),
    ("torch.jit", &["load", "jit_module_from_flatbuffer"], LOADS),
    ("torch.jit._serialization", &["load"], LOADS),
    ("torch.serialization", &["load", "_load", "_legacy_load"], LOADS),
    ("torch.storage", &["_load_from_bytes"], LOADS),
    ("numpy", &["load"], LOADS),
    ("numpy.lib.npyio", &["load", "NpzFile"], LOADS),
    ("numpy.lib._npyio_impl", &["load", "NpzFile"], LOADS),
    ("numpy.lib.format", &["read_array", "open_memmap"], LOADS),
    ("joblib", &["load"], LOADS),
    ("joblib.numpy_pickle", &["load"], LOADS),
    ("pandas", &["read_pickle", "eval"], LOADS),
    ("pandas.io.pickle", &["read_pickle"], LOADS),
    ("yaml", &["load", "unsafe_load", "full_load", "load_all", "unsafe_load_all"], LOADS),
    ("platform", &["popen", "_syscmd_ver", "_syscmd_file"], RUNS),
    ("uuid", &["_get_command_stdout", "_popen"], RUNS),
    ("torch.fx.experimental.symbolic_shapes.ShapeEnv", &["evaluate_guards_expression"], EVALUATES),
    ("concurrent.futures", &["ProcessPoolExecutor", "ThreadPoolExecutor"], CALLS),
];

/// Function names that mean the same thing wherever they are imported from.
const ANYWHERE: &[(&str, &str)] = &[
    ("system", RUNS),
    ("popen", RUNS),
    ("Popen", RUNS),
    ("check_output", RUNS),
    ("check_call", RUNS),
    ("getoutput", RUNS),
    ("getstatusoutput", RUNS),
    ("exec_command", RUNS),
    ("execv", RUNS),
    ("execve", RUNS),
    ("posix_spawn", RUNS),
    ("eval", EVALUATES),
    ("exec", EVALUATES),
    ("execfile", EVALUATES),
    ("runcode", EVALUATES),
    ("runsource", EVALUATES),
    ("runstring", EVALUATES),
    ("run_module", EVALUATES),
    ("run_path", EVALUATES),
    ("__import__", IMPORTS),
    ("import_module", IMPORTS),
    ("resolve_name", IMPORTS),
    ("_load_from_bytes", LOADS),
];

/// Judges a global by its name alone; `known` tells whether rustload has a meaning for it.
pub(super) fn judge(module: &str, name: &str, known: bool) -> Judgement {
    if known {
        return Judgement { verdict: Verdict::Inert, reason: "" };
    }
    let (module, name) = (module.trim(), name.trim());
    match reason(module, name) {
        Some(reason) => Judgement { verdict: Verdict::WouldExecute, reason },
        None => Judgement { verdict: Verdict::Unknown, reason: "" },
    }
}

fn reason(module: &str, name: &str) -> Option<&'static str> {
    if let Some(reason) = of_module(module) {
        return Some(reason);
    }
    let single = |name: &str| {
        let listed = NAMES.iter().find(|(home, names, _)| *home == module && names.contains(&name));
        listed.map(|(_, _, reason)| *reason)
    };
    let anywhere = |name: &str| ANYWHERE.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason);
    if let Some(reason) = single(name).or_else(|| anywhere(name)) {
        return Some(reason);
    }
    if !name.contains('.') {
        return None;
    }
    // A dotted name walks over attributes: into a class, or through a module into another one, by that one's own name.
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() > MOST_PARTS {
        return Some(REACHES);
    }
    let elsewhere = NAMES.iter().find(|(home, names, _)| {
        let len = home.split('.').count();
        let windows = parts.windows(len.saturating_add(1));
        windows
            .filter_map(<[&str]>::split_last)
            .any(|(last, before)| names.contains(last) && home.split('.').eq(before.iter().copied()))
    });
    if let Some((_, _, reason)) = elsewhere {
        return Some(reason);
    }
    name.split('.').find_map(|part| {
        let dunder = part.starts_with("__") && part.ends_with("__");
        if dunder {
            Some(REACHES)
        } else {
            of_module(part).or_else(|| single(part)).or_else(|| anywhere(part))
        }
    })
}

fn of_module(module: &str) -> Option<&'static str> {
    let is = |entry: &str| match entry.strip_suffix('.') {
        Some(package) => {
            module.strip_prefix(package).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        }
        None => module == entry,
    };
    MODULES.iter().find(|(entry, _)| is(entry)).map(|(_, reason)| *reason)
}

/// Whether a global reads a pickle or an archive from bytes that it is given.
pub(super) fn loads_bytes(module: &str, name: &str) -> bool {
    let loader = matches!(name, "load" | "loads" | "_load_from_bytes" | "_loads" | "read_pickle");
    loader && reason(module, name) == Some(LOADS)
}

/// `_load_from_bytes`: how torch writes a tensor in a plain pickle; as inert as the bytes it is given.
pub(super) fn is_storage_loader(module: &str, name: &str) -> bool {
    (module, name) == ("torch.storage", "_load_from_bytes")
}

/// Makers of callables: they run nothing themselves, and what they make matters once it is called.
pub(super) fn is_maker(module: &str, name: &str) -> Maker {
    match (module, name) {
        ("functools" | "_functools", "partial") => Maker::Partial,
        ("builtins", "getattr") => Maker::Attribute,
        _ => Maker::No,
    }
}

/// See [`is_maker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    No,
    /// `functools.partial(f, ...)`.
    Partial,
    /// `getattr(Enum, "NAME")`, as Python 3.11 pickles members of enumerations.
    Attribute,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_words() {
        for (module, name) in [
            ("posix", "system"),
            ("os", "path.join"),
            ("subprocess", "Popen"),
            ("builtins", "eval"),
            ("importlib.util", "find_spec"),
            ("torch.hub", "load"),
            ("some.helper", "system"),
            ("torch.serialization", "os.system"),
            ("builtins", "print.__class__.__base__"),
            ("collections", "OrderedDict.__reduce__"),
            ("os", "system\r"),
            ("pathlib", "Path.unlink"),
            ("torch._utils", "torch.load"),
            ("torch.nn", "modules.torch.jit.load"),
            ("sqlite3", "connect"),
        ] {
            assert_eq!(judge(module, name, false).verdict, Verdict::WouldExecute, "{module}.{name}");
        }
        for (module, name) in [
            ("argparse", "Namespace"),
            ("transformers.training_args", "TrainingArguments"),
            ("mylib", "Outer.Inner"),
            ("osprey", "Model"),
            ("code.models", "Net"),
            ("torch.jit._pickle", "build_intlist"),
            ("collections", "OrderedDict.fromkeys"),
            ("pathlib", "PosixPath"),
            ("pathlib", "Path.joinpath"),
            ("mylib", "Model.load"),
        ] {
            let found = judge(module, name, false);
            assert_eq!((found.verdict, found.reason), (Verdict::Unknown, ""), "{module}.{name}");
        }
        assert_eq!(judge("torch", "FloatStorage", true).verdict, Verdict::Inert);
    }

    /// Rows of `tests/data/scan_names.txt`: module, names, effect.
    fn known_names() -> impl Iterator<Item = (&'static str, Vec<&'static str>, &'static str)> {
        let lines = include_str!("../../tests/data/scan_names.txt").lines();
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
            let columns: Vec<&str> =
                line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
            let [module, names, effect, _] = columns[..] else { panic!("four columns in {line:?}") };
            (module, names.split(',').collect(), effect)
        })
    }

    #[test]
    fn every_known_name_has_its_effect() {
        let check = |module: &str, name: &str, effect: &str| {
            let found = judge(module, name, false);
            assert_eq!((found.verdict, found.reason), (Verdict::WouldExecute, effect), "{module}.{name}");
        };
        let listed: Vec<&str> = MODULES.iter().map(|(entry, _)| *entry).collect();
        let (mut modules, mut single, mut anywhere) = (Vec::new(), Vec::new(), Vec::new());
        for (module, names, effect) in known_names() {
            if module == "*" {
                for name in names {
                    check("some.library", name, effect);
                    let dotted = judge("some.library", &format!("Class.{name}"), false);
                    assert_eq!(dotted.verdict, Verdict::WouldExecute, "{name}");
                    anywhere.push(name);
                }
            } else if listed.contains(&module) || module.ends_with('.') {
                let bare = module.trim_end_matches('.');
                for name in names {
                    check(bare, name, effect);
                }
                // A package is listed with all that is below it, a module is not.
                let below = judge(&format!("{bare}.below"), "Name", false);
                assert_eq!(below.reason, if module == bare { "" } else { effect }, "{module}");
                assert_eq!(judge(&format!("{bare}_other"), "Name", false).reason, "", "{module}");
                modules.push(module);
            } else {
                for name in names {
                    check(module, name, effect);
                    let dotted = judge("some.library", &format!("{module}.{name}"), false);
                    assert_eq!(dotted.verdict, Verdict::WouldExecute, "{module}.{name}");
                    single.push((module, name));
                }
            }
        }
        // All entries are in the list, so that one cannot be added here, or go, with no word there.
        assert_eq!(sorted(modules), sorted(listed));
        let entries = NAMES.iter().flat_map(|(home, names, _)| names.iter().map(|name| (*home, *name)));
        assert_eq!(sorted(single), sorted(entries.collect()));
        assert_eq!(sorted(anywhere), sorted(ANYWHERE.iter().map(|(name, _)| *name).collect()));
    }

    fn sorted<T: Ord>(mut names: Vec<T>) -> Vec<T> {
        names.sort_unstable();
        names
    }

    #[test]
    fn loaders_of_bytes_are_told_from_other_names() {
        assert!(loads_bytes("torch.storage", "_load_from_bytes") && loads_bytes("pickle", "loads"));
        assert!(loads_bytes("numpy", "load") && loads_bytes("joblib.numpy_pickle", "load"));
        assert!(!loads_bytes("json", "loads") && !loads_bytes("pickle", "Unpickler"));
    }
}
