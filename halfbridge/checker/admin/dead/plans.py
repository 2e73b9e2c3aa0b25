"""Computes the records that resume or redeliver a transaction, or why none may be written. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.dead.letters import RESUME_COUNT_MAX, Authenticity, Remedy
from halfbridge.checker.admin.words import listed
from halfbridge.serde.avro import HALF_METADATA, MarkAction
from halfbridge.serde.headers import HALF, SIGN, user_bytes, without_half
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import (
    COUNT_UNKNOWN,
    NO_OFFSET,
    NO_TIMESTAMP,
    DeadReason,
    HalfMetadata,
)
from halfbridge.serde.topics import holds_internal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.checker.admin.dead.letters import (
        Body,
        Choice,
        DeadTransaction,
        ExaminedLetter,
        Key,
        Letter,
        LetterPosition,
    )
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.records import Op

_DONE = {Remedy.RESUME: MarkAction.RESUMED, Remedy.REDELIVER: MarkAction.REDELIVERED}


class NewHalf(NamedTuple):
    """A half record to write, without what its headers lack: RMQ_HALF."""

    metadata: HalfMetadata
    body: Body

    @property
    def headers(self) -> Headers:
        """Return the headers with the new RMQ_HALF."""
        return [*without_old_half(self.body.headers), (HALF, HALF_METADATA.encode(self.metadata))]


class NewLife(NamedTuple):
    """The records that one kafka_txn writes for a transaction."""

    key: Key  # the life that the dead letters are of
    action: MarkAction
    halves: tuple[NewHalf, ...]  # in the order of their message indices
    # The OPERATOR's COMMIT's: COUNT_UNKNOWN where an index is missing. A resume writes no op.
    message_count: int
    marked: tuple[LetterPosition, ...]  # the letters to mark, duplicates included
    resume_count: int

    @property
    def records(self) -> int:
        """Return how many records are written."""
        return len(self.halves) + len(self.marked) + 1

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes are written."""
        return sum(body_bytes(each.body) for each in self.halves)


class Refusal(NamedTuple):
    """Why nothing is written for a transaction, and the operator's next step."""

    key: Key
    why: str


def chosen_letters(transaction: DeadTransaction, choice: Choice) -> tuple[Letter, ...] | Refusal:
    """Return the open letters that the choice is about."""
    letters = transaction.open_letters
    if choice.messages:
        letters = tuple(each for each in letters if each.message_index in choice.messages)
    if not letters:
        return Refusal(transaction.key, f"no open dead letter: {transaction.state}")
    if transaction.remedy is choice.remedy:
        return letters
    reasons = ", ".join(each.value for each in transaction.reasons)
    source = letters[0].dead.source_topic
    if not transaction.key.transaction_id and not holds_internal_name(source):
        return Refusal(
            transaction.key,
            f"{reasons}: a change event of {source}, which belongs to no message transaction:"
            " correct the mapping or the topic, send the message again, then use `dead purge`",
        )
    hints = {
        Remedy.RESUME: "its dead letters are of a DISCARD: use `dead resume`",
        Remedy.REDELIVER: "its transaction was committed: use `dead redeliver`",
        Remedy.EXPORT: "the daemon would refuse it again: use `dead export`, then `dead purge`",
    }
    return Refusal(transaction.key, f"{reasons}: {hints[transaction.remedy]}")


def plan_life(
    transaction: DeadTransaction,
    examined: Sequence[ExaminedLetter],
    choice: Choice,
    resume_count: int,
) -> NewLife | Refusal:
    """Return what to write for the `examined` letters of a transaction, at least one."""
    key = transaction.key
    messages = _messages(key, examined, choice)
    if why := objection(transaction, messages, examined, choice, resume_count):
        return Refusal(key, why)
    halves = tuple(
        NewHalf(_renewed(metadata, resume_count), body)
        for metadata, body, _ in messages.values()
        if body is not None
    )
    is_whole = list(messages) == list(range(len(messages)))
    return NewLife(
        key=key,
        action=_DONE[choice.remedy],
        halves=halves,
        message_count=len(halves) if is_whole else COUNT_UNKNOWN,
        marked=tuple(each.letter.place for each in examined),
        resume_count=resume_count,
    )


def without_old_half(headers: Headers) -> Headers:
    """Return the headers without the RMQ_HALF that was read, and without signatures."""
    if any(name == HALF for name, _ in headers):
        return without_half(headers)
    return [header for header in headers if header[0] != SIGN]


def _messages(key: Key, examined: Sequence[ExaminedLetter], choice: Choice) -> dict[int, Message]:
    """Return index -> message, ascending: the first letter of an index, or the operator's own."""
    found: dict[int, Message] = {}
    # A LATE letter may be of a duplicate: another letter of the same index comes first.
    for each in sorted(examined, key=lambda one: one.letter.reason is DeadReason.LATE):
        letter = each.letter
        if letter.half is not None:
            found.setdefault(letter.message_index, Message(letter.half, each.body, letter.flaw))
    pattern = next(iter(found.values())).metadata
    for (transaction_id, index), given in choice.given.items():
        # A file of `dead export` has all messages, also those that were not chosen.
        is_chosen = not choice.messages or index in choice.messages
        if is_chosen and transaction_id == key.transaction_id:
            metadata = pattern._replace(
                message_index=index,
                real_topic=given.real_topic,
                real_partition=given.real_partition,
            )
            found[index] = Message(metadata, given.body, "")
    return dict(sorted(found.items()))


def _renewed(metadata: HalfMetadata, resume_count: int) -> HalfMetadata:
    return metadata._replace(
        resume_count=resume_count,
        check_times=0,
        first_append_timestamp=NO_TIMESTAMP,
        origin_offset=NO_OFFSET,
    )


# With these reasons no message was delivered: a COMMIT delivers all or none.
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
    examined: Sequence[ExaminedLetter],
    choice: Choice,
    resume_count: int,
) -> str:
    """Return why nothing may be written, and the operator's next step; empty if all is well.

    `messages` are the messages that would be stored, by ascending index.
    """
    return (
        _not_believed(examined, choice)
        or ("its resume_count is used up" if resume_count > RESUME_COUNT_MAX else "")
        or _not_whole(transaction, messages, examined, choice)
        or _not_fit(messages)
    )


def body_bytes(body: Body) -> int:
    """Return the bytes of a body that count towards a transaction's limit."""
    return user_bytes(body.key, body.value, body.headers, has_flaw=False)


def _not_believed(examined: Sequence[ExaminedLetter], choice: Choice) -> str:
    for each in examined:
        place = each.letter.place
        named = f"dead letter {place.partition}:{place.offset}"
        if each.standing is Authenticity.FORGED:
            return f"{named}: {each.standing.value}; find out who wrote it, then `dead purge`"
        if each.standing is Authenticity.DELETED and not choice.accept_unverified:
            return f"{named}: {each.standing.value}; --accept-unverified believes the letter"
    return ""


def _not_whole(
    transaction: DeadTransaction,
    messages: Mapping[int, Message],
    examined: Sequence[ExaminedLetter],
    choice: Choice,
) -> str:
    gone = [index for index, each in messages.items() if each.body is None]
    if gone:
        return (
            f"the bodies of messages {listed(gone, _SHOWN_MAX)} were deleted with the half topic's"
            " retention; give them by --with FILE"
        )
    if choice.remedy is Remedy.RESUME:
        return ""
    op = next((each.op for each in examined if each.op is not None), None)
    return _gap(messages, examined, choice, op) or _delivered_before(
        transaction, examined, choice, op
    )


def _gap(
    messages: Mapping[int, Message],
    examined: Sequence[ExaminedLetter],
    choice: Choice,
    op: Op | None,
) -> str:
    """Return which messages an INCOMPLETE transaction lacks; empty if the operator accepts that."""
    letters = [each.letter for each in examined]
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
    return (
        f"messages {listed(missing, _SHOWN_MAX)} are missing: give them by --with FILE;{_PARTIAL}"
    )


def _delivered_before(
    transaction: DeadTransaction, examined: Sequence[ExaminedLetter], choice: Choice, op: Op | None
) -> str:
    if choice.accept_duplicates:
        return ""
    was_refused = not _NOTHING_DELIVERED.isdisjoint(transaction.reasons)
    redelivered = {
        each.message_index for each in transaction.letters if each.place in transaction.marks
    }
    for each in examined:
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
