"""A headless Chromium, driven as a person drives it: by addresses and keys.

It speaks the DevTools protocol over two pipes: JSON objects that end with a zero byte. No port is
opened, and the browser ends when the pipes do.
"""

import base64
import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

ANSWER_S_MAX = 20.0
# Pixels: a small laptop, and a phone held upright.
WINDOW = (1280, 860)
PHONE = (390, 844)
LOADED = "document.readyState == 'complete'"
_CHUNK_BYTES = 1 << 16
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
# bash can put any descriptor where the browser looks for its pipes.
_START = 'exec "$@" 3<&"$COMMANDS" 4>&"$ANSWERS"'


class Browser:
    """One page of a browser.

    Args:
        commands, answers: Descriptors of the pipes.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*WINDOW)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command of the protocol."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = monotonic() + ANSWER_S_MAX
        while True:
            said = self._read(deadline, method)
            if said.get("id") == number:
                assert "error" not in said, f"{method}: {said['error']}"
                result: dict[str, Any] = said["result"]
                return result
            self._note(said)

    def open(self, url: str) -> None:
        """Go to an address; return when the page is there."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href != 'about:blank' && {LOADED}")

    def wait(self, condition: str) -> Any:
        """Return the value of an expression of JavaScript once it is true."""
        deadline = monotonic() + ANSWER_S_MAX
        while not (value := self.value(condition)):
            assert monotonic() < deadline, f"{condition}: not true; the page says {self.text()}"
            select.select([], [], [], 0.03)
        return value

    def value(self, expression: str) -> Any:
        """Return the value of an expression or of its promise; None while the page is replaced."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return found["result"].get("value")

    def violations(self, axe: Path) -> list[str]:
        """Return what axe-core finds against accessibility in the page, one line a rule.

        Args:
            axe: Its script, axe.min.js.
        """
        self.value(f"{axe.read_text('utf-8')};0")
        lines: list[str] | None = self.value(
            "axe.run().then(found => found.violations.map(each =>"
            " `${each.id} (${each.impact}): ${each.nodes.map(node => node.target)}`))"
        )
        assert lines is not None, "axe-core gave no answer"
        return lines

    def text(self) -> str:
        """Return what the page shows."""
        return str(self.value("document.body.innerText"))

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        code, text = _KEYS[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def tab_to(self, selector: str, *, keys_max: int = 60) -> None:
        """Press Tab until the focus is on an element."""
        for _ in range(keys_max):
            if self.value(f"document.activeElement.matches({json.dumps(selector)})"):
                return
            self.press("Tab")
        raise AssertionError(f"{selector} is not reached by Tab: {self.text()}")

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def paste(self) -> None:
        """Insert the clipboard where the focus is."""
        self.call("Input.dispatchKeyEvent", type="keyDown", commands=["paste"])
        self.call("Input.dispatchKeyEvent", type="keyUp")

    def prefer(self, scheme: str) -> None:
        """Have the user prefer `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def resize(self, width: int, height: int) -> None:
        """Make the window as large as this, pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def fit(self) -> None:
        """Make the window as high as the page, and no higher than at first."""
        width, height = WINDOW
        self.resize(width, height)
        needed = self.value("document.querySelector('main').getBoundingClientRect().bottom")
        self.resize(width, min(height, int(needed)))

    def take_picture(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def _read(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left_s = deadline - monotonic()
            assert left_s > 0, f"{method}: no answer of the browser"
            ready, _, _ = select.select([self._answers], [], [], left_s)
            if ready:
                chunk = os.read(self._answers, _CHUNK_BYTES)
                assert chunk, f"{method}: the browser has ended"
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        return said

    def _note(self, said: dict[str, Any]) -> None:
        """Keep what the browser complains about: scripts that fail, what a policy forbids."""
        if said.get("method") == "Log.entryAdded":
            entry = said["params"]["entry"]
            if entry["level"] in ("warning", "error"):
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        elif said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(said["params"]["exceptionDetails"]))


@contextmanager
def browsing(program: str, directory: Path) -> Iterator[Browser]:
    """Yield a page of a new browser, which ends with the block."""
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    words = [
        *("bash", "-c", _START, "bash", program),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--hide-scrollbars", f"--user-data-dir={directory / 'profile'}"),
        "--remote-debugging-pipe",
    ]
    environ = {**os.environ, "COMMANDS": str(read_commands), "ANSWERS": str(write_answers)}
    with (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            words, stdout=log, stderr=log, env=environ, pass_fds=(read_commands, write_answers)
        )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Browser(commands, answers)
    finally:
        process.terminate()
        process.wait()
        os.close(commands)
        os.close(answers)
