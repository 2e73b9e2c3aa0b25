"""What a local transaction says, and what is decided by it."""

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy.exc

from halfbridge import ConfigError, IllegalTransitionError, Message, Resolution, State
from halfbridge.bridge.local_transaction import Ran, checked, decided, run
from halfbridge.bridge.message_transaction import roll_back_quietly
from halfbridge.kafka.errors import OutcomeUnknownError
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer

MESSAGE = Message("orders", value=b"v")


class _Transaction:
    """Notes what it is told to do; fails with `error` where there is one."""

    id = "0" * 32

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[str] = []
        self._error = error

    def commit(self, timeout: float | None) -> str:
        return self._do("commit", timeout)

    def rollback(self, timeout: float | None) -> str:
        return self._do("rollback", timeout)

    def _do(self, what: str, timeout: float | None) -> str:
        assert timeout == 3.0
        self.told.append(what)
        if self._error is not None:
            raise self._error
        return what


def _decided(tx: Any, ran: Ran) -> Any:
    receipt: Any = None
    return decided(tx, receipt, ran, 3.0)


@pytest.mark.parametrize("resolution", Resolution)
def test_its_word_is_carried_out(resolution: Resolution) -> None:
    """UNKNOWN decides nothing."""
    tx = _Transaction()
    result = _decided(tx, run(lambda _message, said: said, MESSAGE, resolution))
    wanted = {Resolution.COMMIT: ["commit"], Resolution.ROLLBACK: ["rollback"]}
    assert tx.told == wanted.get(resolution, [])
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
    silent: Any = run(lambda *_: None, MESSAGE, None)  # type: ignore[arg-type,return-value]
    assert (silent.resolution, silent.error) == (Resolution.UNKNOWN, None)
    assert "returned None" in silent.remark


def test_a_decision_in_doubt_is_told_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised once the local transaction has run."""
    error = OutcomeUnknownError("in doubt", transaction_id="0" * 32)
    result = _decided(_Transaction(error), Ran(Resolution.COMMIT))
    assert (result.decision, result.decision_error) == (None, error)
    failing: Any = _Transaction(error)
    roll_back_quietly(failing, 3.0)
    assert "a check settles it" in caplog.text


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
def test_a_named_exception_rolls_back_and_goes_on(
    stack: MemoryStack, producer: MemoryProducer, placement_key: bytes | None
) -> None:
    """A subclass of a named class does too; nobody is asked, and nothing is delivered."""
    tx = producer.begin(rollback_on=(LookupError,), placement_key=placement_key)
    with pytest.raises(KeyError), tx:  # noqa: PT012  (the block is what is tested)
        tx.send(Message("orders"))
        raise KeyError
    assert tx.state is State.ROLLED_BACK
    stack.wait_until_decided()
    stack.advance(seconds=60)
    assert producer.check_counts().received == 0
    assert stack.read_committed("orders") == []


def test_sends_without_an_acknowledgement_are_waited_for(producer: MemoryProducer) -> None:
    """The rollback covers them."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), tx:  # noqa: PT012
        tx.send_async(Message("orders"))
        raise OutOfStockError
    assert tx.state is State.ROLLED_BACK


def test_any_other_exception_decides_nothing(producer: MemoryProducer) -> None:
    """The local transaction may have committed."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(ConnectionResetError), tx:  # noqa: PT012
        tx.send(Message("orders"))
        raise ConnectionResetError
    assert tx.state is State.HALF_SENT


def test_a_decision_that_was_sent_stands(producer: MemoryProducer) -> None:
    """What was committed before the exception stays committed; without a message there is none."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), tx:  # noqa: PT012
        tx.send(Message("orders"))
        tx.commit()
        raise OutOfStockError
    assert tx.state is State.COMMITTED
    empty = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), empty:
        raise OutOfStockError
    assert empty.state is State.INIT
    with pytest.raises(IllegalTransitionError):
        empty.rollback()


def test_a_rollback_that_fails_hides_nothing(
    stack: MemoryStack, producer: MemoryProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """The block's own exception comes out; the log says that a check settles the transaction."""
    tx = producer.begin(rollback_on=OutOfStockError)
    with pytest.raises(OutOfStockError), tx:  # noqa: PT012
        tx.send(Message("orders"))
        producer.close()
        raise OutOfStockError
    assert tx.state is State.HALF_SENT
    assert f"rollback of {tx.id} failed" in caplog.text
