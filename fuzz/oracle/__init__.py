"""The oracle: real readers run what a scan calls inert, in a fenced child process; a deed that the scan did not report is a find.

    python -m fuzz.oracle [--programs N] [--splices N] [--changes N] [--minutes M] [--seed 1] [--jobs 1]
    python -m fuzz.oracle --replay FILE
    python -m fuzz.oracle --shrink FILE

`rustload.scan` calls a file inert if no reader that runs pickles would do more than create data. The oracle takes the scan at its
word: it runs those readers, with their unpicklers instrumented. A class or function that a reader resolves and that the report
does not list as inert, or a call that the report did not count, is a find.

`watch` instruments the unpicklers. `readers` and `libraries` have the readers, `walk` runs all of them, `fence` does so in a
child process and `elsewhere` in another version of CPython. `seeds`, `mutate`, `programs` and `containers` make the inputs.
`campaign` is the loop, `witness` checks that it notices payloads, `shrink` reduces a find.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "data"))  # the generators of the attack table
