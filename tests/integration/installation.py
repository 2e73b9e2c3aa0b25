"""An installation of a test's own: topics, their records, workers and readers.

That something does *not* happen is shown by a fence, a marker behind which it cannot come any more.
`fence` says that what stands in an op partition had its effect on the daemon. `delivered`,
`dead_letters` and `asked` are final: they send markers through every pair into every partition
that is asked about, wait until these have arrived there, and return all that stands beside them. A
partition's records become visible in order, so what came late, or twice, is among them.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import Any
from zlib import crc32

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from halfbridge.bridge import TransactionProducer
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import Layout
from halfbridge.checker.admin.topics import create_topics
from halfbridge.checker.config import CheckerConfig
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde import headers as names
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.progress import Progress, parse_progress
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.serde.topics import TopicNames
from tests.integration.daemon import Daemon
from tests.integration.tail import Record, Stored, Tail
from tests.kit.records import A_HALF, AN_OP
from tests.kit.waiting import CALL_S, until

GROUP = "orders-service"
HALF_RETENTION_MS = 7 * 24 * 3_600_000
MESSAGE_BYTES_MAX = 1_048_588  # Kafka's default


class Installation:
    """An installation of its own on a shared cluster, by a prefix nobody else has.

    Everything a test starts or opens through it is stopped, closed and deleted by `close`.
    """

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers = servers
        self.names = TopicNames(prefix)
        self.admin: Any = AdminClient({"bootstrap.servers": servers})
        self.daemons: list[Daemon] = []
        self._tails: dict[str, Tail] = {}
        self._markers: dict[str, set[bytes]] = defaultdict(set)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "partitioner": "murmur2_random",
                "message.max.bytes": 10_000_000,
                "sticky.partitioning.linger.ms": 0,
            }
        )

    # --- topics ----------------------------------------------------------------------------

    def make(self, *, partitions: int = 1, groups: tuple[str, ...] = ()) -> None:
        """Make the internal topics with their first offsets, as `topics create` does."""
        create_topics(
            Cluster(self.servers),
            self.names,
            Layout(
                partitions=partitions,
                replication_factor=1,
                retention_ms=HALF_RETENTION_MS,
                producer_groups=groups,
            ),
        )
        self.topic("fence", partitions=1)

    def real(self, name: str) -> str:
        """Return the full name of a real topic."""
        return self.names.prefix + name

    def topic(self, name: str, *, partitions: int = 1, **settings: str) -> str:
        """Make a real topic; return its full name. Settings as max_message_bytes="1000"."""
        topic = self.real(name)
        self.create(topic, partitions=partitions, **settings)
        return topic

    def create(self, topic: str, *, partitions: int = 1, **settings: str) -> None:
        """Make any topic and wait until it can be written to."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result()
        until(f"{topic} is known", lambda: self.is_led(topic, partitions))

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result()
        until(f"{topic} is gone", lambda: topic not in self.topics())

    def topics(self) -> set[str]:
        known = self.admin.list_topics(timeout=CALL_S).topics
        return {name for name in known if name.startswith(self.names.prefix)}

    def is_led(self, topic: str, partitions: int) -> bool:
        """Tell whether the topic has so many partitions, all of them with a leader."""
        known = self.admin.list_topics(topic, timeout=CALL_S).topics[topic]
        return known.error is None and (
            [each.leader >= 0 for each in known.partitions.values()] == [True] * partitions
        )

    def alter(self, topic: str, **settings: str) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result()

    @contextmanager
    def refusing(self, topic: str) -> Iterator[None]:
        """Have the brokers refuse every record of `topic` while the block runs."""
        self.refuse(topic)
        try:
            yield
        finally:
            self.accept(topic)

    def refuse(self, topic: str) -> None:
        """Have the brokers refuse every record of `topic`, for its size, until `accept`."""
        self._limit(topic, "1")

    def accept(self, topic: str) -> None:
        """Have the brokers take records of `topic` again."""
        self._limit(topic, str(MESSAGE_BYTES_MAX))

    # --- writing ---------------------------------------------------------------------------

    def write(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int = 0,
        transaction_id: str = "",
    ) -> Stored:
        """Append any record; return once it is durable."""
        message = self._append(topic, value, key, headers, partition)
        return Stored(transaction_id, partition, message.offset(), message.timestamp()[1])

    def half(
        self,
        topic: str,
        transaction_id: str | None = None,
        *,
        key: bytes | None = b"key",
        value: bytes | None = b"value",
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int = 0,
        **metadata: Any,
    ) -> Stored:
        """Append a half message for the real topic `topic`, as the client does."""
        identity = transaction_id or uuid.uuid4().hex
        mine = (names.HALF, self.half_header(topic, identity, **metadata))
        return self.write(
            self.names.half,
            value,
            key=key,
            headers=[*headers, mine],
            partition=partition,
            transaction_id=identity,
        )

    def half_header(self, topic: str, transaction_id: str, **metadata: Any) -> bytes:
        """Return RMQ_HALF as the client writes it."""
        values = {"producer_group": GROUP, "real_topic": topic, **metadata}
        return HALF_METADATA.encode(A_HALF._replace(transaction_id=transaction_id, **values))

    def op(self, kind: OpKind, half: Stored, **given: Any) -> Stored:
        """Append an op about the transaction whose last half message is `half`."""
        values = {
            "transaction_id": half.transaction_id,
            "half_offset": half.offset,
            "producer_group": GROUP,
            "kind": kind,
            "message_count": 1,
            **given,
        }
        record = AN_OP._replace(**values)
        return self.write(
            self.names.op,
            OP.encode(record),
            key=half.transaction_id.encode(),
            partition=half.partition,
            transaction_id=half.transaction_id,
        )

    def commit(self, half: Stored, **given: Any) -> Stored:
        return self.op(OpKind.COMMIT, half, **given)

    def rollback(self, half: Stored, **given: Any) -> Stored:
        return self.op(OpKind.ROLLBACK, half, **given)

    def answer_unknown(self, half: Stored, check_number: int) -> Stored:
        """Append an answer to a check that counts."""
        return self.op(
            OpKind.UNKNOWN, half, check_number=check_number, source=OpSource.CHECK, message_count=-1
        )

    def pass_through(self, topic: str, *, partition: int = 0, **given: Any) -> Stored:
        """Append one committed transaction."""
        half = self.half(topic, partition=partition, **given)
        self.commit(half)
        return half

    def await_marker(self, partition: int = 0) -> None:
        """Return once every record that op `partition` has now has had its effect."""
        wanted = self.pass_through(self.real("fence"), partition=partition).transaction_id
        tail = self.tail(self.real("fence"))
        until(
            f"fence through partition {partition}",
            lambda: tail.to_end() and wanted in {each.transaction_id for each in tail.records},
        )

    def producer(self, checker: Callable[..., Any], **given: Any) -> TransactionProducer:
        """Return a client, not started yet."""
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.servers,
            "producer_group": GROUP,
            "topic_prefix": self.names.prefix,
            "topics": [],
            **given,
        }
        return TransactionProducer(checker=checker, **arguments)

    # --- the daemon and what it did --------------------------------------------------------

    def config(self, **settings: Any) -> CheckerConfig:
        """Return settings under which nothing is checked unless the test shortens them."""
        values: dict[str, Any] = {
            "bootstrap_servers": self.servers,
            "topic_prefix": self.names.prefix,
            "transaction_timeout_ms": 600_000,
            **settings,
        }
        return CheckerConfig(**values)

    def start(self, *, slot: str = "w-0", **settings: Any) -> Daemon:
        """Start a worker and return it once it is ready."""
        return self.launch(slot=slot, **settings).ready()

    def launch(self, *, slot: str = "w-0", **settings: Any) -> Daemon:
        """Start a worker without waiting for it."""
        daemon = Daemon(self.config(**settings), slot)
        self.daemons.append(daemon)
        return daemon.start()

    def tail(self, topic: str) -> Tail:
        if topic not in self._tails:
            self._tails[topic] = Tail(self.servers, topic)
        return self._tails[topic]

    def reopen(self, topic: str) -> Tail:
        """Return a new reader of `topic`, which was created again."""
        self._tails.pop(topic).close()
        return self.tail(topic)

    def dead(self, count: int) -> list[Record]:
        """Return the dead letters once there are `count`."""
        return self.tail(self.names.dead).until(count)

    def dead_now(self) -> list[Record]:
        """Return the dead letters there are by now; `dead_letters` returns all there ever are."""
        return self.tail(self.names.dead).to_end()

    def delivered(self, topic: str, *, pairs: Iterable[int] | None = None) -> list[Record]:
        """Return all that `topic` ever holds of what was decided until now.

        A final fence: committed transactions to each of its partitions, through each pair. They
        count in the daemon's metrics of that topic, and stay in its `tail`.

        Args:
            topic: A real topic.
            pairs: The pairs that are served; None: all.
        """
        tail = self.tail(topic)
        for pair in self._pairs(pairs):
            for partition in tail.partitions:
                marker = self._marker(topic)
                self.pass_through(topic, partition=pair, real_partition=partition, value=marker)
        return tail.beside(self._markers[topic])

    def markers(self, topic: str) -> int:
        """Return how many markers were sent to a topic."""
        return len(self._markers[topic])

    def dead_letters(self, *, pairs: Iterable[int] | None = None) -> list[Record]:
        """Return all dead letters that there ever are of what was decided until now.

        A final fence: an operator's DISCARD through each pair. The dead-letter topic has one
        partition; the markers' letters count as OPERATOR.
        """
        tail = self.tail(self.names.dead)
        assert len(tail.partitions) == 1
        for pair in self._pairs(pairs):
            half = self.half(self.real("fence"), partition=pair, value=self._marker(tail.topic))
            self.op(OpKind.DISCARD, half, source=OpSource.OPERATOR, reason="marker")
        return tail.beside(self._markers[tail.topic])

    def asked(self, group: str = GROUP) -> list[Record]:
        """Return all check requests to a group about what fell due until now.

        A final fence: undecided transactions of the group in each pair, one for each partition of
        its check topic, which fall due after whatever was written before them. Once asked about
        they are rolled back.
        """
        tail = self.tail(self.names.check(group))
        halves = [
            self.half(
                self.real("fence"),
                _asked_first_in(partition, len(tail.partitions)),
                partition=pair,
                value=self._marker(tail.topic),
                producer_group=group,
            )
            for pair in self._pairs(None)
            for partition in tail.partitions
        ]
        found = tail.beside(self._markers[tail.topic])
        for half in halves:
            self.rollback(half, producer_group=group)
        return [each for each in found if each.value not in self._markers[tail.topic]]

    def checks(self, count: int, group: str = GROUP) -> list[Record]:
        """Return the check requests once there are `count`."""
        return self.tail(self.names.check(group)).until(count)

    def copies(self) -> list[Record]:
        """Return the copies in the half topic."""
        records = self.tail(self.names.half).to_end()
        return [each for each in records if each.half.origin_offset >= 0]

    def committed(self, topic: str, partition: int = 0) -> TopicPartition:
        """Return the daemon's committed offset with its metadata."""
        consumer = self._in_group()
        try:
            (found,) = consumer.committed([TopicPartition(topic, partition)], CALL_S)
        finally:
            consumer.close()
        return found

    def progress(self, partition: int = 0) -> Progress:
        """Return the committed progress of a partition pair."""
        half = self.committed(self.names.half, partition)
        op = self.committed(self.names.op, partition)
        return parse_progress(half.offset, op.offset, op.metadata)

    def set_committed(
        self, topic: str, offset: int, metadata: str | None = None, *, partition: int = 0
    ) -> None:
        """Commit for the daemon's group by hand, as an admin's tool would; it must not run."""
        place = TopicPartition(topic, partition, offset, metadata)
        consumer = self._in_group()
        try:
            (done,) = consumer.commit(offsets=[place], asynchronous=False)
        finally:
            consumer.close()
        assert done.error is None, done.error

    def close(self) -> None:
        """Stop, close and delete everything."""
        try:
            self.end()
        finally:
            mine = sorted(self.topics())
            if mine:
                for future in self.admin.delete_topics(mine).values():
                    future.result(CALL_S)

    def end(self) -> None:
        """Stop and close everything; the topics stay."""
        try:
            for daemon in self.daemons:
                daemon.stop()
        finally:
            for tail in self._tails.values():
                tail.close()

    def _limit(self, topic: str, size: str) -> None:
        self.alter(topic, max_message_bytes=size)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

        def is_known() -> bool:
            reported = self.admin.describe_configs([resource])[resource].result(CALL_S)
            return bool(reported["max.message.bytes"].value == size)

        until(f"max.message.bytes of {topic} is {size}", is_known)

    def _marker(self, topic: str) -> bytes:
        marker = b"marker " + uuid.uuid4().hex.encode()
        self._markers[topic].add(marker)
        return marker

    def _pairs(self, given: Iterable[int] | None) -> list[int]:
        known = self.admin.list_topics(self.names.half, timeout=CALL_S).topics[self.names.half]
        return sorted(known.partitions if given is None else given)

    def _append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int,
    ) -> Any:
        acked: list[Any] = []
        self._producer.produce(
            topic,
            value,
            key,
            partition,
            on_delivery=lambda error, message: acked.append(error or message),
            headers=list(headers),
        )
        deadline = monotonic() + CALL_S
        while not acked:
            assert monotonic() < deadline, f"no ack from {topic}"
            self._producer.poll(0.1)
        assert hasattr(acked[0], "offset"), f"{topic}: {acked[0]}"
        return acked[0]

    def _in_group(self) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.names.daemon_group,
                "enable.auto.commit": False,
            }
        )


def _asked_first_in(partition: int, partitions: int) -> str:
    """Return an id whose first request goes to that partition of a check topic."""
    ids = (uuid.uuid4().hex for _ in count())
    return next(each for each in ids if (crc32(each.encode()) + 1) % partitions == partition)
