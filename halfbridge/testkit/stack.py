"""Kafka, topics and a running daemon in one object, for the integration tests of a service.

    with HalfbridgeStack() as stack:
        topic = stack.create_topic("orders")
        with stack.producer("order-service", checker=check) as producer:
            ...
        stack.wait_until_decided()
        records = stack.read_committed(topic)

The daemon is a process, as operators run it; `DaemonProgress` reads its progress from the
offsets that its group commits. With pytest use the fixtures `halfbridge_stack` and
`halfbridge_topics` instead.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from halfbridge import environment
from halfbridge.bridge import TransactionProducer
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, TopicShape
from halfbridge.checker.admin.topics import create_topics, plan_layout
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.errors import AdminError
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.admin import delete_topics
from halfbridge.kafka.errors import KafkaFailure
from halfbridge.serde.settings import to_plain
from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.reader import read_all
from halfbridge.testkit.ready import READY_S_MAX
from halfbridge.testkit.source import open_kafka
from halfbridge.testkit.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from halfbridge.bridge import MessageView, Resolution
    from halfbridge.kafka.ports import Committed, TopicPartition
    from halfbridge.serde.topics import TopicNames
    from halfbridge.testkit.history import ReadRecord
    from halfbridge.testkit.memory import MemoryStack

PARTITIONS = 2  # the fewest with which order across partitions is not by chance
WAIT_S_MAX = 120.0  # on a busy machine; a second is usual
_POLL_S = 0.05  # how late a condition is seen; a check is one request
_TRIES_MAX = 5  # of a request to a broker that has just started
_PAUSE_S = 0.5  # between them: 2 s in all
# Tests should not wait six seconds for a check. A daemon on a busy machine should not lose its
# session, either.
_SETTINGS: dict[str, Any] = {
    "transaction_timeout_ms": 1_000,
    "check_interval_ms": 1_000,
    "check_backoff_ms_max": 5_000,
    "session_timeout_ms": 30_000,
    "slot": "testkit",
}
_T = TypeVar("_T")


class Broker(Protocol):
    """A broker that the stack starts and stops: EmbeddedBroker, KafkaContainer and the like."""

    @property
    def bootstrap_servers(self) -> str:
        """Return its address, once it is started."""

    def start(self) -> object:
        """Return when a client gets an answer; leave nothing behind when that fails."""

    def stop(self) -> None:
        """End it."""


class HalfbridgeStack:
    """An installation of its own, with a daemon that serves it. A context manager.

    Kafka is the one at `bootstrap_servers`, or `kafka`, started here; else the one that
    HALFBRIDGE_TEST_BOOTSTRAP names, else one in Docker or the embedded one (see
    `halfbridge.testkit.source.open_kafka`). The daemon is a process on this machine, of the version
    that the tests import. All of it ends with the process that started it, even if that is killed.
    Not thread-safe, but its producers are.

    Args:
        bootstrap_servers: A Kafka that runs already; nothing but this stack's own topics is
            touched, and these are deleted at the end.
        kafka: A broker that starts and ends with the stack instead, such as
            halfbridge.testkit.containers.RedpandaContainer().
        topic_prefix: Prefix of the internal topics; by default a random one.
        partitions: Of the half topic, and of the op topic.
        settings: Any field of halfbridge.checker.config.CheckerConfig, such as check_interval_ms.

    Raises:
        ValueError: bootstrap_servers and kafka are both given; the test's author gives one.
    """

    def __init__(
        self,
        bootstrap_servers: str = "",
        *,
        kafka: Broker | None = None,
        topic_prefix: str = "",
        partitions: int = PARTITIONS,
        **settings: object,
    ) -> None:
        if bootstrap_servers and kafka is not None:
            raise ValueError("give bootstrap_servers or kafka, not both")
        self._given = bootstrap_servers
        self._kafka = kafka
        self._partitions = partitions
        self._prefix = topic_prefix or f"t{secrets.token_hex(4)}-"
        self._settings = {**_SETTINGS, **settings}
        self._environ = environment.variables()
        self._stack = ExitStack()
        self._config: CheckerConfig | None = None
        self._daemon: DaemonProcess | None = None
        self._made: list[str] = []

    @property
    def config(self) -> CheckerConfig:
        """Settings of the daemon. RuntimeError: the stack is not started; the test starts it."""
        if self._config is None:
            raise RuntimeError("this stack is not started; use `with` or start()")
        return self._config

    @property
    def bootstrap_servers(self) -> str:
        """Return the address of Kafka."""
        return self.config.bootstrap_servers

    @property
    def topic_prefix(self) -> str:
        """Return the prefix of the internal topics; clients need it too."""
        return self._prefix

    @property
    def daemon(self) -> DaemonProcess:
        """Return the daemon, to kill it and to start it again; raises as `config`."""
        if self._daemon is None:
            raise RuntimeError("this stack is not started; use `with` or start()")
        return self._daemon

    def start(self) -> Self:
        """Start what is needed; return when the daemon is ready.

        Raises:
            KafkaMissingError: no Kafka is available; the user follows the text.
            AdminError: its topics cannot be created; the cluster's owner follows the text.
            DaemonError: the daemon did not start; the test's author acts on its log, which is in
                the text.
            ConfigError: a setting is wrong; the test's author corrects it.
        """
        try:
            servers = self._given or self._start_kafka()
            (port,) = free_ports(1)
            self._config = CheckerConfig(
                bootstrap_servers=servers,
                topic_prefix=self._prefix,
                metrics_port=port,
                **self._settings,
            )
            self._stack.callback(self._delete_topics)
            self._make_topics()
            self._daemon = DaemonProcess(self._config)
            self._stack.callback(self._daemon.stop)
            self._daemon.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the daemon, delete this stack's topics, end the Kafka that it started. Idempotent."""
        self._stack.close()
        self._config = self._daemon = None

    def create_topic(self, name: str, *, partitions: int = 1) -> str:
        """Create a real topic, and return its name."""
        cluster = self._cluster()
        _again(lambda: cluster.create(TopicShape(name, partitions, ()), replication_factor=1))
        self._made.append(name)
        return name

    def producer(
        self,
        producer_group: str,
        *,
        checker: Callable[[MessageView], Resolution],
        **settings: object,
    ) -> TransactionProducer:
        """Return a producer of this installation, not started yet: use it in a `with` block.

        Its check topic is created. `settings` are those of TransactionProducer, `topics` too.
        """
        config = self.config
        same = ("bootstrap_servers", "topic_prefix", "transaction_timeout_ms")
        shared = {name: getattr(config, name) for name in (*same, "transaction_age_ms_max")}
        arguments = {**shared, "producer_group": producer_group, **settings}
        return TransactionProducer(checker=checker, **arguments)

    def read_committed(
        self, *topics: str, count: int = 0, timeout_s: float = WAIT_S_MAX
    ) -> list[ReadRecord]:
        """Return the committed records of topics from their start; wait until there are `count`.

        Raises:
            TimeoutError: there were fewer than `count` in time; the test's author finds out why.
            DaemonError: the daemon has ended; the test's author acts on its log, which is in the
                text.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            records = read_all(self.bootstrap_servers, topics, timeout_s=timeout_s)
            if len(records) >= count:
                return records
            self.daemon.check_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(records)} of {count} records within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def wait_until_decided(self, timeout_s: float = WAIT_S_MAX) -> None:
        """Return once every transaction is decided, and its result is visible.

        An undecided transaction needs a running producer of its group, which answers checks. One
        that a test leaves undecided for good keeps all others waiting: give it a stack of its own.

        Raises:
            TimeoutError: not in time; the text names the unfinished partitions; the test's author
                finds out why.
            DaemonError: the daemon has ended; the test's author acts on its log, which is in the
                text.
        """
        deadline = time.monotonic() + timeout_s
        with DaemonProgress(self.bootstrap_servers, self.config.names) as progress:
            while left := progress.left():
                self.daemon.check_running()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not decided within {timeout_s:g} s: {'; '.join(left)}")
                time.sleep(_POLL_S)

    def _start_kafka(self) -> str:
        if self._kafka is None:
            return self._stack.enter_context(open_kafka(self._environ)).bootstrap_servers
        self._kafka.start()
        self._stack.callback(self._kafka.stop)
        return self._kafka.bootstrap_servers

    def _make_topics(self) -> None:
        cluster = self._cluster()
        layout = _again(
            lambda: plan_layout(
                cluster,
                partitions=self._partitions,
                replication_factor=None,
                producer_groups=(),
                retention_ms=HALF_RETENTION_MS,
            )
        )
        _again(lambda: create_topics(cluster, self.config.names, layout))

    def _delete_topics(self) -> None:
        # Topics already deleted, or a cluster that is stopping, must not hide the first error.
        with suppress(KafkaFailure):
            delete_topics(self.bootstrap_servers, self._is_mine)

    def _is_mine(self, topic: str) -> bool:
        return topic in self._made or topic.startswith(self._prefix)

    def _cluster(self) -> Cluster:
        return Cluster(self.config.bootstrap_servers)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _again(call: Callable[[], _T]) -> _T:
    """Return the result of `call`, which is idempotent, retried on AdminError.

    Operators get the error of an unreachable cluster after seconds; a test waits longer.
    """
    for _ in range(_TRIES_MAX - 1):
        with suppress(AdminError):
            return call()
        time.sleep(_PAUSE_S)
    return call()


class OwnTopics:
    """Real topics of one test: no record of another test is ever in them.

    `prefix` is put before each name; the topics are deleted with `stack`.
    """

    def __init__(self, stack: HalfbridgeStack | MemoryStack, prefix: str) -> None:
        self._stack = stack
        self.prefix = prefix

    def create(self, name: str, *, partitions: int = 1) -> str:
        """Create a topic, and return its full name."""
        return self._stack.create_topic(self.prefix + name, partitions=partitions)


STOP_S_MAX = 12.0  # the daemon drains within 10 s
_ASK_S_MAX = 5.0  # the daemon answers from memory
_LOG_LINES = 30  # a screen


class DaemonError(RuntimeError):
    """The daemon did not start, or has ended; the message has the last lines of its log."""


class DaemonProcess:
    """`halfbridge checker run`, which ends with the process that started it. Not thread-safe.

    Readiness is polled at the `metrics_port` of its settings.
    """

    def __init__(self, config: CheckerConfig) -> None:
        self._config = config
        # Variables in a developer's environment are for another daemon.
        self._environ = {
            k: v for k, v in environment.variables().items() if not k.startswith("HALFBRIDGE_")
        }
        self._directory = Path(tempfile.mkdtemp(prefix="halfbridge-daemon-"))
        self._log = self._directory / "checker.log"
        self._watchdog: Watchdog | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """The daemon's log; `stop` removes it."""
        return self._log

    def start(self) -> None:
        """Start it, or start it again after `kill`; return when every worker is ready.

        Raises:
            DaemonError: it ended, or was not ready in time; the test's author acts on its log,
                which is in the text.
        """
        if self._watchdog is None:
            self._watchdog = Watchdog(self._directory)
        settings = self._directory / "checker.toml"
        settings.write_text(_as_toml(self._config), "utf-8")
        command = [sys.executable, "-m", "halfbridge", "checker", "run", "--config", str(settings)]
        with self._log.open("ab") as log:
            self._process = self._watchdog.start(
                [command], stdout=log, stderr=subprocess.STDOUT, env=self._environ
            )
        deadline = time.monotonic() + READY_S_MAX
        while not self._is_ready():
            self.check_running()
            if time.monotonic() > deadline:
                raise DaemonError(f"the daemon is not ready after {READY_S_MAX:g} s{self._tail()}")
            time.sleep(_POLL_S)

    def check_running(self) -> None:
        """Return if it runs.

        Raises DaemonError: it has ended by itself; the test's author acts on its log, which is in
        the text.
        """
        if self._process is None:
            raise DaemonError("the daemon does not run: start it")
        status = self._process.poll()
        if status is not None:
            raise DaemonError(f"the daemon ended with status {status}{self._tail()}")

    def kill(self) -> None:
        """SIGKILL its whole process group; `start` starts it again on the same slot. Idempotent."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut it down cleanly (SIGTERM), and remove its files. Idempotent."""
        self._end(signal.SIGTERM)
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or self._watchdog is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._watchdog.forget(process.pid)

    def _is_ready(self) -> bool:
        url = f"http://{HOST}:{self._config.metrics_port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=_ASK_S_MAX) as answer:
                return bool(answer.status == 200)  # noqa: PLR2004  # HTTP's "OK"
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _tail(self) -> str:
        with self._log.open(encoding="utf-8", errors="replace") as lines:
            return "\n" + "".join(deque(lines, maxlen=_LOG_LINES))


def _as_toml(config: CheckerConfig) -> str:
    """Return the settings as a file; every JSON string, number and boolean is one of TOML too."""
    plain = to_plain(config)
    del plain["kafka"]
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items() if value is not None]
    lines += ["[kafka]", *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in config.kafka.items())]
    return "\n".join(lines) + "\n"


_CALL_S_MAX = 20.0  # a broker that has just started may need seconds


class DaemonProgress:
    """The daemon's progress, read from the brokers: correct while the daemon is dead, too.

    A context manager. Not thread-safe. The topics of the installation must exist.
    """

    def __init__(self, bootstrap_servers: str, names: TopicNames) -> None:
        self._topics = (names.half, names.op)
        kafka, servers = system_ports().kafka, {"bootstrap.servers": bootstrap_servers}
        self._admin = kafka.admin(servers)
        self._reader = kafka.reader(
            {
                **servers,
                "group.id": names.daemon_group,  # queried, never joined
                "isolation.level": "read_uncommitted",  # the ends include open kafka_txns
            }
        )

    def left(self) -> list[str]:
        """Return one line for each partition with something undecided, or not yet visible.

        An error of the brokers is a line too.
        """
        try:
            known = self._admin.topics(_CALL_S_MAX)
            # A broker that has just restarted may not know them yet: they count as unfinished.
            unknown = [each for each in self._topics if each not in known]
            if unknown:
                return [f"{topic} is not there" for topic in unknown]
            places = [
                (topic, partition)
                for topic in self._topics
                for partition in range(known[topic].partitions)
            ]
            behind = self._behind(places)
        except KafkaFailure as failure:
            return [str(failure)]
        return [
            f"{topic}[{number}] is done up to {done.offset} of {end} {done.metadata}"
            for (topic, number), (done, end) in behind.items()
        ]

    def ops_left(self) -> int:
        """Return how many op records are not applied. Raises KafkaFailure: the caller retries."""
        _, ops = self._topics
        count = self._admin.topics(_CALL_S_MAX)[ops].partitions
        behind = self._behind([(ops, partition) for partition in range(count)])
        return sum(end - max(0, done.offset) for done, end in behind.values())

    def _behind(self, places: list[TopicPartition]) -> dict[TopicPartition, tuple[Committed, int]]:
        """Return the committed offset and the end of each partition where they differ."""
        # In this order: one kafka_txn moves H past put back half messages and writes their copies.
        committed = self._reader.committed(places, _CALL_S_MAX)
        ends = {place: self._reader.ends(place, _CALL_S_MAX)[1] for place in places}
        return {
            place: (committed[place], end)
            for place, end in ends.items()
            if committed[place].offset < end
        }

    def close(self) -> None:
        """Leave the cluster."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
