"""A real Kafka broker, or a cluster, on this machine: KRaft, combined mode, one process per node.

For tests, the demo and `halfbridge broker start`. A node can be killed, paused and restarted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge import environment
from halfbridge.java.class_archive import class_archive
from halfbridge.java.jvm import Java, JavaSettings, find_java
from halfbridge.java.locked_jars import JarSettings
from halfbridge.testkit.jars import KafkaChoice, broker_jars
from halfbridge.testkit.ports import free_ports, is_free
from halfbridge.testkit.properties import NodeAddress, node_properties, render
from halfbridge.testkit.ready import READY_S_MAX, NotReadyError, wait_ready
from halfbridge.testkit.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from halfbridge.testkit.jars import BrokerJars

__all__ = ["BrokerStartError", "EmbeddedBroker"]
_HEAP_MIB = 1024  # Kafka's own default (KAFKA_HEAP_OPTS)
_PORT_TRIES_MAX = 3  # a port found free can be gone a second later, when the JVM binds it
_PORT_TAKEN = "address already in use"
_NODE_HEAP_MIB = 512  # each of three nodes: half of what a broker alone has


class EmbeddedCluster:
    """Kafka nodes numbered from 1; Kafka's own topics have three replicas, two in sync.

    A context manager. Leaves no process behind and removes its temporary directory, however this
    process ends; but the very first start makes a class data archive (`ClassArchive`), in a process
    that may outlive it by seconds. Not thread-safe.

    Data is kept in `directory`, which may have been used before; without one, in a temporary one
    that `stop` removes. `properties` override our settings. `ports` are the clients', one per node;
    0 takes any free one. Each node's Java heap has `heap_mib` at most. `kafka_version` overrides
    HALFBRIDGE_KAFKA_VERSION and the pinned one.

    Raises:
        ValueError: not one port per node; the caller corrects it.
    """

    # The ports of a NodeAddress that are set: a subclass with a proxy sets four.
    _PORTS_A_NODE = 2

    def __init__(
        self,
        node_count: int = 3,
        *,
        directory: Path | None = None,
        properties: Mapping[str, str] | None = None,
        ports: tuple[int, ...] = (),
        heap_mib: int = _NODE_HEAP_MIB,
        kafka_version: str | None = None,
    ) -> None:
        if node_count < 1 or (ports and len(ports) != node_count):
            raise ValueError(f"{node_count} nodes with {len(ports)} ports: give one a node")
        self._ports = ports or (0,) * node_count
        self._directory = None if directory is None else directory.absolute()
        self._properties = dict(properties or {})
        self._heap_mib = heap_mib
        environ = environment.variables()
        self._java_settings = JavaSettings.from_environ(environ)
        self._jar_settings = JarSettings.from_environ(environ)
        self._kafka_version = kafka_version or KafkaChoice.from_environ(environ).kafka_version
        self._environ = environ  # of the JVMs
        self._nodes: dict[int, KafkaNode] = {}
        self._watchdog: Watchdog | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses of all nodes, dead ones too; they bypass any proxy."""
        return ",".join(node.bootstrap_servers for node in self._running().values())

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Return the nodes' numbers."""
        return tuple(self._running())

    @property
    def directory(self) -> Path:
        """Return the directory of data and logs: `node-<id>/server.log`, `node-<id>/data`."""
        return self.node().directory.parent

    def node(self, node_id: int = 1) -> KafkaNode:
        """Return a node, to kill, restart, pause or resume it."""
        return self._running()[node_id]

    def start(self) -> Self:
        """Start all nodes and return when each one answers and knows all the others.

        Raises:
            BrokerStartError: nothing is left behind; the user acts on the last lines of the log,
                which are in the text.
            JarsError, JavaNotFoundError: the user must act.
        """
        if self._nodes:
            return self
        java = find_java(self._java_settings)
        jars = broker_jars(self._kafka_version, self._jar_settings)
        for remaining in reversed(range(_PORT_TRIES_MAX)):
            try:
                self._launch(java, jars)
                break
            except BrokerStartError as error:
                self.stop()
                taken = _PORT_TAKEN in str(error).lower()
                if not remaining or not taken or all(self._ports):
                    raise
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End every node; data in a temporary directory is removed with it. Idempotent."""
        for node in self._nodes.values():
            # Data that is about to be deleted needs no clean shutdown.
            node.kill() if self._directory is None else node.terminate()
        self._nodes = {}
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> dict[int, KafkaNode]:
        if not self._nodes:
            raise RuntimeError("not started: use it as a context manager or call start()")
        return self._nodes

    def _launch(self, java: Java, jars: BrokerJars) -> None:
        temporary = self._directory is None
        root = self._directory or Path(tempfile.mkdtemp(prefix="halfbridge-broker-"))
        self._watchdog = Watchdog(root if temporary else None)
        addresses = self._addresses()
        flags = FAST_FLAGS if len(addresses) == 1 else FRUGAL_FLAGS
        with class_archive("broker", java, jars.jars, settings=self._jar_settings) as archive:
            launch = Launch(
                java=java.executable,
                jars=jars,
                cluster_id=_cluster_id(root),
                heap_mib=self._heap_mib,
                environ=self._environ,
                jvm_flags=flags,
                archive_flags=() if archive.records else archive.flags,
            )
            self._make_nodes(addresses, root, launch, self._watchdog)
            first, *others = self._nodes.values()
            first.spawn(*(archive.flags if archive.records else ()))
            for node in others:
                node.spawn()
            self._put_in_front(addresses)
            for node in self._nodes.values():
                node.wait_ready(brokers_min=len(addresses))
            archive.make_in_background(jars.class_path)

    def _make_nodes(
        self, addresses: tuple[NodeAddress, ...], root: Path, launch: Launch, watchdog: Watchdog
    ) -> None:
        for address in addresses:
            directory = root / f"node-{address.node_id}"
            properties = node_properties(
                address, addresses, data_directory=directory / "data", overrides=self._properties
            )
            self._nodes[address.node_id] = KafkaNode(
                address, directory, properties=properties, launch=launch, watchdog=watchdog
            )

    def _put_in_front(self, addresses: tuple[NodeAddress, ...]) -> None:
        """Start the proxies in front of the nodes; here there are none."""

    def _addresses(self) -> tuple[NodeAddress, ...]:
        for port in self._ports:
            if port and not is_free(port):
                raise BrokerStartError(f"port {port} is in use: give another one, or 0 for any")
        free = iter(free_ports(self._PORTS_A_NODE * len(self._ports)))
        return tuple(
            NodeAddress(node_id, port or next(free), *islice(free, self._PORTS_A_NODE - 1))
            for node_id, port in enumerate(self._ports, start=1)
        )


class EmbeddedBroker(EmbeddedCluster):
    """A broker that is its own controller, ready in 3 to 5 s once its jars are cached."""

    def __init__(
        self,
        directory: Path | None = None,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        heap_mib: int = _HEAP_MIB,
        kafka_version: str | None = None,
    ) -> None:
        super().__init__(
            1,
            directory=directory,
            properties=properties,
            ports=(port,),
            heap_mib=heap_mib,
            kafka_version=kafka_version,
        )

    @property
    def log_path(self) -> Path:
        """Return the broker's log."""
        return self.node().log_path

    @property
    def process_id(self) -> int | None:
        """Return the JVM's process id while it runs."""
        return self.node().process_id

    def kill(self) -> None:
        """SIGKILL; the data stays for `restart`. Idempotent."""
        self.node().kill()

    def restart(self) -> None:
        """Restart on the same port and data, after a clean shutdown if it runs."""
        self.node().restart()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self.node().pause()

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self.node().resume()


def _cluster_id(root: Path) -> str:
    """Return the id in `root`, made on first use: nodes formatted one by one must share it."""
    path = root / "cluster.id"
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        path.write_text(urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="), "utf-8")
    return path.read_text("utf-8")


STOP_S_MAX = 20.0  # then SIGKILL: a node of a cluster without quorum never ends by itself
_KILL_S_MAX = 20.0  # the kernel frees the memory of a JVM first; a busy machine is slow at it
_PAUSE_S_MAX = 10.0  # a thread on another core runs on until that core handles the signal
_PAUSE_POLL_S = 0.002  # a pause of a broker is exact to this
_LOG_LINES = 30  # a screen
_BROKER_FLAGS = ("-XX:+ExitOnOutOfMemoryError", "-Xshare:auto", "-Djava.awt.headless=true")
# For a node that has the machine to itself. G1 by name: on two cores and little memory the JVM
# would take the serial collector. Kafka's own start script sets the same pause goal and occupancy.
FAST_FLAGS = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
# For nodes that share a machine for minutes, where optimizing code would cost most of the processor
# time. Two fault cases on three nodes took 66 s of it with these flags, 93 s without (2 cores).
FRUGAL_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Formatting is class loading and one-time code: compile it cheaply.
_TOOL_FLAGS = (*FRUGAL_FLAGS, "-Xshare:auto")


class BrokerStartError(RuntimeError):
    """A broker did not start; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings that all nodes of a cluster are started with.

    With `archive_flags`, each JVM maps the class data archive of `jars`.
    """

    java: Path
    jars: BrokerJars
    cluster_id: str
    heap_mib: int
    environ: Mapping[str, str]
    jvm_flags: tuple[str, ...]
    archive_flags: tuple[str, ...] = ()


class KafkaNode:
    """A broker that is its own controller, or one of its controllers. Not thread-safe.

    Made by `EmbeddedBroker` and `EmbeddedCluster`.
    """

    def __init__(
        self,
        address: NodeAddress,
        directory: Path,
        *,
        properties: Mapping[str, str],
        launch: Launch,
        watchdog: Watchdog,
    ) -> None:
        self.address = address
        self.directory = directory
        self._launch = launch
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "server.properties"
        self._config.write_text(render(properties), encoding="utf-8")

    @property
    def bootstrap_servers(self) -> str:
        """Return the address of this node alone."""
        return self.address.bootstrap

    @property
    def log_path(self) -> Path:
        """Return the broker's own log."""
        return self.directory / "server.log"

    @property
    def process_id(self) -> int | None:
        """Return the process id while the node runs."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Return whether the process exists; a paused one does."""
        return self._process is not None and self._process.poll() is None

    def spawn(self, *jvm_flags: str) -> None:
        """Start the process, formatting the storage first if it never was; do not wait."""
        if self.is_running:
            return
        launch = self._launch
        java = [str(launch.java), f"-Dhalfbridge.log={self.log_path}", launch.jars.log_option]
        java += launch.archive_flags
        heap = f"{launch.heap_mib}m"
        half_heap = f"{launch.heap_mib // 2}m"
        commands = [
            [
                *(*java, f"-Xms{half_heap}", f"-Xmx{heap}", *_BROKER_FLAGS, *launch.jvm_flags),
                *(*jvm_flags, "kafka.Kafka", str(self._config)),
            ]
        ]
        if not (self.directory / "data" / "meta.properties").exists():
            tool = [*java, *_TOOL_FLAGS, "kafka.tools.StorageTool"]
            # In one word: an id may begin with a dash.
            what = f"--cluster-id={launch.cluster_id}", "--config", str(self._config)
            commands.insert(0, [*tool, "format", *what])
        with (self.directory / "stdout.log").open("ab") as output:
            self._process = self._watchdog.start(
                commands,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**launch.environ, "CLASSPATH": launch.jars.class_path},
            )

    def use(self, jars: BrokerJars) -> None:
        """Run these jars from the next `spawn` on, on the same data: an upgrade or a downgrade."""
        self._launch = replace(self._launch, jars=jars, archive_flags=())

    def wait_ready(self, *, brokers_min: int = 1, timeout_s: float = READY_S_MAX) -> None:
        """Return when this node answers clients and knows `brokers_min` live brokers.

        Raises:
            BrokerStartError: it ended, or did not answer within `timeout_s`; the user acts on its
                log, which is in the text.
        """
        try:
            wait_ready(
                self.bootstrap_servers,
                brokers_min=brokers_min,
                timeout_s=timeout_s,
                check=self._raise_if_ended,
            )
        except NotReadyError as error:
            raise BrokerStartError(f"{error}\n{self.log_tail()}") from error

    def kill(self) -> None:
        """SIGKILL, without a clean shutdown; returns when the process is gone. Idempotent."""
        self._signal(signal.SIGKILL)
        self._reap(_KILL_S_MAX)

    def terminate(self) -> None:
        """Shut down cleanly (SIGTERM); SIGKILL after `STOP_S_MAX` seconds. Idempotent."""
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._reap(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers; returns when all threads are stopped.

        Raises TimeoutError: they are not; the test's author finds out why.
        """
        self._signal(signal.SIGSTOP)
        self._paused = True
        deadline = time.monotonic() + _PAUSE_S_MAX
        while self._process is not None and not _is_stopped(self._process.pid):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.address.bootstrap} does not stop, in spite of the signal (SIGSTOP)"
                )
            time.sleep(_PAUSE_POLL_S)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def restart(self) -> None:
        """As `EmbeddedBroker.restart`; raises as `wait_ready`."""
        self.terminate()
        self.spawn()
        self.wait_ready()

    def log_tail(self) -> str:
        """Return the last lines of the broker's log and of its output."""
        tails = []
        for path in (self.log_path, self.directory / "stdout.log"):
            if path.is_file():
                with path.open(encoding="utf-8", errors="replace") as lines:
                    tails.append(f"--- {path.name}\n" + "".join(deque(lines, maxlen=_LOG_LINES)))
        return "\n".join(tails) or "it wrote no log"

    def _raise_if_ended(self) -> None:
        if not self.is_running:
            status = None if self._process is None else self._process.returncode
            raise BrokerStartError(
                f"the broker on {self.address.bootstrap} ended with status {status}\n"
                f"{self.log_tail()}"
            )

    def _signal(self, number: int) -> None:
        if self._process is not None and self.is_running:
            os.killpg(self._process.pid, number)

    def _reap(self, timeout_s: float) -> None:
        if self._process is not None:
            self._process.wait(timeout_s)
            self._watchdog.forget(self._process.pid)
            self._process = None
            self._paused = False


def _is_stopped(process_id: int) -> bool:
    """Return whether all threads of a process are stopped or gone; True without /proc."""
    for task in Path(f"/proc/{process_id}/task").glob("*/stat"):
        try:
            state = task.read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has just ended
        if state not in "TtZX":
            return False
    return True
