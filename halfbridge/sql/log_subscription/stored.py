"""The row of a subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halfbridge.sql.log_subscription.changes import Position


@dataclass(frozen=True, slots=True)
class Decision:
    """The message transaction that moved the row last, with what its COMMIT needs."""

    transaction_id: str
    half_partition: int
    half_offset: int
    message_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A subscription's row.

    Attributes:
        position: All inserts before this position became messages.
        staged_after: Number of the last staged row of a snapshot that was sent; None: no rows are
            staged. Staged rows are sent before the log is read.
        decision: The message transaction that moved the row last; None: none.
        is_acknowledged: Whether the COMMIT of `decision` is known to be in the op log.
        version: Increases by one with each move.
        producer_group: The producer group of the relays and of `decision`.
    """

    position: Position
    staged_after: int | None
    decision: Decision | None
    is_acknowledged: bool
    version: int
    producer_group: str


def stored_of(row: Any) -> Stored:
    """Return a row of the table of positions."""
    decision = None
    if row.transaction_id is not None:
        decision = Decision(
            row.transaction_id, row.half_partition, row.half_offset, row.message_count
        )
    return Stored(
        position=Position(row.commit_position, row.inserts),
        staged_after=row.staged_after,
        decision=decision,
        is_acknowledged=bool(row.decision_acknowledged),
        version=row.version,
        producer_group=row.producer_group,
    )
