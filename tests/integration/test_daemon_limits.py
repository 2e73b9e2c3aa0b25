"""The largest that is allowed, and more than fits into memory."""

import os
from collections.abc import Callable, Iterator

import pytest

from halfbridge.bridge import Message, Resolution
from halfbridge.checker.core.events import entry_bytes, message_bytes
from halfbridge.checker.core.memory import HALVES_PERCENT
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Stored
from tests.kit.waiting import until
from tests.ledger_log import metadata

pytestmark = pytest.mark.broker
MEBIBYTE = 1024 * 1024
KIBIBYTE = 1024
UNDECIDED = 3000


def _unknown(_: object) -> Resolution:
    return Resolution.UNKNOWN


def fitting(topic: str, entries_bytes_max: int) -> int:
    """Return with how many undecided transactions a pair reads no more that no op waits for."""
    one = metadata("i" * 32)._replace(producer_group=GROUP, real_topic=topic)
    weight = entry_bytes(one.transaction_id, GROUP) + message_bytes(one)
    return entries_bytes_max * HALVES_PERCENT // 100 // weight + 1


def fill(
    installation: Installation, topic: str, entries_bytes_max: int, *, partition: int = 0
) -> list[Stored]:
    """Store as many."""
    count = fitting(topic, entries_bytes_max)
    return [installation.half(topic, partition=partition) for _ in range(count)]


def test_a_message_at_the_size_limit(installation: Installation) -> None:
    """The largest message that the client takes is asked about, delivered and dead-lettered."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    installation.start(
        transaction_timeout_ms=100,
        check_interval_ms=100,
        check_backoff_ms_max=100,
        check_count_max=1,
    )
    limit = MEBIBYTE - 64 * 1024
    committed, given_up = os.urandom(limit), os.urandom(limit)

    with installation.producer(_unknown, topics=[orders]) as producer:
        with producer.begin() as transaction:
            transaction.send(Message(orders, value=committed))
        producer.begin().send(Message(orders, value=given_up))
        (record,) = installation.tail(orders).until(1)
        (letter,) = installation.dead(1)

    assert record.value == committed
    assert letter.value == given_up
    assert given_up in [each.value for each in installation.copies()] + [
        each.value for each in installation.checks(1)
    ]


def test_a_transaction_of_a_thousand_messages(installation: Installation) -> None:
    """Visible as a whole, in order, though a batch is smaller than it."""
    installation.make(partitions=2, groups=(GROUP,))
    orders = installation.topic("orders")
    installation.start(batch_records_max=100)
    with (
        installation.producer(_unknown, topics=[orders]) as producer,
        producer.begin() as transaction,
    ):
        futures = [
            transaction.send_async(Message(orders, key=b"k", value=b"%d" % number))
            for number in range(TRANSACTION_MESSAGES_MAX)
        ]
        receipts = [each.result() for each in futures]

    records = installation.tail(orders).until(TRANSACTION_MESSAGES_MAX)

    assert [each.value for each in records] == [
        b"%d" % number for number in range(TRANSACTION_MESSAGES_MAX)
    ]
    assert {each.transaction_id for each in records} == {receipts[0].transaction_id}
    installation.await_marker(receipts[0].half_partition)
    assert len(installation.delivered(orders)) == TRANSACTION_MESSAGES_MAX


def test_more_undecided_bodies_than_fit_into_memory(installation: Installation) -> None:
    """Bodies beyond ledger_bytes_max are let go, read again by offset, and delivered byte-exact."""
    installation.make(partitions=2, groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start(
        ledger_bytes_max=MEBIBYTE, batch_bytes_max=MEBIBYTE, batch_records_max=1000
    )
    bodies = {b"%d" % number: os.urandom(1024) for number in range(UNDECIDED)}
    with installation.producer(_unknown, topics=[orders]) as producer:
        open_ones = []
        for key, body in bodies.items():
            transaction = producer.begin()
            headers = [("key", key)]
            sent = transaction.send_async(Message(orders, key=key, value=body, headers=headers))
            open_ones.append((transaction, sent))
        for _, sent in open_ones:
            sent.result()
        until(
            "all are read, and most bodies let go",
            lambda: (
                daemon.metric("rocketmq_half_messages", topic=orders) == UNDECIDED
                and daemon.metric("halfbridge_ledger_bytes") <= 2 * MEBIBYTE
            ),
        )
        for transaction, _ in reversed(open_ones):
            transaction.commit_async()
        assert producer.flush() == 0

    records = installation.tail(orders).until(UNDECIDED)

    assert {each.key: each.value for each in records} == bodies
    assert all(each.header("key") == each.key for each in records)
    assert len(installation.delivered(orders)) == UNDECIDED


def test_a_pause_ends_with_its_ledger(installation: Installation) -> None:
    """The client keeps it over a rebalance, and the new ledger has to read what was paused."""
    installation.make(partitions=2)
    orders = installation.topic("orders")
    daemon = installation.start(entries_bytes_max=64 * KIBIBYTE)
    for partition in (0, 1):
        fill(installation, orders, 32 * KIBIBYTE, partition=partition)
    daemon.counts("rocketmq_half_messages", 2 * fitting(orders, 32 * KIBIBYTE))
    beyond = [installation.half(orders, partition=partition) for partition in (0, 1)]

    installation.start(slot="w-1", entries_bytes_max=64 * KIBIBYTE)
    for half in beyond:
        installation.commit(half)

    delivered = {each.transaction_id for each in installation.tail(orders).until(2)}
    assert delivered == {each.transaction_id for each in beyond}


def test_bodies_keep_their_budget_while_a_plan_waits(installation: Installation) -> None:
    """A COMMIT to a missing topic holds a plan for a minute, and half records pour in meanwhile.

    Its own bodies are more than the budget: they are let go too, and read again for the kafka_txn.
    """
    installation.make(groups=(GROUP,))
    orders, missing = installation.topic("orders"), installation.real("missing")
    daemon = installation.start(
        ledger_bytes_max=MEBIBYTE, batch_bytes_max=MEBIBYTE, topic_gone_ms=600_000
    )
    large = [os.urandom(700_000) for _ in range(2)]
    bodies = {b"%d" % number: os.urandom(2048) for number in range(UNDECIDED)}
    first = installation.half(missing, value=large[0])
    last = installation.half(missing, first.transaction_id, value=large[1], message_index=1)
    installation.commit(last, message_count=len(large))
    with installation.producer(_unknown, topics=[orders]) as producer:
        open_ones = [(producer.begin(), key, body) for key, body in bodies.items()]
        sent = [
            transaction.send_async(Message(orders, key=key, value=body))
            for transaction, key, body in open_ones
        ]
        for each in sent:
            each.result()
        held = []

        def all_are_read() -> bool:
            held.append(daemon.metric("halfbridge_ledger_bytes"))
            return daemon.metric("rocketmq_half_messages", topic=orders) == UNDECIDED

        until("all are read beside the plan that waits", all_are_read)
        daemon.counts("halfbridge_lag", 0, offset="O")
        assert max(held) <= MEBIBYTE
        assert daemon.metric("halfbridge_ledger_bytes") > MEBIBYTE / 2
        assert daemon.metric("rocketmq_commit_messages_total") == 0
        installation.create(missing)
        records = installation.tail(missing).until(len(large))
        for transaction, _, _ in open_ones:
            transaction.commit_async()
        assert producer.flush() == 0

    assert [each.value for each in records] == large
    delivered = installation.tail(orders).until(UNDECIDED)
    assert {each.key: each.value for each in delivered} == bodies


def test_who_fills_a_pairs_memory_is_warned_and_stopped_in_time(installation: Installation) -> None:
    """Beyond its budget a pair reads on ops, and half records only if an op waits for one."""
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start(entries_bytes_max=64 * KIBIBYTE)
    undecided = fill(installation, orders, 64 * KIBIBYTE)
    daemon.counts("rocketmq_half_messages", len(undecided))
    until(
        "the health page names the setting",
        lambda: "entries_bytes_max" in daemon.healthz()[1]["reason"],
    )
    assert daemon.healthz()[0] == 503
    assert daemon.metric("halfbridge_entries_fill_ratio") >= 0.85

    unread = [installation.half(orders) for _ in range(2)]
    installation.rollback(undecided[0])
    daemon.counts("rocketmq_half_messages", len(undecided) - 1)
    installation.commit(unread[0])
    (record,) = installation.tail(orders).until(1)
    assert record.transaction_id == unread[0].transaction_id

    half_of_them = len(undecided) // 2
    for half in undecided[1:half_of_them]:
        installation.rollback(half)
    left = (unread[1], *undecided[half_of_them:])
    daemon.counts("rocketmq_half_messages", len(left))
    until("it is well again", lambda: daemon.healthz()[0] == 200)
    for half in left:
        installation.commit(half)
    delivered = installation.tail(orders).until(1 + len(left))
    assert {each.transaction_id for each in delivered[1:]} == {each.transaction_id for each in left}


# --- what one group writes wrongly costs the others of its pair nothing: their deliveries go on

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
    """Neither an op beyond the end nor a missing topic or partition holds up those after it."""
    installation.make()
    orders = installation.topic("orders", message_timestamp_type="LogAppendTime")
    daemon = installation.start(topic_gone_ms=GRACE_MS)
    installation.await_marker()
    quiet_ms = _p99_ms(installation, orders, lambda _number: None)

    kinds = [_beyond_the_end, _missing_topic, _missing_partition]
    _beyond_the_end(installation, orders, 0)  # the first one of an hour is waited for longer
    installation.await_marker()
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
    installation.await_marker()

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
    installation.await_marker()
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
