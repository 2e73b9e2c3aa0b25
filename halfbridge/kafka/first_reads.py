"""Reads partitions in a child process first, because a damaged record may end the process.

After a batch with a wrong checksum librdkafka (up to 2.16) continues to read at a wrong place, and
the bytes there decide whether it aborts the process, without an error to catch
(docs/evidence/librdkafka-crc-report.md).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.clients import KafkaReader
from halfbridge.kafka.errors import Code
from halfbridge.kafka.making import made_consumer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.kafka.ports import TopicPartition

# Signals by which a process ends because of a crash, and not because another process ends it.
LETHAL = frozenset(
    (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
)
# A child that makes no progress for this time ends; the partition is not suspected by that. As long
# as one question to a broker (checker.loop.clients.QUESTION_S).
_QUIET_S = 10.0
# One child's time. Lower than the client's max.poll.interval.ms (300 s), because a member of a
# group that waits for the child does not poll.
_CHILD_S = 60.0
_RECORDS = 500  # of one call: as max.poll.records of Kafka's own consumer
_POLL_S = 0.1  # how late it is noticed that no record comes
# Exit status: the last partition ended with an error, which the caller's own reader can handle.
_UNREADABLE = 3
_COMMAND = (sys.executable, "-m", "halfbridge.kafka.first_reads")


class LethalRecord(NamedTuple):
    """A place whose records end the process that reads them.

    Attributes:
        offset: The first offset that could not be read.
        signal: The signal that ended the process; empty: the record is only an error.
    """

    topic: str
    partition: int
    offset: int
    signal: str


def probe(
    properties: Mapping[str, Any], starts: Mapping[TopicPartition, int]
) -> LethalRecord | None:
    """Read partitions to their ends in a child process; blocks for at most some minutes.

    `properties` are a consumer's. Return where a record ended the child; None: all was read, or
    could not be tried.
    """
    found = find_damage(properties, starts)
    return found if found is not None and found.signal else None


def find_damage(
    properties: Mapping[str, Any], starts: Mapping[TopicPartition, int]
) -> LethalRecord | None:
    """As `probe`; a record that is only an error is found too."""
    found = _run(properties, [(*place, start) for place, start in starts.items()])
    if found is None or not found.signal:
        return found
    # The child ended while the library parsed a whole answer of a broker. With one batch in each
    # answer the last offset is that of the batch. Alone, the batch may be an error only.
    one_by_one = {**properties, "max.partition.fetch.bytes": 1, "queued.min.messages": 1}
    place = [(found.topic, found.partition, found.offset)]
    exact = _run(one_by_one, place, records=1)
    return found if exact is None else found._replace(offset=exact.offset)


def _run(
    properties: Mapping[str, Any], starts: Iterable[tuple[str, int, int]], records: int = _RECORDS
) -> LethalRecord | None:
    try:
        order = json.dumps(
            {"properties": dict(properties), "starts": list(starts), "records": records}
        )
        child = subprocess.run(  # noqa: S603 (our own interpreter and module)
            _COMMAND,
            input=order.encode(),
            stdout=subprocess.PIPE,
            timeout=_CHILD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, TypeError):  # TypeError: a function `oauth_cb`
        return None
    lines = child.stdout.splitlines()
    topic, partition, offset = json.loads(lines[-1]) if lines else ("", 0, 0)
    if -child.returncode in LETHAL:
        return LethalRecord(topic, partition, offset, signal.Signals(-child.returncode).name)
    return LethalRecord(topic, partition, offset, "") if child.returncode == _UNREADABLE else None


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    order = json.load(sys.stdin)
    properties = {
        "group.id": "halfbridge-tasting",  # never joined; the client demands one
        **order["properties"],
        "check.crcs": True,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
    reader = KafkaReader(made_consumer(properties))
    is_whole = True
    for topic, partition, start in order["starts"]:
        reader.read_from({(topic, partition): start})
        is_whole = _read(reader, topic, partition, start, records=order["records"])
    os._exit(0 if is_whole else _UNREADABLE)  # a client that closes may not return


def _read(reader: KafkaReader, topic: str, partition: int, start: int, *, records: int) -> bool:
    """Read to the present end; return whether there was no error, as far as it was read."""
    at = start
    _report(topic, partition, at)
    # Under load the end moves on, and a reader may never see an end-of-partition event.
    _, end = reader.ends((topic, partition), _QUIET_S)
    until = time.monotonic() + _QUIET_S
    while time.monotonic() < until:
        try:
            for record in _next(reader, records):
                error = record.error()
                if error is None:
                    at = record.offset() + 1
                    if at >= end:
                        return True
                    until = time.monotonic() + _QUIET_S
                elif failure_of(error).code == Code.PARTITION_EOF:
                    return True
                elif record.topic() is not None:
                    return False
        finally:  # once for each batch, because a line costs more than a record
            _report(topic, partition, at)
    return True


def _next(reader: KafkaReader, records_max: int) -> list[Any]:
    """Wait for a record, and return it with those that have come with it."""
    first = reader.poll(_POLL_S)
    if first is None:
        return []
    return [first] if records_max == 1 else [first, *reader.take(records_max - 1)]


def _report(*place: Any) -> None:
    os.write(1, json.dumps(place).encode() + b"\n")


if __name__ == "__main__":
    _main()
