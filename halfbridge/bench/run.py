"""One bench run: starts the processes, warms them up, measures, and ends all processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from halfbridge.bench.client import PRODUCER_GROUP
from halfbridge.bench.procfs import usage_of
from halfbridge.bench.result import BenchResult, Latency, Usage, per_second
from halfbridge.bridge.kafka.deletion import delete_groups, delete_topics
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, TopicShape, wanted_topics
from halfbridge.checker.admin.topics import create_topics, plan_layout
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.children import ChildFailedError, Children, Interrupts
from halfbridge.testkit.jars import broker_jars

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bench.config import BenchConfig
    from halfbridge.checker.admin.shape import Layout
    from halfbridge.testkit.children import Child

_START_S_MAX = 30.0
_PLAIN_S_MAX = 120.0
_SILENCE_S_MAX = 30.0  # a dead worker's kafka_txn holds back readers for 20 s


def run_bench(config: BenchConfig, *, say: Callable[[str], None]) -> BenchResult:
    """Run one bench, and return its figures. Its processes and topics are removed.

    Args:
        config: Configuration of the run; without bootstrap_servers a broker is started.
        say: Called with lines about the progress.

    Raises:
        ChildFailedError: A process ended by itself; its last output is in the message.
        InterruptedRunError: SIGINT, SIGTERM or SIGHUP was received.
        BridgeError: The given cluster cannot be used; the operator must act.
    """
    if not config.bootstrap_servers:
        broker_jars()  # may take minutes the first time; Ctrl-C interrupts it
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        directory = Path(tempfile.mkdtemp(prefix="halfbridge-bench-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        run = uuid.uuid4().hex[:8]
        config = replace(
            config, real_topic=f"halfbridge-bench-{run}", plain_topic=f"halfbridge-plain-{run}"
        )
        if config.bootstrap_servers:
            config = replace(config, topic_prefix=f"bench-{run}.")
        else:
            say("starting a real Kafka broker")
            broker = stack.enter_context(EmbeddedBroker())
            config = replace(config, bootstrap_servers=broker.bootstrap_servers)
        layout = _make_topics(config)
        if config.topic_prefix:
            stack.callback(_delete_topics, config, layout)
        children = stack.enter_context(Children(directory, interrupts=interrupts))
        bench = _Bench(config=config, children=children, directory=directory, say=say)
        return bench.run()


def _make_topics(config: BenchConfig) -> Layout:
    cluster = Cluster(config.bootstrap_servers)
    layout = plan_layout(
        cluster,
        partitions=config.partitions,
        replication_factor=None,
        producer_groups=(PRODUCER_GROUP,),
        retention_ms=HALF_RETENTION_MS,
    )
    create_topics(cluster, TopicNames(config.topic_prefix), layout)
    for topic in (config.real_topic, config.plain_topic):
        shape = TopicShape(topic, config.partitions, ())
        cluster.create(shape, replication_factor=layout.replication_factor)
    return layout


def _delete_topics(config: BenchConfig, layout: Layout) -> None:
    names = TopicNames(config.topic_prefix)
    internal = {shape.name for shape in wanted_topics(names, layout)}
    mine = internal | {config.real_topic, config.plain_topic}
    delete_topics(config.bootstrap_servers, mine.__contains__)
    delete_groups(config.bootstrap_servers, [names.daemon_group])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """The processes of one run, and the steps in order."""

    config: BenchConfig
    children: Children
    directory: Path
    say: Callable[[str], None]

    def run(self) -> BenchResult:
        daemon = self._start_daemon()
        consumer = self._start("consumer", "halfbridge.bench.consumer")
        client = self._start("client", "halfbridge.bench.client")
        self.say(f"warming up for {self.config.warmup_s:g} s")
        warm = self._await_fact(client, "warm", timeout_s=self.config.warmup_s + _START_S_MAX)
        if self._await_seen(consumer, "warm", warm["warm"]) < warm["warm"]:
            raise ChildFailedError(f"the warm-up was not delivered\n{daemon.last_words()}")
        plain = [self._measure_plain("before")]
        self.say(f"measuring {self.config.messages} transactions")
        before = (usage_of(client.process.pid), usage_of(daemon.process.pid))
        client.process.send_signal(signal.SIGUSR1)
        done = self._await_fact(client, "committed", timeout_s=self._time_max_s())
        if self._await_seen(consumer, "measured", done["committed"]) < done["committed"]:
            self.say(
                f"not every message arrived; the checker's last output:\n{daemon.last_words()}"
            )
        after = (usage_of(client.process.pid), usage_of(daemon.process.pid))
        client.process.send_signal(signal.SIGUSR1)
        plain.append(self._measure_plain("after"))
        self.children.stop(consumer)
        seen = _facts(consumer)[-1]
        return BenchResult(
            transactions_per_s=per_second(seen["measured"], done["first_send_ns"], seen["last_ns"]),
            latency=Latency(**seen["latency"]),
            lost=max(0, self.config.messages - seen["measured"]),
            duplicates=seen["duplicates"],
            plain_produce_per_s=fmean(plain),
            client=_used(before[0], after[0]),
            checker=_used(before[1], after[1]),
            config=self.config,
        )

    def _time_max_s(self) -> float:
        slowest_per_s = self.config.rate or 200.0
        return self.config.messages / slowest_per_s * 2 + _START_S_MAX

    def _start_daemon(self) -> Child:
        settings = {
            "HALFBRIDGE_BOOTSTRAP_SERVERS": self.config.bootstrap_servers,
            "HALFBRIDGE_TOPIC_PREFIX": self.config.topic_prefix,
            "HALFBRIDGE_STATE_DIR": str(self.directory),
            "HALFBRIDGE_LEAVE": "true",  # so that the group can be deleted at the end
        }
        command = ("halfbridge", "checker", "run", "--workers", str(self.config.workers))
        return self.children.start(
            "checker", (sys.executable, "-m", *command), environ={**os.environ, **settings}
        )

    def _start(self, name: str, module: str) -> Child:
        return self.children.start(name, (sys.executable, "-m", module, self.config.to_json()))

    def _measure_plain(self, when: str) -> float:
        self.say(f"measuring plain produce ({when})")
        plain = self._start(f"plain-{when}", "halfbridge.bench.plain")
        per_s: float = self._await_fact(plain, "per_s", timeout_s=_PLAIN_S_MAX)["per_s"]
        self.children.stop(plain)
        return per_s

    def _await_fact(self, child: Child, key: str, *, timeout_s: float) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def is_said() -> bool:
            found[:] = [fact for fact in _facts(child) if key in fact]
            return bool(found)

        self.children.wait_until(is_said, what=f"{child.name}: {key}", timeout_s=timeout_s)
        return found[-1]

    def _await_seen(self, consumer: Child, key: str, count: int) -> int:
        """Return how many messages were seen, when `count` were or none came for long."""
        best, since = -1, time.monotonic()

        def is_over() -> bool:
            nonlocal best, since
            facts = _facts(consumer)
            seen = facts[-1][key] if facts else 0
            if seen > best:
                best, since = seen, time.monotonic()
            return seen >= count or time.monotonic() - since > _SILENCE_S_MAX

        self.children.wait_until(is_over, what=f"consumer: {key}", timeout_s=self._time_max_s())
        return best


def _facts(child: Child) -> list[dict[str, Any]]:
    data = child.output.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _used(before: Usage, after: Usage) -> Usage:
    return Usage(after.cpu_s - before.cpu_s, after.rss_mb_max)
