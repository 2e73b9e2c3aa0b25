"""An outbox table in PostgreSQL with a polling relay, as most Python services do it today.

PostgreSQL with fsync, the broker and the consumer of `halfbridge bench`, a relay and a writer, each
a process of its own.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.rivals.workload import PIPELINED, WARM_MESSAGES, WARM_THREADS, Outcome, warm_up
from halfbridge.bench.load import lead_in
from halfbridge.bench.procfs import usage_of
from halfbridge.bench.result import per_second
from halfbridge.bench.scene import facts
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import TopicShape
from halfbridge.testkit.broker import EmbeddedBroker
from tests.sql.servers import PostgresServer, Template

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from halfbridge.bench.load import BenchConfig
    from halfbridge.testkit.children import Child, Children

_WORKLOAD_S_MAX = 600.0
_TABLE = """
    CREATE TABLE outbox (
        id BIGSERIAL PRIMARY KEY, topic TEXT NOT NULL, key BYTEA, payload BYTEA NOT NULL
    )
"""


class Outbox:
    """Database, broker and relay.

    Args:
        children: Starts the processes, and ends them.
        directory: Not used: database and broker have directories of their own.
        say: Called with lines about the progress.
    """

    name = "outbox, relay"

    def __init__(self, children: Children, directory: Path, say: Callable[[str], None]) -> None:
        self._children, self._say = children, say
        self._stack = ExitStack()
        self._runs = 0

    def start(self) -> None:
        self._say("starting PostgreSQL and a broker")
        template = self._stack.enter_context(closing(Template(PostgresServer)))
        self._server = self._stack.enter_context(PostgresServer(template, durable=True))
        self._broker = self._stack.enter_context(EmbeddedBroker())
        database = self._server.create_database()
        self._url = self._server.url(database).replace("+psycopg", "")
        with self._server.administrator(database) as connection:
            connection.exec_driver_sql("SET ROLE service")
            connection.exec_driver_sql(_TABLE)
        self._relay = self._start(
            "relay", "benchmarks.rivals.outbox_relay", self._url, self._broker.bootstrap_servers
        )

    def close(self) -> None:
        self._stack.close()

    def warm_up(self, config: BenchConfig) -> None:
        self._say("warming up")
        warm = replace(config, messages=WARM_MESSAGES, threads=WARM_THREADS)
        warm_up(lambda: self._measure(warm))

    def run(self, name: str, config: BenchConfig) -> Outcome | None:
        """Return the figures of a workload; None: a commit of a database cannot be pipelined."""
        return None if name == PIPELINED else self._measure(config)

    def _measure(self, config: BenchConfig) -> Outcome:
        self._runs += 1
        servers, topic = self._broker.bootstrap_servers, f"outbox-{self._runs}"
        config = replace(config, bootstrap_servers=servers, real_topic=topic)
        shape = TopicShape(topic, config.partitions, ())
        Cluster(servers).create(shape, replication_factor=1)
        consumer = self._start(
            f"consumer-{self._runs}", "halfbridge.bench.roles", "consumer", config.to_json()
        )
        before = self._cpu_s()
        writer = self._start(
            f"writer-{self._runs}", "benchmarks.rivals.outbox_writer", self._url, config.to_json()
        )
        self._wait("the writer", lambda: bool(facts(writer)))
        self._wait("the consumer", lambda: self._seen(consumer) >= config.messages)
        used_s = self._cpu_s() - before + usage_of(writer.process.pid).cpu_s
        self._children.stop(writer)
        self._children.stop(consumer)
        seen: dict[str, Any] = facts(consumer)[-1]
        return Outcome(
            transactions_per_s=per_second(
                seen["measured"], facts(writer)[0]["first_ns"], seen["last_ns"]
            ),
            p50=seen["latency"]["p50"],
            p99=seen["latency"]["p99"],
            lost=config.messages - seen["measured"],
            duplicates=seen["duplicates"],
            cpu_us_per_tx=used_s * 1e6 / (config.messages + lead_in(config.rate)),
        )

    def _seen(self, consumer: Child) -> int:
        found = facts(consumer)
        return int(found[-1]["measured"]) if found else 0

    def _cpu_s(self) -> float:
        server = self._server._process
        processes = (server and server.pid, self._broker.process_id, self._relay.process.pid)
        return sum(usage_of(each).cpu_s for each in processes if each)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        self._children.wait_until(ready, what=what, timeout_s=_WORKLOAD_S_MAX)

    def _start(self, name: str, module: str, *words: str) -> Child:
        return self._children.start(name, (sys.executable, "-m", module, *words))
