"""Finds what came of a decided transaction: records of real topics, and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.transactions import events as made
from halfbridge.checker.admin.transactions import search
from halfbridge.checker.admin.transactions.life import Kind, Verdict
from halfbridge.checker.admin.transactions.logs import not_read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.checker.admin.transactions.life import Event, Judged
    from halfbridge.checker.admin.transactions.trail import Trail
    from halfbridge.kafka.ports import Place, Record
    from halfbridge.serde.topics import TopicNames

# Real partitions that are read for one transaction: its messages may name any topics.
REAL_PARTITIONS_MAX = 2_000
# How long before its decision a message may seem to stand, by the clock of another broker. The
# daemon stamps real records with partition time, which is not below the decision's append time, so
# a small margin is tried first.
_MARGINS_MS = (1_000, search.FAR_MS)


class Ends:
    """Reads what was delivered and dead-lettered of one transaction.

    Args:
        trail: Of the transaction's id.
        names: Of the installation's topics.
        counts: Topic -> partitions.
        leaderless: Partitions that cannot be read now.
        wanted: What the ledger makes of the transaction.
    """

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

        They are looked for from the first decision on, in all partitions where they may stand,
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
        """Return (resume count, message index) of what was not found.

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
        """Return the partitions where messages may stand: an exact one, or all of a topic."""
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
