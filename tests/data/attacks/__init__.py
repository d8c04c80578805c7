"""The attack matrix: every bad input by its id, with what must come of it.

Each module of one letter holds the ids of that letter; importing this package fills `registry.CASES`. The files are built from
bytes, the same ones each time. What they would run if something ran them is harmless: it touches a file in the folder that
the environment variable RUSTLOAD_CANARY names.
"""

from __future__ import annotations

from attacks import (
    a_files,
    c_calls,
    l_legacy,
    p_pickle,
    r_bombs,
    s_safetensors,
    t_tensors,
    y_python,
    z_zip,
)
from attacks.registry import CASES, IDS, Case

__all__ = [
    "CASES",
    "IDS",
    "Case",
    "a_files",
    "c_calls",
    "l_legacy",
    "p_pickle",
    "r_bombs",
    "s_safetensors",
    "t_tensors",
    "y_python",
    "z_zip",
]
