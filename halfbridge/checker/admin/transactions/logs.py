"""Reads many partitions in parallel, each up to an end that the partition has had.

The time in a transaction's id bounds the offsets to read. Records become the ledger's input,
without their bodies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from halfbridge.checker.admin.cluster import CALL_TIMEOUT_S
from halfbridge.checker.admin.read import READ_BATCH, named
from halfbridge.checker.core.events import HalfRead, JunkRead, OpRead, append_ms_of, message_bytes
from halfbridge.checker.errors import AdminRetriableError
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.kafka.ports import Edge
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, parse_half, user_bytes
from halfbridge.serde.limits import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.kafka.ports import Clock, Reader, StoredRecord, TopicPartition
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.signatures import Verifier

# Records of each partition that the client fetches ahead. With its default of 100,000 a search
# that ends early has fetched a second's records in vain. With its default of 1,000 ms between two
# checks of a full queue, the queue would be empty most of the time.
_FETCHING: Mapping[str, object] = {"queued.min.messages": 20_000, "fetch.queue.backoff.ms": 5}
# How many partitions that cannot be read are named: an operator who reads on has seen enough.
NOTED_MAX = 10
# How late it is noticed that nothing comes any more.
_WAIT_S = 0.2
_PROGRESS_S = 1.0  # between two reports of progress


class Span(NamedTuple):
    """Offsets of a partition from `start` up to `end`, which is not included."""

    start: int
    end: int


class Scan:
    """One reading of several partitions. `skip` ends the reading of a partition early."""

    def __init__(self, cluster: Cluster, spans: Mapping[TopicPartition, Span]) -> None:
        self._cluster = cluster
        self._spans = {place: span for place, span in spans.items() if span.start < span.end}
        self._ends = {place: span.end for place, span in self._spans.items()}
        self._skipped: set[TopicPartition] = set()

    @property
    def total(self) -> int:
        """Number of offsets in the spans: at most as many records come."""
        return sum(span.end - span.start for span in self._spans.values())

    def skip(self, places: Iterable[TopicPartition]) -> None:
        """Read no more of some partitions; records that were fetched already may still come."""
        for place in places:
            if self._ends.pop(place, None) is not None:
                self._skipped.add(place)

    def batches(self) -> Iterator[list[StoredRecord]]:
        """Yield committed records until every partition is read to its end, or skipped.

        Records of one partition come in offset order. A batch may be empty.

        Raises:
            DamagedRecordError: a record cannot be read; an operator follows the text.
            AdminSetupError: the brokers do not answer; an operator acts.
            AdminRetriableError: nothing came for CALL_TIMEOUT_S, such as when a kafka_txn is open;
                the operator tries again.
        """
        if not self._spans:
            return
        cluster = self._cluster
        cluster.refuse_damaged({place: (at.start, at.end) for place, at in self._spans.items()})
        monotonic = cluster.ports.clock.monotonic
        with cluster.errors("read the logs"), cluster.reader(more=_FETCHING) as reader:
            reader.read_from({place: span.start for place, span in self._spans.items()})
            last_progress = monotonic()
            while self._ends:
                fetched = _fetched(reader)
                if fetched:
                    last_progress = monotonic()
                    yield self._taken(fetched)
                    if self._skipped:
                        reader.pause(self._skipped)
                        self._skipped = set()
                elif monotonic() - last_progress > CALL_TIMEOUT_S:
                    cluster.find_damage(
                        {
                            place: max(self._spans[place].start, at)
                            for place, at in reader.positions(self._ends).items()
                        }
                    )
                    raise AdminRetriableError(
                        f"{_named(self._ends)}: nothing readable within {CALL_TIMEOUT_S:.0f} s: an"
                        " open kafka_txn may hold it back; try again",
                        topics=min(self._ends)[:1],
                    )

    def _taken(self, fetched: list[StoredRecord]) -> list[StoredRecord]:
        ends = self._ends
        taken = []
        for record in fetched:
            place = record.topic(), record.partition()
            end = ends.get(place)
            error = record.error()
            if error is not None:
                failure = failure_of(error)
                if failure.code != Code.PARTITION_EOF:
                    raise named(failure, place, record.offset())
                if end is not None and record.offset() >= end:
                    self.skip([place])
                continue
            if end is None:
                continue
            offset = record.offset()
            if offset < end:
                taken.append(record)
            if offset >= end - 1:
                self.skip([place])
        return taken


class Progress:
    """Reports how far scans are, one line about once a second."""

    def __init__(self, clock: Clock, on_progress: Callable[[str], None]) -> None:
        self._clock, self._on_progress = clock, on_progress
        self._reported_at = clock.monotonic()

    def batches(self, scan: Scan, what: str, unit: str = "records") -> Iterator[list[StoredRecord]]:
        """Yield the batches of `scan`."""
        done = 0
        for batch in scan.batches():
            done += len(batch)
            yield batch
            now = self._clock.monotonic()
            if now - self._reported_at > _PROGRESS_S:
                self._reported_at = now
                self._on_progress(f"{what}: {done} of at most {scan.total} {unit}")


def edges(
    cluster: Cluster, places: Iterable[TopicPartition], edge: Edge
) -> dict[TopicPartition, int]:
    """Return one edge of the logs of many partitions, asked all at once."""
    wanted = list(places)
    if not wanted:
        return {}

    def ask() -> dict[TopicPartition, int]:
        answers = cluster.admin.ask_ends(wanted, edge, CALL_TIMEOUT_S)
        return {place: answer.result() for place, answer in answers.items()}

    with cluster.errors("read the ends of partitions"):
        return cluster.retrying(ask)


def partition_counts(cluster: Cluster) -> dict[str, int]:
    """Return the number of partitions of every topic that may be seen."""
    return {topic: seen.partitions for topic, seen in cluster.seen_topics().items()}


def leaderless(cluster: Cluster) -> frozenset[TopicPartition]:
    """Return the partitions without a leader: a question about their logs is not answered."""
    known = cluster.seen_topics()
    return frozenset((topic, number) for topic, seen in known.items() for number in seen.leaderless)


def not_read(places: Iterable[TopicPartition], topics: Collection[str]) -> list[str]:
    """Return a note for each of the first NOTED_MAX of `places` that is of one of `topics`."""
    return [
        f"partition {number} of topic {topic} has no leader, so it was not read"
        for topic, number in sorted(place for place in places if place[0] in topics)[:NOTED_MAX]
    ]


def stable_ends(cluster: Cluster, least: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return where partitions can be read to (read_committed), at least to the offsets in `least`.

    Such an offset is waited for: an open kafka_txn may hold it back for a moment.
    AdminRetriableError after CALL_TIMEOUT_S: the operator tries again.
    """
    clock, run = cluster.ports.clock, cluster.ports.run
    deadline = clock.monotonic() + CALL_TIMEOUT_S
    while True:
        ends = edges(cluster, least, Edge.STABLE_END)
        short = {place: at for place, at in least.items() if ends[place] < at}
        if not short:
            return ends
        if clock.monotonic() > deadline:
            raise AdminRetriableError(
                f"{_named(short)}: not readable to a committed offset within"
                f" {CALL_TIMEOUT_S:.0f} s: an open kafka_txn holds it back; try again",
                topics=min(short)[:1],
            )
        run.pause(_WAIT_S)


def offsets_at(
    cluster: Cluster, times_ms: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Return the first offset whose record is not older than a time; None: there is none."""
    if not times_ms:
        return {}
    with cluster.errors("look up offsets by time"), cluster.reader() as reader:
        return reader.offsets_at(times_ms, CALL_TIMEOUT_S)


def spans_between(
    cluster: Cluster, places: Iterable[TopicPartition], time: Slice
) -> dict[TopicPartition, Span]:
    """Return the offsets of a range of time, up to the last stable offsets.

    Places without a record in or after the range are left out.
    """
    wanted = list(places)
    ends = edges(cluster, wanted, Edge.STABLE_END)
    begins = offsets_at(cluster, dict.fromkeys(wanted, time.from_ms))
    stops: dict[TopicPartition, int | None] = {}
    if time.until_ms is not None:
        stops = offsets_at(cluster, dict.fromkeys(wanted, time.until_ms))
    found = {}
    for place in wanted:
        begin, stop = begins[place], stops.get(place)
        if begin is not None:
            found[place] = Span(begin, ends[place] if stop is None else stop)
    return found


def _fetched(reader: Reader) -> list[StoredRecord]:
    first = reader.poll(_WAIT_S)
    found = [] if first is None else [first, *reader.take(READ_BATCH)]
    return cast("list[StoredRecord]", found)  # or errors, each in place of a record


def _named(places: Iterable[TopicPartition]) -> str:
    topic, partition = min(places)
    return f"{topic} {partition}"


_ID_DIGITS = 32  # a UUID in hexadecimal (RFC 9562)
_ID_VERSION = "7"
_VERSION_AT = 12  # its version follows its 48 bits of Unix milliseconds
_TIME_DIGITS = 12  # these 48 bits
_MS = 1  # the unit of that time
_S = 1000 * _MS  # and seconds of it
# A transaction settles within this, or the search takes longer and says how far it is.
USUAL_MS = 600 * _S
# By how much a client's clock may be off before the search takes a further step. The time in an id
# is a client's, append times are the brokers'. With NTP clocks are off by less than the first; each
# step reads more of the log.
_AT_MS = 1 * _S
_NEAR_MS = 10 * _S
FAR_MS = 60 * _S
# How long after its begin the first half message is usually stored, and seldom.
_SOON_MS = 2 * _S
_LATE_MS = 30 * _S
# By how much the clocks of two brokers may differ. With NTP they differ by milliseconds; each
# second more reads a second of the log more.
BROKERS_SKEW_MS = 5 * _S


def after(append_time_ms: int) -> int:
    """Return the earliest time at which another broker may have appended a record's successor."""
    return append_time_ms - BROKERS_SKEW_MS


class Slice(NamedTuple):
    """A range of time that is read, milliseconds since 1970; `until_ms` None: the log's end."""

    from_ms: int
    until_ms: int | None


def birth_ms(transaction_id: str) -> int | None:
    """Return the time in a transaction id; None where the id is no UUIDv7 in hexadecimal digits."""
    text = transaction_id.lower()
    is_hex = len(text) == _ID_DIGITS and not set(text) - set("0123456789abcdef")
    if not is_hex or text[_VERSION_AT] != _ID_VERSION:
        return None
    return int(text[:_TIME_DIGITS], 16)


def slices(begin_ms: int, until_ms: int | None, *, is_exact: bool) -> list[Slice]:
    """Return the spans to read for the first half message, the likeliest range of time first.

    Example: an id was made at 12:00:00. The first range is 11:59:59 to 12:00:02, the second one
    11:59:50 to 11:59:59, and the last ones are 12:00:30 to 12:10:00, and 12:10:00 to the end. With
    `is_exact` nothing before `begin_ms` is read: the operator gave it.
    """
    usual_end_ms = begin_ms + USUAL_MS
    if is_exact:
        ranges = [Slice(begin_ms, usual_end_ms), Slice(usual_end_ms, None)]
    else:
        at, near, far = begin_ms - _AT_MS, begin_ms - _NEAR_MS, begin_ms - FAR_MS
        soon, late = begin_ms + _SOON_MS, begin_ms + _LATE_MS
        ranges = [
            Slice(at, soon),
            Slice(near, at),
            Slice(soon, late),
            Slice(far, near),
            Slice(late, usual_end_ms),
            Slice(usual_end_ms, None),
        ]
    if until_ms is None:
        return ranges
    cut = [
        Slice(each.from_ms, until_ms if each.until_ms is None else min(each.until_ms, until_ms))
        for each in ranges
        if each.from_ms < until_ms
    ]
    return cut or [Slice(min(begin_ms, until_ms), until_ms)]


def append_ms(record: StoredRecord) -> int:
    """Return the broker's append time of a record, or NO_APPEND_MS."""
    return append_ms_of(*record.timestamp())


def headers_or_none(record: StoredRecord) -> Headers:
    """Return the headers of a record; an empty list where the client cannot read the headers."""
    try:
        return headers_of(record) or []
    except DecodeError:
        return []


def half_read(
    record: StoredRecord, verifier: Verifier | None, *, with_key: bool = False
) -> HalfRead | JunkRead:
    """Return a half record without its body; `size_bytes` are the user's bytes.

    Without a verifier every record is believed. With `with_key` the key replaces the body. It
    counts as metadata, so that a ledger never releases it.
    """
    appended_ms = append_ms(record)
    try:
        headers = headers_of(record)
        metadata, flaw = parse_half(headers)
        if verifier is not None:
            verifier.check_half(
                record.partition(),
                appended_ms,
                metadata,
                headers=headers or (),
                key=record.key(),
                value=record.value(),
            )
    except DecodeError as error:
        return JunkRead(record.offset(), appended_ms, shortened(error.reason), 0, None)
    key = record.key() if with_key else None
    # Not `value()`, which copies the value, perhaps a megabyte, that is not needed here.
    size_bytes = len(record) + user_bytes(record.key(), None, headers or (), has_flaw=bool(flaw))
    return HalfRead(
        record.offset(),
        appended_ms,
        metadata,
        flaw,
        size_bytes,
        key,
        size_bytes,
        message_bytes(metadata) + len(key or b""),
    )


def op_read(record: StoredRecord, verifier: Verifier | None) -> OpRead | JunkRead:
    """Return an op record; `verifier` as in `half_read`."""
    offset, appended_ms = record.offset(), append_ms(record)
    value = record.value() or b""
    try:
        op = OP.decode(value)
        if verifier is not None:
            verifier.check_op(
                record.partition(),
                appended_ms,
                op,
                headers=partial(headers_of, record),
                key=record.key(),
                value=value,
            )
    except DecodeError as error:
        return JunkRead(offset, appended_ms, shortened(error.reason), 0, None)
    return OpRead(offset, appended_ms, op, len(record))
