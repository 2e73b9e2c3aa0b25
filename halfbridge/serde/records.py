"""What halfbridge says on the wire, as immutable records.

`schemas/*.avsc` define the meanings, units and sentinels of the fields, in the same order. Named
tuples, not frozen dataclasses: a row of eleven fields takes 0.2 us instead of 1.3 us, twice for
each transaction that a daemon delivers. Nothing may rely on their being equal to plain tuples.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 (Codec asks for the hints)
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from halfbridge.serde.limits import (
    METADATA_BYTES_MAX,
    OP_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
)
from halfbridge.serde.units import HOUR_MS

NO_OFFSET = -1  # offsets, times, partitions and counts are never negative (Kafka's own -1)
NO_TIMESTAMP = -1
PARTITION_BY_KEY = -1
DEFAULT_IMMUNITY = -1
COUNT_UNKNOWN = -1
_row = tuple.__new__


class Symbol(str, Enum):
    """A symbol of an Avro enum. Hashes as the text it is: Enum's own hash is a Python call."""

    __hash__ = str.__hash__


class OpKind(Symbol):
    """What an op says of its transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    DISCARD = "DISCARD"


class OpSource(Symbol):
    """Who wrote an op."""

    PRODUCER = "PRODUCER"
    CHECK = "CHECK"
    CHECKER = "CHECKER"
    OPERATOR = "OPERATOR"


class DeadReason(Symbol):
    """Why a record is in the dead-letter topic."""

    CHECK_TIMES = "CHECK_TIMES"
    AGE = "AGE"
    OPERATOR = "OPERATOR"
    INCOMPLETE = "INCOMPLETE"
    EXTRA = "EXTRA"
    LATE = "LATE"
    NOT_ALLOWED = "NOT_ALLOWED"
    UNDELIVERABLE = "UNDELIVERABLE"
    INVALID = "INVALID"
    TOO_LARGE = "TOO_LARGE"


class DeadDecision(Symbol):
    """What decided the transaction of a dead letter."""

    NONE = "NONE"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    DISCARD = "DISCARD"


class ActionOutcome(Symbol):
    """How far an operator's action came."""

    INTENDED = "INTENDED"
    DONE = "DONE"
    OVERRULED = "OVERRULED"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"


class HalfMetadata(NamedTuple):
    """Header RMQ_HALF of a half record."""

    transaction_id: str
    born_timestamp: int
    resume_count: int
    message_index: int
    producer_group: str
    real_topic: str
    real_partition: int
    check_times: int
    immunity_ms: int
    first_append_timestamp: int
    origin_offset: int


class Op(NamedTuple):
    """Value of an op record; its key is the transaction id in UTF-8."""

    transaction_id: str
    timestamp: int
    half_offset: int
    resume_count: int
    producer_group: str
    kind: OpKind
    message_count: int
    check_number: int
    source: OpSource
    actor: str
    reason: str
    age_ms: int = 0


def new_half(
    *,
    transaction_id: str,
    born_timestamp: int,
    producer_group: str,
    real_topic: str,
    message_index: int = 0,
    real_partition: int = PARTITION_BY_KEY,
    immunity_ms: int = DEFAULT_IMMUNITY,
    resume_count: int = 0,
    check_times: int = 0,
    first_append_timestamp: int = NO_TIMESTAMP,
    origin_offset: int = NO_OFFSET,
) -> HalfMetadata:
    """Return the metadata of a half record; the defaults are those of an original.

    The class takes 0.65 us for eleven names; this function takes 0.24 us, for each message sent.
    """
    return _row(
        HalfMetadata,
        (
            transaction_id,
            born_timestamp,
            resume_count,
            message_index,
            producer_group,
            real_topic,
            real_partition,
            check_times,
            immunity_ms,
            first_append_timestamp,
            origin_offset,
        ),
    )


def new_op(
    *,
    transaction_id: str,
    timestamp: int,
    half_offset: int,
    producer_group: str,
    kind: OpKind,
    message_count: int,
    source: OpSource,
    actor: str,
    resume_count: int = 0,
    check_number: int = 0,
    reason: str = "",
    age_ms: int = 0,
) -> Op:
    """Return the content of an op record; a function for the reason that `new_half` gives."""
    return _row(
        Op,
        (
            transaction_id,
            timestamp,
            half_offset,
            resume_count,
            producer_group,
            kind,
            message_count,
            check_number,
            source,
            actor,
            reason,
            age_ms,
        ),
    )


class CheckRequest(NamedTuple):
    """Header RMQ_CHECK of a check request."""

    transaction_id: str
    sent_timestamp: int
    half_offset: int
    half_partition: int
    resume_count: int
    message_index: int
    producer_group: str
    real_topic: str
    real_partition: int
    check_number: int
    attempt: int
    born_timestamp: int
    last_half_offset: int = NO_OFFSET


class DeadLetter(NamedTuple):
    """Header RMQ_DEAD of a dead letter."""

    reason: DeadReason
    detail: str
    check_times: int
    decided_timestamp: int
    op_offset: int
    source_topic: str
    source_partition: int
    source_offset: int
    decision: DeadDecision = DeadDecision.NONE
    is_stub: bool = False


class SinkContext(NamedTuple):
    """Header RMQ_CONTEXT of the first half record of a Spark sink's transaction."""

    app_id: str
    batch_id: int
    attempt_id: str


class FenceContext(NamedTuple):
    """Header RMQ_CONTEXT of the first half record of a fenced transaction."""

    table_id: str


class OperatorAction(NamedTuple):
    """Value of a record of the audit topic; its key is the action id in UTF-8."""

    action_id: str
    at_ms: int
    who: str
    action: str
    subject: str
    why: str
    before: str
    after: str
    outcome: ActionOutcome


class DaemonSettings(NamedTuple):
    """Value of the record `daemon`; a reader without one assumes `DaemonSettings()`."""

    worker: str = ""
    timestamp: int = NO_TIMESTAMP
    # RocketMQ's defaults, as those of `CheckerConfig`.
    transaction_timeout_ms: int = 6_000
    check_interval_ms: int = 30_000
    check_count_max: int = 15
    transaction_age_ms_max: int = 72 * HOUR_MS
    metadata_bytes_max: int = METADATA_BYTES_MAX
    op_bytes_max: int = OP_BYTES_MAX
    transaction_messages_max: int = TRANSACTION_MESSAGES_MAX
    transaction_bytes_max: int = TRANSACTION_BYTES_MAX
    further: Mapping[str, int] = MappingProxyType({})

    def limits(self) -> dict[str, int]:
        """Return name -> limit, without who wrote them and when."""
        known = self._asdict()
        for name in ("worker", "timestamp", "further"):
            del known[name]
        return {**self.further, **known}
