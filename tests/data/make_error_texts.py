"""Triggers every error of the catalogue, and writes its text to error_texts.txt: `python tests/data/make_error_texts.py`.

The file is to be read: it is the text that users see, word for word, and `tests/python/test_catalogue.py` holds rustload to it.
A code's input is the first of the attack matrix that ends in it, or one of `TRIGGERS` below.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attacks import CASES
from attacks.pickles import SIX, SYSTEM, call, ints, name, named, pickle, tensor
from attacks.registry import Fails, Refused
from attacks.streams import info, safetensors
from attacks.zips import Zip, around

import rustload
from rustload import _rustload

PAGE = Path(__file__).with_name("error_texts.txt")

ELSEWHERE = {
    "RemoteFolder": "tests/python/test_remote.py",  # these take a store or a server
    "RemoteRange": "tests/python/test_remote.py",
    "RemoteScheme": "tests/python/test_remote.py",
    "RemoteSize": "tests/python/test_remote.py",
    "RemoteUnavailable": "tests/python/test_remote.py",
    "Forked": "tests/python/test_stream.py",  # it takes a forked child
    "Cancelled": "tests/rust/materialize.rs",  # Python raises its own KeyboardInterrupt
    "InternalError": "tests/rust/panics.rs",  # no input triggers one
}
"""Codes without a text in the file, and the test that triggers them."""


def good(folder: Path) -> Path:
    path = folder / "model.pt"
    path.write_bytes(Zip(pickle(named({"weight": tensor(), "expanded": tensor((8,), (0,))}))).bytes())
    return path


def handle(folder: Path, **options: Any) -> rustload.LazyTensor:
    return rustload.open(good(folder), framework="dlpack", **options)["weight"]


def changed(folder: Path) -> None:
    lazy = handle(folder)
    os.truncate(folder / "model.pt", 100)
    lazy.materialize(copy=True)


def unlike_its_manifest(folder: Path) -> None:
    manifest = rustload.Manifest.of(good(folder))
    content = bytearray((folder / "model.pt").read_bytes())
    content[100] ^= 1
    (folder / "model.pt").write_bytes(content)
    rustload.open(folder / "model.pt", manifest=manifest)


def index_of(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    rustload.open(folder)


def one_shard(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(safetensors({"w": info("F32", [2, 3], 0, 24)}, SIX))


def absent_key(folder: Path) -> None:
    one_shard(folder)
    index_of(folder, {"w": "a.safetensors", "bias": "a.safetensors"})


def two_of_a_name(folder: Path) -> None:
    one_shard(folder)
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    rustload.open([folder / "a.safetensors", folder / "b.safetensors"])


def closed(folder: Path) -> None:
    with rustload.open(good(folder)) as ckpt:
        pass
    ckpt["weight"]


def strict(body: bytes) -> Callable[[Path], Any]:
    def trigger(folder: Path) -> None:
        (folder / "model.pt").write_bytes(around(named({"x": body})))
        rustload.open(folder / "model.pt", unknown="error")

    return trigger


def out_of_memory(folder: Path) -> None:
    most = rustload.Limits(materialize_bytes=2**63, materialize_ratio=2**62, available_memory=None)
    path = folder / "model.pt"
    path.write_bytes(around(named({"w": tensor((1 << 58,), (0,))})))
    rustload.open(path, limits=most, framework="dlpack")["w"].materialize(copy=True)


def mismatch(folder: Path) -> None:
    import torch

    import rustload.torch

    rustload.torch.load_into(torch.nn.Linear(3, 4, bias=False), good(folder))


def meta(folder: Path) -> None:
    body = call(
        "torch._utils._rebuild_meta_tensor_no_storage", name("torch.float32"), ints(2), ints(1), b"\x89"
    )
    (folder / "model.pt").write_bytes(around(named({"w": body})))
    rustload.open(folder / "model.pt", framework="dlpack")["w"].materialize()


def twice(folder: Path) -> None:
    for _ in range(2):
        rustload.save({}, folder / "m.safetensors", overwrite=False)


def tied(folder: Path) -> None:
    lazy = handle(folder)
    rustload.save({"embed": lazy, "head": lazy}, folder / "m.safetensors", ties="error")


class ChangesWhenVerified:
    """An array of zeros that has ones when its bytes are asked for again."""

    def __init__(self) -> None:
        import torch

        class Zeros(torch.Tensor):
            times = 0

            def detach(self) -> torch.Tensor:
                self.times += 1
                return torch.full((3,), self.times - 1, dtype=torch.uint8)

        self.tensor = torch.zeros(3, dtype=torch.uint8).as_subclass(Zeros)


def not_verified(folder: Path) -> None:
    """A new file whose source changes before it is read back."""
    rustload.save({"x": ChangesWhenVerified().tensor}, folder / "m.safetensors", verify=True)


def busy(folder: Path) -> None:
    """A target that another call has locked."""
    path = folder / "m.safetensors"
    first = rustload.Writer(path, {"x": ("int8", (2,))})
    try:
        rustload.save(rustload.open(good(folder)), path)
    finally:
        first.discard()


def partial_placement(_folder: Path) -> None:
    from torch.distributed.tensor import Partial

    from rustload.torch._shards import cut

    cut((4, 2), (2,), (0,), [Partial()], "layer.weight")


def opaque_value(folder: Path) -> None:
    from torch.distributed.checkpoint import DefaultLoadPlanner

    from rustload.torch.distributed import Reader

    (folder / "model.pt").write_bytes(around(named({"made_by": call("some.Class", ints(1))})))
    reader = Reader(folder / "model.pt")
    planner = DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner({"made_by": None}, metadata, is_coordinator=True)
    reader.read_data(planner.create_local_plan(), planner)


TRIGGERS: dict[str, Callable[[Path], Any]] = {
    "FileChanged": changed,
    "ManifestMismatch": unlike_its_manifest,
    "ManifestMissing": lambda folder: rustload.open(good(folder), manifest=b"%064x  other.pt\n" % 0),
    "ManifestInvalid": lambda _: rustload.Manifest(b"0123  ../model.pt\n"),
    "ShardMissing": lambda folder: index_of(folder, {"a": "one.safetensors", "b": "two.safetensors"}),
    "ShardDuplicate": two_of_a_name,
    "IndexFormat": lambda folder: index_of(folder, ["w"]),
    "IndexKey": absent_key,
    "DisallowedGlobal": strict(SYSTEM),
    "DisallowedCall": strict(b"cbuiltins\nbytearray\nJ\0\0\0\x40\x85R"),
    "DtypeUnsupported": lambda folder: handle(folder).materialize(dtype="float4_e2m1fn_x2"),
    "DTensorPlacement": partial_placement,
    "OpaqueValue": opaque_value,
    "LossyCast": lambda folder: handle(folder).materialize(dtype="int8"),
    "NotFound": lambda folder: rustload.open(good(folder))["wieght"],
    "NotSafetensors": lambda folder: rustload.Writer(folder / "m.safetensors", {"x": ("complex128", (2,))}),
    "DuplicateName": lambda folder: rustload.Writer(
        folder / "m.safetensors", {"__metadata__": ("int8", (2,))}
    ),
    "HeaderTooLarge": lambda folder: rustload.Writer(folder / "m.safetensors", {"x" * 10**8: ("int8", (2,))}),
    "TiedTensors": tied,
    "TargetExists": twice,
    "TargetBusy": busy,
    "VerifyFailed": not_verified,
    "WriterIncomplete": lambda folder: rustload.Writer(
        folder / "m.safetensors", {"x": ("int8", (2,))}
    ).close(),
    "Closed": closed,
    "Value": lambda folder: handle(folder).permute((0, 0)),
    "Index": lambda folder: handle(folder)[9],
    "Type": lambda _: rustload.open(3),  # type: ignore[arg-type]
    "Buffer": lambda folder: handle(folder).materialize(dtype="float16", copy=False),
    "Device": lambda folder: handle(folder).materialize(device="cuda:0"),
    "Memory": out_of_memory,
    "NotEnoughMemory": lambda folder: handle(folder, limits=rustload.Limits(available_memory=8)).materialize(
        copy=True
    ),
    "MetaTensor": meta,
    "ModelMismatch": mismatch,
}


def registry_trigger(code: str) -> Callable[[Path], Any] | None:
    """Opens the first input of the matrix that ends in this code, a checkpoint of torch or safetensors if there is one."""
    for case in sorted(CASES, key=lambda case: case.id.startswith("N")):
        if isinstance(case.load, (Refused, Fails)) and case.load.code == code:

            def trigger(folder: Path, case: Any = case) -> None:
                given = dict(case.options)
                if "limits" in given:
                    given["limits"] = rustload.Limits(**given["limits"])
                ckpt = rustload.open(case.make(folder), **given)
                case.load.ask(ckpt)

            return trigger
    return None


def text_of(code: str) -> str | None:
    """The class, the message and the notes of the error of this code, without the folder's name; None if nothing raises it."""
    trigger = TRIGGERS.get(code) or registry_trigger(code)
    if trigger is None:
        return None
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            trigger(folder)
        except Exception as error:
            found = getattr(error, "code", None)
            if found != code:
                raise AssertionError(f"{code}: {type(error).__name__} {found} {error}") from error
            lines = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
            return "".join(f"    {line}\n" for line in lines).replace(f"{made}/", "").replace(made, ".")
    raise AssertionError(f"{code}: nothing was raised")


def page() -> str:
    """The whole file."""
    out = [
        "Every error of rustload: its code, then its class, its message, and its notes. Made by make_error_texts.py.\n"
    ]
    for code, *_ in _rustload.CODES:
        if code not in ELSEWHERE:
            out.append(f"\n{code}\n{text_of(code) or '    (nothing raises it)' + chr(10)}")
    return "".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
