"""Systems whose local transaction is in PostgreSQL: outbox and relay, outbox and Debezium, fence.

PostgreSQL with fsync, the broker and the consumer of `halfbridge bench`, a writer, and what brings
the messages to their topic, each a process of its own. A local transaction inserts one row.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from benchmarks.rivals.workload import PIPELINED, WARM_MESSAGES, WARM_THREADS, Outcome, warm_up
from halfbridge.bench.load import lead_in
from halfbridge.bench.procfs import usage_of
from halfbridge.bench.result import per_second
from halfbridge.bench.roles import PRODUCER_GROUP
from halfbridge.bench.run import facts, make_topics
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import TopicShape
from halfbridge.serde.topics import TopicNames
from halfbridge.sql import Fence
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.connect import ConnectWorker
from tests.sql.servers import PostgresServer, Template

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from halfbridge.bench.load import BenchConfig
    from halfbridge.testkit.children import Child, Children

_WORKLOAD_S_MAX = 600.0
_OUTBOX = """
    CREATE TABLE outbox (
        id BIGSERIAL PRIMARY KEY, topic TEXT NOT NULL, key BYTEA, payload BYTEA NOT NULL
    )
"""
_WORK = "CREATE TABLE work (id BIGSERIAL PRIMARY KEY, number BIGINT NOT NULL)"
_PREFIX = "rival."


class OnPostgresql(ABC):
    """Database, broker, a writer, and what delivers.

    Args:
        children: Starts the processes, and ends them.
        directory: The daemon's files; database and broker have directories of their own.
        say: Called with lines about the progress.
    """

    name: str
    table: str
    writer: str

    def __init__(self, children: Children, directory: Path, say: Callable[[str], None]) -> None:
        self._children, self._directory, self._say = children, directory, say
        self._stack = ExitStack()
        self._runs = 0

    @abstractmethod
    def _deliver(self, config: BenchConfig) -> Callable[[], int | None]:
        """Start what delivers; return what returns the id of its process."""

    def start(self, config: BenchConfig) -> None:
        self._say("starting PostgreSQL and a broker")
        template = self._stack.enter_context(closing(Template(PostgresServer)))
        self._server = self._stack.enter_context(PostgresServer(template, durable=True))
        self._broker = self._stack.enter_context(EmbeddedBroker())
        database = self._server.create_database()
        self._url = self._server.url(database)
        with self._server.administrator(database) as connection:
            connection.exec_driver_sql("SET ROLE service")
            connection.exec_driver_sql(self.table)
        self._delivers = self._deliver(config)
        self._say("warming up")
        self._warm_up(config)

    def _warm_up(self, config: BenchConfig) -> None:
        warm = replace(config, messages=WARM_MESSAGES, threads=WARM_THREADS)
        warm_up(lambda: self._measure(warm))

    def close(self) -> None:
        self._stack.close()

    def run(self, name: str, config: BenchConfig) -> Outcome | None:
        """Return the figures of a workload; None: a commit of a database cannot be pipelined."""
        return None if name == PIPELINED else self._measure(config)

    def _measure(self, config: BenchConfig) -> Outcome:
        self._runs += 1
        config = self._with_topic(config, f"rival-{self._runs}")
        consumer = self._start(
            f"consumer-{self._runs}", "halfbridge.bench.roles", "consumer", config.to_json()
        )
        before = self._cpu_s()
        writer = self._start(f"writer-{self._runs}", self.writer, self._url, config.to_json())
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

    def _with_topic(self, config: BenchConfig, topic: str) -> BenchConfig:
        """Make a real topic on the broker, and return the config for it."""
        servers = self._broker.bootstrap_servers
        Cluster(servers).create(TopicShape(topic, config.partitions, ()), replication_factor=1)
        return replace(config, bootstrap_servers=servers, real_topic=topic, topic_prefix=_PREFIX)

    def _seen(self, consumer: Child) -> int:
        found = facts(consumer)
        return int(found[-1]["measured"]) if found else 0

    def _cpu_s(self) -> float:
        server = self._server._process
        processes = (server and server.pid, self._broker.process_id, self._delivers())
        return sum(usage_of(each).cpu_s for each in processes if each)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        self._children.wait_until(ready, what=what, timeout_s=_WORKLOAD_S_MAX)

    def _start(self, name: str, module: str, *words: str) -> Child:
        return self._children.start(name, (sys.executable, "-m", module, *words))


class Outbox(OnPostgresql):
    """An outbox table with a polling relay, as most Python services do it today."""

    name = "outbox, relay"
    table = _OUTBOX
    writer = "benchmarks.rivals.outbox_writer"

    def _deliver(self, config: BenchConfig) -> Callable[[], int | None]:
        servers = self._broker.bootstrap_servers
        relay = self._start("relay", "benchmarks.rivals.outbox_relay", self._url, servers)
        return lambda: relay.process.pid


class Debezium(OnPostgresql):
    """The same table; Debezium reads the database's log, and its EventRouter chooses the topic.

    Exactly once, by Kafka Connect's own means. Rows stay in the table: it has no deletes.
    """

    name = "outbox, Debezium"
    table = _OUTBOX
    writer = "benchmarks.rivals.outbox_writer"

    def _deliver(self, config: BenchConfig) -> Callable[[], int | None]:
        self._say("starting Kafka Connect")
        servers = self._broker.bootstrap_servers
        worker = self._stack.enter_context(ConnectWorker(servers))
        worker.rest.apply("outbox", _connector(self._url))
        return lambda: worker.process_id


def _connector(database_url: str) -> dict[str, str]:
    """Return the configuration of Debezium's outbox, with no wait of its own for more rows."""
    url = make_url(database_url)
    router = "transforms.outbox"
    converter = "org.apache.kafka.connect.converters.ByteArrayConverter"
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
        "tasks.max": "1",
        "topic.prefix": "outbox",
        "database.hostname": str(url.host),
        "database.port": str(url.port),
        "database.user": str(url.username),
        "database.dbname": str(url.database),
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.outbox",
        "snapshot.mode": "no_data",
        "poll.interval.ms": "10",  # 500 by default
        "transforms": "outbox",
        f"{router}.type": "io.debezium.transforms.outbox.EventRouter",
        f"{router}.route.by.field": "topic",
        f"{router}.route.topic.replacement": "${routedByValue}",
        f"{router}.table.field.event.key": "key",
        "key.converter": converter,
        "value.converter": converter,
    }


class Fenced(OnPostgresql):
    """halfbridge with a fence: the row of work and the fence row are in the local transaction."""

    name = "halfbridge, fence"
    table = _WORK
    writer = "benchmarks.rivals.fence_writer"

    def _deliver(self, config: BenchConfig) -> Callable[[], int | None]:
        servers = self._broker.bootstrap_servers
        make_topics(
            servers,
            TopicNames(_PREFIX),
            (),
            pairs=config.pairs,
            partitions=config.partitions,
            producer_group=PRODUCER_GROUP,
        )
        engine = create_engine(self._url)
        Fence(engine, producer_group=PRODUCER_GROUP).create()
        engine.dispose()
        environ = {
            "HALFBRIDGE_BOOTSTRAP_SERVERS": servers,
            "HALFBRIDGE_TOPIC_PREFIX": _PREFIX,
            "HALFBRIDGE_STATE_DIR": str(self._directory),
        }
        command = ("-m", "halfbridge", "checker", "run", *config.daemon_arguments)
        daemon = self._children.start(
            "daemon", (sys.executable, *command), environ={**os.environ, **environ}
        )
        return lambda: daemon.process.pid

    def _warm_up(self, config: BenchConfig) -> None:
        """Have the broker compile first, by a pipelined load: the threads' is too thin for that."""
        config = self._with_topic(config, "warm")
        client = self._start("warm", "halfbridge.bench.roles", "client", config.to_json())
        self._wait("the warm-up", lambda: bool(facts(client)))
        self._children.stop(client)
        super()._warm_up(config)
