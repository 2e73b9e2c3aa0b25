"""The Kafka cluster as the operator's commands use it: topics, offsets, and whole partitions."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from halfbridge.checker.admin.read import CommittedOffset, records_between
from halfbridge.checker.admin.shape import SeenTopic, TopicShape
from halfbridge.checker.errors import AdminRetriableError, AdminSetupError, DamagedRecordError
from halfbridge.checker.signatures import operator_signatures
from halfbridge.kafka import last_read
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.error_log import SILENT, Reasons
from halfbridge.kafka.errors import PASSING, BridgeError, Code, KafkaFailure, RetriableError
from halfbridge.kafka.first_reads import find_damage
from halfbridge.kafka.ports import NO_COMMITTED_OFFSET, Edge, NewTopic
from halfbridge.kafka.settings_topic import READING, Reading, read_topic
from halfbridge.kafka.signatures import NO_SIGNATURES, Signatures
from halfbridge.serde.topics import ADMIN_GROUP, TopicNames

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.kafka.ports import (
        Admin,
        Ports,
        Reader,
        TopicPartition,
        TransactionalWriter,
        Writer,
    )
    from halfbridge.kafka.ports import SeenTopic as Metadata

T = TypeVar("T")
CALL_TIMEOUT_S = 20.0  # an operator waits; brokers elect a leader in less
REACH_TIMEOUT_S = 8.0  # of a cluster that has answered before: a person waits
# Until a broker answers for the first time: an operator waits, and a typo in the address is the
# usual cause. A client that is given three brokers of which two are gone needs less than a second.
FIRST_ANSWER_S = 3.0
SETTLE_TIMEOUT_S = 30.0  # not every broker knows a new topic at once; busy ones take seconds
SETTLE_POLL_S = 0.05  # a broker applies a new topic within some 100 ms; each poll is one request
NO_PROPERTIES: Mapping[str, object] = MappingProxyType({})


class Cluster:
    """A Kafka cluster, as the operator's commands need it; by default on the system's ports."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        kafka: Mapping[str, object] | None = None,
        ports: Ports | None = None,
        signatures: Signatures = NO_SIGNATURES,
    ) -> None:
        self.ports = self._ports = ports or system_ports()
        self.signatures = signatures
        self.bootstrap_servers = bootstrap_servers
        self._common: dict[str, object] = {
            **(kafka or {}),
            "bootstrap.servers": bootstrap_servers,
            "allow.auto.create.topics": False,
            # Errors come back from the calls; librdkafka's own log lines would only repeat them.
            "log_level": 0,
        }
        self._reading: dict[str, object] = {
            **self._common,
            "group.id": ADMIN_GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": last_read.verifies(),  # a wrong checksum may abort the process
        }
        self._has_system_ports = self._ports is system_ports()
        self._reasons = Reasons()
        self._admin = self._ports.kafka.admin({**self._common, "error_cb": self._reasons.note})
        self._has_answered = False

    @property
    def admin(self) -> Admin:
        """What brokers are asked by; failures are KafkaFailure (`errors`)."""
        return self._admin

    def broker_count(self) -> int:
        """Return how many brokers there are."""
        with self.errors("reach Kafka"):
            count = self._admin.broker_count(self._answer_timeout_s)
        self._has_answered = True
        return count

    def topics(self) -> list[str]:
        """Return the names of all topics that may be seen."""
        return sorted(self.seen_topics())

    def seen_topics(self) -> dict[str, Metadata]:
        """Return all topics that may be seen, as the brokers' metadata describe them."""
        with self.errors("reach Kafka"):
            return self._known()

    def _known(self) -> dict[str, Metadata]:
        known = self._admin.topics(self._answer_timeout_s)
        self._has_answered = True
        return known

    @property
    def _answer_timeout_s(self) -> float:
        """FIRST_ANSWER_S until a broker has answered, then REACH_TIMEOUT_S."""
        return REACH_TIMEOUT_S if self._has_answered else FIRST_ANSWER_S

    def describe(self, topics: Iterable[str]) -> dict[str, SeenTopic]:
        """Return those of `topics` that exist."""
        wanted = tuple(topics)
        with self.errors("read topic settings"):
            return self.retrying(lambda: self._described(wanted))

    def _described(self, topics: Sequence[str]) -> dict[str, SeenTopic]:
        known = self._known()
        found = [topic for topic in topics if topic in known]
        if not found:
            return {}
        return {
            topic: SeenTopic(known[topic].partitions, known[topic].replicas, answer.result())
            for topic, answer in self._admin.ask_settings(found, CALL_TIMEOUT_S).items()
        }

    def create(self, shape: TopicShape, *, replication_factor: int) -> bool:
        """Make a topic and wait until it is known; return False when it is there already."""
        settings = {wanted.key: wanted.value for wanted in shape.settings}
        topic = NewTopic(shape.name, shape.partitions, replication_factor, settings)
        attempts = count(1)
        with self.errors(f"create topic {shape.name}", topics=(shape.name,)):
            is_new = self.retrying(lambda: self._create(topic, attempt=next(attempts)))
        if is_new:
            self._settle(shape.name, shape.partitions)
        return is_new

    def grow(self, topic: str, *, partitions: int) -> None:
        """Add partitions to a topic, `partitions` in all, and wait until they are known."""
        with self.errors(f"add partitions to {topic}", topics=(topic,)):
            self._admin.add_partitions(topic, partitions, CALL_TIMEOUT_S).result()
        self._settle(topic, partitions)

    def alter(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change some settings of a topic: all of them, or none."""
        with self.errors(f"alter topic {topic}", topics=(topic,)):
            self._admin.alter_settings(topic, settings, CALL_TIMEOUT_S).result()

    def live_members(self, group: str) -> list[str]:
        """Return the client ids and hosts of a consumer group's live members."""
        with self.errors(f"describe group {group}", group=group):
            try:
                return self.retrying(
                    lambda: self._admin.ask_members(group, CALL_TIMEOUT_S).result()
                )
            except KafkaFailure as failure:
                if failure.code == Code.GROUP_ID_NOT_FOUND:
                    return []
                raise

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets; uncommitted partitions have offset -1."""
        # A reader, not AdminClient.list_consumer_group_offsets: while the coordinator still loads
        # its offsets, that call dereferences a consumer group, which an admin client does not have
        # (rd_kafka_handle_OffsetFetch, seen with librdkafka 2.16 as a segmentation fault).
        with (
            self.errors(f"read the offsets of group {group}", group=group),
            self.reader(group) as reader,
        ):
            found = self.retrying(lambda: reader.committed(partitions, CALL_TIMEOUT_S))
        return {
            place: CommittedOffset(
                -1 if each.offset == NO_COMMITTED_OFFSET else each.offset, each.metadata or ""
            )
            for place, each in found.items()
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets with metadata for a group without live members, all in one request."""
        with (
            self.errors(f"commit offsets of group {group}", group=group),
            self.reader(group) as reader,
        ):
            self.retrying(lambda: reader.commit(offsets))

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """Return log start and end of a partition, read_uncommitted."""
        place = (topic, partition)
        with self.errors(f"read the ends of {topic} {partition}", topics=(topic,)):
            start, end = (
                self._admin.ask_ends([place], edge, CALL_TIMEOUT_S)[place]
                for edge in (Edge.START, Edge.END)
            )
            return start.result(), end.result()

    def partition_count(self, topic: str) -> int:
        """Return a topic's number of partitions; 0 when it does not exist."""
        known = self.seen_topics().get(topic)
        return 0 if known is None else known.partitions

    def read(
        self, topic: str, partition: int, *, start: int, end: int
    ) -> Generator[LogRecord, None, None]:
        """Yield a partition's committed records from `start` up to `end`, an end it has had.

        Raises:
            DamagedRecordError: a record cannot be read; an operator follows its text.
            AdminRetriableError: no progress for `CALL_TIMEOUT_S`, such as when a kafka_txn is open;
                run the command again later.
        """
        if start >= end:
            return
        place = (topic, partition)
        self.refuse_damaged({place: (start, end)})
        with self.errors(f"read {topic} {partition}", topics=(topic,)), self.reader() as reader:
            yield from records_between(
                reader,
                place,
                start,
                end,
                clock=self._ports.clock,
                patience_s=CALL_TIMEOUT_S,
                on_silence=self.find_damage,
            )

    def refuse_damaged(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Refuse spans with a record that ended this command before.

        Raises DamagedRecordError: an operator follows its text.
        """
        for place, (start, end) in spans.items():
            at, why = last_read.DAMAGED.get(place, (-1, ""))
            if start <= at < end:
                raise DamagedRecordError(place, at, why)

    def find_damage(self, starts: Mapping[TopicPartition, int]) -> None:
        """Find out whether nothing comes of partitions because a record is damaged.

        Raises DamagedRecordError: one is; an operator follows its text.
        """
        if self._has_system_ports:
            found = find_damage(self._reading, starts)
            if found is not None:
                place = found.topic, found.partition
                raise DamagedRecordError(place, found.offset, found.signal)

    def _create(self, topic: NewTopic, *, attempt: int) -> bool:
        try:
            self._admin.create_topics([topic], CALL_TIMEOUT_S)[topic.name].result()
        except KafkaFailure as failure:
            if failure.code == Code.TOPIC_ALREADY_EXISTS:
                return attempt > 1  # made by an attempt whose answer did not come
            raise
        return True

    def require(self, names: TopicNames, topic: str, use: str) -> None:
        """Return if a topic exists.

        `use` is a clause for the error, such as "which keeps operators' actions".

        Raises AdminSetupError: it does not; the operator runs the command in the text.
        """
        if not self.partition_count(topic):
            raise AdminSetupError(
                f"topic {topic} is missing, {use}; run: halfbridge topics create"
                f" {names.options(self.bootstrap_servers)}",
                topics=(topic,),
            )

    def settings(self, names: TopicNames) -> Reading:
        """Return the settings topic as clients read it.

        Raises AdminError: it cannot be read; the operator follows the text.
        """
        try:
            with self.reader(more=READING) as reader:
                run, clock = self._ports.run, self._ports.clock
                return read_topic(reader, names.settings, stop=run.event(), clock=clock)
        except BridgeError as error:
            is_passing = isinstance(error, RetriableError)
            kind = AdminRetriableError if is_passing else AdminSetupError
            raise kind(str(error), topics=(names.settings,)) from error

    def writer(self, properties: Mapping[str, object]) -> Writer:
        """Return a writer with `properties` in addition to the cluster's; the caller closes it."""
        return self._ports.kafka.writer(
            {**self._common, **properties, "error_cb": self._reasons.note}
        )

    def transactional_writer(self, properties: Mapping[str, object]) -> TransactionalWriter:
        """Return a writer of kafka_txns; as `writer`."""
        return self._ports.kafka.transactional_writer(
            {**self._common, **properties, "error_cb": self._reasons.note}
        )

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below some offsets; the log start is at least there afterwards."""
        with self.errors("delete records"):
            for answer in self._admin.delete_records(offsets, CALL_TIMEOUT_S).values():
                answer.result()

    @contextmanager
    def reader(
        self, group: str = ADMIN_GROUP, *, more: Mapping[str, object] = NO_PROPERTIES
    ) -> Iterator[Reader]:
        """Yield a reader of committed records in no group, with `more` client properties."""
        reader = self._ports.kafka.reader({**self._reading, "group.id": group, **more})
        try:
            yield reader
        finally:
            reader.close()

    def _settle(self, topic: str, partitions: int) -> None:
        """Wait until every partition of a topic has a leader that answers."""
        deadline = self._ports.clock.monotonic() + SETTLE_TIMEOUT_S
        while not self._answers(topic, partitions):
            if self._ports.clock.monotonic() > deadline:
                raise AdminRetriableError(
                    f"topic {topic} was made but has no leader after {SETTLE_TIMEOUT_S:.0f} s;"
                    " try again",
                    topics=(topic,),
                )
            self._ports.run.pause(SETTLE_POLL_S)

    def _answers(self, topic: str, partitions: int) -> bool:
        known = self.seen_topics().get(topic)
        # Any broker may be asked, and this one may not have heard of it.
        return known is not None and known.partitions >= partitions and known.is_led

    def retrying(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, called again while brokers answer what will pass."""
        deadline = self._ports.clock.monotonic() + SETTLE_TIMEOUT_S
        while True:
            try:
                return call()
            except KafkaFailure as failure:
                if failure.code not in PASSING or self._ports.clock.monotonic() > deadline:
                    raise
            self._ports.run.pause(SETTLE_POLL_S)

    @contextmanager
    def errors(self, action: str, *, topics: Sequence[str] = (), group: str = "") -> Iterator[None]:
        """Turn KafkaFailure into AdminSetupError, with the brokers' reasons: an operator acts.

        `topics` and `group` are those that `action` names.
        """
        try:
            yield
        except KafkaFailure as failure:
            self._admin.poll(0)  # reports its connection errors
            if failure.code in SILENT and not self._has_answered:
                where = f"{self.bootstrap_servers} within {FIRST_ANSWER_S:g} s"
                why = f": {self._reasons.last}" if self._reasons.last else ""
                raise AdminSetupError(
                    f"no broker answers at {where}{why}; check that the brokers run, and"
                    " --bootstrap-servers and --kafka"
                ) from failure
            text = self._reasons.explain(failure)
            raise AdminSetupError(
                f"cannot {action} at {self.bootstrap_servers}: {text};"
                " check that the brokers run, the address and the rights",
                topics=topics,
                group=group,
            ) from failure


def judging_cluster(config: CheckerConfig, ports: Ports | None = None) -> Cluster:
    """Return the cluster of the settings, with the keys of the operator's key file."""
    return Cluster(
        config.bootstrap_servers,
        kafka=config.kafka,
        ports=ports,
        signatures=operator_signatures(config),
    )
