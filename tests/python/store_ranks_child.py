"""A rank of `test_share_store.py`: loads a model from a store with `share="node"`, and prints what it found as JSON."""

import datetime
import json
import os
import sys

import torch
import torch.distributed as dist

import rustload
import rustload.torch

url, fault = sys.argv[1:3]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
found: dict[str, object] = {}
checkpoint = rustload.open(url, remote=("http",), framework="torch")
with torch.device("meta"):
    model = torch.nn.ParameterDict(
        {name: torch.nn.Parameter(torch.empty(lazy.shape)) for name, lazy in checkpoint.items()}
    )
if fault == "killed" and rank == 1:
    import rustload.torch._load_into as module

    def kill(*_: object) -> None:
        os.kill(os.getpid(), 9)

    module.execute_steps = kill
try:
    report = rustload.torch.load_into(model, checkpoint, share="node")
    found["note"] = report.notes[-1]
    found["sums"] = [float(parameter.double().sum()) for parameter in model.values()]
except RuntimeError as error:
    found["error"] = str(error)
sys.stdout.write(json.dumps(found) + "\n")
