"""What becomes of a transaction's messages when it is decided. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checker.core.protocol import REASON_AGE, REASON_CHECK_TIMES
from serde.records import COUNT_UNKNOWN, DeadReason, Op, OpSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checker.core.events import HalfRead

Dead = "tuple[HalfRead, DeadReason, str]"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Messages to deliver, all or none of them, and messages to dead-letter with the reason."""

    deliver: tuple[HalfRead, ...]
    dead: tuple[tuple[HalfRead, DeadReason, str], ...] = ()


def judge_commit(
    messages: Sequence[HalfRead], op: Op, allows: Callable[[str, str], bool]
) -> Verdict:
    """Return what a COMMIT does to `messages` (by index, ascending, unique).

    Messages 0 .. n-1 are delivered, n being the op's message_count, or, where it is not known,
    all whose original stands at or below the op's half_offset. With a gap nothing is delivered.
    """
    if op.message_count == COUNT_UNKNOWN:
        meant = [half for half in messages if half.origin <= op.half_offset]
        late = [half for half in messages if half.origin > op.half_offset]
        count = len(meant)
        dead = [(half, DeadReason.LATE, "stored after the decision was asked for") for half in late]
    else:
        count = op.message_count
        meant = [half for half in messages if half.metadata.message_index < count]
        extra = messages[len(meant) :]
        detail = f"the commit covers {count} messages"
        dead = [(half, DeadReason.EXTRA, detail) for half in extra]
    refusal = _refusal(meant, count, allows)
    if refusal is None:
        return Verdict(tuple(meant), tuple(dead))
    reason, detail = refusal
    return Verdict((), (*((half, reason, detail) for half in meant), *dead))


def discard_reason(op: Op) -> DeadReason:
    """Return why a DISCARD dead-letters."""
    if op.source is OpSource.CHECKER and op.reason == REASON_CHECK_TIMES:
        return DeadReason.CHECK_TIMES
    if op.source is OpSource.CHECKER and op.reason == REASON_AGE:
        return DeadReason.AGE
    return DeadReason.OPERATOR


def _refusal(
    meant: Sequence[HalfRead], count: int, allows: Callable[[str, str], bool]
) -> tuple[DeadReason, str] | None:
    indices = [half.metadata.message_index for half in meant]
    if indices != list(range(count)):
        return DeadReason.INCOMPLETE, f"messages {indices[:10]} of {count} are there"
    for half in meant:
        metadata = half.metadata
        if half.flaw:
            return DeadReason.NOT_ALLOWED, half.flaw
        if not allows(metadata.producer_group, metadata.real_topic):
            return (
                DeadReason.NOT_ALLOWED,
                f"group {metadata.producer_group} may not write to {metadata.real_topic}",
            )
    return None
