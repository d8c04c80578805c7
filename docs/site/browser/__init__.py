"""The page for browsers: `open.html` of the site opens a file that is dropped on it, with the core as WebAssembly.

One file, of the parts of the page of `rustload view`: it needs no server, makes no request, and works without a network. Debian's
compiler for web browsers (`tests/rust-web`) and a linker, `wasm-ld` or `wasm-ld-22`, build the module.
"""

from __future__ import annotations

import base64
import gzip
import importlib
import os
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

from docs.site.stage import ROOT

HERE = Path(__file__).parent
TARGET = "wasm32-unknown-unknown"
LINKERS = ("wasm-ld-22", "wasm-ld")
TEXT = """This page opens PyTorch and safetensors checkpoints in the browser. It needs JavaScript and WebAssembly.

Without them: pip install rustload; rustload info FILE"""


def build(site: Path) -> str:
    """Writes the page into the site; returns what was done, or why it was left out."""
    try:
        module = compiled()
    except RuntimeError as error:
        return f"skipped: {site / 'open.html'}: {error}"
    page = without_package("rustload._view.page")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["package"]["version"]
    text = page.page(
        {
            "version": version,
            "worker": (HERE / "worker.js").read_text(encoding="utf-8"),
            "wasm": base64.b64encode(gzip.compress(module, mtime=0)).decode(),
        },
        TEXT,
        name="open a checkpoint",
        version=version,
        script=(HERE / "app.js").read_text(encoding="utf-8"),
        scripts=" 'wasm-unsafe-eval'",
        types="rustload; worker-src blob:",
    )
    (site / "open.html").write_text(text, encoding="utf-8")
    return f"{len(text):,} bytes, of which {len(module):,} bytes of WebAssembly, packed: {site / 'open.html'}"


def compiled() -> bytes:
    """The WebAssembly module.

    Raises:
        RuntimeError: There is no compiler or no linker for it.
    """
    linker = next(filter(shutil.which, LINKERS), None)
    if linker is None:
        raise RuntimeError("no wasm-ld (apt-get install lld-22)")
    found = subprocess.run([ROOT / "tests" / "rust-web"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise RuntimeError(f"the standard library for {TARGET} cannot be built")
    command = (
        f"{found.stdout}\nexec cargo build --quiet --locked --lib --profile browser --target {TARGET} "
        "-Zbuild-std=std,panic_abort --no-default-features --features browser"
    )
    # A target of its own, as it is another compiler's.
    target = ROOT / "target" / "browser"
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(target),
        f"CARGO_TARGET_{TARGET.upper().replace('-', '_')}_LINKER": linker,
    }
    subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, check=True)
    return (target / TARGET / "browser" / "rustload.wasm").read_bytes()


def without_package(name: str) -> Any:
    """A module of rustload, imported without the package's own, which needs the extension."""
    parents = name.split(".")[:-1]
    for at in range(len(parents)):
        package = types.ModuleType(".".join(parents[: at + 1]))
        package.__path__ = [str(ROOT.joinpath("python", *parents[: at + 1]))]
        sys.modules.setdefault(package.__name__, package)
    return importlib.import_module(name)
