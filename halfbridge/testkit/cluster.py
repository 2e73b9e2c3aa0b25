"""A real Kafka cluster on this machine: KRaft, combined mode, one process a node."""

from __future__ import annotations

import tempfile
import uuid
from base64 import urlsafe_b64encode
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.spark_jobs.session.class_archive import class_archive
from halfbridge.spark_jobs.session.jvm import Java, find_java
from halfbridge.testkit.jars import broker_jars
from halfbridge.testkit.node import (
    FAST_FLAGS,
    FRUGAL_FLAGS,
    BrokerStartError,
    KafkaNode,
    Launch,
)
from halfbridge.testkit.ports import free_ports, is_free
from halfbridge.testkit.properties import NodeAddress, node_properties
from halfbridge.testkit.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from halfbridge.testkit.jars import BrokerJars

_PORT_TRIES_MAX = 3  # a port found free can be gone a second later, when the JVM binds it
_PORT_TAKEN = "address already in use"
_HEAP_MIB = 512  # each of three nodes: half of what a broker alone has


class EmbeddedCluster:
    """Kafka nodes numbered from 1; Kafka's own topics have three replicas, two in sync.

    A context manager. Leaves no process behind and removes its temporary directory, however this
    process ends; but the first one of all makes a class data archive (`ClassArchive`), in a process
    that may outlive it for seconds. Not thread-safe.

    Args:
        node_count: How many nodes.
        directory: Keeps the data; a temporary one that `stop` removes when not given. One that
            was used before is used as it is.
        properties: Broker settings that win over ours.
        ports: Clients' ports, one a node; 0 takes any free one.
        heap_mib: Java heap of each node, at most.
        kafka_version: Instead of HALFBRIDGE_KAFKA_VERSION or the pinned one.
    """

    # The first fields of NodeAddress: a subclass with a proxy has four.
    _PORTS_A_NODE = 2

    def __init__(
        self,
        node_count: int = 3,
        *,
        directory: Path | None = None,
        properties: Mapping[str, str] | None = None,
        ports: tuple[int, ...] = (),
        heap_mib: int = _HEAP_MIB,
        kafka_version: str | None = None,
    ) -> None:
        if node_count < 1 or (ports and len(ports) != node_count):
            raise ValueError(f"{node_count} nodes with {len(ports)} ports: give one a node")
        self._ports = ports or (0,) * node_count
        self._directory = None if directory is None else directory.absolute()
        self._properties = dict(properties or {})
        self._heap_mib = heap_mib
        self._kafka_version = kafka_version
        self._nodes: dict[int, KafkaNode] = {}
        self._watchdog: Watchdog | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses of all nodes, dead ones too; no proxy is on the way to them."""
        return ",".join(node.bootstrap_servers for node in self._running().values())

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Return the nodes' numbers."""
        return tuple(self._running())

    @property
    def directory(self) -> Path:
        """Return where data and logs are: `node-<id>/server.log`, `node-<id>/data`."""
        return self.node(1).directory.parent

    def node(self, node_id: int) -> KafkaNode:
        """Return a node, to kill, restart, pause or resume it.

        Raises:
            KeyError: no such node; they count from 1.
        """
        return self._running()[node_id]

    def start(self) -> Self:
        """Start all nodes and return when each one answers and knows all the others.

        Raises:
            BrokerStartError: with the last lines of the log; nothing is left behind.
            JarsError, JavaNotFoundError: the user must act.
        """
        if self._nodes:
            return self
        java, jars = find_java(), broker_jars(self._kafka_version)
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
            # What is about to be deleted need not be closed in order.
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
        with class_archive("broker", java, jars.jars) as archive:
            launch = Launch(
                java=java.executable,
                jars=jars,
                cluster_id=_cluster_id(root),
                heap_mib=self._heap_mib,
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
        """Start what clients pass on their way to nodes of four ports; here there is nothing."""

    def _addresses(self) -> tuple[NodeAddress, ...]:
        for port in self._ports:
            if port and not is_free(port):
                raise BrokerStartError(f"port {port} is in use: give another one, or 0 for any")
        free = iter(free_ports(self._PORTS_A_NODE * len(self._ports)))
        return tuple(
            NodeAddress(node_id, port or next(free), *islice(free, self._PORTS_A_NODE - 1))
            for node_id, port in enumerate(self._ports, start=1)
        )


def _cluster_id(root: Path) -> str:
    """Return the id in `root`, made on first use: nodes formatted one by one must share it."""
    path = root / "cluster.id"
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        path.write_text(urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="), "utf-8")
    return path.read_text("utf-8")
