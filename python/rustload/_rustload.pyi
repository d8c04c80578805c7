"""The compiled core of rustload. Use the package `rustload` instead: of this module, only `Buffer` is public.

Shapes, strides and offsets count elements; whatever is called bytes counts bytes. Errors are the classes of `rustload.errors`,
each with a stable `code`. Nothing here reads tensor data, except what says so.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, final

from typing_extensions import CapsuleType

__all__ = [
    "CODES",
    "DEBUG",
    "DTYPES",
    "LIMITS",
    "Buffer",
    "Checkpoint",
    "Joined",
    "Stream",
    "Tensor",
    "Upload",
    "__version__",
    "adopt",
    "cast_rate",
    "check_sparse",
    "concat",
    "cuda_info",
    "machine",
    "memory",
    "open_at",
    "open_bytes",
    "open_paths",
    "parse_dtype",
    "probe",
    "scan_bytes",
    "scan_paths",
    "stack",
    "steps",
    "stream",
    "trim",
    "upload",
]

__version__: Final[str]

DEBUG: Final[bool]
"""Whether this is a debug build, which is slow."""

DTYPES: Final[list[tuple[str, int, str | None]]]
"""Every dtype: its name in torch's words, bytes of one element, and its code in a safetensors header if it has one."""

LIMITS: Final[list[tuple[str, int, str]]]
"""Every limit: its name, its default, and what it bounds."""

CODES: Final[list[tuple[str, str, str, str]]]
"""Every error code: its spelling, who must act, what it means, and what to try next (may be empty)."""

@final
class Buffer:
    """A tensor in memory, for any consumer of DLPack or, in host memory, the buffer protocol.

    What `materialize` makes under framework "dlpack". It is either owned (memory of its own, C-contiguous) or a view (a private,
    copy-on-write mapping of the file, with the file's strides); both are writable, and neither ever writes to the file. It
    keeps its memory alive, and so does whatever was made from it. One on a GPU (`device="cuda"`) is owned and complete; the host
    cannot read it, so it has DLPack alone.

    >>> import rustload
    >>> w = rustload.open("model.pt")["q.weight"].materialize(dtype="float16", framework="dlpack")
    >>> w
    <rustload.Buffer float16 [8, 8] owned>
    >>> memoryview(w).format, memoryview(w).shape
    ('e', (8, 8))
    """

    @property
    def dtype(self) -> str:
        """The element type, in torch's words: `"bfloat16"`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together, not of gaps between them."""

    @property
    def is_view(self) -> bool:
        """Whether it is a view of the file's private mapping."""

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
            stream: None or -1 for host memory, which has no streams; on a GPU also 1, 2, or the address of any CUDA stream: what
                the buffer holds is complete, so that none has to wait.
            max_version: The newest version that the consumer knows; from (1, 0) on it gets the versioned structure.
            dl_device: None, or what `__dlpack_device__` says.
            copy: Not True: a buffer is exported as it is.
            **_extra: Arguments of later versions of the protocol, ignored.

        Raises:
            BufferError: The consumer wants a stream that cannot be, another device or a copy; or a size does not fit 63 bits.
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

        Where it owns its memory and shares it with nobody, the structure says so (`IS_COPIED`): the consumer is the sole owner.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """`(1, 0)`, the CPU, or `(2, n)`, CUDA's device n."""

    def as_bytes(self) -> Buffer:
        """The same memory as a row of `uint8`.

        Raises:
            BufferError: The elements do not lie one after the other.
        """

    def part(self, start: int, dtype: str, shape: Sequence[int]) -> Buffer:
        """A contiguous part of the same memory.

        Args:
            start: The byte where it begins, counted from the buffer's first.
            dtype: Its element type, by any of its names.
            shape: Elements along each dimension.

        Raises:
            BufferError: The buffer is strided.
            ValueError: The part does not lie inside, or is not aligned for its dtype.
        """

    def tobytes(self) -> bytes:
        """A copy of the elements' bytes, in C order.

        Raises:
            BufferError: The buffer is on a GPU.
        """

    def __buffer__(self, flags: int, /) -> memoryview:
        """The buffer protocol; dtypes that `struct` does not know appear as the unsigned bits they are.

        Raises:
            BufferError: The buffer is strided and the consumer wants contiguous bytes; or it is on a GPU.
        """

def adopt(capsule: CapsuleType) -> Buffer:
    """Takes over memory of a GPU that another library allocated; it is freed when the last of what was made of it goes.

    Args:
        capsule: A DLPack capsule of a writable, contiguous row of `uint8` on a CUDA device.

    Raises:
        TypeError: The capsule is not DLPack's, or was used before.
        BufferError: The memory is not such a row.
    """

@final
class Checkpoint:
    """An opened checkpoint; `rustload.Checkpoint` is its face."""

    @property
    def format(self) -> str:
        """The files' format: `"torch-zip"`, `"torch-legacy"` or `"safetensors"`."""

    @property
    def files(self) -> list[str]:
        """The files, in shard order; none for bytes in memory."""

    @property
    def metadata(self) -> dict[str, str]:
        """The files' own metadata, by key."""

    @property
    def notes(self) -> list[str]:
        """Things worth knowing that are no error."""

    @property
    def nbytes(self) -> int:
        """Bytes of all storages that named tensors lie in, each counted once."""

    def names(self) -> list[str]:
        """The names, in the files' order."""

    def __len__(self) -> int:
        """The number of names."""

    def __contains__(self, key: str, /) -> bool:
        """Whether a tensor has that name."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            TensorNotFoundError: There is none; the note gives near names.
        """

    def tied(self) -> list[list[str]]:
        """The names that share a storage, in groups of two and more."""

    def opaque(self) -> list[tuple[str, int, list[str]]]:
        """The classes kept as data: `module.name`, how many values, and the names of the first few."""

    def globals(self) -> list[str]:
        """Every class and function that the pickles name, as `module.name`, once, sorted."""

    def objects(self, wrap: Callable[[Tensor], object]) -> list[Any]:
        """Each file's object tree, in shard order; a dict of the tensors for a file that has none.

        Args:
            wrap: Makes what stands in the tree for a tensor.

        Raises:
            LimitError: The tree is nested too deeply, or has too many values (`depth`, `export_nodes`).
            FormatError: A tuple or frozen set contains itself (code `CyclicValue`).
        """

    def rebuild(self, shard: int, builder: _Builder) -> Any:
        """One file's object tree, with what a builder makes for tensors and torch's own values; errors as for `objects`.

        Args:
            shard: Which file.
            builder: Asked for each such value once; what it raises is raised.
        """

    def globals_of(self, shard: int) -> list[str]:
        """Every class and function that one file names, as `module.name`, once, in the order of the pickle."""

    @property
    def shards(self) -> int:
        """The number of files."""

    @property
    def end(self) -> int | None:
        """One past the last byte of a legacy stream, from where it begins; None where the format does not tell."""

    @property
    def is_torchscript(self) -> bool:
        """Whether an archive holds a program, by the member that torch goes by."""

    def storages(self, shard: int, places: bool) -> list[tuple[int, str | None, int | None]]:
        """Every storage of a file, in the order in which tensors name them first.

        Args:
            shard: Which file.
            places: Whether to find out where each lies, which looks at the headers of members.

        Returns:
            For each its bytes, the location that it was saved from (None where the file has none), and where it starts, counted
            from the checkpoint's beginning (None where its bytes do not lie there as they are, or without `places`).
        """

    def storage_views(self, shard: int) -> tuple[Buffer, list[int | None]]:
        """All bytes of a file as a private mapping, and for each storage where it starts in it.

        Returns:
            The bytes, and None for a storage that must be copied: compressed, misaligned, in another byte order, inside a pickle,
            or with bools other than 0 and 1 (bools are read to find out).

        Raises:
            BufferError: The bytes are in memory, not in a file.
            MemoryError: The system refuses the mapping.
            FormatError: The file was cut or changed.
        """

    def storage_tensors(self, shard: int) -> list[Tensor | None]:
        """Each storage of a file as a row of what it holds: bools, or unsigned numbers of the size of its tensors' elements.

        Returns:
            The rows, which lie over the whole storage; None for one without bytes, or that no plain tensor lies in.
        """

    def read_storages(self, shard: int, wanted: Sequence[int]) -> tuple[list[Buffer], list[tuple[int, int]]]:
        """Some storages in memory of their own, in this machine's byte order. Reads tensor data.

        Returns:
            Rows of bytes, each with one storage or with several of at most 64 KiB; and for each storage asked for its row and
            the byte of it where it starts, a multiple of 64.

        Raises:
            FormatError: The file was cut or changed, or a member is damaged.
            MemoryError: The memory could not be allocated.
        """

class _Builder(Protocol):
    """What `Checkpoint.rebuild` asks; `rustload.torch._build.Builder` is one."""

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
        place: tuple[int, str, int, tuple[int, ...], tuple[int, ...]],
        flags: int,
        scheme: str,
        scale: tuple[Any, Any, int | None],
        /,
    ) -> Any:
        """A quantized tensor: storage, dtype, offset, shape and strides; flags; and scale, zero point and axis."""

    def sparse(self, form: tuple[str, tuple[int, ...], bool | None], parts: tuple[Any, ...], /) -> Any:
        """A sparse tensor of its layout, shape and coalescence, and its parts in the order of the file."""

    def parameter(self, made: Any, /) -> Any:
        """A tensor as a parameter."""

    def storage(self, storage: int, dtype: str, /) -> Any:
        """A storage that stands in the tree by itself."""

    def size(self, items: tuple[Any, ...], /) -> Any:
        """A `torch.Size`."""

    def label(self, module: str, name: str, /) -> Any:
        """What the name of a class, function or constant stands for; None for a label."""

    def record(self, class_name: str, args: tuple[Any, ...], /) -> Any:
        """A device, a layout, or a parameter around a sparse tensor."""

    def opaque(self, class_name: str, /) -> None:
        """Called for each value that is kept as data; raises to refuse it."""

    def attributes(self, made: Any, state: Any, /) -> None:
        """Sets what BUILD sets on a mapping, or the attributes of a tensor."""

def open_paths(
    paths: Sequence[str | os.PathLike[str]],
    *,
    unknown: str,
    trailing: str,
    compat: bool,
    verify: bool,
    limits: Mapping[str, int],
    io: str = "auto",
) -> Checkpoint:
    """Opens a file, a directory, an index file, or a list of shards. Reads metadata only, unless `verify`.

    Args:
        paths: One path of any kind, or several files.
        unknown: `"keep"` or `"error"`.
        trailing: `"error"` or `"ignore"`.
        compat: Whether the last of duplicate keys in a safetensors header wins.
        verify: Whether every storage is read and its checksum compared.
        limits: Values of limits by name; the others keep their defaults.
        io: `"auto"`, `"buffered"` or `"direct"`: how payload is read.

    Raises:
        OSError: A file cannot be read.
        FormatError: It is no checkpoint, or a damaged one.
        UnsupportedError: It is of a kind that is not read yet.
        DisallowedError: It names something unknown, and `unknown` is `"error"`.
        LimitError: It is beyond a limit.
        ValueError: An argument has a wrong value.
    """

def open_at(
    path: str | os.PathLike[str], start: int, *, unknown: str, trailing: str, limits: Mapping[str, int]
) -> Checkpoint:
    """Opens the checkpoint that begins at byte `start` of a file and ends with it; arguments and errors as for `open_paths`."""

def open_bytes(
    data: bytes,
    *,
    unknown: str,
    trailing: str,
    compat: bool,
    verify: bool,
    limits: Mapping[str, int],
) -> Checkpoint:
    """Opens the bytes of one file; arguments and errors as for `open_paths`.

    Args:
        data: The bytes, which the checkpoint keeps and does not copy.
        unknown: As for `open_paths`.
        trailing: As for `open_paths`.
        compat: As for `open_paths`.
        verify: As for `open_paths`.
        limits: As for `open_paths`.
    """

@final
class Joined:
    """Tensors of one dtype, end to end along one dimension; `rustload.JoinedTensor` is its face."""

    @property
    def dtype(self) -> str:
        """The element type in the files, in torch's words."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together, in the files' dtype."""

    @property
    def dim(self) -> int:
        """The dimension along which the parts lie end to end; it says nothing where there is one part."""

    def parts(self) -> list[Tensor]:
        """The tensors that it is made of, in order."""

    def index(self, key: object) -> Joined:
        """A part by basic indexing; arguments and errors as for `Tensor.index`."""

    def permute(self, dims: Sequence[int]) -> Joined:
        """The same elements with the dimensions in another order; errors as for `Tensor.permute`."""

    def reversed(self) -> Joined:
        """The same elements with the dimensions reversed."""

    def materialize(self, wanted: _Wanted) -> Buffer:
        """The elements in memory. Reads tensor data, each part straight to its place; errors as for `Tensor.materialize`."""

    def materialize_into(self, wanted: _Wanted, out: CapsuleType) -> None:
        """Writes the elements into foreign memory; arguments and errors as for `Tensor.materialize_into`."""

    def result_shape(self, wanted: _Wanted) -> tuple[int, ...]:
        """The shape of what `materialize` would give."""

    def quantization(self, _wrap: Callable[[Tensor], object]) -> None:
        """None: that of the parts is with the parts."""

    def shared_storage(self, copy: bool | None) -> Literal["view", "copy"] | None:
        """None: it has no storage of its own.

        Raises:
            BufferError: `copy` is False, and there are several parts.
        """

def concat(tensors: Sequence[Tensor], dim: int) -> Joined:
    """The tensors one after the other along `dim`. Reads nothing.

    Raises:
        ValueError: There are none, or their dtypes or shapes do not fit.
        IndexError: `dim` is out of bounds.
    """

def stack(tensors: Sequence[Tensor], dim: int) -> Joined:
    """The tensors side by side along a new dimension `dim`. Reads nothing.

    Raises:
        ValueError: There are none, or their dtypes or shapes differ.
        IndexError: `dim` is out of bounds.
    """

@final
class Stream:
    """Tensors that are made ahead of whoever takes them; `Checkpoint.stream` is its face."""

    def next(self) -> tuple[int, int, bool, Literal["view", "copy"] | None, Buffer | None] | None:
        """The next tensor, or None after the last. Reads tensor data, on threads of the stream.

        Returns:
            Its place in the list; the place of the first with the same elements; whether they come again; how it can stand on
            a storage that it shares, if it is left to the caller; and the elements, if it is not and they are not what was
            given for the first.

        Raises:
            ValueError: The stream was begun in another process (code `Forked`), or another thread is using it.
            RustloadError: As for `Tensor.materialize`; the message or a note names the tensor. Nothing comes after it.
        """

    def order(self) -> list[int]:
        """The places in the list, in the order in which they are given.

        Raises:
            ValueError: Another thread is using it.
        """

    def close(self) -> None:
        """Ends it: stops the threads and frees what was made and not taken; whoever waits in `next` gets None.

        Waits for the threads, unless somebody is in `next`: then another call does, or the drop.
        """

def stream(
    tensors: Sequence[Tensor],
    wanted: Sequence[_Wanted],
    which: Sequence[int],
    *,
    window: int,
    threads: int | None,
    by_file: bool,
    share_storages: bool,
    results_kept: bool,
) -> Stream:
    """A stream of tensors. Reads nothing before the first is asked for.

    Args:
        tensors: The tensors.
        wanted: The different ways in which they are wanted.
        which: For each tensor, the number of its way.
        window: Bytes that may be in flight.
        threads: Threads to use; None for one per core.
        by_file: Whether they are given in the order of the data, or as listed.
        share_storages: Whether the caller makes tensors that share a storage itself, on that storage.
        results_kept: Whether the caller keeps all results. Otherwise memory of dropped results that is cached for reuse counts in
            the window.

    Raises:
        ValueError: A number in `which` is too large, or an argument has a wrong value.
    """

def steps(
    tensors: Sequence[Tensor], wanted: Sequence[_Wanted], which: Sequence[int], *, by_file: bool
) -> list[tuple[int, int, bool]]:
    """The order in which `stream` gives these tensors; arguments and errors as there. Reads nothing.

    Returns:
        For each its place in the list, the place of the first with the same elements, and whether they come again.
    """

def cuda_info() -> dict[str, Any]:
    """What CUDA there is. Starts the driver, makes no context, and never raises.

    Returns:
        `available`, `reason` (None, or why no GPU can be used), `library` (as it was opened, or None), `driver` (the newest CUDA
        that it knows, as "13.0", or None) and `devices` (how many).
    """

def upload(device: int, *, window: int, threads: int | None) -> Upload:
    """Begins uploads to a GPU.

    Args:
        device: The GPU's ordinal in this process.
        window: Bytes of host memory that it may take beside the pinned ring, which all uploads to the GPU share; no more than
            128 MiB are taken.
        threads: Threads that fill the ring; None for as many as keep the link busy.

    Raises:
        DeviceError: There is no driver or no such GPU, this is a child of a process that has used CUDA, or the driver refuses.
        ValueError: `RUSTLOAD_RING` is no size.
    """

@final
class Upload:
    """Uploads of tensors to one GPU. Dropping it closes it."""

    @property
    def device(self) -> int:
        """The GPU's ordinal."""

    def submit(
        self,
        tensors: Sequence[Tensor],
        wanted: Sequence[_Wanted],
        which: Sequence[int],
        into: Sequence[Buffer],
        *,
        stream: int | None,
    ) -> int:
        """Takes a batch of tensors on, and returns at once.

        Args:
            tensors: The tensors.
            wanted: The different ways in which they are wanted. Casts and orders are made on the CPU.
            which: For each tensor, the number of its way.
            into: For each tensor contiguous memory of this GPU of exactly the result's bytes. The result is C-contiguous in the
                order wanted. It is kept until the ticket is waited for.
            stream: A CUDA stream by its address, 0 for the default stream: no copy begins before what is in it now is done. None
                for no such order.

        Returns:
            The ticket.

        Raises:
            ValueError: A destination is of another size, in host memory, on another GPU, or strided; or the upload is closed.
            DeviceError: The stream records a CUDA graph, or the driver refuses.
            UnsupportedError: A tensor is on the meta device. What else is wrong with a tensor is raised by `wait`.
        """

    def wait(self, ticket: int, *, stream: int | None, sync: bool) -> None:
        """Waits until all copies of a ticket are begun, and ends the ticket. Ctrl-C is seen.

        Args:
            ticket: What `submit` returned; each can be waited for once.
            stream: A CUDA stream by its address: what comes after in it waits until the copies are done. None for none.
            sync: Whether to wait until the copies are done.

        Raises:
            RustloadError: The first error of the ticket, with the tensor's name. Nothing of the ticket is in flight then.
            DeviceError: The driver refuses, or the process forked.
            ValueError: There is no such ticket.
        """

    def allocate(self, nbytes: int) -> Buffer:
        """Memory of this GPU as a row of `uint8`, by the driver; what it holds is not defined.

        Raises:
            DeviceError: There is not so much.
        """

    def rate(self) -> float:
        """Bytes per second of copies out of the ring, measured once per process and GPU, in a few milliseconds."""

    def close(self) -> None:
        """Stops what is under way, and returns when nothing is in flight. Tickets that were not waited for are lost."""

def cast_rate(from_: str, to: str, threads: int | None) -> float:
    """Bytes of source per second that the CPU casts; measured once per process, in a few milliseconds.

    Args:
        from_: The dtype of the source.
        to: The dtype of the result.
        threads: Threads that cast; None for one per core.

    Raises:
        UnsupportedError: There is no such cast.
        ValueError: A dtype is unknown.
    """

def memory() -> dict[str, Any]:
    """What this process uses and what its group allows: the fields of `rustload.Memory`, in bytes; `group` is a path or None."""

def trim() -> int:
    """Gives back the memory that is kept for later results; how many bytes that were."""

def machine() -> dict[str, Any]:
    """What decides how fast this machine reads: `isa`, `isa_available`, `threads`, `huge_pages` (None where it is not told)."""

def probe(path: str | os.PathLike[str], *, io: str, measure: bool) -> dict[str, Any]:
    """How a file would be read, and why.

    Args:
        path: A regular file.
        io: `"auto"`, `"buffered"` or `"direct"`.
        measure: Whether up to 64 MiB are read in both ways to tell how fast that is, in bytes per second; what is read through
            the page cache stays there.

    Returns:
        `size`, `file_system`, `kind`, `cached` (a share or None), `io`, `reason`, `direct` (whether such reads can be had),
        `buffered_rate` and `direct_rate` (None where not measured).

    Raises:
        OSError: The file cannot be read.
        FormatError: It is no regular file.
    """

class _Wanted(Protocol):
    """How a result is wanted; `rustload._tensor.Wanted` is one."""

    dtype: str | None
    transpose: bool | list[int] | None
    copy: bool | None
    allow_lossy: bool
    dequantize: bool
    threads: int | None
    mappings: Mappings | None

    @property
    def overflow(self) -> str: ...

@final
class Tensor:
    """A handle on a tensor or a part of one; `rustload.LazyTensor` is its face."""

    @property
    def name(self) -> str:
        """The name in the checkpoint; a part has its whole's."""

    @property
    def path(self) -> tuple[Any, ...]:
        """The keys and indices from the root of the object tree.

        Raises:
            LimitError: A key is nested too deeply.
        """

    @property
    def dtype(self) -> str:
        """The element type in the file, in torch's words."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension, in the file."""

    @property
    def offset(self) -> int:
        """Elements from the storage's start to the first element."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together, in the file's dtype."""

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""

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
        """Whether the file says that it wants gradients."""

    @property
    def id(self) -> tuple[int, int]:
        """Number of the file, and number of the tensor in it; a part has its whole's, and so have several names of one tensor."""

    @property
    def storage(self) -> tuple[int, int]:
        """The storage: number of the file and number in it. Tied tensors have the same."""

    def attributes(self, wrap: Callable[[Tensor], object]) -> list[Any]:
        """What the file sets on the tensor, in its order: each a dict of attributes, or a pair of such a dict and one of slots.

        Args:
            wrap: Makes what stands in them for a tensor.

        Raises:
            LimitError: They are nested too deeply, or have too many values.
        """

    def quantization(
        self, wrap: Callable[[Tensor], object]
    ) -> tuple[str, str, Any, Any, int | None, tuple[tuple[int, ...], tuple[int, ...], int] | None] | None:
        """How the integers stand for numbers: dtype, scheme, scale, zero point, axis, and the packed layout.

        Args:
            wrap: Makes what stands for tensors of scales and zero points.

        Returns:
            None for a tensor that is not quantized. Scale and zero point are numbers where the axis is None, tensors or lists
            otherwise. The packed layout is shape, strides and offset, where several numbers share a byte.
        """

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

    def materialize(self, wanted: _Wanted) -> Buffer:
        """The elements in memory. Reads tensor data, except for a view.

        Raises:
            BufferError: A view is demanded and none is possible.
            ValueError: The cast is lossy, or the order is no permutation.
            UnsupportedError: There is no such cast.
            FormatError: The file was cut or changed, or the member is damaged.
            LimitError: Repeated elements would grow beyond `materialize_bytes`.
            MemoryError: The memory could not be allocated.
        """

    def materialize_into(self, wanted: _Wanted, out: CapsuleType) -> None:
        """Writes the elements, C-contiguous in the order asked for, into foreign memory. Reads tensor data.

        Args:
            wanted: As for `materialize`; `copy` does not count.
            out: A DLPack capsule of a writable, contiguous row of `uint8` in host memory, exactly as long as the result.

        Raises:
            TypeError: The capsule is not DLPack's, or was used before.
            ValueError: The memory is not such a row.
        """

    def result_shape(self, wanted: _Wanted) -> tuple[int, ...]:
        """The shape of what `materialize` would give."""

    def shared_storage(self, copy: bool | None) -> Literal["view", "copy"] | None:
        """Where the tensor can get the storage that it shares with others. Reads nothing but bools, which it validates.

        Returns:
            `"view"` from the file's mapping, `"copy"` from a copy of the whole storage (which preserves strides, and ties between
            names), or None where its elements have to be copied by themselves.

        Raises:
            BufferError: `copy` is False and no view is possible.
        """

    def lone_view(self, mappings: Mappings | None = None) -> tuple[tuple[int, int], Any] | None:
        """The storage and a DLPack capsule of a view, for a tensor that is all of a storage which no other name lies in.

        None where it takes more to find out, or there is no view.

        Args:
            mappings: Whose mapping of the file it is; None for the checkpoint's, which all its other views share.

        Raises:
            FormatError: The file was cut or changed.
        """

    def storage_bytes(self, standing: str, wanted: _Wanted) -> Buffer:
        """All bytes of the storage as `uint8`, as a view or a copy.

        Args:
            standing: What `standing` gave.
            wanted: As for `materialize`.

        Raises:
            BufferError: No view of them exists.
            FormatError: The file was cut or changed.
        """

@final
class Mappings:
    """Private copy-on-write mappings of files, one for each file, that one owner of views has to itself.

    An in-place edit of a view in them is seen in no view of another owner. A file is mapped when its first view is made. May be
    used from any thread.
    """

    def __new__(cls) -> Mappings:
        """Maps nothing yet."""

def check_sparse(
    layout: str, shape: Sequence[int], is_coalesced: bool | None, parts: Sequence[Tensor]
) -> None:
    """Checks what a sparse tensor's parts say of each other. Reads the indices.

    Args:
        layout: `"sparse_coo"` and the like.
        shape: Elements along each dimension.
        is_coalesced: Whether coordinates must be in order, each once.
        parts: The parts, in the order of the layout.

    Raises:
        FormatError: They do not fit the shape, or each other (code `SparseInvariant`).
        ValueError: There is no such layout.
    """

def similar(name: str, names: Iterable[object], count: int) -> list[str]:
    """The names that may have been meant by one that is not there, the likest first; looks at a bounded number of them.

    Args:
        name: The one that is not there.
        names: Those that are; what is no text is passed over.
        count: How many are wanted at most.
    """

def parse_dtype(name: str) -> str:
    """The dtype's name in torch's words.

    Args:
        name: A name in torch's, safetensors' or NumPy's words, with or without `torch.`.

    Raises:
        ValueError: There is no such dtype; the note lists those there are.
    """

def scan_paths(paths: Sequence[str], *, limits: Mapping[str, int]) -> str:
    """Scans files and directories; reads no tensor data.

    Returns:
        The report as JSON (docs/scan.md lists its keys).

    Raises:
        OSError: A path does not exist, or a directory cannot be listed.
        ValueError: No limit has such a name.
    """

def scan_bytes(data: bytes, *, limits: Mapping[str, int]) -> str:
    """Scans the bytes of one file.

    Returns:
        The report as JSON.

    Raises:
        ValueError: No limit has such a name.
    """
