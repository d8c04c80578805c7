"""Pipes and devices in the folder of a checkpoint: nothing waits for what a pipe never gives."""

import ast
import os
from collections import Counter
from functools import partial

import pytest
import torch
from support import child, coded
from test_layers import sources

import rustload.torch

PLAIN_OPENS = {
    "_checkpoint/open.py": 1,  # rustload's own `open`
    "_common/files.py": 1,  # `open_regular`
    "_common/manifest.py": 1,  # what the caller names may be a pipe, as of `--manifest <(sha256sum *)`
    "_scan/gate.py": 1,  # `baseline=`, likewise
    "_scan/policy.py": 1,  # `--policy`, likewise
    "_view/page.py": 3,  # files of the package
    "torch/_dcp_writer.py": 1,  # a file that this writer has made, to write
    "torch/_peak_memory.py": 1,  # of /proc
    "torch/_save_model.py": 1,  # in a temporary folder of its own
    "torch/_share.py": 1,  # of /proc
}
"""How often files of the package open a path otherwise than by `open_regular` or `head_of`, and why."""


def is_plain_open(node: ast.AST) -> bool:
    match node:
        case (
            ast.Call(func=ast.Name(id="open")) | ast.Call(func=ast.Attribute(attr="read_text" | "read_bytes"))
        ):
            return True
        case ast.Call(func=ast.Attribute(attr="open", value=ast.Name(id="io" | "builtins" | "codecs"))):
            return True
        case ast.Call(func=ast.Attribute(attr="open"), args=[ast.Constant(value=str(mode))]):
            return set(mode) <= set("rwaxbt+")
    return False


def test_files_of_a_checkpoint_are_opened_by_one_function():
    found = {file: sum(map(is_plain_open, ast.walk(ast.parse(text)))) for file, text in sources().items()}
    assert Counter(found) == Counter(PLAIN_OPENS), "use `open_regular` or `head_of` of `_common/files.py`"


@pytest.fixture
def folder(tmp_path):
    """The folder of a checkpoint with a pipe in each place where another file is looked for."""
    folder = tmp_path / "model"
    stated = folder / ".cache" / "huggingface" / "download"
    stated.mkdir(parents=True)
    rustload.save({"w": torch.ones(3)}, folder / "model.safetensors")
    for hidden in (".model.safetensors.resume", ".model.safetensors.part"):
        (folder / hidden).mkdir()
    pipes = (
        folder / "config.json",
        folder / "generation_config.json",
        folder / "small.json",
        stated / "model.safetensors.metadata",
        folder / ".model.safetensors.resume" / "plan",
        folder / ".model.safetensors.part" / "token",
    )
    for pipe in pipes:
        os.mkfifo(pipe)
    (stated / "small.json.metadata").write_text(f"a\n{'0' * 40}\n1\n")
    return folder


def test_no_command_waits_for_a_pipe(folder):
    commands = [
        (0, "convert", folder, folder.parent / "to"),
        (0, "convert", folder, folder.parent / "all", "--copy-others"),
        (0, "doctor", "--no-measure", folder / "model.safetensors"),
        (3, "info", folder, "--manifest", "hf"),
        (2, "verify", folder, "--manifest", "hf"),
        (3, "manifest", folder / "config.json"),
        (3, "manifest", "/dev/zero"),
        (0, "manifest", folder),
        (0, "info", "--cyclonedx", "--hashes", folder),
    ]
    code = """
    import ast, sys
    from rustload._cli import main
    for expected, *command in ast.literal_eval(sys.argv[1]):
        assert main(command) == expected, command
    """
    spelled = repr([(code, *map(str, rest)) for code, *rest in commands])
    child(code, spelled, check=False, timeout=30).check_returncode()


def test_a_pipe_is_neither_hashed_nor_loaded(folder):
    for call in (rustload.Manifest.of, partial(rustload.torch.load, mmap=True)):
        with coded(rustload.FormatError, "NotRegularFile"):
            call(folder / "config.json")
    assert set(rustload.Manifest.of(folder).files) == {
        "model.safetensors",
        ".cache/huggingface/download/small.json.metadata",
    }
