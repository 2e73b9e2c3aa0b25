"""Asks the brokers for topics, offsets and the daemon's progress, through Spark's Kafka client.

So one set of properties (`--kafka-opt`) serves both, and the driver needs no second client. A Spark
Connect client has no JVM of its own for this; it can only read the offsets of a snapshot in a file.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypedDict

from halfbridge.serde.progress import ProgressError, parse_progress
from halfbridge.spark_jobs.capabilities import SPARK_ERRORS
from halfbridge.spark_jobs.errors import JobError, cause_of
from halfbridge.spark_jobs.tables.storage import jvm_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from py4j.java_gateway import JavaClass, JavaObject, JavaPackage, JVMView
    from pyspark.sql import SparkSession

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.spark_jobs.reading.topics import Topics

_ANSWER_MS = 30_000  # longest wait for an answer: Kafka's default of request.timeout.ms
_POLL_S = 0.1  # between two polls of a last stable offset, each a request to each leader


@dataclass(frozen=True, slots=True)
class Applied:
    """The progress that the daemon has committed; empty where it has committed none."""

    # Op partition -> O, or the first op whose delivery is deferred: what follows it may have had
    # its effect or not.
    ops: dict[int, int]
    # Half partition -> P; without partitions whose metadata cannot be trusted.
    positions: dict[int, int]


class Where(TypedDict):
    """Which cluster `connect` connects to, and how."""

    bootstrap_servers: str
    kafka: Mapping[str, str]  # properties by their Java names


class Brokers:
    """Questions to the brokers, of any thread; `connect` makes one.

    Each raises JobError when they do not answer, or refuse: the user must act.
    """

    def __init__(self, jvm: JVMView, admin: JavaObject, servers: str) -> None:
        self._jvm = jvm
        self._admin = admin
        self._servers = servers

    def cluster_id(self) -> str:
        """Return the id that the cluster got when it was made."""
        found: str = self._get(self._admin.describeCluster().clusterId())
        return found

    def topics(self) -> frozenset[str]:
        """Return the names of all topics that are not Kafka's own."""
        return frozenset(self._get(self._admin.listTopics().names()))

    def topic_ids(self, topics: Topics) -> dict[str, str]:
        """Return topic -> id of those of `topics` that the cluster has.

        A topic that is deleted and created again has another id. The id is empty where the
        cluster gives topics no ids.
        """
        options = self._kafka.clients.admin.ListTopicsOptions().listInternal(True)  # noqa: FBT003  # Java
        listings = self._get(self._admin.listTopics(options).namesToListings())
        zero = self._kafka.common.Uuid.ZERO_UUID.toString()
        found = {}
        for name in self._names(topics, listings.keySet()):
            if (listing := listings.get(name)) is not None:
                topic_id: str = listing.topicId().toString()
                found[name] = "" if topic_id == zero else topic_id
        return found

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic with the cluster's own replication factor."""
        optional = self._jvm.java.util.Optional
        topic = self._kafka.clients.admin.NewTopic(name, optional.of(partitions), optional.empty())
        self._get(self._admin.createTopics([topic]).all())

    def delete_topic(self, name: str) -> None:
        """Remove a topic."""
        self._get(self._admin.deleteTopics([name]).all())

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return the partitions of topics, all of which must exist."""
        described = self._get(self._admin.describeTopics(list(topics)).allTopicNames())
        return sorted(
            (topic, number)
            for topic in described
            for number in range(described[topic].partitions().size())
        )

    def starts(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the logs begin."""
        return self._offsets(places, self._spec.earliest(), self._levels.READ_COMMITTED)

    def stable_ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets, to which a `read_committed` consumer can read."""
        return self._offsets(places, self._spec.latest(), self._levels.READ_COMMITTED)

    def ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks; rows of open kafka_txns are below them."""
        return self._offsets(places, self._spec.latest(), self._levels.READ_UNCOMMITTED)

    def stalls(self, topics: Topics) -> dict[TopicPartition, int]:
        """Return how many offsets open kafka_txns hide, for each partition that has any.

        A reader of committed records sees nothing after the last stable offset, and no error.
        """
        present = self._get(self._admin.listTopics().names()) if topics.pattern else ()
        names = self._names(topics, present)
        marks = self.ends(self.partitions(names))
        stable = self.stable_ends(marks)
        return {
            place: mark - stable[place] for place, mark in marks.items() if stable[place] < mark
        }

    def awaited_ends(
        self, places: Iterable[TopicPartition], within_s: float
    ) -> tuple[dict[TopicPartition, int], frozenset[TopicPartition]]:
        """Return last stable offsets above all that is appended now, and where there are none.

        A kafka_txn that is open now hides later rows until it ends. The daemon's end within
        milliseconds, or within `kafka_txn_timeout_ms`; other programs' may last longer.
        """
        marks = self.ends(places)
        deadline = monotonic() + within_s
        while True:
            stable = self.stable_ends(marks)
            hidden = frozenset(place for place, mark in marks.items() if stable[place] < mark)
            if not hidden or monotonic() >= deadline:
                return stable, hidden
            sleep(_POLL_S)

    def applied(self, group: str, half: str, op: str) -> Applied:
        """Return the daemon's committed progress; kafka_txns that are open do not count."""
        found = self._admin.listConsumerGroupOffsets(group)
        offsets = self._get(
            found.partitionsToOffsetAndMetadata(),
            failed=f"cannot read the committed offsets of group {group}",
        )
        committed = {
            (place.topic(), place.partition()): (said.offset(), said.metadata())
            for place in offsets
            if (said := offsets[place]) is not None
        }
        return read_applied(committed, half=half, op=op)

    @property
    def _kafka(self) -> JavaPackage:
        return self._jvm.org.apache.kafka

    @property
    def _spec(self) -> JavaClass:
        return self._kafka.clients.admin.OffsetSpec

    @property
    def _levels(self) -> JavaClass:
        return self._kafka.common.IsolationLevel

    def _names(self, topics: Topics, present: JavaObject) -> tuple[str, ...]:
        if not topics.pattern:
            return topics.names
        matches = self._jvm.java.util.regex.Pattern.compile(topics.pattern).asMatchPredicate()
        return tuple(self._jvm.java.util.ArrayList(present).stream().filter(matches).toList())

    def _offsets(
        self, places: Iterable[TopicPartition], spec: JavaObject, level: JavaObject
    ) -> dict[TopicPartition, int]:
        wanted = self._jvm.java.util.HashMap()
        for topic, number in places:
            wanted.put(self._kafka.common.TopicPartition(topic, number), spec)
        options = self._kafka.clients.admin.ListOffsetsOptions(level)
        answered = self._get(self._admin.listOffsets(wanted, options).all())
        return {
            (each.topic(), each.partition()): answered[each].offset() for each in list(answered)
        }

    def _get(self, future: JavaObject, *, failed: str = "") -> JavaObject:
        milliseconds = self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        try:
            return future.get(_ANSWER_MS, milliseconds)
        except SPARK_ERRORS as error:
            what = failed or f"{self._servers} does not answer"
            raise JobError(f"{what}: {cause_of(error)}") from error


def read_applied(
    committed: Mapping[TopicPartition, tuple[int, str | None]], *, half: str, op: str
) -> Applied:
    """Return the positions in the offsets and metadata that the daemon's group has committed."""
    ops = {number: said for (topic, number), said in committed.items() if topic == op}
    applied = {number: offset for number, (offset, _) in ops.items()}
    positions: dict[int, int] = {}
    for number, (offset, metadata) in ops.items():
        half_offset, _ = committed.get((half, number), (-1, None))
        with suppress(ProgressError):  # the daemon stops there, and reports it
            progress = parse_progress(half_offset, offset, metadata)
            positions[number] = progress.position
            applied[number] = min((offset, *progress.deferred))
    return Applied(applied, positions)


@contextmanager
def connect(
    spark: SparkSession, bootstrap_servers: str, kafka: Mapping[str, str]
) -> Iterator[Brokers]:
    """Yield a connection for the time of the block; `kafka` are properties by their Java names.

    Raises:
        JobError: there is no JVM in this process, no Kafka connector in it, or a property is wrong;
            the user must act.
    """
    jvm = jvm_of(spark)
    properties = jvm.java.util.Properties()
    given = {
        "default.api.timeout.ms": str(_ANSWER_MS),
        "request.timeout.ms": str(_ANSWER_MS // 2),
        **{name: value for name, value in kafka.items() if not name.startswith("max.poll.")},
        "bootstrap.servers": bootstrap_servers,
    }
    for name, value in given.items():
        properties.setProperty(name, value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    except TypeError as error:  # what py4j makes of a class that is not there
        raise JobError(
            "this Spark session has no Kafka connector: give spark-submit --packages or --jars"
            " (docs/how-to/spark-cluster.md)"
        ) from error
    except SPARK_ERRORS as error:
        raise JobError(f"cannot connect to {bootstrap_servers}: {cause_of(error)}") from error
    try:
        yield Brokers(jvm, admin, bootstrap_servers)
    finally:
        admin.close(jvm.java.time.Duration.ofSeconds(1))
