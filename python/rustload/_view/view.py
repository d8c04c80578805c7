"""`view`: writes what a checkpoint holds as an HTML page or as an SVG image."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rustload import _rustload
from rustload._checkpoint.checkpoint import Checkpoint
from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.files import head_of
from rustload._common.paths import refuse_input
from rustload._common.request import Request
from rustload._common.terminal import Page
from rustload._describe.describe import describe
from rustload._describe.scanned import all_files
from rustload._describe.text import View, show
from rustload._remote.urls import is_url, local_path, name_of
from rustload._scan.policy import Policy
from rustload._scan.scan import scan as scan_source
from rustload._view.document import document
from rustload._view.page import GENERATOR, page
from rustload._view.svg import SVG_GENERATOR, svg_image
from rustload.errors import RustloadError, _check_one_of, _clipped, _error, _pass, _Remedy

if TYPE_CHECKING:
    from rustload._common.manifest import ManifestLike
    from rustload._common.paths import StrPath
    from rustload._describe.describe import Described
    from rustload._scan.report import ScanReport

TEXT_LINES_MAX, LINE_CHARS_MAX = 400, 300
"""The most lines of the text that is shown without scripts, and the most characters of each."""


def view(
    source: Any,
    output: StrPath | None = None,
    *,
    svg: bool = False,
    stats: Literal["sample", "full"] | None = None,
    dequantize: bool = False,
    scan: bool = True,
    manifest: ManifestLike | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a page that shows what a checkpoint holds: one HTML file that needs no network, or the treemap as an SVG image.

    The page has a treemap of bytes by module, all tensors in a tree with a search, dtypes, files, tied weights, values that are
    no tensors, and what a scan of the files found. Reads metadata only, unless `stats` is set. Names from the file are text; the
    page's content security policy lets only rustload's own script run.

    >>> import rustload
    >>> rustload.view("model.pt").name
    'model.rustload.html'

    Args:
        source: A checkpoint: what `rustload.open` takes, or a `Checkpoint`.
        output: The file to write; None is the name of the checkpoint with `.rustload.html` (or `.rustload.svg`) in the working
            directory.
        svg: Whether to write the treemap alone, as an SVG image.
        stats: Whether to read tensors and show statistics and histograms of their numbers: `"sample"` reads about 65,536
            elements of each, `"full"` all. None reads none.
        dequantize: Whether the page shows the weights that quantized tensors stand for; paths are opened with it.
        scan: Whether to scan the files, as `rustload.scan` does.
        manifest: As for `rustload.open`, for paths: the files are read and scanned as it lists them.
        overwrite: Whether to replace a file that this function did not write. One that it wrote is always replaced.

    Returns:
        The path of the file.

    Raises:
        FileExistsError: The output exists, and `view` did not write it.
        ValueError: The output is a URL or a file of the checkpoint, or `stats` has another value.
        RustloadError: The checkpoint cannot be opened, as for `rustload.open`; with `stats`, as for `Checkpoint.stats`.
        OSError: A file cannot be read or written.
    """
    _check_one_of("stats", stats, (None, "sample", "full"))
    own: contextlib.AbstractContextManager[Checkpoint] = contextlib.nullcontext(source)
    if not isinstance(source, Checkpoint):
        own = open_checkpoint(source, dequantize=dequantize, manifest=manifest)
    with own as checkpoint:
        path = _path_of(source, checkpoint)
        target = Path(local_path(output)) if output is not None else _default(path, svg=svg)
        # Before the work, and again when the file is written.
        is_ours = _check_target(target, all_files(checkpoint), overwrite=overwrite)
        described = describe(checkpoint, path)
        if svg:
            content = svg_image(described)
        else:
            report = _scan(source, checkpoint, manifest) if scan else None
            request = None if stats is None else Request()
            data = document(checkpoint, described, report, request, sample=stats == "sample")
            content = page(data, _text(described), name=data["name"], version=_rustload.__version__)
    text = content.encode("utf-8", "backslashreplace").decode()
    # It appears when it is complete, or not at all.
    _rustload.PreparedText(str(target), text, overwrite=is_ours, sync=False).commit()
    return target


def _path_of(source: Any, checkpoint: Checkpoint) -> str:
    """The path that the page shows, of which it keeps the last part; without the secrets of URLs."""
    if is_url(source):
        return name_of(source)
    if isinstance(source, (str, os.PathLike)):
        return os.fsdecode(source)
    if len(checkpoint.files) > 1:
        return os.path.dirname(os.path.abspath(checkpoint.files[0]))
    return checkpoint.files[0] if checkpoint.files else checkpoint._core.source_name or "checkpoint"


def _default(path: str, *, svg: bool) -> Path:
    """The name of the checkpoint without its suffix, in the working directory."""
    last = os.path.basename(path.rstrip("/")) or os.path.basename(os.path.abspath(path))
    stem = last.removesuffix(".index.json")
    known = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".npy", ".pkl")
    stem = next((stem.removesuffix(suffix) for suffix in known if stem.endswith(suffix)), stem)
    return Path(f"{stem or 'checkpoint'}.rustload.{'svg' if svg else 'html'}")


def _check_target(target: Path, files: list[str], *, overwrite: bool) -> bool:
    """Whether the target exists and may be replaced.

    Raises:
        FileExistsError: It exists, and neither `view` wrote it nor `overwrite` is set.
        ValueError: It is a file of the checkpoint.
    """
    refuse_input(str(target), files)
    if not target.exists():
        return False
    if not target.is_file():
        raise _exists(target, "the output is not a regular file: name another output")
    if overwrite:
        return True
    start = head_of(str(target), max(len(GENERATOR), len(SVG_GENERATOR)))
    if not start.startswith((GENERATOR.encode(), SVG_GENERATOR.encode())):
        raise _exists(target, _pass("overwrite", "to replace what rustload view did not write", value=True))
    return True


def _exists(target: Path, note: str | _Remedy) -> BaseException:
    return _error("TargetExists", "", note, errno=errno.EEXIST, path=str(target))


def _scan(source: Any, checkpoint: Checkpoint, manifest: ManifestLike | None) -> ScanReport | str | None:
    """The report on the files of a checkpoint; a text if they cannot be scanned, None for one that has no files to scan."""
    is_object = hasattr(source, "read_ranges")
    given = (not is_object and all_files(checkpoint)) or (None if isinstance(source, Checkpoint) else source)
    if given is None or is_url(given) or (isinstance(given, list) and any(map(is_url, given))):
        return None
    try:
        return scan_source(given, policy=Policy(manifest=manifest))
    except (RustloadError, OSError, ValueError, TypeError) as error:
        return str(error)


def _text(described: Described) -> str:
    """The text of `rustload info`, cut after some lines."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    out = Page(stream, "never")
    show(out, described | {"path": os.path.basename(described["path"].rstrip("/"))}, View())
    out.flush()
    stream.seek(0)
    lines = [_clipped(line, LINE_CHARS_MAX) for line in stream.read().splitlines()]
    if len(lines) > TEXT_LINES_MAX:
        more = f"and {len(lines) - TEXT_LINES_MAX:,} more lines (rustload info has all)"
        lines[TEXT_LINES_MAX:] = ["", more]
    return "\n".join(lines)
