"""What all measurements share: brokers, topics, processes, and the facts that these print."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbridge.bench.procfs import listening_pid, usage_of
from halfbridge.bench.roles import PRODUCER_GROUP
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, TopicShape, wanted_topics
from halfbridge.checker.admin.topics import create_topics, plan_layout
from halfbridge.kafka.admin import delete_groups, delete_topics
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.children import ChildFailedError, Children
from halfbridge.testkit.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from halfbridge.bench.load import BenchConfig
    from halfbridge.bench.result import Usage
    from halfbridge.checker.admin.shape import Layout
    from halfbridge.testkit.children import Child, Interrupts

_LOCAL = (HOST, "localhost")
START_S_MAX = 30.0  # a daemon starts in seconds, also beside a broker that compiles
_SILENCE_S_MAX = 30.0  # a dead worker's kafka_txn holds back readers for 20 s
# Without a rate; slower than this is a failed run. One thread that blocks waits for two
# acknowledgements a transaction, and each takes tens of milliseconds on a machine that is at work.
_SLOWEST_PER_S = 200.0
_SLOWEST_ALONE_PER_S = 10.0  # two acknowledgements of 50 ms


@dataclass(frozen=True, slots=True)
class Brokers:
    """Where brokers answer; `pid` is that of the only broker if it runs on this machine."""

    bootstrap_servers: str
    pid: int | None


@contextmanager
def open_brokers(bootstrap_servers: str, *, say: Callable[[str], None]) -> Iterator[Brokers]:
    """Yield the given brokers; if none are given, a broker that ends with the block.

    Raises:
        BrokerStartError: the broker did not start; the user acts on the last lines of its log,
            which are in the message.
        JarsError, JavaNotFoundError: The user must act.
    """
    if bootstrap_servers:
        yield Brokers(bootstrap_servers, _local_pid(bootstrap_servers))
        return
    say("starting a real Kafka broker")
    with EmbeddedBroker() as broker:
        yield Brokers(broker.bootstrap_servers, broker.process_id)


def _local_pid(bootstrap_servers: str) -> int | None:
    """Return the process id of a single broker of this machine, else None."""
    if "," in bootstrap_servers:
        return None
    host, _, port = bootstrap_servers.rpartition(":")
    return listening_pid(int(port)) if host in _LOCAL and port.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Usage of client, daemon and broker; the broker's is None if the broker is elsewhere."""

    client: Usage
    checker: Usage
    broker: Usage | None

    def since(self, before: Used) -> Used:
        """Return what was used since `before`."""
        return Used(
            client=self.client.since(before.client),
            checker=self.checker.since(before.checker),
            broker=self.broker and before.broker and self.broker.since(before.broker),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An installation of its own for one measurement, and its processes.

    `children` end with the measurement, and `directory`, of the daemon's files, is removed.
    """

    config: BenchConfig
    brokers: Brokers
    children: Children
    directory: Path
    say: Callable[[str], None]

    def start_daemon(self, **settings: str) -> Child:
        """Start `halfbridge checker run`; `settings` are further variables, HALFBRIDGE_..."""
        config = self.config
        environ = {
            "HALFBRIDGE_BOOTSTRAP_SERVERS": config.bootstrap_servers,
            "HALFBRIDGE_TOPIC_PREFIX": config.topic_prefix,
            "HALFBRIDGE_STATE_DIR": str(self.directory),
            "HALFBRIDGE_LEAVE": "true",  # so that the group can be deleted at the end
            **settings,
        }
        command = ("halfbridge", "checker", "run", "--workers", str(config.workers))
        words = (sys.executable, "-m", *command, *config.daemon_arguments)
        return self.children.start("checker", words, environ={**os.environ, **environ})

    def start(self, name: str, role: str, config: BenchConfig | None = None) -> Child:
        """Start a process of `halfbridge.bench.roles`."""
        return self.start_module(name, "halfbridge.bench.roles", role, config=config)

    def start_module(
        self, name: str, module: str, *words: str, config: BenchConfig | None = None
    ) -> Child:
        """Start a module as a process, with the configuration as its last word."""
        given = (config or self.config).to_json()
        return self.children.start(name, (sys.executable, "-m", module, *words, given))

    def await_fact(self, child: Child, key: str, *, timeout_s: float) -> dict[str, Any]:
        """Return the last line of JSON with `key` that a process prints, once there is one."""
        found: list[dict[str, Any]] = []

        def is_said() -> bool:
            found[:] = [fact for fact in facts(child) if key in fact]
            return bool(found)

        self.children.wait_until(is_said, what=f"{child.name}: {key}", timeout_s=timeout_s)
        return found[-1]

    def await_seen(self, consumer: Child, key: str, count: int) -> int:
        """Return how many messages were seen, when `count` were or none came for long."""
        best, since = -1, time.monotonic()

        def is_over() -> bool:
            nonlocal best, since
            found = facts(consumer)
            seen = found[-1][key] if found else 0
            if seen > best:
                best, since = seen, time.monotonic()
            return seen >= count or time.monotonic() - since > _SILENCE_S_MAX

        self.children.wait_until(is_over, what=f"consumer: {key}", timeout_s=self.time_s_max())
        return best

    def warm_up(self, consumer: Child, client: Child, daemon: Child) -> int:
        """Return how many transactions the client's warm-up had, when all are delivered.

        Raises:
            ChildFailedError: they were not; the user acts on the daemon's last output, which is in
                the message.
        """
        warmup_s = self.config.warmup_s
        self.say(f"warming up for {warmup_s:g} s")
        warm: int = self.await_fact(client, "warm", timeout_s=warmup_s + START_S_MAX)["warm"]
        if self.await_seen(consumer, "warm", warm) < warm:
            raise ChildFailedError(f"the warm-up was not delivered\n{daemon.last_words()}")
        return warm

    def pause(self, seconds: float) -> None:
        """Return after some time in which nothing happens."""
        until = time.monotonic() + seconds
        self.children.wait_until(
            lambda: time.monotonic() >= until, what="a pause", timeout_s=2 * seconds + START_S_MAX
        )

    def used(self, client: Child, daemon: Child) -> Used:
        """Return what the processes have used so far."""
        pid = self.brokers.pid
        return Used(
            client=usage_of(client.process.pid),
            checker=usage_of(daemon.process.pid),
            broker=None if pid is None else usage_of(pid),
        )

    def time_s_max(self) -> float:
        """Return how long the measured transactions may take at most."""
        slowest = _SLOWEST_ALONE_PER_S if self.config.threads == 1 else _SLOWEST_PER_S
        return self.config.messages / (self.config.rate or slowest) * 2 + START_S_MAX


@contextmanager
def open_scene(
    config: BenchConfig, brokers: Brokers, *, interrupts: Interrupts, say: Callable[[str], None]
) -> Iterator[Scene]:
    """Yield a scene with new topics; topics and processes are removed at the end."""
    run = uuid.uuid4().hex[:8]
    config = replace(
        config,
        bootstrap_servers=brokers.bootstrap_servers,
        topic_prefix=f"bench-{run}.",
        real_topic=f"halfbridge-bench-{run}",
        plain_topic=f"halfbridge-plain-{run}",
    )
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="halfbridge-bench-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        layout = make_topics(
            config.bootstrap_servers,
            TopicNames(config.topic_prefix),
            _topics_of(config),
            partitions=config.partitions,
            producer_group=PRODUCER_GROUP,
        )
        stack.callback(_delete_topics, config, layout)
        children = stack.enter_context(Children(directory, interrupts=interrupts))
        yield Scene(config=config, brokers=brokers, children=children, directory=directory, say=say)


def go_on(child: Child) -> None:
    """Let a waiting process of the bench start its next part."""
    child.process.send_signal(signal.SIGUSR1)


def facts(child: Child) -> list[dict[str, Any]]:
    """Return the whole lines of JSON that a process has printed so far."""
    data = child.output.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _topics_of(config: BenchConfig) -> tuple[str, ...]:
    return config.real_topic, config.plain_topic, plain_latency_topic(config)


def plain_latency_topic(config: BenchConfig) -> str:
    """Return the topic of the plain records whose latency is measured."""
    return f"{config.plain_topic}-latency"


def make_topics(
    bootstrap_servers: str,
    names: TopicNames,
    real_topics: Iterable[str],
    *,
    partitions: int,
    producer_group: str,
) -> Layout:
    """Make an installation of its own and its real topics; return the layout."""
    cluster = Cluster(bootstrap_servers)
    layout = plan_layout(
        cluster,
        partitions=partitions,
        replication_factor=None,
        producer_groups=(producer_group,),
        retention_ms=HALF_RETENTION_MS,
    )
    create_topics(cluster, names, layout)
    for topic in real_topics:
        shape = TopicShape(topic, partitions, ())
        cluster.create(shape, replication_factor=layout.replication_factor)
    return layout


def _delete_topics(config: BenchConfig, layout: Layout) -> None:
    names = TopicNames(config.topic_prefix)
    internal = {shape.name for shape in wanted_topics(names, layout)}
    mine = internal | {*_topics_of(config)}
    delete_topics(config.bootstrap_servers, mine.__contains__)
    delete_groups(config.bootstrap_servers, [names.daemon_group])
