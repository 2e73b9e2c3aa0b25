"""An independent witness: reads topics from offset zero, `read_committed`, without a group.

`read_all` reads to the end once. `python -m halfbridge.testkit.reader` reads live into a file
(JSON lines) until SIGTERM, then on to the end of that moment, and exits 0 only if it got there.
SIGUSR1 has it write to standard error where its threads are, and its client's statistics.
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

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from halfbridge.serde.avro import OP
from halfbridge.serde.errors import SerdeError
from halfbridge.testkit.history import ReadOp, ReadRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_BATCH_MAX = 2000
_POLL_S = 0.1
_METADATA_S = 20.0
_LOOK_S = 1.0  # how often it looks whether a topic has grown
# A broker says so that has not heard of a new topic; of one that was deleted, nothing comes.
_NOT_KNOWN_YET = KafkaError.UNKNOWN_TOPIC_OR_PART
_STATISTICS_MS = 5_000
READ_S_MAX = 60.0  # a test's or demo's topics are small; longer means that something hangs


class Witness:
    """Reads every partition of some topics from offset zero, those that are added later too.

    Args:
        bootstrap_servers: Where the cluster is.
        topics: Topics that exist.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        self._bootstrap = bootstrap_servers
        self._topics = topics
        self._reached: dict[tuple[str, int], int] = {}
        self._look_at = 0.0
        self.statistics = ""  # the client's newest, JSON
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
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
        self._look_again()

    def close(self) -> None:
        """Leave the cluster."""
        self._consumer.close()

    def poll(self) -> list[ReadRecord]:
        """Return what came within a tenth of a second.

        Raises:
            KafkaException: a topic cannot be read on; the test or demo has failed.
        """
        if time.monotonic() >= self._look_at:
            with suppress(KafkaException):  # brokers are out of reach: it reads what it knows
                self._look(_LOOK_S)
            self._look_at = time.monotonic() + _LOOK_S
        records = []
        for message in self._consumer.consume(_BATCH_MAX, _POLL_S):
            error = message.error()
            place = (str(message.topic()), int(message.partition() or 0))
            offset = int(message.offset() or 0)
            if error is None:
                records.append(_record(message))
                self._reached[place] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                # The end may lie behind a transaction marker, which no consumer is handed.
                self._reached[place] = max(offset, self._reached[place])
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # as above
                # A leader that does not know the topic yet was asked where the log begins.
                self._begin_with(place)
            elif error.code() != _NOT_KNOWN_YET and not error.retriable():
                raise KafkaException(error)
        return records

    def drain(self, timeout_s: float = READ_S_MAX) -> Iterator[list[ReadRecord]]:
        """Yield batches until the log ends of this moment are reached.

        Raises:
            TimeoutError: they were not reached in time; an open kafka_txn may hold them back.
        """
        self._look_again()
        ends = _ends(self._bootstrap, list(self._reached))
        deadline = time.monotonic() + timeout_s
        while any(self._reached[place] < end for place, end in ends.items()):
            if time.monotonic() > deadline:
                late = {p: (self._reached[p], e) for p, e in ends.items() if self._reached[p] < e}
                raise TimeoutError(f"ends not reached within {timeout_s:g} s: {late}")
            yield self.poll()

    def _look_again(self) -> None:
        """Look until the broker that is asked has heard of every topic."""
        deadline = time.monotonic() + _METADATA_S
        while True:
            try:
                return self._look()
            except KafkaException as error:
                if error.args[0].code() != _NOT_KNOWN_YET or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _look(self, timeout_s: float = _METADATA_S) -> None:
        """Read on with the partitions that are new since the last look."""
        found = _partitions(self._consumer, self._topics, timeout_s)
        fresh = [place for place in found if place not in self._reached]
        if fresh:
            self._consumer.incremental_assign([_beginning(place) for place in fresh])
        self._reached |= dict.fromkeys(fresh, 0)

    def _take_statistics(self, statistics: str) -> None:
        self.statistics = statistics

    def _begin_with(self, place: tuple[str, int]) -> None:
        """Ask once more where a partition begins, of which nothing was read."""
        self._consumer.incremental_unassign([TopicPartition(*place)])
        self._consumer.incremental_assign([_beginning(place)])


def read_all(
    bootstrap_servers: str, topics: Sequence[str], *, timeout_s: float = READ_S_MAX
) -> list[ReadRecord]:
    """Return every committed record of `topics`, per partition in offset order.

    Raises:
        TimeoutError: the ends were not reached; an open kafka_txn may hold them back.
        KafkaException: a topic is missing or cannot be read.
    """
    witness = Witness(bootstrap_servers, topics)
    try:
        return [record for batch in witness.drain(timeout_s) for record in batch]
    finally:
        witness.close()


def read_ops(records: Iterable[ReadRecord]) -> list[ReadOp]:
    """Return the ops among records of the op topic; what cannot be decoded is junk, left out."""
    ops = []
    for record in records:
        try:
            op = OP.decode(record.value or b"")
        except SerdeError:
            continue
        ops.append(ReadOp(partition=record.partition, offset=record.offset, op=op))
    return ops


def load_records(path: Path, *, offset: int = 0) -> tuple[list[ReadRecord], int]:
    """Return the records that a live reader wrote from byte `offset` on, and where to go on.

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
    witness = Witness(options.bootstrap_servers, options.topics.split(","))
    signal.signal(signal.SIGUSR1, lambda *_: sys.stderr.write(f"{witness.statistics}\n"))
    # Besides: a thread that the client does not let go never comes to run the line above.
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


def _partitions(
    consumer: Consumer, topics: Sequence[str], timeout_s: float
) -> list[tuple[str, int]]:
    found = []
    for topic in topics:
        metadata = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        found += [(topic, partition) for partition in metadata.partitions]
    return found


def _ends(bootstrap_servers: str, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    # Asked read_uncommitted: an open kafka_txn must be waited for, not overlooked.
    asker = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "halfbridge-witness",
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        return {
            place: asker.get_watermark_offsets(TopicPartition(*place), timeout=_METADATA_S)[1]
            for place in places
        }
    finally:
        asker.close()


def _beginning(place: tuple[str, int]) -> TopicPartition:
    return TopicPartition(*place, OFFSET_BEGINNING)


def _record(message: Message) -> ReadRecord:
    headers: Any = message.headers() or ()
    key: Any = message.key()
    value: Any = message.value()
    return ReadRecord(
        topic=str(message.topic()),
        partition=int(message.partition() or 0),
        offset=int(message.offset() or 0),
        key=key,
        value=value,
        headers=tuple(headers),
    )


def _write(out: Any, records: list[ReadRecord]) -> None:
    for record in records:
        headers = [(name, _to_hex(content)) for name, content in record.headers]
        row = (record.topic, record.partition, record.offset, _to_hex(record.key))
        out.write(json.dumps([*row, _to_hex(record.value), headers]) + "\n")
    out.flush()


def _from_line(line: bytes) -> ReadRecord:
    topic, partition, offset, key, value, headers = json.loads(line)
    return ReadRecord(
        topic=topic,
        partition=partition,
        offset=offset,
        key=_from_hex(key),
        value=_from_hex(value),
        headers=tuple((name, _from_hex(content)) for name, content in headers),
    )


def _to_hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
