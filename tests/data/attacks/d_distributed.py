"""D: distributed checkpoints, and the files of single processes, that lie about chunks, ranges and files, or hide a call."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.distributed import (
    CLASSES,
    VALUE,
    Folder,
    archive,
    chunk,
    index,
    info,
    properties,
    size,
    tensor,
    value_archive,
)
from attacks.parts import SIX_BY_TWO, TENSOR, dtensor, hf_part, local, rank_file, row, shard, sharded, wrapper
from attacks.pickles import (
    NONE,
    SYSTEM,
    get,
    integer,
    ints,
    listed,
    made,
    many,
    mapped,
    named,
    pickle,
    put,
    text,
)
from attacks.registry import Fails, Kept, Opens, Outcome, Refused, family

RUNS = ("posix.system",)


def placed(ident: str, name: str, build: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A function that writes the folder of a case, and returns it."""

    def write(folder: Path) -> Any:
        place = folder / f"{ident}-{name}"
        place.mkdir(exist_ok=True)
        return build(place)

    return write


def add(
    ident: str,
    what: str,
    builds: dict[str, Folder | Callable[[Path], Any]],
    load: Outcome,
    *finds: str,
    **more,
):
    """Adds folders."""
    made = {
        name: placed(ident, name, build.write if isinstance(build, Folder) else build)
        for name, build in builds.items()
    }
    family(ident, what, made, load, *finds, placed=True, **more)


def shaped(*chunks: bytes, shape: tuple[int, ...] = (2, 3), **more: Any) -> Folder:
    """The folder with other chunks of `w`."""
    return Folder({"w": tensor(shape, *chunks), "step": VALUE}, **more)


def items(
    *chunks: tuple[tuple[int, ...], tuple[int, ...]],
) -> list[tuple[str, tuple[int, ...] | None, bytes]]:
    return [("step", None, value_archive(integer(7))), *(("w", at, archive(*sizes)) for at, sizes in chunks)]


def six(ckpt) -> None:
    """`w` is 0 to 5."""
    import struct

    from attacks.pickles import SIX

    assert ckpt.format == "torch-dcp"
    assert list(ckpt) == ["w"]
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == SIX
    assert ckpt["w"][1, 1:].materialize(framework="dlpack").tobytes() == struct.pack("<2f", 4, 5)


grid, ranges, path, chunks, form = (
    Refused(f"Dcp{kind}") for kind in ("Grid", "Range", "Path", "Chunk", "Metadata")
)
W = [("w", (0, 0), archive(2, 3)), ("step", None, value_archive(integer(7)))]
WHOLE = shaped(chunk((0, 0), (2, 3)), items=W)

add(
    "D01",
    "chunks that overlap",
    {
        "twice": shaped(
            chunk((0, 0), (2, 3)), chunk((1, 0), (1, 3)), items=items(((0, 0), (2, 3)), ((1, 0), (1, 3)))
        ),
        "volume": shaped(
            chunk((0, 0), (1, 3)),
            chunk((0, 1), (1, 3)),
            shape=(1, 6),
            items=items(((0, 0), (1, 3)), ((0, 1), (1, 3))),
        ),
    },
    grid,
)
add(
    "D02",
    "elements in no chunk",
    {
        "row": shaped(chunk((0, 0), (1, 3)), items=items(((0, 0), (1, 3)))),
        "all": shaped(items=items()),
    },
    grid,
)
add(
    "D03",
    "a chunk that reaches outside its tensor",
    {
        "end": shaped(chunk((1, 0), (2, 3)), items=items(((1, 0), (2, 3)))),
        "overflow": shaped(chunk((2**63 - 1, 0), (2, 3)), items=items(((2**63 - 1, 0), (2, 3)))),
        "rank": shaped(chunk((0,), (6,)), items=items(((0,), (6,)))),
    },
    grid,
)
outside = Folder().ranges()[2]
add(
    "D04",
    "an item outside its file, or that shares bytes with another",
    {
        "end": Folder(infos={2: info("__0_0.distcp", outside[0] + 1, outside[1])}),
        "far": Folder(infos={2: info("__0_0.distcp", 2**62, outside[1])}),
        "overlap": Folder(infos={2: info("__0_0.distcp", outside[0] - 1, outside[1])}),
        "same": Folder(infos={2: info("__0_0.distcp", *Folder().ranges()[1])}),
        "short": Folder(infos={2: info("__0_0.distcp", outside[0], 8)}),
    },
    ranges,
)


def linked(folder: Path) -> Path:
    """The file of chunks is a link to one in another folder."""
    Folder().write(folder)
    away = folder.parent / "D05-away"
    away.mkdir(exist_ok=True)
    (folder / "__0_0.distcp").replace(away / "real.distcp")
    (folder / "__0_0.distcp").symlink_to(away / "real.distcp")
    return folder


def renamed(to: str) -> Folder:
    return Folder(infos={2: info(to, *outside)})


add(
    "D05",
    "a file name that leaves the folder",
    {
        "up": renamed("../__0_0.distcp"),
        "absolute": renamed("/etc/passwd"),
        "dots": renamed(".."),
        "inside": renamed("sub/__0_0.distcp"),
        "backslash": renamed("..\\x.distcp"),
        "drive": renamed("C:x.distcp"),
        "null": renamed("x\0.distcp"),
        "empty": renamed(""),
        "link": linked,
    },
    path,
)


def unfinished(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        Folder().write(folder)
        (folder / ".metadata").rename(folder / name)
        return folder

    return write


add("D06", "a save that did not finish", {"tmp": unfinished(".metadata.tmp")}, Refused("DcpUnfinished"), "")
add("D07", "metadata of each rank", {"": unfinished("__0.metadata")}, Refused("DcpRankLocal"), "")
add("D08", "a file of chunks that is missing", {"": renamed("__9_0.distcp")}, Refused("ShardMissing"))
add(
    "D09",
    "a transformed item",
    {"zstd": Folder(infos={2: info("__0_0.distcp", *outside, transforms=["stream.zstd/1"])})},
    Refused("DcpTransform"),
)


def read(ckpt) -> None:
    ckpt["w"].materialize(framework="dlpack")


lies = Fails("DcpChunk", read, "reading")
add(
    "D10",
    "a chunk that is not the tensor of the metadata",
    {
        "shape": shaped(chunk((0, 0), (2, 3)), items=[("w", (0, 0), archive(3, 2)), W[1]]),
        "dtype": Folder(
            {"w": tensor((2, 3), chunk((0, 0), (2, 3)), props=properties("int32")), "step": VALUE}, W
        ),
        "value": shaped(chunk((0, 0), (2, 3)), items=[("w", (0, 0), value_archive(integer(7))), W[1]]),
        "dict": shaped(
            chunk((0, 0), (2, 3)), items=[("w", (0, 0), value_archive(named({"w": integer(1)}))), W[1]]
        ),
    },
    lies,
    "",
)
add(
    "D11",
    "metadata in a form that torch does not write",
    {
        "unstored": Folder(keys={2: index("v", (1, 0))}),
        "twice": Folder(keys={2: index("w", (0, 0))}),
        "negative": shaped(chunk((-1, 0), (1, 3)), chunk((1, 0), (1, 3))),
        "text": Folder(infos={2: integer(3)}),
        "layout": Folder({"w": tensor((2, 3), props=properties(layout="torch.sparse_coo")), "step": VALUE}),
        "state": Folder(body=pickle(made(f"{CLASSES}.Metadata", state=listed()), protocol=4)),
        "fields": Folder(body=pickle(made(f"{CLASSES}.Metadata"), protocol=4)),
        "key": Folder(keys={2: text("w")}),
    },
    form,
)
add(
    "D12",
    "`os.system` in the metadata",
    {
        "field": Folder(more={"storage_meta": SYSTEM}),
        "planner": Folder(paths=mapped((text("w"), SYSTEM))),
    },
    Kept("posix.system"),
    runs=RUNS,
)
add(
    "D13",
    "`os.system` in a value",
    {"": Folder(items=[("step", None, value_archive(SYSTEM)), *Folder().items[1:]])},
    Opens("opens as torch-dcp", six),
    "DisallowedGlobal",
    runs=RUNS,
)


def shared_chunks() -> bytes:
    """20,000 tensors with one and the same list of 20,000 chunks."""
    empty = chunk((0,), (0,)) + put(0)
    chunks = listed(empty, *[get(0)] * 20_000) + put(1)
    props = properties() + put(2)
    first = made(
        f"{CLASSES}.TensorStorageMetadata",
        state=named({"properties": props, "size": size(0), "chunks": chunks}),
    )
    fields = named({"properties": get(2), "size": size(0), "chunks": get(1)})
    others = {f"w{at}": made(f"{CLASSES}.TensorStorageMetadata", state=fields) for at in range(20_000)}
    state = {"state_dict_metadata": named({"w": first} | others), "storage_data": mapped()}
    return pickle(made(f"{CLASSES}.Metadata", state=named(state)), protocol=4)


add(
    "D14",
    "lists of chunks that many tensors share",
    {"": Folder(body=shared_chunks())},
    form,
)


def processes(*data: bytes, suffix: str = ".pt") -> Callable[[Path], Any]:
    """A function that writes a file for each process; it returns their paths."""

    def write(folder: Path) -> Any:
        paths = [folder / f"rank{number}{suffix}" for number in range(len(data))]
        for path, content in zip(paths, data, strict=True):
            path.write_bytes(content)
        return paths

    return write


def ranks(*values: bytes) -> Callable[[Path], Any]:
    """The files of processes that each have one row of `w`."""
    return processes(*(rank_file({"w": value}, row(number)) for number, value in enumerate(values)))


def shards(*data: bytes) -> Callable[[Path], Any]:
    return processes(*data, suffix=".safetensors")


one = local((1, 3))
first, second = dtensor(one, rank=0), dtensor(one, rank=1)


def joined(ckpt) -> None:
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == SIX_BY_TWO


add(
    "D15",
    "parts of a tensor that overlap, leave out elements or reach outside it",
    {
        "overlap": ranks(
            sharded(local((1, 3)), (0, 0), (1, 3)), sharded(local((1, 3)), (0, 0), (1, 3), (1, 6))
        ),
        "hole": ranks(sharded(one, (0, 0), (1, 3)), sharded(one, (2, 0), (1, 3), (2, 3))),
        "missing": ranks(second, second),
        "far": ranks(sharded(one, (0, 0), (1, 3)), sharded(one, (2**63 - 1, 0), (1, 3))),
        "huge": ranks(*[sharded(one, (at, 0), (1, 3), (2**62, 2**62)) for at in range(2)]),
    },
    {
        "overlap": Refused("PartConflict"),
        "hole": grid,
        "missing": grid,
        "far": grid,
        "huge": Refused("TensorShape"),
    },
    "",
)
add(
    "D16",
    "parts of one tensor that differ in dtype or shape",
    {
        "dtype": ranks(first, dtensor(local((1, 3), kind="Int"), rank=1, dtype="int32")),
        "shape": ranks(first, dtensor(one, (3, 3), rank=1)),
        "rank": ranks(sharded(one, (0, 0), (1, 3)), sharded(local((3,)), (1,), (3,), (2, 3))),
    },
    {
        "dtype": Refused("PartConflict"),
        "shape": Refused("PartConflict"),
        "rank": Refused("DTensorPlacement"),
    },
    "",
)
add(
    "D17",
    "parts that do not say where they lie, or lie about it",
    {
        "outside": ranks(first, dtensor(one, rank=2)),
        "shape": ranks(first, dtensor(one, (5, 3), rank=1)),
        "dim": ranks(first, dtensor(one, rank=1, placements=[shard(2**40)])),
        "placements": ranks(first, dtensor(one, rank=1, placements=[shard(0), shard(0)])),
        "mesh": ranks(first, dtensor(one, mesh=NONE)),
        "order": ranks(
            first,
            dtensor(
                one,
                rank=1,
                more={
                    "shard_order": many(
                        made("torch.distributed.tensor._dtensor_spec.ShardOrderEntry", integer(0), ints())
                    )
                },
            ),
        ),
    },
    Refused("DTensorPlacement"),
    "",
)
add(
    "D18",
    "parts that repeat their elements, and together are a large tensor",
    {
        "": processes(
            *(
                rank_file({"w": dtensor(stretched, (2, 2**40), rank=number)}, {"0": SIX_BY_TWO[:4]})
                for number in range(2)
                for stretched in [
                    local((1, 2**40), strides=(1, 0)).replace(integer(2**40) + b"tQ", integer(1) + b"tQ")
                ]
            )
        )
    },
    Refused("DcpChunk"),
    "",
)
add(
    "D19",
    "`os.system` in the mesh of a part",
    {"": ranks(first, dtensor(one, rank=1, more={"tensor_meta": SYSTEM}))},
    Opens("opens, joined", joined),
    "DisallowedGlobal",
    runs=RUNS,
)


def shared_spec() -> bytes:
    """20,000 parts that share a specification of 20,000 fields."""
    fields = [(text(f"f{at}"), NONE) for at in range(20_000)]
    spec = made("torch.distributed.tensor._dtensor_spec.DTensorSpec", state=mapped(*fields)) + put(9)
    part = dtensor(one + put(8), more={"x": spec})
    args = wrapper_args(get(8), get(9))
    return rank_file({"w": part, **{f"w{at}": args for at in range(20_000)}}, row(0))


def wrapper_args(part: bytes, spec: bytes) -> bytes:
    """A DTensor of this part and this specification."""
    return wrapper(f"{TENSOR}.DTensor", (2, 3), many(NONE, named({"_local_tensor": part, "_spec": spec})))


add(
    "D20",
    "a specification that many parts share",
    {"": processes(shared_spec(), shared_spec())},
    grid,
    "",
)
add(
    "D21",
    "sharding information in a safetensors file that is not what torch writes",
    {
        "text": shards(hf_part([0, 0]), hf_part("{")),
        "list": shards(hf_part([0, 0]), hf_part("[]")),
        "missing": shards(hf_part([0, 0]), hf_part({"v": {"saved_offsets": [0, 0]}})),
        "rank": shards(hf_part([0, 0]), hf_part([1])),
        "negative": shards(hf_part([0, 0]), hf_part([-1, 0])),
        "large": shards(hf_part([0, 0]), hf_part([2**64, 0])),
        "float": shards(hf_part([0, 0]), hf_part([1.5, 0])),
        "deep": shards(hf_part([0, 0]), hf_part('{"w":' * 100_000)),
        "many": shards(hf_part([0, 0]), hf_part([0] * 1_000_000)),
        "twice": shards(
            hf_part([0, 0]), hf_part('{"w":{"saved_offsets":[0,0]},"w":{"saved_offsets":[1,0]}}')
        ),
    },
    form,
    "",
)
add(
    "D22",
    "safetensors files of processes whose parts are not a tensor",
    {
        "overlap": shards(hf_part([0, 0]), hf_part([0, 1])),
        "hole": shards(hf_part([0, 0]), hf_part([2, 0])),
        "far": shards(hf_part([0, 0]), hf_part([2**63, 0])),
        "end": shards(hf_part([0, 0]), hf_part([2**64 - 1, 0])),
        "dtype": shards(hf_part([0, 0]), hf_part([1, 0], dtype="I32")),
    },
    {
        "overlap": grid,
        "hole": grid,
        "far": Refused("TensorShape"),
        "end": Refused("TensorShape"),
        "dtype": Refused("PartConflict"),
    },
    "",
)
