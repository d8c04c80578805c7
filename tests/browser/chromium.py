"""Drives a headless Chromium by its DevTools protocol, through the pipe that it offers: no driver and no package is needed."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {
    "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9,
}  # fmt: skip


def find() -> str | None:
    """The browser's program: `$CHROMIUM`, or the first on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page.

    Attributes:
        requests: The addresses of all requests since the last `open`.
        faults: Messages of the console, exceptions and dialogs since the last `open`.
    """

    def __init__(self, folder: Path) -> None:
        """Starts it with a new profile in `folder`."""
        to_read, write_end = os.pipe()
        read_end, to_write = os.pipe()
        program = find()
        assert program
        self._commands, self._answers = write_end, read_end

        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        options += [
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ]
        self._process = subprocess.Popen(
            [
                # The browser reads commands from 3 and writes answers to 4.
                *("bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash"),
                program,
                *options,
                "--remote-debugging-pipe",
                f"--user-data-dir={folder / 'profile'}",
                "about:blank",
            ],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.faults: list[str] = []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(1440, 1000)

    def close(self) -> None:
        """Ends the browser."""
        os.close(self._commands)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> Any:
        """Calls a method of the protocol and returns its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next(30)
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        self._note(found)
        return found

    def _note(self, found: dict[str, Any]) -> None:
        method, params = found.get("method"), found.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.faults.append(f"exception: {params['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled":
            self.faults.append(f"console: {[one.get('value') for one in params['args']]}")
        elif method == "Log.entryAdded":
            self.faults.append(f"log: {params['entry']['text']}")
        elif method == "Page.javascriptDialogOpening":
            self.faults.append(f"dialog: {params['message']}")
            os.write(
                self._commands,
                json.dumps(
                    {
                        "id": 0,
                        "method": "Page.handleJavaScriptDialog",
                        "params": {"accept": True},
                        "sessionId": self._session,
                    }
                ).encode()
                + b"\0",
            )
        elif method == "Page.loadEventFired":
            self._loaded = True

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """Sets the size of the window in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def scheme(self, name: str) -> None:
        """`"light"` or `"dark"`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def scripts(self, *, on: bool) -> None:
        """Switches scripts of pages on or off."""
        self.call("Emulation.setScriptExecutionDisabled", value=not on)

    def open(self, path: Path) -> float:
        """Opens a file; returns the milliseconds to the first painted content."""
        self.requests.clear()
        self.faults.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._next(30)
        time.sleep(0.15)
        self.call("Runtime.evaluate", expression="1")
        found = self.js(
            "performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime)[0] ?? -1"
        )
        return float(found)

    def js(self, expression: str) -> Any:
        """The value of an expression in the page. A debugger's right: the page's policy does not apply to it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def key(self, name: str) -> None:
        """Presses a key."""
        code = KEYS.get(name, ord(name[0].upper()))
        extra = {"text": name} if len(name) == 1 else {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                windowsVirtualKeyCode=code,
                **(extra if kind == "keyDown" else {}),
            )

    def type(self, text: str) -> None:
        """Types text into what has the focus."""
        self.call("Input.insertText", text=text)
        time.sleep(0.2)

    def click(self, x: float, y: float) -> None:
        """Clicks at a place of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            more = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        """Writes a PNG of the window, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(found["data"]))
