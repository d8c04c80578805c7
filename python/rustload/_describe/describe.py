"""`describe`: what a checkpoint holds, as the document that `rustload info --json` prints."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, final

from rustload._checkpoint.nesting import NESTING_KEY
from rustload._checkpoint.opaque_class import OpaqueClass
from rustload._common.dtype_rows import DTYPE_ROWS
from rustload._common.json_values import Format, Positive, Signed
from rustload._common.sizes import same_tensor
from rustload._describe.needed import Needed
from rustload._scan.verdict import Verdict
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._tensor.handle import LazyTensor

# The most characters to show of a str.
TEXT_SHOWN_MAX_CHARS = 60

SCALARS = (type(None), bool, int, float, complex, str)
CONTAINERS = (dict, list, tuple, set, frozenset, deque, bytes, bytearray)


class DtypeSum(TypedDict):
    """The tensors of a dtype.

    Attributes:
        dtype: The dtype.
        tensors: Their number.
        nbytes: Their bytes.
    """

    dtype: str
    tensors: Positive
    nbytes: int


@final
class PlainValue(TypedDict):
    """A plain value at the top level of a pickle.

    Attributes:
        name: Its key.
        type: Its type in Python.
        value: The value; a string where JSON cannot represent it.
    """

    name: str
    type: str
    value: bool | float | str | None


@final
class ContainerValue(TypedDict):
    """A container at the top level of a pickle.

    Attributes:
        name: Its key.
        type: Its type in Python.
        length: Its length.
    """

    name: str
    type: str
    length: int


class DescribedTensor(TypedDict):
    """A tensor.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        shape: Its shape.
        strides: Its strides, in elements.
        nbytes: The bytes of its elements.
        storage: Two numbers that identify the storage: tied tensors have the same ones.
        storage_offset: Its first element in the storage, in elements.
        contiguous: Whether it is contiguous in row-major order.
        parameter: Whether it was saved as a `torch.nn.Parameter`.
        repeats: Whether an earlier name refers to the same tensor.
    """

    name: str
    dtype: str
    shape: list[int]
    strides: list[Signed]
    nbytes: int
    storage: tuple[int, int]
    storage_offset: int
    contiguous: bool
    parameter: bool
    repeats: bool


class QuantizedSum(TypedDict):
    """The weights in one quantization scheme.

    Attributes:
        scheme: The scheme, as `LazyTensor.scheme` names it.
        bits: The bits of a code.
        dtype: The dtype of the weights that they mean.
        weights: Their number.
        stored_nbytes: The bytes of codes, scales and what else belongs to them.
        nbytes: The bytes of the weights in their dtype.
    """

    scheme: str
    bits: int
    dtype: str
    weights: int
    stored_nbytes: int
    nbytes: int


class Scanned(TypedDict):
    """What a scan says of the files.

    Attributes:
        verdict: The worst verdict.
        names: What that is about: classes and functions, else the codes of findings.
    """

    verdict: Verdict
    names: list[str]


class Described(TypedDict):
    """A checkpoint.

    Attributes:
        path: As given; a URL without its secrets.
        format: The format.
        files: The files with tensors, in shard order.
        elements: Of all tensors that are counted; names of one and the same tensor count once.
        nbytes: The bytes of these tensors.
        storage_nbytes: The bytes of all storages with tensors.
        filter: With `--filter`: the pattern.
        tensors_in_all: With `--filter`: the number of tensors of the checkpoint.
        dtypes: The dtypes, the largest first.
        memory: With `--dtype`: the memory that the tensors take.
        scan: What unpickling the files would do; only in `rustload info`, of local files.
        quantized: The quantized weights, by scheme and dtype.
        tied: Groups of names that share a storage.
        values: The plain values and containers at the top level of a pickle.
        unread: The names of values of a distributed checkpoint that are not tensors, which are files of their own.
        opaque: The classes that are kept as data.
        globals: Every class and function that the pickles name.
        notes: What is unusual in the files, or could not be shown.
        metadata: The texts of the header.
        tensors: The tensors, in the order of the file.
    """

    path: str
    format: Format
    files: list[str]
    elements: int
    nbytes: int
    storage_nbytes: int
    filter: NotRequired[str]
    tensors_in_all: NotRequired[int]
    dtypes: list[DtypeSum]
    memory: NotRequired[Needed]
    scan: NotRequired[Scanned]
    quantized: list[QuantizedSum]
    tied: list[Annotated[list[str], {"minItems": 2}]]
    values: list[PlainValue | ContainerValue]
    unread: list[str]
    opaque: list[OpaqueClass]
    globals: list[str]
    notes: list[str]
    metadata: dict[str, str]
    tensors: list[DescribedTensor]


def describe(
    checkpoint: Checkpoint,
    path: str,
    chosen: Mapping[str, LazyTensor] | None = None,
    pattern: str | None = None,
) -> Described:
    """The entry of a checkpoint in the JSON document of `rustload info`; reads no tensor data.

    Its path is without secrets. With a pattern, only the tensors that it chose are counted and listed.
    """
    chosen = checkpoint if chosen is None else chosen
    described: list[DescribedTensor] = []
    dtypes: dict[str, DtypeSum] = {}
    identities: set[object] = set()
    elements = nbytes = 0
    for name, tensor in chosen.items():
        core = tensor._core
        identity = same_tensor(core)
        repeats = identity in identities and core.size > 0
        identities.add(identity)
        entry: DescribedTensor = {
            "name": name,
            "dtype": core.dtype,
            "shape": list(core.shape),
            "strides": list(core.strides),
            "nbytes": core.nbytes,
            "storage": core.storage,
            "storage_offset": core.offset,
            "contiguous": core.is_contiguous,
            "parameter": core.is_parameter,
            "repeats": repeats,
        }
        described.append(entry)
        if not repeats:
            seen = dtypes.setdefault(core.dtype, {"dtype": core.dtype, "tensors": 0, "nbytes": 0})
            seen["tensors"] += 1
            seen["nbytes"] += core.nbytes
            elements += core.size
            nbytes += core.nbytes
    values, notes = _values(checkpoint)
    quantized, more = _quantized(checkpoint, chosen)
    notes += more
    report: Described = {
        "path": path,
        "format": checkpoint.format,
        "files": checkpoint.files,
        "elements": elements,
        "nbytes": nbytes,
        "storage_nbytes": checkpoint.nbytes,
        "dtypes": sorted(dtypes.values(), key=lambda seen: -seen["nbytes"]),
        "quantized": quantized,
        "tied": [group for group in checkpoint.tied if any(name in chosen for name in group)],
        "values": values,
        "unread": [name for name, _ in checkpoint._core.saved_values()],
        "opaque": checkpoint.opaque,
        "globals": checkpoint.globals,
        "notes": checkpoint.notes + notes,
        "metadata": checkpoint.metadata,
        "tensors": described,
    }
    if pattern is not None:
        report["filter"], report["tensors_in_all"] = pattern, len(checkpoint)
    return report


def _quantized(
    checkpoint: Checkpoint, chosen: Mapping[str, LazyTensor]
) -> tuple[list[QuantizedSum], list[str]]:
    """The quantized weights by scheme, and a note on those that `dequantize=True` refuses."""
    try:
        weights = checkpoint._core.quantized_weights()
    except OSError as error:
        # Of the configuration beside a file in a store: a signed URL is that of the file alone.
        return [], [f"the quantized weights are not shown: {error}"]
    sums: dict[tuple[str, int, str], QuantizedSum] = {}
    known = set()
    for name, dtype, elements, (scheme, bits, stored, stored_nbytes) in weights:
        if name in chosen or stored[0] in chosen:
            empty: QuantizedSum = {
                "scheme": scheme,
                "bits": bits,
                "dtype": dtype,
                "weights": 0,
                "stored_nbytes": 0,
                "nbytes": 0,
            }
            seen = sums.setdefault((scheme, bits, dtype), empty)
            seen["weights"] += 1
            seen["stored_nbytes"] += stored_nbytes
            seen["nbytes"] += elements * DTYPE_ROWS[dtype].itemsize
            known.add(stored[0])
    codes = (name for name, one in chosen.items() if one._is_scaled() and one.quantization is None)
    unknown = [name for name in codes if name not in known]
    found = sorted(sums.values(), key=lambda seen: -seen["stored_nbytes"])
    if not unknown:
        return found, []
    text = f"{len(unknown):,} tensor(s) are codes of a quantization that is not known, such as {unknown[0]!r}"
    return found, [f"{text}: dequantize=True is an error for them"]


def _values(checkpoint: Checkpoint) -> tuple[list[PlainValue | ContainerValue], list[str]]:
    """The plain values and containers at the top level of the pickles, and a note if they are not available."""
    is_safetensors = checkpoint._formats == {"safetensors"}
    if is_safetensors and NESTING_KEY not in checkpoint.metadata:
        return [], []
    try:
        if is_safetensors:
            roots = [checkpoint.objects]
        else:
            roots = checkpoint._core.objects(lambda _tensor: NotImplemented)
    except RustloadError as error:
        return [], [f"the values are not shown: {error}"]
    values: list[PlainValue | ContainerValue] = []
    pairs = (pair for root in roots if isinstance(root, dict) for pair in root.items())
    for key, value in pairs:
        name, kind = key if isinstance(key, str) else short_text(key), type(value).__name__
        if type(value) in SCALARS:
            shown = value if _is_json(value) else short_text(value)
            values.append({"name": name, "type": kind, "value": shown})
        elif isinstance(value, CONTAINERS):
            values.append({"name": name, "type": kind, "length": len(value)})
    return values, []


def _is_json(value: Any) -> bool:
    """Whether JSON can represent the value so that other programs can read it: no inf, nan, complex or ints beyond 64 bits."""
    if isinstance(value, int):
        return value.bit_length() <= 64
    return math.isfinite(value) if isinstance(value, float) else not isinstance(value, complex)


def value_text(found: PlainValue) -> str:
    """A plain value as short text; one that JSON cannot represent is a str already."""
    value = found["value"]
    return value if found["type"] != "str" and isinstance(value, str) else short_text(value)


def short_text(value: Any) -> str:
    """A scalar as short text; only the type of other values, whose contents may be large."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"int of {value.bit_length():,} bits"
    if isinstance(value, str):
        return repr(value[:TEXT_SHOWN_MAX_CHARS]) + ("..." if len(value) > TEXT_SHOWN_MAX_CHARS else "")
    return repr(value) if type(value) in SCALARS else f"<{type(value).__name__}>"
