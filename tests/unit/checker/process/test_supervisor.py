"""The supervisor, with small child processes as workers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from halfbridge.checker.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_OK, EXIT_OPERATOR, SlotError
from halfbridge.checker.process.slots import (
    SLOT_CHARS_MAX,
    claim,
    claim_many,
    default_state_dir,
    installation_key,
    slot_ids,
)
from halfbridge.checker.process.supervisor import (
    FAILED_BACKOFF_S_MAX,
    KILLED_BACKOFF_S_MAX,
    restart_delay_s,
)
from halfbridge.checker.process.worker_process import Stop
from halfbridge.testkit.ports import free_ports
from tests.kit.http import answer_of
from tests.kit.processes import is_running
from tests.kit.waiting import until

PROJECT = Path(__file__).parents[3]
PATIENCE_S = 20

# A worker that reports each start and drain as an empty file named after its slot and pid.
_WORKER = """
import json, os, signal, socket, sys, threading
from pathlib import Path
order = json.loads(sys.stdin.buffer.readline())
place, slot = Path(order["config"]["state_dir"]), order["slot"]
signal.signal(signal.SIGINT, signal.SIG_IGN)
def drained(number, frame):
    (place / f"drained-{slot}-{os.getpid()}").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, drained)
if order["listener_fd"] is not None:
    from halfbridge.checker.process.http import serve
    from halfbridge.checker.status import Status
    status = Status()
    status.set_ready(ready=True)
    status.metrics.conflicts(3)
    serve(status.metrics.registry, status.snapshot,
          listener=socket.socket(fileno=order["listener_fd"]))
(place / f"started-{slot}-{os.getpid()}").touch()
if (place / f"status-{slot}").exists():
    os._exit(int((place / f"status-{slot}").read_text()))
while os.read(0, 1):
    pass
(place / f"orphaned-{slot}-{os.getpid()}").touch()
"""
_SUPERVISOR = """
import json, os, sys
from halfbridge.serde.settings import load
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.supervisor import Supervisor
config = load(CheckerConfig, flags=json.loads(sys.argv[1]), environ={}, file={})
command = [os.environ["WORKER_PYTHON"], "-c", sys.argv[2]]
sys.exit(Supervisor(config, sys.argv[3:], command=command).run())
"""


class Fleet:
    """A supervisor process and the files that its workers created in `place`."""

    def __init__(self, place: Path, process: subprocess.Popen[str]) -> None:
        self.place = place
        self.process = process

    def seen(self, event: str, slot: str) -> list[int]:
        """Return the pids of `slot`'s workers that reported `event`, in order of time."""
        found = sorted(
            self.place.glob(f"{event}-{slot}-*"), key=lambda path: path.stat().st_mtime_ns
        )
        return [int(path.name.rpartition("-")[2]) for path in found]

    def wait_for(self, event: str, slot: str, count: int = 1) -> list[int]:
        """Wait until `event` was reported `count` times."""
        until(
            f"{event} of {slot}", lambda: len(self.seen(event, slot)) >= count, within_s=PATIENCE_S
        )
        return self.seen(event, slot)


@contextmanager
def _fleet(
    place: Path, *slots: str, interpreter: str = sys.executable, **settings: Any
) -> Iterator[Fleet]:
    config = json.dumps({"state_dir": str(place), **settings})
    process = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, config, _WORKER, *slots],
        cwd=PROJECT,
        env={**os.environ, "WORKER_PYTHON": interpreter},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Fleet(place, process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_killed_worker_starts_again_on_its_slot_at_once(tmp_path: Path) -> None:
    """A worker that is killed twice is restarted each time; the other worker is not.

    The second signal is a real-time signal, which has no name.
    """
    with _fleet(tmp_path, "a", "b") as fleet:
        fleet.wait_for("started", "b")
        for count, number in enumerate((signal.SIGKILL, signal.SIGRTMIN + 1), start=1):
            victim = fleet.wait_for("started", "a", count)[-1]
            os.kill(victim, number)
            fleet.wait_for("started", "a", count + 1)

        assert len(fleet.seen("started", "b")) == 1


@pytest.mark.process
def test_worker_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    """If a worker's interpreter does not exist, the supervisor retries until it does."""
    python = tmp_path / "python"
    with _fleet(tmp_path, "a", interpreter=str(python)) as fleet:
        assert fleet.process.stderr is not None
        for line in fleet.process.stderr:
            if "cannot be started" in line:
                break
        python.symlink_to(sys.executable)
        fleet.wait_for("started", "a")


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_every_worker_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    """The workers get SIGTERM, and the supervisor waits for their end."""
    with _fleet(tmp_path, "a", "b") as fleet:
        fleet.wait_for("started", "a")
        fleet.wait_for("started", "b")

        fleet.process.send_signal(number)

        assert fleet.process.wait(PATIENCE_S) == 0
        assert fleet.seen("drained", "a") == fleet.seen("started", "a")
        assert fleet.seen("drained", "b") == fleet.seen("started", "b")


@pytest.mark.process
def test_workers_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """A worker ends when the pipe from its killed supervisor closes."""
    with _fleet(tmp_path, "a") as fleet:
        (worker,) = fleet.wait_for("started", "a")

        fleet.process.kill()

        fleet.wait_for("orphaned", "a")
        until("the worker is gone", lambda: not is_running(worker), within_s=PATIENCE_S)


@pytest.mark.process
@pytest.mark.parametrize("status", [EXIT_CONFIG, EXIT_OPERATOR])
def test_worker_that_needs_an_operator_is_not_started_again(tmp_path: Path, status: int) -> None:
    """When no worker is left, the supervisor logs the worker and exits with its status."""
    (tmp_path / "status-a").write_text(str(status))
    with _fleet(tmp_path, "a") as fleet:
        _, log = fleet.process.communicate(timeout=PATIENCE_S)

        assert fleet.process.returncode == status
        assert len(fleet.seen("started", "a")) == 1
        assert "worker a is not started again" in log


@pytest.mark.process
def test_one_worker_given_up_leaves_the_others_at_work(tmp_path: Path) -> None:
    """The other workers run on; /readyz and /healthz are 503."""
    (tmp_path / "status-a").write_text(str(EXIT_OPERATOR))
    port = free_ports(1)[0]
    with _fleet(tmp_path, "a", "b", metrics_port=port) as fleet:
        fleet.wait_for("started", "b")
        until("it waits for an operator", lambda: "operator" in _get(port, "/readyz")[1])

        assert _get(port, "/readyz")[0] == 503
        assert _get(port, "/healthz")[0] == 503
        assert fleet.process.poll() is None


@pytest.mark.process
def test_one_port_shows_all_workers(tmp_path: Path) -> None:
    """Each worker's metrics are shown once, with its slot as label `worker`."""
    port = free_ports(1)[0]
    with _fleet(tmp_path, "a", "b", metrics_port=port) as fleet:
        fleet.wait_for("started", "a")
        fleet.wait_for("started", "b")

        text = _get(port, "/metrics")[1]

        assert text.count("# TYPE halfbridge_conflicts_total counter") == 1
        for slot in ("a", "b"):
            assert f'halfbridge_conflicts_total{{worker="{slot}"}} 3.0' in text
            assert f'halfbridge_worker_up{{worker="{slot}"}} 1.0' in text
        assert _get(port, "/readyz")[0] == 200
        assert _get(port, "/healthz")[0] == 200


@pytest.mark.process
def test_metrics_follow_a_worker_over_its_restart(tmp_path: Path) -> None:
    """The metrics show a restarted worker as up, and count its restart."""
    port = free_ports(1)[0]
    with _fleet(tmp_path, "a", metrics_port=port) as fleet:
        os.kill(fleet.wait_for("started", "a")[0], signal.SIGKILL)
        fleet.wait_for("started", "a", 2)

        text = _get(port, "/metrics")[1]

        assert 'halfbridge_worker_restarts_total{worker="a"} 1.0' in text
        assert 'halfbridge_worker_up{worker="a"} 1.0' in text


def test_first_restart_is_immediate_and_later_ones_wait_longer() -> None:
    """Back-off doubles to its limit, which is low for a worker killed from outside."""
    killed = [restart_delay_s(-signal.SIGKILL, count) for count in range(1, 100)]
    failed = [restart_delay_s(1, count) for count in range(1, 100)]

    assert killed[0] == failed[0] == 0.0
    assert killed == sorted(killed)
    assert failed == sorted(failed)
    assert killed[-1] == KILLED_BACKOFF_S_MAX
    assert failed[-1] == FAILED_BACKOFF_S_MAX


def _get(port: int, path: str) -> tuple[int, str]:
    return answer_of(f"http://127.0.0.1:{port}{path}")


# --- how a worker process ends -------------------------------------------------------------
WORKER_PATIENCE_S = 60.0

# PyDLL keeps the interpreter's lock during a call, as some calls of the Kafka client do.
_HUNG = """
import ctypes
from halfbridge.checker.process import worker_process
worker_process.DRAIN_S = 0.1
worker_process.HUNG_S = 0.3
with worker_process._stopped_by(()) as stop:
    stop.request("test")
    ctypes.PyDLL(None).sleep(600)
"""


class _ExitedError(Exception):
    pass


def _exit(status: int) -> None:
    raise _ExitedError(status)


def test_first_signal_asks_and_the_second_insists() -> None:
    """The first SIGTERM drains; the second exits at once."""
    stop = Stop(_exit)

    stop.on_signal(signal.SIGTERM)
    assert stop.event.is_set()

    with pytest.raises(_ExitedError, match=str(EXIT_ERROR)):
        stop.on_signal(signal.SIGTERM)
    stop.cancel()


def test_under_a_supervisor_a_second_signal_changes_nothing() -> None:
    """SIGTERM to a whole service reaches a worker twice: directly and from its supervisor."""
    stop = Stop(_exit, second_insists=False)

    stop.on_signal(signal.SIGTERM)
    stop.on_signal(signal.SIGTERM)

    assert stop.event.is_set()
    stop.cancel()


def test_a_drain_that_takes_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that exceeds DRAIN_S ends with status 0."""
    ended: list[int] = []
    monkeypatch.setattr("halfbridge.checker.process.worker_process.DRAIN_S", 0.0)
    stop = Stop(ended.append)

    stop.request("test")
    assert stop._timer is not None
    stop._timer.join()

    assert ended == [EXIT_OK]


@pytest.mark.process
def test_a_process_in_which_no_python_code_runs_is_cut_off_too() -> None:
    """A process in a call that never returns and holds the GIL ends with a traceback.

    A worker without a supervisor has no other process to kill it.
    """
    hung = subprocess.run(
        (sys.executable, "-c", _HUNG),
        check=False,
        capture_output=True,
        timeout=WORKER_PATIENCE_S,
        text=True,
    )

    assert hung.returncode == EXIT_ERROR
    assert 'File "<string>", line 8 in <module>' in hung.stderr


def test_supervisor_and_signal_together_drain_once() -> None:
    """The loss of the supervisor does not shorten a drain."""
    stop = Stop(_exit)

    stop.on_signal(signal.SIGTERM)
    stop.request("the supervisor is gone")

    assert stop.event.is_set()
    stop.cancel()


def test_cancelled_stop_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled stop does not end the process."""
    ended: list[int] = []
    stop = Stop(ended.append)

    stop.request("test")
    stop.cancel()
    assert stop._timer is not None
    stop._timer.join()

    assert ended == []


# --- worker slots: claimed by a lock that is released with its process ---------------------

KEY = installation_key("")
_CLAIMER = """
import sys
from pathlib import Path
from halfbridge.checker.process.slots import claim
held = claim(Path(sys.argv[1]), installation=sys.argv[2], host="box")
print(held.name, flush=True)
sys.stdin.read()
"""


class Claimer:
    """A process that holds a slot."""

    def __init__(self, state_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLAIMER, str(state_dir), KEY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.name = self.process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL it and wait for its end."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def claimers(tmp_path: Path) -> Iterator[list[Claimer]]:
    """Two processes, each with a slot."""
    both = [Claimer(tmp_path), Claimer(tmp_path)]
    yield both
    for each in both:
        each.kill()


@pytest.mark.process
def test_processes_claim_different_slots(tmp_path: Path, claimers: list[Claimer]) -> None:
    """Each process of a machine gets a slot of its own, the first free number."""
    with claim(tmp_path, installation=KEY, host="box") as mine:
        assert [*(each.name for each in claimers), mine.name] == ["box-0", "box-1", "box-2"]


@pytest.mark.process
def test_slot_of_a_killed_process_is_free_again(tmp_path: Path, claimers: list[Claimer]) -> None:
    """The system releases the slot lock of a killed process."""
    claimers[0].kill()

    with claim(tmp_path, installation=KEY, host="box") as mine:
        assert mine.name == "box-0"


def test_released_slot_is_free_again(tmp_path: Path) -> None:
    """A slot can be claimed again in the same process after its release."""
    with claim(tmp_path, installation=KEY, host="box"):
        pass
    with claim(tmp_path, installation=KEY, host="box") as again:
        assert again.name == "box-0"


def test_installations_do_not_share_slots(tmp_path: Path) -> None:
    """The slots of another topic prefix begin at 0."""
    other = installation_key("eu.")

    with claim(tmp_path, installation=KEY), claim(tmp_path, installation=other) as second:
        assert second.name.endswith("-0")


def test_claim_many_gives_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too few slots, those already claimed are released."""
    monkeypatch.setattr("halfbridge.checker.process.slots.SLOTS_MAX", 2)

    with pytest.raises(SlotError, match="--slot"):
        claim_many(tmp_path, 3, installation=KEY)

    both = claim_many(tmp_path, 2, installation=KEY)
    assert len({each.name for each in both}) == 2
    for each in both:
        each.release()


def test_unusable_directory_says_what_to_give(tmp_path: Path) -> None:
    """The error names the directory and --state-dir."""
    (tmp_path / "slots").write_text("a file where a directory should be")

    with pytest.raises(SlotError, match="--state-dir") as caught:
        claim(tmp_path, installation=KEY)

    assert str(tmp_path) in str(caught.value)


def test_ids_are_stable_and_legal() -> None:
    """Ids have only characters that Kafka allows; the transactional id has the topic prefix."""
    ids = slot_ids("Box 7/ä", topic_prefix="eu.")

    assert ids == slot_ids("Box 7/ä", topic_prefix="eu.")
    assert ids.group_instance_id == "Box-7"
    assert ids.transactional_id_prefix == "eu.halfbridge-Box-7"


@pytest.mark.parametrize("slot", ["", "///", "x" * (SLOT_CHARS_MAX + 1)])
def test_slot_without_a_legal_form_is_refused(slot: str) -> None:
    """A slot without valid characters, or too long, is a SlotError that names --slot."""
    with pytest.raises(SlotError, match="--slot"):
        slot_ids(slot, topic_prefix="")


def test_state_directory_is_per_user(tmp_path: Path) -> None:
    """XDG first, then the home directory, then the temporary directory with the user's id."""
    assert default_state_dir({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "halfbridge"
    home = default_state_dir({"HOME": str(tmp_path)})
    assert home == tmp_path / ".local" / "state" / "halfbridge"
    assert "halfbridge-" in default_state_dir({"HOME": str(tmp_path / "absent")}).name
