"""Transaction: several half messages with one wait, and the last word on their number."""

import pytest

from halfbridge.bridge.message import Message
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction import IllegalTransitionError, State
from halfbridge.kafka.errors import (
    Code,
    HalfNotStoredError,
    InvalidMessageError,
    KafkaFailure,
    TransactionsRejectedError,
)
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

MESSAGES = [Message("orders", key=b"k", value=b"%d" % number) for number in range(3)]
LOST = KafkaFailure(Code.MSG_TIMED_OUT)


@pytest.fixture
def writer() -> FakeWriter:
    """Return a writer that acknowledges nothing yet."""
    return FakeWriter()


# --- send_all


def test_all_are_sent_before_the_first_acknowledgement(writer: FakeWriter) -> None:
    """The receipts are in the order of the messages, although one poll brings all of them."""
    polls: list[int] = []
    shared = shared_around(writer)
    poll = shared.server._poll

    def poll_once(wait_s: float) -> int:
        polls.append(len(writer.sent))
        writer.answers = [None] * len(MESSAGES)
        return poll(wait_s)

    shared.server._poll = poll_once
    tx = Transaction(shared)
    receipts = tx.send_all(iter(MESSAGES))
    assert [each.message_index for each in receipts] == [0, 1, 2]
    assert [each.value for each in writer.sent] == [b"0", b"1", b"2"]
    assert (tx.state, polls) == (State.HALF_SENT, [len(MESSAGES)])


def test_none_is_no_message(writer: FakeWriter) -> None:
    """Nothing is sent, and the transaction may still send."""
    tx = Transaction(shared_around(writer))
    assert tx.send_all([]) == []
    assert tx.state is State.INIT


def test_one_that_fails_fails_all(writer: FakeWriter) -> None:
    """The local transaction must not run: only rollback is allowed."""
    writer.answers = [None, LOST, None]
    tx = Transaction(shared_around(writer))
    with pytest.raises(HalfNotStoredError, match="half message 1 "):
        tx.send_all(MESSAGES)
    assert tx.state is State.SEND_FAILED


def test_a_refused_one_names_the_reason(writer: FakeWriter) -> None:
    """A fence then refuses the transaction, as after `send`."""
    writer.answers = [None]
    tx = Transaction(shared_around(writer))
    with pytest.raises(InvalidMessageError, match="immunity_ms"):
        tx.send_all([MESSAGES[0], Message("orders", value=b"", immunity_ms=10**10)])
    assert isinstance(tx.refused, InvalidMessageError)


def test_a_refused_send_is_missing_until_it_is_repeated(writer: FakeWriter) -> None:
    """A send of another message does not make up for it; new headers do not matter."""
    shared = shared_around(writer)
    tx = Transaction(shared)
    first, second = Message("orders", value=b"1"), Message("orders", value=b"2")
    shared.gate.refusal = TransactionsRejectedError("stopped", reason="")
    for message in (first, second, first):
        with pytest.raises(TransactionsRejectedError):
            tx.send_async(message)
    shared.gate.refusal = None
    tx.send_async(Message("orders", value=b"3"))
    tx.send_async(second)
    assert isinstance(tx.refused, TransactionsRejectedError)
    tx.send_async(Message("orders", value=b"1", headers=[("trace", b"2")]))
    assert tx.refused is None


def test_a_refusal_that_no_repetition_can_change_stays(writer: FakeWriter) -> None:
    """Also if another send is refused for a moment, and then repeated."""
    shared = shared_around(writer)
    tx = Transaction(shared)
    with pytest.raises(InvalidMessageError):
        tx.send_async(Message("orders", value=b"", immunity_ms=10**10))
    shared.gate.refusal = TransactionsRejectedError("stopped", reason="")
    with pytest.raises(TransactionsRejectedError):
        tx.send_async(MESSAGES[0])
    shared.gate.refusal = None
    tx.send_async(MESSAGES[0])
    assert isinstance(tx.refused, InvalidMessageError)


def test_a_full_transaction_stays_refused(
    writer: FakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that had no place is missing, whatever is refused and repeated afterwards."""
    monkeypatch.setattr("halfbridge.bridge.message_transaction.TRANSACTION_BYTES_MAX", 10)
    shared = shared_around(writer)
    tx = Transaction(shared)
    with pytest.raises(InvalidMessageError):
        tx.send_async(Message("orders", value=b"x" * 11))
    shared.gate.refusal = TransactionsRejectedError("stopped", reason="")
    with pytest.raises(TransactionsRejectedError):
        tx.send_async(MESSAGES[0])
    shared.gate.refusal = None
    tx.send_async(MESSAGES[0])
    assert isinstance(tx.refused, InvalidMessageError)


# --- end_sends


def test_outstanding_sends_are_awaited(writer: FakeWriter) -> None:
    """Until then no message counts as stored."""
    tx = Transaction(shared_around(writer))
    tx.send_async(MESSAGES[0])
    tx.send_async(MESSAGES[0])
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
        tx.send(MESSAGES[0])
    assert [tx.end_sends(), tx.end_sends()] == [sent, sent]
    with pytest.raises(IllegalTransitionError, match="with the number of messages"):
        tx.send(MESSAGES[0])
    assert (tx.message_count, len(writer.sent)) == (sent, sent)


def test_a_message_that_is_not_stored(writer: FakeWriter) -> None:
    """The local transaction must not commit; nothing counts as stored."""
    tx = Transaction(shared_around(writer))
    tx.send_async(MESSAGES[0])
    tx.send_async(MESSAGES[0])
    writer.answers = [None, LOST]
    with pytest.raises(HalfNotStoredError, match="do not commit the local transaction"):
        tx.end_sends()
    assert (tx.state, tx.stored_count) == (State.SEND_FAILED, 0)
