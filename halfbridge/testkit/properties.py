"""server.properties of a node that is broker and controller in one (KRaft combined mode). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.testkit.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


# For a broker that no test kills. Otherwise one that gets no processor time for two seconds, on a
# busy machine, would be fenced: topics lose their leader, and new ones cannot be created.
PATIENT = {"broker.session.timeout.ms": "30000"}


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where one node listens on the loopback interface.

    Nodes use `broker_port` among themselves; clients do too, unless they use a proxy. The proxy
    connects to the listener on `client_port`, which advertises `proxy_port`; both are 0 without
    one.
    """

    node_id: int
    broker_port: int
    controller_port: int
    client_port: int = 0
    proxy_port: int = 0

    @property
    def bootstrap(self) -> str:
        """Return the address for clients that bypass any proxy."""
        return f"{HOST}:{self.broker_port}"

    @property
    def proxied(self) -> str:
        """Return the address for clients that go through the proxy."""
        return f"{HOST}:{self.proxy_port}"

    @property
    def voter(self) -> str:
        """Return the node as controller.quorum.voters names it."""
        return f"{self.node_id}@{HOST}:{self.controller_port}"


def internal_topics(node_count: int) -> dict[str, str]:
    """Return the settings of Kafka's own topics: three replicas where there are three nodes.

    Few partitions (50 are the default): each costs files and a moment at every start.
    """
    replicas, in_sync = min(node_count, 3), min(node_count, 2)
    return {
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
    }


def for_tests(node_count: int) -> dict[str, str]:
    """Return the other settings of a broker for tests."""
    return {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # 128 MiB of the heap otherwise, whether or not anything is ever compacted
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        # A killed node is fenced after that time (9000 by default): then the other nodes elect new
        # leaders, and its own restart, rejected until then, succeeds.
        "broker.session.timeout.ms": "2000" if node_count == 1 else "4000",
        "broker.heartbeat.interval.ms": "200" if node_count == 1 else "500",
    }


def node_properties(
    address: NodeAddress,
    cluster: Iterable[NodeAddress],
    *,
    data_directory: Path,
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """Return the properties of one node; `overrides` win over everything else."""
    nodes = list(cluster)
    listeners = f"PLAINTEXT://{address.bootstrap},CONTROLLER://{HOST}:{address.controller_port}"
    advertised = f"PLAINTEXT://{address.bootstrap}"
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
    if address.proxy_port:
        listeners += f",CLIENT://{HOST}:{address.client_port}"
        advertised += f",CLIENT://{address.proxied}"
        protocols += ",CLIENT:PLAINTEXT"
    return {
        "process.roles": "broker,controller",
        "node.id": str(address.node_id),
        "controller.quorum.voters": ",".join(node.voter for node in nodes),
        "controller.listener.names": "CONTROLLER",
        "listeners": listeners,
        "advertised.listeners": advertised,
        "listener.security.protocol.map": protocols,
        "log.dirs": str(data_directory),
        **internal_topics(len(nodes)),
        **for_tests(len(nodes)),
        **overrides,
    }


def render(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file; backslashes and line ends are escaped."""
    lines = (
        f"{key}={value}".replace("\\", "\\\\").replace("\n", "\\n")
        for key, value in properties.items()
    )
    return "".join(f"{line}\n" for line in lines)


def as_environment(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties as environment variables of apache/kafka: KAFKA_A_B_C is a.b.c."""
    return {
        "KAFKA_" + key.replace("_", "__").replace("-", "___").replace(".", "_").upper(): value
        for key, value in properties.items()
    }
