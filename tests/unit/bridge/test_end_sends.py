"""`Transaction.end_sends`: the last word on the number of messages."""

import pytest

from halfbridge.bridge.message import Message
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction import IllegalTransitionError, State
from halfbridge.kafka.errors import Code, HalfNotStoredError, KafkaFailure
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

A_HAT = Message("orders", key=b"k", value=b"a hat")
LOST = KafkaFailure(Code.MSG_TIMED_OUT)


@pytest.fixture
def writer() -> FakeWriter:
    """Return a writer that acknowledges nothing yet."""
    return FakeWriter()


def test_outstanding_sends_are_awaited(writer: FakeWriter) -> None:
    """Until then no message counts as stored."""
    tx = Transaction(shared_around(writer))
    tx.send_async(A_HAT)
    tx.send_async(A_HAT)
    assert (tx.message_count, tx.stored_count) == (2, 0)
    writer.answers = [None, None]
    assert tx.end_sends() == 2
    assert (tx.state, tx.stored_count) == (State.HALF_SENT, 2)


@pytest.mark.parametrize("sent", [0, 1])
def test_no_send_follows(writer: FakeWriter, sent: int) -> None:
    """Neither the first one nor another; the number is final, and COMMIT has it."""
    tx = Transaction(shared_around(writer))
    writer.answers = [None] * sent
    for _ in range(sent):
        tx.send(A_HAT)
    assert [tx.end_sends(), tx.end_sends()] == [sent, sent]
    with pytest.raises(IllegalTransitionError, match="with the number of messages"):
        tx.send(A_HAT)
    assert (tx.message_count, len(writer.sent)) == (sent, sent)


def test_a_message_that_is_not_stored(writer: FakeWriter) -> None:
    """The local transaction must not commit; nothing counts as stored."""
    tx = Transaction(shared_around(writer))
    tx.send_async(A_HAT)
    tx.send_async(A_HAT)
    writer.answers = [None, LOST]
    with pytest.raises(HalfNotStoredError, match="do not commit the local transaction"):
        tx.end_sends()
    assert (tx.state, tx.stored_count) == (State.SEND_FAILED, 0)
