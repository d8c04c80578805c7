"""What Python lacks on Windows is not needed: a process on Linux loses the modules and functions of POSIX."""

import numpy as np
import pytest
from support import child

import rustload

TAKE_AWAY = """
import os, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in (
    "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "chown", "fchmod", "fork", "getegid", "geteuid", "getgid", "getuid", "killpg",
    "mkfifo", "posix_fadvise", "posix_fallocate", "pread", "pwrite", "register_at_fork", "sched_getaffinity", "setsid", "statvfs",
    "sysconf", "uname",
):
    delattr(os, name)
old, new = sys.argv[1:]
"""

NUMPY = """
import rustload
from rustload._cli import main

for command in (["info"], ["scan"], ["doctor", "--no-measure", "--clean"]):
    assert main([*command, old]) == 0
for name, tensor in rustload.open(old, framework="numpy").stream():
    assert tensor.sum() == 15
with open(old, "rb") as file:
    rustload.save({"y": rustload.open(file)["x"]}, new)
assert rustload.open(new)["y"].materialize(framework="numpy").shape == (2, 3)
"""

TORCH = """
import rustload.torch

module = torch.nn.Module()
module.x = torch.nn.Parameter(torch.zeros(2, 3))
rustload.torch.load_into(module, old)
assert module.x.sum() == 15
rustload.save({"y": module.x.detach()}, new)
assert rustload.torch.load(new)["y"].sum() == 15

from rustload.torch._node_folder import NodeFolder

try:
    NodeFolder.made()
except OSError:
    pass
else:
    raise AssertionError
"""


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_files_are_opened_and_written_without_posix(tmp_path, framework):
    """What torch imports is imported before."""
    pytest.importorskip(framework)
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    rustload.save({"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, old)
    child(f"import {framework}\n" + TAKE_AWAY + (NUMPY if framework == "numpy" else TORCH), old, new)
