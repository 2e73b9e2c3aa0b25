"""Finds transactions by the key of a message.

All half records of a range of time are read, and their keys compared. What became of the
transactions is then read in one go, however many they are: ops that name them, and records of real
topics and dead letters that have the key, which the daemon leaves as it was.
"""

from __future__ import annotations

import heapq
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.transactions.asked import daemon_limits
from halfbridge.checker.admin.transactions.life import (
    STATES,
    Kind,
    dead_letter_event,
    delivery_event,
    half_event,
    judge,
)
from halfbridge.checker.admin.transactions.logs import (
    BROKERS_SKEW_MS,
    Progress,
    Scan,
    Slice,
    Span,
    half_read,
    headers_or_none,
    op_read,
    partition_counts,
    spans_between,
)
from halfbridge.checker.admin.transactions.look_up import RECORDS_KEPT_MAX
from halfbridge.checker.admin.transactions.undecided import reading_settings, wanted_partitions
from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.logs import bytes_text
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import real_identity
from halfbridge.serde.protocol import State
from halfbridge.serde.records import OpKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.life import Event
    from halfbridge.checker.core.settings import LedgerSettings
    from halfbridge.kafka.ports import StoredRecord, TopicPartition
    from halfbridge.serde.topics import TopicNames

# Half records of one search, the newest ones: about a minute's reading. As many records are read
# for what became of the transactions, the first ones.
RECORDS_MAX = 10_000_000
# Transactions with the key that are kept, the newest ones: some 150 MB.
KEPT_MAX = 50_000
# Lives of a transaction, which operators begin one by one.
LIVES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FindQuery:
    r"""Which transactions are wanted.

    Attributes:
        key: A message's key: as text, as commands print it (`\xff` for a byte that is no UTF-8), or
            its bytes in hexadecimal after `0x`. A key that is any of the three is found.
        topic, group: Real topic of the message, and producer group; empty: any.
        since_ms, until_ms: When the half record was stored; None: to the end of the logs.
        limit: Most transactions, the newest ones.
        records_max: Most half records to read, the newest ones.
    """

    key: str
    topic: str = ""
    group: str = ""
    since_ms: int
    until_ms: int | None = None
    limit: int
    records_max: int = RECORDS_MAX


class Hit(NamedTuple):
    """A transaction with a message that has the key."""

    id: str
    state: str
    half: Event  # the half record of the first such message that was read, of the last life
    key: bytes
    # Where the message came to: a delivery or a dead letter; None: none was found.
    end: Event | None

    @property
    def outcome(self) -> str:
        """What became of the message, in words."""
        end = self.end
        if end is not None and end.kind is Kind.DELIVERY:
            return f"delivered to {end.topic}[{end.partition}]@{end.offset}"
        if end is not None:
            return f"dead letter, {end.reason}: see halfbridge dead show {self.id}"
        if self.state == STATES[State.ROLLED_BACK]:
            return "rolled back: it is not delivered"
        which = "undecided" if self.state == STATES[State.UNDECIDED] else "not delivered yet"
        return f"{which}: see halfbridge tx explain {self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What `find` found, the newest first."""

    hits: tuple[Hit, ...]
    total: int  # how many transactions have such a message, with those beyond the limit
    records: int
    unread: int  # half records of the range that were not read: there were more than `records_max`
    read_from_ms: int  # from when on all of them were read
    unreadable: int  # records with the key that are no half records, or are not believed


def find(
    cluster: Cluster,
    names: TopicNames,
    sought: FindQuery,
    *,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Found:
    """Return the transactions with a message of a key; change nothing.

    Works while daemons run, joins no group, commits nothing. `on_progress` gets a line
    about once a second.
    """
    search = _Search(cluster, names, sought, on_progress)
    search.read()
    return Found(
        hits=search.ended(search.newest()),
        total=search.total,
        records=search.records,
        unread=search.unread,
        read_from_ms=search.read_from_ms,
        unreadable=search.unreadable,
    )


def meant_by(text: str) -> Callable[[bytes | None], bool]:
    """Return a function that compares a record's key with `FindQuery.key`."""
    exact = {text.encode("utf-8", "surrogateescape")}
    if text.startswith("0x"):
        with suppress(ValueError):  # a text that only begins so
            exact.add(bytes.fromhex(text[2:]))
    if "\\" not in text:  # the printed text contains no escapes
        return exact.__contains__
    return lambda key: key is not None and (key in exact or bytes_text(key) == text)


class _Trace:
    """The records of one transaction that were found.

    Attributes:
        lives: Resume count -> the first half record with the key.
        half: That of the last life, as an event.
        ends: Deliveries and dead letters of the message.
    """

    def __init__(self, half: HalfRead, record: StoredRecord) -> None:
        self.id = half.metadata.transaction_id
        self.key = record.key() or b""
        self.lives: dict[int, HalfRead] = {}
        self.half = half_event(record, half)
        self.ops: list[OpRead] = []
        self.ends: list[Event] = []
        self.add(half, record)

    def add(self, half: HalfRead, record: StoredRecord) -> None:
        life = half.metadata.resume_count
        if life not in self.lives and len(self.lives) < LIVES_MAX:
            if life > max(self.lives, default=-1):
                self.half = half_event(record, half)
            self.lives[life] = half

    def hit(self, settings: LedgerSettings) -> Hit:
        """Return the transaction's state, by the ledger and the delivered records."""
        judged = judge(list(self.lives.values()), self.ops, settings)
        state = STATES[State.UNDECIDED if judged is None else judged.state]
        end = next((each for each in self.ends if each.kind is Kind.DELIVERY), None)
        if end is None:
            life = max(self.lives)
            end = next((each for each in self.ends if each.resume_count == life), None)
            if end is not None and end.op == OpKind.DISCARD.value:
                # The discard proves its age by a message that may have another key.
                state = STATES[State.DISCARDED]
        return Hit(self.id, state, self.half, self.key, end)


class _Search:
    def __init__(
        self,
        cluster: Cluster,
        names: TopicNames,
        sought: FindQuery,
        on_progress: Callable[[str], None],
    ) -> None:
        self._cluster, self._names, self._sought = cluster, names, sought
        self._is_meant = meant_by(sought.key)
        self._progress = Progress(cluster.ports.clock, on_progress)
        self._kept: dict[tuple[str, str], _Trace] = {}
        self._dropped = 0
        self.records = self.unread = self.unreadable = 0
        self.read_from_ms = sought.since_ms

    @property
    def total(self) -> int:
        return len(self._kept) + self._dropped

    def read(self) -> None:
        """Read the half records of the range, and keep those that are meant."""
        sought = self._sought
        numbers = wanted_partitions(self._cluster, self._names, None)
        places = [(self._names.half, number) for number in numbers]
        spans = spans_between(self._cluster, places, Slice(sought.since_ms, sought.until_ms))
        spans = self._bounded(spans)
        scan = Scan(self._cluster, spans)
        begins: dict[int | None, int] = {}
        for batch in self._progress.batches(scan, "searching", "half records"):
            self.records += len(batch)
            for record in batch:
                if self._is_meant(record.key()):
                    self._take(record)
            if self.unread:
                for record in batch:
                    begins.setdefault(record.partition(), record.timestamp()[1])
            if len(self._kept) > KEPT_MAX:
                self._drop()
        self.read_from_ms = max((self.read_from_ms, *begins.values()))

    def newest(self) -> list[_Trace]:
        return heapq.nlargest(self._sought.limit, self._kept.values(), key=_at_ms)

    def ended(self, traces: list[_Trace]) -> tuple[Hit, ...]:
        """Return what became of the transactions: from ops, real topics and dead letters."""
        if not traces:
            return ()
        settings = reading_settings(daemon_limits(self._cluster, self._names))
        hits = {each.id: each.hit(settings) for each in traces}
        open_ids = {name for name, hit in hits.items() if not _is_settled(hit)}
        by_id = {each.id: each for each in traces}
        needle = re.compile(b"|".join(re.escape(_bytes(name)) for name in by_id))
        spans = self._end_spans(traces)
        scan = Scan(self._cluster, spans)
        for batch in self._progress.batches(scan, "looking for what became of them"):
            changed = {self._end_of(record, by_id, needle) for record in batch} - {""}
            hits.update((name, by_id[name].hit(settings)) for name in changed)
            open_ids -= {name for name in changed if _is_settled(hits[name])}
            if not open_ids:
                scan.skip(spans)
        return tuple(hits.values())

    def _end_spans(self, traces: list[_Trace]) -> dict[TopicPartition, Span]:
        counts = partition_counts(self._cluster)
        topics = {each.half.real_topic or "" for each in traces} | {self._names.dead}
        places = {(self._names.op, each.half.partition) for each in traces}
        places |= {(name, number) for name in topics for number in range(counts.get(name, 0))}
        begin_ms = min(map(_at_ms, traces)) - BROKERS_SKEW_MS
        spans = spans_between(self._cluster, sorted(places), Slice(max(0, begin_ms), None))
        share = max(1, self._sought.records_max // max(1, len(spans)))
        return {
            place: Span(span.start, min(span.end, span.start + share))
            for place, span in spans.items()
        }

    def _end_of(
        self, record: StoredRecord, by_id: Mapping[str, _Trace], needle: re.Pattern[bytes]
    ) -> str:
        """Take a record that says what became of a transaction; return the id, or nothing."""
        if record.topic() == self._names.op:
            if not needle.search(record.value() or b""):
                return ""
            op = op_read(record, self._cluster.signatures.verifier)
            if isinstance(op, OpRead) and (trace := by_id.get(op.op.transaction_id)) is not None:
                if len(trace.ops) < RECORDS_KEPT_MAX:
                    trace.ops.append(op)
                return trace.id
        elif self._is_meant(record.key()):
            name, end = _end_in(record, is_dead=record.topic() == self._names.dead)
            trace = by_id.get(name)
            if trace is not None and end is not None:
                is_mine = end.message_index == trace.half.message_index
                if is_mine and len(trace.ends) < RECORDS_KEPT_MAX:
                    trace.ends.append(end)
                return trace.id
        return ""

    def _bounded(self, spans: dict[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        """Return the spans, shortened to the limit by the oldest records of each partition."""
        wanted = sum(max(0, span.end - span.start) for span in spans.values())
        most = self._sought.records_max
        if wanted <= most:
            return spans
        # Rounded up: of each partition at least one record is read, which has a time.
        kept = {
            place: Span(span.end + (span.start - span.end) * most // wanted, span.end)
            for place, span in spans.items()
        }
        self.unread = wanted - sum(span.end - span.start for span in kept.values())
        return kept

    def _take(self, record: StoredRecord) -> None:
        half = half_read(record, self._cluster.signatures.verifier)
        if not isinstance(half, HalfRead):
            self.unreadable += 1
            return
        metadata = half.metadata
        sought = self._sought
        is_of_topic = sought.topic in ("", metadata.real_topic)
        if is_of_topic and sought.group in ("", metadata.producer_group):
            identity = metadata.transaction_id, metadata.producer_group
            if identity in self._kept:
                self._kept[identity].add(half, record)
            else:
                self._kept[identity] = _Trace(half, record)

    def _drop(self) -> None:
        by_age = sorted(self._kept.items(), key=lambda each: _at_ms(each[1]))
        self._dropped += len(by_age) // 2
        self._kept = dict(by_age[len(by_age) // 2 :])


def _end_in(record: StoredRecord, *, is_dead: bool) -> tuple[str, Event | None]:
    """Return the id that a real record or a dead letter names, and the record as an event."""
    if is_dead:
        half = half_read(record, None)
        name = half.metadata.transaction_id if isinstance(half, HalfRead) else ""
        return name, dead_letter_event(record)
    with suppress(DecodeError):
        identity = real_identity(headers_or_none(record))
        if identity is not None:
            return identity[0], delivery_event(record)
    return "", None


def _is_settled(hit: Hit) -> bool:
    return hit.end is not None or hit.state == STATES[State.ROLLED_BACK]


def _at_ms(trace: _Trace) -> int:
    return trace.half.at_ms or 0


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
