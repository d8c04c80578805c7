"""Puts bytes into, before, behind and over the structures of the formats, so that each reader still finds its way in."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

from attacks import pickles as asm
from attacks.streams import block, legacy, tar, tar_header, tar_member
from attacks.zips import Member, Zip

if TYPE_CHECKING:
    import random

BLOCK = 512
NAMES = (
    "archive/data.pkl", "archive/DATA.PKL", "archive/data/0", "archive/data/7", "archive/version", "archive/byteorder",
    "archive/.data/x",
    "archive/constants.pkl", "archive/extra/a", "data.pkl", "x.npy", "X.NPY", "arr_0.npy", "arr_0", "a.tar", "a.gz", "a", "",
    "a/", "a/../b",
    "archive\\data.pkl", "archive/data.pkl\0x", "archive/code/a.py",
)  # fmt: skip
DTYPES = (
    "'|O'", "'O'", "'<O'", "'=O'", "'>O'", "'|O8'", "'>O8'", "'\\x4f'", "'obj' 'ect'", "'object'", "'O,O'", "'f4,O'", "'2O'",
    "'(2,)O'", "'<f4'", "'|S4'",
    "[('a', 'O')]", "[('a', '<f4'), ('b', '|O', (2,))]", "[('a', [('b', 'O')])]", "('O', (2,))", "('<f4', (2,))", "'object_'",
    "'|V8'", "'M8[s]'",
    "{'names': ['a'], 'formats': ['O']}", "('V8', [('a', 'O')])", "'" + " " * 300 + "O'", "'O'" + " " * 70000, "'T'",
    "'\\\n|O'", "b'O'", "u'O'",
    "('O', {})", "'|O', 'x'", "'e'", "('|O')", "('|u1', 8)", "'>f8'", "'?'",
)  # fmt: skip


def pad(data: bytes, size: int) -> bytes:
    """The data with NULs to a multiple of a size."""
    return data + bytes(-len(data) % size)


def skipping(length: int, rng: random.Random) -> bytes:
    """Opcodes that push the bytes after them, so many in all, as one string."""
    start = rng.choice((b"", b"\x80\x02", b"\x80\x04"))
    for opcode, form in rng.sample(
        ((b"C", "<B"), (b"U", "<B"), (b"B", "<I"), (b"T", "<i"), (b"X", "<I"), (b"\x8e", "<Q")), 6
    ):
        rest = length - len(start) - 1 - struct.calcsize(form)
        if 0 <= rest < (256 if form == "<B" else 1 << 30):
            return start + opcode + struct.pack(form, rest)
    return start


# Two files in one.


def joined(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """One file after the other, with bytes between them."""
    between = rng.choice((b"", b"", b"\0", b"\0" * 64, b"\n", b" ", b".", b"N."))
    size = rng.choice((1, 1, 2, 64, BLOCK))
    return pad(one + between, size) + two


def overlaid(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """One file written over the other, at an offset that its format may tolerate."""
    at = rng.choice((0, 0, 0, 8, 30, 100, 257, 263, 345, BLOCK, len(two) // 2, max(len(two) - len(one), 0)))
    if rng.random() < 0.3 and len(two) > 1:
        at = rng.randrange(len(two))
    return repaired(two[:at] + one + two[at + len(one) :])


def skipped(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A pickle that starts over the first bytes of a file, skips its content and goes on behind it."""
    size = rng.choice((len(two), len(two), BLOCK, 2 * BLOCK, rng.randrange(len(two) + 1)))
    head = skipping(size, rng)
    rest = one[2:] if one.startswith(b"\x80") and rng.random() < 0.5 else one
    if rng.random() < 0.5:
        return repaired(head + two[len(head) : size] + rest + two[size:])
    return repaired(head + two[len(head) : size] + rest + two[size + len(rest) :])


def spliced(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """One file inserted into the other at any byte, or the head of one and the tail of the other."""
    at, cut = rng.randrange(len(two) + 1), rng.randrange(len(one) + 1)
    if rng.random() < 0.5:
        return repaired(two[:at] + one + two[at:])
    return repaired(one[:cut] + two[at:])


def repaired(data: bytes, rng: random.Random | None = None) -> bytes:
    """The data with the checksum of a tar header at its start corrected, if it seems to have one."""
    if len(data) < BLOCK or (data[257:262] != b"ustar" and data[148:156].strip(b" \0").isdigit() is False):
        return data
    return summed(data)


def summed(data: bytes) -> bytes:
    """The data with the checksum of its first block as a tar header."""
    total = sum(data[:148]) + sum(data[156:BLOCK]) + 8 * ord(" ")
    return data[:148] + b"%06o\0 " % total + data[156:]


# One file in another.


def in_tar(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A tar archive with the file as a member, as its first bytes, or as torch 0.1's `pickle`."""
    match rng.randrange(5):
        case 0:
            data = tar({rng.choice(("pickle", "storages", "tensors", "sys_info")): one})
        case 1:
            data = tar(
                before=tar_member(
                    rng.choice(("a", "x.pkl", "storages")), one, kind=bytes([rng.randrange(33, 127)])
                )
            )
        case 2:
            data = one[:100] + tar_header("", len(two))[len(one[:100]) :] + pad(two, BLOCK) + bytes(1024)
        case 3:
            size = rng.choice((257, 257, 345, 500, BLOCK))
            data = pad(one[:size], BLOCK)
            data = (
                data[:257]
                + (b"ustar\0" + b"00" if size == 257 else b"")
                + data[265 if size == 257 else 257 :]
            )
            data += pad(two, BLOCK) + bytes(1024)
        case _:
            data = (
                tar_member(rng.choice(("a.pkl", "pickle")), one)
                + tar_member("b", two)
                + bytes(rng.choice((0, 512, 1024)))
            )
    if rng.random() < 0.4:
        data = data[:257] + bytes(8) + data[265:]
    if rng.random() < 0.3:
        data = data[:156] + bytes([rng.randrange(256)]) + data[157:]
    return summed(data) if rng.random() < 0.9 else data


def in_zip(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A zip archive with the file as a member, before it, in its comment, between its members or in an extra field."""
    out = Zip(two if two.startswith(b"\x80") and rng.random() < 0.7 else Zip().find("data.pkl").data)
    method, name = rng.choice((0, 0, 8)), rng.choice(NAMES)
    match rng.randrange(8):
        case 0 | 1 | 2:
            out.members.append(Member(name.encode(), one, method=method))
        case 3:
            out.members.insert(0, Member(name.encode(), one, method=method))
        case 4:
            out.with_(prefix=one)
        case 5:
            out.with_(comment=one[:65535])
        case 6:
            rng.choice(out.members).after = one
        case _:
            one_member = rng.choice(out.members)
            one_member.data = one
            if rng.random() < 0.3:
                one_member.name = name.encode()
    if rng.random() < 0.2:
        out.with_(before_end=one if rng.random() < 0.5 else two)
    if rng.random() < 0.2:
        out.with_(members=[one for one in out.members if rng.random() < 0.7] or out.members)
    if rng.random() < 0.15:
        spoilt = rng.choice(out.members)
        field = rng.choice(("name", "method", "flags", "csize", "usize", "crc", "extra"))
        where = rng.choice((spoilt.local, spoilt.central))
        where[field] = {"name": name.encode(), "extra": one[:200]}.get(field, rng.choice((0, 1, 8, 2048)))
    data = out.bytes()
    return data + (b"\0" * rng.choice((1, 22)) if rng.random() < 0.05 else b"")


def in_npy(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """An array whose elements are the file, with a dtype in one of many spellings."""
    descr, shape = (
        rng.choice(DTYPES),
        rng.choice(("()", "(1,)", "(0,)", f"({len(one) // 4},)", f"({len(one)},)")),
    )
    text = f"{{'descr': {descr}, 'fortran_order': {rng.choice(('False', 'True'))}, 'shape': {shape}, }}"
    version = rng.choice((1, 1, 1, 2, 3)) if len(text) < 60000 else rng.choice((2, 3))
    size = 2 if version == 1 else 4
    text += " " * (-(len(text) + 1 + 8 + size) % 64) + "\n"
    head = (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack("<H" if version == 1 else "<I", len(text))
        + text.encode()
    )
    return head + one + (two if rng.random() < 0.2 else b"")


def in_npz(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A zip archive of arrays."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for _ in range(rng.randrange(1, 3)):
            data = in_npy(rng, one, two) if rng.random() < 0.8 else one
            archive.writestr(
                zipfile.ZipInfo(rng.choice(("a.npy", "A.NPY", "b.npy", "b", "c.Npy", "d.npz", "e/f.npy"))),
                data,
            )
    return out.getvalue()


def in_safetensors(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A safetensors file whose elements are the file; as a pickle it may skip the header."""

    def header(padding: int) -> bytes:
        text = json.dumps(
            {
                "__metadata__": {"a": "b" * padding},
                "w": {"dtype": "U8", "shape": [len(one)], "data_offsets": [0, len(one)]},
            }
        )
        return text.encode()

    if rng.random() < 0.3:
        text = header(rng.randrange(64))
        return struct.pack("<Q", len(text)) + text + one
    # The length of the header starts with the opcode of a string or number, whose bytes are a part of the header.
    length = rng.choice(b"UC\x8cBTX\x8dV(]}N0S\x88") | rng.randrange(1, 4) << 8
    while length < len(header(0)):
        length += 1 << 8
    return struct.pack("<Q", length) + header(length - len(header(0))) + one


def in_pickle(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A pickle that holds the file as bytes, or gives it to a loader."""
    data = rng.choice((asm.binary(one), asm.latin1(one), b"\x96" + struct.pack("<Q", len(one)) + one))
    match rng.randrange(4):
        case 0:
            return asm.pickle(data)
        case 1:
            return asm.pickle(asm.call("torch.storage._load_from_bytes", data))
        case 2:
            return asm.pickle(asm.tensor(on=asm.call("torch.storage._load_from_bytes", data)))
        case _:
            return asm.pickle(data + b"0" + two[2:-1]) if two.startswith(b"\x80") else asm.pickle(data)


def in_legacy(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A legacy stream of which one part is the file."""
    match rng.randrange(4):
        case 0:
            return legacy(one)
        case 1:
            return legacy(keys=one)
        case 2:
            return legacy(data=block(6, asm.SIX) + one)
        case _:
            return legacy(**{rng.choice(("magic", "version", "system")): one})  # type: ignore[arg-type]


def packed(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """The file compressed, perhaps with bytes behind it."""
    raw = zlib.compressobj(6, zlib.DEFLATED, -15)
    made = rng.choice((
        lambda data: gzip.compress(data, mtime=0), zlib.compress, bz2.compress, lzma.compress,
        lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
        lambda data: gzip.compress(data[: len(data) // 2], mtime=0) + gzip.compress(data[len(data) // 2 :], mtime=0),
        lambda data: b"ZF" + hex(len(data)).ljust(19).encode() + zlib.compress(data),
        lambda data: raw.compress(data) + raw.flush(),
        lambda data: zlib.compress(data, 0),
    ))(one)  # fmt: skip
    return made + rng.choice((b"", b"", b"\0", b"\0" * 8, two))


def members(rng: random.Random, one: bytes, two: bytes) -> bytes:
    """A zip archive with its members shuffled, renamed, doubled or replaced, written again by `zipfile`."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(one)) as old:
            content = [(info.filename, old.read(info)) for info in old.infolist()[:32]]
    except Exception:  # noqa: BLE001 - zipfile raises errors of any type on a fuzzed archive
        return in_zip(rng, one, two)
    match rng.randrange(4):
        case 0:
            rng.shuffle(content)
        case 1:
            content.append((rng.choice((*NAMES, *(name for name, _ in content))), two))
        case 2:
            at = rng.randrange(len(content) + 1)
            content[at : at + 1] = [(content[at][0] if at < len(content) else "x", two)]
        case _:
            content = [(name.upper() if rng.random() < 0.3 else name, data) for name, data in content]
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as new:
        for name, data in content:
            new.writestr(zipfile.ZipInfo(name.replace("\0", "") or "x"), data)
    return out.getvalue()


TWO_FILES = (joined, overlaid, skipped, spliced)
NESTED = (
    in_tar,
    in_tar,
    in_zip,
    in_zip,
    in_npy,
    in_npz,
    in_safetensors,
    in_pickle,
    in_legacy,
    packed,
    members,
)
