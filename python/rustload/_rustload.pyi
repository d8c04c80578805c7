"""The compiled core of rustload. Use the package `rustload` instead: only `Buffer` is public.

Shapes, strides and offsets are in elements, sizes in bytes. Errors are the classes of `rustload.errors`, each with a stable
`code`. Only functions whose docstring says so read tensor data.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypedDict, final

from typing_extensions import CapsuleType, disjoint_base

from rustload._common.dtypes import DType
from rustload._frameworks.adapters import HandleContext
from rustload._remote.folder import ObjectFolder

__all__ = [
    "CODES",
    "DEBUG",
    "DTYPES",
    "LIMITS",
    "TORCH_GLOBALS",
    "Buffer",
    "Checkpoint",
    "FolderStage",
    "Handle",
    "Joined",
    "Limits",
    "Manifest",
    "Mappings",
    "OpenOptions",
    "PreparedText",
    "Request",
    "ScanOptions",
    "Stream",
    "Tensor",
    "Upload",
    "VerifiedFile",
    "Writer",
    "__version__",
    "adopt",
    "cast_rate",
    "check_allowance",
    "check_gpu_memory",
    "check_memory",
    "check_sparse",
    "compare",
    "concat",
    "cuda_info",
    "direct_upload_bytes",
    "document",
    "dtype_name",
    "end_upload_workers",
    "finish_publication",
    "gpu_free_memory",
    "is_cancelled",
    "machine",
    "memory",
    "needed_memory",
    "open",
    "order",
    "probe",
    "restored_join",
    "scan",
    "similar",
    "spell_numbers",
    "stack",
    "statistics",
    "stream",
    "tree_rows",
    "trim",
    "upload",
    "write_file",
    "write_folder",
    "write_object",
]

__version__: Final[str]

DEBUG: Final[bool]
"""Whether this is a debug build, which is slow."""

DTYPES: Final[list[tuple[str, int, str, str | None, int | None, str | None]]]
"""Every dtype: its torch name, bytes per element, kind (`"Float"`), safetensors code and its rank, and NumPy type code."""

LIMITS: Final[list[tuple[str, int, str]]]
"""Every limit: its name, its default, and what it bounds."""

CODES: Final[list[tuple[str, str, str, list[tuple[Any, ...]]]]]
"""Every error code: its spelling, who must act, what it means, and what to try next (may be empty)."""

TORCH_GLOBALS: Final[list[tuple[str, str]]]
"""Module and name of every global that `torch.load(weights_only=True)` allows."""

@final
class Buffer:
    """A tensor in memory, for any consumer of DLPack or, in host memory, the buffer protocol.

    The result of `materialize` with framework "dlpack". It is either owned (memory of its own, C-contiguous) or a view (a
    private mapping of the file, with the file's strides), which is read-only with `writable=False`. Neither writes to the file.
    The buffer, and everything made from it, keeps the memory alive. A buffer on a GPU (`device="cuda"`) is owned and complete; it
    supports only DLPack, because the host cannot read it.

    >>> import rustload
    >>> w = rustload.open("model.pt")["q.weight"].materialize(dtype="float16", framework="dlpack")
    >>> w
    <rustload.Buffer float16 [8, 8] owned>
    >>> memoryview(w).format, memoryview(w).shape
    ('e', (8, 8))
    """

    @property
    def dtype(self) -> str:
        """The dtype, as torch spells it: `"bfloat16"`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension."""

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes, without gaps between them."""

    @property
    def is_view(self) -> bool:
        """Whether it is a view of the file."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **_extra: Any,
    ) -> CapsuleType:
        """Exports the buffer by DLPack; reads nothing and copies nothing.

        Args:
            stream: None or -1 for host memory, which has no streams; on a GPU also the address of any stream, 1 and 2 of CUDA,
                and 0 of HIP: the buffer is complete, so no stream has to wait.
            max_version: The newest version that the consumer supports; from (1, 0) on it gets the versioned structure.
            dl_device: None, or what `__dlpack_device__` says.
            copy: Not True: a buffer is exported as it is.
            **_extra: Arguments of later versions of the protocol, ignored.

        Raises:
            BufferError: The consumer requests an invalid stream, another device or a copy; or a size does not fit 63 bits.
        """

    def hand_over(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **_extra: Any,
    ) -> CapsuleType:
        """As `__dlpack__`, for a caller that drops the buffer at once.

        If the buffer owns its memory and nothing else refers to it, the flag `IS_COPIED` is set: the consumer is the sole owner.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """`(1, 0)` for the CPU, `(2, n)` for CUDA device n, `(10, n)` for HIP's."""

    def as_bytes(self) -> Buffer:
        """The same memory as 1-D `uint8`.

        Raises:
            BufferError: The buffer is not contiguous.
        """

    def part(self, start: int, dtype: str, shape: Sequence[int]) -> Buffer:
        """A contiguous part of the same memory.

        Args:
            start: The first byte, relative to the buffer.
            dtype: Its dtype, by any name.
            shape: Elements along each dimension.

        Raises:
            BufferError: The buffer is strided.
            ValueError: The part is out of bounds, or not aligned for its dtype.
        """

    def parts(
        self, start: int, alignment: int, tensors: Sequence[Tensor], dtypes: Sequence[str | None]
    ) -> tuple[list[Buffer], int]:
        """Contiguous parts of the same memory with the shapes of tensors, one behind another, and the byte after the last one.

        Args:
            start: The first byte that may be used, relative to the buffer.
            alignment: Each part starts at a multiple of so many bytes.
            tensors: The tensors; the parts are for the first ones, as many as fit.
            dtypes: For each tensor the dtype of its part, by any name; None for its own.

        Raises:
            BufferError: The buffer is strided.
            ValueError: A dtype is unknown, or a part would not be aligned for its dtype.
        """

    def tobytes(self) -> bytes:
        """A copy of the elements' bytes, in C order.

        Raises:
            BufferError: The buffer is on a GPU.
        """

    def __buffer__(self, flags: int, /) -> memoryview:
        """The buffer protocol; dtypes without a `struct` format are exported as unsigned integers of the same size.

        Raises:
            BufferError: The buffer is strided and the consumer requests contiguous bytes, or it is on a GPU.
        """

def adopt(capsule: CapsuleType, *, managed_on: int = 0) -> Buffer:
    """Imports GPU memory of another library by DLPack; the memory is released with the last object that refers to it.

    Args:
        capsule: A DLPack capsule of a writable, contiguous 1-D `uint8` tensor on a GPU.
        managed_on: The GPU that managed memory is used on: its capsules name none.

    Raises:
        TypeError: It is not a DLPack capsule, or was consumed already.
        BufferError: It is a capsule of another kind of tensor.
    """

@final
class Checkpoint:
    """An opened checkpoint; `rustload.Checkpoint` wraps it."""

    @property
    def format(self) -> str:
        """The files' format: `"torch-zip"`, `"safetensors"`, ...; docs/reference/formats.md lists all."""

    @property
    def files(self) -> list[str]:
        """The files, in shard order; none for bytes in memory."""

    @property
    def file_formats(self) -> list[str]:
        """The formats of `files`."""

    @property
    def source_name(self) -> str | None:
        """The name of the object that it was opened from; None for files and bytes in memory."""

    @property
    def metadata(self) -> dict[str, str]:
        """The files' own metadata, by key."""

    @property
    def notes(self) -> list[str]:
        """Remarks that are not errors."""

    @property
    def nbytes(self) -> int:
        """The size in bytes of all storages with named tensors, each counted once."""

    def names(self) -> list[str]:
        """The names, in the files' order."""

    def tensors(self, start: int, count: int) -> list[Tensor]:
        """The tensors at positions of `names` from `start` on, as many as there are."""

    def __len__(self) -> int:
        """The number of names."""

    def __contains__(self, key: str, /) -> bool:
        """Whether a tensor has that name."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            TensorNotFoundError: No tensor has that name; the note lists similar names.
        """

    def tied(self) -> list[list[str]]:
        """Tied weights: the names that share a storage, in groups of two and more."""

    def opaque(self) -> list[tuple[str, int, list[str]]]:
        """The classes whose values are kept as inert data: `module.name`, how many values, and the paths of the first few."""

    def globals(self) -> list[str]:
        """Every class and function that the pickles name, as `module.name`, once, sorted."""

    def saved_values(self) -> list[tuple[str, tuple[str | int, ...]]]:
        """The name and path of each value of a distributed checkpoint that is not a tensor; empty for other formats."""

    def open_value(self, position: int) -> Checkpoint:
        """Opens one of them, which is an archive of its own.

        Raises:
            FormatError: It is damaged.
        """

    def objects(self, wrap: Callable[[Tensor], object]) -> list[Any]:
        """Each file's object tree, in shard order; a dict of the tensors for a file that has none.

        Args:
            wrap: Creates the object for a tensor in the tree.

        Raises:
            LimitError: The tree is nested too deeply, or has too many values (`depth`, `export_nodes`).
        """

    def rebuild(self, shard: int, builder: _Builder) -> Any:
        """The object tree of one file, with tensors and torch objects created by a builder; errors as for `objects`.

        Args:
            shard: The index of the file.
            builder: Called once for each such value; its exceptions are propagated.
        """

    def globals_of(self, shard: int) -> list[str]:
        """Every class and function that one file names, as `module.name`, once, in the order of the pickle."""

    @property
    def shards(self) -> int:
        """The number of files."""

    @property
    def is_joined(self) -> bool:
        """Whether tensors are joined from parts in several files."""

    @property
    def serial(self) -> int:
        """A number that no other checkpoint of this process has."""

    def quantized_weights(self) -> list[tuple[str, str, int, tuple[str, int, list[str], int]]]:
        """The quantized weights of known schemes: name, dtype, elements, and `Tensor.scheme` of each.

        Raises:
            OSError: A file cannot be read.
            FormatError: A file has changed.
        """

    def check_dequantized(self) -> None:
        """Fails where `config.json` names a method of quantization, and no weight is in a scheme that is known.

        Raises:
            OSError: A file cannot be read.
            UnsupportedError: There is none, code `QuantUnknown`.
        """

    def reopening(self) -> tuple[list[str], str, str, bool, bool, str, dict[str, int]] | None:
        """What opens the same checkpoint; None unless it was opened by paths.

        Returns:
            The absolute paths, `unknown`, `trailing`, `compat`, `dequantize`, `io`, and the limits that are not the defaults.
        """

    def file_stamps(self) -> list[tuple[str, int, int, int]]:
        """For each file its absolute path, size in bytes, time of modification in nanoseconds, and inode, as it was opened.

        Of the files of a distributed checkpoint that were not read yet, as they are now.

        Raises:
            FormatError: One of the latter has another size than when the checkpoint was opened.
            OSError: One of the latter cannot be read.
        """

    def restored(
        self,
        name: str | None,
        id: tuple[int, int],  # noqa: A002 - as the extension calls it
        layout: tuple[Sequence[int], Sequence[int], int],
        channel_layout: tuple[Sequence[int], Sequence[int], int] | None,
    ) -> Tensor:
        """The tensor that `Tensor.state` describes; the numbers are not trusted.

        Raises:
            TensorNotFoundError: No tensor has that name.
            FormatError: The tensor of that name has another id.
            ValueError: The layout lies outside the tensor.
        """

    def share(self, folder: str, number: int, count: int, window: int) -> int:
        """Shares what is read from stores from now on with other processes of this machine, which fetch it once.

        Args:
            folder: A folder that only this user can enter; files in it have the bytes.
            number: The number of this process.
            count: The number of processes.
            window: The most bytes of files that this process keeps there.

        Returns:
            The number of files of the checkpoint that are shared.
        """

    def unshare(self) -> None:
        """Ends `share`."""

    @property
    def end(self) -> int | None:
        """The length of a legacy stream, so the offset of its end from its start; None for other formats."""

    @property
    def is_torchscript(self) -> bool:
        """Whether the archive is a TorchScript program, decided by the same archive member as in torch."""

    def storages(self, shard: int, offsets: bool) -> list[tuple[int, str | None, int | None]]:
        """Every storage of a file, in the order in which tensors name them first.

        Args:
            shard: The index of the file.
            offsets: Whether to compute offsets, which reads the local headers of the archive members.

        Returns:
            For each its size in bytes; the location that it was saved from (None if the file has none); and its offset from the
            start of the checkpoint (None if the file does not have its bytes unchanged, or without `offsets`).
        """

    def storage_views(self, shard: int, *, writable: bool) -> tuple[Buffer, list[int | None]]:
        """All bytes of a file as a private mapping, and the offset of each storage in it. It is read-only unless `writable`.

        Returns:
            The bytes, and the offsets; None for a storage that must be copied: compressed, misaligned, in another byte order,
            inside a pickle, or with bools other than 0 and 1 (bools are read for this check).

        Raises:
            BufferError: The bytes are in memory, not in a file.
            MemoryError: The system cannot map the file.
            FormatError: The file was truncated or changed.
        """

    def storage_tensors(self, shard: int) -> list[Tensor | None]:
        """Each storage of a file as a 1-D tensor: of bools, or of unsigned integers with the item size of the tensors on it.

        Returns:
            The tensors, each over the whole storage; None for a storage without bytes or without a plain tensor.
        """

    def read_storages(self, shard: int, numbers: Sequence[int]) -> tuple[list[Buffer], list[tuple[int, int]]]:
        """Reads storages into owned memory, in native byte order. Reads tensor data.

        Returns:
            1-D byte buffers, each with one storage or with several of at most 64 KiB; and for each requested storage the index
            of its buffer and its offset there, a multiple of 64.

        Raises:
            FormatError: The file was truncated or changed, or a member is damaged.
            MemoryError: The memory could not be allocated.
        """

class _Builder(Protocol):
    """The callbacks of `Checkpoint.rebuild`; `rustload.torch._build.Builder` implements them."""

    def tensor(
        self,
        storage: int,
        dtype: str,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        flags: int,
        /,
    ) -> Any:
        """A tensor; offset and strides in elements. Flags: 1 gradient, 2 parameter, 4 conjugate, 8 negate, 16 meta, 32 hooks."""

    def quantized(
        self,
        location: tuple[int, str, int, tuple[int, ...], tuple[int, ...]],
        flags: int,
        scheme: str,
        scale: tuple[Any, Any, int | None],
        /,
    ) -> Any:
        """A quantized tensor: storage, dtype, offset, shape and strides; flags; and scale, zero point and axis."""

    def sparse(self, form: tuple[str, tuple[int, ...], bool | None], parts: tuple[Any, ...], /) -> Any:
        """A sparse tensor from its layout, shape and `is_coalesced`, and its parts in the order of the file."""

    def parameter(self, made: Any, /) -> Any:
        """A tensor as a parameter."""

    @property
    def byte_string(self) -> Callable[[bytes], Any] | None:
        """What makes a value of a binary string of Python 2; None for a string if it is UTF-8, else bytes."""

    def storage(self, number: int, dtype: str, part: tuple[int, int] | None, /) -> Any:
        """A storage that is a value of the tree; of a part of one, the first byte and the size."""

    def size(self, items: tuple[Any, ...], /) -> Any:
        """A `torch.Size`."""

    def label(self, module: str, name: str, /) -> Any:
        """The class or constant of that name; None keeps it as a `Global`."""

    def record(self, class_name: str, args: tuple[Any, ...], /) -> Any:
        """A device, a layout, or a parameter that wraps a sparse tensor."""

    def opaque(self, class_name: str, /) -> None:
        """Called for each value that is kept as inert data; may raise to reject the file."""

    def attributes(self, made: Any, attributes: dict[Any, Any], /) -> None:
        """Sets the attributes of a mapping or a tensor."""

_Source: TypeAlias = "bytes | Sequence[str] | tuple[str, int] | tuple[object, int, str | None] | ObjectFolder"
"""What is opened or scanned: the content of a file; files, a directory or an index file; what begins at a byte of a file;
a binary file object or an object with `read_ranges`, from a byte on, with its name for messages; or a folder of a store."""

@final
class OpenOptions:
    """How a checkpoint is opened."""

    def __new__(
        cls,
        *,
        unknown: str = ...,
        verify: object = ...,
        dequantize: object = ...,
        limits: Limits | None = ...,
        compat: object = ...,
        trailing: str = ...,
        io: str = ...,
    ) -> Self:
        """Checks the options.

        Args:
            unknown: `"keep"` or `"error"`, for values of unknown classes.
            verify: Whether every storage is read and its checksum compared.
            dequantize: Whether quantized weights are the numbers that they mean, under the names of the weights.
            limits: The limits.
            compat: Whether the last of duplicate keys in a safetensors header wins.
            trailing: `"error"` or `"ignore"`, for bytes after the end.
            io: `"auto"`, `"buffered"` or `"direct"`: how tensor data is read.

        Raises:
            ValueError: An option has none of its values, which the message lists.
        """

@final
class Manifest:
    """The SHA-256 digests of files: of a whole file, or of pieces of one size."""

    def __new__(cls, files: Sequence[tuple[str, tuple[int, int] | None, bytes]]) -> Self:
        """The manifest of these files.

        Args:
            files: For each its name, its size and that of its pieces, and the digests of the pieces one after another; None and
                one digest where only that of the whole is known.

        Raises:
            FormatError: A name is there twice, or the number of digests does not fit the size.
        """

    def open(self, folder: str | ObjectFolder, name: str) -> VerifiedFile:
        """Opens a file of a folder, on disk or in a store, that is read only as this lists it.

        Raises:
            FormatError: The file is not listed (code `ManifestMissing`), or has another size (`ManifestMismatch`).
            OSError: The file cannot be opened.
        """

    def to_json(self, name: str) -> str:
        """The unsigned statement of OpenSSF model signing for a model of this name.

        Raises:
            FormatError: A name is not plain.
            ValueError: The files are not all in pieces of one size, or there are none.
        """

@final
class VerifiedFile:
    """A file that is read only as a manifest lists it; as `rustload.Ranges`.

    Attributes:
        name: For messages.
        size: The number of bytes.
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of each range, a pair of offset and length.

        Raises:
            FormatError: They are not those of the manifest (code `ManifestMismatch`).
            OSError: The file cannot be read.
            ValueError: The file has no such range.
        """

def open(  # noqa: A001 - the package's name for it
    source: _Source, options: OpenOptions, manifest: Manifest | None = None
) -> Checkpoint:
    """Opens a checkpoint. Reads metadata only, unless the options say `verify`. It keeps bytes and objects, and copies none.

    With a manifest, all bytes are compared with it before they are used, and files that it does not list are refused.

    Raises:
        OSError: A file cannot be read.
        FormatError: The file is not a checkpoint, or is damaged.
        UnsupportedError: The format of the file is not supported yet.
        DisallowedError: The file names an unknown class or function, and `unknown` is `"error"`.
        LimitError: The file exceeds a limit.
    """

@disjoint_base
class Handle:
    """The base of `rustload.LazyTensor`: a tensor of the core, and the context that it is read in."""

    def __new__(cls, core: Tensor | Joined, context: HandleContext) -> Self:
        """Reads nothing."""

    # A joined tensor has all methods of a tensor that are used of both.
    @property
    def _core(self) -> Tensor: ...
    @property
    def _context(self) -> HandleContext: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""

    @property
    def dtype(self) -> DType:
        """The dtype in the file: a str as torch spells it, `"bfloat16"`, that is also equal to `torch.bfloat16`."""

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes, in the file's dtype."""

@final
class Joined:
    """Tensors of one dtype, each a box of one larger tensor; `rustload.JoinedTensor` wraps it."""

    @property
    def dtype(self) -> str:
        """The dtype in the files, as torch spells it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together, in the files' dtype."""

    def parts(self) -> list[Tensor]:
        """The joined tensors, in order."""

    def offsets(self) -> list[list[int]]:
        """For each part, the index of its first element along each dimension."""

    def index(self, key: object) -> Joined:
        """A part by basic indexing; arguments and errors as for `Tensor.index`."""

    def permute(self, dims: Sequence[int]) -> Joined:
        """The same elements with the dimensions in another order; errors as for `Tensor.permute`."""

    def reversed(self) -> Joined:
        """The same elements with the dimensions reversed."""

    def reshape(self, shape: Sequence[int]) -> Joined:
        """As `Tensor.reshape`.

        Raises:
            ValueError: As there; or a part is not a box of the new shape.
        """

    def materialize(self, request: Request) -> Buffer:
        """The elements in memory. Reads tensor data, each part directly into the result; errors as for `Tensor.materialize`."""

    def materialize_into(self, request: Request, out: CapsuleType) -> None:
        """Writes the elements into memory of another library; arguments and errors as for `Tensor.materialize_into`."""

    def result_shape(self, request: Request) -> tuple[int, ...]:
        """The shape of the result of `materialize`."""

    @property
    def is_kept_as_stored(self) -> bool:
        """As `Tensor.is_kept_as_stored`, of any part."""

    @property
    def is_quantized(self) -> bool:
        """As `Tensor.is_quantized`, of any part."""

    def shared_storage(self, copy: bool | None) -> Literal["view", "copy"] | None:
        """None: it shares no storage.

        Raises:
            BufferError: `copy` is False, and there are several parts.
        """

def concat(tensors: Sequence[Tensor | Joined], dim: int) -> Joined:
    """Concatenates tensors along `dim`. Reads nothing.

    Raises:
        ValueError: There are none, or their dtypes or shapes do not fit.
        IndexError: `dim` is out of bounds.
    """

def stack(tensors: Sequence[Tensor | Joined], dim: int) -> Joined:
    """Stacks tensors along a new dimension `dim`. Reads nothing.

    Raises:
        ValueError: There are none, or their dtypes or shapes differ.
        IndexError: `dim` is out of bounds.
    """

def restored_join(parts: Sequence[Tensor], offsets: Sequence[Sequence[int]], shape: Sequence[int]) -> Joined:
    """The joined tensor of these parts at these offsets.

    Raises:
        ValueError: They are not a tensor of this shape.
    """

def compare(
    pairs: Sequence[tuple[_Values, Request, _Values, Request]],
    *,
    atol: float,
    rtol: float,
    threads: int | None,
) -> list[tuple[int, int, int, int | None, int, float, float, float | None, float | None, float | None]]:
    """Compares pairs of tensors, as their requests convert them.

    Args:
        pairs: The tensors and their requests, which must give both the same dtype and shape.
        atol: The largest absolute difference of close numbers.
        rtol: The largest difference in proportion to the second number; both add up.
        threads: As in `Request`.

    Returns:
        For each pair: the elements; those whose bytes differ; those of them that are not close; the number of the first such one
        in C order; those that are NaN in one tensor only; the largest absolute and relative differences; and relative L2, RMS and
        cosine, as in `TensorDiff`.

    Raises:
        ValueError: The dtypes or shapes of a pair differ.
        RustloadError: As for `Tensor.materialize`.
    """

def document(
    checkpoint: Checkpoint,
    report: str | None = None,
    request: Request | None = None,
    *,
    sample: bool = False,
) -> str:
    """The data of the page that `rustload.view` writes.

    Args:
        checkpoint: The checkpoint.
        report: The report of a scan, as JSON; None for none.
        request: The conversion before statistics; None for no statistics.
        sample: Whether to read about 65,536 elements of each tensor, instead of all.

    Returns:
        The data as JSON, without what is outside of the checkpoint: its name, and the sizes of files.
    """

def tree_rows(
    tensors: list[tuple[str, int, int, int]],
) -> list[tuple[int, str, int, int | None, int, int, int]]:
    """The rows of the tree of tensors, the root first and parents before their children.

    Args:
        tensors: Of each tensor its name, the number of its kind, its bytes that count towards sums, and its bytes.

    Returns:
        Of each row its level; its label; the number of equal subtrees that are folded into it; the position of the tensor of
        this name, or None; and the sums of all of them: tensors, counted bytes, and bytes.
    """

def spell_numbers(numbers: Sequence[int], digits: int = 0) -> str:
    """Abbreviates a sorted list of numbers: `0..31`, `0..30 step 2`, `0..2, 5, 7..9`.

    Args:
        numbers: The numbers, each once.
        digits: The number of digits to which they are padded with zeros; 0 for none.
    """

def statistics(
    tensors: Sequence[_Values],
    request: Request,
    *,
    bins: int | None,
    sample: int | None,
    threads: int | None,
) -> list[dict[str, Any] | None]:
    """Reads tensors and returns what their numbers are like.

    Args:
        tensors: The tensors.
        request: The conversion of all.
        bins: The bins of the histogram; None for none.
        sample: About how many elements of each to read; None for all.
        threads: As in `Request`.

    Returns:
        The fields of `rustload.Statistics` but `sampled`, with plain tuples; None for dtypes without numbers.

    Raises:
        RustloadError: As for `Tensor.materialize`.
    """

_Values: TypeAlias = "Tensor | Joined | tuple[str, Sequence[int], int | None, Callable[[], CapsuleType]]"
"""What is written: a lazy tensor, or dtype, shape, the storage that it shares with others (any number), and a function that
returns a DLPack capsule of all bytes, as one-dimensional `uint8` in host memory."""

_File: TypeAlias = (
    "tuple[str, Sequence[tuple[str, _Values, Request]], Sequence[tuple[str, str]], str | None, "
    "Sequence[tuple[str, str]], int | None]"
)

class _WriteOptions(TypedDict):
    overwrite: bool
    sync: bool
    verify: bool
    resume: bool
    manifest: bool
    memory: int
    threads: int | None
    report: Callable[[str, int, bool], object] | None

def write_file(
    path: str,
    tensors: Sequence[tuple[str, _Values, Request]],
    *,
    metadata: Sequence[tuple[str, str]],
    options: _WriteOptions,
) -> int:
    """Writes a safetensors file, and returns its size in bytes.

    Args:
        path: The file.
        tensors: For each tensor its name, its values, and how they are converted; `copy` has no effect.
        metadata: The texts of the header.
        options: `overwrite`: whether an existing file is replaced; `sync`: whether the data is on the disk before the file gets
            its name; `verify`: whether it is read back and compared with its sources; `resume`: whether what is written stays
            for a later call if this one fails; `manifest`: whether the digests of what is written are in a manifest beside it,
            whose name ends with `.manifest.json`; `memory`: the most bytes of buffers; `threads`: the number of threads, None for
            one per core; `report`: is called on this thread with a name, a number of bytes, and whether an earlier call had
            written them.

    Raises:
        OSError: The target exists and is not to be replaced, the disk is full, or the system refuses otherwise.
        ValueError: Two tensors have one name, the header is too long, or a cast is lossy.
        UnsupportedError: The format lacks a dtype.
        RustloadError: A source cannot be read, or has changed.
    """

def write_folder(
    path: str,
    files: Sequence[_File],
    *,
    texts: Sequence[tuple[str, str, bytes | None]],
    copies: Sequence[tuple[str, Any]],
    joins: bool,
    options: _WriteOptions,
) -> tuple[list[tuple[str, int]], str | None]:
    """Writes a folder of safetensors files and others, which replaces a folder of that name in one step if that is possible.

    Paths of files are relative to the folder. Files of an earlier version of the same checkpoints are not kept, others are.

    Args:
        path: The folder.
        files: For each safetensors file its path, its tensors as for `write_file`, the texts of its header, the path of the index
            that lists them (None for no index), the texts that go into that index, or into the header if there is none, and the
            most bytes of tensors, above which it is several files; None for one.
        texts: Paths and contents of other files; and the old content of one that is rewritten without `overwrite` too, or None.
        copies: Paths of other files, and the files that they are copies of, on disk or in a store.
        joins: Whether the files may join those of an existing folder if they replace none, without `overwrite`.
        options: As for `write_file`; `overwrite`: whether a folder with files is replaced.

    Returns:
        The path and the size of each file, and why the folder was not replaced in one step; None if it was.

    Raises:
        OSError: As for `write_file`.
        ValueError: As for `write_file`, or a path is not one of a file in the folder, or two are equal.
        RustloadError: As for `write_file`.
    """

@final
class FolderStage:
    """A hidden folder for the files of one checkpoint, which are then moved to the target. Dropped before that, it is removed.

    A target that exists stays the same folder.

    Args:
        path: The target.
        name: The name of the checkpoint's files, without `.safetensors`.
        overwrite: Whether files of this name in the target are replaced.

    Raises:
        OSError: Another writer has the target, it has files that are not to be replaced, or the system refuses otherwise.
    """

    path: str
    """The folder in which to write."""
    token: str
    """The content of the file `token` beside that folder, as long as it is this stage's."""

    def __new__(cls, path: str, name: str, *, overwrite: bool) -> Self: ...
    def create_files(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        *,
        metadata: Sequence[tuple[str, str]],
        max_shard_size: int,
        sync: bool,
    ) -> tuple[list[tuple[str, int, int]], list[str]]:
        """Creates the files of tensors in full size: complete up to the first tensor, with an index of several files.

        Args:
            tensors: Name, dtype and shape of each tensor, in the order in which they are divided among files.
            metadata: The texts of each header.
            max_shard_size: The most bytes of tensors in one file; a larger tensor has a file of its own.
            sync: Whether to wait until the index is on the disk.

        Returns:
            Of each tensor its file, the offset of its first byte, and its bytes; and the files, in the order to publish them.

        Raises:
            OSError: The disk is full, or refuses otherwise.
            ValueError: A header is too long, or a tensor is named `__metadata__`.
        """

    def publish(self, files: Sequence[str], *, sync: bool) -> str | None:
        """Moves the files to the target, in this order, and removes those of an earlier version.

        Args:
            files: Their names; an index last.
            sync: Whether to wait until their names are on the disk.

        Returns:
            What to say about it, or None.

        Raises:
            OSError: Another writer has taken the folder, or the system refuses. The next stage
                for this target moves what is left.
        """

    def discard(self) -> None:
        """Removes the hidden folder."""

def write_object(
    file: object,
    tensors: Sequence[tuple[str, _Values, Request]],
    *,
    metadata: Sequence[tuple[str, str]],
    options: _WriteOptions,
) -> int:
    """Writes a safetensors file to a binary file object, from its start to its end, and returns its size in bytes.

    Args:
        file: An object whose `write` takes bytes.
        tensors: As for `write_file`, like the arguments below.
        metadata: The texts of the header.
        options: As for `write_file`; `overwrite` and `sync` have no effect.

    Raises:
        ValueError: `verify`, `resume` or `manifest` is set.
        OSError: `write` returned None or a wrong number.
        RustloadError: As for `write_file`; an exception of `write` is the cause.
    """

@final
class PreparedText:
    """A file of text in UTF-8 that is complete and has no name yet. Collected, it leaves nothing."""

    def __new__(cls, path: str, text: str, *, overwrite: bool, sync: bool) -> Self:
        """Writes the text, with `sync` to the disk.

        Raises:
            ValueError: The path is a symbolic link to nothing.
            OSError: As for `write_file`.
        """

    def commit(self) -> None:
        """Gives the file its name.

        Raises:
            OSError: As for `write_file`.
            ValueError: It has its name, or was discarded.
        """

    def discard(self) -> None:
        """Removes the file, unless it has its name."""

@final
class Writer:
    """A safetensors file whose tensors come in any order; `rustload.Writer` wraps it."""

    def __new__(
        cls,
        path: str,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        *,
        metadata: Sequence[tuple[str, str]],
        options: _WriteOptions,
    ) -> Self:
        """Plans a file of these tensors (name, dtype, shape), and reserves its space.

        Raises:
            RustloadError: As for `write_file`.
        """

    def write(self, name: str, values: _Values, request: Request, start: Sequence[int] | None) -> None:
        """Writes a tensor, or the part of it that begins at the index `start`, cast to the declared dtype.

        Raises:
            ValueError: The name or the shape was not declared, or the elements were written before.
            RustloadError: As for `write_file`.
        """

    def finish(self) -> int:
        """Gives the file its name, and returns its size in bytes.

        Raises:
            ValueError: Not everything was written (then nothing is left), or the writer is closed.
            OSError: The system refuses.
        """

    def discard(self) -> None:
        """Leaves nothing of the file; does nothing after `finish`."""

@final
class Stream:
    """Makes tensors in the background, ahead of the consumer; `Checkpoint.stream` wraps it."""

    def next(self) -> tuple[int, int, bool, Buffer | None] | None:
        """The next tensor, or None after the last. Reads tensor data, on threads of the stream.

        Returns:
            Its index in the list; the index of the first tensor with the same elements; whether they occur again later; and
            the elements, unless the caller makes it on a storage that it shares, or the result of the first is reused.

        Raises:
            ValueError: The stream was started before a fork (code `Forked`), or another thread is using it.
            RustloadError: As for `Tensor.materialize`; the message or a note names the tensor. The stream ends.
        """

    def order(self) -> list[int]:
        """The indices in the list, in the order in which `next` returns the tensors.

        Raises:
            ValueError: Another thread is using it.
        """

    def close(self) -> None:
        """Stops the threads and frees results that were not taken; a concurrent `next` returns None.

        Waits for the threads, except during a concurrent `next`: then another `close`, or the drop, waits.
        """

def stream(
    tensors: Iterable[tuple[Tensor, Request]],
    *,
    window: int,
    threads: int | None,
    by_file: bool,
    share_storages: bool,
    results_kept: bool,
) -> Stream:
    """A stream of tensors. Reads nothing before the first `next`.

    Args:
        tensors: The tensors, each with its request.
        window: The most bytes in flight (back pressure).
        threads: The number of threads; None for one per core.
        by_file: True for the order of the data, False for the order of the list.
        share_storages: Whether the caller makes the tensors that can share a storage.
        results_kept: Whether the caller keeps all results. Otherwise recycled memory of freed results counts in the window.
    """

def check_memory(tensors: Iterable[tuple[Tensor, Request]], *, share_storages: bool, more: int = 0) -> None:
    """Compares the memory of results that are kept together with what this process may take. Allocates nothing.

    Args:
        tensors: The tensors, each with its request.
        share_storages: As for `stream`.
        more: Bytes to add to the sum; negative for memory that is freed meanwhile.

    Raises:
        NotEnoughMemoryError: The results need more (code `NotEnoughMemory`).
    """

def needed_memory(tensors: Iterable[tuple[Tensor, Request]], *, share_storages: bool) -> int:
    """The most bytes of host memory in use while these results are made and kept; arguments as for `check_memory`."""

def order(
    tensors: Iterable[tuple[Tensor, Request]], *, by_file: bool
) -> tuple[list[int], dict[int, tuple[int, bool]]]:
    """The order in which `stream` returns these tensors; arguments and errors as for `stream`. Reads nothing.

    Returns:
        The index of each in the list. And for the positions of tied ones in this order: the index of the first with the same
        elements, and whether they occur again later.
    """

def gpu_free_memory(device: int) -> int | None:
    """The free bytes of a GPU of the CUDA driver; None if it does not say."""

def check_gpu_memory(tensors: Iterable[tuple[Tensor, Request]], *, free: int, freed: int) -> None:
    """Compares the memory of results that are kept together on a GPU with what it has left.

    Args:
        tensors: The tensors, each with its request.
        free: The bytes that new tensors may take.
        freed: The bytes that are freed meanwhile.

    Raises:
        NotEnoughMemoryError: They need more (code `NotEnoughMemory`).
    """

def is_cancelled() -> bool:
    """Whether the operation that this thread works for was stopped. A source that waits for an answer asks this."""

def cuda_info() -> dict[str, Any]:
    """The CUDA driver and GPUs. Initializes the driver, creates no context, and never raises.

    Returns:
        `available`, `reason` (None, or why no GPU can be used), `library` (the library that was loaded, or None), `driver`
        (the newest version of CUDA that it supports, such as "13.0", or HIP's own version; or None) and `devices` (the number
        of GPUs).
    """

def upload(device: int, *, window: int, threads: int | None) -> Upload:
    """Opens a queue of H2D copies to a GPU.

    Args:
        device: The GPU's ordinal in this process.
        window: The most bytes of host memory in addition to the pinned ring, which all uploads to the GPU share; at most
            128 MiB are used.
        threads: The number of threads that fill the ring; None for enough to saturate the link to the GPU, and one per core
            where the CPU casts. They are kept for later uploads.

    Raises:
        DeviceError: There is no driver or no such GPU, the process was forked after it used CUDA, or the driver reports an error.
        ValueError: `RUSTLOAD_RING` is not a size, or `RUSTLOAD_UPLOAD_CPUS` not a list of CPUs.
    """

@final
class Upload:
    """A queue of H2D copies of tensors to one GPU. Dropping it closes it."""

    @property
    def device(self) -> int:
        """The GPU's ordinal."""

    def submit(
        self,
        tensors: Iterable[tuple[Tensor, Request]],
        into: Sequence[Buffer],
        *,
        stream: int | None,
    ) -> int:
        """Enqueues a batch of tensors, and returns at once.

        Args:
            tensors: The tensors, each with its request. The CPU casts and transposes.
            into: For each tensor contiguous memory of this GPU of exactly the size of the result, which is C-contiguous in the
                requested order of dimensions. It is kept alive until `wait`.
            stream: The address of a CUDA stream, 0 for the default stream: the copies wait for the work that is enqueued there
                now. None for no wait.

        Returns:
            The ticket.

        Raises:
            ValueError: A destination is of another size, in host memory, on another GPU, or strided; or the upload is closed.
            DeviceError: The stream is capturing a CUDA graph, or the driver reports an error.
            UnsupportedError: A tensor is on the meta device. `wait` raises the other errors of a tensor.
        """

    def wait(self, ticket: int, *, stream: int | None, sync: bool) -> None:
        """Waits until all copies of a ticket are enqueued, and releases the ticket. Ctrl-C interrupts the wait.

        Args:
            ticket: The result of `submit`; each can be waited for once.
            stream: The address of a CUDA stream: work that is enqueued there later waits for the copies. None for no wait.
            sync: Whether to wait until the copies are done.

        Raises:
            RustloadError: The first error of the ticket, with the tensor's name. None of its copies is in flight then.
            DeviceError: The driver reports an error, or the process forked.
            ValueError: There is no such ticket.
        """

    def allocate(self, nbytes: int) -> Buffer:
        """Allocates memory of this GPU by the driver, as 1-D `uint8`; its contents are undefined.

        Raises:
            DeviceError: The GPU does not have enough free memory.
        """

    def rate(self) -> float:
        """The rate of H2D copies from the ring in bytes per second; measured once per process and GPU, in a few milliseconds."""

    def close(self) -> None:
        """Cancels all work, and returns when no copy is in flight. Tickets that were not waited for become invalid."""

def direct_upload_bytes(tensors: Iterable[tuple[Tensor, Request]], cast_below: int) -> list[int]:
    """For each tensor the bytes of its result, if `Upload.submit` makes it without work of the GPU, whatever its framework.

    That is a contiguous tensor without a transpose and without a cast, or with a cast to a narrower dtype if the tensor has fewer
    than `cast_below` bytes. 0 for other results, empty ones, those of meta tensors, and with `copy=False`.

    Args:
        tensors: The tensors, each with its request.
        cast_below: Tensors of fewer bytes are cast by the CPU.
    """

def end_upload_workers() -> None:
    """Ends the threads of uploads, after what they are doing now, so that none is inside the CUDA driver when the process ends.

    A later upload starts threads again. Does nothing in a forked child.
    """

def cast_rate(from_: str, to: str, threads: int | None) -> float:
    """The rate at which the CPU reads from the page cache and casts, in bytes of the source per second.

    It is measured once per process and pair of dtypes, in some milliseconds.

    Args:
        from_: The dtype of the source.
        to: The dtype of the result.
        threads: The number of threads; None for one per core.

    Raises:
        UnsupportedError: The cast is not supported.
        ValueError: A dtype is unknown.
    """

def memory() -> dict[str, Any]:
    """The memory use of this process and the limit of its cgroup: the fields of `rustload.Memory`; `group` is a path or None."""

def trim() -> int:
    """Frees recycled memory; returns the number of bytes."""

def machine() -> dict[str, Any]:
    """The properties of this machine that affect reading: `isa`, `isa_available`, `threads`, `huge_pages` (None if unknown)."""

def probe(path: str | os.PathLike[str], *, io: str, measure: bool) -> dict[str, Any]:
    """How a file would be read, and why.

    Args:
        path: A regular file.
        io: `"auto"`, `"buffered"` or `"direct"`.
        measure: Whether to read up to 64 MiB in both ways and measure the rates; the pages that this reads stay in the page
            cache.

    Returns:
        `size`, `file_system`, `kind`, `cached` (the fraction in the page cache, or None), `io`, `reason`, `in_flight` (the reads
        under way at once; None for one per core if there is enough work), `block` (the bytes of one read), `views` (whether
        tensors are views of a mapping by default), `direct` (whether O_DIRECT is supported), `buffered_rate` and `direct_rate`
        (bytes per second; None if not measured).

    Raises:
        OSError: The file cannot be read.
        FormatError: It is not a regular file.
    """

def finish_publication(path: str) -> None:
    """Finishes or takes back what a killed writer has begun to move to its target.

    Nothing is replaced that the writer could not. If the target is gone, there is nothing to do.

    Args:
        path: The hidden folder of the writer.

    Raises:
        OSError: Another writer has the target, or the system refuses.
    """

@final
class Request:
    """How the core makes a result."""

    def __new__(
        cls,
        *,
        dtype: object = None,
        transpose: bool | Sequence[int] | None = ...,
        copy: bool | None = ...,
        writable: object = ...,
        allow_lossy: object = ...,
        dequantize: object = ...,
        overflow: str = ...,
        threads: int | None = ...,
        mappings: Mappings | None = None,
    ) -> Self:
        """Without arguments, the result is as in the file. Views are read-only.

        With `writable` they are copy-on-write, and of `mappings`; None is the checkpoint's mapping.

        Raises:
            ValueError: An argument has none of its values, which the message lists.
            TypeError: An argument has a wrong type.
        """

    def but(
        self,
        *,
        dtype: object = ...,
        transpose: bool | Sequence[int] | None = ...,
        copy: bool | None = ...,
        writable: object = ...,
    ) -> Request:
        """The same with some fields changed."""

    @property
    def dtype(self) -> str | None:
        """The dtype as torch spells it; None for the file's."""

    @property
    def transpose(self) -> bool | list[int] | None:
        """True to swap the last two dimensions, a permutation, or None."""

    @property
    def copy(self) -> bool | None: ...
    @property
    def writable(self) -> bool: ...
    @property
    def allow_lossy(self) -> bool: ...
    @property
    def dequantize(self) -> bool: ...
    @property
    def overflow(self) -> str: ...
    @property
    def threads(self) -> int | None: ...

@final
class Limits:
    """Upper bounds on the memory and work that a file can cause; the defaults fit real checkpoints.

    >>> import rustload
    >>> rustload.Limits(tensors=10_000_000).tensors
    10000000
    """

    def __new__(cls, **limits: int | None) -> Self:
        """Sets some limits and leaves the others at their defaults.

        Args:
            **limits: Name and value of each limit to set; `Limits.describe()` lists the names. `available_memory=None` compares
                nothing.

        Raises:
            ValueError: No limit has that name, or the value is negative.
        """

    def __getattr__(self, name: str, /) -> int:
        """The limit of that name."""

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        """For pickles."""

    @staticmethod
    def describe() -> dict[str, str]:
        """The description of each limit, by name."""

@final
class Tensor:
    """A handle on a tensor or a part of one; `rustload.LazyTensor` wraps it."""

    @property
    def name(self) -> str:
        """The name in the checkpoint; a part has the name of the whole tensor."""

    @property
    def path(self) -> tuple[Any, ...]:
        """The keys and indices from the root of the object tree.

        Raises:
            LimitError: A key is nested too deeply.
        """

    @property
    def dtype(self) -> str:
        """The dtype in the file, as torch spells it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension, in the file."""

    @property
    def offset(self) -> int:
        """The offset of the first element in the storage, in elements."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together, in the file's dtype."""

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are C-contiguous in the file."""

    def check_repeats(self) -> None:
        """Checks that a copy of the elements is within the limit `materialize_bytes`, if the strides repeat elements.

        Raises:
            LimitError: It is not.
        """

    @property
    def is_parameter(self) -> bool:
        """Whether the file has it as a `torch.nn.Parameter`."""

    @property
    def is_meta(self) -> bool:
        """Whether it was saved on the meta device: a shape without elements."""

    @property
    def class_name(self) -> str | None:
        """The subclass of `torch.Tensor` that the file has it as, as `module.name`; None for plain tensors."""

    @property
    def requires_grad(self) -> bool:
        """Whether the file has `requires_grad` set."""

    @property
    def id(self) -> tuple[int, int]:
        """The index of the file, and of the tensor in it; equal for all parts and all names of one tensor."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that it belongs to."""

    def state(
        self,
    ) -> tuple[
        str | None,
        tuple[int, int],
        tuple[Sequence[int], Sequence[int], int],
        tuple[Sequence[int], Sequence[int], int] | None,
    ]:
        """What `Checkpoint.restored` makes the same handle of: name, id, and shape, strides and offset in elements.

        The last item is the layout of the scales, of a tensor quantized per channel or by block.
        """

    @property
    def storage(self) -> tuple[int, int]:
        """The storage: the index of the file, and of the storage in it. Tied tensors have the same."""

    @property
    def signs(self) -> tuple[bool, bool]:
        """Whether torch's lazy conjugate and negative bits are set: what is in the storage is not what is read."""

    @property
    def storage_nbytes(self) -> int:
        """The bytes of the storage, which may have more elements than the tensor."""

    def attributes(self, wrap: Callable[[Tensor], object]) -> list[Any]:
        """The states that the file sets on the tensor, in order: dicts of attributes, or values for a class's `__setstate__`.

        Args:
            wrap: Creates the object for a tensor in a state.

        Raises:
            LimitError: The states are nested too deeply, or have too many values.
        """

    def quantization(
        self, wrap: Callable[[Tensor], object]
    ) -> tuple[str, str, Any, Any, int | None, tuple[tuple[int, ...], tuple[int, ...], int] | None] | None:
        """The quantization parameters: dtype, scheme, scale, zero point, axis, and the packed layout.

        Args:
            wrap: Creates the object for a tensor of scales or zero points.

        Returns:
            None for a tensor that is not quantized. Scale and zero point are numbers if the axis is None, tensors or lists
            otherwise. The packed layout is shape, strides and offset if several elements share a byte, else None.
        """

    @property
    def is_kept_as_stored(self) -> bool:
        """Whether a plain `dtype=` leaves it: it is the codes of a quantized weight, or belongs to some, as scales do."""

    @property
    def companion_of(self) -> str | None:
        """The name of the codes that it belongs to; None for other tensors."""

    @property
    def file(self) -> int:
        """The number of the file that its elements are made of."""

    @property
    def scheme(self) -> tuple[str, int, list[str], int] | None:
        """Scheme, bits of a code, stored tensors and their bytes of a decoded weight; None for what is as it is stored."""

    def decoding(self) -> tuple[Any, ...] | None:
        """What a quantized weight of the logical view is decoded from, for a decoder that has the bytes elsewhere; else None.

        The fields are those of `_cuda.packed.Decoding`, in its order, with tuples of its `Codes`, `Scales` and `Outer`. Stored
        tensors are 1-D. Reads the indices of groups; those that are in order are left out.

        Raises:
            FormatError: An index is out of range (code `TensorBounds`).
        """

    @property
    def is_quantized(self) -> bool:
        """Whether `dequantize` changes its elements, or fails because they are codes."""

    @property
    def casts_without_scales(self) -> bool:
        """Whether a cast makes numbers of codes that have scales or the like beside them."""

    def check_scheme(self) -> None:
        """Checks that it is not codes, which `dequantize` of a request does not decode. Reads nothing.

        Raises:
            UnsupportedError: It is codes of a quantized weight (code `QuantUnknown`).
        """

    @property
    def part(
        self,
    ) -> (
        tuple[
            tuple[int, ...] | None,
            tuple[int, ...] | None,
            tuple[int, ...] | None,
            tuple[int, ...] | None,
            tuple[str, ...] | None,
        ]
        | None
    ):
        """The part of a larger tensor that it is: shape, offsets, mesh, coordinate, placements; None for a whole one."""

    def index(self, key: object) -> Tensor:
        """A part by basic indexing.

        Args:
            key: An int, a slice with a positive step, `...`, None, or a tuple of these.

        Raises:
            IndexError: An index is out of bounds, or there are too many.
            ValueError: A step is not positive, or there are two ellipses.
            TypeError: It is another kind of index.
        """

    def permute(self, dims: Sequence[int]) -> Tensor:
        """The same elements with the dimensions in another order.

        Raises:
            ValueError: `dims` is not a permutation of all dimensions.
        """

    def reversed(self) -> Tensor:
        """The same elements with the dimensions reversed."""

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """The same elements in the same order, in another shape, where one size may be -1.

        Raises:
            ValueError: The number of elements differs, or elements would need to be moved.
        """

    def materialize(self, request: Request) -> Buffer:
        """The elements in memory. Reads tensor data, except for a view.

        Raises:
            BufferError: `copy` is False and no view is possible.
            ValueError: The cast is lossy, or the transpose is not a permutation.
            UnsupportedError: The cast is not supported.
            FormatError: The file was truncated or changed, or the member is damaged.
            LimitError: A broadcast tensor (stride 0) would need more than `materialize_bytes`.
            MemoryError: The memory could not be allocated.
        """

    def materialize_into(self, request: Request, out: CapsuleType) -> None:
        """Writes the elements, C-contiguous in the requested order, into memory of another library. Reads tensor data.

        Args:
            request: As for `materialize`; `copy` is ignored.
            out: A DLPack capsule of a writable, contiguous 1-D `uint8` tensor in host memory, of exactly the result's size.

        Raises:
            TypeError: It is not a DLPack capsule, or was consumed already.
            ValueError: The capsule is of another kind of tensor, or of another size.
        """

    def result_shape(self, request: Request) -> tuple[int, ...]:
        """The shape of the result of `materialize`."""

    def shared_storage(self, copy: bool | None) -> Literal["view", "copy"] | None:
        """How the tensor can share its storage with others; reads only bools.

        Returns:
            `"view"`: the mapping of the file. `"copy"`: a copy of the whole storage, which keeps strides and tied names. None:
            its elements have to be copied separately.

        Raises:
            BufferError: `copy` is False and no view is possible.
        """

    def lone_view(self, mappings: Mappings | None = None) -> tuple[tuple[int, int, int], Any] | None:
        """The checkpoint's serial, the storage and a DLPack capsule of a view, of a whole storage that no other name uses.

        None for other tensors, for bools (whose check reads them), and if no view is possible.

        Args:
            mappings: The mapping of the file to use; None for that of the checkpoint, which all its other writable views share.

        Raises:
            FormatError: The file was truncated or changed.
        """

    def storage_bytes(self, kind: str, request: Request) -> Buffer:
        """All bytes of the storage as `uint8`, as a view or a copy.

        Args:
            kind: The result of `shared_storage`.
            request: As for `materialize`.

        Raises:
            BufferError: A view is not possible.
            FormatError: The file was truncated or changed.
        """

@final
class Mappings:
    """Private copy-on-write mappings of files, one per file, for the views of one owner.

    In-place edits of these views are not visible in the views of other owners. A file is mapped with its first view. Thread-safe.
    """

    def __new__(cls) -> Mappings:
        """Maps nothing yet."""

def check_sparse(
    layout: str, shape: Sequence[int], is_coalesced: bool | None, parts: Sequence[Tensor]
) -> None:
    """Checks that the parts of a sparse tensor are consistent with each other and with the shape. Reads the indices.

    Args:
        layout: `"sparse_coo"` and the like.
        shape: Elements along each dimension.
        is_coalesced: Whether the indices must be sorted and unique.
        parts: The parts, in the order of the layout.

    Raises:
        FormatError: The parts are not consistent (code `SparseInvariant`).
        ValueError: No layout has that name.
    """

def similar(name: str, names: Iterable[object], count: int) -> list[str]:
    """The names most similar to a name that does not exist, best match first; searches a bounded number of names.

    Args:
        name: The name that does not exist.
        names: The names that exist; objects that are not str are skipped.
        count: The most names to return.
    """

def dtype_name(dtype: object) -> str:
    """Normalizes a dtype to its torch name.

    Args:
        dtype: A name as torch, safetensors or NumPy spells it, a `torch.dtype`, a NumPy dtype or scalar type.

    Raises:
        ValueError: No dtype has that name; the note lists all names.
        TypeError: It is not a dtype.
    """

@final
class ScanOptions:
    """What a scan accepts and leaves out."""

    def __new__(
        cls,
        *,
        limits: Limits | None = ...,
        allow: Sequence[str] = ...,
        exclude: Sequence[str] = ...,
        manifest: Manifest | None = ...,
        manifest_file: str | None = ...,
    ) -> Self:
        """Checks the options.

        Args:
            limits: The limits.
            allow: The names that are accepted, as for `rustload.Policy`.
            exclude: The files and directories that are left out, as for `rustload.Policy`.
            manifest: What paths and folders have to be; others are refused.
            manifest_file: The path of the file that the manifest was read from, which is not scanned in a directory.

        Raises:
            ValueError: A name cannot be allowed.
        """

    def excludes(self, root: str, path: str) -> bool:
        """Whether a file or folder at `path`, in the folder `root` that is scanned, is left out."""

    def not_found(self) -> list[str]:
        """What `exclude` has, and no scan with these options has met."""

def scan(source: _Source, options: ScanOptions, root: str | None = ...) -> str:
    """Scans files, all in directories and folders, or bytes; reads no tensor data.

    Args:
        source: What is scanned.
        options: What is accepted and left out.
        root: The name of the folder in which a folder of a store is scanned; None for itself.

    Returns:
        The report as JSON (docs/reference/scan.md lists its keys).

    Raises:
        OSError: A path does not exist, or a directory cannot be listed.
    """

def check_allowance(pattern: str) -> None:
    """Checks a name or pattern of `rustload.Policy.allow`.

    Raises:
        ValueError: It is not one, or it covers a name that executes code or accesses the system.
    """
