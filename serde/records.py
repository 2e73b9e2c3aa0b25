"""What halfbridge says on the wire, as frozen records.

Field meanings, units and sentinels stand in `schemas/*.avsc`, once; a record here has the
same fields in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NO_OFFSET = -1
NO_TIMESTAMP = -1
PARTITION_BY_KEY = -1
DEFAULT_IMMUNITY = -1
COUNT_UNKNOWN = -1


class OpKind(str, Enum):
    """What an op says of its transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    DISCARD = "DISCARD"


class OpSource(str, Enum):
    """Who wrote an op."""

    PRODUCER = "PRODUCER"
    CHECK = "CHECK"
    CHECKER = "CHECKER"
    OPERATOR = "OPERATOR"


class DeadReason(str, Enum):
    """Why a record stands in the dead-letter topic."""

    CHECK_TIMES = "CHECK_TIMES"
    AGE = "AGE"
    OPERATOR = "OPERATOR"
    INCOMPLETE = "INCOMPLETE"
    EXTRA = "EXTRA"
    LATE = "LATE"
    NOT_ALLOWED = "NOT_ALLOWED"
    UNDELIVERABLE = "UNDELIVERABLE"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class HalfMetadata:
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


@dataclass(frozen=True, slots=True)
class Op:
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


@dataclass(frozen=True, slots=True)
class CheckRequest:
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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Header RMQ_DEAD of a dead letter."""

    reason: DeadReason
    detail: str
    check_times: int
    decided_timestamp: int
    op_offset: int
    source_topic: str
    source_partition: int
    source_offset: int
