"""Parts of tensors: what each process of a distributed program saves of DTensors and ShardedTensors, alone and joined."""

import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from attacks.parts import (
    OLD_TENSOR,
    dtensor,
    files,
    hf_part,
    local,
    mesh_24,
    mesh_29,
    rank_file,
    row,
    shard,
    sharded,
)
from attacks.pickles import integer, text
from process_memory import read
from safetensors.torch import load_file
from support import bits, coded
from test_dcp import leaves, same
from test_dtensor import as_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import rustload
import rustload.torch

WRITER = Path(__file__).resolve().parents[1] / "data" / "rank_files.py"
COUNT = 4

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of four processes."""
    folder = tmp_path_factory.mktemp("parts")
    subprocess.run([sys.executable, str(WRITER), str(folder), str(COUNT)], check=True, timeout=300)
    return folder


def ranks(folder: Path, name: str = "rank") -> list[Path]:
    return [folder / f"{name}{rank}.pt" for rank in range(COUNT)]


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that torch writes, by dotted name."""
    found = leaves(torch.load(path, weights_only=False))
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def test_the_files_of_four_processes_together_have_the_whole_tensors(saved):
    ckpt, whole = rustload.open(ranks(saved), verify=True), tensors(saved / "whole.pt")
    assert set(ckpt) == set(whole)
    assert [name for name, value in whole.items() if not same(ckpt[name], value)] == []
    assert all(same(value, whole[name]) for name, value in ckpt.stream())
    assert [name for name in ckpt if ckpt[name].part is not None] == []
    assert "first file's are used" in " ".join(ckpt.notes)
    assert ckpt["parameter"].is_parameter
    assert ckpt["optimizer.state.0.exp_avg"].path == ("optimizer", "state", 0, "exp_avg")
    found, wanted = leaves(ckpt.objects), leaves(torch.load(saved / "whole.pt", weights_only=False))
    assert [name for name in wanted if not same(found[name], wanted[name])] == []
    st = rustload.open(ranks(saved, "st"))
    assert same(st["st"], torch.load(saved / "st-whole.pt"))


def test_slices_casts_and_files_of_joined_tensors_equal_torchs(saved, tmp_path):
    ckpt, whole = rustload.open(ranks(saved)), tensors(saved / "whole.pt")
    chosen = random.Random(1)
    for name in ("rows", "columns", "grid", "same", "replicated", "both.0.weight"):
        for _ in range(20):
            key = tuple(
                slice(*sorted(chosen.sample(range(size + 1), 2)), chosen.choice((1, 1, 2)))
                if chosen.random() < 0.8
                else chosen.randrange(size)
                for size in whole[name].shape
            )
            assert same(ckpt[name][key], whole[name][key].contiguous()), (name, key)
    cast = ckpt["grid"].materialize(dtype="float16", transpose=(2, 0, 1))
    assert same(cast, whole["grid"].permute(2, 0, 1).half().contiguous())
    rustload.save(ckpt, tmp_path / "a.safetensors")
    rustload.convert(ranks(saved), tmp_path / "b.safetensors")
    for path in ("a.safetensors", "b.safetensors"):
        written = load_file(tmp_path / path)
        assert [name for name in written if not same(written[name], whole[name])] == []
        assert set(written) <= set(whole)
    report = rustload.convert(ranks(saved), tmp_path / "out")
    assert set(report.files) == {"model.safetensors"}
    model = torch.nn.Linear(6, 7)
    rustload.torch.load_into(model, ckpt, key="model.0")
    assert same(model.weight.detach(), whole["model.0.weight"])


def test_a_slice_of_a_joined_tensor_reads_the_parts_that_it_meets(tmp_path):
    size = 1 << 18
    paths = []
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            made = distribute_tensor(torch.arange(2.0 * size), mesh, [Shard(0)], src_data_rank=None)
            paths.append(tmp_path / f"{rank}.pt")
            torch.save({"w": made}, paths[-1])
    lazy = rustload.open(paths)["w"]
    before = read()
    assert lazy[size + 2 : size + 5].materialize(framework="numpy").tolist() == [size + 2, size + 3, size + 4]
    assert read() - before < size
    assert lazy[size - 1 : size + 1].materialize(framework="numpy").tolist() == [size - 1, size]


def test_one_file_has_a_part_with_its_mesh_and_place(saved):
    one = rustload.open(saved / "rank1.pt")
    whole = tensors(saved / "whole.pt")
    assert set(one) == set(whole)
    part = rustload.Part((5, 3), (2, 0), (4,), (1,), ("Shard(dim=0)",))
    assert one["rows"].part == part
    assert one["rows"].class_name == "torch.distributed.tensor.DTensor"
    assert one["rows"].attributes["_spec"].class_name.endswith(".DTensorSpec")
    assert one["rows"][:1].part is None
    assert one["plain"].part is None
    assert one["grid"].part == rustload.Part(
        (4, 6, 5), (0, 3, 0), (2, 2), (0, 1), ("Shard(dim=0)", "Shard(dim=1)")
    )
    for name, value in whole.items():
        lazy = one[name]
        if lazy.part is not None:
            box = tuple(
                slice(start, start + size) for start, size in zip(lazy.part.offsets, lazy.shape, strict=True)
            )
            assert same(lazy, value[box].contiguous()), name
    # The tensor is the one in `objects` too.
    assert one.objects["rows"].name == "rows"
    assert rustload.open(saved / "st1.pt")["st"].part == rustload.Part((5, 3), (2, 0), None, None, None)
    # A process without elements.
    assert rustload.open(saved / "rank3.pt")["rows"].shape == (0, 3)
    assert "part" in one["rows"]._repr_html_()
    made = rustload.torch.load(saved / "rank1.pt")["rows"]
    assert type(made) is torch.Tensor
    assert same(made, whole["rows"][2:4].contiguous())
    with pytest.raises(rustload.DisallowedError, match="DTensor"):
        rustload.torch.load(saved / "rank1.pt", unknown="error")


PLACEMENTS = [Replicate(), Shard(0), Shard(1), Shard(2)]


@pytest.mark.parametrize("shape", [(5, 7, 3), (8, 4, 2), (1, 3, 0)])
def test_every_mesh_and_placement_joins_to_the_whole(shape, tmp_path):
    whole = torch.randn(shape)
    given: dict[str, tuple[tuple[int, ...], Any]] = {}
    for sizes in ((3,), (2, 2), (2, 3)):
        for number, placements in enumerate(itertools.product(PLACEMENTS, repeat=len(sizes))):
            given[f"{len(sizes)}{sizes[-1]}-{number}"] = (sizes, placements)
    given["fsdp over tp"] = ((2, 3), (_StridedShard(1, split_factor=3), Shard(1)))
    for sizes in ((3,), (2, 2), (2, 3)):
        chosen = {name: one for name, one in given.items() if one[0] == sizes}
        count = torch.Size(sizes).numel()
        paths = []
        for rank in range(count):
            with as_rank(rank, count):
                mesh = init_device_mesh("cpu", sizes)
                made = {
                    name: distribute_tensor(whole, mesh, placements, src_data_rank=None)
                    if name != "fsdp over tp"
                    else strided(whole, mesh)
                    for name, (_, placements) in chosen.items()
                }
                paths.append(tmp_path / f"{rank}.pt")
                torch.save(made, paths[-1])
        ckpt = rustload.open(paths)
        assert set(ckpt) == set(chosen)
        assert [name for name in ckpt if not same(ckpt[name], whole)] == []


def strided(whole: torch.Tensor, mesh: Any) -> DTensor:
    """The placement that FSDP makes of a tensor that tensor parallelism has cut: columns first by the second dimension."""
    data, model = mesh.get_coordinate()
    part = [*whole.chunk(3, 1), *[whole[:, :0]] * 3][model]
    part = [*part.chunk(2, 1), part[:, :0]][data]
    placements = [_StridedShard(1, split_factor=3), Shard(1)]
    return DTensor.from_local(
        part.clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def test_tied_parts_stay_tied(tmp_path):
    paths = []
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            made = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)], src_data_rank=None)
            paths.append(tmp_path / f"{rank}.pt")
            torch.save({"a": made, "b": made.detach(), "c": made.clone()}, paths[-1])
    assert [set(group) for group in rustload.open(paths).tied] == [{"a", "b"}]


def opened(place: Path, one: bytes, two: bytes, suffix: str = ".pt") -> rustload.Checkpoint:
    place.mkdir(exist_ok=True)
    return rustload.open(files(one, two, suffix=suffix)(place))


def both(make: Any, more: dict[str, bytes] | None = None) -> list[bytes]:
    """The files of two processes, each with the row that `make(rank)` describes."""
    return [rank_file({"w": make(rank)}, row(rank) | (more or {})) for rank in range(2)]


def test_the_forms_of_other_versions_are_parts(tmp_path):
    part = local((1, 3))
    old = {
        "cls": f"{OLD_TENSOR}.api.DTensor",
        "spec": f"{OLD_TENSOR}.placement_types.DTensorSpec",
        "placements": [shard(0, f"{OLD_TENSOR}.placement_types")],
    }
    numbers = {"9": bytes(8)}
    forms = {
        "2.13": both(lambda rank: dtensor(part, rank=rank)),
        "2.9": both(lambda rank: dtensor(part, mesh=mesh_29((2,), (rank,)))),
        "2.4": both(lambda rank: dtensor(part, mesh=mesh_24((2,), (rank,)), **old), numbers),
        "sharded": both(lambda rank: sharded(part, (rank, 0), (1, 3))),
        "sharded 1.13": both(lambda rank: sharded(part, (rank, 0), (1, 3), slots=False)),
    }
    for name, (one, two) in forms.items():
        ckpt = opened(tmp_path / name, one, two)
        assert list(ckpt) == ["w"], name
        assert ckpt["w"].materialize(framework="numpy").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], name
    place = rustload.open(tmp_path / "2.9" / "rank1.pt")["w"].part
    assert place == rustload.Part((2, 3), (1, 0), (2,), (1,), ("Shard(dim=0)",))


def test_what_says_nothing_of_its_place_is_a_part_alone(tmp_path):
    paths = []
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            made = DTensor.from_local(torch.ones(3) * rank, mesh, [Partial()], run_check=False)
            paths.append(tmp_path / f"{rank}.pt")
            torch.save({"sum": made}, paths[-1])
    lazy = rustload.open(paths[1])["sum"]
    assert lazy.part == rustload.Part((3,), None, (2,), (1,), ("Partial()",))
    assert lazy.materialize(framework="numpy").tolist() == [1.0, 1.0, 1.0]
    with coded(rustload.UnsupportedError, "DTensorPlacement", match="which part"):
        rustload.open(paths)


def test_several_shards_of_a_tensor_in_a_file_are_no_copies_of_those_in_others(tmp_path):
    part = local((1, 3))
    files = [
        rank_file({"v": dtensor(part, rank=rank), "w": sharded(part, (rank, 0), (1, 3), count=2)}, row(rank))
        for rank in range(2)
    ]
    with coded(rustload.UnsupportedError, "DTensorPlacement", match="which part"):
        opened(tmp_path, *files)
    alone = rustload.open(files[0])
    assert list(alone) == ["v", "w.args.0.0.0.tensor", "w.args.0.0.1.tensor"]
    assert alone["w.args.0.0.1.tensor"].part == rustload.Part((2, 3), None, None, None, None)


def test_parts_that_do_not_fit_are_errors(saved, tmp_path):
    with coded(rustload.FormatError, "DcpGrid", match="hold 9 element") as caught:
        rustload.open(ranks(saved)[1:])
    assert any("files of all processes" in note for note in caught.value.__notes__)
    part = local((1, 3))
    one = rank_file({"w": dtensor(part, rank=0)}, row(0))
    for name, other, code in (
        ("place", dtensor(part, (5, 3), rank=1), "DTensorPlacement"),
        ("shape", dtensor(part, (3, 3), rank=1), "PartConflict"),
        ("states", sharded(part, (1, 0), (1, 3), (3, 3)), "PartConflict"),
        ("whole", local((2, 3)), "ShardDuplicate"),
    ):
        with pytest.raises(rustload.RustloadError) as caught:
            opened(tmp_path / name, one, rank_file({"w": other}, row(1) if name != "whole" else None))
        assert caught.value.code == code, name


def test_load_into_says_that_a_file_has_parts(saved):
    with pytest.raises(rustload.ModelMismatchError, match=r"\[2, 6\], a part of \[7, 6\]") as caught:
        rustload.torch.load_into(torch.nn.Linear(6, 7), saved / "rank0.pt", key="model.0")
    assert any("all processes" in note for note in caught.value.__notes__)
    report = rustload.torch.load_into(torch.nn.Linear(6, 2), saved / "rank0.pt", key="model.0")
    assert any("'weight' is [2, 6], a part of [7, 6]" in note for note in report.notes)


def test_a_process_loads_its_own_file_into_its_own_part(saved):
    whole = tensors(saved / "whole.pt")
    for rank in (0, 1, 3):
        with as_rank(rank, COUNT):
            with torch.device("meta"):
                model = torch.nn.Sequential(
                    torch.nn.Linear(6, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3)
                )
            fully_shard(model, mesh=init_device_mesh("cpu", (COUNT,)))
            report = rustload.torch.load_into(model, saved / f"rank{rank}.pt", key="model")
            assert not any("parts of larger" in note for note in report.notes)
            expected = [*whole["model.0.weight"].split(2), torch.empty(0, 6)][rank]
            assert same(model[0].weight.to_local().detach(), expected)
    with as_rank(1, COUNT):
        with torch.device("meta"):
            other = torch.nn.Linear(6, 7)
        fully_shard(other, mesh=init_device_mesh("cpu", (COUNT,)))
        with pytest.raises(rustload.ModelMismatchError, match="a part of"):
            rustload.torch.load_into(other, saved / "rank0.pt", key="model.0")


def test_dcp_of_four_processes_equals_what_torch_loads(saved):
    ckpt, expected = rustload.open(saved / "dcp"), tensors(saved / "dcp.pt")
    assert set(ckpt) == set(expected)
    assert [name for name, value in expected.items() if not same(ckpt[name], value)] == []
    found = leaves(ckpt.objects)
    values = leaves(torch.load(saved / "dcp.pt", weights_only=False))
    assert [name for name in values if not same(found[name], values[name])] == []
    whole = tensors(saved / "whole.pt")
    assert [name for name, value in whole.items() if not same(ckpt[name], value)] == []


def test_the_shards_of_torchs_huggingface_writer_are_one_checkpoint(saved, tmp_path):
    expected = tensors(saved / "hf.pt")
    ckpt = rustload.open(saved / "hf" / "sharded")
    assert len(ckpt.files) == COUNT
    assert set(ckpt) == set(expected)
    assert [name for name, value in expected.items() if not same(ckpt[name], value)] == []
    assert same(ckpt["grid"][1:3, ::2], expected["grid"][1:3, ::2].contiguous())
    assert list(ckpt.objects) == list(ckpt)
    assert same(ckpt.objects["grid"], expected["grid"])
    # What only single files need is not in what is written.
    assert ckpt.metadata == {"format": "pt"}
    rustload.convert(saved / "hf" / "sharded", tmp_path / "model.safetensors")
    written = load_file(tmp_path / "model.safetensors")
    assert [name for name, value in expected.items() if not same(written[name], value)] == []
    assert rustload.open(tmp_path / "model.safetensors").metadata == {"format": "pt"}
    # Alone, a file has parts of tensors whose shape it does not say.
    alone = rustload.open(ckpt.files[1])
    assert alone["rows"].part == rustload.Part(None, (2, 0), None, None, None)
    assert same(alone["rows"], expected["rows"][2:4].contiguous())
    rustload.convert(ckpt.files[1], tmp_path / "alone.safetensors", rename=str.upper)
    assert rustload.open(tmp_path / "alone.safetensors")["ROWS"].part is None
    consolidated = rustload.open(saved / "hf")
    reference = load_file(saved / "hf" / "model-00001-of-00001.safetensors")
    assert set(consolidated) == set(reference) == set(expected)
    assert all(bits(consolidated[name].materialize()) == bits(value) for name, value in reference.items())


def test_safetensors_parts_are_proved(tmp_path):
    good = opened(tmp_path / "good", hf_part([0, 0]), hf_part([1, 0]), ".safetensors")
    assert good["w"].shape == (2, 3)
    for name, other, code in (
        ("hole", hf_part([2, 0]), "DcpGrid"),
        ("overlap", hf_part([0, 1]), "DcpGrid"),
        ("dtype", hf_part([1, 0], dtype="I32"), "PartConflict"),
        ("rank", hf_part([1], (3,)), "PartConflict"),
        ("missing", hf_part({"v": {"saved_offsets": [0]}}), "DcpMetadata"),
        ("short", hf_part([1]), "DcpMetadata"),
    ):
        with pytest.raises(rustload.FormatError) as caught:
            opened(tmp_path / name, hf_part([0, 0]), other, ".safetensors")
        assert caught.value.code == code, name
    # The interface of safetensors does not look at it, as the reference reader does not.
    path = tmp_path / "missing" / "rank1.safetensors"
    with rustload.safe_open(path, framework="np") as file:
        assert file.get_tensor("w").shape == (1, 3)


def test_files_of_other_values_are_merged(tmp_path):
    part = local((1, 3))
    made = [
        rank_file({"w": dtensor(part, rank=rank), "n": integer(rank), f"own{rank}": text("x")}, row(rank))
        for rank in range(2)
    ]
    objects = opened(tmp_path, *made).objects
    assert objects["w"].shape == (2, 3)
    assert (objects["n"], objects["own0"], objects["own1"]) == (0, "x", "x")
