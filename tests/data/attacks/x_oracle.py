"""X120 to X122: files that the fuzzer's oracle found (docs/explain/fuzzing.md)."""

from attacks.pickles import NONE, pickle
from attacks.registry import family
from attacks.streams import TAR_END, tar_header
from attacks.x_detectors import everywhere, odd_tars

everywhere("X120", "a class named in lines that end with the file, which `pickle.py` reads without the last byte", {
    "name": lambda: b"cevil\nrunX", "module": lambda: b"cevilX", "inst": lambda: b"ievil\nrunX",
    "second": lambda: pickle(NONE) + b"cevil\nrunX",
}, "Truncated", verdict="unknown")  # fmt: skip

everywhere("X121", "a module that is imported although it cannot have the attribute", {
    "name": lambda: b"cevil\n?!\n.", "long": lambda: b"cevil\n" + b"- " * 100 + b"\n.",
}, "Import", verdict="unknown")  # fmt: skip

family("X122", "a link in a tar archive, which torch extracts and reads", {
    "symbolic": lambda: tar_header("storages", 0, kind=b"2", link="/tmp/x.pkl") + TAR_END,
    "hard": lambda: tar_header("storages", 0, kind=b"1", link="/tmp/x.pkl") + TAR_END,
}, odd_tars, "", verdict="unknown")  # fmt: skip
