"""Folders that DeepSpeed's own engine writes, on the CPU, compared with its converter and with what the ranks had."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from zero_folders import EXPERTS

import rustload

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
    pytest.mark.skipif(shutil.which("ninja") is None, reason="DeepSpeed builds its operators with ninja"),
    pytest.mark.timeout(600),
]

SCRIPT = Path(__file__).parents[1] / "data" / "deepspeed_run.py"


def write(out: Path, case: str, world: int) -> Path:
    """The folder that a run of so many processes saves."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    run = {"DS_ACCELERATOR": "cpu", "WORLD_SIZE": f"{world}", "LOCAL_WORLD_SIZE": f"{world}"}
    run |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    logs = [out / f"{case}.{rank}.log" for rank in range(world)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as file:
            env = os.environ | run | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
            env["PYTHONHASHSEED"] = f"{rank}"  # which orders groups of experts
            command = [sys.executable, str(SCRIPT), str(out), case]
            ranks.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env))
    codes = [rank.wait() for rank in ranks]
    assert not any(codes), "".join(log.read_text()[-2000:] for log in logs)
    return out / case


@pytest.mark.parametrize("case", ["stage1", "stage2", "stage3"])
def test_as_its_converter(tmp_path, case):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    root = write(tmp_path, case, 2)
    ckpt = rustload.open(root, framework="torch")
    converted = get_fp32_state_dict_from_zero_checkpoint(str(root))
    # Of stage 1, it leaves frozen parameters out.
    left_out = {"still.weight", "still.bias"} if case == "stage1" else set()
    names = {name for name in ckpt if not name.startswith(("module.", "optimizer."))}
    assert names == set(converted) | left_out
    assert ["embed.weight", "head.weight"] in ckpt.tied
    for name, tensor in converted.items():
        # Its buffers are float32, whatever they were.
        assert torch.equal(ckpt[name].materialize().float(), tensor.float()), name


@pytest.mark.parametrize(
    ("case", "world"),
    [
        ("bf16_optimizer", 2),
        ("experts1", 2),
        ("experts1_of_four", 4),
        ("experts2", 2),
        ("experts2", 4),
        ("experts2_data_first", 4),
        ("experts_bf16_optimizer", 2),
    ],
)
def test_as_the_ranks_had(tmp_path, case, world):
    """Its converter refuses these. A weight that ranks computed with is the master, in their dtype."""
    ckpt = rustload.open(write(tmp_path, case, world), framework="torch")
    seen = set()
    for rank in range(world):
        for own_name, tensor in torch.load(tmp_path / f"{case}.{rank}.pt").items():
            name = own_name
            head, found, rest = name.partition(EXPERTS)
            if found:
                number, _, tail = rest.partition(".")
                count = 4 if head == "moe" else 2
                sets = 4 if "of_four" in case and count == 4 else 2
                chosen = rank // (world // sets) if "data_first" in case else rank % sets
                local = count // sets
                name = f"{head}{EXPERTS}{local * chosen + int(number)}.{tail}"
            if name not in ckpt:
                name = f"module.{name}"  # frozen, in stage 1
            assert torch.equal(ckpt[name].materialize().to(tensor.dtype), tensor), name
            seen.add(name)
    assert {name for name in ckpt if not name.startswith(("module.", "optimizer."))} <= seen
