"""Every kind of object that people save, in every container and pickle protocol, against `torch.load(weights_only=False)`.

Both graphs are walked, torch's of real objects and rustload's of inert ones. The tensors found must be the same: dtype, shape,
strides, offset, every bit, and which of them share a storage.
"""

from __future__ import annotations

import collections
import functools
import io
import itertools
import random
import types
import warnings
from typing import TYPE_CHECKING, Any

import make_kinds
import numpy as np
import pytest
import torch
from support import bits, child

import rustload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Legacy files that torch 2.13 writes and cannot read: it asks an untyped storage for its dtype, sets a generator's state before
# its bytes are read, and puts nested tensors together before that too. The zip file of the same object says what is in them.
ONLY_ZIP_LOADS = {
    "bits_dtypes",
    "complex_dtypes",
    "fp4",
    "fp8_and_bytes_on_one_storage",
    "fp8_dtypes",
    "generators",
    "nested_tensor",
    "storages",
    "unsigned_dtypes",
}
# What rustload has beside what torch's objects still hold: arguments of calls whose results keep something else.
MORE_THAN_TORCH = {"generators", "jagged_tensor", "wrapper_subclass"}

Key = tuple[Any, ...]
Groups = list[collections.Counter[Key]]


def key_of(tensor: torch.Tensor) -> Key:
    """What must be equal of a tensor beside its storage; of one without elements, strides and offset mean nothing."""
    grad, place = tensor.requires_grad, None
    if tensor.numel():
        place = (tensor.stride(), 0 if tensor.is_meta else tensor.storage_offset())
    head = (str(tensor.dtype), tuple(tensor.shape), place, grad)
    if tensor.is_meta:
        return ("meta", *head)
    if "bits" in head[0] or "float4" in head[0]:
        # Of these, torch cannot make a copy.
        tensor = tensor.view({1: torch.uint8, 2: torch.int16}[tensor.dtype.itemsize])
    return (*head, bits(tensor))


def grouped(found: Iterable[tuple[Any, Key]]) -> Groups:
    """Tensors by storage."""
    groups: dict[Any, collections.Counter[Key]] = collections.defaultdict(collections.Counter)
    for storage, key in found:
        groups[storage][key] += 1
    return list(groups.values())


# torch's side


def graph(root: Any, inside: Any) -> Iterator[Any]:
    """Every object that can be reached, each once."""
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen[id(one)] = one
            yield one
            waiting.extend(inside(one))


def inside_torch(one: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(one, (type, types.ModuleType, types.FunctionType, str, bytes, torch.TypedStorage)):
        return found
    if isinstance(one, np.ma.MaskedArray):
        return found  # its bytes stand in the pickle without an array of their own
    if isinstance(one, collections.abc.Mapping):
        found += [*one.keys(), *one.values()]
    elif isinstance(one, (list, tuple, set, frozenset, collections.deque)):
        found += list(one)
    elif isinstance(one, np.ndarray) and one.dtype == object:
        found += list(one.flat)
    elif isinstance(one, functools.partial):
        found += [one.args, one.keywords]
    elif isinstance(one, types.MethodType):
        found.append(one.__self__)
    elif isinstance(one, BaseException):
        found.append(one.args)
    elif isinstance(one, (torch.Generator, np.random.RandomState)):
        found.append(one.get_state())
    elif isinstance(one, np.random.Generator):
        found.append(one.bit_generator.state)
    for name in itertools.chain.from_iterable(getattr(cls, "__slots__", ()) for cls in type(one).__mro__):
        if isinstance(name, str) and not name.startswith("__"):
            found.append(getattr(one, name, None))
    found += list(getattr(one, "__dict__", {}).values())
    if isinstance(one, torch.Tensor):
        if one.layout == torch.sparse_coo:
            found += [one._indices(), one._values()]
        elif one.layout in (torch.sparse_csr, torch.sparse_bsr):
            found += [one.crow_indices(), one.col_indices(), one.values()]
        elif one.layout in (torch.sparse_csc, torch.sparse_bsc):
            found += [one.ccol_indices(), one.row_indices(), one.values()]
        elif one.is_nested and one.layout == torch.strided:
            found += [one.values(), one._nested_tensor_size(), one._nested_tensor_strides()]
            found.append(one._nested_tensor_storage_offsets())
    return found


def in_torch(root: Any) -> Iterator[tuple[Any, Key]]:
    for one in graph(root, inside_torch):
        if isinstance(one, (torch.TypedStorage, torch.UntypedStorage)):
            untyped = one._untyped_storage if isinstance(one, torch.TypedStorage) else one
            dtype = one.dtype if isinstance(one, torch.TypedStorage) else torch.uint8
            yield untyped._cdata, key_of(torch.empty(0, dtype=dtype).set_(untyped))  # type: ignore[call-overload]  # untyped
        elif (
            isinstance(one, np.ndarray)
            and one.dtype.kind in "biufc"
            and not isinstance(one, np.ma.MaskedArray)
        ):
            native = np.array(one, dtype=one.dtype.newbyteorder("="), order="K", copy=True)
            made = torch.from_numpy(native)
            if native.ndim and native.size:
                strides = [stride // native.itemsize for stride in native.strides]
                assert list(made.stride()) == strides
            yield ("array", id(one)), key_of(made)
        elif (
            isinstance(one, torch.Tensor) and type(one).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        ):
            if (
                isinstance(one, torch.nn.UninitializedParameter)
                or one.layout != torch.strided
                or one.is_nested
            ):
                continue  # without elements of its own
            yield one.untyped_storage()._cdata, quantized_key(one) if one.is_quantized else key_of(one)


def quantized_key(one: torch.Tensor) -> Key:
    if one.qscheme() == torch.per_tensor_affine:
        scale: Any = (one.q_scale(), one.q_zero_point(), None)
    else:
        scales, zeros = one.q_per_channel_scales(), one.q_per_channel_zero_points()
        scale = (scales.tolist(), zeros.tolist(), one.q_per_channel_axis())
    ints = one.int_repr()
    data = bytes(one.untyped_storage().tolist()) if one.dtype == torch.quint4x2 else bits(ints)
    return (
        "quantized",
        str(one.dtype),
        tuple(one.shape),
        one.stride(),
        str(one.qscheme()),
        repr(scale),
        data,
    )


# rustload's side


def inside_ours(one: Any) -> list[Any]:
    if isinstance(one, collections.abc.Mapping):
        return [*one.keys(), *one.values()]
    if isinstance(one, (list, tuple, set, frozenset, collections.deque)):
        return list(one)
    if isinstance(one, rustload.Opaque):
        return [one.args, one.kwargs, one.state, one.items, one.appended, one.function]
    if isinstance(one, rustload.Sparse):
        return list(one.parts.values())
    return []


def ours(ckpt: rustload.Checkpoint) -> Iterator[tuple[Any, Key]]:
    """All tensors: those of the tree, and those on tensors that only names lead to."""
    seen = set()
    in_tree = (one for one in graph(ckpt.objects, inside_ours) if isinstance(one, rustload.LazyTensor))
    for one in itertools.chain(in_tree, ckpt.values()):
        place = one._core.id
        if place in seen or is_scale(ckpt, one):
            continue
        seen.add(place)
        quantization = one.quantization
        if quantization is None:
            made = one.materialize(framework="torch")
            dtype, shape, *_, data = key_of(made)[made.is_meta :]
            place = (one.strides, one._core.offset) if one.size else None
            key = (dtype, shape, place, one.requires_grad)
            yield one._core.storage, ("meta", *key) if one.is_meta else (*key, data)
            continue
        scale, zero = (
            value.materialize().tolist() if isinstance(value, rustload.LazyTensor) else value
            for value in (quantization.scale, quantization.zero_point)
        )
        shape, strides, _ = quantization.packed or (one.shape, one.strides, 0)
        how = repr((scale, zero, quantization.axis))
        names = (f"torch.{quantization.dtype}", shape, strides, f"torch.{quantization.scheme}")
        yield one._core.storage, ("quantized", *names, how, one.bytes())


def is_scale(ckpt: rustload.Checkpoint, one: rustload.LazyTensor) -> bool:
    """Whether it is a part of a quantized tensor, which torch does not show as a tensor of the file."""
    around, _, part = one.name.rpartition(".")
    name = around or ("tensor" if part in ("scale", "zero_point") else "")
    return part in ("scale", "zero_point") and name in ckpt and ckpt[name].quantization is not None


def load(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(data), weights_only=False)


protocols = pytest.mark.parametrize("protocol", [2, 3, 4, 5])
containers = pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])


def test_there_are_kinds_enough(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f" {len(make_kinds.KINDS)} kinds ", end="")  # noqa: T201 - how many there are is worth a look
    assert len(make_kinds.KINDS) >= 63


@protocols
@containers
@pytest.mark.parametrize("name", make_kinds.KINDS)
@pytest.mark.filterwarnings("ignore")
def test_every_tensor_of_a_kind_is_found_and_equal(name: str, zip_format: bool, protocol: int) -> None:
    data = make_kinds.saved(name, zip_format=zip_format, protocol=protocol)
    oracle = data
    if not zip_format and name in ONLY_ZIP_LOADS:
        oracle = make_kinds.saved(name, protocol=protocol)
    want = grouped(in_torch(load(oracle)))
    ckpt = rustload.open(data, framework="torch")
    found = grouped(ours(ckpt))
    if name in MORE_THAN_TORCH:
        for group in want:
            match = next((other for other in found if group <= other), None)
            assert match is not None, (group, found)
            found.remove(match)
    else:
        by_content = functools.partial(sorted, key=lambda group: sorted(map(repr, group.elements())))
        assert by_content(found) == by_content(want)


@pytest.mark.filterwarnings("ignore")
def test_nothing_of_any_kind_is_imported(tmp_path: Path) -> None:
    for name in make_kinds.KINDS:
        for zip_format in (True, False):
            data = make_kinds.saved(name, zip_format=zip_format, protocol=random.Random(name).choice([2, 4]))
            (tmp_path / f"{name}-{zip_format}.pt").write_bytes(data)
    code = """
        import pathlib, sys
        import rustload
        before = set(sys.modules)
        for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
            ckpt = rustload.open(path, framework="dlpack")
            ckpt.objects
            for t in ckpt.values():
                t.attributes, t.quantization
                if not t.is_meta:
                    t.bytes()
        own = {"collections", "copy", "rustload._frameworks.dlpack", "rustload._tensor.inert"}
        assert set(sys.modules) - before <= own, set(sys.modules) - before - own
    """
    child(code, tmp_path)
