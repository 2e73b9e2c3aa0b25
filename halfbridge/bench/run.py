"""One bench run: starts the processes, warms them up, measures, and ends all processes.

A `Scene` has what every measurement needs: topics of its own, processes, and the facts that these
print. Suites of the repository (benchmarks/) measure other things in it.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from halfbridge import environment
from halfbridge.bench.procfs import listening_pid, usage_of
from halfbridge.bench.result import BenchResult, Latency, per_second
from halfbridge.bench.roles import PRODUCER_GROUP
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, TopicShape, wanted_topics
from halfbridge.checker.admin.topics import create_topics, plan_layout
from halfbridge.kafka.admin import delete_groups, delete_topics
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.children import ChildFailedError, Children, Interrupts
from halfbridge.testkit.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from halfbridge.bench.load import BenchConfig
    from halfbridge.bench.result import Usage
    from halfbridge.checker.admin.shape import Layout
    from halfbridge.testkit.children import Child

_LOCAL = (HOST, "localhost")
START_S_MAX = 30.0  # a daemon starts in seconds, also while a broker compiles
_SILENCE_S_MAX = 30.0  # a dead worker's kafka_txn holds back readers for 20 s
# Without a rate; slower than this is a failed run. One thread that blocks waits for two
# acknowledgements a transaction, and each takes tens of milliseconds on a machine that is at work.
_SLOWEST_PER_S = 200.0
_SLOWEST_ALONE_PER_S = 10.0  # two acknowledgements of 50 ms
_PLAIN_S_MAX = 120.0  # a run that takes longer has failed
_PLAIN_RATE = 200.0  # of the latency of plain records, where the run has no rate of its own
# Beyond this rate a record waits for the processor, not for the brokers.
_PLAIN_RATE_MAX = 2_000.0
_PLAIN_LATENCY_S = 5.0  # 1,000 records at _PLAIN_RATE: ten above the 99th percentile


def run_bench(config: BenchConfig, *, say: Callable[[str], None]) -> BenchResult:
    """Run one bench, and return its figures. Its processes and topics are removed.

    Without bootstrap_servers a broker is started.

    Raises:
        ChildFailedError: a process ended by itself; the user acts on its last output, which is in
            the message.
        InterruptedRunError: SIGINT, SIGTERM or SIGHUP was received; the user runs it again.
        BridgeError: The given cluster cannot be used; the operator must act.
    """
    with Interrupts() as interrupts, open_brokers(config.bootstrap_servers, say=say) as brokers:
        return measure(config, brokers, interrupts=interrupts, say=say)


def measure(
    config: BenchConfig, brokers: Brokers, *, interrupts: Interrupts, say: Callable[[str], None]
) -> BenchResult:
    """Return the figures of one run on brokers that run already; raises as `run_bench`."""
    with open_scene(config, brokers, interrupts=interrupts, say=say) as scene:
        return measure_in(scene)


def measure_in(scene: Scene) -> BenchResult:
    """Return the figures of one run in a scene."""
    config = scene.config
    daemon = scene.start_daemon()
    consumer = scene.start("consumer", "consumer")
    client = scene.start("client", "client")
    scene.warm_up(consumer, client, daemon)
    plain_latency = _plain_latency(scene) if config.has_plain_latency else None
    plain = _plain_rates(scene, "before")
    scene.say(f"measuring {config.messages} transactions")
    before = scene.used(client, daemon)
    go_on(client)
    done = scene.await_fact(client, "committed", timeout_s=scene.time_s_max())
    if scene.await_seen(consumer, "measured", done["committed"]) < done["committed"]:
        scene.say(f"not every message arrived; the checker's last output:\n{daemon.last_words()}")
    used = scene.used(client, daemon).since(before)
    go_on(client)
    plain += _plain_rates(scene, "after")
    scene.children.stop(consumer)
    seen = facts(consumer)[-1]
    return BenchResult(
        transactions_per_s=per_second(seen["measured"], done["first_send_ns"], seen["last_ns"]),
        latency=Latency(**seen["latency"]),
        lost=max(0, config.messages - seen["measured"]),
        duplicates=seen["duplicates"],
        plain_produce_per_s=fmean(plain) if plain else None,
        plain_latency=plain_latency,
        transactions=done["committed"] + done["lead"],
        client=used.client,
        checker=used.checker,
        broker=used.broker,
        config=config,
    )


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
        return self.children.start("checker", words, environ={**environment.variables(), **environ})

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
            pairs=config.pairs,
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


def make_topics(
    bootstrap_servers: str,
    names: TopicNames,
    real_topics: Iterable[str],
    *,
    pairs: int,
    partitions: int,
    producer_group: str,
) -> Layout:
    """Make an installation of its own and its real topics; return the layout."""
    cluster = Cluster(bootstrap_servers)
    layout = plan_layout(
        cluster,
        partitions=pairs,
        replication_factor=None,
        producer_groups=(producer_group,),
        retention_ms=HALF_RETENTION_MS,
    )
    create_topics(cluster, names, layout)
    for topic in real_topics:
        shape = TopicShape(topic, partitions, ())
        cluster.create(shape, replication_factor=layout.replication_factor)
    return layout


def _plain_rates(scene: Scene, when: str) -> list[float]:
    """Return the rate of a plain producer, if the rate is wanted."""
    if not scene.config.has_plain_rate:
        return []
    scene.say(f"measuring plain produce ({when})")
    plain = scene.start(f"plain-{when}", "plain-rate")
    per_s: float = scene.await_fact(plain, "per_s", timeout_s=_PLAIN_S_MAX)["per_s"]
    scene.children.stop(plain)
    return [per_s]


def _plain_latency(scene: Scene) -> Latency:
    """Return the latency of plain records: the measured run's consumer, a plain producer."""
    rate = min(scene.config.rate or _PLAIN_RATE, _PLAIN_RATE_MAX)
    config = replace(
        scene.config,
        rate=rate,
        messages=int(rate * _PLAIN_LATENCY_S),
        real_topic=_plain_latency_topic(scene.config),
    )
    scene.say(f"measuring plain records at {rate:g}/s")
    consumer = scene.start("plain-consumer", "consumer", config)
    producer = scene.start("plain-latency", "plain-latency", config)
    scene.await_fact(producer, "acknowledged", timeout_s=_PLAIN_S_MAX)
    scene.await_seen(consumer, "measured", config.messages)
    scene.children.stop(consumer)
    scene.children.stop(producer, timeout_s=START_S_MAX)
    return Latency(**facts(consumer)[-1]["latency"])


def _topics_of(config: BenchConfig) -> tuple[str, ...]:
    return config.real_topic, config.plain_topic, _plain_latency_topic(config)


def _plain_latency_topic(config: BenchConfig) -> str:
    """Return the topic of the plain records whose latency is measured."""
    return f"{config.plain_topic}-latency"


def _delete_topics(config: BenchConfig, layout: Layout) -> None:
    names = TopicNames(config.topic_prefix)
    internal = {shape.name for shape in wanted_topics(names, layout)}
    mine = internal | {*_topics_of(config)}
    delete_topics(config.bootstrap_servers, mine.__contains__)
    delete_groups(config.bootstrap_servers, [names.daemon_group])


def _local_pid(bootstrap_servers: str) -> int | None:
    """Return the process id of a single broker of this machine, else None."""
    if "," in bootstrap_servers:
        return None
    host, _, port = bootstrap_servers.rpartition(":")
    return listening_pid(int(port)) if host in _LOCAL and port.isdecimal() else None
