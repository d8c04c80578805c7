"""Every dtype in every layout from every container: bits and strides equal those that torch and safetensors read."""

import ml_dtypes
import numpy as np
import pytest
import safetensors
import torch
from support import DTYPES, IN_SAFETENSORS, assert_same_bits, bits, patterns

import rustload

# torch warns of complex32 whenever it makes one.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

ALL_DTYPES = (*DTYPES, "complex32")
# The dtypes that NumPy has by itself or with ml_dtypes, whether or not ml_dtypes was imported before.
IN_NUMPY = ALL_DTYPES if hasattr(ml_dtypes, "complex32") else DTYPES


def tensors(name: str) -> dict[str, torch.Tensor]:
    base = patterns(name, (4, 5, 6), seed=1)
    shared = patterns(name, (6, 7), seed=2)
    return {
        "contiguous": patterns(name, (3, 4, 5)),
        "transposed": base.transpose(0, 2),
        "permuted": base.permute(1, 2, 0),
        "sliced": base[1:, ::2, 1:4],
        "expanded": base[:1].expand(7, 5, 6),
        "overlapping": base.reshape(-1).as_strided((5, 4), (2, 1), 3),
        "zero_d": base[2, 3, 4],
        "empty": base[:, 2:2],
        "empty_transposed": base[:0].permute(2, 0, 1),
        "shared_whole": shared,
        "shared_row": shared[3],
        "shared_tail": shared[2:].t(),
        "parameter": torch.nn.Parameter(
            patterns(name, (5, 3), seed=3), requires_grad=name in ("float32", "bfloat16", "complex64")
        ),
    }


@pytest.fixture(scope="module", params=ALL_DTYPES)
def files(request, tmp_path_factory):
    """For one dtype: the .bin and what torch reads from it, the .safetensors (or None) and what safetensors reads from it."""
    import safetensors.torch

    folder = tmp_path_factory.mktemp(request.param)
    state = tensors(request.param)
    torch.save(state, folder / "model.bin")
    as_torch = torch.load(folder / "model.bin", weights_only=True)
    if request.param not in IN_SAFETENSORS:
        return request.param, folder / "model.bin", as_torch, None, None
    plain = {key: value.detach().contiguous().clone() for key, value in state.items()}
    safetensors.torch.save_file(plain, folder / "model.safetensors")
    as_plain = safetensors.torch.load_file(folder / "model.safetensors")
    return request.param, folder / "model.bin", as_torch, folder / "model.safetensors", as_plain


def strides_that_matter(shape, strides):
    """Strides without those that no element depends on: those of dimensions of size 1 and of empty tensors."""
    return [] if 0 in shape else [stride for size, stride in zip(shape, strides, strict=True) if size > 1]


def test_a_handles_metadata_equals_torch_loads(files):
    name, bin_path, as_torch, *_ = files
    ckpt = rustload.open(bin_path)
    for layout, expected in as_torch.items():
        lazy = ckpt[layout]
        assert lazy.name == layout
        assert lazy.path == (layout,)
        assert lazy.dtype == name == str(expected.dtype).removeprefix("torch.")
        assert lazy.shape == tuple(expected.shape)
        assert lazy.strides == expected.stride()
        assert lazy.ndim == expected.ndim
        assert lazy.size == expected.numel()
        assert lazy.nbytes == expected.nbytes
        assert lazy.is_contiguous == expected.is_contiguous()
        assert lazy.requires_grad == expected.requires_grad
        assert lazy.is_parameter == isinstance(expected, torch.nn.Parameter)


def test_a_torch_view_has_torch_loads_bits_strides_and_offset(files):
    _, bin_path, as_torch, *_ = files
    ckpt = rustload.open(bin_path, framework="torch")
    for layout, expected in as_torch.items():
        found = ckpt[layout].materialize()
        assert type(found) is torch.Tensor
        assert_same_bits(found, expected)
        assert found.stride() == expected.stride()
        if expected.numel():
            assert found.storage_offset() == expected.storage_offset(), layout
            assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_an_owned_torch_result_has_torch_loads_bits_and_is_contiguous(files):
    _, bin_path, as_torch, *_ = files
    ckpt = rustload.open(bin_path, framework="torch")
    for layout, expected in as_torch.items():
        found = ckpt[layout].materialize(copy=True)
        assert_same_bits(found, expected)
        assert found.is_contiguous(), layout


@pytest.mark.parametrize("copy", [None, True])
def test_a_numpy_result_has_torch_loads_bits_and_strides(files, copy):
    name, bin_path, as_torch, *_ = files
    ckpt = rustload.open(bin_path, framework="numpy")
    for layout, expected in as_torch.items():
        if name not in IN_NUMPY:
            with pytest.raises(rustload.UnsupportedError, match=name):
                ckpt[layout].materialize(copy=copy)
            continue
        found = ckpt[layout].materialize(copy=copy)
        assert type(found) is np.ndarray
        assert found.dtype.name == name
        assert found.shape == tuple(expected.shape)
        assert found.tobytes() == bits(expected), layout
        assert copy is None or found.flags.writeable  # a view is read-only
        strides = [stride // found.itemsize for stride in found.strides]
        wanted = expected.stride() if copy is None else expected.contiguous().stride()
        assert strides_that_matter(found.shape, strides) == strides_that_matter(expected.shape, wanted), (
            layout
        )


@pytest.mark.parametrize("copy", [None, True])
def test_a_dlpack_result_has_torch_loads_bits_and_strides(files, copy):
    name, bin_path, as_torch, *_ = files
    ckpt = rustload.open(bin_path, framework="dlpack")
    for layout, expected in as_torch.items():
        found = ckpt[layout].materialize(copy=copy)
        assert type(found) is rustload.Buffer
        assert (found.dtype, found.shape, found.nbytes) == (name, tuple(expected.shape), expected.nbytes)
        tensor = torch.from_dlpack(found)
        assert_same_bits(tensor, expected)
        wanted = expected.stride() if copy is None else expected.contiguous().stride()
        assert strides_that_matter(tensor.shape, tensor.stride()) == strides_that_matter(
            expected.shape, wanted
        ), layout


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("copy", [None, True])
def test_safetensors_tensors_equal_the_references(files, framework, copy):
    name, _, _, path, expected = files
    if path is None:
        pytest.skip(f"safetensors' Python package does not write {name}")
    ckpt = rustload.open(path, framework=framework)
    with safetensors.safe_open(path, framework="pt") as reference:
        assert sorted(ckpt) == sorted(reference.keys())
        # Empty tensors have the offset of their neighbours; the reference orders equal offsets at random.
        in_order = [key for key in reference.offset_keys() if expected[key].numel()]
    assert [key for key in ckpt if expected[key].numel()] == in_order
    for key, tensor in expected.items():
        assert ckpt[key].dtype == name
        found = ckpt[key].materialize(copy=copy)
        assert tuple(found.shape) == tuple(tensor.shape)
        if framework == "numpy":
            assert found.tobytes() == bits(tensor)
        else:
            assert_same_bits(found if framework == "torch" else torch.from_dlpack(found), tensor)


def test_bytes_are_the_elements_in_c_order(files):
    _, bin_path, as_torch, *_ = files
    for key, lazy in rustload.open(bin_path).items():
        assert lazy.bytes() == bits(as_torch[key]), key


def test_a_checkpoint_in_memory_has_the_same_bits(files):
    _, bin_path, as_torch, *_ = files
    ckpt = rustload.open(bytearray(bin_path.read_bytes()), framework="torch")
    for key, lazy in ckpt.items():
        assert_same_bits(lazy.materialize(), as_torch[key])


def test_lazy_conjugates_and_negatives_are_resolved_as_in_torch(save):
    z = patterns("complex64", (4, 5), seed=9)
    z = torch.where(z.isnan(), torch.ones_like(z), z)
    path = save({"conj": z.conj(), "neg": z.clone().conj().imag, "part": z.conj()[1:, ::2].t()})
    expected = torch.load(path, weights_only=True)
    ckpt = rustload.open(path, framework="torch")
    for key in expected:
        assert_same_bits(ckpt[key].materialize(), expected[key].resolve_conj().resolve_neg())
        with pytest.raises(BufferError):
            ckpt[key].materialize(copy=False)
