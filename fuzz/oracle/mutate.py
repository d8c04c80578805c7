"""Makes an input from seeds: changes of bytes, of opcodes and of containers, up to four of them."""

from __future__ import annotations

import itertools
import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence

from attacks import pickles as asm
from attacks import splices as two_files
from attacks.n_numpy import npy, plain
from attacks.streams import legacy
from attacks.x_detectors import joblib, joblib_objects
from attacks.zips import torch_zip

from fuzz.differential import mutate_pickle, opcodes
from fuzz.oracle import containers, names, programs

INPUT_MAX_BYTES = 160 << 10
ARCHIVE_EVERY = 16
"""One of so many programs lies in an archive or another container."""

Change = Callable[[random.Random, bytes, bytes], bytes]
"""Changes the first file; the second is one to take from."""

EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62, 1 << 63, (1 << 64) - 1)


def change_bytes(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """Flips, removes, repeats or sets a few bytes."""
    out = bytearray(one)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(out) + 1), rng.randrange(16)
        match rng.randrange(6):
            case 0:
                del out[at : at + size]
            case 1:
                copy = out[at : at + size]
                to = rng.randrange(len(out) + 1)
                out[to:to] = copy
            case 2:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice((rng.choice(EDGES), rng.randrange(300), len(out)))
                out[at : at + width] = number.to_bytes(8, "little")[:width]
            case 3:
                out.insert(at, rng.choice((0, 0x2E, 0x28, 0x4E, 0x80, rng.randrange(256))))
            case 4:
                del out[at:]
                out += two[at:] if rng.random() < 0.5 else b""
            case _:
                if at < len(out):
                    out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def change_opcodes(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """Removes, repeats, moves or changes opcodes of a pickle."""
    return mutate_pickle(one, rng)


def insert_opcodes(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """Puts opcodes into a pickle: a value that is popped again, one that stays, or some of another pickle."""
    ops = opcodes(one)
    if len(ops) < 2:
        return one + programs.program(rng)
    at = rng.randrange(1, len(ops))
    made = programs.fragment(rng)
    if rng.random() < 0.3:
        made = made[:-1]
    elif rng.random() < 0.3 and (others := opcodes(two)):
        start = rng.randrange(len(others))
        made = b"".join(others[start : start + rng.randrange(8)])
    return b"".join(ops[:at]) + made + b"".join(ops[at:])


def lengthen(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """Puts a long opcode, many opcodes or many NULs into a file, so that it is longer than what a reader takes at once."""
    size = rng.choice((1 << 12, 1 << 16)) + rng.randrange(-8, 9)
    made = rng.choice((
        lambda: b"B" + struct.pack("<I", size) + bytes(size) + b"0",
        lambda: b"T" + struct.pack("<I", size) + b"x" * size + b"0",
        lambda: b"V" + b"x" * size + b"\n0",
        lambda: b"I" + b"0" * size + b"1\n0",
        lambda: b"(" * size + b"1" * size,
        lambda: b"(" * size,
        lambda: b"N0" * (size // 2),
        lambda: b"c" + b"x" * size + b"\nrun\n0",
        lambda: bytes(size),
        lambda: bytes(-(-size // 512) * 512),
    ))()  # fmt: skip
    ops = opcodes(one)
    if len(ops) > 2 and rng.random() < 0.7:
        at = rng.randrange(len(ops))
        return b"".join(ops[:at]) + made + b"".join(ops[at:])
    at = rng.choice((0, len(one), rng.randrange(len(one) + 1)))
    return one[:at] + made + one[at:]


def append_payload(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """Puts a payload behind the file, before it, or over bytes in it."""
    payload = rng.choice(names.EVIL)
    return rng.choice(containers.TWO_FILES)(rng, *rng.sample((one, payload), 2))


CHANGES: tuple[tuple[Change, int], ...] = (
    (change_bytes, 4),
    (change_opcodes, 4),
    (insert_opcodes, 6),
    (append_payload, 4),
    (lengthen, 1),
    *((change, 2) for change in containers.TWO_FILES),
    *((change, 1) for change in containers.NESTED),
)


def part(rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """A file to start from, or to put into another."""
    match rng.randrange(8):
        case 0:
            return rng.choice(names.EVIL)
        case 1 | 2:
            return rng.choice((programs.program, archive))(rng)
        case _:
            return rng.choice(pool)


def mutated(rng: random.Random, pool: Sequence[bytes]) -> tuple[bytes, list[str]]:
    """An input, and the names of the changes that made it, at most four."""
    data, made_by = part(rng, pool), []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        (change, _), *_ = rng.choices(CHANGES, [weight for _, weight in CHANGES])
        data = change(rng, data, part(rng, pool))[:INPUT_MAX_BYTES]
        made_by.append(change.__name__)
    return data, made_by


def archive(rng: random.Random) -> bytes:
    """A program in an archive of torch, in another container, or beside the parts of one."""
    match rng.randrange(8):
        case 0:
            return legacy(programs.program(rng))
        case 1:
            return npy(plain(descr="'|O'", shape="(1,)"), programs.program(rng))
        case 2:
            return joblib(programs.Program(rng).value())
        case 3:
            return joblib_objects(asm.listed(programs.Program(rng).value()), programs.Program(rng).value())
        case 4:
            return zlib.compress(programs.program(rng))
        case _:
            return torch_zip(programs.program(rng, has_storages=True))


def _programs(seed: int, pool: Sequence[bytes]) -> Iterator[tuple[bytes, list[str]]]:
    for number in itertools.count():
        rng = random.Random(f"{seed} {number}")
        make = archive if number % ARCHIVE_EVERY == 0 else programs.program
        yield make(rng), [make.__name__]


def _splices(seed: int, pool: Sequence[bytes]) -> Iterator[tuple[bytes, list[str]]]:
    for label, data in two_files.splices(sys.maxsize, seed):
        yield data, [label]


def _changes(seed: int, pool: Sequence[bytes]) -> Iterator[tuple[bytes, list[str]]]:
    for number in itertools.count():
        yield mutated(random.Random(f"{seed} {number}"), pool)


KINDS: dict[str, Callable[[int, Sequence[bytes]], Iterator[tuple[bytes, list[str]]]]] = {
    "programs": _programs,
    "splices": _splices,
    "changes": _changes,
}
"""What is made from a seed, without end: each an input, and how it was made."""
