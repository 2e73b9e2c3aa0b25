"""Reads a little of a log: a bounded number of records, for a bounded time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Edge
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, parse_half

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.kafka.ports import Admin, Place, Ports, Reader

ENDS_S = 10.0  # a partition without a leader is a finding, and not waited for longer
READ_S = 5.0  # doctor goes on; a partition that was not read to its end by then is judged in part
_POLL_S = 0.1  # at most so much longer than READ_S a read takes
# Newest records of each partition that are looked at.
RECORDS_MAX = 200


def newest_starts(admin: Admin, places: Sequence[Place]) -> dict[Place, int]:
    """Return where the newest RECORDS_MAX records of each partition begin, empty ones left out.

    Raises:
        KafkaFailure: ends are not told.
    """
    firsts = ends_of(admin, places, Edge.START)
    ends = {place: end for place, end in ends_of(admin, places, Edge.END).items() if end > 0}
    return {place: max(firsts[place], end - RECORDS_MAX) for place, end in ends.items()}


def ends_of(admin: Admin, places: Sequence[Place], edge: Edge) -> dict[Place, int]:
    """Return one end of each partition.

    Raises:
        KafkaFailure: an end is not told.
    """
    if not places:
        return {}
    answers = admin.ask_ends(places, edge, ENDS_S)
    return {place: answer.result() for place, answer in answers.items()}


def records_of(reader: Reader, starts: Mapping[Place, int], ports: Ports) -> Iterator[Any]:
    """Yield records from offsets to the ends of their partitions, for at most `READ_S`.

    Raises:
        KafkaFailure: a partition cannot be read.
    """
    left = set(starts)
    if not left:
        return
    reader.read_from(starts)
    deadline = ports.clock.monotonic() + READ_S
    while left and ports.clock.monotonic() < deadline:
        record = reader.poll(_POLL_S)
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


def half_of(record: Any) -> Any:
    """Return the half metadata of a record; None: the record has none that can be read."""
    try:
        metadata, _ = parse_half(headers_of(record))
    except DecodeError:
        return None
    return metadata


@contextmanager
def reading(ports: Ports, common: Mapping[str, Any]) -> Iterator[Reader]:
    """Give a reader without a group, which sees open and aborted kafka_txns too."""
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
