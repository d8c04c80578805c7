"""Reads checkpoints from a web server with a limited rate and a delay for each request, and from a source that sleeps.

Each row has the bound that it is to meet. The exit code is 1 if a number of requests or bytes exceeds its bound; times depend on
the machine. The server is a process of its own on the loopback interface.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benches.remote.server import UNLIMITED, requests_of, serve, serving

if TYPE_CHECKING:
    from collections.abc import Callable

KIB, MIB = 1 << 10, 1 << 20
RATE = 200e6
"""Bytes per second of the server."""
DELAY = 0.02
"""Seconds before each answer of the server."""
SLEEP = 0.002
"""Seconds of each read of the source that sleeps."""


class Row(NamedTuple):
    """A measurement.

    Attributes:
        what: What was read, and how.
        value: The number.
        unit: What it counts.
        bound: What it is to be.
        met: Whether it is; None for a row that is only compared with.
        is_exact: Whether it is the same on every machine.
    """

    what: str
    value: float
    unit: str
    bound: str
    met: bool | None
    is_exact: bool = False


def main() -> int:
    """Parses the command line; runs the cases, or is the server."""
    parser = argparse.ArgumentParser(prog="python -m benches.remote", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small files, one round: a smoke test")
    parser.add_argument("--json", type=Path, help="writes the rows to a file")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        folder, rate, delay = options.serve
        serve(Path(folder), float(rate), float(delay))
        return 0
    rounds = 1 if options.quick else 5
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        cases: tuple[Callable[[], list[Row]], ...] = (
            lambda: counted(folder, 2_000 if options.quick else 20_000),
            lambda: whole_loads(folder, (32 if options.quick else 512) * MIB, rounds),
            lambda: sequential(folder, (32 if options.quick else 256) * MIB, rounds),
            lambda: sleeping((16 if options.quick else 512) * MIB, rounds),
        )
        for case in cases:
            for row in case():
                rows.append(row)
                word = {None: "", True: "met", False: "MISSED"}[row.met]
                print(f"{row.what:66} {row.value:12,.2f} {row.unit:26} {row.bound:12} {word}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    return int(any(row.is_exact and row.met is False for row in rows))


def best(rounds: int, call: Callable[[], Any]) -> float:
    """The median of the seconds of some calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def counted(folder: Path, many: int) -> list[Row]:
    """Requests and bytes of `info` of files of `torch.save`, and of a slice."""
    import torch

    import rustload

    rows = []
    with serving(folder, UNLIMITED, 0.0) as url:
        for count in (300, many):
            path = folder / f"{count}.bin"
            torch.save({f"layers.{number}.weight": torch.zeros(64, 32) for number in range(count)}, path)
            checkpoint = rustload.open(f"{url}/{path.name}", remote=("http",))
            assert len(checkpoint) == count
            requests = requests_of(url)
            beyond = sum(length for _, length in requests) - metadata_bytes(path)
            what = f"info of a .bin of {count:,} tensors, {path.stat().st_size / MIB:.1f} MiB"
            rows.append(Row(what, len(requests), "requests", "<= 5", len(requests) <= 5, is_exact=True))
            rows.append(
                Row(
                    what,
                    beyond / KIB,
                    "KiB beyond its metadata",
                    "<= 256",
                    beyond <= 256 * KIB,
                    is_exact=True,
                )
            )
            part = checkpoint[f"layers.{count // 2}.weight"][8:10].materialize(framework="numpy")
            requests = requests_of(url)
            beyond = sum(length for _, length in requests) - part.nbytes
            what = f"two rows of {part.nbytes} B in all of a tensor of it"
            rows.append(
                Row(what, beyond / KIB, "KiB beyond its bytes", "<= 64", beyond <= 64 * KIB, is_exact=True)
            )
    return rows


def metadata_bytes(path: Path) -> int:
    """The bytes of the pickle and of the directory of an archive."""
    with zipfile.ZipFile(path) as archive:
        pickle = next(one for one in archive.infolist() if one.filename.endswith("data.pkl"))
        return pickle.file_size + path.stat().st_size - archive.start_dir


def write_model(path: Path, nbytes: int) -> dict[str, Any]:
    """Writes a safetensors file of eight tensors; returns their elements."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(1)
    tensors = {f"layers.{number}": rng.integers(0, 255, nbytes // 8, np.uint8) for number in range(8)}
    save_file(tensors, path)
    return tensors


def whole_loads(folder: Path, nbytes: int, rounds: int) -> list[Row]:
    """Whole loads from a server with a rate and a delay, as shares of the rate."""
    import fsspec

    import rustload

    tensors = write_model(folder / "model.safetensors", nbytes)
    with serving(folder, RATE, DELAY) as host:
        url = f"{host}/model.safetensors"

        def load(**options: Any) -> dict[str, Any]:
            return rustload.open(url, remote=("http",)).materialize(framework="numpy", **options)

        found = load()
        assert all(np.array_equal(found[name], tensor) for name, tensor in tensors.items())
        ways: dict[str, Callable[[], Any]] = {
            "rustload, 8 requests at once": load,
            "rustload, one request at a time (threads=1)": lambda: load(threads=1),
            "fsspec: the bytes by one request for the whole file": lambda: fsspec.filesystem("http").cat_file(
                url
            ),
            "fsspec: a file object, read in blocks of 5 MiB": lambda: read_blocks(fsspec.open(url)),
        }
        rows = []
        for way, call in ways.items():
            share = nbytes / best(rounds, call) / RATE
            met = share >= 0.9 if way == "rustload, 8 requests at once" else None
            what = f"{nbytes // MIB} MiB at 200 MB/s, 20 ms a request: {way}"
            rows.append(Row(what, share, "of the rate", "" if met is None else ">= 0.9", met))
    return rows


def sequential(folder: Path, nbytes: int, rounds: int) -> list[Row]:
    """Whole loads over a link without a rate, in turn with downloads by other clients."""
    import aiohttp
    import fsspec
    import obstore
    from obstore.store import HTTPStore

    import rustload

    write_model(folder / "model.safetensors", nbytes)
    rows = []
    for delay in (0.0, 0.005, 0.02):
        with serving(folder, UNLIMITED, delay) as host:
            url = f"{host}/model.safetensors"

            def by_urllib(url: str = url) -> int:
                with urllib.request.urlopen(url) as answer:
                    return len(answer.read())

            async def by_aiohttp(url: str = url) -> int:
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    return len(await answer.read())

            def by_obstore(host: str = host) -> int:
                store = HTTPStore.from_url(host, client_options={"allow_http": True})
                return len(obstore.get(store, "model.safetensors").bytes())

            def load(url: str = url) -> dict[str, Any]:
                return rustload.open(url, remote=("http",)).materialize(framework="numpy")

            ways: dict[str, Callable[[], Any]] = {
                "rustload": load,
                "urllib": by_urllib,
                "aiohttp": functools.partial(lambda call: asyncio.run(call()), by_aiohttp),
                "fsspec": functools.partial(fsspec.filesystem("http").cat_file, url),
                "obstore": by_obstore,
            }
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, call in ways.items():
                    times[way].append(best(1, call))
        found = {way: statistics.median(those) for way, those in times.items()}
        what = f"{nbytes // MIB} MiB, {delay * 1000:.0f} ms a request"
        rows += [Row(f"{what}: {way}", seconds, "s", "", None) for way, seconds in found.items()]
        share = min(seconds for way, seconds in found.items() if way != "rustload") / found["rustload"]
        rows.append(Row(f"{what}: rustload", share, "of the fastest other's speed", ">= 0.9", share >= 0.9))
    return rows


def read_blocks(given: Any) -> int:
    """Reads a file of fsspec to its end."""
    read = 0
    with given as file:
        while part := file.read(5 << 20):
            read += len(part)
    return read


class Sleeping:
    """A source in memory, of which each read sleeps.

    Attributes:
        reads: The ranges that were read.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.size, self.name = content, len(content), "sleeping://model"
        self.reads: list[tuple[int, int]] = []

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        """The bytes, after a sleep for each range."""
        self.reads += ranges
        time.sleep(SLEEP * len(ranges))
        return [memoryview(self.content)[start : start + length] for start, length in ranges]


def sleeping(nbytes: int, rounds: int) -> list[Row]:
    """Loads of a source of which each read sleeps, and the same reads one after another.

    Reads of 64 KiB wait for the source; for reads of 4 MiB the copies take as long as the sleep.
    """
    from safetensors.numpy import save_file

    import rustload

    count = nbytes // (2 * MIB)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "model.safetensors"
        rng = np.random.default_rng(1)
        sizes = {"large": 2 * MIB - 64 * KIB, "small": 64 * KIB}
        save_file(
            {
                f"{number:04}.{kind}": rng.integers(0, 255, size, np.uint8)
                for number in range(count)
                for kind, size in sizes.items()
            },
            path,
        )
        source = Sleeping(path.read_bytes())
    rows = []
    for names, bound in (("*.small", 6.0), ("*", None)):
        checkpoint = rustload.open(source, framework="numpy")
        source.reads.clear()
        found = checkpoint.materialize(names)
        assert len(found) == count * (1 if bound else 2)
        reads = list(source.reads)
        one_by_one = best(rounds, functools.partial(one_after_another, source, reads))
        together = best(rounds, functools.partial(checkpoint.materialize, names))
        what = (
            f"{len(reads)} reads of {sum(length for _, length in reads) // len(reads) // KIB} KiB, 2 ms each"
        )
        times = one_by_one / together
        rows += [
            Row(f"{what}: one after another", one_by_one, "s", "", None),
            Row(f"{what}: rustload", together, "s", "", None),
            Row(f"{what}: rustload is faster by", times, "times", *judged(times, bound)),
        ]
    return rows


def one_after_another(source: Sleeping, reads: list[tuple[int, int]]) -> None:
    """Reads the ranges, and copies each."""
    for one in reads:
        bytes(*source.read_ranges([one]))


def judged(times: float, bound: float | None) -> tuple[str, bool | None]:
    """The bound as text, and whether it is met."""
    return ("", None) if bound is None else (f">= {bound:.0f}", times >= bound)


if __name__ == "__main__":
    sys.exit(main())
