"""An independent witness: reads topics from offset zero, `read_committed`, without a group.

`read_all` reads to the end once. `python -m halfbridge.testkit.reader` reads live into a file
(JSON lines) until SIGTERM, then to the log ends at that moment, and exits 0 only if it reached
them. On SIGUSR1 it writes its threads' stacks and its client's statistics to standard error.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.ends import Ends
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import SerdeError
from halfbridge.testkit.history import ReadOp, ReadRecord, from_hex, to_hex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from halfbridge.kafka.ports import Record, TopicPartition

_BATCH_MAX = 2000  # records at a time
_POLL_S = 0.1  # how late a stop is seen
_METADATA_S = 20.0  # a broker that has just started may need seconds
_REFRESH_S = 1.0  # how often the number of partitions is read
# The answer of a broker that does not know a new topic yet; for a deleted topic nothing comes.
_NOT_KNOWN_YET = Code.UNKNOWN_TOPIC_OR_PART
_STATISTICS_MS = 5_000  # the maximum age of the statistics that SIGUSR1 writes
READ_S_MAX = 60.0  # a test's or demo's topics are small; longer means that something hangs


class TopicReader:
    """Reads every partition of existing topics, later partitions too, from offset zero."""

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        self._topics = topics
        self._reached: dict[TopicPartition, int] = {}
        self._astray: set[TopicPartition] = set()  # partitions whose log start must be requested
        self._refresh_at = 0.0
        self.statistics = ""  # the client's newest, JSON
        kafka, servers = system_ports().kafka, {"bootstrap.servers": bootstrap_servers}
        self._admin = kafka.admin(servers)
        self._reader = kafka.reader(
            {
                **servers,
                "group.id": "halfbridge-witness",  # required by the client, never joined
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "statistics.interval.ms": _STATISTICS_MS,
                "stats_cb": self._take_statistics,
            }
        )
        self._refresh_until_known()

    def close(self) -> None:
        """Leave the cluster."""
        self._reader.close()

    def poll(self) -> list[ReadRecord]:
        """Return the records that come within 0.1 s.

        Raises KafkaFailure: it cannot read on; the test's author finds out why.
        """
        if time.monotonic() >= self._refresh_at:
            with suppress(KafkaFailure):  # brokers are unreachable: it reads known partitions
                self._refresh(_REFRESH_S)
            self._refresh_at = time.monotonic() + _REFRESH_S
        first = self._reader.poll(_POLL_S)
        taken = [] if first is None else [first, *self._reader.take(_BATCH_MAX - 1)]
        records = []
        for each in taken:
            if each.error() is None:
                records.append(_record(each))
                self._reached[_place(each)] = (each.offset() or 0) + 1
            else:
                self._take_error(each)
        return records

    def drain(self, timeout_s: float = READ_S_MAX) -> Iterator[list[ReadRecord]]:
        """Yield batches up to the log ends at the time of the call.

        Raises:
            TimeoutError: they were not reached in time; an open kafka_txn may hold them back; the
                test's author finds out why.
        """
        self._refresh_until_known()
        deadline = time.monotonic() + timeout_s
        ends = self._ends(deadline)
        while any(self._reached[place] < end for place, end in ends.items()):
            if time.monotonic() > deadline:
                late = {p: (self._reached[p], e) for p, e in ends.items() if self._reached[p] < e}
                raise TimeoutError(f"ends not reached within {timeout_s:g} s: {late}")
            yield self.poll()

    def _take_error(self, record: Record) -> None:
        failure, place = failure_of(record.error()), _place(record)
        if failure.code == Code.PARTITION_EOF:
            # The end may lie behind a transaction marker, which no consumer receives.
            self._reached[place] = max(record.offset() or 0, self._reached[place])
        elif failure.code == Code.AUTO_OFFSET_RESET:
            self._astray.add(place)  # its log does not begin with 0
            self._refresh_at = 0.0
        elif failure.code != _NOT_KNOWN_YET and not failure.is_retriable:
            raise failure

    def _ends(self, deadline: float) -> dict[TopicPartition, int]:
        """Return high watermarks: an open kafka_txn must be waited for, not overlooked."""
        ends: dict[TopicPartition, int] = {}
        while missing := [place for place in self._reached if place not in ends]:
            ends |= Ends(self._admin, missing, _METADATA_S).answers()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no broker tells where {missing} end")
        return ends

    def _refresh_until_known(self) -> None:
        """Refresh until the broker that answers knows every topic."""
        deadline = time.monotonic() + _METADATA_S
        while True:
            try:
                return self._refresh()
            except KafkaFailure as failure:
                if failure.code != _NOT_KNOWN_YET or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _refresh(self, timeout_s: float = _METADATA_S) -> None:
        """Also read the partitions that are new since the last refresh, from offset 0 on."""
        seen = self._admin.topics(timeout_s)
        for topic in self._topics:
            if topic not in seen:
                raise KafkaFailure(_NOT_KNOWN_YET, f"no topic {topic}")
        found = [(topic, each) for topic in self._topics for each in range(seen[topic].partitions)]
        fresh = {place: 0 for place in found if place not in self._reached}
        begins = {place: self._reader.ends(place, timeout_s)[0] for place in self._astray}
        if fresh or begins:
            for place, begin in begins.items():
                self._reached[place] = max(self._reached[place], begin)
            self._reached |= fresh
            self._astray.clear()
            self._reader.read_from(self._reached)

    def _take_statistics(self, statistics: str) -> None:
        self.statistics = statistics


def read_all(
    bootstrap_servers: str, topics: Sequence[str], *, timeout_s: float = READ_S_MAX
) -> list[ReadRecord]:
    """Return every committed record of `topics`, per partition in offset order.

    Raises:
        TimeoutError: the ends were not reached; an open kafka_txn may hold them back; the test's
            author finds out why.
        KafkaFailure: a topic is missing or cannot be read; the test's author corrects its name, or
            the rights.
    """
    witness = TopicReader(bootstrap_servers, topics)
    try:
        return [record for batch in witness.drain(timeout_s) for record in batch]
    finally:
        witness.close()


def read_ops(records: Iterable[ReadRecord]) -> list[ReadOp]:
    """Return the ops among records of the op topic; undecodable records are left out."""
    ops = []
    for record in records:
        try:
            op = OP.decode(record.value or b"")
        except SerdeError:
            continue
        ops.append(ReadOp(partition=record.partition, offset=record.offset, op=op))
    return ops


def load_records(path: Path, *, offset: int = 0) -> tuple[list[ReadRecord], int]:
    """Return the records that a live reader wrote from byte `offset` on, and the next offset.

    A line that is still being written is left for the next call.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [_from_line(line) for line in whole.splitlines()], offset + len(whole)


def main(arguments: Sequence[str]) -> int:
    """Read live into a file until SIGTERM; return 0 when the end was reached."""
    parser = argparse.ArgumentParser(prog="reader")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topics", required=True, help="separated by commas")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args(arguments)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    witness = TopicReader(options.bootstrap_servers, options.topics.split(","))
    signal.signal(signal.SIGUSR1, lambda *_: sys.stderr.write(f"{witness.statistics}\n"))
    # Also this: while the client blocks the main thread, the handler above does not run.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
    try:
        with options.out.open("w", encoding="utf-8") as out:
            while not stopping:
                _write(out, witness.poll())
            for batch in witness.drain():
                _write(out, batch)
    except TimeoutError as error:
        sys.stderr.write(f"reader: {error}\n")
        return 1
    finally:
        witness.close()
    return 0


def _place(record: Record) -> TopicPartition:
    return record.topic() or "", record.partition() or 0


def _record(record: Record) -> ReadRecord:
    topic, partition = _place(record)
    return ReadRecord(
        topic=topic,
        partition=partition,
        offset=record.offset() or 0,
        key=record.key(),
        value=record.value(),
        headers=tuple(record.headers() or ()),
    )


def _write(out: Any, records: list[ReadRecord]) -> None:
    for record in records:
        headers = [(name, to_hex(content)) for name, content in record.headers]
        row = (record.topic, record.partition, record.offset, to_hex(record.key))
        out.write(json.dumps([*row, to_hex(record.value), headers]) + "\n")
    out.flush()


def _from_line(line: bytes) -> ReadRecord:
    topic, partition, offset, key, value, headers = json.loads(line)
    return ReadRecord(
        topic=topic,
        partition=partition,
        offset=offset,
        key=from_hex(key),
        value=from_hex(value),
        headers=tuple((name, from_hex(content)) for name, content in headers),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
