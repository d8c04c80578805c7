"""Kinds of objects that `torch.load(weights_only=True)` accepts; `rustload.torch.load` is compared on files of them."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from support import DTYPES, patterns

KINDS: dict[str, Callable[[], Any]] = {}


# Kinds that only the zip format can hold: a legacy file cannot name their storages.
ZIP_ONLY: dict[str, Callable[[], Any]] = {}


def zip_kind(make: Callable[[], Any]) -> Callable[[], Any]:
    ZIP_ONLY[make.__name__] = make
    return make


def kind(make: Callable[[], Any]) -> Callable[[], Any]:
    KINDS[make.__name__] = make
    return make


@kind
def state_dict() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    return model.state_dict()


@zip_kind
def every_dtype() -> Any:
    return {name: patterns(name, (3, 5)) for name in DTYPES}


@kind
def one_tensor() -> Any:
    return torch.arange(6.0).reshape(2, 3)


@kind
def no_tensor() -> Any:
    return {"epoch": 3, "loss": 0.5, "name": "x", "none": None, "flag": True}


@kind
def empty_tensors() -> Any:
    return [torch.zeros(0), torch.zeros(0, 3), torch.zeros(2, 0, dtype=torch.int8), torch.tensor(1.5)]


@kind
def strided_views() -> Any:
    base = torch.arange(120.0).reshape(2, 3, 4, 5)
    views = [base, base.permute(3, 0, 2, 1), base[:, 1:, ::2], base[1, 2, 3, 4], base.expand(2, 3, 4, 5)]
    return [*views, torch.ones(1).expand(4, 4), base[:, :, :0]]


@kind
def tied() -> Any:
    weight = torch.randn(3, 4)
    return {"a": weight, "b": weight, "t": weight.t(), "row": weight[1], "part": weight[:, 1::2]}


@kind
def one_object_twice() -> Any:
    inner: dict[str, Any] = {"w": torch.ones(2)}
    row = [inner, 1]
    return {"a": inner, "b": row, "c": row, "d": (inner, row)}


@kind
def contains_itself() -> Any:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    around: dict[str, Any] = {"loop": loop}
    around["self"] = around
    return around


@kind
def parameters() -> Any:
    weight = torch.nn.Parameter(torch.randn(2, 2))
    frozen = torch.nn.Parameter(torch.arange(3), requires_grad=False)
    return {"w": weight, "again": weight, "frozen": frozen, "data": weight.data}


@kind
def requires_grad() -> Any:
    return [torch.ones(2, requires_grad=True), torch.ones(2)]


@kind
def conjugates_and_negatives() -> Any:
    z = torch.randn(3, 2, dtype=torch.complex64)
    neg = torch.randn(3, dtype=torch.complex128).conj().imag
    return {"z": z, "conj": z.conj(), "neg": neg, "both": torch._neg_view(z.conj())}


@kind
def optimizer() -> Any:
    model = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    return {"model": model.state_dict(), "optimizer": adam.state_dict(), "epoch": 1}


@kind
def ordered_with_attributes() -> Any:
    found = OrderedDict([("a", 1), (2, torch.ones(1)), ((3, "x"), None)])
    found._metadata = OrderedDict([("", {"version": 2})])  # type: ignore[attr-defined]
    found.extra = [found]  # type: ignore[attr-defined]
    return found


@kind
def counter() -> Any:
    return Counter({"a": 3, "b": -1})


@kind
def sizes_and_tuples() -> Any:
    size = torch.Size([2, 3])
    return {"size": size, "again": size, "tuple": (2, 3), "empty": torch.Size([]), "none": ()}


@kind
def torch_values() -> Any:
    devices = [torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")]
    layouts = [torch.strided, torch.sparse_coo, torch.sparse_csr]
    schemes = [torch.per_tensor_affine, torch.per_channel_symmetric]
    return {
        "devices": devices,
        "layouts": layouts,
        "schemes": schemes,
        "dtypes": [torch.float32, torch.qint8],
    }


@kind
def dtypes_as_values() -> Any:
    return {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@kind
def numbers() -> Any:
    ints = [0, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**63, -(2**63), 2**200, True, False]
    floats = [0.0, -0.0, 1e300, float("inf"), float("-inf"), float("nan"), 5e-324]
    return {"ints": ints, "floats": floats, "complex": [1 + 2j, complex("nan"), -0j]}


@kind
def texts_and_bytes() -> Any:
    texts = ["", "a", "ä\n\0", "\U0001f600", "x" * 300, "\ud800"]
    return {"texts": texts, "bytes": [b"ab\xff\0", b"y" * 300], "arrays": [bytearray(), bytearray(b"ab\xff")]}


@kind
def sets() -> Any:
    return {"set": {1, 2, "a", (3, 4)}, "empty": set(), "nested": [{1}, {1}]}


@kind
def keys() -> Any:
    return {1: "a", "1": "b", 1.5: "c", None: "d", (1, 2): "e", False: "f", (None,): "g"}


@kind
def classes() -> Any:
    return [torch.Tensor, torch.Size, torch.device, torch.nn.Parameter, OrderedDict, Counter, set, complex]


@kind
def deep() -> Any:
    found: Any = torch.ones(1)
    for _ in range(50):
        found = {"x": [(found,)]}
    return found


@kind
def tensors_with_attributes() -> Any:
    plain = torch.arange(3.0)
    plain.tag = [1, plain.clone()]  # type: ignore[attr-defined]
    weight = torch.nn.Parameter(torch.ones(2))
    weight.names = {"w": weight.data}  # type: ignore[attr-defined]
    return {"plain": plain, "again": plain, "weight": weight}


@kind
def meta() -> Any:
    weight = torch.empty(4, 3, device="meta", dtype=torch.bfloat16)
    return [weight, weight.t(), torch.nn.Parameter(weight), torch.empty(2, device="meta", requires_grad=True)]


@kind
def quantized_per_tensor() -> Any:
    dtypes = (torch.qint8, torch.quint8, torch.qint32)
    tensors = [torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 2, dtype) for dtype in dtypes]
    first = tensors[0]
    return [*tensors, first, first.t(), tensors[1][1:], torch.nn.Parameter(first, requires_grad=False)]


@kind
def quantized_per_channel() -> Any:
    scales, zeros = torch.rand(4) + 0.1, torch.arange(4)
    weight = torch.quantize_per_channel(torch.randn(4, 6), scales, zeros, 0, torch.qint8)
    floats = torch.quantize_per_channel(torch.randn(2, 4), scales, zeros.float(), 1, torch.quint8)
    return {
        "w": weight,
        "f": floats,
        "row": torch.quantize_per_channel(torch.ones(4), scales, zeros, 0, torch.qint8),
    }


@kind
def quantized_to_four_bits() -> Any:
    scales, zeros = torch.rand(4) + 0.1, torch.zeros(4)
    return torch.quantize_per_channel(torch.randn(4, 6), scales, zeros, 0, torch.quint4x2)


@kind
def sparse_coo() -> Any:
    dense = torch.tensor([[0, 1.5, 0], [2, 0, 0]])
    loose = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 3))
    return [dense.to_sparse(), loose, loose.coalesce(), torch.nn.Parameter(dense.to_sparse())]


@kind
def sparse_compressed() -> Any:
    dense = torch.tensor([[0, 1.5, 0, 0], [2, 0, 0, 3]])
    csr = dense.to_sparse_csr()
    blocks = [dense.to_sparse_bsr((2, 2)), dense.to_sparse_bsc((1, 2))]
    return {"csr": csr, "again": csr, "csc": dense.to_sparse_csc(), "blocks": blocks}


@kind
def many_small() -> Any:
    return {f"t{n}": torch.arange(n % 7 + 1) for n in range(300)}


@kind
def small_and_large() -> Any:
    return {
        "a": torch.arange(10),
        "big": torch.arange(40_000.0),
        "b": torch.arange(11),
        "edge": torch.zeros(16_384),
    }


@zip_kind
def bare_storages() -> Any:
    typed = torch.storage.TypedStorage([1.0, 2.0], dtype=torch.float32, _internal=True)
    untyped = torch.arange(3, dtype=torch.uint8).untyped_storage()
    return {"typed": typed, "again": typed, "untyped": untyped, "empty": torch.UntypedStorage(0)}
