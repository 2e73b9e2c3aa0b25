"""Dead letters by transaction, with their marks, and whether each letter is genuine. Pure.

The daemon writes dead letters, but everybody with WRITE on the topic can write forged ones. A
letter is therefore a claim until it has been compared with the half record and the op that it
names: a redelivered forgery could deliver a message that was rolled back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.avro import DEAD_LETTER, DEAD_MARK, DeadMark
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, parse_half, user_bytes
from halfbridge.serde.headers import DEAD_MARK as MARK_HEADER
from halfbridge.serde.records import NO_OFFSET, DeadDecision, DeadLetter, DeadReason, HalfMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.records import Op
    from halfbridge.serde.signatures import Verifier

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


class LetterPosition(NamedTuple):
    """A position in the dead-letter topic."""

    partition: int
    offset: int


class Body(NamedTuple):
    """Key, value and headers of a half record, RMQ_HALF included."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Letter(NamedTuple):
    """A dead letter without its body."""

    place: LetterPosition
    stored_ms: int  # its record's timestamp
    dead: DeadLetter  # the content of RMQ_DEAD
    half: HalfMetadata | None  # the content of RMQ_HALF; None where that cannot be read
    flaw: str  # why the message must never be delivered as it is; empty without a flaw
    size_bytes: int  # key, value and the user's headers; 0 of a stub

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
        """0 where RMQ_HALF cannot be read."""
        return 0 if self.half is None else self.half.message_index


class Mark(NamedTuple):
    """A mark and its position."""

    place: LetterPosition
    said: DeadMark

    @property
    def about(self) -> LetterPosition:
        """The place of the dead letter that is marked."""
        return LetterPosition(self.place.partition, self.said.letter_offset)


def parse_record(record: LogRecord) -> Letter | Mark | None:
    """Return a record of the dead-letter topic as a letter or a mark; None: it is neither."""
    if not record.headers:
        return None
    place = LetterPosition(record.partition, record.offset)
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


class Source(NamedTuple):
    """The record at a position that a letter names."""

    record: LogRecord | None = None  # None where there is no record
    is_deleted: bool = False  # the place is below the log start, by retention


class Authenticity(Enum):
    """Whether a letter is genuine."""

    PROVEN = "proven"
    DELETED = "the half record or the op that it names was deleted by retention"
    FORGED = "it contradicts the half record or the op that it names"


_WORST_FIRST = (Authenticity.FORGED, Authenticity.DELETED, Authenticity.PROVEN)


class ExaminedLetter(NamedTuple):
    """A letter with the records that it names."""

    letter: Letter
    standing: Authenticity
    body: Body | None  # the half record; None of a stub whose half record was deleted
    op: Op | None  # the op that decided; None where it was deleted or does not exist


def examined(
    letter: Letter, body: Body | None, half: Source, op: Source, verifier: Verifier | None = None
) -> ExaminedLetter:
    """Return whether a letter is genuine, by the records at the half and op offsets that it names.

    `body` is the letter's message; None for a stub, which gets the body of its half record.
    """
    stored = half.record
    there = None if stored is None else Body(stored.key, stored.value, stored.headers)
    decision = _op(op.record, verifier)
    standing = _of_source(letter, body, there, is_deleted=half.is_deleted)
    if letter.half is not None:
        if not half.is_deleted and not _is_believed(stored, verifier):
            standing = Authenticity.FORGED
        by_op = _of_op(letter, decision, is_deleted=op.is_deleted)
        standing = min(standing, by_op, key=_WORST_FIRST.index)
    return ExaminedLetter(letter, standing, there if body is None else body, decision)


def _of_source(
    letter: Letter, body: Body | None, there: Body | None, *, is_deleted: bool
) -> Authenticity:
    if is_deleted:
        return Authenticity.DELETED
    if there is None:
        return Authenticity.FORGED
    if body is not None:
        return Authenticity.PROVEN if body == there else Authenticity.FORGED
    try:
        return (
            Authenticity.PROVEN
            if parse_half(there.headers)[0] == letter.half
            else Authenticity.FORGED
        )
    except DecodeError:
        return Authenticity.FORGED


def _of_op(letter: Letter, op: Op | None, *, is_deleted: bool) -> Authenticity:
    half = letter.half
    if is_deleted:
        return Authenticity.DELETED
    if letter.dead.op_offset == NO_OFFSET or op is None or half is None:
        return Authenticity.FORGED
    is_it = (
        op.transaction_id == half.transaction_id
        and op.resume_count == half.resume_count
        and op.producer_group == half.producer_group
        and op.kind.value == letter.decision.value
    )
    return Authenticity.PROVEN if is_it else Authenticity.FORGED


def _is_believed(record: LogRecord | None, verifier: Verifier | None) -> bool:
    try:
        return record is None or verifier is None or bool(record.half(verifier))
    except DecodeError:
        return False


def _op(record: LogRecord | None, verifier: Verifier | None) -> Op | None:
    try:
        return None if record is None else record.op(verifier)
    except DecodeError:
        return None


# Letters that one command holds, of about 1 KB each: 200 MB. Transactions with a letter beyond that
# many are left out whole, until older letters are purged.
LETTERS_MAX = 200_000
# The maximum of a signed 32-bit integer.
RESUME_COUNT_MAX = (1 << 31) - 1
_NEVER_AGAIN = frozenset((DeadReason.INVALID, DeadReason.TOO_LARGE))


class Key(NamedTuple):
    """One life of a transaction, which is one entry of a pair's ledger."""

    transaction_id: str
    resume_count: int
    producer_group: str
    partition: int


class Remedy(Enum):
    """What can be done about the open letters of a transaction."""

    RESUME = "resume"
    REDELIVER = "redeliver"
    EXPORT = "export"


@dataclass(frozen=True, slots=True)
class DeadTransaction:
    """The dead letters of one life of a transaction."""

    key: Key  # whose they are; without a transaction id, one letter whose RMQ_HALF cannot be read
    letters: tuple[Letter, ...]  # in the order of their messages' indices, then of the half offsets
    marks: dict[LetterPosition, DeadMark]  # marks of letters, by the letters' positions

    @property
    def name(self) -> str:
        """Return the transaction id; of a letter that names none its place, such as `0:17`."""
        if self.key.transaction_id:
            return self.key.transaction_id
        partition, offset = self.letters[0].place
        return f"{partition}:{offset}"

    @property
    def open_letters(self) -> tuple[Letter, ...]:
        """Return the letters without a mark."""
        return tuple(each for each in self.letters if each.place not in self.marks)

    @property
    def reasons(self) -> tuple[DeadReason, ...]:
        """Return the reasons of the letters, each once."""
        return tuple(dict.fromkeys(each.reason for each in self.letters))

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the real topics of the messages, each once."""
        return tuple(dict.fromkeys(each.half.real_topic for each in self.letters if each.half))

    @property
    def state(self) -> str:
        """Return OPEN, PARTLY, or the state of the letter that was settled last."""
        if not self.marks:
            return "OPEN"
        if self.open_letters:
            return "PARTLY"
        return max(self.marks.items())[1].action.value

    @property
    def remedy(self) -> Remedy:
        """Return the command for the open letters; EXPORT if no other is possible."""
        letters = self.open_letters or self.letters
        decisions = {each.decision for each in letters}
        if not self.key.transaction_id or any(each.reason in _NEVER_AGAIN for each in letters):
            return Remedy.EXPORT
        if decisions == {DeadDecision.DISCARD}:
            return Remedy.RESUME
        if decisions == {DeadDecision.COMMIT}:
            return Remedy.REDELIVER
        return Remedy.EXPORT

    @property
    def stored_ms(self) -> int:
        """Return when the last of the letters was stored."""
        return max(each.stored_ms for each in self.letters)

    @property
    def order(self) -> tuple[int, int, int]:
        """Return what sorts transactions as they were decided: pair, op offset, half offset."""
        first = min(self.letters, key=lambda each: each.dead.source_offset).dead
        return self.key.partition, first.op_offset, first.source_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Selects transactions; an empty or None field excludes none."""

    ids: frozenset[str] = frozenset()  # names of transactions (`DeadTransaction.name`)
    groups: frozenset[str] = frozenset()  # producer groups
    topics: frozenset[str] = frozenset()  # real topics; one message that goes there is enough
    # Dead-letter reasons; one letter with such a reason is enough.
    reasons: frozenset[DeadReason] = frozenset()
    since_ms: int | None = None  # the last letter is not older
    is_open: bool = False  # there is a letter without a mark

    def takes(self, each: DeadTransaction) -> bool:
        """Tell whether the command is about a transaction."""
        return (
            (not self.ids or each.name in self.ids)
            and (not self.groups or each.key.producer_group in self.groups)
            and (not self.topics or not self.topics.isdisjoint(each.topics))
            and (not self.reasons or not self.reasons.isdisjoint(each.reasons))
            and (self.since_ms is None or each.stored_ms >= self.since_ms)
            and (not self.is_open or bool(each.open_letters))
        )


@dataclass(slots=True)
class Found:
    """The part of the dead-letter topic that was read so far. Mutable: more may be added."""

    unrecognized: int = 0  # records that are neither letters nor marks
    left_out: int = 0  # letters beyond LETTERS_MAX. Their transactions are left out whole
    _letters: dict[Key, list[Letter]] = field(default_factory=dict)
    _marks: dict[tuple[LetterPosition, str], DeadMark] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)
    _cut: set[str] = field(default_factory=set)
    _left_out_from: dict[int, int] = field(default_factory=dict)
    _count: int = 0

    def add(self, read: Letter | Mark | None) -> None:
        """Add a record; the records of a partition come in the order of their offsets."""
        if read is None:
            self.unrecognized += 1
        elif isinstance(read, Mark):
            # The first mark counts. Only a stranger writes a second one.
            self._marks.setdefault((read.about, read.said.transaction_id), read.said)
            self._note_life(read.said.transaction_id, read.said.resume_count)
        else:
            self._add_letter(read)

    def transactions(self, wanted: Wanted) -> list[DeadTransaction]:
        """Return the transactions that are wanted, in the order in which they were decided."""
        found = (each for each in self._all() if wanted.takes(each))
        return sorted(found, key=lambda each: each.order)

    def next_resume_count(self, transaction_id: str) -> int:
        """Return a resume count that no life of the transaction has had."""
        return self._lives.get(transaction_id, 0) + 1

    def deletable(
        self, ends: Mapping[int, int], given_up: frozenset[LetterPosition] = frozenset()
    ) -> dict[int, int]:
        """Return partition -> offset, `ends` at most, below which all letters are dealt with.

        A letter or mark of a transaction that has an open letter anywhere is kept: the next resume
        count is computed from them. Letters in `given_up` count as dealt with. Records left out are
        kept: it is unknown whether they are dealt with.
        """
        still_open = {
            each.place: _id_of(each)
            for each in self._every_letter()
            if (each.place, _id_of(each)) not in self._marks and each.place not in given_up
        }
        busy = (set(still_open.values()) | self._cut) - {""}
        upto = {
            partition: min(end, self._left_out_from.get(partition, end))
            for partition, end in ends.items()
        }
        for letter in self._every_letter():
            partition, offset = letter.place
            if letter.place in still_open or _id_of(letter) in busy:
                upto[partition] = min(upto[partition], offset)
        for about, transaction_id in self._marks:
            if transaction_id in busy and about.partition in upto:
                upto[about.partition] = min(upto[about.partition], about.offset)
        return upto

    def count_below(self, upto: dict[int, int]) -> int:
        """Return how many letters are below these offsets."""
        return sum(
            each.place.offset < upto.get(each.place.partition, 0) for each in self._every_letter()
        )

    def _add_letter(self, letter: Letter) -> None:
        """Add a letter to its transaction; beyond LETTERS_MAX leave the whole transaction out."""
        half, source = letter.half, letter.dead
        if half is None:  # one letter each: nothing says which others belong to it
            nobody = f"{source.source_topic}:{source.source_offset}:{letter.place.partition}"
            key = Key("", letter.place.offset, nobody, source.source_partition)
        else:
            key = Key(
                half.transaction_id, half.resume_count, half.producer_group, source.source_partition
            )
            self._note_life(half.transaction_id, half.resume_count)
        if self._count >= LETTERS_MAX:
            self.left_out += 1
            self._left_out_from.setdefault(letter.place.partition, letter.place.offset)
            if half is not None:
                self._cut.add(half.transaction_id)
            return
        self._count += 1
        self._letters.setdefault(key, []).append(letter)

    def _note_life(self, transaction_id: str, resume_count: int) -> None:
        self._lives[transaction_id] = max(self._lives.get(transaction_id, 0), resume_count)

    def _all(self) -> Iterator[DeadTransaction]:
        for key, letters in self._letters.items():
            if key.transaction_id in self._cut:
                continue
            marks = {
                each.place: self._marks[each.place, key.transaction_id]
                for each in letters
                if (each.place, key.transaction_id) in self._marks
            }
            letters.sort(key=lambda each: (each.message_index, each.dead.source_offset))
            yield DeadTransaction(key, tuple(letters), marks)

    def _every_letter(self) -> Iterator[Letter]:
        return (each for letters in self._letters.values() for each in letters)


def _id_of(letter: Letter) -> str:
    return "" if letter.half is None else letter.half.transaction_id


class ReplacementMessage(NamedTuple):
    """A message from a file, in place of a dead letter's or of one that is missing."""

    real_topic: str
    real_partition: int
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The operator's choice."""

    remedy: Remedy  # RESUME or REDELIVER
    # Only messages with these indices; empty: the whole transaction.
    messages: frozenset[int] = frozenset()
    # (transaction id, message index) -> message from a file.
    given: Mapping[tuple[str, int], ReplacementMessage] = field(default_factory=dict)
    accept_partial: bool = False  # deliver the existing messages of a transaction with a gap
    accept_duplicates: bool = False  # deliver late messages that may have been delivered
    accept_unverified: bool = False  # believe letters whose half record or op was deleted
