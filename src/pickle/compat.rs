//! Maps Python 2's module and class names to Python 3's, for pickles of protocols 0 to 2.
//!
//! A selection of CPython's `_compat_pickle`: the names that occur in checkpoints, and those under which a dangerous call may hide.

/// The Python 3 name of a global in a pickle below protocol 3, where it differs: the module, and the name if that
/// differs too (`_compat_pickle`).
pub(super) fn python3_name(module: &str, name: &str) -> Option<(&'static str, Option<&'static str>)> {
    let both = |module, name| Some((module, Some(name)));
    let only = |module| Some((module, None));
    match (module, name) {
        ("__builtin__", "xrange") => both("builtins", "range"),
        ("__builtin__", "unicode" | "basestring") => both("builtins", "str"),
        ("__builtin__", "long") => both("builtins", "int"),
        ("__builtin__", "unichr") => both("builtins", "chr"),
        ("__builtin__", "reduce") => both("functools", "reduce"),
        ("__builtin__", "intern") => both("sys", "intern"),
        ("itertools", "izip") => both("builtins", "zip"),
        ("itertools", "imap") => both("builtins", "map"),
        ("itertools", "ifilter") => both("builtins", "filter"),
        ("itertools", "ifilterfalse") => both("itertools", "filterfalse"),
        ("itertools", "izip_longest") => both("itertools", "zip_longest"),
        ("UserDict", "IterableUserDict") => both("collections", "UserDict"),
        ("urllib", "urlopen" | "urlretrieve" | "urlcleanup" | "getproxies") => only("urllib.request"),
        ("urllib2", "HTTPError" | "URLError") => only("urllib.error"),
        ("exceptions", _) if name.ends_with("Error") || EXCEPTIONS.contains(&name) => only("builtins"),
        _ => MODULES.iter().find(|(old, _)| *old == module).and_then(|(_, new)| only(*new)),
    }
}

const MODULES: &[(&str, &str)] = &[
    ("__builtin__", "builtins"),
    ("copy_reg", "copyreg"),
    ("UserDict", "collections"),
    ("UserList", "collections"),
    ("UserString", "collections"),
    ("_abcoll", "collections.abc"),
    ("cPickle", "pickle"),
    ("StringIO", "io"),
    ("cStringIO", "io"),
    ("Queue", "queue"),
    ("repr", "reprlib"),
    ("thread", "_thread"),
    ("commands", "subprocess"),
    ("urllib2", "urllib.request"),
    ("urlparse", "urllib.parse"),
    ("httplib", "http.client"),
    ("xmlrpclib", "xmlrpc.client"),
    ("SocketServer", "socketserver"),
    ("ConfigParser", "configparser"),
    ("anydbm", "dbm"),
    ("whichdb", "dbm"),
    ("_winreg", "winreg"),
];

/// Python 2's exceptions whose names do not end in "Error".
const EXCEPTIONS: &[&str] = &[
    "BaseException",
    "Exception",
    "GeneratorExit",
    "KeyboardInterrupt",
    "StopIteration",
    "SystemExit",
    "Warning",
    "BytesWarning",
    "DeprecationWarning",
    "FutureWarning",
    "ImportWarning",
    "PendingDeprecationWarning",
    "RuntimeWarning",
    "SyntaxWarning",
    "UnicodeWarning",
    "UserWarning",
];
