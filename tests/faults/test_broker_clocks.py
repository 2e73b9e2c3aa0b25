"""The brokers' clock jumps, by which everything is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfbridge.testkit.broker import EmbeddedBroker
from tests.faults.stage import seed_of_run
from tests.integration.clock import MovingClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

_HOUR_S = 3600
# Where the clock stands, hours ahead of the true one: forth and back, and further back.
_JUMPS_H = (1, 0, 3, 0, -3, 24, 0)
_HEALED_S = 60.0


@pytest.fixture
def clock(tmp_path: Path) -> MovingClock:
    """Return the clock of `broker`."""
    return MovingClock(tmp_path)


@pytest.fixture
def broker(clock: MovingClock) -> Iterator[EmbeddedBroker]:
    """Yield a broker whose clock the test moves."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environ.items():
            patch.setenv(name, value)
        started = EmbeddedBroker().start()
    try:
        yield started
    finally:
        started.stop()


def test_case_37_the_brokers_clock_jumps(own_stage: Stage, clock: MovingClock) -> None:
    """By hours and a day, forward and back, under load: nothing is given up early, nothing is late.

    Set back by more than an hour, the broker refuses the timestamps that the daemon took from it.
    """
    seed = seed_of_run()
    stage = own_stage.make()
    daemon = stage.daemon("--workers", "2")
    clients = stage.usual_clients(seed=seed, pipelined=100, blocking=50)
    stage.await_members(2, within_s=60)
    stage.await_more(200)
    for hours in _JUMPS_H:
        clock.move(hours * _HOUR_S)
        stage.injected[f"the broker's clock jumps: {hours} h ahead of the true one"] += 1
        stage.await_more(200, within_s=_HEALED_S)

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0
