"""Reads a little of the logs: where an open kafka_txn begins, and what clients' clocks show.

Each function reads a bounded number of records for a bounded time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.failure import Code, KafkaFailure
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.ports import Edge
from halfbridge.checker.admin.doctor.facts import BornClock, PlainRecords, Stall
from halfbridge.checker.core.events import append_ms_of
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import TRANSACTION_ID, headers_of, parse_half

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.bridge.ports import Admin, Place, Ports, Reader

ENDS_S = 10.0  # a partition without a leader is a finding, and not waited for longer
# Between two looks at the last stable offsets: kafka_txns of a worker under load take far less.
STILL_S = 2.0
# Partitions whose ends are asked for; of those that stand still, so many are looked into.
PLACES_MAX = 1_000
STALLS_MAX = 20
READ_S = 5.0
# Newest half records of each partition that show what clients' clocks say.
RECORDS_MAX = 200
CLOCK_PLACES_MAX = 16
PLAIN_PLACES_MAX = 64
GROUPS_MAX = 1_000


def open_txns(
    places: Sequence[Place], ports: Ports, common: Mapping[str, Any]
) -> tuple[Stall, ...]:
    """Return the partitions whose last stable offset is below the end, and stays there.

    Kafka does not tell a client which producer holds it (only `kafka-transactions.sh` asks that);
    the first record of the kafka_txn says since when, and of which transaction it is.

    Raises:
        KafkaFailure: ends are not told.
    """
    admin = ports.kafka.admin(common)
    asked = places[:PLACES_MAX]
    before = _held(admin, asked)
    if not before:
        return ()
    ports.run.pause(STILL_S)
    after = _held(admin, list(before))
    still = [place for place, offset in before.items() if after.get(place) == offset]
    with _reader(ports, common) as reader:
        return tuple(_stall(reader, place, before[place], ports) for place in still[:STALLS_MAX])


def born_clocks(
    places: Sequence[Place], ports: Ports, common: Mapping[str, Any]
) -> tuple[tuple[BornClock, ...], int]:
    """Return how clients' clocks differ from brokers' clocks, and the newest append time; -1: none.

    Of each producer group's newest half records the one that came soonest counts: the time from
    `born_timestamp` to append is the clock's error and the delay of the send, and the delay is
    least there. Copies are left out: the daemon wrote them later.

    Raises:
        KafkaFailure: the half topic cannot be read.
    """
    admin = ports.kafka.admin(common)
    asked = places[:CLOCK_PLACES_MAX]
    firsts = _ends(admin, asked, Edge.START)
    ends = {place: end for place, end in _ends(admin, asked, Edge.END).items() if end > 0}
    starts = {place: max(firsts[place], end - RECORDS_MAX) for place, end in ends.items()}
    lags: dict[str, list[int]] = {}
    newest_ms = -1
    with _reader(ports, common) as reader:
        for record in _records(reader, starts, ports):
            append_ms = append_ms_of(*record.timestamp())
            newest_ms = max(newest_ms, append_ms)
            half = _half_of(record)
            if half is None or append_ms < 0 or half.origin_offset >= 0:
                continue
            if half.producer_group in lags or len(lags) < GROUPS_MAX:
                lags.setdefault(half.producer_group, []).append(append_ms - half.born_timestamp)
    clocks = tuple(BornClock(group, min(all_ms), len(all_ms)) for group, all_ms in lags.items())
    return clocks, newest_ms


def plain_records(
    places: Sequence[Place], ports: Ports, common: Mapping[str, Any]
) -> tuple[PlainRecords, ...]:
    """Return the topics in which newest records were not written by the daemon.

    Args:
        places: Partitions of transaction topics.
        ports: To read with.
        common: Properties of Kafka clients.

    Raises:
        KafkaFailure: ends are not told, or a topic cannot be read.
    """
    admin = ports.kafka.admin(common)
    asked = places[:PLAIN_PLACES_MAX]
    firsts = _ends(admin, asked, Edge.START)
    ends = {place: end for place, end in _ends(admin, asked, Edge.END).items() if end > 0}
    starts = {place: max(firsts[place], end - RECORDS_MAX) for place, end in ends.items()}
    found: dict[str, PlainRecords] = {}
    with _reader(ports, common) as reader:
        for record in _records(reader, starts, ports):
            if TRANSACTION_ID in dict(headers_of(record) or ()):
                continue
            before = found.get(record.topic())
            count = 1 if before is None else before.records + 1
            place = (record.topic(), record.partition(), record.offset())
            found[record.topic()] = PlainRecords(*place, count)
    return tuple(found.values())


def _held(admin: Admin, places: Sequence[Place]) -> dict[Place, int]:
    """Return the last stable offset of partitions in which it is below the end."""
    stable = _ends(admin, places, Edge.STABLE_END)
    ends = _ends(admin, places, Edge.END)
    return {place: offset for place, offset in stable.items() if offset < ends[place]}


def _ends(admin: Admin, places: Sequence[Place], edge: Edge) -> dict[Place, int]:
    if not places:
        return {}
    answers = admin.ask_ends(places, edge, ENDS_S)
    return {place: answer.result() for place, answer in answers.items()}


def _stall(reader: Reader, place: Place, offset: int, ports: Ports) -> Stall:
    record = next(_records(reader, {place: offset}, ports), None)
    if record is None:
        return Stall(*place, offset, -1, "")
    _, time_ms = record.timestamp()
    return Stall(*place, offset, time_ms, _transaction_id(record))


def _records(reader: Reader, starts: Mapping[Place, int], ports: Ports) -> Iterator[Any]:
    """Yield records from offsets to the ends of their partitions, for at most `READ_S`."""
    left = set(starts)
    if not left:
        return
    reader.read_from(starts)
    deadline = ports.clock.monotonic() + READ_S
    while left and ports.clock.monotonic() < deadline:
        record = reader.poll(0.1)
        if record is None:
            continue
        error = record.error()
        if error is None:
            yield record
            continue
        failure = failure_of(error)
        if failure.code != Code.PARTITION_EOF:
            raise KafkaFailure(failure.code, failure.text)
        left.discard((record.topic(), record.partition()))


def _half_of(record: Any) -> Any:
    try:
        metadata, _ = parse_half(headers_of(record))
    except DecodeError:
        return None
    return metadata


def _transaction_id(record: Any) -> str:
    """Return the transaction that a record of the daemon's kafka_txn is about; empty for none."""
    half = _half_of(record)
    if half is not None:
        return str(half.transaction_id)
    try:
        named = dict(headers_of(record) or ()).get(TRANSACTION_ID)
        if named is not None:
            return named.decode("utf-8", "replace")
        return OP.decode(record.value() or b"").transaction_id
    except DecodeError:
        return ""


@contextmanager
def _reader(ports: Ports, common: Mapping[str, Any]) -> Iterator[Reader]:
    reader = ports.kafka.reader(
        {
            **common,
            "group.id": "halfbridge-admin",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        yield reader
    finally:
        ports.run.let_go(reader)
