"""Looks into logs: where an open kafka_txn begins, and who else writes to transaction topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.doctor.facts import PlainRecords, Stall
from halfbridge.checker.admin.doctor.reading import (
    ends_of,
    half_of,
    newest_starts,
    reading,
    records_of,
)
from halfbridge.kafka.ports import Edge
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import TRANSACTION_ID, headers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.kafka.ports import Admin, Place, Ports, Reader

# Between two looks at the last stable offsets: kafka_txns of a worker under load take far less.
STILL_S = 2.0
# Partitions whose ends are asked for; of those that stand still, so many are looked into.
PLACES_MAX = 1_000
STALLS_MAX = 20
PLAIN_PLACES_MAX = 64


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
    with reading(ports, common) as reader:
        return tuple(_stall(reader, place, before[place], ports) for place in still[:STALLS_MAX])


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
    starts = newest_starts(admin, asked)
    found: dict[str, PlainRecords] = {}
    with reading(ports, common) as reader:
        for record in records_of(reader, starts, ports):
            if TRANSACTION_ID in dict(headers_of(record) or ()):
                continue
            before = found.get(record.topic())
            count = 1 if before is None else before.records + 1
            place = (record.topic(), record.partition(), record.offset())
            found[record.topic()] = PlainRecords(*place, count)
    return tuple(found.values())


def _held(admin: Admin, places: Sequence[Place]) -> dict[Place, int]:
    """Return the last stable offset of partitions in which it is below the end."""
    stable = ends_of(admin, places, Edge.STABLE_END)
    ends = ends_of(admin, places, Edge.END)
    return {place: offset for place, offset in stable.items() if offset < ends[place]}


def _stall(reader: Reader, place: Place, offset: int, ports: Ports) -> Stall:
    record = next(records_of(reader, {place: offset}, ports), None)
    if record is None:
        return Stall(*place, offset, -1, "")
    _, time_ms = record.timestamp()
    return Stall(*place, offset, time_ms, _transaction_id(record))


def _transaction_id(record: Any) -> str:
    """Return the transaction that a record of the daemon's kafka_txn is about; empty for none."""
    half = half_of(record)
    if half is not None:
        return str(half.transaction_id)
    try:
        named = dict(headers_of(record) or ()).get(TRANSACTION_ID)
        if named is not None:
            return named.decode("utf-8", "replace")
        return OP.decode(record.value() or b"").transaction_id
    except DecodeError:
        return ""
