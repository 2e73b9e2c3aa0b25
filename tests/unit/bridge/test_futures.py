"""Decisions that are sent and not awaited: what the caller gets, and how failures are reported."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from halfbridge.bridge.message import Message, Resolution
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction import State
from halfbridge.kafka.error_log import LOG_AGAIN_S
from halfbridge.kafka.errors import BackpressureError, Code, KafkaFailure, OutcomeUnknownError
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

if TYPE_CHECKING:
    from halfbridge.bridge.futures import DecisionFuture
    from halfbridge.bridge.shared import Shared

MESSAGE = Message("orders", key=b"k", value=b"v")
LOST = KafkaFailure(Code.MSG_TIMED_OUT)
DECIDE = pytest.mark.parametrize("decide", [Transaction.commit, Transaction.rollback])


@pytest.fixture
def writer() -> FakeWriter:
    """Return a writer that acknowledges nothing yet."""
    return FakeWriter()


def _sent(shared: Shared, writer: FakeWriter) -> Transaction:
    """Return a transaction with one acknowledged message."""
    tx = Transaction(shared)
    tx.send_async(MESSAGE)
    _serve(shared, writer, None)
    return tx


def _serve(shared: Shared, writer: FakeWriter, *answers: KafkaFailure | None) -> None:
    writer.answers = list(answers)
    shared.server.serve(0)


@DECIDE
def test_a_decision_returns_before_its_acknowledgement(writer: FakeWriter, decide: Any) -> None:
    """The future has the position once a broker has confirmed the record."""
    shared = shared_around(writer)
    tx = _sent(shared, writer)
    assert tx.decision is None
    future = decide(tx)
    assert (future.done(), tx.decision) == (False, future)
    assert tx.state in {State.COMMIT_SENT, State.ROLLBACK_SENT}
    _serve(shared, writer, None)
    assert tx.state in {State.COMMITTED, State.ROLLED_BACK}
    assert future.result().op_offset == 1
    assert tx.decision is not None
    assert tx.decision.result() == future.result() == decide(tx).result()
    assert len(writer.sent) == 2


@pytest.mark.parametrize(
    ("settings", "how"),
    [({}, {"wait": True}), ({}, {"timeout": 0.5}), ({"decisions": "acknowledged"}, {})],
    ids=["wait", "timeout", "setting"],
)
def test_a_decision_may_be_awaited(
    writer: FakeWriter, settings: dict[str, Any], how: dict[str, Any]
) -> None:
    """By an argument or the setting: without an acknowledgement the outcome is unknown."""
    shared = shared_around(writer, decision_timeout_ms=500, **settings)
    tx = _sent(shared, writer)
    with pytest.raises(OutcomeUnknownError):
        tx.commit(**how)
    assert tx.state is State.COMMIT_IN_DOUBT
    writer.answers = [None, None]
    assert tx.commit(**how).done()


def test_a_block_ends_before_the_acknowledgement(writer: FakeWriter) -> None:
    """Its decision can be awaited behind it."""
    shared = shared_around(writer)
    with Transaction(shared) as tx:
        tx.send_async(MESSAGE)
        _serve(shared, writer, None)
    assert tx.state is State.COMMIT_SENT
    assert tx.decision is not None
    _serve(shared, writer, None)
    assert tx.decision.result().resolution is Resolution.COMMIT


def test_a_failed_decision_reaches_callback_count_and_log(
    writer: FakeWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is counted and handed over; the log has one line in LOG_AGAIN_S."""
    failed: list[DecisionFuture] = []
    shared = shared_around(writer, failed=failed.append)
    clock: Any = shared.now.__self__
    decided = []
    with caplog.at_level(logging.WARNING):
        for pause_s in (0, 0, LOG_AGAIN_S):
            clock.now_s += pause_s
            tx = _sent(shared, writer)
            decided.append(tx.commit())
            _serve(shared, writer, LOST)
            assert tx.decision is decided[-1]
    assert failed == decided
    assert shared.failures.count == 3
    first, last = caplog.messages
    assert "COMMIT of transaction" in first
    assert "the check settles it" in first
    assert "1 others since" in last


def test_an_awaited_failure_is_reported_to_the_waiting_thread_only(writer: FakeWriter) -> None:
    """It gets an exception; nobody else needs to know."""
    failed: list[DecisionFuture] = []
    shared = shared_around(writer, failed=failed.append)
    tx = _sent(shared, writer)
    writer.answers = [LOST]
    with pytest.raises(OutcomeUnknownError, match="MSG_TIMED_OUT"):
        tx.commit(wait=True)
    assert (failed, shared.failures.count) == ([], 0)


def test_a_callback_that_raises_stops_nothing(
    writer: FakeWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception is logged, and the next failure is reported as well."""
    failed = []

    def note(future: DecisionFuture) -> None:
        failed.append(future)
        raise ZeroDivisionError

    shared = shared_around(writer, failed=note)
    for _ in range(2):
        _sent(shared, writer).commit()
        _serve(shared, writer, LOST)
    assert len(failed) == 2
    assert "a delivery callback raised" in caplog.text


def test_a_decision_that_cannot_be_sent_raises(writer: FakeWriter) -> None:
    """Nothing is on its way, so the caller gets the error at once, and may repeat it."""
    shared = shared_around(writer)
    tx = _sent(shared, writer)
    writer.refusals = [KafkaFailure(Code.FATAL)]
    with pytest.raises(OutcomeUnknownError):
        tx.commit()
    assert tx.state is State.COMMIT_IN_DOUBT
    assert not tx.commit().done()


def test_decisions_in_flight_are_bounded(writer: FakeWriter) -> None:
    """Beyond in_flight_max a decision waits for room; without any, nothing is decided."""
    shared = shared_around(writer, in_flight_max=4, send_timeout_ms=300)
    transactions = [_sent(shared, writer) for _ in range(9)]
    with pytest.raises(BackpressureError, match="in_flight_max"):
        for tx in transactions:
            tx.commit()
    assert len(writer) <= 5
    refused = next(tx for tx in transactions if tx.state is State.HALF_SENT)
    _serve(shared, writer, *[None] * len(writer))
    assert not refused.commit().done()
    assert refused.state is State.COMMIT_SENT


def test_threads_that_decide_at_once_send_one_decision(writer: FakeWriter) -> None:
    """The second caller gets the first one's future."""
    shared = shared_around(writer)
    tx = _sent(shared, writer)
    together = threading.Barrier(4)
    found: list[DecisionFuture] = []

    def decide() -> None:
        together.wait()
        found.append(tx.commit())

    threads = [threading.Thread(target=decide) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*found} == {tx.decision}
    assert len(writer.sent) == 2
