"""Evaluates the manifest records of a batch. Pure: no clock, no Kafka.

The manifest topic is a log. For each (app.id, batch) the winner is the first COMMIT that is not
expired and lists no attempt that an earlier record of the batch listed. The winner never changes,
because later records come after it. So drivers, responders and aborts that know nothing of each
other find the same winner by reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence  # noqa: TC003 (small enough not to be hidden)
from dataclasses import dataclass, replace
from enum import Enum

from halfbridge.serde.manifest import (
    BatchManifest,
    ManifestAttempt,
    ManifestKind,
    ManifestTransaction,
)
from halfbridge.serde.records import NO_TIMESTAMP

# Records of a window, by which the log is read backwards. An app's newest record is usually near
# the end.
WINDOW_RECORDS = 64
WINDOW_GROWTH = 8  # 64 to 65,536 in four steps
# The client reads this many in about a second.
WINDOW_RECORDS_MAX = 65_536


class AttemptOutcome(str, Enum):
    """The fate of a task attempt's transactions."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    OPEN = "OPEN"  # not decided yet


class Rerun(str, Enum):
    """How a winner relates to the manifest of a driver that has attempts of its own."""

    OWN = "OWN"  # the winner lists these very attempts
    OTHER_QUERY = "OTHER_QUERY"  # it was published from another checkpoint
    OTHER_PLAN = "OTHER_PLAN"  # from this checkpoint, with other offsets
    EQUAL = "EQUAL"  # other attempts, the same rows
    DIFFERENT = "DIFFERENT"  # other rows


@dataclass(frozen=True, slots=True)
class Entry:
    """A manifest record as read."""

    offset: int  # offset in the app's manifest partition
    timestamp: int  # append time, by the broker's clock, epoch milliseconds
    manifest: BatchManifest  # the content; without attempts if these do not matter

    @property
    def is_expired(self) -> bool:
        """Tell whether a COMMIT came so late that the daemon may have discarded its messages."""
        first = self.manifest.first_append_timestamp
        return first != NO_TIMESTAMP and self.timestamp - first > self.manifest.age_ms_max

    @property
    def attempt_ids(self) -> frozenset[str]:
        """Ids of the attempts in the manifest."""
        return frozenset(attempt.attempt_id for attempt in self.manifest.attempts)


@dataclass(frozen=True, slots=True)
class BatchState:
    """The state of a batch."""

    winner: Entry | None  # the record that publishes the batch, or None
    # Attempts that can never be published; complete only while there is no winner.
    rejected: frozenset[str]

    def fate(self, attempt_id: str) -> AttemptOutcome:
        """Return the fate of an attempt; a fate other than OPEN is final."""
        if self.winner is not None:
            return (
                AttemptOutcome.COMMIT
                if attempt_id in self.winner.attempt_ids
                else AttemptOutcome.ROLLBACK
            )
        return AttemptOutcome.ROLLBACK if attempt_id in self.rejected else AttemptOutcome.OPEN

    def without_transactions(self) -> BatchState:
        """Return the state without transactions, which need far more memory than the ids."""
        if self.winner is None:
            return self
        manifest = self.winner.manifest
        bare = tuple(without_transactions(each.attempt_id) for each in manifest.attempts)
        return replace(self, winner=replace(self.winner, manifest=manifest._replace(attempts=bare)))


def without_transactions(attempt_id: str) -> ManifestAttempt:
    """Return an attempt with its id only."""
    return ManifestAttempt(attempt_id, ())


def batch_state(entries: Iterable[Entry]) -> BatchState:
    """Return the state of a batch from all its records, in offset order."""
    rejected: frozenset[str] = frozenset()
    for entry in entries:
        ids = entry.attempt_ids
        if (
            entry.manifest.kind is ManifestKind.COMMIT
            and not entry.is_expired
            and rejected.isdisjoint(ids)
        ):
            return BatchState(entry, rejected)
        rejected |= ids
    return BatchState(None, rejected)


def compare(winner: BatchManifest, mine: BatchManifest) -> Rerun:
    """Return how the winner relates to `mine`, which was not appended or came too late.

    Equal rows do not prove that two batches are the same: a heartbeat sends the same rows in each
    batch. So checkpoint and plan are compared first, if both sides know them.
    """
    if {each.attempt_id for each in winner.attempts} == {
        each.attempt_id for each in mine.attempts
    } and bool(winner.attempts):
        return Rerun.OWN
    if differ(winner.query_id, mine.query_id):
        return Rerun.OTHER_QUERY
    if differ(winner.plan_hash, mine.plan_hash):
        return Rerun.OTHER_PLAN
    same = (winner.row_count, winner.content_hash) == (mine.row_count, mine.content_hash)
    return Rerun.EQUAL if same else Rerun.DIFFERENT


def same_origin(one: BatchManifest, other: BatchManifest) -> bool:
    """Tell whether two manifests come from one plan of one checkpoint, as far as is known."""
    return not (differ(one.query_id, other.query_id) or differ(one.plan_hash, other.plan_hash))


def differ(one: str, other: str) -> bool:
    """Tell whether two values are known (not empty) and differ."""
    return bool(one and other) and one != other


def rounds(attempts: Iterable[ManifestAttempt]) -> list[list[ManifestTransaction]]:
    """Divide all transactions into rounds; a round begins when the one before is decided.

    A round has at most one transaction of each attempt and half partition. Rows of one key have an
    order only within one attempt and half partition. So no decision can overtake an earlier one on
    the same keys, even if a decision in doubt is written again. Attempts have no order among each
    other: 200 tasks with three transactions each on a half partition make three rounds.
    """
    cut: list[list[ManifestTransaction]] = []
    for attempt in attempts:
        counts: Counter[int] = Counter()
        for each in attempt.transactions:
            number = counts[each.half_partition]
            counts[each.half_partition] += 1
            if number == len(cut):
                cut.append([])
            cut[number].append(each)
    return cut


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search for one batch of an app."""

    batch_id: int
    entries: tuple[Entry, ...]  # all records of the batch, in offset order
    searched_from: int  # the `searched_from` of a record that is appended now
    # The app's latest batch with a COMMIT, if later than the one searched; else -1.
    later_batch: int
    earlier_batch: int  # the app's latest earlier batch with a COMMIT; -1 for none
    # COMMITs of `earlier_batch`, unordered and without their attempts.
    earlier_commits: tuple[BatchManifest, ...]
    is_cut: bool  # records that might have mattered were deleted from the log

    @property
    def state(self) -> BatchState:
        """The state of the batch."""
        return batch_state(self.entries)

    @property
    def counted_commits(self) -> tuple[BatchManifest, ...]:
        """COMMITs from whose count of refused messages the next manifest continues.

        These are the COMMITs of the earlier batch. If the search ended before it, at a void COMMIT
        of this batch, the void COMMIT has the count.
        """
        mine = (each.manifest for each in self.entries)
        void = tuple(each for each in mine if each.kind is ManifestKind.COMMIT)
        return self.earlier_commits or void

    @property
    def follows_the_one_before(self) -> bool:
        """Tell whether a COMMIT proves that the batch before was published in this log.

        A void COMMIT of this batch proves it too, because its writer has checked it. The search may
        also have ended at that COMMIT.
        """
        if self.earlier_batch == self.batch_id - 1:
            return True
        return any(entry.manifest.kind is ManifestKind.COMMIT for entry in self.entries)


class Search:
    """Finds a batch's records by reading the log backwards, window by window.

    Every record says how far back its writer had to search: below its `searched_from` there is no
    record of the app with its batch or a later one. So the search for batch n ends at the
    `searched_from` of any COMMIT of the app with a batch <= n, the winner or a late one of a
    stopped driver. A REJECT ends no search: a driver that commits has decided the batch before, a
    driver that aborts has not, and that batch may be further back. The whole partition is read only
    for an app without a COMMIT.
    """

    def __init__(self, batch_id: int, *, start: int, end: int) -> None:
        self._batch_id = batch_id
        self._start = start
        self._end = end
        self._read_from = end
        self._records = WINDOW_RECORDS
        self._bound: int | None = None
        self._first = end  # the lowest offset of this batch or a later one
        self._later = self._earlier = -1
        self._earlier_commits: list[BatchManifest] = []
        self._found: dict[int, Entry] = {}

    def window(self) -> tuple[int, int] | None:
        """Return the offsets to read next, [low, high); None if the search is over."""
        low = self._start if self._bound is None else max(self._start, self._bound)
        if self._read_from <= low:
            return None
        return max(low, self._read_from - self._records), self._read_from

    def feed(self, entries: Sequence[Entry]) -> None:
        """Add the app's records in the present window, and step back.

        Raises ValueError: the search is over; a bug in the caller.
        """
        window = self.window()
        if window is None:
            raise ValueError("the search is over")  # a bug in the caller
        self._read_from = window[0]
        self._records = min(WINDOW_RECORDS_MAX, self._records * WINDOW_GROWTH)
        for entry in entries:
            batch = entry.manifest.batch_id
            if batch >= self._batch_id:
                self._first = min(self._first, entry.offset)
            if entry.manifest.kind is ManifestKind.COMMIT:
                if batch <= self._batch_id:
                    self._bound = max(self._bound or 0, entry.manifest.searched_from)
                if batch > self._batch_id:
                    self._later = max(self._later, batch)
                elif batch < self._batch_id:
                    self._note_earlier(entry.manifest)
            if batch == self._batch_id:
                self._found[entry.offset] = entry

    def result(self) -> Found:
        """Return the result, once `window` returns None."""
        needed = 0 if self._bound is None else self._bound
        return Found(
            self._batch_id,
            tuple(self._found[offset] for offset in sorted(self._found)),
            self._first,
            self._later,
            self._earlier,
            tuple(self._earlier_commits),
            is_cut=needed < self._start,
        )

    def _note_earlier(self, commit: BatchManifest) -> None:
        if commit.batch_id > self._earlier:
            self._earlier = commit.batch_id
            self._earlier_commits.clear()
        if commit.batch_id == self._earlier:
            self._earlier_commits.append(commit._replace(attempts=()))
