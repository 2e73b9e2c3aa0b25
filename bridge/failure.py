"""The error that a Kafka client or a broker reports, and the meaning of its code. Pure.

The adapter (`bridge/kafka`) converts each error of the client library to a KafkaFailure, and the
broker in memory raises the same. All other code uses the sets below, never the client library.
"""

from __future__ import annotations

from enum import IntEnum

from halfbridge.bridge.errors import (
    AbortableError,
    BridgeError,
    ConfigError,
    FatalError,
    InvalidMessageError,
    ProducerFencedError,
    RetriableError,
    TopicSetupError,
)


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
        name: The code's name.
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
# Records that were not sent, or not acknowledged, when the client was told to drop them.
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

# The acknowledgement proves nothing (`halfbridge.bridge.acknowledgements`).
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
