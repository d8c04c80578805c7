"""Folders and files of training programs: Megatron's ranks, and what is refused by name."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from attacks.parts import local, rank_file, row, sharded

import rustload

W, V = torch.randn(4, 6), torch.randn(3)


def rank(folder: Path, at: int, **more: object) -> None:
    folder.mkdir(parents=True)
    args = Namespace(tensor_model_parallel_size=2, num_layers=2)
    state = {"args": args, "checkpoint_version": 3.0, "iteration": 20}
    torch.save(
        state | {"model": {"w": W[at * 2 : at * 2 + 2], "norm": V}} | more, folder / "model_optim_rng.pt"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "megatron"
    for at in range(2):
        rank(folder / "iter_0000020" / f"mp_rank_{at:02}", at)
    torch.save({"exp_avg": V}, folder / "iter_0000020" / "mp_rank_00" / "distrib_optim.pt")
    rank(folder / "iter_0000010" / "mp_rank_00", 0)
    (folder / "latest_checkpointed_iteration.txt").write_text("20\n")
    return folder


def refused(path: Path | list[Path], code: str, text: str) -> rustload.RustloadError:
    with pytest.raises(rustload.RustloadError) as caught:
        rustload.open(path)
    assert caught.value.code == code, caught.value
    assert text in str(caught.value)
    return caught.value


def test_each_rank_of_megatron_has_names_of_its_own(root):
    for path in [root, root / "iter_0000020"]:
        with rustload.open(path, framework="torch") as ckpt:
            assert list(ckpt) == [
                "mp_rank_00.model.w", "mp_rank_00.model.norm", "mp_rank_00.distrib_optim.exp_avg",
                "mp_rank_01.model.w", "mp_rank_01.model.norm",
            ]  # fmt: skip
            assert torch.equal(ckpt["mp_rank_01.model.w"].materialize(), W[2:])
            assert ckpt["mp_rank_01.model.w"].path == ("mp_rank_01", "model", "w")
            args = ckpt.objects["mp_rank_01"]["args"]
            assert args.class_name == "argparse.Namespace"
            assert args.state == {"tensor_model_parallel_size": 2, "num_layers": 2}
            assert any("2 ranks of Megatron are not joined" in note for note in ckpt.notes)
    assert list(rustload.open(root / "iter_0000010")) == ["mp_rank_00.model.w", "mp_rank_00.model.norm"]


def test_the_parts_of_ranks_are_not_joined_by_guess(root):
    files = [root / "iter_0000020" / f"mp_rank_{at:02}" / "model_optim_rng.pt" for at in range(2)]
    refused(files, "ShardDuplicate", '"model.w" is in two shards')


@pytest.mark.parametrize(
    ("gone", "missing"),
    [("mp_rank_01", "mp_rank_01/model_optim_rng.pt"), ("mp_rank_00", "mp_rank_00")],
)
def test_a_missing_rank_is_named(root, gone, missing):
    folder = root / "iter_0000020"
    for file in (folder / gone).iterdir():
        file.unlink()
    if gone == "mp_rank_00":
        (folder / gone).rmdir()
    assert refused(root, "ShardMissing", missing)


def test_pipeline_and_expert_ranks_are_a_grid(tmp_path):
    for name in ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_001"]:
        rank(tmp_path / name, 0)
    refused(tmp_path, "ShardMissing", "1 of the files that belong to the ranks is missing")
    rank(tmp_path / "mp_rank_01_000", 0)
    assert len(rustload.open(tmp_path)) == 8
    rank(tmp_path / "mp_rank_00", 0)
    refused(tmp_path, "UnknownFormat", "several saves")


@pytest.mark.parametrize("text", ["", "twenty", "-1", "../iter_0000020", "30", "release", "9" * 30])
def test_the_name_of_the_last_iteration_is_checked(root, text):
    (root / "latest_checkpointed_iteration.txt").write_text(text)
    refused(root, "UnknownFormat", "this ")


def test_the_last_iteration_may_be_the_release_or_another_format(root):
    (root / "latest_checkpointed_iteration.txt").write_text("release")
    (root / "iter_0000010").rename(root / "release")
    assert list(rustload.open(root)) == ["mp_rank_00.model.w", "mp_rank_00.model.norm"]
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": W}, checkpoint_id=root / "iter_0000030", no_dist=True)
    (root / "latest_checkpointed_iteration.txt").write_text("30")
    ckpt = rustload.open(root, framework="torch")
    assert ckpt.format == "torch-dcp"
    assert torch.equal(ckpt["w"].materialize(), W)


def test_zarr_and_symlink_files_are_refused_by_name(tmp_path):
    folder = tmp_path / "iter"
    folder.mkdir()
    (folder / "metadata.json").write_text('{"sharded_backend" : "zarr", "sharded_backend_version": 1}')
    torch.save({}, folder / "common.pt")
    error = refused(folder, "UnknownFormat", "zarr")
    assert "--ckpt-format torch_dist" in "".join(error.__notes__)
    link = tmp_path / "latest-rank0.pt.symlink"
    link.write_text("ep1-ba10-rank0.pt")
    refused(link, "UnknownFormat", "symlink file of Composer")


def test_the_flat_parameters_of_fsdp_are_noted(tmp_path):
    """By `StateDictType.LOCAL_STATE_DICT`: a ShardedTensor for each unit."""
    path = tmp_path / "rank0.pt"
    path.write_bytes(rank_file({"layer._flat_param": sharded(local((1, 3)), (0, 0), (1, 3))}, row(0)))
    [note] = rustload.open(path).notes
    assert "layer._flat_param is the flat parameter of a unit of FSDP" in note


@pytest.mark.parametrize("inside", ["", "iter_0000020"])
def test_a_converted_folder_of_ranks_opens_in_its_place(root, tmp_path, inside):
    source, target = root / inside, tmp_path / "out"
    (source / "tokenizer.json").write_text("{}")
    report = rustload.convert(source, target, copy_others=True)
    # Files of two ranks have one name, and the file that names the last iteration does not lead to the new ones.
    assert [name for name in report.files if "model" in name] == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    assert (target / "tokenizer.json").exists()
    assert not (target / "latest_checkpointed_iteration.txt").exists()
    assert rustload.diff(source, target, data=True).equal
    # In the source's folder one of both would never be opened.
    for within in (None, source / "out.safetensors"):
        with pytest.raises(ValueError, match=r"dst= is to be outside of"):
            rustload.convert(source, within)
