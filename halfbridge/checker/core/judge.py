"""Which messages of a decided transaction are delivered, and which become dead letters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.core.too_large import is_too_large
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.protocol import (
    REASON_AGE,
    REASON_CHECK_TIMES,
    REASON_TOO_LARGE,
    covers_what_is_there,
)
from halfbridge.serde.records import COUNT_UNKNOWN, DeadReason, Op, OpSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.checker.core.events import HalfRead

_ONE_OR_UNKNOWN = (1, COUNT_UNKNOWN)
# Message indices that one detail text lists; a transaction may have a thousand.
_INDICES_SHOWN = 10
_DAEMONS_REASONS = {
    REASON_CHECK_TIMES: DeadReason.CHECK_TIMES,
    REASON_AGE: DeadReason.AGE,
    REASON_TOO_LARGE: DeadReason.TOO_LARGE,
}


class CommitEffect(NamedTuple):
    """Messages to deliver, and messages to dead-letter, each with its reason and detail."""

    deliver: tuple[HalfRead, ...]
    dead: tuple[tuple[HalfRead, DeadReason, str], ...] = ()


def judge_commit(
    messages: Sequence[HalfRead], op: Op, allows: Callable[[str, str], bool]
) -> CommitEffect:
    """Return what a COMMIT does to `messages`.

    Messages 0 to n-1 are delivered, or none. n is the op's message_count; where message_count is
    not known, n is the number of messages that count. A message counts if its original is at or
    below the op's half_offset: whether later records were read already must not change the result.
    With a gap in the indices, or above a limit of a transaction, no message is delivered. A gap is
    none in what an operator redelivers (`serde.protocol.covers_what_is_there`).

    Example: a COMMIT with message_count 3 finds the indices 0, 1 and 3. Index 3 is EXTRA; 0 and 1
    are INCOMPLETE, because index 2 is missing.

    Args:
        messages: The transaction's messages in ascending order of their unique indices.
        op: The COMMIT.
        allows: Tells whether a producer group may write to a real topic.
    """
    half_offset, count = op.half_offset, op.message_count
    if len(messages) == 1 and count in _ONE_OR_UNKNOWN:
        # A faster path for one message, because most transactions have one. The result is the same.
        only = messages[0]
        metadata = only.metadata
        if (
            metadata.message_index == 0
            and only.origin <= half_offset
            and not only.flaw
            and only.user_bytes <= TRANSACTION_BYTES_MAX
            and allows(metadata.producer_group, metadata.real_topic)
        ):
            return CommitEffect((only,))
    meant = []
    dead = []
    for half in messages:
        if half.origin > half_offset:
            dead.append((half, DeadReason.LATE, "stored above the half offset of the decision"))
        elif 0 <= count <= half.metadata.message_index:
            dead.append((half, DeadReason.EXTRA, f"the commit covers {count} messages"))
        else:
            meant.append(half)
    wanted = None if covers_what_is_there(op) else len(meant) if count < 0 else count
    refused = _refusal(meant, wanted, allows)
    if refused is None:
        return CommitEffect(tuple(meant), tuple(dead))
    reason, detail = refused
    return CommitEffect((), (*((half, reason, detail) for half in meant), *dead))


def discard_reason(op: Op) -> DeadReason:
    """Return the dead-letter reason of a DISCARD."""
    if op.source is not OpSource.CHECKER:
        return DeadReason.OPERATOR
    return _DAEMONS_REASONS.get(op.reason, DeadReason.OPERATOR)


def _refusal(
    meant: Sequence[HalfRead], count: int | None, allows: Callable[[str, str], bool]
) -> tuple[DeadReason, str] | None:
    if is_too_large(meant):
        return DeadReason.TOO_LARGE, (
            f"{len(meant)} messages of {sum(half.user_bytes for half in meant)} bytes, the last"
            f" with index {meant[-1].metadata.message_index}; a transaction has at most"
            f" {TRANSACTION_MESSAGES_MAX} messages and {TRANSACTION_BYTES_MAX} bytes"
        )
    # Indices are ascending, unique and not negative: without a gap the last index is count - 1.
    if count is not None and (
        len(meant) != count or (meant and meant[-1].metadata.message_index != count - 1)
    ):
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
