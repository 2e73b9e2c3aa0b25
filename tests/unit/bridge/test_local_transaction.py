"""What a local transaction says, and what is decided by it."""

import asyncio
import ssl
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy.exc

from halfbridge import ConfigError, Resolution
from halfbridge.bridge.local_transaction import LocalResult, checked, decided, run
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
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer
from tests.unit.bridge.fake_writer import ID, NOW_MS, FakeWriter, shared_around

MESSAGE = Message("orders", value=b"v")


class _Transaction:
    """Records its calls; fails with `error` if there is one."""

    id = "0" * 32

    def __init__(self, error: Exception | None = None) -> None:
        self.reported: list[str] = []
        self._error = error

    def commit(self, timeout: float | None) -> str:
        return self._do("commit", timeout)

    def rollback(self, timeout: float | None) -> str:
        return self._do("rollback", timeout)

    def _do(self, what: str, timeout: float | None) -> str:
        assert timeout == 3.0
        self.reported.append(what)
        if self._error is not None:
            raise self._error
        return what


def _decided(tx: Any, result: LocalResult) -> Any:
    receipt: Any = None
    return decided(tx, receipt, result, 3.0)


@pytest.mark.parametrize("resolution", Resolution)
def test_its_word_is_carried_out(resolution: Resolution) -> None:
    """UNKNOWN decides nothing."""
    tx = _Transaction()
    result = _decided(tx, run(lambda _message, said: said, MESSAGE, resolution))
    wanted = {Resolution.COMMIT: ["commit"], Resolution.ROLLBACK: ["rollback"]}
    assert tx.reported == wanted.get(resolution, [])
    assert (result.resolution, result.remark, result.error) == (resolution, "", None)


@pytest.mark.parametrize("answer", [True, "COMMIT", 7])
def test_what_is_neither_a_resolution_nor_nothing_is_an_error(answer: object) -> None:
    """A caller that returns True means something: guessing what would be worse than asking."""
    said: Any = answer
    with pytest.raises(
        TypeError, match=f"returned {answer!r}.*Resolution or None.*nothing was dec"
    ):
        run(lambda _message, said: said, MESSAGE, said)


def test_what_is_raised_or_says_nothing_is_unknown() -> None:
    """The local transaction may have committed all the same."""
    failed = run(lambda *_: {}["row"], MESSAGE, None)
    assert (failed.resolution, type(failed.error)) == (Resolution.UNKNOWN, KeyError)
    # A function of a caller without type checks.
    silent: Any = run(lambda *_: None, MESSAGE, None)  # type: ignore[arg-type,return-value]
    assert (silent.resolution, silent.error) == (Resolution.UNKNOWN, None)
    assert "returned None" in silent.remark


def test_a_decision_in_doubt_is_reported_and_not_raised() -> None:
    """Nothing is raised once the local transaction has run."""
    error = OutcomeUnknownError("in doubt", transaction_id="0" * 32)
    result = _decided(_Transaction(error), LocalResult(Resolution.COMMIT))
    assert (result.decision, result.decision_error) == (None, error)


# --- which exceptions roll a transaction back when they leave its block --------------------
class OutOfStockError(Exception):
    """What a service raises itself."""


class OperationalError(Exception):
    """Has the name that drivers give to lost connections, whatever made it."""


class LostError(OperationalError):
    """Is one of these."""


class PostgresError(Exception):
    """Has the name of asyncpg's base class."""


class PostgresConnectionError(PostgresError):
    """Has the name of asyncpg's class of lost connections."""


class ConnectionDoesNotExistError(PostgresConnectionError):
    """Is one of these."""


class BaseExceptionGroup(Exception):  # noqa: N818 (Python 3.10 has none)
    """Has the name of the class that holds exceptions of any class."""


class GroupError(BaseExceptionGroup):
    """Is one of these, as ExceptionGroup is."""


@pytest.mark.parametrize(
    "refused",
    [
        BaseException,
        Exception,
        KeyboardInterrupt,
        asyncio.CancelledError,
        MemoryError,
        OSError,
        ConnectionError,
        ConnectionResetError,
        TimeoutError,
        EOFError,
        asyncio.IncompleteReadError,
        ssl.SSLError,
        ssl.SSLEOFError,
        PostgresError,
        ConnectionDoesNotExistError,
        GroupError,
        OperationalError,
        LostError,
        psycopg.Error,
        psycopg.DatabaseError,
        psycopg.OperationalError,
        psycopg.InterfaceError,
        psycopg.InternalError,
        psycopg.errors.AdminShutdown,
        psycopg.errors.StatementCompletionUnknown,
        pymysql.err.MySQLError,
        sqlalchemy.exc.SQLAlchemyError,
        sqlalchemy.exc.StatementError,
        sqlalchemy.exc.DBAPIError,
        sqlalchemy.exc.DatabaseError,
        sqlalchemy.exc.OperationalError,
        sqlalchemy.exc.InterfaceError,
        sqlalchemy.exc.DisconnectionError,
    ],
)
def test_classes_of_unknown_outcome_are_refused(refused: type[BaseException]) -> None:
    """Their COMMIT may have happened: the error says so, and names the class."""
    with pytest.raises(ConfigError, match=rf"rollback_on: \S*{refused.__name__} .*may have commit"):
        checked((OutOfStockError, refused))


@pytest.mark.parametrize(
    "allowed",
    [
        OutOfStockError,
        ValueError,
        FileNotFoundError,
        psycopg.IntegrityError,
        psycopg.errors.UniqueViolation,
        psycopg.errors.SerializationFailure,
        psycopg.errors.DeadlockDetected,
        psycopg.DataError,
        pymysql.err.IntegrityError,
        sqlalchemy.exc.IntegrityError,
        sqlalchemy.exc.DataError,
    ],
)
def test_classes_that_prove_a_rollback_are_taken(allowed: type[BaseException]) -> None:
    """One class is as good as a tuple of them."""
    assert checked(allowed) == checked([allowed]) == (allowed,)


@pytest.mark.parametrize("wrong", ["ValueError", ValueError("x"), [1], int, 7, None])
def test_what_is_no_class_of_exceptions_is_refused(wrong: Any) -> None:
    """The error says what to give."""
    with pytest.raises(ConfigError, match=r"rollback_on: .*a class of exceptions, or a tuple"):
        checked(wrong)


def unknown(_: object) -> Resolution:
    """Answer that it is not known yet."""
    return Resolution.UNKNOWN


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic("orders")
        yield started


@pytest.fixture
def producer(stack: MemoryStack) -> Iterator[MemoryProducer]:
    """A started producer, whose checker never knows."""
    with stack.producer("order-service", checker=unknown) as started:
        yield started


@pytest.mark.parametrize("placement_key", [None, b"k"])
def test_a_named_exception_rolls_back_and_is_swallowed(
    stack: MemoryStack, producer: MemoryProducer, placement_key: bytes | None
) -> None:
    """A subclass of a named class does too; nobody is asked, and nothing is delivered."""
    tx = producer.begin(rollback_on=(LookupError,), placement_key=placement_key)
    with pytest.raises(KeyError), tx:
        tx.send(Message("orders"))
        raise KeyError
    _acknowledged(tx)
    assert tx.state is State.ROLLED_BACK
    stack.wait_until_decided()
    stack.advance(seconds=60)
    assert producer.check_counts().received == 0
    assert stack.read_committed("orders") == []


def test_sends_without_an_acknowledgement_are_waited_for(producer: MemoryProducer) -> None:
    """The rollback covers them."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), tx:
        tx.send_async(Message("orders"))
        raise OutOfStockError
    _acknowledged(tx)
    assert tx.state is State.ROLLED_BACK


def test_any_other_exception_decides_nothing(producer: MemoryProducer) -> None:
    """The local transaction may have committed."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(ConnectionResetError), tx:
        tx.send(Message("orders"))
        raise ConnectionResetError
    assert tx.state is State.HALF_SENT


def test_a_decision_that_was_sent_is_final(producer: MemoryProducer) -> None:
    """What was committed before the exception stays committed; without a message there is none."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), tx:
        tx.send(Message("orders"))
        tx.commit()
        raise OutOfStockError
    _acknowledged(tx)
    assert tx.state is State.COMMITTED
    empty = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), empty:
        raise OutOfStockError
    assert empty.state is State.INIT
    with pytest.raises(IllegalTransitionError):
        empty.rollback()


def test_a_block_of_a_decided_transaction_is_refused(producer: MemoryProducer) -> None:
    """Its work would be done without a message; the error says to begin another."""
    tx = producer.begin()
    tx.send(Message("orders"))
    tx.commit(wait=True)
    with pytest.raises(IllegalTransitionError, match=r"COMMITTED: .*begin another"), tx:
        pytest.fail("the block has begun")


def test_nothing_waits_for_a_rollback_where_no_send_was_acknowledged(writer: FakeWriter) -> None:
    """No broker is asked where the half partition ends, and no decision is sent."""
    writer.answers = [LOST]
    tx = Transaction(shared_around(writer), rollback_on=(OutOfStockError,))
    with pytest.raises(OutOfStockError), tx:
        tx.send_async(Message("orders"))
        raise OutOfStockError
    assert tx.state is State.SEND_FAILED
    assert [each.topic for each in writer.sent] == [tx.shared.half_topic]


def test_a_rollback_that_fails_hides_nothing(
    stack: MemoryStack, producer: MemoryProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """The block's own exception comes out; the log says that a check settles the transaction."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), tx:
        tx.send(Message("orders"))
        producer.close()
        raise OutOfStockError
    assert tx.state is State.HALF_SENT
    assert f"rollback of {tx.id} failed" in caplog.text


# --- a transaction's records, and what their acknowledgements make of its state ------------

ORDER = Message("orders", key=b"k", value=b"v")
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
    tx.send_async(ORDER)
    _ack(tx, writer, stored)
    tx.shared.ends = SimpleNamespace(half_end=lambda _partition: 7)
    decision = tx.rollback_async()
    _ack(tx, writer, None)
    assert decision.result().late is late


def test_id_and_times_are_the_ports(writer: FakeWriter, tx: Transaction) -> None:
    """So a test that gives the ports can repeat every byte."""
    tx.send_async(ORDER)
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
    tx.send_async(ORDER)
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
    tx.send_async(ORDER)
    _ack(tx, writer, None)
    assert tx.commit_async() is tx.commit_async()
    assert len(writer.sent) == 2
    with pytest.raises(IllegalTransitionError):
        tx.rollback_async()


def test_who_waited_for_room_waits_no_second_time_for_acknowledgements(
    writer: FakeWriter, tx: Transaction
) -> None:
    """A send has its time once; an acknowledgement that is there by then counts."""
    tx.send_async(ORDER)
    clock, timeout_s = tx.shared.now.__self__, tx.shared.config.send_timeout_ms / 1_000
    clock.now_s += timeout_s
    waited_until = clock.now_s + timeout_s
    assert tx.is_unanswered()
    assert clock.now_s < waited_until
    _ack(tx, writer, None)
    assert not tx.is_unanswered()


def test_a_lost_half_message_leaves_rollback_only(writer: FakeWriter, tx: Transaction) -> None:
    """The future says that it may not be stored; commit is refused."""
    future = tx.send_async(ORDER)
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
    tx.send_async(ORDER)
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
        tx.send_async(ORDER)
    assert tx.state is State.SEND_FAILED


def test_a_full_queue_is_waited_for(writer: FakeWriter, tx: Transaction) -> None:
    """Until there is room; not for ever."""
    writer.refusals = [BufferError(), BufferError()]
    tx.send_async(ORDER)
    assert len(writer.sent) == 1
    writer.refusals = [BufferError() for _ in range(10_000)]
    with pytest.raises(HalfNotStoredError) as raised:
        tx.send_async(ORDER)
    assert isinstance(raised.value.__cause__, BackpressureError)


def _acknowledged(tx: Transaction) -> None:
    assert tx.decision is not None
    tx.decision.result()
