"""Z: archives that two readers would read differently, or whose sizes or names are wrong."""

import struct
import zlib

from attacks.a_files import holds, six
from attacks.pickles import SIX, SYSTEM, pickle, storage, tensor
from attacks.registry import Fails, Opens, Refused, family, shown
from attacks.zips import GOOD, ROOT, Member, Zip, around, member, torch_zip

EVIL = pickle(SYSTEM)
structure, mismatch, bad_name = Refused("ZipStructure"), Refused("ZipMismatch"), Refused("ZipName")
good = holds("w")


def read(ckpt):
    """Reads every tensor into owned memory."""
    return [lazy.materialize(copy=True, framework="dlpack").tobytes() for lazy in ckpt.values()]


def view(ckpt):
    return [lazy.materialize(copy=False, framework="dlpack") for lazy in ckpt.values()]


def later(code: str) -> Fails:
    """The outcome for a defect in a storage's local header, which is checked when the storage is read."""
    return Fails(code, read, "reading")


# End records: APPNOTE 4.3.14 to 4.3.16.

family("Z01", "no end-of-central-directory record", {
    "cut": lambda: Zip().bytes()[:-22], "half": lambda: Zip().bytes()[:-10],
}, Refused("ZipAmbiguous"))  # fmt: skip
family("Z02", "an archive comment", {
    "past_the_end": lambda: Zip().with_(end={"comment_len": 9}).bytes(),
}, Refused("ZipAmbiguous"))  # fmt: skip
family("Z02", "", {"to_the_end": lambda: Zip().with_(comment=b"hello").bytes()}, good)
family("Z03", "a second end record inside the comment", {
    "same": lambda: Zip().with_(comment=Zip().bytes()[-22:]).bytes(),
    "other_archive": lambda: Zip().with_(comment=Zip(EVIL).bytes()[-22:]).bytes(),
    "signature": lambda: Zip().with_(comment=b"PK\5\6").bytes(),
}, Refused("ZipAmbiguous"))  # fmt: skip
family("Z04", "bytes after the archive", {
    "one": lambda: Zip().with_(suffix=b"\0").bytes(),
    "60_kib": lambda: Zip().with_(suffix=bytes(60 << 10)).bytes(),
    "pickle": lambda: Zip().with_(suffix=EVIL).bytes(), "zip64": lambda: Zip().with_(zip64={}, suffix=bytes(1000)).bytes(),
}, Refused("ZipTrailing"))  # fmt: skip
family(
    "Z04",
    "",
    {"asked_for": lambda: Zip().with_(suffix=b"junk").bytes()},
    good,
    "ZipTrailing",
    options={"trailing": "ignore"},
)


def ends(**end: int):
    return lambda: Zip().with_(end=end).bytes()


family("Z05", "a central directory with another offset or size than stated", {
    "start_past_the_end": ends(start=1 << 30), "size_past_the_end": ends(size=1 << 30), "start_early": ends(start=10),
    "over_the_end_record": lambda: Zip().with_(end={"size": 400}).bytes(), "short": ends(size=46),
}, structure)  # fmt: skip
family("Z06", "a number of members other than stated", {
    "fewer": ends(here=3, count=3), "more": ends(here=5, count=5), "none": ends(here=0, count=0), "two_numbers": ends(here=3),
}, structure)  # fmt: skip
family("Z07", "a multi-disk archive", {
    "disk": ends(disk=1), "start_disk": ends(start_disk=1),
    "member": lambda: Zip().spoil("data/0", central={"disk": 2}).bytes(),
}, structure)  # fmt: skip


def zip64(**fields: int):
    return lambda: Zip().with_(zip64=fields).bytes()


family("Z08", "a zip64 end record that disagrees with the 32-bit one", {
    "count": zip64(count=3), "size": zip64(size=10), "start": zip64(start=1), "disk": zip64(disk=1),
}, structure)  # fmt: skip
family("Z08", "", {"agrees": zip64()}, good)
SENTINEL = 0xFFFFFFFF
SENTINELS = {"here": 0xFFFF, "count": 0xFFFF, "start": SENTINEL, "size": SENTINEL}


def only_zip64(**fields: int):
    return lambda: Zip().with_(end=SENTINELS, zip64=fields).bytes()


family("Z08", "", {
    "alone_count": only_zip64(count=2), "alone_start": only_zip64(start=0), "alone_size": only_zip64(size=400), "alone_disk": only_zip64(disk=1),
}, structure)  # fmt: skip
family("Z08", "", {"alone": only_zip64()}, good)
family("Z09", "a zip64 locator that points elsewhere", {
    "outside": zip64(at=1 << 40), "most": zip64(at=(1 << 64) - 1), "start": zip64(at=0), "itself": zip64(at=500), "disks": zip64(disks=2),
}, structure)  # fmt: skip


def extra(*fields: bytes) -> bytes:
    return b"".join(struct.pack("<HH", 1, len(one)) + one for one in fields)


def directory(**central):
    return lambda: Zip().spoil("data/0", central=central).bytes()


SIZE = struct.pack("<Q", 24)
family("Z10", "a malformed or superfluous zip64 field in the central directory", {
    "twice": directory(usize=SENTINEL, extra=extra(SIZE, SIZE)),
    "short": directory(usize=SENTINEL, extra=extra(b"\x18\0\0\0")),
    "long": directory(usize=SENTINEL, extra=extra(SIZE + SIZE)),
    "superfluous": directory(extra=extra(SIZE)),
    "past_its_end": directory(usize=SENTINEL, extra=b"\1\0\xff\0" + SIZE),
    "empty_twice": directory(extra=extra(b"", b"")), "cut": directory(extra=b"\1\0\x09"),
}, structure)  # fmt: skip
family("Z10", "", {"right": directory(usize=SENTINEL, extra=extra(SIZE))}, good)
family("Z11", "a size or offset of 0xFFFFFFFF without a zip64 field", {
    "usize": directory(usize=SENTINEL), "csize": directory(csize=SENTINEL), "offset": directory(offset=SENTINEL),
}, structure)  # fmt: skip

# Local headers: APPNOTE 4.3.7.


def local(member_name: str, /, **fields):
    return lambda: Zip().spoil(member_name, local=fields).bytes()


def both(id_: str, what: str, code: str, /, **fields) -> None:
    """The defect in a member that is read at opening, and in one that is read later."""
    family(id_, what, {"metadata": local("data.pkl", **fields)}, Refused(code))
    family(id_, "", {"storage": local("data/0", **fields)}, later(code), code)


family(
    "Z12", "a local header without its signature", {"metadata": local("byteorder", sig=b"PK\3\5")}, mismatch
)
family("Z12", "", {"storage": local("data/0", sig=b"PK\3\5")}, later("ZipMismatch"), "ZipMismatch")
family("Z12", "", {"first": local("data.pkl", sig=b"PK\3\5")}, Refused("ZipPrefix"))
both("Z13", "a local header with another name", "ZipMismatch", name=f"{ROOT}/data.PKL".encode())
family("Z13", "", {"longer": local("data.pkl", name=f"{ROOT}/data.pkl2".encode())}, mismatch)
both("Z14", "a local header with another method", "ZipMismatch", method=8)
both("Z15", "a local header with another size or checksum, without a data descriptor", "ZipMismatch", crc=1)
family(
    "Z15",
    "",
    {
        "csize": local("data.pkl", csize=1),
        "usize": local("data.pkl", usize=1),
        "zeros": local("data.pkl", csize=0, usize=0),
        "sentinel": local("data.pkl", csize=SENTINEL),
        "short_field": local("data.pkl", extra=extra(bytes(4))),
        "field": local("data.pkl", extra=extra(struct.pack("<Q", 1))),
    },
    mismatch,
)
family("Z15", "", {"odd_extra": local("data.pkl", extra=b"\x09\0\0\0\0")}, good)


def unicode_path(path: bytes) -> bytes:
    """Info-ZIP's extra field for the name in UTF-8."""
    return struct.pack("<2sHBI", b"up", 5 + len(path), 1, 0) + path


OTHER_PATH = unicode_path(b"archive/data/1")
family("Z13", "", {"unicode_path": directory(extra=OTHER_PATH)}, Refused("ZipName"))
family("Z13", "", {"local_unicode_path": local("data/0", extra=OTHER_PATH)}, later("ZipName"), "ZipName")
family("Z13", "", {"same_unicode_path": directory(extra=unicode_path(b"archive/data/0"))}, good)
both("Z16", "a local header with other flags", "ZipMismatch", flags=1)
family(
    "Z16", "", {"utf8": local("data.pkl", flags=0x800), "descriptor": local("data.pkl", flags=8)}, mismatch
)

# Names.

duplicate, case = Refused("ZipDuplicate"), Refused("ZipCase")
family("Z17", "two members named `data.pkl`", {
    "bad_first": lambda: Zip().first("data.pkl", EVIL).bytes(),
    "bad_second": lambda: Zip().add("data.pkl", EVIL).bytes(),
}, duplicate, runs=("posix.system",))  # fmt: skip
family("Z18", "a required name and a variant of it in another case", {
    name: (lambda name=name: Zip().add(name, EVIL).bytes()) for name in ("DATA.PKL", "Constants.pkl", "VERSION", "ByteOrder")
}, case)  # fmt: skip
family(
    "Z18",
    "",
    {"other_names": lambda: Zip().add("W.npy", b"1").add("w.npy", b"2").bytes()},
    good,
    "ZipCase",
    verdict="unknown",
)
family("Z19", "`DATA.PKL` alone", lambda: Zip().rename("data.pkl", "DATA.PKL").bytes(), case)
family(
    "Z20",
    "`CONSTANTS.PKL`",
    lambda: Zip().add("CONSTANTS.PKL", EVIL).bytes(),
    case,
    "ZipCase",
    runs=("posix.system",),
)


def path(name: bytes):
    return lambda: Zip().add_path(name).bytes()


family("Z21", "two root folders", {"after": path(b"other/data.pkl"), "prefix": path(b"archive2/x")}, bad_name)
family("Z22", "a member outside the root folder", path(b"stray"), bad_name)


def bare() -> bytes:
    archive = Zip()
    for one in archive.members:
        one.name = one.name.partition(b"/")[2]
    return archive.bytes()


family("Z23", "no root folder", bare, bad_name)
family(
    "Z24",
    "a name with a backslash",
    {"alone": path(b"archive\\data.pkl"), "inside": path(b"archive/a\\b")},
    bad_name,
)
family("Z25", "a name that is an absolute path or not normalized (`..`, `.`, `//`)", {
    "parent": path(b"archive/../../x"), "absolute": path(b"/etc/x"), "drive": path(b"C:/x"), "dot": path(b"archive/./x"),
    "double": path(b"archive//x"),
}, bad_name)  # fmt: skip
family("Z26", "a name with a NUL", path(b"archive/data.pkl\0.txt"), bad_name)
family("Z27", "a name of more than 511 bytes", path(b"archive/" + b"n" * 504), bad_name)
family("Z27", "", {"511": path(b"archive/" + b"n" * 503)}, good)


def not_utf8(flags: int):
    return lambda: _with_member(Member(b"archive/\xff\xfe", b"x", flags=flags))


def _with_member(one: Member) -> bytes:
    archive = Zip()
    archive.members.append(one)
    return archive.bytes()


family(
    "Z28", "a name that is not UTF-8", {"announced": not_utf8(0x800), "not_announced": not_utf8(0)}, bad_name
)
family("Z29", "an empty name", path(b""), bad_name)

# Bytes that two members share, and wrong sizes.

overlap = Refused("RecordOverlap")


def shared_header() -> bytes:
    archive = Zip()
    archive.add("data/1", SIX, central={"offset": _offset_of(archive, "data/0")})
    return archive.bytes()


def _offset_of(archive: Zip, name: str) -> int:
    at = 0
    for one in archive.members:
        if one is archive.find(name):
            return at
        at += len(one.header())
    raise KeyError(name)


family("Z30", "two central directory entries with one local header", {
    "": shared_header, "past_the_directory": directory(offset=4000),
}, overlap)  # fmt: skip
family("Z31", "a storage that reaches over the next member", {
    "both_sizes": lambda: Zip().spoil("data/0", central={"csize": 60, "usize": 60}).bytes(),
}, overlap)  # fmt: skip
LONGER = {"csize": 8, "usize": 8}
family("Z31", "", {
    "by_its_extra_field": lambda: Zip().spoil("byteorder", local=LONGER | {"extra": bytes(4)}, central=LONGER).bytes(),
}, overlap)  # fmt: skip
family(
    "Z32",
    "a stored member whose compressed and uncompressed sizes differ",
    {"usize": directory(usize=9), "csize": directory(csize=9)},
    mismatch,
)


def descriptor(crc: int, csize: int, usize: int, signature: bytes = b"PK\7\x08") -> bytes:
    return signature + struct.pack("<3I", crc, csize, usize)


def described(name: str, after: bytes):
    zeros = {"crc": 0, "csize": 0, "usize": 0}
    return lambda: Zip().spoil(name, flags=8, local=zeros, after=after).bytes()


CRC = zlib.crc32(SIX)
family("Z33", "a data descriptor that disagrees with the central directory", {
    "crc": described("data/0", descriptor(1, 24, 24)), "csize": described("data/0", descriptor(CRC, 1, 24)),
    "usize": described("data/0", descriptor(CRC, 24, 1)), "signature": described("data/0", descriptor(CRC, 24, 24, b"PK\7\7")),
}, later("ZipMismatch"), "ZipMismatch")  # fmt: skip
family("Z33", "", {"absent": described("data/0", b"")}, later("RecordOverlap"), "RecordOverlap")
family("Z33", "", {"agrees": described("data/0", descriptor(CRC, 24, 24))}, Opens("reads", six))


def wrong_crc(name: str):
    return lambda: Zip().spoil(name, central={"crc": 1}, local={"crc": 1}).bytes()


family(
    "Z34",
    "a wrong checksum",
    {name: wrong_crc(name) for name in ("data.pkl", "version", "byteorder")},
    Refused("ZipCrc"),
)
family(
    "Z34",
    "",
    {"zero": lambda: Zip().spoil("data.pkl", central={"crc": 0}, local={"crc": 0}).bytes()},
    Refused("ZipCrc"),
)
family("Z34", "", {"storage": wrong_crc("data/0")}, Opens("opens unverified", read))
family("Z34", "", {"storage_verified": wrong_crc("data/0")}, Refused("ZipCrc"), "", options={"verify": True})


def no_crcs() -> bytes:
    archive = Zip()
    for one in archive.members:
        one.central, one.local = {"crc": 0}, {"crc": 0}
    return archive.bytes()


family("Z34b", "no checksum computed anywhere", no_crcs, Opens("opens, unverified", six))

# Compression.


def deflated(name: str, **more):
    return lambda: Zip().spoil(name, method=8, **more).bytes()


family("Z35", "a deflated `data.pkl`", deflated("data.pkl"), Opens("opens", six))


def bomb(size: int) -> bytes:
    """Deflated zeros: one compressed MiB, repeated, so that they need no memory."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    raw = block * (size >> 20) + deflate.flush()
    fields = {"crc": 1, "csize": len(raw), "usize": size}
    return Zip().spoil("data.pkl", method=8, raw=raw, local=fields, central=fields).bytes()


def lying_bomb() -> bytes:
    """It inflates to 64 MiB, and its stated size is 1,000 bytes."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    raw = deflate.compress(bytes(64 << 20)) + deflate.flush()
    fields = {"csize": len(raw), "usize": 1000}
    return Zip().spoil("data.pkl", method=8, raw=raw, local=fields, central=fields).bytes()


family(
    "Z36",
    "a `data.pkl` that inflates to a gigabyte",
    {"1_gb": lambda: bomb(1 << 30)},
    Refused("Limit", "pickle_bytes"),
)
family("Z36", "", {"says_1000": lying_bomb}, structure)


def counted(ckpt) -> None:
    assert ckpt.nbytes == len(SIX)


family("Z37", "a deflated storage", {"copied": deflated("data/0")}, Opens("inflates when read", six))
family("Z37", "", {"counted": deflated("data/0")}, Opens("counts as its tensors", counted))
family("Z37", "", {"view": deflated("data/0")}, Fails("RecordCompressed", view, "`copy=False`"))
family("Z37", "", {"larger_than_said": lambda: Zip().spoil("data/0", data=bytes(1 << 20), method=8, local={"usize": 24}, central={"usize": 24}).bytes()},
       later("ZipStructure"))  # fmt: skip
family("Z38", "a compression method that is neither stored nor deflate", {
    str(method): (lambda method=method: Zip().spoil("data/0", method=method).bytes()) for method in (1, 9, 12, 14, 93, 95, 99)
}, Refused("ZipUnsupported"))  # fmt: skip
family("Z39", "a member flagged as encrypted or patched", {
    **{f"bit{bit}": (lambda bit=bit: Zip().spoil("data.pkl", flags=1 << bit).bytes()) for bit in (0, 5, 6, 13)},
    "directory_only": lambda: Zip(EVIL).spoil("data.pkl", central={"flags": 1}).bytes(),
}, Refused("ZipUnsupported"))  # fmt: skip


def odd_deflate(change) -> bytes:
    raw = change(member("data.pkl", GOOD, method=8).stored())
    fields = {"csize": len(raw)}
    return Zip().spoil("data.pkl", method=8, raw=raw, local=fields, central=fields).bytes()


family("Z40", "a deflate stream that does not end where its member does", {
    "trailing": lambda: odd_deflate(lambda raw: raw + b"more"),
    "cut": lambda: odd_deflate(lambda raw: raw[:-4]),
    "wrong_size": deflated("data.pkl", local={"usize": 5}, central={"usize": 5}),
    "garbage": lambda: odd_deflate(lambda raw: b"\xff" * len(raw)), "empty": lambda: odd_deflate(lambda raw: raw[:0]),
    "larger": deflated("data.pkl", local={"usize": len(GOOD) + 1}, central={"usize": len(GOOD) + 1}),
}, structure)  # fmt: skip


def entries(count: int) -> bytes:
    """An archive with so many members."""
    archive = Zip()
    start = len(b"".join(one.header() for one in archive.members))
    one = Member(b"a", b"").entry(0)
    ends = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(one) * count, start)
    ends += struct.pack("<4sIQI", b"PK\6\7", 0, start + len(one) * count, 1)
    ends += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, SENTINEL, SENTINEL, 0)
    return b"".join(one.header() for one in archive.members) + one * count + ends


family("Z41", "more than a million members", lambda: entries((1 << 20) + 1), Refused("Limit", "entries"))

# The records of torch.

missing = Refused("RecordMissing")
family("Z42", "no `version`", lambda: Zip().drop("version").bytes(), missing)
family("Z42", "", {"no_data_pkl": lambda: Zip().drop("data.pkl").bytes()}, missing)
family("Z42", "", {"hidden": lambda: Zip().rename("version", ".data/version").bytes()}, Opens("opens", six))


def replaced(name: str, data: bytes):
    return lambda: Zip().spoil(name, data=data).bytes()


family("Z43", "a `version` outside 1 to 10", {
    name: replaced("version", data)
    for name, data in {
        "0": b"0\n", "11": b"11\n", "minus": b"-1", "junk": b"3junk", "2_64": b"18446744073709551616", "empty": b"", "plus": b"+3",
        "space": b" 3", "newline": b"\n", "newlines": b"3\n\n", "arabic": "\u0663".encode(), "long": b"1" * 1000,
    }.items()
}, Refused("ZipVersion"))  # fmt: skip
family("Z43", "", {"second": lambda: Zip().add(".data/version", b"11").bytes()}, Refused("ZipVersion"))
family("Z43", "", {"1": replaced("version", b"1"), "10": replaced("version", b"10\n")}, Opens("opens", six))
family("Z44", "a `byteorder` record", {
    name: replaced("byteorder", data)
    for name, data in {"middle": b"middle", "none": b"", "newline": b"little\n", "capital": b"Big", "long": b"b" * 500}.items()
}, Refused("ByteOrder"))  # fmt: skip
family("Z44", "", {"missing": lambda: Zip().drop("byteorder").bytes()}, Opens("read as little-endian", six))


def swapped(ckpt) -> None:
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == b"".join(
        SIX[at : at + 4][::-1] for at in range(0, 24, 4)
    )


family("Z44", "", {"big": replaced("byteorder", b"big")}, Opens("read, byte-swapped", swapped))
family("Z45", "an invalid `.storage_alignment`", {
    name: (lambda data=data: Zip().add(".storage_alignment", data).bytes())
    for name, data in {"0": b"0", "minus": b"-1", "huge": b"1" + b"0" * 100, "word": b"sixty-four"}.items()
}, Opens("opens; ignored", six), "BadAlignment")  # fmt: skip
family("Z46", "a missing storage", lambda: Zip().drop("data/0").bytes(), missing)


def keyed(key: bytes | str):
    return lambda: around(tensor(on=storage(key=key)), storages={"0": SIX})


family("Z47", "a storage key that is not a decimal number", {
    "parent": keyed("../version"), "child": keyed("0/../1"), "empty": keyed(""), "zeros": keyed("00"), "int": keyed(b"K\0"),
    "none": keyed(b"N"), "bytes": keyed(b"C\x010"), "word": keyed("a"), "minus": keyed("-0"), "plus": keyed("+1"), "before": keyed(" 0"),
    "after": keyed("0 "), "arabic": keyed("\u0660"), "nul": keyed("0\0"), "long": keyed("1" * 1000),
}, Refused("StorageKey"))  # fmt: skip
family("Z48", "an archive inside the archive", {
    "call": lambda: Zip().add("inner.pt", torch_zip(EVIL)).bytes(),
    "depth_3": lambda: Zip().add("a.zip", Zip().add("b.zip", torch_zip(EVIL)).bytes()).bytes(),
}, good, "NestedArchive", runs=("posix.system",))  # fmt: skip
family("Z49", "unreferenced pickles", {
    "extra": lambda: Zip().add(".data/x.pkl", EVIL).bytes(), "storage": lambda: Zip().add("data/9", EVIL).bytes(),
}, good, runs=("posix.system",))  # fmt: skip
family(
    "Z50",
    "a directory entry (its name ends in `/`) with contents",
    lambda: Zip().add("data/", b"x").bytes(),
    structure,
)
family("Z50", "", {"empty": lambda: Zip().add("data/", b"").bytes()}, good)
shown(
    "Z51",
    "each of these archives behind an object that is read by ranges, such as a URL",
    "as the file; a local header is verified before any byte behind it is given out",
    "test_remote.py::test_an_archive_read_by_ranges_has_the_outcome_of_a_file",
)
shown(
    "Z52",
    "a local header that disagrees with the central directory, behind a URL: a whole tensor, a slice, a stream, again",
    "opens; reading: `ZipMismatch`",
    "test_remote.py::test_no_byte_is_given_out_before_its_local_header_is_verified",
)
