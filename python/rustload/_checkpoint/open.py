"""`open`: opens a checkpoint of any format."""

from __future__ import annotations

import builtins

from rustload import _rustload
from rustload._checkpoint.checkpoint import Checkpoint
from rustload._checkpoint.tensors import Selection, TensorMapping
from rustload._common.options import OpenOptions, filled, takes
from rustload._common.paths import StrPath, file_bytes, is_file_object, open_bytes, open_paths
from rustload._frameworks import adapters
from rustload._remote.folder import ObjectFolder, ObjectList, in_folder
from rustload._remote.ranges import ObjectRanges
from rustload._remote.resolve import remote_source
from rustload._remote.urls import DEFAULT_SCHEMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from io import BytesIO
    from typing import Any, Unpack

    from rustload._common.files import FileObject
    from rustload._common.manifest import ManifestLike
    from rustload._frameworks.adapters import Framework
    from rustload._rustload import Limits


@takes(OpenOptions)
def open(
    path: StrPath
    | Iterable[StrPath | FileObject]
    | bytes
    | bytearray
    | memoryview
    | BytesIO
    | FileObject
    | ObjectFolder,
    *,
    framework: Framework | None = None,
    verify: bool = False,
    dequantize: bool = False,
    manifest: ManifestLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    remote: Collection[str] = DEFAULT_SCHEMES,
    **options: Unpack[OpenOptions],
) -> Checkpoint:
    """Opens a checkpoint by reading its metadata; nothing that the file names is imported, called or built.

    Args:
        path: A file, a directory, an index file (`*.index.json`), or a list of shards; or the content of one file, as a
            `bytes`, `bytearray`, `memoryview` or `BytesIO` (for a path as bytes, pass `os.fsdecode(path)`).
            Or an open binary file, whose content is the checkpoint whatever its position: a file on disk is opened again by its
            path; any other object that can seek is read by `seek` and `read` when tensors are, by one thread at a time, and stays
            in use as long as the checkpoint. Pipes and decompressors (gzip) are read into memory first. An object with `size` and
            `read_ranges` (`rustload.Ranges`) is read by ranges, from several threads, and so is a file of fsspec that is not on
            disk. Or the URL of a file, an index file, a folder or a repository (`"hf://org/model"`, `"s3://bucket/key"`), or a
            list of URLs of shards, which fsspec reads: see docs/guides/remote.md.
        framework: The framework of results: `"torch"`, `"numpy"`, `"jax"`, `"cupy"` or `"dlpack"`; safetensors' names `"pt"`,
            `"np"` and `"flax"` mean the first three. None: torch if it is installed, else NumPy, else plain buffers; chosen at
            the first `materialize`.
        verify: Whether to verify the checksums of all storages now, which reads the whole file. Archives only.
        dequantize: Whether quantized weights are the numbers that they mean: each is one tensor with the name and shape of the
            weight, decoded as it is read, and its codes and scales are not listed. False: all tensors as they are stored. For
            tensors of torch's own quantized dtypes, see `materialize(dequantize=True)`.
        manifest: A `rustload.Manifest`, or what it reads: the SHA-256 digests of the files. All bytes are compared with it before
            anything gets them, and files that it does not list are refused. Tensors are read, never viewed. `"hf"`: the digests
            that huggingface_hub has kept in its cache or in a `local_dir`.
        storage_options: What fsspec makes the file system of a URL with, credentials for example; for web servers `headers` and a
            few more. No message shows them.
        remote: The schemes of URLs that are allowed; `()` for none. The default is all that are encrypted, and `memory`.
        **options: How the file is read (`OpenOptions`).

    Returns:
        The checkpoint, a mapping from names to lazy tensors.

    Raises:
        FormatError: The file is not a checkpoint, is damaged, or is not what the manifest lists.
        UnsupportedError: The format of the file is not supported yet, or the package for the URL is missing.
        DisallowedError: The pickle names an unknown class or function, and `unknown="error"`.
        LimitError: The file exceeds a limit; or a pipe's content, half of the available memory.
        OSError: The file cannot be read.
        TypeError: `path` is neither a path, bytes nor an open binary file that can seek.
        ValueError: The scheme of the URL is not in `remote`, or another argument has an unknown value.
    """
    chosen = None if framework is None else adapters.framework_name(framework)
    how = _rustload.OpenOptions(verify=verify, dequantize=dequantize, **filled(open, options))
    source: Any = remote_source(path, storage_options=storage_options, remote=remote)
    listed = None
    if manifest is not None:
        from rustload._common.manifest import core_of

        listed = core_of(manifest, source)
    if isinstance(source, ObjectRanges):
        source = ObjectList([source]) if listed is None else in_folder(source)
    content = file_bytes(source)
    if content is None and is_file_object(source):
        from rustload._common.files import file_name, source_of

        source = source_of(source, from_start=True)
        if isinstance(source, builtins.bytes):
            content = source
        elif not isinstance(source, str):
            source = (source, 0, file_name(source))
    if content is not None:
        core = open_bytes(content, how, listed)
    elif isinstance(source, (ObjectFolder, tuple)):
        core = _rustload.open(source, how, listed)
    else:
        core = open_paths(source, how, listed)
    return Checkpoint._wrap(core, chosen)


def opened(
    given: Any, framework: Framework, limits: Limits | None = None, *, dequantize: bool = False
) -> tuple[Checkpoint, TensorMapping]:
    """The checkpoint, and the tensors to use of it, for an argument that may be a path, a checkpoint or a selection."""
    if isinstance(given, Selection):
        checkpoint: Checkpoint = given._source  # type: ignore[assignment]  # every selection is of one
        return checkpoint, given
    if isinstance(given, Checkpoint):
        return given, given
    checkpoint = open(given, framework=framework, limits=limits, dequantize=dequantize)
    return checkpoint, checkpoint
