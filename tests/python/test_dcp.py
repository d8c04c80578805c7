"""Distributed checkpoints (`torch-dcp`): what torch saves on one and on two processes, and the forms of other versions."""

import json
import random
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from attacks.distributed import (
    CLASSES,
    OLD_CLASSES,
    VALUE,
    Folder,
    archive,
    chunk,
    index,
    info,
    properties,
    tensor,
    value_archive,
)
from attacks.pickles import NONE, call, integer, ints, listed, made, many, mapped, named, pickle, text
from process_memory import read
from safetensors.torch import save_file
from support import bits, coded

import rustload
import rustload.torch
import rustload.torch.distributed as rd

WRITER = Path(__file__).resolve().parents[1] / "data" / "distributed.py"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    subprocess.run([sys.executable, str(WRITER), str(folder)], check=True, timeout=300)
    return folder


@pytest.fixture(params=["one", "two"])
def both(request: pytest.FixtureRequest, saved: Path) -> tuple[rustload.Checkpoint, dict[str, Any]]:
    """A folder, and what torch reads of it."""
    return rustload.open(saved / request.param), reads(saved / f"{request.param}.pt")


def reads(path: Path) -> dict[str, Any]:
    """What torch reads, by dotted name."""
    return leaves(torch.load(path, weights_only=False))


def same(found: object, wanted: object) -> bool:
    if isinstance(wanted, torch.Tensor):
        if isinstance(found, rustload.LazyTensor):
            found = found.materialize()
        assert isinstance(found, torch.Tensor)
        is_alike = found.dtype == wanted.dtype and found.shape == wanted.shape
        return is_alike and bits(found.resolve_conj()) == bits(wanted.resolve_conj())
    return type(found) is type(wanted) and found == wanted


def leaves(value: Any, path: tuple = ()) -> dict[str, Any]:
    """The values of a tree by dotted name."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list) and any(
        isinstance(one, (dict, rustload.LazyTensor, torch.Tensor)) for one in value
    ):
        pairs = enumerate(value)
    else:
        return {".".join(map(str, path)): value}
    return {name: one for key, inner in pairs for name, one in leaves(inner, (*path, key)).items()}


def test_every_tensor_and_value_equals_what_torch_reads(both):
    ckpt, expected = both
    tensors = {name for name, value in expected.items() if isinstance(value, torch.Tensor)}
    assert ckpt.format == "torch-dcp"
    assert set(ckpt) == tensors
    assert [name for name in tensors if not same(ckpt[name], expected[name])] == []
    found = leaves(ckpt.objects)
    assert set(found) == set(expected)
    assert [name for name in found if not same(found[name], expected[name])] == []


def test_streams_and_casts_equal_torchs(both):
    ckpt, expected = both
    tensors = {name: value for name, value in expected.items() if isinstance(value, torch.Tensor)}
    assert all(same(value, tensors[name]) for name, value in ckpt.stream())
    floats = {name: value for name, value in tensors.items() if value.dtype in (torch.float32, torch.float16)}
    cast = ckpt.materialize(list(floats), dtype="bfloat16")
    assert all(same(cast[name], value.bfloat16()) for name, value in floats.items())
    matrices = {name: value for name, value in floats.items() if value.ndim == 2}
    turned = ckpt.materialize(list(matrices), transpose={"*": True}, dtype={"*": torch.float64})
    assert all(same(turned[name], value.t().double()) for name, value in matrices.items())


def test_the_objects_of_one_process_are_what_was_saved(saved):
    objects = rustload.open(saved / "one").objects
    assert objects["step"] == 7
    assert objects["nested"]["list"][1] == 3
    assert list(objects["nested"]["list"][2]) == ["x"]
    assert objects["many"] == {"tuple": (1, 2.5, "x"), "set": {1, 2}, "bytes": b"abc"}
    assert objects["optimizer"]["param_groups"][0]["params"] == [0, 1]
    state = rustload.open(saved / "one")["optimizer.state.0.exp_avg"]
    assert state.path == ("optimizer", "state", "0", "exp_avg")


def test_tensors_in_other_values_are_their_own(tmp_path):
    """Each value has a pickle of its own, in which its storages are numbered from zero."""
    state = {f"v{number}": (torch.full((4,), number, dtype=torch.uint8), number) for number in range(3)}
    state["w"] = torch.full((4,), 9, dtype=torch.uint8)
    dcp.save(state, checkpoint_id=tmp_path)
    objects = rustload.open(tmp_path).objects
    found = {name: value if name == "w" else value[0] for name, value in objects.items()}
    live = {name: lazy.materialize() for name, lazy in found.items()}
    assert {name: int(one[0]) for name, one in live.items()} == {"v0": 0, "v1": 1, "v2": 2, "w": 9}
    wanted = {name: (torch.zeros(4, dtype=torch.uint8), -1) for name in ("v0", "v1", "v2")}
    dcp.load(wanted, storage_reader=rd.Reader(tmp_path), planner=rd.Planner())
    assert [(int(one[0]), number) for one, number in wanted.values()] == [(0, 0), (1, 1), (2, 2)]


def test_indexing_equals_torchs(saved):
    ckpt = rustload.open(saved / "two")
    expected = reads(saved / "two.pt")
    chosen = random.Random(1)
    for name in ("rows", "columns", "middle", "grid", "large", "state.exp_avg"):
        whole, lazy = expected[name], ckpt[name]
        for _ in range(40):
            key: list[Any] = []
            for size in whole.shape[: chosen.randint(0, whole.ndim)]:
                start, stop = sorted(chosen.sample(range(-1, size + 2), 2))
                kind = chosen.randint(0, 3)
                key.append(
                    chosen.randrange(size)
                    if kind == 0
                    else slice(max(start, 0), stop, chosen.choice((1, 1, 2, 3)))
                )
                if kind == 3:
                    key.insert(0, None)
            part = tuple(key)
            assert same(lazy[part], whole[part].contiguous()), (name, part)
            order = list(range(whole[part].ndim))
            chosen.shuffle(order)
            assert same(lazy[part].permute(order), whole[part].permute(order).contiguous()), (
                name,
                part,
                order,
            )
    assert same(ckpt["grid"].T[1:, ::2], expected["grid"].T[1:, ::2].contiguous())


def test_joined_tensors_may_be_in_chunks(saved):
    ckpt, expected = rustload.open(saved / "two"), reads(saved / "two.pt")
    rows, plain = expected["rows"], torch.arange(3.0)
    for dim in (0, 1):
        joined = rustload.concat([ckpt["rows"], ckpt["rows"][:, :]], dim=dim)
        assert same(joined.materialize(), torch.cat([rows, rows], dim))
        assert same(joined[1:4, 1:].materialize(), torch.cat([rows, rows], dim)[1:4, 1:].contiguous())
    assert same(
        rustload.stack([ckpt["copied"], ckpt["rows"][4]]).materialize(), torch.stack([plain, rows[4]])
    )


def test_load_into_and_save_take_them_as_any_checkpoint(saved, tmp_path):
    ckpt, expected = rustload.open(saved / "one"), reads(saved / "one.pt")
    model = torch.nn.Linear(3, 5)
    rustload.torch.load_into(model, ckpt, key="model")
    assert same(model.weight.detach(), expected["model.weight"])
    two = rustload.open(saved / "two")
    rustload.save(two, tmp_path / "two.safetensors")
    written = rustload.open(tmp_path / "two.safetensors")
    wanted = reads(saved / "two.pt")
    assert set(written) == set(two)
    assert all(same(written[name], wanted[name]) for name in written)
    with rustload.safe_open(saved / "two", framework="pt") as file:
        assert same(file.get_slice("large")[3:5, 200:300], wanted["large"][3:5, 200:300].contiguous())


def test_values_that_are_not_converted_are_named(tmp_path):
    state = {"w": torch.ones(4), "step": 3, "args": {"lr": 0.1, "name": "x"}, "groups": [{"lr": 1}]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=tmp_path / "step-1")
    report = rustload.convert(tmp_path / "step-1", tmp_path / "out")
    assert report.skipped_objects == 4
    assert sorted(report.skipped_at) == ["args.lr", "args.name", "groups.0.lr", "step"]
    rustload.convert(tmp_path / "step-1", tmp_path / "again", objects=tmp_path / "values.json")
    assert json.loads((tmp_path / "values.json").read_text())["args"] == {"lr": 0.1, "name": "x"}


def test_files_that_hide_a_folder_are_named(saved, tmp_path):
    shutil.copytree(saved / "one", tmp_path / "step-1")
    save_file({"w": torch.zeros(4)}, tmp_path / "step-1" / "model.safetensors")
    says = "the directory also has a distributed checkpoint; the safetensors files were used"
    module = torch.nn.Module()
    module.register_buffer("w", torch.ones(4))
    assert says in rustload.torch.load_into(module, tmp_path / "step-1").notes
    state = {"w": torch.ones(4)}
    with pytest.warns(rustload.RustloadWarning, match=says):
        dcp.load(state, storage_reader=rd.Reader(tmp_path / "step-1"), no_dist=True)


def test_a_slice_reads_the_chunks_that_it_meets(tmp_path):
    size, count = 1 << 18, 4
    parts = [archive(size, value=float(at)) for at in range(count)]
    described = {"w": tensor((size * count,), *(chunk((at * size,), (size,)) for at in range(count)))}
    items = [("w", (at * size,), data) for at, data in enumerate(parts)]
    ckpt = rustload.open(Folder(described, items, None).write(tmp_path))
    before = read()
    found = ckpt["w"][size + 5 : size + 9].materialize(framework="numpy")
    assert read() - before < size
    assert found.tolist() == [6.0, 7.0, 8.0, 9.0]
    before = read()
    ckpt["w"][2 * size - 1 : 2 * size + 1].materialize(framework="numpy")
    # Two chunks are opened; neither is read whole.
    assert read() - before < 2 * size
    # The file of the other chunks may even be damaged.
    raw = bytearray(b"".join(parts))
    raw[: len(parts[0])] = bytes(len(parts[0]))
    (tmp_path / "__0_0.distcp").write_bytes(raw)
    again = rustload.open(tmp_path)
    assert again["w"][-1].materialize(framework="numpy") == size + count - 2
    with pytest.raises(rustload.FormatError, match=r"__0_0\.distcp"):
        again["w"][0].materialize(framework="numpy")


def test_opening_reads_only_the_metadata(saved):
    before = read()
    ckpt = rustload.open(saved / "two")
    assert read() - before < 4 * (saved / "two" / ".metadata").stat().st_size + 4096
    assert ckpt["large"].shape == (1025, 513)


def test_a_hundred_thousand_chunks_open_in_a_second_and_a_half(tmp_path):
    count, tensors = 1000, 100
    chunks = [chunk((at * 4, 0), (4, 2)) for at in range(count)]
    described = {f"w{number}": tensor((count * 4, 2), *chunks) for number in range(tensors)}
    pairs = [
        (index(f"w{number}", (at * 4, 0)), info("__0_0.distcp", (number * count + at) * 64, 64))
        for number in range(tensors)
        for at in range(count)
    ]
    fields = {"state_dict_metadata": named(described), "storage_data": mapped(*pairs)}
    (tmp_path / ".metadata").write_bytes(pickle(made(f"{CLASSES}.Metadata", state=named(fields)), protocol=4))
    # No chunk is opened, so the file may be anything of its size.
    (tmp_path / "__0_0.distcp").write_bytes(bytes(count * tensors * 64))
    seconds = []
    for _ in range(3):
        start = time.process_time()
        ckpt = rustload.open(tmp_path)
        seconds.append(time.process_time() - start)
    assert len(ckpt) == tensors
    assert ckpt["w99"].shape == (count * 4, 2)
    assert rustload._rustload.DEBUG or min(seconds) < 1.5, seconds


def six(folder: Folder, place: Path) -> rustload.Checkpoint:
    ckpt = rustload.open(folder.write(place), unknown="error")
    assert ckpt.format == "torch-dcp"
    assert ckpt["w"].materialize(framework="numpy").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert ckpt.objects["step"] == 7
    return ckpt


ROWS = (chunk((0, 0), (1, 3)), chunk((1, 0), (1, 3)))


def test_the_forms_of_other_versions_open(tmp_path):
    older = Folder({"w": tensor((2, 3), *ROWS, props=properties(module=OLD_CLASSES)), "step": VALUE})
    six(older, tmp_path / "2.1")
    strides = many(integer(3), integer(1))
    for name, more in {"none": NONE, "strides": strides}.items():
        later = Folder({"w": tensor((2, 3), *ROWS, props=properties(more=(more,))), "step": VALUE})
        six(later, tmp_path / f"2.15-{name}")
    meta = made(
        f"{CLASSES}.StorageMeta", state=named({"checkpoint_id": call("pathlib._local.PosixPath", text("/x"))})
    )
    six(Folder(more={"version": text("1.0.0"), "storage_meta": meta}), tmp_path / "meta")
    for name, paths in {"none": NONE, "list": listed(), "absent": None}.items():
        ckpt = six(Folder(paths=paths), tmp_path / name)
        assert ckpt["w"].path == ("w",)
    six(
        Folder(infos={2: info("__0_0.distcp", *Folder().ranges()[2], transforms=[])}),
        tmp_path / "untransformed",
    )
    # The number of a chunk is a hint for torch.
    six(Folder(keys={2: index("w", (1, 0), integer(1))}), tmp_path / "number")


def test_a_megatron_folder_opens_as_one(tmp_path):
    root = "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata"
    data = mapped((text("w"), mapped((text("nd_reformulated_orig_global_shape"), ints(2, 3)))))
    folder = Folder(root=root, more={"mcore_data": data})
    folder.described["optimizer/shard_0_1"] = VALUE
    folder.items.append(("optimizer/shard_0_1", None, value_archive(listed(integer(1)))))
    (tmp_path / "common.pt").write_bytes(value_archive(named({"iteration": integer(3)})))
    (tmp_path / "metadata.json").write_text("{}")
    ckpt = six(folder, tmp_path)
    assert ckpt.objects["optimizer/shard_0_1"] == [1]
    assert ["common.pt" in note for note in ckpt.notes] == [True]


def test_the_shapes_that_megatron_changed_are_noted(tmp_path):
    shape = mapped((text("nd_reformulated_orig_global_shape"), ints(6)))
    others = ((text("step"), shape), (text("absent"), shape), (integer(1), shape), (text("a"), NONE))
    data = mapped((text("w"), shape), *others)
    (note,) = six(Folder(more={"mcore_data": data}), tmp_path).notes
    assert "1 tensor(s)" in note
    assert '"w" of [6]' in note


def test_the_metadata_of_a_rank_that_has_a_part_says_so(tmp_path):
    folder = Folder({"w": tensor((3, 3), *ROWS), "step": VALUE}).write(tmp_path)
    metadata = (tmp_path / ".metadata").rename(tmp_path / "__0.metadata")
    for path, code in ((folder, "DcpRankLocal"), (metadata, "DcpGrid")):
        with pytest.raises(rustload.RustloadError) as caught:
            rustload.open(path)
        assert caught.value.code == code
        assert "use_collectives=True" in "".join(caught.value.__notes__)


def test_a_column_major_chunk_keeps_its_strides(tmp_path):
    from attacks.pickles import SIX
    from attacks.pickles import tensor as rebuilt
    from attacks.zips import Zip

    data = Zip(pickle(rebuilt((2, 3), (1, 2)))).bytes()
    whole = Folder({"w": tensor((2, 3), chunk((0, 0), (2, 3)))}, [("w", (0, 0), data)], None)
    expected = np.frombuffer(SIX, "<f4").reshape(3, 2).T
    lazy = rustload.open(whole.write(tmp_path))["w"]
    assert (lazy.materialize(framework="numpy") == expected).all()
    assert (lazy[1, 1:].materialize(framework="numpy") == expected[1, 1:]).all()
    with pytest.raises(BufferError):
        lazy.materialize(framework="numpy", copy=False)


def test_one_contiguous_chunk_is_a_view_where_it_is_aligned(tmp_path):
    whole = Folder({"w": tensor((64,), chunk((0,), (64,)))}, [("w", (0,), archive(64))], None)
    lazy = rustload.open(whole.write(tmp_path))["w"]
    assert lazy.materialize(framework="numpy").tolist() == list(map(float, range(64)))


def test_paths_that_are_not_a_folder(saved):
    metadata = rustload.open(saved / "two" / ".metadata")
    assert metadata.format == "torch-dcp"
    assert len(metadata) == len(rustload.open(saved / "two"))
    with coded(rustload.FormatError, "UnknownFormat") as caught:
        rustload.open(saved / "two" / "__0_0.distcp")
    assert str(saved / "two") in " ".join(caught.value.__notes__)


def test_links_inside_one_folder_open(tmp_path):
    Folder().write(tmp_path / "blobs")
    links = tmp_path / "snapshot"
    links.mkdir()
    for name in (".metadata", "__0_0.distcp"):
        (links / name).symlink_to(tmp_path / "blobs" / name)
    assert rustload.open(links)["w"].materialize(framework="numpy").sum() == 15


def test_a_file_that_was_cut_after_opening_is_an_error(tmp_path):
    ckpt = rustload.open(Folder().write(tmp_path))
    with (tmp_path / "__0_0.distcp").open("r+b") as file:
        file.truncate(100)
    with coded(rustload.FormatError, "FileChanged"):
        ckpt["w"].materialize(framework="numpy")


def test_verify_reads_every_checksum(tmp_path):
    folder = Folder().write(tmp_path)
    rustload.open(folder, verify=True)
    path = folder / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    at = data.rindex(np.array([3.0, 4.0, 5.0], "<f4").tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    rustload.open(folder)
    with coded(rustload.FormatError, "ZipCrc"):
        rustload.open(folder, verify=True)


def test_a_scan_calls_torchs_folders_inert(saved):
    for name in ("one", "two"):
        report = rustload.scan(saved / name)
        wrong = [(file.path, one.code, one.message) for file in report.files for one in file.findings]
        assert report.verdict == "inert", wrong
        assert report.complete


def test_files_that_torch_consolidates_open_at_any_offset(tmp_path):
    # torch's `_consolidate_hf_safetensors.py` writes json.dumps with spaces, and neither padding nor metadata.
    header = json.dumps(
        {
            "w": {"shape": [2, 3], "dtype": "F32", "data_offsets": [0, 24]},
            "x": {"shape": [1], "dtype": "F32", "data_offsets": [24, 28]},
        }
    ).encode()
    header += b" " * (1 - len(header) % 2)  # an odd length, so that no element is aligned
    data = np.arange(7, dtype="<f4").tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    ckpt = rustload.open(tmp_path)
    assert ckpt["w"].materialize(framework="numpy").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert ckpt["x"].materialize().tolist() == [6.0]


@pytest.mark.parametrize("name", ["", ".metadata"])
def test_torch_load_points_to_a_dict_of_the_tensors(name, saved):
    with pytest.raises(RuntimeError, match="this is a distributed checkpoint") as caught:
        rustload.torch.load(saved / "one" / name)
    assert "rustload.torch.state_dict(path)" in caught.value.__notes__[0]
    state = rustload.torch.state_dict(saved / "one" / name)
    assert set(state) == set(rustload.open(saved / "one"))


def test_info_names_the_values_that_it_does_not_read(tmp_path):
    import torch.distributed.checkpoint as dcp
    from support import cli

    dcp.save(
        {"w": torch.ones(2), "step": 7, "args": {"lr": 0.1}}, checkpoint_id=tmp_path / "step_7", no_dist=True
    )
    shown = cli("info", "step_7", cwd=tmp_path).stdout
    assert "not read: rustload show PATH NAME does)\n  step, args.lr\n" in shown
    page = rustload.open(tmp_path / "step_7")._repr_html_()
    assert all(word in page for word in ("not read", "args.lr"))
    assert repr(rustload.open(tmp_path / "step_7")).startswith(
        f"<Checkpoint {str(tmp_path / 'step_7')!r} torch-dcp,"
    )
