"""One of the processes that `test_distributed.py` launches: prints what it found as JSON."""

import errno
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import rustload
import rustload.torch
from rustload.torch import _dcp_writer, _load_into, _share
from rustload.torch.distributed import Planner, Reader, Writer

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (4,))
path = folder / "model.bin"
whole = {name: lazy.torch() for name, lazy in rustload.open(path).items()}
found: dict[str, object] = {}


def sharded(over=mesh) -> dict[str, torch.Tensor]:
    """Some tensors sharded in one dimension, some in another, some on every rank."""
    made = {}
    for number, (name, one) in enumerate(sorted(whole.items())):
        made[name] = (
            one.clone() if number % 3 == 2 else distribute_tensor(one, over, [Shard(number % one.ndim)])
        )
    return made


def message(error: BaseException) -> str:
    """All texts of an exception, also of the ranks' own in it."""
    return repr(error) + str(error)


# Load: what DCP reads through Reader is what distribute_tensor makes of the whole.
expected = sharded()
loaded = {name: torch.zeros_like(one) for name, one in expected.items()}
dcp.load(loaded, storage_reader=Reader(path), planner=Planner())
found["equal"] = all(
    torch.equal(getattr(loaded[name], "_local_tensor", loaded[name]), getattr(one, "_local_tensor", one))
    for name, one in expected.items()
)

# The same from what four ranks saved: DCP's folders, its safetensors shards, and a file of each rank.
dcp.save(sharded(), checkpoint_id=folder / "dcp")
dcp.save(sharded(), storage_writer=HuggingFaceStorageWriter(str(folder / "hf"), save_distributed=True))
torch.save(sharded(), folder / f"rank{rank}.pt")
dist.barrier()
SAVED = [folder / "dcp", folder / "hf", [folder / f"rank{number}.pt" for number in range(4)]]


def reads_all(over) -> list[bool]:
    """For each of these, whether every rank of a mesh reads its part of all tensors, cut along the other dimension."""
    right = []
    for source in SAVED:
        wanted = {
            name: distribute_tensor(one, over, [Shard((number + 1) % one.ndim)])
            for number, (name, one) in enumerate(sorted(whole.items()))
        }
        read = {name: torch.zeros_like(one) for name, one in wanted.items()}
        dcp.load(read, storage_reader=Reader(source), planner=Planner())
        right.append(all(torch.equal(read[name].to_local(), one.to_local()) for name, one in wanted.items()))
    return right


found["saved by ranks"] = reads_all(mesh)

# Save, from four ranks, two and one.
dcp.save(sharded(), storage_writer=Writer(folder / "saved4", max_shard_size=150))
if rank == 0:
    dcp.save(whole, storage_writer=Writer(folder / "saved1", max_shard_size=150), no_dist=True)
dist.barrier()

# A model of FSDP2, whose forward pass is that of the whole model.
torch.manual_seed(0)
reference = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Linear(9, 3))
if rank == 0:
    torch.save(reference.state_dict(), folder / "fsdp.pt")
dist.barrier()
with torch.device("meta"):
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Linear(9, 3))
fully_shard(model, mesh=mesh)
report = rustload.torch.load_into(model, folder / "fsdp.pt")
found["bytes_read"] = report.bytes_read
found["share"] = sum(p.to_local().nbytes for p in model.parameters())
x = torch.ones(2, 6)
found["equal"] = found["equal"] and torch.allclose(model(x), reference(x))
# After a forward pass FSDP has hooks of its own on load_state_dict.
again = rustload.torch.load_into(model, folder / "fsdp.pt")
found["equal"] = found["equal"] and again.bytes_read == report.bytes_read
found["equal"] = found["equal"] and torch.allclose(model(x), reference(x))

# Errors of one rank are errors of all.
try:
    target = folder / ("broken.bin" if rank == 2 else "model.bin")
    dcp.load(sharded(), storage_reader=Reader(target), planner=Planner())
except BaseException as error:
    found["load error"] = message(error)
try:
    values = {**sharded(), "epoch": 3} if rank == 1 else sharded()
    dcp.save(values, storage_writer=Writer(folder / "failed"))
except BaseException as error:
    found["save error"] = message(error)

# share="node": together the ranks read ahead what they need once; an error of one is an error of all.
with torch.device("meta"):
    shared = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Linear(9, 3))
fully_shard(shared, mesh=mesh)
report = rustload.torch.load_into(shared, folder / "fsdp.pt", share="node")
found["note"] = report.notes[-1]
amounts: list[str | None] = [None] * 4
dist.all_gather_object(amounts, report.notes[-1])
total = sum(int(str(one).partition(" ")[0]) for one in amounts)
found["warmed"] = "once" if total == sum(p.nbytes for p in reference.parameters()) else str(amounts)
found["equal"] = found["equal"] and torch.allclose(shared(x), reference(x))
try:
    rustload.torch.load_into(shared, folder / ("broken.bin" if rank == 2 else "fsdp.pt"), share="node")
except (RuntimeError, ValueError, OSError) as error:
    found["share error"] = message(error)


# Errors of one rank at other steps reach all, with their cause, and nothing hangs.
def fails(step: str, on: int, owner: object, name: str, run: Callable[[], object]) -> None:
    """Notes the error of a step in which a function fails on one rank."""
    original = getattr(owner, name)

    def failing(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EIO, f"planted in {step}")

    if rank == on:
        setattr(owner, name, failing)
    try:
        run()
    except BaseException as error:
        failures[step] = message(error)
    else:
        failures[step] = "no error"
    setattr(owner, name, original)
    dist.barrier()


def save_anew() -> None:
    dcp.save(sharded(), storage_writer=Writer(folder / "failed"))


def load_shared() -> None:
    rustload.torch.load_into(shared, folder / "fsdp.pt", share="node")


failures: dict[str, str] = {}
reader = partial(Reader, path)
fails("reading", 1, Reader, "_read_tensor", lambda: dcp.load(sharded(), storage_reader=reader()))
fails("planning files", 0, _dcp_writer, "_create_files", save_anew)
fails("writing", 3, _dcp_writer, "_write_chunk", save_anew)
fails("publishing", 0, _dcp_writer, "_check_complete", save_anew)
fails("what is needed", 2, _load_into, "rows_needed", load_shared)
fails("reading ahead", 1, _share, "share_of", load_shared)
fails("loading", 3, _load_into, "execute_steps", load_shared)
fails("the device", 1, _load_into, "device_rule", load_shared)  # as cuda:1 on a machine with one GPU
fails("what follows", 2, _load_into, "run_post_hooks", load_shared)
found["failures"] = failures
found["left"] = (folder / "failed").exists()
report = rustload.torch.load_into(shared, folder / "fsdp.pt", share="node")
found["equal"] = found["equal"] and torch.allclose(shared(x), reference(x))

# A model of FSDP2 with the names of a transformers model, saved as safetensors.


def built(state: Mapping[str, rustload.LazyTensor], over: DeviceMesh) -> torch.nn.Module:
    """A sharded model on the meta device with parameters of these names."""
    root = torch.nn.Module()
    for name, lazy in state.items():
        *outer, last = name.split(".")
        module = root
        for part in outer:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = module.get_submodule(part)
        empty = torch.empty(lazy.shape, dtype=getattr(torch, lazy.dtype), device="meta")
        module.register_parameter(last, torch.nn.Parameter(empty))
    return fully_shard(root, mesh=over)


llama = rustload.open(folder / "llama.bin", framework="torch")
model = built(llama, mesh)
rustload.torch.load_into(model, llama)
dcp.save(model.state_dict(), storage_writer=Writer(folder / "llama", max_shard_size=30_000))
dist.barrier()

# Two ranks, as a world of their own.
dist.barrier()
dist.destroy_process_group()
if rank < 2:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    over = init_device_mesh("cpu", (2,))
    dcp.save(sharded(over), storage_writer=Writer(folder / "saved2", max_shard_size=150))
    found["saved by ranks"] += reads_all(over)
    model, other = built(llama, over), built(llama, over)
    rustload.torch.load_into(model, folder / "llama")
    state = other.to_empty(device="cpu").state_dict()
    dcp.load(state, storage_reader=Reader(folder / "llama"))
    found["llama"] = all(
        torch.equal(one.to_local(), distribute_tensor(llama[name].torch(), over, [Shard(0)]).to_local())
        for some in (dict(model.named_parameters()), state)
        for name, one in some.items()
    )
    found["llama"] = found["llama"] and set(state) == set(llama)
    dist.destroy_process_group()
sys.stdout.write(json.dumps(found))
