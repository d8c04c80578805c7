"""Makes tests/data/containers: small archives by real writers (torch, zipfile, Info-ZIP, safetensors).

Run with a Python that has torch and safetensors, and with `zip` on the path:
    python tests/data/make_containers.py
"""

import io
import pathlib
import shutil
import subprocess
import sys
import zipfile

import torch
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parent / "containers"


class Unseekable(io.RawIOBase):
    """A stream that cannot seek, so that zipfile writes data descriptors."""

    def __init__(self):
        self.bytes = b""

    def writable(self):
        return True

    def write(self, data):
        self.bytes += bytes(data)
        return len(data)


def rezip(source, target, **options):
    """Copies all members with Python's zipfile."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    state = {
        "w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.zeros(64, dtype=torch.bfloat16),
    }
    torch.save(state, OUT / "torch.pt")
    torch.save(state, OUT / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save(state, OUT / "no_crc.pt")
    torch.serialization.set_crc32_options(True)
    rezip(OUT / "torch.pt", OUT / "zipfile.pt")
    rezip(OUT / "torch.pt", OUT / "zipfile_deflated.pt", compression=zipfile.ZIP_DEFLATED)
    stream = Unseekable()
    rezip(OUT / "torch.pt", stream, compression=zipfile.ZIP_DEFLATED)
    (OUT / "zipfile_streamed.pt").write_bytes(stream.bytes)
    stream = Unseekable()
    with zipfile.ZipFile(stream, "w") as new, new.open("a/data.pkl", "w", force_zip64=True) as member:
        member.write(b"\x80\x02}.")
    (OUT / "zipfile_zip64.pt").write_bytes(stream.bytes)
    if shutil.which("zip"):
        unpacked = OUT / "unpacked"
        with zipfile.ZipFile(OUT / "torch.pt") as archive:
            archive.extractall(unpacked)
        subprocess.run(["zip", "-q", "-r", OUT / "info_zip.pt", "torch"], cwd=unpacked, check=True)
        piped = subprocess.run(
            ["zip", "-q", "-r", "-", "torch"], cwd=unpacked, check=True, capture_output=True
        )
        (OUT / "info_zip_piped.pt").write_bytes(piped.stdout)
        shutil.rmtree(unpacked)
    else:
        print("no zip here: info_zip*.pt not made", file=sys.stderr)
    save_file(state, OUT / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
