"""A process that opens files for the tests and reports the outcome: see `tests/data/attacks/probe.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBE = Path(__file__).resolve().parents[2] / "data" / "attacks" / "probe.py"
TRAP = '''\
"""A module that files name: importing it leaves a file in the canary folder."""
import os, pathlib
pathlib.Path(os.environ["RUSTLOAD_CANARY"], "imported").touch()
'''


class Prober:
    """Opens files in forked children of one process, with a canary folder in which any executed payload creates a file."""

    def __init__(self, folder: Path) -> None:
        self.canary = folder / "canary"
        self.canary.mkdir()
        traps = folder / "traps"
        traps.mkdir()
        for name in ("mine", "evil", "picklescan", "joblib", "cloudpickle", "antigravity"):
            (traps / f"{name}.py").write_text(TRAP)
        env = {
            **os.environ,
            "RUSTLOAD_CANARY": str(self.canary),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(traps), os.environ.get("PYTHONPATH")])),
        }
        self._process = subprocess.Popen(
            [sys.executable, str(PROBE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=folder,
        )

    def ask(
        self,
        source: Any,
        *,
        label: str | None = None,
        again: bool = False,
        scan: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Opens `source` with these options and returns the outcome; `label` names the case whose own check runs as well.

        With `again`, the opening and the export are only timed; with `scan`, the source is scanned instead.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {
            "source": [str(one) for one in source] if isinstance(source, list) else str(source),
            "options": options,
            "label": label,
            "again": again,
            "scan": scan,
        }
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=60)
