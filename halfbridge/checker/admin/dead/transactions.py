"""Dead letters by transaction, with what was done about each. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.dead.letters import Letter, LetterPlace, Mark
from halfbridge.serde.records import DeadDecision, DeadReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from halfbridge.serde.dead_marks import DeadMark

# Letters that one command holds, of about 1 KB each. Transactions with a letter beyond that many
# are left out whole, until older letters are purged.
LETTERS_MAX = 200_000
# Of an int of 32 bits.
RESUME_COUNT_MAX = (1 << 31) - 1
_NEVER_AGAIN = frozenset((DeadReason.INVALID, DeadReason.TOO_LARGE))


class Key(NamedTuple):
    """One life of a transaction: what the ledger of one pair knows as a transaction."""

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
    """The dead letters of one life of a transaction.

    Attributes:
        key: Whose they are; without a transaction id, one letter whose RMQ_HALF cannot be read.
        letters: In the order of their messages' indices, then of the half offsets.
        marks: What was done about letters, by their place.
    """

    key: Key
    letters: tuple[Letter, ...]
    marks: dict[LetterPlace, DeadMark]

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
        """Return OPEN, PARTLY, or what was done about the last of the letters."""
        if not self.marks:
            return "OPEN"
        if self.open_letters:
            return "PARTLY"
        return max(self.marks.items())[1].action.value

    @property
    def remedy(self) -> Remedy:
        """Return what the command for the open letters is; EXPORT where nothing else is left."""
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
    """Which transactions a command is about; what is empty or None excludes nothing.

    Attributes:
        ids: Names of transactions (`DeadTransaction.name`).
        groups: Producer groups.
        topics: Real topics; one message that goes there is enough.
        reasons: Dead-letter reasons; one letter with such a reason is enough.
        since_ms: The last letter is not older.
        is_open: There is a letter without a mark.
    """

    ids: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    reasons: frozenset[DeadReason] = frozenset()
    since_ms: int | None = None
    is_open: bool = False

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
    """What was read of the dead-letter topic so far. Mutable: more may be read and added.

    Attributes:
        strange: Records that are neither letters nor marks.
        left_out: Letters beyond LETTERS_MAX. Their transactions are left out whole.
    """

    strange: int = 0
    left_out: int = 0
    _letters: dict[Key, list[Letter]] = field(default_factory=dict)
    _marks: dict[tuple[LetterPlace, str], DeadMark] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)
    _cut: set[str] = field(default_factory=set)
    _left_out_from: dict[int, int] = field(default_factory=dict)
    _count: int = 0

    def add(self, read: Letter | Mark | None) -> None:
        """Add a record; the records of a partition come in the order of their offsets."""
        if read is None:
            self.strange += 1
        elif isinstance(read, Mark):
            # The first mark stands. There is no second one, but for a stranger's.
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
        self, ends: Mapping[int, int], given_up: frozenset[LetterPlace] = frozenset()
    ) -> dict[int, int]:
        """Return partition -> offset below which every letter is dealt with.

        A letter or mark of a transaction that has an open letter anywhere is kept: the next resume
        count is computed from them. What was left out is kept: nobody knows whether it is dealt
        with. Example: of 250,000 letters, all dealt with, the first 200,000 may be deleted, and the
        next command sees the others.

        Args:
            ends: Where each partition was read to.
            given_up: Letters to be counted as dealt with.
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
        """Return how many letters stand below these offsets."""
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
                half.transaction_id,
                half.resume_count,
                half.producer_group,
                source.source_partition,
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


def counted(transactions: Iterable[DeadTransaction]) -> dict[str, int]:
    """Return how many letters there are by reason."""
    counts: dict[str, int] = {}
    for each in transactions:
        for letter in each.letters:
            counts[letter.reason.value] = counts.get(letter.reason.value, 0) + 1
    return counts
