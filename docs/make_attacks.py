"""Writes docs/reference/attacks.md from the registry of attacks: `python docs/make_attacks.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "data"))

from attacks import CASES, IDS, Case  # noqa: E402 - found by the line above
from attacks.registry import Shown  # noqa: E402 - as well

PAGE = Path(__file__).parent / "reference" / "attacks.md"

HEAD = """\
# Attack table

This table shows what rustload does with malicious and damaged files. Each id is one kind of bad input. Each input is a file
that [the generators](../../tests/data/attacks/README.md) write, and `tests/python/attacks` opens every one of them.
[SECURITY.md](../../SECURITY.md) lists what is promised beyond this table, and what is not.

{ids} ids, {inputs} inputs. For each of them the tests check that

- the outcome is as in the table: the class of the error, its code, and the limit if it is one;
- nothing runs: a payload would create a file in a canary folder, which stays empty, and no module that a file names is in
  `sys.modules` afterwards, although modules with these names can be imported;
- memory stays below 64 MiB + 40 bytes per byte of metadata + 512 bytes per tensor above the process's size before;
- opening takes less than two seconds of CPU time; reading `ckpt.objects` takes less than two seconds plus five microseconds
  per tensor;
- there is no panic, crash or hang. The results of resource bombs are dropped on a stack of 256 KiB.

The same checks run on 200 benign checkpoints (`tests/data/attacks/benign.py`): all open, and nothing they name is imported.
A scan calls 192 of these 201 files inert; the other nine have classes of their own script, or TorchScript code.

[Fuzzing](../explain/fuzzing.md) covers inputs beyond the table. It ran twice. *Executions*, *edges* and *kept inputs* are of
the night of 2026-11-21 (two shared cores of an Intel Xeon, 0.2 hours of libFuzzer in all). *Current reader* is the executions
of 2026-11-22 (a minute each while the whole test suite ran, two cores of an AMD EPYC). *Open* is the number of inputs that
still broke a promise at the end of either run:

| target | executions | current reader | edges | seeds | kept inputs | open |
|---|--:|--:|--:|--:|--:|--:|
| `pickle` | 2,878,677 | 2,387,242 | 1,910 | 21 | 1,646 | 0 |
| `zip` | 4,471,141 | 2,658,237 | 899 | 4 | 463 | 0 |
| `legacy` | 2,143,483 | 1,091,943 | 4,242 | 12 | 1,575 | 0 |
| `safetensors`, against the crate | 15,847,738 | 9,760,441 | 1,774 | 4 | 1,264 | 0 |
| `open` | 3,651,089 | 1,772,241 | 6,742 | 27 | 3,071 | 0 |
| `scan` | 243,937 | 366,517 | | 16 | | 0 |
| `cpython`, over what `pickle` kept | 1,054,925 | 36,194 | | | | 0 |
| `weights_only`, over what `open` kept | 361,513 | 276,222 | | | | 0 |

The fuzzers found these bugs, which are fixed: calls of values that are not callable, and of persistent ids, were kept as
data; a lazy conjugate or negative flag with the value False was ignored, where torch only checks that the key exists; sets of
unhashable values raised a bare `TypeError`.

[The oracle](../explain/fuzzing.md#the-oracle) gives what a scan calls inert to real readers: CPython 3.8, 3.11 and 3.13, torch
2.13, NumPy 2.4 and joblib 1.6. Its runs of 2026-11-23 found X120 to X122, which are fixed: lines that end with the file, which
`pickle.py` reads without their last byte; modules that are imported for an attribute that they do not have; links in a tar
archive, which torch extracts and reads. With these fixed, a run of 2 h 25 min (`python -m fuzz.oracle --minutes 145 --seed 1`,
with `--python` for the two other versions; beside other work, on a part of one core of an AMD EPYC) made 133,828 inputs, of
which a scan called 23,040 inert, 6,648 of them only as files of a folder and 5 only with lower limits. The readers found
nothing in them to run.

`fuzz/programs.py` compares random pickle programs with `torch.load(weights_only=True)`. Its runs of 2026-11-23 found dict keys
that are equal by what their calls return (X125), which are merged now.

*Outcome* is what `rustload.open` does. A code means an error ([all codes](errors.md)). *opens; reading: `code`* means that
the error is raised when the tensor is read. *kept as data* means that the value is an `Opaque` or a `Global` and the other
tensors can be read; it also names the error under `unknown="error"`. *Finding* is the code under which `rustload scan`
reports the input.

`docs/make_attacks.py` generates this page.
"""

LETTERS = {
    "A": "Files and format detection",
    "Z": "Zip archives",
    "P": "Pickle syntax",
    "C": "Calls",
    "R": "Resource bombs",
    "T": "Tensors and storages",
    "L": "Legacy streams and tar",
    "S": "safetensors",
    "E": "Exported programs",
    "D": "Distributed checkpoints",
    "N": "NumPy arrays",
    "X": "Found in later rounds",
    "Y": "The boundary to Python",
}


def unique(words: list[str]) -> list[str]:
    """Each word once, in order."""
    return list(dict.fromkeys(words))


def row(ident: str, cases: list[Case]) -> str:
    """The table's row of one id."""
    files = sum(not isinstance(case.load, Shown) for case in cases)
    outcomes = "<br>".join(unique([str(case.load) for case in cases]))
    finds = " ".join(f"`{code}`" for code in unique([code for case in cases for code in case.finds]))
    return f"| {ident} | {IDS[ident]} | {files or ''} | {outcomes} | {finds} |\n"


def page() -> str:
    """The page's text."""
    inputs = sum(not isinstance(case.load, Shown) for case in CASES)
    out = [HEAD.format(ids=len(IDS), inputs=inputs)]
    by_id = {ident: [case for case in CASES if case.id == ident] for ident in IDS}
    for letter, title in LETTERS.items():
        out.append(
            f"\n## {letter}: {title}\n\n| id | input | files | outcome | finding |\n|---|---|--:|---|---|\n"
        )
        out += [row(ident, by_id[ident]) for ident in sorted(IDS) if ident.startswith(letter)]
    return "".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
