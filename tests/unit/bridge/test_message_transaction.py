"""A transaction's records, and what their acknowledgements make of its state."""

from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.bridge.message import Message
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction import IllegalTransitionError, State
from halfbridge.kafka.errors import (
    BackpressureError,
    Code,
    HalfNotStoredError,
    InvalidMessageError,
    KafkaFailure,
    OutcomeUnknownError,
    ProducerFencedError,
)
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import HALF
from halfbridge.serde.records import OpKind
from tests.unit.bridge.fake_writer import ID, NOW_MS, FakeWriter, shared_around

MESSAGE = Message("orders", key=b"k", value=b"v")
LOST = KafkaFailure(Code.MSG_TIMED_OUT)


@pytest.fixture
def writer() -> FakeWriter:
    """Return a writer that acknowledges nothing yet."""
    return FakeWriter()


@pytest.fixture
def tx(writer: FakeWriter) -> Transaction:
    """Return a new transaction over it."""
    return Transaction(shared_around(writer))


def _ack(tx: Transaction, writer: FakeWriter, *answers: KafkaFailure | None) -> None:
    writer.answers = list(answers)
    tx.shared.server.serve(0)


@pytest.mark.parametrize(
    ("stored", "late"), [(None, False), (LOST, None)], ids=["stored", "not stored"]
)
def test_whether_a_decision_is_late(
    writer: FakeWriter, tx: Transaction, stored: KafkaFailure | None, late: bool | None
) -> None:
    """Only the append time of the first message tells; without it nothing is claimed."""
    tx.send_async(MESSAGE)
    _ack(tx, writer, stored)
    tx.shared.ends = SimpleNamespace(half_end=lambda _partition: 7)  # type: ignore[assignment]
    decision = tx.rollback_async()
    _ack(tx, writer, None)
    assert decision.result().late is late


def test_id_and_times_are_the_ports(writer: FakeWriter, tx: Transaction) -> None:
    """So whoever gives the ports can repeat every byte."""
    tx.send_async(MESSAGE)
    _ack(tx, writer, None)
    tx.commit_async()
    half, op = writer.sent
    metadata = HALF_METADATA.decode(dict(half.headers)[HALF])
    decision = OP.decode(op.value)
    assert (tx.id, metadata.transaction_id, decision.transaction_id) == (ID, ID, ID)
    assert (metadata.born_timestamp, decision.timestamp) == (NOW_MS, NOW_MS)
    assert (decision.kind, decision.half_offset) == (OpKind.COMMIT, 0)
    assert (op.key, op.partition) == (ID.encode(), half.partition)


@pytest.mark.parametrize("wrong", ["orders", b"orders", None, {"topic": "orders"}])
def test_what_is_no_message_is_refused_with_a_hint(
    writer: FakeWriter, tx: Transaction, wrong: Any
) -> None:
    """The next client library's call has topic and value: the error shows ours."""
    for send in (tx.send, tx.send_async):
        with pytest.raises(InvalidMessageError, match=r"send\(Message\(.*value=") as caught:
            send(wrong)
        assert caught.value.field == "message"
    assert (tx.state, writer.sent) == (State.INIT, [])


def test_a_calls_step_is_taken_before_the_acknowledgement_and_its_end_after(
    writer: FakeWriter, tx: Transaction
) -> None:
    """COMMIT_SENT says that COMMIT may be on its way; only Kafka's word makes it COMMITTED."""
    states = [tx.state]
    tx.send_async(MESSAGE)
    states.append(tx.state)
    _ack(tx, writer, None)
    states.append(tx.state)
    tx.commit_async()
    states.append(tx.state)
    _ack(tx, writer, None)
    states.append(tx.state)
    assert states == [
        State.INIT,
        State.HALF_SENDING,
        State.HALF_SENT,
        State.COMMIT_SENT,
        State.COMMITTED,
    ]


def test_who_decides_twice_sends_once(writer: FakeWriter, tx: Transaction) -> None:
    """The second call returns the first one's future; the opposite is refused."""
    tx.send_async(MESSAGE)
    _ack(tx, writer, None)
    assert tx.commit_async() is tx.commit_async()
    assert len(writer.sent) == 2
    with pytest.raises(IllegalTransitionError):
        tx.rollback_async()


def test_who_waited_for_room_waits_no_second_time_for_acknowledgements(
    writer: FakeWriter, tx: Transaction
) -> None:
    """A send has its time once; an acknowledgement that is there by then counts."""
    tx.send_async(MESSAGE)
    clock, timeout_s = tx.shared.now.__self__, tx.shared.config.send_timeout_ms / 1_000  # type: ignore[attr-defined]
    clock.now_s += timeout_s
    waited_until = clock.now_s + timeout_s
    assert tx.is_unanswered()
    assert clock.now_s < waited_until
    _ack(tx, writer, None)
    assert not tx.is_unanswered()


def test_a_lost_half_message_leaves_rollback_only(writer: FakeWriter, tx: Transaction) -> None:
    """The future says that it may not be stored; commit is refused."""
    future = tx.send_async(MESSAGE)
    _ack(tx, writer, LOST)
    assert tx.state is State.SEND_FAILED
    with pytest.raises(HalfNotStoredError, match="MSG_TIMED_OUT"):
        future.result()
    with pytest.raises(IllegalTransitionError):
        tx.commit_async()


def test_a_lost_decision_is_in_doubt_and_may_be_repeated(
    writer: FakeWriter, tx: Transaction
) -> None:
    """Only the same one; the second acknowledgement settles it."""
    tx.send_async(MESSAGE)
    _ack(tx, writer, None)
    first = tx.commit_async()
    _ack(tx, writer, LOST)
    with pytest.raises(OutcomeUnknownError):
        first.result()
    assert tx.state is State.COMMIT_IN_DOUBT
    again = tx.commit_async()
    _ack(tx, writer, None)
    assert (tx.state, again.result().op_offset) == (State.COMMITTED, 2)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(Code.MSG_SIZE_TOO_LARGE, InvalidMessageError), (Code.FENCED, ProducerFencedError)],
)
def test_what_the_writer_refuses_at_once_is_raised_by_who_must_act(
    writer: FakeWriter, tx: Transaction, code: Code, expected: type[Exception]
) -> None:
    """The transaction counts the message as lost: nobody knows less than that."""
    writer.refusals = [KafkaFailure(code)]
    with pytest.raises(expected):
        tx.send_async(MESSAGE)
    assert tx.state is State.SEND_FAILED


def test_a_full_queue_is_waited_for(writer: FakeWriter, tx: Transaction) -> None:
    """Until there is room; not for ever."""
    writer.refusals = [BufferError(), BufferError()]
    tx.send_async(MESSAGE)
    assert len(writer.sent) == 1
    writer.refusals = [BufferError() for _ in range(10_000)]
    with pytest.raises(HalfNotStoredError) as raised:
        tx.send_async(MESSAGE)
    assert isinstance(raised.value.__cause__, BackpressureError)
