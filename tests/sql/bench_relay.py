"""How fast the relay is, beside a plain one, on PostgreSQL: `python -m tests.sql.bench_relay`.

Database, broker, daemon, relay, writer and reader on this machine. Rate: rows of one commit, from
that commit to the last one visible to a read_committed consumer. Latency: one row a transaction at
a steady rate, from the commit to the consumer. Both relays in turn, several times, in one run;
before that, runs of the relay that are not counted, for a broker that has just started takes a core
to compile itself and answers late.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from statistics import median, quantiles
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import create_engine, text

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.stack import HalfbridgeStack
from tests.sql.servers import PostgresServer, Template

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = 1_000
BODY = b"x" * 200
PARTITIONS = 2
WARM_ROWS = 2_000
END_S_MAX = 60.0
VISIBLE_S_MAX = 300.0


class Reader:
    """Notes when each row becomes visible."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: dict[int, float] = {}
        self.count = 0
        self._stopping = Event()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "auto.offset.reset": "earliest",
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        """Return once `count` records have been read."""
        deadline = time.monotonic() + VISIBLE_S_MAX
        while self.count < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.count} of {count} records are visible")
            time.sleep(0.001)

    def close(self) -> None:
        """Stop reading."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._stopping.is_set():
            first = self._consumer.poll(0.01)
            now = time.monotonic()
            if first is None:
                continue
            # consume() alone would wait all of its time-out for the records that it may return.
            for record in [first, *self._consumer.consume(1_000, 0)]:
                if record.error() is None:
                    self.seen[int(record.value()[:10])] = now
                    self.count += 1


class Bench:
    """One relay's measurements, on a table and a topic of its own.

    Args:
        url: Of an empty database.
        stack: Kafka and the daemon.
        kind: halfbridge or plain.
    """

    def __init__(self, url: str, stack: HalfbridgeStack, kind: str) -> None:
        self._messages = LocalMessages(create_engine(url))
        self._messages.create()
        self._url, self._stack, self._kind = url, stack, kind
        self._topic = stack.create_topic(f"bench-{kind}-{time.time_ns()}", partitions=PARTITIONS)
        self._next = 0

    def run(self, *, rows: int, rate: int, seconds: int) -> dict[str, float]:
        """Return rows/s, and latencies in milliseconds at `rate` a second."""
        with self._relay(), closing(Reader(self._stack.bootstrap_servers, self._topic)) as reader:
            self._write(WARM_ROWS)
            reader.wait_for(self._next)
            with self._messages.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.execute(text("ANALYZE"))
            began = self._write(rows)
            reader.wait_for(self._next)
            rows_per_s = rows / (max(reader.seen.values()) - began)
            committed = self._write_steadily(rate, seconds)
            reader.wait_for(self._next)
        waits = [(reader.seen[number] - when) * 1_000 for number, when in committed.items()]
        tail = quantiles(waits, n=100)[98]
        return {"rows_per_s": rows_per_s, "p50_ms": median(waits), "p99_ms": tail}

    def _message(self) -> Message:
        number = self._next
        self._next += 1
        value = b"%010d" % number + BODY[10:]
        return Message(self._topic, key=b"key-%d" % (number % KEYS), value=value)

    def _write(self, rows: int) -> float:
        """Write rows in one transaction; return when it committed."""
        with self._messages.engine.begin() as connection:
            self._messages.add_all(connection, [self._message() for _ in range(rows)])
        return time.monotonic()

    def _write_steadily(self, rate: int, seconds: int) -> dict[int, float]:
        """Write one row a transaction; return when each committed."""
        committed = {}
        began = time.monotonic()
        for number in range(rate * seconds):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            first = self._next
            committed[first] = self._write(1)
        return committed

    @contextmanager
    def _relay(self) -> Iterator[None]:
        stack = self._stack
        words = ["-m", "tests.sql.plain_relay", self._url, stack.bootstrap_servers]
        if self._kind == "halfbridge":
            words = ["-c", "from halfbridge.cli import main; main()", "relay", "run"]
            words += ["--url", self._url, "--bootstrap-servers", stack.bootstrap_servers]
            words += ["--topic-prefix", stack.topic_prefix]
            words += ["--producer-group", f"bench-{time.time_ns()}"]
        process = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_S_MAX)


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warmups", type=int, default=3)
    parser.add_argument("--bootstrap-servers", default="")
    given = vars(parser.parse_args())
    runs, warmups = given.pop("runs"), given.pop("warmups")
    bootstrap = given.pop("bootstrap_servers")
    measured: dict[str, list[dict[str, float]]] = {"halfbridge": [], "plain": []}
    with (
        closing(Template(PostgresServer)) as template,
        PostgresServer(template, durable=True) as server,
        HalfbridgeStack(bootstrap) as stack,
    ):
        for _ in range(warmups):
            url = server.url(server.create_database())
            result = Bench(url, stack, "halfbridge").run(**given)
            print("not counted", json.dumps(result), flush=True)  # noqa: T201
        for _ in range(runs):
            for kind, results in measured.items():
                url = server.url(server.create_database())
                results.append(Bench(url, stack, kind).run(**given))
                print(kind, json.dumps(results[-1]), flush=True)  # noqa: T201
    told: dict[str, Any] = {
        kind: {name: round(median(each[name] for each in results), 1) for name in results[0]}
        for kind, results in measured.items()
    }
    pairs = told["halfbridge"], told["plain"]
    told["ratio"] = {name: round(pairs[0][name] / pairs[1][name], 2) for name in pairs[0]}
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main()
