"""Pickles of checkpoints and handles: paths, options and the identity of files, which another process opens again."""

import copy
import gc
import io
import json
import os
import pickle
import pickletools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import assert_same_bits, open_files
from test_file_objects import CountingFile
from torch.distributed import checkpoint as dcp
from torch.utils.data import DataLoader, Dataset

import rustload
import rustload.torch
from rustload._tensor import pickling

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:.*quantize"
)

STATE = {
    "a": torch.arange(24.0).reshape(4, 6),
    "b": torch.arange(12, dtype=torch.int64).reshape(3, 4) * 3,
    "nested": {"c": torch.arange(30, dtype=torch.bfloat16).reshape(5, 6), "d": torch.tensor(2.5)},
}
FLAT = {"a": STATE["a"], "b": STATE["b"], "nested.c": STATE["nested"]["c"], "nested.d": STATE["nested"]["d"]}


def write(kind: str, folder: Path) -> Path:
    path = folder / kind
    if kind in ("archive", "legacy"):
        torch.save(STATE, path, _use_new_zipfile_serialization=kind == "archive")
    elif kind == "safetensors":
        save_file(FLAT, path)
    elif kind == "shards":
        path.mkdir()
        for number, name in enumerate(FLAT):
            save_file({name: FLAT[name]}, path / f"model-{number + 1:05}-of-00004.safetensors")
    elif kind == "dcp":
        dcp.save(STATE, checkpoint_id=path, no_dist=True)
    else:
        path = folder / "arrays.npz"
        np.savez(path, **{name: tensor.float().numpy() for name, tensor in FLAT.items()})
    return path


KINDS = ["archive", "legacy", "safetensors", "shards", "dcp", "npz"]


def again(value, protocol: int = pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_checkpoints_handles_slices_joins_and_selections_are_the_same_after_a_pickle(
    kind, protocol, tmp_path
):
    ckpt = rustload.open(write(kind, tmp_path))
    a, b = ckpt["a"], ckpt["b"]
    handles = [
        a, a[1:3, ::2], a.T, a[2], a[1, 2], a[:, None, 3], a[0:0], b.permute(1, 0)[1:], ckpt["nested.c"].T[2:5, 1::3],
        ckpt["nested.d"], rustload.concat([a, a[:, 1:3]], dim=1), rustload.concat([a, a])[2:6].T, rustload.stack([a]),
        rustload.stack([b, b], 1)[1, 1], rustload.stack([b, b])[0, 1, 2], rustload.concat([b, b])[3:5],
    ]  # fmt: skip
    for handle, found in zip(handles, again(handles, protocol), strict=True):
        assert type(found) is type(handle)
        assert (found.name, found.path, found.dtype) == (handle.name, handle.path, handle.dtype)
        assert (found.shape, found.strides) == (handle.shape, handle.strides)
        assert_same_bits(found.torch(), handle.torch())
    whole, part = again([ckpt, ckpt.under("nested")], protocol)
    assert (list(whole), whole.format, whole.files) == (list(ckpt), ckpt.format, ckpt.files)
    assert {name: tensor.shape for name, tensor in part.items()} == {"c": (5, 6), "d": ()}
    assert_same_bits(part["c"].torch(), ckpt["nested.c"].torch())
    assert whole.objects.keys() == ckpt.objects.keys()


def test_a_pickle_has_no_elements_and_names_only_functions_of_rustload(tmp_path):
    torch.save({f"w{n}": torch.full((256, 256), 1.5) for n in range(20)}, tmp_path / "m.bin")
    ckpt = rustload.open(tmp_path / "m.bin")
    data = pickle.dumps([ckpt, *ckpt.values()], 2)  # with globals in their text form
    assert len(data) < 10_000
    names = {argument for opcode, argument, _ in pickletools.genops(data) if opcode.name == "GLOBAL"}
    assert names == {
        "rustload._checkpoint.checkpoint restored_checkpoint",
        "rustload._tensor.handle restored",
        "rustload._tensor.pickling open_again",
    }
    # One handle more is a name and some numbers.
    assert len(pickle.dumps(list(ckpt.values()))) - len(pickle.dumps(list(ckpt.values())[:-1])) < 150


def test_another_process_gets_the_same(tmp_path):
    ckpt = rustload.open(write("archive", tmp_path))
    state = rustload.torch.state_dict(ckpt, dtype="float16")
    data = pickle.dumps([ckpt["a"][1:], ckpt, state])
    code = (
        "import pickle, sys, os, torch; os.chdir('/')\n"
        "part, ckpt, state = pickle.load(sys.stdin.buffer)\n"
        "torch.save([part.torch(), ckpt['nested.c'].torch(), state['a'].tensor(), type(state).__name__], sys.stdout.buffer)"
    )
    run = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    part, inner, half, kind = torch.load(io.BytesIO(run.stdout))
    assert_same_bits(part, STATE["a"][1:])
    assert_same_bits(inner, STATE["nested"]["c"])
    assert_same_bits(half, STATE["a"].half())
    assert kind == "StateDict"


def change(path: Path, how: str) -> None:
    if how == "time":
        os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    elif how == "size":
        path.write_bytes(path.read_bytes() + b"x")
    elif how == "copy":
        status = path.stat()
        shutil.copy2(path, path.with_name("copy"))
        path.with_name("copy").replace(path)
        assert path.stat().st_mtime_ns == status.st_mtime_ns
    elif how == "other":
        path.write_bytes(b"something else")


@pytest.mark.parametrize("how", ["time", "size", "copy", "other"])
@pytest.mark.parametrize("kind", ["archive", "safetensors", "shards", "dcp"])
def test_a_file_that_was_changed_after_pickling_is_file_changed(kind, how, tmp_path):
    path = write(kind, tmp_path)
    ckpt = rustload.open(path)
    data = pickle.dumps(ckpt["a"][1:])
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    changed = next((file for file in files if file.suffix == ".distcp"), files[-1])
    change(changed, how)
    # What was opened before is what counts, also if it is pickled now.
    later = pickle.dumps(ckpt["a"]) if kind != "dcp" else data
    del ckpt
    for one in (data, later):
        with pytest.raises(rustload.FormatError, match="changed after the checkpoint was pickled") as caught:
            pickle.loads(one)
        assert (caught.value.code, caught.value.path) == ("FileChanged", str(changed))


def test_a_file_that_is_gone_and_a_shard_that_is_new_are_errors(tmp_path):
    path = write("shards", tmp_path)
    index = path / "model.safetensors.index.json"
    weight_map = {name: f"model-{number + 1:05}-of-00004.safetensors" for number, name in enumerate(FLAT)}
    index.write_text(json.dumps({"weight_map": weight_map}))
    data = pickle.dumps(rustload.open(path))
    save_file({"more": torch.ones(1)}, path / "more.safetensors")
    index.write_text(json.dumps({"weight_map": weight_map | {"more": "more.safetensors"}}))
    with pytest.raises(
        rustload.FormatError, match=r"has 5 file\(s\), and had 4 when it was pickled"
    ) as caught:
        pickle.loads(data)
    assert (caught.value.code, caught.value.path) == ("FileChanged", None)
    shutil.rmtree(path)
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)


def test_options_are_kept_and_relative_paths_are_those_of_opening(tmp_path, monkeypatch):
    write("archive", tmp_path)
    with (tmp_path / "archive").open("ab") as file:
        file.write(b"trailing")
    monkeypatch.chdir(tmp_path)
    limits = rustload.Limits(tensors=17)
    ckpt = rustload.open(
        "archive",
        framework="numpy",
        trailing="ignore",
        io="buffered",
        limits=limits,
        unknown="error",
        compat=True,
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ckpt._core.reopening() == (
        [str(tmp_path / "archive")], "error", "ignore", True, False, "buffered", {"tensors": 17}
    )  # fmt: skip
    found = again(ckpt)
    assert found._core.reopening() == ckpt._core.reopening()
    assert found.framework == "numpy"
    assert isinstance(again(ckpt["a"]).materialize(), np.ndarray)


def test_a_process_opens_a_checkpoint_once_while_it_is_in_use_and_closes_it_then(tmp_path, monkeypatch):
    path = write("archive", tmp_path)
    ckpt = rustload.open(path)
    pickles = [
        pickle.dumps(one) for one in (ckpt, *ckpt.values(), ckpt.select("a"), rustload.torch.state_dict(ckpt))
    ]
    del ckpt
    gc.collect()
    assert open_files().count(str(path)) == 0
    opened = []
    monkeypatch.setattr(
        pickling._rustload,
        "open",
        lambda *a, f=rustload._rustload.open, **o: opened.append(a) or f(*a, **o),
    )
    found = [pickle.loads(one) for one in pickles * 3]
    assert len(opened) == open_files().count(str(path)) == 1
    assert found[1]._context is found[0]._context
    del found
    gc.collect()
    assert open_files().count(str(path)) == 0
    assert not pickling._reopened
    pickle.loads(pickles[1])
    assert len(opened) == 2


def test_tied_tensors_are_tied_after_a_pickle(save):
    shared = torch.arange(6.0)
    ckpt = rustload.open(save({"one": shared, "two": shared.view(2, 3)}))
    one, two = again([ckpt["one"], ckpt["two"]])
    assert one.torch().data_ptr() == two.torch().data_ptr()
    two.torch()[0, 0] = 7
    assert ckpt["one"].torch()[0] == 0  # another mapping


def assert_unpicklable(ckpt: rustload.Checkpoint, source: str) -> None:
    handle = rustload.torch.state_dict(ckpt)["a"]
    for one in (ckpt, ckpt["a"], handle, ckpt.select("a"), rustload.concat([ckpt["a"]])):
        with pytest.raises(TypeError, match=f"opened from {source}.*another process cannot open") as caught:
            pickle.dumps(one)
        assert "open a path without manifest=" in caught.value.__notes__[0]


def test_what_another_process_cannot_open_is_a_type_error_that_says_why(tmp_path):
    path = write("archive", tmp_path)
    data = path.read_bytes()
    assert_unpicklable(rustload.open(data), "bytes in memory")
    assert_unpicklable(rustload.open(CountingFile(data)), "the object 'counting'")
    assert_unpicklable(rustload.open(path, manifest=rustload.Manifest.of(path)), "the object")
    with path.open("rb") as file:
        path.unlink()
        assert_unpicklable(rustload.open(file), "a descriptor of this process")
    dcp.save({"a": torch.ones(2), "pair": (torch.ones(3), 1)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    value = rustload.open(tmp_path / "dcp").objects["pair"][0]
    with pytest.raises(TypeError, match="a part of a file, which another process cannot open"):
        pickle.dumps(value)


def test_a_url_is_a_type_error_without_its_secrets(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://pickling/m.bin", "wb") as file:
        file.write(write("archive", tmp_path).read_bytes())
    assert_unpicklable(
        rustload.open("memory://pickling/m.bin", storage_options={"skip_instance_cache": True}),
        "the object '.*m.bin'",
    )


def test_a_closed_checkpoint_is_not_pickled_and_its_handles_are(simple):
    with rustload.open(simple) as ckpt:
        handle = ckpt["w"]
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(ckpt)
    assert_same_bits(again(handle).torch(), handle.torch())


def test_slices_keep_their_scales(tmp_path):
    weight = torch.randn(6, 5)
    quantized = torch.quantize_per_channel(weight, torch.rand(5) + 0.5, torch.arange(5), 1, torch.qint8)
    fp8 = torch.randn(300, 260).to(torch.float8_e4m3fn)
    state = {"q": quantized, "w": fp8, "w_scale_inv": torch.rand(3, 3)}
    torch.save(state, tmp_path / "m.bin")
    ckpt, decoded = rustload.open(tmp_path / "m.bin"), rustload.open(tmp_path / "m.bin", dequantize=True)
    for handle in (
        ckpt["q"][1:4, 2:],
        ckpt["q"].T[1:],
        decoded["w"][120:140, 100:],
        decoded["w"].T[::7],
        ckpt["q"].quantization.scale,
    ):
        found = again(handle)
        assert_same_bits(found.materialize(dequantize=True), handle.materialize(dequantize=True))


def test_tensors_without_a_name_are_pickled_by_their_number(save):
    module = torch.nn.Module()
    module.register_buffer("kept", torch.arange(3.0))
    module.register_buffer("unnamed", torch.arange(5.0), persistent=False)
    buffers = rustload.open(save(module)).objects.state["_buffers"]
    assert buffers["unnamed"].name == ""
    assert_same_bits(again(buffers["unnamed"][1:]).torch(), torch.arange(1.0, 5))


def test_numbers_outside_a_tensor_are_refused(tmp_path):
    core = rustload.open(write("archive", tmp_path))._core
    name, number, (shape, strides, offset), _ = core.tensor("a").state()
    assert core.restored(name, number, (shape, strides, offset), None).shape == (4, 6)
    for layout in [
        ((4, 7), strides, 0),
        (shape, strides, 1),
        ((2,), (1 << 63,), 0),
        ((1 << 40, 1 << 40), (0, 0), 0),
        (shape, (1,), 0),
    ]:
        with pytest.raises(ValueError, match="not one of the tensor"):
            core.restored(name, number, layout, None)
    with pytest.raises(ValueError, match="not one of the tensor"):
        core.restored(name, number, (shape, strides, 0), (shape, strides, 0))
    with pytest.raises(rustload.FormatError):
        core.restored(name, (0, 1000), (shape, strides, 0), None)
    with pytest.raises(rustload.FormatError):
        core.restored(None, (9, 1000), (shape, strides, 0), None)


def test_copies_are_what_they_were_and_safe_open_is_not_pickled(simple):
    ckpt = rustload.open(simple)
    state = rustload.torch.state_dict(ckpt)
    assert copy.deepcopy(state)["w"] is copy.copy(state["w"]) is state["w"]
    assert copy.deepcopy(state)._metadata == state._metadata
    for one in (ckpt, ckpt.select("w")):
        for do in (copy.copy, copy.deepcopy):
            assert do(one) is one
            assert do({"of": one})["of"] is one
        assert one == one
        assert one == dict(one)
        assert {one: 1}[one] == 1
    assert ckpt != rustload.open(simple)
    with rustload.safe_open(simple, framework="pt") as file:
        for one in (file, file.get_slice("w")):
            with pytest.raises(TypeError):
                pickle.dumps(one)


def test_module_versions_are_pickled_with_a_state_dict(save):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    found = again(rustload.torch.state_dict(save(model.state_dict())))
    assert found._metadata == dict(model.state_dict()._metadata)
    model.load_state_dict(found)


class Rows(Dataset):
    """Rows of several kinds of handles."""

    def __init__(self, path: Path) -> None:
        self.ckpt = rustload.open(path)
        self.part = self.ckpt["a"][1:, ::2]
        self.selection = self.ckpt.under("nested")
        self.state = rustload.torch.state_dict(self.ckpt, dtype="float64")
        self.joined = rustload.concat([self.ckpt["a"], self.ckpt["a"]])

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[object, ...]:
        opened = open_files().count(str(self.ckpt.files[0]))
        return (
            self.ckpt["a"][row].torch(),
            self.part[row].torch(),
            self.selection["c"][row].torch(),
            self.state["a"][row].tensor(),
            self.joined[row + 4].torch(),
            opened,
        )


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_data_loader_hands_a_checkpoint_to_its_workers(method, tmp_path):
    rows = Rows(write("archive", tmp_path))
    loader = DataLoader(rows, batch_size=1, num_workers=2, multiprocessing_context=method)
    for row, (a, part, c, state, joined, opened) in enumerate(loader):
        assert_same_bits(a[0], STATE["a"][row])
        assert_same_bits(part[0], STATE["a"][1:, ::2][row])
        assert_same_bits(c[0], STATE["nested"]["c"][row])
        assert_same_bits(state[0], STATE["a"][row].double())
        assert_same_bits(joined[0], STATE["a"][row])
        assert opened.item() == 1


def test_a_slice_may_have_more_dimensions_than_a_tensor_in_a_file(tmp_path):
    rustload.save({"w": np.ones((2, 3), np.float32)}, tmp_path / "model.safetensors")
    lazy = rustload.open(tmp_path / "model.safetensors")["w"][(None,) * 70]
    assert pickle.loads(pickle.dumps(lazy)).shape == lazy.shape == (1,) * 70 + (2, 3)
