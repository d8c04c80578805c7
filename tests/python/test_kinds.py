"""Every kind of object that people save, in every container and pickle protocol, against `torch.load(weights_only=False)`.

Both graphs are walked, torch's of real objects and rustload's of inert ones. The tensors found must be the same: dtype, shape,
strides, offset, every bit, and which of them share a storage.
"""

import collections
import functools
import io
import itertools
import random
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import make_kinds
import numpy as np
import pytest
import torch
from support import bits, child

import rustload

# Legacy files that torch 2.13 writes and cannot read: it asks an untyped storage for its dtype, and sets a generator's state and
# builds nested tensors before their bytes are read. The zip file of the same object is the oracle for them.
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
# Kinds of which rustload has more tensors than torch's objects: arguments of calls that the results do not keep.
MORE_THAN_TORCH = {"generators", "jagged_tensor", "wrapper_subclass"}

Key = tuple[Any, ...]
Groups = list[collections.Counter[Key]]


def key_of(tensor: torch.Tensor) -> Key:
    """What must be equal besides the storage; strides and offset do not count for a tensor without elements."""
    grad, layout = tensor.requires_grad, None
    if tensor.numel():
        layout = (tensor.stride(), 0 if tensor.is_meta else tensor.storage_offset())
    head = (str(tensor.dtype), tuple(tensor.shape), layout, grad)
    if tensor.is_meta:
        return ("meta", *head)
    if "bits" in head[0] or "float4" in head[0]:
        # torch cannot copy tensors of these dtypes.
        tensor = tensor.view({1: torch.uint8, 2: torch.int16}[tensor.dtype.itemsize])
    return (*head, bits(tensor))


def by_storage(found: Iterable[tuple[Any, Key]]) -> Groups:
    """Groups tensors by their storage."""
    groups: dict[Any, collections.Counter[Key]] = collections.defaultdict(collections.Counter)
    for storage, key in found:
        groups[storage][key] += 1
    return list(groups.values())


# torch's side


def reachable(root: Any, children: Any) -> Iterator[Any]:
    """Every object that can be reached from the root, each once."""
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        obj = waiting.pop()
        if id(obj) not in seen:
            seen[id(obj)] = obj
            yield obj
            waiting.extend(children(obj))


def children_in_torch(obj: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(obj, (type, types.ModuleType, types.FunctionType, str, bytes, torch.TypedStorage)):
        return found
    if isinstance(obj, np.ma.MaskedArray):
        return found  # its bytes are in the pickle without an array of their own
    if isinstance(obj, collections.abc.Mapping):
        found += [*obj.keys(), *obj.values()]
    elif isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
        found += list(obj)
    elif isinstance(obj, np.ndarray) and obj.dtype == object:
        found += list(obj.flat)
    elif isinstance(obj, functools.partial):
        found += [obj.args, obj.keywords]
    elif isinstance(obj, types.MethodType):
        found.append(obj.__self__)
    elif isinstance(obj, BaseException):
        found.append(obj.args)
    elif isinstance(obj, (torch.Generator, np.random.RandomState)):
        found.append(obj.get_state())
    elif isinstance(obj, np.random.Generator):
        found.append(obj.bit_generator.state)
    for name in itertools.chain.from_iterable(getattr(cls, "__slots__", ()) for cls in type(obj).__mro__):
        if isinstance(name, str) and not name.startswith("__"):
            found.append(getattr(obj, name, None))
    found += list(getattr(obj, "__dict__", {}).values())
    if isinstance(obj, torch.Tensor):
        if obj.layout == torch.sparse_coo:
            found += [obj._indices(), obj._values()]
        elif obj.layout in (torch.sparse_csr, torch.sparse_bsr):
            found += [obj.crow_indices(), obj.col_indices(), obj.values()]
        elif obj.layout in (torch.sparse_csc, torch.sparse_bsc):
            found += [obj.ccol_indices(), obj.row_indices(), obj.values()]
        elif obj.is_nested and obj.layout == torch.strided:
            found += [obj.values(), obj._nested_tensor_size(), obj._nested_tensor_strides()]
            found.append(obj._nested_tensor_storage_offsets())
    return found


def tensors_of_torch(root: Any) -> Iterator[tuple[Any, Key]]:
    for obj in reachable(root, children_in_torch):
        if isinstance(obj, (torch.TypedStorage, torch.UntypedStorage)):
            untyped = obj._untyped_storage if isinstance(obj, torch.TypedStorage) else obj
            dtype = obj.dtype if isinstance(obj, torch.TypedStorage) else torch.uint8
            yield untyped._cdata, key_of(torch.empty(0, dtype=dtype).set_(untyped))  # type: ignore[call-overload]  # untyped
        elif (
            isinstance(obj, np.ndarray)
            and obj.dtype.kind in "biufc"
            and not isinstance(obj, np.ma.MaskedArray)
        ):
            native = np.array(obj, dtype=obj.dtype.newbyteorder("="), order="K", copy=True)
            tensor = torch.from_numpy(native)
            if native.ndim and native.size:
                strides = [stride // native.itemsize for stride in native.strides]
                assert list(tensor.stride()) == strides
            yield ("array", id(obj)), key_of(tensor)
        elif (
            isinstance(obj, torch.Tensor) and type(obj).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        ):
            if (
                isinstance(obj, torch.nn.UninitializedParameter)
                or obj.layout != torch.strided
                or obj.is_nested
            ):
                continue  # it has no elements of its own
            yield obj.untyped_storage()._cdata, quantized_key(obj) if obj.is_quantized else key_of(obj)


def quantized_key(obj: torch.Tensor) -> Key:
    if obj.qscheme() == torch.per_tensor_affine:
        scale: Any = (obj.q_scale(), obj.q_zero_point(), None)
    else:
        scales, zeros = obj.q_per_channel_scales(), obj.q_per_channel_zero_points()
        scale = (scales.tolist(), zeros.tolist(), obj.q_per_channel_axis())
    ints = obj.int_repr()
    data = bytes(obj.untyped_storage().tolist()) if obj.dtype == torch.quint4x2 else bits(ints)
    return (
        "quantized",
        str(obj.dtype),
        tuple(obj.shape),
        obj.stride(),
        str(obj.qscheme()),
        repr(scale),
        data,
    )


# rustload's side


def children_in_rustload(obj: Any) -> list[Any]:
    if isinstance(obj, collections.abc.Mapping):
        return [*obj.keys(), *obj.values()]
    if isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
        return list(obj)
    if isinstance(obj, rustload.Opaque):
        return [obj.args, obj.kwargs, obj.state, obj.items, obj.appended, obj.function]
    if isinstance(obj, rustload.Sparse):
        return list(obj.parts.values())
    return []


def tensors_of_rustload(ckpt: rustload.Checkpoint) -> Iterator[tuple[Any, Key]]:
    """All tensors: those of the tree, and the attributes of tensors, which only names lead to."""
    seen = set()
    in_tree = (
        obj for obj in reachable(ckpt.objects, children_in_rustload) if isinstance(obj, rustload.LazyTensor)
    )
    for obj in itertools.chain(in_tree, ckpt.values()):
        identity = obj._core.id
        if identity in seen or is_scale(ckpt, obj):
            continue
        seen.add(identity)
        quantization = obj.quantization
        if quantization is None:
            tensor = obj.materialize(framework="torch")
            dtype, shape, *_, data = key_of(tensor)[tensor.is_meta :]
            layout = (obj.strides, obj._core.offset) if obj.size else None
            key = (dtype, shape, layout, obj.requires_grad)
            yield obj._core.storage, ("meta", *key) if obj.is_meta else (*key, data)
            continue
        scale, zero = (
            value.materialize().tolist() if isinstance(value, rustload.LazyTensor) else value
            for value in (quantization.scale, quantization.zero_point)
        )
        shape, strides, _ = quantization.packed or (obj.shape, obj.strides, 0)
        how = repr((scale, zero, quantization.axis))
        names = (f"torch.{quantization.dtype}", shape, strides, f"torch.{quantization.scheme}")
        yield obj._core.storage, ("quantized", *names, how, obj.bytes())


def is_scale(ckpt: rustload.Checkpoint, obj: rustload.LazyTensor) -> bool:
    """Whether it is a scale or zero point of a quantized tensor, which torch does not list as a tensor."""
    parent, _, part = obj.name.rpartition(".")
    name = parent or ("tensor" if part in ("scale", "zero_point") else "")
    return part in ("scale", "zero_point") and name in ckpt and ckpt[name].quantization is not None


def load(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(data), weights_only=False)


protocols = pytest.mark.parametrize("protocol", [2, 3, 4, 5])
containers = pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])


def test_there_are_at_least_63_kinds():
    assert len(make_kinds.KINDS) >= 63


@protocols
@containers
@pytest.mark.parametrize("name", make_kinds.KINDS)
@pytest.mark.filterwarnings("ignore")
def test_every_tensor_of_a_kind_is_found_and_equal(name, zip_format, protocol):
    data = make_kinds.saved(name, zip_format=zip_format, protocol=protocol)
    oracle = data
    if not zip_format and name in ONLY_ZIP_LOADS:
        oracle = make_kinds.saved(name, protocol=protocol)
    want = by_storage(tensors_of_torch(load(oracle)))
    ckpt = rustload.open(data, framework="torch")
    found = by_storage(tensors_of_rustload(ckpt))
    if name in MORE_THAN_TORCH:
        for group in want:
            match = next((other for other in found if group <= other), None)
            assert match is not None, (group, found)
            found.remove(match)
    else:
        by_content = functools.partial(sorted, key=lambda group: sorted(map(repr, group.elements())))
        assert by_content(found) == by_content(want)


@pytest.mark.filterwarnings("ignore")
def test_reading_any_kind_imports_nothing(tmp_path):
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
        own = {"collections", "copy", "rustload._frameworks.dlpack"}
        own |= {"rustload._tensor.inert", "rustload._tensor.deep_copy"}
        assert set(sys.modules) - before <= own, set(sys.modules) - before - own
    """
    child(code, tmp_path)
