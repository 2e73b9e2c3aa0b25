"""What a resume or a redelivery writes for one transaction, or why it must not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.dead.objections import Message, body_bytes, objection
from halfbridge.checker.admin.dead.transactions import Remedy
from halfbridge.serde.avro import HALF_METADATA
from halfbridge.serde.dead_marks import MarkAction
from halfbridge.serde.headers import HALF, SIGN, without_half
from halfbridge.serde.records import (
    COUNT_UNKNOWN,
    NO_OFFSET,
    NO_TIMESTAMP,
    DeadReason,
    HalfMetadata,
)
from halfbridge.serde.topics import holds_internal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.dead.choice import Choice
    from halfbridge.checker.admin.dead.evidence import Looked
    from halfbridge.checker.admin.dead.letters import Body, Letter, LetterPlace
    from halfbridge.checker.admin.dead.transactions import DeadTransaction, Key
    from halfbridge.serde.headers import Headers

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
    """What one kafka_txn writes for a transaction.

    Attributes:
        key: The life that the dead letters are of.
        action: What the marks say.
        halves: In the order of their message indices.
        message_count: Of the OPERATOR's COMMIT: COUNT_UNKNOWN where an index is missing. Of no
            meaning for a resume, which writes no op.
        marked: The letters to mark, duplicates included.
        resume_count: Of the new life.
    """

    key: Key
    action: MarkAction
    halves: tuple[NewHalf, ...]
    message_count: int
    marked: tuple[LetterPlace, ...]
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
    """Why nothing is written for a transaction, and what the operator can do."""

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
            " correct the mapping or the topic, write the message anew, then use `dead purge`",
        )
    hints = {
        Remedy.RESUME: "its dead letters are of a DISCARD: use `dead resume`",
        Remedy.REDELIVER: "its transaction was committed: use `dead redeliver`",
        Remedy.EXPORT: "the daemon would refuse it again: use `dead export`, then `dead purge`",
    }
    return Refusal(transaction.key, f"{reasons}: {hints[transaction.remedy]}")


def plan_life(
    transaction: DeadTransaction, looked: Sequence[Looked], choice: Choice, resume_count: int
) -> NewLife | Refusal:
    """Return what to write for a transaction.

    Args:
        transaction: The transaction.
        looked: Its chosen letters, at least one, with what they name.
        choice: What the operator chose.
        resume_count: Of the new life.
    """
    key = transaction.key
    messages = _messages(key, looked, choice)
    if why := objection(transaction, messages, looked, choice, resume_count):
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
        marked=tuple(each.letter.place for each in looked),
        resume_count=resume_count,
    )


def without_old_half(headers: Headers) -> Headers:
    """Return the headers without the RMQ_HALF that was read, and without signatures."""
    if any(name == HALF for name, _ in headers):
        return without_half(headers)
    return [header for header in headers if header[0] != SIGN]


def _messages(key: Key, looked: Sequence[Looked], choice: Choice) -> dict[int, Message]:
    """Return index -> message, ascending: the first letter of an index, or the operator's own."""
    found: dict[int, Message] = {}
    # A LATE letter may be of a duplicate: another letter of the same index comes first.
    for each in sorted(looked, key=lambda one: one.letter.reason is DeadReason.LATE):
        letter = each.letter
        if letter.half is not None:
            found.setdefault(letter.message_index, Message(letter.half, each.body, letter.flaw))
    pattern = next(iter(found.values())).metadata
    for (transaction_id, index), given in choice.given.items():
        if transaction_id == key.transaction_id:
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
