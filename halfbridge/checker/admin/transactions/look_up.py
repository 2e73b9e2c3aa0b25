"""Finds one transaction: its half messages, ops, check requests, deliveries and dead letters.

Reading begins at the time in the id. All half partitions are read until the first half message is
found, then only its pair, until some time after the transaction is settled: a decision that lost
may follow the one that won.

    life ── _first_in: all half partitions, by time ──▶ the pair
      └─ _life_from ── _pieces: the pair's records until they are settled, judged by the ledger
           ├─ _build_life: records, checks (`asked`), deliveries and dead letters (`_ended`),
           │               what it waits for (`_lacks`, `_delivery_wait`)
           └─ _later_life: did an operator resume it? then both once more, from there
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.real_topics import lacks_of, needed
from halfbridge.checker.admin.transactions import asked
from halfbridge.checker.admin.transactions import life as life_events
from halfbridge.checker.admin.transactions import logs as log_search
from halfbridge.checker.admin.transactions.asked import CheckHistory
from halfbridge.checker.admin.transactions.life import NOT_FOUND, STATES, Kind, Life, Verdict, judge
from halfbridge.checker.admin.transactions.logs import (
    Progress,
    Scan,
    Slice,
    Span,
    after,
    append_ms,
    half_read,
    headers_or_none,
    leaderless,
    not_read,
    op_read,
    partition_counts,
    spans_between,
)
from halfbridge.checker.admin.transactions.undecided import (
    Stopped,
    begun_of,
    reading_settings,
    wanted_partitions,
)
from halfbridge.checker.admin.transactions.waits import DeliveryWait, undecided_of
from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.checker.errors import AdminRequestError, AdminRetriableError
from halfbridge.kafka.ports import Edge
from halfbridge.serde.avro import DEAD_MARK
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, HALF, TRANSACTION_ID
from halfbridge.serde.headers import DEAD_MARK as MARK_HEADER
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.life import Event, Judged
    from halfbridge.checker.admin.transactions.waits import Limits
    from halfbridge.checker.core.deferred import Lack
    from halfbridge.checker.core.events import JunkRead
    from halfbridge.kafka.ports import StoredRecord, TopicPartition
    from halfbridge.serde.avro import DeadMark
    from halfbridge.serde.progress import Progress as CommittedProgress
    from halfbridge.serde.topics import TopicNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wanted transaction, and the range to search."""

    id: str
    from_ms: int | None = None  # where the search begins; None: at the time in the id
    # Where the search ends; None: at the ends of the logs, or once it is settled.
    until_ms: int | None = None
    partition: int | None = None
    with_payload: bool = False  # keep keys, values and headers of the records


def look_up(
    cluster: Cluster,
    names: TopicNames,
    wanted: Wanted,
    *,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Life:
    """Return the life of one transaction; `state` is NOT_FOUND if the logs have no record of it.

    Works while daemons run, joins no group, commits nothing. `on_progress` gets a line about
    once a second. AdminRequestError: the id says no time, none was given; the operator gives one.
    """
    return _LookUp(cluster, names, wanted, on_progress).life()


class _Stored(NamedTuple):
    """Half records and ops as events; `winner` is the op that decided, if it was found."""

    halves: list[Event]
    ops: list[Event]
    winner: Event | None


class _Ended(NamedTuple):
    """Deliveries and dead letters, and what could not be read of them.

    Attributes:
        is_deferred: Whether the decision waits for its real topics.
        is_all: Whether nothing more is to come.
    """

    events: list[Event]
    notes: list[str]
    is_deferred: bool
    is_all: bool


class _LaterLife(NamedTuple):
    """A later life of a transaction: its resume count, and the time of its first record."""

    from_ms: int
    number: int


class _LookUp:
    def __init__(
        self,
        cluster: Cluster,
        names: TopicNames,
        wanted: Wanted,
        on_progress: Callable[[str], None],
    ) -> None:
        self._cluster, self._names, self._wanted, self._on_progress = (
            cluster,
            names,
            wanted,
            on_progress,
        )
        self._trail = RecordFinder(cluster, wanted.id, on_progress)
        self._notes: list[str] = []
        self._leaderless: frozenset[TopicPartition] = frozenset()

    def life(self) -> Life:
        wanted = self._wanted
        begin_ms = wanted.from_ms
        if begin_ms is None:
            begin_ms = log_search.birth_ms(wanted.id)
        if begin_ms is None:
            raise AdminRequestError(
                f"{wanted.id!r} is no id that halfbridge makes, so it does not say when the"
                " transaction began: give --from TIME",
                transaction_id=wanted.id,
            )
        partitions = None if wanted.partition is None else [wanted.partition]
        numbers = wanted_partitions(self._cluster, self._names, partitions)
        self._leaderless = leaderless(self._cluster)
        ranges = log_search.slices(begin_ms, wanted.until_ms, is_exact=wanted.from_ms is not None)
        from_ms = min(each.from_ms for each in ranges)
        for each in ranges:
            match = self._first_in(each, numbers)
            if match is not None:
                return self._life_from(match, each)
        return Life(
            id=wanted.id,
            state=NOT_FOUND,
            read_from_ms=from_ms,
            read_until_ms=wanted.until_ms,
            at_ms=self._cluster.ports.clock.time_ms(),
            notes=(
                "no record of this id was found; records that expired cannot be found",
                *not_read(self._leaderless, (self._names.half, self._names.op)),
            ),
        )

    def _first_in(self, time: Slice, numbers: list[int]) -> Match | None:
        """Return the first half record of the id; where there is none, its first op."""
        if time.until_ms is None or time.until_ms - time.from_ms > log_search.USUAL_MS:
            self._on_progress("not found within ten minutes of its begin; reading on to the end")
        for topic in (self._names.half, self._names.op):
            places = [
                place for number in numbers if (place := (topic, number)) not in self._leaderless
            ]
            match = self._trail.first(places, time, is_half=topic == self._names.half)
            if match is not None:
                return match
        return None

    def _life_from(self, match: Match, time: Slice) -> Life:
        begin_ms = time.from_ms if match.append_ms < 0 else after(match.append_ms)
        rest = Slice(begin_ms, self._wanted.until_ms)
        limits = asked.daemon_limits(self._cluster, self._names)
        pieces, judged = self._pieces(match.partition, rest, limits, FoundRecords([], []), life=0)
        life = self._build_life(match.partition, rest, pieces, judged, limits)
        later = self._later_life(life)
        if later is None:
            return life
        self._notes = []
        rest = Slice(later.from_ms, self._wanted.until_ms)
        pieces, judged = self._pieces(match.partition, rest, limits, pieces, life=later.number)
        return self._build_life(
            match.partition, rest._replace(from_ms=begin_ms), pieces, judged, limits
        )

    def _pieces(
        self, partition: int, time: Slice, limits: Limits, known: FoundRecords, *, life: int
    ) -> tuple[FoundRecords, Judged]:
        """Return the known records and those in a range of time, with the ledger's judgement.

        The transaction is not settled before its `life` is decided.
        """
        half, op = (self._names.half, partition), (self._names.op, partition)
        spans = spans_between(self._cluster, [half, op], time)
        settings = reading_settings(limits)

        def judged_of(found: FoundRecords) -> Judged | None:
            whole = known.with_more(found)
            return judge([half for _, half in whole.halves], [op for _, op in whole.ops], settings)

        def is_settled(found: FoundRecords) -> bool:
            judged = judged_of(found)
            if judged is None or judged.resume_count < life:
                return False
            return judged.state is not State.UNDECIDED

        nothing = Span(0, 0)
        found = self._trail.pieces(
            spans.get(half, nothing), spans.get(op, nothing), (half, op), is_settled
        )
        judged = judged_of(found)
        if judged is None:
            wanted_id = self._wanted.id
            raise AdminRetriableError(
                f"the records of {wanted_id} expired while they were read", transaction_id=wanted_id
            )
        return known.with_more(found), judged

    def _later_life(self, life: Life) -> _LaterLife | None:
        """Return the last life that operators have begun after `life`; None: there is none."""
        dead = [each for each in life.events if each.kind is Kind.DEAD_LETTER]
        if not dead:
            return None
        since_ms = min(each.at_ms or 0 for each in dead)
        places = [(each.topic, each.partition) for each in dead]
        time = Slice(after(since_ms), self._wanted.until_ms)
        marks = self._trail.marks(spans_between(self._cluster, dict.fromkeys(places), time))
        later = [each for each in marks if each[1].resume_count > life.resume_count]
        if not later:
            return None
        begun_ms = min(max(0, record.timestamp()[1]) for record, _ in later)
        return _LaterLife(after(begun_ms), max(mark.resume_count for _, mark in later))

    def _build_life(
        self, partition: int, time: Slice, pieces: FoundRecords, judged: Judged, limits: Limits
    ) -> Life:
        """Return the life from its records, checks and deliveries."""
        progress = self._progress_of(partition)
        stored = self._stored(pieces, judged, progress)
        winner = stored.winner
        counts = partition_counts(self._cluster)
        begun_ms = min((each.at_ms or 0 for each in stored.halves), default=time.from_ms)
        key = self._wanted.id, judged.resume_count, judged.group
        asking = CheckHistory(self._cluster, self._names, key, limits, counts)
        checks = asking.requests(begun_ms, None if winner is None else winner.at_ms)
        ended = self._ended(stored, judged, progress, counts, begun_ms)
        is_open = judged.state is State.UNDECIDED or (
            winner is not None and winner.is_applied is False
        )
        gone_ms = limits.topic_gone_ms
        lacks: tuple[Lack, ...] = ()
        if is_open or any(event.kind is Kind.DEAD_LETTER for event in ended.events):
            lacks = self._lacks(pieces, judged, counts, gone_ms)
        events = [*stored.halves, *stored.ops, *map(life_events.check_event, checks), *ended.events]
        life = Life(
            id=self._wanted.id,
            state=STATES[judged.state],
            resume_count=judged.resume_count,
            producer_group=judged.group,
            partition=partition,
            decided_by=winner,
            is_applied=None if winner is None else winner.is_applied,
            events=life_events.in_order(events),
            is_deferred=ended.is_deferred,
            delivery_wait=self._delivery_wait(winner, progress, is_ended=ended.is_all),
            lacks=lacks,
            topic_gone_ms=gone_ms,
            read_from_ms=time.from_ms,
            read_until_ms=time.until_ms,
            at_ms=self._cluster.ports.clock.time_ms(),
            delivery=limits.delivery,
            notes=(*self._notes, *ended.notes),
        )
        if judged.entry is None:
            return life
        world = asking.world(checks, [read.op for _, read in pieces.ops])
        return replace(life, undecided=undecided_of(judged.entry, partition, world))

    def _stored(
        self, pieces: FoundRecords, judged: Judged, progress: CommittedProgress | None
    ) -> _Stored:
        """Return the half records and ops as events."""
        halves = [
            self._with_payload(life_events.half_event(record, half), record)
            for record, half in pieces.halves
        ]
        ops = [
            life_events.op_event(record, read, judged.rulings.get(read.offset), progress)
            for record, read in pieces.ops
        ]
        winner = next((each for each in ops if each.offset == judged.winner), None)
        return _Stored(halves, ops, winner)

    def _ended(
        self,
        stored: _Stored,
        judged: Judged,
        progress: CommittedProgress | None,
        counts: Mapping[str, int],
        begun_ms: int,
    ) -> _Ended:
        """Return the results of the life until now: deliveries and dead letters."""
        ends = Outcomes(self._trail, self._names, counts, self._leaderless, judged)
        is_deferred = progress is not None and judged.winner in progress.deferred
        span = Slice(begun_ms, self._wanted.until_ms)
        is_waiting = is_deferred or progress is None
        found, notes = ends.read(stored.halves, stored.ops, span, is_waiting=is_waiting)
        events = [self._with_payload(event, record) for event, record in found]
        if progress is None:
            is_all = not ends.is_missing([record for _, record in found])
        else:
            is_all = bool(stored.winner and stored.winner.is_applied) and not is_deferred
        return _Ended(events, notes, is_deferred=is_deferred, is_all=is_all)

    def _lacks(
        self, pieces: FoundRecords, judged: Judged, counts: Mapping[str, int], gone_ms: int
    ) -> tuple[Lack, ...]:
        """Return the topics and partitions that keep the last life's messages from delivery."""
        messages = [
            needed(topic, metadata.real_partition, counts.get(topic, 0), record.key())
            for record, half in pieces.halves
            if (metadata := half.metadata).resume_count == judged.resume_count
            and metadata.producer_group == judged.group
            and not self._names.is_internal(topic := metadata.real_topic)
        ]
        return lacks_of(self._cluster, messages, gone_ms)

    def _progress_of(self, partition: int) -> CommittedProgress | None:
        """Return the daemon's committed progress of the pair; None where it cannot be trusted."""
        begun = begun_of(self._cluster, self._names, [partition])[partition]
        if isinstance(begun, Stopped):
            self._notes.append(f"pair {partition} is stopped ({begun.why}){begun.remedy}")
            return None
        return begun

    def _delivery_wait(
        self, winner: Event | None, progress: CommittedProgress | None, *, is_ended: bool
    ) -> DeliveryWait | None:
        """Return why a decided transaction is not ended, as far as the logs and the group say."""
        if winner is None or is_ended:
            return None
        daemon = self._names.daemon_group
        if asked.members_of(self._cluster, [daemon]).get(daemon) == ():
            return DeliveryWait.NO_DAEMON
        if progress is None:
            return DeliveryWait.STOPPED
        if winner.offset in progress.deferred:
            return DeliveryWait.DEFERRED
        half = (self._names.half, winner.partition)
        end = log_search.edges(self._cluster, [half], Edge.STABLE_END)[half]
        if winner.half_offset is not None and winner.half_offset >= end:
            return DeliveryWait.DECISION_WAITS
        return DeliveryWait.OPS_BEFORE

    def _with_payload(self, event: Event, record: StoredRecord) -> Event:
        has_it = event.kind in (Kind.HALF, Kind.COPY, Kind.DELIVERY, Kind.DEAD_LETTER)
        return (
            life_events.with_payload(event, record)
            if self._wanted.with_payload and has_it
            else event
        )


# Most half records, and ops, of one id: a transaction has at most 1,000 messages, and any writer
# that has the id can write any number of ops. The first ones decide.
RECORDS_KEPT_MAX = 10_000
# Records of a pair that are read after the transaction is settled, for decisions that lost: about a
# sixth of a second.
READ_ON_RECORDS = 50_000


class Match(NamedTuple):
    """A half record, or an op, of the id."""

    partition: int
    append_ms: int
    offset: int


class FoundRecords(NamedTuple):
    """Records of an id in one pair, in offset order."""

    halves: list[tuple[StoredRecord, HalfRead]]
    ops: list[tuple[StoredRecord, OpRead]]

    def with_more(self, others: FoundRecords) -> FoundRecords:
        """Return these and later ones, each once."""
        half_offsets = {half.offset for _, half in self.halves}
        op_offsets = {op.offset for _, op in self.ops}
        return FoundRecords(
            [*self.halves, *(one for one in others.halves if one[1].offset not in half_offsets)],
            [*self.ops, *(one for one in others.ops if one[1].offset not in op_offsets)],
        )


class RecordFinder:
    """Reads the records that name one transaction id.

    A record is decoded only if it contains the bytes of the id in a field for ids. Keys are
    ignored: strangers may write any.
    """

    def __init__(
        self, cluster: Cluster, transaction_id: str, on_progress: Callable[[str], None]
    ) -> None:
        self.cluster = cluster
        self._verifier = cluster.signatures.verifier
        self._id = transaction_id
        self._needle = transaction_id.encode("utf-8", "surrogatepass")
        self._progress = Progress(cluster.ports.clock, on_progress)

    def first(
        self, places: Iterable[TopicPartition], time: Slice, *, is_half: bool
    ) -> Match | None:
        """Return the record of the id that was appended first in a range of time.

        A stranger who knows the id may write it to another pair as well. So every other partition
        is read until it is as far in time as the first match.
        """
        best: Match | None = None
        is_mine = self._is_half if is_half else self._is_op
        scan = Scan(self.cluster, spans_between(self.cluster, places, time))
        for batch in self._progress.batches(scan, "looking for the first record"):
            for record in batch:
                if best is None or append_ms(record) <= best.append_ms:
                    if is_mine(record):
                        match = Match(record.partition(), append_ms(record), record.offset())
                        best = (
                            match
                            if best is None
                            else min(best, match, key=lambda each: each.append_ms)
                        )
                        scan.skip([(record.topic(), match.partition)])
                else:
                    scan.skip([(record.topic(), record.partition())])
        return best

    def pieces(
        self,
        half: Span,
        op: Span,
        places: tuple[TopicPartition, TopicPartition],
        is_settled: Callable[[FoundRecords], bool],
    ) -> FoundRecords:
        """Return the half records and ops of the id in one pair.

        Whenever a record was found, `is_settled` is asked whether a while longer is enough.
        """
        pieces = FoundRecords([], [])
        scan = Scan(self.cluster, spans := {places[0]: half, places[1]: op})
        left: int | None = None
        for batch in self._progress.batches(scan, "reading on"):
            found = False
            for record in batch:
                found = self._take(record, pieces, places[0][0]) or found
            if found and left is None and is_settled(pieces):
                left = READ_ON_RECORDS
            if left is not None:
                left -= len(batch)
                if left < 0:
                    scan.skip(spans)
        return pieces

    def ends(
        self,
        spans: dict[TopicPartition, Span],
        dead_topic: str,
        is_whole: Callable[[list[StoredRecord]], bool],
    ) -> list[StoredRecord]:
        """Return real records and dead letters of the id, until `is_whole` of them is true."""
        found: list[StoredRecord] = []
        scan = Scan(self.cluster, spans)
        for batch in self._progress.batches(scan, "searching the deliveries"):
            mine = [
                record
                for record in batch
                if (self._is_dead if record.topic() == dead_topic else self._is_real)(record)
            ]
            found += mine[: RECORDS_KEPT_MAX - len(found)]
            if mine and is_whole(found):
                scan.skip(spans)
        return found

    def marks(self, spans: dict[TopicPartition, Span]) -> list[tuple[StoredRecord, DeadMark]]:
        """Return the marks of dead letters of the id: what operators did about them (ADR 18)."""
        found: list[tuple[StoredRecord, DeadMark]] = []
        for batch in self._progress.batches(Scan(self.cluster, spans), "looking for later lives"):
            for record in batch:
                for name, value in headers_or_none(record):
                    if name == MARK_HEADER and value is not None and self._needle in value:
                        mark = self._mark(value)
                        if mark is not None and len(found) < RECORDS_KEPT_MAX:
                            found.append((record, mark))
        return found

    def _mark(self, value: bytes) -> DeadMark | None:
        try:
            mark = DEAD_MARK.decode(value)
        except DecodeError:
            return None  # a stranger's record
        return mark if mark.transaction_id == self._id else None

    def _take(self, record: StoredRecord, pieces: FoundRecords, half_topic: str) -> bool:
        if record.topic() == half_topic:
            if len(pieces.halves) < RECORDS_KEPT_MAX and self._is_half(record):
                half = half_read(record, self._verifier)
                if isinstance(half, HalfRead):
                    pieces.halves.append((record, half))
                    return True
        elif len(pieces.ops) < RECORDS_KEPT_MAX and self._is_op(record):
            op = op_read(record, self._verifier)
            if isinstance(op, OpRead):
                pieces.ops.append((record, op))
                return True
        return False

    def _is_half(self, record: StoredRecord) -> bool:
        return any(
            name == HALF and value is not None and self._needle in value
            for name, value in headers_or_none(record)
        ) and self._is_named(half_read(record, self._verifier))

    def _is_op(self, record: StoredRecord) -> bool:
        return self._needle in (record.value() or b"") and self._is_named(
            op_read(record, self._verifier)
        )

    def _is_named(self, read: HalfRead | OpRead | JunkRead) -> bool:
        if isinstance(read, HalfRead):
            return read.metadata.transaction_id == self._id
        return isinstance(read, OpRead) and read.op.transaction_id == self._id

    def _is_real(self, record: StoredRecord) -> bool:
        return any(
            name == TRANSACTION_ID and value == self._needle
            for name, value in headers_or_none(record)
        )

    def _is_dead(self, record: StoredRecord) -> bool:
        headers = headers_or_none(record)
        return any(name == DEAD for name, _ in headers) and any(
            name == HALF and value is not None and self._needle in value for name, value in headers
        )


# Real partitions that are read for one transaction: its messages may name any topics, and each
# partition costs a question and a fetch.
REAL_PARTITIONS_MAX = 2_000
# How long before its decision a message may seem to be appended, by another broker's clock. The
# daemon stamps real records with partition time, which is not below the decision's append time, so
# a small margin is tried first.
_MARGINS_MS = (1_000, log_search.FAR_MS)


@dataclass(slots=True)
class Outcomes:
    """Finds the deliveries and dead letters of one transaction."""

    trail: RecordFinder
    names: TopicNames
    counts: Mapping[str, int]
    leaderless: frozenset[TopicPartition]
    judged: Judged
    events: dict[tuple[str, int, int], Event] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def read(
        self,
        half_events: Sequence[Event],
        op_events: Sequence[Event],
        time: Slice,
        *,
        is_waiting: bool,
    ) -> tuple[list[tuple[Event, StoredRecord]], list[str]]:
        """Return deliveries and dead letters with their records, and notes for the operator.

        The search begins at the first decision, in all partitions that may have them,
        until each message of the transaction is found.
        """
        if not self.judged.deliver and not self.judged.dead:
            return [], []
        decisions = [each for each in op_events if each.verdict is Verdict.WON]
        if decisions and not any(each.is_applied is not False for each in decisions):
            text = "the decision is in the log; its messages are not delivered yet"
            return [], [text]
        since_ms = min((each.at_ms or time.from_ms for each in decisions), default=time.from_ms)
        places = self._places(half_events)

        def is_whole(records: list[StoredRecord]) -> bool:
            return not self._missing(records)

        records: list[StoredRecord] = []
        for margin_ms in _MARGINS_MS:
            slice_ = Slice(since_ms - margin_ms, time.until_ms)
            spans = spans_between(self.trail.cluster, places, slice_)
            records = self.trail.ends(spans, self.names.dead, is_whole)
            if is_whole(records):
                break
        missing = self._missing(records)
        if missing:
            why = "their records may have expired"
            if is_waiting:
                why = "they wait, or their records have expired"
            self.notes.append(
                f"{len(missing)} messages were found neither in their real topics nor among the"
                f" dead letters: {why}"
            )
        return [(self._event(record), record) for record in records], self.notes

    def is_missing(self, records: list[StoredRecord]) -> bool:
        """Tell whether a message was found neither delivered nor as a dead letter."""
        return bool(self._missing(records))

    def _missing(self, records: list[StoredRecord]) -> set[tuple[int, int]]:
        """Return (resume count, message index) of each message that was not found.

        A real record does not name the life that it is of. What should be delivered may have become
        a dead letter instead.
        """
        events = [self._event(record) for record in records]
        delivered = {each.message_index for each in events if each.kind is Kind.DELIVERY}
        dead = {
            (each.resume_count, each.message_index)
            for each in events
            if each.kind is Kind.DEAD_LETTER
        }
        awaited = self.judged.dead.keys() | {
            each for each in self.judged.deliver if each[1] not in delivered
        }
        return {each for each in awaited if each not in dead}

    def _event(self, record: StoredRecord) -> Event:
        place = record.topic(), record.partition(), record.offset()
        event = self.events.get(place)
        if event is None:
            is_dead = place[0] == self.names.dead
            make = life_events.dead_letter_event if is_dead else life_events.delivery_event
            event = self.events[place] = make(record)
        return event

    def _places(self, half_events: Sequence[Event]) -> list[TopicPartition]:
        """Return the partitions that may have messages: an exact one, or all of a topic."""
        dead = self.names.dead
        places: dict[TopicPartition, None] = {
            (dead, number): None for number in range(self.counts.get(dead, 0))
        }
        absent: set[str] = set()
        for each in half_events:
            topic, number = each.real_topic or "", each.real_partition
            is_awaited = (each.resume_count, each.message_index) in self.judged.deliver
            if not is_awaited or self.names.is_internal(topic):
                continue
            count = self.counts.get(topic, 0)
            numbers = range(count) if number is None else range(number, min(number + 1, count))
            places.update(((topic, one), None) for one in numbers)
            if not count:
                absent.add(topic)
        self.notes += [
            f"real topic {topic} does not exist, or may not be seen" for topic in sorted(absent)
        ]
        if len(places) > REAL_PARTITIONS_MAX:
            self.notes.append(f"only {REAL_PARTITIONS_MAX} of {len(places)} partitions were read")
        self.notes += not_read(self.leaderless & places.keys(), {topic for topic, _ in places})
        return [each for each in places if each not in self.leaderless][:REAL_PARTITIONS_MAX]
