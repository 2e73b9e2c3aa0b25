"""Conformance cases 6, 7, 8, 62, 66, 101, 110: brokers, members and a pool that do not answer."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from halfbridge.bridge import (
    HalfNotStoredError,
    IllegalTransitionError,
    Message,
    MessageView,
    OutcomeUnknownError,
    Resolution,
)
from halfbridge.serde.records import OpKind, OpSource
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

QUICK: dict[str, Any] = {
    "transaction_timeout_ms": 500,
    "check_interval_ms": 200,
    "check_backoff_ms_max": 200,
}
# Far beyond any test: only a limit of its own ends a wait earlier.
ENDLESS = {"send_timeout_ms": 600_000, "decision_timeout_ms": 600_000}
LATER_S = 40.0
_ROOT = Path(__file__).parents[2]


def commit_all(_view: MessageView) -> Resolution:
    """Answer COMMIT."""
    return Resolution.COMMIT


def unasked(view: MessageView) -> Resolution:
    """Fail: nobody is to ask."""
    raise AssertionError(view)


def ops(installation: Installation) -> list[tuple[OpKind, OpSource, str]]:
    """Return kind, source and transaction id of the records of the op topic."""
    found = [each.op for each in installation.tail(installation.names.op).to_end()]
    return [(op.kind, op.source, op.transaction_id) for op in found]


def test_case_006_and_007_no_ack_no_local_transaction(installation: Installation) -> None:
    """The send raises, the local transaction does not run, and nothing waits for a ROLLBACK."""
    ran: list[object] = []
    message = Message(installation.real("orders"))
    with (
        installation.producer(unasked) as producer,
        installation.refusing(installation.names.half),
        pytest.raises(HalfNotStoredError),
    ):
        producer.send_in_transaction(message, lambda given, _arg: ran.append(given))
    assert ran == []
    assert ops(installation) == []


def test_case_006_what_was_stored_all_the_same_is_rolled_back(installation: Installation) -> None:
    """No ack, but a stored half: only rollback is possible; no check, and no delivery."""
    orders = installation.real("orders")
    with installation.producer(unasked) as producer:
        tx = producer.begin()
        with installation.refusing(installation.names.half), pytest.raises(HalfNotStoredError):
            tx.send(Message(orders))
        half = installation.half(orders, tx.id, partition=tx.half_partition)
        with pytest.raises(IllegalTransitionError, match="only rollback"):
            tx.commit()
        tx.rollback()
    (rollback,) = (each.op for each in installation.tail(installation.names.op).to_end())
    assert (rollback.kind, rollback.transaction_id) == (OpKind.ROLLBACK, tx.id)
    assert rollback.half_offset == half.offset
    daemon = installation.start(**QUICK)
    assert installation.delivered(orders) == []
    assert installation.asked() == []
    daemon.counts("rocketmq_rollback_messages_total", 1, topic=orders)


def test_case_008_and_062_a_decision_without_ack_is_in_doubt(installation: Installation) -> None:
    """The local answer is returned, with the doubt about its delivery; the check resolves it."""
    orders = installation.real("orders")

    def local(_message: Message, _arg: object) -> Resolution:
        installation.refuse(installation.names.op)
        return Resolution.COMMIT

    with installation.producer(unasked, decisions="acknowledged") as producer:
        result = producer.send_in_transaction(Message(orders), local)
    installation.accept(installation.names.op)
    assert result.resolution is Resolution.COMMIT
    assert isinstance(result.decision_error, OutcomeUnknownError)
    assert result.decision_error.transaction_id == result.receipt.transaction_id
    assert result.decision is None
    assert ops(installation) == []
    transaction_id = result.receipt.transaction_id

    installation.start(**QUICK)
    with installation.producer(commit_all):
        installation.tail(orders).until(1)
    assert [each.transaction_id for each in installation.delivered(orders)] == [transaction_id]
    decided = {op for op in ops(installation) if op[2] == transaction_id}
    assert decided == {(OpKind.COMMIT, OpSource.CHECK, transaction_id)}


def test_case_066_closing_waits_for_what_is_under_way(installation: Installation) -> None:
    """A decision that the client holds to fill a batch is stored when close() returns."""
    with installation.producer(unasked, linger_ms=1_000) as producer:
        tx = producer.begin()
        tx.send(Message(installation.real("orders")))
        future = tx.commit_async()
    receipt = future.result(0)
    (record,) = installation.tail(installation.names.op).to_end()
    assert (record.partition, record.offset) == (receipt.op_partition, receipt.op_offset)


def test_case_066_closing_waits_no_longer_than_its_limit(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """A decision without an acknowledgement is in doubt after that, and close() raises it."""
    producer = installation.producer(unasked, **ENDLESS)
    producer.start()
    tx = producer.begin()
    tx.send(Message(installation.real("orders")))
    installation.delete(installation.names.op)  # an error that is repeated until the time-out
    future = tx.commit_async()
    closing = threading.Thread(target=producer.close, args=(0.5,), daemon=True)
    closing.start()
    closing.join(LATER_S)
    assert not closing.is_alive()
    with pytest.raises(OutcomeUnknownError):
        future.result(0)
    assert "closed with 1 unacknowledged records" in caplog.text


def test_case_101_a_saturated_pool_makes_nothing_grow(installation: Installation) -> None:
    """Requests beyond its room are refused and asked again; nothing is appended meanwhile."""
    orders = installation.real("orders")
    release = threading.Event()

    def checker(_view: MessageView) -> Resolution:
        assert release.wait(LATER_S)
        return Resolution.COMMIT

    installation.start(**QUICK)
    with installation.producer(checker, check_threads=1, check_queue_max=1) as producer:
        sent = {producer.begin().send(Message(orders)).transaction_id for _ in range(6)}
        until("it refused many", lambda: producer.check_counts().refused >= 4 * len(sent))
        assert len(installation.tail(installation.names.half).to_end()) == len(sent)
        assert ops(installation) == []
        release.set()
        installation.tail(orders).until(len(sent))
        delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert sorted(delivered) == sorted(sent)


MEMBER = """
import sys, threading
from halfbridge.bridge import Resolution, TransactionProducer
servers, group, prefix = sys.argv[1:]
with TransactionProducer(
    checker=lambda view: Resolution.UNKNOWN,
    bootstrap_servers=servers, producer_group=group, topic_prefix=prefix,
):
    threading.Event().wait()
"""


def members(installation: Installation) -> int:
    """Return how many members the group has that were given partitions of its check topic."""
    group = installation.names.check_group(GROUP)
    described = installation.admin.describe_consumer_groups([group])[group].result(LATER_S)
    return sum(bool(each.assignment.topic_partitions) for each in described.members)


def test_case_110_any_living_member_is_found(installation: Installation) -> None:
    """Members that were killed, and did not leave, do not block one that lives."""
    orders = installation.real("orders")
    arguments = (installation.servers, GROUP, installation.names.prefix)
    dead = [
        subprocess.Popen([sys.executable, "-c", MEMBER, *arguments], cwd=_ROOT) for _ in range(2)
    ]
    try:
        installation.start(**QUICK)
        until("all requests go to them", lambda: members(installation) == len(dead))
    finally:
        for each in dead:
            each.kill()
            assert each.wait(LATER_S) == -signal.SIGKILL
    with installation.producer(commit_all) as producer:
        sent = producer.begin().send(Message(orders))
        assert members(installation) >= len(dead), "they left: this shows nothing"
        installation.tail(orders).until(1)
    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [sent.transaction_id]
