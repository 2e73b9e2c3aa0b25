"""Why the messages of a transaction must not be stored again, and what an operator can do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.dead.evidence import Standing
from halfbridge.checker.admin.dead.transactions import RESUME_COUNT_MAX, Remedy
from halfbridge.serde.headers import user_bytes
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import COUNT_UNKNOWN, DeadReason, HalfMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.checker.admin.dead.choice import Choice
    from halfbridge.checker.admin.dead.evidence import Looked
    from halfbridge.checker.admin.dead.letters import Body
    from halfbridge.checker.admin.dead.transactions import DeadTransaction
    from halfbridge.serde.records import Op

# Of these letters nothing of the transaction was delivered: a COMMIT delivers all or none.
_NOTHING_DELIVERED = frozenset(
    (DeadReason.UNDELIVERABLE, DeadReason.NOT_ALLOWED, DeadReason.INCOMPLETE)
)
_SHOWN_MAX = 10  # of up to 1,000 indices: the text stays one line
_PARTIAL = " --accept-partial delivers what is there"
_TWICE = " purge it, or --accept-duplicates"


class Message(NamedTuple):
    """A message of the new life; the flaw is why it must never be delivered."""

    metadata: HalfMetadata
    body: Body | None
    flaw: str


def objection(
    transaction: DeadTransaction,
    messages: Mapping[int, Message],
    looked: Sequence[Looked],
    choice: Choice,
    resume_count: int,
) -> str:
    """Return why nothing may be written, and what the operator can do; empty if all is well.

    Args:
        transaction: The transaction.
        messages: Message index -> what would be stored, ascending.
        looked: The chosen letters, with what they name.
        choice: What the operator chose.
        resume_count: Of the new life.
    """
    return (
        _not_believed(looked, choice)
        or ("its resume_count is used up" if resume_count > RESUME_COUNT_MAX else "")
        or _not_whole(transaction, messages, looked, choice)
        or _not_fit(messages)
    )


def body_bytes(body: Body) -> int:
    """Return the bytes of a body that count towards a transaction's limit."""
    return user_bytes(body.key, body.value, body.headers, has_flaw=False)


def _not_believed(looked: Sequence[Looked], choice: Choice) -> str:
    for each in looked:
        place = each.letter.place
        named = f"dead letter {place.partition}:{place.offset}"
        if each.standing is Standing.FORGED:
            return f"{named}: {each.standing.value}; find out who wrote it, then `dead purge`"
        if each.standing is Standing.DELETED and not choice.accept_unverified:
            return f"{named}: {each.standing.value}; --accept-unverified believes the letter"
    return ""


def _not_whole(
    transaction: DeadTransaction,
    messages: Mapping[int, Message],
    looked: Sequence[Looked],
    choice: Choice,
) -> str:
    gone = [index for index, each in messages.items() if each.body is None]
    if gone:
        return (
            f"the bodies of messages {_shown(gone)} were deleted with the half topic's retention;"
            " give them by --with FILE"
        )
    if choice.remedy is Remedy.RESUME:
        return ""
    op = next((each.op for each in looked if each.op is not None), None)
    return _gap(messages, looked, choice, op) or _delivered_before(transaction, looked, choice, op)


def _gap(
    messages: Mapping[int, Message], looked: Sequence[Looked], choice: Choice, op: Op | None
) -> str:
    """Return which messages an INCOMPLETE transaction lacks; empty if the operator accepts that."""
    letters = [each.letter for each in looked]
    indices = [one.message_index for one in letters if one.reason is DeadReason.INCOMPLETE]
    if not indices or choice.accept_partial or choice.messages:
        return ""
    if op is None:
        return f"INCOMPLETE, and the op that has the number of messages was deleted;{_PARTIAL}"
    count = op.message_count if op.message_count >= 0 else max(indices) + 1
    # A forged count may be huge.
    missing = [n for n in range(min(count, TRANSACTION_MESSAGES_MAX)) if n not in messages]
    if not missing:
        return ""
    return f"messages {_shown(missing)} are missing: give them by --with FILE;{_PARTIAL}"


def _delivered_before(
    transaction: DeadTransaction, looked: Sequence[Looked], choice: Choice, op: Op | None
) -> str:
    """Tell of late messages that were, or may have been, delivered with their transaction."""
    if choice.accept_duplicates:
        return ""
    was_refused = not _NOTHING_DELIVERED.isdisjoint(transaction.reasons)
    redelivered = {
        each.message_index for each in transaction.letters if each.place in transaction.marks
    }
    for each in looked:
        index = each.letter.message_index
        if each.letter.reason is not DeadReason.LATE:
            continue
        if was_refused:
            is_delivered = index in redelivered
        elif op is None or op.message_count == COUNT_UNKNOWN:
            return f"message {index} is LATE, and may have been delivered;{_TWICE}"
        else:
            is_delivered = index < op.message_count
        if is_delivered:
            return f"message {index} is LATE, and was delivered with its transaction;{_TWICE}"
    return ""


def _not_fit(messages: Mapping[int, Message]) -> str:
    flawed = next((each.flaw for each in messages.values() if each.flaw), "")
    if flawed:
        return f"{flawed}: repair it (`dead export`), and give it by --with FILE"
    size_bytes = sum(body_bytes(each.body) for each in messages.values() if each.body is not None)
    if len(messages) > TRANSACTION_MESSAGES_MAX or size_bytes > TRANSACTION_BYTES_MAX:
        return (
            f"{len(messages)} messages of {size_bytes} bytes; a transaction has at most"
            f" {TRANSACTION_MESSAGES_MAX} messages and {TRANSACTION_BYTES_MAX} bytes"
        )
    return ""


def _shown(indices: Iterable[int]) -> str:
    every = list(indices)
    more = f" and {len(every) - _SHOWN_MAX} more" if len(every) > _SHOWN_MAX else ""
    return ", ".join(map(str, every[:_SHOWN_MAX])) + more
