"""Tar archives: checkpoints of torch 0.1, compared with torch's own reader of them, and NeMo's archives."""

import collections
import io
import sys
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import cli, coded

import rustload
import rustload.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))

from attacks import pickles
from attacks.streams import TAR_END, tar, tar_header, tar_member, tar_storages, tar_tensors
from attacks.zips import around
from tar_files import (
    ClassTag,
    StoragePart,
    Torch01,
    nemo,
    nemo_distributed,
    packed,
    saved,
    torch01,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about typed storages, and about one process

BASE = torch.arange(12.0)
HALVES = torch.arange(10, dtype=torch.int16)
STATE = {
    "w": torch.arange(6.0).view(2, 3),
    "b": torch.ones(3, dtype=torch.bfloat16),
    "t": torch.arange(6.0).view(2, 3).t(),
}


def old_object() -> Any:
    """Ties, views, transposed tensors, parts of storages, a bare storage, and all dtypes of torch 0.1."""
    return collections.OrderedDict(
        a=BASE, tied=BASE, view=BASE[4:8], t=BASE.view(3, 4).t(), step=BASE[1::3], bare=BASE.storage(),
        part=StoragePart(HALVES[3:6], 2, 6), whole=HALVES, empty=torch.empty(0, 3), epoch=3,
        nested=[BASE, {"x": torch.ones(2, 2, dtype=torch.float64)}],
        **{
            str(dtype).removeprefix("torch."): torch.arange(3).to(dtype)
            for dtype in (torch.float64, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8)
        },
    )  # fmt: skip


def legacy_load(path: Path) -> Any:
    """What torch's own reader makes of a tar file."""
    return torch.load(path, weights_only=False, map_location="cpu")


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("options", [{}, {"cuda": True}, {"protocol": 0}, {"little_endian": False}], ids=str)
def test_a_file_of_torch_01_opens_as_torch_reads_it(tmp_path, options):
    path = write(tmp_path / "old.pt", torch01(old_object(), **options))
    theirs = legacy_load(path)
    ckpt = rustload.open(path)
    assert ckpt.format == "torch-tar"
    ours = rustload.torch.load(path, map_location="cpu")
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            tensor = ours[name]
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (value.dtype, value.shape, value.stride())
            assert torch.equal(tensor, value)
            assert torch.equal(ckpt[name].torch(), value)
    assert ours["bare"].tolist() == theirs["bare"].tolist() == BASE.tolist()
    assert ours["a"] is ours["tied"] is ours["nested"][0]
    address = ours["a"].untyped_storage().data_ptr()
    assert all(ours[name].untyped_storage().data_ptr() == address for name in ("view", "t", "step"))
    assert ours["part"].data_ptr() - ours["whole"].data_ptr() == 3 * 2
    assert torch.equal(ours["nested"][1]["x"], theirs["nested"][1]["x"])
    assert ours["epoch"] == 3
    assert bool(ckpt.notes) == (options == {"little_endian": False})
    assert rustload.scan(path).verdict == "inert"
    assert rustload.scan(path).complete


def test_what_torch_refuses_of_old_files_is_refused_in_the_strict_mode(tmp_path):
    path = write(tmp_path / "old.pt", torch01({"w": BASE}))
    with pytest.raises(RuntimeError) as theirs:
        torch.load(path, weights_only=True)
    with pytest.raises(RuntimeError) as ours:
        rustload.torch.load(path, unknown="error")
    assert str(theirs.value).startswith(str(ours.value))


def test_a_parameter_of_torch_01_is_a_parameter():
    parameter = pickles.call("torch.nn.parameter.Parameter", b"X\x01\0\0\x002Q")
    state = parameter + pickles.many(pickles.TRUE, pickles.FALSE, pickles.ordered()) + pickles.BUILD
    data = tar({"pickle": pickles.pickle(pickles.named({"w": state}))})
    ckpt = rustload.open(data)
    assert ckpt["w"].numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(rustload.torch.load(data)["w"], torch.nn.Parameter)


def test_a_class_with_its_source_is_the_class():
    ckpt = rustload.open(torch01({"net": ClassTag("net.Net"), "w": BASE}))
    assert ckpt.objects["net"] == rustload.Global("net", "Net")
    assert rustload.scan(torch01({"net": ClassTag("net.Net"), "w": BASE})).verdict == "unknown"


def test_a_tensor_without_a_storage_is_empty():
    tensors = pickles.pickle(pickles.integer(1)) + pickles.pickle(
        pickles.many(pickles.integer(2), pickles.NONE, pickles.name("torch.FloatTensor"))
    )
    data = tar({"tensors": tensors + bytes(8) + bytes(8)})
    assert rustload.open(data)["w"].shape == (0,)


def one(_: Path) -> bytes:
    return nemo({"model_weights.ckpt": saved(STATE)})


def one_legacy(_: Path) -> bytes:
    return nemo({"model_weights.ckpt": saved(STATE, _use_new_zipfile_serialization=False)})


def gnu(_: Path) -> bytes:
    return nemo({"model_weights.ckpt": saved(STATE)}, format=tarfile.GNU_FORMAT)


def several(_: Path) -> bytes:
    return nemo({f"mp_rank_0{rank}/model_weights.ckpt": saved(STATE) for rank in range(2)})


def distributed(path: Path) -> bytes:
    return nemo_distributed(path / "weights", STATE)


def old(_: Path) -> bytes:
    return torch01({name: tensor for name, tensor in STATE.items() if name != "b"})


BUILDS: list[Callable[[Path], bytes]] = [old, one, one_legacy, gnu, several, distributed]


@pytest.fixture(params=BUILDS, ids=lambda build: build.__name__)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """An archive, and its tensors by name."""
    prefixes = ["mp_rank_00.", "mp_rank_01."] if request.param is several else [""]
    names = [name for name in STATE if request.param is not old or name != "b"]
    path = write(tmp_path / "model.nemo", request.param(tmp_path))
    return path, {prefix + name: STATE[name] for prefix in prefixes for name in names}


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).flatten().tolist()


def test_tensors_slices_and_streams(archive):
    path, tensors = archive
    for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
        ckpt = rustload.open(source)
        assert list(ckpt) == list(tensors)
        for name, tensor in tensors.items():
            assert bits(ckpt[name].torch()) == bits(tensor)
            assert bits(ckpt[name][1:].torch()) == bits(tensor[1:])
        streamed = dict(ckpt.stream())
        assert {name: bits(tensor) for name, tensor in streamed.items()} == {
            name: bits(tensor) for name, tensor in tensors.items()
        }


def test_objects_and_torch_load(archive):
    path, tensors = archive
    objects = rustload.open(path).objects
    flat = {
        f"{key}.{name}" if isinstance(value, dict) else key
        for key, value in objects.items()
        for name in (value if isinstance(value, dict) else [""])
    }
    assert flat == set(tensors)
    if (path.parent / "weights").exists():
        return  # the pickle of a distributed checkpoint has no tensors
    loaded = rustload.torch.load(path)
    for name, tensor in tensors.items():
        folder, _, rest = name.rpartition(".")
        assert bits((loaded[folder] if folder else loaded)[rest]) == bits(tensor)


def test_convert_diff_safe_open_and_info(archive, tmp_path):
    path, tensors = archive
    target = tmp_path / "out.safetensors"
    rustload.convert(path, target)
    assert rustload.diff(path, target, data=True).same
    with rustload.safe_open(path, "pt") as file:
        assert {name: bits(file.get_tensor(name)) for name in file.keys()} == {  # noqa: SIM118
            name: bits(tensor) for name, tensor in tensors.items()
        }
    assert "bfloat16" in cli("info", path).stdout or "b" not in tensors


def test_load_into(archive):
    path, tensors = archive

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in tensors.items():
                owner: torch.nn.Module = self
                *folders, rest = name.split(".")
                for folder in folders:
                    if not hasattr(owner, folder):
                        owner.add_module(folder, torch.nn.Module())
                    owner = getattr(owner, folder)
                owner.register_buffer(rest, torch.zeros_like(tensor))

    model = Model()
    rustload.torch.load_into(model, path)
    assert {name: bits(tensor) for name, tensor in model.state_dict().items()} == {
        name: bits(tensor) for name, tensor in tensors.items()
    }


def test_an_honest_archive_is_inert_but_for_the_class_that_its_configuration_names(archive):
    report = rustload.scan(archive[0])
    assert report.complete
    named = [finding for finding in report.findings if finding.verdict != "inert"]
    assert {(finding.code, finding.module, finding.name) for finding in named} <= {
        ("CodeInArchive", "nemo.collections.asr.models", "EncDecCTCModel")
    }
    allowed = rustload.scan(archive[0], policy=rustload.Policy(allow=("nemo.collections.*",)))
    assert (allowed.verdict, allowed.passes) == ("inert", True), allowed.findings


def test_a_configuration_of_more_than_a_mib_is_unscanned(tmp_path):
    members = {
        "model_weights.ckpt": saved(STATE),
        "more.yaml": b"#" * (1 << 20) + b"\n_target_: os.system\n",
    }
    report = rustload.scan(write(tmp_path / "model.nemo", nemo(members)))
    assert not report.complete
    assert report.verdict != "inert"


def test_a_member_is_a_view_of_the_archive(tmp_path):
    path = write(tmp_path / "model.nemo", one(tmp_path))
    ckpt = rustload.open(path, framework="numpy")
    array = ckpt["w"].materialize(copy=False)
    assert array.tolist() == STATE["w"].tolist()
    assert not array.flags.owndata


EVIL = pickles.SYSTEM
ENTRY = pickles.many(pickles.integer(1), pickles.text("cpu"), pickles.name("torch.FloatStorage"))


def in_every_pickle() -> dict[str, bytes]:
    """A file with a call in each of its pickles."""
    key = pickles.many(EVIL, pickles.text("cpu"), pickles.name("torch.FloatStorage"))
    tensor = pickles.many(pickles.integer(2), EVIL, pickles.name("torch.FloatTensor"))
    rest = tar_storages()[len(pickles.pickle(pickles.integer(1))) :]
    tensors = tar_tensors()[len(pickles.pickle(pickles.integer(1))) :]
    after = rest[len(pickles.pickle(ENTRY)) :]
    return {
        "sys_info": tar({"sys_info": pickles.pickle(EVIL)}),
        "pickle": tar({"pickle": pickles.pickle(EVIL)}),
        "storage_count": tar({"storages": pickles.pickle(EVIL) + rest}),
        "storage_key": tar({"storages": pickles.pickle(pickles.integer(1)) + pickles.pickle(key) + after}),
        "views": tar({"storages": tar_storages(views=pickles.pickle(EVIL))}),
        "tensor_count": tar({"tensors": pickles.pickle(EVIL) + tensors}),
        "tensor": tar({"tensors": pickles.pickle(pickles.integer(1)) + pickles.pickle(tensor) + bytes(40)}),
    }


@pytest.mark.parametrize("where", in_every_pickle())
def test_a_call_in_any_pickle_would_execute(where):
    report = rustload.scan(in_every_pickle()[where])
    assert report.verdict == "would execute"
    assert "posix.system" in {f"{finding.module}.{finding.name}" for finding in report.findings}


def test_a_call_in_a_nested_archive_would_execute():
    data = nemo({"model_weights.ckpt": around(EVIL)})
    assert rustload.scan(data).verdict == "would execute"


def test_a_central_directory_elsewhere_is_no_member(tmp_path):
    """A zip archive behind the archive is one that readers find by the last bytes."""
    assert rustload.scan(one(tmp_path) + around(EVIL)).verdict == "would execute"


def test_other_archives_say_what_is_inside():
    with coded(rustload.UnsupportedError, "TarUnsupported", match=r'"a.txt", "b.txt"'):
        rustload.open(packed({"a.txt": b"1", "b.txt": b"2"}))


def test_long_names_are_read_as_tarfile_reads_them():
    name = f"{'folder/' * 20}model_weights.ckpt"
    for format_ in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        data = packed({name: saved(STATE)}, format_)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            assert archive.getnames() == [name]
        assert list(rustload.open(data)) == list(STATE)


def pax(**records: str) -> bytes:
    out = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode()
        length = next(n for n in range(len(rest) + 1, len(rest) + 9) if len(str(n)) + len(rest) == n)
        out += str(length).encode() + rest
    return out


def described(data: bytes, *, stated: int, **records: str) -> bytes:
    """A member of which the header states this size, behind an extended header."""
    head = tar_member("PaxHeaders/x", pax(**records), kind=b"x")
    return head + tar_header("model_weights.ckpt", stated) + data + bytes(-len(data) % 512) + TAR_END


def test_the_size_in_an_extended_header_is_that_of_the_header():
    data = saved(STATE)
    right, wrong = str(len(data)), str(len(data) + 1)
    assert list(rustload.open(described(data, stated=len(data), size=right, mtime="1.5"))) == list(STATE)
    for stated, size in [(len(data), wrong), (0, right)]:
        with coded(rustload.FormatError, "TarStructure"):
            rustload.open(described(data, stated=stated, size=size))


def test_a_member_of_8_gib_has_its_size_in_the_extended_header(tmp_path):
    """As Python's tarfile and GNU tar write it; the file is sparse."""
    path, size = tmp_path / "large.nemo", (1 << 33) + 512
    info = tarfile.TarInfo("blob")
    info.size = size
    head = info.tobuf(tarfile.PAX_FORMAT)
    assert b"size=" in head
    tail = nemo({"model_weights.ckpt": saved(STATE)})
    with path.open("wb") as file:
        file.write(head)
        file.seek(size, io.SEEK_CUR)
        file.write(tail)
    assert list(rustload.open(path)) == list(STATE)
    assert rustload.open(path)["w"].numpy().tolist() == STATE["w"].tolist()


@pytest.mark.parametrize("cut", range(12))
def test_a_cut_archive_is_a_typed_error(cut):
    """Only blocks of zeros at the end may be missing."""
    data = torch01({"w": BASE})
    cuts = range(cut, len(data), 12 * 17)
    opened = 0
    for end in cuts:
        try:
            ckpt = rustload.open(bytearray(data[:end]))
        except rustload.RustloadError as error:
            assert error.code != "InternalError"  # noqa: PT017
        else:
            assert not any(data[end:])
            assert ckpt["w"].numpy().tolist() == BASE.tolist()
            opened += 1
    assert opened < len(cuts)


def test_blocks_of_zeros_at_the_end_may_be_missing():
    data = torch01({"w": BASE})
    assert not any(data[-1024:])
    assert rustload.open(data[:-512])["w"].numpy().tolist() == BASE.tolist()
    with coded(rustload.FormatError, "TrailingData"):
        rustload.open(data[:-100])


def test_flipped_bits_are_typed_errors_or_read():
    data = bytearray(Torch01({"w": BASE, "t": BASE.view(3, 4).t()}).bytes().rstrip(b"\0") + bytes(1024))
    random = np.random.default_rng(0)
    for at in random.integers(0, len(data), 1500):
        data[at] ^= 1 << (at % 8)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for tensor in rustload.open(bytes(data)).values():
                    tensor.numpy()
        except rustload.RustloadError as error:
            assert error.code != "InternalError"  # noqa: PT017
        data[at] ^= 1 << (at % 8)
