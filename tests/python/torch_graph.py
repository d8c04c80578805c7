"""Compares the object graphs that torch and rustload load from one file: types, identity, ties, strides, values."""

import struct
from collections import Counter, OrderedDict
from typing import Any

import torch
from support import bits

CONTAINERS = (dict, OrderedDict, Counter, list, tuple, torch.Size)
LAYOUTS = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_coo: ("_indices", "_values"),
}


def assert_same_graph(found: Any, expected: Any, *, values: bool = True) -> int:
    """Fails where two graphs differ; returns how many tensors they have.

    Args:
        found: What rustload loaded.
        expected: What torch loaded.
        values: Whether tensors have data to compare.
    """
    walk = Walk(values=values)
    todo = [(found, expected, "root")]
    while todo:
        todo.extend(walk.compare(*todo.pop()))
    return walk.tensors


class Walk:
    def __init__(self, *, values: bool) -> None:
        self.values = values
        self.tensors = 0
        # Objects and storages must correspond one to one, in both directions.
        self.objects: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.storages: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.kept: list[Any] = []  # keeps the objects alive, so that no id is reused

    def pair(self, table: tuple[dict[int, int], dict[int, int]], first: int, second: int, at: str) -> bool:
        """Records that two objects correspond; returns whether the pair is new."""
        new = first not in table[0] and second not in table[1]
        assert table[0].setdefault(first, second) == second, f"{at}: shared in one graph only"
        assert table[1].setdefault(second, first) == first, f"{at}: shared in one graph only"
        return new

    def compare(self, found: Any, expected: Any, at: str) -> list[tuple[Any, Any, str]]:
        assert type(found) is type(expected), f"{at}: {type(found)} is not {type(expected)}"
        is_empty = isinstance(expected, tuple) and not expected
        if isinstance(expected, (torch.Tensor, torch.storage.TypedStorage, *CONTAINERS)) and not is_empty:
            self.kept += [found, expected]
            if not self.pair(self.objects, id(found), id(expected), at):
                return []
        todo: list[tuple[Any, Any, str]] = []
        if isinstance(expected, torch.Tensor):
            todo = self.tensor(found, expected, at)
        elif isinstance(expected, torch.storage.TypedStorage):
            assert found.dtype == expected.dtype
            self.storage(found._untyped_storage, expected._untyped_storage, at)
            if self.values:
                assert bytes(found._untyped_storage) == bytes(expected._untyped_storage), at
        elif isinstance(expected, dict):
            assert len(found) == len(expected), at
            for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                todo += [
                    (ours, theirs, f"{at}.key{number}"),
                    (found[ours], expected[theirs], f"{at}[{theirs!r}]"),
                ]
        elif isinstance(expected, (list, tuple)):
            assert len(found) == len(expected), at
            todo = [
                (ours, theirs, f"{at}[{n}]")
                for n, (ours, theirs) in enumerate(zip(found, expected, strict=True))
            ]
        elif isinstance(expected, (float, complex)):
            plain = (expected.real, expected.imag)
            assert struct.pack("<2d", found.real, found.imag) == struct.pack("<2d", *plain), at
        else:
            assert found == expected, f"{at}: {found!r} is not {expected!r}"
        if hasattr(expected, "__dict__") and not isinstance(expected, (type, torch.storage.TypedStorage)):
            todo.append((vars(found), vars(expected), f"{at}.__dict__"))
        return todo

    def tensor(self, found: torch.Tensor, expected: torch.Tensor, at: str) -> list[tuple[Any, Any, str]]:
        self.tensors += 1
        for name in ("dtype", "device", "layout", "shape", "requires_grad", "is_quantized", "is_leaf"):
            assert getattr(found, name) == getattr(expected, name), (at, name)
        todo = [(found._backward_hooks, expected._backward_hooks, f"{at}._backward_hooks")]
        if expected.layout in LAYOUTS:
            if expected.layout == torch.sparse_coo:
                assert found.is_coalesced() == expected.is_coalesced(), at
            todo += [
                (getattr(found, name)(), getattr(expected, name)(), f"{at}.{name}")
                for name in LAYOUTS[expected.layout]
            ]
            return todo
        assert found.stride() == expected.stride(), at
        assert found.storage_offset() == expected.storage_offset(), at
        assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg()), at
        self.storage(found.untyped_storage(), expected.untyped_storage(), at)
        if expected.is_quantized:
            todo += [(quantizer(found), quantizer(expected), f"{at}.quantizer")]
            if self.values:
                assert torch.equal(found.dequantize(), expected.dequantize()), at
            return todo
        if self.values and expected.device.type != "meta":
            assert bits(found) == bits(expected), at
        return todo

    def storage(self, found: torch.UntypedStorage, expected: torch.UntypedStorage, at: str) -> None:
        assert found.nbytes() == expected.nbytes(), at
        assert found.device == expected.device, at
        if expected.nbytes() and expected.device.type != "meta":
            self.kept += [found, expected]
            self.pair(self.storages, found.data_ptr(), expected.data_ptr(), at)
        # torch creates a meta storage for each tied tensor, rustload one for all; the offset in the file is the same.
        offset = getattr(expected, "_checkpoint_offset", None)
        assert offset is None or found._checkpoint_offset == offset, at  # type: ignore[attr-defined]


def quantizer(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return (tensor.qscheme(), tensor.q_scale(), tensor.q_zero_point())
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return (tensor.qscheme(), scales.tolist(), zeros.tolist(), tensor.q_per_channel_axis())
