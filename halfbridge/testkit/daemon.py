"""The daemon as a process of its own, as operators run it, for tests of services."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.serde.settings import to_plain
from halfbridge.testkit.ports import HOST
from halfbridge.testkit.ready import READY_S_MAX
from halfbridge.testkit.watchdog import Watchdog

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig

STOP_S_MAX = 12.0  # the daemon drains within 10 s
_ASK_S_MAX = 5.0  # the daemon answers from memory
_POLL_S = 0.05  # how late a condition is seen; a look is cheap
_LOG_LINES = 30  # a screen


class DaemonError(RuntimeError):
    """The daemon did not start, or has ended; the message has the last lines of its log."""


class DaemonProcess:
    """`halfbridge checker run`, ended with whoever started it. Not thread-safe.

    Args:
        config: Its settings; `metrics_port` must be given, for readiness is asked there.
    """

    def __init__(self, config: CheckerConfig) -> None:
        self._config = config
        self._directory = Path(tempfile.mkdtemp(prefix="halfbridge-daemon-"))
        self._log = self._directory / "checker.log"
        self._watchdog: Watchdog | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again after `kill`; return when every worker is ready.

        Raises:
            DaemonError: it ended, or was not ready in time.
        """
        if self._watchdog is None:
            self._watchdog = Watchdog(self._directory)
        settings = self._directory / "checker.toml"
        settings.write_text(_as_toml(self._config), "utf-8")
        command = [sys.executable, "-m", "halfbridge", "checker", "run", "--config", str(settings)]
        # What stands in a developer's environment is about another daemon.
        environ = {k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_")}
        with self._log.open("ab") as log:
            self._process = self._watchdog.start(
                [command], stdout=log, stderr=subprocess.STDOUT, env=environ
            )
        deadline = time.monotonic() + READY_S_MAX
        while not self._is_ready():
            self.check_running()
            if time.monotonic() > deadline:
                raise DaemonError(f"the daemon is not ready after {READY_S_MAX:g} s{self._tail()}")
            time.sleep(_POLL_S)

    def check_running(self) -> None:
        """Return while it runs.

        Raises:
            DaemonError: it has ended by itself.
        """
        if self._process is None:
            raise DaemonError("the daemon does not run: start it")
        status = self._process.poll()
        if status is not None:
            raise DaemonError(f"the daemon ended with status {status}{self._tail()}")

    def kill(self) -> None:
        """SIGKILL for all of it; `start` starts it again on the same slot. Idempotent."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order, and remove its files. Idempotent."""
        self._end(signal.SIGTERM)
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or self._watchdog is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._watchdog.forget(process.pid)

    def _is_ready(self) -> bool:
        url = f"http://{HOST}:{self._config.metrics_port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=_ASK_S_MAX) as answer:
                return bool(answer.status == 200)  # noqa: PLR2004  # HTTP's "OK"
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _tail(self) -> str:
        with self._log.open(encoding="utf-8", errors="replace") as lines:
            return "\n" + "".join(deque(lines, maxlen=_LOG_LINES))


def _as_toml(config: CheckerConfig) -> str:
    """Return the settings as a file; every JSON string, number and boolean is one of TOML too."""
    plain = to_plain(config)
    kafka = plain.pop("kafka")
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items() if value is not None]
    lines += ["[kafka]", *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in kafka.items())]
    return "\n".join(lines) + "\n"
