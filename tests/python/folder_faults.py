"""What the tests of folders need of the system: mounts, users, and system calls that fail. Each says why it is missing."""

import contextlib
import ctypes
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import torch_child

NOBODY = 65534


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """Mounts a file system at a new folder; skips the test if that is not allowed here."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def ext4(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in a file."""
    image = tmp_path / "ext4.img"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True, check=False).returncode:
        pytest.skip("mkfs.ext4 is missing")
    with mounted(tmp_path / "ext4", "-o", "loop", str(image)) as place:
        yield place


AS_NOBODY = f"""
import os
import rustload, rustload._save
os.setgroups([])
os.setresgid(*[{NOBODY}] * 3)
os.setresuid(*[{NOBODY}] * 3)
"""


def as_nobody(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code as an unprivileged user."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable]
    if subprocess.run([*command, "-c", "import rustload"], capture_output=True, check=False).returncode:
        pytest.skip("the other user may not run this Python installation")
    return torch_child(AS_NOBODY + code, *arguments, check=False)


SYSTEM_CALLS = {"x86_64": (0xC000003E, 316, 317), "aarch64": (0xC00000B7, 276, 277)}
"""For each machine its number in seccomp filters, and the numbers of renameat2 and seccomp."""
RENAME_EXCHANGE = 2


def refuse_exchange(error: int) -> None:
    """Makes RENAME_EXCHANGE fail in all threads from now on, as on file systems that lack it (seccomp)."""
    architecture, number, seccomp = SYSTEM_CALLS[platform.machine()]
    load, equals, test, end = 0x20, 0x15, 0x45, 0x06  # BPF_LD|ABS, JMP|JEQ|K, JMP|JSET|K, RET|K
    allow, fail = 0x7FFF0000, 0x00050000 | error
    program = [
        (load, 0, 0, 4), (equals, 0, 5, architecture), (load, 0, 0, 0), (equals, 0, 3, number),
        (load, 0, 0, 16 + 8 * 4), (test, 0, 1, RENAME_EXCHANGE), (end, 0, 0, fail), (end, 0, 0, allow),
    ]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    descriptor = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privs, set_mode_filter, all_threads = 38, 1, 1
    libc.prctl(set_no_new_privs, 1, 0, 0, 0)
    if libc.syscall(seccomp, set_mode_filter, all_threads, descriptor):
        raise OSError(ctypes.get_errno(), "seccomp")
