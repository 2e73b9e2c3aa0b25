"""Finds one transaction: its half messages, ops, check requests, deliveries and dead letters.

Reading begins at the time in the id. All half partitions are read until the first half message is
found, then only its pair, until some time after the transaction is settled: a decision that lost
may follow the one that won.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.admin.real_topics import lacks_of, needed
from halfbridge.checker.admin.transactions import asked
from halfbridge.checker.admin.transactions import life as made
from halfbridge.checker.admin.transactions import logs as search
from halfbridge.checker.admin.transactions.asked import CheckHistory
from halfbridge.checker.admin.transactions.life import NOT_FOUND, STATES, Kind, Life, Verdict, judge
from halfbridge.checker.admin.transactions.logs import Span, leaderless, not_read, partition_counts
from halfbridge.checker.admin.transactions.trail import Pieces, Trail, after
from halfbridge.checker.admin.transactions.undecided import reading_settings, wanted_partitions
from halfbridge.checker.admin.transactions.waits import undecided_of
from halfbridge.checker.errors import AdminError
from halfbridge.serde.progress import ProgressError, parse_progress
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.life import Event, Judged
    from halfbridge.checker.admin.transactions.trail import Match
    from halfbridge.checker.admin.transactions.waits import Limits
    from halfbridge.checker.core.deferred import Lack
    from halfbridge.kafka.ports import Place, Record
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.topics import TopicNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wanted transaction, and the range to search.

    Attributes:
        from_ms: Where the search begins; None: at the time in the id.
        until_ms: Where the search ends; None: at the ends of the logs, or once it is settled.
        with_payload: Keep keys, values and headers of the records.
    """

    id: str
    from_ms: int | None = None
    until_ms: int | None = None
    partition: int | None = None
    with_payload: bool = False


def look_up(
    cluster: Cluster,
    names: TopicNames,
    wanted: Wanted,
    *,
    tell: Callable[[str], None] = lambda _line: None,
) -> Life:
    """Return the life of one transaction; `state` is NOT_FOUND if the logs have no record of it.

    Works beside running daemons, joins no group and commits nothing. `tell` gets a line of progress
    about once a second.

    Raises:
        AdminError: The id says no time and none was given, or the logs cannot be read.
    """
    return _LookUp(cluster, names, wanted, tell).life()


class _LaterLife(NamedTuple):
    """A later life of a transaction: its resume count, and the time of its first record."""

    from_ms: int
    number: int


class _LookUp:
    def __init__(
        self, cluster: Cluster, names: TopicNames, wanted: Wanted, tell: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._names = names
        self._wanted = wanted
        self._trail = Trail(cluster, wanted.id, tell)
        self._tell = tell
        self._notes: list[str] = []
        self._leaderless: frozenset[Place] = frozenset()

    def life(self) -> Life:
        wanted = self._wanted
        begin_ms = wanted.from_ms
        if begin_ms is None:
            begin_ms = search.birth_ms(wanted.id)
        if begin_ms is None:
            raise AdminError(
                f"{wanted.id!r} is no id that halfbridge makes, so it does not say when the"
                " transaction began: give --from TIME"
            )
        partitions = None if wanted.partition is None else [wanted.partition]
        numbers = wanted_partitions(self._cluster, self._names, partitions)
        self._leaderless = leaderless(self._cluster)
        ranges = search.slices(begin_ms, wanted.until_ms, is_exact=wanted.from_ms is not None)
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

    def _first_in(self, time: search.Slice, numbers: list[int]) -> Match | None:
        """Return the first half record of the id; where there is none, its first op."""
        if time.until_ms is None or time.until_ms - time.from_ms > search.USUAL_MS:
            self._tell("not found within ten minutes of its begin; reading on to the end")
        for topic in (self._names.half, self._names.op):
            places = [
                place for number in numbers if (place := (topic, number)) not in self._leaderless
            ]
            match = self._trail.first(places, time, is_half=topic == self._names.half)
            if match is not None:
                return match
        return None

    def _life_from(self, match: Match, time: search.Slice) -> Life:
        begin_ms = time.from_ms if match.append_ms < 0 else after(match.append_ms)
        rest = search.Slice(begin_ms, self._wanted.until_ms)
        limits = asked.daemon_limits(self._cluster, self._names)
        pieces, judged = self._pieces(match.partition, rest, limits, Pieces([], []), life=0)
        life = self._told(match.partition, rest, pieces, judged, limits)
        later = self._later_life(life)
        if later is None:
            return life
        self._notes = []
        rest = search.Slice(later.from_ms, self._wanted.until_ms)
        pieces, judged = self._pieces(match.partition, rest, limits, pieces, life=later.number)
        return self._told(match.partition, rest._replace(from_ms=begin_ms), pieces, judged, limits)

    def _pieces(
        self, partition: int, time: search.Slice, limits: Limits, known: Pieces, *, life: int
    ) -> tuple[Pieces, Judged]:
        """Return the known records and those in a range of time, with the ledger's judgement.

        The transaction is not settled before its `life` is decided.
        """
        half, op = (self._names.half, partition), (self._names.op, partition)
        spans = self._trail.spans([half, op], time)
        settings = reading_settings(limits)

        def judged_of(found: Pieces) -> Judged | None:
            whole = known.with_more(found)
            return judge([half for _, half in whole.halves], [op for _, op in whole.ops], settings)

        def is_settled(found: Pieces) -> bool:
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
            raise AdminError(f"the records of {self._wanted.id} expired while they were read")
        return known.with_more(found), judged

    def _later_life(self, life: Life) -> _LaterLife | None:
        """Return the last life that operators have begun after `life`; None: there is none."""
        dead = [each for each in life.events if each.kind is Kind.DEAD_LETTER]
        if not dead:
            return None
        since_ms = min(each.at_ms or 0 for each in dead)
        places = [(each.topic, each.partition) for each in dead]
        time = search.Slice(after(since_ms), self._wanted.until_ms)
        marks = self._trail.marks(self._trail.spans(dict.fromkeys(places), time))
        later = [each for each in marks if each[1].resume_count > life.resume_count]
        if not later:
            return None
        begun_ms = min(max(0, record.timestamp()[1]) for record, _ in later)
        return _LaterLife(after(begun_ms), max(mark.resume_count for _, mark in later))

    def _told(
        self, partition: int, time: search.Slice, pieces: Pieces, judged: Judged, limits: Limits
    ) -> Life:
        progress = self._progress_of(partition)
        half_events = [
            self._with_payload(made.half_event(record, half), record)
            for record, half in pieces.halves
        ]
        op_events = [
            made.op_event(record, read, judged.rulings.get(read.offset), progress)
            for record, read in pieces.ops
        ]
        winner = next((each for each in op_events if each.offset == judged.winner), None)
        counts = partition_counts(self._cluster)
        begun_ms = min((each.at_ms or 0 for each in half_events), default=time.from_ms)
        key = self._wanted.id, judged.resume_count, judged.group
        asking = CheckHistory(self._cluster, self._names, key, limits, counts)
        checks = asking.requests(begun_ms, None if winner is None else winner.at_ms)
        ends = Outcomes(self._trail, self._names, counts, self._leaderless, wanted=judged)
        found, notes = ends.read(
            half_events, op_events, search.Slice(begun_ms, self._wanted.until_ms)
        )
        end_events = [self._with_payload(event, record) for event, record in found]
        is_open = judged.state is State.UNDECIDED or (
            winner is not None and winner.is_applied is False
        )
        has_dead = any(event.kind is Kind.DEAD_LETTER for event, _ in found)
        gone_ms = limits.topic_gone_ms
        lacks = self._lacks(pieces, judged, counts, gone_ms) if is_open or has_dead else ()
        events = [*half_events, *op_events, *map(made.check_event, checks), *end_events]
        life = Life(
            id=self._wanted.id,
            state=STATES[judged.state],
            resume_count=judged.resume_count,
            producer_group=judged.group,
            partition=partition,
            decided_by=winner,
            is_applied=None if winner is None else winner.is_applied,
            events=made.in_order(events),
            is_deferred=progress is not None and judged.winner in progress.deferred,
            lacks=lacks,
            topic_gone_ms=gone_ms,
            read_from_ms=time.from_ms,
            read_until_ms=time.until_ms,
            at_ms=self._cluster.ports.clock.time_ms(),
            delivery=limits.delivery,
            notes=(*self._notes, *notes),
        )
        if judged.entry is None:
            return life
        world = asking.world(checks, [read.op for _, read in pieces.ops])
        return replace(life, undecided=undecided_of(judged.entry, partition, world))

    def _lacks(
        self, pieces: Pieces, judged: Judged, counts: Mapping[str, int], gone_ms: int
    ) -> tuple[Lack, ...]:
        """Return the topics and partitions that keep the last life's messages from delivery."""
        messages = [
            needed(topic, told.real_partition, counts.get(topic, 0), record.key())
            for record, half in pieces.halves
            if (told := half.metadata).resume_count == judged.resume_count
            and told.producer_group == judged.group
            and not self._names.is_internal(topic := told.real_topic)
        ]
        return lacks_of(self._cluster, messages, gone_ms)

    def _progress_of(self, partition: int) -> Progress | None:
        """Return the daemon's committed progress of the pair; None where it cannot be trusted."""
        half, op = (self._names.half, partition), (self._names.op, partition)
        committed = self._cluster.committed(self._names.daemon_group, [half, op])
        try:
            return parse_progress(
                committed[half].offset, committed[op].offset, committed[op].metadata
            )
        except ProgressError as error:
            self._notes.append(
                f"pair {partition} is stopped ({error}); run halfbridge checker init"
                f" --partition {partition}"
            )
            return None

    def _with_payload(self, event: Event, record: Any) -> Event:
        has_it = event.kind in (Kind.HALF, Kind.COPY, Kind.DELIVERY, Kind.DEAD_LETTER)
        return made.with_payload(event, record) if self._wanted.with_payload and has_it else event


# Real partitions that are read for one transaction: its messages may name any topics.
REAL_PARTITIONS_MAX = 2_000
# How long before its decision a message may seem to be appended, by another broker's clock. The
# daemon stamps real records with partition time, which is not below the decision's append time, so
# a small margin is tried first.
_MARGINS_MS = (1_000, search.FAR_MS)


class Outcomes:
    """Finds the deliveries and dead letters of one transaction."""

    def __init__(
        self,
        trail: Trail,
        names: TopicNames,
        counts: Mapping[str, int],
        leaderless: frozenset[Place],
        *,
        wanted: Judged,
    ) -> None:
        self._trail = trail
        self._names = names
        self._counts = counts
        self._leaderless = leaderless
        self._judged = wanted
        self._events: dict[tuple[str, int, int], Event] = {}
        self._notes: list[str] = []

    def read(
        self, half_events: Sequence[Event], op_events: Sequence[Event], time: search.Slice
    ) -> tuple[list[tuple[Event, Record]], list[str]]:
        """Return deliveries and dead letters with their records, and notes for the operator.

        The search begins at the first decision, in all partitions that may have them,
        until each message of the transaction is found.
        """
        if not self._judged.deliver and not self._judged.dead:
            return [], []
        decisions = [each for each in op_events if each.verdict is Verdict.WON]
        if decisions and not any(each.is_applied is not False for each in decisions):
            text = "the decision is in the log; its messages are not delivered yet"
            return [], [text]
        since_ms = min((each.at_ms or time.from_ms for each in decisions), default=time.from_ms)
        places = self._places(half_events)

        def is_whole(records: list[Record]) -> bool:
            return not self._missing(records)

        records: list[Record] = []
        for margin_ms in _MARGINS_MS:
            spans = self._trail.spans(places, search.Slice(since_ms - margin_ms, time.until_ms))
            records = self._trail.ends(spans, self._names.dead, is_whole)
            if is_whole(records):
                break
        missing = self._missing(records)
        if missing:
            self._notes.append(
                f"{len(missing)} messages were found neither in their real topics nor among the"
                " dead letters: their records may have expired"
            )
        return [(self._event(record), record) for record in records], self._notes

    def _missing(self, records: list[Record]) -> set[tuple[int, int]]:
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
        awaited = self._judged.dead.keys() | {
            each for each in self._judged.deliver if each[1] not in delivered
        }
        return {each for each in awaited if each not in dead}

    def _event(self, record: Record) -> Event:
        place = record.topic() or "", record.partition() or 0, record.offset() or 0
        event = self._events.get(place)
        if event is None:
            is_dead = place[0] == self._names.dead
            make = made.dead_letter_event if is_dead else made.delivery_event
            event = self._events[place] = make(record)
        return event

    def _places(self, half_events: Sequence[Event]) -> list[Place]:
        """Return the partitions that may have messages: an exact one, or all of a topic."""
        dead = self._names.dead
        places: dict[Place, None] = {
            (dead, number): None for number in range(self._counts.get(dead, 0))
        }
        absent: set[str] = set()
        for each in half_events:
            topic, number = each.real_topic or "", each.real_partition
            is_awaited = (each.resume_count, each.message_index) in self._judged.deliver
            if not is_awaited or self._names.is_internal(topic):
                continue
            count = self._counts.get(topic, 0)
            numbers = range(count) if number is None else range(number, min(number + 1, count))
            places.update(((topic, one), None) for one in numbers)
            if not count:
                absent.add(topic)
        self._notes += [
            f"real topic {topic} does not exist, or may not be seen" for topic in sorted(absent)
        ]
        if len(places) > REAL_PARTITIONS_MAX:
            self._notes.append(f"only {REAL_PARTITIONS_MAX} of {len(places)} partitions were read")
        self._notes += not_read(self._leaderless & places.keys(), {topic for topic, _ in places})
        return [each for each in places if each not in self._leaderless][:REAL_PARTITIONS_MAX]
