"""The local transaction of `send_in_transaction`, and which exceptions may roll it back.

An exception may roll back a message transaction if it proves that the local transaction did not
commit. A class is refused where it does not: a connection that is lost during COMMIT leaves the
outcome unknown, and Exception includes lost connections. Drivers are not imported here: their
classes are known by the names that PEP 249 (the DB-API) and SQLAlchemy give them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ssl import SSLError
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from halfbridge.bridge.message import Resolution, SendReceipt
from halfbridge.kafka.errors import BridgeError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bridge.futures import DecisionFuture
    from halfbridge.bridge.message import Message
    from halfbridge.bridge.message_transaction import Transaction

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSendResult:
    """What `send_in_transaction` returns (RocketMQ 4 TransactionSendResult).

    Attributes:
        receipt: The position of the half message.
        resolution: What the local transaction returned; UNKNOWN if it raised or returned nothing.
        remark: Why the resolution is UNKNOWN, for people; empty if the local transaction returned
            UNKNOWN.
        error: The exception of the local transaction, or None.
        decision: The future of the decision; None for UNKNOWN or with `decision_error`.
        decision_error: Why the decision was not sent, or, where it was awaited, not acknowledged;
            the check settles the transaction.
    """

    receipt: SendReceipt
    resolution: Resolution
    remark: str = ""
    error: Exception | None = None
    decision: DecisionFuture | None = None
    decision_error: BridgeError | None = None


class LocalResult(NamedTuple):
    """How a local transaction ended.

    Attributes:
        resolution: The user's answer; UNKNOWN if the user's code raised or returned no Resolution.
        remark: Why the resolution is UNKNOWN; empty if the user's code returned UNKNOWN.
        error: The exception of the user's code, or None.
    """

    resolution: Resolution
    remark: str = ""
    error: Exception | None = None


def run(
    local_transaction: Callable[[Message, T], Resolution], message: Message, arg: T
) -> LocalResult:
    """Run a local transaction; raising or None is UNKNOWN.

    Raises TypeError: it returned another type; the programmer corrects it.
    """
    try:
        answer: object = local_transaction(message, arg)
    except Exception as error:  # noqa: BLE001  (the user's code; its outcome is unknown)
        return LocalResult(Resolution.UNKNOWN, f"local transaction raised {error!r}", error)
    if isinstance(answer, Resolution):
        return LocalResult(answer)
    if answer is None:
        return LocalResult(Resolution.UNKNOWN, "local transaction returned None, no Resolution")
    raise TypeError(
        f"local transaction returned {answer!r}, and must return a Resolution or None; nothing was"
        " decided, and a check finds out how the local transaction ended"
    )


def decided(
    transaction: Transaction, receipt: SendReceipt, result: LocalResult, timeout: float | None
) -> TransactionSendResult:
    """Send the decision of a local transaction, if it made one, and return the whole result."""
    decision = decision_error = None
    if result.resolution is not Resolution.UNKNOWN:
        commits = result.resolution is Resolution.COMMIT
        decide = transaction.commit if commits else transaction.rollback
        try:
            decision = decide(timeout)
        except BridgeError as caught:
            decision_error = caught
    return TransactionSendResult(
        receipt=receipt,
        resolution=result.resolution,
        remark=result.remark,
        error=result.error,
        decision=decision,
        decision_error=decision_error,
    )


# Lost connections, time-outs and trouble of the process itself: subclasses are refused too.
_IN_DOUBT = (ConnectionError, TimeoutError, MemoryError, EOFError, SSLError)
_IN_DOUBT_NAMES = frozenset(
    (
        *("OperationalError", "InterfaceError", "InternalError", "TimeoutError"),
        *("DisconnectionError", "AutoReconnect", "ConnectionFailure"),
        *("OutcomeUnknownError", "CommitUnknownError", "TransactionEndedError"),
        *("PostgresConnectionError", "TransactionResolutionUnknownError"),  # asyncpg's
        "BaseExceptionGroup",  # holds exceptions of any class
    )
)
# Classes above these and above those that prove a rollback: refused, and their subclasses not.
_BROAD = (Exception, OSError)
_BROAD_NAMES = frozenset(
    (
        *("DBAPIError", "DatabaseError", "Error", "MySQLError", "PyMongoError"),
        *("SQLAlchemyError", "StatementError", "BridgeError", "SqlError", "PostgresError"),
    )
)
# SQLSTATE class 40 is "transaction rollback", but for "statement completion unknown".
_ROLLED_BACK, _COMPLETION_UNKNOWN = "40", "40003"
_ALLOWED = (
    "a class of exceptions, or a tuple of such classes, each of which proves that the local"
    " transaction did not commit, such as IntegrityError"
)


def checked(
    classes: type[BaseException] | Iterable[type[BaseException]],
) -> tuple[type[BaseException], ...]:
    """Return `classes` as a tuple that isinstance takes.

    Raises ConfigError: no class of exceptions, or one that may come after the local transaction has
    committed; the caller names narrower classes.
    """
    given: object = classes
    if isinstance(given, type):
        given = (given,)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _refused(repr(given), _ALLOWED)
    found = tuple(given)
    for each in found:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise _refused(repr(each), _ALLOWED)
        if _may_have_committed(each):
            raise _refused(
                each.__qualname__,
                f"{_ALLOWED}; after {each.__qualname__} the local transaction may have committed",
            )
    return found


def _may_have_committed(each: type[BaseException]) -> bool:
    if each in _BROAD or each.__name__ in _BROAD_NAMES:
        return True
    if not issubclass(each, Exception) or issubclass(each, _IN_DOUBT):
        return True  # KeyboardInterrupt and its like come at any moment
    if _proves_by_sqlstate(each):
        return False
    return any(parent.__name__ in _IN_DOUBT_NAMES for parent in each.__mro__)


def _proves_by_sqlstate(each: type[BaseException]) -> bool:
    """Return whether the class of an error has a SQLSTATE of a rollback, as psycopg's have."""
    state = getattr(each, "sqlstate", None)
    return (
        isinstance(state, str) and state.startswith(_ROLLED_BACK) and state != _COMPLETION_UNKNOWN
    )


def _refused(value: str, allowed: str) -> ConfigError:
    return ConfigError(field="rollback_on", value=value, origin="argument", allowed=allowed)
