"""Folders of torch_checkpointing: the items of every rank as whole tensors, and what is refused."""

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Reduced, coded
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch_checkpointing_folders import Placed, layout, metadata, process, stated_box, write

import rustload
import rustload.torch

torch.manual_seed(0)
W, CUBE = torch.randn(5, 3), torch.randn(4, 6, 5).to(torch.bfloat16)
MODEL = {
    "rows.weight": Placed(W, (4,), (Shard(0),)),
    "columns": Placed(W.t().contiguous(), (4,), (Shard(1),)),
    "strided": Placed(CUBE, (2, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    "grid": Placed(CUBE, (2, 2), (Shard(1), Shard(2))),
    "hybrid": Placed(W, (2, 2), (Replicate(), Shard(0))),
    "replica": Placed(W, (4,), (Replicate(),)),
    "scalar": Placed(torch.tensor(3.5), (4,), (Replicate(),)),
    "empty": Placed(torch.zeros(0, 3), (4,), (Shard(0),)),
}
OPTIMIZER = {"state": {0: {"exp_avg": Placed(W, (4,), (Shard(0),)), "step": 7}}, "groups": [MODEL["grid"]]}
ITEMS = {"model": MODEL, "optimizer": OPTIMIZER}
WHOLE = {f"model.{name}": placed.whole for name, placed in MODEL.items()} | {
    "optimizer.state.0.exp_avg": W,
    "optimizer.groups.0": CUBE,
}
SAFETENSORS = {"model": {rank: layout(f"parts/rank_{rank}/model.safetensors") for rank in range(4)}}


def same(ckpt: rustload.Checkpoint, whole: dict[str, torch.Tensor]) -> None:
    assert sorted(ckpt) == sorted(whole)
    for name, tensor in whole.items():
        assert torch.equal(ckpt[name].materialize(framework="torch"), tensor), name


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("layouts", [None, SAFETENSORS], ids=["pt", "safetensors"])
def test_whole_tensors_in_every_placement(tmp_path, version, layouts):
    folder = write(tmp_path / "step", ITEMS, 4, layouts=layouts, others={"step": 7}, version=version)
    for path in [folder, folder / "metadata.pkl"]:
        with rustload.open(path, framework="torch") as ckpt:
            assert ckpt.format == "torch-checkpointing"
            same(ckpt, WHOLE)
            assert torch.equal(ckpt["model.rows.weight"][1:4, ::2].materialize(), W[1:4, ::2])
            with ckpt.stream() as stream:
                assert {name: tensor.clone() for name, tensor in stream}.keys() == WHOLE.keys()


def test_objects_info_and_convert(tmp_path):
    folder = write(tmp_path / "step", ITEMS, 4, layouts=SAFETENSORS, others={"step": 7})
    ckpt = rustload.open(folder, framework="torch")
    tree = ckpt.objects
    assert tree["optimizer"]["state"][0]["step"] == 7
    assert torch.equal(tree["optimizer"]["state"][0]["exp_avg"].materialize(), W)
    assert torch.equal(tree["model"]["grid"].materialize(), CUBE)
    assert tree["step_0"] == tree["step_3"] == 7
    assert ckpt["optimizer.groups.0"].path == ("optimizer", "groups", 0)
    rustload.convert(folder, tmp_path / "out.safetensors")
    same(rustload.open(tmp_path / "out.safetensors"), WHOLE)
    model = torch.nn.Linear(3, 5, bias=False)
    rustload.torch.load_into(model, folder, rename={"model.rows.weight": "weight"}, strict=False)
    assert torch.equal(model.weight, W)
    assert any("lowest" in note or "first file" in note for note in ckpt.notes)


def test_a_folder_in_a_store(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, layouts in {"flat": None, "nested": SAFETENSORS}.items():
        folder = write(tmp_path / name, ITEMS, 4, layouts=layouts)
        for path in folder.rglob("*.*"):
            memory.pipe(f"/{name}/{path.relative_to(folder)}", path.read_bytes())
    same(rustload.open("memory://flat"), WHOLE)
    memory.rm("/flat/model_2.pt")
    for name, text in {"flat": "which is missing", "nested": "subfolders of a store are not read"}.items():
        with coded(rustload.RustloadError, "ShardMissing", match=text):
            rustload.open(f"memory://{name}")


def test_metadata_wins_over_a_safetensors_item(tmp_path):
    """The trap: that file was the checkpoint, and the other items a note."""
    layouts = {"extra": {0: layout("extra.safetensors")}}
    items = {"model": {"w": Placed(W, (1,), (Shard(0),))}, "extra": {"v": Placed(W, (1,), (Replicate(),))}}
    folder = write(tmp_path / "step", items, 1, layouts=layouts, others={"step": 7})
    same(rustload.open(folder), {"model.w": W, "extra.v": W})


def test_a_pickle_of_another_program_is_not_metadata(tmp_path):
    (tmp_path / "metadata.pkl").write_bytes(pickle.dumps({"columns": [1, 2]}))
    rustload.save({"w": W}, tmp_path / "model.safetensors")
    assert list(rustload.open(tmp_path)) == ["w"]


def test_a_single_rank_needs_no_metadata(tmp_path):
    folder = write(tmp_path / "step", {"model": {"w": Placed(W, (1,), (Shard(0),))}}, 1, others={"step": 7})
    (folder / "metadata.pkl").unlink()
    ckpt = rustload.open(folder)
    same(ckpt, {"model.w": W})
    assert ckpt.objects["step"] == 7
    # Parts of several ranks say themselves where they belong.
    folder = write(tmp_path / "two", {"model": {"w": Placed(W, (2,), (Shard(0),))}}, 2)
    same(rustload.open([folder / "model_0.pt", folder / "model_1.pt"]), {"w": W})


def boxes(*groups: dict[str, Any], world: int = 2) -> dict[str, Any]:
    stated = metadata({"model": {"w": Placed(W, (world,), (Replicate(),))}}, world)
    stated["metadata"]["model"]["nested_path_to_metadata"] = {'["w"]': list(groups), '["tied"]': list(groups)}
    return stated


def boxed(folder: Path, stated: object, *parts: torch.Tensor) -> Path:
    folder.mkdir()
    for rank, tensor in enumerate(parts):
        torch.save({"w": tensor, "tied": tensor, "lost": 1}, folder / f"model_{rank}.pt")
    (folder / "metadata.pkl").write_bytes(pickle.dumps(stated))
    return folder


def test_stated_boxes_of_a_padded_part(tmp_path):
    """A rank has two boxes in one tensor, another a box in the middle of one."""
    both = torch.cat([W[:1], torch.full((1, 3), 9.0), W[4:]])
    middle = torch.nn.functional.pad(W[1:4], (2, 1, 1, 1))
    stated = boxes(
        stated_box(W, 0, ((0, 0), (0, 0), (1, 3)), ((4, 0), (2, 0), (1, 3))),
        stated_box(W, 1, ((1, 0), (1, 2), (3, 3))),
    )
    ckpt = rustload.open(boxed(tmp_path / "a", stated, both, middle))
    same(ckpt, {"model.w": W, "model.tied": W})
    assert ckpt.tied == [["model.w", "model.tied"]]
    assert torch.equal(ckpt.objects["model"]["w"].materialize(framework="torch"), W)
    outside = boxes(stated_box(W, 0, ((0, 0), (0, 1), (5, 3))))
    refused(boxed(tmp_path / "b", outside, W, W), "DcpChunk")


def refused(folder: Path, code: str) -> rustload.RustloadError:
    with coded(rustload.RustloadError, code) as caught:
        rustload.open(folder)
    return caught.value


def restate(folder: Path, change: Callable[[dict[str, Any]], None], world: int = 4) -> Path:
    stated = copy.deepcopy(metadata({"model": MODEL}, world))
    change(stated)
    return write(folder, {"model": MODEL}, world, stated=stated)


def group(stated: dict[str, Any], name: str = "rows.weight") -> dict[str, Any]:
    return stated["metadata"]["model"]["nested_path_to_metadata"][f'["{name}"]'][0]


def data(stated: dict[str, Any], name: str = "rows.weight") -> dict[str, Any]:
    return group(stated, name)["sharding_metadata"]["data"]


def as_layout(path: str, kind: str = "TorchSerialization") -> Callable[[dict[str, Any]], None]:
    def change(stated: dict[str, Any]) -> None:
        stated["metadata"]["model"]["rank_to_layout_info"][1] = layout(path, kind)

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda stated: group(stated).update(ranks=(0, 1)), "DcpGrid"),
        (lambda stated: group(stated).update(ranks=()), "DcpGrid"),
        (lambda stated: group(stated).update(ranks=(0, 1, 2, 4)), "DcpMetadata"),
        (lambda stated: data(stated).update(dtype="torch.float64"), "DcpChunk"),
        (lambda stated: data(stated).update(dtype="float32"), "DtypeUnsupported"),
        (lambda stated: data(stated).update(global_shape=[6, 3]), "DcpChunk"),
        (lambda stated: data(stated).update(global_shape=[5, -3]), "DcpMetadata"),
        (lambda stated: data(stated).update(placements=[{"type": "Shard", "dim": 1}]), "DcpChunk"),
        (lambda stated: data(stated).update(placements=[{"type": "Shard", "dim": 2}]), "DcpMetadata"),
        (lambda stated: data(stated).update(placements=[{"type": "Partial"}]), "DcpMetadata"),
        (lambda stated: data(stated).update(placements=[]), "DcpMetadata"),
        (lambda stated: data(stated)["mesh_spec"].update(mesh_data=(1, 0, 2, 3)), "DcpChunk"),
        (lambda stated: data(stated)["mesh_spec"].update(mesh_shape=(2,)), "DcpMetadata"),
        (
            lambda stated: data(stated, "strided")["placements"][0].update(split_factor=3),
            "DTensorPlacement",
        ),
        (lambda stated: group(stated)["sharding_metadata"].update(type="mine"), "DcpMetadata"),
        (lambda stated: stated.update(version="3.0"), "DcpMetadata"),
        (lambda stated: stated.update(world_size=5), "DcpMetadata"),
        (lambda stated: stated["metadata"]["model"]["nested_path_to_metadata"].update({"w": []}), "DcpMetadata"),
        (as_layout("../model_1.pt"), "DcpPath"),
        (as_layout("/model_1.pt"), "DcpPath"),
        (as_layout("a/../model_1.pt"), "DcpPath"),
        (as_layout("a//model_1.pt"), "DcpPath"),
        (as_layout("a/model_1.pt"), "ShardMissing"),
        (as_layout("metadata.pkl"), "DcpChunk"),
        (as_layout("model_1.json", "JsonSerialization"), "DcpMetadata"),
    ],
)  # fmt: skip
def test_what_contradicts_the_files_is_refused(tmp_path, change, code):
    refused(restate(tmp_path / "step", change), code)


def test_a_rank_that_is_in_a_mesh_twice_contradicts_it(tmp_path):
    folder = restate(
        tmp_path / "step", lambda stated: data(stated)["mesh_spec"].update(mesh_data=(0, 1, 2, 2))
    )
    assert "one for each of its places" in str(refused(folder, "DcpMetadata"))


def test_a_rank_without_a_file_and_a_name_without_a_tensor(tmp_path):
    folder = write(tmp_path / "step", {"model": MODEL}, 4)
    (folder / "model_2.pt").rename(tmp_path / "away.pt")
    refused(folder, "ShardMissing")
    (folder / "model_2.pt").symlink_to(tmp_path / "away.pt")
    refused(folder, "DcpPath")
    (folder / "model_2.pt").unlink()
    with process(2, 4):
        torch.save({}, folder / "model_2.pt")
    refused(folder, "DcpChunk")


def test_the_files_of_replicas_are_not_needed(tmp_path):
    model = {"w": Placed(W, (2,), (Replicate(),))}
    folder = write(tmp_path / "step", {"model": model}, 2)
    (folder / "model_1.pt").unlink()
    ckpt = rustload.open(folder)
    same(ckpt, {"model.w": W})
    assert any("1 rank(s) were not opened" in note for note in ckpt.notes)


def test_an_unfinished_save(tmp_path):
    folder = write(tmp_path / "tmp_step", {"model": MODEL}, 4)
    refused(folder, "DcpUnfinished")


def test_a_global_in_the_metadata_is_refused_and_found(tmp_path):
    canary = Reduced(exec, ("import sys; sys.modules['canary_was_imported'] = sys",))
    stated = metadata({"model": MODEL}, 4) | {"more": canary}
    folder = write(tmp_path / "step", {"model": MODEL}, 4, stated=stated)
    refused(folder, "DcpMetadata")
    report = rustload.scan(folder / "metadata.pkl")
    assert report.verdict == "would execute"
    assert "canary_was_imported" not in sys.modules


def test_a_class_of_json_is_found_and_not_imported(tmp_path):
    """Its reader imports the module, of any name, when it reads the metadata."""
    stated = metadata({"model": MODEL}, 4)
    (tmp_path / "canary_module.py").write_text("raise SystemExit('imported')")
    names = {"canary_module.Config": "unknown", "os.system": "would execute"}
    for name, verdict in names.items():
        layouts = stated["metadata"]["model"]["rank_to_layout_info"]
        layouts[3] = layout("model_3.json", "JsonSerialization", cls=name)
        folder = write(tmp_path / verdict.replace(" ", "-"), {"model": MODEL}, 4, stated=stated)
        report = rustload.scan(folder / "metadata.pkl")
        assert report.verdict == verdict
        [found] = [finding for finding in report.files[0].findings if finding.code == "Import"]
        assert name in found.message
        assert "canary_module" not in sys.modules


def test_a_scan_of_a_benign_folder_is_inert(tmp_path):
    folder = write(tmp_path / "step", {"model": MODEL}, 4)
    report = rustload.scan(folder / "metadata.pkl")
    assert report.verdict == "inert"
    assert [finding.code for finding in report.files[0].findings] == ["UnrestrictedLoad"]
