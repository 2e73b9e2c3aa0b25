"""Workers come and go under load; partitions move, and the history stays clean."""

import pytest

from tests.faults.stage import Stage, seed_of_run

pytestmark = pytest.mark.broker

_ROUNDS = 3
_PROGRESS = 150


def test_workers_come_and_go_under_load(stage: Stage) -> None:
    """A third worker joins, the oldest leaves with SIGTERM and `--leave`, three times over."""
    seed = seed_of_run()
    stage.make()
    daemons = [stage.daemon("--leave") for _ in range(2)]
    clients = stage.usual_clients(seed=seed, pipelined=200, blocking=100)
    stage.await_members(2)
    for _ in range(_ROUNDS):
        stage.await_more(_PROGRESS)
        daemons.append(stage.daemon("--leave"))
        stage.injected["worker joins, another one leaves"] += 1
        stage.await_members(3)
        stage.await_more(_PROGRESS)
        assert stage.stop(daemons.pop(0)) == 0
        stage.await_members(2)
    stage.await_more(_PROGRESS)

    stage.end_judged(clients)
    assert stage.unexpected_checks() == []
    assert [stage.stop(daemon) for daemon in daemons] == [0, 0]
