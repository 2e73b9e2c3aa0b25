"""The ledger's output: what one kafka_txn must write, and the checks to send outside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.records import DeadDecision

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead, JunkRead
    from halfbridge.serde.records import DeadReason, HalfMetadata, Op


class Count(Enum):
    """What a plan counts; each member becomes a metric."""

    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    INVALID_OP = "invalid op"
    ORPHAN_OP = "orphan op"
    ANSWER_COUNTED = "answer counted"
    ANSWER_NOT_COUNTED = "answer not counted"
    ATTEMPT_FAILED = "attempt failed"
    CHECK_EXPIRED = "check expired"
    ROLLED_BACK = "rolled back"
    DEFERRED = "deferred"
    WAIT_CUT_SHORT = "wait cut short"


class PutBackRule(Enum):
    """Why an undecided transaction is put back."""

    ANSWER = "answer"
    WINDOW = "window"


class Delivery(NamedTuple):
    """Messages of one committed transaction, in the order sent. All are delivered, or none."""

    transaction_id: str
    producer_group: str
    messages: tuple[HalfRead, ...]
    check_times: int
    first_append_ms: int
    op_offset: int
    op_append_ms: int


@dataclass(frozen=True, slots=True)
class DeadHalf:
    """A half message for the dead-letter topic.

    Attributes:
        decision: The decision of the transaction; NONE where the decision is not known.
        by_reference: The dead letter refers to the half record, and contains no part of the body.
    """

    half: HalfRead
    reason: DeadReason
    detail: str
    check_times: int
    op_offset: int
    op_append_ms: int
    decision: DeadDecision = DeadDecision.NONE
    by_reference: bool = False


@dataclass(frozen=True, slots=True)
class DeadJunk:
    """An unreadable record for the dead-letter topic, reason INVALID."""

    record: JunkRead
    is_op: bool


Letter = DeadHalf | DeadJunk


@dataclass(frozen=True, slots=True)
class PutBack:
    """Append a copy of `half`, with `metadata`, at the end of the half partition."""

    half: HalfRead
    metadata: HalfMetadata
    rule: PutBackRule


@dataclass(frozen=True, slots=True)
class Check:
    """Ask the producer group about this transaction.

    Attributes:
        half: The transaction's first message.
        check_number: Counted answers so far, plus one.
        attempt: How many requests carried this check number, this request included.
        last_offset: Highest offset of a message of the transaction. The answer must cover it.
    """

    half: HalfRead
    check_number: int
    attempt: int
    last_offset: int


@dataclass(slots=True)
class Plan:
    """What one kafka_txn must write for one partition pair, in order.

    Attributes:
        deliveries, dead, junk, put_backs, discards: The records of the kafka_txn.
        records, size_bytes: How many records these are, and their size.
        counts: Events for the metrics.
        notes: Conflicts and refused ops, for the log.
        rolled_back: Real topic -> messages rolled back.
        metadata_bytes: Most bytes that the plan takes in memory, without bodies: an estimate.
        body_bytes: Bytes of the bodies in memory, without those of put-backs: the ledger still
            counts the bodies of put-backs.
    """

    deliveries: list[Delivery] = field(default_factory=list)
    dead: list[DeadHalf] = field(default_factory=list)
    junk: list[DeadJunk] = field(default_factory=list)
    put_backs: list[PutBack] = field(default_factory=list)
    discards: list[Op] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    counts: Counter[Count] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    rolled_back: Counter[str] = field(default_factory=Counter)
    metadata_bytes: int = 0
    body_bytes: int = 0
