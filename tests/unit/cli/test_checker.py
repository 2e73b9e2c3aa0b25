"""What `halfbridge checker init` prints, and how `halfbridge checker run` starts and ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from halfbridge.checker.admin.init import NewOffsets
from halfbridge.cli.checker import show_offsets
from halfbridge.serde.progress import Progress

pytestmark = pytest.mark.process

# A process starts within a second or two, on a busy machine within more; then it has 3 s.
START_S, LOGGED_WITHIN_S = 10.0, 3.0


def test_an_id_is_shown_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An id comes from a record: it may hold what looks like lines of the report."""
    progress = Progress(half=1, op=2, rebuild_to=3, ops_from=4, position=5)
    found = NewOffsets(progress, (), ("A\nnever applied   0",), (), ("B",), ())
    show_offsets(found, {"as_json": False, "partition": 0, "dry_run": True})
    assert capsys.readouterr().out.splitlines() == [
        "partition 0: H=1 O=2 R=3 T=4 P=5",
        "applied before  0",
        r"still to apply  1: A\nnever applied   0",
        "applied twice   0",
        "never applied   1: B",
        "uncertain       0",
        "dry run: nothing committed",
    ]


# With a supervisor it takes twice as long.
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.more)])
def test_a_daemon_says_whom_it_cannot_reach_and_changes_its_level(
    workers: int, tmp_path: Path
) -> None:
    """Within 3 s, as JSON; SIGUSR1 switches each worker to debug, also under a supervisor."""
    words = ["--bootstrap-servers", "127.0.0.1:1", "--state-dir", str(tmp_path)]
    words += ["--workers", str(workers), "--log-format", "json"]
    daemon = subprocess.Popen(
        [sys.executable, "-m", "halfbridge", "checker", "run", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        began = _lines(daemon, "worker on slot", workers)
        silent = _lines(daemon, "no Kafka broker answers at 127.0.0.1:1", workers)
        assert {each["worker"] for each in silent} == {each["worker"] for each in began}
        for level in ("debug", "info"):
            daemon.send_signal(signal.SIGUSR1)
            _lines(daemon, f"log level is {level}", workers + (workers > 1))
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(START_S) == 0
    finally:
        daemon.kill()
        daemon.communicate()


def _lines(daemon: subprocess.Popen[str], text: str, count: int) -> list[dict[str, str]]:
    """Return so many lines with `text`; fail when they do not come in time."""
    assert daemon.stderr is not None
    until = monotonic() + START_S + LOGGED_WITHIN_S
    found: list[dict[str, str]] = []
    while len(found) < count:
        assert monotonic() < until, f"{text}: {found}"
        line = json.loads(daemon.stderr.readline())
        if text in line["message"]:
            found.append(line)
    return found
