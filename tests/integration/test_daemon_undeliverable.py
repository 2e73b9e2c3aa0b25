"""What the broker refuses for good: that transaction becomes a dead letter, the others go on."""

import os

import pytest
from confluent_kafka.admin import NewPartitions

from tests.integration.installation import Installation
from tests.integration.refusals import around, expect
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

_CALL_S = 20.0
_FAILURES_MAX = 15


def test_too_large_for_the_real_topic(installation: Installation) -> None:
    """Only the broker knows; the transaction is found by cutting the batch down."""
    installation.make()
    orders = installation.topic("orders")
    small = installation.topic("small", max_message_bytes="1000")
    body = os.urandom(2000)
    bad = [installation.half(small, value=body)]
    fits = installation.half(small, value=b"fits")
    good = around(installation, orders, bad)
    installation.commit(fits)

    daemon = installation.start()
    (letter,) = expect(installation, orders, good=good, bad=bad)

    assert letter.value == body
    assert [each.value for each in installation.delivered(small)] == [b"fits"]
    daemon.counts("halfbridge_dead_letters_total", 1, reason="UNDELIVERABLE")
    assert daemon.healthz()[0] == 200


def test_what_fits_alone_is_not_refused_together(installation: Installation) -> None:
    """A topic's limit is on what the client sends at once, which may be many messages."""
    installation.make()
    small = installation.topic("small", max_message_bytes="5000")
    bodies = [os.urandom(1000) for _ in range(20)]
    first = last = installation.half(small, value=bodies[0])
    for index, body in enumerate(bodies[1:], 1):
        last = installation.half(small, first.transaction_id, value=body, message_index=index)
    installation.commit(last, message_count=len(bodies))

    installation.start()

    assert [each.value for each in installation.delivered(small)] == bodies
    assert installation.dead_letters() == []


def test_a_refused_transaction_is_found_beside_a_busy_pair(installation: Installation) -> None:
    """What goes well in one pair is no reason to send more at once of another."""
    installation.make(partitions=2)
    orders = installation.topic("orders", max_message_bytes="5000")
    daemon = installation.start()
    installation.pass_through(orders, partition=0)
    bad = installation.half(orders, value=os.urandom(6000), partition=1)
    for half in (installation.half(orders, partition=1), bad):
        installation.commit(half)
    before = daemon.metric("halfbridge_kafka_txn_failures_total")

    def busy() -> bool:
        for partition in (0, 0, 0, 1):
            installation.pass_through(orders, partition=partition)
        return daemon.metric("halfbridge_dead_letters_total", reason="UNDELIVERABLE") == 1

    until("it is found", busy)
    # Two for the size of batches, then as many as cut one down to one record; some to spare.
    assert daemon.metric("halfbridge_kafka_txn_failures_total") - before < _FAILURES_MAX
    (letter,) = installation.dead(1)
    assert letter.half.transaction_id == bad.transaction_id


@pytest.mark.feature
def test_a_transaction_is_undeliverable_as_a_whole(installation: Installation) -> None:
    """One refused message makes dead letters of all messages of its transaction."""
    installation.make()
    orders = installation.topic("orders")
    small = installation.topic("small", max_message_bytes="1000")
    first = installation.half(orders, value=b"0")
    last = installation.half(small, first.transaction_id, value=os.urandom(2000), message_index=1)
    installation.commit(last, message_count=2)
    good = installation.pass_through(orders)

    installation.start()
    installation.await_marker()

    letters = installation.dead(2)
    assert [each.half.message_index for each in letters] == [0, 1]
    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [good.transaction_id]


@pytest.mark.parametrize("number", [1, 1_000_000, 2**31 - 1, -2, -(2**31)])
def test_a_partition_that_does_not_exist(installation: Installation, number: int) -> None:
    """Beyond the topic's partitions, or no partition number at all."""
    installation.make()
    orders = installation.topic("orders")
    bad = [installation.half(orders, real_partition=number)]
    good = around(installation, orders, bad)

    daemon = installation.start()
    (letter,) = expect(installation, orders, good=good, bad=bad)

    assert "partition" in letter.dead.detail
    assert daemon.metric("halfbridge_kafka_txn_failures_total") == 0


def test_a_partition_that_is_new(installation: Installation) -> None:
    """A client may know of it before the daemon, which has written to the topic already."""
    installation.make()
    orders = installation.topic("orders")
    installation.start()
    installation.pass_through(orders)
    installation.tail(orders).until(1)

    installation.admin.create_partitions([NewPartitions(orders, 3)])[orders].result(_CALL_S)
    until("its partitions are led", lambda: installation.is_led(orders, 3))
    new = installation.pass_through(orders, real_partition=2)
    installation.await_marker()

    records = installation.reopen(orders).until(2)
    assert (new.transaction_id, 2) in {(each.transaction_id, each.partition) for each in records}
    assert installation.dead_letters() == []


@pytest.mark.feature
def test_a_topic_that_comes_back_in_time(installation: Installation) -> None:
    """Within topic_gone_ms a missing topic holds its partition up, and loses nothing."""
    installation.make()
    orders = installation.topic("orders")
    late = installation.real("late")
    daemon = installation.start()
    awaited = installation.pass_through(late)
    behind = installation.pass_through(orders)
    until("the op is read", lambda: daemon.metric("rocketmq_half_messages", topic=orders) == 0)

    installation.create(late)

    (record,) = installation.tail(late).until(1)
    assert record.transaction_id == awaited.transaction_id
    (record,) = installation.tail(orders).until(1)
    assert record.transaction_id == behind.transaction_id
    assert installation.dead_letters() == []


def test_a_compacted_topic_refuses_a_null_key(installation: Installation) -> None:
    """A record that the broker calls invalid is the transaction's own fault."""
    installation.make()
    orders = installation.topic("orders")
    compacted = installation.topic("compacted", cleanup_policy="compact")
    bad = [installation.half(compacted, key=None)]
    good = around(installation, orders, bad)

    installation.start()

    expect(installation, orders, good=good, bad=bad)


def test_a_dead_letter_topic_that_is_gone_blames_nobody(installation: Installation) -> None:
    """Dead letters wait for their topic; what is deliverable is not taken for undeliverable."""
    installation.make()
    orders = installation.topic("orders")
    dead = installation.names.dead
    installation.delete(dead)
    installation.write(installation.names.half, b"junk")
    half = installation.pass_through(orders)

    daemon = installation.launch()
    until("health is red", lambda: daemon.healthz()[0] == 503)
    installation.create(dead, max_message_bytes="2000000")
    (record,) = installation.tail(orders).until(1)

    assert record.transaction_id == half.transaction_id
    installation.await_marker()
    assert [each.value for each in installation.dead_letters()] == [b"junk"]
    until("health is green", lambda: daemon.healthz()[0] == 200)
