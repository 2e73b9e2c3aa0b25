"""Measures how fast relays are, in turn, several times in one run: `python -m benchmarks.relay`.

`relay run` on the local message table, and a plain outbox relay, on PostgreSQL. Database,
broker, daemon, relay, writer and reader are on this machine. Rate: rows of one commit, from that
commit to the last one visible to a read_committed consumer. Latency: one row a transaction at a
steady rate, from the commit to the consumer. The first runs of the relay are not counted, because
a broker that has just started uses a core to compile itself and answers late.
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
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, text

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.stack import HalfbridgeStack
from tests.kit.reading import reader_of
from tests.kit.waiting import until
from tests.sql.servers import PostgresServer, Template

if TYPE_CHECKING:
    from collections.abc import Iterator

POLLING, PLAIN = "polling", "plain"
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
        self._consumer = reader_of(bootstrap, [topic], partitions=PARTITIONS, fetch_wait_max_ms=5)
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        """Return once `count` records have been read."""
        what = f"{count} records are visible"
        until(what, lambda: self.count >= count, within_s=VISIBLE_S_MAX, every_s=0.001)

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
    """One relay's measurements, in a database and a topic of its own.

    Args:
        url: Of an empty database.
        stack: Kafka and the daemon.
        kind: POLLING or PLAIN.
    """

    def __init__(self, url: str, stack: HalfbridgeStack, kind: str) -> None:
        self._engine = create_engine(url)
        self._url, self._stack, self._kind = url, stack, kind
        self._topic = stack.create_topic(f"bench-{kind}-{time.time_ns()}", partitions=PARTITIONS)
        self._messages = LocalMessages(self._engine)
        self._next = 0
        self._messages.create()

    def run(self, *, rows: int, rate: int, seconds: int) -> dict[str, float]:
        """Return rows/s, and latencies in milliseconds at `rate` a second."""
        self._write(WARM_ROWS)
        with self._relay(), closing(Reader(self._stack.bootstrap_servers, self._topic)) as reader:
            reader.wait_for(self._next)
            self._analyze()
            began = self._write(rows)
            reader.wait_for(self._next)
            rows_per_s = rows / (max(reader.seen.values()) - began)
            committed = self._write_steadily(rate, seconds)
            reader.wait_for(self._next)
        waits = [(reader.seen[number] - when) * 1_000 for number, when in committed.items()]
        tail = quantiles(waits, n=100)[98]
        return {"rows_per_s": rows_per_s, "p50_ms": median(waits), "p99_ms": tail}

    def _write(self, rows: int) -> float:
        """Write rows in one transaction; return when it committed."""
        numbers = range(self._next, self._next + rows)
        self._next += rows
        given = [(n, b"key-%d" % (n % KEYS), b"%010d" % n + BODY[10:]) for n in numbers]
        with self._engine.begin() as connection:
            messages = [Message(self._topic, key=key, value=body) for _, key, body in given]
            self._messages.add_all(connection, messages)
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

    def _analyze(self) -> None:
        with self._engine.connect() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.execute(text("ANALYZE"))

    @contextmanager
    def _relay(self) -> Iterator[None]:
        nothing = subprocess.DEVNULL
        words = [sys.executable, *self._words()]
        process = subprocess.Popen(words, stdout=nothing, stderr=nothing)  # noqa: S603 (our own)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_S_MAX)

    def _words(self) -> list[str]:
        """Return what Python is started with."""
        stack = self._stack
        if self._kind == PLAIN:
            return ["-m", "tests.sql.plain_relay", self._url, stack.bootstrap_servers]
        words = ["-m", "halfbridge", "relay", "run", "--url", self._url]
        words += ["--bootstrap-servers", stack.bootstrap_servers]
        words += ["--topic-prefix", stack.topic_prefix]
        return [*words, "--producer-group", f"bench-{time.time_ns()}"]


def main() -> None:
    """Measure, and print one JSON object: medians, and the first kind's over the second's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warmups", type=int, default=3)
    parser.add_argument("--bootstrap-servers", default="")
    given = vars(parser.parse_args())
    runs, warmups = given.pop("runs"), given.pop("warmups")
    kinds = (POLLING, PLAIN)
    results: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with (
        HalfbridgeStack(given.pop("bootstrap_servers")) as stack,
        closing(Template(PostgresServer)) as template,
        PostgresServer(template, durable=True) as server,
    ):
        for kind in (*[kinds[0]] * warmups, *kinds * runs):
            url = server.url(server.create_database())
            result = Bench(url, stack, kind).run(**given)
            print(server.name, kind, json.dumps(result), flush=True)
            results[kind].append(result)
    del results[kinds[0]][:warmups]
    first, second = (
        {name: median(each[name] for each in results[kind]) for name in results[kind][0]}
        for kind in kinds
    )
    ratio = {name: first[name] / second[name] for name in first}
    reported = {
        f"{PostgresServer.name} {what}": {n: round(f, 2) for n, f in figures.items()}
        for what, figures in zip((*kinds, "ratio"), (first, second, ratio), strict=True)
    }
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
