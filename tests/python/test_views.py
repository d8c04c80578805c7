"""`copy=`, the memory that views share, and that the file never changes."""

import ctypes
import io
import mmap
import os
import sys
import weakref
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from support import assert_same_bits, coded, deflated, patterns, saved, torch_zip

import rustload
import rustload.torch
from rustload._frameworks import adapters

FRAMEWORKS = ("torch", "numpy", "dlpack")


def writable(result) -> np.ndarray:
    """A flat NumPy array over a result's own memory."""
    array = result.numpy() if isinstance(result, torch.Tensor) else np.asarray(result)
    assert array.flags.writeable
    return array


def address(result) -> int:
    return np.asarray(result).__array_interface__["data"][0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_a_conversion_the_result_is_a_view_that_later_views_share(simple, framework):
    ckpt = rustload.open(simple, framework=framework)
    writable(ckpt["w"].materialize(writable=True))[1, 2] = 99
    for view in (ckpt["w"].materialize(writable=True), ckpt["w"].materialize(copy=False, writable=True)):
        assert writable(view)[1, 2] == 99
    assert writable(ckpt["w"][1].materialize(writable=True))[2] == 99


def test_views_under_numpy_are_read_only_and_share_a_mapping_that_nothing_edits(simple):
    """Those of other frameworks are writable, unless the caller says otherwise."""
    ckpt = rustload.open(simple, framework="numpy")
    for view in (ckpt["w"].materialize(), ckpt["w"].numpy(), np.asarray(ckpt["w"]), dict(ckpt.stream())["w"]):
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0, 0] = 5
        assert address(view) == address(ckpt["w"].materialize())
    ckpt["w"].materialize(framework="torch")[0, 1] = 42
    assert ckpt["w"].materialize()[0, 1] == 1
    assert ckpt["w"].materialize(writable=True)[0, 1] == 42
    kept = ckpt["w"].materialize(framework="torch", writable=False)
    assert kept.data_ptr() == address(ckpt["w"].materialize())
    buffer = ckpt["w"].materialize(framework="dlpack", writable=False)
    assert memoryview(buffer).readonly
    assert not np.from_dlpack(buffer).flags.writeable
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(bytes(96)).readinto(buffer)
    for how in ({"copy": True}, {"dtype": "float64"}):
        assert ckpt["w"].materialize(writable=False, **how).flags.writeable


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells how much of a mapping is anonymous memory")
def test_pinning_a_read_only_view_makes_no_memory(save):
    """A driver pins the pages of a copy's source with the intent to write if it may write to them; so does mlock."""
    ckpt = rustload.open(save({"w": torch.ones(1 << 20)}), framework="torch")
    libc = ctypes.CDLL(None, use_errno=True)

    def anonymous_kilobytes(address: int) -> int:
        """Of the mapping that has the address."""
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split(" ")[0]:
                start, end = (int(number, 16) for number in line.split(" ")[0].split("-"))
                inside = start <= address < end
            elif inside and line.startswith("Anonymous:"):
                return int(line.split()[1])
        raise AssertionError("no mapping has the address")

    def pinned(view: torch.Tensor) -> int:
        start = view.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        if libc.mlock(ctypes.c_void_p(start), ctypes.c_size_t(view.nbytes)):
            pytest.skip(f"the system refuses mlock: {os.strerror(ctypes.get_errno())}")
        try:
            return anonymous_kilobytes(view.data_ptr())
        finally:
            libc.munlock(ctypes.c_void_p(start), ctypes.c_size_t(view.nbytes))

    assert pinned(ckpt["w"].materialize(writable=False)) == 0
    assert pinned(dict(ckpt.stream(writable=False))["w"]) == 0
    assert pinned(ckpt["w"].materialize()) >= 4 << 10  # so that the test would see it


def test_what_is_copied_to_a_device_comes_from_a_read_only_view(simple, monkeypatch):
    """Of any device that rustload does not upload to itself."""
    ckpt = rustload.open(simple, framework="torch")
    sources = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, _device: sources.append(self.data_ptr()) or self)
    monkeypatch.setattr(adapters.load_adapter("torch"), "check_device", lambda _device: torch.device("meta"))
    ckpt["w"].materialize(device="xpu")
    dict(ckpt.stream(device="xpu"))
    assert sources
    assert set(sources) == {address(lazy.materialize(framework="numpy")) for lazy in ckpt.values()}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_edit_of_a_view_never_reaches_the_file(simple, framework):
    before = simple.read_bytes(), simple.stat().st_mtime_ns, list(simple.parent.iterdir())
    ckpt = rustload.open(simple, framework=framework)
    writable(ckpt["w"].materialize(writable=True))[:] = -1
    assert (simple.read_bytes(), simple.stat().st_mtime_ns, list(simple.parent.iterdir())) == before
    assert writable(rustload.open(simple, framework=framework)["w"].materialize(writable=True))[0, 1] == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("how", [{"copy": True}, {"dtype": "float64"}, {"transpose": True}])
def test_an_owned_result_does_not_see_edits_of_a_view(simple, framework, how):
    ckpt = rustload.open(simple, framework=framework)
    writable(ckpt["w"].materialize(writable=True))[:] = -1
    first = writable(ckpt["w"].materialize(**how))
    assert first.sum() == sum(range(24))
    first[:] = 5
    assert writable(ckpt["w"].materialize(**how)).sum() == sum(range(24))
    assert (writable(ckpt["w"].materialize(writable=True)) == -1).all()


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_views_of_a_tensor_that_is_a_whole_storage_share_one_torch_storage(save, name):
    """The first view takes a shorter code path than the others; the checkpoint keeps no view alive."""
    ckpt = rustload.open(
        save({"w": patterns("float32", (6, 4)), "v": torch.zeros(3)}, name), framework="torch"
    )
    for first in (..., 2):
        views = [ckpt["w"][key].materialize() for key in (first, ..., (slice(1, 3), slice(None, None, 2)), 5)]
        views.append(ckpt["w"].T.materialize())
        assert len({view.untyped_storage()._cdata for view in views}) == 1
        assert [view.untyped_storage().nbytes() for view in views] == [96] * 5
        assert_same_bits(views[1], patterns("float32", (6, 4)))
        assert (views[3].storage_offset(), views[2].stride(), views[4].stride()) == (20, (4, 2), (1, 4))
        kept = [weakref.ref(view.untyped_storage()) for view in views]
        del views
        assert [reference() for reference in kept] == [None] * 5


def test_results_are_on_the_cpu_whatever_the_default_device_is(save):
    value, small = patterns("float32", (4, 6)), patterns("float8_e4m3fn", (3,))
    sparse = torch.eye(3).to_sparse()
    paths = save({"w": value, "f": small, "s": sparse}), save({"w": value, "f": small}, "m.safetensors")
    with torch.device("meta"):
        for path in paths:
            ckpt = rustload.open(path)
            for copy in (None, True):
                assert_same_bits(ckpt["w"][1:, ::2].materialize(copy=copy), value[1:, ::2])
                assert_same_bits(ckpt["f"].materialize(copy=copy), small)
            assert_same_bits(ckpt["w"].materialize(dtype="float16"), value.half())
            assert_same_bits(rustload.torch.state_dict(path)["w"].tensor(), value)
            assert_same_bits(rustload.safe_open(path, "pt").get_tensor("w"), value)
        found = rustload.open(paths[0]).objects["s"].torch()
    assert_same_bits(found.to_dense(), sparse.to_dense())


def test_storages_that_are_no_more_are_forgotten():
    """Their number is bounded by that of live ones, and a key whose storage is gone takes another."""
    storages = adapters.Storages()
    kept = [torch.zeros(1).untyped_storage() for _ in range(20)]
    for at, storage in enumerate(kept):
        assert storages.setdefault((0, 0, at, "view"), storage) is storage
    for at in range(20_000):
        gone = torch.zeros(1).untyped_storage()
        assert storages.setdefault((0, 1, at, "view"), gone) is gone
    del gone
    assert len(storages._references) <= 2048
    assert [storages.get((0, 0, at, "view")) for at in range(20)] == kept
    assert storages.get((0, 1, 19_999, "view")) is None
    other = torch.zeros(1).untyped_storage()
    assert (
        storages.setdefault((0, 1, 19_999, "view"), other)
        is storages.setdefault((0, 1, 19_999, "view"), kept[0])
        is other
    )


def test_a_small_view_takes_few_python_calls(save):
    """Counts calls of Python functions, which are the same on every machine; the benchmarks measure time."""
    count = 500
    path = save({f"layer.{at}.weight": torch.zeros(64) for at in range(count)}, "many.safetensors")
    calls = 0

    def count_calls(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    with rustload.open(path, framework="torch") as ckpt:
        ckpt["layer.0.weight"].materialize()
        before = sys.getprofile()
        sys.setprofile(count_calls)
        try:
            views = {name: lazy.materialize() for name, lazy in ckpt.items()}
        finally:
            sys.setprofile(before)
    assert len(views) == count
    assert calls <= 13 * count


def test_views_of_two_frameworks_share_one_mapping(simple):
    ckpt = rustload.open(simple)
    tensor, array, buffer = (ckpt["w"].materialize(framework=name, writable=True) for name in FRAMEWORKS)
    assert tensor.data_ptr() == address(array) == address(buffer)
    tensor[0, 0] = 42
    assert array[0, 0] == 42
    assert np.asarray(buffer)[0, 0] == 42


def test_two_checkpoints_of_one_file_share_no_edits(simple):
    first, second = (rustload.open(simple, framework="torch")["w"].materialize() for _ in range(2))
    first[0, 0] = 42
    assert second[0, 0] == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("how", [{"dtype": "float16"}, {"transpose": True}, {"transpose": (0, 1)}])
def test_copy_false_with_a_conversion_is_a_buffer_error(simple, framework, how):
    with coded(BufferError, "Buffer"):
        rustload.open(simple, framework=framework)["w"].materialize(copy=False, **how)


def test_the_files_own_dtype_is_no_conversion(simple):
    lazy = rustload.open(simple, framework="torch")["w"]
    assert (
        lazy.materialize(dtype="float32", transpose=False, copy=False).data_ptr()
        == lazy.materialize().data_ptr()
    )


def test_a_checkpoint_in_memory_has_no_views(simple):
    lazy = rustload.open(memoryview(simple.read_bytes()), framework="torch")["w"]
    with pytest.raises(BufferError):
        lazy.materialize(copy=False)
    assert lazy.materialize().data_ptr() != lazy.materialize().data_ptr()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_checkpoint_opens_from_memory(simple, kind):
    data = kind(simple.read_bytes())
    ckpt = rustload.open(data, framework="torch")
    assert ckpt.files == []
    assert_same_bits(ckpt["w"].materialize(dtype="float16"), torch.arange(24.0).reshape(4, 6).half())


def test_a_change_of_the_bytearray_after_open_does_not_reach_the_checkpoint(simple):
    data = bytearray(simple.read_bytes())
    ckpt = rustload.open(data, framework="torch")
    data[:] = bytes(len(data))
    assert ckpt["w"].materialize().sum() == sum(range(24))


def test_a_strided_memoryview_opens_as_its_bytes(simple):
    data = simple.read_bytes()
    spread = bytearray(2 * len(data))
    spread[::2] = data
    assert len(rustload.open(memoryview(spread)[::2])) == 2


def test_tied_names_have_one_address_and_one_storage_under_torch(save):
    base = torch.arange(12.0)
    ckpt = rustload.open(
        save({"a": base, "b": base, "row": base[4:8], "grid": base.view(3, 4).t()}), framework="torch"
    )
    a, b, row, grid = (ckpt[name].materialize() for name in ("a", "b", "row", "grid"))
    assert ckpt.tied == [["a", "b", "row", "grid"]]
    assert a.data_ptr() == b.data_ptr() == row.data_ptr() - 16 == grid.data_ptr()
    storages = {t.untyped_storage()._cdata for t in (a, b, row, grid)}
    assert len(storages) == 1
    a[5] = 99
    assert (row[1], grid[1, 1], b[5]) == (99, 99, 99)


def test_tied_names_share_memory_under_numpy(save):
    base = torch.arange(12.0)
    ckpt = rustload.open(save({"a": base, "tail": base[6:]}), framework="numpy")
    a, tail = ckpt["a"].materialize(writable=True), ckpt["tail"].materialize(writable=True)
    assert np.shares_memory(a, tail)
    a[6] = 99
    assert tail[0] == 99


def test_separate_storages_do_not_overlap(save):
    ckpt = rustload.open(save({"a": torch.zeros(4), "b": torch.zeros(4)}), framework="torch")
    a, b = ckpt["a"].materialize(), ckpt["b"].materialize()
    assert ckpt.tied == []
    assert a.untyped_storage()._cdata != b.untyped_storage()._cdata
    a.fill_(7)
    assert b.sum() == 0


def test_an_expanded_view_keeps_stride_zero_and_its_owned_copy_grows(save):
    value = torch.tensor([[1.0], [2.0]]).expand(2, 1000)
    lazy = rustload.open(save({"x": value}), framework="torch")["x"]
    assert lazy.nbytes == 8000
    assert lazy.materialize().stride() == (1, 0)
    assert lazy.materialize().untyped_storage().nbytes() == 8
    owned = lazy.materialize(copy=True)
    assert owned.stride() == (1000, 1)
    assert_same_bits(owned, value)


def test_an_expanded_tensor_grows_under_a_limit(save):
    path = save({"x": torch.zeros(1).expand(1 << 20)})
    lazy = rustload.open(
        path, limits=rustload.Limits(materialize_bytes=1 << 20, materialize_ratio=16), framework="torch"
    )["x"]
    assert lazy.materialize().stride() == (0,)
    with pytest.raises(rustload.LimitError) as caught:
        lazy.materialize(copy=True)
    assert (caught.value.name, caught.value.limit, caught.value.found) == (
        "materialize_bytes",
        1 << 20,
        4 << 20,
    )


def test_results_of_one_call_grow_under_a_limit_in_their_own_dtype(save):
    base = torch.arange(2000, dtype=torch.uint8)
    path = save({str(at): base[at : at + 1000] for at in range(20)})
    limits = rustload.Limits(materialize_bytes=20_000, materialize_ratio=1)
    ckpt = rustload.open(path, limits=limits, framework="torch")
    assert len(ckpt.materialize(copy=True)) == 20
    for dtype, nbytes in (("int16", 22_000), ("complex128", 32_000)):
        with pytest.raises(rustload.LimitError) as caught:
            ckpt.materialize(dtype={"*": dtype})
        assert (caught.value.name, caught.value.limit, caught.value.found) == (
            "materialize_bytes",
            20_000,
            nbytes,
        )


def test_permute_and_t_without_a_conversion_are_strided_views(simple):
    lazy = rustload.open(simple, framework="torch")["w"]
    turned = lazy.T.materialize(copy=False)
    assert turned.stride() == (1, 6)
    assert turned.data_ptr() == lazy.materialize().data_ptr()
    assert lazy.T.materialize(copy=True).stride() == (4, 1)


def test_bools_that_are_neither_0_nor_1_are_copied_and_become_true(save):
    path = save({"x": torch.tensor([False, True, True, False])})
    data = path.read_bytes()
    at = data.index(b"\0\1\1\0", data.index(b"data/0"))
    # The checksum of a stored record is only checked with `verify=True`.
    path.write_bytes(data[:at] + b"\0\2\xff\0" + data[at + 4 :])
    lazy = rustload.open(path, framework="numpy")["x"]
    assert lazy.materialize().view(np.uint8).tolist() == [0, 1, 1, 0]
    assert lazy[:1].materialize(copy=False).tolist() == [False]
    with pytest.raises(BufferError):
        lazy.materialize(copy=False)


@pytest.mark.parametrize("value", [2, 127, 128])
@pytest.mark.parametrize("position", [0, 65_535, 65_536, 199_999])
def test_every_byte_of_bools_is_checked_before_a_view(tmp_path, value, position):
    data = bytearray(200_000)
    data[position] = value
    header = b'{"x":{"dtype":"BOOL","shape":[200000],"data_offsets":[0,200000]}}'
    path = tmp_path / "bools.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    lazy = rustload.open(path, framework="numpy")["x"]
    with pytest.raises(BufferError):
        lazy.materialize(copy=False)
    assert np.flatnonzero(lazy.materialize()).tolist() == [position]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_parameter_keeps_the_lazy_conjugate_or_negative_of_its_tensor(save, legacy):
    value = torch.tensor([1 + 2j, 3 - 4j])
    state = {
        "conjugate": torch.nn.Parameter(value.conj()),
        "negative": torch.nn.Parameter(torch._neg_view(torch.tensor([1.0, -2.0]))),
    }
    assert state["conjugate"].is_conj()
    assert state["negative"].is_neg()
    ckpt = rustload.open(save(state, _use_new_zipfile_serialization=not legacy), framework="torch")
    for name, expected in state.items():
        assert ckpt[name].is_parameter
        assert torch.equal(ckpt[name].materialize(), expected.detach())


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64, torch.float64, torch.int16])
def test_results_are_aligned_to_the_element_size_whatever_the_offset_in_the_file(tmp_path, dtype):
    """torch's kernels use aligned loads: a complex128 that is only aligned to 8 bytes crashes the process."""
    value = torch.arange(24).to(dtype)
    plain = saved({"x": value, "y": value})
    with zipfile.ZipFile(io.BytesIO(plain)) as archive:
        data_pkl, storage = archive.read("archive/data.pkl"), archive.read("archive/data/0")
    views = set()
    for root in ("a" * count for count in range(1, 17)):
        path = tmp_path / f"{root}.bin"
        path.write_bytes(torch_zip(data_pkl, {"0": storage}, root=root))
        ckpt = rustload.open(path, framework="torch")
        whole = ckpt.materialize()
        mapped = rustload.torch.load(path, mmap=True)
        part = ckpt["x"][3:]
        for result in (ckpt["x"].materialize(), part.materialize(), *whole.values(), *mapped.values()):
            assert result.data_ptr() % value.element_size() == 0
            assert_same_bits(result, value[-len(result) :])
            assert torch.equal(result[::2].clone(), value[-len(result) :][::2])
        try:
            part.materialize(copy=False)
            views.add(True)
        except BufferError:
            views.add(False)
    assert views == {True, False}


def test_a_deflated_record_is_inflated_and_has_no_view(tmp_path):
    value = torch.arange(5000.0)
    packed = tmp_path / "packed.bin"
    packed.write_bytes(deflated(saved({"x": value})))
    lazy = rustload.open(packed, framework="torch")["x"]
    assert_same_bits(lazy.materialize(), value)
    assert_same_bits(lazy[7:900:3].materialize(dtype="bfloat16"), value[7:900:3].bfloat16())
    with coded(BufferError, "RecordCompressed"):
        lazy.materialize(copy=False)


def test_np_asarray_of_a_handle_is_its_array(simple):
    lazy = rustload.open(simple)["w"]
    array = np.asarray(lazy)
    assert array.dtype == np.float32
    assert np.shares_memory(array, lazy.numpy())
    assert np.asarray(lazy, dtype=np.float16).dtype == np.float16
    assert not np.shares_memory(np.array(lazy, copy=True), lazy.numpy())
    assert np.shares_memory(np.asarray(lazy, copy=False), lazy.numpy())
    with pytest.raises((ValueError, BufferError)):
        np.asarray(lazy, dtype=np.float16, copy=False)


def test_numpy_and_torch_methods_choose_the_framework(simple):
    lazy = rustload.open(simple, framework="dlpack")["w"]
    assert isinstance(lazy.numpy(), np.ndarray)
    assert isinstance(lazy.torch(), torch.Tensor)


def test_a_result_has_no_grad_and_is_a_plain_tensor(save):
    path = save({"p": torch.nn.Parameter(torch.ones(3))})
    ckpt = rustload.open(path, framework="torch")
    for found in (ckpt["p"].materialize(), ckpt["p"].materialize(copy=True)):
        assert type(found) is torch.Tensor
        assert not found.requires_grad


def test_an_empty_tensor_materializes_in_every_framework(save):
    ckpt = rustload.open(save({"x": torch.empty(0, 3), "y": torch.empty(2, 0, dtype=torch.int8)}))
    for framework in FRAMEWORKS:
        for copy in (None, True, False):
            found = ckpt["x"].materialize(framework=framework, copy=copy)
            assert tuple(found.shape) == (0, 3)
        assert tuple(ckpt["y"].materialize(framework=framework, transpose=True).shape) == (0, 2)
        assert tuple(ckpt["y"].materialize(framework=framework, dtype="float32").shape) == (2, 0)


def test_a_view_can_grow_its_autograd_graph(simple):
    w = rustload.open(simple, framework="torch")["w"].materialize().requires_grad_()
    (w * 2).sum().backward()
    assert (w.grad == 2).all()


SEES_EDITS = {
    "materialize": lambda ckpt: ckpt["w"].materialize(),
    "copy=False": lambda ckpt: ckpt["w"].materialize(copy=False),
    "numpy": lambda ckpt: ckpt["w"].materialize(framework="numpy", writable=True),
    "torch": lambda ckpt: ckpt["w"].torch(),
    "slice": lambda ckpt: ckpt["w"][:].materialize(),
    "permuted view": lambda ckpt: ckpt["w"].T.materialize().T,
    "stream": lambda ckpt: dict(ckpt.stream())["w"],
    "whole load": lambda ckpt: ckpt.materialize()["w"],
    "from_dlpack": lambda ckpt: torch.from_dlpack(ckpt["w"]),
}
HAS_THE_FILES_VALUES = {
    "numpy, read-only": lambda ckpt: ckpt["w"].numpy(),
    "asarray, read-only": lambda ckpt: np.asarray(ckpt["w"]),
    "copy=True": lambda ckpt: ckpt["w"].materialize(copy=True),
    "cast": lambda ckpt: ckpt["w"].materialize(dtype="float64"),
    "transpose": lambda ckpt: ckpt["w"].materialize(transpose=True).T,
    "bytes": lambda ckpt: np.frombuffer(ckpt["w"].bytes(), np.float32).reshape(ckpt["w"].shape),
    "concat": lambda ckpt: rustload.concat([ckpt["w"], ckpt["w"]]).materialize()[: len(ckpt["w"])],
    "stream, copied": lambda ckpt: dict(ckpt.stream(copy=True))["w"],
    "stream, cast": lambda ckpt: dict(ckpt.stream(dtype="float64"))["w"],
    "whole load, cast": lambda ckpt: ckpt.materialize(dtype="float64")["w"],
    "out=": lambda ckpt: _into(ckpt["w"], torch.zeros(tuple(ckpt["w"].shape))),
    "state dict": lambda ckpt: rustload.torch.state_dict(ckpt)["w"].tensor(),
    "opened again": lambda ckpt: rustload.open(ckpt.files[0])["w"].materialize(),
}


def _into(lazy, out):
    lazy.materialize(out=out)
    return out


@pytest.mark.parametrize("verb", [*SEES_EDITS, *HAS_THE_FILES_VALUES])
def test_views_see_edits_and_owned_results_have_the_files_values(tmp_path, verb):
    original = torch.arange(16.0).reshape(4, 4)
    torch.save({"w": original}, tmp_path / "w.pt")
    ckpt = rustload.open(tmp_path / "w.pt", framework="torch")
    ckpt["w"].materialize()[1, 2] = 99
    edited = original.clone()
    edited[1, 2] = 99
    found = (SEES_EDITS | HAS_THE_FILES_VALUES)[verb](ckpt)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(edited if verb in SEES_EDITS else original))
    assert torch.equal(torch.load(tmp_path / "w.pt")["w"], original)
