"""One record of the dead-letter topic, as an operator's command reads it. Pure.

Whoever may write to the topic may write anything there: what is read here is a claim, until
`evidence` has compared it with the half record and the op that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.dead_marks import DEAD_MARK, DeadMark
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, parse_half, user_bytes
from halfbridge.serde.headers import DEAD_MARK as MARK_HEADER
from halfbridge.serde.records import DeadDecision, DeadLetter, DeadReason, HalfMetadata

if TYPE_CHECKING:
    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.serde.headers import Headers

# What decided the transaction of a letter that does not say so (schema version 1).
_DECIDED_BY = {
    DeadReason.CHECK_TIMES: DeadDecision.DISCARD,
    DeadReason.AGE: DeadDecision.DISCARD,
    DeadReason.OPERATOR: DeadDecision.DISCARD,
    DeadReason.INCOMPLETE: DeadDecision.COMMIT,
    DeadReason.EXTRA: DeadDecision.COMMIT,
    DeadReason.NOT_ALLOWED: DeadDecision.COMMIT,
    DeadReason.UNDELIVERABLE: DeadDecision.COMMIT,
}


class LetterPlace(NamedTuple):
    """Where a dead letter stands in the dead-letter topic."""

    partition: int
    offset: int


class Body(NamedTuple):
    """Key, value and headers of a half record, RMQ_HALF included."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Letter(NamedTuple):
    """A dead letter without its body.

    Attributes:
        place: Where the letter stands.
        stored_ms: Its record's timestamp.
        dead: The content of RMQ_DEAD.
        half: The content of RMQ_HALF; None where that cannot be read.
        flaw: Why the message must never be delivered as it is; empty without a flaw.
        size_bytes: Key, value and the user's headers; 0 of a stub.
    """

    place: LetterPlace
    stored_ms: int
    dead: DeadLetter
    half: HalfMetadata | None
    flaw: str
    size_bytes: int

    @property
    def reason(self) -> DeadReason:
        """Why the record is a dead letter."""
        return self.dead.reason

    @property
    def decision(self) -> DeadDecision:
        """What decided the transaction, as the letter says or implies."""
        said = self.dead.decision
        return _DECIDED_BY.get(self.reason, said) if said is DeadDecision.NONE else said

    @property
    def message_index(self) -> int:
        """The message index; 0 where RMQ_HALF cannot be read."""
        return 0 if self.half is None else self.half.message_index


class Mark(NamedTuple):
    """A mark, and where it stands."""

    place: LetterPlace
    said: DeadMark

    @property
    def about(self) -> LetterPlace:
        """The place of the dead letter that is marked."""
        return LetterPlace(self.place.partition, self.said.letter_offset)


def parse_record(record: LogRecord) -> Letter | Mark | None:
    """Return what a record of the dead-letter topic is; None: neither a letter nor a mark."""
    if not record.headers:
        return None
    place = LetterPlace(record.partition, record.offset)
    name, value = record.headers[-1]
    try:
        if name == MARK_HEADER:
            mark = Mark(place, DEAD_MARK.decode(value or b""))
            return mark if mark.said.letter_offset < record.offset else None
        if name != DEAD:
            return None
        dead = DEAD_LETTER.decode(value or b"")
    except DecodeError:
        return None
    half, flaw, size_bytes = _half_of(record)
    return Letter(place, record.timestamp[1], dead, half, flaw, size_bytes)


def body_of(record: LogRecord) -> Body:
    """Return the half record that a whole dead letter holds."""
    return Body(record.key, record.value, record.headers[:-1])


def _half_of(record: LogRecord) -> tuple[HalfMetadata | None, str, int]:
    headers = record.headers[:-1]
    try:
        half, flaw = parse_half(headers)
    except DecodeError:
        return None, "", len(record.key or b"") + len(record.value or b"")
    size_bytes = user_bytes(record.key, record.value, headers, has_flaw=bool(flaw))
    return half, flaw, size_bytes
