"""A daemon under test: an installation of its own, a worker, and readers of what it wrote.

Every wait has a named deadline and says what it waited for. That something does *not* happen is
shown by a fence: a later transaction through the same partition, which is decided only after
everything before it had its effect, for ops apply in op order.
"""

from __future__ import annotations

import gc
import json
import threading
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bridge import TransactionProducer
from checker.admin.kafka_io import Cluster
from checker.admin.shape import Layout
from checker.admin.topics import create_topics
from checker.config import CheckerConfig
from checker.core.progress import Progress, parse_progress
from checker.http import HttpServer, Status, serve
from checker.service import run_worker
from serde import headers as names
from serde.avro import CHECK_REQUEST, DEAD_LETTER, HALF_METADATA, OP
from serde.records import (
    CheckRequest,
    DeadLetter,
    HalfMetadata,
    Op,
    OpKind,
    OpSource,
)
from serde.topics import TopicNames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# How long anything may take on a machine that does other things too; far above what is usual.
SETTLED_S = 40.0
# A call to the broker.
CALL_S = 20.0
POLL_S = 0.01
GROUP = "orders-service"
HALF_RETENTION_MS = 7 * 24 * 3_600_000

Headers = list[tuple[str, "bytes | None"]]


def until(what: str, condition: Callable[[], Any], *, within_s: float = SETTLED_S) -> Any:
    """Return the first true value of `condition`; fail with `what` when the time is over."""
    deadline = monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert monotonic() < deadline, f"{what}: not within {within_s:g} s"
        sleep(POLL_S)


class Stored(NamedTuple):
    """Where a record of the test stands."""

    transaction_id: str
    partition: int
    offset: int
    append_ms: int


@dataclass(frozen=True)
class Record:
    """One record as an independent consumer sees it."""

    topic: str
    partition: int
    offset: int
    is_append_time: bool
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """Return the last header of that name."""
        return next(value for given, value in reversed(self.headers) if given == name)

    @property
    def transaction_id(self) -> str:
        """The id that a real record carries."""
        return (self.header(names.TRANSACTION_ID) or b"").decode()

    @property
    def half(self) -> HalfMetadata:
        """What RMQ_HALF says."""
        return HALF_METADATA.decode(self.header(names.HALF) or b"")

    @property
    def dead(self) -> DeadLetter:
        """What RMQ_DEAD says."""
        return DEAD_LETTER.decode(self.header(names.DEAD) or b"")

    @property
    def check(self) -> CheckRequest:
        """What RMQ_CHECK says."""
        return CHECK_REQUEST.decode(self.header(names.CHECK) or b"")

    @property
    def op(self) -> Op:
        """What an op record says."""
        return OP.decode(self.value or b"")


class Tail:
    """Everything a `read_committed` consumer sees of a topic, from its start."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.records: list[Record] = []
        self._ended: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "tail",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "fetch.message.max.bytes": 4_194_304,
            }
        )
        known = self._consumer.list_topics(topic, CALL_S).topics[topic]
        assert known.error is None, f"{topic}: {known.error}"
        self._next = dict.fromkeys(known.partitions, 0)
        self._assign()

    def until(self, count: int, *, within_s: float = SETTLED_S) -> list[Record]:
        """Return the records once there are `count`; more are not waited for."""
        deadline = monotonic() + within_s
        while len(self.records) < count:
            assert monotonic() < deadline, (
                f"{self.topic}: {len(self.records)} of {count} records within {within_s:g} s"
            )
            self._take()
        return self.records

    def to_end(self) -> list[Record]:
        """Return all records there are now."""
        self._ended.clear()
        self._assign()
        until(f"end of {self.topic}", self._took_all)
        return self.records

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _assign(self) -> None:
        places = [TopicPartition(self.topic, number, at) for number, at in self._next.items()]
        self._consumer.assign(places)

    def _took_all(self) -> bool:
        self._take()
        return len(self._ended) == len(self._next)

    def _take(self) -> None:
        for message in self._consumer.consume(1000, 0.02):
            if message.error() is not None:
                self._ended.add(message.partition())
                continue
            kind, timestamp_ms = message.timestamp()
            self._next[message.partition()] = message.offset() + 1
            self.records.append(
                Record(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    kind == TIMESTAMP_LOG_APPEND_TIME,
                    timestamp_ms,
                    message.key(),
                    message.value(),
                    list(message.headers() or ()),
                )
            )


class Daemon:
    """One worker in a thread of this process, with its metrics and health on a port."""

    def __init__(self, config: CheckerConfig, slot: str) -> None:
        self.config = config
        self.slot = slot
        self.status = Status()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._server: HttpServer | None = None
        self._thread = threading.Thread(target=self._run, name=f"worker-{slot}", daemon=True)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have `labels`; 0 before it was counted."""
        return sum(
            sample.value
            for family in self.status.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def counts(self, name: str, wanted: float, **labels: str) -> None:
        """Return once a metric has reached exactly `wanted`; it is set after the kafka_txn."""
        until(
            f"{name}{labels or ''} = {wanted}, now {self.metric(name, **labels)}",
            lambda: self._raise() or self.metric(name, **labels) == wanted,
        )

    def healthz(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of /healthz, over HTTP."""
        assert self._server is not None
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._server.port}/healthz", timeout=CALL_S
            ) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def ready(self) -> Daemon:
        """Return once every partition that is not stopped has been rebuilt."""
        until("worker is ready", lambda: self._raise() or self.status.snapshot().ready)
        return self

    def stopped(self, partition: int) -> str:
        """Return why `partition` stopped, once it has."""
        errors: Mapping[int, str] = until(
            f"partition {partition} stops",
            lambda: self._raise() or self._stopped_with(partition),
        )
        return errors[partition]

    def stop(self) -> None:
        """Stop in order; raise what the worker raised. Idempotent."""
        self._stop.set()
        self._thread.join(SETTLED_S)
        assert not self._thread.is_alive(), "the worker does not end"
        if self._server is not None:
            self._server.close()
            self._server = None
        self._raise()

    def start(self) -> Daemon:
        """Start; `ready` says when it serves."""
        self._server = serve(self.status.metrics.registry, self.status.snapshot)
        self._thread.start()
        return self

    def _stopped_with(self, partition: int) -> Mapping[int, str] | None:
        errors = self.status.snapshot().partition_errors
        return errors if partition in errors else None

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        # The worker tunes the collector of its process, which here is the tests' own.
        thresholds = gc.get_threshold()
        try:
            run_worker(self.config, slot=self.slot, stop=self._stop, status=self.status)
        except BaseException as error:  # noqa: BLE001 (raised again in the test's thread)
            self._error = error
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()


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
        until(f"{topic} is known", lambda: self._is_led(topic, partitions))

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result()
        until(f"{topic} is gone", lambda: topic not in self.topics())

    def topics(self) -> set[str]:
        """Return the topics of this installation."""
        known = self.admin.list_topics(timeout=CALL_S).topics
        return {name for name in known if name.startswith(self.names.prefix)}

    def alter(self, topic: str, **settings: str) -> None:
        """Change settings of a topic."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result()

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
        values: dict[str, Any] = {
            "transaction_id": transaction_id,
            "born_timestamp": 1_700_000_000_000,
            "resume_count": 0,
            "message_index": 0,
            "producer_group": GROUP,
            "real_topic": topic,
            "real_partition": -1,
            "check_times": 0,
            "immunity_ms": -1,
            "first_append_timestamp": -1,
            "origin_offset": -1,
            **metadata,
        }
        return HALF_METADATA.encode(HalfMetadata(**values))

    def op(self, kind: OpKind, half: Stored, **given: Any) -> Stored:
        """Append an op about the transaction whose last half message is `half`."""
        values: dict[str, Any] = {
            "transaction_id": half.transaction_id,
            "timestamp": 1_700_000_000_000,
            "half_offset": half.offset,
            "resume_count": 0,
            "producer_group": GROUP,
            "kind": kind,
            "message_count": 1,
            "check_number": 0,
            "source": OpSource.PRODUCER,
            "actor": "test",
            "reason": "",
            **given,
        }
        record = Op(**values)
        return self.write(
            self.names.op,
            OP.encode(record),
            key=half.transaction_id.encode(),
            partition=half.partition,
            transaction_id=half.transaction_id,
        )

    def commit(self, half: Stored, **given: Any) -> Stored:
        """Append a COMMIT."""
        return self.op(OpKind.COMMIT, half, **given)

    def rollback(self, half: Stored, **given: Any) -> Stored:
        """Append a ROLLBACK."""
        return self.op(OpKind.ROLLBACK, half, **given)

    def answer_unknown(self, half: Stored, check_number: int) -> Stored:
        """Append an answer to a check that counts."""
        return self.op(
            OpKind.UNKNOWN,
            half,
            check_number=check_number,
            source=OpSource.CHECK,
            message_count=-1,
        )

    def pass_through(self, topic: str, *, partition: int = 0, **given: Any) -> Stored:
        """Append one committed transaction."""
        half = self.half(topic, partition=partition, **given)
        self.commit(half)
        return half

    def fence(self, partition: int = 0) -> None:
        """Return once everything that stands in op `partition` now has had its effect."""
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
        """Return the one reader of `topic`."""
        if topic not in self._tails:
            self._tails[topic] = Tail(self.servers, topic)
        return self._tails[topic]

    def reopen(self, topic: str) -> Tail:
        """Return a new reader of `topic`, which was made anew."""
        self._tails.pop(topic).close()
        return self.tail(topic)

    def dead(self, count: int) -> list[Record]:
        """Return the dead letters once there are `count`."""
        return self.tail(self.names.dead).until(count)

    def dead_now(self) -> list[Record]:
        """Return the dead letters there are."""
        return self.tail(self.names.dead).to_end()

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
            for daemon in self.daemons:
                daemon.stop()
        finally:
            for tail in self._tails.values():
                tail.close()
            mine = sorted(self.topics())
            if mine:
                for future in self.admin.delete_topics(mine).values():
                    future.result(CALL_S)

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

    def _is_led(self, topic: str, partitions: int) -> bool:
        known = self.admin.list_topics(topic, timeout=CALL_S).topics[topic]
        return known.error is None and (
            [each.leader >= 0 for each in known.partitions.values()] == [True] * partitions
        )
