"""L: legacy streams, and the tar files of torch 0.1."""

from attacks.a_files import holds
from attacks.pickles import (
    SIX,
    SYSTEM,
    call,
    integer,
    legacy_storage,
    listed,
    many,
    name,
    named,
    ordered,
    pickle,
    tensor,
    text,
)
from attacks.registry import Kept, Opens, Refused, family
from attacks.streams import (
    MAGIC,
    SYSTEM_INFO,
    TAR_END,
    TAR_PARTS,
    block,
    legacy,
    tar,
    tar_member,
    tar_storages,
    tar_tensors,
)

RUNS = ("posix.system",)
good = holds("w", format="torch-legacy")
keys_wrong, bounds, trailing = Refused("LegacyKeys"), Refused("StorageBounds"), Refused("TrailingData")


def listing(*keys: str) -> bytes:
    return pickle(listed(*map(text, keys)))


def one(on: bytes, **more: bytes) -> bytes:
    """An object with one tensor on this storage."""
    return pickle(named({"w": tensor((1,), on=on), **more}))


family("L01", "a wrong magic number", {
    "number": lambda: legacy(magic=pickle(integer(1 << 70))), "bits": lambda: legacy(magic=MAGIC[:-2] + b"\x18."),
}, Refused("UnknownFormat"))  # fmt: skip
family(
    "L02",
    "a magic number that is the result of a call",
    lambda: legacy(magic=pickle(SYSTEM)),
    Refused("DisallowedCall"),
    "DisallowedGlobal",
    runs=RUNS,
)
family(
    "L03", "a wrong protocol version", lambda: legacy(version=pickle(integer(1002))), Refused("LegacyVersion")
)


def noted(ckpt) -> None:
    assert any("big-endian" in note for note in ckpt.notes)
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == SIX


family(
    "L04",
    "a writer that says it was big-endian",
    lambda: legacy(system=pickle(named({"little_endian": b"\x89"}))),
    Opens("opens, noted", noted),
)
family("L05", "a wrong list of storage keys", {
    "missing": lambda: MAGIC + pickle(integer(1001)) + SYSTEM_INFO + one(legacy_storage()),
    "duplicate": lambda: legacy(keys=listing("0", "0"), data=block(6, SIX) * 2),
    "unknown": lambda: legacy(keys=listing("0", "7"), data=block(6, SIX) * 2),
    "ints": lambda: legacy(keys=pickle(listed(integer(0)))),
    "dict": lambda: legacy(keys=pickle(b"}")),
}, keys_wrong)  # fmt: skip
family(
    "L06", "a storage of another size than the pickle says", lambda: legacy(data=block(5, SIX[:20])), bounds
)
family("L07", "a storage of a negative or huge size", {
    "negative": lambda: legacy(data=block(-1, SIX)), "huge": lambda: legacy(data=block(1 << 62, SIX)),
    "in_the_pickle": lambda: legacy(one(legacy_storage(numel=-1)), data=block(-1, SIX)),
}, bounds)  # fmt: skip
family("L08", "a truncated storage", {
    "data": lambda: legacy()[:-4], "size": lambda: legacy(data=b"\6\0\0"), "none": lambda: legacy(data=b""),
}, Refused("Truncated"))  # fmt: skip
family(
    "L09",
    "an unreferenced storage",
    lambda: legacy(keys=listing("0", "1"), data=block(6, SIX) * 2),
    keys_wrong,
)
family("L09", "", {"unlisted": lambda: legacy(data=block(6, SIX) * 2)}, trailing)


def view(key: str, offset: int, numel: int) -> bytes:
    return many(text(key), integer(offset), integer(numel))


def viewed(*views: bytes) -> bytes:
    """Tensors on views of storage 0, as torch before 0.4 wrote them."""
    return legacy(pickle(listed(*(tensor((1,), on=legacy_storage(view=one_view)) for one_view in views))))


family("L10", "a view outside its storage", {
    "past": lambda: viewed(view("v", 4, 3)), "negative_offset": lambda: viewed(view("v", -1, 1)), "negative_size": lambda: viewed(view("v", 0, -1)),
    "wraps": lambda: viewed(view("v", (1 << 63) - 1, 2)),
}, bounds)  # fmt: skip
family(
    "L11",
    "one view key with two ranges",
    lambda: viewed(view("v", 0, 2), view("v", 1, 2)),
    Refused("StorageConflict"),
)
family("L12", "bytes after the last storage", {
    "junk": lambda: legacy() + b"junk", "pickle": lambda: legacy() + pickle(SYSTEM),
}, trailing)  # fmt: skip
family(
    "L12", "", {"asked_for": lambda: legacy() + b"junk"}, good, "TrailingData", options={"trailing": "ignore"}
)


def untyped() -> bytes:
    on = legacy_storage("torch.storage.UntypedStorage", numel=24)
    v3 = call(
        "torch._utils._rebuild_tensor_v3",
        on,
        integer(0),
        many(integer(6)),
        many(integer(1)),
        b"\x89",
        ordered(),
        name("torch.float32"),
    )
    return legacy(pickle(named({"w": v3})), data=block(24, SIX))


family("L13", "an untyped storage", untyped, good)
family(
    "L14", "a storage that is not in the list of keys", lambda: legacy(keys=listing(), data=b""), keys_wrong
)

# Tar: the structure of the archive, and what its members say.

structure, content = Refused("TarStructure"), Refused("TarContent")
TAR = "a tar file of torch 0.1 "
PICKLE = tar_member("pickle", pickle(SYSTEM))
family("L15a", f"{TAR}with a missing or duplicate member", {
    "missing": lambda: b"".join(tar_member(path, data) for path, data in TAR_PARTS.items() if path != "storages") + TAR_END,
    "bad_first": lambda: tar(before=PICKLE), "bad_second": lambda: tar(after=PICKLE),
}, structure, suffix=".tar")  # fmt: skip
family("L15b", f"{TAR}with a link or a device", {
    "symlink": lambda: tar(before=tar_member("pickle", b"", kind=b"2", link="/etc/passwd")),
    "hardlink": lambda: tar(before=tar_member("pickle", b"", kind=b"1", link="tensors")),
    "device": lambda: tar(before=tar_member("pickle", b"", kind=b"3")),
    **{f"kind_{kind}": (lambda kind=kind: tar(before=tar_member("a", b"", kind=kind.encode()))) for kind in ["4", "6", "7", "M", "V", "N", "K", "X", "A"]},
}, structure, suffix=".tar")  # fmt: skip
PAX = b"18 size=999999999\n"
family("L15c", f"{TAR}with a PAX header whose size contradicts the member's header", {
    "size": lambda: tar(before=tar_member("PaxHeaders/pickle", PAX, kind=b"x")),
    "global": lambda: tar(before=tar_member("pax_global_header", PAX, kind=b"g")),
}, structure, suffix=".tar")  # fmt: skip
family("L15d", f"{TAR}with a sparse member or a long name", {
    "sparse": lambda: tar(before=tar_member("pickle", b"", kind=b"S")),
    "long_name": lambda: tar(before=tar_member("././@LongLink", b"pickle\0", kind=b"L")),
    "long_own_name": lambda: tar_member("././@LongLink", b"sys_info\0", kind=b"L") + tar(),
}, structure, suffix=".tar")  # fmt: skip
family(
    "L15e",
    f"{TAR}with a wrong checksum",
    lambda: tar(before=tar_member("pickle", pickle(SYSTEM), checksum=1)),
    structure,
    suffix=".tar",
)
family("L15f", f"{TAR}with a wrong number of storages", {
    "minus": lambda: tar({"storages": tar_storages(-1)}), "2_31": lambda: tar({"storages": tar_storages(1 << 31)}),
}, content, suffix=".tar")  # fmt: skip
family("L15g", f"{TAR}with an impossible number of dimensions", {
    "negative": lambda: tar({"tensors": tar_tensors(dims=-1)}), "million": lambda: tar({"tensors": tar_tensors(dims=1_000_000)}),
}, content, suffix=".tar")  # fmt: skip
VIEWS = pickle(listed(many(integer(9), integer(404), integer(0), integer(1))))
family(
    "L15h",
    f"{TAR}with a view of a missing storage",
    lambda: tar({"storages": tar_storages(views=VIEWS)}),
    content,
    suffix=".tar",
)
family(
    "L15i",
    f"{TAR}with a tensor on a missing storage",
    lambda: tar({"tensors": tar_tensors(storage=404)}),
    content,
    suffix=".tar",
)
family("L15j", f"{TAR}with path traversal or absolute paths in member names", {
    "parent": lambda: tar(before=tar_member("../../escaped", b"x")), "absolute": lambda: tar(before=tar_member("/tmp/escaped", b"x")),
    **{f"name_{number}": (lambda name=name: tar(before=tar_member(name, b"x"))) for number, name in enumerate(
        ("..", "a/../b", "a//b", "a/./b", "a\\..\\b")
    )},
    "again": lambda: tar(before=tar_member("./pickle", b"x")), "below_a_file": lambda: tar(after=tar_member("pickle/b", b"x")),
    "folder_of_bytes": lambda: tar(before=tar_member("a/", b"12345", kind=b"5")),
}, structure, suffix=".tar")  # fmt: skip

# A call whose result is popped: the pickle's value is what torch writes there, and an unpickler has executed the call.

POPPED = SYSTEM + b"0"
beside = Kept("posix.system")


def counted(data: bytes) -> bytes:
    """A member of torch 0.1's tar file, with a call before the first pickle's count."""
    first = pickle(integer(1))
    assert data.startswith(first)
    return pickle(POPPED + integer(1)) + data.removeprefix(first)


family(
    "L16",
    "a popped call in a pickle beside the object's",
    {
        "version": lambda: legacy(version=pickle(POPPED + integer(1001))),
        "system": lambda: legacy(system=pickle(POPPED + named({}))),
        "keys": lambda: legacy(keys=pickle(POPPED + listed(text("0")))),
    },
    beside,
    "DisallowedGlobal",
    runs=RUNS,
)
family(
    "L16",
    "",
    {
        "tar_system": lambda: tar({"sys_info": pickle(POPPED + named({}))}),
        "tar_tensors": lambda: tar({"tensors": counted(tar_tensors())}),
        "tar_storages": lambda: tar({"storages": counted(tar_storages())}),
        "tar_views": lambda: tar({"storages": tar_storages(views=pickle(POPPED + listed()))}),
    },
    beside,
    "DisallowedGlobal",
    runs=RUNS,
    suffix=".tar",
)
