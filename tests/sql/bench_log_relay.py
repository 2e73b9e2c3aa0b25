"""How fast a relay by the log is, beside the one that polls: `python -m tests.sql.bench_log_relay`.

`relay run --table`, which reads the log, and `relay run`, which looks at the local message table,
in turn, on PostgreSQL and on MariaDB. Database, broker, daemon, relay, writer and reader on this
machine. Rate: rows of one commit, from that commit to the last one visible to a read_committed
consumer. Latency: one row a transaction at a steady rate, from the commit to the consumer.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sqlalchemy import Column, Integer, LargeBinary, MetaData, String, Table, create_engine, text

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.stack import HalfbridgeStack
from tests.sql.bench_relay import BODY, END_S_MAX, KEYS, PARTITIONS, WARM_ROWS, Reader
from tests.sql.servers import MariaDbServer, PostgresServer, Template

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("log", "polling")
MAPPING = 'topic = "%s"\nkey_column = "customer"\nvalue_column = "body"\n'


class Bench:
    """One relay's measurements, in a database and a topic of its own.

    Args:
        url: Of an empty database.
        stack: Kafka and the daemon.
        kind: log or polling.
    """

    def __init__(self, url: str, stack: HalfbridgeStack, kind: str) -> None:
        self._engine = create_engine(url)
        self._url, self._stack, self._kind = url, stack, kind
        self._topic = stack.create_topic(f"bench-{kind}-{time.time_ns()}", partitions=PARTITIONS)
        self._messages = LocalMessages(self._engine)
        self._table = Table(
            "orders",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("customer", String(20)),
            Column("body", LargeBinary(1_000)),
        )
        self._next = 0
        if kind == "polling":
            self._messages.create()
        else:
            self._table.metadata.create_all(self._engine)

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
        with self._engine.begin() as connection:
            if self._kind == "polling":
                self._messages.add_all(
                    connection,
                    [Message(self._topic, key=_key(each), value=_body(each)) for each in numbers],
                )
            else:
                connection.execute(
                    self._table.insert(),
                    [
                        {"id": each, "customer": _key(each).decode(), "body": _body(each)}
                        for each in numbers
                    ],
                )
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
        stack = self._stack
        words = ["-m", "halfbridge", "relay", "run", "--url", self._url]
        words += ["--bootstrap-servers", stack.bootstrap_servers]
        words += ["--topic-prefix", stack.topic_prefix]
        words += ["--producer-group", f"bench-{time.time_ns()}"]
        with TemporaryDirectory() as directory:
            if self._kind == "log":
                mapping = Path(directory) / "mapping.toml"
                mapping.write_text(MAPPING % self._topic)
                words += ["--table", "orders", "--map", str(mapping), "--begin-at", "snapshot"]
            process = subprocess.Popen(
                [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
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
    parser.add_argument("--bootstrap-servers", default="")
    given = vars(parser.parse_args())
    runs, bootstrap = given.pop("runs"), given.pop("bootstrap_servers")
    told: dict[str, dict[str, float]] = {}
    with HalfbridgeStack(bootstrap) as stack:
        for server_kind in (PostgresServer, MariaDbServer):
            results: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            with ExitStack() as servers:
                template = servers.enter_context(closing(Template(server_kind)))
                server = servers.enter_context(server_kind(template, durable=True))
                for _ in range(runs):
                    for kind in KINDS:
                        url = server.url(server.create_database())
                        results[kind].append(Bench(url, stack, kind).run(**given))
                        print(server.name, kind, json.dumps(results[kind][-1]), flush=True)  # noqa: T201
            for kind, runs_of in results.items():
                told[f"{server_kind.name} {kind}"] = {
                    name: round(median(each[name] for each in runs_of), 1) for name in runs_of[0]
                }
    print(json.dumps(told))  # noqa: T201


def _key(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


def _body(number: int) -> bytes:
    return b"%010d" % number + BODY[10:]


if __name__ == "__main__":
    main()
