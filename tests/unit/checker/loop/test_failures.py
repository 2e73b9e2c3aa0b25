"""Failures in a row: they are waited for ever longer, shown in health, and ended by a success."""

import pytest

from halfbridge.checker.loop.failures import FAILURES_RED, FIRST_S, FailureCount
from halfbridge.checker.status import Status


@pytest.fixture
def status() -> Status:
    """The health of a worker that is ready."""
    made = Status()
    made.set_ready(ready=True)
    return made


def _fail(count: FailureCount) -> list[float]:
    return [count.failed("refused") for _ in range(FAILURES_RED)]


def test_failures_in_a_row_turn_health_red_until_a_commit(status: Status) -> None:
    """One failure mends itself most of the time, and nobody needs to hear of it."""
    count = FailureCount(status)
    count.failed("refused")
    assert status.snapshot().healthy
    delays = _fail(count)
    assert delays == sorted(delays)
    assert not status.snapshot().healthy
    assert status.snapshot().reason == "refused"
    count.committed()
    assert status.snapshot().healthy
    assert count.failed("refused") == FIRST_S


def test_a_rebuild_ends_no_failure_to_write(status: Status) -> None:
    """A pair whose kafka_txns are refused is rebuilt between them; that proves nothing."""
    count = FailureCount(status)
    count.kafka_txn_failed([3])
    _fail(count)
    count.rebuilt({3, 4})
    assert not status.snapshot().healthy
    count.rebuilt({4})  # another worker has the pair
    assert status.snapshot().healthy


def test_a_rebuild_ends_a_failure_to_read(status: Status) -> None:
    """Where no kafka_txn failed, what was read again is all that was wanted."""
    count = FailureCount(status)
    _fail(count)
    count.rebuilt({0})
    assert status.snapshot().healthy
