"""Writes docs/reference/attacks.md from the registry of attacks: `python docs/make_attacks.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "data"))

from attacks import CASES, IDS, Case  # noqa: E402 - found by the line above
from attacks.registry import Shown  # noqa: E402 - as well

PAGE = Path(__file__).parent / "reference" / "attacks.md"

HEAD = """\
# Attack table

The outcome of malicious and damaged files: {ids} ids, each one kind of bad input, and {inputs} files that
[the generators](../../tests/data/attacks/README.md) write. `tests/python/attacks` opens every one of them and checks that

- the outcome is as in the table: the class of the error, its code, and the limit if it is one
- nothing runs: a payload would create a file in a canary folder, which stays empty, and no module that a file names is
  imported, although modules with these names are there to be imported
- memory stays below 64 MiB + 40 bytes per byte of metadata + 512 bytes per tensor above the process's size before
- opening takes less than two seconds of CPU time; reading `ckpt.objects` less than two seconds plus 5 µs per tensor
- there is no panic, crash or hang, also when results of resource bombs are dropped on a stack of 256 KiB

The same checks run on 200 benign checkpoints (`tests/data/attacks/benign.py`), which all open. A scan calls 192 of these 201
files inert; the other nine have classes of their own script, or TorchScript code.

| outcome | what `rustload.open` does |
|---|---|
| `Code` | raises [this error](errors.md); `Code` (limit) names the limit that is exceeded |
| kept (`Code`) | opens with an inert `Opaque` or `Global`; `unknown="error"` raises the code |
| opens; reading: `Code` | raises it when the tensor is read |
| opens, as called | opens with what each call read when it ran, whatever changes later, as CPython does |
| opens, not inert | a scan does not call it inert |
| ...; scan: `Code` | the codes that `rustload scan` reports, where they are not those of the outcome |

A slash separates the outcomes of several files of an id.

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
    "Q": "Quantized checkpoints",
    "E": "Exported programs",
    "D": "Distributed checkpoints",
    "W": "DeepSpeed ZeRO",
    "N": "NumPy arrays",
    "V": "Manifests",
    "X": "Differences between readers",
    "Y": "The boundary to Python",
}


OPENS = re.compile(r"opens (as [\w-]+|without (it|them))$")
CALLED = re.compile(r"opens: (what|the) .*\b(read|call|calls|BUILD)$")
KEPT = re.compile(r"kept as (?:data|a name); strict: (`\w+`)")
ARTICLE = re.compile(r"^(?:a|an|the) (?=[\w`])")


def unique(words: list[str]) -> list[str]:
    """Each word once, in order."""
    return list(dict.fromkeys(words))


def plain(load: str) -> str:
    """The outcome without the format, which the input says, in the words of the page's head."""
    text = OPENS.sub("opens", load)
    text = CALLED.sub("opens, as called", text)
    text = KEPT.sub(r"kept (\1)", text)
    return text.replace("opens; a scan does not call it inert", "opens, not inert")


def outcome(cases: list[Case]) -> str:
    """What the inputs of one id lead to, and what a scan finds if that is something else."""
    loads = sorted(unique([plain(str(case.load)) for case in cases]))
    finds = unique([f"`{code}`" for case in cases for code in case.finds])
    text = " / ".join(loads)
    return f"{text}; scan: {' '.join(finds)}" if any(code not in text for code in finds) else text


def number(ident: str) -> tuple[int, str]:
    """Sorts X13 before X120, and S12a before S12b."""
    return int(ident[1:].rstrip("abcdefghij")), ident


def table(idents: list[str], by_id: dict[str, list[Case]]) -> str:
    """A row for each outcome, with the inputs that have it."""
    rows: dict[str, list[str]] = {}
    for ident in sorted(idents, key=number):
        rows.setdefault(outcome(by_id[ident]), []).append(f"{ident} {ARTICLE.sub('', IDS[ident])}")
    return "".join(f"| {ends} | {'<br>'.join(inputs)} |\n" for ends, inputs in rows.items())


def page() -> str:
    """The page's text."""
    inputs = sum(not isinstance(case.load, Shown) for case in CASES)
    out = [HEAD.format(ids=len(IDS), inputs=inputs)]
    by_id = {ident: [case for case in CASES if case.id == ident] for ident in IDS}
    for letter, title in LETTERS.items():
        idents = [ident for ident in IDS if ident.startswith(letter)]
        out.append(f"\n## {letter}: {title}\n\n| outcome | input |\n|---|---|\n{table(idents, by_id)}")
    return "".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
