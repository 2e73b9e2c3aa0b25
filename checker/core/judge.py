"""What becomes of a transaction's messages when it is decided. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checker.core.protocol import REASON_AGE, REASON_CHECK_TIMES
from serde.records import COUNT_UNKNOWN, DeadReason, Op, OpSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checker.core.events import HalfRead

# Indices that one detail text names; a transaction may have a thousand.
_INDICES_SHOWN = 10


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
    all of them. With a gap nothing is delivered. Only messages whose original stands at or below
    the op's half_offset count: what was read beyond it by chance must not change the outcome.
    """
    half_offset = op.half_offset
    if len(messages) == 1 and op.message_count in (1, COUNT_UNKNOWN):
        (only,) = messages
        if only.metadata.message_index == 0 and only.origin <= half_offset:
            refusal = _not_allowed(only, allows)
            if not refusal:
                return Verdict((only,))
    meant = []
    dead = []
    count = op.message_count
    for half in messages:
        if half.origin > half_offset:
            dead.append((half, DeadReason.LATE, "stored after the decision was asked for"))
        elif 0 <= count <= half.metadata.message_index:
            dead.append((half, DeadReason.EXTRA, f"the commit covers {count} messages"))
        else:
            meant.append(half)
    refused = _refusal(meant, len(meant) if count < 0 else count, allows)
    if refused is None:
        return Verdict(tuple(meant), tuple(dead))
    reason, detail = refused
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
    # Ascending, unique and not negative: without a gap the last index tells.
    if len(meant) != count or (meant and meant[-1].metadata.message_index != count - 1):
        shown = [half.metadata.message_index for half in meant[:_INDICES_SHOWN]]
        return DeadReason.INCOMPLETE, f"of {count} messages {len(meant)} are there: {shown} ..."
    for half in meant:
        refusal = _not_allowed(half, allows)
        if refusal:
            return DeadReason.NOT_ALLOWED, refusal
    return None


def _not_allowed(half: HalfRead, allows: Callable[[str, str], bool]) -> str:
    if half.flaw:
        return half.flaw
    metadata = half.metadata
    if allows(metadata.producer_group, metadata.real_topic):
        return ""
    return f"group {metadata.producer_group} may not write to {metadata.real_topic}"
