"""The attack matrix: every malicious or malformed input by its id, with the expected outcome.

The module that starts with a letter has the ids of that letter; importing this package fills `registry.CASES`. The files are
built byte by byte and are reproducible. Their payloads are harmless if executed: they create a file in the folder that the
environment variable RUSTLOAD_CANARY names.
"""

from attacks import (
    a_files,
    c_calls,
    d_distributed,
    d_items,
    e_exported,
    l_legacy,
    n_numpy,
    p_pickle,
    q_quantized,
    r_bombs,
    s_safetensors,
    t_tensors,
    v_manifests,
    w_zero,
    x_bounds,
    x_calls,
    x_detectors,
    x_domain,
    x_grammars,
    x_oracle,
    x_time,
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
    "d_distributed",
    "d_items",
    "e_exported",
    "l_legacy",
    "n_numpy",
    "p_pickle",
    "q_quantized",
    "r_bombs",
    "s_safetensors",
    "t_tensors",
    "v_manifests",
    "w_zero",
    "x_bounds",
    "x_calls",
    "x_detectors",
    "x_domain",
    "x_grammars",
    "x_oracle",
    "x_time",
    "y_python",
    "z_zip",
]
