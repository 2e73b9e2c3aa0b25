"""Which broker of a cluster has which role, and how to give a partition another leader."""

import itertools
import socket
import time
from struct import pack, unpack_from
from typing import Any

from halfbridge.kafka.admin import AdminClient

TRANSACTION_LOG = "__transaction_state"
GROUPS_LOG = "__consumer_offsets"
_CALL_S = 20.0
_ROLE_S_MAX = 30.0  # an election takes a broker session, 4 s in tests
_MOVE_S_MAX = 5.0
_POLL_S = 0.1
_CALL_MS = int(_CALL_S * 1000)
_ELECT = (43, 2)  # key and version of the request
_ALTER_REASSIGNMENTS = (45, 0)
_FRAME = 4


class RoleError(RuntimeError):
    """Nobody has the role, or it could not be moved."""


class Roles:
    """Asks a cluster, past any proxy.

    Args:
        bootstrap_servers: Of the cluster, all nodes.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._numbers = itertools.count(1)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; waits while there is none.

        Raises:
            RoleError: nobody led it for half a minute.
        """
        deadline = time.monotonic() + _ROLE_S_MAX
        while True:
            leader, _ = self._replicas(topic, partition)
            if leader >= 0:
                return leader
            if time.monotonic() > deadline:
                raise RoleError(f"{topic}[{partition}] has no leader")
            time.sleep(_POLL_S)

    def group_coordinator(self, group: str) -> int:
        """Return the node that coordinates a group."""
        described = self._admin.describe_consumer_groups([group], request_timeout=_CALL_S)
        return int(described[group].result(_CALL_S).coordinator.id)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the node that coordinates the kafka_txns of an id.

        The client cannot ask for it; the broker takes the id's Java hash code, and so does this.
        """
        return self.leader(TRANSACTION_LOG, self._log_partition(TRANSACTION_LOG, transactional_id))

    def make_group_coordinator(self, group: str, node: int) -> None:
        """Move a group to the coordinator `node`, which has a replica of the groups' log.

        Raises:
            RoleError: the controller refuses, or the replica is not in sync.
        """
        partition = self._log_partition(GROUPS_LOG, group)
        if self.leader(GROUPS_LOG, partition) != node:
            _, replicas = self._replicas(GROUPS_LOG, partition)
            self._elect(GROUPS_LOG, partition, node, replicas)

    def out_of_sync(self) -> list[str]:
        """Return the partitions, of all topics, of which a replica is behind or away."""
        topics = self._admin.list_topics(timeout=_CALL_S).topics
        return [
            f"{name}[{number}]"
            for name, topic in topics.items()
            for number, one in topic.partitions.items()
            if len(one.isrs) < len(one.replicas)
        ]

    def move_leader(self, topic: str, partition: int) -> int:
        """Make the next replica of a partition its leader, and return the node.

        Raises:
            RoleError: the controller refuses, or the replica is not in sync.
        """
        leader, replicas = self._replicas(topic, partition)
        if leader < 0:
            raise RoleError(f"{topic}[{partition}] has no leader")
        first = replicas[(replicas.index(leader) + 1) % len(replicas)]
        self._elect(topic, partition, first, replicas)
        return first

    def place(self, topic: str, partition: int, replicas: list[int]) -> None:
        """Give a partition other replicas; return when it has them, and the first one leads it.

        Raises:
            RoleError: the controller refuses, or the replicas do not catch up.
        """
        self._prefer(topic, partition, replicas)
        deadline = time.monotonic() + _ROLE_S_MAX
        while (found := self._replicas(topic, partition)) != (replicas[0], replicas):
            if time.monotonic() > deadline:
                raise RoleError(f"{topic}[{partition}] is not at {replicas}: {found}")
            if found[1] == replicas:
                self._ask(_ELECT, election(topic, partition, timeout_ms=_CALL_MS))
            time.sleep(_POLL_S)

    def _elect(self, topic: str, partition: int, first: int, replicas: list[int]) -> None:
        """Make one of the replicas the leader; return when brokers say that it leads."""
        self._prefer(topic, partition, [first, *(each for each in replicas if each != first)])
        self._ask(_ELECT, election(topic, partition, timeout_ms=_CALL_MS))
        deadline = time.monotonic() + _MOVE_S_MAX
        while self.leader(topic, partition) != first:  # brokers hear of it one by one
            if time.monotonic() > deadline:
                raise RoleError(f"{topic}[{partition}]: {first} was not elected")
            time.sleep(_POLL_S)

    def _log_partition(self, log: str, name: str) -> int:
        count = len(self._admin.list_topics(log, timeout=_CALL_S).topics[log].partitions)
        return positive(java_hash(name)) % count

    def _replicas(self, topic: str, partition: int) -> tuple[int, list[int]]:
        found = self._admin.list_topics(topic, timeout=_CALL_S).topics[topic].partitions
        if partition not in found:
            return -1, []  # made a moment ago: this broker has not heard of it
        return found[partition].leader, list(found[partition].replicas)

    def _prefer(self, topic: str, partition: int, replicas: list[int]) -> None:
        """Put the replicas of a partition into another order: the first one is preferred."""
        body = reassignment(topic, partition, replicas, timeout_ms=_CALL_MS)
        self._ask(_ALTER_REASSIGNMENTS, body)

    def _ask(self, api: tuple[int, int], body: bytes) -> None:
        """Make a request that the client library cannot make, or not without an error."""
        number = next(self._numbers)
        answer = self._ask_any(pack(">hhihb", *api, number, -1, 0) + body)
        # correlation id, no tags, throttle time, error code
        if unpack_from(">i", answer)[0] != number or unpack_from(">h", answer, 9)[0] != 0:
            raise RoleError(f"request {api} is refused: {answer.hex()}")

    def _ask_any(self, request: bytes) -> bytes:
        """Return the answer of any broker that is there; they pass it on to the controller."""
        errors = []
        for server in self._servers.split(","):
            host, _, port = server.rpartition(":")
            try:
                with socket.create_connection((host, int(port)), timeout=_CALL_S) as connection:
                    connection.sendall(pack(">i", len(request)) + request)
                    (length,) = unpack_from(">i", _receive(connection, _FRAME))
                    return _receive(connection, length)
            except OSError as error:
                errors.append(f"{server}: {error}")
        raise RoleError("; ".join(errors))


def java_hash(text: str) -> int:
    """Return String.hashCode of an ASCII text: 32 bits, signed."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def positive(number: int) -> int:
    """Return what Kafka's Utils.abs does: the least integer has no positive counterpart."""
    return 0 if number == -(1 << 31) else abs(number)


def reassignment(topic: str, partition: int, replicas: list[int], *, timeout_ms: int) -> bytes:
    """Return the body of AlterPartitionReassignments, version 0, for one partition.

    Lengths are those of compact arrays and strings: the number plus one, in one byte.
    """
    name = topic.encode()
    return b"".join(
        (
            pack(">ib", timeout_ms, 2),
            pack(">b", len(name) + 1) + name,
            pack(">bib", 2, partition, len(replicas) + 1),
            b"".join(pack(">i", replica) for replica in replicas),
            b"\0\0\0",  # no tags: of the partition, of the topic, of the request
        )
    )


def election(topic: str, partition: int, *, timeout_ms: int) -> bytes:
    """Return the body of ElectLeaders, version 2: the preferred replica of one partition."""
    name = topic.encode()
    return b"".join(
        (
            pack(">bb", 0, 2),
            pack(">b", len(name) + 1) + name,
            pack(">bi", 2, partition),
            b"\0",  # no tags of the topic
            pack(">ib", timeout_ms, 0),
        )
    )


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise OSError("the connection ended")
        data += part
    return data
