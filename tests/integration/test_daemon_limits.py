"""The largest that is allowed, and more than fits into memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from bridge import Message, Resolution
from bridge.message import TRANSACTION_MESSAGES_MAX
from tests.integration.installation import GROUP
from tests.integration.waiting import until

if TYPE_CHECKING:
    from tests.integration.installation import Installation

pytestmark = pytest.mark.broker

MEBIBYTE = 1024 * 1024
UNDECIDED = 3000


def _unknown(_: object) -> Resolution:
    return Resolution.UNKNOWN


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
    installation.fence(receipts[0].half_partition)
    assert len(installation.tail(orders).to_end()) == TRANSACTION_MESSAGES_MAX


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
    installation.fence()
    assert len(installation.tail(orders).to_end()) == UNDECIDED


def test_a_pause_ends_with_its_ledger(installation: Installation) -> None:
    """The client keeps it over a rebalance, and the new ledger has to read what was paused."""
    installation.make(partitions=2)
    orders = installation.topic("orders")
    daemon = installation.start(undecided_halves_max=2)
    for partition in (0, 1):
        for _ in range(3):
            installation.half(orders, partition=partition)
    daemon.counts("rocketmq_half_messages", 6)
    beyond = [installation.half(orders, partition=partition) for partition in (0, 1)]

    installation.start(slot="w-1", undecided_halves_max=2)
    for half in beyond:
        installation.commit(half)

    delivered = {each.transaction_id for each in installation.tail(orders).until(2)}
    assert delivered == {each.transaction_id for each in beyond}
