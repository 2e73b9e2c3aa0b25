"""Decisions that nobody awaits, and the end of the program that sent them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from halfbridge.bridge import Message, Resolution
from halfbridge.serde import OpKind
from tests.integration.producing import GROUP, Cluster
from tests.kit.waiting import until

if TYPE_CHECKING:
    from halfbridge.bridge import DecisionFuture, MessageView
    from tests.integration.installation import Installation

pytestmark = pytest.mark.broker

_ROOT = Path(__file__).resolve().parents[2]
_TRANSACTIONS = 100
_ENDS_S = 60.0
_PROGRAM = """
import os, signal, sys
from halfbridge import Message, Resolution, TransactionProducer

servers, prefix, topic, group, count, end = sys.argv[1:]
producer = TransactionProducer(
    bootstrap_servers=servers, topic_prefix=prefix, producer_group=group, linger_ms=200,
    checker=lambda view: Resolution.UNKNOWN,
)
producer.start()
sends = [producer.begin().send_async(Message(topic)) for _ in range(int(count))]
for send in sends:
    send.result()
for send in sends:
    send.transaction.commit()
if end == "fork" and not os.fork():
    sys.exit(0)  # runs the parent's exit functions once more
if end == "raises":
    raise SystemExit(3)
if end == "sigterm":
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("end", ["ends", "raises", "fork"])
def test_a_program_that_ends_without_close_sends_its_decisions(cluster: Cluster, end: str) -> None:
    """The queue is flushed at exit: each decision is in the log once, also after a fork."""
    ended = _run(cluster.servers, cluster.names.prefix, cluster.orders, end)
    assert (ended.returncode, ended.stderr) == (3 if end == "raises" else 0, "")
    ops = [op for _, op in cluster.ops()]
    assert [op.kind for op in ops] == [OpKind.COMMIT] * _TRANSACTIONS
    assert len({op.transaction_id for op in ops}) == _TRANSACTIONS


def test_decisions_of_a_program_that_sigterm_ends_are_left_to_the_check(
    installation: Installation,
) -> None:
    """Python ends at once, without exit functions; another process answers: all is delivered."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    ended = _run(installation.servers, installation.names.prefix, orders, "sigterm")
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "")
    asked: set[str] = set()

    def check(view: MessageView) -> Resolution:
        asked.add(view.transaction_id)
        return Resolution.COMMIT

    installation.start(transaction_timeout_ms=500, check_interval_ms=300)
    with installation.producer(check):
        delivered = installation.tail(orders).until(_TRANSACTIONS)
    assert len(delivered) == _TRANSACTIONS
    assert asked  # linger_ms held decisions back


@pytest.mark.feature
def test_a_decision_is_sent_and_its_place_comes_later(cluster: Cluster) -> None:
    """commit() returns a future; `close` waits until the decision is acknowledged."""
    with cluster.producer(linger_ms=500) as producer:
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
        sent = tx.decision
        assert sent is not None
        assert not sent.done()
    assert sent.result().resolution is Resolution.COMMIT
    ((record, op),) = cluster.ops()
    assert (op.transaction_id, record.offset()) == (tx.id, sent.result().op_offset)


def test_a_decision_that_no_broker_takes_reaches_the_callback(cluster: Cluster) -> None:
    """The service gets the error although no thread waits; the same decision can be repeated."""
    failed: list[DecisionFuture] = []
    with cluster.producer(
        send_timeout_ms=2_000, decision_timeout_ms=2_000, on_decision_failed=failed.append
    ) as producer:
        tx = producer.begin()
        tx.send(Message(cluster.orders))
        op_topic = producer._shared.op_topic
        producer._shared.op_topic = cluster.names.prefix + "gone"
        sent = tx.commit()
        until("the failure is reported", lambda: failed == [sent])
        assert producer.failed_decisions == 1
        producer._shared.op_topic = op_topic
        assert tx.commit(wait=True).result().op_offset == 0
    assert [op.kind for _, op in cluster.ops()] == [OpKind.COMMIT]


def _run(servers: str, prefix: str, topic: str, end: str) -> subprocess.CompletedProcess[str]:
    words = (servers, prefix, topic, GROUP, str(_TRANSACTIONS), end)
    return subprocess.run(
        (sys.executable, "-c", _PROGRAM, *words),
        cwd=_ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=_ENDS_S,
    )
