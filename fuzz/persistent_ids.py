"""Differential fuzzing of persistent ids: random files whose ids describe storages, read by `torch.load` and by rustload.

An id has a class, a key, a size and in legacy streams a view. Keys are drawn from few, so that one key is described again with
another class or size, and views have keys of their own, of other storages, or of their root. Ids are tensors, values or dropped.
Archives are little- or big-endian, and tensors have the dtype of their storage or another one. Where both readers open a file,
every value must have the same dtype, shape, strides and bits, and share memory as in torch; rustload may refuse any file.

    python fuzz/persistent_ids.py [--seed 1] [--count 100000] [--form legacy|zip] [--show N]

prints how many files rustload opens, how many of those torch reads, and the refusals by code. A difference ends the run; its
file is printed, and `--show N` prints it again.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import io
import pathlib
import pickletools
import random
import struct
import sys
import warnings
import zipfile
from typing import Any

import torch

import rustload
import rustload.torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from programs import (
    FALSE,
    MARK,
    NONE,
    REDUCE,
    TUPLE,
    check,
    integer,
    ints,
    name,
    number,
    same_elements,
    text,
)

FORMS = ("legacy", "zip")
TYPED = (
    *("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"),
    *("ComplexFloat", "ComplexDouble"),
)
QUANTIZED = ("QInt8", "QInt32", "QUInt8", "QUInt4x2", "QUInt2x4")
CLASSES = {stem: f"torch.{stem}Storage" for stem in (*TYPED, *QUANTIZED)} | {
    "Untyped": "torch.storage.UntypedStorage"
}
WIDTHS = {stem: getattr(torch, f"{stem}Storage")._dtype.itemsize for stem in (*TYPED, *QUANTIZED)} | {
    "Untyped": 1
}
DTYPES = [
    *(
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
    ),
    *("complex128", "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e5m2"),
]
STORAGE_KEYS, VIEW_KEYS = ("0", "1", "2", "3"), ("7", "8", "9")
BYTEORDERS = (None, b"little", b"big", b"big", b"LITTLE", b"native")
HEAD = (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", b"\x80\x02M\xe9\x03.", b"\x80\x02}.")


@dataclasses.dataclass(frozen=True)
class Id:
    """A persistent id; `view` is its key, offset and size."""

    stem: str
    key: str
    numel: int
    view: tuple[str, int, int] | None = None

    @property
    def width(self) -> int:
        """The bytes of an element."""
        return WIDTHS[self.stem]

    @property
    def count(self) -> int:
        """The elements that a tensor may use."""
        return self.numel if self.view is None else self.view[2]

    def opcodes(self, form: str) -> bytes:
        """The opcodes that push the storage."""
        out = (
            MARK
            + text("storage")
            + name(CLASSES[self.stem])
            + text(self.key)
            + text("cpu")
            + integer(self.numel)
        )
        if form == "legacy":
            view = self.view
            out += (
                NONE if view is None else MARK + text(view[0]) + integer(view[1]) + integer(view[2]) + TUPLE
            )
        return out + TUPLE + b"Q"


class File:
    """A random file.

    Args:
        rng: The source of all choices.
        form: `"legacy"` or `"zip"`.
    """

    def __init__(self, rng: random.Random, form: str) -> None:
        self.rng, self.form = rng, form
        # How often a key is described in another way than at first: never in half of the files.
        self.conflicts = rng.choice((0.0, 0.0, 0.1, 0.4))
        self.homes: dict[str, tuple[str, int]] = {}
        self.views: dict[str, tuple[str, str, int, int]] = {}
        self.ids: list[Id] = []
        items = [self.item() if rng.random() < 0.85 else self.dropped() for _ in range(rng.randint(1, 6))]
        self.pickle = b"\x80\x02" + MARK + b"".join(items) + TUPLE + b"."
        self.byteorder = rng.choice(BYTEORDERS)
        self.data = self.stream() if form == "legacy" else self.archive()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def id(self) -> Id:
        """An id; the next of the same key usually agrees with it."""
        key = self.rng.choice(STORAGE_KEYS[: self.rng.randint(1, 4)])
        if self.chance(self.conflicts / 2):
            key = self.rng.choice(VIEW_KEYS)
        if key not in self.homes or self.chance(self.conflicts):
            stem = self.rng.choice(list(CLASSES) if self.chance(0.4) else ("Float", "Long", "Half", "Byte"))
            home = stem, self.rng.choice((0, 1, 2, 4, 6, 6, 12))
            self.homes.setdefault(key, home)
        else:
            home = self.homes[key]
        view = self.view(key, home[1]) if self.form == "legacy" and self.chance(0.4) else None
        found = Id(*home[:1], key, home[1], view)
        self.ids.append(found)
        return found

    def view(self, root: str, numel: int) -> tuple[str, int, int]:
        """A view, usually inside its root, and with the key of another view only if it is the same."""
        key = self.rng.choice(VIEW_KEYS)
        if self.chance(self.conflicts / 2):
            key = self.rng.choice((root, *STORAGE_KEYS))
        offset = self.rng.randint(0, numel)
        size = self.rng.randint(0, numel - offset)
        if self.chance(self.conflicts / 4):
            offset, size = self.rng.choice((-2, 0, numel)), self.rng.randint(0, numel + 2)
        if not self.chance(self.conflicts):
            free = next(
                (one for one in VIEW_KEYS if one not in self.views or self.views[one][0] == root), key
            )
            if key in self.views and self.views[key][0] != root:
                key = free
            if key in self.views and self.views[key][0] == root:
                return self.views[key][1:]
        self.views.setdefault(key, (root, key, offset, size))
        return key, offset, size

    def dropped(self) -> bytes:
        """A dict with an id whose place another value takes: torch's unpickler has no POP."""
        return b"}" + text("a") + self.id().opcodes(self.form) + b"s" + text("a") + NONE + b"s"

    def item(self) -> bytes:
        """The opcodes of one value."""
        on = self.id()
        match self.rng.randrange(8):
            case 0 | 1:
                return on.opcodes(self.form)
            case 2:
                return (
                    name("torch._utils._rebuild_tensor") + MARK + self.placed(on, on.width) + TUPLE + REDUCE
                )
            case 3:
                dtype = self.rng.choice(DTYPES)
                placed = self.placed(on, getattr(torch, dtype).itemsize)
                out = name("torch._utils._rebuild_tensor_v3") + MARK + placed + FALSE + self.hooks()
                return out + name(f"torch.{dtype}") + TUPLE + REDUCE
            case 4 if on.stem in QUANTIZED:
                scheme = MARK + name("torch.per_tensor_affine") + number(0.5) + integer(1) + TUPLE
                packed = {"QUInt4x2": 2, "QUInt2x4": 4}.get(on.stem, 1)
                placed = self.placed(on, on.width, packed)
                out = name("torch._utils._rebuild_qtensor") + MARK + placed + scheme + FALSE + self.hooks()
                return out + TUPLE + REDUCE
            case _:
                placed = self.placed(on, on.width)
                out = name("torch._utils._rebuild_tensor_v2") + MARK + placed + FALSE + self.hooks()
                return out + TUPLE + REDUCE

    def hooks(self) -> bytes:
        return name("collections.OrderedDict") + b")R"

    def placed(self, on: Id, width: int, packed: int = 1) -> bytes:
        """Storage, offset, size and strides, usually inside the storage."""
        have = on.count * on.width // width * packed
        size = tuple(self.rng.choice((0, 1, 2, 2, 3)) for _ in range(self.rng.randint(0, 2)))
        stride = tuple(self.rng.choice((0, 1, 1, 2, 3)) for _ in size)
        last = sum((length - 1) * step for length, step in zip(size, stride, strict=True) if length)
        if last >= have and 0 not in size and not self.chance(0.05):
            size, stride, last = (have,), (1,), max(have - 1, 0)
        offset = self.rng.randint(0, max(have - 1 - last, 0))
        return on.opcodes(self.form) + integer(offset) + ints(size) + ints(stride)

    def bits(self, nbytes: int) -> bytes:
        """Bytes of 0 and 1, which are valid bools."""
        return bytes(self.rng.randrange(2) for _ in range(nbytes))

    def stream(self) -> bytes:
        """The legacy stream: a size for each key, as torch's table of objects has it."""
        table: dict[str, tuple[int, int]] = {}
        roots = []
        for one in self.ids:
            if one.key not in table:
                table[one.key] = one.numel, one.width
                roots.append(one.key)
            if one.view is not None and one.view[0] not in table:
                key, offset, size = one.view
                whole, _ = table[one.key]
                table[key] = len(range(whole)[max(offset, 0) : max(offset + size, 0)]), one.width
        listed = list(roots)
        if self.chance(self.conflicts / 2):
            listed = self.rng.sample(list(table), self.rng.randint(0, len(table)))
        self.rng.shuffle(listed)
        keys = b"\x80\x02]" + MARK + b"".join(map(text, listed)) + b"e."
        storages = b"".join(
            struct.pack("<q", count) + self.bits(count * width)
            for count, width in map(table.__getitem__, listed)
        )
        return b"".join(HEAD) + self.pickle + keys + storages

    def archive(self) -> bytes:
        """The archive. Each member is as long as the longest description of it: torch reads beyond the end of a shorter one."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as made:
            made.writestr(zipfile.ZipInfo("archive/data.pkl"), self.pickle)
            if self.byteorder is not None:
                made.writestr(zipfile.ZipInfo("archive/byteorder"), self.byteorder)
            made.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
            for key in dict.fromkeys(one.key for one in self.ids):
                nbytes = max(one.numel * one.width for one in self.ids if one.key == key)
                made.writestr(zipfile.ZipInfo(f"archive/data/{key}"), self.bits(nbytes))
        return out.getvalue()


def compare(data: bytes) -> str:
    """Returns the code with which rustload refuses a file, "theirs" where torch does, and "" where both read it.

    torch does not see what rustload refuses: a tensor outside of its storage makes torch grow the storage and leave views of it
    dangling.

    Raises:
        DifferenceError: Both read the file, with different results.
    """
    try:
        ours = rustload.torch.load(data, unknown="error")
        lazy = rustload.open(data, framework="torch").objects
    except rustload.RustloadError as error:
        return str(error.code)
    try:
        theirs = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # noqa: BLE001 - torch raises errors of any type
        return "theirs"
    check(len(ours) == len(theirs) == len(lazy), "length")
    for at, (one, handle, expected) in enumerate(zip(ours, lazy, theirs, strict=True)):
        same_value(one, handle, expected, at)
    check(addresses(ours) == addresses(theirs), "shared memory", addresses(ours), addresses(theirs))
    return ""


def same_value(one: Any, handle: Any, expected: Any, at: int) -> None:
    """Compares a tensor or a storage, as it is loaded and as a handle."""
    check(type(one) is type(expected), at, type(one), type(expected))
    if isinstance(expected, dict):
        check(one == expected == handle, at, one, handle, expected)
        return
    check(one.dtype == expected.dtype, at, one.dtype, expected.dtype)
    if isinstance(expected, torch.storage.TypedStorage):
        left, right = bytes(one._untyped_storage), bytes(expected._untyped_storage)
        check(left == right, at, "bytes of a storage", left, right)
        check(handle.bytes() == right, at, "bytes of a handle", handle, right)
        return
    check(one.shape == expected.shape and one.stride() == expected.stride(), at, "layout")
    if expected.dtype in (torch.quint4x2, torch.quint2x4):
        # torch's functions on packed integers read whole bytes, also those beside a tensor.
        left, right = bytes(one.untyped_storage()), bytes(expected.untyped_storage())
        check(
            left == right and one.storage_offset() == expected.storage_offset(), at, "integers", left, right
        )
        return
    if expected.is_quantized:
        check(same_elements(one.int_repr(), expected.int_repr()), at, "integers", one, expected)
        return
    check(same_elements(one, expected), at, "elements", one, expected)
    check(same_elements(handle.materialize(), expected), at, "elements of a handle", handle, expected)


def addresses(values: Any) -> list[tuple[int, int]]:
    """For each value with elements, the first one that lies in the same memory, and the distance from its beginning."""
    found: list[tuple[int, int]] = []
    blocks: list[tuple[int, int]] = []
    for value in values:
        if isinstance(value, dict):
            continue
        nbytes = value.nbytes() if isinstance(value, torch.storage.TypedStorage) else span(value)
        start = value.data_ptr() if nbytes else 0
        near = [
            at for at, (first, end) in enumerate(blocks) if nbytes and first < start + nbytes and start < end
        ]
        blocks.append((start, start + nbytes))
        found.append((near[0], start - blocks[near[0]][0]) if near else (-1, 0))
    return found


def span(tensor: torch.Tensor) -> int:
    """The bytes from the first element to the last."""
    if not tensor.numel() or tensor.dtype in (torch.quint4x2, torch.quint2x4):
        return 0
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def file(seed: int, at: int, form: str) -> File:
    """The file of a number."""
    return File(random.Random(f"{seed} {at} {form}"), form)


def loop(*, seed: int, count: int, form: str) -> str:
    """Compares files; returns what it found, in words.

    Raises:
        DifferenceError: The readers differ; a note has the number of the file.
    """
    found: collections.Counter[str] = collections.Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in range(count):
            made = file(seed, at, form)
            try:
                found[compare(made.data)] += 1
            except Exception as error:
                error.add_note(f"--seed {seed} --form {form} --show {at}\n{made.data.hex()}")
                raise
    both, theirs = found.pop("", 0), found.pop("theirs", 0)
    codes = ", ".join(f"{code} {number}" for code, number in found.most_common())
    return (
        f"{form}: {count} files, 0 differences; rustload opens {both + theirs}, torch reads {both} of them; "
        f"refused: {codes or 'none'}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--form", choices=FORMS)
    parser.add_argument(
        "--show", type=int, metavar="N", help="print the file of this number, and compare it alone"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.show is None:
        for form in FORMS if given.form is None else (given.form,):
            print(loop(seed=given.seed, count=given.count, form=form), file=sys.stderr)
        return
    made = file(given.seed, given.show, given.form or "legacy")
    pickletools.dis(made.pickle)
    print(made.byteorder)
    print(compare(made.data))


if __name__ == "__main__":
    main()
