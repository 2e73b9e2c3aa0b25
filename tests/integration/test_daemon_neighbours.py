"""What one group writes wrongly costs the others of its pair nothing: their deliveries go on.

Latencies are the broker's own: append time on the real topic minus append time of the COMMIT. They
are compared within one run, with the same load before any mistake.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

GOOD = 200
# A mistake after so many good transactions: some are behind each, and fewer than one in ten.
EVERY = 15
# How long a missing topic is waited for: longer than the run.
GRACE_MS = 600_000
# The machine does other things too: below this, a percentile says nothing of waiting. Each op
# beyond the end alone used to cost 6 s.
FLOOR_MS = 700
SLOWER_MAX = 3
BEYOND = 1 << 40


def test_good_transactions_are_as_fast_as_before_beside_mistakes(
    installation: Installation,
) -> None:
    """Neither an op beyond the end nor a missing topic or partition holds up those behind it."""
    installation.make()
    orders = installation.topic("orders", message_timestamp_type="LogAppendTime")
    daemon = installation.start(topic_gone_ms=GRACE_MS)
    installation.fence()
    quiet_ms = _p99_ms(installation, orders, lambda _number: None)

    kinds = [_beyond_the_end, _missing_topic, _missing_partition]
    _beyond_the_end(installation, orders, 0)  # the first one of an hour is waited for longer
    installation.fence()
    barriers = daemon.metric("halfbridge_barriers_total")

    def mistake(number: int) -> None:
        kinds[number % len(kinds)](installation, orders, 100 + number)

    beside_ms = _p99_ms(installation, orders, mistake)

    assert beside_ms <= SLOWER_MAX * max(quiet_ms, FLOOR_MS)
    assert daemon.metric("halfbridge_barriers_total") > barriers
    assert daemon.metric("halfbridge_kafka_txn_failures_total") == 0
    assert daemon.metric("halfbridge_deliveries_deferred_total") > 0
    # A partition that the topic does not have is waited for 2 s, once a minute.
    reasons = {each.dead.reason.value for each in installation.dead_now()}
    assert reasons <= {"UNDELIVERABLE"}


def test_a_topic_that_is_made_a_moment_before_its_use_is_found(installation: Installation) -> None:
    """Missing topics are given up at once; but none is judged by an old look-up."""
    installation.make()
    orders = installation.topic("orders")
    installation.start(topic_gone_ms=0)
    installation.fence()

    for number in range(3):
        _missing_topic(installation, orders, 10 + number)  # has the daemon look
        new = installation.topic(f"new-{number}")
        until(f"{new} is led", lambda new=new: installation.is_led(new, 1))
        half = installation.pass_through(new)
        (record,) = installation.tail(new).until(1)
        assert record.transaction_id == half.transaction_id


def _p99_ms(installation: Installation, orders: str, mistake: Callable[[int], None]) -> int:
    """Pass good transactions through, with mistakes between them; return their latency."""
    decided = {}
    for number in range(GOOD):
        if number % EVERY == EVERY - 1:
            mistake(number // EVERY)
        half = installation.half(orders)
        decided[half.transaction_id] = installation.commit(half).append_ms
    installation.fence()
    latencies = sorted(_latencies_ms(installation, orders, decided))
    assert len(latencies) == GOOD
    return latencies[len(latencies) * 99 // 100 - 1]


def _latencies_ms(
    installation: Installation, orders: str, decided: dict[str, int]
) -> Iterator[int]:
    for record in installation.tail(orders).to_end():
        if record.transaction_id in decided:
            yield record.timestamp_ms - decided[record.transaction_id]


def _beyond_the_end(installation: Installation, orders: str, number: int) -> None:
    half = installation.half(orders, producer_group=f"beyond-{number}")
    installation.rollback(
        half._replace(offset=half.offset + BEYOND), producer_group=f"beyond-{number}"
    )


def _missing_topic(installation: Installation, _orders: str, number: int) -> None:
    group = f"missing-{number}"
    half = installation.half(installation.real(f"none-{number}"), producer_group=group, key=b"m")
    installation.commit(half, producer_group=group)


def _missing_partition(installation: Installation, orders: str, number: int) -> None:
    group = f"partition-{number}"
    half = installation.half(orders, producer_group=group, real_partition=7 + number, key=b"m")
    installation.commit(half, producer_group=group)
