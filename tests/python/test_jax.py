"""Frameworks "jax" and "cupy": JAX arrays of every dtype that JAX has, without torch; CuPy by a fake module."""

import sys
import types

import ml_dtypes
import numpy as np
import pytest
import torch
from support import bits, child, patterns

import rustload

jax = pytest.importorskip("jax")

DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16", "float32", "complex64",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
WIDE = ("int64", "uint64", "float64", "complex128")


@pytest.fixture
def wide():
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("layout", ["whole", "transposed", "sliced", "scalar", "empty"])
@pytest.mark.parametrize("name", DTYPES + WIDE)
def test_every_dtype_is_bit_exact(save, name, layout):
    value = patterns(name, (6, 5))
    view = {
        "whole": value,
        "transposed": value.t(),
        "sliced": value[1:5, ::2],
        "scalar": value[2, 3],
        "empty": value[:0],
    }[layout]
    array = rustload.open(save({"x": view}), framework="jax")["x"].materialize()
    assert isinstance(array, jax.Array)
    assert array.dtype == np.dtype(getattr(ml_dtypes, name, name))
    assert array.shape == tuple(view.shape)
    assert np.asarray(array).tobytes() == bits(view)


@pytest.mark.parametrize("name", WIDE)
def test_64_bit_dtypes_are_refused_if_jax_is_set_to_32_bits(save, name):
    lazy = rustload.open(save({"x": patterns(name, (3,))}), framework="jax")["x"]
    with pytest.raises(
        rustload.UnsupportedError, match=f"'x' is {name}, and JAX is set to 32 bits"
    ) as caught:
        lazy.materialize()
    assert "jax_enable_x64" in caught.value.__notes__[0]


def test_casts_and_transposes(simple):
    lazy = rustload.open(simple, framework="jax")["w"]
    array = lazy.materialize(dtype="bfloat16", transpose=True)
    assert (str(array.dtype), array.shape) == ("bfloat16", (6, 4))
    np.testing.assert_array_equal(
        np.asarray(array, dtype=np.float32), np.arange(24, dtype=np.float32).reshape(4, 6).T
    )
    assert lazy.materialize(dtype=jax.numpy.float16).dtype == np.float16
    assert lazy[1:3, 0].materialize().tolist() == [6.0, 12.0]


def test_devices_are_those_of_jax(simple):
    lazy = rustload.open(simple)["w"]
    device = jax.devices("cpu")[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    for given in (device, "cpu", "cpu:0", sharding, None):
        assert lazy.materialize(given, framework="jax").devices() == {device}
    for given in ("cpu:99", "nonsense", "tpu:x"):
        with pytest.raises(rustload.DeviceError, match="JAX has no device"):
            lazy.materialize(given, framework="jax")


def test_devices_are_those_of_this_process(simple, monkeypatch):
    """`jax.devices` has those of all processes, the first process's first."""
    monkeypatch.setattr(jax, "devices", lambda *_: ["another process's"])
    lazy = rustload.open(simple, framework="jax")["w"]
    for given in (None, "cpu", "cpu:0"):
        assert lazy.materialize(given).devices() == set(jax.local_devices())


def test_the_default_device_is_the_one_that_jax_is_set_to(monkeypatch):
    from rustload._frameworks import jax as adapter

    client = types.SimpleNamespace(platform_version="cuda 12090")
    gpu = types.SimpleNamespace(platform="gpu", local_hardware_id=3, client=client)
    (cpu,), local = jax.devices("cpu"), jax.local_devices
    monkeypatch.setattr(jax, "Device", (types.SimpleNamespace, jax.Device))
    monkeypatch.setattr(
        jax, "local_devices", lambda backend=None: local(backend=backend) if backend else [gpu]
    )
    assert adapter.gpu_for(None).index == 3
    for default in (cpu, "cpu"):
        with jax.default_device(default):
            assert adapter.gpu_for(None) is None
            assert adapter.gpu_for(gpu).index == 3


def test_a_view_is_zero_copy_if_jax_accepts_the_memory(simple, save):
    lazy = rustload.open(simple, framework="jax")["w"]
    assert lazy.materialize(copy=False).shape == (4, 6)
    with pytest.raises(BufferError, match="without a copy"):
        lazy[1:].materialize(copy=False)
    owned = rustload.open(save({"w": torch.ones(64)}, "b.bin"), framework="jax")["w"].materialize(copy=True)
    (simple.parent / "b.bin").write_bytes(b"")
    assert owned.sum() == 64


def test_arrays_outlive_checkpoint_and_file(save, collect):
    path = save({"w": torch.arange(100_000, dtype=torch.float32)})
    array = rustload.open(path, framework="jax")["w"].materialize()
    collect()
    path.unlink()
    np.testing.assert_array_equal(np.asarray(array), np.arange(100_000, dtype=np.float32))


def test_out_refuses_a_jax_array(simple):
    with pytest.raises(TypeError, match="cannot be written to"):
        rustload.open(simple)["w"].materialize(out=jax.numpy.zeros((4, 6)))


def test_a_checkpoint_becomes_a_pytree(save):
    import rustload.jax

    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    state = {
        "layers.0.kernel": weight,
        "layers.1.kernel": weight,
        "layers.1.bias": torch.ones(2),
        "n": torch.tensor([1], dtype=torch.int32),
    }
    path = save({"params": state})
    tree = rustload.jax.load(path, key="params", dtype="bf16", transpose={"*.kernel": True})
    shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)
    kernel = ((3, 2), "bfloat16")
    assert shapes == {
        "layers": {"0": {"kernel": kernel}, "1": {"kernel": kernel, "bias": ((2,), "bfloat16")}},
        "n": ((1,), "int32"),
    }
    assert tree["layers"]["0"]["kernel"] is tree["layers"]["1"]["kernel"]  # tied in the file
    flat = rustload.jax.load(
        rustload.open(path), key="params", nested=False, strip="layers", rename={"n": None}
    )
    assert list(flat) == ["0.kernel", "1.kernel", "1.bias"]


def test_a_name_that_is_a_value_and_a_prefix_is_a_value_error():
    from rustload.jax import unflatten

    assert unflatten({"a.b": 1, "a.c.d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert unflatten({"a/b": {}}, separator="/") == {"a": {"b": {}}}
    for names in (("a", "a.b"), ("a.b", "a"), ("a.b.c", "a.b")):
        with pytest.raises(ValueError, match="inside"):
            unflatten(dict.fromkeys(names, 1))
    with pytest.raises(ValueError, match="inside"):
        unflatten({"a": {}, "a.b": 1})


def test_jax_reads_bin_files_without_torch(save):
    names = ("float32", "float16", "bfloat16", "int64", "bool", "float8_e4m3fn", "float8_e5m2", "complex64")
    values = {name: patterns(name, (7, 3), seed=5) for name in names}
    golden = {name: bits(value).hex() for name, value in values.items()}
    for path in (save(values), save(values, "old.bin", _use_new_zipfile_serialization=False)):
        code = """
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")
        sys.meta_path.insert(0, Absent())
        import jax, numpy, rustload, rustload.jax
        jax.config.update("jax_enable_x64", True)
        arrays = rustload.jax.load(sys.argv[1])
        for name, array in arrays.items():
            assert isinstance(array, jax.Array)
            print(name, array.dtype, numpy.asarray(array).tobytes().hex())
        handle = rustload.open(sys.argv[1], framework="jax")["float32"]
        assert numpy.asarray(jax.numpy.asarray(handle.materialize().T)).shape == (3, 7)
        assert "torch" not in sys.modules
        """
        lines = [line.split() for line in child(code, path).stdout.splitlines()]
        assert {name: (dtype, text) for name, dtype, text in lines} == {
            name: (name, text) for name, text in golden.items()
        }


def test_the_error_for_a_missing_jax_has_the_pip_command(simple):
    code = """
    import sys
    sys.modules["jax"] = None
    import rustload
    try:
        rustload.open(sys.argv[1], framework="jax")["w"].materialize()
    except ImportError as error:
        print(error)
    """
    assert child(code, simple).stdout == "framework 'jax' needs jax: pip install jax\n"


# CuPy needs a GPU; a fake module with its API stands in for it.


class FakeArray:
    def __init__(self, array, device):
        self.array, self.device = array, device
        self.dtype, self.shape = array.dtype, array.shape

    def __setitem__(self, key, value):
        self.array[key] = value.array


class FakeDevice:
    current = 0

    def __init__(self, number=None):
        self.id = FakeDevice.current if number is None else number

    def __enter__(self):
        self.before, FakeDevice.current = FakeDevice.current, self.id

    def __exit__(self, *_error):
        FakeDevice.current = self.before


def asarray(array):
    if array.dtype.name.startswith("float8"):
        raise ValueError("Unsupported dtype")
    return FakeArray(array.copy(), FakeDevice())


@pytest.fixture
def cupy(monkeypatch):
    if "cupy" in sys.modules:
        pytest.skip("the real CuPy is loaded")
    fake = types.ModuleType("cupy")
    fake.ndarray, fake.asarray = FakeArray, asarray
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 2)
    fake.waited_on = []  # the devices whose stream was waited for
    stream = types.SimpleNamespace(synchronize=lambda: fake.waited_on.append(FakeDevice.current))
    fake.cuda = types.SimpleNamespace(Device=FakeDevice, runtime=runtime, get_current_stream=lambda: stream)
    FakeArray.__module__ = "cupy"
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "rustload._frameworks.cupy", raising=False)
    monkeypatch.setattr("rustload._frameworks.adapters._ADAPTERS", {})
    yield fake
    sys.modules.pop("rustload._frameworks.cupy", None)
    vars(sys.modules["rustload._frameworks"]).pop("cupy", None)


@pytest.mark.usefixtures("cupy")
def test_cupy_arrays_are_on_the_requested_device(simple):
    lazy = rustload.open(simple, framework="cupy")["w"]
    for given, number in ((None, 0), ("cuda", 0), ("cuda:1", 1), (1, 1), ("1", 1), (FakeDevice(1), 1)):
        array = lazy.materialize(given, "float16", transpose=True)
        assert (array.device.id, array.dtype, array.shape) == (number, np.float16, (6, 4))
    assert FakeDevice.current == 0
    for given in ("cpu", "cuda:2", "cuda:x"):
        with pytest.raises(rustload.DeviceError):
            lazy.materialize(given)
    with pytest.raises(BufferError, match="copy=False is not possible"):
        lazy.materialize(copy=False)
    with pytest.raises(rustload.UnsupportedError, match="CuPy has no float8_e5m2"):
        lazy.materialize(dtype="float8_e5m2")


def test_out_fills_a_cupy_array(simple, cupy):
    out = FakeArray(np.zeros((4, 6), np.float64), FakeDevice(1))
    assert rustload.open(simple)["w"].materialize(out=out, sync=False) is out
    assert cupy.waited_on == []
    assert rustload.open(simple)["w"].materialize(out=out) is out
    assert cupy.waited_on == [1]
    np.testing.assert_array_equal(out.array, np.arange(24.0).reshape(4, 6))
    with pytest.raises(ValueError, match="shape"):
        rustload.open(simple)["w"].materialize(out=FakeArray(np.zeros(3), FakeDevice()))


SHARDED = """
    import sys

    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding

    from ranged import Ranges
    import rustload
    import rustload.jax

    assert len(jax.devices()) == 8
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    specs = {"rows": P("x"), "columns": P(None, "y"), "both": P("x", "y"), "one": P(("x", "y")), "copied": P()}
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    for path in sys.argv[1:]:
        whole = {name: lazy.numpy() for name, lazy in rustload.open(path, framework="numpy").items()}
        for sharding in shardings.values():
            loaded = rustload.jax.load(path, shardings=sharding, dtype="bfloat16", nested=False)
            for name, array in loaded.items():
                expected = jax.device_put(whole[name].astype(jax.numpy.bfloat16), sharding)
                assert array.sharding == sharding and array.dtype == expected.dtype
                for one, two in zip(array.addressable_shards, expected.addressable_shards, strict=True):
                    assert one.device == two.device and one.index == two.index
                    assert np.array_equal(one.data, two.data)
        # A sharding for each tensor, by name or pattern, nested or by a callable; transposes come first.
        rule = {"layers": {"w": shardings["rows"]}, "v*": shardings["columns"]}
        nested = rustload.jax.load(path, shardings=rule, transpose={"*w": True})
        assert nested["layers"]["w"].sharding == shardings["rows"]
        assert np.array_equal(nested["layers"]["w"], whole["layers.w"].T)
        assert nested["v"].sharding == shardings["columns"]
        if "tied" in whole:
            equal = rustload.jax.load(path, shardings=shardings["rows"])
            assert equal["tied"] is equal["v"]
        by_call = rustload.jax.load(path, shardings=lambda lazy: shardings["both"] if lazy.ndim == 2 else None)
        assert by_call["layers"]["w"].sharding == shardings["both"]
        # Each element is read once, though two columns of devices hold it.
        source = Ranges(open(path, "rb").read())
        opened = rustload.open(source)
        before = source.nbytes
        rustload.jax.load(opened, shardings=shardings["rows"])
        nbytes = sum(one.nbytes for name, one in whole.items() if name != "tied")
        assert source.nbytes - before <= 1.05 * nbytes + (len(whole) << 16), (source.nbytes, before, nbytes)
    for wrong, kind in (("x", TypeError), ({"v": 3}, TypeError)):
        try:
            rustload.jax.load(path, shardings=wrong)
        except kind as error:
            assert "not a jax.sharding.Sharding" in str(error)
        else:
            raise AssertionError(wrong)
    try:
        rustload.jax.load(path, shardings=shardings["rows"], copy=False)
    except BufferError:
        pass
    else:
        raise AssertionError("copy=False")
"""


def test_shards_are_those_of_device_put_and_each_element_is_read_once(save):
    tensors = {"layers.w": patterns("float16", (64, 128)).nan_to_num(0), "v": torch.randn(512, 256)}
    paths = [
        save(tensors | {"tied": tensors["v"]}, "m.bin"),
        save(tensors, "legacy.bin", _use_new_zipfile_serialization=False),
        save(tensors, "m.safetensors"),
    ]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = child(SHARDED, *paths, env=flags, check=False)  # on a busy machine, XLA logs waits to stderr
    assert done.returncode == 0, done.stderr


def test_a_sharding_for_no_tensor_is_a_warning(tmp_path):
    import rustload.jax

    torch.save({"a": {"w": torch.ones(2), "v": torch.ones(2)}}, tmp_path / "m.pt")
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.warns(
        rustload.RustloadWarning, match=r"shardings= has 'nope\*', which matches no name, nor do 1"
    ):
        rustload.jax.load(tmp_path / "m.pt", shardings={"nope*": one, "a": {"w": one, "u": None}})
    for used in ({"a.*": one}, {"a": {"w": one}}, {"w": one}, {"a.v": one}):  # of the file, and of the result
        rustload.jax.load(tmp_path / "m.pt", shardings=used, key="a" if "w" in used else None)


def test_a_sharding_that_does_not_divide_a_tensor_names_it(tmp_path):
    import rustload.jax

    torch.save({"w": torch.ones(2, 3), "b": torch.ones(3)}, tmp_path / "m.pt")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
    of_matrices = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    ckpt = rustload.open(tmp_path / "m.pt", framework="jax")
    assert ckpt["w"].materialize(device=of_matrices).shape == (2, 3)
    text = r"P\('x', 'y'\) does not divide 'b', whose shape is \[3\]"
    for call in (
        lambda: ckpt["b"].materialize(device=of_matrices),
        lambda: rustload.jax.load(tmp_path / "m.pt", shardings=of_matrices),
        lambda: rustload.jax.load(tmp_path / "m.pt", device=of_matrices),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            call()
        assert "shardings={'*.weight': ...}" in caught.value.__notes__[0]


def test_all_64_bit_tensors_are_named_before_any_is_read(tmp_path):
    import rustload.jax

    torch.save({"w": torch.ones(2), "i": torch.arange(3), "j": torch.arange(2)}, tmp_path / "m.pt")
    with pytest.raises(rustload.UnsupportedError, match="'i' is int64, 1 more have 64 bits") as caught:
        rustload.jax.load(tmp_path / "m.pt")
    assert "dtype={'i': 'int32', 'j': 'int32'} casts them" in caught.value.__notes__[0]
    found = rustload.jax.load(tmp_path / "m.pt", dtype={"i": "int32", "j": "int32"})
    assert {one.dtype.name for one in found.values()} == {"float32", "int32"}


def test_jax_converts_a_lazy_tensor(simple):
    for framework in (None, "jax"):
        lazy = rustload.open(simple, framework=framework)["w"]
        made = jax.numpy.asarray(lazy)
        assert made.dtype.name == lazy.dtype
        assert made.tobytes() == lazy.bytes()
    with pytest.raises(AttributeError) as caught:
        _ = lazy.jax
    assert "materialize(framework='jax')" in caught.value.__notes__[0]
