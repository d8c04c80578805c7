"""`rustload info`: what a checkpoint holds, as text for people and as JSON for machines."""

from __future__ import annotations

import json as json_format
import sys
from typing import TYPE_CHECKING, Any

import rustload
from rustload._cli import UNREAD, tree
from rustload._cli.text import Page, count, escape, size
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]

# Lines that one of the lists below the tree may have; --json has all of it.
MOST = 12
# Version of the JSON document; a key that goes or changes its meaning raises it.
SCHEMA = 1


def run(paths: Sequence[str], *, json: bool, color: str, tensors: bool) -> int:
    """Shows each path and returns the exit code.

    Args:
        paths: What to open, each by itself.
        json: Whether to print one JSON document for all.
        color: `"auto"`, `"always"` or `"never"`.
        tensors: Whether to list all tensors in place of the tree.
    """
    found: list[dict[str, Any]] = []
    code = 0
    page = Page(sys.stdout, color)
    for position, path in enumerate(paths):
        try:
            report = describe(path)
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            code = UNREAD
            report = {"path": path, "error": complain(error)}
        if json:
            found.append(report)
        elif "error" not in report:
            if position:
                page.line()
            show(page, report, tensors=tensors)
            page.flush()
    if json:
        json_format.dump(
            {"schema": SCHEMA, "rustload": rustload.__version__, "checkpoints": found}, sys.stdout, indent=1
        )
        sys.stdout.write("\n")
    return code


def complain(error: Exception) -> dict[str, Any]:
    """Prints an error to stderr and returns it as JSON has it."""
    message, notes = str(error), list(getattr(error, "__notes__", []))
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    page = Page(sys.stderr, "never")
    page.line(f"rustload: error: {escape(message)}")
    for note in notes:
        page.line(f"  note: {escape(note)}")
    page.flush()
    place = {name: getattr(error, name, None) for name in ("code", "member", "offset")}
    return {"class": type(error).__name__, **place, "message": message, "notes": notes}


def describe(path: str) -> dict[str, Any]:
    """Opens a checkpoint and returns all that is known of it without reading a tensor, as JSON has it."""
    with rustload.open(path) as checkpoint:
        described = []
        dtypes: dict[str, dict[str, int]] = {}
        places: set[object] = set()
        elements = nbytes = 0
        for name, tensor in checkpoint.items():
            core = tensor._core
            place = (core.storage, core.offset, core.dtype, core.shape, core.strides)
            repeats = place in places and tensor.size > 0
            places.add(place)
            entry = {
                "name": name,
                "dtype": core.dtype,
                "shape": list(core.shape),
                "strides": list(core.strides),
                "nbytes": core.nbytes,
                "storage": list(core.storage),
                "storage_offset": core.offset,
                "contiguous": core.is_contiguous,
                "parameter": core.is_parameter,
                "repeats": repeats,
            }
            described.append(entry)
            if not repeats:
                seen = dtypes.setdefault(core.dtype, {"tensors": 0, "nbytes": 0})
                seen["tensors"] += 1
                seen["nbytes"] += core.nbytes
                elements += core.size
                nbytes += core.nbytes
        by_size = sorted(dtypes.items(), key=lambda item: -item[1]["nbytes"])
        return {
            "path": path,
            "format": checkpoint.format,
            "files": checkpoint.files,
            "elements": elements,
            "nbytes": nbytes,
            "storage_nbytes": checkpoint.nbytes,
            "dtypes": [{"dtype": dtype, **seen} for dtype, seen in by_size],
            "tied": checkpoint.tied,
            "opaque": [found._asdict() for found in checkpoint.opaque],
            "globals": checkpoint.globals,
            "notes": checkpoint.notes,
            "metadata": checkpoint.metadata,
            "tensors": described,
        }


def show(page: Page, report: dict[str, Any], *, tensors: bool) -> None:
    """Prints a report as text."""
    page.title(escape(report["path"]))
    files = report["files"]
    of_files = f" in {len(files)} files" if len(files) > 1 else ""
    page.field("format", report["format"] + of_files)
    page.field("tensors", f"{len(report['tensors']):,}")
    page.field("elements", f"{report['elements']:,}" + _rounded(report["elements"]))
    page.field("size", size(report["nbytes"]) + _storages(report))
    if report["dtypes"]:
        page.heading("dtypes")
        _dtypes(page, report)
    if report["tensors"]:
        page.heading("tensors")
        (_list if tensors else _tree)(page, report["tensors"], report["tied"])
    if report["tied"]:
        page.heading("tied", "names that share a storage")
        places = {entry["name"]: _place(entry) for entry in report["tensors"]}
        _some(page, [_group(group, places) for group in report["tied"]])
    if report["opaque"]:
        page.heading("kept as data", "values of classes that were not built")
        _some(page, [_class(found) for found in report["opaque"]])
    if report["globals"]:
        page.heading("named by the pickle", "nothing of it was imported or called")
        page.wrapped([escape(name) for name in report["globals"]], most=MOST * 3)
    if report["metadata"]:
        page.heading("metadata")
        width = max(len(escape(key)) for key in report["metadata"])
        _some(
            page,
            [
                f"{escape(key):<{min(width, 30)}}  {escape(value)}"
                for key, value in report["metadata"].items()
            ],
        )
    if report["notes"]:
        page.heading("notes")
        _some(page, [escape(note) for note in report["notes"]])


def _rounded(number: int) -> str:
    """A large number once more, as model names spell it."""
    for unit, power in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= power:
            return f" ({number / power:.1f} {unit})"
    return ""


def _storages(report: dict[str, Any]) -> str:
    """Says where tensors and the storages that they lie in differ in size."""
    if report["storage_nbytes"] == report["nbytes"]:
        return ""
    return f", in storages of {size(report['storage_nbytes'])}"


def _dtypes(page: Page, report: dict[str, Any]) -> None:
    total = report["nbytes"] or 1
    width = max(len(seen["dtype"]) for seen in report["dtypes"])
    for seen in report["dtypes"]:
        share = seen["nbytes"] / total
        page.line(
            f"  {page.dtype(seen['dtype'].ljust(width))}  {page.bar(share)} {size(seen['nbytes']):>11} {_percent(share):>6}"
            f"  {page.dim(count(seen['tensors'], 'tensor'))}"
        )


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1%"
    # 100% means all.
    return f"{min(share * 100, 99.9) if share < 1 else 100:.1f}%"


def _tree(page: Page, tensors: list[dict[str, Any]], tied: list[list[str]]) -> None:
    sharing = {name for group in tied for name in group}
    leaves = (
        (
            entry["name"],
            tree.Leaf(entry["dtype"], tuple(entry["shape"]), entry["nbytes"], entry["name"] in sharing),
            0 if entry["repeats"] else entry["nbytes"],
        )
        for entry in tensors
    )
    rows = []
    for node, lasts in tree.walk(tree.build(leaves)):
        label = page.clipped(escape(node.label) or '""')
        name = page.branches(lasts) + (label if node.leaf else page.strong(label))
        plain = 3 * len(lasts[1:]) + len(label)
        if node.times > 1 and node.leaf:
            times = f"  {page.times}{node.times}"
            name, plain = name + times, plain + len(times)
        rows.append((name, plain, node))
    width = min(max(plain for _, plain, _ in rows), 64)
    dtypes = max((len(node.leaf.dtype) for *_, node in rows if node.leaf), default=0)
    shapes = max((len(str(list(node.leaf.shape))) for *_, node in rows if node.leaf), default=0)
    inner = [len(_inside(page, node)) for *_, node in rows if not node.leaf]
    columns = max(dtypes + 2 + shapes, *inner, 0)
    for name, plain, node in rows:
        padded = "  " + name + " " * (width - plain)
        if node.leaf is None:
            inside = page.dim(_inside(page, node).ljust(columns))
        else:
            inside = f"{page.dtype(node.leaf.dtype.ljust(dtypes))}  {list(node.leaf.shape)!s:<{columns - dtypes - 2}}"
        remark = "  tied" if node.leaf and node.leaf.tied else ""
        if node.times > 1 and _shown(node) % node.times == 0:
            remark += f"  {size(_shown(node) // node.times)} each"
        page.line(f"{padded}  {inside} {size(_shown(node)):>11}{page.dim(remark)}")


def _inside(page: Page, node: tree.Node) -> str:
    """How many tensors are in a group: `32 × 9 tensors` where it is folded."""  # noqa: RUF002 - as it is shown
    if node.times == 1 or node.tensors % node.times:
        return count(node.tensors, "tensor")
    return f"{node.times} {page.times} {count(node.tensors // node.times, 'tensor')}"


def _shown(node: tree.Node) -> int:
    """The size of a row: of a tensor its own, so that a shared one is not empty; of a group the sum."""
    return node.leaf.nbytes * node.times if node.leaf and not node.children else node.nbytes


def _list(page: Page, tensors: list[dict[str, Any]], tied: list[list[str]]) -> None:
    sharing = {name for group in tied for name in group}
    width = min(max(len(escape(entry["name"])) for entry in tensors), 80)
    dtypes = max(len(entry["dtype"]) for entry in tensors)
    shapes = max(len(str(entry["shape"])) for entry in tensors)
    for entry in tensors:
        remark = page.dim("  tied") if entry["name"] in sharing else ""
        page.line(
            f"  {escape(entry['name']):<{width}}  {page.dtype(entry['dtype'].ljust(dtypes))}  {entry['shape']!s:<{shapes}}"
            f" {size(entry['nbytes']):>11}{remark}"
        )


def _place(entry: dict[str, Any]) -> str:
    """What is the same for names of one and the same tensor."""
    return str([entry[key] for key in ("storage", "storage_offset", "dtype", "shape", "strides")])


def _group(names: list[str], places: dict[str, str]) -> str:
    same = len({places[name] for name in names}) == 1
    return (" = " if same else ", ").join(escape(name) for name in names) + (
        "" if same else "  (different parts)"
    )


def _class(found: dict[str, Any]) -> str:
    at = [escape(name) or "the root" for name in found["at"][:3]]
    more = found["count"] - len(at)
    where = f"  at {', '.join(at)}" + (f" and {more} more" if more > 0 else "") if at else ""
    return f"{escape(found['class_name'])}  {found['count']:,}x{where}"


def _some(page: Page, lines: list[str]) -> None:
    """Prints the first few lines and how many are left."""
    for line in lines[:MOST]:
        page.line(f"  {page.clipped(line)}")
    if len(lines) > MOST:
        page.line(page.dim(f"  and {len(lines) - MOST:,} more (--json has all)"))
