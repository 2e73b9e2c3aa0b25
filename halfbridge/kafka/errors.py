"""Errors of the client and of everything that speaks to Kafka, split by who must act.

BridgeError
├─ RetriableError            the same call may be repeated, now or later
│  ├─ BackpressureError      too much in flight; slow down
│  └─ TransactionsRejectedError  an operator stopped new transactions; later
├─ AbortableError            this program aborts its kafka_txn and begins another one
├─ HalfNotStoredError        no ack for a half message: do not run the local transaction
├─ OutcomeUnknownError       in doubt: the check settles it; only the same decision may be repeated
├─ FatalError                close this producer, make a new one
│  ├─ ProducerFencedError    another instance holds the transactional id
│  ├─ ProducerClosedError    used before start or after close
│  ├─ ForkedProcessError     made before a fork; make one in the child
│  └─ OtherLoopError         used in another event loop; make a producer in each loop
├─ NoAnswerError             raised by a checker that cannot tell now: the daemon asks again
├─ TopicSetupError           an operator makes topics; the text names the command
├─ InvalidMessageError       (also ValueError) the caller changes the message
├─ ConfigError               (also ValueError) the user corrects the setting
├─ DrainError                (halfbridge.relays) the program ends its process; nothing is lost
└─ PositionLostError         (halfbridge.changes) an operator finds events, then --accept-lost

Outside on purpose: serde.SerdeError, and IllegalTransitionError (RuntimeError), a caller's bug.

A KafkaFailure is the error that a Kafka client or a broker reports, with its code. The adapter
converts each error of the client library to one, and the broker in memory raises the same. All
other code uses the sets of codes below, never the client library. No I/O.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from halfbridge.serde.settings import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence


class BridgeError(Exception):
    """An error of the client, of Kafka, or of arguments and settings; its class says who acts."""


class RetriableError(BridgeError):
    """Nothing happened and the same call may be repeated."""


class BackpressureError(RetriableError):
    """There was no room for another message in time; the brokers are slower than the caller.

    The caller slows down, and repeats the call.
    """


class TransactionsRejectedError(RetriableError):
    """An operator stopped new transactions of the installation; nothing was begun or sent.

    The caller repeats the call later, when the operator allows them again.
    Messages that were sent before may be decided, and are checked and delivered.

    Attributes:
        reason: The operator's.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class AbortableError(BridgeError):
    """The kafka_txn must be aborted; the daemon then reads its input again from the offsets."""


class HalfNotStoredError(BridgeError):
    """A half message was not acknowledged: the local transaction must not run.

    Only `rollback` is allowed on the transaction now. The half topic may hold the message
    nevertheless; then the message is rolled back, or checked.
    """

    def __init__(self, message: str, *, transaction_id: str = "") -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class OutcomeUnknownError(BridgeError):
    """A decision was sent and not acknowledged: the op log may or may not hold the decision.

    Nothing is lost: the check settles it. Only the same decision may be repeated.
    """

    def __init__(self, message: str, *, transaction_id: str = "") -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class NoAnswerError(BridgeError):
    """A checker cannot tell now how a local transaction ended, and says why.

    Raised by checkers. Nothing is decided and nothing is counted: the daemon asks again, up to its
    transaction_age_ms_max. By contrast, check_count_max answers UNKNOWN end a transaction.
    """


class FatalError(BridgeError):
    """This client instance cannot be used any more; close it and make a new one."""


class ProducerFencedError(FatalError):
    """Another instance took over the transactional id (or the broker timed the kafka_txn out).

    This instance writes nothing any more: its owner closes it. The other one continues.
    """


class ProducerClosedError(FatalError):
    """The producer is not started, or closed already; the caller starts it, or makes another."""


class ForkedProcessError(FatalError):
    """The producer was made in a parent process; librdkafka's threads do not survive a fork.

    The child process makes a producer of its own.
    """


class OtherLoopError(FatalError):
    """An asynchronous producer was used outside the event loop that started it.

    Each loop makes a producer of its own; `asyncio.run` makes a new loop each time.
    """


class TopicSetupError(BridgeError):
    """A topic is missing or has the wrong shape; an operator runs the command that the text names.

    Attributes:
        topics: The topics to create or to correct; empty if the broker named none.
    """

    def __init__(self, message: str, *, topics: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.topics = tuple(topics)


class InvalidMessageError(BridgeError, ValueError):
    """A message cannot be sent as it is; nothing was sent. The caller changes the message.

    Attributes:
        field: The part of the message that is wrong, such as `key` or `headers`.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class ConfigError(BridgeError, SettingError):
    """A setting is wrong; see the attributes `field`, `value`, `origin` and `allowed`.

    The user corrects the setting, at the place that `origin` names.
    """


class Code(IntEnum):
    """Codes that this project knows: those of Kafka's protocol, and below 0 those of librdkafka.

    Names are those of `KafkaError`, without the underscore in front of librdkafka's own codes.
    """

    INVALID_MSG = 2
    UNKNOWN_TOPIC_OR_PART = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_FOR_PARTITION = 6
    REQUEST_TIMED_OUT = 7
    MSG_SIZE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    INVALID_REPLICATION_FACTOR = 38
    POLICY_VIOLATION = 44
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    CONCURRENT_TRANSACTIONS = 51
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    GROUP_ID_NOT_FOUND = 69
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    DESTROY_BROKER = -137
    AUTO_OFFSET_RESET = -140
    FENCED = -144
    FATAL = -150
    PURGE_INFLIGHT = -151
    PURGE_QUEUE = -152
    NOENT = -156
    AUTHENTICATION = -169
    STATE = -172
    WAIT_COORD = -180
    SSL = -181
    QUEUE_FULL = -184
    TIMED_OUT = -185
    INVALID_ARG = -186
    ALL_BROKERS_DOWN = -187
    UNKNOWN_TOPIC = -188
    UNKNOWN_PARTITION = -190
    PARTITION_EOF = -191
    MSG_TIMED_OUT = -192
    TRANSPORT = -195
    BAD_COMPRESSION = -198
    BAD_MSG = -199

    @classmethod
    def name_of(cls, code: int) -> str:
        """Return the client library's name of a code."""
        if code not in cls._value2member_map_:
            return f"error {code}"
        return f"_{cls(code).name}" if code < 0 else cls(code).name


# Records cannot be read. Brokers have no code for some damage, such as a wrong format version, and
# say -1 (unknown server error).
DAMAGED = frozenset((Code.BAD_MSG, Code.BAD_COMPRESSION, Code.INVALID_MSG, -1))


class KafkaFailure(Exception):  # noqa: N818  (an error of others, which may be news rather than an error)
    """What a Kafka client or a broker reports.

    Attributes:
        code: Kafka's error code, usually one of `Code`; below 0 librdkafka's own.
        text: The message, without the code's name.
        is_fatal: The client cannot be used any more.
        is_retriable: The same request may be sent again.
        requires_abort: The kafka_txn at hand can only be aborted.
    """

    __slots__ = ("code", "is_fatal", "is_retriable", "name", "requires_abort", "text")

    def __init__(
        self,
        code: int,
        text: str = "",
        *,
        name: str = "",
        is_fatal: bool = False,
        is_retriable: bool = False,
        requires_abort: bool = False,
    ) -> None:
        self.code = code
        self.name = name or Code.name_of(code)
        self.text = text or self.name
        self.is_fatal = is_fatal
        self.is_retriable = is_retriable
        self.requires_abort = requires_abort
        super().__init__(self.text)

    def __str__(self) -> str:
        """Return name and text, as in `TIMED_OUT: Local: Timed out`."""
        return f"{self.name}: {self.text}"


# No broker answers, for whatever reason.
UNREACHABLE = frozenset((Code.TRANSPORT, Code.TIMED_OUT, Code.ALL_BROKERS_DOWN))
# Another process has the group.instance.id, or the member's last requests were lost (`Input`).
MEMBER_FENCED = frozenset((Code.FENCED_INSTANCE_ID, Code.FENCED))
# Another producer has the transactional id, or the broker timed the kafka_txn out.
PRODUCER_FENCED = frozenset((Code.FENCED, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED))
TOO_LARGE = frozenset((Code.MSG_SIZE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE))
NO_SUCH_TOPIC = frozenset((Code.UNKNOWN_TOPIC_OR_PART, Code.TOPIC_EXCEPTION))  # an impossible name
NO_RIGHT = frozenset((Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED))
# Records that were not sent, or not acknowledged, when the client was asked to drop them.
PURGED = frozenset((Code.PURGE_QUEUE, Code.PURGE_INFLIGHT))
# A broker refuses the request for good; no repetition helps. An unknown topic or partition is not
# among them: a client with old metadata reports one too, and `Routes` finds out.
PERMANENT = TOO_LARGE | {
    Code.INVALID_MSG,
    Code.INVALID_RECORD,
    Code.INVALID_TIMESTAMP,
    Code.POLICY_VIOLATION,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.TOPIC_EXCEPTION,
    Code.INVALID_ARG,
}
# A broker answers so while a group's coordinator is created or moved, or while a topic is new to
# the broker. The last code is the client's own, for a request to a broker that metadata no longer
# name: a broker that has just started, or that lost its session for a moment.
PASSING = frozenset(
    (
        Code.UNKNOWN_TOPIC_OR_PART,
        Code.NOT_COORDINATOR,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.DESTROY_BROKER,
    )
)
# A partition did not take a record, and may take it later: it has no leader, or too few replicas in
# sync, or its broker does not answer, has lost the disk or asks for less.
AWAY = frozenset(
    (
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_FOR_PARTITION,
        Code.REQUEST_TIMED_OUT,
        Code.NETWORK_EXCEPTION,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.TIMED_OUT,
        Code.MSG_TIMED_OUT,
    )
)
_RETRIABLE = UNREACHABLE | {
    Code.MSG_TIMED_OUT,
    Code.QUEUE_FULL,
    Code.WAIT_COORD,
    Code.REQUEST_TIMED_OUT,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_FOR_PARTITION,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_COORDINATOR,
    Code.NETWORK_EXCEPTION,
}
_TOPIC = NO_RIGHT | {
    Code.UNKNOWN_TOPIC,
    Code.UNKNOWN_PARTITION,
    Code.UNKNOWN_TOPIC_OR_PART,
    Code.GROUP_AUTHORIZATION_FAILED,
    Code.INVALID_REPLICATION_FACTOR,
    Code.POLICY_VIOLATION,
}
_CONFIG = frozenset(
    (Code.INVALID_ARG, Code.AUTHENTICATION, Code.SSL, Code.SASL_AUTHENTICATION_FAILED)
)
# The acknowledgement proves nothing (`halfbridge.kafka.sending`).
INFERRED = KafkaFailure(
    Code.MSG_TIMED_OUT,
    "acknowledged without an offset: the client infers that it is stored, no broker said so",
    is_retriable=True,
)


def bridge_error(failure: KafkaFailure | BridgeError) -> BridgeError:
    """Return the BridgeError that says who must act on a failure; returns a BridgeError as is."""
    if isinstance(failure, BridgeError):
        return failure
    code, text = failure.code, str(failure)
    if code in _CONFIG:
        return ConfigError(field="kafka", value=text, origin="Kafka client", allowed="see its text")
    if code in TOO_LARGE or code == Code.INVALID_RECORD:
        return InvalidMessageError(text, field="value")
    verdicts: tuple[tuple[bool, type[BridgeError]], ...] = (
        (code in PRODUCER_FENCED, ProducerFencedError),
        (failure.is_fatal, FatalError),
        (failure.requires_abort, AbortableError),
        (code in _TOPIC, TopicSetupError),
        (failure.is_retriable or code in _RETRIABLE, RetriableError),
    )
    # librdkafka's manual: an error that is neither retriable nor abortable is fatal.
    return next((kind for applies, kind in verdicts if applies), FatalError)(text)


def again(error: BridgeError) -> BridgeError:
    """Return an equal error that has not been raised, for an object that keeps it.

    An error that was raised has a traceback, whose frames keep the variables of all callers.
    """
    kind = type(error)
    made = kind.__new__(kind, *error.args)
    made.__dict__.update(error.__dict__)
    return made
