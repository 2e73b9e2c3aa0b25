"""Workers, supervisor and producers die by SIGKILL, and nothing is lost, doubled or reordered."""

import os
import random
import signal
import time

import pytest

from halfbridge.testkit.children import Child
from tests.faults.plan import Kind
from tests.faults.stage import Daemon, Stage, seed_of_run
from tests.kit.processes import running
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

_WORKER_KILLS = 22
_MANY_KILLS = 200
# A worker that lives for some seconds may deliver less than clients send meanwhile. Then each life
# rebuilds more than the one before, until no life is long enough: on a slow machine 164 kills left
# 220,000 ops. So from time to time both workers live until they have caught up.
_KILLS_IN_A_ROW, _BACKLOG_MAX, _CAUGHT_UP_S = 10, 20_000, 600.0
_SUPERVISOR_KILL_AT = 11
# A worker starts and rebuilds in about a second: kills fall into both, and after them.
_PAUSE_S_MAX = 0.8
# A worker that lost its supervisor ends its kafka_txn and closes its clients, however busy all is.
_ENDED_S = 30.0
_DIE_AT = 200


def _kill_a_worker(stage: Stage, daemon: Daemon, draw: random.Random) -> None:
    """SIGKILL one at a random moment: while it starts, rebuilds, idles or delivers."""
    if draw.random() < 0.6:
        stage.await_more(draw.randrange(1, 40))
    time.sleep(draw.uniform(0, _PAUSE_S_MAX))
    until("a worker is killed", lambda: _sigkill_one_of(daemon.workers(), draw))
    stage.injected["worker killed"] += 1


def _sigkill_one_of(workers: list[int], draw: random.Random) -> bool:
    """Tell whether one was killed; the one that was killed last may still be on the list."""
    try:
        os.kill(draw.choice(workers), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


def _kill_the_supervisor(stage: Stage, daemon: Daemon) -> Daemon:
    """SIGKILL it alone, and start another one at once, as a service manager does."""
    orphans = running(daemon.workers())
    os.kill(daemon.pid, signal.SIGKILL)
    stage.injected["supervisor killed"] += 1
    assert daemon.ended(within_s=_ENDED_S) == -signal.SIGKILL
    successor = stage.daemon("--workers", "2")

    def left() -> set[tuple[int, str]]:
        return orphans & running(pid for pid, _ in orphans)

    until(
        "the orphaned workers end by themselves",
        lambda: not left(),
        within_s=_ENDED_S,
        explain=lambda: daemon.where_stand(pid for pid, _ in left()),
    )
    return successor


def _await_death(child: Child) -> None:
    until(f"{child.name} dies", lambda: child.process.poll() is not None)
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "kills", [_WORKER_KILLS, pytest.param(_MANY_KILLS, marks=pytest.mark.long)]
)
def test_sigkills_under_load(stage: Stage, kills: int) -> None:
    """SIGKILLs of workers, one of the supervisor, two of producers: a clean history.

    One producer dies exactly between its local commit and its decision: the check-back finds
    what it committed. A reader that was there all the time saw what a late one sees.
    """
    seed = seed_of_run()
    draw = random.Random(seed)
    stage.make()
    daemon = stage.daemon("--workers", "2")
    doomed = stage.client("doomed", seed=seed, rate=100, die_at=_DIE_AT)
    victim = stage.client("victim", seed=seed, rate=100, pipelined=True)
    lasting = stage.usual_clients(seed=seed, pipelined=200, blocking=100)
    for kill in range(kills):
        if kill == _SUPERVISOR_KILL_AT:
            daemon = _kill_the_supervisor(stage, daemon)
            stage.children.kill(victim)
            stage.injected["client killed at any moment"] += 1
        if kill % _KILLS_IN_A_ROW == 0:
            stage.await_backlog(_BACKLOG_MAX, within_s=_CAUGHT_UP_S)
        _kill_a_worker(stage, daemon, draw)
    _await_death(doomed)
    stage.injected["client dies between local commit and decision"] += 1
    stage.await_more(100)
    daemon.await_workers(2)

    stage.end_judged(lasting)
    assert stage.unexpected_checks() == []
    assert daemon.is_alive, "the supervisor gave up"
    assert stage.kinds[Kind.BRINK]["delivered"] == 1
    assert stage.stop(daemon) == 0
