"""X01 to X21, X123, X139 to X142: files that one reader takes for data and another one runs."""

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from attacks.a_files import holds
from attacks.n_numpy import npy, npz, plain
from attacks.pickles import (
    BUILD,
    SIX,
    SYSTEM,
    TRUE,
    binary,
    call,
    integer,
    legacy_storage,
    listed,
    many,
    name,
    named,
    pickle,
    storage,
    tensor,
    text,
)
from attacks.registry import Kept, Opens, Refused, family
from attacks.streams import MAGIC, TAR_END, TAR_PARTS, info, legacy, tar_header, tar_member
from attacks.zips import Zip, around, torch_zip

RUNS = ("posix.system",)
EVIL = pickle(SYSTEM)
tars, unknown, opened = Refused("TarUnsupported"), Refused("UnknownFormat"), Opens("opens without it", list)
odd_tars = Refused("TarStructure")


def with_ustar(data: bytes) -> bytes:
    """Data with the word `ustar` where a tar header has it."""
    return data.ljust(257, b"\0") + b"ustar\x0000" + bytes(512)


def loads(data: bytes) -> bytes:
    """A call of torch's loader of bytes."""
    return b"ctorch.storage\n_load_from_bytes\n" + binary(data) + b"\x85R"


def as_member(data: bytes, **more) -> bytes:
    """A sound torch archive with one more member."""
    return Zip().add("extra", data, **more).bytes()


def in_folder(data: Callable[[], bytes]) -> Callable[[Path], Path]:
    """A folder with one file that has no suffix of a checkpoint."""

    def build(folder: Path) -> Path:
        (folder / "folder").mkdir(exist_ok=True)
        (folder / "folder" / "notes").write_bytes(data())
        return folder / "folder"

    return build


def everywhere(ident: str, what: str, builds: dict[str, Callable[[], bytes]], *finds: str, **more) -> None:
    """The inputs as members of a torch archive, as entries of a tar file and as files of a folder."""
    places = {
        "member": (as_member, opened, {}),
        "deflated": (lambda data: as_member(data, method=8), opened, {}),
        "entry": (lambda data: tar_member("notes", data) + TAR_END, tars, {}),
    }
    finds = finds or ("",)
    for place, (put, load, extra) in places.items():
        made = {f"{name}_{place}": (lambda data=data, put=put: put(data())) for name, data in builds.items()}
        family(ident, what, made, load, *finds, **more, **extra)
    made = {f"{name}_folder": in_folder(data) for name, data in builds.items()}
    family(ident, what, made, unknown, *finds, **more, placed=True)


family("X01", "a call in a pickle that has the word `ustar` where a tar header has it", {
    "plain": lambda: with_ustar(EVIL),
}, odd_tars, "", runs=RUNS)  # fmt: skip
family("X01", "", {"member": lambda: as_member(with_ustar(EVIL))}, opened, "", runs=RUNS)
family("X01", "", {"loaded": lambda: around(loads(with_ustar(EVIL)), protocol=3)},
       Kept("torch.storage._load_from_bytes", "DisallowedCall"), "", runs=RUNS)  # fmt: skip


def summed(header: bytes, *, ustar: bool) -> bytes:
    """A block as a tar header with or without `ustar`, and with the right checksum."""
    fields = bytearray(header)
    fields[257:265] = b"ustar\x0000" if ustar else bytes(8)
    fields[148:156] = b" " * 8
    fields[148:156] = f"{sum(fields):06o}\0 ".encode()
    return bytes(fields)


def tar_of(data: bytes, *, kind: bytes = b"0", path: str = "notes", ustar: bool = True) -> bytes:
    return (
        summed(tar_header(path, len(data), kind=kind), ustar=ustar) + data + bytes(-len(data) % 512) + TAR_END
    )


family("X02", "a call in a tar entry of an unknown type", {
    "A": lambda: tar_of(EVIL, kind=b"A"), "z": lambda: tar_of(EVIL, kind=b"z"), "M": lambda: tar_of(EVIL, kind=b"M"),
    "contiguous": lambda: tar_of(EVIL, kind=b"7"), "byte": lambda: tar_of(EVIL, kind=b"\xff"),
}, odd_tars, runs=RUNS)  # fmt: skip


def legacy_and_tar(*, ustar: bool) -> bytes:
    """A sound legacy stream whose first bytes are the name of a tar entry; its system information is bytes that have the rest."""
    entry = EVIL + bytes(-len(EVIL) % 512) + TAR_END
    start = MAGIC + pickle(integer(1001)) + b"\x80\x03B"
    length = 512 + len(entry) - len(start) - 4
    first = bytearray((start + struct.pack("<I", length)).ljust(512, b"\0"))
    first[124:136], first[156:157] = f"{len(EVIL):011o}\0".encode(), b"0"
    return summed(bytes(first), ustar=ustar) + entry + b"." + pickle(named({})) + pickle(listed())


family("X03", "a legacy stream that is a tar archive too", {
    "ustar": lambda: legacy_and_tar(ustar=True), "bare": lambda: legacy_and_tar(ustar=False),
}, Opens("opens as torch-legacy", list), "", runs=RUNS)  # fmt: skip


def old_tar(*, ustar: bool = False) -> bytes:
    """torch 0.1's archive; its headers have no `ustar`."""
    parts = TAR_PARTS | {"pickle": EVIL}
    return (
        b"".join(
            summed(tar_header(path, len(data)), ustar=ustar) + data + bytes(-len(data) % 512)
            for path, data in parts.items()
        )
        + TAR_END
    )


family(
    "X04", "a tar archive of torch 0.1 without the word `ustar`", {"plain": old_tar}, unknown, "", runs=RUNS
)
family("X04", "", {"folder": in_folder(old_tar)}, unknown, "", runs=RUNS, placed=True)
family("X04", "", {"member": lambda: as_member(old_tar())}, opened, "", runs=RUNS)

OBJECTS = {
    "little": "'<O'", "native": "'=O'", "big_8": "'>O8'", "escaped": "'\\x7cO'", "octal": "'\\117'", "name": "'object'", "capital": "'Object0'",
    "comma": "'O,'", "comma_after": "'i4,O'", "comma_before": "'O,i4'", "time_comma": "'M8,O'", "unit_comma": "'m8[s],O'", "fields": "[('a', 'O')]",
    "titled": "[(('title', 'a'), 'O')]", "subarray": "('|O', (1,))", "field_subarray": "[('a', 'O', (1,))]", "joined": "'|' 'O'", "raw": "r'|O'",
    "nested": "[('a', [('b', '<i4'), ('c', '|O8')])]",
}  # fmt: skip
CODES = {
    **dict.fromkeys(("little", "native", "big_8"), Refused("NpyObjects")),
    **dict.fromkeys(("fields", "titled", "subarray", "field_subarray", "nested"), Refused("NpyDtype")),
}


def objects(descr: str, *, blanks: int = 0, version: tuple[int, int] = (1, 0)) -> bytes:
    header = plain(descr=descr, shape="(1,)") + " " * blanks
    return npy(header, pickle(listed(SYSTEM), protocol=3), version=version)


for key, descr in OBJECTS.items():
    if key == "capital":
        continue
    load = CODES.get(key, Refused("NpyHeader"))
    family("X05", "a call in an object array, however its header spells it", {
        key: lambda descr=descr: objects(descr)}, load, runs=RUNS, suffix=".npy")  # fmt: skip
    family("X06", "the same array as a member of an archive", {
        f"{key}_member": lambda descr=descr: as_member(objects(descr)),
        f"{key}_deflated": lambda descr=descr: as_member(objects(descr), method=8),
    }, opened, "", runs=RUNS)  # fmt: skip
family("X05", "", {
    "blanks": lambda: objects("'|O'", blanks=70_000, version=(2, 0)), "version_3": lambda: objects("'|O'", blanks=70_000, version=(3, 0)),
}, Refused("NpyHeader"), runs=RUNS, suffix=".npy")  # fmt: skip
family("X06", "", {
    "upper_case": lambda: npz(w=npy()).add_path(b"EVIL.NPY", objects("'|O'")).bytes(),
    "no_suffix": lambda: npz(w=npy()).add_path(b"evil", objects("'|O'")).bytes(),
}, opened, "", runs=RUNS, suffix=".npz")  # fmt: skip


def safetensors_and_pickle() -> bytes:
    """A sound file. Its header's length begins with UNICODE, whose line ends before the last brace, which is EMPTY_DICT."""
    payload = SYSTEM + b"."
    head = b'{"w":' + str(info("U8", [len(payload)], 0, len(payload))).replace("'", '"').encode()
    head += b" " * ((ord("V") - len(head) - 2) % 256) + b"\n}"
    return struct.pack("<Q", len(head)) + head + payload


family("X07", "a sound safetensors file that is a pickle from byte 0", {
    "unicode": safetensors_and_pickle}, holds("w", format="safetensors"), "", runs=RUNS)  # fmt: skip


def array_as_storage(extra: bytes = b"") -> bytes:
    """An archive; the local header of the storage has this extra field."""
    data = objects("'|O'")
    data += bytes(-len(data) % 4)
    value = tensor((len(data) // 4,), on=storage(numel=len(data) // 4))
    return Zip(pickle(named({"w": value})), {"0": data}).spoil("data/0", local={"extra": extra}).bytes()


# Longer than what a scan of a remote archive fetches with a local header.
LONG_EXTRA = struct.pack("<HH", 0x7777, 8996) + bytes(8996)

family("X08", "an array of objects as a storage of a sound torch archive", {
    "stored": array_as_storage, "long_header": lambda: array_as_storage(LONG_EXTRA),
}, holds("w"), "", runs=RUNS)  # fmt: skip

everywhere("X09", "a call behind a first opcode that is longer than what is read first", {
    "string": lambda: b"X" + struct.pack("<I", 5000) + b"x" * 5000 + b"0" + SYSTEM + b".",
    "long_string": lambda: b"T" + struct.pack("<I", 300_000) + b"x" * 300_000 + b"0" + SYSTEM + b".",
    "line": lambda: b"V" + b"x" * 200_000 + b"\n0" + SYSTEM + b".",
    "bytes": lambda: b"\x8e" + struct.pack("<Q", 2_000_000) + bytes(2_000_000) + b"0" + SYSTEM + b".",
}, runs=RUNS)  # fmt: skip
everywhere("X10", "a call behind a number or a name beyond a limit", {
    "integer": lambda: b"I" + b" " * 5000 + b"1\n0" + SYSTEM + b".",
    "float": lambda: b"F" + b"0" * 5000 + b".0\n0" + SYSTEM + b".",
    "long": lambda: b"L" + b"0" * 5000 + b"L\n0" + SYSTEM + b".",
    "memo": lambda: b"Np" + b"0" * 5000 + b"1\n0" + SYSTEM + b".",
    "marks": lambda: b"(" * 65_537 + SYSTEM + b".",
}, verdict="unknown")  # fmt: skip
everywhere("X11", "a call in a compressed stream", {
    "gzip": lambda: gzip.compress(EVIL, mtime=0),
    "gzip_twice": lambda: gzip.compress(gzip.compress(EVIL, mtime=0), mtime=0),
    "gzip_member": lambda: gzip.compress(b"", mtime=0) + bytes(100) + gzip.compress(EVIL, mtime=0),
    "gzip_name": lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 300_000 + b"\0" + gzip.compress(EVIL, mtime=0)[10:],
    "gzip_cut": lambda: gzip.compress(EVIL + bytes(1000), mtime=0)[:-10],
    "zlib": lambda: zlib.compress(EVIL),
    "zlib_late": lambda: b"\x78\x01" + b"\0\0\0\xff\xff" * 200 + zlib.compress(EVIL, 0)[2:],
    "zlib_small_window": lambda: _window(EVIL),
    "zlib_streams": lambda: zlib.compress(EVIL[:9]) + zlib.compress(EVIL[9:]),
    "zfile": lambda: b"ZF" + hex(len(EVIL)).ljust(19).encode() + zlib.compress(EVIL),
}, runs=RUNS)  # fmt: skip


def _window(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, 9)
    return packer.compress(data) + packer.flush()


everywhere("X12", "a compressed stream that is not inflated", {
    "bzip2": lambda: bz2.compress(EVIL), "xz": lambda: lzma.compress(EVIL), "lzma": lambda: lzma.compress(EVIL, lzma.FORMAT_ALONE),
    "lzma_dictionary": lambda: lzma.compress(EVIL, lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, "dict_size": 4096, "lc": 0, "pb": 4}]),
    "lz4": lambda: b"\x04\x22\x4d\x18" + bytes(100), "skippable": lambda: b"\x50\x2a\x4d\x18" + bytes(100), "zstd": lambda: b"\x28\xb5\x2f\xfd" + bytes(100),
}, "OpaqueContainer", verdict="unknown")  # fmt: skip

DTYPE = (
    b"cnumpy\ndtype\n("
    + text("f8")
    + b"\x89\x88tR("
    + integer(3)
    + text("<")
    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
)
OBJECT = (
    b"cnumpy\ndtype\n("
    + text("O8")
    + b"\x89\x88tR("
    + integer(3)
    + text("|")
    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb"
)


def wrapped(numel: int, dtype: bytes = DTYPE, *, aligned: bool = True, **more: bytes) -> bytes:
    """joblib's stand-in for an array, with other attributes on request."""
    state = {
        "subclass": name("numpy.ndarray"), "shape": many(integer(numel)), "order": text("C"), "dtype": dtype, "allow_mmap": TRUE,
    } | ({"numpy_array_alignment_bytes": integer(16)} if aligned else {}) | more  # fmt: skip
    return name("joblib.numpy_pickle.NumpyArrayWrapper") + b")\x81" + named(state) + BUILD


def joblib(*after: bytes, data: bytes = bytes(256), padding: bytes | None = bytes(3)) -> bytes:
    """A list of an array of 32 numbers, and what follows."""
    between = b"" if padding is None else bytes([len(padding)]) + padding
    head = b"\x80\x03](" + wrapped(32, aligned=padding is not None)
    return head + between + data + b"".join(after) + b"e."


def joblib_objects(array: bytes, *after: bytes) -> bytes:
    return b"\x80\x03](" + wrapped(1, OBJECT) + pickle(array) + b"".join(after) + b"e."


JOBLIB = {
    **dict.fromkeys(("behind", "before_1_2", "to_an_old_reader", "behind_stop"), Refused("UnknownFormat")),
    **dict.fromkeys(("in_objects", "behind_objects"), Refused("UnknownFormat")),
    **dict.fromkeys(("in_the_array", "in_the_padding"), Refused("UnknownFormat")),
    **dict.fromkeys(("gzip", "zlib"), Refused("UnsupportedContainer")),
}
family("X13", "a call in a file of joblib, as one of its readers or `pickle.load` sees it", {
    "behind": lambda: joblib(SYSTEM), "before_1_2": lambda: joblib(SYSTEM, padding=None),
    "in_objects": lambda: joblib_objects(listed(SYSTEM)), "behind_objects": lambda: joblib_objects(listed(), SYSTEM),
    "in_the_array": lambda: joblib(data=(b"0" + EVIL[2:]).ljust(256, b"\0"), padding=None),
    "in_the_padding": lambda: joblib(padding=EVIL[2:].ljust(ord("N"), b"\0")),
    "to_an_old_reader": lambda: joblib(data=(b"N" + SYSTEM).rjust(256, b"\0"), padding=bytes(len(SYSTEM))),
    "gzip": lambda: gzip.compress(joblib(SYSTEM), mtime=0), "zlib": lambda: zlib.compress(joblib(SYSTEM)),
    "behind_stop": lambda: joblib() + EVIL,
}, JOBLIB, "", runs=RUNS)  # fmt: skip


def joblib_with(**more: bytes) -> bytes:
    """A list of an array of 32 numbers whose wrapper has other attributes."""
    return b"\x80\x03](" + wrapped(32, **more) + b"\x03" + bytes(3) + bytes(256) + b"e."


family("X123", "a wrapper of joblib with attributes that its class does not write", {
    "subclass": lambda: joblib_with(subclass=name("mine.Array")),
    "made_subclass": lambda: joblib_with(subclass=call("mine.make")),
    "dtype": lambda: joblib_with(dtype=call("mine.dtype")),
    "alignment": lambda: joblib_with(numpy_array_alignment_bytes=call("mine.number")),
    "method": lambda: joblib_with(read=name("mine.read")),
    "setstate": lambda: joblib_with(__setstate__=name("mine.read")),
    "order": lambda: joblib_with(order=name("mine.order")),
}, Refused("UnknownFormat"), "StateAttribute", verdict="unknown")  # fmt: skip
family("X14", "INST without a mark, before which `pickle.py` imports", {
    "inst": b"iposix\nsystem\n.", "member": lambda: as_member(b"iposix\nsystem\n."),
}, {"inst": unknown, "member": opened}, "Import")  # fmt: skip
everywhere("X15", "an array of objects behind an array of plain data", {
    key: (lambda descr=descr, data=data: npy(plain(descr=descr, shape="(2,)"), data) + objects("'|O'")) for key, (descr, data) in {
        "numbers": ("'<f4'", bytes(8)), "text": ("'<U2'", bytes(16)), "record": ("[('a', '<i4'), ('b', '|S3', (2,))]", bytes(20)),
        "subarray": ("('<i2', (2, 2))", bytes(16)), "time": ("'<M8[25us]'", bytes(16)),
    }.items()
}, runs=RUNS)  # fmt: skip


def elsewhere() -> bytes:
    """A member with the name of a storage in another folder than the archive's."""
    return Zip().add_path(b"archive/other/data/0", EVIL).bytes()


def named_by_a_loaded_stream() -> bytes:
    """A member that only a stream inside the pickle refers to, as its own storage."""
    inner = legacy(pickle(named({"w": tensor(on=legacy_storage(key="9"))})), pickle(listed(text("9"))))
    return Zip(pickle(named({"w": tensor(), "x": loads(inner)}), protocol=3)).add("data/9", EVIL).bytes()


family("X16", "a member with a storage's name that is none", {
    "folder": elsewhere, "loaded": named_by_a_loaded_stream,
}, {"folder": opened, "loaded": Refused("PickleType")}, "", runs=RUNS)  # fmt: skip
family("X17", "a pickle named `data.pkl` in another case", {
    "kelvin": lambda: Zip().add("DATA.P\u212aL", EVIL).bytes(), "upper": lambda: Zip().add_path(b"archive/more/DATA.PKL", EVIL).bytes(),
    "code": lambda: Zip().add("code/__torch__.py", EVIL).bytes(),
}, {"kelvin": Refused("ZipCase"), "upper": opened, "code": opened}, "", runs=RUNS)  # fmt: skip
family("X18", "a zip archive at the end of a deflated member", {
    "short": lambda: as_member(b"-" * 5000 + torch_zip(EVIL), method=8),
    "long": lambda: as_member(b"-" * (3 << 20) + torch_zip(EVIL), method=8),
}, opened, "", runs=RUNS)  # fmt: skip


def pax(**values: str) -> bytes:
    records = b""
    for key, value in values.items():
        body = f" {key.replace('_', '.')}={value}\n".encode()
        length = len(body) + 1
        length = len(body) + len(str(len(body) + len(str(length))))
        records += str(length).encode() + body
    return records


def described(kind: bytes, text_: bytes, data: bytes, size: int | None = None) -> bytes:
    head = (
        summed(tar_header("extended", len(text_), kind=kind), ustar=True) + text_ + bytes(-len(text_) % 512)
    )
    return head + tar_member("notes", data, **({} if size is None else {"size": size})) + TAR_END


family("X19", "a call in a tar entry that an extended header describes", {
    "long_name": lambda: described(b"L", b"n" * 600, EVIL), "long_link": lambda: described(b"K", b"n" * 600, EVIL),
    "path": lambda: described(b"x", pax(path="other"), EVIL), "size": lambda: described(b"x", pax(size=str(len(EVIL))), EVIL, size=0),
    "solaris": lambda: described(b"X", pax(path="other"), EVIL),
}, dict.fromkeys(("long_link", "size", "solaris"), odd_tars)
   | {"long_name": Refused("Limit", "name_bytes"), "path": tars}, runs=RUNS)  # fmt: skip
family("X20", "a tar archive whose contents are assembled from other places", {
    "sparse": lambda: tar_of(SIX, kind=b"S"), "pax_sparse": lambda: described(b"x", pax(GNU_sparse_major="1", GNU_sparse_minor="0"), SIX),
    "global_size": lambda: described(b"g", pax(size="4096"), SIX), "global_path": lambda: described(b"g", pax(path="storages"), SIX),
    "negative": lambda: summed(tar_header("notes", 0)[:124] + b"\xff" * 11 + b"\0" + tar_header("notes", 0)[136:], ustar=True) + TAR_END,
}, odd_tars, verdict="unknown")  # fmt: skip
family("X21", "an encrypted member", {
    "zip": lambda: Zip().add("extra", SIX, flags=1).bytes(),
}, Refused("ZipUnsupported"), verdict="unknown")  # fmt: skip


def ended(header: bytes, end: bytes) -> bytes:
    """A header of V7 whose checksum ends so."""
    fields = bytearray(summed(header, ustar=False))
    fields[148:156] = fields[148:154] + end
    return bytes(fields)


def behind_v7(*blocks: bytes) -> bytes:
    """A tar archive of V7 with a sound entry before these blocks."""
    return ended(tar_header("a.pkl", len(SIX)), b"\0 ") + SIX.ljust(512, b"\0") + b"".join(blocks) + TAR_END


def separated(size: bytes) -> bytes:
    header = tar_header("evil.pkl", len(EVIL))
    return header[:124] + size + header[136:]


def named_twice(kind: bytes, text_: bytes, header: bytes, data: bytes) -> bytes:
    """A tar entry with an extended header before its own."""
    head = summed(tar_header("extended", len(text_), kind=kind), ustar=True)
    return head + text_.ljust(512, b"\0") + summed(header, ustar=True) + data.ljust(512, b"\0") + TAR_END


FRAMED = EVIL.ljust(512, b"\0")
family("X139", "a tar entry whose header Python reads and others do not", {
    "checksum": lambda: behind_v7(ended(tar_header("evil.pkl", len(EVIL)), b"\x1f\0"), FRAMED),
    "size": lambda: behind_v7(ended(separated(f"{len(EVIL):010o}\x1c\0".encode()), b"\0 "), FRAMED),
    "junk": lambda: behind_v7(b"J" * 512, ended(tar_header("evil.pkl", len(EVIL)), b"\0 "), FRAMED),
}, unknown, "", runs=RUNS)  # fmt: skip
family("X140", "two extended headers of one tar entry", {
    "size": lambda: (
        tar_member("extended", pax(size=str(len(EVIL))), kind=b"x") + tar_member("extended", pax(size="0"), kind=b"x")
        + tar_member("storages", EVIL) + TAR_END
    ),
}, odd_tars, verdict="unknown")  # fmt: skip
family("X141", "a tar entry that is a folder for some readers", {
    "path": lambda: named_twice(b"x", pax(path="tensors/"), tar_header("notes", len(EVIL)), EVIL),
}, odd_tars, "", runs=RUNS)  # fmt: skip
family("X141", "", {
    key: (lambda kind=kind, text_=text_: named_twice(kind, text_, tar_header("notes/", len(EVIL), kind=b"\0"), EVIL))
    for key, (kind, text_) in {"pax": (b"x", pax(path="notes")), "gnu": (b"L", b"notes\0")}.items()
}, odd_tars, "TarStructure", verdict="unknown")  # fmt: skip


def joblib_in_frame() -> bytes:
    """A frame with opcodes behind the array's wrapper, which joblib runs, and an array that ends in other opcodes."""
    real = text("posix") + b"q\x010" + text("system") + b"q\x020" + text("true") + b"\x85q\x030"
    other = text("collections") + b"q\x010" + text("OrderedDict") + b"q\x020" + b")q\x030"
    size = -(-max(len(real), len(other)) // 2) * 2 + 2
    real, other = (
        one + b"N0" * ((size - len(one)) // 2) + b"K\x000"[: 3 * ((size - len(one)) % 2)]
        for one in (real, other)
    )
    frame = wrapped(32, aligned=False) + real
    data = bytes(256 - len(other)) + other + b"h\x01h\x02\x93h\x03R\x86."
    return b"\x80\x04\x95" + struct.pack("<Q", len(frame)) + frame + data


family("X142", "a call in a frame that joblib holds while it reads an array", {
    "memo": joblib_in_frame,
}, unknown, verdict="unknown")  # fmt: skip
