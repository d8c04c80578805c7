"""Imports: importing and opening load no third-party package; how frameworks are found and their errors."""

import sys
import time
from pathlib import Path

import ml_dtypes
import pytest
import torch
from support import child, saved

import rustload


def test_import_loads_no_third_party_package():
    code = """
    import sys
    before = set(sys.modules)
    import rustload
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(sorted(new - set(sys.stdlib_module_names)))
    """
    assert child(code).stdout == "['rustload']\n"


IMPORTED = """
import sys
before = set(sys.modules)
{what}
print(*(name for name in {unwanted!r} if name in sys.modules and name not in before))
"""
# Modules that take long to import and that only some functions need.
SLOW = [
    *("argparse", "asyncio", "ast", "copy", "ctypes", "dataclasses", "difflib", "inspect", "json", "logging"),
    *("pathlib", "pickle", "shutil", "subprocess", "tempfile", "textwrap", "traceback", "urllib", "zipfile"),
    *("rustload._safe_open", "rustload._scan", "rustload._cuda", "rustload._cli", "rustload._tensor.joined"),
]
# Modules that an open and a read of a plain buffer do without.
NOT_PLAIN = [
    *("contextlib", "enum", "importlib.util", "queue", "re", "threading", "typing", "weakref"),
    *("rustload._checkpoint.names", "rustload._checkpoint.stream", "rustload._common.patterns"),
]
# What `typing.NamedTuple`, and the colours of argparse, need from Python 3.14 on.
OF_TYPING, OF_ARGPARSE = (("ast",), ("dataclasses", "inspect")) if sys.version_info >= (3, 14) else ((), ())
SLOW = [name for name in SLOW if name not in OF_TYPING]


def test_import_open_and_read_load_no_slow_module(save):
    unwanted = [*SLOW, *NOT_PLAIN]
    assert child(IMPORTED.format(what="import rustload", unwanted=unwanted)).stdout.strip() == ""
    what = "import rustload; t = rustload.open(sys.argv[1], framework='dlpack')['w']; t.shape, t.dtype, t.materialize()"
    assert (
        child(IMPORTED.format(what=what, unwanted=unwanted), save({"w": torch.ones(2)})).stdout.strip() == ""
    )


def test_the_info_command_loads_no_slow_module_that_it_does_not_need(save):
    what = "import rustload._cli; rustload._cli.main(['info', sys.argv[1]])"
    # It reads the JSON of a scan, and says its verdict.
    needed = ("argparse", "copy", "json", "rustload._cli", "rustload._scan", *OF_ARGPARSE)
    unwanted = [*(name for name in SLOW if name not in needed), "rustload._scan.scan"]
    found = child(IMPORTED.format(what=what, unwanted=unwanted), save({"w": torch.ones(2)})).stdout
    assert found.splitlines()[-1] == ""


def test_lazily_imported_names_are_attributes_of_the_package():
    code = """
    import rustload
    assert set(rustload.__all__) <= set(dir(rustload))
    names = {}
    exec("from rustload import *", names)
    missing = [name for name in rustload.__all__ if names.get(name) is not getattr(rustload, name)]
    assert rustload.__version__.count(".") == 2
    print(missing, rustload.scan.__module__, "scan" in vars(rustload), hasattr(rustload, "TYPE_CHECKING"))
    """
    assert child(code).stdout == "[] rustload._scan.scan True False\n"


def test_import_takes_less_than_30_ms_of_processor_time():
    code = "import time; s = time.process_time(); import rustload; print(time.process_time() - s)"
    assert min(float(child(code).stdout) for _ in range(5)) < 0.03  # the best: the machine may be busy


def test_import_starts_no_thread_and_opens_no_file():
    code = """
    import os
    before = len(os.listdir("/proc/self/fd"))
    import rustload
    print(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")) - before)
    """
    assert child(code).stdout == "1 0\n"


USE = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import rustload
ckpt = rustload.open(sys.argv[1])
"""


def run_on_checkpoint(path, work: str, blocked: tuple[str, ...] = ()) -> str:
    """What `work` prints in a fresh process, with the file open as `ckpt`; `blocked` packages cannot be imported."""
    return child(USE.format(blocked=blocked) + work, path).stdout.strip()


def test_opening_and_inspecting_import_no_framework(save):
    import argparse

    path = save(
        {
            "m": torch.nn.Linear(2, 3).state_dict(),
            "args": argparse.Namespace(a=1),
            "bf": torch.ones(2).bfloat16(),
        }
    )
    work = """
for name, lazy in ckpt.items():
    repr(lazy), lazy.dtype, lazy.shape, lazy.strides, lazy.path, lazy[..., None].T, lazy.nbytes, lazy.is_parameter
repr(ckpt), ckpt.objects, ckpt.tied, ckpt.opaque, ckpt.globals, ckpt.metadata, ckpt.notes, ckpt.framework, ckpt.nbytes
ckpt.select("*"), lazy.bytes(), lazy.materialize(framework="dlpack"), lazy.materialize(framework="dlpack", dtype="float32")
lazy.__dlpack__(), ckpt.format, ckpt.files
print(sorted({"torch", "numpy", "ml_dtypes", "argparse", "safetensors"} & set(sys.modules)))
"""
    assert run_on_checkpoint(path, work) == "[]"


def test_without_torch_the_default_is_numpy(simple):
    work = (
        "a = ckpt['w'].materialize(); print(ckpt.framework, type(a).__name__, a.sum(), sys.modules['torch'])"
    )
    assert run_on_checkpoint(simple, work, ("torch",)) == "numpy ndarray 276.0 None"


def test_without_torch_and_numpy_the_default_is_dlpack(simple):
    work = "a = ckpt['w'].materialize(); print(ckpt.framework, type(a).__name__, sum(memoryview(a).cast('B').cast('f')))"
    assert run_on_checkpoint(simple, work, ("torch", "numpy", "ml_dtypes")) == "dlpack Buffer 276.0"


def test_numpy_works_without_torch(save):
    state = {
        name: torch.ones(3).to(getattr(torch, name))
        for name in ("bfloat16", "float8_e5m2", "float32", "int8")
    }
    work = """
import numpy as np
for name, lazy in ckpt.items():
    assert np.asarray(lazy).astype(np.float32).sum() == 3, name
    assert lazy.numpy().dtype.name == name
    assert lazy.materialize(dtype="bfloat16", allow_lossy=True).dtype.name == "bfloat16"
    out = np.zeros(3, np.float64)
    lazy.materialize(out=out)
    assert out.sum() == 3
print("done")
"""
    assert run_on_checkpoint(save(state), work, ("torch",)) == "done"


def test_numpy_without_ml_dtypes_reads_its_own_dtypes_and_advises_what_to_install(save):
    path = save({"f": torch.ones(3), "b": torch.ones(3).bfloat16()})
    work = """
print(ckpt["f"].numpy().sum())
print(ckpt["b"].materialize(framework="numpy", dtype="float32").sum())
try:
    ckpt["b"].numpy()
except ImportError as error:
    print(error)
"""
    lines = run_on_checkpoint(path, work, ("torch", "ml_dtypes")).splitlines()
    assert lines[:2] == ["3.0", "3.0"]
    assert lines[2].endswith("pip install ml_dtypes")


@pytest.mark.parametrize(("name", "packages"), [("torch", "torch"), ("numpy", "numpy ml_dtypes")])
def test_the_error_for_a_missing_framework_advises_what_to_install(simple, name, packages):
    work = f"""
try:
    ckpt["w"].materialize(framework={name!r})
except ImportError as error:
    print(error)
"""
    assert run_on_checkpoint(simple, work, ("torch", "numpy")).endswith(f"pip install {packages}")


def test_numpy_use_never_imports_torch(simple):
    work = "ckpt['w'].materialize(framework='numpy', dtype='float16'); ckpt['w'].numpy(); print('torch' in sys.modules)"
    assert run_on_checkpoint(simple, work) == "False"


def test_the_default_framework_is_imported_at_the_first_materialize(simple):
    work = """
print(ckpt.framework, "torch" in sys.modules)
ckpt["w"].materialize(framework="dlpack")
print("torch" in sys.modules)
ckpt["w"].materialize()
print("torch" in sys.modules)
"""
    assert run_on_checkpoint(simple, work) == "torch False\nFalse\nTrue"


@pytest.mark.skipif(not hasattr(ml_dtypes, "complex32"), reason="ml_dtypes before 0.6 has no complex32")
def test_complex32_in_numpy_does_not_depend_on_who_imported_ml_dtypes(tmp_path):
    path = tmp_path / "c.bin"
    # Saved by another process, as torch warns when it creates complex32.
    code = """
    import sys, warnings, torch
    warnings.simplefilter("ignore")
    torch.save({"z": torch.ones(4, dtype=torch.float16).view(torch.complex32)}, sys.argv[1])
    """
    child(code, path)
    assert (
        run_on_checkpoint(path, "print(ckpt['z'].materialize(framework='numpy').dtype.name)") == "complex32"
    )


def test_a_debug_build_warns():
    code = """
    import importlib.util, sys, types, warnings
    from importlib.machinery import PathFinder
    home = importlib.util.find_spec("rustload").submodule_search_locations
    spec = PathFinder.find_spec("rustload._rustload", home)
    real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    fake = types.ModuleType("rustload._rustload")
    fake.__dict__.update(real.__dict__, DEBUG=True)
    sys.modules["rustload._rustload"] = fake
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import rustload
    print([(w.category.__name__, "debug build" in str(w.message)) for w in caught])
    """
    assert child(code).stdout == "[('RuntimeWarning', True)]\n"


def test_star_import_shadows_no_builtin_but_open():
    import builtins

    assert {name for name in rustload.__all__ if hasattr(builtins, name)} <= {"open"}


def test_the_package_is_typed():
    import importlib.resources

    assert importlib.resources.files("rustload").joinpath("py.typed").is_file()


def test_a_fresh_process_reads_a_tensor_in_well_under_a_second(tmp_path):
    """In a process that does not import torch."""
    path = tmp_path / "x.bin"
    path.write_bytes(saved({"x": torch.ones(10)}))
    start = time.perf_counter()
    code = "import rustload, sys; print(rustload.open(sys.argv[1])['x'].bytes() == b'\\0\\0\\x80\\x3f' * 10)"
    assert child(code, path).stdout == "True\n"
    assert time.perf_counter() - start < 1


def run_with_fake_package(path, tmp_path, name: str, source: str | None, work: str) -> str:
    """What `work` prints with a fake package of that name first on `sys.path`.

    Without `source` it is an empty folder, and no framework is installed.
    """
    package = tmp_path / "fake" / name
    package.mkdir(parents=True)
    if source is not None:
        (package / "__init__.py").write_text(source)
    code = f"""
import sys, traceback
import rustload
if {source is None}:
    sys.path = [folder for folder in sys.path if "site-packages" not in folder]
sys.path.insert(0, sys.argv[2])
ckpt = rustload.open(sys.argv[1])
try:
    {work}
except Exception as error:
    print("".join(traceback.format_exception_only(error)))
"""
    return child(code, path, tmp_path / "fake").stdout.strip()


@pytest.mark.parametrize("work", ["ckpt['w'].materialize()", "list(ckpt.stream())", "import rustload.torch"])
@pytest.mark.parametrize("source", [
    "raise OSError('libtorch_cpu.so: cannot open shared object file')",
    "import no_such_module",
    "raise ImportError('undefined symbol')",
])  # fmt: skip
def test_a_broken_framework_raises_its_own_error_with_advice(simple, tmp_path, work, source):
    output = run_with_fake_package(simple, tmp_path, "torch", source, work)
    assert output.startswith(
        (
            "OSError: libtorch_cpu.so",
            "ModuleNotFoundError: No module named 'no_such",
            "ImportError: undefined",
        )
    )
    assert f"torch is installed ({tmp_path}/fake/torch/__init__.py) and fails to import" in output
    assert "(pip install --force-reinstall torch)" in output
    assert "framework='numpy'" in output


@pytest.mark.parametrize(
    ("name", "version", "oldest"),
    [("torch", "1.13.1", "2.4"), ("numpy", "1.24.0", "1.26"), ("jax", "0.4.37", "0.5")],
)
def test_the_error_for_an_old_framework_has_its_version_and_the_oldest_supported(
    simple, tmp_path, name, version, oldest
):
    output = run_with_fake_package(
        simple, tmp_path, name, f"__version__ = '{version}'", f"ckpt['w'].materialize(framework='{name}')"
    )
    assert output.startswith(
        f"ImportError: {name} {version} is too old: rustload works with {oldest} and newer"
    )
    assert f"pip install -U {name}" in output


def test_the_error_for_a_module_that_shadows_a_framework_names_its_file(simple, tmp_path):
    output = run_with_fake_package(simple, tmp_path, "torch", "", "ckpt['w'].materialize()")
    path = f"{tmp_path}/fake/torch/__init__.py"
    assert (
        output
        == f"ImportError: the module 'torch' at {path!r} is not torch: give a file of that name another"
    )


def test_an_empty_folder_with_a_frameworks_name_is_no_framework(simple, tmp_path):
    work = "print(ckpt.framework, type(ckpt['w'].materialize()).__name__); ckpt['w'].torch()"
    found, error = run_with_fake_package(simple, tmp_path, "torch", None, work).splitlines()
    assert found == "dlpack Buffer"
    message = f"ImportError: framework 'torch' needs torch, and '{tmp_path}/fake/torch' is a folder of that name only"
    assert error == f"{message}: pip install torch"


@pytest.mark.parametrize("submodule", rustload._OF_FRAMEWORKS)
def test_the_error_for_a_submodule_that_was_not_imported_advises_the_import(submodule):
    code = (
        f"import rustload\ntry:\n    rustload.{submodule}\nexcept AttributeError as error:\n    print(error)"
    )
    assert child(code).stdout == f"rustload.{submodule} has to be imported: import rustload.{submodule}\n"


def test_a_public_module_is_imported_where_it_is_first_used_or_says_that_it_has_to_be():
    code = """
    import sys
    import rustload
    assert "rustload.remote" not in sys.modules
    print(rustload.remote.fsspec.__module__)
    """
    assert child(code).stdout == "rustload.remote\n"
    public = {one.stem for one in Path(rustload.__file__).parent.glob("*.py") if one.stem[0] != "_"}
    assert {*rustload._OF_FRAMEWORKS, "remote"} == public - {"errors"} | {"torch"}


def test_the_error_for_missing_transformers_advises_what_to_install():
    code = """
    import sys
    sys.modules["transformers"] = None
    try:
        import rustload.transformers
    except ImportError as error:
        print(error)
    """
    assert child(code).stdout == "rustload.transformers needs transformers: pip install transformers\n"


def test_threads_may_use_a_framework_first_at_the_same_time(save):
    code = """
    import sys, threading, rustload
    lazy = rustload.open(sys.argv[1], framework="dlpack")["w"]
    sys.setswitchinterval(1e-6)
    all_there = threading.Barrier(8)
    def work():
        all_there.wait()
        lazy.materialize()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """
    path = save({"w": torch.ones(2)})
    for _ in range(3):
        child(code, path)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no interpreter has a GIL of its own before 3.12")
@pytest.mark.parametrize("config", ["isolated", "legacy"])
def test_a_subinterpreter_imports_it_or_gets_an_error(config):
    """The extension is for interpreters that share one GIL; those with their own refuse it."""
    code = """
    import sys
    if sys.version_info >= (3, 13):
        import _interpreters as interpreters
        made = interpreters.create(sys.argv[1])
    else:
        import _xxsubinterpreters as interpreters
        made = interpreters.create(isolated=sys.argv[1] == "isolated")
    use = '''
    try:
        import pickle, rustload
        print(rustload.scan(pickle.dumps([1])).verdict)
    except ImportError as error:
        print(error)
    '''
    interpreters.run_string(made, f"import sys, textwrap; sys.path = {sys.path}\\nexec(textwrap.dedent({use!r}))")
    interpreters.destroy(made)
    import pickle, rustload
    print(rustload.scan(pickle.dumps([1])).verdict)
    """
    refused = "module rustload._rustload does not support loading in subinterpreters"
    expected = {"isolated": refused, "legacy": "inert"}[config]
    assert child(code, config).stdout == f"{expected}\ninert\n"
