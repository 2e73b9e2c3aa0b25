"""The brokers' clock jumps, by which everything is timed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge.testkit.broker import EmbeddedBroker
from tests.faults.stage import Stage, seed_of_run
from tests.integration.clock import MovingClock
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

_HOUR_S = 3600
# Hours by which the clock is ahead of the true one: forth and back, and further back.
_JUMPS_H = (1, 0, 3, 0, -3, 24, 0)
_HEALED_S = 60.0
# Kafka stamps the marker that ends a kafka_txn, and its coordinator's own entry, and then checks
# the stamp. When its clock is set back in between, the coordinator stumbles over the refusal and
# never ends that kafka_txn: nobody may use its transactional id, nor read behind it, until the
# broker is restarted.
_STUMBLED = "java.lang.IllegalStateException: Unexpected error"


@pytest.fixture
def clock(tmp_path: Path) -> MovingClock:
    return MovingClock(tmp_path)


@pytest.fixture
def broker(clock: MovingClock, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Yield a broker whose clock the test moves; what it wrote is kept for a failed test."""
    made = EmbeddedBroker(directory=tmp_path / "broker")
    with clock.lived_by():
        made.start()
    try:
        yield made
    finally:
        made.stop()


def test_case_37_the_brokers_clock_jumps(
    own_stage: Stage, clock: MovingClock, broker: EmbeddedBroker
) -> None:
    """By hours and a day, forward and back, under load: nothing is given up early, nothing is late.

    Set back by more than an hour, the broker refuses the timestamps that the daemon took from it.
    """
    seed = seed_of_run()
    stage = own_stage.make()
    daemon = stage.daemon("--workers", "2")
    clients = stage.usual_clients(seed=seed, pipelined=100, blocking=50)
    stage.await_members(2, within_s=60)
    stage.await_more(200)
    stumbles = _Stumbles(broker)
    for hours in _JUMPS_H:
        clock.move(hours * _HOUR_S)
        stage.injected[f"the broker's clock jumps: {hours} h ahead of the true one"] += 1
        wanted = len(stage.witnessed()) + 200
        until(
            "200 more deliveries",
            lambda: len(stage.witnessed()) >= wanted or stumbles.is_new(),  # noqa: B023 (called before the next turn)
            within_s=_HEALED_S,
        )
        if stumbles.is_new():
            stumbles.seen = stumbles.count()
            with clock.lived_by():
                broker.restart()
            stage.injected["broker restarted, whose coordinator had stumbled over a jump"] += 1
            stage.await_more(200, within_s=_HEALED_S)

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0


class _Stumbles:
    """How often the broker's coordinator has lost a marker.

    Attributes:
        seen: Of these so many were looked after.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._log = broker.directory / "node-1" / "server.log"
        self.seen = 0

    def count(self) -> int:
        """Return how often so far."""
        return self._log.read_text(errors="replace").count(_STUMBLED)

    def is_new(self) -> bool:
        """Tell whether one is to be looked after."""
        return self.count() > self.seen
