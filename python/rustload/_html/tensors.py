"""HTML of many tensors, as a folded tree, and of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from rustload._common import tree
from rustload._common.sizes import format_bytes
from rustload._common.terminal import count
from rustload._html.page import Budget, details, frame, table, text
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload import _rustload

ROWS_MAX = 160
"""The most rows of a tree: as many levels are shown as have no more."""
DTYPES_MAX = 12
"""The most rows of the table of dtypes."""
VALUES_MAX = 12
"""The most values beside the tensors, and the most classes."""
VALUE_CHARS_MAX = 200
_PICKLED = ("torch-zip", "torch-legacy", "torch-tar", "pickle")
PARTS_MAX = 12
"""The most parts of a joined tensor."""


def mapping_html(
    title: str,
    remark: str,
    fallback: str,
    core: _rustload.Checkpoint,
    names: Mapping[str, str] | None,
    all_of_it: str,
) -> str:
    """The HTML of a checkpoint or a selection; reads no tensor data.

    Args:
        title: What it is.
        remark: What follows the title.
        fallback: The text where styles are removed.
        core: The checkpoint.
        names: The names to show, each with its name in the checkpoint; None for all.
        all_of_it: What to call to see all tensors, if some are cut.
    """
    budget = Budget()
    sizes: dict[str, list[int]] = {}
    root = tree.build(_leaves(core, names, sizes))
    body = [_dtypes(sizes, budget)]
    beside = _values(core, budget) + _opaque(core, budget) if names is None else ""
    body += [_tree(root, budget, all_of_it), beside]
    return frame(title, remark, fallback, body)


def _leaves(
    core: _rustload.Checkpoint, names: Mapping[str, str] | None, sizes: dict[str, list[int]]
) -> Iterator[tuple[str, tree.Leaf, int]]:
    """The tensors for `tree.build`; adds their number and bytes to `sizes` by dtype. Names of one tensor count once."""
    tied = {name for group in core.tied() for name in group}
    leaves: dict[tuple[str, tuple[int, ...], bool], tree.Leaf] = {}
    identities: set[object] = set()
    for name, in_file in ((one, one) for one in core.names()) if names is None else names.items():
        tensor = core.tensor(in_file)
        key = tensor.dtype, tensor.shape, bool(tied) and in_file in tied
        leaf = leaves.get(key)
        if leaf is None:
            leaf = leaves[key] = tree.Leaf(*key[:2], tensor.nbytes, key[2])
        counted = leaf.nbytes
        if key[2]:
            identity = tensor.storage, tensor.offset, *key, tensor.strides
            counted = 0 if identity in identities else counted
            identities.add(identity)
        if counted or not leaf.nbytes:
            found = sizes.setdefault(leaf.dtype, [0, 0])
            found[0] += 1
            found[1] += counted
        yield name, leaf, counted


def _dtypes(sizes: dict[str, list[int]], budget: Budget) -> str:
    if not sizes:
        return "<p>no tensors</p>"
    total = sum(nbytes for _, nbytes in sizes.values()) or 1
    largest = sorted(sizes.items(), key=lambda item: -item[1][1])
    rows = [
        (
            f'<span class="d">{text(dtype)}</span>',
            f'<span class="x"><i style="width:{100 * nbytes / total:.1f}%"></i></span>',
            format_bytes(nbytes),
            f'<span class="m">{count(number, "tensor")}</span>',
        )
        for dtype, (number, nbytes) in largest[:DTYPES_MAX]
    ]
    more = len(largest) - DTYPES_MAX
    return table(rows, budget, numbers=(2,))[0] + (
        f'<p class="m">and {count(more, "dtype")} more</p>' if more > 0 else ""
    )


def _tree(root: tree.Node, budget: Budget, all_of_it: str) -> str:
    """The tree as nested `<details>`, cut where the budget ends. Its first level is open, and the second of one that is alone."""
    depth, has_more = _levels(root)
    out: list[str] = []
    # The parts that are still open: after each node, those at its level and below are closed.
    opened = 0
    is_cut = has_more
    for node, lasts in tree.walk(root, depth):
        level = len(lasts) - 1
        is_group = bool(node.children) and level + 1 < depth
        is_open = level == 0 or (level == 1 and len(root.children) == 1)
        line = "</details>" * max(opened - level, 0) + _row(node, is_group=is_group, is_open=is_open)
        if not budget.take(line):
            is_cut = True
            break
        out.append(line)
        opened = level + is_group
    out.append("</details>" * opened)
    if is_cut:
        out.append(f'<p class="m">not all is shown: see {text(all_of_it, 300)}</p>')
    return details(f"<b>tensors</b> ({root.tensors:,})", "".join(out), is_open=True) if root.tensors else ""


def _values(core: _rustload.Checkpoint, budget: Budget) -> str:
    """What is beside the tensors at the top of the pickles."""
    if saved := core.saved_values():
        rows = [(f'<span class="k">{text(name)}</span>', "not read") for name, _ in saved[:VALUES_MAX]]
        return _section("values", len(saved), rows, budget, "ckpt.objects, which reads them")
    if core.format not in _PICKLED:
        return ""
    try:
        roots = core.objects(lambda _tensor: NotImplemented)
    except RustloadError:
        return ""  # reading them says why
    found = [
        pair
        for root in roots
        if isinstance(root, dict)
        for pair in root.items()
        if pair[1] is not NotImplemented
    ]
    shown = [
        (key if isinstance(key, str) else _short(key), _short(value)) for key, value in found[:VALUES_MAX]
    ]
    rows = [(f'<span class="k">{text(key)}</span>', text(value)) for key, value in shown]
    return _section("values", len(found), rows, budget, "ckpt.objects")


def _short(value: Any) -> str:
    """A scalar or a value of another class; of a container, how much it holds."""
    if isinstance(value, str):
        return repr(value[:VALUE_CHARS_MAX])
    if isinstance(value, int) and value.bit_length() > 64:
        return f"int of {value.bit_length():,} bits"
    if isinstance(value, (Mapping, Sequence, Set)):
        return f"{type(value).__name__} of {len(value):,}"
    return repr(value)


def _opaque(core: _rustload.Checkpoint, budget: Budget) -> str:
    """The classes of values that were kept as data."""
    found = core.opaque()
    rows = [
        (
            f'<span class="k">{text(name)}</span>',
            f"{number:,}x",
            f'<span class="m">at {text(", ".join(at), 100)}</span>',
        )
        for name, number, at in found[:VALUES_MAX]
    ]
    return _section("kept as data", len(found), rows, budget, "ckpt.opaque")


def _section(title: str, number: int, rows: Sequence[Sequence[str]], budget: Budget, all_of_it: str) -> str:
    """A section of rows, folded unless it is short."""
    if not number:
        return ""
    inside, complete = table(rows, budget)
    if not complete or number > len(rows):
        inside += f'<p class="m">not all is shown: see {all_of_it}</p>'
    return details(f"<b>{title}</b> ({number:,})", inside, is_open=number <= VALUES_MAX)


def _levels(root: tree.Node) -> tuple[int, bool]:
    """Returns the number of levels to show, at least one, and whether there are more."""
    level, rows, depth = root.children, 0, 0
    while level and (depth == 0 or rows + len(level) <= ROWS_MAX):
        depth, rows = depth + 1, rows + len(level)
        level = [child for node in level for child in node.children]
    return depth, bool(level)


def _row(node: tree.Node, *, is_group: bool, is_open: bool) -> str:
    times = f" ×{node.times:,}" if node.times > 1 and node.leaf else ""  # noqa: RUF001 - the sign for "times"
    name = f'<span class="n">{text(node.label) or "&quot;&quot;"}{times}</span>'
    if node.leaf:
        shape = str(list(node.leaf.shape))
        what = f'<span class="d">{text(node.leaf.dtype)}</span><span class="s">{text(shape, 60)}</span>'
    else:
        tensors = count(node.tensors, "tensor")
        if node.times > 1 and node.tensors % node.times == 0:
            tensors = f"{node.times:,} × {count(node.tensors // node.times, 'tensor')}"  # noqa: RUF001 - as above
        what = f'<span class="m">{tensors}</span>'
    remark = "tied " if node.leaf and node.leaf.tied else ""
    remark += f"{format_bytes(node.own // node.times)} each" if node.times > 1 else ""
    size = f'<span class="b">{format_bytes(tree.shown_nbytes(node))}</span><span class="m e">{remark}</span>'
    if is_group:
        return f'<details{" open" if is_open else ""}><summary class="g">{name}{what}{size}</summary>'
    return f'<div class="r">{name}{what}{size}</div>'


def tensor_html(
    title: str, fallback: str, rows: Sequence[tuple[str, str]], parts: Sequence[tuple[str, str, str]] = ()
) -> str:
    """The HTML of one tensor: names and values of its properties, and name, shape and size of each part that it joins."""
    budget = Budget()
    cells = [(f'<span class="m">{text(name)}</span>', text(value, 400)) for name, value in rows]
    body = [table(cells, budget)[0]]
    if parts:
        shown = [tuple(text(cell) for cell in part) for part in parts[:PARTS_MAX]]
        inside = table(shown, budget)[0]
        if len(parts) > PARTS_MAX:
            inside += f'<p class="m">and {len(parts) - PARTS_MAX:,} more: see .parts</p>'
        body.append(details(f"<b>parts</b> ({len(parts):,})", inside))
    return frame(title, "", fallback, body)
