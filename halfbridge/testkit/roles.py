"""Which broker of a cluster has which role, and how to give a partition another leader."""

from __future__ import annotations

import itertools
import socket
import time
from struct import pack, unpack_from
from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

TRANSACTION_LOG = "__transaction_state"
_CALL_S = 20.0
_ROLE_S_MAX = 30.0  # an election takes a broker session, 4 s in tests
_POLL_S = 0.1
_ALTER_REASSIGNMENTS, _VERSION = 45, 0
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
        count = len(self._admin.list_topics(TRANSACTION_LOG).topics[TRANSACTION_LOG].partitions)
        partition = positive(java_hash(transactional_id)) % count
        return self.leader(TRANSACTION_LOG, partition)

    def move_leader(self, topic: str, partition: int) -> int:
        """Make the next replica of a partition its leader, and return the node.

        Raises:
            RoleError: the controller refuses, or no election was possible.
        """
        leader, replicas = self._replicas(topic, partition)
        first = replicas[(replicas.index(leader) + 1) % len(replicas)] if leader >= 0 else leader
        if first < 0:
            raise RoleError(f"{topic}[{partition}] has no leader")
        self._prefer(topic, partition, [first, *(each for each in replicas if each != first)])
        place = TopicPartition(topic, partition)
        try:
            outcomes = self._admin.elect_leaders(
                ElectionType.PREFERRED, [place], request_timeout=_CALL_S
            ).result(_CALL_S)
        except KafkaException as error:
            raise RoleError(f"{topic}[{partition}]: {error}") from error
        for outcome in outcomes.values():
            if outcome is not None and outcome.code() != KafkaError.ELECTION_NOT_NEEDED:
                raise RoleError(f"{topic}[{partition}]: {outcome.str()}")
        return first

    def _replicas(self, topic: str, partition: int) -> tuple[int, list[int]]:
        found = self._admin.list_topics(topic, timeout=_CALL_S).topics[topic].partitions
        if partition not in found:
            raise RoleError(f"{topic}[{partition}] is not there")
        return found[partition].leader, list(found[partition].replicas)

    def _prefer(self, topic: str, partition: int, replicas: list[int]) -> None:
        """Put the replicas of a partition into another order: the client has no call for it."""
        number = next(self._numbers)
        body = reassignment(topic, partition, replicas, timeout_ms=int(_CALL_S * 1000))
        header = pack(">hhi", _ALTER_REASSIGNMENTS, _VERSION, number) + pack(">h", -1) + b"\0"
        answer = self._ask_any(header + body)
        # correlation id, no tags, throttle time, error code
        if unpack_from(">i", answer)[0] != number or unpack_from(">h", answer, 9)[0] != 0:
            raise RoleError(f"{topic}[{partition}]: reassignment refused, {answer.hex()}")

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


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise OSError("the connection ended")
        data += part
    return data
