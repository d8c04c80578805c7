"""`safe_open`: the API of `safetensors.safe_open`, for every format that rustload reads.

Names, results and the errors of wrong arguments are those of safetensors 0.8 (the reference), with `get_tensor_meta` and
`prefetch` as in 0.9. An error of the file has the reference's class and rustload's message.
`docs/reference/safe_open.md` lists the differences and their reasons.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, final

from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.dtype_rows import DTYPE_ROWS
from rustload._common.paths import is_file_object
from rustload._frameworks import adapters
from rustload._remote.folder import ObjectFolder
from rustload._remote.resolve import remote_source
from rustload._safe_open import index
from rustload.errors import (
    FormatError,
    LimitError,
    TensorNotFoundError,
    UnsupportedError,
    _error,
    _Note,
    _safetensor_error,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.files import FileObject
    from rustload._rustload import Limits
    from rustload._safe_open.prefetch import PrefetchLoader
    from rustload._tensor.handle import LazyTensor

# The frameworks' names in the reference's messages.
_REFERENCE_NAMES = {"torch": "pytorch", "numpy": "numpy", "jax": "flax"}
_UNSUPPORTED_FRAMEWORKS = ("tf", "tensorflow", "mlx", "paddle")
_INDEXED_DEVICES = ("cuda", "npu", "xpu", "xla", "mlu", "musa", "hpu")
_BACKENDS = ("mmap", "pread")

# The dtype codes. The format has no code for the last two, which occur only in pickles.
_CODES = {
    **{name: row.code for name, row in DTYPE_ROWS.items() if row.code},
    "complex32": "C32",
    "complex128": "C128",
}


class TensorMeta(NamedTuple):
    """The metadata of one tensor.

    Attributes:
        dtype: The code: `"BF16"`.
        shape: The size of each dimension; for F4, in elements and not in pairs.
        data_offsets: The byte range in the data section of the safetensors file; None for tensors of pickles, which have no
            data section.
    """

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int] | None


class _Target(NamedTuple):
    """The framework, device and ownership of results."""

    framework: str
    device: str | int
    owned: bool


@final
class PySafeSlice:
    """A lazy tensor: indexing reads only the selected part. It stays valid after its file is closed."""

    __slots__ = ("_target", "_tensor")

    _target: _Target
    _tensor: LazyTensor

    def __init__(self) -> None:
        """Not for users: `safe_open.get_slice` makes slices.

        Raises:
            TypeError: Always.
        """
        raise TypeError("cannot create 'builtins.PySafeSlice' instances")

    @classmethod
    def _of(cls, tensor: LazyTensor, target: _Target) -> PySafeSlice:
        made = cls.__new__(cls)
        made._tensor = tensor
        made._target = target
        return made

    def get_shape(self) -> list[int]:
        """Elements along each dimension."""
        return _shape(self._tensor)

    def get_dtype(self) -> str:
        """The dtype code of the safetensors format, such as `"BF16"`; `"C128"` and `"C32"` for two dtypes that it lacks."""
        return _CODES[self._tensor.dtype]

    def __getitem__(self, key: Any) -> Any:
        """Reads a part of the tensor.

        Args:
            key: With torch, any index that torch supports; with NumPy and JAX, ints, slices with bounds inside the tensor and
                positive steps, and `...`.

        Raises:
            IndexError: The index is out of bounds, with torch.
            SafetensorError: The index is invalid, with NumPy and JAX.
        """
        framework, device, owned = self._target
        if framework != "torch":
            part = self._tensor[index.reference_key(key, self._tensor.shape)]
            return part.materialize(framework=framework, copy=True)
        target = adapters.load_adapter("torch").check_device(device)
        return index.torch_part(self._tensor, key, target, owned=owned)

    def __reduce__(self) -> NoReturn:
        """Not picklable; always raises TypeError."""
        raise TypeError("cannot pickle 'builtins.PySafeSlice' object")


@final
class safe_open:  # noqa: N801 - the reference's name for it
    """Opens a checkpoint of any format, with the methods of `safetensors.safe_open`.

    `with` is optional; tensors and slices stay valid after it is closed. Thread-safe.

    >>> import rustload
    >>> with rustload.safe_open("model.bin", framework="pt") as f:
    ...     for name in f.keys():
    ...         print(name, f.get_slice(name).get_shape())
    ...     part = f.get_slice("q.weight")[:, :4]
    k.weight [8, 8]
    lm_head.weight [8, 8]
    q.weight [8, 8]
    v.weight [8, 8]
    >>> part.shape
    torch.Size([8, 4])
    """

    __slots__ = ("_file", "_offsets", "_target")

    _file: Checkpoint | None
    _offsets: dict[str, tuple[int, int]] | None
    _target: _Target

    def __init__(
        self,
        filename: str | os.PathLike[str] | FileObject | ObjectFolder,
        framework: str,
        device: str | int | None = "cpu",
        *,
        backend: Literal["mmap", "pread"] = "mmap",
        limits: Limits | None = None,
    ) -> None:
        """Opens the file and reads its metadata.

        Args:
            filename: A file of any format, a directory of shards, an index file, the URL of one of these, or an open binary file
                as for `rustload.open`.
            framework: `"pt"`, `"torch"` or `"pytorch"`; `"np"` or `"numpy"`; `"flax"` or `"jax"`.
            device: The device of results: `"cpu"`, `"cuda"` (the current device of the calling thread), `"cuda:1"`, a GPU number,
                or another device of torch. NumPy has only the CPU, JAX its default device.
            backend: `"mmap"`: torch tensors on the CPU are views of the file (a private copy-on-write mapping); `"pread"`: they
                own their memory. Arrays of NumPy and JAX always own theirs.
            limits: Upper bounds on the memory and work that the file can cause.

        Raises:
            SafetensorError: The file is invalid, its name ends in `.safetensors` and its content is of another format, or an
                argument has an unknown value.
            FileNotFoundError: The file does not exist.
            OSError: The file cannot be read.
            TypeError: An argument has a wrong type.
        """
        path: Any = remote_source(filename)
        if not (isinstance(path, ObjectFolder) or is_file_object(path)):
            path = _path(path)
        if not isinstance(framework, str):
            raise _not_a_str("framework", framework)
        if framework in _UNSUPPORTED_FRAMEWORKS:
            raise _safetensor_error(
                f"framework {framework} is not supported by rustload.safe_open, which has pt, numpy and flax; "
                "use numpy and convert the arrays"
            )
        framework_name = adapters.ALIASES.get(framework, framework)
        if framework_name not in _REFERENCE_NAMES:
            raise _safetensor_error(f"framework {framework} is invalid")
        target, shown = _device(device)
        if not isinstance(backend, str):
            raise _not_a_str("backend", backend)
        if backend not in _BACKENDS:
            raise _safetensor_error(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        self._offsets = None
        self._file = _open(path, framework_name, limits)
        if framework_name != "torch" and target != "cpu":
            raise _safetensor_error(
                f"Device {shown} is not supported for framework {_REFERENCE_NAMES[framework_name]}"
            )
        self._target = _Target(framework_name, target, backend == "pread")

    def keys(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._opened())

    def offset_keys(self) -> list[str]:
        """The names in the file's order: by data offset in safetensors, by position in the pickle in other formats."""
        return list(self._opened())

    def metadata(self) -> dict[str, str] | None:
        """The header's `__metadata__` or None; `{"format": "pt"}` and the index file's metadata for pickles."""
        checkpoint = self._opened()
        found = dict(checkpoint.metadata)
        if checkpoint.format != "safetensors":
            return {"format": "pt"} | found
        return found or None

    def get_tensor(self, name: str) -> Any:
        """The whole tensor.

        Raises:
            SafetensorError: No tensor has that name, or the file is closed.
        """
        return self._whole(self._find(name))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the file's order."""
        checkpoint = self._opened()
        framework, device, _ = self._target
        if framework == "torch":
            adapter = adapters.load_adapter("torch")
            if adapter.gpu_for(adapter.check_device(device)) is not None:
                return checkpoint.materialize(device=device, framework=framework)
        return {name: self._whole(tensor) for name, tensor in checkpoint.items()}

    def get_slice(self, name: str) -> PySafeSlice:
        """The tensor for indexing; reads nothing.

        Raises:
            SafetensorError: No tensor has that name, or the file is closed.
        """
        return PySafeSlice._of(self._find(name), self._target)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Dtype code, shape and data offsets of a tensor; reads nothing.

        Raises:
            SafetensorError: No tensor has that name, or the file is closed.
        """
        tensor = self._find(name)
        if self._offsets is None:
            self._offsets = _offsets(self._opened())
        return TensorMeta(_CODES[tensor.dtype], _shape(tensor), self._offsets.get(name))

    def prefetch(
        self,
        plan: Mapping[str, slice | None] | None = None,
        *,
        device: str | int | None = None,
        threads: int = 8,
    ) -> PrefetchLoader:
        """Returns a loader that reads tensors and copies them to a GPU in the background.

        Args:
            plan: By name, None for the whole tensor, or a slice of its first dimension with step 1; None for all tensors.
            device: A CUDA device; None for the device of this object.
            threads: The most threads that read.

        Returns:
            The loader: take tensors by name, or iterate over it.

        Raises:
            SafetensorError: The framework is not torch, the device is not a GPU, or the plan is invalid.
            DeviceError: torch does not have the GPU.
        """
        file = self._opened()
        framework, target, _ = self._target
        if framework != "torch":
            raise _safetensor_error('prefetch is only compatible with framework="pt"')
        target, shown = (target, target) if device is None else _device(device)
        if isinstance(target, str) and target.partition(":")[0] != "cuda":
            raise _safetensor_error(f"prefetch loads to cuda devices, not {shown}")
        from rustload._safe_open import prefetch

        found = prefetch.tensors_of_plan(file, plan)
        return prefetch.PrefetchLoader._of(
            found, adapters.load_adapter("torch").check_device(target), max(1, int(threads))
        )

    def __enter__(self) -> safe_open:
        """The handle itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes the file; tensors and slices stay valid."""
        self._file = None

    def __reduce__(self) -> NoReturn:
        """Not picklable; always raises TypeError."""
        raise TypeError("cannot pickle 'builtins.safe_open' object")

    def _opened(self) -> Checkpoint:
        checkpoint = self._file
        if checkpoint is None:
            raise _safetensor_error("File is closed")
        return checkpoint

    def _find(self, name: str) -> LazyTensor:
        if not isinstance(name, str):
            raise _not_a_str("name", name)
        try:
            return self._opened()[name]
        except TensorNotFoundError as cause:
            error = _safetensor_error(f"File does not contain tensor {name}")
            for note in cause.__notes__:
                is_list = isinstance(note, _Note) and note.remedies == (("list", "", ..., ""),)
                error.add_note("keys() lists the names" if is_list else note)
            raise error from None

    def _whole(self, tensor: LazyTensor) -> Any:
        framework, device, owned = self._target
        copy = True if owned or framework != "torch" else None
        return tensor.materialize(device, framework=framework, copy=copy)


def _open(path: Any, framework: str, limits: Limits | None) -> Checkpoint:
    """Opens the checkpoint at a path or in an open file; its errors have the reference's classes."""
    try:
        checkpoint = open_checkpoint(path, framework=framework, compat=True, limits=limits)  # type: ignore[arg-type]  # one of its names
        _check_names(checkpoint)
        return checkpoint
    except NotADirectoryError as cause:
        raise _missing(cause.filename or path) from None
    except (FormatError, UnsupportedError, LimitError) as cause:
        raise _safetensor_error(str(cause), cause) from None


def _check_names(checkpoint: Checkpoint) -> None:
    """Checks that files named as safetensors have that format: a program trusts that name to be no pickle's.

    Raises:
        FormatError: A file has such a name and another format.
    """
    core = checkpoint._core
    files = list(zip(core.files, core.file_formats, strict=True)) or [(core.source_name or "", core.format)]
    for name, found in files:
        if name.lower().endswith(".safetensors") and found != "safetensors":
            error = _error(
                "UnknownFormat",
                f"{name}: the name is that of a safetensors file, and the format is {found}",
                "rustload.open reads a file by its content, whatever its name",
            )
            error.path = name  # type: ignore[attr-defined]  # every FormatError has it
            raise error


def _path(filename: Any) -> str:
    try:
        path = os.fspath(filename)
    except TypeError as cause:
        error = TypeError(f"argument 'filename': {cause}")
        if isinstance(filename, (list, tuple)):
            error.add_note(
                "safe_open takes one file, a folder or an index of shards; rustload.open takes a list, too"
            )
        raise error from None
    if not isinstance(path, str):
        raise _not_a_str("filename", path)
    if "\0" in path:
        raise _missing(path)
    return path


def _missing(path: str) -> BaseException:
    """The error for a path that does not exist, also below a file or with a NUL in it."""
    return _error("Io", "", errno=errno.ENOENT, path=path)


def _not_a_str(argument: str, value: object) -> TypeError:
    found = "'None'" if value is None else f"'{type(value).__name__}' object"
    return TypeError(f"argument '{argument}': {found} is not an instance of 'str'")


def _device(device: Any) -> tuple[str | int, str]:
    """The device for torch, and its name in the reference's messages."""
    if device is None:
        return "cpu", "cpu"
    if isinstance(device, int):
        if not 0 <= device < 1 << 63:
            raise _safetensor_error(f"device {device} is invalid")
        return int(device), str(int(device))
    kind = type(device)
    text = str(device) if (kind.__module__, kind.__name__) == ("torch", "device") else device
    if not isinstance(text, str):
        raise _safetensor_error(f"device {device!r} is invalid")
    name, colon, number = text.partition(":")
    if text == "cpu":
        return "cpu", "cpu"
    if name not in (*_INDEXED_DEVICES, "mps") or ":" in number:
        raise _safetensor_error(f"device {text} is invalid")
    index = _index(number) if colon else 0
    if name == "mps":
        if index:
            raise _safetensor_error(f"device {text} is invalid: only mps or mps:0 is supported")
        return "mps", "mps"
    return f"{name}:{index}" if colon else name, f"{name}:{index}"


def _index(number: str) -> int:
    """Parses a device index; raises the reference's error."""
    if not number:
        raise ValueError("cannot parse integer from empty string")
    if not re.fullmatch(r"\+?[0-9]+", number, re.ASCII):
        raise ValueError("invalid digit found in string")
    # At most the digits of a 64-bit number; longer ones are too large, and slow to parse.
    digits = number.lstrip("+").lstrip("0")
    if len(digits) > 20 or int(digits or "0") >= 1 << 64:
        raise ValueError("number too large to fit in target type")
    return int(digits or "0")


def _shape(tensor: LazyTensor) -> list[int]:
    """The shape in elements, as a safetensors header has it."""
    shape = list(tensor.shape)
    if tensor.dtype == "float4_e2m1fn_x2" and shape:
        shape[-1] *= 2
    return shape


def _offsets(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """The data offsets of each tensor; empty for pickles.

    The tensors of a safetensors file cover its data section without gaps, and a checkpoint has them in that order, so the offset
    of a tensor is the sum of the sizes before it. If an index file omits a tensor of a file, the offsets after it are unknown.
    """
    found: dict[str, tuple[int, int]] = {}
    ends: dict[int, tuple[int, int]] = {}
    for name, tensor in checkpoint.items() if checkpoint.format == "safetensors" else ():
        shard, number = tensor._core.storage
        expected, begin = ends.get(shard, (0, 0))
        if number == expected:
            found[name] = begin, begin + tensor.nbytes
            ends[shard] = number + 1, begin + tensor.nbytes
    return found
