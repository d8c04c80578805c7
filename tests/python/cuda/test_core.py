"""Uploads through the pinned ring: the bytes on the device equal the CPU's result, for every dtype, layout and format."""

import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from attacks.distributed import Folder, archive, chunk
from attacks.distributed import tensor as described
from support import DTYPES, deflated, patterns, safetensors_bytes, saved

# Uploads all tensors of a file with several requests and compares them with the CPU's results.
START = """
    import sys
    import fakecuda, rustload
    from fakecuda import Request
    from rustload import RustloadError, _rustload

    def same(upload, tensors, wanted, **options):
        ticket, into = fakecuda.submit(upload, tensors, wanted, **options)
        upload.wait(ticket, stream=None, sync=True)
        many = [wanted] * len(tensors) if isinstance(wanted, Request) else wanted
        for tensor, want, buffer in zip(tensors, many, into, strict=True):
            assert fakecuda.read(buffer) == fakecuda.expected(tensor, want), (tensor.name, want)
        return into

    def clean(upload):
        upload.close()
        assert fakecuda.count("memory") == 0, "device memory"
        assert fakecuda.count("stray") == fakecuda.count("pageable") == 0
"""

# A small ring, which wraps around many times, and delayed copies.
SMALL = {"RUSTLOAD_RING": "65536x5", "FAKECUDA_DELAY": 200}


@pytest.mark.parametrize("threads", [1, 4])
def test_every_dtype_in_every_layout_equals_the_cpus(on_fake, save, threads):
    tensors = {}
    for name in DTYPES:
        base = patterns(name, (40, 30, 60))
        tensors |= {
            f"{name}.whole": base,
            f"{name}.turned": base.permute(2, 0, 1),
            f"{name}.part": base[1:, ::3, 5:50],
            f"{name}.row": base[0, 0, :7],
            f"{name}.scalar": base[0, 0, 0],
            f"{name}.empty": base[:0],
            f"{name}.spread": base[:1, :, :1].expand(50, 30, 40),
        }
    path = save(tensors)
    on_fake(
        """
    tensors = list(rustload.open(sys.argv[1]).values())
    upload = _rustload.upload(0, window=1 << 28, threads=int(sys.argv[2]))
    wide = [tensor for tensor in tensors if tensor.ndim == 3]
    same(upload, tensors, Request())
    same(upload, tensors, Request(), slab=False)
    same(upload, wide, Request(transpose=True))
    same(upload, wide, Request(transpose=[1, 2, 0]))
    same(upload, [tensor[1:, 2:-3:2] for tensor in wide], Request())
    clean(upload)
    """,
        path,
        threads,
        **SMALL,
    )


def test_every_cast_equals_the_cpus(on_fake, save):
    path = save({name: patterns(name, (90, 130)) for name in DTYPES}, "casts.pt")
    on_fake(
        """
    tensors = list(rustload.open(sys.argv[1]).values())
    upload = _rustload.upload(0, window=1 << 28, threads=3)
    for dtype in sys.argv[2].split():
        for transpose in (False, True):
            wanted = Request(dtype=dtype, allow_lossy=True, transpose=transpose)
            same(upload, tensors, wanted)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        same(upload, tensors, Request(dtype=dtype, allow_lossy=True, overflow="saturate"))
    clean(upload)
    """,
        path,
        " ".join(DTYPES),
        RUSTLOAD_RING="16384x4",
        FAKECUDA_DELAY=50,
    )


def test_large_tensors_are_split_and_permuted_ones_uploaded_in_bands(on_fake, save):
    path = save(
        {
            "long": patterns("float32", (5_000_001,)),
            "wide": patterns("bfloat16", (3, 1_500_000)),
            "matrix": patterns("float32", (3000, 1100)),
            "heads": patterns("float16", (64, 300, 8, 32)).permute(0, 2, 1, 3),
        }
    )
    on_fake(
        """
    tensors = list(rustload.open(sys.argv[1]).values())
    # The least window makes bands no larger than a slot.
    for window in (0, 1 << 20, 1 << 28):
        upload = _rustload.upload(0, window=window, threads=3)
        same(upload, tensors, Request())
        same(upload, tensors[1:], Request(transpose=True, dtype="float32"))
        same(upload, tensors[3:], Request(transpose=[3, 1, 0, 2], dtype="bfloat16"))
        clean(upload)
    """,
        path,
        RUSTLOAD_RING="262144x6",
        FAKECUDA_DELAY=300,
    )


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning", "ignore:.*quantized:UserWarning")
def test_every_storage_form_is_uploaded(on_fake, save, tmp_path):
    """Big-endian and compressed members, legacy files, lazy conjugates and negatives, ties, views of one storage, NumPy
    arrays, and quantized tensors that are dequantized first."""
    z = patterns("complex64", (70, 90))
    base = patterns("float32", (120, 130))
    plain = {
        "w": base,
        "tied": base,
        "part": base[3:, 7:],
        "turned": base.t(),
        "z": z.conj(),
        "neg": z.clone().conj().imag,
    }
    files = [save(plain, "plain.pt"), save(plain, "legacy.pt", _use_new_zipfile_serialization=False)]
    files.append(save({"w": base, "b": patterns("bfloat16", (3, 1000))}, "model.safetensors"))
    for name, compression, order in (
        ("big", zipfile.ZIP_STORED, b"big"),
        ("packed", zipfile.ZIP_DEFLATED, b"little"),
    ):
        files.append(tmp_path / f"{name}.pt")
        with zipfile.ZipFile(files[0]) as source, zipfile.ZipFile(files[-1], "w", compression) as target:
            for member in source.namelist():
                target.writestr(member, order if member.endswith("/byteorder") else source.read(member))
    files.append(tmp_path / "numpy.pkl")
    files[-1].write_bytes(
        pickle.dumps({"f": np.asfortranarray(np.arange(3000, dtype=">f4").reshape(30, 100))})
    )
    scales, zeros = torch.rand(50) + 0.1, torch.randint(-5, 5, (50,))
    numbers = torch.randn(50, 3000)
    files.append(
        save(
            {
                "one": torch.quantize_per_tensor(numbers, 0.05, 3, torch.qint8),
                "each": torch.quantize_per_channel(numbers, scales, zeros, 0, torch.qint8),
                "other": torch.quantize_per_channel(numbers.t().contiguous(), scales, zeros, 1, torch.qint8),
            },
            "quantized.pt",
        )
    )
    on_fake(
        """
    for path in sys.argv[1:]:
        tensors = list(rustload.open(path).values())
        for window in (0, 1 << 28):
            upload = _rustload.upload(0, window=window, threads=3)
            numbers = path.endswith("quantized.pt")
            same(upload, tensors, Request(dequantize=numbers))
            same(upload, tensors, Request(dequantize=numbers, dtype="float16", allow_lossy=True))
            same(upload, [t for t in tensors if t.ndim == 2], Request(dequantize=numbers, transpose=True))
            clean(upload)
    """,
        *files,
        RUSTLOAD_RING="16384x5",
        FAKECUDA_DELAY=100,
    )


def test_bands_of_inflated_storages_do_not_deadlock(on_fake, tmp_path):
    """An inflated storage occupies the window until all of its bands are uploaded."""
    parts = {"a": patterns("uint8", (900, 5000)), "b": patterns("uint8", (900, 5000), seed=1)}
    path = tmp_path / "packed.pt"
    path.write_bytes(deflated(saved(parts)))
    on_fake(
        """
    tensors = list(rustload.open(sys.argv[1]).values())
    for threads in (1, 3):
        for window in (0, 1 << 20, 5 << 20):
            upload = _rustload.upload(0, window=window, threads=threads)
            same(upload, tensors, Request(transpose=True))
            clean(upload)
    """,
        path,
        RUSTLOAD_RING="65536x4",
    )


def test_thousands_of_small_tensors_take_few_copies(on_fake, tmp_path):
    header, end = {}, 0
    for number in range(20_000):
        size = 900 + number % 200
        header[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    data = (
        torch.randint(0, 256, (end,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        .numpy()
        .tobytes()
    )
    path = tmp_path / "many.safetensors"
    path.write_bytes(safetensors_bytes(json.dumps(header).encode(), data))
    on_fake(
        """
    tensors = list(rustload.open(sys.argv[1]).values())
    upload = _rustload.upload(0, window=1 << 28, threads=4)
    into = fakecuda.destinations(upload, tensors, [Request()] * len(tensors))
    held = fakecuda.count("copies")
    tickets = []
    for start in range(0, len(tensors), 5000):
        part = slice(start, start + 5000)
        tickets.append(fakecuda.submit(upload, tensors[part], Request(), into[part])[0])
    for ticket in tickets:
        upload.wait(ticket, stream=None, sync=True)
    copies = fakecuda.count("copies") - held
    # 24 MB on the device, gaps included.
    assert copies <= 24 + 2 * len(tickets), copies
    for tensor, buffer in zip(tensors, into, strict=True):
        assert fakecuda.read(buffer) == fakecuda.expected(tensor, Request())
    del into, buffer
    clean(upload)
    """,
        path,
        RUSTLOAD_RING="1048576x6",
        FAKECUDA_DELAY=500,
    )


def test_alignment_gaps_are_zeroed_and_wider_gaps_are_not_written(on_fake, save):
    """Stale bytes of a slot never reach the device; only gaps that alignment to 256 bytes explains are written."""
    dirt = torch.full((1 << 20,), 255, dtype=torch.uint8)
    path = save({"a": patterns("uint8", (100,)), "b": patterns("uint8", (100,), seed=1), "dirt": dirt})
    on_fake(
        """
    a, b, dirt = rustload.open(sys.argv[1]).values()
    upload = _rustload.upload(0, window=1 << 28, threads=1)
    same(upload, [dirt], Request())
    for starts, between in (((0, 256), bytes(156)), ((0, 300), None), ((256, 0), None), ((0, 100), b"")):
        whole = upload.allocate(1024)
        before = fakecuda.read(whole)
        into = [whole.part(start, "uint8", [100]) for start in starts]
        copies = fakecuda.count("copies")
        ticket, _ = fakecuda.submit(upload, [a, b], Request(), into)
        upload.wait(ticket, stream=None, sync=True)
        after = bytearray(before)
        if between is not None:
            after[100 : starts[1]] = between
        for tensor, start in zip((a, b), starts, strict=True):
            after[start : start + 100] = fakecuda.expected(tensor, Request())
        assert fakecuda.read(whole) == after
        assert fakecuda.count("copies") - copies == (1 if between is not None else 2)
    del whole, into, _
    clean(upload)
    """,
        path,
        RUSTLOAD_RING="65536x3",
    )


def test_concurrent_uploads_share_the_ring(on_fake, save):
    path = save({f"w{number}": patterns("float32", (300 + number, 501), seed=number) for number in range(30)})
    on_fake(
        """
    import threading
    tensors = list(rustload.open(sys.argv[1]).values())
    uploads = [_rustload.upload(0, window=1 << 24, threads=3) for _ in range(3)]
    done = []
    def work(upload, wanted):
        for _ in range(3):
            same(upload, tensors, wanted)
        done.append(upload)
    ways = Request(), Request(dtype="bfloat16"), Request(transpose=True)
    threads = [threading.Thread(target=work, args=pair) for pair in zip(uploads, ways, strict=True)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(done) == 3 and fakecuda.alive()["registered"] == 1
    for upload in uploads:
        upload.close()
    clean(upload)
    """,
        path,
        **SMALL,
    )


def test_the_fake_driver_detects_a_slot_that_is_reused_too_early(on_fake, save):
    """The control: if waiting for events is ignored, the same upload arrives damaged."""
    path = save({"w": patterns("uint8", (4 << 20,))})
    on_fake(
        """
    fakecuda.enter()
    stream = fakecuda.stream()
    upload = _rustload.upload(0, window=1 << 28, threads=2)
    (tensor,) = rustload.open(sys.argv[1]).values()
    for ignored in (False, True, False):
        fakecuda.ignore_events(ignored)
        ticket, into = fakecuda.submit(upload, [tensor], Request())
        # The stream waits for the events, so that all copies are done when the snapshot is taken.
        upload.wait(ticket, stream=stream, sync=False)
        seen = fakecuda.Snapshot(stream, into[0]).bytes()
        assert (seen == fakecuda.expected(tensor, Request())) is not ignored
    upload.close()
    """,
        path,
        RUSTLOAD_RING="65536x4",
        FAKECUDA_DELAY=2000,
    )


def test_transfer_and_cast_rates_are_measured_once(on_fake):
    on_fake(
        """
    upload = _rustload.upload(0, window=1 << 28, threads=1)
    rate = upload.rate()
    copies = fakecuda.count("copies")
    assert rate > 1e6 and copies > 10
    assert _rustload.upload(0, window=0, threads=2).rate() == rate and fakecuda.count("copies") == copies
    assert _rustload.cast_rate("float32", "bf16", None) == _rustload.cast_rate("float32", "bfloat16", None) > 1e6
    clean(upload)
    """
    )


def test_tensors_in_chunks_equal_the_cpus(on_fake, tmp_path):
    cells = [(row, column) for row in (0, 150) for column in (0, 100, 200)]
    items = [("w", cell, archive(150, 100, value=15_000.0 * at)) for at, cell in enumerate(cells)]
    chunks = [chunk(cell, (150, 100)) for cell in cells]
    rows = [("r", (at * 70,), archive(70, value=70.0 * at)) for at in range(3)]
    tensors = {
        "w": described((300, 300), *chunks),
        "r": described((210,), *(chunk((at * 70,), (70,)) for at in range(3))),
    }
    folder = Folder(tensors, [*items, *rows], None).write(tmp_path)
    on_fake(
        """
    ckpt = rustload.open(sys.argv[1])
    upload = _rustload.upload(0, window=1 << 28, threads=2)
    grid = ckpt["w"]
    same(upload, [grid, ckpt["r"], grid[10:20], grid[:, 5]], Request())
    same(upload, [grid, grid[100:, 50:250:3]], Request(transpose=True))
    same(upload, [grid, ckpt["r"]], Request(dtype="bfloat16"))
    clean(upload)
""",
        folder,
        **SMALL,
    )
