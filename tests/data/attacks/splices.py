"""Splices: files of one format with a file of another one at every place that the first tolerates.

`splices(count, seed)` yields a label and bytes. Hosts are sound; a guest runs a call in some reader. Whether one does after the splice is
for `readers` to say: many splices break the guest, and must not be taken for more than they are.
"""

import gzip
import random
import struct
import zlib
from collections.abc import Callable, Iterator

from attacks.n_numpy import npy, npz, plain
from attacks.pickles import SIX, SYSTEM, binary, integer, listed, named, pickle, storage, tensor, text
from attacks.streams import MAGIC, TAR_END, info, legacy, safetensors, tar_member
from attacks.x_detectors import joblib, loads, summed
from attacks.zips import Zip, torch_zip

EVIL = pickle(SYSTEM)


def guests() -> dict[str, bytes]:
    """Files that one reader runs."""
    objects = npy(plain(descr="'|O'", shape="(1,)"), pickle(listed(SYSTEM), protocol=3))
    return {
        "pickle": EVIL, "text_pickle": SYSTEM + b".", "two_pickles": b"N." + EVIL, "zip": torch_zip(EVIL), "deflated": Zip(EVIL).spoil("data.pkl", method=8).bytes(),
        "tar": tar_member("pickle", EVIL) + TAR_END, "npy": objects, "legacy": legacy(EVIL), "gzip": gzip.compress(EVIL, mtime=0), "zlib": zlib.compress(EVIL),
        "inst": b"(" + text("x") + b"iposix\nsystem\n.", "framed": pickle(SYSTEM, protocol=4), "npz": npz(a=objects).bytes(),
    }  # fmt: skip


def hosts(data: bytes) -> dict[str, Callable[[], bytes]]:
    """Sound files that have `data` where they may have any bytes."""
    padded = data + bytes(-len(data) % 4)
    floats = len(padded) // 4
    weight = tensor((floats,), on=storage(numel=floats))
    inner = {"w": info("U8", [len(data)], 0, len(data))}
    return {
        "text": lambda: pickle(named({"x": binary(data)}), protocol=3),
        "loaded": lambda: pickle(loads(data), protocol=3),
        "member": lambda: Zip().add("extra", data).bytes(),
        "member_pkl": lambda: Zip().add("extra.pkl", data).bytes(),
        "deflated": lambda: Zip().add("extra", data, method=8).bytes(),
        "storage": lambda: torch_zip(pickle(named({"w": weight})), {"0": padded}),
        "comment": lambda: Zip().with_(comment=data[:60_000]).bytes(),
        "prefix": lambda: Zip().with_(prefix=data).bytes(),
        "before": lambda: data + Zip().bytes(),
        "behind": lambda: Zip().bytes() + data,
        "behind_pickle": lambda: pickle(named({})) + data,
        "behind_legacy": lambda: legacy() + data,
        "behind_safetensors": lambda: safetensors({"w": info("F32", [2, 3], 0, 24)}, SIX) + data,
        "behind_array": lambda: npy() + data,
        "in_safetensors": lambda: safetensors(inner, data),
        "in_array": lambda: npy(plain(descr="'|u1'", shape=f"({len(data)},)"), data),
        "in_npz": lambda: npz(w=npy()).add_path(b"x", data).bytes(),
        "entry": lambda: tar_member("notes", data) + TAR_END,
        "entry_of_type": lambda: tar_member("notes", data, kind=b"Q") + TAR_END,
        "gzip": lambda: gzip.compress(data, mtime=0),
        "zlib": lambda: zlib.compress(data),
        "in_joblib": lambda: joblib(data=(bytes(256) + data)[-256:]),
        "system": lambda: MAGIC + pickle(integer(1001)) + pickle(binary(data), protocol=3) + pickle(named({})) + pickle(listed()),
        "bare": lambda: data,
    }  # fmt: skip


def overlaid(host: bytes, random_: random.Random) -> bytes:
    """A host whose first block is a tar header too, with an entry in what follows; only hosts with room there stay sound."""
    block = bytearray(host[:512].ljust(512, b"\0"))
    start = len(host) + -len(host) % 512
    block[124:136] = f"{max(start - 512, 0):011o}\0".encode()
    block[156] = random_.choice(b"0\x007ZxLg")
    rest = bytes(host[512:]).ljust(max(start - 512, 0), b"\0")
    return summed(bytes(block), ustar=random_.random() < 0.5) + rest + tar_member("pickle", EVIL) + TAR_END


def skipping(length: int, random_: random.Random) -> bytes:
    """Opcodes of one value that skip so many bytes behind them, and drop it."""
    return random_.choice([
        b"X" + struct.pack("<I", length), b"B" + struct.pack("<I", length), b"T" + struct.pack("<i", length), b"\x8e" + struct.pack("<Q", length),
        b"\x8d" + struct.pack("<Q", length), b"\x80\x04\x96" + struct.pack("<Q", length),
    ])  # fmt: skip


def splices(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """`count` splices: guests in hosts, once or twice, with one place in the host overwritten or inserted now and then."""
    random_ = random.Random(seed)
    made = guests()
    for number in range(count):
        guest = random_.choice(list(made))
        data, label = made[guest], guest
        for _ in range(random_.choice((1, 1, 2))):
            host = random_.choice(list(hosts(b"")))
            data, label = hosts(data)[host](), f"{label} {host}"
        change = random_.randrange(6)
        if change == 0:
            data, label = overlaid(data, random_), f"{label} tar"
        elif change == 1:
            # A pickle from byte 0 that skips the file, and runs behind it.
            head = skipping(len(data), random_)
            data, label = head + data + b"0" + EVIL[2:], f"{label} skipped"
        elif change == 2:
            at, other = random_.randrange(len(data) + 1), made[random_.choice(list(made))]
            data, label = data[:at] + other + data[at:], f"{label} inserted"
        elif change == 3:
            at, other = random_.randrange(len(data) + 1), made[random_.choice(list(made))]
            data, label = data[:at] + other + data[at + len(other) :], f"{label} overwritten"
        yield f"{number} {label}", data
