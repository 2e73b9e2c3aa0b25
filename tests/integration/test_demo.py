"""`halfbridge demo` as a user runs it: right, and leaving nothing behind."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.waiting import until

pytestmark = pytest.mark.broker

NEVER_DECIDED = ("abandoned", "unknown")
_ORDERS = 300
_MARK = "DEMO_TEST_MARK"
# Ctrl-C is heeded once the broker is up, which takes a busy machine up to a minute.
_END_S_MAX = 180.0


class Demo:
    """A demo process, all of whose descendants carry a mark in their environment."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self._mark = uuid.uuid4().hex
        self._errors = directory / "err"
        command = (sys.executable, "-m", "halfbridge", "demo", "--orders", str(_ORDERS))
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                (*command, *arguments),
                stdout=subprocess.PIPE,
                stderr=errors,
                env={
                    **os.environ,
                    _MARK: self._mark,
                    "TMPDIR": str(self.temporary),
                    "HALFBRIDGE_CLASS_ARCHIVES": "off",  # its maker outlives the demo
                },
                start_new_session=True,
            )

    def await_text(self, text: str) -> None:
        """Return when standard error holds `text`."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None  # asked first: it may write, and end
            said = text in self._errors.read_text()
            assert said or not has_ended, self._errors.read_text()
            return said

        until(text, is_there, within_s=180, explain=self._errors.read_text)  # on a busy machine

    def finish(self, timeout_s: float = _END_S_MAX) -> tuple[int, str]:
        """Wait for the end; return exit status and standard output."""
        output, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, output.decode()

    def survivors(self) -> list[str]:
        """Return the command lines of marked processes that still run."""
        wanted = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
        return found

    def assert_nothing_left(self) -> None:
        """Check that no process runs and no temporary file is left."""
        # The watchdogs end a moment after us.
        until("all has ended", lambda: not self.survivors(), within_s=10, explain=self.survivors)
        kept = [each.name for each in self.temporary.iterdir() if each.name.startswith("halfb")]
        assert kept == []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Return what starts a demo; it is killed at the end if it still runs."""
    demos: list[Demo] = []

    def start_demo(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield start_demo
    for demo in demos:
        with suppress(ProcessLookupError):
            os.killpg(demo.process.pid, signal.SIGKILL)
        demo.process.wait()
        if demo.process.stdout is not None:
            demo.process.stdout.close()


def test_json(start: Callable[..., Demo]) -> None:
    """The demo succeeds, prints one JSON object with the promised keys, leaves nothing."""
    demo = start("--json")
    status, output = demo.finish()
    found = json.loads(output)
    kinds = found["kinds"]

    assert status == 0
    assert list(found) == ["ok", "kinds", "duplicates", "lost", "out_of_order", "seconds"]
    assert found["ok"] is True
    assert (found["duplicates"], found["lost"], found["out_of_order"]) == (0, 0, 0)
    assert list(kinds) == ["committed", "rolled_back", "killed", *NEVER_DECIDED, "multi"]
    assert kinds["killed"]["delivered"] == kinds["killed"]["expected"] > 0
    assert kinds["unknown"]["dead_lettered"] == kinds["unknown"]["expected"] > 0
    for kind in ("rolled_back", *NEVER_DECIDED):
        assert kinds[kind]["delivered"] == 0
    assert kinds["abandoned"]["dead_lettered"] == 0  # the fence has proven a rollback
    demo.assert_nothing_left()


@pytest.mark.parametrize("text", ["starting a real Kafka broker", "SIGKILL for order service 1"])
@pytest.mark.parametrize("whole_group", [True, False], ids=["group", "parent"])
def test_interrupt(start: Callable[..., Demo], text: str, whole_group: bool) -> None:
    """Ctrl-C ends the demo with status 130 at any stage, and leaves nothing."""
    demo = start()
    demo.await_text(text)
    if whole_group:
        os.killpg(demo.process.pid, signal.SIGINT)
    else:
        demo.process.send_signal(signal.SIGINT)
    status, _ = demo.finish()

    assert status == 130
    demo.assert_nothing_left()


def test_kill(start: Callable[..., Demo]) -> None:
    """Even a SIGKILL of the demo leaves no process and no directory."""
    demo = start()
    demo.await_text("SIGKILL for order service 1")
    demo.process.kill()
    status, _ = demo.finish()

    assert status == -signal.SIGKILL
    demo.assert_nothing_left()


def test_failure(start: Callable[..., Demo]) -> None:
    """When one of its processes dies, the demo fails, says which, and leaves nothing."""
    demo = start()
    demo.await_text("order service 1 of 3")
    (service,) = _processes_of(demo, "halfbridge.demo")
    os.kill(service, signal.SIGKILL)
    status, _ = demo.finish()

    assert status == 1
    demo.await_text("service-0 ended with status -9")
    demo.assert_nothing_left()


def _processes_of(demo: Demo, program: str) -> list[int]:
    def found() -> list[int]:
        running = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_text().split("\0")
                if program in words and str(demo.temporary) in " ".join(words):
                    running.append(int(entry.name))
        return running

    return until(f"{program} runs", found)
