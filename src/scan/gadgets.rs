//! The knowledge base of deserialization gadgets: a verdict for every global, and a reason for those that execute.
//!
//! A global that the loader knows is inert, as long as it is called in a known form. A global in the tables below executes code or
//! accesses the system when it is called. Every other global is unknown, for example a class of a third-party library. Names are
//! compared without surrounding white space.

use super::verdict::Verdict;

/// The classification of a global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classification {
    pub(super) verdict: Verdict,
    /// What it does, as the end of a sentence; empty unless it would execute.
    pub(super) reason: &'static str,
}

const RUNS_PROGRAMS: &str = "runs programs";
const EVALUATES_CODE: &str = "runs code from text or bytes";
const IMPORTS_MODULES: &str = "imports modules by name";
const REACHES_ATTRIBUTES: &str = "gives access to any attribute of an object";
const LOADS_PICKLES: &str = "loads another pickle or program";
const ACCESSES_FILES: &str = "reads, writes or deletes files";
const USES_NETWORK: &str = "uses the network";
const RUNS_NATIVE_CODE: &str = "runs native code or reads any memory";
const MAKES_CODE: &str = "makes functions from bytecode";
const CALLS_ARGUMENTS: &str = "calls its arguments";
pub(super) const WRITES_OUTPUT: &str = "writes to the terminal";
const CHANGES_INTERPRETER: &str = "changes the running interpreter";

/// Modules of which every name would execute. An entry that ends with a dot is a package with all its submodules.
const MODULES: &[(&str, &str)] = &[
    ("os.", RUNS_PROGRAMS),
    ("posix", RUNS_PROGRAMS),
    ("nt", RUNS_PROGRAMS),
    ("subprocess.", RUNS_PROGRAMS),
    ("_posixsubprocess", RUNS_PROGRAMS),
    ("_winapi", RUNS_PROGRAMS),
    ("pty", RUNS_PROGRAMS),
    ("commands", RUNS_PROGRAMS),
    ("popen2", RUNS_PROGRAMS),
    ("multiprocessing.popen_fork", RUNS_PROGRAMS),
    ("multiprocessing.popen_spawn_posix", RUNS_PROGRAMS),
    ("multiprocessing.util", RUNS_PROGRAMS),
    ("asyncio.", RUNS_PROGRAMS),
    ("webbrowser", RUNS_PROGRAMS),
    ("antigravity", RUNS_PROGRAMS),
    ("distutils.", RUNS_PROGRAMS),
    ("setuptools.", RUNS_PROGRAMS),
    ("pip.", RUNS_PROGRAMS),
    ("ensurepip.", RUNS_PROGRAMS),
    ("venv.", RUNS_PROGRAMS),
    ("test.support.", RUNS_PROGRAMS),
    ("numpy.distutils.", RUNS_PROGRAMS),
    ("numpy.f2py.", RUNS_PROGRAMS),
    ("torch.utils.cpp_extension.", RUNS_PROGRAMS),
    ("torch.utils.collect_env.", RUNS_PROGRAMS),
    ("runpy", EVALUATES_CODE),
    ("code", EVALUATES_CODE),
    ("codeop", EVALUATES_CODE),
    ("pdb", EVALUATES_CODE),
    ("bdb", EVALUATES_CODE),
    ("timeit", EVALUATES_CODE),
    ("profile", EVALUATES_CODE),
    ("cProfile", EVALUATES_CODE),
    ("trace", EVALUATES_CODE),
    ("doctest", EVALUATES_CODE),
    ("idlelib.", EVALUATES_CODE),
    ("_pyrepl.", EVALUATES_CODE),
    ("numpy.testing.", EVALUATES_CODE),
    ("torch._dynamo.guards", EVALUATES_CODE),
    ("torch._inductor.", EVALUATES_CODE),
    ("torch.utils._config_module", EVALUATES_CODE),
    ("importlib.", IMPORTS_MODULES),
    ("_frozen_importlib", IMPORTS_MODULES),
    ("_frozen_importlib_external", IMPORTS_MODULES),
    ("imp", IMPORTS_MODULES),
    ("_imp", IMPORTS_MODULES),
    ("zipimport", IMPORTS_MODULES),
    ("pkgutil", IMPORTS_MODULES),
    ("pydoc", IMPORTS_MODULES),
    ("pkg_resources.", IMPORTS_MODULES),
    ("pickle", LOADS_PICKLES),
    ("_pickle", LOADS_PICKLES),
    ("pickletools", LOADS_PICKLES),
    ("dill.", LOADS_PICKLES),
    ("cloudpickle.", LOADS_PICKLES),
    ("marshal", LOADS_PICKLES),
    ("shelve", LOADS_PICKLES),
    ("torch.hub", LOADS_PICKLES),
    ("torch.package.", LOADS_PICKLES),
    ("shutil", ACCESSES_FILES),
    ("tempfile", ACCESSES_FILES),
    ("fileinput", ACCESSES_FILES),
    ("zipfile", ACCESSES_FILES),
    ("tarfile", ACCESSES_FILES),
    ("glob", ACCESSES_FILES),
    ("sqlite3.", ACCESSES_FILES),
    ("_sqlite3", ACCESSES_FILES),
    ("dbm.", ACCESSES_FILES),
    ("site", IMPORTS_MODULES),
    ("socket", USES_NETWORK),
    ("_socket", USES_NETWORK),
    ("socketserver", USES_NETWORK),
    ("ssl", USES_NETWORK),
    ("http.", USES_NETWORK),
    ("urllib.", USES_NETWORK),
    ("requests.", USES_NETWORK),
    ("urllib3.", USES_NETWORK),
    ("aiohttp.", USES_NETWORK),
    ("httpx.", USES_NETWORK),
    ("ftplib", USES_NETWORK),
    ("smtplib", USES_NETWORK),
    ("telnetlib", USES_NETWORK),
    ("poplib", USES_NETWORK),
    ("imaplib", USES_NETWORK),
    ("xmlrpc.", USES_NETWORK),
    ("paramiko.", USES_NETWORK),
    ("torch.distributed.rpc.", USES_NETWORK),
    ("ctypes.", RUNS_NATIVE_CODE),
    ("_ctypes", RUNS_NATIVE_CODE),
    ("cffi.", RUNS_NATIVE_CODE),
    ("mmap", RUNS_NATIVE_CODE),
    ("sys", CHANGES_INTERPRETER),
    ("gc", CHANGES_INTERPRETER),
    ("inspect", CHANGES_INTERPRETER),
    ("signal", CHANGES_INTERPRETER),
    ("faulthandler", CHANGES_INTERPRETER),
    ("threading", CHANGES_INTERPRETER),
    ("_thread", CHANGES_INTERPRETER),
    ("atexit", CHANGES_INTERPRETER),
    ("logging.config", IMPORTS_MODULES),
    ("nntplib", USES_NETWORK),
    ("_interpreters", EVALUATES_CODE),
    ("_xxsubinterpreters", EVALUATES_CODE),
];

/// Methods of `pathlib` paths that access files.
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

/// The maximum number of parts of a dotted name that are looked up. A longer name counts as attribute access.
const MAX_ATTRIBUTE_PARTS: usize = 64;

/// Names in these modules that are plain data classes, and so unknown.
const DATA_CLASSES: &[(&str, &[&str])] = &[
    ("inspect", &["Parameter", "Signature", "_ParameterKind", "_empty"]),
    ("urllib.parse", &["ParseResult", "SplitResult"]),
];

/// Single globals: module, names, reason.
const GLOBALS: &[(&str, &[&str], &str)] = &[
    ("builtins", &["eval", "exec", "compile", "execfile", "breakpoint", "input", "help"], EVALUATES_CODE),
    ("builtins", &["__import__", "reload"], IMPORTS_MODULES),
    (
        "builtins",
        &["getattr", "setattr", "delattr", "vars", "globals", "locals", "dir", "type", "super"],
        REACHES_ATTRIBUTES,
    ),
    ("builtins", &["apply", "map", "filter", "reduce", "sorted", "min", "max", "iter"], CALLS_ARGUMENTS),
    ("builtins", &["open", "file"], ACCESSES_FILES),
    ("builtins", &["memoryview", "exit", "quit", "__build_class__"], CHANGES_INTERPRETER),
    ("builtins", &["print"], WRITES_OUTPUT),
    ("io", &["open", "open_code", "FileIO", "OpenWrapper"], ACCESSES_FILES),
    ("_io", &["open", "open_code", "FileIO"], ACCESSES_FILES),
    ("codecs", &["open"], ACCESSES_FILES),
    // Methods, reached by dotted names such as `Path.unlink`.
    ("pathlib", PATH_METHODS, ACCESSES_FILES),
    ("pathlib._local", PATH_METHODS, ACCESSES_FILES),
    (
        "torch.fx.graph_module",
        &["reduce_graph_module", "reduce_package_graph_module", "reduce_deploy_graph_module"],
        EVALUATES_CODE,
    ),
    ("numpy", &["fromfile", "memmap", "save", "savez", "savetxt", "genfromtxt", "loadtxt"], ACCESSES_FILES),
    ("torch", &["save", "from_file"], ACCESSES_FILES),
    ("torch.serialization", &["save"], ACCESSES_FILES),
    ("operator", &["attrgetter", "itemgetter", "methodcaller", "call"], REACHES_ATTRIBUTES),
    ("_operator", &["attrgetter", "itemgetter", "methodcaller", "call"], REACHES_ATTRIBUTES),
    (
        "functools",
        &["partial", "partialmethod", "reduce", "singledispatch", "cached_property"],
        CALLS_ARGUMENTS,
    ),
    ("_functools", &["partial", "reduce"], CALLS_ARGUMENTS),
    (
        "itertools",
        &["starmap", "accumulate", "takewhile", "dropwhile", "filterfalse", "groupby"],
        CALLS_ARGUMENTS,
    ),
    ("types", &["CodeType", "FunctionType", "LambdaType", "MethodType"], MAKES_CODE),
    ("_types", &["CodeType", "FunctionType"], MAKES_CODE),
    ("new", &["code", "function", "instancemethod"], MAKES_CODE),
    ("copyreg", &["add_extension", "pickle"], CHANGES_INTERPRETER),
    ("torch", &["load"], LOADS_PICKLES),
    ("torch.jit", &["load", "jit_module_from_flatbuffer"], LOADS_PICKLES),
    ("torch.jit._serialization", &["load"], LOADS_PICKLES),
    ("torch.serialization", &["load", "_load", "_legacy_load"], LOADS_PICKLES),
    ("torch.storage", &["_load_from_bytes"], LOADS_PICKLES),
    ("numpy", &["load"], LOADS_PICKLES),
    ("numpy.lib.npyio", &["load", "NpzFile"], LOADS_PICKLES),
    ("numpy.lib._npyio_impl", &["load", "NpzFile"], LOADS_PICKLES),
    ("numpy.lib.format", &["read_array", "open_memmap"], LOADS_PICKLES),
    ("joblib", &["load"], LOADS_PICKLES),
    ("joblib.numpy_pickle", &["load"], LOADS_PICKLES),
    ("pandas", &["read_pickle", "eval"], LOADS_PICKLES),
    ("pandas.io.pickle", &["read_pickle"], LOADS_PICKLES),
    ("yaml", &["load", "unsafe_load", "full_load", "load_all", "unsafe_load_all"], LOADS_PICKLES),
    ("platform", &["popen", "_syscmd_ver", "_syscmd_file"], RUNS_PROGRAMS),
    ("uuid", &["_get_command_stdout", "_popen"], RUNS_PROGRAMS),
    ("torch.fx.experimental.symbolic_shapes.ShapeEnv", &["evaluate_guards_expression"], EVALUATES_CODE),
    ("_osx_support", &["_read_output", "_find_build_tool"], RUNS_PROGRAMS),
    ("_aix_support", &["_read_cmd_output"], RUNS_PROGRAMS),
    ("torch.jit.unsupported_tensor_ops", &["execWrapper"], EVALUATES_CODE),
    ("torch.utils.bottleneck.__main__", &["run_cprofile", "run_autograd_prof"], EVALUATES_CODE),
    ("torch.fx.experimental.symbolic_shapes", &["evaluate_guards_expression"], EVALUATES_CODE),
    ("lib2to3.pgen2.pgen", &["make_label"], EVALUATES_CODE),
    ("lib2to3.pgen2.grammar", &["load", "loads"], LOADS_PICKLES),
    ("torch.utils.data.datapipes.utils.decoder", &["basichandlers"], LOADS_PICKLES),
    ("logging", &["FileHandler"], ACCESSES_FILES),
    ("concurrent.futures", &["ProcessPoolExecutor", "ThreadPoolExecutor"], CALLS_ARGUMENTS),
];

/// Function names that would execute whatever module they are imported from.
const ANY_MODULE: &[(&str, &str)] = &[
    ("system", RUNS_PROGRAMS),
    ("popen", RUNS_PROGRAMS),
    ("Popen", RUNS_PROGRAMS),
    ("check_output", RUNS_PROGRAMS),
    ("check_call", RUNS_PROGRAMS),
    ("getoutput", RUNS_PROGRAMS),
    ("getstatusoutput", RUNS_PROGRAMS),
    ("exec_command", RUNS_PROGRAMS),
    ("execv", RUNS_PROGRAMS),
    ("execve", RUNS_PROGRAMS),
    ("posix_spawn", RUNS_PROGRAMS),
    ("eval", EVALUATES_CODE),
    ("exec", EVALUATES_CODE),
    ("execfile", EVALUATES_CODE),
    ("runcode", EVALUATES_CODE),
    ("runsource", EVALUATES_CODE),
    ("runstring", EVALUATES_CODE),
    ("run_module", EVALUATES_CODE),
    ("run_path", EVALUATES_CODE),
    ("__import__", IMPORTS_MODULES),
    ("import_module", IMPORTS_MODULES),
    ("resolve_name", IMPORTS_MODULES),
    ("_load_from_bytes", LOADS_PICKLES),
];

/// Classifies a global by its name; `known` is whether the loader knows it.
pub(super) fn classify(module: &str, name: &str, known: bool) -> Classification {
    if known {
        return Classification { verdict: Verdict::Inert, reason: "" };
    }
    let (module, name) = (module.trim(), name.trim());
    match reason(module, name) {
        Some(reason) => Classification { verdict: Verdict::WouldExecute, reason },
        None => Classification { verdict: Verdict::Unknown, reason: "" },
    }
}

/// The names of the tables, with their reasons; a module with all its names ends with a dot.
pub(super) fn names() -> impl Iterator<Item = (String, &'static str)> {
    let modules =
        MODULES.iter().map(|(entry, reason)| (format!("{}.", entry.trim_end_matches('.')), *reason));
    let globals = GLOBALS
        .iter()
        .flat_map(|(home, names, reason)| names.iter().map(move |name| (format!("{home}.{name}"), *reason)));
    modules.chain(globals)
}

/// Why a global would execute; `None` where that is unknown.
fn reason(module: &str, name: &str) -> Option<&'static str> {
    if DATA_CLASSES.iter().any(|(home, names)| *home == module && names.contains(&name)) {
        return None;
    }
    if let Some(reason) = module_reason(module) {
        return Some(reason);
    }
    let single = |name: &str| {
        let listed = GLOBALS.iter().find(|(home, names, _)| *home == module && names.contains(&name));
        listed.map(|(_, _, reason)| *reason)
    };
    let anywhere =
        |name: &str| ANY_MODULE.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason);
    if let Some(reason) = single(name).or_else(|| anywhere(name)) {
        return Some(reason);
    }
    if !name.contains('.') {
        // A module that its package gives as an attribute.
        return module_reason(&format!("{module}.{name}"));
    }
    // A dotted name is an attribute path: into a class, to a module below this one, or to one that was imported under its own name.
    let path: Vec<&str> = module.split('.').chain(name.split('.')).collect();
    if path.len() > MAX_ATTRIBUTE_PARTS {
        return Some(REACHES_ATTRIBUTES);
    }
    // Whether the parts before `end` lead to a module. They include the first part of the dotted name.
    let leads_to = |end: usize, home: &str| {
        let mut before = path.iter().take(end).rev();
        home.rsplit('.').all(|part| before.next() == Some(&part))
    };
    let ends = module.split('.').count().saturating_add(1)..=path.len();
    let through_module = MODULES
        .iter()
        .find(|(entry, _)| ends.clone().any(|end| leads_to(end, entry.strip_suffix('.').unwrap_or(entry))));
    let through_name = GLOBALS.iter().find(|(home, names, _)| {
        let is_next = |end: usize| path.get(end).is_some_and(|next| names.contains(next));
        ends.clone().any(|end| is_next(end) && leads_to(end, home))
    });
    let through = through_module.map(|(_, reason)| *reason).or(through_name.map(|(_, _, reason)| *reason));
    through.or_else(|| {
        name.split('.').find_map(|part| {
            let dunder = part.starts_with("__") && part.ends_with("__");
            if dunder { Some(REACHES_ATTRIBUTES) } else { single(part).or_else(|| anywhere(part)) }
        })
    })
}

fn module_reason(module: &str) -> Option<&'static str> {
    let covers = |entry: &str| match entry.strip_suffix('.') {
        Some(package) => {
            module.strip_prefix(package).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        }
        None => module == entry,
    };
    MODULES.iter().find(|(entry, _)| covers(entry)).map(|(_, reason)| *reason)
}

/// Whether a global loads a pickle or an archive from its argument.
pub(super) fn loads_bytes(module: &str, name: &str) -> bool {
    let loader = matches!(name, "load" | "loads" | "_load_from_bytes" | "_loads" | "read_pickle");
    loader && reason(module, name) == Some(LOADS_PICKLES)
}

/// Whether a global is `_load_from_bytes`, with which torch writes a storage into a plain pickle. It is as inert as its bytes.
pub(super) fn is_storage_loader(module: &str, name: &str) -> bool {
    (module, name) == ("torch.storage", "_load_from_bytes")
}

/// The kind of callable factory that a global is. A factory executes nothing itself; the callable that it makes may, once it is
/// called.
pub(super) fn callable_factory(module: &str, name: &str) -> Option<CallableFactory> {
    match (module, name) {
        ("functools" | "_functools", "partial") => Some(CallableFactory::Partial),
        ("operator" | "_operator", "itemgetter") => Some(CallableFactory::Partial),
        ("builtins", "getattr") => Some(CallableFactory::Attribute),
        _ => None,
    }
}

/// See [`callable_factory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallableFactory {
    /// `functools.partial(f, ...)`, or `operator.itemgetter(key)`.
    Partial,
    /// `getattr(Enum, "NAME")`, as Python 3.11 pickles members of enumerations, or `getattr(object, "name")`, as every version
    /// pickles methods.
    Attribute,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globals_are_inert_unknown_or_executing() {
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
            ("os\r", "path"),
            ("builtins", "getattr\r"),
            (" builtins", "getattr"),
            ("pathlib", "Path.unlink"),
            ("torch._utils", "torch.load"),
            ("torch.nn", "modules.torch.jit.load"),
            ("sqlite3", "connect"),
            ("lib2to3.pgen2.pgen", "ParserGenerator.make_label"),
            ("lib2to3.pgen2.grammar", "Grammar.loads"),
            ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression"),
            ("torch", "hub"),
            ("torch", "hub.load_state_dict_from_url"),
            ("torch.nn", "modules.module.torch.hub.download_url_to_file"),
            ("numpy", "f2py.compile"),
            ("numpy", "lib.format.read_array"),
            ("inspect", "_empty.__class__"),
        ] {
            assert_eq!(classify(module, name, false).verdict, Verdict::WouldExecute, "{module}.{name}");
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
            ("mylib.os", "Model.state"),
            ("inspect", "_empty"),
        ] {
            let found = classify(module, name, false);
            assert_eq!((found.verdict, found.reason), (Verdict::Unknown, ""), "{module}.{name}");
        }
        assert_eq!(classify("torch", "FloatStorage", true).verdict, Verdict::Inert);
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
            let found = classify(module, name, false);
            assert_eq!((found.verdict, found.reason), (Verdict::WouldExecute, effect), "{module}.{name}");
        };
        let listed: Vec<&str> = MODULES.iter().map(|(entry, _)| *entry).collect();
        let (mut modules, mut single, mut anywhere) = (Vec::new(), Vec::new(), Vec::new());
        for (module, names, effect) in known_names() {
            if module == "*" {
                for name in names {
                    check("some.library", name, effect);
                    let dotted = classify("some.library", &format!("Class.{name}"), false);
                    assert_eq!(dotted.verdict, Verdict::WouldExecute, "{name}");
                    anywhere.push(name);
                }
            } else if listed.contains(&module) || module.ends_with('.') {
                let bare = module.trim_end_matches('.');
                for name in names {
                    check(bare, name, effect);
                }
                // A package is listed with all that is below it, a module is not.
                let below = classify(&format!("{bare}.below"), "Name", false);
                assert_eq!(below.reason, if module == bare { "" } else { effect }, "{module}");
                assert_eq!(classify(&format!("{bare}_other"), "Name", false).reason, "", "{module}");
                modules.push(module);
            } else {
                for name in names {
                    check(module, name, effect);
                    let dotted = classify("some.library", &format!("{module}.{name}"), false);
                    assert_eq!(dotted.verdict, Verdict::WouldExecute, "{module}.{name}");
                    single.push((module, name));
                }
            }
        }
        // All entries are in the list, so that one cannot be added here, or go, with no word there.
        assert_eq!(sorted(modules), sorted(listed));
        let entries = GLOBALS.iter().flat_map(|(home, names, _)| names.iter().map(|name| (*home, *name)));
        assert_eq!(sorted(single), sorted(entries.collect()));
        assert_eq!(sorted(anywhere), sorted(ANY_MODULE.iter().map(|(name, _)| *name).collect()));
    }

    fn sorted<T: Ord>(mut names: Vec<T>) -> Vec<T> {
        names.sort_unstable();
        names
    }

    #[test]
    fn loaders_of_bytes_are_recognized() {
        assert!(loads_bytes("torch.storage", "_load_from_bytes") && loads_bytes("pickle", "loads"));
        assert!(loads_bytes("numpy", "load") && loads_bytes("joblib.numpy_pickle", "load"));
        assert!(!loads_bytes("json", "loads") && !loads_bytes("pickle", "Unpickler"));
    }
}
